"""The keeper over several cycles and operators: nothing counted twice, nothing lost, nothing written without news."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from flyball_operator.conditions import as_stored
from flyball_operator.execute import Executor
from flyball_operator.gpu_nodes import GpuNodeView, read_gpu_node
from flyball_operator.incarnations import Action, CreateIncarnation, OpenGates, StopIncarnation
from flyball_operator.job_keeper import JobKeeper, KeptJob
from flyball_operator.picture import NodePicture, picture_nodes
from flyball_operator.requests import JobView, read_job
from flyball_operator.settings import Settings
from flyball_operator.workloads import IncarnationView, PodView
from flyball_operator.world import World
from flyball_planner.cluster import JobDecision
from flyball_planner.gpu_models import gpu_model_for
from flyball_planner.model_classes import model_class_prior
from flyball_planner.models import JobModel
from operator_objects import (
    A100,
    FLOOR,
    NOW,
    Json,
    decision,
    grant,
    incarnation_view,
    job_grant,
    node_view,
    pod_view,
    raw_device,
    raw_gpu_node,
    raw_job,
    raw_report,
    running_pod,
)

UID = "uid-train"
A = ("a", 4)
INTERVAL = 5.0

MODEL = gpu_model_for(A100)
assert MODEL is not None
PRIOR = model_class_prior("resnet50", MODEL)


class Priors:
    def model_for(self, job: JobView, pictures: Mapping[str, NodePicture]) -> JobModel:
        return PRIOR


class RecordingExecutor(Executor):
    """Refuses or takes what it is told, as the API server would."""

    def __init__(self, refused: str = "", done: bool = True) -> None:
        self.refused, self.done = refused, done
        self.taken: list[str] = []

    async def create_incarnation(
        self, job: JobView, incarnation: int, nodes: tuple[tuple[str, int], ...]
    ) -> tuple[bool, str]:
        self.taken.append(f"create {incarnation}")
        return self.done and not self.refused, self.refused

    async def stop_incarnation(self, action: StopIncarnation) -> bool:
        self.taken.append(f"stop {action.incarnation.incarnation}")
        return self.done

    async def open_gates(self, action: OpenGates, hostnames: Mapping[str, str]) -> bool:
        self.taken.append(f"open {len(action.pods)}")
        return self.done


@dataclass
class Cluster:
    """One job and what stands of it, as cycles of one or several operators find it."""

    raw: Json = field(default_factory=raw_job)
    incarnations: Sequence[IncarnationView] = ()
    pods: Sequence[PodView] = ()
    decisions: dict[str, JobDecision] = field(default_factory=lambda: {UID: decision(UID, A)})
    gpu_nodes: dict[str, GpuNodeView] = field(default_factory=dict)
    now: datetime = NOW
    monotonic: float = 100.0
    keeper: JobKeeper = field(default_factory=lambda: JobKeeper(Settings(status_interval_seconds=INTERVAL), Priors()))
    world: World | None = None
    kept: dict[str, KeptJob] = field(default_factory=dict)

    def cycle(self, seconds: float = 0.0) -> list[Action]:
        """Look, and say what to do."""
        self.now += timedelta(seconds=seconds)
        self.monotonic += seconds
        job = read_job(self.raw)
        nodes = [node_view("a"), node_view("b")]
        reports: dict[str, list[Any]] = {}
        for name, view in self.gpu_nodes.items():
            for report in view.reports:
                reports.setdefault(report.uid, []).append((name, report))
        self.world = World(
            jobs={job.uid: job},
            caps=[],
            gpu_nodes=self.gpu_nodes,
            nodes=nodes,
            pods=list(self.pods),
            incarnations={job.uid: list(self.incarnations)},
            pods_of={job.uid: list(self.pods)},
            reports_of=reports,
            unread=(),
            age_seconds=0.0,
        )
        pictures = picture_nodes(nodes, self.gpu_nodes, self.pods, frozenset())
        self.kept = self.keeper.keep(self.world, pictures, self.decisions, self.now, self.monotonic)
        return [action for _, action in self.keeper.actions(self.kept, self.decisions, {}, set())]

    def statuses(self) -> list[Json]:
        """What the keeper would write now; written, and told to the next cycle."""
        writes = self.keeper.statuses(self.kept, self.decisions, 1, self.now, self.monotonic)
        for _, status in writes:
            self.raw["status"] = as_stored(status)
        return [status for _, status in writes]

    def act(self, executor: RecordingExecutor) -> None:
        actions = self.keeper.actions(self.kept, self.decisions, {}, set())
        for kept, action in actions:
            asyncio.run(self.keeper.act(executor, kept, action, {}))

    def new_operator(self) -> None:
        self.keeper = JobKeeper(Settings(status_interval_seconds=INTERVAL), Priors())

    def run_on(self, number: int) -> None:
        """Incarnation `number` runs."""
        self.incarnations = [incarnation_view(UID, number, A)]
        self.pods = [running_pod(f"p{number}", "a", uid=UID, incarnation=number, gpus=4)]

    def fail(self, number: int, exit_code: int = 1) -> None:
        self.incarnations = [incarnation_view(UID, number, A, condition="Failed")]
        self.pods = [
            pod_view(f"p{number}", uid=UID, incarnation=number, gpus=4, node="a", phase="Failed", exit_code=exit_code)
        ]

    @property
    def status(self) -> Json:
        return dict(self.raw["status"])


# --- failures ----------------------------------------------------------------------------------------------------


def test_a_failed_incarnation_is_removed_once_its_failure_is_in_the_status() -> None:
    cluster = Cluster()
    cluster.fail(1)
    assert cluster.cycle() == []
    cluster.statuses()
    assert (cluster.status["restarts"], cluster.status["lastFailedIncarnation"]) == (1, 1)
    (stop,) = cluster.cycle()
    assert isinstance(stop, StopIncarnation)
    cluster.statuses()
    assert cluster.status["restarts"] == 1


@pytest.mark.parametrize("dies", ["before the write", "after the write", "after the stop"])
def test_a_failure_is_neither_lost_nor_counted_twice_by_the_next_operator(dies: str) -> None:
    cluster = Cluster()
    cluster.fail(1)
    cluster.cycle()
    if dies != "before the write":
        cluster.statuses()
        cluster.cycle()
    cluster.new_operator()
    if dies == "after the stop":
        cluster.incarnations, cluster.pods = (), ()
    for _ in range(3):
        cluster.cycle()
        cluster.statuses()
    assert cluster.status["restarts"] == 1
    cluster.fail(2)
    cluster.cycle()
    cluster.statuses()
    assert (cluster.status["restarts"], cluster.status["lastFailedIncarnation"]) == (2, 2)


def test_clean_stops_do_not_count() -> None:
    cluster = Cluster()
    cluster.fail(1, exit_code=143)
    (stop,) = cluster.cycle()
    assert isinstance(stop, StopIncarnation)
    cluster.statuses()
    assert cluster.status["restarts"] == 0


def test_after_the_last_restart_the_job_fails_and_keeps_its_pods() -> None:
    cluster = Cluster(raw_job(failurePolicy={"maxRestarts": 1}))
    for number in (1, 2):
        cluster.fail(number)
        cluster.cycle()
        cluster.statuses()
        actions = cluster.cycle()
        assert [type(action) for action in actions] == ([StopIncarnation] if number == 1 else [])
    assert cluster.status["state"] == "Failed"
    assert "exit code 1; failurePolicy.maxRestarts 1 allows no further restart" in cluster.status["explanation"]
    assert cluster.kept == {}  # it has ended


def test_a_complete_incarnation_ends_the_job() -> None:
    cluster = Cluster(incarnations=[incarnation_view(UID, 1, A, condition="Complete")])
    assert cluster.cycle() == []
    cluster.statuses()
    assert cluster.status["state"] == "Succeeded"


def test_a_budget_that_is_spent_ends_the_job_once_its_pods_have_left() -> None:
    raw = raw_job(
        energy={"budgetKilojoules": 1, "onExhausted": "Fail"}, status={"energy": {"settledMillijoules": 10**6}}
    )
    cluster = Cluster(raw)
    cluster.run_on(1)
    (stop,) = cluster.cycle()
    assert isinstance(stop, StopIncarnation)
    cluster.statuses()
    assert cluster.status["state"] == "Stopping"
    cluster.incarnations, cluster.pods = (), ()
    cluster.cycle()
    cluster.statuses()
    assert cluster.status["state"] == "Failed"


# --- starting ----------------------------------------------------------------------------------------------------


def test_a_new_leader_starts_nothing_before_its_first_plan() -> None:
    cluster = Cluster(raw_job(status={"allocation": {"nodes": [{"name": "a", "gpus": 4}], "gpus": 4}}), decisions={})
    assert cluster.cycle() == []
    cluster.decisions = {UID: decision(UID, A)}
    assert cluster.cycle() == [CreateIncarnation(UID, 1, (A,))]


def test_a_new_leader_leaves_alone_what_runs_as_recorded() -> None:
    cluster = Cluster(
        raw_job(status={"allocation": {"nodes": [{"name": "a", "gpus": 4}], "incarnation": 1}}), decisions={}
    )
    cluster.run_on(1)
    assert cluster.cycle() == []


def test_a_gate_opens_only_where_the_api_has_the_grant_that_is_wanted() -> None:
    cluster = Cluster(incarnations=[incarnation_view(UID, 1, A)], pods=[pod_view("p1", uid=UID, gpus=4, gated=True)])
    cluster.cycle()
    wanted = {("p1", UID): job_grant(UID, 300_000, 4, pod="p1")}
    for granted, opens in ((set(), False), ({("p1", UID, 100_000)}, False), ({("p1", UID, 300_000)}, True)):
        actions = cluster.keeper.actions(cluster.kept, cluster.decisions, wanted, granted)
        assert [type(action) for _, action in actions] == [OpenGates] * opens


def test_what_the_api_server_refuses_is_said_and_not_tried_again_by_any_operator() -> None:
    cluster = Cluster()
    cluster.cycle()
    executor = RecordingExecutor(refused="spec.containers[0].name: Invalid value")
    cluster.act(executor)
    assert executor.taken == ["create 1"]
    for _ in range(2):
        assert cluster.cycle(INTERVAL) == []
        cluster.statuses()
        assert cluster.kept[UID].memory.refused
        assert (cluster.status["state"], cluster.status["explanation"]) == (
            "InvalidSpec",
            "spec.containers[0].name: Invalid value",
        )
        cluster.new_operator()
    # A new spec is tried.
    cluster.raw["metadata"]["generation"] = 2
    assert cluster.cycle() == [CreateIncarnation(UID, 1, (A,))]
    assert not cluster.kept[UID].memory.refused


def test_a_template_that_no_job_can_be_made_of_is_refused_in_our_words() -> None:
    cluster = Cluster(raw_job(template={"spec": {"containers": []}}))
    cluster.cycle()

    class Manifests(RecordingExecutor):
        async def create_incarnation(
            self, job: JobView, incarnation: int, nodes: tuple[tuple[str, int], ...]
        ) -> tuple[bool, str]:
            raise ValueError("must name at least one container")

    cluster.act(Manifests())
    cluster.cycle()
    cluster.statuses()
    assert cluster.status["explanation"] == "must name at least one container"


def test_a_resize_is_remembered() -> None:
    cluster = Cluster()
    cluster.cycle()
    cluster.act(RecordingExecutor())
    cluster.cycle()
    cluster.statuses()
    assert cluster.status["lastResizeTime"] == "2030-06-01T12:00:00Z"
    cluster.new_operator()
    cluster.cycle(60)
    cluster.statuses()
    assert cluster.status["lastResizeTime"] == "2030-06-01T12:00:00Z"


# --- statuses ----------------------------------------------------------------------------------------------------


def test_nothing_is_written_without_news() -> None:
    cluster = Cluster(decisions={UID: decision(UID)})
    cluster.cycle()
    assert len(cluster.statuses()) == 1
    for _ in range(3):
        cluster.cycle(10 * INTERVAL)
        assert cluster.statuses() == []
    cluster.new_operator()
    cluster.cycle()
    assert cluster.statuses() == []


def test_a_new_leader_says_nothing_before_its_first_plan_and_little_after_it() -> None:
    cluster = Cluster()
    cluster.run_on(1)
    cluster.cycle()
    (before,) = cluster.statuses()
    decisions, cluster.decisions = cluster.decisions, {}
    cluster.new_operator()
    for _ in range(3):
        cluster.cycle(INTERVAL)
        assert cluster.statuses() == []
    assert cluster.status["allocation"] == before["allocation"]
    cluster.decisions = decisions
    cluster.cycle(1.0)
    cluster.statuses()
    cluster.cycle(1.0)
    writes = cluster.keeper.statuses(cluster.kept, cluster.decisions, 2, cluster.now, cluster.monotonic)
    assert writes == []  # that another leads now is no news


def test_a_job_that_was_resumed_is_told_to_be_planned() -> None:
    cluster = Cluster(raw_job(suspend=True), decisions={})
    cluster.cycle()
    assert cluster.statuses()[0]["state"] == "Suspended"
    cluster.raw["spec"]["suspend"] = False
    cluster.raw["metadata"]["generation"] = 2
    cluster.cycle()
    assert cluster.statuses()[0]["state"] == "Planning"


def test_a_new_story_is_written_at_once_and_new_figures_at_the_interval() -> None:
    cluster = Cluster()
    cluster.run_on(1)
    cluster.cycle()
    assert len(cluster.statuses()) == 1
    cluster.cycle(1.0)
    assert cluster.statuses() == []  # only figures have moved
    cluster.cycle(INTERVAL)
    assert len(cluster.statuses()) == 1
    cluster.decisions = {UID: decision(UID, A, clock=900)}
    cluster.cycle()
    (status,) = cluster.statuses()
    assert status["allocation"]["clockMegahertz"] == 900


def with_limits(*, acknowledged: bool) -> dict[str, GpuNodeView]:
    """Node a, its first four GPUs held by the job's pod, at limits between 250 and 280 W."""
    devices = [
        raw_device(index, pod=("team", "p1") if index < 4 else None, enforcedMilliwatts=250_000 + 10_000 * index)
        for index in range(8)
    ]
    given = grant(8 * FLOOR, jobs=(job_grant(UID, 280_000, 4, pod="p1"),))
    raw = raw_gpu_node("a", given, devices=devices, limits=8 * FLOOR, acknowledged=(1, 1 if acknowledged else 0))
    return {"a": read_gpu_node(raw)}


