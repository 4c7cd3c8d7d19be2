"""A pipeline's plan in the client: the clock of each computation, stragglers among replicas, and what is not there."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import socket
import tempfile
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flyball.environment import Environment, InvalidEnvironment, PipelineSection
from flyball.job import Job
from flyball.node.clocks import RENEW_SECONDS, RETRY_SECONDS, SOCKET_NAME, Clock, own_gpu
from flyball.pipelines import measured_stage
from flyball.pipelines import own as own_pipeline
from flyball.pipelines.own import read_plans
from flyball.pipelines.pipeline import LEAST_DEGREE, Pipeline
from flyball.pipelines.plan import MAX_COMPUTATIONS, InvalidPlan, StagePlans
from flyball.pipelines.point import LOOK_SECONDS, WantedPoint
from flyball.pipelines.slow_stage import SharedDegree
from flyball.shared_values import SharedValues
from flyball_frontiers.pipeline import (
    PerseusPlanner,
    PipelineProfile,
    Reconfiguration,
    Schedule,
    envpipe,
    pipeline_graph,
)
from flyball_frontiers.pipeline.document import envpipe_document, perseus_document
from flyball_frontiers.pipeline.evaluate import Execution, execute
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.waiting import wait_until

ROWS = [
    {"stage": stage, "instruction": instruction, "frequency": clock, "time": work / clock, "energy": work * clock / 9e3}
    for stage, work in ((0, 100.0), (1, 140.0))
    for instruction in ("forward", "backward")
    for clock in (1400, 1200, 1000, 800)
]
PROFILE = PipelineProfile.from_rows(ROWS)
MICROBATCHES, WAITING_WATTS = 6, 20.0
PROFILES = Path(__file__).parents[3] / "examples/profiles"


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """What `flyball frontier` writes of two unequal stages."""
    graph = pipeline_graph(PROFILE, Schedule.ONE_F_ONE_B, MICROBATCHES)
    written = perseus_document(graph, WAITING_WATTS, 30)
    return json.loads(json.dumps(written))  # type: ignore[no-any-return]


class Asked:
    """Remembers what was asked for."""

    def __init__(self) -> None:
        self.megahertz: list[int] = []

    def ask(self, megahertz: int) -> None:
        self.megahertz.append(megahertz)


class Now:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_the_client_looks_up_what_the_planner_does(document: dict[str, Any]) -> None:
    graph = pipeline_graph(PROFILE, Schedule.ONE_F_ONE_B, MICROBATCHES)
    frontier = PerseusPlanner(graph, WAITING_WATTS).frontier(30)
    for stage in (0, 1):
        plans = StagePlans(document, stage)
        for factor in (1.0, 1.01, 1.1, 1.17, 1.3, 2.0, 10.0):
            seconds = plans.fastest_seconds * factor
            plan, wanted = plans.at(seconds), frontier.at(seconds)
            assert (plan.seconds, plan.joules) == (wanted.realised_time_seconds, wanted.realised_energy_joules)
            for place in graph.programs[stage]:
                operation = graph.operations[place]
                said = plan.clock_megahertz(operation.instruction, operation.microbatch)
                assert said == wanted.plan.chosen[place].clock_megahertz
        assert plans.at(plans.fastest_seconds / 2).seconds == plans.fastest_seconds
        assert plans.at(1e9).seconds == frontier.points[-1].realised_time_seconds


def test_envpipe_s_plan_is_looked_up_as_well() -> None:
    written = envpipe_document(PROFILE, MICROBATCHES, WAITING_WATTS, Reconfiguration.BALANCED)
    result = envpipe(PROFILE, MICROBATCHES, WAITING_WATTS)
    plans = StagePlans(json.loads(json.dumps(written)), 0)
    plan = plans.at(plans.fastest_seconds * 1.2)
    chosen = result.frontier.fastest.plan.chosen
    said = [
        plan.clock_megahertz(result.graph.operations[place].instruction, result.graph.operations[place].microbatch)
        for place in result.graph.programs[0]
    ]
    assert said == [chosen[place].clock_megahertz for place in result.graph.programs[0]]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda d: d.pop("points"),
        lambda d: d.update(points=[]),
        lambda d: d["points"][0]["clocks"].pop("1"),
        lambda d: d["points"][0].update(realised_time=float("nan")),
        lambda d: d["points"][0].update(realised_time=0),
        lambda d: d["points"][0]["clocks"]["1"].update(forward=[[["fast"], 1]]),
        lambda d: d["points"][0]["clocks"]["1"].update(forward=[[[1400], 10**9]]),
        lambda d: d["points"][0]["clocks"]["1"].update(forward=[[[-5], 1]]),
        lambda d: d["points"][0]["clocks"]["1"].update(forward=5),
        lambda d: d["points"][0].update(clocks=[]),
        lambda d: d["points"][0]["clocks"]["1"].update(forward=[[[float("inf")], 1]]),
        lambda d: d["points"][0]["clocks"]["1"].update(forward=[[[1400], -1]]),
        lambda d: d["points"][0].update(realised_time=10**400),
        lambda d: d.update(gpus="many"),
        lambda d: d.update(gpus=0),
        lambda d: d.update(gpus=float("inf")),
        lambda d: d.update(waiting_power=float("nan")),
        lambda d: d.update(waiting_power=float("-inf")),
        lambda d: d.update(waiting_power=-1e308) or [point.update(realised_time=1e3) for point in d["points"]],
        lambda d: d.update(waiting_power=None),
        lambda d: d.update(least_times=[[1400]]),
        lambda d: d.update(least_times=[[1400, float("nan")]]),
        lambda d: d.update(least_times=[[0, 1.0]]),
        lambda d: d.update(least_times=5),
    ],
)
def test_what_is_no_plan_is_refused(document: dict[str, Any], spoil: Any) -> None:
    spoilt = json.loads(json.dumps(document))
    spoil(spoilt)
    with pytest.raises(InvalidPlan):
        StagePlans(spoilt, 1)


def test_plans_are_written_out_one_at_a_time() -> None:
    """A kilobyte of JSON can say gigabytes of clocks."""
    point = {"realised_energy": 1.0, "clocks": {"0": {"forward": [[[1400], MAX_COMPUTATIONS]]}}}
    points = [{**point, "realised_time": 1.0 + number, "realised_energy": 1e6 - number} for number in range(50)]
    tracemalloc.start()
    try:
        plans = StagePlans({"gpus": 1, "points": points}, 0)
        assert all(plans.at(1.0 + number).clock_megahertz("forward", 7) == 1400 for number in range(50))
        assert tracemalloc.get_traced_memory()[1] < 5 * 8 * MAX_COMPUTATIONS
    finally:
        tracemalloc.stop()
    both = {"forward": [[[1400], MAX_COMPUTATIONS]], "backward": [[[1400], 1]]}
    with pytest.raises(InvalidPlan, match="computations"):
        StagePlans({"gpus": 1, "points": [{**points[0], "clocks": {"0": both}}]}, 0)


@pytest.mark.parametrize(
    ("text", "world_size"),
    [(b"{", 2), (b"[]", 2), (b"\xff{}", 2), (b"[" * 100_000, 2), (b"", 2), (None, 2), (b"whole", 3)],
)
def test_a_plan_that_cannot_be_used_costs_one_warning(
    document: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture, text: bytes | None, world_size: int
) -> None:
    path = tmp_path / "plan.json"
    if text is not None:
        path.write_bytes(json.dumps(document).encode() if text == b"whole" else text)
    with caplog.at_level(logging.WARNING):
        assert read_plans(str(path), 0, world_size) is None
    assert len(caplog.records) == 1
    asked = Asked()
    pipeline = Pipeline(None, asked, stage=0)
    with pipeline.forward(0):
        pass
    with pipeline.synchronize():
        pass
    assert (asked.megahertz, pipeline.plan) == ([], None)


def test_each_computation_asks_for_its_clock(document: dict[str, Any]) -> None:
    plans, asked = StagePlans(document, 0), Asked()
    pipeline = Pipeline(plans, asked, stage=0)
    for microbatch in range(MICROBATCHES):
        with pipeline.forward(microbatch):
            pass
        with pipeline.backward(microbatch):
            pass
    assert pipeline.plan is not None
    wanted = [
        pipeline.plan.clock_megahertz(what, number)
        for number in range(MICROBATCHES)
        for what in ("forward", "backward")
    ]
    assert asked.megahertz == wanted
    assert len(set(wanted)) > 1, "the lighter stage has slack somewhere"
    with pipeline.computation("all-reduce", 0), pipeline.forward(MICROBATCHES):
        pass
    assert asked.megahertz == wanted, "of what the plan does not know nothing is said"


def iterate(pipelines: list[Pipeline], now: Now, seconds: list[float]) -> None:
    """One iteration of the first stages of some replicas, each as long by its fastest plan; slower plans take longer."""
    began = now.seconds
    for pipeline in pipelines:
        with pipeline.forward(0):
            pass
    ends = []
    for pipeline, alone in zip(pipelines, seconds, strict=True):
        assert pipeline.plan is not None
        ends.append((began + alone * pipeline.plan.seconds / pipeline._plans.fastest_seconds, pipeline))  # type: ignore[union-attr]
    for end, pipeline in sorted(ends, key=lambda item: item[0]):
        now.seconds = end
        pipeline.synchronize().__enter__()
    for pipeline in pipelines:
        pipeline.synchronize().__exit__(None, None, None)


@given(degrees=st.lists(st.floats(1.0, 1.5), min_size=1, max_size=6), noise=st.floats(0.98, 1.02))
@settings(max_examples=examples(60))
def test_replicas_run_as_slow_as_the_slowest_and_come_back(
    degrees: list[float], noise: float, document: dict[str, Any]
) -> None:
    assume(all(abs(degree - LEAST_DEGREE) > 1e-6 for degree in degrees))
    now = Now()
    plans = StagePlans(document, 0)
    alone = plans.fastest_seconds * noise
    with tempfile.TemporaryDirectory() as folder:
        values = SharedValues(folder)
        pipelines = [
            Pipeline(plans, None, stage=0, replica=replica, replicas=2, values=values, monotonic=now)
            for replica in (0, 1)
        ]
        iterate(pipelines, now, [alone, alone * 1.5])
        assert pipelines[0].straggler_degree == 1.0, "the first iteration says nothing"
        for degree in [*degrees, 1.0]:
            iterate(pipelines, now, [alone, alone * degree])
            found = degree if degree >= LEAST_DEGREE else 1.0
            assert pipelines[0].straggler_degree == pytest.approx(found, rel=1e-6)
            assert pipelines[1].straggler_degree == 1.0, "it is the straggler, or there is none"
            assert pipelines[0].plan is not None
            assert pipelines[0].plan.seconds <= plans.fastest_seconds * found * (1 + 2e-6)
    assert pipelines[0].plan.seconds == plans.fastest_seconds


@pytest.mark.parametrize(
    ("profile", "watts", "clock", "saved", "slower"),
    [("gpt3-a40-unbalanced", 70.38, 1290, 0.0441, 0.0106), ("gpt3-a100-unbalanced", 83.64, 1230, 0.0459, 0.0154)],
)
def test_a_plan_for_the_granted_clock_needs_less_than_the_fastest_held_to_it(
    profile: str, watts: float, clock: int, saved: float, slower: float
) -> None:
    """The figures of docs/training.md."""
    measured = PipelineProfile.from_csv((PROFILES / f"{profile}.csv").read_text(encoding="utf-8"))
    graph = pipeline_graph(measured, Schedule.ONE_F_ONE_B, 16)
    document = json.loads(json.dumps(perseus_document(graph, watts, 60)))
    stages = [StagePlans(document, stage) for stage in range(measured.stages)]

    def held(seconds: float) -> Execution:
        """An iteration by the plan for so many seconds, no clock being above the granted one."""
        chosen = []
        for operation in graph.operations:
            assert operation.stage is not None
            asked = stages[operation.stage].at(seconds).clock_megahertz(operation.instruction, operation.microbatch)
            limit = min(clock, asked or clock)
            within = [point for point in operation.points if (point.clock_megahertz or 0) <= limit]
            chosen.append(max(within, key=lambda point: point.clock_megahertz or 0))
        return execute(graph, chosen, watts)

    fastest = held(stages[0].fastest_seconds)
    wanted = held(stages[0].seconds_for("Energy", stages[0].fastest_seconds, clock))
    assert 1 - wanted.energy_joules / fastest.energy_joules == pytest.approx(saved, abs=2e-3)
    assert wanted.time_seconds / fastest.time_seconds - 1 == pytest.approx(slower, abs=2e-3)


class Wanted:
    """How long iterations are to take, as somebody may change it."""

    def __init__(self, seconds: float) -> None:
        self.value = seconds

    def __call__(self) -> float:
        return self.value


@given(data=st.data(), replicas=st.integers(1, 2), stages=st.integers(1, 3))
@settings(max_examples=examples(60))
def test_all_stages_change_to_another_point_in_the_same_iteration(
    data: st.DataObject, replicas: int, stages: int, document: dict[str, Any]
) -> None:
    """Whoever is ahead: within a replica one stage may be a whole iteration ahead of another, as its data come."""
    plans = StagePlans(document, 0)
    seconds = [plans.fastest_seconds, *(plans.fastest_seconds * factor for factor in (1.05, 1.1, 1.2))]
    wanted, now = Wanted(seconds[0]), Now()  # computations take no time: nobody is a straggler
    with tempfile.TemporaryDirectory() as folder:
        values = SharedValues(folder)
        ranks = [(replica, stage) for replica in range(replicas) for stage in range(stages)]
        pipelines = {
            (replica, stage): Pipeline(
                plans, None, stage=stage, replica=replica, replicas=replicas, values=values,
                wanted_seconds=wanted, monotonic=now,
            )
            for replica, stage in ranks
        }  # fmt: skip
        went_by: dict[int, set[float]] = {}
        for iteration in range(12):
            wanted.value = data.draw(st.sampled_from(seconds))
            for pipeline in pipelines.values():
                assert pipeline.plan is not None
                went_by.setdefault(iteration, set()).add(pipeline.plan.seconds)
            for rank in ranks:
                with pipelines[rank].forward(0):
                    pass
            # The first stages end last; who waits for nobody else's gradients goes on before.
            early = [] if replicas > 1 else data.draw(st.lists(st.sampled_from(ranks), unique=True))
            for rank in sorted((rank for rank in early if rank[1] > 0), reverse=True):
                with pipelines[rank].synchronize():
                    pass
            late = [rank for rank in sorted(ranks, key=lambda item: -item[1]) if rank not in early or rank[1] == 0]
            for rank in late:
                pipelines[rank].synchronize().__enter__()
            for rank in late:
                pipelines[rank].synchronize().__exit__(None, None, None)
        assert all(len(plans_) == 1 for plans_ in went_by.values()), went_by
        for _ in range(5):
            for rank in sorted(ranks, key=lambda item: -item[1]):
                with pipelines[rank].forward(0):
                    pass
                pipelines[rank].synchronize().__enter__()
            for rank in ranks:
                pipelines[rank].synchronize().__exit__(None, None, None)
        assert {pipeline.plan.seconds for pipeline in pipelines.values() if pipeline.plan is not None} == {
            plans.at(wanted.value).seconds
        }, "the last word counts in the end"


@pytest.mark.parametrize("value", ["", "nonsense", "nan nan", "5 inf", "5 -1", "000000000000003 0.0", "\x00" * 37])
def test_a_point_that_cannot_be_read_changes_nothing(value: str, document: dict[str, Any], tmp_path: Path) -> None:
    values, plans = SharedValues(str(tmp_path)), StagePlans(document, 1)
    pipeline = Pipeline(plans, None, stage=1, values=values, wanted_seconds=Wanted(1e9))
    values.put("point", value)
    for _ in range(8):
        with pipeline.forward(0):
            pass
        with pipeline.synchronize():
            pass
    assert pipeline.plan == plans.at(1e9)


def told(path: Path, **point: Any) -> None:
    """As a kubelet does: the whole file at once."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(point))
    new.rename(path)


