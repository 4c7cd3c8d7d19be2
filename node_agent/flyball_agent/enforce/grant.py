"""The operator's grant as the agent accepts it, which outlives schemas: whatever cannot be followed is refused whole."""

from __future__ import annotations

from collections import Counter

from flyball_api.grant import Grant, GrantVersion, read_grant
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


def is_another(new: Grant, accepted: Grant) -> bool:
    """Whether a grant is not the accepted one although it has its version, by their digests (where both have one)."""
    return new.version == accepted.version and "" not in (new.digest, accepted.digest) and new.digest != accepted.digest


def supersedes(new: GrantVersion, accepted: GrantVersion | None) -> bool:
    """Whether a grant of that version is newer than the last accepted one."""
    return accepted is None or new > accepted
