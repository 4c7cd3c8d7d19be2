"""The series of caps: what is allowed, committed and measured, and whether that is enforced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


@dataclass(frozen=True, slots=True)
class ObservedCap:
    """One cap in one cycle; what is None is not known, or does not apply."""

    name: str
    watts: float
    committed_watts: float
    measured_watts: float
    feasible: bool
    enforced: bool | None  # None: nobody enforces anything here
    proof_stale: bool
    if_governed_watts: float | None
    overshoot_joules: float
    overshoot_seconds: float
    meter_allowed_watts: float | None = None
    meter_silent: bool | None = None

    @property
    def headroom_watts(self) -> float:
        """The cap less what is committed."""
        return self.watts - self.committed_watts


def cap_families(caps: Sequence[ObservedCap]) -> Iterator[Metric]:
    """Every family of caps, each one also where no cap has a series of it."""
    gauges: tuple[tuple[str, str, Callable[[ObservedCap], float]], ...] = (
        ("watts", "The cap in force now, static overhead included", lambda cap: cap.watts),
        ("committed_watts", "The most that the cap's nodes may draw now", lambda cap: cap.committed_watts),
        ("measured_watts", "What the cap's nodes draw now", lambda cap: cap.measured_watts),
        ("headroom_watts", "The cap less what is committed", lambda cap: cap.headroom_watts),
        ("feasible", "1 while the cap can be held at all", lambda cap: float(cap.feasible)),
        (
            "proof_stale",
            "1 while nothing but doubt of some nodes' acknowledgements keeps the cap from being enforced",
            lambda cap: float(cap.proof_stale),
        ),
    )
    for name, text, value in gauges:
        gauge = GaugeMetricFamily(f"flyball_cap_{name}", text, labels=["cap"])
        for cap in caps:
            gauge.add_metric([cap.name], value(cap))
        yield gauge
    enforced = GaugeMetricFamily(
        "flyball_cap_enforced", "1 while what is committed is known to be within the cap", labels=["cap"]
    )
    if_governed = GaugeMetricFamily(
        "flyball_cap_if_governed_watts",
        "What would be committed, told by an operator that only observes",
        labels=["cap"],
    )
    allowed = GaugeMetricFamily(
        "flyball_cap_meter_allowed_watts",
        "What all limits and the static overhead may add up to because of the cap's meter, where it bounds them",
        labels=["cap"],
    )
    silent = GaugeMetricFamily("flyball_cap_meter_silent", "1 while the cap's meter is not believed", labels=["cap"])
    for cap in caps:
        if cap.enforced is not None:
            enforced.add_metric([cap.name], float(cap.enforced))
        if cap.if_governed_watts is not None:
            if_governed.add_metric([cap.name], cap.if_governed_watts)
        if cap.meter_allowed_watts is not None:
            allowed.add_metric([cap.name], cap.meter_allowed_watts)
        if cap.meter_silent is not None:
            silent.add_metric([cap.name], float(cap.meter_silent))
    yield from (enforced, if_governed, allowed, silent)
    joules = CounterMetricFamily(
        "flyball_cap_overshoot_joules", "Energy measured above the cap in force", labels=["cap"]
    )
    seconds = CounterMetricFamily(
        "flyball_cap_overshoot_seconds", "Time during which more was measured than the cap in force", labels=["cap"]
    )
    for cap in caps:
        joules.add_metric([cap.name], cap.overshoot_joules)
        seconds.add_metric([cap.name], cap.overshoot_seconds)
    yield joules
    yield seconds
