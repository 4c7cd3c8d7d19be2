"""The process that makes NVML's calls, started by the agent (`worker_driver`) with a socket's descriptor and the library.

A call that never returns, or in which the library crashes, is then no more than a process that can be left behind: it holds
neither the journal nor the agent. It ends when the agent does, which closes the other end of its socket.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
from collections import deque
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, cast

from flyball_agent.gpu.gpu import (
    DriverUnavailable,
    Gpu,
    GpuError,
    GpuNotFound,
    GpuReading,
    PowerLimitReading,
    UnknownDriverError,
    XidError,
)
from flyball_agent.gpu.messages import (
    Answer,
    Done,
    Failed,
    Opened,
    Reported,
    Request,
    ShownGpu,
    receive_request,
    send,
)

if TYPE_CHECKING:
    from flyball_agent.gpu.nvml import NvmlDriver


class _Lane:
    """One GPU's requests, to be made one after the other by whoever is at it."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self._requests: deque[Request] = deque()
        self._lock = threading.Lock()
        self._somebody_is_at_it = False

    def add(self, request: Request) -> bool:
        """Add the request to the queue; True where no thread serves the queue, so that the caller has to."""
        with self._lock:
            self._requests.append(request)
            mine, self._somebody_is_at_it = not self._somebody_is_at_it, True
            return mine

    def take(self) -> Request | None:
        """The next request; None where the queue is empty: the caller then no longer serves it."""
        with self._lock:
            if self._requests:
                return self._requests.popleft()
            self._somebody_is_at_it = False
            return None


class _Worker:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._hearing = threading.Lock()
        self._lanes: dict[str, _Lane] = {}

    def answer(self, answer: Answer) -> None:
        try:
            with self._sending:
                send(self._connection, answer)
        except OSError:
            os._exit(0)  # nobody listens any more

    def serve(self, driver: NvmlDriver) -> None:
        """Make calls until the agent ends.

        Whoever hears a request makes it, while another goes on hearing: no thread has to be woken in between. A GPU that
        hangs keeps one of them, so there is one more than GPUs.
        """
        self._lanes = {gpu.uuid: _Lane(gpu) for gpu in driver.gpus()}
        shown = tuple(ShownGpu(gpu.uuid, gpu.index, gpu.model, gpu.limits) for gpu in driver.gpus())
        self.answer(Opened(driver.boot_id, driver.driver_load, driver.version, shown, tuple(driver.unopened)))
        # Beside the calls: to ask for the errors of a GPU that hangs does not return.
        threading.Thread(target=driver.watch_xid_errors, args=(self._report,), name="watch", daemon=True).start()
        for number in range(len(self._lanes)):
            threading.Thread(target=self._hear_and_make, name=f"driver-{number}", daemon=True).start()
        self._hear_and_make()

    def _report(self, error: XidError) -> None:
        self.answer(Reported(error))

    def _hear_and_make(self) -> None:
        try:
            while True:
                with self._hearing:
                    request = receive_request(self._connection)
                    if request is None:
                        return
                    lane = self._lanes.get(request.uuid)
                    mine = lane is not None and lane.add(request)
                if lane is None:
                    self.answer(Failed(request.number, GpuNotFound("find", request.uuid)))
                elif mine:
                    while (request := lane.take()) is not None:
                        self._make(lane.gpu, request)
        finally:
            # No clean shutdown of the library: a call of its own may be under way, and the kernel closes everything anyway.
            os._exit(0)

    def _make(self, gpu: Gpu, request: Request) -> None:
        try:
            result = request.call.on(gpu)
        except GpuError as error:
            self.answer(Failed(request.number, error))
        except Exception as error:  # a defect of ours is this call's failure, and no other's
            self.answer(Failed(request.number, UnknownDriverError("call", gpu.uuid, detail=repr(error))))
        else:
            reading = result if isinstance(result, GpuReading) else None
            limit = result if isinstance(result, PowerLimitReading) else None
            self.answer(Done(request.number, reading, limit))


def nvml_driver() -> type[NvmlDriver]:
    """The driver over NVML. Raises ImportError where its bindings are not installed.

    They take from `ctypes.util` what finds a library on Windows, and with it a MiB of the standard library that starts
    processes and makes files: it is not loaded here.
    """
    sys.modules.setdefault("ctypes.util", cast(ModuleType, SimpleNamespace(find_library=None)))
    from flyball_agent.gpu.nvml import NvmlDriver

    return NvmlDriver


def end_with(connection: socket.socket) -> None:
    """End this process once the agent has closed its end, whatever hangs here: the library may while it opens, too."""
    closed = select.poll()
    closed.register(connection, select.POLLRDHUP)
    closed.poll()
    os._exit(0)


def main(arguments: list[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the agent, which then closes the socket
    connection = socket.socket(fileno=int(arguments[0]))
    threading.Thread(target=end_with, args=(connection,), name="end-with-agent", daemon=True).start()
    worker = _Worker(connection)
    try:
        driver = nvml_driver()(arguments[1] if len(arguments) > 1 else None)
    except GpuError as error:
        worker.answer(Failed(0, error))
        os._exit(1)
    except ImportError as error:
        worker.answer(Failed(0, DriverUnavailable("import", detail=str(error))))
        os._exit(1)
    worker.serve(driver)
