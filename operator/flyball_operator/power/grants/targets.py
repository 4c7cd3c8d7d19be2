"""From the plan to what each node should be granted while pods come and go.

The plan says where the cluster should end; in between, a pod that is to leave still holds its GPUs and one that is to
come does not yet. A leaving pod is held at the smallest limit at once, and a coming one is given its watts only when the
GPUs it needs are free on every one of its nodes: so that the sum over a node never passes what the plan gives it.

A new leader has no plan yet. Until its first one, pods that run keep what the leader before it has granted them: lowering
all of them for the time that planning takes would help nobody. What caps allow is admission's to hold, then as ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from flyball_api.grant import ForeignPodLimit, Grant, JobGrant, OtherGpuLimits, PowerBound
from flyball_api.values.units import (
    MilliwattsPerGpu,
    NodeMilliwatts,
    allowed_milliwatts,
    held_milliwatts,
    node_milliwatts,
    of_nodes,
)
from flyball_api.workloads import IncarnationView, PodView
from flyball_planner.snapshot import JobDecision

from flyball_operator.power.grants.admission import GrantTarget
from flyball_operator.power.nodes.info import NodeInfo
from flyball_operator.power.nodes.reservations import (
    NO_RULES,
    NodeRules,
    foreign_gpu_milliwatts,
    idle_bound,
    reserved_milliwatts,
)

# "No bound": above any clock that a GPU has; the agent clips it to what the device supports.
ANY_CLOCK_MEGAHERTZ = 10_000


def grant_targets(
    nodes: Mapping[str, NodeInfo],
    decisions: Mapping[str, JobDecision],
    incarnations: Sequence[IncarnationView],
    pods: Iterable[PodView],
    rules: Mapping[str, NodeRules],
    lease_seconds: int,
    guard_fraction: float,
    before: Mapping[str, Grant] | None = None,
) -> list[GrantTarget]:
    """What every node should be granted now, in the order of their names.

    `decisions` has the plan's by the jobs' uids. While this leader has made none, `before` has the grants of the one before
    it, by node.
    """
    pods = [pod for pod in pods if pod.job_uid and not pod.finished]
    live = {(item.job_uid, item.incarnation): item for item in incarnations if not item.deleting}
    present = _present_pods(nodes, pods, live)
    coming = _coming_pods(nodes, decisions, incarnations, pods, present)
    targets = []
    for name, info in sorted(nodes.items()):
        builder = _NodeTarget(info, rules.get(name, NO_RULES))
        on_node = (*present.get(name, ()), *coming.get(name, ()))
        granted = {} if before is None else _as_granted(on_node, info, before.get(name), live)
        for pod in sorted(on_node, key=lambda item: (item.gated, item.name)):
            planned = _planned(pod, decisions, live, guard_fraction) if before is None else granted.get(pod.uid)
            builder.add(pod, planned)
        targets.append(builder.build(lease_seconds))
    return targets


def _present_pods(
    nodes: Mapping[str, NodeInfo],
    pods: Iterable[PodView],
    incarnations: Mapping[tuple[str, int], IncarnationView],
) -> dict[str, list[PodView]]:
    """Pods of jobs that hold GPUs, by node: bound ones, and those with an open gate that the scheduler is about to bind.

    Were the latter left out, their watts and GPUs would be free for as long as the scheduler takes. Pods may ask for what
    no node has: all together get no more GPUs than theirs has, and unbound ones no more than are left there and than
    their job was placed with.
    """
    bound: dict[str, list[PodView]] = {}
    unbound: dict[str | None, list[tuple[PodView, int]]] = {}
    for pod in sorted(pods, key=lambda item: (item.namespace, item.name)):
        if pod.node:
            bound.setdefault(pod.node, []).append(pod)
        elif not pod.gated and not pod.deleting:
            incarnation = incarnations.get((pod.job_uid, pod.incarnation))
            if incarnation is not None:
                node = incarnation.node_of(pod)
                placed = sum(gpus for name, gpus in incarnation.nodes if name == node)
                unbound.setdefault(node, []).append((pod, placed))
    present: dict[str, list[PodView]] = {}
    for name, info in nodes.items():
        left = info.gpus
        for pod in bound.get(name, ()):
            present.setdefault(name, []).append(pod.with_gpus(min(pod.gpus, left)))
            left -= present[name][-1].gpus
        left = max(0, left - info.foreign_gpus - info.lost_gpus)
        for pod, placed in unbound.get(name, ()):
            present.setdefault(name, []).append(pod.with_gpus(min(pod.gpus, placed, left)))
            left -= present[name][-1].gpus
    return present


def _coming_pods(
    nodes: Mapping[str, NodeInfo],
    decisions: Mapping[str, JobDecision],
    incarnations: Iterable[IncarnationView],
    pods: Iterable[PodView],
    present: Mapping[str, Sequence[PodView]],
) -> dict[str, list[PodView]]:
    """Gated pods, by node, of those incarnations that the plan wants and that find room on every node of theirs.

    Nodes that expect no pods now have no room: a rank that cannot start would hold the others' GPUs for nothing.
    """
    free = {
        name: info.gpus - info.foreign_gpus - info.lost_gpus - sum(pod.gpus for pod in present.get(name, ()))
        for name, info in nodes.items()
    }
    pods_of: dict[str, list[PodView]] = {}
    for pod in pods:
        pods_of.setdefault(pod.job_uid, []).append(pod)
    coming: dict[str, list[PodView]] = {}
    for incarnation in sorted(incarnations, key=lambda item: (item.job_uid, item.incarnation)):
        decision = decisions.get(incarnation.job_uid)
        if incarnation.deleting or decision is None or decision.allocation is None:
            continue
        if decision.allocation.nodes != incarnation.nodes:
            continue
        gated = [
            (pod, node)
            for pod in pods_of.get(incarnation.job_uid, ())
            if pod.incarnation == incarnation.incarnation
            and pod.gated
            and not pod.deleting
            and (node := incarnation.node_of(pod)) is not None
        ]
        if any(node not in nodes or not nodes[node].expects(pod) or free[node] < pod.gpus for pod, node in gated):
            continue
        for pod, node in gated:
            free[node] -= pod.gpus
            coming.setdefault(node, []).append(pod)
    return coming


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What each GPU of a pod is to have: its limit, what it is expected to draw of it, and its highest clock."""

    limit_milliwatts: MilliwattsPerGpu
    expected_milliwatts: MilliwattsPerGpu
    clock_megahertz: int


