"""The watch of PowerBrakes on the real API server: none before the first list, all of them after each change."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from flyball_agent.cluster.brake_watch import BrakeWatch
from flyball_api.power_brake import PowerBrake, PowerBrakeSpec, power_brake_object
from flyball_kube.resources import POWER_BRAKES
from flyball_kube.session import ApiSession, load_configuration

from tests.support.control_plane import IsolatedCluster
from tests.support.waiting import until


async def test_listeners_get_every_brake_after_the_first_list_and_each_change(cluster: IsolatedCluster) -> None:
    seen: list[dict[str, int]] = []

    def saw(brakes: Mapping[str, PowerBrake]) -> None:
        seen.append({cap: brake.spec.sequence for cap, brake in brakes.items()})

    async with ApiSession(load_configuration(cluster.devcluster.kubeconfig)) as session:
        for cap in ("hall", "row"):
            await session.create(POWER_BRAKES.path(), power_brake_object(cap, PowerBrakeSpec(1, 1, 500_000)))
        watch = BrakeWatch(session)
        watch.listen(saw)
        task = asyncio.create_task(watch.run())
        try:
            await until(lambda: bool(seen), "the first list")
            assert all(brakes == {"hall": 1, "row": 1} for brakes in seen)  # never half a list
            await session.patch(POWER_BRAKES.path(name="row"), {"spec": {"sequence": 2, "keptMillionths": 100_000}})
            await until(lambda: seen[-1] == {"hall": 1, "row": 2}, "the change")
            await session.delete(POWER_BRAKES.path(name="hall"))
            await until(lambda: seen[-1] == {"row": 2}, "the deletion")
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
