"""The planner's process: whatever becomes of one plan, the next one works."""

from __future__ import annotations

import asyncio
import math
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from flyball_operator.planning.memory import container_bytes, process_bytes
from flyball_operator.planning.worker import PlanFailed, PlanWorker, serve_plans
from flyball_planner.models.gpu import gpu_model_for
from flyball_planner.models.priors import model_class_prior
from flyball_planner.planner import plan
from flyball_planner.snapshot import Admission, ClusterSnapshot, JobState, NodeState, Plan, PlanningFailure

from tests.support.planner_doubles import answers_by_policy, fails_with_odd_jobs, never_starts

EMPTY: Any = "no snapshot: the double does not look at it"


@pytest_asyncio.fixture
async def worker() -> AsyncIterator[PlanWorker]:
    """A worker that does what the policy says."""
    made = PlanWorker(30.0, answers_by_policy)
    yield made
    made.stop()


async def pid_of(worker: PlanWorker) -> int:
    return int((await worker.plan(EMPTY, "pid")).migrations[0])


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_the_real_planner_answers() -> None:
    worker = PlanWorker(60.0)
    try:
        for policy in ("powerflow-strict", "srtf+zeus"):
            plan = await worker.plan(ClusterSnapshot((), ()), policy)
            assert plan.decisions == ()
        with pytest.raises(PlanFailed, match="the planner raised ValueError"):
            await worker.plan(ClusterSnapshot((), ()), "unheard-of")
    finally:
        worker.stop()


async def test_a_job_that_the_planner_fails_with_is_named_and_keeps_nobody_from_a_plan() -> None:
    model = gpu_model_for("NVIDIA-A100-SXM4-40GB")
    assert model is not None
    jobs = (
        JobState(name, f"team/{name}", 1, 1, 256, model_class_prior("vgg16", model), 0.0, remaining_iterations=1e6)
        for name in ("a", "odd", "b")
    )
    worker = PlanWorker(60.0, fails_with_odd_jobs)
    try:
        made = await worker.plan(ClusterSnapshot((NodeState("n0", model, 4),), tuple(jobs)), "powerflow-strict")
    finally:
        worker.stop()
    assert made.failures == (PlanningFailure("odd", "ZeroDivisionError: of a batch without a size"),)
    assert [decision.admission for decision in made.decisions] == [
        Admission.ADMITTED,
        Admission.PLANNING_FAILED,
        Admission.ADMITTED,
    ]


def test_a_job_that_the_planner_fails_with_is_searched_for_once() -> None:
    """Each plan that follows takes one plan more, not as many as the search did; once it fails no more, none."""
    model = gpu_model_for("NVIDIA-A100-SXM4-40GB")
    assert model is not None
    jobs = tuple(
        JobState(str(index), f"team/{index}", 1, 1, 256, model_class_prior("vgg16", model), 0.0) for index in range(20)
    )
    snapshot = ClusterSnapshot((NodeState("n0", model, 4),), jobs)
    asked, fails = 0, True
    answers: list[tuple[Plan, int]] = []

    def make(given: ClusterSnapshot, policy: str) -> Plan:
        nonlocal asked
        asked += 1
        if fails and any(job.uid == "13" for job in given.jobs):
            raise ZeroDivisionError("of a batch without a size")
        return plan(given, policy)

    class Pipe:
        def recv(self) -> tuple[ClusterSnapshot, str]:
            nonlocal asked, fails
            if len(answers) == 4:
                raise EOFError
            asked, fails = 0, len(answers) < 3
            return snapshot, "powerflow-strict"

        def send(self, answer: Plan) -> None:
            answers.append((answer, asked))

    with pytest.raises(EOFError):
        serve_plans(Pipe(), 60.0, make)  # type: ignore[arg-type]
    assert [[failure.uid for failure in made.failures] for made, _ in answers] == [["13"], ["13"], ["13"], []]
    assert answers[0][1] > 5
    assert [times for _, times in answers[1:]] == [2, 2, 1]


async def test_one_process_serves_many_plans(worker: PlanWorker) -> None:
    first = await pid_of(worker)
    assert first != os.getpid()
    assert await pid_of(worker) == first


async def test_what_the_planner_raises_is_told_and_costs_no_process(worker: PlanWorker) -> None:
    first = await pid_of(worker)
    with pytest.raises(PlanFailed, match="the planner raised ValueError: the snapshot makes no sense"):
        await worker.plan(EMPTY, "raise")
    assert await pid_of(worker) == first


async def ends_its_process(worker: PlanWorker, policy: str, words: str) -> None:
    """A plan by this policy fails with these words, its process is gone, and the next plan has another one."""
    try:
        first = await pid_of(worker)
        with pytest.raises(PlanFailed, match=words):
            await worker.plan(EMPTY, policy)
        assert not is_running(first)
        assert is_running(await pid_of(worker))
    finally:
        worker.stop()


@pytest.mark.slow
async def test_a_plan_that_passes_its_deadline_ends_its_process() -> None:
    await ends_its_process(PlanWorker(2.0, answers_by_policy), "hang", "passed its deadline of 2 s")


async def test_a_plan_that_takes_too_much_memory_ends_its_process() -> None:
    """Not the container's limit, which would end the loop with it."""
    worker = PlanWorker(30.0, answers_by_policy, most_bytes=2**28)
    await ends_its_process(worker, "fill memory", "took more than its 256 MiB of memory")


def test_what_a_process_has_and_its_container_may_take_is_known(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    assert container_bytes(limit) == math.inf
    limit.write_text("max\n")
    assert container_bytes(limit) == math.inf
    limit.write_text("1073741824\n")
    assert container_bytes(limit) == 2**30
    assert process_bytes(os.getpid()) > 2**20
    assert process_bytes(2**30) == 0, "no process has such a number"


@pytest.mark.parametrize("policy", ["die", "unsendable"])
async def test_a_process_that_dies_is_replaced(worker: PlanWorker, policy: str) -> None:
    with pytest.raises(PlanFailed, match="the planner's process died"):
        await worker.plan(EMPTY, policy)
    assert is_running(await pid_of(worker))


async def test_a_snapshot_that_cannot_be_sent_fails_its_plan_only(worker: PlanWorker) -> None:
    with pytest.raises(PlanFailed):
        await worker.plan(threading.Lock(), "pid")  # type: ignore[arg-type]
    assert is_running(await pid_of(worker))


async def test_a_process_that_never_serves_is_told() -> None:
    worker = PlanWorker(30.0, never_starts)
    try:
        for _ in range(2):
            with pytest.raises(PlanFailed, match="the planner's process died"):
                await worker.plan(EMPTY, "pid")
    finally:
        worker.stop()


async def under_way(worker: PlanWorker) -> asyncio.Future[Any]:
    """A plan that hangs, after it was begun."""
    plan = asyncio.ensure_future(worker.plan(EMPTY, "hang"))
    await asyncio.sleep(0)
    return plan


async def test_a_cancelled_plans_answer_is_not_the_next_ones(worker: PlanWorker) -> None:
    first = await pid_of(worker)
    hanging = await under_way(worker)
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    assert not is_running(first)
    assert await pid_of(worker) != first


async def test_stopping_ends_the_process_and_a_plan_under_way() -> None:
    worker = PlanWorker(30.0, answers_by_policy)
    worker.stop()  # nothing runs yet
    first = await pid_of(worker)
    hanging = await under_way(worker)
    worker.stop()
    assert not is_running(first)
    with pytest.raises(PlanFailed, match="died"):
        await hanging
