"""What a planner's process could be like; functions of a module that a fresh interpreter can import."""

from __future__ import annotations

import os
import threading
from multiprocessing.connection import Connection
from typing import Any

from flyball_operator.planning.worker import serve_plans
from flyball_planner.planner import plan
from flyball_planner.snapshot import ClusterSnapshot, Plan


def answers_by_policy(connection: Connection) -> None:
    """Does what the policy's name says."""
    while True:
        _, policy = connection.recv()
        answer: Any = Plan(())
        if policy == "hang":
            threading.Event().wait()
        elif policy == "fill memory":
            filled = b"x" * 2**28
            threading.Event().wait()
            del filled
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


def fails_with_odd_jobs(connection: Connection) -> None:
    """Plans as the planner does, and fails with each job that has `odd` in its name."""

    def make(snapshot: ClusterSnapshot, policy: str) -> Plan:
        for job in snapshot.jobs:
            if "odd" in job.name:
                raise ZeroDivisionError("of a batch without a size")
        return plan(snapshot, policy)

    serve_plans(connection, 60.0, make)