@pytest.mark.parametrize("acknowledged", [True, False])
def test_the_applied_limit_is_the_one_read_back(acknowledged: bool) -> None:
    cluster = Cluster(gpu_nodes=with_limits(acknowledged=acknowledged))
    cluster.run_on(1)
    cluster.cycle()
    (status,) = cluster.statuses()
    assert status["applied"]["powerLimitWatts"] == 280
    enforced = next(item for item in status["conditions"] if item["type"] == "PowerLimitsEnforced")
    assert enforced["status"] == str(acknowledged)


def test_a_limit_that_nobody_has_read_back_is_not_claimed() -> None:
    cluster = Cluster()
    cluster.run_on(1)
    cluster.cycle()
    (status,) = cluster.statuses()
    assert status["applied"]["powerLimitWatts"] is None


def test_energy_reported_after_the_end_is_still_paid_for() -> None:
    cluster = Cluster(incarnations=[incarnation_view(UID, 1, A, condition="Complete")])

    def tell(millijoules: int) -> None:
        raw = raw_gpu_node("a", grant(8 * FLOOR), reports=[raw_report(UID, 1, millijoules)])
        cluster.gpu_nodes = {"a": read_gpu_node(raw)}

    tell(5)
    cluster.cycle()
    cluster.statuses()
    assert cluster.status["state"] == "Succeeded"
    tell(9)
    cluster.cycle()
    assert cluster.world is not None
    ((_, late),) = cluster.keeper.late_energy(cluster.world)
    assert late["energy"]["incarnations"] == [{"key": "1/a", "millijoules": 9}]
    cluster.raw["status"]["energy"] |= late["energy"]
    cluster.cycle()
    assert cluster.keeper.late_energy(cluster.world) == []


