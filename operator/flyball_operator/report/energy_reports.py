"""EnergyReports during one leader's term: which is gone on from, when the book is written, and the turn of the day.

A book is written over the very version that it was gone on from. Where that write is refused, or nobody knows what became
of it, the book is read anew and gone on from there: it has the counters up to which it counts, and so loses nothing.

At the turn of the day the old book is written once more, whole; then the new one, which takes the counters over; then the
old one without them. A crash in between leaves the latest book with the counters, which the next operator goes on from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from flyball_api.energy.report import (
    EnergyRates,
    EnergyReportSpec,
    energy_report_object,
    read_energy_report,
)
from flyball_api.reading import InvalidObject
from flyball_kube.errors import ApiError, ApiUnreachable
from flyball_kube.process.logs import get_logger
from flyball_kube.resources import ENERGY_REPORTS
from flyball_kube.session import ApiSession, JsonObject

from flyball_operator.cluster.outcome import DONE, UNKNOWN, WriteResult
from flyball_operator.report.energy_books import EnergyBooks, Seen
from flyball_operator.report.gpu_holders import Owner

logger = get_logger(__name__)

# A cluster without an operator for longer begins its books anew.
DAYS_BACK = 31
# Old reports are deleted at each turn of the day; so many days' at once, where some turns were missed.
DAYS_DELETED_AT_ONCE = 7
# As many have series of their own.
OWNERS_SHOWN = 100
# Before what was refused, or has not been answered, is tried again.
RETRY_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class ReportWrite:
    """One EnergyReport to be written, over the one of `resource_version` (empty: there is none), or deleted."""

    day: str
    body: JsonObject | None
    resource_version: str = ""


class EnergyReports:
    """`rates` go into every book; one is written every `interval_seconds`, and kept for `days_kept`."""

    def __init__(self, session: ApiSession, rates: EnergyRates, interval_seconds: float, days_kept: int) -> None:
        self._session = session
        self._rates = rates
        self._interval_seconds = interval_seconds
        self._days_kept = days_kept
        self._books: EnergyBooks | None = None  # None: not read yet, or not known any more
        self._version = ""  # of the object of the book's day
        self._written_at = float("-inf")
        self._closed: tuple[EnergyReportSpec, str] | None = None  # yesterday's, and its version
        self._to_delete: list[str] = []
        self._begins = False  # the book's object does not exist yet
        self._retry_at = float("-inf")
        self._failures = 0  # of writes, one after the other

    @property
    def unread(self) -> bool:
        """No book is known to go on from: `load` first."""
        return self._books is None

    def load_due(self, monotonic: float) -> bool:
        """Whether the latest report is to be read now."""
        return self.unread and monotonic >= self._retry_at

    async def load(self, now: datetime, monotonic: float) -> WriteResult:
        """Read the latest report, if there is one."""
        self._retry_at = monotonic + RETRY_SECONDS
        found = None
        for back in range(DAYS_BACK):
            day = (now.astimezone(UTC).date() - timedelta(days=back)).isoformat()
            try:
                found = read_energy_report(await self._session.get(ENERGY_REPORTS.path(name=day)))
                break
            except ApiError as error:
                if not error.not_found:
                    logger.warning("EnergyReports cannot be read", error=str(error))
                    return UNKNOWN
            except ApiUnreachable as error:
                logger.warning("EnergyReports cannot be read", error=str(error))
                return UNKNOWN
            except InvalidObject as error:
                logger.warning("EnergyReport left out: it cannot be read", error=str(error))
        if found is not None and found.spec.marks is None and found.spec.day < now.astimezone(UTC).date().isoformat():
            found = None  # a day that is closed: the one after it was deleted
        self._books = EnergyBooks(None if found is None else found.spec, self._rates, now)
        self._version = "" if found is None else found.metadata.resource_version
        self._begins = found is None
        self._retry_at = float("-inf") if self._failures <= 1 else self._retry_at
        return DONE

    def observe(self, seen: Callable[[], Seen], now: datetime) -> None:
        """Count what was used until `now`."""
        if self._books is not None:
            self._books.observe(seen(), now)

    def largest_owners(self) -> list[tuple[Owner, int]]:
        """Whose pods outside Flyball have used most on the book's day, and how many millijoules; none is known unread."""
        return [] if self._books is None else self._books.largest_owners(OWNERS_SHOWN)

    def due(self, now: datetime, monotonic: float) -> ReportWrite | None:
        """The report to write now, if any; call `answered` with the outcome before asking again."""
        books = self._books
        if books is None or monotonic < self._retry_at:
            return None
        if self._begins or books.is_over(now) or monotonic - self._written_at >= self._interval_seconds:
            return ReportWrite(books.day, energy_report_object(books.spec(), self._version), self._version)
        if self._closed is not None:
            closed, version = self._closed
            return ReportWrite(closed.day, energy_report_object(closed, version), version)
        return ReportWrite(self._to_delete[-1], None) if self._to_delete else None

    def answered(
        self, write: ReportWrite, result: WriteResult, stored: JsonObject, now: datetime, monotonic: float
    ) -> None:
        """Take in what became of a write; `stored` is the object as it then was (empty where it was not written)."""
        books = self._books
        if write.body is None:
            self._to_delete.pop()
            return
        if books is None:
            return
        if write.day != books.day:
            self._closed = None  # with its counters it stays right, and the latest one counts
            return
        if not result.done:
            logger.info("the book of the cluster's energy is read anew", day=write.day, error=result.message)
            self._books = None
            self._failures += 1
            return
        self._failures = 0
        self._version, self._begins = str(stored["metadata"]["resourceVersion"]), False
        self._written_at = monotonic
        if books.is_over(now):
            closed = books.turn(now)
            self._closed = closed, self._version
            self._version, self._begins = "", True
            # By the day that was kept until now: a clock that leaps ahead a year is no word to delete a year.
            oldest = date.fromisoformat(closed.day) + timedelta(days=1 - self._days_kept)
            self._to_delete = [(oldest - timedelta(days=back)).isoformat() for back in range(DAYS_DELETED_AT_ONCE)]
