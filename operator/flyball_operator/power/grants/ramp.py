"""How fast load may come and go under a cap with `rampWattsPerSecond`: what is committed rises in steps, and jobs start and
are stopped in turn.

A grid and its generators see the sum of all nodes. A job's thousand GPUs that begin or end together are one step for them,
and so are ten jobs that one plan admits or preempts. Cuts never come here: whatever lowers a limit is in force before
anything is ramped, and a cap that is not held holds up no stop.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from flyball_api.gpu_node import GpuNode
from flyball_api.grant import JobGrant, PowerBound
from flyball_api.values.units import (
    MILLIWATTS_PER_WATT,
    MilliwattsPerGpu,
    NodeMilliwatts,
    held_milliwatts,
    in_whole_watts,
)
from flyball_api.workloads import PodView
from msgspec.structs import replace

from flyball_operator.power.bound import CapBudget, NodePower
from flyball_operator.power.caps.state import CapState
from flyball_operator.power.grants.admission import GrantTarget
from flyball_operator.power.nodes.info import NodeInfo

# Each step is a grant for every node that rises.
STEP_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class _Allowance:
    """By how many milliwatts what is committed may still rise, since when, and what was committed at the last look."""

    milliwatts: int
    since: float
    committed: NodeMilliwatts


@dataclass(frozen=True, slots=True)
class _Share:
    """How high each job's limits may be until the next step, in milliwatts a GPU, by node, pod and job uid."""

    since: float
    limits: dict[tuple[str, str, str], MilliwattsPerGpu]


class Ramps:
    """Remembers how far each cap's committed watts may have risen by now; a new leader begins at what is committed."""

    def __init__(self) -> None:
        self._allowances: dict[str, _Allowance] = {}  # by the cap's uid
        self._shares: dict[str, _Share] = {}  # by the cap's uid, where more is wanted than may rise

    def step(
        self, targets: Sequence[GrantTarget], power: Mapping[str, NodePower], caps: Iterable[CapState], monotonic: float
    ) -> tuple[list[GrantTarget], list[CapBudget]]:
        """The targets with raises as far as the ramps allow now, and the budgets that hold them there."""
        ramped = [cap for cap in caps if cap.spec.ramp_watts_per_second is not None]
        uids = {cap.cap.uid for cap in ramped}
        self._allowances = {uid: known for uid, known in self._allowances.items() if uid in uids}
        self._shares = {uid: known for uid, known in self._shares.items() if uid in uids}
        by_node = {target.node: target for target in targets}
        budgets = []
        for cap in ramped:
            counts = cap.planning_budget()
            under = [by_node[node] for node in sorted(cap.nodes) if node in by_node]
            rises = {
                target.node: max(0, int(counts.counted(target.bound) - counts.counted(power[target.node].committed)))
                for target in under
            }
            committed = counts.committed(power)
            self._update_allowance(cap, committed, list(rises.values()), monotonic)
            room, wanted = self._allowances[cap.cap.uid].milliwatts, sum(rises.values())
            if wanted > room:
                rising = [target for target in under if rises[target.node]]
                self._update_share(cap, rising, power, room / wanted)
                limits = self._shares[cap.cap.uid].limits
                by_node |= {target.node: _raised_to(target, limits) for target in rising}
            else:
                self._shares.pop(cap.cap.uid, None)
            budgets.append(
                CapBudget(f"{cap.name} (ramp)", cap.nodes, NodeMilliwatts(committed + room), cap.spec.expected)
            )
        return list(by_node.values()), budgets

    def _update_share(
        self, cap: CapState, rising: Iterable[GrantTarget], power: Mapping[str, NodePower], fraction: float
    ) -> None:
        """Share out how high each job's limits may be: by `fraction` of its rise, until the cap's next step.

        What is left over, because another's rise cannot be had now, waits for that step. Shared out at every look it would
        be a grant each time, of half as much as the one before. A job that begins does so from the smallest limit: its pods
        start, and their limits rise.
        """
        since = self._allowances[cap.cap.uid].since
        share = self._shares.get(cap.cap.uid)
        if share is None or share.since != since:
            share = self._shares[cap.cap.uid] = _Share(since, {})
        else:
            fraction = 0.0  # who wants more between two steps
        for target in rising:
            standing = power[target.node].grant
            held = {} if standing is None else {(job.pod_name, job.uid): job for job in standing.jobs}
            for job in target.jobs:
                key, before = (target.node, job.pod_name, job.uid), held.get((job.pod_name, job.uid))
                if key not in share.limits:
                    least = target.min_limit_milliwatts
                    if before is not None:
                        least = max(least, before.power_limit_milliwatts)
                    rise = int(max(0, job.power_limit_milliwatts - least) * fraction)
                    share.limits[key] = least + in_whole_watts(MilliwattsPerGpu(rise))

    def _update_allowance(
        self, cap: CapState, committed: NodeMilliwatts, rises: Sequence[int], monotonic: float
    ) -> None:
        """Take in what is committed now, and by how many milliwatts it is wanted to rise on each node.

        While nothing is wanted, nothing is saved up; else as much as the largest rise of one node, as one that cannot be
        had in parts (a foreign pod's reservation, say) must come at some time.
        """
        last = self._allowances.get(cap.cap.uid)
        if last is None or not any(rises):
            last = _Allowance(0, monotonic, committed)
        left, since = max(0, last.milliwatts - max(0, committed - last.committed)), last.since
        elapsed = monotonic - since
        if elapsed >= STEP_SECONDS:
            per_second = (cap.spec.ramp_watts_per_second or 0) * MILLIWATTS_PER_WATT
            most = max(int(per_second * STEP_SECONDS), *rises)
            left, since = min(left + int(per_second * elapsed), most), monotonic
        self._allowances[cap.cap.uid] = _Allowance(left, since, committed)


