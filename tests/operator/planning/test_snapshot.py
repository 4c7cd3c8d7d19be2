"""From API objects to the planner's snapshot."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from flyball_api.energy_aware_job import EnergyAwareJob
from flyball_api.values.units import NodeMilliwatts
from flyball_operator.jobs.runs.memory import JobMemory, Refusal, wants_gpus
from flyball_operator.jobs.runs.progress import JobProgress
from flyball_operator.planning.snapshot import (
    JobStates,
    build_snapshot,
    lost_nodes,
    node_state,
)
from flyball_operator.power.grants.admission import CapBudget
from flyball_operator.power.grants.targets import NodeRules
from flyball_operator.power.nodes.info import NodeInfo, read_nodes
from flyball_planner.models.gpu import gpu_model_for
from flyball_planner.models.priors import model_class_prior
from flyball_planner.planner import plan
from flyball_planner.snapshot import Allocation, ClusterSnapshot, Enforcement, JobState, Objective
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.support.examples import examples
from tests.support.operator_objects import (
    A100,
    DEFAULT,
    FLOOR,
    NOW,
    Json,
    gpu_node_view,
    grant,
    job_grant,
    job_view,
    node_view,
    raw_device,
    ready_node,
    running_pod,
)

MODEL = gpu_model_for(A100)
assert MODEL is not None
PRIOR = model_class_prior("resnet50", MODEL)
ALLOCATION = Allocation((("a", 4),), 1200, 300.0)
IDLE = JobMemory(JobProgress(), None, running=False, holds_gpus=False)


def snapshot_of(
    jobs: list[tuple[EnergyAwareJob, JobMemory]],
    nodes: list[NodeInfo] | None = None,
    rules: dict[str, NodeRules] | None = None,
    budgets: list[CapBudget] | None = None,
    now: datetime = NOW,
    timeless: JobStates | None = None,
) -> ClusterSnapshot:
    return build_snapshot(
        nodes={picture.name: picture for picture in nodes or [ready_node("a")]},
        rules=rules or {},
        budgets=budgets or [],
        jobs=jobs,
        models_of=lambda job: (PRIOR,),
        now=now,
        restart_seconds=30.0,
        guard_fraction=0.05,
        timeless=timeless,
    )


def state_of(memory: JobMemory = IDLE, nodes: list[NodeInfo] | None = None, **spec: Any) -> JobState:
    (state,) = snapshot_of([(job_view(**spec), memory)], nodes).jobs
    return state


# --- jobs --------------------------------------------------------------------------------------------------------


def test_a_new_job() -> None:
    state = state_of()
    assert (state.uid, state.name, state.gpus_min, state.gpus_max) == ("uid-train", "team/train", 1, 8)
    assert (state.global_batch_size, state.remaining_iterations, state.model) == (256, 1000, PRIOR)
    assert state.submit_time_seconds == (NOW - timedelta(hours=1)).timestamp()
    assert (state.objective, state.current, state.resizable, state.throttled) == (Objective.BALANCED, None, True, False)
    assert (state.seconds_to_deadline, state.remaining_energy_joules) == (None, None)


def test_a_job_under_way() -> None:
    progress = JobProgress(iterations=400.0, settled_millijoules=30_000_000, attained_gpu_seconds=99.0)
    state = state_of(
        JobMemory(progress, ALLOCATION, running=True),
        gpus={"min": 2, "max": 4},
        training={"globalBatchSize": 512, "maxLocalBatchSize": 64, "iterations": 1000},
        energy={"budgetKilojoules": 100, "onExhausted": "Suspend"},
        deadline="2030-06-01T13:00:00Z",
        clocks={"minMegahertz": 900, "maxMegahertz": 1200},
        powerLimit={"maxWatts": 350},
        objective="Time",
        priority=5,
        elasticity={"mode": "CheckpointRestart", "minSecondsBetweenResizes": 60},
        status={"lastResizeTime": (NOW - timedelta(seconds=60)).strftime("%Y-%m-%dT%H:%M:%SZ")},
    )
    assert (state.gpus_min, state.gpus_max) == (2, 4)
    assert (state.global_batch_size, state.max_local_batch_size) == (512, 64)
    assert (state.remaining_iterations, state.remaining_energy_joules) == (600, 70_000.0)
    assert (state.seconds_to_deadline, state.attained_gpu_seconds) == (3600.0, 99.0)
    assert (state.clock_min_megahertz, state.clock_max_megahertz, state.power_limit_max_watts) == (900, 1200, 350)
    assert (state.objective, state.priority, state.current, state.resizable) == (Objective.TIME, 5, ALLOCATION, True)


def test_a_pipeline_is_granted_the_clocks_of_time_and_its_plan_lowers_them() -> None:
    pipeline = {"stages": 2, "microbatches": 8, "plan": {"configMap": "gpt3"}}
    assert state_of(objective="Energy", pipeline=pipeline).objective is Objective.TIME
    assert state_of(objective="Energy").objective is Objective.ENERGY


@pytest.mark.parametrize(
    ("running", "mode", "seconds_ago", "fixed"),
    [
        (True, "CheckpointRestart", None, None),
        (True, "CheckpointRestart", 600, None),
        (True, "CheckpointRestart", 599, "before 2030-06-01T12:00:01Z (minSecondsBetweenResizes)"),
        (False, "CheckpointRestart", 3600, "while it starts"),
        (True, "Never", 3600, "(elasticity.mode is Never)"),
    ],
)
def test_resizable(running: bool, mode: str, seconds_ago: int | None, fixed: str | None) -> None:
    status: Json = {}
    if seconds_ago is not None:
        status["lastResizeTime"] = (NOW - timedelta(seconds=seconds_ago)).strftime("%Y-%m-%dT%H:%M:%SZ")
    state = state_of(JobMemory(JobProgress(), ALLOCATION, running), elasticity={"mode": mode}, status=status)
    assert state.resizable is (fixed is None)
    assert fixed is None or state.size_fixed == fixed
    assert state.since_seconds == (None if seconds_ago is None else NOW.timestamp() - seconds_ago)


@pytest.mark.parametrize(
    ("node", "holds_gpus", "stays"),
    [
        ({}, False, True),
        ({"unschedulable": True}, True, True),  # a cordon restarts nothing
        ({"unschedulable": True}, False, False),  # but nothing could start there
        ({"ready": False}, False, False),
    ],
)
def test_a_job_that_holds_nothing_is_not_bound_to_a_node_where_it_cannot_start(
    node: Json, holds_gpus: bool, stays: bool
) -> None:
    memory = JobMemory(JobProgress(), ALLOCATION, running=False, holds_gpus=holds_gpus)
    state = state_of(memory, [ready_node("a", **node), ready_node("b")])
    assert (state.current == ALLOCATION) is stays
    assert state.resizable is not stays


@pytest.mark.parametrize(
    ("action", "wants", "throttled"), [("Throttle", True, True), ("Suspend", False, False), ("Fail", False, False)]
)
def test_a_spent_budget(action: str, wants: bool, throttled: bool) -> None:
    memory = JobMemory(JobProgress(settled_millijoules=5_000_000), ALLOCATION, running=True)
    states = snapshot_of([(job_view(energy={"budgetKilojoules": 5, "onExhausted": action}), memory)]).jobs
    assert bool(states) is wants
    assert [state.throttled for state in states] == [throttled] * wants
    assert [state.remaining_energy_joules for state in states] == [0.0] * wants


@pytest.mark.parametrize(
    ("spec", "refused", "wants"),
    [
        ({}, False, True),
        ({}, True, False),
        ({"suspend": True}, False, False),
        ({"managedBy": "someone.else/queue"}, False, False),
        ({"status": {"conditions": [{"type": "Succeeded", "status": "True"}]}}, False, False),
        ({"status": {"conditions": [{"type": "Failed", "status": "True"}]}}, False, False),
    ],
)
def test_who_wants_gpus(spec: Json, refused: bool, wants: bool) -> None:
    job = job_view(**spec)
    refusal = Refusal("InvalidSpec", "spec.containers: Required value") if refused else None
    assert wants_gpus(job, JobProgress(), refusal) is wants
    memory = JobMemory(JobProgress(), None, running=False, refusal=refusal)
    assert bool(snapshot_of([(job, memory)]).jobs) is wants


def test_work_that_is_overdue_still_has_an_end() -> None:
    assert state_of(JobMemory(JobProgress(iterations=5000.0), None, running=False)).remaining_iterations == 1.0
    assert state_of(training={"globalBatchSize": 256}).remaining_iterations is None


def test_jobs_come_in_the_order_of_their_submission() -> None:
    jobs = [(job_view(name), IDLE) for name in ("b", "c", "a")]
    assert [state.name for state in snapshot_of(jobs).jobs] == ["team/a", "team/b", "team/c"]


# --- nodes -------------------------------------------------------------------------------------------------------


def test_a_node_that_can_be_planned_with() -> None:
    state = node_state(ready_node("a"), NodeRules())
    assert state is not None
    assert (state.name, state.gpus, state.schedulable, state.fixed_bound_watts) == ("a", 8, True, None)
    assert (state.idle_power_limit_watts, state.lost_power_limit_watts) == (100.0, 400.0)


def test_gpus_that_are_not_ours_or_lost() -> None:
    pods = (running_pod("theirs", "a", gpus=2),)
    devices = [raw_device(index, healthy=index > 0) for index in range(8)]
    state = node_state(ready_node("a", pods=pods, devices=devices), NodeRules())
    limited = node_state(ready_node("a", pods=pods), NodeRules(limit_foreign_pods=True))
    assert state is not None
    assert limited is not None
    assert (state.foreign_gpus, state.foreign_power_limit_watts, state.lost_gpus) == (2, 400.0, 1)
    assert limited.foreign_power_limit_watts == 100.0


def test_a_node_that_cannot_be_commanded_holds_what_it_holds() -> None:
    view = gpu_node_view("a", grant(8 * FLOOR), limits=8 * 250_000)
    picture = read_nodes([node_view("a")], {"a": view}, [], frozenset(["a"]))["a"]
    state = node_state(picture, NodeRules())
    assert state is not None
    assert (state.fixed_bound_watts, state.schedulable) == (2000.0, False)


def test_a_node_that_is_late_holds_under_caps_that_add_up_draw_what_is_predicted_of_it() -> None:
    jobs = (job_grant("uid-train", 300_000, 8),)
    view = gpu_node_view("a", grant(2_400_000, expected=1_600_000, jobs=jobs), limits=2_400_000)
    late = read_nodes([node_view("a")], {"a": view}, [], frozenset(["a"]))["a"]
    doubted = read_nodes([node_view("a", ready=False)], {"a": view}, [], frozenset())["a"]
    held = [
        (state.fixed_bound_watts, state.fixed_draw_watts)
        for info in (late, doubted)
        if (state := node_state(info, NodeRules())) is not None
    ]
    assert held == [(2400.0, 1600.0), (3200.0, 3200.0)]


def test_nodes_of_unknown_gpus_count_against_their_caps_all_the_same() -> None:
    unknown = read_nodes([node_view("x", 2, product="Unheard-Of")], {}, [], frozenset())["x"]
    budgets = [
        CapBudget("row", frozenset(["a", "x"]), NodeMilliwatts(10_000_000)),
        CapBudget("other", frozenset(["a"]), NodeMilliwatts(5_000_000)),
    ]
    snapshot = snapshot_of([], [ready_node("a"), unknown], budgets=budgets)
    assert [node.name for node in snapshot.nodes] == ["a"]
    assert [(cap.name, cap.budget_watts, cap.node_names) for cap in snapshot.caps] == [
        ("other", 5000.0, frozenset(["a"])),
        ("row", 10_000.0 - 2 * 1400.0, frozenset(["a"])),
    ]


def test_caps() -> None:
    budgets = [
        CapBudget("hard", frozenset(["a"]), NodeMilliwatts(1_500_500)),
        CapBudget("soft", frozenset(["a"]), NodeMilliwatts(1), expected=True),
    ]
    hard, soft = snapshot_of([], budgets=budgets).caps
    assert (hard.budget_watts, hard.enforcement) == (1500.5, Enforcement.HARD)
    assert (soft.budget_watts, soft.enforcement) == (0.001, Enforcement.EXPECTED)


# --- when to plan again ------------------------------------------------------------------------------------------


def test_only_what_moves_by_itself_is_left_out_of_the_key() -> None:
    spec: Json = {"energy": {"budgetKilojoules": 100}, "deadline": "2030-06-02T00:00:00Z"}

    def key(progress: JobProgress, **changes: Any) -> ClusterSnapshot:
        memory = JobMemory(progress, ALLOCATION, True)
        return snapshot_of([(job_view(**spec, **changes), memory)], timeless=JobStates())

    first = key(JobProgress())
    assert key(JobProgress(iterations=9.0, settled_millijoules=5, attained_gpu_seconds=7.0)) == first
    assert key(JobProgress(settled_millijoules=10**8)) != first  # the budget is spent
    assert key(JobProgress(), priority=1) != first
    assert snapshot_of([]).now_seconds == NOW.timestamp()
    assert snapshot_of([], timeless=JobStates()).now_seconds is None


WAITS, DATED = job_view("waits"), job_view("dated", deadline="2030-06-02T00:00:00Z")
RUNS = job_view("runs", energy={"budgetKilojoules": 100}, elasticity={"mode": "CheckpointRestart"})
HOLDS = JobMemory(JobProgress(), ALLOCATION, running=True)
CHANGES: list[tuple[EnergyAwareJob, JobMemory]] = [
    (RUNS, HOLDS),
    (RUNS, replace(HOLDS, progress=JobProgress(iterations=5.0, attained_gpu_seconds=9.0))),
    (RUNS, replace(HOLDS, progress=JobProgress(settled_millijoules=10**9))),
    (RUNS, replace(HOLDS, running=False)),
    (RUNS, replace(HOLDS, holds_gpus=False, current=Allocation((("gone", 4),), 1200, 300.0))),
    (RUNS, replace(HOLDS, current=Allocation((("a", 2),), 1200, 300.0))),
    (RUNS, replace(HOLDS, gpus_max=2, watts_per_gpu=150)),
    (RUNS, replace(HOLDS, eligible_nodes=frozenset("a"))),
    (RUNS, replace(HOLDS, given_back=True)),
    (RUNS, replace(HOLDS, refusal=Refusal("InvalidSpec", "unknown field"))),
    (replace(RUNS, spec=structs.replace(RUNS.spec, priority=7)), HOLDS),
    (replace(RUNS, status=structs.replace(RUNS.status, last_resize_time=NOW)), HOLDS),
]


@given(st.lists(st.tuples(st.sampled_from(CHANGES), st.sampled_from([0, 5, 100_000])), min_size=1, max_size=12))
@settings(max_examples=examples(100))
def test_what_is_kept_of_a_job_is_what_it_would_be_made_now(cycles: list[tuple[Any, int]]) -> None:
    """Whatever has changed, be it the time alone: a deadline goes by, and a job that was resized may be again."""
    kept, now = JobStates(), NOW
    for change, seconds in cycles:
        now += timedelta(seconds=seconds)
        jobs = [(WAITS, IDLE), (DATED, IDLE), change]
        anew = snapshot_of(jobs, now=now)
        timeless = snapshot_of(jobs, now=now, timeless=kept)
        assert timeless == snapshot_of(jobs, now=now, timeless=JobStates())
        moving = ("remaining_iterations", "attained_gpu_seconds", "seconds_to_deadline", "remaining_energy_joules")
        still = [replace(each, **dict.fromkeys(moving)) for each in anew.jobs]  # type: ignore[arg-type]
        assert [replace(each, **dict.fromkeys(moving)) for each in timeless.jobs] == still  # type: ignore[arg-type]


def test_what_has_not_changed_of_a_job_is_worked_out_once() -> None:
    kept = JobStates()
    jobs = [(WAITS, IDLE), (DATED, IDLE), (RUNS, HOLDS)]
    first = snapshot_of(jobs, timeless=kept)
    progress = JobProgress(iterations=5.0, attained_gpu_seconds=9.0)
    later = [(WAITS, IDLE), (DATED, IDLE), (RUNS, replace(HOLDS, progress=progress))]
    second = snapshot_of(later, now=NOW + timedelta(seconds=5), timeless=kept)
    assert [job.name for job in second.jobs] == ["team/dated", "team/runs", "team/waits"]
    assert all(one is other for one, other in zip(first.jobs, second.jobs, strict=True))
    assert snapshot_of([], timeless=kept).jobs == ()
    assert kept._known == {}


def test_the_planner_takes_it() -> None:
    budgets = [CapBudget("row", frozenset(["a"]), NodeMilliwatts(8 * DEFAULT))]
    snapshot = snapshot_of([(job_view(), IDLE)], budgets=budgets)
    decided = plan(snapshot).decision("uid-train")
    assert decided is not None
    assert decided.allocation is not None


def test_a_job_goes_where_its_pods_fit_and_gets_what_its_quota_leaves() -> None:
    fits = replace(IDLE, eligible_nodes=frozenset("a"), gpus_max=4)
    (state,) = snapshot_of([(job_view(), fits)], [ready_node("a"), ready_node("b")]).jobs
    assert (state.eligible_nodes, state.gpus_min, state.gpus_max) == (frozenset("a"), 1, 4)
    # What is not to be taken from it is in the bound.
    holds = JobMemory(JobProgress(), ALLOCATION, running=True, gpus_max=2)
    (state,) = snapshot_of([(job_view(), holds)]).jobs
    assert state.gpus_max == 2


def test_gpus_that_a_device_plugin_withholds_are_planned_with_no_more() -> None:
    info = ready_node("a")
    state = node_state(info, NodeRules(), withheld=3)
    assert state is not None
    assert (state.gpus, state.usable_gpus) == (8, 5)


def with_lost_gpus(count: int, since: str | None) -> NodeInfo:
    """A node of eight GPUs of which the last ones can be read no more since then."""
    devices = [raw_device(index, healthy=index < 8 - count) for index in range(8)]
    for device in devices[8 - count :]:
        if since is not None:
            device["conditions"][0]["lastTransitionTime"] = since
    return ready_node("a", devices=devices)


RUNS_ON_SIX = JobMemory(JobProgress(), Allocation((("a", 4), ("a", 2)), 1200, 300.0), running=True)


@pytest.mark.parametrize(
    ("since", "memory", "lost"),
    [
        ("2030-06-01T11:59:31Z", RUNS_ON_SIX, 2),
        ("2030-06-01T12:00:29Z", RUNS_ON_SIX, 2),  # by an agent whose clock is ahead
        ("2030-06-01T11:59:30Z", RUNS_ON_SIX, 5),
        ("2030-06-01T12:00:30Z", RUNS_ON_SIX, 5),
        (None, RUNS_ON_SIX, 5),
        ("2030-06-01T11:59:31Z", IDLE, 5),
    ],
    ids=["a moment ago", "a moment ahead", "for long", "far ahead", "nobody knows", "no job runs"],
)
def test_gpus_that_were_lost_a_moment_ago_are_taken_from_no_job(
    since: str | None, memory: JobMemory, lost: int
) -> None:
    """A driver's call that takes long once is no reason to stop training; what no job holds is planned with no more."""
    snapshot = snapshot_of([(job_view(), memory)], [with_lost_gpus(5, since)])
    assert snapshot.nodes[0].lost_gpus == lost


