"""Which load of the driver the GPUs' limits and counters belong to: a new one puts every limit back to its default.

Some drivers show it themselves; with NVML only the energy counters do, which restart at each load (and at each reset of
a GPU). So a session is named by what the driver shows, and the number of new sessions that the journal has seen.
"""

from __future__ import annotations

import contextlib

from flyball_api.gpu_node import DriverSession

from flyball_agent.enforce.journal import Journal, JournalError
from flyball_agent.enforce.records import DriverLoad, DriverSeen
from flyball_agent.gpu.gpu import GpuDriver

# What stands for the load of a driver that is not open.
ABSENT = "absent"


class DriverSessionTracker:
    """Follows the driver's loads. `resumed`: the journal's last session goes on, in this boot and load of the driver;
    `may_be_resumed`: some session before this may, for the driver is not open now, or was not for the agent before, or
    nobody knows which there was."""

    def __init__(self, driver: GpuDriver, journal: Journal) -> None:
        self._driver = driver
        self._journal = journal
        self._load = driver.driver_load
        self._counters_millijoules: dict[str, int] = {}
        known = journal.state.driver
        same_boot = known is not None and known.boot_id == driver.boot_id
        loads = {self._load} if known is None else {self._load, known.driver_load}
        self.resumed = same_boot and len(loads) == 1 and ABSENT not in loads
        self.may_be_resumed = self.resumed or (same_boot and ABSENT in loads) or journal.state.gaps
        # The number rises with each new session and never falls: what was acknowledged in one is true in no other.
        self._resets = 0 if known is None else known.resets
        if known is not None and self.resumed:
            self._counters_millijoules = dict(known.counters_millijoules)
        elif known is not None:
            self._resets += 1
        self._write()

    @property
    def session(self) -> DriverSession:
        """The session that goes on now, as the operator sees it."""
        return DriverSession(self._driver.boot_id, f"{self._load}.{self._resets}")

    @property
    def shows_new_load(self) -> bool:
        """Whether the driver was loaded anew since `reloaded` has looked last, as far as it shows that."""
        return self._driver.driver_load != self._load

    def reloaded(self) -> bool:
        """Look at the driver; True where it shows that it was loaded anew since the last look."""
        if not self.shows_new_load:
            return False
        self.begin_anew(self._driver)
        return True

    def begin_anew(self, driver: GpuDriver) -> None:
        """A new session begins, perhaps with another driver."""
        self._driver = driver
        self._load = driver.driver_load
        self._resets += 1
        self._counters_millijoules.clear()
        self._write()

    def note_counter(self, uuid: str, counter_millijoules: int) -> bool:
        """Note a GPU's energy counter; True where it has fallen below what it was, which begins a new session."""
        last = self._counters_millijoules.get(uuid)
        self._counters_millijoules[uuid] = counter_millijoules
        if last is None or counter_millijoules >= last:
            return False
        self._resets += 1
        self._write()
        return True

    def record(self) -> DriverSeen:
        """For the journal: by the counters, a reset that happens while no agent runs is noticed afterwards."""
        return DriverSeen(DriverLoad(self._driver.boot_id, self._load, self._resets, dict(self._counters_millijoules)))

    def _write(self) -> None:
        with contextlib.suppress(JournalError):
            self._journal.note(self.record())