def test_the_file_says_which_point_is_wanted_and_is_looked_at_now_and_then(
    document: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now, plans, path = Now(), StagePlans(document, 0), tmp_path / "point.json"
    section = PipelineSection("plan.json", objective="Energy", point_file=str(path))
    path.write_text("")  # a pod whose annotation is not there yet
    wanted = WantedPoint(plans, section, now)
    assert wanted.seconds() == plans.seconds_for("Energy") > plans.fastest_seconds
    told(path, objective="Time")
    assert wanted.seconds() == plans.seconds_for("Energy")
    now.seconds += LOOK_SECONDS
    assert wanted.seconds() == plans.fastest_seconds
    due = plans.fastest_seconds * 1.05
    for point, seconds in (
        ({"objective": "Balanced"}, plans.seconds_for("Balanced")),
        ({"objective": "Energy", "iterationSeconds": due, "later": [1]}, plans.seconds_for("Energy", due)),
        (
            {"objective": "Energy", "iterationSeconds": 1e-9, "maxMegahertz": 1000},
            plans.seconds_for("Energy", 1e-9, 1000),
        ),
    ):
        now.seconds += LOOK_SECONDS
        told(path, **point)
        assert wanted.seconds() == seconds
    assert not caplog.records
    last = wanted.seconds()
    for text in (
        "{",
        "[]",
        '{"objective": "Speed"}',
        '{"objective": "Energy", "maxMegahertz": "all"}',
        '{"objective": "Time", "straggler": 1.2}',
        '{"objective": "Time", "straggler": {"replica": 0}}',
        '{"objective": "Time", "straggler": {"degree": 1.2, "replica": "0"}}',
        '{"objective": "Time", "straggler": {"degree": 1.2, "until": "noon"}}',
        "[" * 4000,
        None,
    ):
        now.seconds += LOOK_SECONDS
        path.unlink(missing_ok=True)
        if text is not None:
            path.write_text(text)
        assert wanted.seconds() == last
    assert len(caplog.records) == 1
    now.seconds += LOOK_SECONDS
    told(path, objective="Time")
    assert wanted.seconds() == plans.fastest_seconds, "what can be read again counts again"


def test_a_straggler_that_the_file_tells_of_counts_for_all_but_itself_and_between_its_times(
    document: dict[str, Any], tmp_path: Path
) -> None:
    now, wall, plans, path = Now(), Now(), StagePlans(document, 0), tmp_path / "point.json"
    wall.seconds = 1_769_860_800.0  # 2026-01-31T12:00:00Z
    path.write_text("")
    section = PipelineSection("plan.json", objective="Time", point_file=str(path))
    wanted = WantedPoint(plans, section, now, wall)
    assert [wanted.degree(replica) for replica in (0, 1)] == [1.0, 1.0]

    def degrees(**straggler: Any) -> list[float]:
        now.seconds += LOOK_SECONDS
        told(path, objective="Time", straggler=straggler)
        return [wanted.degree(replica) for replica in (0, 1)]

    assert degrees(degree=1.2) == [1.2, 1.2], "somebody else is waited for"
    assert degrees(degree=1.2, replica=1) == [1.2, 1.0], "the slow one goes on as it is"
    assert degrees(degree=1.3, **{"from": "2026-01-31T12:00:10Z", "until": "2026-01-31T12:01:00Z"}) == [1.0, 1.0]
    wall.seconds += 10.0
    assert wanted.degree(0) == 1.3, "without another look at the file"
    wall.seconds += 50.0
    assert wanted.degree(0) == 1.0
    assert wanted.seconds() == plans.fastest_seconds
    now.seconds += LOOK_SECONDS
    told(path, objective="Time")
    assert wanted.degree(0) == 1.0


def test_told_of_a_straggler_stages_go_over_within_the_iteration_and_come_back_in_the_next_that_begins_without(
    document: dict[str, Any],
) -> None:
    now, asked, plans, degree = Now(), Asked(), StagePlans(document, 0), Wanted(1.0)
    pipeline = Pipeline(plans, asked, stage=0, announced_degree=degree, monotonic=now)
    slower = plans.at(plans.fastest_seconds * 1.2)
    assert slower.seconds > plans.fastest_seconds

    def planned() -> float | None:
        return None if pipeline.plan is None else pipeline.plan.seconds

    with pipeline.forward(0):
        now.seconds += 1.0
    degree.value = 1.2
    with pipeline.forward(1):
        now.seconds += 1.0
    assert planned() == slower.seconds
    assert asked.megahertz[-1] == slower.clock_megahertz("forward", 1)
    degree.value = 1.0
    with pipeline.forward(2):
        now.seconds += 1.0
    assert planned() == slower.seconds, "what is waited for in this iteration is waited for"
    with pipeline.synchronize():
        pass
    assert (planned(), pipeline.straggler_degree) == (plans.fastest_seconds, 1.0)
    degree.value = 1.2
    with pipeline.synchronize():
        pass
    assert (planned(), pipeline.straggler_degree) == (slower.seconds, 1.2)


def test_no_faster_plan_is_taken_than_the_granted_clock_allows(document: dict[str, Any]) -> None:
    plans = StagePlans(document, 0)
    graph = pipeline_graph(PROFILE, Schedule.ONE_F_ONE_B, MICROBATCHES)
    for clock in (1400, 1300, 1200, 1000, 800, 300):
        possible = [
            max((point for point in operation.points if (point.clock_megahertz or 0) <= max(clock, 800)),
                key=lambda point: point.clock_megahertz or 0)
            for operation in graph.operations
        ]  # fmt: skip
        least = execute(graph, possible, WAITING_WATTS).time_seconds
        # A deadline that nobody can keep any more has them as fast as it goes.
        assert plans.seconds_for("Energy", 1e-9, clock) == pytest.approx(max(least, plans.fastest_seconds), rel=1e-9)
        assert plans.seconds_for("Energy", None, clock) >= plans.seconds_for("Energy")
        assert plans.seconds_for("Time", None, clock) == plans.fastest_seconds
    earlier = {name: value for name, value in document.items() if name != "least_times"}  # as it was written once
    assert StagePlans(earlier, 0).seconds_for("Energy", 1e-9, 800) == plans.fastest_seconds


@pytest.mark.parametrize("pace", ["", "nonsense", "nan", "inf", "-1", "\x00" * 20])
def test_a_pace_that_cannot_be_read_is_no_pace(pace: str, document: dict[str, Any], tmp_path: Path) -> None:
    now, values, plans = Now(), SharedValues(str(tmp_path)), StagePlans(document, 0)
    pipeline = Pipeline(plans, None, stage=0, replicas=2, values=values, monotonic=now)
    for iteration in range(2):
        with pipeline.forward(0):
            now.seconds += plans.fastest_seconds
        with pipeline.synchronize():
            values.put("pace-1", f"{iteration:015d} {pace}")
    assert pipeline.straggler_degree == 1.0
    assert pipeline.plan == plans.at(plans.fastest_seconds)


class Replicas:
    """The first stages of two replicas, each with a clock of its own, as their computations come to be made."""

    def __init__(self, document: dict[str, Any], folder: str, alone: float) -> None:
        self.plans = StagePlans(document, 0)
        self.alone = alone  # seconds of one computation by the fastest plan
        self.clocks = [Now(), Now()]
        values = SharedValues(folder)
        self.pipelines = [
            Pipeline(
                self.plans, None, stage=0, replica=replica, replicas=2, values=values, monotonic=self.clocks[replica]
            )
            for replica in (0, 1)
        ]

    def iterate(self, slowed: Callable[[int], float]) -> list[float]:
        """One iteration, in which replica 1's n-th computation is `slowed(n)` times longer; the degrees that replica 0 went
        by in its own."""
        programs = [
            [(what, number) for number in range(MICROBATCHES) for what in ("forward", "backward")] for _ in (0, 1)
        ]
        done, degrees = [0, 0], []
        while any(done[replica] < len(programs[replica]) for replica in (0, 1)):
            left = [replica for replica in (0, 1) if done[replica] < len(programs[replica])]
            replica = min(left, key=lambda item: (self.clocks[item].seconds, item))
            pipeline = self.pipelines[replica]
            what, number = programs[replica][done[replica]]
            with pipeline.computation(what, number):
                assert pipeline.plan is not None
                seconds = self.alone * pipeline.plan.seconds / self.plans.fastest_seconds
                self.clocks[replica].seconds += seconds * (slowed(done[1]) if replica == 1 else 1.0)
            if replica == 0:
                degrees.append(pipeline.straggler_degree)
            done[replica] += 1
        for pipeline in self.pipelines:
            pipeline.synchronize().__enter__()
        latest = max(clock.seconds for clock in self.clocks)
        for pipeline, clock in zip(self.pipelines, self.clocks, strict=True):
            clock.seconds = latest
            pipeline.synchronize().__exit__(None, None, None)
        return degrees


def test_a_stage_that_becomes_slower_is_answered_within_the_iteration(document: dict[str, Any], tmp_path: Path) -> None:
    replicas = Replicas(document, str(tmp_path), alone=0.5)
    for _ in range(3):
        assert set(replicas.iterate(lambda _: 1.0)) == {1.0}
    began = replicas.clocks[0].seconds
    degrees = replicas.iterate(lambda number: 1.2)
    whole = 2 * MICROBATCHES * 0.5
    assert replicas.clocks[0].seconds - began == pytest.approx(1.2 * whole), "it waits for the straggler, as before"
    # Two computations have to be longer before it is told, and it is looked every quarter of a second.
    first = next(place for place, degree in enumerate(degrees) if degree > 1.0)
    assert 2 <= first <= 3
    # By a slower plan the clocks are others, of which less is known.
    assert 1.1 < degrees[-1] <= 1.2 + 1e-6
    assert replicas.pipelines[0].straggler_degree == pytest.approx(1.2, rel=1e-6)
    assert replicas.pipelines[1].straggler_degree == 1.0
    replicas.iterate(lambda number: 1.2)
    assert replicas.pipelines[0].straggler_degree == pytest.approx(1.2, rel=1e-6)
    replicas.iterate(lambda number: 1.0)
    assert replicas.pipelines[0].straggler_degree == 1.0, "it is over"


@given(
    begins=st.integers(0, 2 * MICROBATCHES),
    ends=st.integers(0, 2 * MICROBATCHES),
    degree=st.floats(1.0, 1.5),
    jitter=st.lists(st.floats(1.0, 1.02), min_size=2 * MICROBATCHES, max_size=2 * MICROBATCHES),
)
@settings(max_examples=examples(60))
def test_no_iteration_becomes_longer_by_an_answer_within_it(
    begins: int, ends: int, degree: float, jitter: list[float], document: dict[str, Any]
) -> None:
    """Whatever a straggler does, and however its computations scatter: the replica that answers is never the last by more
    than the straggler may yet take back."""
    with tempfile.TemporaryDirectory() as folder:
        replicas = Replicas(document, folder, alone=0.5)
        for _ in range(2):
            replicas.iterate(lambda _: 1.0)

        def slowed(number: int) -> float:
            return jitter[min(number, len(jitter) - 1)] * (degree if begins <= number < ends else 1.0)

        began = replicas.clocks[0].seconds
        degrees = replicas.iterate(slowed)
        straggler = sum(0.5 * slowed(number) for number in range(2 * MICROBATCHES))
        took = replicas.clocks[0].seconds - began
        assert max(degrees) <= degree * 1.02 + 1e-9
        if begins >= ends or ends >= 2 * MICROBATCHES:
            assert took <= straggler * (1 + 1e-6), "it only waits less"
        else:
            over = 2 * MICROBATCHES - ends
            assert took <= straggler + 0.5 * (degree * 1.02 - 1) * over + 1e-6


def test_what_a_whole_cap_slows_holds_nobody_up_for_longer(document: dict[str, Any], tmp_path: Path) -> None:
    """Both replicas become slower at once, as under a cap that falls: neither waits for the other."""
    plans, clocks = StagePlans(document, 0), [Now(), Now()]
    values = SharedValues(str(tmp_path))
    pipelines = [
        Pipeline(plans, None, stage=0, replica=replica, replicas=2, values=values, monotonic=clocks[replica])
        for replica in (0, 1)
    ]
    for iteration in range(5):
        for microbatch in range(MICROBATCHES):
            for pipeline, clock in zip(pipelines, clocks, strict=True):
                with pipeline.forward(microbatch):
                    clock.seconds += 1.3 if iteration >= 3 else 1.0
        for pipeline in pipelines:
            pipeline.synchronize().__enter__()
        for pipeline in pipelines:
            pipeline.synchronize().__exit__(None, None, None)
        assert [pipeline.straggler_degree for pipeline in pipelines] == [1.0, 1.0]


@pytest.mark.parametrize(
    "text", ["", "nonsense", "1 2 3", "000000000000001 0 0 nan", "000000000000001 0 0 inf", "\x00" * 60]
)
def test_what_cannot_be_read_of_a_slow_stage_is_passed_over(text: str) -> None:
    assert SharedDegree(lambda: text, lambda value: None).found(1) is None


def test_of_two_slow_stages_the_slower_one_is_told() -> None:
    value = ""

    def write(text: str) -> None:
        nonlocal value
        value = text

    one, other = SharedDegree(lambda: value, write), SharedDegree(lambda: value, write)
    one.share(7, 0, 1, 1.2)
    other.share(7, 1, 0, 1.1)
    assert one.found(7) == (0, 1, 1.2)
    other.share(7, 1, 0, 1.3)
    assert one.found(7) == (1, 0, 1.3)
    other.share(7, 1, 0, 1.0)
    assert one.found(7) == (1, 0, 1.0), "it is over"
    assert one.found(8) is None
    written = value
    one.share(8, 0, 1, 1.005)
    assert value is written, "nothing worth a write"


def test_what_it_is_told_counts_until_it_is_told_otherwise(document: dict[str, Any]) -> None:
    plans, now = StagePlans(document, 1), Now()
    pipeline = Pipeline(plans, None, stage=1, monotonic=now)
    pipeline.set_straggler(1.2)
    assert pipeline.plan is not None
    assert pipeline.plan.seconds == plans.fastest_seconds, "not in the middle of an iteration"
    for _ in range(2):
        with pipeline.synchronize():
            pass
        assert plans.fastest_seconds < pipeline.plan.seconds <= plans.fastest_seconds * 1.2
    pipeline.set_straggler(1.0)
    with pipeline.synchronize():
        pass
    assert pipeline.plan.seconds == plans.fastest_seconds
    for wrong in (0.5, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="straggler degree"):
            pipeline.set_straggler(wrong)


def test_a_volume_that_fails_costs_one_warning(document: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    class Failing(SharedValues):
        def __init__(self) -> None:
            pass

        def put(self, name: str, value: str) -> None:
            raise OSError("stale file handle")

        def get(self, name: str) -> str | None:
            raise OSError("stale file handle")

    plans = StagePlans(document, 0)
    pipeline = Pipeline(plans, None, stage=0, replicas=2, values=Failing())
    for _ in range(3):
        with pipeline.forward(0):
            pass
        with pipeline.synchronize():
            pass
    assert len(caplog.records) == 1
    assert pipeline.straggler_degree == 1.0


# --- a job's spec.pipeline ---------------------------------------------------------------------------------------------


def variables(**own: str) -> dict[str, str]:
    """What the operator gives to the pods of a job with a pipeline."""
    return {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "FLYBALL_PIPELINE_PLAN": "/etc/flyball/plan.json",
        "FLYBALL_PIPELINE_STAGES": "2",
        "FLYBALL_PIPELINE_MICROBATCHES": str(MICROBATCHES),
        "FLYBALL_PIPELINE_OBJECTIVE": "Energy",
        **own,
    }


def test_a_process_reads_what_the_job_says_of_its_pipeline() -> None:
    read = Environment.read(variables(FLYBALL_PIPELINE_SECONDS="4.75"), 1).pipeline
    assert read == PipelineSection("/etc/flyball/plan.json", 2, MICROBATCHES, "Energy", 4.75)
    assert Environment.read(variables(), 1).pipeline == PipelineSection(
        "/etc/flyball/plan.json", 2, MICROBATCHES, "Energy"
    )
    assert Environment.read({"FLYBALL_PIPELINE_OBJECTIVE": "nonsense"}, 1).pipeline is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("STAGES", "two"),
        ("MICROBATCHES", "0"),
        ("OBJECTIVE", "energy"),
        ("SECONDS", "-1"),
        ("SECONDS", "nan"),
        ("SECONDS", "soon"),
        ("SECONDS", "inf"),
    ],
)
def test_what_nobody_can_run_a_pipeline_by_is_an_error_that_names_it(name: str, value: str) -> None:
    with pytest.raises(InvalidEnvironment, match=f"FLYBALL_PIPELINE_{name}='{value}'"):
        Environment.read(variables(**{f"FLYBALL_PIPELINE_{name}": value}), 1)


