"""Whether the cluster comes to rest once its faults are over: grants are acknowledged, and what can be held is enforced.

No claim is untrue where nothing is ever claimed; this is what shows that the promise is not kept by doing nothing.
"""

from __future__ import annotations

import asyncio

from tests.support.power_cluster import GPUS, MIN
from tests.support.schedules.faults import Schedule
from tests.support.schedules.memory_api import Json
from tests.support.schedules.run import course
from tests.support.schedules.world import World

REST_SECONDS = 30.0
LOOK_SECONDS = 0.5


async def comes_to_rest(world: World, schedule: Schedule) -> None:
    """Play the schedule, wait until its faults are over, and then for rest; raises AssertionError where none comes."""
    loop = asyncio.get_running_loop()
    try:
        if await course(world, schedule):
            return
        await world.until_over()
        end = loop.time() + REST_SECONDS
        while unrest := _unrest(world):
            assert loop.time() < end, "; ".join(unrest)
            if await world.referee.violated_before(LOOK_SECONDS):
                return
    finally:
        await world.close()


def _unrest(world: World) -> list[str]:
    """What is not as it should come to be."""
    nodes, caps = world.api.items.get("gpunodes", {}), world.api.items.get("powercaps", {})
    found = [f"{name}: the grant is not acknowledged" for name, item in nodes.items() if not _acknowledged(item)]
    return found + [f"{name}: {words}" for name, item in caps.items() if (words := _not_held(item))]


def _acknowledged(gpu_node: Json) -> bool:
    spec, status = gpu_node.get("spec"), gpu_node.get("status") or {}
    acknowledged = status.get("acknowledged")
    if not spec or not acknowledged:
        return False
    same = all(acknowledged.get(name) == spec.get(name) for name in ("epoch", "generation", "digest"))
    return same and all(acknowledged.get(name) == status.get(name) for name in ("bootID", "driverSession"))


def _not_held(cap: Json) -> str:
    """What keeps the cap from being enforced, unless it is that it cannot be: nobody pauses jobs here."""
    status = cap.get("status") or {}
    says = {item["type"]: item for item in status.get("conditions") or ()}
    enforced, feasible = says.get("Enforced", {}), says.get("Feasible", {})
    least_watts = status.get("nodes", 0) * GPUS * MIN + cap["spec"].get("staticOverheadWatts", 0)
    if enforced.get("status") == "True" or feasible.get("status") == "False":
        return ""
    if status.get("effectiveWatts", 0) < least_watts:
        return ""
    return f"Enforced is {enforced.get('status')}: {enforced.get('reason')}, {enforced.get('message')}"
