"""Whoever has an agent's token, over real operators and agents in virtual time: its word on its own node is believed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from flyball_kube.resources import GPU_NODES

from tests.support.operator_objects import raw_report
from tests.support.power_cluster import GPUS, LARGEST, MIN, NODES, OVERHEAD_WATTS
from tests.support.schedules.faults import Schedule
from tests.support.schedules.memory_api import Json
from tests.support.schedules.processes import AGENT_STATUS_SECONDS, SETTINGS
from tests.support.schedules.run import run
from tests.support.schedules.workloads import until
from tests.support.schedules.world import Beginning, World

# Everybody wants all there is, under a hall whose cap binds.
BEGINNING = Beginning((5, 10, 10), (False,) * 3, ((LARGEST, 1.0),) * (len(NODES) * GPUS))
STOLEN = "a"
LESS_THERE = tuple((MIN if name == STOLEN else LARGEST, 1.0) for name in NODES for _ in range(GPUS))


def lie_about(world: World) -> None:
    """Acknowledge the grant of the stolen node in its agent's name, as if its GPUs were at their smallest limits."""
    item = world.api.get("gpunodes", STOLEN) or {}
    spec, status, total = item["spec"], item["status"], GPUS * MIN * 1000
    read_ns = world.machines[STOLEN].boottime_ns()
    lie = {name: spec[name] for name in ("epoch", "generation", "digest")}
    lie |= {"limitsMilliwatts": total, "boundMilliwatts": total, "boottimeNanoseconds": read_ns}
    limits = {"requestedMilliwatts": MIN * 1000, "enforcedMilliwatts": MIN * 1000}
    devices = [{**device, "limits": {**device["limits"], **limits}} for device in status["devices"]]
    said = {"acknowledged": lie, "devices": devices}
    said["lastRound"] = {**status["lastRound"], "boottimeNanoseconds": read_ns, "limitsMilliwatts": total}
    world.api.handle("PATCH", GPU_NODES.path(name=STOLEN, subresource="status"), {}, {"status": said})


def test_what_a_stolen_token_says_falsely_gives_others_no_more_than_its_own_node_may_draw() -> None:
    """What docs/power-safety.md takes for granted of agents, broken: the others are given what the node still draws."""
    seen: dict[str, int] = {}

    async def lied_for(world: World, schedule: Schedule) -> None:
        try:
            await world.begin(schedule.beginning)
            await asyncio.sleep(8.0)
            others = [name for name in NODES if name != STOLEN]
            seen["held"], seen["others before"] = world.limits_watts(STOLEN), world.limits_watts(*others)
            link = world.link_of(STOLEN)
            assert link is not None
            link.cut_until = asyncio.get_running_loop().time() + 30.0  # the agent itself is kept from the API server
            world.plan(LESS_THERE)
            for _ in range(20):
                lie_about(world)
                await asyncio.sleep(0.1)
            seen["lied about"], seen["others after"] = world.limits_watts(STOLEN), world.limits_watts(*others)
            for _ in range(10 * SETTINGS.grant_lease_seconds):
                lie_about(world)
                await asyncio.sleep(0.1)
            seen["after its lease"] = world.limits_watts(STOLEN)
        finally:
            await world.close()

    outcome = run(Schedule(0, BEGINNING, ()), play=lied_for)
    assert "said to be committed" in outcome.violation
    assert any(window.cause == "nothing" for window in outcome.windows), "the cap itself was exceeded"
    assert seen["lied about"] == seen["held"] > GPUS * MIN
    given_away = seen["others after"] - seen["others before"]
    assert 0 < given_away <= seen["held"] - GPUS * MIN
    assert seen["after its lease"] == GPUS * MIN, "its enforcer has heard of no operator"


def unreadable_date(status: Json) -> Json:
    return {"jobs": [raw_report("uid-a-0", 1, 10, lastReportTime="2026-01-01T00:00:00+99:99")]}


def huge_smallest_limits(status: Json) -> Json:
    return {"devices": [with_limits(device, "minMilliwatts", "maxMilliwatts") for device in status["devices"]]}


def many_huge_gpus(status: Json) -> Json:
    device = with_limits(status["devices"][0], "maxMilliwatts")
    more = [{**device, "uuid": f"GPU-{index}", "index": index} for index in range(GPUS, 64)]
    return {"devices": [*status["devices"][:GPUS], *more]}


def with_limits(device: Json, *names: str) -> Json:
    """A GPU as it was reported, with the most that the CRD takes in these places."""
    return {**device, "limits": device["limits"] | dict.fromkeys(names, 10_000_000)}


