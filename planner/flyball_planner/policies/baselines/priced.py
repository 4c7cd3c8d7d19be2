"""Another policy's sizes at priced clocks: each job at argmin over the clocks of T + l*E, with l the price of a joule.

What of `price`'s lead is clocks for each job instead of one for all is what `afs+priced` has of it.
"""

from __future__ import annotations

from collections.abc import Hashable

from flyball_planner.policies.baselines.own_clocks import OwnClocks
from flyball_planner.policies.view import ClusterView, Knob, Performance, Policy


class Priced(OwnClocks):
    """A policy that does not choose clocks, with the price of a joule choosing them."""

    suffix = "+priced"

    def __init__(self, inner: Policy) -> None:
        super().__init__(inner, Knob.PRICE)

    def _depends_on(self, view: ClusterView) -> Hashable:
        return view.price, view.using_gpu_watts

    def _of(self, table: Performance, view: ClusterView) -> tuple[int, ...]:
        return tuple(
            int((seconds + view.price * (joules + view.using_gpu_watts * gpus * seconds)).argmin())
            for gpus, seconds, joules in zip(table.sizes, table.seconds, table.joules, strict=True)
        )