def _raised_to(target: GrantTarget, limits: Mapping[tuple[str, str, str], MilliwattsPerGpu]) -> GrantTarget:
    """`target` with no job's limit above what it may be by now."""
    jobs: list[JobGrant] = []
    bounds: list[PowerBound] = []
    for job, bound in zip(target.jobs, target.job_bounds, strict=True):
        most = limits[target.node, job.pod_name, job.uid]
        if job.power_limit_milliwatts > most:
            job = replace(job, power_limit_milliwatts=most)
        of_job = job.limit_milliwatts
        jobs.append(job)
        bounds.append(PowerBound(of_job, min(bound.expected_milliwatts, of_job)))
    return replace(target, jobs=tuple(jobs), job_bounds=tuple(bounds))


@dataclass(frozen=True, slots=True)
class LoadStep:
    """A job that waits to start, or to be stopped: how many GPUs of which node, and the limit of each as granted."""

    uid: str
    incarnation: int
    pods: tuple[tuple[str, int, MilliwattsPerGpu], ...]

    @property
    def key(self) -> tuple[str, int]:
        return self.uid, self.incarnation

    def milliwatts(self, cap: CapState, nodes: Mapping[str, NodeInfo]) -> int:
        """What it adds or takes away under a cap at once: what lies between idle and the limits of its GPUs."""
        return sum(
            gpus * max(0, limit - _idle_milliwatts(nodes[node]))
            for node, gpus, limit in self.pods
            if node in cap.nodes and node in nodes
        )


def waiting_starts(
    pods: Iterable[PodView], gpu_nodes: Mapping[str, GpuNode], reserved: Collection[tuple[str, str]]
) -> list[LoadStep]:
    """The jobs whose pods are all gated and `reserved` (by name and job uid): those that would start now."""
    gated: dict[tuple[str, int], set[str]] = {}
    for pod in pods:
        if pod.gated and pod.job_uid and not pod.deleting and not pod.finished:
            gated.setdefault((pod.job_uid, pod.incarnation), set()).add(pod.name)
    names = {key: {name for name in found if (name, key[0]) in reserved} for key, found in gated.items()}
    steps = _load_steps(gpu_nodes, names)
    return [step for step in steps if len(step.pods) == len(gated[step.key])]


