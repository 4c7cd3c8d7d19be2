"""Agents that answer later than their operator waits, as under an API server that is overloaded: no grant follows from that
alone, over real operators and agents in virtual time; a cut is written at once, and what a silent node holds comes free."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from flyball_kube.resources import POWER_CAPS

from tests.support.power_cluster import DEFAULT, GPUS, LARGEST, NODES
from tests.support.schedules.faults import Fault, Schedule
from tests.support.schedules.memory_api import Change
from tests.support.schedules.processes import SETTINGS
from tests.support.schedules.run import Play, run
from tests.support.schedules.workloads import until
from tests.support.schedules.world import Beginning, World

PATIENCE_SECONDS = 0.5  # of the operator, a twentieth of its default
BEGINNING = Beginning((10, 10, 10), (False,) * 3, ((DEFAULT, 1.0),) * (len(NODES) * GPUS))
# Under a hall that one node at its largest limits takes too much of.
FULL = replace(BEGINNING, tenths=(6, 10, 10))
LESS = ((DEFAULT - 50, 1.0),) * (len(NODES) * GPUS)
WATCHED_SECONDS = 30.0


def is_enforced(world: World, cap: str = "hall") -> bool:
    conditions = ((world.api.get("powercaps", cap) or {}).get("status") or {}).get("conditions") or []
    return any(item["type"] == "Enforced" and item["status"] == "True" for item in conditions)


def granted_watts(world: World, node: str) -> int:
    item = world.api.get("gpunodes", node)
    return 0 if item is None else int(item["spec"]["boundMilliwatts"]) // 1000


def grants_written(world: World) -> Counter[str]:
    """Counts, from now on, how often each node's grant is written."""
    counts: Counter[str] = Counter()
    last = {name: item.get("spec") for name, item in world.api.items["gpunodes"].items()}

    def changed(change: Change) -> None:
        name, spec = change.item["metadata"]["name"], change.item.get("spec")
        counts[name] += spec != last.get(name)
        last[name] = spec

    world.api.open("gpunodes", world.api.version, changed)
    return counts


def brakes_written(world: World) -> Counter[str]:
    """Counts, from now on, how often each cap's brake is written."""
    counts: Counter[str] = Counter()
    world.api.open("powerbrakes", world.api.version, lambda change: counts.update([change.item["metadata"]["name"]]))
    return counts


def answer_late(world: World, seconds: float) -> None:
    """Everything that happens at the API server reaches the agents so much later, from now on."""
    for name in NODES:
        link = world.link_of(name)
        assert link is not None
        link.lagging_until, link.lag_seconds = float("inf"), seconds


def cut_off(world: World, name: str, seconds: float) -> None:
    """Nothing passes between this process and the API server for so long."""
    link = world.link_of(name)
    assert link is not None
    link.cut_until = asyncio.get_running_loop().time() + seconds


def playing(course: Callable[[World], Awaitable[None]], *, brakes: bool = True) -> Play:
    settings = replace(SETTINGS, acknowledge_timeout_seconds=PATIENCE_SECONDS, brakes=brakes)

    async def play(world: World, schedule: Schedule) -> None:
        world.settings = dict.fromkeys(world.settings, settings)
        try:
            await world.begin(schedule.beginning)
            everything = [DEFAULT * GPUS] * len(NODES)
            await until(lambda: [world.limits_watts(name) for name in NODES] == everything, "all is granted", 10.0)
            await until(lambda: is_enforced(world), "the hall's cap is enforced", 10.0, steadily=1.0)
            await course(world)
        finally:
            await world.close()

    return play


@pytest.mark.parametrize("late_seconds", [1.2 * PATIENCE_SECONDS, 2.4 * PATIENCE_SECONDS, 4.8 * PATIENCE_SECONDS])
def test_an_answer_that_comes_late_costs_no_grant(late_seconds: float) -> None:
    async def course(world: World) -> None:
        answer_late(world, late_seconds)
        written = grants_written(world)
        world.plan(LESS)
        await asyncio.sleep(WATCHED_SECONDS)
        assert written == dict.fromkeys(NODES, 1), written
        assert world.limits_watts() == len(NODES) * GPUS * (DEFAULT - 50)
        assert is_enforced(world)

    assert not run(Schedule(1, BEGINNING, ()), play=playing(course)).violation


def test_plans_that_come_while_agents_are_late_wait_for_their_answers() -> None:
    async def course(world: World) -> None:
        late_seconds, plans = 4.8 * PATIENCE_SECONDS, 40
        answer_late(world, late_seconds)
        written = grants_written(world)
        for number in range(plans):
            world.plan(((DEFAULT - 50 - number, 1.0),) * (len(NODES) * GPUS))
            await asyncio.sleep(WATCHED_SECONDS / plans)
        # Of those that come while an answer is late, none; each answer lets two through before the next is late.
        assert max(written.values()) <= 2 * WATCHED_SECONDS / late_seconds, written
        await until(
            lambda: world.limits_watts() == len(NODES) * GPUS * (DEFAULT - 50 - plans + 1), "the last plan", 10.0
        )

    assert not run(Schedule(1, BEGINNING, ()), play=playing(course)).violation


