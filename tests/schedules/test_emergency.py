"""An emergency over real operators and agents in virtual time: agents act on it alone, and its end lifts nothing."""

from __future__ import annotations

import asyncio

from tests.support.power_cluster import GPUS, MIN, NODES
from tests.support.schedules.faults import Schedule
from tests.support.schedules.run import run
from tests.support.schedules.world import OPERATORS, Beginning, World

# Everybody gets what no GPU has at its start, under caps that do not bind.
WATTS = 300
BEGINNING = Beginning((10, 10, 10), (False, False, False), ((WATTS, 1.0),) * (len(NODES) * GPUS))
LOWEST, GRANTED = {MIN}, {WATTS}


def limits_watts(world: World, *names: str) -> set[int]:
    """The limits of all GPUs of these nodes, as the hardware has them."""
    return {
        device.read().requested_limit_milliwatts // 1000
        for name in names or NODES
        for device in world.machines[name].devices
    }


async def reach(world: World, wanted: set[int], *names: str, seconds: float = 20.0) -> None:
    end = asyncio.get_running_loop().time() + seconds
    while limits_watts(world, *names) != wanted:
        assert asyncio.get_running_loop().time() < end, f"{limits_watts(world, *names)} W, not {wanted}"
        await asyncio.sleep(0.1)


async def stay(world: World, wanted: set[int], *names: str, seconds: float = 5.0) -> None:
    end = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < end:
        assert limits_watts(world, *names) == wanted
        await asyncio.sleep(0.1)


async def without_an_operator(world: World, schedule: Schedule) -> None:
    try:
        await world.begin(schedule.beginning)
        await reach(world, GRANTED)
        for name in OPERATORS:
            await world.stop_operator(name, 30.0)
        world.emergency("hall", "Active")
        await reach(world, LOWEST, seconds=2.0)
        await world.stop_agent("a", 1.0)
        await stay(world, LOWEST)
        world.emergency("hall", "Ended")
        await stay(world, LOWEST)
        await reach(world, GRANTED, seconds=60.0)  # the operators are back, and grant anew
    finally:
        await world.close()


async def under_an_operator(world: World, schedule: Schedule) -> None:
    try:
        await world.begin(schedule.beginning)
        await reach(world, GRANTED)
        world.emergency("row", "Active")  # over a and b
        await reach(world, LOWEST, "a", "b", seconds=2.0)
        await stay(world, LOWEST, "a", "b")
        assert limits_watts(world, "c") == GRANTED
        leader = world.leader()
        assert leader is not None
        await world.stop_operator(leader, 60.0)  # the next leader finds it standing
        await stay(world, LOWEST, "a", "b", seconds=30.0)
        status = world.api.get("powercaps", "row")["status"]  # type: ignore[index]
        assert {item["type"]: item["status"] for item in status["conditions"]}["Emergency"] == "True"
        world.emergency("row", "Ended")
        await reach(world, GRANTED)
    finally:
        await world.close()


def test_agents_act_on_an_emergency_alone_and_its_end_lifts_nothing_by_itself() -> None:
    assert not run(Schedule(1, BEGINNING, ()), play=without_an_operator).violation


def test_an_emergency_outlasts_leaders_and_is_shown_by_its_cap() -> None:
    assert not run(Schedule(2, BEGINNING, ()), play=under_an_operator).violation
