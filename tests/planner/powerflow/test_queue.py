"""The queue: who comes next, when that is to be expected, and that what happens bears it out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from flyball_planner.models.gpu import gpu_model_for
from flyball_planner.models.priors import model_class_prior
from flyball_planner.planner import plan
from flyball_planner.policies.registry import policy_names
from flyball_planner.powerflow import queue as under_test
from flyball_planner.powerflow.plan import plan_strictly
from flyball_planner.snapshot import Allocation, CapConstraint, ClusterSnapshot, JobState, NodeState, Plan
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.examples import examples

A100 = gpu_model_for("NVIDIA-A100-SXM4-40GB")
assert A100 is not None
CLOCK = A100.clocks_megahertz[-1]
RESTART_SECONDS = 30.0


def cluster(count: int, gpus: int = 8) -> tuple[NodeState, ...]:
    assert A100 is not None
    return tuple(NodeState(f"n{index}", A100, gpus) for index in range(count))


def job(name: str, gpus: int = 8, iterations: float | None = 1000.0, **keywords: object) -> JobState:
    assert A100 is not None
    state = JobState(
        uid=name,
        name=f"team/{name}",
        gpus_min=gpus,
        gpus_max=gpus,
        global_batch_size=64,
        model=model_class_prior("vgg16", A100),
        submit_time_seconds=0.0,
        remaining_iterations=iterations,
    )
    return replace(state, **keywords)  # type: ignore[arg-type]


def running(name: str, node: str, gpus: int = 8, iterations: float | None = 1000.0, **keywords: object) -> JobState:
    return job(name, gpus, iterations, current=Allocation(((node, gpus),), CLOCK, 400.0), **keywords)


def snapshot(nodes: tuple[NodeState, ...], *jobs: JobState, caps: tuple[CapConstraint, ...] = ()) -> ClusterSnapshot:
    return ClusterSnapshot(nodes, jobs, caps, restart_seconds=RESTART_SECONDS)


def seconds_of(made: Plan, uid: str) -> float | None:
    return next((start.seconds for start in made.queue.starts if start.uid == uid), None)


def end_of(made: Plan, state: JobState) -> float:
    decision = made.decision(state.uid)
    assert decision is not None
    assert state.remaining_iterations is not None
    return state.remaining_iterations * decision.predicted_iteration_seconds


def test_nobody_waits_where_there_is_room() -> None:
    made = plan(snapshot(cluster(2), job("a"), job("b")))
    assert made.queue.order == ()
    assert made.queue.starts == ()


def test_the_next_one_starts_when_the_first_ends() -> None:
    short, long = running("short", "n0", iterations=500.0), running("long", "n1", iterations=5000.0)
    made = plan(snapshot(cluster(2), short, long, job("waits", iterations=100.0), job("later", iterations=1000.0)))
    assert made.queue.order == ("waits", "later"), "the shortest first"
    first, second = made.queue.starts
    assert first == ("waits", pytest.approx(end_of(made, short)), "when team/short has ended")
    # The next end is that of the one which has just started, and it had to start first.
    assert second.uid == "later"
    pace = made.decision("short")
    assert pace is not None
    assert second.seconds == pytest.approx(
        first.seconds + RESTART_SECONDS + 100 * pace.predicted_iteration_seconds, 0.2
    )
    assert second.basis == "when 2 jobs have ended, the last of them team/waits"


def test_priority_comes_first_and_tenants_take_turns() -> None:
    held = running("held", "n0")
    waiting = [
        job("a1", 8, 100.0, tenant="a"),
        job("a2", 8, 200.0, tenant="a"),
        job("b1", 8, 900.0, tenant="b"),
        job("last", 8, 1.0, tenant="b", priority=-1),
    ]
    made = plan(snapshot(cluster(1), replace(held, tenant="c"), *waiting))
    assert made.queue.order == ("a1", "b1", "a2", "last")


def test_who_fits_where_the_first_does_not_goes_before_it() -> None:
    """16 GPUs need both nodes, 8 one of them: it is tried, as a plan would."""
    first = running("first", "n0", iterations=500.0, rigid=True)
    second = running("second", "n1", iterations=900.0, rigid=True)
    waits = [job("large", 16, 10.0, priority=1, submit_time_seconds=1.0), job("small", 8, 2000.0)]
    made = plan(snapshot(cluster(2), first, second, *waits))
    assert made.queue.order == ("large", "small")
    assert seconds_of(made, "small") == pytest.approx(end_of(made, first))
    assert made.queue.starts[0].uid == "small"


def test_what_is_not_known_is_said() -> None:
    endless = plan(snapshot(cluster(1), running("endless", "n0", iterations=None), job("waits")))
    assert endless.queue.starts == ()
    assert (
        endless.queue.unknown == "1 job with GPUs has no end that is known (spec.training.iterations, or too far away)"
    )
    over = plan(snapshot(cluster(1), running("over", "n0", iterations=1.0), job("waits")))
    assert over.queue.starts == (), "a model that is past its end does not know it"
    far = plan(snapshot(cluster(1), running("far", "n0", iterations=1e12), job("waits")))
    assert "too far away" in far.queue.unknown


def test_a_job_that_no_end_makes_room_for_is_told_so() -> None:
    made = plan(snapshot(cluster(2), running("runs", "n0", 2), job("waits", 32)))
    assert made.queue.order == ("waits",)
    assert made.queue.starts == ()
    assert "it needs more GPUs or watts" in made.queue.unknown


def test_the_room_of_jobs_that_end_together_is_of_who_comes_first() -> None:
    """Not of one further behind that fits into the room of the first of them alone."""
    halves = [running(f"r{index}", "n0", 4, rigid=True, resizable=False) for index in (0, 1)]
    made = plan(snapshot(cluster(1), *halves, job("large", 8, 100.0), job("small", 1, 100.0)))
    assert made.queue.order[0] == made.queue.starts[0].uid == "large"
    assert made.queue.starts[0].basis.startswith("when 2 jobs have ended")


@pytest.mark.parametrize("policy", [*policy_names(), "fifo+zeus"])
def test_who_waits_has_a_place_under_every_policy(policy: str) -> None:
    nodes, held = cluster(2), [running("short", "n0", iterations=500.0), running("long", "n1", iterations=5000.0)]
    waits = [job(f"w{index}", 8, 100.0 + index, submit_time_seconds=10.0 + index) for index in range(4)]
    made = plan(snapshot(nodes, *held, *waits), policy)
    without = {decision.uid for decision in made.decisions if decision.allocation is None}
    assert len(without) == 4
    assert set(made.queue.order) == without
    seconds = [start.seconds for start in made.queue.starts]
    assert seconds == sorted(seconds)
    assert seconds[0] > 0
    assert {start.uid for start in made.queue.starts} <= without
    assert all(start.basis for start in made.queue.starts)


@pytest.mark.parametrize(("policy", "first"), [("fifo", "large"), ("tiresias", "small")])
def test_who_may_not_be_passed_holds_up_those_behind_it(policy: str, first: str) -> None:
    """Three nodes, all taken; the first end leaves one of them free, and the one that waits first needs two."""
    held = [running(f"r{index}", f"n{index}", iterations=1000.0 * (index + 1), resizable=False) for index in range(3)]
    waits = [job("large", 16, 100.0, submit_time_seconds=1.0), job("small", 8, 100.0, submit_time_seconds=2.0)]
    made = plan(snapshot(cluster(3), *held, *waits), policy)
    assert made.queue.order == ("large", "small")
    assert made.queue.starts[0].uid == first
    assert made.queue.starts[0].seconds == pytest.approx(end_of(made, held[1 if first == "large" else 0]))


def test_a_policy_that_pauses_jobs_for_others_says_that_it_may_be_sooner() -> None:
    held = running("runs", "n0", iterations=1000.0, resizable=False)
    bases = {
        policy: plan(snapshot(cluster(1), held, job("waits", submit_time_seconds=9.0)), policy).queue.starts[0].basis
        for policy in ("fifo", "srtf")
    }
    assert bases == {
        "fifo": "when team/runs has ended",
        "srtf": "when team/runs has ended, if srtf pauses none before",
    }


def test_kinds_of_gpus_wait_side_by_side() -> None:
    """Who waits for the one is behind nobody who waits for the other: their places are taken in turn."""
    h100 = gpu_model_for("NVIDIA-H100-80GB-HBM3")
    assert h100 is not None
    nodes = (*cluster(2), NodeState("h0", h100, 8))
    held = [running(f"r{name}", name, resizable=False) for name in ("n0", "n1", "h0")]
    for_a100 = [job(f"a{index}", eligible_nodes=frozenset(("n0", "n1"))) for index in range(2)]
    for_h100 = [job(f"h{index}", eligible_nodes=frozenset(("h0",))) for index in range(2)]
    made = plan(snapshot(nodes, *held, *for_a100, *for_h100), "fifo")
    assert made.queue.order == ("a0", "h0", "a1", "h1")


def test_what_is_reckoned_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "FEWEST_TRIES", 3)
    waiting = [job(f"w{index}", 8, 100.0 + index) for index in range(10)]
    made = plan(snapshot(cluster(1), running("runs", "n0"), *waiting))
    assert len(made.queue.order) == 10
    assert [start.uid for start in made.queue.starts] == ["w0", "w1", "w2"]
    assert made.queue.unknown == "only the next 3 starts are reckoned with"


def test_an_unexplained_plan_has_no_queue_and_is_the_same() -> None:
    case = snapshot(cluster(1), running("runs", "n0"), job("waits"))
    bare, whole = plan_strictly(case, explained=False), plan_strictly(case)
    assert bare.queue.order == ()
    assert [item.allocation for item in bare.decisions] == [item.allocation for item in whole.decisions]


@st.composite
def busy_clusters(draw: st.DrawFn) -> ClusterSnapshot:
    """Nodes full of rigid jobs with ends, and rigid ones that wait; sometimes a cap."""
    count = draw(st.integers(1, 3))
    jobs: list[JobState] = []
    for node in range(count):
        size = draw(st.sampled_from([2, 4, 8]))
        for index in range(8 // size):
            iterations = draw(st.floats(100.0, 10_000.0))
            jobs.append(running(f"r{node}-{index}", f"n{node}", size, iterations, rigid=True, resizable=False))
    for index in range(draw(st.integers(1, 6))):
        size = draw(st.sampled_from([1, 2, 4, 8, 16]))
        tenant, priority = draw(st.sampled_from(["", "", "b"])), draw(st.sampled_from([0, 0, -1]))
        jobs.append(job(f"w{index}", size, draw(st.floats(100.0, 10_000.0)), tenant=tenant, priority=priority))
    caps: tuple[CapConstraint, ...] = ()
    if draw(st.booleans()):
        assert A100 is not None
        watts = count * 8 * draw(st.floats(A100.min_power_limit_watts, A100.max_power_limit_watts))
        caps = (CapConstraint("row", frozenset(f"n{index}" for index in range(count)), watts),)
    return snapshot(cluster(count), *jobs, caps=caps)


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow])
@given(busy_clusters())
def test_the_queue_is_of_those_that_wait_and_the_next_start_comes_true(case: ClusterSnapshot) -> None:
    made = plan(case)
    waiting = {item.uid for item in made.decisions if item.allocation is None}
    assert set(made.queue.order) <= waiting
    assert len(set(made.queue.order)) == len(made.queue.order)
    assert [start.seconds for start in made.queue.starts] == sorted(start.seconds for start in made.queue.starts)
    assert {start.uid for start in made.queue.starts} <= set(made.queue.order)
    if made.queue.starts and not case.caps:
        # Plan again at the moment of the first foreseen start: what has ended is gone, and that job does start. Whose turn
        # it is among tenants goes by what each holds at that moment, so that another tenant's may come first.
        uid, seconds, _ = made.queue.starts[0]
        left = []
        for state in case.jobs:
            decision = made.decision(state.uid)
            assert decision is not None
            if decision.allocation is None:
                left.append(replace(state, current=None))
                continue
            assert state.remaining_iterations is not None
            anew = state.current is None or state.current.nodes != decision.allocation.nodes
            worked = max(0.0, seconds - (RESTART_SECONDS if anew else 0.0)) / decision.predicted_iteration_seconds
            if state.remaining_iterations - worked > 1e-6:
                rest = max(1.0, state.remaining_iterations - worked)
                left.append(replace(state, remaining_iterations=rest, current=decision.allocation))
        later = plan(replace(case, jobs=tuple(left)))
        started = {item.uid for item in later.decisions if item.allocation is not None} & set(made.queue.order)
        tenants = {state.tenant for state in case.jobs if state.uid in made.queue.order}
        assert uid in started if len(tenants) == 1 else started