def test_a_job_keeps_gpus_that_are_lost_for_a_moment_and_loses_them_later() -> None:
    memory = JobMemory(JobProgress(), Allocation((("a", 4),), 1200, 300.0), running=True)
    job = job_view(gpus={"min": 4, "max": 4})
    node = with_lost_gpus(6, "2030-06-01T12:00:00Z")
    kept = plan(snapshot_of([(job, memory)], [node])).decisions[0].allocation
    assert kept is not None
    assert kept.nodes == (("a", 4),)
    later = snapshot_of([(job, memory)], [node], now=NOW + timedelta(seconds=30))
    assert plan(later).decisions[0].allocation is None


def test_nobody_hurries_for_a_deadline_that_is_past() -> None:
    past, ahead = job_view(deadline="2030-06-01T12:00:00Z"), job_view(deadline="2030-06-01T12:00:01Z")
    assert [snapshot_of([(view, IDLE)]).jobs[0].seconds_to_deadline for view in (past, ahead)] == [None, 1.0]


# --- nodes that are lost ----------------------------------------------------------------------------------------------


def nodes_not_ready(*seconds: float | None, of: int = 5) -> dict[str, NodeInfo]:
    """Nodes of which the first have not been ready for so many seconds (None: nobody says since when)."""
    nodes = {}
    for index in range(of):
        name = f"node-{index}"
        since = ""
        if index < len(seconds) and (passed := seconds[index]) is not None:
            since = (NOW - timedelta(seconds=passed)).strftime("%Y-%m-%dT%H:%M:%SZ")
        nodes[name] = ready_node(name, ready=index >= len(seconds), ready_since=since)
    return nodes


