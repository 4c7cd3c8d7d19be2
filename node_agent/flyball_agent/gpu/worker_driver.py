"""NVML in a process of its own, as a driver: every call is a message to the worker, and its end is nobody else's."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

from flyball_api.values.units import MilliwattsPerGpu

from flyball_agent.gpu.gpu import (
    CallTimedOut,
    DriverUnavailable,
    Gpu,
    GpuDriver,
    GpuReading,
    PowerLimitReading,
    UnknownDriverError,
    UnopenedGpu,
    XidError,
)
from flyball_agent.gpu.messages import (
    Done,
    EnablePersistence,
    Failed,
    GpuCall,
    LockClocks,
    Opened,
    Read,
    ReadPowerLimit,
    Reported,
    Request,
    SetPowerLimit,
    ShownGpu,
    UnlockClocks,
    receive_answer,
    send,
)

# The worker, without what msgspec loads wherever it is installed, for versions of Python that need it: 1.7 MiB.
WORKER = (
    "import sys; sys.modules['typing_extensions'] = None; from flyball_agent.gpu.worker import main; main(sys.argv[1:])"
)
OPEN_SECONDS = 60.0
MAX_REPORTED = 1024  # between two rounds; of more, the oldest are forgotten
# A worker that was told to end and does not is stuck in the driver: it is left to the kernel.
END_SECONDS = 1.0


class WorkerGpu(Gpu):
    """One GPU of the worker. Each method waits for the worker's answer, however long that takes."""

    def __init__(self, shown: ShownGpu, driver: WorkerDriver) -> None:
        self.uuid, self.index, self.model, self.limits = shown.uuid, shown.index, shown.model, shown.limits
        self._driver = driver

    def read(self) -> GpuReading:
        reading = self._call("read", Read()).reading
        if reading is None:
            raise UnknownDriverError("read", self.uuid, detail="the worker's answer has no reading")
        return reading

    def read_power_limit(self) -> PowerLimitReading:
        limit = self._call("read power limit", ReadPowerLimit()).limit
        if limit is None:
            raise UnknownDriverError("read power limit", self.uuid, detail="the worker's answer has no limit")
        return limit

    def set_power_limit_milliwatts(self, limit_milliwatts: MilliwattsPerGpu) -> None:
        self._call("set power limit", SetPowerLimit(limit_milliwatts))

    def set_locked_clocks_megahertz(self, min_megahertz: int, max_megahertz: int) -> None:
        self._call("lock clocks", LockClocks(min_megahertz, max_megahertz))

    def reset_locked_clocks(self) -> None:
        self._call("unlock clocks", UnlockClocks())

    def enable_persistence_mode(self) -> None:
        self._call("enable persistence mode", EnablePersistence())

    def _call(self, operation: str, call: GpuCall) -> Done:
        return self._driver.call(operation, self.uuid, call)


class WorkerDriver(GpuDriver):
    """Starts a worker and opens NVML there. Raises GpuError where that fails or takes longer than `open_seconds`.

    When the worker ends, whatever ended it, every call raises DriverUnavailable.
    """

    name = "nvml"
    calls_block = True

    def __init__(self, library: str | os.PathLike[str] | None = None, *, open_seconds: float = OPEN_SECONDS) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-c", WORKER, str(theirs.fileno())]
        command += [] if library is None else [str(Path(library))]
        with theirs:
            # Nothing else is inherited: a worker that cannot end must not hold the journal's lock.
            self._process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL)
        self._connection = ours
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[Done]] = {}
        self._reported: deque[XidError] = deque(maxlen=MAX_REPORTED)
        self._last = 0
        self._ended = False
        try:
            ours.settimeout(open_seconds)
            first = receive_answer(ours)
        except TimeoutError as error:
            self.close()
            raise CallTimedOut("open", detail=f"the driver did not open within {open_seconds:g} s") from error
        except (OSError, ValueError) as error:
            self.close()
            raise DriverUnavailable("open", detail=f"the driver's worker: {error}") from error
        if isinstance(first, Failed):
            self.close()
            raise first.error
        if not isinstance(first, Opened):
            self.close()
            raise DriverUnavailable("open", detail="the driver's worker ended before the driver was open")
        ours.settimeout(None)
        self._opened = first
        self._gpus = [WorkerGpu(shown, self) for shown in first.gpus]
        threading.Thread(target=self._listen, name="driver-worker", daemon=True).start()

    @property
    def boot_id(self) -> str:
        return self._opened.boot_id

    @property
    def driver_load(self) -> str:
        return self._opened.driver_load

    @property
    def version(self) -> str:
        return self._opened.version

    def gpus(self) -> Sequence[Gpu]:
        return self._gpus

    @property
    def unopened(self) -> Sequence[UnopenedGpu]:
        return self._opened.unopened

    def take_xid_errors(self) -> Sequence[XidError]:
        return [self._reported.popleft() for _ in range(len(self._reported))]

    def call(self, operation: str, uuid: str, call: GpuCall) -> Done:
        """Make one call in the worker, and wait for it. Raises what it raises."""
        future: Future[Done] = Future()
        with self._lock:
            if self._ended:
                raise self._gone(operation, uuid)
            self._last += 1
            number = self._last
            self._waiting[number] = future
            try:
                send(self._connection, Request(number, uuid, call))
            except OSError as error:
                del self._waiting[number]
                raise self._gone(operation, uuid) from error
        return future.result()

    def _gone(self, operation: str, uuid: str) -> DriverUnavailable:
        return DriverUnavailable(operation, uuid, detail="the driver's worker has ended")

    def _listen(self) -> None:
        try:
            while (answer := receive_answer(self._connection)) is not None:
                if isinstance(answer, Opened):
                    continue
                if isinstance(answer, Reported):
                    self._reported.append(answer.error)
                    continue
                with self._lock:
                    future = self._waiting.pop(answer.number, None)
                if future is None:
                    continue
                if isinstance(answer, Failed):
                    future.set_exception(answer.error)
                else:
                    future.set_result(answer)
        except (OSError, ValueError):
            pass  # the worker is of no use any more, whatever it said
        with self._lock:
            self._ended = True
            waiting, self._waiting = list(self._waiting.values()), {}
        for future in waiting:
            future.set_exception(self._gone("call", ""))
        self._end()

    def close(self) -> None:
        """End the worker. One that hangs in the driver is left behind: it has nothing of ours."""
        self._end()
        self._connection.close()

    def _end(self) -> None:
        with self._lock:
            self._ended = True
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
