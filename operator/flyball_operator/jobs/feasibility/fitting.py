"""Which nodes can take each job's pods, and how many GPUs its namespace's quota leaves it; why none, where that is so.

The plan gives a job GPUs on such nodes alone: others would take its pods in the plan and refuse them in the cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from flyball_api.energy_aware_job import EnergyAwareJob, RecurringRun
from flyball_api.workloads import NO_NEEDS, Needs, NodeView, PodView
from flyball_kube.process.logs import get_logger

from flyball_operator.jobs.feasibility.comparisons import Comparisons
from flyball_operator.jobs.feasibility.pod_demands import PodDemands, plain_demands, pod_demands
from flyball_operator.jobs.feasibility.quotas import QuotaBound
from flyball_operator.jobs.runs.memory import Refusal
from flyball_operator.power.nodes.info import NodeInfo

logger = get_logger(__name__)


MOST_LACKS = 8  # that are named, each with how many nodes have it
MOST_LOGGED = 500  # characters


@dataclass(frozen=True, slots=True)
class Fit:
    """Where a job's pods may go (`eligible_nodes`; None: anywhere), and the most GPUs, and watts for each, that it may have
    (None: no bound).

    `refusal` says why it can have none at all as things are; else `bounded_by` names what bounds its GPUs, and
    `passed_over` says how many nodes lack what.
    """

    eligible_nodes: frozenset[str] | None = None
    gpus_max: int | None = None
    refusal: Refusal | None = None
    watts_per_gpu: int | None = None
    bounded_by: str = ""
    passed_over: str = ""


NO_BOUNDS = Fit()
# The same in every cycle: a status is written for each of thousands that wait where it says something else.
NO_TURN_YET = Fit(
    refusal=Refusal(
        "Planning", "what its pods demand of a node is compared with the nodes in turn, after that of other jobs"
    )
)
# What pods demand, by its identity (to hash it whole, ten thousand times, costs as much as all the rest), and the priority.
Asked = tuple[int, int]


class Fitting:
    """Finds the fit of every job in each cycle; what templates demand is read once for each generation."""

    def __init__(self) -> None:
        self._demands: dict[str, tuple[int, PodDemands]] = {}
        self._alike: dict[PodDemands, PodDemands] = {}  # one object for all that are equal
        self._comparisons: Comparisons[Asked, PodDemands, Fit] = Comparisons(lambda demands: demands.effort)
        self._everywhere: frozenset[str] = frozenset()

    @property
    def outstanding(self) -> int:
        """For how many unlike demands no node has been looked at yet."""
        return self._comparisons.outstanding

    def _of(self, job: EnergyAwareJob) -> PodDemands:
        known = self._demands.get(job.uid)
        if known is None or known[0] != job.generation:
            try:
                demands = pod_demands(job)
            except Exception:
                # Whatever a template has: it must not end the cycle that holds the caps for everybody.
                logger.exception("demands of a job's pods not understood", job=job.key)
                demands = plain_demands(job)
            known = self._demands[job.uid] = (job.generation, self._alike.setdefault(demands, demands))
        return known[1]

    def fits(
        self,
        jobs: Sequence[EnergyAwareJob],
        nodes: Mapping[str, NodeInfo],
        pods_of: Mapping[str, Sequence[PodView]],
        used: Mapping[str, Needs],
        resource_quotas: Mapping[str, QuotaBound],
        energy_quotas: Mapping[str, QuotaBound],
    ) -> dict[str, Fit]:
        """The fit of each of `jobs`, those that want GPUs, by uid.

        `used` is what pods that are not Flyball's have of each node beside GPUs. `resource_quotas` and `energy_quotas` are
        what quotas leave each job: the former take nothing from pods that there are.
        """
        for uid in self._demands.keys() - {job.uid for job in jobs}:
            del self._demands[uid]
        if len(self._alike) > 2 * len(self._demands):
            self._alike = {demands: demands for _, demands in self._demands.values()}
        views = {name: info.node for name, info in nodes.items() if info.node is not None and info.node.gpus}
        asked = {job.uid: (self._of(job), job.spec.priority) for job in jobs}
        unlike = {(id(demands), priority): demands for demands, priority in asked.values()}
        if self._everywhere != views.keys():
            self._everywhere = frozenset(views)
        # What is found for more than a cycle is found of these nodes, and not of those that come meanwhile.
        everywhere = None if self._comparisons.all_at_once(unlike.values(), len(views)) else self._everywhere
        room = _Room(views, used, {job.uid: job.spec.priority for job in jobs}, pods_of, everywhere)
        compared = self._comparisons.step(unlike, len(views), room.fit)
        found: dict[str, Fit] = {}
        for job in jobs:
            demands, priority = asked[job.uid]
            fit = self._fit(job, compared.get((id(demands), priority)), pods_of.get(job.uid, ()))
            bound = resource_quotas.get(job.uid)
            if bound is not None:
                holding = held_gpus(pods_of.get(job.uid, ()))
                refusal = fit.refusal if holding or fit.refusal is not None else bound.refusal
                most = max(holding, bound.gpus_max or job.spec.gpus.min)
                fit = replace(fit, gpus_max=most, refusal=refusal, bounded_by=_bounded_by(job, most, bound))
            bound = energy_quotas.get(job.uid)
            if bound is not None:
                gpus, by = fit.gpus_max, fit.bounded_by
                if gpus is None or (bound.gpus_max or gpus) < gpus:
                    gpus, by = bound.gpus_max, _bounded_by(job, bound.gpus_max, bound)
                refusal, watts = bound.refusal or fit.refusal, bound.watts_per_gpu
                fit = replace(fit, gpus_max=gpus, refusal=refusal, watts_per_gpu=watts, bounded_by=by)
            found[job.uid] = fit
        return found

    def _fit(self, job: EnergyAwareJob, found: Fit | None, pods: Sequence[PodView]) -> Fit:
        holds = frozenset(pod.node for pod in pods if pod.node and not pod.finished) if pods else frozenset()
        if found is None:
            if job.status.allocation is not None:
                holds |= {node.name for node in job.status.allocation.nodes}
            if holds:
                return Fit(holds)
            return NO_TURN_YET
        if not holds:
            return found
        # Where it is it may stay: what its own pods have there now, its next ones can have.
        return Fit(None if found.eligible_nodes is None else found.eligible_nodes | holds)


class _Room:
    """What each node has left for jobs, worked out once for all with the same priority."""

    def __init__(
        self,
        views: Mapping[str, NodeView],
        used: Mapping[str, Needs],
        priorities: Mapping[str, int],
        pods_of: Mapping[str, Sequence[PodView]],
        everywhere: frozenset[str] | None,
    ) -> None:
        """`everywhere` is what a fit has where every node fits."""
        self._everywhere = everywhere
        self._views = views
        self._used = used
        # Of each node: what Flyball's own pods have of it, with their jobs' priorities (None: not known).
        self._ours: dict[str, list[tuple[int | None, Needs]]] = {}
        for uid, pods in pods_of.items():
            for pod in pods:
                if pod.node and not pod.finished and pod.needs != NO_NEEDS:
                    self._ours.setdefault(pod.node, []).append((priorities.get(uid), pod.needs))
        self._free_of: dict[int, dict[str, Needs | None]] = {}  # by priority

    def fit(self, demands: PodDemands, asked: Asked, before: Fit | None) -> Fit:
        """The fit of a job with these demands that has no pods yet; where nothing has changed the very object of `before`,
        by which others know it."""
        try:
            found = self._judged(demands, asked[1])
        except Exception:
            logger.exception("demands of pods not compared with nodes", demands=str(demands)[:MOST_LOGGED])
            found = NO_BOUNDS
        return before if before == found and before is not None else found

    def _judged(self, demands: PodDemands, priority: int) -> Fit:
        views, free = self._views, self._free_of.get(priority)
        if free is None:
            free = self._free_of[priority] = {name: self._free(view, priority) for name, view in views.items()}
        lacks = {name: demands.lacking(view, free[name]) for name, view in views.items()}
        fitting = [name for name, lack in lacks.items() if not lack]
        eligible = self._everywhere if len(fitting) == len(views) else frozenset(fitting)
        offered = sum(views[name].allocatable_gpus for name in fitting)
        groups = Counter(lack for lack in lacks.values() if lack).most_common(MOST_LACKS)
        listed = ", ".join(f"{count} {'has' if count == 1 else 'have'} {lack}" for lack, count in groups)
        if not views or offered >= demands.gpus:
            others = len(views) - len(fitting)
            do = "does" if others == 1 else "do"
            return Fit(
                eligible, passed_over=f"{others} of {_nodes(len(views))} {do} not fit: {listed}." if others else ""
            )
        there = sum(view.gpus for view in views.values() if demands.resource_name in view.gpu_resources)
        if there < demands.gpus:
            message = f"needs {_gpus(demands.gpus)}, and the cluster has {there} in {_nodes(len(views))}"
            return Fit(eligible, refusal=Refusal("ExceedsCluster", message))
        message = f"{len(fitting)} of {_nodes(len(views))} {'fits' if len(fitting) == 1 else 'fit'}"
        if fitting:
            message += f", with {offered} of the {_gpus(demands.gpus)} that it needs"
        message += f": {listed}" if listed else ""
        return Fit(eligible, refusal=Refusal("NoNodeFits", message))

    def _free(self, view: NodeView, priority: int) -> Needs | None:
        """What a node has left for a job of this priority.

        Pods outside Flyball have theirs first, and so have jobs that the plan does not pause for this one.
        """
        if view.allocatable is None:
            return None
        free = view.allocatable - self._used.get(view.name, NO_NEEDS)
        for of, needs in self._ours.get(view.name, ()):
            if of is None or of >= priority:
                free -= needs
        return free


def withheld_gpus(nodes: Iterable[NodeInfo], pods: Iterable[PodView]) -> dict[str, int]:
    """How many GPUs of each node its device plugin withholds from pods, those that pods have already not counted.

    Boards that it does not offer as GPUs (partitioned ones beside whole ones) are among them.
    """
    held: Counter[str] = Counter()
    for pod in pods:
        if pod.node and not pod.finished:
            held[pod.node] += pod.gpus
    found = {}
    for info in nodes:
        view = info.node
        if view is not None and view.allocatable_gpus < info.gpus:
            found[info.name] = max(0, min(info.gpus - view.allocatable_gpus, info.gpus - held[info.name]))
    return found


def held_gpus(pods: Iterable[PodView]) -> int:
    """How many GPUs the pods of a job have, or are about to have."""
    return sum(pod.gpus for pod in pods if not pod.finished and not pod.gated)


def _bounded_by(job: EnergyAwareJob, most: int | None, bound: QuotaBound) -> str:
    """What bounds a job's size to so many GPUs; empty where its own spec does."""
    return "" if most is None or most >= job.spec.gpus.max else bound.by


def _gpus(number: int) -> str:
    return "1 GPU" if number == 1 else f"{number} GPUs"


def _nodes(number: int) -> str:
    return "1 node" if number == 1 else f"{number} nodes"


def on_gpu_model(
    eligible: frozenset[str] | None, run: RecurringRun | None, nodes: Mapping[str, NodeInfo]
) -> frozenset[str] | None:
    """Of the nodes that can take a job's pods (None: all) those with the GPUs that its run is compared on.

    All of them where there are no such GPUs any more: it then ends on others, rather than never.
    """
    if run is None:
        return eligible
    same = frozenset(
        name
        for name, info in nodes.items()
        if info.gpu_model is not None
        and info.gpu_model.product == run.gpu_model
        and (eligible is None or name in eligible)
    )
    return same or eligible