def test_jobs_leave_a_node_that_is_not_ready_for_long_unless_half_of_them_are_not() -> None:
    assert lost_nodes(nodes_not_ready(301), NOW, 300) == {"node-0"}
    assert lost_nodes(nodes_not_ready(299), NOW, 300) == set()
    assert lost_nodes(nodes_not_ready(None), NOW, 300) == set(), "nobody says since when"
    assert lost_nodes(nodes_not_ready(301, 400), NOW, 300) == {"node-0", "node-1"}
    assert lost_nodes(nodes_not_ready(301, 400, 5), NOW, 300) == set(), "most nodes: nobody hears them"
    assert lost_nodes(nodes_not_ready(*[400] * 5), NOW, 300) == set()


def test_a_job_on_a_lost_node_is_placed_elsewhere() -> None:
    nodes = nodes_not_ready(400, of=3)
    running = JobMemory(JobProgress(), Allocation((("node-0", 4),), 1200, 300.0), running=True)
    job = job_view(gpus={"min": 4, "max": 4})
    for seconds, place in ((math.inf, "node-0"), (300.0, "node-1")):
        snapshot = build_snapshot(
            nodes=nodes,
            rules={},
            budgets=[],
            jobs=[(job, running)],
            models_of=lambda job: (PRIOR,),
            now=NOW,
            restart_seconds=30.0,
            guard_fraction=0.05,
            evacuate_after_seconds=seconds,
        )
        (decided,) = plan(snapshot).decisions
        assert decided.allocation is not None
        assert {name for name, _ in decided.allocation.nodes} == {place}


