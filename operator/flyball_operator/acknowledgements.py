"""Which nodes owe an acknowledgement of their grant, and which have owed one for too long to be planned with."""

from __future__ import annotations

from collections.abc import Mapping, Set

from flyball_operator.gpu_nodes import GpuNodeView


class Acknowledgements:
    """Remembers since when each node has owed an acknowledgement.

    The clock starts with the first grant that is not answered and goes on through newer ones: an agent that answers none
    of them is silent all the same. One that answers each of them late, while grants follow fast upon each other, is not:
    it starts anew with each answer.
    """

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._owed: dict[
            str, tuple[tuple[int, int], float]
        ] = {}  # the first version that is not answered, and since when

    @property
    def owing(self) -> Set[str]:
        """Nodes whose agents have yet to acknowledge the grant that stands."""
        return self._owed.keys()

    def silent(self, gpu_nodes: Mapping[str, GpuNodeView], monotonic: float) -> frozenset[str]:
        """Take in what stands now; the nodes that have owed an acknowledgement for longer than the timeout.

        An agent that has never answered is not among them: that it never did tells as much.
        """
        silent = set()
        for name, view in gpu_nodes.items():
            if view.grant is None or view.acknowledged_current:
                self._owed.pop(name, None)
                continue
            version, since = self._owed.get(name, (view.grant.version, monotonic))
            if view.acknowledged is None or view.acknowledged.version >= version:
                version, since = view.grant.version, monotonic
            self._owed[name] = (version, since)
            if monotonic - since > self._timeout_seconds:
                silent.add(name)
        for name in self._owed.keys() - gpu_nodes.keys():
            del self._owed[name]
        return frozenset(silent)
