"""Places in the queue by the plan in force, and how often each job is told of its own."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from flyball_api.energy_aware_job import EnergyAwareJob, EnergyAwareJobStatus, read_energy_aware_job
from flyball_api.workloads import DEFAULT_GPU_RESOURCES, IncarnationView
from flyball_operator.cluster.outcome import Outcome, WriteResult
from flyball_operator.cluster.state import ClusterState
from flyball_operator.jobs import controller
from flyball_operator.jobs.controller import JobController
from flyball_operator.jobs.runs.lifecycle import JobPhase, JobStep, next_step
from flyball_operator.jobs.runs.progress import JobProgress
from flyball_operator.jobs.runs.queue import NO_QUEUE, JobQueue, PlanPlace
from flyball_operator.jobs.status import JobFacts
from flyball_operator.jobs.status.updates import (
    POWER_SETTLES_SECONDS,
    SECONDS_PER_PLACE,
    SIGN_OF_LIFE_SECONDS,
    StatusHistory,
    StatusUpdates,
)
from flyball_operator.jobs.status_lanes import FEWEST_FIGURES_AT_ONCE, FEWEST_WAITING_AT_ONCE, STATUSES_AT_ONCE
from flyball_operator.jobs.steps.statuses import PLANNING_SECONDS, JobStatuses
from flyball_operator.jobs.steps.step import JobsCycle, LiveJob
from flyball_planner.models.gpu import gpu_model_for
from flyball_planner.models.job import JobModel
from flyball_planner.models.priors import model_class_prior
from flyball_planner.snapshot import Admission, Allocation, ExpectedStart, JobDecision, Queue
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.support.examples import examples
from tests.support.operator_objects import A100, NOW, as_stored, decision, incarnation_view, job_view, raw_job

INTERVAL = 5.0
WAITING = JobDecision("uid-train", None, Admission.WAITING_FOR_GPUS, "all are taken")


class Priors:
    def model_for(self, *_: object) -> JobModel:
        gpu = gpu_model_for(A100)
        assert gpu is not None
        return model_class_prior("resnet50", gpu)

    def pace_band(self, *_: object) -> tuple[float, float] | None:
        return None


def test_places_are_those_of_the_plan() -> None:
    queue = Queue(("a", "b", "c"), (ExpectedStart("b", 90.0, "when team/x has ended"),), "nobody knows")
    places = JobQueue.of(queue, NOW)
    assert places.place_of("a") == PlanPlace(1, 3, None, "nobody knows", NOW)
    assert places.place_of("b") == PlanPlace(2, 3, NOW + timedelta(seconds=90), "when team/x has ended", NOW)
    assert places.place_of("runs") is None
    assert NO_QUEUE.place_of("a") is None


class Waiting:
    """One job that waits, looked at every second; `writes` are the seconds at which its status was written."""

    def __init__(self, position: int) -> None:
        self.position = position
        self.updates, self.history = StatusUpdates(INTERVAL, Priors()), StatusHistory()
        self.status = EnergyAwareJobStatus()
        self.writes: list[int] = []

    def job(self) -> EnergyAwareJob:
        return replace(job_view(), status=self.status)

    def look(self, second: int, facts: JobFacts) -> None:
        job, monotonic = self.job(), 1000.0 + second
        position = None if facts.queue is None else facts.queue.position
        due = self.updates.due(job, position, facts.now, self.history, monotonic)
        if not due and not self.updates.urgent(job, facts, self.history):
            return
        status = self.updates.make(job, facts, self.history, {}, monotonic)
        if status is not None:
            self.status = read_energy_aware_job(raw_job(status=as_stored(status))).status
            self.writes.append(second)

    def wait(self, seconds: int, *, moves: bool) -> None:
        for second in range(seconds):
            now = NOW + timedelta(seconds=second)
            position = max(1, self.position - second // 2) if moves else self.position
            queue = PlanPlace(position, self.position, None, "nobody knows", now)
            base = JobFacts(JobProgress(), JobStep(JobPhase.WAITING), WAITING, 1, False, 0, now, queue=queue)
            self.look(second, base)


@given(st.integers(1, 3000))
@settings(max_examples=examples(30))
def test_who_is_far_behind_is_told_more_seldom(position: int) -> None:
    waiting, seconds = Waiting(position), 600
    waiting.wait(seconds, moves=True)
    # The first word, the Event of a wait of a minute, and then one per interval or per place before it.
    nearest = max(1, position - seconds // 2)
    assert len(waiting.writes) <= 2 + seconds / max(INTERVAL, nearest)
    assert waiting.writes[0] == 0
    if position < 50:
        assert max(later - earlier for earlier, later in zip(waiting.writes, waiting.writes[1:], strict=False)) <= 61


def test_ten_thousand_are_told_at_most_some_ten_times_a_second() -> None:
    """By the rule itself: the writes that each place is due in a second, added up."""
    due = sum(1.0 / max(INTERVAL, place * 1.0) for place in range(1, 10_001))
    assert due < 10.0


@pytest.mark.parametrize(("position", "second"), [(1, 60), (100, 70), (2500, 310)])
def test_a_long_wait_is_written_however_far_behind(position: int, second: int) -> None:
    """A tenth of a second later for each before it: those who came together are not all told at once."""
    waiting = Waiting(position)
    waiting.wait(second + 20, moves=False)
    assert waiting.writes[0] == 0
    assert second in waiting.writes
    if position * SECONDS_PER_PLACE > second + 20:
        assert waiting.writes == [0, second]


def test_figures_that_stand_are_written_again_after_a_minute_alone() -> None:
    waiting = Waiting(1)
    waiting.wait(200, moves=False)
    assert waiting.writes == [0, 60, 120, 180]
    assert waiting.status.time == NOW + timedelta(seconds=180)
    assert SIGN_OF_LIFE_SECONDS == 60.0


def test_a_job_that_does_nothing_is_not_written_again() -> None:
    suspended = Waiting(1)
    for second in range(300):
        now = NOW + timedelta(seconds=second)
        suspended.look(second, JobFacts(JobProgress(), JobStep(JobPhase.WAITING), None, 1, False, 0, now))
    assert suspended.writes == [0]


def test_a_running_job_gives_a_sign_of_life() -> None:
    running = Waiting(1)
    step = JobStep(JobPhase.RUNNING, incarnation_view("uid-train", 1, ("a", 4)), bound=True)
    for second in range(130):
        now = NOW + timedelta(seconds=second)
        running.look(second, JobFacts(JobProgress(), step, decision("uid-train", ("a", 4)), 1, True, 0, now))
    assert running.writes == [0, 60, 120]


class Many:
    """Jobs that wait, under one controller; `cycle` gives the names of those whose statuses are written."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.jobs = {name: job_view(name, uid=name) for name in names}
        self.decisions = {name: replace(WAITING, uid=name) for name in names}
        self.controller = JobController(INTERVAL, Priors(), DEFAULT_GPU_RESOURCES)
        self.incarnations: dict[str, list[IncarnationView]] = {}
        self.next_seconds = float("inf")

    def cycle(self, second: float, under_way: Collection[str] = ()) -> list[str]:
        now = NOW + timedelta(seconds=second)
        world = ClusterState(
            jobs=self.jobs,
            caps=[],
            gpu_nodes={},
            nodes=[],
            pods=[],
            incarnations=self.incarnations,
            pods_of={},
            reports_of={},
            unread=(),
            age_seconds=0.0,
        )
        queue = JobQueue.of(Queue(tuple(self.names), (), "nobody knows"), now)
        step = self.controller.step(
            JobsCycle(world, {}, self.decisions, 1, now, 1000.0 + second, queue, status_writes=under_way)
        )
        self.next_seconds = step.next_seconds
        for live, status in step.statuses:
            read = read_energy_aware_job(raw_job(status=as_stored(status)))
            uid = live.view.uid
            self.jobs[uid] = replace(self.jobs[uid], status=read.status, conditions=read.conditions)
        return [live.view.uid for live, _ in step.statuses]