def made_up() -> dict[str, Any]:
    """Plans of 1, 1.2, 2 and 3 s at 1400, 1200, 1000 and 800 MHz; the last one is of use to who waits anyway."""
    points = [
        {"realised_time": seconds, "realised_energy": joules, "clocks": {"0": {"forward": [[[clock], MICROBATCHES]]}}}
        for seconds, joules, clock in ((1.0, 100.0, 1400), (1.2, 78.0, 1200), (2.0, 60.0, 1000), (3.0, 65.0, 800))
    ]
    return {"gpus": 2, "waiting_power": 10.0, "points": points}


def test_the_point_of_the_frontier_follows_from_objective_and_deadline() -> None:
    plans = StagePlans(made_up() | {"gpus": 1}, 0)
    assert plans.at(1e9).seconds == 3.0
    assert plans.seconds_for("Time") == plans.seconds_for("Time", 1e9) == 1.0
    assert plans.seconds_for("Energy") == plans.seconds_for("Balanced", 1e9) == 2.0
    assert plans.seconds_for("Balanced") == 1.2, "100, 93.6, 120 and 195 joule-seconds"
    for objective in ("Energy", "Balanced"):
        assert plans.seconds_for(objective, 1.9) == 1.2
        assert plans.seconds_for(objective, 0.5) == 1.0, "as good as can be"


