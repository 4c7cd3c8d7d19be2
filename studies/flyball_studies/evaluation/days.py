"""Many days of small clusters: what is claimed of other days, on days that nothing was tuned on.

A day counts where at least LEAST_JOBS were submitted and a cluster of 56 to 128 GPUs has a load of 0.8 with them (32 to 72
at 1.5); of each trace at most DAYS_OF_A_TRACE such days are taken, evenly over its time. Every fourth is for tuning; the
others are for the claim, and no setting, constant or rule of a policy may be chosen by them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from flyball_planner.policies.view import Knob
from flyball_simulator.experiments.matrix import Cell, Outcome
from flyball_simulator.workloads.source import gpus_for_load
from flyball_simulator.workloads.trace_library import days_of
from flyball_simulator.workloads.traces import TraceJob

from flyball_studies.evaluation import studies
from flyball_studies.evaluation.lower_bound import Bounds
from flyball_studies.evaluation.tables import Key, at_equal_energy, table

TRACES = {
    "itp-02": 1_000,
    "philly": 2_000,
    "pai": 3_000,
}  # the seed of a trace's day 0: every day draws models of its own
GPUS_AT_08 = range(56, 129)
LEAST_JOBS = 100
DAYS_OF_A_TRACE = 4
EVERY_FOURTH = 4
CLAIM = ("price", "afs")  # run first, on all days; then the rest
CURVES = (*CLAIM, "afs+priced", "powerflow-strict, Balanced", "gandiva")
SWEEPS: dict[Knob, tuple[float | None, ...]] = {
    Knob.PRICE: (0.0, 0.0003, 0.001, 0.004),
    Knob.CLOCK: (1410, 1230, 1080, 930),
    Knob.NONE: (None,),
}
ALL = "all"


def suitable_days(days: Mapping[int, Sequence[TraceJob]]) -> list[int]:
    """The days of small clusters, in their order; at most DAYS_OF_A_TRACE, evenly chosen."""
    found = [
        day
        for day, jobs in sorted(days.items())
        if len(jobs) >= LEAST_JOBS and gpus_for_load(jobs, 0.8, 8) in GPUS_AT_08
    ]
    count = min(len(found), DAYS_OF_A_TRACE)
    return [found[place * len(found) // count] for place in range(count)]


def split(days: Sequence[int]) -> tuple[list[int], list[int]]:
    """(for tuning, for the claim)."""
    return list(days[::EVERY_FOURTH]), [day for place, day in enumerate(days) if place % EVERY_FOURTH]


class Days:
    """The cells of the days for the claim, or of those for tuning, and their bounds."""

    def __init__(self, workloads: studies.Workloads, data: str | None, *, tuning: bool) -> None:
        self._workloads = workloads
        self.jobs: dict[tuple[str, int], list[TraceJob]] = {}
        for trace in TRACES:
            of_trace = days_of(trace, Path(data) if data else None)
            for day in split(suitable_days(of_trace))[0 if tuning else 1]:
                self.jobs[trace, day] = of_trace[day]

    def cells(self, trace: str, load: float, curves: Sequence[str] = CURVES) -> list[Cell]:
        """Every one of these curves on every day of a trace."""
        return [
            cell
            for of, day in self.jobs
            if of == trace
            for cell in studies.curves_of(self._workloads, f"{trace}/{day}", load, TRACES[trace] + day, curves, SWEEPS)
        ]

    def bounds(self, trace: str, load: float) -> dict[tuple[str, float, int], Bounds]:
        """What no policy can pass, by trace, load and seed; and the same under ALL."""
        found = {}
        for of, day in self.jobs:
            if of == trace:
                seed = TRACES[trace] + day
                bounds = self._workloads.bounds(f"{trace}/{day}", seed, load, "days")
                found[trace, load, seed] = found[ALL, load, seed] = bounds
        return found

    def clusters(self) -> str:
        """Which days there are, and how large the clusters."""
        rows = []
        for trace in TRACES:
            of_trace = {day: jobs for (of, day), jobs in self.jobs.items() if of == trace}
            if of_trace:
                gpus = [
                    [gpus_for_load(jobs, load, 8) for jobs in of_trace.values()] for load in studies.LOADS
                ]  # by load
                counts = [len(jobs) for jobs in of_trace.values()]
                rows.append(
                    [
                        trace,
                        ", ".join(str(day) for day in of_trace),
                        f"{min(counts)} to {max(counts)}",
                        *(f"{min(found)} to {max(found)}" for found in gpus),
                    ]
                )
        return table(["trace", "days", "jobs", *(f"GPUs at load {load}" for load in studies.LOADS)], rows)


def days_table(found: Mapping[Key, Sequence[Outcome]], bounds: Mapping[tuple[str, float, int], Bounds]) -> str:
    """Every policy against AFS by trace and load, and over all traces; intervals are over days."""
    pooled: dict[Key, list[Outcome]] = {}
    for (_, load), outcomes in found.items():
        pooled.setdefault((ALL, load), []).extend(outcomes)
    run = {outcome.cell.curve for outcomes in found.values() for outcome in outcomes}
    policies = [curve for curve in CURVES if curve in run and curve != "afs"]
    return at_equal_energy({**found, **pooled}, policies, "afs", bounds, days_ahead=True)