def test_what_happens_goes_before_figures_and_these_go_in_turn() -> None:
    names = [f"job-{index:03d}" for index in range(100)]
    many = Many(names)
    assert sorted(many.cycle(0)) == names, "each is told that it waits"
    assert many.cycle(1) == []
    first = many.cycle(200)
    assert len(first) == FEWEST_FIGURES_AT_ONCE
    assert many.cycle(200, under_way=first) == [], "while so many are under way"
    many.decisions[names[-1]] = replace(many.decisions[names[-1]], admission=Admission.WAITING_FOR_POWER)
    assert many.cycle(200, under_way=first) == [names[-1]], "but for what has happened"
    second = many.cycle(201)
    assert len(second) == 2 * FEWEST_FIGURES_AT_ONCE, "where all of the last ones have been written"
    assert not set(first) & set(second)
    third = many.cycle(202)
    assert {*first, *second, *third} == set(names[:-1])


def test_a_new_clock_is_told_once_it_has_settled_and_behind_what_happens() -> None:
    names = [f"job-{index:03d}" for index in range(100)]
    many = Many(names)
    allocation = Allocation((("node", 1),), 1200, 300.0)
    many.cycle(-PLANNING_SECONDS)
    for name in names:
        many.decisions[name] = JobDecision(name, allocation, Admission.ADMITTED, "why")
    assert sorted(many.cycle(0)) == names, "that they are to run"
    for second, clock in ((2, 1100), (2.5, 1000)):
        for name in names:
            changed = replace(many.decisions[name], allocation=replace(allocation, clock_megahertz=clock))
            many.decisions[name] = changed
        assert many.cycle(second) == [], "it may move again at once"
        assert 0 < many.next_seconds <= POWER_SETTLES_SECONDS
    many.decisions[names[-1]] = replace(WAITING, uid=names[-1], admission=Admission.WAITING_FOR_POWER)
    assert many.cycle(2.9) == [names[-1]]
    first = many.cycle(3)
    assert len(first) == FEWEST_FIGURES_AT_ONCE
    told = {many.jobs[name].status.allocation for name in first}
    assert {each.clock_megahertz for each in told if each is not None} == {1000}
    many.decisions[names[-1]] = replace(WAITING, uid=names[-1])
    assert many.cycle(3.1, under_way=first) == [names[-1]]
    rest = many.cycle(3.2)
    assert {*first, *rest, *many.cycle(3.3)} == set(names[:-1])
    assert many.cycle(3.4) == []


