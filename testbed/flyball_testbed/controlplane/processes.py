"""Child processes that cannot outlive their owner, and handles on processes that another shell started.

A process is known by its id and its start time, so that a recycled id is never signalled. Linux only: pidfds, /proc
and the parent-death signal.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

# Run in the child before the program: the kernel kills the child when its parent dies, however that dies. The second
# check closes the race with a parent that died before the request.
_DIE_WITH_PARENT = """\
import ctypes, os, signal, sys
parent = int(sys.argv[1])
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
if ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL) != 0:
    sys.exit("cannot ask for the parent-death signal")
if os.getppid() != parent:
    sys.exit("the parent has already died")
os.execv(sys.argv[2], sys.argv[2:])
"""

PAUSE_PER_ANSWER = 9
LONGEST_PAUSE_SECONDS = 0.5


@dataclass(frozen=True)
class ProcessIdentity:
    """A process id with its start time (clock ticks since boot), which together name one process for ever."""

    pid: int
    started_ticks: int

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """The identity of the running process `pid`; None where there is none (a zombie counts as none)."""
        fields = _stat_fields(pid)
        if fields is None or fields[0] in ("Z", "X"):
            return None
        return cls(pid, int(fields[19]))

    @classmethod
    def own(cls) -> ProcessIdentity:
        """The identity of this process."""
        fields = _stat_fields(os.getpid())
        if fields is None:
            raise OSError("no /proc: the devcluster needs Linux")
        return cls(os.getpid(), int(fields[19]))

    def is_running(self) -> bool:
        return ProcessIdentity.of(self.pid) == self


def _stat_fields(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat after the command's name: [0] is the state, [19] the start time."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text[text.rindex(")") + 2 :].split()


def resident_bytes(pid: int) -> int:
    """Resident memory of a process in bytes; 0 where it is gone."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    except (FileNotFoundError, ProcessLookupError):
        pass
    return 0


def processor_seconds(pid: int) -> float:
    """Processor time of a process and of its running descendants in seconds; 0 where it is gone."""
    fields = _stat_fields(pid)
    if fields is None:
        return 0.0
    children: list[str] = []
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):  # the children that each thread started
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            children += thread.read_text().split()
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(processor_seconds(int(child)) for child in children)


