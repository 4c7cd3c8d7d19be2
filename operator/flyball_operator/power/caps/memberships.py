"""Which nodes count under which caps, also while a node's labels change.

Labels are anybody's: a Node that is registered anew comes without its row's, and a slip of the hand takes them away. Its
watts are where they were. So a node goes on counting under every cap that selects the labels under which it was granted
what it may still draw; the GPUNode remembers them. It leaves such a cap only once it has acknowledged the smallest
limits, some time after its labels changed, or by the word of somebody who may annotate its GPUNode.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from flyball_operator.power.caps.state import CapState, CapStates
from flyball_operator.power.nodes.info import NodeInfo
from flyball_operator.power.nodes.reservations import NO_RULES, resting_bound

Labels = Mapping[str, str]

# Sets of labels that are remembered for labels that were lost: labels of a node come and go one by one, too.
MAX_LOSSES = 8


# The same labels that are to be written again wait so long, each time twice as long, up to the longest pause.
FIRST_REPETITION_SECONDS, LONGEST_REPETITION_SECONDS = 0.25, 60.0


@dataclass(frozen=True, slots=True)
class LabelSync:
    """Write the labels of now into a node's GPUNode, and the sets of former ones under which it still counts.

    `left`: it leaves the caps that selected the others, by an annotation that somebody set where `by_annotation`.
    """

    node: NodeInfo
    former_labels: tuple[Labels, ...] = ()
    left: tuple[str, ...] = ()
    by_annotation: bool = False

    @property
    def content(self) -> tuple[Labels, tuple[Labels, ...]]:
        """What the GPUNode is to say."""
        return self.node.labels, self.former_labels

    @property
    def replaced(self) -> str:
        """The version of the GPUNode that it is written over."""
        return "" if self.node.gpu_node is None else self.node.gpu_node.metadata.resource_version


class _Written(NamedTuple):
    """Labels that were to be written: over which version first and when, and how often they were to be again since."""

    content: tuple[Labels, tuple[Labels, ...]]
    replaced: str
    at: float
    repetitions: int = 0

    def due(self) -> float:
        pause = FIRST_REPETITION_SECONDS * 2.0 ** min(self.repetitions, 10)
        return self.at + min(pause, LONGEST_REPETITION_SECONDS)


class Memberships:
    """Remembers since when each node has been about to leave a cap; `settle_seconds` after that it is brought to leave.

    Whatever adds a label to a Node that was registered anew has that long to do so, at no cost to the jobs there.
    """

    def __init__(self, settle_seconds: float) -> None:
        self._settle_seconds = settle_seconds
        self._leaving: dict[str, tuple[frozenset[str], Labels, float]] = {}  # caps, labels of now, since when
        self._written: dict[str, _Written] = {}

    def update(self, caps: CapStates, nodes: Mapping[str, NodeInfo], monotonic: float) -> None:
        """Take in what stands now."""
        leaving = leaving_caps(caps.states)
        for name in self._leaving.keys() - leaving.keys():
            del self._leaving[name]
        for name, left in leaving.items():
            before = self._leaving.get(name)
            if before is None or before[:2] != (left, nodes[name].labels):
                self._leaving[name] = left, nodes[name].labels, monotonic

    def to_be_lowered(self, monotonic: float) -> frozenset[str]:
        """The nodes that are to go to the smallest limits, so that they can leave."""
        return frozenset(
            name for name, (_, _, since) in self._leaving.items() if monotonic - since >= self._settle_seconds
        )

    def syncs(
        self, caps: CapStates, nodes: Mapping[str, NodeInfo], lowered: frozenset[str], may_leave: bool
    ) -> list[LabelSync]:
        """The labels to be recorded in GPUNodes that lack them; `lowered` is what `to_be_lowered` returned.

        `may_leave`: every cap is read and the copies are fresh. Else no node leaves: nobody knows what it would leave.
        """
        leaving = leaving_caps(caps.states)
        found = []
        for name, info in nodes.items():
            gpu_node = info.gpu_node
            if gpu_node is None:
                continue
            left = leaving.get(name, frozenset())
            at_minimum = name in lowered and _at_the_minimum(info, caps)
            leaves = may_leave and (gpu_node.release_asked or at_minimum)
            kept = () if leaves else _needed(info, left, caps)
            if (info.labels, kept) != (gpu_node.labels, gpu_node.former_labels):
                went = tuple(sorted(left)) if leaves else ()
                found.append(LabelSync(info, kept, went, bool(went) and gpu_node.release_asked))
        return found

    def take_due(self, syncs: Iterable[LabelSync], monotonic: float) -> list[LabelSync]:
        """Those of the syncs to write now, which count as written: not what was a moment ago, whoever has taken it back.

        What an admission policy puts on every object that is written would else be taken off by each cycle, and each write
        brings the next one.
        """
        forgotten = monotonic - 2 * LONGEST_REPETITION_SECONDS
        self._written = {name: last for name, last in self._written.items() if last.at > forgotten}
        found = []
        for sync in syncs:
            name = sync.node.name
            last = self._written.get(name)
            if last is None or last.content != sync.content:
                self._written[name] = _Written(sync.content, sync.replaced, monotonic)
            elif last.replaced != sync.replaced:
                if monotonic < last.due():
                    continue
                self._written[name] = _Written(sync.content, sync.replaced, monotonic, last.repetitions + 1)
            found.append(sync)
        return found


def leaving_caps(caps: Iterable[CapState]) -> dict[str, frozenset[str]]:
    """The names of the caps that each node counts under by former labels only, by the node's name."""
    leaving: dict[str, frozenset[str]] = {}
    for cap in caps:
        for name in cap.leaving:
            leaving[name] = leaving.get(name, frozenset()) | {cap.name}
    return leaving


def _needed(info: NodeInfo, left: frozenset[str], caps: CapStates) -> tuple[Labels, ...]:
    """Those of the former labels, the newest first, without which a node would not count under a cap that it leaves.

    And the newest with each label that the node has lost without getting another value for it, as one does that is
    registered anew: a cap whose selector was edited may come back to it. All of them while there is a cap that cannot be
    read: nobody knows which it would select.
    """
    former = info.former_labels
    if caps.unreadable:
        return former
    kept: list[Labels] = []
    lost: set[str] = set()
    losses = 0
    selectors = {cap.name: cap.spec.node_selector for cap in caps.states if cap.name in left}
    for labels in former:
        selected = {name for name, selector in selectors.items() if selector.matches(labels)}
        newly_lost = labels.keys() - info.labels.keys() - lost
        losses += bool(newly_lost)
        if selected or (newly_lost and losses <= MAX_LOSSES):
            kept.append(labels)
        lost |= newly_lost
        for name in selected:
            del selectors[name]
    return tuple(kept)


def _at_the_minimum(info: NodeInfo, caps: CapStates) -> bool:
    """Whether nothing more is committed there, by proof, than with all of Flyball's pods at the smallest limits.

    What cannot be commanded has no such least: all that it may draw would count as one.
    """
    least = resting_bound(info, caps.rules.get(info.name, NO_RULES))
    return info.commandable and info.power.committed.limit_milliwatts <= least.limit_milliwatts
