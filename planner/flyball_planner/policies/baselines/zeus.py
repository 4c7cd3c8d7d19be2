"""Another policy's sizes at Zeus' clocks (You et al., NSDI 2023, section 4.2): each job where its own cost is least.

At its size a job runs at argmin over the clocks of [eta * P + (1 - eta) * P_max] * T, Zeus' cost of an iteration, with
eta = 1/2 and P_max what its GPUs may draw at most. Zeus sets power limits; a clock is the same choice made finer.
"""

from __future__ import annotations

from collections.abc import Hashable

from flyball_planner.policies.baselines.own_clocks import OwnClocks
from flyball_planner.policies.view import ClusterView, Knob, Performance, Policy

ETA = 0.5


class Zeus(OwnClocks):
    """A policy that does not choose clocks, with Zeus choosing them."""

    suffix = "+zeus"

    def __init__(self, inner: Policy) -> None:
        super().__init__(inner, Knob.NONE)

    def _depends_on(self, view: ClusterView) -> Hashable:
        return view.max_gpu_watts

    def _of(self, table: Performance, view: ClusterView) -> tuple[int, ...]:
        return zeus_clocks(table, view.max_gpu_watts)


def zeus_clocks(table: Performance, max_gpu_watts: float) -> tuple[int, ...]:
    """The clock position of least cost for each size of a table (equation 5 of Zeus, per iteration)."""
    most = [gpus * max_gpu_watts for gpus in table.sizes]
    return tuple(
        int((ETA * joules + (1.0 - ETA) * watts * seconds).argmin())
        for joules, seconds, watts in zip(table.joules, table.seconds, most, strict=True)
    )