def test_it_runs_by_the_jobs_point_and_slower_behind_a_straggler(
    tmp_path: Path, agent: tuple[socket.socket, str]
) -> None:
    listening, path = agent
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(made_up()))
    section = PipelineSection(str(plan), 2, MICROBATCHES, "Balanced")
    pipeline = Job(Environment(world_size=2, socket=path, pipeline=section)).pipeline(stage=0, gpu="GPU-a")
    with pipeline.forward(0):
        pass
    assert heard(listening) == [b"GPU-a 1200"]
    for degree, clock in ((1.7, 1000), (1.6, 1200)):
        pipeline.set_straggler(degree)
        with pipeline.synchronize():
            pass
        with pipeline.forward(0):
            pass
        assert pipeline.plan is not None
        assert pipeline.plan.clock_megahertz("forward", 0) == clock, "of the job's 1.2 s, not of the fastest plan's"
    of_a_file = Job(Environment(world_size=2, socket=path, pipeline=section)).pipeline(str(plan), stage=0, gpu="GPU-a")
    assert of_a_file.plan is not None
    assert of_a_file.plan.seconds == 1.0, "the script's own file is no matter of the job's objective"


@pytest.mark.parametrize(
    ("stages", "microbatches", "words"),
    [
        (4, MICROBATCHES, "a plan of 2 stages, and the job's spec.pipeline has 4"),
        (2, 2 * MICROBATCHES, "no plan of the 12 microbatches of the job's spec.pipeline"),
    ],
)
def test_a_plan_of_another_pipeline_than_the_jobs_is_not_followed(
    document: dict[str, Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    stages: int,
    microbatches: int,
    words: str,
) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(document))
    section = PipelineSection(str(plan), stages, microbatches, "Energy")
    pipeline = Job(Environment(world_size=4, socket="/nowhere/flyball.sock", pipeline=section)).pipeline(
        stage=0, gpu="GPU-a"
    )
    assert pipeline.plan is None
    assert [words in record.getMessage() for record in caplog.records] == [True]


