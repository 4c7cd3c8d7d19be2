"""What nodes have drawn by their GPUs' own energy counters, for caps' energy budgets.

A counter counts whoever leads, and whether anybody does; it begins again where the driver is loaded anew. What is charged
for GPUs without one is what they are measured to draw, for as long as that is the last word on them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flyball_api.gpu_node import DriverSession, GpuNode
from flyball_api.reading import MAX_INTEGER
from flyball_api.values.units import MILLIJOULES_PER_JOULE, MILLIWATTS_PER_WATT, of_nodes

from flyball_operator.power.nodes.info import NodeInfo

# A counter that runs faster than this many times the GPU's largest limit is not believed beyond that.
FASTEST = 2.0
DIGEST_CHARACTERS = 16


@dataclass(frozen=True, slots=True)
class Drawn:
    """Joules that were drawn over the last `seconds`."""

    joules: float = 0.0
    seconds: float = 0.0


NOTHING = Drawn()


@dataclass(frozen=True, slots=True)
class CounterSum:
    """All counters of some nodes added up; two sums of the same `of` differ by what was drawn between them."""

    millijoules: int
    of: str


@dataclass(slots=True)
class _Seen:
    """A node's counters by uuid, in the report that they came in, and when they last changed (monotonic seconds)."""

    report: GpuNode
    session: DriverSession
    counters: dict[str, int]
    complete: bool  # every GPU has one
    at: float
    measured_watts: float
    of: bytes  # a digest of which counters these are, and in which driver session
    millijoules: int  # all of them
    drawn: Drawn  # by the last update


def most_joules(nodes: Iterable[NodeInfo], seconds: float) -> float:
    """What is believed at most of the counters of these nodes to have risen by in so long."""
    return FASTEST * of_nodes(info.max_limits_milliwatts for info in nodes) / MILLIWATTS_PER_WATT * seconds


class EnergyCounters:
    """Follows the counters of the nodes that some budget is charged for."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def update(self, nodes: Mapping[str, NodeInfo], names: Iterable[str], monotonic: float) -> None:
        """Take in what the agents of these nodes have reported by now; others are forgotten."""
        names = set(names)
        for name in self._seen.keys() - names:
            del self._seen[name]
        for seen in self._seen.values():
            seen.drawn = NOTHING
        for name in names:
            info = nodes[name]
            if info.gpu_node is not None:
                self._update(name, info, info.gpu_node, monotonic)

    def drawn(self, names: Iterable[str]) -> Drawn:
        """What these nodes have drawn by the last update since the one before; over how long, on average."""
        parts = [seen.drawn for name in names if (seen := self._seen.get(name)) is not None]
        joules = sum(part.joules for part in parts)
        if joules <= 0:
            return Drawn(0.0, max((part.seconds for part in parts), default=0.0))
        return Drawn(joules, sum(part.joules * part.seconds for part in parts) / joules)

    def total(self, names: Iterable[str]) -> CounterSum | None:
        """The sum of the nodes' counters; None where there is a GPU without one, or they lie: a status with more than an
        integer of the API would be refused, and with it what it says of its cap."""
        found = [self._seen.get(name) for name in sorted(names)]
        seen = [node for node in found if node is not None and node.complete]
        if len(seen) < len(found):
            return None
        millijoules = sum(node.millijoules for node in seen)
        if millijoules > MAX_INTEGER:
            return None
        of = hashlib.sha256(b"".join(node.of for node in seen)).hexdigest()[:DIGEST_CHARACTERS]
        return CounterSum(millijoules, of)

    def _update(self, name: str, info: NodeInfo, report: GpuNode, monotonic: float) -> None:
        before = self._seen.get(name)
        if before is not None and before.report is report and before.complete:
            return
        counters = {gpu.uuid: gpu.energy_millijoules for gpu in report.gpus if gpu.energy_millijoules is not None}
        complete = all(gpu.uuid in counters for gpu in report.gpus)
        if before is not None and complete and (before.session, before.counters) == (report.session, counters):
            before.report = report  # it says nothing new of energy
            return
        watts = info.measured_milliwatts / MILLIWATTS_PER_WATT
        of = hashlib.sha256(repr((tuple(report.session), sorted(counters))).encode()).digest()
        now = _Seen(report, report.session, counters, complete, monotonic, watts, of, sum(counters.values()), NOTHING)
        if before is not None:
            seconds = max(0.0, monotonic - before.at)
            now.drawn = Drawn(self._joules(before, now, info, seconds), seconds)
        self._seen[name] = now

    def _joules(self, before: _Seen, now: _Seen, info: NodeInfo, seconds: float) -> float:
        if not now.complete or before.counters.keys() != now.counters.keys():
            return before.measured_watts * seconds
        began_anew = before.session != now.session
        rises = (
            after if began_anew or after < (last := before.counters[uuid]) else after - last
            for uuid, after in now.counters.items()
        )
        return min(sum(rises) / MILLIJOULES_PER_JOULE, most_joules([info], seconds))
