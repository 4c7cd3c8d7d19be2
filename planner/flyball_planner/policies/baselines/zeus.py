"""Another policy's sizes at Zeus' clocks (You et al., NSDI 2023, section 4.2): each job where its own cost is least.

At its size a job runs at argmin over the clocks of [eta * P + (1 - eta) * P_max] * T, Zeus' cost of an iteration, with
eta = 1/2 and P_max what its GPUs may draw at most. Zeus sets power limits; a clock is the same choice made finer. The
policy within sees the speeds at these clocks.
"""

from __future__ import annotations

from dataclasses import replace
from weakref import WeakKeyDictionary

from flyball_planner.policies.view import Choice, ClusterView, JobView, Knob, Performance, Policy

ETA = 0.5


class Zeus:
    """A policy that does not choose clocks, with Zeus choosing them."""

    def __init__(self, inner: Policy) -> None:
        self._inner = inner
        self.name = f"{inner.name}+zeus"
        self.traits = replace(inner.traits, knob=Knob.NONE, measures=True)
        self._clocks: WeakKeyDictionary[Performance, tuple[float, tuple[int, ...]]] = WeakKeyDictionary()

    def decide(self, view: ClusterView) -> list[Choice]:
        def rule(job: JobView, gpus: int) -> int:
            table = job.performance
            return self._of(table, view.max_gpu_watts)[table.position[gpus]]

        return self._inner.decide(replace(view, clock_rule=rule))

    def _of(self, table: Performance, max_gpu_watts: float) -> tuple[int, ...]:
        """Zeus' clock position for every size; remembered, because it only depends on the table."""
        known = self._clocks.get(table)
        if known is None or known[0] != max_gpu_watts:
            known = (max_gpu_watts, zeus_clocks(table, max_gpu_watts))
            self._clocks[table] = known
        return known[1]


def zeus_clocks(table: Performance, max_gpu_watts: float) -> tuple[int, ...]:
    """The clock position of least cost for each size of a table (equation 5 of Zeus, per iteration)."""
    most = [gpus * max_gpu_watts for gpus in table.sizes]
    return tuple(
        int((ETA * joules + (1.0 - ETA) * watts * seconds).argmin())
        for joules, seconds, watts in zip(table.joules, table.seconds, most, strict=True)
    )
