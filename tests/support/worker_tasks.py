"""What the processes of test_worker_processes.py do; a module of its own, since they import it by name."""

from __future__ import annotations

import os
import signal
from typing import Any

from flyball_simulator.experiments.worker_processes import Report


def work(task: str, report: Report) -> Any:
    if task == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if task == "leave":
        os._exit(3)
    if task == "raise":
        raise ValueError("no good")
    report(f"{task} begun")
    return task.upper(), os.getpid()
