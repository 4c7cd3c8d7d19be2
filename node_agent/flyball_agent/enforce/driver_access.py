"""The driver as the enforcer has it now: its GPUs, how they are called, and which session of it goes on.

There may be none: it cannot be loaded, or an administrator has asked to let go of it. Another one, or the same again, is
swapped in between two rounds.
"""

from __future__ import annotations

from collections.abc import Sequence

from flyball_agent.enforce.driver_session import ABSENT, DriverSessionTracker
from flyball_agent.enforce.journal import Journal
from flyball_agent.gpu.calls import DirectCalls, DriverCalls
from flyball_agent.gpu.gpu import Gpu, GpuDriver, GpuError
from flyball_agent.gpu.worker_calls import WorkerCalls
from flyball_agent.gpu.worker_driver import WorkerDriver


class AbsentDriver(GpuDriver):
    """Stands for a driver that is not open now; `error` says why. Its session is like no other's."""

    name = "absent"
    version = ""

    def __init__(self, error: GpuError, boot_id: str) -> None:
        self.error = error
        self._boot_id = boot_id

    @property
    def boot_id(self) -> str:
        return self._boot_id

    @property
    def driver_load(self) -> str:
        return ABSENT

    def gpus(self) -> Sequence[Gpu]:
        return ()

    def close(self) -> None:
        """There is nothing to release."""


def calls_for(driver: GpuDriver) -> DriverCalls:
    """The way of calling that a driver needs."""
    return WorkerCalls(driver) if isinstance(driver, WorkerDriver) else DirectCalls()


class DriverAccess:
    """One node's driver. `swap` takes another one."""

    def __init__(self, driver: GpuDriver, journal: Journal, calls: DriverCalls | None = None) -> None:
        self.driver = driver
        self.session = DriverSessionTracker(driver, journal)
        self.calls = calls or calls_for(driver)
        self.gpus: dict[str, Gpu] = {gpu.uuid: gpu for gpu in driver.gpus()}

    @property
    def error(self) -> GpuError | None:
        """Why there is no driver; None where there is one."""
        return self.driver.error if isinstance(self.driver, AbsentDriver) else None

    def swap(self, driver: GpuDriver) -> GpuDriver:
        """Go on with this driver, in a new session; the one before, which is still to be closed."""
        before = self.driver
        self.driver = driver
        self.session.begin_anew(driver)
        self.calls = calls_for(driver)
        self.gpus = {gpu.uuid: gpu for gpu in driver.gpus()}
        return before
