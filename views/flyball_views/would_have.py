"""What jobs that were only observed would have used, had they been governed, from the daily EnergyReports.

Each figure has the band that the jobs' models leave; those of several jobs are added as if all were off the same way, so
that a sum is rather surer than its band says. Of what nobody knows anything, nothing is said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime

from flyball_api.energy.report import EnergyReportSpec, ObservedUse, ReportedJob

from flyball_views.books import MILLIJOULES_PER_KILOWATT_HOUR
from flyball_views.report import By
from flyball_views.row import Row

MOST_PODS = 10


class Estimate(Row, frozen=True):
    """A figure, and between which two it lies with nine chances in ten."""

    least: float
    expected: float
    most: float


class WouldHaveLine(Row, frozen=True):
    """What the observed jobs of one line have used, and what governing them would have saved.

    `saved_share` and `longer_share` are shares of the joules and the seconds measured (None: nothing is known); of
    `unknown_kilowatt_hours` nobody can say what they would have been.
    """

    name: str
    jobs: int
    kilowatt_hours: float
    unknown_kilowatt_hours: float
    saved_kilowatt_hours: Estimate | None
    saved_share: Estimate | None
    longer_share: Estimate | None


class PodsLine(Row, frozen=True):
    """What the pods of one owner outside Flyball have used, and of that `held_idle_kilowatt_hours` by GPUs that they held
    and that computed nothing, which giving them back saves. What governing would save of the rest is not known."""

    name: str
    kilowatt_hours: float
    held_idle_kilowatt_hours: float


class WouldHaveReport(Row, frozen=True):
    """The lines, who would have saved most first (days and months in their order), their sum, and how to read them.

    `pods` are the owners of pods outside Flyball, at most ten, who held GPUs without computing most first.
    """

    by: By
    time: datetime
    lines: tuple[WouldHaveLine, ...]
    total: WouldHaveLine
    caveats: tuple[str, ...]
    pods: tuple[PodsLine, ...] = ()


def would_have_report(
    books: Sequence[EnergyReportSpec], now: datetime, by: By = By.JOB, namespace: str | None = None
) -> WouldHaveReport:
    """The report on the days of `books`. Raises ValueError for what they do not tell of observed jobs."""
    if by is By.CAP:
        raise ValueError("what would have been saved is known by job, namespace, day and month, not by cap")
    groups: dict[str, list[ReportedJob]] = {}
    everything: list[ReportedJob] = []
    for book in books:
        for job in book.jobs:
            if job.observed is not None and namespace in (None, job.namespace):
                groups.setdefault(_name(book, job, by), []).append(job)
                everything.append(job)
    lines = [_line(name, jobs) for name, jobs in groups.items()]
    lines.sort(key=(lambda line: line.name) if by in (By.DAY, By.MONTH) else (lambda line: (-_saved(line), line.name)))
    caveats = tuple(_caveats(books, everything, namespace))
    return WouldHaveReport(by, now, tuple(lines), _line("total", everything), caveats, _pods(books, namespace))


def _pods(books: Iterable[EnergyReportSpec], namespace: str | None) -> tuple[PodsLine, ...]:
    used: Counter[str] = Counter()
    idle: Counter[str] = Counter()
    for book in books:
        for owner in book.owners:
            if namespace in (None, owner.namespace):
                name = f"{owner.namespace}/{owner.owner}"
                used[name] += owner.millijoules
                idle[name] += owner.idle_millijoules
    names = sorted(used, key=lambda name: (-idle[name], -used[name], name))[:MOST_PODS]
    kilowatt_hour = MILLIJOULES_PER_KILOWATT_HOUR
    return tuple(PodsLine(name, used[name] / kilowatt_hour, idle[name] / kilowatt_hour) for name in names)


def _name(book: EnergyReportSpec, job: ReportedJob, by: By) -> str:
    match by:
        case By.DAY:
            return book.day
        case By.MONTH:
            return book.day[:7]
        case By.NAMESPACE:
            return job.namespace
        case _:
            return f"{job.namespace}/{job.name}"


def _saved(line: WouldHaveLine) -> float:
    return 0.0 if line.saved_kilowatt_hours is None else line.saved_kilowatt_hours.expected


def _line(name: str, jobs: Iterable[ReportedJob]) -> WouldHaveLine:
    jobs = list(jobs)
    use = sum((job.observed for job in jobs if job.observed is not None), ObservedUse())
    joules, seconds = use.millijoules, use.milliseconds
    saved = Estimate(joules - use.most_millijoules, joules - use.governed_millijoules, joules - use.least_millijoules)
    longer = Estimate(
        use.least_milliseconds - seconds, use.governed_milliseconds - seconds, use.most_milliseconds - seconds
    )
    return WouldHaveLine(
        name=name,
        jobs=len({job.uid for job in jobs}),
        kilowatt_hours=(joules + use.unknown_millijoules) / MILLIJOULES_PER_KILOWATT_HOUR,
        unknown_kilowatt_hours=use.unknown_millijoules / MILLIJOULES_PER_KILOWATT_HOUR,
        saved_kilowatt_hours=_over(saved, MILLIJOULES_PER_KILOWATT_HOUR) if joules else None,
        saved_share=_over(saved, joules),
        longer_share=_over(longer, seconds),
    )


def _over(estimate: Estimate, whole: float) -> Estimate | None:
    if not whole:
        return None
    return Estimate(estimate.least / whole, estimate.expected / whole, estimate.most / whole)


def _caveats(books: Sequence[EnergyReportSpec], observed: Sequence[ReportedJob], namespace: str | None) -> list[str]:
    if not books:
        return ["there is no EnergyReport of that time"]
    if not observed:
        return [
            "no job was only observed in that time: a job is by the label flyball.dev/mode=observe, its own or its "
            "namespace's, and all are by the operator's --observe-jobs (the chart's operator.observeJobs), or by its mode "
            "observe"
        ]
    days = sorted(book.day for book in books)
    found = [
        f"it is of {'one day, ' + days[0] if len(days) == 1 else f'{len(days)} days, from {days[0]} to {days[-1]}'} "
        f"(UTC), as of {books[-1].charged_until:%H:%M}",
        "bands hold with nine chances in ten for each job; a sum is taken to be off as if all jobs were off the same way",
        "it is by what was learned of each job: where it ran at one clock alone, most of that is its class's, and the band "
        "is wide",
    ]
    unknown = sum(job.observed.unknown_millijoules for job in observed if job.observed is not None)
    if unknown:
        found.append(
            "unknown is what jobs used before anything was learned of them, while their pods started, or without a report "
            "of their iterations"
        )
    outside = sum(_of_pods(book, namespace) for book in books)
    if outside:
        found.append(
            f"{outside / MILLIJOULES_PER_KILOWATT_HOUR:.2f} kWh of pods outside Flyball are not in it: nobody knows their "
            "iterations"
        )
    idle = sum(
        owner.idle_millijoules for book in books for owner in book.owners if namespace in (None, owner.namespace)
    )
    if idle:
        found.append(
            f"{idle / MILLIJOULES_PER_KILOWATT_HOUR:.2f} kWh of that GPUs drew that such pods held without computing (no "
            "more than 1.2 times what the GPU draws idle): to give them back saves that where they then sleep, and nothing "
            "else is known of it"
        )
    return found


def _of_pods(book: EnergyReportSpec, namespace: str | None) -> int:
    """What pods outside Flyball have used, of all namespaces or of one."""
    if namespace is None:
        return book.pods_millijoules
    return sum(each.pods_millijoules for each in book.namespaces if each.name == namespace)