@pytest.mark.slow
def test_ten_thousand_statuses_are_not_made_in_one_cycle() -> None:
    """A new leader that found them all at once would hold up a cut for seconds; each is made in its turn."""
    names = [f"job-{index:05d}" for index in range(4 * FEWEST_WAITING_AT_ONCE)]
    many = Many(names)
    first = many.cycle(0)
    assert first == names[:FEWEST_WAITING_AT_ONCE], "who came first is told first"
    second = many.cycle(1)
    assert len(second) == 2 * FEWEST_WAITING_AT_ONCE, "all of the first ones have been written"
    third = many.cycle(2)
    assert sorted(first + second + third) == names
    assert many.cycle(3) == []


def test_who_is_given_gpus_is_told_before_those_that_have_never_been_told_anything() -> None:
    names = [f"job-{index:05d}" for index in range(8 * FEWEST_WAITING_AT_ONCE)]
    many = Many(names)
    chosen = many.cycle(0)[:3]
    for name in chosen:
        many.decisions[name] = decision(name, ("a", 4))
    assert set(chosen) <= set(many.cycle(PLANNING_SECONDS))


def test_however_many_things_happen_no_more_than_so_many_are_told_at_once() -> None:
    names = [f"job-{index:05d}" for index in range(2 * STATUSES_AT_ONCE)]
    many = Many(names)
    for second in range(4):
        many.cycle(second)
    for name in names:
        many.decisions[name] = decision(name, ("a", 4))
    assert len(many.cycle(5)) == STATUSES_AT_ONCE
    assert len(many.cycle(6, under_way=names[:10])) == STATUSES_AT_ONCE - 10


def test_the_step_of_a_job_that_only_waits_is_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever could change what it does, changes it: a plan, its spec, a word of the API server, an incarnation."""
    names = [f"job-{index:03d}" for index in range(50)]
    many = Many(names)
    many.cycle(0)
    many.cycle(1)
    stepped: list[str] = []

    def counted(**arguments: Any) -> JobStep:
        stepped.append(arguments["job_uid"])
        return next_step(**arguments)

    monkeypatch.setattr(controller, "next_step", counted)
    many.cycle(2)
    assert stepped == []
    many.decisions[names[7]] = decision(names[7], ("a", 4))
    many.cycle(3)
    assert stepped == [names[7]]
    many.cycle(4)
    assert stepped == [names[7], names[7]], "its status has changed; and it does not only wait any more"
    many.jobs[names[9]] = replace(many.jobs[names[9]], spec=structs.replace(many.jobs[names[9]].spec, suspend=True))
    many.controller.checked(many.jobs[names[11]], WriteResult(Outcome.REFUSED, invalid="unknown field"))
    many.cycle(5)
    assert stepped[2:] == [names[7], names[9], names[11]]
    assert [many.jobs[name].status.state for name in (names[9], names[11])] == ["Suspended", "InvalidSpec"]
    many.incarnations[names[13]] = [incarnation_view(names[13], 1, ("a", 4))]
    stepped.clear()
    many.cycle(6)
    assert names[13] in stepped


def test_for_jobs_that_only_wait_nothing_is_worked_out(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"job-{index:03d}" for index in range(150)]
    many = Many(names)
    many.cycle(0)
    many.cycle(1)
    looked_at: list[str] = []
    facts = JobStatuses._make_facts

    def counted(self: JobStatuses, job: LiveJob, *arguments: Any) -> JobFacts | None:
        looked_at.append(job.view.uid)
        return facts(self, job, *arguments)

    monkeypatch.setattr(JobStatuses, "_make_facts", counted)
    assert many.cycle(2) == []
    assert looked_at == []
    many.decisions[names[7]] = replace(many.decisions[names[7]], admission=Admission.WAITING_FOR_POWER)
    assert many.cycle(3) == [names[7]]
    many.jobs[names[9]] = replace(many.jobs[names[9]], spec=structs.replace(many.jobs[names[9]].spec, suspend=True))
    assert many.cycle(3) == [names[9]]
    assert many.jobs[names[9]].status.state == "Suspended"
