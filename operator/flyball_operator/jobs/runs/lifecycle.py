"""One training job's way from its present pods to the allocation that the plan gives it, one safe step at a time.

Each (re)start is an *incarnation*: an Indexed Job of gated pods, one a node. The steps, taken whenever the state at hand
allows the next, and taken again after any crash because nothing but that state is remembered:

- an incarnation on other nodes than the plan's is stopped (its pods checkpoint and leave), and so is one that failed, once
  all of its pods have ended and the pause before the next start is over: until then they stay, with their logs; one of
  which a pod has failed is left to fail first, wherever the plan has the job by then;
- while any pod of the job still holds GPUs, wait; those that were left behind when somebody deleted their Job are deleted;
- with none left, the next incarnation is made, its pods gated, and then the Service that they find each other by;
- with the Service and every pod of it there, its number in the job's status and its watts reserved on every node, all
  gates are opened, all or none.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from flyball_api.workloads import IncarnationView, PodView

from flyball_operator.jobs.runs.endings import Ending, Evidence, gathered, judged

# What Kubernetes says of a pod whose Node is gone. That says it all, by an Event: its job just goes elsewhere.
NODE_GONE = "DeletionByPodGC"


class JobPhase(StrEnum):
    """Where a job stands on the way."""

    WAITING = "Waiting"
    STOPPING = "Stopping"
    CREATING = "Creating"
    GATED = "Gated"
    STARTING = "Starting"
    RUNNING = "Running"
    COMPLETE = "Complete"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class StopIncarnation:
    """Delete the incarnation's Job: its pods get SIGTERM, checkpoint and leave, and its Service goes with it."""

    incarnation: IncarnationView
    reason: str


@dataclass(frozen=True, slots=True)
class CreateIncarnation:
    """Make the Job of the next incarnation on these `(node, gpus)`."""

    job_uid: str
    incarnation: int
    nodes: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class CreateService:
    """Make the Service by which the ranks of an incarnation find each other, or put it right where it is not whole."""

    incarnation: IncarnationView


@dataclass(frozen=True, slots=True)
class OpenGates:
    """Bind each gated pod to its node and let the scheduler have it: `(pod, node)`, all or none."""

    pods: tuple[tuple[PodView, str], ...]


@dataclass(frozen=True, slots=True)
class RemovePods:
    """Delete pods that a deletion of their Job has left behind: they would train, and hold their GPUs, for nobody."""

    pods: tuple[PodView, ...]


Action = StopIncarnation | CreateIncarnation | CreateService | OpenGates | RemovePods


@dataclass(frozen=True, slots=True)
class JobStep:
    """What to do now for one job.

    `current` is the incarnation that counts, if one stands; `gates` those to open as soon as every pod has its watts;
    `bound`: every pod of it is on its node. `ending` says how one came to its end that has failed.
    """

    phase: JobPhase
    current: IncarnationView | None = None
    actions: tuple[Action, ...] = ()
    gates: OpenGates | None = None
    bound: bool = False
    ending: Ending | None = None

    @property
    def counts_as_failure(self) -> bool:
        return self.ending is not None and self.ending.counts


def next_step(
    *,
    job_uid: str,
    desired: tuple[tuple[str, int], ...] | None,
    last_incarnation: int,
    incarnations: Sequence[IncarnationView],
    pods: Sequence[PodView],
    stop_reason: str,
    recorded_incarnation: int | None = None,
    services: Collection[str] = (),
    evidence: Evidence | None = None,
) -> JobStep:
    """The next step of one job towards `desired` (None: no GPUs for now).

    `incarnations`, `pods` and `services` (by name) are all that exist of the job; `last_incarnation` is the highest number
    that is known to have been given, `recorded_incarnation` the highest in its status (None: the same). `evidence` is what
    has been seen of the pods of the newest incarnation before.
    """
    live = sorted((item for item in incarnations if not item.deleting), key=lambda item: item.incarnation)
    if not live:
        return _between_incarnations(job_uid, desired, last_incarnation, incarnations, pods)
    current = live[-1]
    stops: tuple[Action, ...] = tuple(StopIncarnation(item, "superseded by a newer incarnation") for item in live[:-1])
    own = [pod for pod in pods if pod.incarnation == current.incarnation]
    if current.complete:
        return JobStep(JobPhase.COMPLETE, current, stops)
    if current.failed:
        return _after_failure(current, own, stops, evidence or Evidence())
    if desired is not None and desired != current.nodes and any(_fails_its_job(pod) for pod in own):
        # Its Job fails in a moment, and how it ended is judged then. A drain has others planned for it as soon as its last
        # pod has ended: stopped for that, nobody would learn that it was evicted.
        return JobStep(JobPhase.STOPPING, current, stops)
    if desired is None or desired != current.nodes:
        return JobStep(JobPhase.STOPPING, current, (*stops, StopIncarnation(current, stop_reason)))
    recorded = last_incarnation if recorded_incarnation is None else recorded_incarnation
    return _towards_running(current, own, stops, recorded, named=current.name in services)


