"""Processes that stand still and go on where they were, over real operators and agents in virtual time."""

from __future__ import annotations

import asyncio
from contextvars import copy_context

from tests.support.power_cluster import GPUS, LARGEST, NODES
from tests.support.schedules.faults import Fault, Schedule
from tests.support.schedules.memory_api import Json
from tests.support.schedules.processes import SETTINGS
from tests.support.schedules.run import run
from tests.support.schedules.virtual_time import OUTSIDE, PROCESS, RESOLUTION_SECONDS, VirtualLoop
from tests.support.schedules.workloads import until
from tests.support.schedules.world import Beginning, World

# Under a hall whose cap binds, everybody wants all there is.
BEGINNING = Beginning((8, 10, 10), (False,) * 3, ((LARGEST, 1.0),) * (len(NODES) * GPUS))
LONG = 2 * SETTINGS.leader_lease_seconds


def test_of_a_process_that_stands_still_nothing_runs_before_it_goes_on() -> None:
    loop, seen = VirtualLoop(), list[tuple[str, float]]()

    def look(who: str) -> None:
        seen.append((who, loop.time()))

    async def wait_twice() -> None:
        await asyncio.sleep(1.0)
        look("task")
        await asyncio.sleep(1.0)
        look("task")

    async def play() -> None:
        process = copy_context()
        process.run(PROCESS.set, "some process")
        process.run(loop.call_later, 1.5, look, "timer")
        task = loop.create_task(wait_twice(), context=process)
        loop.call_later(1.2, look, "wire", context=OUTSIDE)
        loop.freeze("some process")
        await asyncio.sleep(3.0)
        loop.thaw("some process")
        await task

    try:
        loop.run_until_complete(play())
    finally:
        loop.close()
    # The wait that had not begun begins now, as a sleep does whose process was stopped before it.
    assert seen == [("wire", 1.2), ("timer", 3.0), ("task", 4.0), ("task", 5.0)]


def test_whoever_waits_for_a_moment_finds_it_come() -> None:
    """What is due within the clock's resolution runs at once, as sums of floats are never exact."""
    loop, looks = VirtualLoop(), 0

    async def wait_until(moment: float) -> None:
        nonlocal looks
        while loop.time() < moment and looks < 10:
            looks += 1
            await asyncio.sleep(moment - loop.time())

    async def play() -> None:
        await asyncio.gather(asyncio.sleep(1.0), wait_until(1.0 + RESOLUTION_SECONDS / 2))

    try:
        loop.run_until_complete(play())
    finally:
        loop.close()
    assert looks == 1


def _claims(world: World) -> Json:
    return (world.api.get("powercaps", "hall") or {}).get("status") or {}


def _is_enforced(world: World) -> bool:
    return any(
        item["type"] == "Enforced" and item["status"] == "True" for item in _claims(world).get("conditions") or ()
    )


async def the_leader_stands_still_for_longer_than_its_claim(world: World, schedule: Schedule) -> None:
    try:
        await world.begin(schedule.beginning)
        await until(lambda: _is_enforced(world), "the hall's cap is enforced", 20.0)
        await asyncio.sleep(2.0)  # and has been given out
        former = world.leader()
        assert former is not None
        before = _claims(world)["epoch"]
        await world.freeze(former, LONG)
        world.set_cap("hall", 4)
        await until(lambda: _claims(world).get("epoch", 0) > before, "the other operator has taken over", LONG)
        await until(lambda: _is_enforced(world), "under which the lower cap is enforced", LONG)
        others = _claims(world)["epoch"]
        await asyncio.sleep(LONG)  # the former one goes on meanwhile, with all that it had decided
        assert world.leader() != former
        assert _claims(world)["epoch"] == others
        assert _is_enforced(world)
    finally:
        await world.close()


def test_a_leader_that_goes_on_after_its_claim_ended_changes_nothing_of_its_successors() -> None:
    assert not run(Schedule(3, BEGINNING, ()), play=the_leader_stands_still_for_longer_than_its_claim).violation


async def an_agent_stands_still_while_its_cap_falls(world: World, schedule: Schedule) -> None:
    try:
        await world.begin(schedule.beginning)
        await until(lambda: _is_enforced(world), "the hall's cap is enforced", 20.0)
        await asyncio.sleep(2.0)  # and has been given out
        await world.freeze("b", SETTINGS.report_timeout_seconds + LONG)
        world.set_cap("hall", 4)
        await asyncio.sleep(SETTINGS.report_timeout_seconds)
        assert not _is_enforced(world), "what it holds is more than the others can make room for"
        await until(lambda: _is_enforced(world), "once it goes on, the lower cap is enforced", 2 * LONG)
    finally:
        await world.close()


def test_a_cap_is_not_called_enforced_while_an_agent_that_would_have_to_cut_stands_still() -> None:
    assert not run(Schedule(4, BEGINNING, ()), play=an_agent_stands_still_while_its_cap_falls).violation


def test_one_that_is_killed_while_it_stands_still_is_gone_at_once() -> None:
    faults = (
        Fault(4.0, "agent stands still", "a", 9.0, 0),
        Fault(5.0, "agent dies", "a", 0.5, 0),
        Fault(6.0, "operator stands still", "0", 5.0, 0),
        Fault(7.0, "operator dies", "0", 0.5, 0),
    )
    outcome = run(Schedule(5, BEGINNING, faults), keep_trace=True)
    assert not outcome.violation
    trace = [line.split(maxsplit=1) for line in outcome.trace]
    assert [at for at, said in trace if said == "agent a starts"] == ["0.000", "5.500"]
    assert [at for at, said in trace if said == "operator 0 starts"] == ["0.000", "7.500"]
    assert not {"a goes on", "0 goes on"} & {said for _, said in trace}