def test_a_cut_reaches_nodes_that_are_late_by_one_brake_before_any_grant() -> None:
    async def course(world: World) -> None:
        late_seconds, allowed = 4.8 * PATIENCE_SECONDS, 5 * len(NODES) * GPUS * LARGEST // 10
        answer_late(world, late_seconds)
        world.plan(LESS)
        await asyncio.sleep(2 * PATIENCE_SECONDS)  # all of them are late
        written, braked = grants_written(world), brakes_written(world)
        world.set_cap("hall", 5)
        await until(lambda: bool(braked), "the cut is written", 0.2)
        await until(lambda: not is_enforced(world), "the cap is over", 1.0)
        await until(lambda: world.limits_watts() <= allowed, "the limits are lowered", late_seconds + 0.5)
        assert (sum(written.values()), sum(braked.values())) == (0, 1)
        await until(lambda: is_enforced(world), "the cut is in force", 1.0)
        await asyncio.sleep(WATCHED_SECONDS)
        assert is_enforced(world)
        assert max(written.values()) <= 3, written
        assert world.limits_watts() > 0.98 * allowed  # nobody is left at the smallest limits

    assert not run(Schedule(1, BEGINNING, ()), play=playing(course)).violation


def test_a_cut_is_written_at_once_to_nodes_that_are_late() -> None:
    async def course(world: World) -> None:
        late_seconds, allowed = 4.8 * PATIENCE_SECONDS, 5 * len(NODES) * GPUS * LARGEST // 10
        answer_late(world, late_seconds)
        world.plan(LESS)
        await asyncio.sleep(2 * PATIENCE_SECONDS)  # all of them are late
        written = grants_written(world)
        world.set_cap("hall", 5)
        await until(lambda: sum(granted_watts(world, name) for name in NODES) <= allowed, "the cut is granted", 0.2)
        await until(lambda: not is_enforced(world), "the cap is over", 1.0)
        await until(lambda: is_enforced(world), "the cut is in force", 2 * late_seconds + 1.0)
        await asyncio.sleep(WATCHED_SECONDS)
        assert is_enforced(world)
        assert max(written.values()) <= 3, written
        assert world.limits_watts() > 0.98 * allowed  # nobody is left at the smallest limits

    assert not run(Schedule(1, BEGINNING, ()), play=playing(course, brakes=False)).violation


def test_what_a_silent_node_holds_is_asked_back_where_a_cap_needs_it_and_others_have_it_once_it_answers() -> None:
    async def course(world: World) -> None:
        silent_seconds, allowed = 4.0, 6 * len(NODES) * GPUS * LARGEST // 10
        *others, silent = NODES
        cut_off(world, silent, silent_seconds)
        world.plan(LESS)
        await asyncio.sleep(2 * PATIENCE_SECONDS)
        assert granted_watts(world, silent) == GPUS * (DEFAULT - 50), "no cap needs its watts: its grant stands"
        held = world.limits_watts(silent)
        world.set_cap("hall", 6)
        await until(lambda: not is_enforced(world), "the cap is over", 1.0)
        await until(lambda: is_enforced(world), "the others have made room", 1.0)
        assert world.limits_watts(silent) == held
        assert world.limits_watts(*others) <= allowed - held
        assert granted_watts(world, silent) <= allowed // len(NODES)
        await until(
            lambda: world.limits_watts(*others) > 0.98 * allowed * len(others) / len(NODES),
            "what it held is the others', too",
            silent_seconds + 2.0,
        )
        assert is_enforced(world)

    assert not run(Schedule(1, BEGINNING, ()), play=playing(course)).violation


def test_a_late_node_that_a_plan_asks_too_much_of_is_cut_once_and_not_in_each_cycle() -> None:
    """One whose GPU hangs acknowledges nothing, and is not left alone: a reset of it has to be reserved."""
    wishes = ((450, 0.5), (250, 0.5), (450, 1.0), (100, 1.0), (400, 0.5), (450, 1.0))
    faults = (Fault(4.6, "GPU hangs", "a", 3.97, 223), Fault(7.86, "the plan changes", "all", 0.1, 329))
    outcome = run(Schedule(88001508, Beginning((7, 7, 7), (True, False, False), wishes), faults))
    assert not outcome.violation, "a storm of writes, as the referee calls it"


@pytest.mark.parametrize("arrives_after_seconds", [0.5, 1.5, 9.0])
def test_a_claim_is_withdrawn_though_the_status_before_it_has_no_answer(arrives_after_seconds: float) -> None:
    """Whether what is held up comes before the withdrawal, after it, or not while anybody looks."""

    async def course(world: World) -> None:
        leader = world.link_of(world.leader() or "")
        assert leader is not None
        arrives = asyncio.Event()
        leader.held_up["PUT", POWER_CAPS.path(name="hall", subresource="status")] = arrives
        world.plan(((DEFAULT - 5, 1.0),) * (len(NODES) * GPUS))
        await until(lambda: not leader.held_up, "a status is on its way", 5.0)
        asyncio.get_running_loop().call_later(arrives_after_seconds, arrives.set)
        for name in ("a", "b"):  # they make no room meanwhile
            cut_off(world, name, 5.0)
        await world.stop_agent("c", 20.0)
        world.machines["c"].reboot()
        world.api.put("nodes", world.machines["c"].as_node())
        await until(lambda: not is_enforced(world), "the claim is withdrawn", 1.8)
        await asyncio.sleep(12.0)  # what is held up brings back no claim that is not true: the referee would say so
        assert is_enforced(world), "the others have made room"

    assert not run(Schedule(1, FULL, ()), play=playing(course)).violation
