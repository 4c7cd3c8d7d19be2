"""What another cap would do, by the same planner on the same cluster."""

from __future__ import annotations

from typing import Any

import pytest
from flyball_api.reading import JsonObject
from flyball_operator.cluster.state import ClusterState
from flyball_operator.learning.learner import Learner
from flyball_operator.planning.what_if import CannotAsk, PlanningSettings, WhatIf, what_if, with_watts
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.operator_objects import FLOOR, NOW, cap_view, gpu_node_view, grant, job_view, node_view

GPUS = 8
PLANNING = PlanningSettings("powerflow-strict", 30.0, 0.05, ("nvidia.com/gpu",))


class NoProfiles:
    """An API without EnergyProfiles."""

    async def get(self, path: str, **params: str) -> JsonObject:
        return {"items": [], "metadata": {}}


def cluster(nodes: int = 2, watts: int = 6400, jobs: int = 2, unread: tuple[str, ...] = (), **cap: Any) -> ClusterState:
    """Nodes at their smallest limits under one cap, and jobs that wait, each for 1 to 8 GPUs."""
    names = [f"node-{index}" for index in range(nodes)]
    held = GPUS * FLOOR
    waiting = [
        job_view(f"job-{index}", training={"globalBatchSize": 256, "iterations": 100_000, "modelClass": "resnet50"},
                 objective="Time")
        for index in range(jobs)
    ]  # fmt: skip
    return ClusterState(
        jobs={job.uid: job for job in waiting},
        caps=[cap_view("hall", watts=watts, **cap)],
        gpu_nodes={name: gpu_node_view(name, grant(held), limits=held) for name in names},
        nodes=[node_view(name, GPUS) for name in names],
        pods=[],
        incarnations={},
        pods_of={},
        reports_of={},
        unread=unread,
        age_seconds=0.0,
    )


def ask(state: ClusterState, watts: int) -> WhatIf:
    return what_if(state, Learner(NoProfiles(), clock=lambda: 0.0), PLANNING, "hall", watts, NOW)


def test_a_lower_cap_takes_watts_and_time() -> None:
    found = ask(cluster(), 3000)
    assert (found.watts_before, found.watts_after) == (6400.0, 3000.0)
    assert found.committed_before > 3000.0 >= found.committed_after
    assert found.feasible_after
    assert {job.what for job in found.jobs} <= {"shrinks", "slower", "pauses"}
    assert sum(job.after.watts for job in found.jobs) < sum(job.before.watts for job in found.jobs)
    slower = [job for job in found.jobs if job.after.seconds is not None]
    assert all(job.after.seconds > job.before.seconds for job in slower)  # type: ignore[operator]
    assert found.joules_saved is not None


def test_a_higher_cap_gives_them_back() -> None:
    low = ask(cluster(watts=2400), 6400)
    assert {job.what for job in low.jobs} <= {"grows", "faster", "starts"}
    assert low.committed_after > low.committed_before


def test_a_cap_below_what_the_nodes_draw_at_the_least_cannot_be_held() -> None:
    found = ask(cluster(), 1000)
    assert (found.feasible_before, found.feasible_after) == (True, False)
    assert found.least_watts == 1600.0
    assert {job.what for job in found.jobs} <= {"pauses", "shrinks", "slower"}


@settings(max_examples=examples(20))
@given(st.integers(1700, 6400))
def test_the_same_watts_change_nothing(watts: int) -> None:
    found = ask(cluster(watts=watts), watts)
    assert {job.what for job in found.jobs} <= {"as now", "waits as now"}
    assert found.committed_before == found.committed_after


def test_schedule_ramp_and_share_of_the_maximum_are_put_aside() -> None:
    state = cluster(schedule=[{"name": "all", "cron": "* * * * *", "durationSeconds": 60, "watts": 2000}])
    assert ask(state, 5000).watts_before == 2000.0
    assert ask(state, 5000).watts_after == 5000.0
    spec = with_watts(cap_view("hall", permilleOfMax=500, rampWattsPerSecond=1), 700).spec
    assert spec is not None
    assert (spec.watts, spec.permille_of_max, spec.ramp_watts_per_second) == (700, None, None)


def test_the_question_leaves_the_cluster_as_it_is() -> None:
    state = cluster()
    ask(state, 3000)
    assert state.caps == cluster().caps


@pytest.mark.parametrize(
    ("state", "cap", "watts", "why"),
    [
        (cluster(), "other", 3000, "there is no PowerCap other"),
        (cluster(staticOverheadWatts=500), "hall", 400, "staticOverheadWatts is 500"),
        (cluster(unread=("GPUNode node-9",)), "hall", 3000, "GPUNode node-9"),
        (cluster(watts=100, permilleOfMax=5), "hall", 3000, "exactly one of watts and permilleOfMax"),
    ],
)
def test_questions_without_an_answer(state: ClusterState, cap: str, watts: int, why: str) -> None:
    with pytest.raises(CannotAsk, match=why):
        what_if(state, Learner(NoProfiles(), clock=lambda: 0.0), PLANNING, cap, watts, NOW)
