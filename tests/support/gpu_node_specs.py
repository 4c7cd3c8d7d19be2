"""Grants as the agent reads them: the spec of a GPUNode in JSON."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def job_grant(
    pod: str, limit: int, gpus: int = 2, clocks: tuple[int, int] = (0, 1410), *, job: str = "", uid: str = ""
) -> Json:
    """What a pod's GPUs may draw, in milliwatts each; its job has the pod's name where none is given."""
    return {
        "namespace": "research",
        "name": job or pod,
        "uid": uid or f"uid-{pod}",
        "incarnation": 1,
        "podName": pod,
        "gpus": gpus,
        "powerLimitMilliwatts": limit,
        "clockMegahertz": {"min": clocks[0], "max": clocks[1]},
    }


def gpu_node_spec(generation: int, bound: int, *jobs: Json, epoch: int = 1, lease: int = 30, **other_gpus: int) -> Json:
    """A grant of `bound` milliwatts for the node, for `lease` seconds."""
    return {
        "epoch": epoch,
        "generation": generation,
        "leaseSeconds": lease,
        "boundMilliwatts": bound,
        "expectedMilliwatts": 0,
        "committedMilliwatts": bound,
        "committedExpectedMilliwatts": 0,
        "otherGpus": other_gpus,
        "jobs": list(jobs),
    }