def waiting_stops(
    pods: Iterable[PodView], gpu_nodes: Mapping[str, GpuNode], stopping: Collection[tuple[str, int]]
) -> list[LoadStep]:
    """The incarnations among `stopping` (by the job's uid and number) whose pods still run under a grant."""
    running: dict[tuple[str, int], set[str]] = {}
    for pod in pods:
        key = (pod.job_uid, pod.incarnation)
        if key in stopping and not pod.gated and not pod.deleting and not pod.finished:
            running.setdefault(key, set()).add(pod.name)
    return _load_steps(gpu_nodes, running)


def _load_steps(gpu_nodes: Mapping[str, GpuNode], pods: Mapping[tuple[str, int], Collection[str]]) -> list[LoadStep]:
    """What these pods, by job and incarnation, have been granted; without those that have been granted nothing."""
    granted: dict[tuple[str, int], list[tuple[str, int, MilliwattsPerGpu]]] = {}
    for name, gpu_node in gpu_nodes.items():
        for job in () if gpu_node.grant is None else gpu_node.grant.jobs:
            key = (job.uid, job.incarnation)
            if job.pod_name in pods.get(key, ()):
                granted.setdefault(key, []).append((name, job.gpus, job.power_limit_milliwatts))
    return [LoadStep(uid, incarnation, tuple(found)) for (uid, incarnation), found in granted.items()]


def _idle_milliwatts(info: NodeInfo) -> int:
    return 0 if info.gpu_model is None else held_milliwatts(info.gpu_model.idle_power_watts)


def holds_up_stops(cap: CapState) -> bool:
    """Whether stops under the cap may wait for each other: not where it is still on its way down."""
    return cap.enforced and cap.attainable and cap.measured_watts <= cap.effective.watts


class Turns:
    """Lets jobs take a step of load under ramped caps one after the other, each once the one before has been paid off.

    A step cannot be had in parts: one that is larger than the ramp allows in a second is taken as soon as nothing is owed,
    and the next one waits for all that it owes.
    """

    def __init__(self) -> None:
        self._owed: dict[str, float] = {}  # milliwatts, by the cap's uid
        self._at: float | None = None
        self._taken: set[tuple[str, int]] = set()

    @property
    def allowed(self) -> frozenset[tuple[str, int]]:
        """The jobs, by uid and incarnation, that may take their step now; one goes on being allowed until it has."""
        return frozenset(self._taken)

    def update(
        self,
        waiting: Iterable[LoadStep],
        caps: Iterable[CapState],
        nodes: Mapping[str, NodeInfo],
        monotonic: float,
    ) -> None:
        """Take in the jobs that wait to take a step of load, and let those take it whose turn it is."""
        elapsed = 0.0 if self._at is None else monotonic - self._at
        self._at = monotonic
        ramped = [cap for cap in caps if cap.spec.ramp_watts_per_second is not None]
        self._owed = {
            cap.cap.uid: max(
                0.0,
                self._owed.get(cap.cap.uid, 0.0)
                - (cap.spec.ramp_watts_per_second or 0) * MILLIWATTS_PER_WATT * elapsed,
            )
            for cap in ramped
        }
        jobs = sorted(waiting, key=lambda item: item.key)
        self._taken &= {job.key for job in jobs}
        for job in jobs:
            over = [cap for cap in ramped if any(node in cap.nodes for node, *_ in job.pods)]
            if job.key in self._taken or any(self._owed[cap.cap.uid] > 0 for cap in over):
                continue
            self._taken.add(job.key)
            for cap in over:
                self._owed[cap.cap.uid] += job.milliwatts(cap, nodes)
