"""What the processes of tests/processes do; a module of its own, since they import it by name."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection

from flyball_processes import WorkerProcess


def echo(pipe: Connection) -> None:
    """Sends its pid, then every request back; `die` and `leave` end it, `interrupt` is a Ctrl-C in its terminal."""
    pipe.send(os.getpid())
    while True:
        request = pipe.recv()
        if request == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if request == "leave":
            os._exit(3)
        if request == "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
        pipe.send(request)


def parent() -> None:
    """A process with a worker, whose pid it prints; killed by whoever reads that."""
    worker = WorkerProcess(echo)
    print(worker.pipe.recv(), flush=True)
    signal.pause()


if __name__ == "__main__":
    parent()
