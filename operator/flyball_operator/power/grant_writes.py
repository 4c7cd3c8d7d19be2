"""Grants on their way to the API server: which may go now, and what may stand there already, whatever our copy shows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass

from flyball_api.gpu_node import GpuNode
from flyball_api.grant import Grant, JobGrant, PowerBound
from msgspec.structs import replace

from flyball_operator.cluster.outcome import Outcome
from flyball_operator.power.bound import NodePower
from flyball_operator.power.cycle import Answered, SendGrant
from flyball_operator.power.grants.admission import GrantAdmission, GrantTarget, without_entries
from flyball_operator.power.nodes.info import NodeInfo

Entry = tuple[str, str, str, int, str, int]

# Grants under way at a time; a new leader adopts a thousand nodes over several cycles.
MAX_GRANTS_AT_ONCE = 200
# Of so many nodes the last generation is remembered, those that are gone among them.
MOST_GENERATIONS = 20_000


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A grant whose writing has begun: the version of the GPUNode that it replaces, and what it commits."""

    replaced: str
    committed: PowerBound


class GrantWrites:
    """Remembers the grants of one leader term that were sent, until their answers and their objects have been seen."""

    def __init__(self) -> None:
        # Until the version that a write replaces is seen to be gone, or the API server has refused it, the grant may stand
        # there already, whatever our copy shows.
        self._attempts: dict[str, _Attempt] = {}
        self._under_way: dict[str, bool] = {}  # grants without an answer yet; True: no earlier attempt is without one
        # Of the last grant to each node: one whose GPUNode is gone may come back, and its agent refuses what is older.
        self._generations: dict[str, int] = {}
        # What the API server took no grant with, by node: a grant without entries is sent there for as long as they are
        # wanted, as one bad entry must not keep a cut from the node.
        self._refused_entries: dict[str, frozenset[Entry]] = {}

    @property
    def under_way(self) -> Set[str]:
        """The nodes whose last grant has no answer yet."""
        return self._under_way.keys()

    def update(self, nodes: Collection[str], gpu_nodes: Mapping[str, GpuNode]) -> None:
        """Take in the nodes and GPUNodes as they are now: what shows whether an attempt arrived ends it.

        A GPUNode that cannot be read now, or is gone while its Node is there, shows nothing of that.
        """
        for name, attempt in list(self._attempts.items()):
            seen = gpu_nodes.get(name)
            if name not in nodes or (seen is not None and seen.metadata.resource_version != attempt.replaced):
                del self._attempts[name]

    def counted(self, nodes: Mapping[str, NodeInfo]) -> dict[str, NodeInfo]:
        """Every node, with the writes counted in whose answers were lost: they may have arrived."""
        counted = dict(nodes)
        for name, attempt in self._attempts.items():
            power = nodes[name].power
            # The attempt covers what was committed then; a doubt of the node can be younger.
            power = replace(power, committed=power.committed | attempt.committed, unsettled=True)
            counted[name] = replace(nodes[name], power=power, power_if_believed=attempt.committed)
        for name, info in nodes.items():
            if info.gpu_node is None and name in self._generations:
                power = replace(counted[name].power, sent_generation=self._generations[name])
                counted[name] = replace(counted[name], power=power)
        return counted

    def writable(self, target: GrantTarget) -> GrantTarget:
        """The target, without entries where the API server has refused just these."""
        return without_entries(target) if self._refused_entries.get(target.node) == _entries(target.jobs) else target

    def sendable(
        self, admission: GrantAdmission, power: Mapping[str, NodePower], held_back: frozenset[str]
    ) -> list[tuple[str, Grant]]:
        """The deepest cuts first, one write at a time for each node, and not too many at once; none to those held back.

        The end of each write brings the next cycle: what finds no room now is decided on again then.
        """

        def rise(node: str) -> int:
            standing = power[node].grant
            before = 0 if standing is None else standing.bound.limit_milliwatts
            return admission.grants[node].bound.limit_milliwatts - before

        free = sorted(admission.grants.keys() - self._under_way.keys() - held_back, key=lambda node: (rise(node), node))
        room = max(0, MAX_GRANTS_AT_ONCE - len(self._under_way))
        return [(node, admission.grants[node]) for node in free[:room]]

    def begin(self, send: SendGrant) -> None:
        """Remember a grant that is about to be sent.

        The first grant of a node is not counted before its GPUNode is seen: it is covered by the defaults, which such a
        node counts with in any case.
        """
        name, gpu_node = send.node.name, send.node.gpu_node
        self._under_way[name] = name not in self._attempts
        self._generations.pop(name, None)
        self._generations[name] = send.grant.generation
        if len(self._generations) > MOST_GENERATIONS:
            del self._generations[next(iter(self._generations))]
        if gpu_node is not None:
            self._attempts[name] = _Attempt(gpu_node.metadata.resource_version, send.grant.committed)

    def take_answer(self, event: Answered) -> bool:
        """Take in what became of a grant; True where its entries were refused, so that the next step sends one without."""
        certain = self._under_way.pop(event.node, False)
        # A refusal of this write proves nothing about an earlier one whose answer was lost.
        if certain and event.outcome is Outcome.REFUSED:
            self._attempts.pop(event.node, None)
        if event.invalid is None or not event.invalid.jobs:
            return False
        self._refused_entries[event.node] = _entries(event.invalid.jobs)
        return True


def _entries(jobs: Iterable[JobGrant]) -> frozenset[Entry]:
    """Which pods have entries in a grant, without what they are granted."""
    return frozenset((job.namespace, job.name, job.uid, job.incarnation, job.pod_name, job.gpus) for job in jobs)
