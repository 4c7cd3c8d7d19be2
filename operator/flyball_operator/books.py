"""A job's books: iterations done and millijoules spent, exact across incarnations, restarts and lost messages.

Agents report totals, never increments, per pod; the operator keeps the largest total seen of each (incarnation, node)
and folds the finished ones into one settled sum. Everything is in the job's own status, so that a new leader goes on
where the old one stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from flyball_operator.gpu_nodes import PodReport
from flyball_operator.requests import JobView, parse_time

JsonObject = dict[str, Any]

# Bounds status.energy.incarnations where a job restarts faster than agents let go of old pods.
MAX_OPEN_ENTRIES = 128


@dataclass(frozen=True, slots=True)
class JobBooks:
    """`open_millijoules` maps "<incarnation>/<node>" to the largest total reported; the rest is settled."""

    iterations: float = 0.0
    iterations_per_second: float = 0.0
    estimated: bool = False
    last_report: datetime | None = None
    settled_millijoules: int = 0
    open_millijoules: Mapping[str, int] = field(default_factory=dict)
    watts: float = 0.0
    clock_megahertz: int = 0
    attained_gpu_seconds: float = 0.0

    @property
    def consumed_millijoules(self) -> int:
        return self.settled_millijoules + sum(self.open_millijoules.values())

    def budget_spent(self, budget_kilojoules: int | None) -> bool:
        return budget_kilojoules is not None and self.consumed_millijoules >= budget_kilojoules * 1_000_000


def recorded_books(job: JobView) -> JobBooks:
    """The books as the job's status has them."""
    progress, energy = job.status.get("progress") or {}, job.status.get("energy") or {}
    return JobBooks(
        iterations=float(progress.get("iterations") or 0),
        iterations_per_second=(progress.get("iterationsPerKilosecond") or 0) / 1000.0,
        estimated=bool(progress.get("estimated")),
        last_report=parse_time(progress.get("lastReportTime")),
        settled_millijoules=energy.get("settledMillijoules") or 0,
        open_millijoules={entry["key"]: entry["millijoules"] for entry in energy.get("incarnations") or ()},
        attained_gpu_seconds=float(progress.get("attainedGpuSeconds") or 0),
    )


def update_books(
    books: JobBooks,
    reports: Iterable[tuple[str, PodReport]],
    *,
    incarnation: int,
    running_gpus: int,
    elapsed_seconds: float,
    model_iterations_per_second: float,
) -> JobBooks:
    """The books after taking in `reports` of `(node, report)` and `elapsed_seconds` of running on `running_gpus` GPUs.

    `incarnation` is the one that counts now. A job whose script reports nothing advances by the model's rate instead, and
    its progress is marked as an estimate.
    """
    entries = dict(books.open_millijoules)
    reported: set[str] = set()
    iterations = books.iterations
    rate, clock, watts = 0.0, 0, 0.0
    last_report = books.last_report
    heard = False
    for node, report in reports:
        key = f"{report.incarnation}/{node}"
        reported.add(key)
        entries[key] = max(entries.get(key, 0), report.energy_millijoules)
        if report.last_report is None:
            continue
        heard = True
        if last_report is None or report.last_report > last_report:
            last_report = report.last_report
        if books.estimated or report.iterations > iterations:
            iterations = float(report.iterations)
        if report.incarnation == incarnation and not report.ended and report.microseconds_per_iteration > 0:
            rate = max(rate, 1e6 / report.microseconds_per_iteration)
            clock = max(clock, report.clock_megahertz)
            watts += 1e3 * report.millijoules_per_iteration / report.microseconds_per_iteration
    settled = books.settled_millijoules
    # An old incarnation's total can rise until its agent has dropped it; it is settled when nobody reports it any more.
    finished = [key for key in entries if key not in reported and int(key.split("/", 1)[0]) < incarnation]
    overflow = sorted(entries, key=lambda key: int(key.split("/", 1)[0]))[: max(0, len(entries) - MAX_OPEN_ENTRIES)]
    for key in {*finished, *overflow}:
        settled += entries.pop(key)
    estimated = not heard and last_report is None and running_gpus > 0
    if estimated:
        rate = model_iterations_per_second
        iterations += rate * elapsed_seconds
    return replace(
        books,
        iterations=iterations,
        iterations_per_second=rate,
        estimated=estimated or (books.estimated and not heard),
        last_report=last_report,
        settled_millijoules=settled,
        open_millijoules=entries,
        watts=watts,
        clock_megahertz=clock,
        attained_gpu_seconds=books.attained_gpu_seconds + running_gpus * elapsed_seconds,
    )
