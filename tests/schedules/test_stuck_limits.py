"""GPUs that take no limit any more, over real operators and agents in virtual time: others make room for them at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from flyball_simulated_gpu.device import DeviceFault

from tests.support.power_cluster import DEFAULT, GPUS, LARGEST, NODES
from tests.support.schedules.faults import Schedule
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
