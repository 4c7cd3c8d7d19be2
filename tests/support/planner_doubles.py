"""What a planner's process could be like; functions of a module that a fresh interpreter can import."""

from __future__ import annotations

import os
import threading
from multiprocessing.connection import Connection
from typing import Any

from flyball_planner.snapshot import Plan


def answers_by_policy(connection: Connection) -> None:
    """Does what the policy's name says."""
    while True:
        _, policy = connection.recv()
        answer: Any = Plan(())
        if policy == "hang":
            threading.Event().wait()
        elif policy == "raise":
            answer = "ValueError: the snapshot makes no sense"
        elif policy == "die":
            os._exit(3)
        elif policy == "pid":
            answer = Plan((), (), (str(os.getpid()),))
        elif policy == "unsendable":
            answer = lambda: None  # noqa: E731 - what cannot be pickled
        connection.send(answer)


def never_starts(connection: Connection) -> None:
    """Ends before it has read a request."""