def _between_incarnations(
    job_uid: str,
    desired: tuple[tuple[str, int], ...] | None,
    last_incarnation: int,
    incarnations: Sequence[IncarnationView],
    pods: Sequence[PodView],
) -> JobStep:
    """The next step of a job none of whose incarnations stands: the next is made once nothing of those before is left."""
    left_behind = tuple(pod for pod in pods if not pod.controller_uid and not pod.deleting)
    if left_behind:
        return JobStep(JobPhase.STOPPING, None, (RemovePods(left_behind),))
    if any(not pod.finished for pod in pods) or any(item.deleting for item in incarnations):
        return JobStep(JobPhase.STOPPING)
    if desired is None:
        return JobStep(JobPhase.WAITING)
    # A number under which a pod ran is never used twice, whatever was lost: energy is booked under it.
    number = max([last_incarnation, *(item.incarnation for item in incarnations), *(pod.incarnation for pod in pods)])
    return JobStep(JobPhase.CREATING, None, (CreateIncarnation(job_uid, number + 1, desired),))


def _after_failure(
    current: IncarnationView, own: Sequence[PodView], stops: tuple[Action, ...], evidence: Evidence
) -> JobStep:
    """The next step of a job whose incarnation has failed: it is judged, and stopped, once all of its pods have ended."""
    if any(not pod.finished for pod in own):
        # The Job's controller ends the other ranks; only then is it known how each of them ended.
        return JobStep(JobPhase.STOPPING, current, stops)
    ending = judged(gathered(evidence, current, own), current)
    return JobStep(JobPhase.FAILED, current, (*stops, StopIncarnation(current, ending.words)), ending=ending)


def _towards_running(
    current: IncarnationView, own: Sequence[PodView], stops: tuple[Action, ...], recorded: int, *, named: bool
) -> JobStep:
    """The next step of a job whose incarnation is where the plan has it: from its Service and its pods to their running.

    `recorded` is the highest incarnation in the job's status; `named`: the Service is there. Gates of ranks that cannot
    find each other stay closed.
    """
    stops = stops if named else (*stops, CreateService(current))
    present = [pod for pod in own if not pod.deleting and not pod.finished]
    gated = [pod for pod in present if pod.gated]
    done = sum(pod.phase == "Succeeded" for pod in own)
    if len(present) + done < len(current.nodes):
        return JobStep(JobPhase.CREATING, current, stops)
    if gated:
        placed = [(pod, node) for pod in gated if (node := current.node_of(pod)) is not None]
        # A rank without a node would never start, and the others would hold their GPUs for nothing.
        # Before its number is recorded nothing runs under it: then it cannot be given again once nothing is left of it.
        ready = len(placed) == len(gated) and current.incarnation <= recorded and named
        gates = OpenGates(tuple(placed)) if ready else None
        return JobStep(JobPhase.GATED, current, stops, gates)
    bound = all(pod.node for pod in present)
    if all(pod.ready for pod in present):
        return JobStep(JobPhase.RUNNING, current, stops, bound=bound)
    return JobStep(JobPhase.STARTING, current, stops, bound=bound)


def _fails_its_job(pod: PodView) -> bool:
    """Whether how the pod ended is to be judged before its job goes elsewhere."""
    return pod.phase == "Failed" and (pod.disruption is None or pod.disruption.reason != NODE_GONE)
