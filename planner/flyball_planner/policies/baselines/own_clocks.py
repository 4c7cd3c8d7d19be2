"""Another policy's sizes, each job at a clock of its own: for every size the one of least cost by some rule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import replace
from weakref import WeakKeyDictionary

from flyball_planner.policies.view import Choice, ClusterView, JobView, Knob, OrderedPolicy, Performance, Policy


class OwnClocks(ABC):
    """A policy that chooses no clocks, with a rule choosing them; the policy within sees the speeds at these clocks."""

    suffix: str

    def __init__(self, inner: Policy, knob: Knob) -> None:
        """Raises ValueError for a policy that chooses clocks itself."""
        if inner.traits.knob is not Knob.CLOCK:
            raise ValueError(
                f"policy '{inner.name}{self.suffix}': {inner.name} chooses its clocks itself, "
                f"and {self.suffix} is for those that have one for the cluster"
            )
        self._inner = inner
        self.name = f"{inner.name}{self.suffix}"
        self.traits = replace(inner.traits, knob=knob, measures=True)
        self._clocks: WeakKeyDictionary[Performance, tuple[Hashable, tuple[int, ...]]] = WeakKeyDictionary()

    def decide(self, view: ClusterView) -> list[Choice]:
        return self._inner.decide(self._with_clocks(view))

    def precedence(self, view: ClusterView) -> list[str]:
        if isinstance(self._inner, OrderedPolicy):
            return self._inner.precedence(self._with_clocks(view))
        return [job.uid for job in sorted(view.jobs, key=lambda job: job.order)]

    def _with_clocks(self, view: ClusterView) -> ClusterView:
        asked = self._depends_on(view)

        def rule(job: JobView, gpus: int) -> int:
            table = job.performance
            known = self._clocks.get(table)
            if known is None or known[0] != asked:
                known = (asked, self._of(table, view))
                self._clocks[table] = known
            return known[1][table.position[gpus]]

        return replace(view, clock_rule=rule)

    @abstractmethod
    def _depends_on(self, view: ClusterView) -> Hashable:
        """What of the view the clocks follow from, beside the table."""

    @abstractmethod
    def _of(self, table: Performance, view: ClusterView) -> tuple[int, ...]:
        """The clock position for every size of a table."""
