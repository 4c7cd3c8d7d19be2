"""Processes of which any may die: what was lost is told, and the rest is done."""

from __future__ import annotations

import os
from typing import Any

import pytest
from flyball_simulator.experiments.worker_processes import Event, Failed, Finished, Reported, Started, WorkerProcesses

from tests.support.worker_tasks import work


def run(tasks: list[str], count: int, **group: Any) -> list[Event]:
    heard: list[Event] = []
    WorkerProcesses[str](work, count).run(tasks, heard.append, **group)
    return heard


def test_what_dies_or_raises_fails_alone() -> None:
    heard = run(["one", "die", "raise", "leave", "two"], 2)
    failed = {event.task: event for event in heard if isinstance(event, Failed)}
    assert failed[1].error == "its process ended with signal SIGKILL"
    assert failed[2].error == "ValueError: no good"
    assert "no good" in failed[2].details
    assert failed[3].error == "its process ended with status 3"
    answers = {event.task: event.answer[0] for event in heard if isinstance(event, Finished)}
    assert answers == {0: "ONE", 4: "TWO"}
    assert [event.what for event in heard if isinstance(event, Reported) and event.task == 0] == ["one begun"]
    assert sorted(event.task for event in heard if isinstance(event, Started)) == [0, 1, 2, 3, 4]


def test_a_group_is_ended_before_the_next_is_begun() -> None:
    heard = run(["a1", "b1", "a2", "b2"], 1, group=lambda task: task[0])
    assert [event.task for event in heard if isinstance(event, Started)] == [0, 2, 1, 3]
    assert len({event.answer[1] for event in heard if isinstance(event, Finished)}) == 1


def test_an_interruption_leaves_no_process_behind() -> None:
    started: list[int] = []

    def listen(event: Event) -> None:
        if isinstance(event, Started):
            started.append(event.pid)
        if isinstance(event, Finished):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        WorkerProcesses[str](work, 2).run(["one", "two", "three"], listen)
    assert started
    for pid in set(started):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_at_least_one_process_is_needed() -> None:
    with pytest.raises(ValueError, match="1 is the least"):
        WorkerProcesses[str](work, 0)