def _planned(
    pod: PodView,
    decisions: Mapping[str, JobDecision],
    incarnations: Mapping[tuple[str, int], IncarnationView],
    guard_fraction: float,
) -> _Wanted | None:
    """What the plan gives a pod that runs just as it says; None for one that is to leave or was placed otherwise."""
    decision, incarnation = decisions.get(pod.job_uid), incarnations.get((pod.job_uid, pod.incarnation))
    if decision is None or decision.allocation is None or incarnation is None or pod.deleting:
        return None
    allocation = decision.allocation
    if incarnation.nodes != allocation.nodes:
        return None
    # Rounded down, so that a sum of limits never passes the plan's.
    limit = MilliwattsPerGpu(allowed_milliwatts(allocation.power_limit_watts))
    expected = MilliwattsPerGpu(held_milliwatts(decision.predicted_gpu_watts * (1.0 + guard_fraction)))
    return _Wanted(limit, expected, allocation.clock_megahertz)


def _as_granted(
    pods: Sequence[PodView],
    info: NodeInfo,
    grant: Grant | None,
    incarnations: Mapping[tuple[str, int], IncarnationView],
) -> dict[str, _Wanted]:
    """What its node's grant gives each pod, by the pods' uids; nothing for one that is to leave, or that it does not have.

    A grant says what all of its pods draw together: those that stay are expected to draw all of that but for what the
    GPUs of the others count with now.
    """
    if grant is None:
        return {}
    staying = {pod.uid: entry for pod in pods if (entry := _standing_entry(pod, grant, incarnations)) is not None}
    limits = of_nodes(entry.limit_milliwatts for entry in staying.values())
    expected = _expected_of_jobs(info, grant) - _expected_of_others(info, grant, pods, staying)
    return {
        uid: _Wanted(
            entry.power_limit_milliwatts,
            MilliwattsPerGpu(-(-entry.power_limit_milliwatts * max(0, expected) // max(1, limits))),
            entry.clock_max_megahertz,
        )
        for uid, entry in staying.items()
    }


def _standing_entry(
    pod: PodView, grant: Grant, incarnations: Mapping[tuple[str, int], IncarnationView]
) -> JobGrant | None:
    """A pod's entry in its node's grant; None for one that is to leave, or that the grant does not have."""
    entry = grant.entry_of(pod.name, pod.job_uid)
    if entry is None or pod.deleting or (pod.job_uid, pod.incarnation) not in incarnations:
        return None
    return entry if entry.incarnation == pod.incarnation and entry.pod_uid in ("", pod.uid) else None


def _expected_of_jobs(info: NodeInfo, grant: Grant) -> NodeMilliwatts:
    """What all pods in a grant are expected to draw, at most.

    A grant says what its whole node is expected to draw: its GPUs without a pod as they are predicted to now, and what
    it has for GPUs of other pods no less than that.
    """
    limits = of_nodes(entry.limit_milliwatts for entry in grant.jobs)
    idle = idle_bound(info, 1)
    rest = max(0, grant.bound.limit_milliwatts - limits) * idle.expected_milliwatts // max(1, idle.limit_milliwatts)
    return NodeMilliwatts(max(0, grant.bound.expected_milliwatts - rest))


def _expected_of_others(
    info: NodeInfo, grant: Grant, pods: Iterable[PodView], staying: Mapping[str, JobGrant]
) -> NodeMilliwatts:
    """What the GPUs of a grant's other entries count with now: idle, or at the smallest limit until their pod has left."""
    idle, present = idle_bound(info, 1), {(pod.name, pod.job_uid) for pod in pods}
    kept = {(entry.pod_name, entry.uid) for entry in staying.values()}
    others = [entry for entry in grant.jobs if (entry.pod_name, entry.uid) not in kept]
    leaving = sum(entry.gpus for entry in others if (entry.pod_name, entry.uid) in present)
    gone = sum(entry.gpus for entry in others) - leaving
    return NodeMilliwatts(leaving * idle.limit_milliwatts + gone * idle.expected_milliwatts)


class _NodeTarget:
    """Builds one node's target, pod by pod."""

    def __init__(self, info: NodeInfo, rules: NodeRules) -> None:
        self._info = info
        self._rules = rules
        # 0 would be no limit: where nobody knows the smallest one, 1 makes the agent set the smallest there is.
        self._min_limit = max(MilliwattsPerGpu(1), info.min_limit_milliwatts)
        self._jobs: dict[str, tuple[JobGrant, PowerBound]] = {}

    def add(self, pod: PodView, wanted: _Wanted | None) -> None:
        """Provide for one pod's GPUs: what is wanted, or the smallest limit.

        Of several pods of one job the first counts: a replaced pod waits, gated, until the one before it has left.
        """
        if pod.job_uid in self._jobs or pod.gpus == 0:
            return
        limit, expected, clock = self._min_limit, self._min_limit, ANY_CLOCK_MEGAHERTZ
        if wanted is not None and self._info.believed and not self._rules.emergency:
            limit = max(limit, wanted.limit_milliwatts)
            expected, clock = min(limit, wanted.expected_milliwatts), wanted.clock_megahertz
        grant = JobGrant(
            namespace=pod.namespace,
            name=pod.job_name,
            uid=pod.job_uid,
            incarnation=pod.incarnation,
            pod_name=pod.name,
            gpus=pod.gpus,
            power_limit_milliwatts=limit,
            clock_min_megahertz=0,
            clock_max_megahertz=clock,
            pod_uid=pod.uid,
        )
        self._jobs[pod.job_uid] = grant, PowerBound(grant.limit_milliwatts, node_milliwatts(expected, pod.gpus))

    def build(self, lease_seconds: int) -> GrantTarget:
        """The target, its jobs in the order of their UIDs."""
        info, rules = self._info, self._rules
        entries = [self._jobs[uid] for uid in sorted(self._jobs)]
        used = info.foreign_gpus + info.lost_gpus + sum(grant.gpus for grant, _ in entries)
        reserved = reserved_milliwatts(info, rules)
        return GrantTarget(
            node=info.name,
            other_gpus=OtherGpuLimits(
                foreign_power_limit_milliwatts=self._foreign_limit(),
                foreign_gpus=info.foreign_gpus,
                failsafe_power_limit_milliwatts=rules.failsafe.limit_milliwatts,
                failsafe_hold_seconds=rules.failsafe.hold_seconds,
                foreign_pods=self._foreign_pods(),
            ),
            lease_seconds=lease_seconds,
            jobs=tuple(grant for grant, _ in entries),
            job_bounds=tuple(bound for _, bound in entries),
            rest=PowerBound(reserved, reserved) + idle_bound(info, max(0, info.gpus - used)),
            min_limit_milliwatts=self._min_limit,
        )

    def _foreign_limit(self) -> MilliwattsPerGpu:
        """The limit of each foreign pod's GPU as the grant has it: 0 for the default, and where there is none, so that
        a share that changes for some nodes takes no grant for the others."""
        if not self._rules.lowers_foreign_pods or not self._info.foreign_gpus:
            return MilliwattsPerGpu(0)
        return max(MilliwattsPerGpu(1), foreign_gpu_milliwatts(self._info, self._rules))

    def _foreign_pods(self) -> tuple[ForeignPodLimit, ...]:
        """The foreign pods whose weights give them other limits than that."""
        ordinary = foreign_gpu_milliwatts(self._info, self._rules)
        limits = ((pod, foreign_gpu_milliwatts(self._info, self._rules, pod)) for pod in self._info.foreign_pods)
        return tuple(
            ForeignPodLimit(pod.namespace, pod.name, max(MilliwattsPerGpu(1), limit))
            for pod, limit in limits
            if limit != ordinary
        )