def test_a_job_without_a_pipeline_asks_for_nothing_and_one_without_a_socket_says_so(
    document: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert Job(Environment(world_size=2)).pipeline(stage=0).plan is None
    assert not caplog.records
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(document))
    section = PipelineSection(str(plan), 2, MICROBATCHES)
    with Job(Environment(world_size=2, pipeline=section)).pipeline(stage=0, gpu="GPU-a").forward(0):
        pass
    assert ["its pods no socket" in record.getMessage() for record in caplog.records] == [True]


# --- the datagram ------------------------------------------------------------------------------------------------------


@pytest.fixture
def agent() -> Iterator[tuple[socket.socket, str]]:
    """A socket where the agent's would be, and the path of the one beside it that a pod is told."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, served(folder) as listening:
        yield listening, f"{folder}/flyball.sock"


@contextlib.contextmanager
def served(folder: str) -> Iterator[socket.socket]:
    path = Path(folder) / SOCKET_NAME
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.setblocking(False)
        listening.bind(str(path))
        yield listening


def heard(listening: socket.socket) -> list[bytes]:
    datagrams = []
    with contextlib.suppress(BlockingIOError):
        while True:
            datagrams.append(listening.recv(128))
    return datagrams


def test_a_clock_is_asked_for_when_it_changes_and_renewed(agent: tuple[socket.socket, str]) -> None:
    (listening, path), now = agent, Now()
    clock = Clock(path, "GPU-1", now)
    for megahertz in (1400, 1400, 1200, 1200):
        clock.ask(megahertz)
    assert heard(listening) == [b"GPU-1 1400", b"GPU-1 1200"]
    now.seconds += RENEW_SECONDS
    clock.ask(1200)
    assert heard(listening) == [b"GPU-1 1200"]


def test_an_agent_that_is_away_hangs_or_comes_again_never_reaches_the_training() -> None:
    now = Now()
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        clock = Clock(f"{folder}/flyball.sock", "GPU-1", now)
        clock.ask(1400)
        with served(folder) as listening:
            clock.ask(1400)
            assert heard(listening) == [], "it is not looked for at every computation"
            now.seconds += RETRY_SECONDS
            for number in range(2000):  # nobody reads
                clock.ask(1000 + number % 2)
            assert heard(listening)
            clock.ask(900)
            assert heard(listening) == [b"GPU-1 900"]
        now.seconds += RETRY_SECONDS
        clock.ask(1400)
        with served(folder) as listening:
            now.seconds += RETRY_SECONDS
            clock.ask(1400)
            assert heard(listening) == [b"GPU-1 1400"]


@pytest.mark.parametrize(
    ("named", "local_rank", "of", "gpu"),
    [
        ("GPU-a,GPU-b", 1, 2, "GPU-b"),
        ("GPU-a", 0, 1, "GPU-a"),
        ("all", 0, 1, "*"),
        ("", 0, 1, "*"),
        ("GPU-a", 1, 2, None),
        ("all", 0, 2, None),
        ("0,1", 1, 2, None),
    ],
)
def test_a_process_knows_its_gpu_by_the_device_plugins_word(
    named: str, local_rank: int, of: int, gpu: str | None
) -> None:
    assert own_gpu({"NVIDIA_VISIBLE_DEVICES": named, "FLYBALL_LOCAL_GPUS": str(of)}, local_rank) == gpu


def test_a_process_that_does_not_know_its_gpu_sets_no_other_s_clock(
    document: dict[str, Any],
    agent: tuple[socket.socket, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    listening, path = agent
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(document))
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "all")
    monkeypatch.setenv("FLYBALL_LOCAL_GPUS", "2")
    job = Job(Environment(world_size=2, socket=path))
    with job.pipeline(str(plan), stage=0).forward(0):
        pass
    assert heard(listening) == []
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    with job.pipeline(str(plan), stage=0, gpu="GPU-b").forward(0):
        pass
    (datagram,) = heard(listening)
    assert datagram.startswith(b"GPU-b ")


# --- a stage that is measured ------------------------------------------------------------------------------------------


def test_a_stage_is_measured_at_one_clock_after_the_other_and_what_was_found_is_left_in_the_folder(
    agent: tuple[socket.socket, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listening, path = agent
    now = Now()
    monkeypatch.setattr(own_pipeline, "gpu_counter", lambda agent, gpu: (now.seconds, 200.0 * now.seconds, None))
    job = Job(Environment(world_size=2, socket=path), monotonic=now)
    pipeline = job.pipeline(stage=1, gpu="GPU-a", measure=(1000, 1400), profile=str(tmp_path / "new"))
    for _ in range(30):
        for _ in range(3):
            with pipeline.forward(0):
                now.seconds += 0.5
        with pipeline.synchronize():
            now.seconds += 0.2
    assert pipeline.plan is None
    asked = list(dict.fromkeys(heard(listening)))
    assert asked == [b"GPU-a 1400", b"GPU-a 1000"]
    lines = [line.split(",") for line in (tmp_path / "new" / "stage-00001.csv").read_text().splitlines()]
    assert [line[:3] for line in lines] == [["1", "forward", "1400"], ["1", "forward", "1000"]]
    for _, _, _, seconds, joules in lines:
        assert (float(seconds), float(joules)) == (pytest.approx(0.5), pytest.approx(100.0, rel=1e-4))
    heard(listening)
    with pipeline.forward(0):
        pass
    assert heard(listening) == [], "it runs at what is granted"


def test_a_stage_that_cannot_be_measured_trains_on_for_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = Now()
    monkeypatch.setattr(own_pipeline, "gpu_counter", lambda agent, gpu: None)
    for environment in (Environment(world_size=2), Environment(world_size=2, socket="/nowhere/flyball.sock")):
        caplog.clear()
        job = Job(environment, monotonic=now)
        pipeline = job.pipeline(stage=0, gpu="GPU-a", measure=(1400,), profile=str(tmp_path))
        for _ in range(40):
            with pipeline.forward(0):
                now.seconds += 0.5
            with pipeline.synchronize():
                pass
        assert ["is not measured, training goes on" in record.getMessage() for record in caplog.records] == [True]
    assert list(tmp_path.iterdir()) == []


def test_a_measurement_says_that_the_jobs_own_plan_is_not_followed_meanwhile(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    section = PipelineSection("/plans/plan.json", stages=2, microbatches=4)
    environment = Environment(world_size=2, socket="/nowhere/flyball.sock", pipeline=section)
    pipeline = Job(environment).pipeline(stage=1, gpu="GPU-a", measure=(1400,), profile=str(tmp_path))
    assert pipeline.plan is None
    (record,) = caplog.records
    assert "the job's plan /plans/plan.json is not followed" in record.getMessage()


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"measure": range(1410, 800, 60), "profile": "p"}, "range(1410, 800, 60)): wanted clocks in megahertz"),
        ({"measure": "clocks", "profile": "p"}, "wanted clocks in megahertz"),
        ({"measure": 1410, "profile": "p"}, "wanted clocks in megahertz"),
        ({"measure": (1410, -60), "profile": "p"}, "wanted clocks in megahertz"),
        ({"measure": (1410,)}, "needs profile=, a folder"),
        ({"profile": "p"}, "give it clocks, too"),
        ({"measure": (1410,), "profile": "p", "plan": "plan.json"}, "runs by no plan: leave 'plan.json' out"),
    ],
)
def test_a_measurement_that_nobody_can_mean_is_an_error_before_anything_is_trained(
    asked: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        Job(Environment(world_size=2)).pipeline(stage=0, **asked)


@pytest.mark.parametrize(
    ("environment", "local_gpus", "profile", "words"),
    [
        (Environment(world_size=2), "1", "new", "FLYBALL_SOCKET names no agent"),
        (Environment(world_size=2, socket="/nowhere/flyball.sock"), "2", "new", "give pipeline(gpu=...) its UUID"),
        (Environment(world_size=2, socket="/nowhere/flyball.sock"), "1", "file/new", "Not a directory"),
    ],
)
def test_a_stage_that_cannot_be_measured_says_why_before_any_clock_is_tried(
    environment: Environment, local_gpus: str, profile: str, words: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.delenv("NVIDIA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("FLYBALL_LOCAL_GPUS", local_gpus)
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING):
        Job(environment).pipeline(stage=0, measure=(1400,), profile=str(tmp_path / profile))
    (record,) = caplog.records
    assert "stage 0 is not measured, training goes on: " in record.getMessage()
    assert words in record.getMessage()


# --- and whose plan the operator has made ------------------------------------------------------------------------------


class TakingAgent:
    """An agent that takes requests over its socket, refusing the first of them, and remembers what was in them."""

    def __init__(self, path: str, refused: int) -> None:
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(path)
        self._listening.listen(8)
        self._refused = refused
        self.taken: list[tuple[str, dict[str, Any]]] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listening.accept()
            with connection, connection.makefile("rb") as asked:
                first = asked.readline().decode()
                length = 0
                while (line := asked.readline()) not in (b"\r\n", b""):
                    name, _, value = line.decode().partition(":")
                    length = int(value) if name.lower() == "content-length" else length
                body = json.loads(asked.read(length))
                status = "503 Away" if self._refused > 0 else "200 OK"
                self._refused -= 1
                connection.sendall(f"HTTP/1.1 {status}\r\n\r\n{{}}".encode())
                if status.startswith("200"):
                    self.taken.append((first.rsplit(" ", 1)[0], body))


def measuring_section(plan: Path) -> PipelineSection:
    return PipelineSection(str(plan), stages=2, microbatches=MICROBATCHES, measure=(1000, 1400))


def test_a_job_without_a_plan_yet_measures_its_stages_and_tells_the_agent_until_it_has_taken_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = Now()
    monkeypatch.setattr(own_pipeline, "gpu_counter", lambda agent, gpu: (now.seconds, 200.0 * now.seconds, None))
    monkeypatch.setattr(measured_stage, "FIRST_PAUSE_SECONDS", 0.001)
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        agent = TakingAgent(f"{folder}/flyball.sock", refused=2)
        section = measuring_section(tmp_path / "plan.json")
        job = Job(Environment(world_size=2, socket=f"{folder}/flyball.sock", pipeline=section), monotonic=now)
        pipeline = job.pipeline(stage=1, gpu="GPU-a")
        for _ in range(30):
            for _ in range(3):
                with pipeline.forward(0):
                    now.seconds += 0.5
            with pipeline.synchronize():
                now.seconds += 0.2
        wait_until(lambda: bool(agent.taken))
    asked, body = agent.taken[0]
    assert asked == "POST /v1/profile"
    assert (body["stage"], body["waitingMilliwatts"]) == (1, pytest.approx(200_000, rel=0.01))
    rows = [line.split(",") for line in body["rows"].splitlines()]
    assert [(name, clock) for name, clock, _, _ in rows] == [("forward", "1400"), ("forward", "1000")]
    assert [float(joules) for *_, joules in rows] == pytest.approx([100.0, 100.0], rel=1e-3)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1, "once, however often it is refused"
    assert "no plan is made yet of what was measured" in warnings[0]


def test_a_job_with_a_plan_trains_by_it_and_measures_nothing_more(document: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(document))
    environment = Environment(
        world_size=2, socket="/nowhere/flyball.sock", pipeline=measuring_section(tmp_path / "plan.json")
    )
    pipeline = Job(environment).pipeline(stage=1, gpu="GPU-a")
    assert pipeline.plan is not None
    assert pipeline.plan.seconds == StagePlans(document, 1).fastest_seconds


@pytest.mark.parametrize("text", ["1410,x", "1410,,1350", "0", "-60", "100000"])
def test_clocks_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(InvalidEnvironment, match="FLYBALL_PIPELINE_MEASURE"):
        Environment.read({"FLYBALL_PIPELINE_PLAN": "/plan.json", "FLYBALL_PIPELINE_MEASURE": text}, 1)


def test_the_clocks_to_measure_at_come_from_the_job() -> None:
    variables = {"FLYBALL_PIPELINE_PLAN": "/plan.json", "FLYBALL_PIPELINE_MEASURE": "1410,1350"}
    section = Environment.read(variables, 1).pipeline
    assert section is not None
    assert section.measure == (1410, 1350)
