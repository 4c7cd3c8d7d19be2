"""Batch Jobs that wait for watts: created suspended with a label, they are let run once the caps and the GPUs have room.

This is the contract by which queues govern Jobs (KEP-2232): whoever makes one has it wait by `spec.suspend`, and what may
be done for it is to end that wait. Its pods are then pods outside Flyball like all others, and get what such pods get. A
Job is let run into GPUs that nobody holds and the plan gives to nobody, the oldest first; a smaller one may pass a larger.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import zip_longest

from flyball_api.values.units import MILLIWATTS_PER_WATT, allowed_watts, held_watts, of_nodes
from flyball_api.workloads import NO_NEEDS, Needs, PlainJob
from flyball_planner.snapshot import JobDecision
from msgspec.structs import replace

from flyball_operator.cluster.outcome import Outcome, WriteResult
from flyball_operator.jobs.feasibility.comparisons import as_many_as, as_one, effort_of, whose_turn_it_is
from flyball_operator.jobs.feasibility.pod_demands import PodDemands, template_demands
from flyball_operator.jobs.starts.pauses import refusal_seconds
from flyball_operator.power.caps.foreign_shares import with_foreign_shares
from flyball_operator.power.cycle import PowerState
from flyball_operator.power.nodes.info import ForeignPod, NodeInfo
from flyball_operator.power.nodes.reservations import NO_RULES, foreign_gpu_milliwatts, resting_bound

# For so long a Job that was let run may seem to wait: what the API server says of it is still from before.
BELIEVED_SECONDS = 10.0
# A reason that stays the same is told again so often, for Events are forgotten.
REPEATED_AFTER_SECONDS = 300.0
# So many that wait, and as many that run, are looked at in each cycle: the oldest of each namespace before any second one.
MAX_JUDGED = 200
# Fewer on many nodes, with each of which each is compared, counted and summed up: 9 microseconds, so 90 ms a cycle. A cut
# that comes meanwhile waits for that.
MOST_NODES_LOOKED_AT = 10_000
FEWEST_JUDGED = 4
# Those that run and whose pods have yet to come are only placed.
MOST_NODES_PLACED_ON = 50_000
# What nobody has made so long after a Job began to run may never come: a quota or an admission policy refuses some pods.
PODS_MADE_SECONDS = 60.0
# What is said of a Job, and whether somebody has to do something about it.
REASONS = {
    "Admitted": False,
    "WaitingForWatts": False,
    "WaitingForGpus": False,
    "CapsUnreadable": False,
    "NoNodeFits": True,
    "InvalidRequest": True,
    "JobRefused": True,
}


@dataclass(frozen=True, slots=True)
class PlainJobVerdict:
    """What becomes of one Job that waits: `admitted`, or why it goes on waiting, one of REASONS and in a sentence."""

    job: PlainJob
    reason: str
    message: str
    admitted: bool = field(kw_only=True)


class _Demands:
    """What the pods of each Job demand of a node. A template may be a megabyte, and is read once for each version."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[PlainJob, PodDemands]] = {}  # by uid

    def take(self, jobs: Mapping[str, PlainJob]) -> None:
        """Take in which Jobs there are: what was read of others is forgotten."""
        self._read = {uid: read for uid, read in self._read.items() if jobs.get(uid) is read[0]}

    def of(self, job: PlainJob) -> PodDemands:
        known = self._read.get(job.uid)
        if known is None or known[0] is not job:
            demands = template_demands(job.template, PodDemands(job.gpu_resource, job.gpus_per_pod))
            known = self._read[job.uid] = job, demands
        return known[1]


