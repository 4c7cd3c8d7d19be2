"""Which grants may be sent now: down before up, and nothing raised until what it needs is provably free.

The targets come from the plan; this module only decides which of them, or which part of each, can be sent at this moment
without the sum of what the nodes may draw passing any cap (docs/power-safety.md, "Down before up").
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flyball_api.grant import (
    MAX_FOREIGN_PODS,
    CapOverNode,
    ForeignPodLimit,
    Grant,
    JobGrant,
    OtherGpuLimits,
    PowerBound,
)
from flyball_api.values.units import MilliwattsPerGpu, NodeMilliwatts, node_milliwatts, of_nodes
from msgspec import Struct
from msgspec.structs import replace

from flyball_operator.power.bound import CapBudget, NodePower


class GrantTarget(Struct, frozen=True):
    """What one node should be granted by the plan, before any cap is looked at.

    `job_bounds` has what each entry of `jobs` comes to, `rest` what everything else on the node does.
    `min_limit_milliwatts` is the smallest limit of one of its GPUs (1 where nobody knows it: the agent sets the smallest),
    `caps` the caps whose brakes it follows.
    """

    node: str
    other_gpus: OtherGpuLimits
    lease_seconds: int
    jobs: tuple[JobGrant, ...]
    job_bounds: tuple[PowerBound, ...]
    rest: PowerBound
    min_limit_milliwatts: MilliwattsPerGpu
    caps: tuple[CapOverNode, ...] = ()

    @property
    def bound(self) -> PowerBound:
        """What the node may draw under a grant of all of it."""
        return sum(self.job_bounds, self.rest)


def at_smallest_limits(target: GrantTarget) -> GrantTarget:
    """`target` with the GPUs of every pod at the smallest limit."""
    jobs = tuple(
        replace(job, power_limit_milliwatts=min(job.power_limit_milliwatts, target.min_limit_milliwatts))
        for job in target.jobs
    )
    bounds = tuple(
        PowerBound(job.limit_milliwatts, min(bound.expected_milliwatts, job.limit_milliwatts))
        for job, bound in zip(jobs, target.job_bounds, strict=True)
    )
    return replace(target, jobs=jobs, job_bounds=bounds)


def without_raises(target: GrantTarget, standing: Grant | None, committed: PowerBound) -> GrantTarget:
    """The part of `target` that raises nothing on a node whose grant is `standing` and that may draw `committed` already.

    Entries that the node does not have yet wait at the smallest limit, those it has keep the lower limit and clock, and
    foreign pods' GPUs get no more room than they had. So a cut goes through whatever else on its node has to wait.
    """
    held = {} if standing is None else {(job.pod_name, job.uid): job for job in standing.jobs}
    expected_left = committed.expected_milliwatts
    jobs: list[JobGrant] = []
    bounds: list[PowerBound] = []
    for job, bound in zip(target.jobs, target.job_bounds, strict=True):
        before = held.get((job.pod_name, job.uid))
        limit = target.min_limit_milliwatts if before is None else before.power_limit_milliwatts
        clock = job.clock_max_megahertz if before is None else min(job.clock_max_megahertz, before.clock_max_megahertz)
        lowered = replace(
            job,
            power_limit_milliwatts=min(job.power_limit_milliwatts, limit),
            clock_max_megahertz=clock,
            clock_min_megahertz=min(job.clock_min_megahertz, clock),
        )
        limits = lowered.limit_milliwatts
        # Under limits and clocks that stand already, no more can be drawn than was predicted of them.
        expected = NodeMilliwatts(min(bound.expected_milliwatts, limits, expected_left))
        expected_left = NodeMilliwatts(expected_left - expected)
        jobs.append(lowered)
        bounds.append(PowerBound(limits, expected))
    limits_left = NodeMilliwatts(
        max(0, committed.limit_milliwatts - of_nodes(bound.limit_milliwatts for bound in bounds))
    )
    rest, other_gpus = target.rest, target.other_gpus
    if not PowerBound(limits_left, expected_left).covers(rest):
        rest = PowerBound(min(rest.limit_milliwatts, limits_left), min(rest.expected_milliwatts, expected_left))
        other_gpus = _without_foreign_raise(other_gpus, OtherGpuLimits() if standing is None else standing.other_gpus)
    return replace(target, other_gpus=other_gpus, jobs=tuple(jobs), job_bounds=tuple(bounds), rest=rest)


def without_entries(target: GrantTarget) -> GrantTarget:
    """`target` with every pod's GPUs at the smallest limit and no entry for any of them.

    The agent tells apart pods by their entries alone: all of them count as foreign here, for which one limit stands.
    """
    gpus = sum(job.gpus for job in target.jobs)
    rest = target.rest
    for job, bound in zip(target.jobs, target.job_bounds, strict=True):
        smallest = node_milliwatts(target.min_limit_milliwatts, job.gpus)
        rest += PowerBound(smallest, min(bound.expected_milliwatts, smallest))
    others = replace(
        target.other_gpus,
        foreign_gpus=target.other_gpus.foreign_gpus + gpus,
        foreign_power_limit_milliwatts=target.min_limit_milliwatts,
        foreign_pods=(),
    )
    return replace(target, other_gpus=others, jobs=(), job_bounds=(), rest=rest)


def _without_foreign_raise(wanted: OtherGpuLimits, before: OtherGpuLimits) -> OtherGpuLimits:
    """`wanted` with as many foreign GPUs provided for as before, at no higher limits (0 is the default, the highest)."""

    def lower(*limits: MilliwattsPerGpu) -> MilliwattsPerGpu:
        return min((limit for limit in limits if limit), default=MilliwattsPerGpu(0))

    ordinary = lower(wanted.foreign_power_limit_milliwatts, before.foreign_power_limit_milliwatts)
    pods = {(pod.namespace, pod.pod_name) for pod in (*wanted.foreign_pods, *before.foreign_pods)}
    limits = {pod: lower(wanted.foreign_limit_of(*pod), before.foreign_limit_of(*pod)) for pod in pods}
    return replace(
        wanted,
        foreign_gpus=min(wanted.foreign_gpus, before.foreign_gpus),
        foreign_power_limit_milliwatts=ordinary,
        foreign_pods=tuple(ForeignPodLimit(*pod, limit) for pod, limit in sorted(limits.items()) if limit != ordinary)[
            :MAX_FOREIGN_PODS
        ],
    )


@dataclass(frozen=True, slots=True)
class GrantAdmission:
    """The grants to send now, by node, and the nodes whose raise waits for watts that others have yet to free.

    `committed` has what each cap's nodes may draw with them, by the cap's name.
    """

    grants: dict[str, Grant]
    waiting: tuple[str, ...]
    committed: Mapping[str, NodeMilliwatts]


def admit_grants(
    targets: Iterable[GrantTarget],
    power: Mapping[str, NodePower],
    caps: Iterable[CapBudget],
    epoch: int,
    raises_allowed: bool = True,
) -> GrantAdmission:
    """Decide what to send now under leader epoch `epoch`, given every node's `power` and every cap's budget.

    Cuts always go. A raise goes only where, for each cap over its node, the sum of what all nodes may draw still fits with
    this node raised; else the part of it that raises nothing goes. Without `raises_allowed` no raise goes, whatever fits.
    Nodes are taken in the order of their names, so that the same state always gives the same grants.
    """
    admitter = _Admitter(power, tuple(caps), epoch, raises_allowed)
    grants: dict[str, Grant] = {}
    waiting: list[str] = []
    for target in sorted(targets, key=lambda item: item.node):
        allowed, waits = admitter.allowed_part(target)
        if waits:
            waiting.append(target.node)
        grant = None if allowed is None else admitter.grant_for(allowed)
        if grant is not None:
            grants[target.node] = grant
            admitter.commit(target.node, grant.committed)
    return GrantAdmission(grants, tuple(waiting), admitter.committed)


class _Admitter:
    """Keeps the sum under each cap while grants are admitted one after the other."""

    def __init__(
        self, power: Mapping[str, NodePower], caps: tuple[CapBudget, ...], epoch: int, raises_allowed: bool
    ) -> None:
        self._power = power
        self._epoch = epoch
        self._raises_allowed = raises_allowed
        self._committed = {cap.name: cap.committed(power) for cap in caps}
        self._reserves = {cap.name: AdmittedReserve(cap, power) for cap in caps if cap.reserve.nodes}
        self._caps_over: dict[str, list[CapBudget]] = {}
        for cap in caps:
            for node in cap.nodes:
                self._caps_over.setdefault(node, []).append(cap)

    @property
    def committed(self) -> Mapping[str, NodeMilliwatts]:
        """What each cap's nodes may draw with all that has been counted, by the cap's name."""
        return self._committed

    def allowed_part(self, target: GrantTarget) -> tuple[GrantTarget | None, bool]:
        """What of the target may be granted now (None: nothing), and whether the rest of it waits."""
        node = self._power[target.node]
        if node.committed.covers(target.bound) or (
            self._raises_allowed and self._fits(target.node, node.committed | target.bound)
        ):
            return target, False
        standing, braked = node.grant, node.braked_milliwatts
        if standing is not None and braked is not None:
            standing = standing.within(braked)  # what a brake has taken would be a raise, too
        lowered = without_raises(target, standing, node.committed)
        # A first grant on a node at its defaults, and any cut, is covered by what the node may draw anyway.
        return (lowered if node.committed.covers(lowered.bound) else None), True

    def grant_for(self, target: GrantTarget) -> Grant | None:
        """The grant to send for the target; None where the one that stands asks the same of the agent."""
        node = self._power[target.node]
        bound = target.bound
        grant = Grant(
            epoch=self._epoch,
            generation=node.next_generation(self._epoch),
            lease_seconds=target.lease_seconds,
            bound=bound,
            committed=node.committed | bound,
            other_gpus=target.other_gpus,
            jobs=target.jobs,
            caps=target.caps,
            min_power_limit_milliwatts=target.min_limit_milliwatts if target.caps else MilliwattsPerGpu(0),
        )
        stands = (
            node.grant is not None
            and not node.unsettled
            and node.braked_milliwatts is None
            and node.grant.epoch == self._epoch
            # One of what its agent says to have accepted that no next grant passes would be sent anew in each cycle.
            and (node.grant.version >= node.accepted or grant.version <= node.accepted)
            and node.grant.same_content(grant)
        )
        return None if stands else grant.sealed()

    def commit(self, node: str, bound: PowerBound) -> None:
        """Count the node with `bound` from now on."""
        for cap in self._caps_over.get(node, ()):
            self._committed[cap.name] = self._with(cap, node, bound)
            if cap.name in self._reserves:
                self._reserves[cap.name].commit(node, cap.counted(bound))

    def _fits(self, node: str, bound: PowerBound) -> bool:
        """Whether every cap over the node still holds with the node at `bound`, and what it has in reserve is there."""
        return all(
            self._with(cap, node, bound) + self._reserve_with(cap, node, bound) <= cap.budget_milliwatts
            for cap in self._caps_over.get(node, ())
        )

    def _with(self, cap: CapBudget, node: str, bound: PowerBound) -> NodeMilliwatts:
        before = cap.counted(self._power[node].committed)
        return self._committed[cap.name] + (cap.counted(bound) - before)

    def _reserve_with(self, cap: CapBudget, node: str, bound: PowerBound) -> NodeMilliwatts:
        reserve = self._reserves.get(cap.name)
        return NodeMilliwatts(0) if reserve is None else reserve.with_draw(node, cap.counted(bound))


class AdmittedReserve:
    """Keeps what a cap holds back for nodes that jump, while one node after the other is admitted."""

    def __init__(self, cap: CapBudget, power: Mapping[str, NodePower]) -> None:
        self._reserve = cap.reserve
        self._distances = {
            node: _distance(largest, cap.counted(power[node].committed))
            for node, largest in cap.reserve.largest.items()
        }
        self._in_order = sorted(self._distances.values())

    def with_draw(self, node: str, draw: NodeMilliwatts) -> NodeMilliwatts:
        """What is held back with the node at `draw`: by the largest distances, one of which may be its own."""
        most = self._in_order[-self._reserve.nodes - 1 :]
        if node in self._distances:
            if self._distances[node] in most:
                most.remove(self._distances[node])
            insort(most, _distance(self._reserve.largest[node], draw))
        return of_nodes(most[-self._reserve.nodes :])

    def commit(self, node: str, draw: NodeMilliwatts) -> None:
        """Count the node with `draw` from now on."""
        if node in self._distances:
            del self._in_order[bisect_left(self._in_order, self._distances[node])]
            self._distances[node] = _distance(self._reserve.largest[node], draw)
            insort(self._in_order, self._distances[node])


def _distance(largest: NodeMilliwatts, draw: NodeMilliwatts) -> NodeMilliwatts:
    """How far a node may jump from what it may draw."""
    return max(NodeMilliwatts(0), largest - draw)
