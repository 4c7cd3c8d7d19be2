"""GPUs that take no limit any more, over real operators and agents in virtual time: others make room for them at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from unittest.mock import patch

import pytest
from flyball_agent.gpu.gpu import GpuDriver
from flyball_operator.power.grants import brakes
from flyball_simulated_gpu.device import DeviceFault

from tests.support.fewer_gpus import FewerGpus
from tests.support.power_cluster import DEFAULT, GPUS, LARGEST, NODES
from tests.support.schedules.faults import Schedule
from tests.support.schedules.hardware import Machine
from tests.support.schedules.processes import SETTINGS
from tests.support.schedules.run import run
from tests.support.schedules.world import Beginning, World

BEGINNING = Beginning((5, 10, 10), (False,) * 3, ((DEFAULT, 1.0),) * (len(NODES) * GPUS))


def is_enforced(world: World) -> bool:
    conditions = ((world.api.get("powercaps", "hall") or {}).get("status") or {}).get("conditions") or []
    return any(item["type"] == "Enforced" and item["status"] == "True" for item in conditions)


async def until(holds: Callable[[], bool], what: str, seconds: float) -> None:
    end = asyncio.get_running_loop().time() + seconds
    while not holds():
        assert asyncio.get_running_loop().time() < end, what
        await asyncio.sleep(0.01)


async def play(world: World, schedule: Schedule) -> None:
    try:
        await world.begin(schedule.beginning)
        await until(lambda: is_enforced(world), "the hall's cap is enforced", 20.0)
        await asyncio.sleep(2.0)
        for device in world.machines["b"].devices[: schedule.seed]:
            device.flags |= DeviceFault.SETTERS_FAIL
            world.referee.by_itself(
                device, "drift", lambda device=device: device.set_power_limit_milliwatts(LARGEST * 1000)
            )
        await until(lambda: not is_enforced(world), "the cap is over by what the GPUs hold", 10.0)
        await until(lambda: is_enforced(world), "the others have made room", 2.0)
        await asyncio.sleep(3.0)
        assert is_enforced(world)
    finally:
        await world.close()


@pytest.mark.parametrize("stuck", range(1, GPUS + 1))
def test_the_others_make_room_at_once_for_gpus_that_take_no_limit(stuck: int) -> None:
    assert not run(Schedule(stuck, BEGINNING, ()), play=play).violation


def driver_of(machine: Machine) -> GpuDriver:
    return FewerGpus(machine.node, machine.devices[1].uuid if machine.name == "b" else "none")


async def lower_twice(world: World, schedule: Schedule) -> None:
    """One GPU of a node is lost at its boot: its agent does not know of it, and holds less than the node counts with."""
    try:
        patience = replace(SETTINGS, status_interval_seconds=5.0, replan_seconds=10.0)
        world.settings = dict.fromkeys(world.settings, patience)
        with (
            patch.object(brakes, "FEWEST_NODES", len(NODES) + 1),
            patch.object(Machine, "driver", driver_of),
        ):
            await world.begin(schedule.beginning)
            world.pods.discard(("b", 1))
            del world.machines["b"].held[1]
            del world.intended.decisions["uid-b-1"], world.intended.incarnations["uid-b-1"]
            world.show_pods()
            await until(lambda: is_enforced(world), "the hall's cap is enforced", 20.0)
            await asyncio.sleep(6.0)
            for watts, pause in ((6, 0.15), (14, 0.0)):
                cap = world.api.get("powercaps", "hall")
                assert cap is not None
                world.api.put("powercaps", {**cap, "spec": {**cap["spec"], "watts": cap["spec"]["watts"] - watts}})
                await asyncio.sleep(pause)
            await until(lambda: not is_enforced(world), "the cap has fallen", 1.0)
            await until(lambda: is_enforced(world), "the small cut of the node has waited for a moment", 1.0)
    finally:
        await world.close()


def test_a_small_cut_of_a_node_that_holds_more_than_its_agent_knows_waits_no_longer_than_it_has_to() -> None:
    assert not run(Schedule(1, BEGINNING, ()), play=lower_twice).violation
