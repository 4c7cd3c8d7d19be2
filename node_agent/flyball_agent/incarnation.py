"""Which load of the driver the boards' limits and counters belong to.

Some drivers say so themselves; with NVML only the energy counters do, which start again at each load (and at each reset
of a board). So an incarnation is the driver's own word, and how many times a counter fell back under it.
"""

from __future__ import annotations

import contextlib

from flyball_agent.gpu import GpuDriver
from flyball_agent.journal import Journal, JournalError, Record, driver_record


class DriverIncarnation:
    """Resumes from the journal where boot and driver are the same; `str()` is what the operator sees."""

    def __init__(self, driver: GpuDriver, journal: Journal) -> None:
        self._driver = driver
        self._journal = journal
        self._word = driver.incarnation
        self._resets = 0
        self._counters_millijoules: dict[str, int] = {}
        known = journal.state.driver
        self.resumed = (known.get("boot"), known.get("driver")) == (driver.boot_id, self._word)
        if self.resumed:
            self._resets = int(known.get("resets", 0))
            self._counters_millijoules = {uuid: int(count) for uuid, count in known.get("counters", {}).items()}
        self._write()

    def __str__(self) -> str:
        return f"{self._word}.{self._resets}"

    def reloaded(self) -> bool:
        """Ask the driver; True where it says that it was loaded anew since the last time."""
        word = self._driver.incarnation
        if word == self._word:
            return False
        self._word, self._resets = word, 0
        self._counters_millijoules.clear()
        self._write()
        return True

    def fell_back(self, uuid: str, counter_millijoules: int) -> bool:
        """Note a board's energy counter; True where it is below what it was."""
        last = self._counters_millijoules.get(uuid)
        self._counters_millijoules[uuid] = counter_millijoules
        if last is None or counter_millijoules >= last:
            return False
        self._resets += 1
        self._write()
        return True

    def record(self) -> Record:
        """For the journal: what tells a reset that happens while no agent runs."""
        return driver_record(
            {
                "boot": self._driver.boot_id,
                "driver": self._word,
                "resets": self._resets,
                "counters": dict(self._counters_millijoules),
            }
        )

    def _write(self) -> None:
        with contextlib.suppress(JournalError):
            self._journal.commit(self.record())
