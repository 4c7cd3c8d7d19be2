"""Executes what the books of the cluster's energy ask for: they are read once, and written behind everything else."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from flyball_operator.report.energy_books import Seen
from flyball_operator.report.energy_reports import EnergyReports
from flyball_operator.writes.background import Background
from flyball_operator.writes.executor import Executor

KEY = "energy-report"


class EnergyBookKeeping:
    """Starts the reading and the writes of one leader's EnergyReports, one at a time."""

    def __init__(
        self,
        reports: EnergyReports,
        executor: Executor,
        background: Background,
        wall_clock: Callable[[], datetime],
    ) -> None:
        self._reports = reports
        self._executor = executor
        self._background = background
        self._wall_clock = wall_clock

    def start(self, seen: Callable[[], Seen], now: datetime, monotonic: float, *, may_write: bool) -> None:
        """Count what every GPU has used by what is `seen` now, and start to read or write what is due."""
        reports, busy = self._reports, self._background.busy(KEY)
        if reports.unread:
            if not busy and reports.load_due(monotonic):
                self._background.start(KEY, reports.load(now, monotonic))
            return
        reports.observe(seen, now)
        write = reports.due(now, monotonic) if may_write and not busy else None
        if write is None:
            return
        stored: dict[str, Any] = {}
        self._background.start(
            KEY,
            self._executor.write_energy_report(write.day, write.body, write.resource_version, stored.update),
            lambda result: reports.answered(write, result, stored, self._wall_clock(), monotonic),
        )
