"""The GPUs that each pod holds, as the agents report them: their power limits, and what they draw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flyball_api.gpu_node import GpuNode, GpuReport
from flyball_api.values.units import MilliwattsPerGpu, NodeMilliwatts, of_gpus
from flyball_api.workloads import PodView

from flyball_operator.power.nodes.info import NodeInfo

PodName = tuple[str, str]  # namespace and name


@dataclass(frozen=True, slots=True)
class PodGpus:
    """The GPUs of one pod on its node.

    `highest_milliwatts` is the highest limit read back from them (0: none), `acknowledged` whether the grant that names the
    pod is. `drawn_milliwatts` is what all of them draw; None where that is not known of each.
    """

    highest_milliwatts: MilliwattsPerGpu = MilliwattsPerGpu(0)
    acknowledged: bool = False
    gpus: int = 0
    drawn_milliwatts: NodeMilliwatts | None = None


NO_GPUS = PodGpus()


class PodsGpus:
    """The GPUs of all pods, by the nodes that they are on; a node's are looked through once for each of its reports."""

    def __init__(self) -> None:
        self._nodes: Mapping[str, NodeInfo] = {}
        self._known: dict[str, tuple[GpuNode, dict[PodName, PodGpus]]] = {}

    def observe(self, nodes: Mapping[str, NodeInfo]) -> None:
        """Take in what stands now."""
        self._nodes = nodes
        for name in self._known.keys() - nodes.keys():
            del self._known[name]

    def of(self, pod: PodView) -> PodGpus:
        """What is known of a pod's GPUs; nothing where it is on no node. Of a node in doubt nobody knows the draw."""
        info = self._nodes.get(pod.node)
        if info is None or info.gpu_node is None:
            return NO_GPUS
        known = self._known.get(pod.node)
        if known is None or known[0] is not info.gpu_node:
            known = self._known[pod.node] = info.gpu_node, _by_pod(info.gpu_node)
        found = known[1].get((pod.namespace, pod.name), NO_GPUS)
        if found.drawn_milliwatts is not None and (info.doubt or found.gpus < pod.gpus):
            return PodGpus(found.highest_milliwatts, found.acknowledged, found.gpus)
        return found


def _by_pod(gpu_node: GpuNode) -> dict[PodName, PodGpus]:
    """What a node's agent says of the GPUs of each pod."""
    grant = gpu_node.grant if gpu_node.acknowledged_current else None
    granted = set() if grant is None else {(job.namespace, job.pod_name) for job in grant.jobs}
    held: dict[PodName, list[GpuReport]] = {pod: [] for pod in granted}
    for gpu in gpu_node.gpus:
        if gpu.pod is not None:
            held.setdefault((gpu.pod.namespace, gpu.pod.name), []).append(gpu)
    return {
        pod: PodGpus(
            max((gpu.limits.enforced_milliwatts or MilliwattsPerGpu(0) for gpu in gpus), default=MilliwattsPerGpu(0)),
            pod in granted,
            len(gpus),
            _sum_of([gpu.power_milliwatts for gpu in gpus]),
        )
        for pod, gpus in held.items()
    }


def _sum_of(values: list[MilliwattsPerGpu | None]) -> NodeMilliwatts | None:
    known = [value for value in values if value is not None]
    return of_gpus(known) if values and len(known) == len(values) else None