def test_a_silent_script_advances_by_the_plans_rate() -> None:
    cluster = Cluster(decisions={UID: decision(UID, A, predicted_iteration_seconds=0.5)})
    cluster.run_on(1)
    cluster.cycle()
    cluster.cycle(10.0)
    books = cluster.kept[UID].books
    assert (books.iterations, books.estimated, books.attained_gpu_seconds) == (20.0, True, 40.0)


def test_a_job_that_cannot_be_understood_does_not_end_the_cycle(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    cluster.cycle()
    assert cluster.world is not None
    broken = replace(read_job(raw_job("broken")), status={"allocation": {"incarnation": "three"}})
    world = replace(cluster.world, jobs={**cluster.world.jobs, broken.uid: broken})
    kept = cluster.keeper.keep(world, {}, cluster.decisions, NOW, cluster.monotonic)
    assert list(kept) == [UID]
    assert "team/broken" in caplog.text


# --- the end -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "ttl", "expired"), [(59, 60, False), (60, 60, True), (10**6, None, False), (0, 0, True)]
)
def test_ended_jobs_are_removed_after_their_time(seconds: int, ttl: int | None, expired: bool) -> None:
    spec = {} if ttl is None else {"ttlSecondsAfterFinished": ttl}
    status: Json = {
        "conditions": [{"type": "Succeeded", "status": "True"}],
        "completionTime": "2030-06-01T12:00:00Z",
    }
    job = read_job(raw_job(status=status, **spec))
    keeper = JobKeeper(Settings(), Priors())
    assert keeper.expired([job], NOW + timedelta(seconds=seconds)) == ([job] if expired else [])


def test_jobs_that_have_not_ended_do_not_expire() -> None:
    keeper = JobKeeper(Settings(), Priors())
    assert keeper.expired([read_job(raw_job(ttlSecondsAfterFinished=0))], NOW) == []
