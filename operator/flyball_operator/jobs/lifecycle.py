"""One training job's way from its present pods to the allocation that the plan gives it, one safe step at a time.

Each (re)start is an *incarnation*: an Indexed Job of gated pods, one a node. The steps, taken whenever the state at hand
allows the next, and taken again after any crash because nothing but that state is remembered:

- an incarnation on other nodes than the plan's is stopped (its pods checkpoint and leave), and so is one that failed, as
  soon as all of its pods have ended; it counts as a failure unless every pod that ended by itself left cleanly;
- while any pod of the job still holds GPUs, wait;
- with none left, the next incarnation is made, its pods gated;
- with every pod of it there, its number in the job's status and its watts reserved on every node, all gates are opened,
  all or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from flyball_api.workloads import IncarnationView, PodView

# SIGTERM obeyed: the pod checkpointed and left (pod contract, api.md).
EXIT_CODE_CLEAN_STOP = 143


class Phase(StrEnum):
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
    """Delete the incarnation's Job: its pods get SIGTERM, checkpoint and leave."""

    incarnation: IncarnationView
    reason: str


@dataclass(frozen=True, slots=True)
class CreateIncarnation:
    """Make the Job and the Service of the next incarnation on these `(node, gpus)`."""

    job_uid: str
    incarnation: int
    nodes: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class OpenGates:
    """Bind each gated pod to its node and let the scheduler have it: `(pod, node)`, all or none."""

    pods: tuple[tuple[PodView, str], ...]


Action = StopIncarnation | CreateIncarnation | OpenGates


@dataclass(frozen=True, slots=True)
class JobStep:
    """What to do now for one job.

    `current` is the incarnation that counts, if one stands; `gates` those to open as soon as every pod has its watts.
    """

    phase: Phase
    current: IncarnationView | None = None
    actions: tuple[Action, ...] = ()
    gates: OpenGates | None = None
    failure: str = ""
    counts_as_failure: bool = False


def next_step(
    *,
    job_uid: str,
    desired: tuple[tuple[str, int], ...] | None,
    last_incarnation: int,
    incarnations: Sequence[IncarnationView],
    pods: Sequence[PodView],
    stop_reason: str,
) -> JobStep:
    """The next step of one job towards `desired` (None: no GPUs for now).

    `incarnations` and `pods` are all that exist of the job; `last_incarnation` the highest number ever recorded.
    """
    live = sorted((item for item in incarnations if not item.deleting), key=lambda item: item.incarnation)
    current = live[-1] if live else None
    stops = tuple(StopIncarnation(item, "superseded by a newer incarnation") for item in live[:-1])
    holding = [pod for pod in pods if not pod.finished]

    if current is None:
        if holding or any(item.deleting for item in incarnations):
            return JobStep(Phase.STOPPING)
        if desired is None:
            return JobStep(Phase.WAITING)
        # A number under which a pod ran is never used twice, whatever was lost: energy is booked under it.
        number = max(
            [last_incarnation, *(item.incarnation for item in incarnations), *(pod.incarnation for pod in pods)]
        )
        return JobStep(Phase.CREATING, None, (CreateIncarnation(job_uid, number + 1, desired),))

    own = [pod for pod in pods if pod.incarnation == current.incarnation]
    if current.complete:
        return JobStep(Phase.COMPLETE, current, stops)
    if current.failed:
        if any(not pod.finished for pod in own):
            # The Job's controller ends the other ranks; only then is it known how each of them ended.
            return JobStep(Phase.STOPPING, current, stops)
        codes = {pod.exit_code for pod in own if pod.phase == "Failed"}
        # A pod that ended by itself stays to be looked at; where none did, somebody deleted them (a drain, a lost node).
        clean = codes <= {EXIT_CODE_CLEAN_STOP}
        stop = StopIncarnation(current, "stopped cleanly by others" if clean else "failed")
        exits = ", ".join(f"exit code {code}" for code in sorted(code for code in codes if code is not None))
        return JobStep(
            Phase.FAILED, current, (*stops, stop), failure=exits or current.failure, counts_as_failure=not clean
        )
    if desired is None or desired != current.nodes:
        return JobStep(Phase.STOPPING, current, (*stops, StopIncarnation(current, stop_reason)))

    present = [pod for pod in own if not pod.deleting and not pod.finished]
    gated = [pod for pod in present if pod.gated]
    done = sum(pod.phase == "Succeeded" for pod in own)
    if len(present) + done < len(current.nodes):
        return JobStep(Phase.CREATING, current, stops)
    if gated:
        placed = [(pod, node) for pod in gated if (node := current.node_of(pod)) is not None]
        # A rank without a node would never start, and the others would hold their GPUs for nothing.
        # Before its number is recorded nothing runs under it: then it cannot be given again once nothing is left of it.
        ready = len(placed) == len(gated) and current.incarnation <= last_incarnation
        gates = OpenGates(tuple(placed)) if ready else None
        return JobStep(Phase.GATED, current, stops, gates)
    if all(pod.ready for pod in present):
        return JobStep(Phase.RUNNING, current, stops)
    return JobStep(Phase.STARTING, current, stops)
