"""What keeps a deletion from releasing watts: finalizers on PowerCaps and GPUNodes, and when they are taken away.

A cap that is deleted, by a slip of the hand or with its CRD, would let every limit under it rise within seconds; a GPUNode
that is deleted would take what its node may draw out of the sum. So both go on as they were. A cap ends after its
`releaseSeconds`, or at once by the annotation `flyball.dev/release: "true"`; a GPUNode by that annotation only, as nothing
but a person can know that a node which does not answer draws nothing any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from flyball_api.gpu_node import GpuNode
from flyball_api.names import HOLD_FINALIZER
from flyball_api.power_cap import DEFAULT_RELEASE_SECONDS, PowerCap


class HoldAction(Enum):
    """HOLD: put the finalizer on. RELEASE: take it away; RELEASE_UNLESS_KIND_GOES: unless the object's CRD is being
    deleted."""

    HOLD = "hold"
    RELEASE = "release"
    RELEASE_UNLESS_KIND_GOES = "release unless its kind goes"


@dataclass(frozen=True, slots=True)
class HoldChange:
    """A finalizer to be written, over the object as it was read."""

    item: PowerCap | GpuNode
    action: HoldAction


class Holds:
    """Remembers since when each cap is deleted, by the leader's own monotonic clock: no two clocks are compared, and a
    change of leaders begins the time anew."""

    def __init__(self) -> None:
        self._deleted_at: dict[str, float] = {}  # by the cap's UID

    def step(
        self, caps: Iterable[PowerCap], gpu_nodes: Iterable[GpuNode], monotonic: float, may_release: bool
    ) -> list[HoldChange]:
        """The finalizers to write now; `may_release`: the copies are fresh, so that no annotation was missed."""
        caps = list(caps)
        deleted = {cap.uid: self._deleted_at.get(cap.uid, monotonic) for cap in caps if cap.metadata.deleting}
        self._deleted_at = deleted
        found = []
        for cap in caps:
            action = self._of_cap(cap, monotonic)
            if action is not None and (action is HoldAction.HOLD or may_release):
                found.append(HoldChange(cap, action))
        for gpu_node in gpu_nodes:
            if not gpu_node.metadata.deleting:
                if not is_held(gpu_node):
                    found.append(HoldChange(gpu_node, HoldAction.HOLD))
            elif is_held(gpu_node) and gpu_node.release_asked and may_release:
                found.append(HoldChange(gpu_node, HoldAction.RELEASE))
        return found

    def _of_cap(self, cap: PowerCap, monotonic: float) -> HoldAction | None:
        if not cap.metadata.deleting:
            return None if is_held(cap) else HoldAction.HOLD
        if not is_held(cap):
            return None
        if cap.release_asked:
            return HoldAction.RELEASE
        seconds = DEFAULT_RELEASE_SECONDS if cap.spec is None else cap.spec.release_seconds
        over = monotonic - self._deleted_at[cap.uid] >= seconds
        return HoldAction.RELEASE_UNLESS_KIND_GOES if over else None


def is_held(item: PowerCap | GpuNode) -> bool:
    """Whether the object outlasts its deletion."""
    return HOLD_FINALIZER in item.metadata.finalizers
