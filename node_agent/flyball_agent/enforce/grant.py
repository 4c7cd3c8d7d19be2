"""The operator's grant as the agent accepts it, which outlives schemas: whatever cannot be followed is refused whole."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from flyball_api.grant import Grant, read_grant
from flyball_api.reading import InvalidObject


def accepted_grant(spec: object) -> Grant:
    """The grant of a GPUNode.spec; raises InvalidObject, and nothing else, where it is none or contradicts itself."""
    grant = read_grant(spec)
    pods = Counter((job.namespace, job.pod_name) for job in grant.jobs)
    pods.update((pod.namespace, pod.pod_name) for pod in grant.other_gpus.foreign_pods)
    for namespace, name in (pod for pod, times in pods.items() if times > 1):
        raise InvalidObject(f"spec: pod {namespace}/{name} is named twice, in jobs or otherGpus.foreignPods")
    for job in grant.jobs:
        if job.clock_min_megahertz > job.clock_max_megahertz:
            raise InvalidObject(
                f"spec.jobs: pod {job.namespace}/{job.pod_name}: clockMegahertz: min {job.clock_min_megahertz} is above "
                f"max {job.clock_max_megahertz}"
            )
    return grant


class Refusal(NamedTuple):
    """Why a sound grant is not taken: what for, in one word, and as a sentence."""

    reason: str
    words: str


ANOTHER, STALE = "Another", "Stale"


def refusal_of(new: Grant, accepted: Grant | None) -> Refusal | None:
    """Why a grant is refused beside the one that was accepted last; None for that one itself, and for newer ones.

    It is another one of that version where their digests differ (where both have one).
    """
    if accepted is None or new.version > accepted.version:
        return None
    version, last = tuple(new.version), tuple(accepted.version)
    if version < last:
        return Refusal(STALE, f"grant {version} is below {last}, which was accepted before")
    if "" in (new.digest, accepted.digest) or new.digest == accepted.digest:
        return None
    return Refusal(ANOTHER, f"grant {version} is not the one of that version that was accepted before")
