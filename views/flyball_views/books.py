"""What was used, from the daily EnergyReports: energy, money and CO2 by job, owner, namespace, cap, day or month.

They hold what was used on each day, of jobs that were deleted, too, and what GPUs used without a job: so the lines add up
to what the GPUs' counters rose by (but for caps, which overlap). With a namespace they are of that alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from flyball_api.energy.report import EnergyReportSpec

from flyball_views.report import (
    GRAMS_PER_KILOGRAM,
    KILOJOULES_PER_KILOWATT_HOUR,
    SECONDS_PER_HOUR,
    By,
    Prices,
    Report,
    ReportLine,
)

MILLIJOULES_PER_KILOWATT_HOUR = KILOJOULES_PER_KILOWATT_HOUR * 1_000_000
MICROS = 1e6
MILLIGRAMS_PER_GRAM = 1e3
IDLE = "(idle)"
OTHER_JOBS = "(other jobs)"
OTHER_PODS = "(other pods)"
OTHER_NAMESPACES = "(other namespaces)"


@dataclass(slots=True)
class _Line:
    millijoules: int = 0
    gpu_seconds: int = 0
    jobs: set[str] = field(default_factory=set)
    money: float = 0.0
    grams: float = 0.0
    # Whether any of it has, and any of it lacks, a price and what it emitted: of nothing at all neither is known.
    priced: bool = False
    unpriced: bool = False
    rated: bool = False
    unrated: bool = False


@dataclass(frozen=True, slots=True)
class _Use:
    """What one line of one day's book says; `job` is a job's uid."""

    name: str
    millijoules: int
    gpu_seconds: int = 0
    job: str = ""


def book_report(
    books: Sequence[EnergyReportSpec],
    now: datetime,
    by: By = By.NAMESPACE,
    prices: Prices | None = None,
    namespace: str | None = None,
) -> Report:
    """The report on the days of `books`; `prices` that are given come before those that the books have.

    Raises ValueError for what books do not tell.
    """
    if by is By.CAP and namespace is not None:
        raise ValueError("what was used under a cap is in no book by namespace: leave out the one or the other")
    prices = prices or Prices()
    lines: dict[str, _Line] = {}
    total = _Line()
    for book in books:
        for use in _uses(book, by, namespace):
            _add(lines.setdefault(use.name, _Line()), use, book, prices)
        for use in _uses(book, By.JOB, namespace):  # whose lines add up, whatever is asked for
            _add(total, use, book, prices)
    shown = [_shown(name, line, prices, of_cap=by is By.CAP) for name, line in lines.items()]
    shown.sort(
        key=(lambda line: line.name) if by in (By.MONTH, By.DAY) else (lambda line: (-line.kilowatt_hours, line.name))
    )
    return Report(
        by, now, tuple(shown), _shown("total", total, prices), tuple(_caveats(books, by, prices, total, namespace))
    )


def _uses(book: EnergyReportSpec, by: By, namespace: str | None) -> Iterator[_Use]:
    if by is By.CAP:
        yield from (_Use(cap.name, cap.millijoules) for cap in book.caps)
        return
    found = _spaces(book, namespace)
    for use in found:
        match by:
            case By.DAY:
                name = book.day
            case By.MONTH:
                name = book.day[:7]
            case By.NAMESPACE:
                name = use.name.partition("/")[0]
            case _:
                name = use.name
        yield _Use(name, use.millijoules, use.gpu_seconds, use.job)


def _spaces(book: EnergyReportSpec, namespace: str | None) -> Iterator[_Use]:
    """Each job and each owner of other pods, with what is in their namespace's sums beside them, and what nobody held."""
    jobs, pods, seconds = Counter[str](), Counter[str](), Counter[str]()
    for job in book.jobs:
        jobs[job.namespace] += job.millijoules
        seconds[job.namespace] += job.gpu_seconds
        if namespace in (None, job.namespace):
            yield _Use(f"{job.namespace}/{job.name}", job.millijoules, job.gpu_seconds, job.uid)
    for owner in book.owners:
        pods[owner.namespace] += owner.millijoules
        if namespace in (None, owner.namespace):
            yield _Use(f"{owner.namespace}/{owner.owner}", owner.millijoules)
    for space in book.namespaces:
        if namespace not in (None, space.name):
            continue
        if (left := space.jobs_millijoules - jobs[space.name]) > 0:
            yield _Use(f"{space.name}/{OTHER_JOBS}", left, max(0, space.gpu_seconds - seconds[space.name]))
        if (left := space.pods_millijoules - pods[space.name]) > 0:
            yield _Use(f"{space.name}/{OTHER_PODS}", left)
    if namespace is None:
        listed = {space.name for space in book.namespaces}
        left = book.jobs_millijoules + book.pods_millijoules
        left -= sum(space.jobs_millijoules + space.pods_millijoules for space in book.namespaces)
        left -= sum(used for space, used in (*jobs.items(), *pods.items()) if space not in listed)
        if left > 0:
            yield _Use(OTHER_NAMESPACES, left)
        yield _Use(IDLE, book.idle_millijoules)


