"""What jobs have used: energy, money and CO2 by job, namespace or month, from what their statuses hold.

That is for those who may not read EnergyReports (`books`). A status has a job's total and no history. So a job's energy
belongs to the month in which it ended, or to the present one while it has not; and what a deleted job used is in no
status any more. `Report.caveats` says so wherever it matters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from enum import StrEnum

from flyball_views.jobs import JobRow
from flyball_views.row import Row

KILOJOULES_PER_KILOWATT_HOUR = 3600
SECONDS_PER_HOUR = 3600
GRAMS_PER_KILOGRAM = 1000


class By(StrEnum):
    """What a line of a report adds up; by cap and by day EnergyReports tell alone."""

    JOB = "job"
    NAMESPACE = "namespace"
    CAP = "cap"
    DAY = "day"
    MONTH = "month"


class Prices(Row, frozen=True):
    """What a kilowatt-hour costs and emits (None: not known), and how much more a building draws than its GPUs (PUE)."""

    per_kilowatt_hour: float | None = None
    grams_co2_per_kilowatt_hour: float | None = None
    power_usage_effectiveness: float = 1.0

    def __post_init__(self) -> None:
        if not 1.0 <= self.power_usage_effectiveness < float("inf"):
            raise ValueError(f"a power usage effectiveness of {self.power_usage_effectiveness:g}; it is 1 or more")
        for value in (self.per_kilowatt_hour, self.grams_co2_per_kilowatt_hour):
            if value is not None and not 0.0 <= value < float("inf"):
                raise ValueError(f"{value:g} a kilowatt-hour; it is 0 or more")


class ReportLine(Row, frozen=True):
    """What the jobs of one line have used; `open_jobs` of them have not ended, so that it still grows.

    None where it is not known: of a cap, whose jobs they were and for how long they had GPUs is in no book.
    """

    name: str
    jobs: int | None
    open_jobs: int | None
    gpu_hours: float | None
    kilowatt_hours: float
    money: float | None
    kilograms_co2: float | None


class Report(Row, frozen=True):
    """The lines, the thirstiest first (months in their order), their sum, and what must be known to read them."""

    by: By
    time: datetime
    lines: tuple[ReportLine, ...]
    total: ReportLine
    caveats: tuple[str, ...]


def report(
    jobs: Iterable[JobRow],
    now: datetime,
    by: By = By.JOB,
    prices: Prices | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Report:
    """The report on the jobs that ended within [since, until), those that have not ended as if they did now.

    Raises ValueError for what statuses do not tell.
    """
    if by in (By.CAP, By.DAY):
        raise ValueError(f"by {by.value} EnergyReports tell alone, and they may not be read or there are none")
    prices = prices or Prices()
    chosen = [
        job
        for job in jobs
        if (since is None or _when(job, now) >= since) and (until is None or _when(job, now) < until)
    ]
    groups: dict[str, list[JobRow]] = {}
    name: Callable[[JobRow], str] = {
        By.JOB: lambda job: job.key,
        By.NAMESPACE: lambda job: job.namespace,
        By.MONTH: lambda job: _when(job, now).strftime("%Y-%m"),
    }[by]
    for job in chosen:
        groups.setdefault(name(job), []).append(job)
    lines = [_line(group, members, prices) for group, members in groups.items()]
    lines.sort(key=(lambda line: line.name) if by is By.MONTH else (lambda line: (-line.kilowatt_hours, line.name)))
    return Report(by, now, tuple(lines), _line("total", chosen, prices), tuple(_caveats(chosen, by, now, prices)))


def _when(job: JobRow, now: datetime) -> datetime:
    """When a job's energy is booked."""
    return (job.completed or now).astimezone(UTC)


def _line(name: str, jobs: Iterable[JobRow], prices: Prices) -> ReportLine:
    jobs = list(jobs)
    drawn = sum(job.energy.consumed_kilojoules for job in jobs if job.energy is not None)
    hours = drawn / KILOJOULES_PER_KILOWATT_HOUR * prices.power_usage_effectiveness
    seconds = sum(job.progress.gpu_seconds or 0 for job in jobs if job.progress is not None)
    price, grams = prices.per_kilowatt_hour, prices.grams_co2_per_kilowatt_hour
    return ReportLine(
        name=name,
        jobs=len(jobs),
        open_jobs=sum(not job.finished for job in jobs),
        gpu_hours=seconds / SECONDS_PER_HOUR,
        kilowatt_hours=hours,
        money=None if price is None else hours * price,
        kilograms_co2=None if grams is None else hours * grams / GRAMS_PER_KILOGRAM,
    )


def _caveats(jobs: Iterable[JobRow], by: By, now: datetime, prices: Prices) -> list[str]:
    jobs = list(jobs)
    found = [
        "jobs that were deleted are not in it, by hand or by ttlSecondsAfterFinished: it is made of jobs' statuses, as "
        "EnergyReports, which have what they used, may not be read or are not there"
    ]
    if prices.power_usage_effectiveness == 1.0:
        found.append("it is what the GPUs used: hosts, network and cooling come on top (--pue)")
    else:
        found.append(f"what the GPUs used was multiplied by {prices.power_usage_effectiveness:g}")
    over = [job for job in jobs if _spans_months(job, now)]
    if by is By.MONTH and over:
        found.append(
            f"{len(over)} of the jobs ran in more than one month: all that each used is booked in the month of its end, or "
            "in the present one"
        )
    unknown = [job.key for job in jobs if job.energy is None]
    if unknown:
        found.append(f"of {len(unknown)} jobs nothing is known yet: {', '.join(sorted(unknown)[:5])}")
    return found


def _spans_months(job: JobRow, now: datetime) -> bool:
    if job.started is None:
        return False
    began, ended = job.started.astimezone(UTC), _when(job, now)
    return (began.year, began.month) != (ended.year, ended.month)
