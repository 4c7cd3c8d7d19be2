"""Pods that hold no GPUs, nor parts of some, and belong to no job: kept as what they take of their nodes, all that counts.

A cluster has tens of thousands of them beside a few hundred with GPUs. The API server selects pods by no resource that they
ask for, so that all of them are watched; what is kept of one is a word in the list of those that take the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from flyball_api.workloads import NO_NEEDS, Needs, PodView, read_pod

# Before those that no pod takes any more are looked for.
SPARE_USES = 1000


class NodeUse(NamedTuple):
    """What a pod takes of its node beside GPUs."""

    node: str
    needs: Needs


# Of a pod that waits, has ended or asks for nothing.
NOTHING = NodeUse("", NO_NEEDS)


class NodeUses:
    """Reads pods, and adds up what those without GPUs take of each node; those that take the same of one are one object.

    `gpu_resources` names the extended resources whose units are GPUs.
    """

    def __init__(self, gpu_resources: Collection[str]) -> None:
        self._gpu_resources = gpu_resources
        self._alike: dict[NodeUse, NodeUse] = {}

    def __len__(self) -> int:
        return len(self._alike)

    def read(self, raw: Mapping[str, Any]) -> PodView | NodeUse:
        """A pod as a whole where it holds or wants GPUs, or parts of some, or says that it is a job's.

        Raises InvalidObject as `read_pod`.
        """
        pod = read_pod(raw, self._gpu_resources)
        if pod.holds_or_wants or pod.job_uid:
            return pod
        use = use_of(pod)
        return self._alike.setdefault(use, use)

    def used(self, uses: Iterable[NodeUse], foreign: Iterable[PodView]) -> dict[str, Needs]:
        """What pods that are not Flyball's have of each node: all that were `read` here (`uses`), and whole ones."""
        counts = Counter(map(id, uses))
        used: dict[str, Needs] = {}
        kept = {}
        for use in self._alike.values():
            count = counts.get(id(use), 0)
            if count:
                kept[use] = use
                used[use.node] = used.get(use.node, NO_NEEDS) + use.needs * count
        if len(self._alike) > len(kept) + SPARE_USES:
            self._alike = kept
        for pod in foreign:
            node, needs = use_of(pod)
            used[node] = used.get(node, NO_NEEDS) + needs
        used.pop("", None)
        return used


def use_of(pod: PodView) -> NodeUse:
    """What a pod takes of its node now."""
    if not pod.node or pod.finished or pod.needs == NO_NEEDS:
        return NOTHING
    return NodeUse(pod.node, pod.needs)