def _add(line: _Line, use: _Use, book: EnergyReportSpec, prices: Prices) -> None:
    hours = use.millijoules / MILLIJOULES_PER_KILOWATT_HOUR * prices.power_usage_effectiveness
    price, grams = prices.per_kilowatt_hour, prices.grams_co2_per_kilowatt_hour
    rates = book.rates
    if price is None and rates.cost_micros_per_kilowatt_hour is not None:
        price = rates.cost_micros_per_kilowatt_hour / MICROS
    if grams is None and rates.emitted_milligrams_per_kilowatt_hour is not None:
        grams = rates.emitted_milligrams_per_kilowatt_hour / MILLIGRAMS_PER_GRAM
    line.millijoules += use.millijoules
    line.gpu_seconds += use.gpu_seconds
    line.jobs |= {use.job} - {""}
    line.money += hours * (price or 0.0)
    line.grams += hours * (grams or 0.0)
    line.priced |= price is not None
    line.unpriced |= price is None
    line.rated |= grams is not None
    line.unrated |= grams is None


def _shown(name: str, line: _Line, prices: Prices, *, of_cap: bool = False) -> ReportLine:
    priced = line.priced or prices.per_kilowatt_hour is not None
    rated = line.rated or prices.grams_co2_per_kilowatt_hour is not None
    return ReportLine(
        name=name,
        jobs=None if of_cap else len(line.jobs),
        open_jobs=None,
        gpu_hours=None if of_cap else line.gpu_seconds / SECONDS_PER_HOUR,
        kilowatt_hours=line.millijoules / MILLIJOULES_PER_KILOWATT_HOUR * prices.power_usage_effectiveness,
        money=line.money if priced and not line.unpriced else None,
        kilograms_co2=line.grams / GRAMS_PER_KILOGRAM if rated and not line.unrated else None,
    )


def _days(days: Sequence[str]) -> str:
    return f"one day, {days[0]}" if len(days) == 1 else f"{len(days)} days, from {days[0]} to {days[-1]}"


def _caveats(
    books: Iterable[EnergyReportSpec], by: By, prices: Prices, total: _Line, namespace: str | None
) -> list[str]:
    books = list(books)
    if not books:
        return ["there is no EnergyReport of that time"]
    days = sorted(book.day for book in books)
    found = [f"it is of {_days(days)} (UTC), as of {books[-1].charged_until:%H:%M}"]
    if namespace is not None and not total.millijoules:
        found.append(f"nothing that was used is known of a namespace {namespace}")
    if prices.power_usage_effectiveness == 1.0:
        found.append("it is what the GPUs used: hosts, network and cooling come on top (--pue)")
    else:
        found.append(f"what the GPUs used was multiplied by {prices.power_usage_effectiveness:g}")
    if by is By.CAP:
        found.append("a GPU under several caps is in the line of each, and once in the total")
    if total.unpriced and any(book.rates.cost_micros_per_kilowatt_hour is not None for book in books):
        found.append("of some of the days no price is known (--price)")
    return found
