"""A job's progress: iterations done and millijoules spent, exact across incarnations, restarts and lost messages.

Agents report totals, never increments, per pod; the operator keeps the largest total seen of each (incarnation, node)
and folds the finished ones into one settled sum. Incarnations are settled in order, so that one number tells which are,
and a report that comes late or again is never counted twice. Everything is in the job's own status, so that a new leader
goes on where the old one stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from flyball_api.energy_aware_job import EnergyAwareJob, EnergyUse, Progress
from flyball_api.gpu_node import PodReport
from flyball_api.reading import MAX_INTEGER

# Above this, old incarnations are settled though they are still reported. With the present one, of at most 8192 nodes,
# status.energy.incarnations stays below its bound of 16384.
MAX_OPEN_ENTRIES = 4096
# No figure that an agent reports is more: statuses can say what follows from it, and floats count exactly as far.
MOST_REPORTED = 2**53


@dataclass(frozen=True, slots=True)
class JobProgress:
    """What a job has done and used.

    `open_millijoules` maps "<incarnation>/<node>" to the largest total reported; every incarnation up to
    `settled_incarnation` is in `settled_millijoules`. `reported_by` is the incarnation that reported the iterations (0:
    none), `iterations_lost` how many had to be done again by incarnations that began further back.
    """

    iterations: float = 0.0
    iterations_per_second: float = 0.0
    estimated: bool = False
    reported_by: int = 0
    iterations_lost: int = 0
    last_report: datetime | None = None
    settled_millijoules: int = 0
    settled_incarnation: int = 0
    open_millijoules: Mapping[str, int] = field(default_factory=dict)
    watts: float = 0.0
    clock_megahertz: int = 0
    attained_gpu_seconds: float = 0.0

    @property
    def consumed_millijoules(self) -> int:
        return self.settled_millijoules + sum(self.open_millijoules.values())

    @property
    def at_rest(self) -> bool:
        """It has no pace, no draw and no open incarnation: without a report nothing of it changes."""
        return not (self.iterations_per_second or self.watts or self.clock_megahertz or self.open_millijoules)

    def budget_spent(self, budget_kilojoules: int | None) -> bool:
        return budget_kilojoules is not None and self.consumed_millijoules >= budget_kilojoules * 1_000_000


def _incarnation_of(key: str) -> int | None:
    number = key.partition("/")[0]
    return int(number) if number.isdecimal() else None


def recorded_progress(job: EnergyAwareJob) -> JobProgress:
    """The progress that the job's status has; an entry that no operator wrote counts as settled."""
    recorded, energy = job.status.progress or Progress(), job.status.energy or EnergyUse()
    entries = {entry.key: entry.millijoules for entry in energy.incarnations}
    foreign = [key for key in entries if _incarnation_of(key) is None]
    return JobProgress(
        iterations=float(recorded.iterations),
        iterations_per_second=recorded.iterations_per_kilosecond / 1000.0,
        estimated=recorded.estimated,
        reported_by=recorded.incarnation or 0,
        iterations_lost=recorded.iterations_lost or 0,
        last_report=recorded.last_report_time,
        settled_millijoules=energy.settled_millijoules + sum(entries.pop(key) for key in foreign),
        settled_incarnation=energy.settled_incarnation,
        open_millijoules=entries,
        attained_gpu_seconds=float(recorded.attained_gpu_seconds),
    )


def add_energy(progress: JobProgress, reports: Iterable[tuple[str, PodReport]]) -> JobProgress:
    """The progress with the largest totals of `reports` of `(node, report)`; nothing is settled."""
    entries = dict(progress.open_millijoules)
    for node, report in reports:
        if report.incarnation > progress.settled_incarnation:
            key = f"{report.incarnation}/{node}"
            entries[key] = max(entries.get(key, 0), report.energy_millijoules)
    return progress if entries == progress.open_millijoules else replace(progress, open_millijoules=entries)


def _settle(progress: JobProgress, reported: set[int], incarnation: int) -> JobProgress:
    """Add the energy of earlier incarnations that no agent reports any more to what is settled, from the oldest on.

    Until its agent has dropped it a total can still rise.
    """
    entries, settled, last = dict(progress.open_millijoules), progress.settled_millijoules, progress.settled_incarnation
    numbers = {key: _incarnation_of(key) or 0 for key in entries}
    if all(number >= incarnation for number in numbers.values()):
        return progress  # nearly always
    for number in sorted(set(numbers.values())):
        if number >= incarnation or (number in reported and len(entries) <= MAX_OPEN_ENTRIES):
            break
        settled += sum(entries.pop(key) for key, of in numbers.items() if of == number)
        last = number
    return replace(progress, open_millijoules=entries, settled_millijoules=settled, settled_incarnation=last)


