"""From API objects to the planner's snapshot."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from flyball_operator.books import JobBooks
from flyball_operator.grants import CapBudget
from flyball_operator.picture import NodePicture, picture_nodes
from flyball_operator.requests import JobView, read_job
from flyball_operator.snapshot import (
    JobMemory,
    build_snapshot,
    node_state,
    planning_key,
    recorded_allocation,
    wants_gpus,
)
from flyball_operator.wanting import NodeRules
from flyball_planner.cluster import Allocation, ClusterSnapshot, Enforcement, JobState, Objective
from flyball_planner.gpu_models import gpu_model_for
from flyball_planner.model_classes import model_class_prior
from flyball_planner.plan import plan
from operator_objects import (
    A100,
    DEFAULT,
    FLOOR,
    NOW,
    Json,
    gpu_node_view,
    grant,
    incarnation_view,
    job_view,
    node_view,
    raw_device,
    raw_job,
    ready_picture,
    running_pod,
)

MODEL = gpu_model_for(A100)
assert MODEL is not None
PRIOR = model_class_prior("resnet50", MODEL)
ALLOCATION = Allocation((("a", 4),), 1200, 300.0)
IDLE = JobMemory(JobBooks(), None, running=False, holds_gpus=False)


def snapshot_of(
    jobs: list[tuple[JobView, JobMemory]],
    pictures: list[NodePicture] | None = None,
    rules: dict[str, NodeRules] | None = None,
    budgets: list[CapBudget] | None = None,
) -> ClusterSnapshot:
    return build_snapshot(
        pictures={picture.name: picture for picture in pictures or [ready_picture("a")]},
        rules=rules or {},
        budgets=budgets or [],
        jobs=jobs,
        models_of=lambda job: (PRIOR,),
        now=NOW,
        restart_seconds=30.0,
        guard_fraction=0.05,
    )


def state_of(memory: JobMemory = IDLE, pictures: list[NodePicture] | None = None, **spec: Any) -> JobState:
    (state,) = snapshot_of([(job_view(**spec), memory)], pictures).jobs
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
    books = JobBooks(iterations=400.0, settled_millijoules=30_000_000, attained_gpu_seconds=99.0)
    state = state_of(
        JobMemory(books, ALLOCATION, running=True),
        energy={"budgetKilojoules": 100, "onExhausted": "Suspend"},
        deadline="2030-06-01T13:00:00Z",
        clocks={"minMegahertz": 900, "maxMegahertz": 1200},
        powerLimit={"maxWatts": 350},
        objective="Time",
        priority=5,
        elasticity={"mode": "CheckpointRestart", "minSecondsBetweenResizes": 60},
    )
    assert (state.remaining_iterations, state.remaining_energy_joules) == (600, 70_000.0)
    assert (state.seconds_to_deadline, state.attained_gpu_seconds) == (3600.0, 99.0)
    assert (state.clock_min_megahertz, state.clock_max_megahertz, state.power_limit_max_watts) == (900, 1200, 350)
    assert (state.objective, state.priority, state.current, state.resizable) == (Objective.TIME, 5, ALLOCATION, True)


@pytest.mark.parametrize(
    ("running", "mode", "seconds_ago", "resizable"),
    [
        (True, "CheckpointRestart", None, True),
        (True, "CheckpointRestart", 600, True),
        (True, "CheckpointRestart", 599, False),
        (False, "CheckpointRestart", 3600, False),  # it is on its way already
        (True, "Never", 3600, False),
    ],
)
def test_resizable(running: bool, mode: str, seconds_ago: int | None, resizable: bool) -> None:
    status: Json = {}
    if seconds_ago is not None:
        status["lastResizeTime"] = (NOW - timedelta(seconds=seconds_ago)).strftime("%Y-%m-%dT%H:%M:%SZ")
    state = state_of(JobMemory(JobBooks(), ALLOCATION, running), elasticity={"mode": mode}, status=status)
    assert state.resizable is resizable
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
    memory = JobMemory(JobBooks(), ALLOCATION, running=False, holds_gpus=holds_gpus)
    state = state_of(memory, [ready_picture("a", **node), ready_picture("b")])
    assert (state.current == ALLOCATION) is stays
    assert state.resizable is not stays


@pytest.mark.parametrize(
    ("action", "wants", "throttled"), [("Throttle", True, True), ("Suspend", False, False), ("Fail", False, False)]
)
def test_a_spent_budget(action: str, wants: bool, throttled: bool) -> None:
    memory = JobMemory(JobBooks(settled_millijoules=5_000_000), ALLOCATION, running=True)
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
    assert wants_gpus(job, JobBooks(), refused) is wants
    memory = JobMemory(JobBooks(), None, running=False, refused=refused)
    assert bool(snapshot_of([(job, memory)]).jobs) is wants


def test_a_job_that_is_being_deleted_wants_nothing() -> None:
    raw = raw_job()
    raw["metadata"]["deletionTimestamp"] = "2030-06-01T11:59:00Z"
    assert not wants_gpus(read_job(raw), JobBooks(), refused=False)


def test_work_that_is_overdue_still_has_an_end() -> None:
    assert state_of(JobMemory(JobBooks(iterations=5000.0), None, running=False)).remaining_iterations == 1.0
    assert state_of(training={"globalBatchSize": 256}).remaining_iterations is None


def test_jobs_come_in_the_order_of_their_submission() -> None:
    jobs = [(job_view(name), IDLE) for name in ("b", "c", "a")]
    assert [state.name for state in snapshot_of(jobs).jobs] == ["team/a", "team/b", "team/c"]


# --- what it was last given --------------------------------------------------------------------------------------


def test_the_status_tells_what_a_job_was_last_given() -> None:
    status: Json = {
        "allocation": {
            "nodes": [{"name": "a", "gpus": 4}],
            "clockMegahertz": 1200,
            "powerLimitWatts": 300,
        }
    }
    assert recorded_allocation(job_view(status=status), []) == ALLOCATION


def test_or_else_its_newest_incarnation_does() -> None:
    incarnations = [
        incarnation_view("uid-train", 2, ("b", 4)),
        incarnation_view("uid-train", 1, ("a", 4)),
        incarnation_view("uid-train", 3, ("c", 4), deleting=True),
    ]
    found = recorded_allocation(job_view(), incarnations)
    assert found is not None
    assert found.nodes == (("b", 4),)
    assert recorded_allocation(job_view(), []) is None
    assert recorded_allocation(job_view(status={"allocation": {"gpus": 0, "nodes": []}}), []) is None


# --- nodes -------------------------------------------------------------------------------------------------------


def test_a_node_that_can_be_planned_with() -> None:
    state = node_state(ready_picture("a"), NodeRules())
    assert state is not None
    assert (state.name, state.gpus, state.schedulable, state.fixed_hold_watts) == ("a", 8, True, None)
    assert (state.idle_power_limit_watts, state.lost_power_limit_watts) == (100.0, 400.0)


def test_gpus_that_are_not_ours_or_lost() -> None:
    pods = (running_pod("theirs", "a", gpus=2),)
    devices = [raw_device(index, healthy=index > 0) for index in range(8)]
    state = node_state(ready_picture("a", pods=pods, devices=devices), NodeRules())
    limited = node_state(ready_picture("a", pods=pods), NodeRules(limit_foreign_pods=True))
    assert state is not None
    assert limited is not None
    assert (state.foreign_gpus, state.foreign_power_limit_watts, state.lost_gpus) == (2, 400.0, 1)
    assert limited.foreign_power_limit_watts == 100.0


def test_a_node_that_cannot_be_commanded_holds_what_it_holds() -> None:
    view = gpu_node_view("a", grant(8 * FLOOR), limits=8 * 250_000)
    picture = picture_nodes([node_view("a")], {"a": view}, [], frozenset(["a"]))["a"]
    state = node_state(picture, NodeRules())
    assert state is not None
    assert (state.fixed_hold_watts, state.schedulable) == (2000.0, False)


def test_nodes_of_unknown_gpus_count_against_their_caps_all_the_same() -> None:
    unknown = picture_nodes([node_view("x", 2, product="Unheard-Of")], {}, [], frozenset())["x"]
    budgets = [CapBudget("row", frozenset(["a", "x"]), 10_000_000), CapBudget("other", frozenset(["a"]), 5_000_000)]
    snapshot = snapshot_of([], [ready_picture("a"), unknown], budgets=budgets)
    assert [node.name for node in snapshot.nodes] == ["a"]
    assert [(cap.name, cap.budget_watts, cap.node_names) for cap in snapshot.caps] == [
        ("other", 5000.0, frozenset(["a"])),
        ("row", 10_000.0 - 2 * 1400.0, frozenset(["a"])),
    ]


def test_caps() -> None:
    budgets = [CapBudget("hard", frozenset(["a"]), 1_500_500), CapBudget("soft", frozenset(["a"]), 1, expected=True)]
    hard, soft = snapshot_of([], budgets=budgets).caps
    assert (hard.budget_watts, hard.enforcement) == (1500.5, Enforcement.HARD)
    assert (soft.budget_watts, soft.enforcement) == (0.001, Enforcement.EXPECTED)


# --- when to plan again ------------------------------------------------------------------------------------------


def test_only_what_moves_by_itself_is_left_out_of_the_key() -> None:
    spec: Json = {"energy": {"budgetKilojoules": 100}, "deadline": "2030-06-02T00:00:00Z"}

    def key(books: JobBooks, **changes: Any) -> ClusterSnapshot:
        return planning_key(snapshot_of([(job_view(**spec, **changes), JobMemory(books, ALLOCATION, True))]))

    first = key(JobBooks())
    assert key(JobBooks(iterations=9.0, settled_millijoules=5, attained_gpu_seconds=7.0)) == first
    assert key(JobBooks(settled_millijoules=10**8)) != first  # the budget is spent
    assert key(JobBooks(), priority=1) != first
    now = snapshot_of([])
    assert now.now_seconds == NOW.timestamp()
    assert planning_key(replace(now, now_seconds=NOW.timestamp() + 1.0)) == planning_key(now)


def test_the_planner_takes_it() -> None:
    budgets = [CapBudget("row", frozenset(["a"]), 8 * DEFAULT)]
    snapshot = snapshot_of([(job_view(), IDLE)], budgets=budgets)
    decided = plan(snapshot).decision("uid-train")
    assert decided is not None
    assert decided.allocation is not None
