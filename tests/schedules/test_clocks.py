"""An operator whose wall clock is hours off: windows open and close as they were agreed, by the API server's clock."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from tests.support.operator_objects import NOW
from tests.support.power_cluster import DEFAULT, GPUS, NODES, SELECTORS, cap_watts
from tests.support.schedules.faults import Schedule
from tests.support.schedules.memory_api import Json
from tests.support.schedules.run import run
from tests.support.schedules.workloads import until
from tests.support.schedules.world import Beginning, World

BEGINNING = Beginning((10, 10, 10), (False,) * 3, ((DEFAULT, 1.0),) * (len(NODES) * GPUS))
EVERYTHING_WATTS = len(NODES) * GPUS * DEFAULT
WINDOW_WATTS = cap_watts("hall", 5)


def enforced_watts(world: World) -> int | None:
    """What the hall's status claims to be enforced; None: nothing."""
    status = (world.api.get("powercaps", "hall") or {}).get("status") or {}
    conditions = status.get("conditions") or []
    enforced = any(item["type"] == "Enforced" and item["status"] == "True" for item in conditions)
    return status["effectiveWatts"] if enforced else None


def hold_seconds(gpu_node: Json) -> int:
    """For how long the node is to hold its limits once it sees no operator any more."""
    found: int = gpu_node["spec"]["otherGpus"]["failsafeHoldSeconds"]
    return found


@pytest.mark.parametrize("offset_seconds", [-7200.0, 7200.0])
def test_a_window_opens_and_closes_as_agreed_though_the_leaders_clock_is_hours_off(offset_seconds: float) -> None:
    async def play(world: World, schedule: Schedule) -> None:
        loop = asyncio.get_running_loop()
        try:
            await world.begin(schedule.beginning)
            await until(lambda: world.limits_watts() == EVERYTHING_WATTS, "all is granted", 10.0)
            world.wall_offsets = dict.fromkeys(world.wall_offsets, offset_seconds)
            begins = loop.time() + 8.0
            start, end = (NOW + timedelta(seconds=at) for at in (begins, begins + 4.0))
            window = {"name": "event", "watts": WINDOW_WATTS, "start": start.isoformat(), "end": end.isoformat()}
            world.say_of_cap("hall", {"schedule": [window]})
            await asyncio.sleep(6.5)  # the server's clock is known to a second
            assert world.limits_watts() == EVERYTHING_WATTS
            await until(lambda: enforced_watts(world) == WINDOW_WATTS, "the window is enforced", 4.5)
            assert world.limits_watts() <= WINDOW_WATTS
            await until(lambda: world.limits_watts() == EVERYTHING_WATTS, "it is over", begins + 7.0 - loop.time())
        finally:
            await world.close()

    assert not run(Schedule(1, BEGINNING, ()), play=play).violation


def test_no_node_is_to_hold_its_limits_past_a_window_though_the_leaders_clock_is_set_back() -> None:
    """Not for a moment: whatever ends the operator right then, nobody would take the hold back."""

    async def play(world: World, schedule: Schedule) -> None:
        loop = asyncio.get_running_loop()
        try:
            await world.begin(schedule.beginning)
            start, end = (NOW + timedelta(seconds=loop.time() + at) for at in (1800.0, 3600.0))
            window = {"name": "event", "watts": WINDOW_WATTS, "start": start.isoformat(), "end": end.isoformat()}
            for cap in SELECTORS:
                world.say_of_cap(cap, {"failsafe": "Hold", "schedule": [window] if cap == "hall" else []})
            await until(lambda: world.limits_watts() == EVERYTHING_WATTS, "all is granted", 10.0)
            await asyncio.sleep(2.3)
            holds: list[int] = []
            world.api.open("gpunodes", world.api.version, lambda change: holds.append(hold_seconds(change.item)))
            world.wall_offsets = dict.fromkeys(world.wall_offsets, -7200.0)
            world.plan(((DEFAULT - 50, 1.0),) * (len(NODES) * GPUS))  # decided on before the server has answered again
            await asyncio.sleep(10.0)
            assert holds
            assert not any(holds), holds
        finally:
            await world.close()

    assert not run(Schedule(1, BEGINNING, ()), play=play).violation
