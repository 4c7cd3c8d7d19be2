"""A report that comes after a later one, over real operators and agents in virtual time: what it says is past."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from flyball_kube.resources import GPU_NODES
from flyball_simulated_gpu.device import DeviceFault

from tests.support.power_cluster import GPUS, LARGEST, MIN, NODES
from tests.support.schedules.faults import Fault, Schedule, schedule_of
from tests.support.schedules.memory_api import Json
from tests.support.schedules.run import run
from tests.support.schedules.world import Beginning, World

# Under a hall whose cap binds, node b wants the least and the others all there is.
BEGINNING = Beginning(
    (5, 10, 10), (False,) * 3, tuple((MIN if name == "b" else LARGEST, 1.0) for name in NODES for _ in range(GPUS))
)


async def until(holds: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    end = asyncio.get_running_loop().time() + seconds
    while not holds():
        assert asyncio.get_running_loop().time() < end, what
        await asyncio.sleep(0.001)


def reported_session(world: World) -> str:
    """The driver session that the last report of node b is of."""
    return str((world.api.get("gpunodes", "b") or {})["status"]["driverSession"])


def hall_is_enforced(world: World) -> bool:
    conditions: list[Json] = ((world.api.get("powercaps", "hall") or {}).get("status") or {}).get("conditions") or []
    return any(item["type"] == "Enforced" and item["status"] == "True" for item in conditions)


async def a_driver_is_loaded_anew_while_a_report_is_held_up(world: World, schedule: Schedule) -> None:
    try:
        await world.begin(schedule.beginning)
        await until(lambda: hall_is_enforced(world), "the hall's cap is enforced")
        await asyncio.sleep(2.0)
        machine, link, arrives = world.machines["b"], world.link_of("b"), asyncio.Event()
        assert link is not None
        link.held_up["PATCH", GPU_NODES.path(name="b", subresource="status")] = arrives
        await until(lambda: not link.held_up, "a report is on its way")
        before = reported_session(world)
        machine.reload_driver("driver reload")
        for device in machine.devices:
            device.flags |= DeviceFault.SETTERS_FAIL  # nobody puts them down again
        await until(lambda: reported_session(world) != before, "the next report says so")
        arrives.set()
        await asyncio.sleep(4.0)
        assert reported_session(world) != before
        assert hall_is_enforced(world)  # once the others have made room
    finally:
        await world.close()


def test_a_report_that_comes_after_a_later_one_brings_nothing_back() -> None:
    outcome = run(Schedule(1, BEGINNING, ()), play=a_driver_is_loaded_anew_while_a_report_is_held_up)
    assert not outcome.violation


def test_a_report_that_is_held_up_for_too_long_lifts_no_doubt_that_there_was_before() -> None:
    """The doubt began when the Node was away; meanwhile the agent dies and its driver is loaded anew, which nobody sees."""
    seed = 15012775
    faults = (
        Fault(6.70, "Node is deleted and registered again", "c", 4.33, 474),
        Fault(10.41, "requests and answers are lost, late or doubled", "c", 2.50, 557),
        Fault(13.92, "driver reload while the agent is away", "c", 6.64, 173),
    )
    assert not run(Schedule(seed, schedule_of(seed).beginning, faults)).violation


def test_a_gpu_node_that_cannot_be_read_for_a_moment_keeps_no_agent_alive() -> None:
    """Its agent is dead, and its driver was loaded anew: how long it has been silent is not forgotten."""
    faults = (
        Fault(4.0, "driver reload while the agent is away", "b", 13.0, 0),
        Fault(8.3, "GPUNode cannot be read", "b", 0.1, 0),
    )
    assert not run(Schedule(0, BEGINNING, faults)).violation