class _Spawner:
    """A thread that starts every child of this process.

    The parent-death signal is sent when the *thread* that forked ends. A child started from a worker thread of an event
    loop would be killed when the loop closes; this thread lives as long as the process.
    """

    def __init__(self) -> None:
        self._requests: queue.Queue[tuple[Callable[[], subprocess.Popen[bytes]], Future[subprocess.Popen[bytes]]]]
        self._requests = queue.Queue()
        self._thread = threading.Thread(target=self._serve, name="devcluster-spawner", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            start, answer = self._requests.get()
            try:
                answer.set_result(start())
            except BaseException as error:
                answer.set_exception(error)

    def run(self, start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        answer: Future[subprocess.Popen[bytes]] = Future()
        self._requests.put((start, answer))
        return answer.result()


_spawner: _Spawner | None = None
_spawner_lock = threading.Lock()


def _the_spawner() -> _Spawner:
    global _spawner
    with _spawner_lock:
        if _spawner is None:
            _spawner = _Spawner()
            os.register_at_fork(after_in_child=_forget_spawner)
        return _spawner


def _forget_spawner() -> None:
    global _spawner
    _spawner = None


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Put off SIGINT, SIGTERM and SIGHUP to the end of the block.

    For the moment between starting a process and noting that it was started, and for stopping what was started. Only
    the main thread can be interrupted by a signal's handler: in others this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[tuple[int, FrameType | None]] = []
    handlers = {
        number: signal.signal(number, lambda number, frame: received.append((number, frame)))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for late, frame in received:
            put_off = handlers[signal.Signals(late)]
            if callable(put_off):
                put_off(late, frame)
            elif put_off == signal.SIG_DFL:
                signal.raise_signal(signal.Signals(late))


class Process:
    """One process of ours, started by this process or found again from another shell."""

    def __init__(
        self, name: str, identity: ProcessIdentity, log_path: Path, popen: subprocess.Popen[bytes] | None = None
    ) -> None:
        self.name = name
        self.identity = identity
        self.log_path = log_path
        self._popen = popen

    @classmethod
    def spawn(
        cls,
        name: str,
        argv: Sequence[str],
        *,
        log_path: Path,
        directory: Path | None = None,
        environment: Mapping[str, str] | None = None,
        die_with_parent: bool = True,
    ) -> Process:
        """Start `argv` in a process group of its own, its output appended to `log_path`.

        With `die_with_parent` the kernel kills it when this process dies; otherwise it is a daemon in a session of its
        own. `environment` is added to ours. Raises FileNotFoundError where the program does not exist.
        """
        program = Path(argv[0])
        if not program.is_file():
            raise FileNotFoundError(f"{name}: there is no program {program}")
        command = list(argv)
        if die_with_parent:
            command = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]

        def start() -> subprocess.Popen[bytes]:
            with log_path.open("ab") as log:
                return subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=directory,
                    env={**os.environ, **(environment or {})},
                    process_group=0 if die_with_parent else None,
                    start_new_session=not die_with_parent,
                )

        popen = _the_spawner().run(start) if die_with_parent else start()
        fields = _stat_fields(popen.pid)
        # Until we have waited for it our child keeps its id, as a zombie if need be: the entry is always there.
        started_ticks = int(fields[19]) if fields is not None else 0
        return cls(name, ProcessIdentity(popen.pid, started_ticks), log_path, popen)

    @property
    def pid(self) -> int:
        return self.identity.pid

    def is_running(self) -> bool:
        if self._popen is not None:
            return self._popen.poll() is None
        return self.identity.is_running()

    @property
    def exit_status(self) -> int | None:
        """The exit status (negative: the signal) of a child that has ended; None if running or not our child."""
        return self._popen.poll() if self._popen is not None else None

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal; False where the process has ended."""
        with self._pidfd() as descriptor:
            if descriptor is None:
                return False
            try:
                signal.pidfd_send_signal(descriptor, number)
            except ProcessLookupError:
                return False
        return True

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until the process has ended; False if it still runs after `timeout_seconds`."""
        with self._pidfd() as descriptor:
            if descriptor is not None:
                poll = select.poll()
                poll.register(descriptor, select.POLLIN)
                if not poll.poll(max(0.0, timeout_seconds) * 1000):
                    return False
        if self._popen is not None:
            self._popen.wait()
        return True

    def signal_stop(self) -> None:
        """Ask it to end (SIGTERM, and SIGCONT should it be paused), without waiting."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)

    def stop(self, timeout_seconds: float = 10.0) -> bool:
        """Ask it to end, and kill it after `timeout_seconds`; whether it went in time."""
        self.signal_stop()
        if self.wait(timeout_seconds):
            return True
        self.kill()
        return False

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self.wait(30.0)

    def pause(self) -> None:
        """SIGSTOP: the process keeps its sockets and answers nobody."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def log_tail(self, lines: int = 40) -> str:
        """The last lines of the process's output."""
        return log_tail(self.log_path, lines)

    @contextlib.contextmanager
    def _pidfd(self) -> Iterator[int | None]:
        descriptor: int | None
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            descriptor = None
        try:
            # Checked after opening: the descriptor refers to the process that has the id now.
            if descriptor is not None and not self._is_ours():
                os.close(descriptor)
                descriptor = None
            yield descriptor
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _is_ours(self) -> bool:
        fields = _stat_fields(self.pid)
        return fields is not None and int(fields[19]) == self.identity.started_ticks


def log_tail(path: Path, lines: int = 40) -> str:
    """The last lines of a log file; an empty text where there is none."""
    try:
        with path.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - lines * 400))
            return b"\n".join(log.read().splitlines()[-lines:]).decode(errors="replace")
    except FileNotFoundError:
        return ""


def wait_until(condition: Callable[[], bool], timeout_seconds: float, *, every_seconds: float = 0.02) -> bool:
    """Poll a condition until it holds; False if it does not within `timeout_seconds`.

    One that takes long to answer is asked less often than `every_seconds`, as `pause_seconds` says.
    """
    asked = time.monotonic()
    deadline = asked + timeout_seconds
    while not condition():
        answered = time.monotonic()
        if answered >= deadline:
            return False
        time.sleep(pause_seconds(answered - asked, every_seconds))
        asked = time.monotonic()
    return True


def pause_seconds(answer_seconds: float, every_seconds: float) -> float:
    """How long to wait before asking again what took so long to answer: asking takes a tenth of the time at the most.

    Who asks an API server without a pause keeps a processor from what is waited for.
    """
    return max(every_seconds, min(PAUSE_PER_ANSWER * answer_seconds, LONGEST_PAUSE_SECONDS))