@pytest.mark.parametrize(
    ("mute", "doubt", "stays"),
    [(1, "", False), (2, "", True), (3, "", True), (10, "", True), (4, "silent", False), (5, "silent", True)],
)
def test_starts_are_placed_anew_where_a_node_does_not_answer_and_not_where_some_are_late_or_half_do_not(
    mute: int, doubt: str, stays: bool
) -> None:
    """Else a slow API server is asked for more, the slower it is: every start is stopped and made anew elsewhere."""
    nodes = {
        f"node-{index}": structs.replace(
            ready_node(f"node-{index}"), responsive=index >= mute, doubt=doubt if index < mute else ""
        )
        for index in range(10)
    }
    starting = JobMemory(JobProgress(), Allocation((("node-0", 4),), 1200, 300.0), running=False, holds_gpus=False)
    snapshot = snapshot_of([(job_view(gpus={"min": 4, "max": 4}), starting)], list(nodes.values()))
    (state,) = snapshot.jobs
    assert (state.current is not None) is stays


def test_a_start_does_not_wait_for_a_cordoned_node_however_many_do_not_answer() -> None:
    nodes = [structs.replace(ready_node(f"node-{index}"), responsive=False) for index in range(3)]
    nodes.append(ready_node("node-3", unschedulable=True))
    starting = JobMemory(JobProgress(), Allocation((("node-3", 4),), 1200, 300.0), running=False, holds_gpus=False)
    (state,) = snapshot_of([(job_view(gpus={"min": 4, "max": 4}), starting)], nodes).jobs
    assert state.current is None
