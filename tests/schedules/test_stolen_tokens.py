"""Whoever has an agent's token, over real operators and agents in virtual time: its word on its own node is believed."""

from __future__ import annotations

import asyncio

from flyball_kube.resources import GPU_NODES

from tests.support.power_cluster import GPUS, LARGEST, MIN, NODES
from tests.support.schedules.faults import Schedule
from tests.support.schedules.processes import SETTINGS
from tests.support.schedules.run import run
from tests.support.schedules.world import Beginning, World

# Everybody wants all there is, under a hall whose cap binds.
BEGINNING = Beginning((5, 10, 10), (False,) * 3, ((LARGEST, 1.0),) * (len(NODES) * GPUS))
STOLEN = "a"
LESS_THERE = tuple((MIN if name == STOLEN else LARGEST, 1.0) for name in NODES for _ in range(GPUS))


def limits_watts(world: World, *nodes: str) -> int:
    devices = [device for name in nodes for device in world.machines[name].devices]
    return sum(device.read().requested_limit_milliwatts for device in devices) // 1000


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
            seen["held"], seen["others before"] = limits_watts(world, STOLEN), limits_watts(world, *others)
            link = world.link_of(STOLEN)
            assert link is not None
            link.cut_until = asyncio.get_running_loop().time() + 30.0  # the agent itself is kept from the API server
            world.plan(LESS_THERE)
            for _ in range(20):
                lie_about(world)
                await asyncio.sleep(0.1)
            seen["lied about"], seen["others after"] = limits_watts(world, STOLEN), limits_watts(world, *others)
            for _ in range(10 * SETTINGS.grant_lease_seconds):
                lie_about(world)
                await asyncio.sleep(0.1)
            seen["after its lease"] = limits_watts(world, STOLEN)
        finally:
            await world.close()

    outcome = run(Schedule(0, BEGINNING, ()), play=lied_for)
    assert "claimed as enforced" in outcome.violation
    assert seen["lied about"] == seen["held"] > GPUS * MIN
    given_away = seen["others after"] - seen["others before"]
    assert 0 < given_away <= seen["held"] - GPUS * MIN
    assert seen["after its lease"] == GPUS * MIN, "its enforcer has heard of no operator"
