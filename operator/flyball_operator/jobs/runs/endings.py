"""How a failed incarnation ended, and whether that counts against its job: judged as Kubernetes Jobs judge their pods.

What a program does to itself counts, whatever its exit code. What is done to it does not: evictions, preemption, a node
that is lost, a kubelet that refuses the pod, a pod that somebody deletes. Where one rank is taken away the others fail
after it, so the first thing that was seen to happen decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from flyball_api.workloads import IncarnationView, PodView

MAX_MESSAGE_LENGTH = 256


@dataclass(frozen=True, slots=True)
class Evidence:
    """What has been seen of one incarnation's pods, by its batch Job's UID, for the pods may be gone when it is judged.

    `crashed` are those that ended by themselves, by UID, `disrupted` the first one that was ended or refused by others
    before any of them, and `deleted` the first that was deleted before anything had failed.
    """

    batch_uid: str = ""
    crashed: Mapping[str, PodView] = field(default_factory=dict)
    disrupted: PodView | None = None
    deleted: PodView | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """How an incarnation ended: `counts` against the job or not, by which pod, and `words` that say it in a sentence."""

    words: str
    pod: PodView | None = None
    reason: str = ""
    message: str = ""
    counts: bool = field(kw_only=True)


def gathered(before: Evidence, incarnation: IncarnationView, pods: Sequence[PodView]) -> Evidence:
    """`before` and what the incarnation's `pods` show now; begun anew for another incarnation."""
    evidence = before if before.batch_uid == incarnation.uid else Evidence(incarnation.uid)
    if evidence.disrupted is None and not evidence.crashed:
        disrupted = next((pod for pod in _by_rank(pods) if pod.disruption is not None), None)
        if disrupted is not None:
            evidence = replace(evidence, disrupted=disrupted)
    crashed = {
        pod.uid: pod
        for pod in pods
        if pod.phase == "Failed" and not pod.deleting and pod.disruption is None and pod.uid not in evidence.crashed
    }
    if crashed:
        return replace(evidence, crashed={**evidence.crashed, **crashed})
    if not evidence.crashed and not incarnation.failed and evidence.deleted is None:
        # Once one has failed it is the Job's controller that deletes the others.
        deleted = next((pod for pod in _by_rank(pods) if pod.deleting), None)
        if deleted is not None:
            evidence = replace(evidence, deleted=deleted)
    return evidence


def _by_rank(pods: Sequence[PodView]) -> list[PodView]:
    return sorted(pods, key=lambda pod: (pod.index, pod.name))


def _tail(text: str) -> str:
    """The end of what a container wrote last, cut to what a status may have: there stands what went wrong."""
    words = " ".join(text.split())
    return words if len(words) <= MAX_MESSAGE_LENGTH else "..." + words[3 - MAX_MESSAGE_LENGTH :]


def judged(evidence: Evidence, incarnation: IncarnationView) -> Ending:
    """How the incarnation, whose batch Job has failed and whose pods have all ended, came to its end."""
    if evidence.disrupted is not None and evidence.disrupted.disruption is not None:
        pod, why = evidence.disrupted, evidence.disrupted.disruption
        detail = f": {_tail(why.message)}" if why.message else ""
        return Ending(
            f"{_name(pod)} was disrupted ({why.reason}){detail}", pod, why.reason, _tail(why.message), counts=False
        )
    if evidence.deleted is not None:
        return Ending(f"{_name(evidence.deleted)} was deleted", evidence.deleted, "Deleted", counts=False)
    if not evidence.crashed:
        return Ending("its pods were deleted", reason="Deleted", message=_tail(incarnation.failure), counts=False)
    # The rank that tells most: not one that only left when it was told to.
    ends = _by_rank(list(evidence.crashed.values()))
    pod = min(ends, key=lambda item: item.exit_code in (None, EXIT_CODE_TERMINATED))
    message = _tail(pod.exit_message)
    code = "without an exit code" if pod.exit_code is None else f"with exit code {pod.exit_code}"
    why_text = f" ({pod.exit_reason})" if pod.exit_reason and pod.exit_reason != "Error" else ""
    words = f"{_name(pod)} ended {code}{why_text}{f': {message}' if message else ''}"
    return Ending(words, pod, pod.exit_reason or "Error", message, counts=True)


# SIGTERM obeyed, as every rank does that is ended because another one failed.
EXIT_CODE_TERMINATED = 143


def _name(pod: PodView) -> str:
    return f"pod {pod.name} on {pod.node}" if pod.node else f"pod {pod.name}"
