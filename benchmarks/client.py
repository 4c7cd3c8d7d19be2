"""What the client costs: a training step, from the end of one computation to the begin of the next, and its import.

    python benchmarks/client.py [--steps 200000]

CPU microseconds a step of the whole process, its thread included, beside an empty loop in the same run: `job.step()`
alone, with reports to an agent's socket ten times as often as usual, and with the loader that computes 32 samples' places
in a shuffled epoch of ten million. Then the CPU milliseconds of `import flyball` in a new process. Exits with 1 where a
step with reporting takes 50 us or more, or the import 50 ms.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from flyball.environment import Environment
from flyball.job import Job
from flyball.node import reporting

TARGET_MICROSECONDS = 50.0
TARGET_IMPORT_MILLISECONDS = 50.0
IMPORT = "import time; begin = time.process_time(); import flyball; print((time.process_time() - begin) * 1e3)"
SAMPLES = 32
ANSWER = b'HTTP/1.1 200 OK\r\nContent-Length: 57\r\n\r\n{"clockMegahertz": 1410, "powerLimitMilliwatts": 400000}\r\n'


def serve(path: Path) -> None:
    """An agent that takes every report, in a thread that lives as long as the process."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def answer() -> None:
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(ANSWER)

    threading.Thread(target=answer, daemon=True).start()


def microseconds(steps: int, run: Callable[[int], None]) -> float:
    """CPU microseconds of this process for each of `steps`, the least of three runs."""
    taken = []
    for _ in range(3):
        begin = time.process_time()
        run(steps)
        taken.append((time.process_time() - begin) / steps * 1e6)
    return min(taken)


def empty(steps: int) -> None:
    for _ in range(steps):
        pass


def stepping(job: Job) -> Callable[[int], None]:
    def run(steps: int) -> None:
        for _ in range(steps):
            with job.step():
                pass

    return run


def loading(job: Job) -> Callable[[int], None]:
    def run(steps: int) -> None:
        done = 0
        for _ in job.loader(range(10**7), SAMPLES):
            with job.step():
                done += 1
            if done == steps:
                return

    return run


def import_milliseconds() -> float:
    """CPU milliseconds of the import where Python has compiled it before, the least of five new processes."""
    command = [sys.executable, "-c", IMPORT]
    return min(float(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(5))


def main() -> int:
    parser = argparse.ArgumentParser(description="What the client costs a training step.")
    parser.add_argument("--steps", type=int, default=200_000)
    steps = parser.parse_args().steps
    folder = Path(tempfile.mkdtemp(prefix="fb"))
    serve(folder / "flyball.sock")
    reporting.REPORT_SECONDS = 0.5
    reported = Job(Environment(socket=str(folder / "flyball.sock"), incarnation=1))
    reported.start()
    nothing = microseconds(steps, empty)
    alone = microseconds(steps, stepping(Job(Environment())))
    reporting_too = microseconds(steps, stepping(reported))
    loader = microseconds(steps // 20, loading(Job(Environment())))
    megahertz = reported.clock_megahertz
    reported.finish()
    print(f"an empty loop                      {nothing:8.3f} us")
    print(f"job.step()                         {alone:8.3f} us")
    print(f"job.step(), reporting              {reporting_too:8.3f} us (wanted: below {TARGET_MICROSECONDS:g})")
    print(f"and {SAMPLES} samples of a shuffled epoch  {loader:8.3f} us, {loader / SAMPLES:.2f} us a sample")
    imported = import_milliseconds()
    print(f"import flyball                     {imported:8.3f} ms (wanted: below {TARGET_IMPORT_MILLISECONDS:g})")
    if megahertz is None:
        print("no report was answered: nothing was measured")
    kept = reporting_too < TARGET_MICROSECONDS and imported < TARGET_IMPORT_MILLISECONDS
    return 0 if megahertz is not None and kept else 1


if __name__ == "__main__":
    sys.exit(main())