def status_of(world: World) -> Json:
    """Of the node whose token is stolen, as it stands."""
    return dict((world.api.get("gpunodes", STOLEN) or {})["status"])


@pytest.mark.parametrize("lie", [unreadable_date, huge_smallest_limits, many_huge_gpus])
def test_figures_of_a_stolen_token_neither_raise_others_nor_keep_them_from_being_cut(
    lie: Callable[[Json], Json],
) -> None:
    """The hall's cap is half of what its GPUs may draw, as their nodes report that."""
    seen: dict[str, int] = {}
    others = [name for name in NODES if name != STOLEN]
    smallest = len(others) * GPUS * MIN

    async def lied_for(world: World, schedule: Schedule) -> None:
        async def lie_for(seconds: int) -> None:
            for _ in range(2 * seconds):
                path = GPU_NODES.path(name=STOLEN, subresource="status")
                world.api.handle("PATCH", path, {}, {"status": lie(status_of(world))})
                await asyncio.sleep(0.5)

        try:
            await world.begin(schedule.beginning)
            world.say_of_cap("hall", {"permilleOfMax": 500})
            await asyncio.sleep(8.0)
            seen["before"] = world.limits_watts(*others)
            link = world.link_of(STOLEN)
            assert link is not None
            before = status_of(world)
            # Its last report is to be young while it is lied about, or it is taken for silent.
            await until(lambda: status_of(world) != before, "a report", AGENT_STATUS_SECONDS + 1.0)
            link.cut_until = asyncio.get_running_loop().time() + 30.0  # nothing but the lie is said of the node
            await lie_for(5)
            seen["lied to"] = world.limits_watts(*others)
            seen["cap"] = (world.api.get("powercaps", "hall") or {})["status"]["effectiveWatts"]
            world.say_of_cap("rack", {"watts": OVERHEAD_WATTS["rack"] + smallest})
            await lie_for(5)
            seen["cut"] = world.limits_watts(*others)
            says = (world.api.get("powercaps", "rack") or {})["status"]["conditions"]
            seen["called enforced"] = sum(item["type"] == "Enforced" and item["status"] == "True" for item in says)
        finally:
            await world.close()

    outcome = run(Schedule(0, BEGINNING, ()), play=lied_for)
    assert not outcome.violation
    assert seen["cap"] == OVERHEAD_WATTS["hall"] + len(NODES) * GPUS * LARGEST // 2
    if lie is unreadable_date:
        assert seen["lied to"] == seen["before"], "what else is said of the node is read all the same"
    assert seen["lied to"] <= seen["before"], "its node may draw more, it says: the others make room"
    assert (seen["cut"], seen["called enforced"]) == (smallest, 1)


def test_epochs_that_no_leader_had_end_few_terms() -> None:
    """Each may be one that a restored store has forgotten: the leader begins above it, and raises wait for that."""
    seen: dict[str, int] = {}
    others = [name for name in NODES if name != STOLEN]

    async def lied_for(world: World, schedule: Schedule) -> None:
        try:
            await world.begin(schedule.beginning)
            await asyncio.sleep(8.0)
            world.plan(tuple((MIN, 1.0) for _ in NODES for _ in range(GPUS)))
            await asyncio.sleep(4.0)
            seen["smallest"] = world.limits_watts(*others)
            link = world.link_of(STOLEN)
            assert link is not None
            link.cut_until = asyncio.get_running_loop().time() + 100.0
            for turn in range(160):
                item = world.api.get("gpunodes", STOLEN) or {}
                lie = {**item["status"]["acknowledged"], "epoch": item["spec"]["epoch"] + 1}
                path = GPU_NODES.path(name=STOLEN, subresource="status")
                world.api.handle("PATCH", path, {}, {"status": {"acknowledged": lie}})
                if turn == 100:
                    seen["terms"] = item["spec"]["epoch"]
                    world.plan(tuple((LARGEST, 1.0) for _ in NODES for _ in range(GPUS)))
                await asyncio.sleep(0.25)
            seen["raised"] = world.limits_watts(*others)
            seen["terms after"] = (world.api.get("gpunodes", STOLEN) or {})["spec"]["epoch"]
        finally:
            await world.close()

    outcome = run(Schedule(0, BEGINNING, ()), play=lied_for)
    assert not outcome.violation
    assert seen["smallest"] == len(others) * GPUS * MIN
    assert seen["terms after"] == seen["terms"], "what it says in the end ends no term"
    assert seen["raised"] > seen["smallest"]
