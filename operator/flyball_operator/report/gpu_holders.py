"""Who holds a node's GPUs: pods of training jobs, by what agents and the API server say, and what other pods belong to."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from zlib import crc32

from flyball_api.gpu_node import GpuNode
from flyball_api.workloads import PodView

Owner = tuple[str, str]  # namespace, and kind/name
PodName = tuple[str, str]  # namespace and name

# As long as the CRD lets an owner be. Who makes a pod writes into it whatever he likes of what it belongs to.
MAX_OWNER_CHARACTERS = 253


def owner_of(pod: PodView) -> Owner:
    """Whose a pod is: its namespace, and kind and name of what it belongs to, or of itself."""
    return pod.namespace, readable_owner(pod.owner or f"Pod/{pod.name}")


def readable_owner(owner: str) -> str:
    """An owner in printable characters, cut to the allowed length; a digest keeps those that are cut distinct."""
    printed = owner if owner.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in owner)
    if len(printed) <= MAX_OWNER_CHARACTERS:
        return printed
    return f"{printed[: MAX_OWNER_CHARACTERS - 9]}~{digest(owner)}"


def job_pods(
    gpu_node: GpuNode, known_job_pods: Collection[PodName], others: Collection[PodName], before: Collection[PodName]
) -> frozenset[PodName]:
    """The pods of training jobs that hold GPUs of a node.

    They are those that its agent reports, those that the API server has (`known_job_pods`), and those of `before` until one
    of the `others` has the name.
    """
    holding = {(gpu.pod.namespace, gpu.pod.name) for gpu in gpu_node.gpus if gpu.pod is not None}
    reported = {(report.namespace, report.pod_name) for report in gpu_node.status.jobs}
    still = (pod for pod in before if pod not in others)
    return frozenset(holding & {*reported, *still, *(pod for pod in holding if pod in known_job_pods)})


def other_holders(gpu_node: GpuNode, owners: Mapping[PodName, Owner], ours: Collection[PodName]) -> dict[str, Owner]:
    """Who holds each GPU that no pod of a training job holds, by the GPU's uuid."""
    found = {}
    for gpu in gpu_node.gpus:
        if gpu.pod is None or not gpu.uuid:
            continue
        pod = (gpu.pod.namespace, gpu.pod.name)
        if pod not in ours:
            found[gpu.uuid] = owners.get(pod) or (gpu.pod.namespace, readable_owner(f"Pod/{gpu.pod.name}"))
    return found


def digest(*words: str) -> str:
    """A checksum of some words, in eight hexadecimal digits."""
    return f"{crc32(chr(0).join(words).encode()):08x}"
