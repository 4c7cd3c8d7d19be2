"""Which pods may start, and which stops have to wait: watts are granted first, and ramps let jobs come and go in turn."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from flyball_api.gpu_node import GpuNode
from flyball_api.values.units import MilliwattsPerGpu
from flyball_planner.snapshot import JobDecision

from flyball_operator.cluster.state import ClusterState
from flyball_operator.power.cycle import PlanInForce, PowerState
from flyball_operator.power.grants.admission import GrantTarget
from flyball_operator.power.grants.ramp import Turns, holds_up_stops, waiting_starts, waiting_stops


class StartsAndStops:
    """Remembers whose turn it is under ramps, what every pod should be granted, and by which decision each runs."""

    def __init__(self) -> None:
        self._starts, self._stops = Turns(), Turns()
        self._pod_limits: dict[tuple[str, str], MilliwattsPerGpu] = {}  # as they should be, by pod name and job uid
        self._running: dict[tuple[str, int], JobDecision] = {}  # by which each incarnation was granted its watts last
        self._held_up: frozenset[tuple[str, int]] = frozenset()
        self._may_start: frozenset[tuple[str, str]] = frozenset()

    @property
    def held_up(self) -> frozenset[tuple[str, int]]:
        """The incarnations whose stop has to wait for a ramp."""
        return self._held_up

    @property
    def may_start(self) -> frozenset[tuple[str, str]]:
        """The reserved pods (by name and job uid), without those of jobs whose start has to wait for a ramp."""
        return self._may_start

    def update_stops(self, state: PowerState, stopping: Collection[tuple[str, int]], monotonic: float) -> None:
        """Take in which incarnations are to be stopped."""
        waiting = waiting_stops(state.cluster.pods, state.cluster.gpu_nodes, stopping)
        caps = [cap for cap in state.caps.states if holds_up_stops(cap)]
        self._stops.update(waiting, caps, state.nodes, monotonic)
        self._held_up = frozenset(job.key for job in waiting) - self._stops.allowed

    def with_held_up(self, plan: PlanInForce) -> PlanInForce:
        """The plan, but for incarnations whose stop has to wait as it was: their load is to stay until their turn."""
        kept = {key: self._running[key] for key in self._held_up if key in self._running}
        return (
            replace(plan, decisions={**plan.decisions, **{uid: of for (uid, _), of in kept.items()}}) if kept else plan
        )

    def follow(self, plan: PlanInForce, cluster: ClusterState) -> None:
        """Take in by which decisions incarnations are granted their watts from now on."""
        self._running = {
            (item.job_uid, item.incarnation): decision
            for of_job in cluster.incarnations.values()
            for item in of_job
            if (decision := plan.decisions.get(item.job_uid)) is not None
            and decision.allocation is not None
            and decision.allocation.nodes == item.nodes
        }

    def aim_at(self, targets: Iterable[GrantTarget]) -> None:
        """Take in what every pod should be granted."""
        self._pod_limits = {
            (job.pod_name, job.uid): job.power_limit_milliwatts for target in targets for job in target.jobs
        }

    def update_starts(self, state: PowerState, monotonic: float) -> None:
        """Take in which pods are reserved, and so wait to start."""
        reserved = self._reserved(state.cluster.gpu_nodes)
        waiting = waiting_starts(state.cluster.pods, state.cluster.gpu_nodes, reserved)
        self._starts.update(waiting, state.caps.states, state.nodes, monotonic)
        held_back = {job.uid for job in waiting if job.key not in self._starts.allowed}
        self._may_start = frozenset(pod for pod in reserved if pod[1] not in held_back)

    def _reserved(self, gpu_nodes: Mapping[str, GpuNode]) -> frozenset[tuple[str, str]]:
        """The pods whose grant, as the API server has it, gives them the limit that they should have."""
        return frozenset(
            (job.pod_name, job.uid)
            for gpu_node in gpu_nodes.values()
            if gpu_node.grant is not None
            for job in gpu_node.grant.jobs
            if self._pod_limits.get((job.pod_name, job.uid)) == job.power_limit_milliwatts
        )