def updated_progress(
    progress: JobProgress,
    reports: Iterable[tuple[str, PodReport]],
    *,
    incarnation: int,
    running_gpus: int,
    elapsed_seconds: float,
    model_iterations_per_second: float,
) -> JobProgress:
    """The progress after taking in `reports` of `(node, report)` and `elapsed_seconds` of running on `running_gpus` GPUs.

    `incarnation` is the one that counts now. A job whose script reports nothing advances by the model's rate instead, and
    its progress is marked as an estimate.
    """
    reports = list(reports)
    if not reports and running_gpus == 0 and progress.at_rest:
        return progress  # most of the jobs that wait, in every cycle
    reporting = [report for _, report in reports if report.last_report_time is not None]
    iterations, last_report = progress.iterations, progress.last_report
    reported_by, lost = progress.reported_by, progress.iterations_lost
    if reporting:
        newest = max(report.incarnation for report in reporting)
        reported = _most_iterations(report for report in reporting if report.incarnation == newest)
        before = _most_iterations(reporting)
        # What the script reports first replaces any estimate, even where it is lower; so does what a later incarnation
        # reports: it goes on from there, whatever the one before had done.
        if progress.estimated:
            iterations = reported
        elif newest > reported_by:
            reached = max(iterations, before) if reported_by else before
            iterations, lost = reported, min(lost + max(0, int(reached - reported)), MAX_INTEGER)
        elif newest == reported_by:
            iterations = max(iterations, reported)
        reported_by = max(reported_by, newest)
        last_report = max(
            time for time in (last_report, *(report.last_report_time for report in reporting)) if time is not None
        )
    now = [
        report
        for report in reporting
        if report.incarnation == incarnation and not report.ended and report.microseconds_per_iteration > 0
    ]
    rate = max((1e6 / report.microseconds_per_iteration for report in now), default=0.0)
    estimated = last_report is None and running_gpus > 0
    if estimated:
        rate = model_iterations_per_second
        iterations += rate * elapsed_seconds
    settled = _settle(add_energy(progress, reports), {report.incarnation for _, report in reports}, incarnation)
    return replace(
        settled,
        iterations=iterations,
        iterations_per_second=rate,
        estimated=estimated or (progress.estimated and not reporting),
        reported_by=reported_by,
        iterations_lost=lost,
        last_report=last_report,
        watts=min(
            sum(1e3 * report.millijoules_per_iteration / report.microseconds_per_iteration for report in now),
            float(MOST_REPORTED),
        ),
        clock_megahertz=max((report.clock_megahertz for report in now), default=0),
        attained_gpu_seconds=progress.attained_gpu_seconds + running_gpus * elapsed_seconds,
    )


def _most_iterations(reports: Iterable[PodReport]) -> float:
    return float(min(max(report.iterations for report in reports), MOST_REPORTED))


class ProgressReader:
    """One job's progress from cycle to cycle; from the very same reports it is not worked out again."""

    __slots__ = ("_incarnation", "_reports", "_running_gpus", "progress")

    def __init__(self, progress: JobProgress) -> None:
        self.progress = progress
        self._reports: tuple[tuple[str, PodReport], ...] | None = None
        self._incarnation = self._running_gpus = 0

    def take_in(
        self,
        reports: Iterable[tuple[str, PodReport]],
        *,
        incarnation: int,
        running_gpus: int,
        elapsed_seconds: float,
        model_iterations_per_second: float,
    ) -> JobProgress:
        """`updated_progress`, kept as `progress`."""
        received = tuple(reports)
        before = self._reports
        again = (
            before is not None
            and (self._incarnation, self._running_gpus) == (incarnation, running_gpus)
            and self.progress.last_report is not None  # else the model's pace counts on
            and len(before) == len(received)
            and all(old[1] is new[1] and old[0] == new[0] for old, new in zip(before, received, strict=True))
        )
        if not again:
            self._reports, self._incarnation, self._running_gpus = received, incarnation, running_gpus
            self.progress = updated_progress(
                self.progress,
                received,
                incarnation=incarnation,
                running_gpus=running_gpus,
                elapsed_seconds=elapsed_seconds,
                model_iterations_per_second=model_iterations_per_second,
            )
        elif running_gpus:
            attained = self.progress.attained_gpu_seconds + running_gpus * elapsed_seconds
            self.progress = replace(self.progress, attained_gpu_seconds=attained)
        return self.progress
