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
from typing import Any, TypeVar, cast

from flyball_api.values.units import MilliwattsPerGpu

from flyball_agent.gpu.gpu import (
    CallTimedOut,
    DriverUnavailable,
    Gpu,
    GpuDriver,
    GpuReading,
    PowerLimitReading,
    UnopenedGpu,
    XidError,
)
from flyball_agent.gpu.messages import (
    Failed,
    Opened,
    Reported,
    Request,
    ShownGpu,
    receive_answer,
    send_now,
)
from flyball_agent.gpu.operations import (
    AnyGpuCall,
    EnablePersistence,
    GpuCall,
    LockClocks,
    Read,
    ReadPowerLimit,
    SetPowerLimit,
    UnlockClocks,
)

T = TypeVar("T")

# The worker, without what msgspec loads wherever it is installed, for versions of Python that need it: 1.7 MiB.
WORKER = (
    "import sys; sys.modules['typing_extensions'] = None; from flyball_agent.gpu.worker import main; main(sys.argv[1:])"
)
OPEN_SECONDS = 60.0
# For two calls of each of 256 GPUs, of which the kernel counts 770 bytes each; so much it gives whoever asks.
SEND_BUFFER_BYTES = 212_992
MAX_REPORTED = 1024  # between two rounds; of more, the oldest are forgotten
# A worker that was told to end and does not is stuck in the driver: it is left to the kernel.
END_SECONDS = 1.0


class WorkerGpu(Gpu):
    """One GPU of the worker. Each method waits for the worker's answer, however long that takes."""

    def __init__(self, shown: ShownGpu, driver: WorkerDriver) -> None:
        self.uuid, self.index, self.model, self.limits = shown.uuid, shown.index, shown.model, shown.limits
        self._driver = driver

    def read(self) -> GpuReading:
        return self._call("read", Read())

    def read_power_limit(self) -> PowerLimitReading:
        return self._call("read power limit", ReadPowerLimit())

    def set_power_limit_milliwatts(self, limit_milliwatts: MilliwattsPerGpu) -> None:
        self._call("set power limit", SetPowerLimit(limit_milliwatts))

    def set_locked_clocks_megahertz(self, min_megahertz: int, max_megahertz: int) -> None:
        self._call("lock clocks", LockClocks(min_megahertz, max_megahertz))

    def reset_locked_clocks(self) -> None:
        self._call("unlock clocks", UnlockClocks())

    def enable_persistence_mode(self) -> None:
        self._call("enable persistence mode", EnablePersistence())

    def _call(self, operation: str, call: GpuCall[T]) -> T:
        return self._driver.begin(operation, self.uuid, call).result()


class WorkerDriver(GpuDriver):
    """Starts a worker and opens NVML there. Raises GpuError where that fails or takes longer than `open_seconds`.

    When the worker ends, whatever ended it, every call raises DriverUnavailable.
    """

    name = "nvml"

    def __init__(self, library: str | os.PathLike[str] | None = None, *, open_seconds: float = OPEN_SECONDS) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-c", WORKER, str(theirs.fileno())]
        command += [] if library is None else [str(Path(library))]
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)  # which it doubles
        with theirs:
            # Nothing else is inherited: a worker that cannot end must not hold the journal's lock.
            self._process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL)
        self._connection = ours
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[Any]] = {}
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

    def begin(self, operation: str, uuid: str, call: GpuCall[T]) -> Future[T]:
        """Hand one call to the worker, without waiting for anything; what it comes to or raises is the future's."""
        future: Future[T] = Future()
        with self._lock:
            if self._ended:
                future.set_exception(self._gone(operation, uuid))
                return future
            self._last += 1
            number = self._last
            self._waiting[number] = future
            try:
                send_now(self._connection, Request(number, uuid, cast(AnyGpuCall, call)))
            except OSError as error:
                del self._waiting[number]
                full = isinstance(error, BlockingIOError)  # a worker that runs hears whatever its GPUs do
                late = CallTimedOut(operation, uuid, detail="the driver's worker takes no calls")
                future.set_exception(late if full else self._gone(operation, uuid))
        return future

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
                    future.set_result(answer.result)
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