class PlainJobs:
    """Judges the Jobs that wait in each cycle, and remembers which were let run a moment ago and what was shown of them."""

    def __init__(self) -> None:
        self._admitted: dict[str, float] = {}  # when, by uid
        self._refused: dict[str, tuple[float, int]] = {}  # until when it is left alone, and how often it was refused
        self._shown: dict[str, tuple[str, float]] = {}
        self._steps = 0
        # Of those that wait: the reasons of those that were judged, the longest ago first, and the others as they came.
        self._judged: dict[str, str] = {}
        self._new: dict[str, None] = {}
        self._demands = _Demands()
        self._runs_since: dict[str, float] = {}  # as far as this operator has seen, by uid
        self.waiting: dict[str, int] = {}
        """How many that were judged go on waiting, by the reason."""

    def step(self, state: PowerState, decisions: Mapping[str, JobDecision], monotonic: float) -> list[PlainJobVerdict]:
        """The verdicts to carry out now: each Job that may run, and each that may not where its reason is new.

        A reason that stays the same is given again every `REPEATED_AFTER_SECONDS`.
        """
        jobs = {job.uid: job for job in state.cluster.plain_jobs}
        self._demands.take(jobs)
        self._runs_since = {uid: self._runs_since.get(uid, monotonic) for uid, job in jobs.items() if job.runs}
        self._shown = {uid: shown for uid, shown in self._shown.items() if uid in jobs}
        self._admitted = {
            uid: at for uid, at in self._admitted.items() if uid in jobs and monotonic - at < BELIEVED_SECONDS
        }
        self._refused = {uid: refused for uid, refused in self._refused.items() if uid in jobs and jobs[uid].waits}
        left = {uid for uid, (until, _) in self._refused.items() if until > monotonic}
        waiting = [job for job in jobs.values() if job.waits and job.uid not in self._admitted and job.uid not in left]
        wait = {job.uid for job in waiting}
        self._steps += 1
        self._judged = {uid: reason for uid, reason in self._judged.items() if uid in wait}
        came = (job.uid for job in sorted(waiting, key=_age))
        self._new = {uid: None for uid in (*self._new, *came) if uid in wait and uid not in self._judged}
        verdicts: list[PlainJobVerdict] = []
        if waiting:
            let_run = [jobs[uid] for uid in self._admitted]
            run = [job for uid, job in jobs.items() if job.runs and uid not in self._admitted]
            settled = {uid for uid, since in self._runs_since.items() if monotonic - since >= PODS_MADE_SECONDS}
            room = _Room(state, decisions, let_run, run, settled, self._demands)
            verdicts = [room.judge(job) for job in self._whose_turn_it_is(waiting, len(state.nodes))]
        for verdict in verdicts:
            self._judged.pop(verdict.job.uid, None)
            self._new.pop(verdict.job.uid, None)
            if verdict.admitted:
                self._admitted[verdict.job.uid] = monotonic
            else:
                self._judged[verdict.job.uid] = verdict.reason
        self.waiting = Counter(self._judged.values())
        if left:
            self.waiting["JobRefused"] = len(left)
        return [verdict for verdict in verdicts if verdict.admitted or self._take_news(verdict, monotonic)]

    def _whose_turn_it_is(self, waiting: Sequence[PlainJob], nodes: int) -> list[PlainJob]:
        """Those to judge now, the oldest first. Of too many one half are the oldest, the other those whose turn it is."""
        most = max(FEWEST_JUDGED, min(MAX_JUDGED, MOST_NODES_LOOKED_AT // max(1, nodes)))
        if len(waiting) <= most:
            return sorted(waiting, key=_age)
        chosen = {job.uid for job in _chosen(waiting, most // 2)}
        new, before = ([uid for uid in uids if uid not in chosen] for uids in (self._new, self._judged))
        chosen.update(whose_turn_it_is(new, before, most - len(chosen), self._steps))
        return sorted((job for job in waiting if job.uid in chosen), key=_age)

    def answered(self, job: PlainJob, result: WriteResult, monotonic: float) -> PlainJobVerdict | None:
        """Take in what became of letting a Job run; what users are to be shown of that, None where nothing.

        Where another writer was first, such as the Job's own controller, it is judged anew by what that has written.
        """
        if result.outcome is not Outcome.REFUSED:
            return None
        self._admitted.pop(job.uid, None)
        if result.conflict or result.not_found:
            return None
        times = self._refused.get(job.uid, (0.0, 0))[1]
        self._refused[job.uid] = monotonic + refusal_seconds(times), times + 1
        verdict = PlainJobVerdict(job, "JobRefused", result.message, admitted=False)
        return verdict if self._take_news(verdict, monotonic) else None

    def _take_news(self, verdict: PlainJobVerdict, monotonic: float) -> bool:
        """Whether users are to be shown this verdict now; it counts as shown from here on."""
        before = self._shown.get(verdict.job.uid)
        if before is not None and before[0] == verdict.message and monotonic - before[1] < REPEATED_AFTER_SECONDS:
            return False
        self._shown[verdict.job.uid] = verdict.message, monotonic
        return True


def _chosen(jobs: Iterable[PlainJob], most: int, effort: Callable[[PlainJob], int] = as_one) -> list[PlainJob]:
    """As many as `most` allows, the oldest first; of each namespace as many as of any other that has them, so that one
    namespace's Jobs, which may wait for ever, keep nobody else's waiting."""
    of_namespaces: dict[str, list[PlainJob]] = defaultdict(list)
    for job in sorted(jobs, key=_age):
        of_namespaces[job.namespace].append(job)
    in_turn = (job for rank in zip_longest(*of_namespaces.values()) for job in rank if job is not None)
    return sorted(as_many_as(in_turn, most, effort), key=_age)


def _age(job: PlainJob) -> tuple[str, str, str]:
    return job.created, job.namespace, job.name


class _Room:
    """The GPUs and watts that are left, as Jobs are let run one after the other."""

    def __init__(
        self,
        state: PowerState,
        decisions: Mapping[str, JobDecision],
        let_run: Sequence[PlainJob],
        run: Sequence[PlainJob],
        settled: Container[str],
        demands: _Demands,
    ) -> None:
        """Without the GPUs of pods that have yet to come: first of all those of Jobs that were `let_run` a moment ago. Of
        the `settled` ones (by uid) only pods that there are may come to a node."""
        self._state = state
        self._nodes: dict[str, NodeInfo] = dict(state.nodes)
        self._views = {
            name: info.node for name, info in state.nodes.items() if info.node is not None and info.node.gpus
        }
        held = _held_by_training(state, decisions)
        self._free = {
            name: min(info.gpus - info.lost_gpus, info.node.allocatable_gpus) - info.foreign_gpus - held[name]
            for name, info in state.nodes.items()
            if info.schedulable and info.node is not None
        }
        self._needs = _free_needs(state, self._views)
        theirs = [pod for pod in state.cluster.pods if pod.gpus and not pod.job_uid and not pod.finished]
        bound = Counter(pod.controller_uid for pod in theirs if pod.node)
        made = Counter(pod.controller_uid for pod in theirs)
        pods = {job.uid: min(job.pods, made[job.uid]) if job.uid in settled else job.pods for job in (*let_run, *run)}
        self._demands = demands
        self._fits: dict[PodDemands, tuple[list[str], Counter[str]]] = {}
        most = max(FEWEST_JUDGED, min(MAX_JUDGED, MOST_NODES_PLACED_ON // max(1, len(state.nodes))))
        incomplete = [
            [job for job in jobs if job.gpus_per_pod and pods[job.uid] > bound[job.uid]] for jobs in (let_run, run)
        ]
        first = _chosen(incomplete[0], most, self._effort)
        for job in [*first, *_chosen(incomplete[1], most - effort_of(first, self._effort), self._effort)]:
            placed = self._placed(job, pods[job.uid] - bound[job.uid], self._fitting(job)[0])
            if placed is not None:
                self._take(job, placed, _with_pods(self._nodes, job, placed))

    def judge(self, job: PlainJob) -> PlainJobVerdict:
        """Whether the Job may run now; its GPUs and watts are then taken."""
        if self._state.caps.unreadable or self._state.cluster.unread:
            return PlainJobVerdict(
                job, "CapsUnreadable", "nothing is let run while a cap or a GPUNode cannot be read", admitted=False
            )
        if job.problem:
            return PlainJobVerdict(job, "InvalidRequest", job.problem, admitted=False)
        fitting, lacks = self._fitting(job)
        offered = (
            sum(self._views[name].allocatable_gpus // job.gpus_per_pod for name in fitting) if job.gpus else job.pods
        )
        if offered < job.pods:
            listed = ", ".join(f"{count} with {lack}" for lack, count in lacks.most_common())
            words = f"{len(fitting)} of {len(self._views)} nodes fit its {_pods(job)}{f': {listed}' if listed else ''}"
            words += f"; they hold {offered} of them at the most" if fitting else ""
            return PlainJobVerdict(job, "NoNodeFits", words, admitted=False)
        most = max((self._nodes[name].default_limit_milliwatts for name in fitting), default=0) // MILLIWATTS_PER_WATT
        if job.gpus and job.watts_per_gpu > most:
            words = (
                f"it asks for {job.watts_per_gpu} W for each GPU; those of the nodes that fit get {most} W at the most"
            )
            return PlainJobVerdict(job, "NoNodeFits", words, admitted=False)
        placed = self._placed(job, job.pods, fitting)
        if placed is None:
            free = sum(max(0, self._free.get(name, 0)) for name in fitting)
            words = f"it needs {_pods(job)}; on nodes that fit {free} GPUs are free and planned for nobody"
            return PlainJobVerdict(job, "WaitingForGpus", words, admitted=False)
        nodes = _with_pods(self._nodes, job, placed)
        shortage, watts = self._short_of_watts(job, nodes, placed)
        if shortage:
            return PlainJobVerdict(job, "WaitingForWatts", shortage, admitted=False)
        self._take(job, placed, nodes)
        words = f"{_pods(job)} may run; each of its GPUs may draw {watts} W now" if job.gpus else "it asks for no GPUs"
        return PlainJobVerdict(job, "Admitted", words, admitted=True)

    def _fitting(self, job: PlainJob) -> tuple[list[str], Counter[str]]:
        """The nodes that can take one of the Job's pods at some time, and what the others lack."""
        demands = self._demands.of(job)
        found = self._fits.get(demands)
        if found is None:
            found = self._fits[demands] = self._fitting_for(demands)
        return found

    def _effort(self, job: PlainJob) -> int:
        return self._demands.of(job).effort

    def _fitting_for(self, demands: PodDemands) -> tuple[list[str], Counter[str]]:
        lacks = {
            name: demands.lacking(view, self._needs.get(name))
            or (f"{view.allocatable_gpus} GPUs" if view.allocatable_gpus < demands.gpus else "")
            for name, view in self._views.items()
        }
        fitting = [name for name, lack in lacks.items() if not lack]
        return fitting, Counter(lack for lack in lacks.values() if lack)

    def _placed(self, job: PlainJob, pods: int, fitting: Sequence[str]) -> Counter[str] | None:
        """How many pods each node would get, the fullest nodes first; None where not all of them have room."""
        placed: Counter[str] = Counter()
        if not job.gpus_per_pod:
            return placed
        room = [(free, name) for name in fitting if (free := self._free.get(name, 0)) >= job.gpus_per_pod]
        for free, name in nsmallest(pods, room):  # each takes one at the least
            placed[name] = min(pods, free // job.gpus_per_pod)
            pods -= placed[name]
        return placed if not pods else None

    def _take(self, job: PlainJob, placed: Counter[str], nodes: dict[str, NodeInfo]) -> None:
        """The Job has its GPUs; `nodes` are those with its pods."""
        self._nodes = nodes
        for name, pods in placed.items():
            self._free[name] -= pods * job.gpus_per_pod

    def _short_of_watts(self, job: PlainJob, nodes: Mapping[str, NodeInfo], placed: Counter[str]) -> tuple[str, int]:
        """What of watts is missing for the Job on these nodes (empty: nothing), and what each of its GPUs would get."""
        caps, names = self._state.caps, [name for name, pods in placed.items() if pods]
        limiting = [(state.spec, state.budget()) for state in caps.states]
        rules = with_foreign_shares(caps.rules, limiting, nodes, self._state.cluster.wanted_gpus)
        pod = ForeignPod(job.namespace, job.name, job.gpus_per_pod, job.permille, job.labels)
        limits = [foreign_gpu_milliwatts(nodes[name], rules.get(name, NO_RULES), pod) for name in names]
        watts = allowed_watts(min(limits, default=0) / MILLIWATTS_PER_WATT)
        if names and watts < job.watts_per_gpu:
            return f"each of its GPUs would get {watts} W, and it asks for {job.watts_per_gpu} W", watts
        for state in caps.states:
            if state.nodes.isdisjoint(names):
                continue
            budget = state.planning_budget()
            under = [name for name in state.nodes if name in nodes]
            least = [(name, budget.counted(resting_bound(nodes[name], rules.get(name, NO_RULES)))) for name in under]
            over = of_nodes(draw for _, draw in least) + budget.reserve.of(least) - budget.budget_milliwatts
            if over > 0:
                missing = held_watts(over / MILLIWATTS_PER_WATT)
                words = f"PowerCap {state.name} has no watts for {job.gpus} more GPUs at {watts} W"
                return f"{words}: {missing} W are missing with all else at its smallest limits", watts
        return "", watts


def _held_by_training(state: PowerState, decisions: Mapping[str, JobDecision]) -> Counter[str]:
    """GPUs of each node that pods of training jobs hold or the plan gives to such jobs, whichever is more of each job."""
    held: dict[tuple[str, str], int] = {}
    for pod in state.cluster.pods:
        if pod.job_uid and pod.node and not pod.finished:
            held[pod.job_uid, pod.node] = held.get((pod.job_uid, pod.node), 0) + pod.gpus
    for uid, decision in decisions.items():
        for node, gpus in () if decision.allocation is None else decision.allocation.nodes:
            held[uid, node] = max(gpus, held.get((uid, node), 0))
    found: Counter[str] = Counter()
    for (_, node), gpus in held.items():
        found[node] += gpus
    return found


def _free_needs(state: PowerState, views: Collection[str]) -> dict[str, Needs | None]:
    """The processors and memory that are free on each node; None where its kubelet does not say what there is."""
    used = dict(state.cluster.used)
    for pod in state.cluster.pods:
        if pod.job_uid and pod.node and not pod.finished:
            used[pod.node] = used.get(pod.node, NO_NEEDS) + pod.needs
    found: dict[str, Needs | None] = {}
    for name in views:
        node = state.nodes[name].node
        there = None if node is None else node.allocatable
        found[name] = None if there is None else there - used.get(name, NO_NEEDS)
    return found


def _with_pods(nodes: dict[str, NodeInfo], job: PlainJob, placed: Counter[str]) -> dict[str, NodeInfo]:
    """The nodes with so many of the Job's pods on each."""
    changed = {}
    for name, pods in placed.items():
        if pods:
            pod = ForeignPod(job.namespace, job.name, job.gpus_per_pod * pods, job.permille, job.labels)
            changed[name] = replace(nodes[name], foreign_pods=(*nodes[name].foreign_pods, pod))
    return nodes | changed


def _pods(job: PlainJob) -> str:
    pods, gpus = "pod" if job.pods == 1 else "pods", "GPU" if job.gpus_per_pod == 1 else "GPUs"
    return f"{job.pods} {pods} with {job.gpus_per_pod} {gpus}{'' if job.pods == 1 else ' each'}"
