"""Processes that each take one task at a time, of which any may die without harm to the others' tasks.

The end of a process shows which task was lost, and another process takes its place. Interrupts reach the parent alone,
which stops the processes; a process whose parent is gone ends at its next report.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

from flyball_processes import WorkerProcess

Task = TypeVar("Task")
Answer = TypeVar("Answer")

Report = Callable[[Any], None]
Work = Callable[[Any, Report], Any]


@dataclass(frozen=True, slots=True)
class Started:
    """`task` is about to be given to process `pid`."""

    task: int
    pid: int


@dataclass(frozen=True, slots=True)
class Reported:
    task: int
    what: Any


@dataclass(frozen=True, slots=True)
class Finished:
    task: int
    answer: Any


@dataclass(frozen=True, slots=True)
class Failed:
    """`error` in one line; `details`: the traceback, if the process lived to tell it."""

    task: int
    error: str
    details: str = ""


Event = Started | Reported | Finished | Failed


class _Worker:
    """One process, and the task that it has."""

    def __init__(self, work: Work) -> None:
        self.process = WorkerProcess(partial(_serve, work))
        self.pipe = self.process.pipe
        self.task: int | None = None
        self.group: Hashable = None


class WorkerProcesses(Generic[Task]):
    """Runs `work(task, report)` for every task, in up to `count` processes.

    `work` and tasks must be picklable; what `work` raises fails that task only. Tasks of the same `group` are given to the
    same process where possible, so that it can reuse what it has built for them; groups are begun in the order of the
    tasks.
    """

    def __init__(self, work: Work, count: int) -> None:
        if count < 1:
            raise ValueError(f"{count} processes cannot do anything; 1 is the least")
        self._work = work
        self._count = count

    def run(
        self,
        tasks: Sequence[Task],
        listen: Callable[[Event], None],
        group: Callable[[Task], Hashable] = lambda task: None,
    ) -> None:
        """Until each task has finished or failed; every event is reported in this thread.

        Whatever interrupts it (KeyboardInterrupt, an error of `listen`) stops the processes first.
        """
        waiting: dict[Hashable, list[int]] = {}
        for index, task in enumerate(tasks):
            waiting.setdefault(group(task), []).append(index)
        workers: list[_Worker] = []
        try:
            for _ in range(min(self._count, len(tasks))):
                workers.append(_Worker(self._work))
                self._give(workers[-1], workers, tasks, waiting, listen)
            while any(worker.task is not None for worker in workers):
                for ready in wait([worker.pipe for worker in workers if worker.task is not None]):
                    worker = next(one for one in workers if one.pipe is ready)
                    if self._receive(worker, listen):
                        workers.remove(worker)
                        worker.process.close()
                        if not waiting:
                            continue
                        worker = _Worker(self._work)
                        workers.append(worker)
                    if worker.task is None:
                        self._give(worker, workers, tasks, waiting, listen)
        finally:
            for worker in workers:
                worker.process.close()

    def _give(
        self,
        worker: _Worker,
        workers: Sequence[_Worker],
        tasks: Sequence[Task],
        waiting: dict[Hashable, list[int]],
        listen: Callable[[Event], None],
    ) -> None:
        if not waiting:
            return
        if worker.group not in waiting:
            taken = {other.group for other in workers if other.task is not None}
            fullest = max(waiting, key=lambda name: len(waiting[name]))
            worker.group = next((name for name in waiting if name not in taken), fullest)
        index = waiting[worker.group].pop(0)
        if not waiting[worker.group]:
            del waiting[worker.group]
        worker.task = index
        listen(Started(index, worker.process.pid))
        try:
            worker.pipe.send((index, tasks[index]))
        except OSError:
            return  # it has died: the end of its pipe will tell

    def _receive(self, worker: _Worker, listen: Callable[[Event], None]) -> bool:
        """One message of a worker, or its end; True: it is dead."""
        task = worker.task
        if task is None:
            raise RuntimeError("a process without a task has spoken")
        try:
            event: Event = worker.pipe.recv()
        except (EOFError, OSError):
            listen(Failed(task, f"its process ended with {worker.process.how_it_ended()}"))
            return True
        if isinstance(event, Finished | Failed):
            worker.task = None
        listen(event)
        return False


def _serve(work: Work, pipe: Connection) -> None:
    while True:
        index, task = pipe.recv()

        def report(what: Any, index: int = index) -> None:
            pipe.send(Reported(index, what))

        try:
            event: Event = Finished(index, work(task, report))
        except BrokenPipeError:
            raise  # the parent has gone
        except Exception as error:
            event = Failed(index, f"{type(error).__name__}: {error}", traceback.format_exc())
        pipe.send(event)
