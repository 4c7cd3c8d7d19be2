"""Of which jobs' pipelines a plan is to be made by what they have measured, and what their statuses say of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from flyball_api.energy_aware_job import MeasuredPlan, read_energy_aware_job
from flyball_frontiers.pipeline import PipelineProfile
from flyball_operator.jobs.pipeline_plans import RETRY_SECONDS, PlanMaking, PlanPipeline, plan_to_make
from flyball_operator.report.announcements.jobs import job_announcements

from tests.support.one_job import UID, A, Cluster
from tests.support.operator_objects import gpu_node_view, incarnation_view, raw_job, running_pod

PIPELINE = {
    "stages": 2,
    "microbatches": 16,
    "plan": {"configMap": "gpt3", "measure": {"highestMegahertz": 1410, "lowestMegahertz": 900, "stepMegahertz": 60}},
}


def stage(number: int, seconds: float = 0.2, waiting: int = 55_000) -> dict[str, Any]:
    rows = "".join(f"{name},{clock},{seconds * 1410 / clock:.6f},30.5\n" for name in "fb" for clock in (1410, 1200))
    return {"stage": number, "waitingMilliwatts": waiting, "rows": rows}


class Measuring(Cluster):
    """A running job whose stages are measured on node a (and, by a node that lies, elsewhere)."""

    def __init__(self, pipeline: dict[str, Any] | None = None, **keywords: Any) -> None:
        super().__init__(raw=raw_job(pipeline=PIPELINE if pipeline is None else pipeline, **keywords))
        self.incarnations = [incarnation_view(UID, 1, A)]
        self.pods = [running_pod("p1", "a", uid=UID, incarnation=1, gpus=4)]

    def reported(self, *stages: dict[str, Any], node: str = "a", **other: Any) -> None:
        report = {
            "namespace": "research", "name": "train", "uid": UID, "incarnation": 1, "podName": "p1", "gpus": 4,
            "stages": list(stages), **other,
        }  # fmt: skip
        self.gpu_nodes = {node: gpu_node_view(node, None, reports=[report])}

    def plans(self, seconds: float = 1.0) -> list[PlanPipeline]:
        self.cycle(seconds)
        return list(self.step.plans)

    def plan(self) -> PlanPipeline:
        (plan,) = self.plans()
        return plan


def test_a_plan_is_made_once_all_stages_are_measured() -> None:
    cluster = Measuring()
    assert cluster.plans() == []
    cluster.reported(stage(1, 0.3, waiting=60_000))
    assert cluster.plans() == [], "a stage is missing"
    cluster.reported(stage(1, 0.3, waiting=60_000), stage(0))
    plan = cluster.plan()
    assert (plan.job.uid, plan.source.config_map, plan.source.key) == (UID, "gpt3", "plan.json")
    assert (plan.microbatches, plan.blocking_watts) == (16, 57.5)
    profile = PipelineProfile.from_csv(plan.profile)
    assert set(profile.points) == {(number, name) for number in (0, 1) for name in "fb"}
    assert [point.clock_megahertz for point in profile.points[0, "f"]] == [1410, 1200]


def test_nobody_elses_word_makes_a_plan() -> None:
    cluster = Measuring()
    whole = (stage(0), stage(1))
    cluster.reported(*whole, incarnation=2)
    assert cluster.plans() == [], "of another start"
    cluster.reported(*whole, ended=True)
    assert cluster.plans() == [], "of a pod that has ended"
    cluster.reported(*whole, node="b")
    assert cluster.plans() == [], "of a node that has none of its pods"
    plain = Measuring({**PIPELINE, "plan": {"configMap": "gpt3"}})
    plain.reported(*whole)
    assert plain.plans() == [], "of a job that does not ask for it"


def test_what_was_made_is_made_once_and_told_by_status_and_event() -> None:
    cluster = Measuring()
    cluster.reported(stage(0), stage(1))
    plan = cluster.plan()
    before = read_energy_aware_job(cluster.raw)
    cluster.controller.plan_ended(plan, PlanMaking("ConfigMap gpt3 has the plan", made=True), cluster.now)
    assert cluster.plans() == []
    status = cluster.raw["status"]["measuredPlan"]
    assert (status["outcome"], status["message"]) == ("Made", "ConfigMap gpt3 has the plan")
    after = read_energy_aware_job(cluster.raw)
    (told,) = [item for item in job_announcements(before, after.status) if "Plan" in item.reason]
    assert (told.reason, told.warning, told.note) == ("PipelinePlanned", False, "ConfigMap gpt3 has the plan")
    assert not [item for item in job_announcements(after, after.status) if "Plan" in item.reason]
    cluster.new_operator()
    assert cluster.plans() == [], "nor by the next operator"
    cluster.reported(stage(0), stage(1, 0.31))
    assert cluster.plan().digest != plan.digest, "of other measurements another one is"


def test_measurements_that_stand_are_worked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cycle over thousands of measured stages costs no more for them: cuts wait for what it works out before."""
    worked: list[str] = []

    def counted(*given: Any) -> PlanPipeline | None:
        worked.append("")
        return plan_to_make(*given)

    monkeypatch.setattr("flyball_operator.jobs.steps.pipelines.plan_to_make", counted)
    cluster = Measuring()
    cluster.reported(stage(0), stage(1))
    plan = cluster.plan()
    for _ in range(3):
        cluster.reported(stage(0), stage(1))  # with another report of the node
        assert cluster.plan().digest == plan.digest
    assert len(worked) == 1, "while the plan is being made"
    cluster.controller.plan_ended(plan, PlanMaking("ConfigMap gpt3 has the plan", made=True), cluster.now)
    for _ in range(3):
        cluster.reported(stage(0), stage(1))
        assert cluster.plans() == []
    assert len(worked) == 2, "once it is made"
    cluster.reported(stage(0), stage(1, 0.31))
    assert cluster.plan().digest != plan.digest
    cluster.reported(stage(0), stage(1))
    assert cluster.plans() == []


def test_whose_plan_was_made_longest_ago_comes_first() -> None:
    """A job that measures something else all the time takes no other job's turn."""
    cluster = Measuring()
    view = read_energy_aware_job(cluster.raw)
    cluster.reported(stage(0), stage(1))
    plan = cluster.plan()
    cluster.controller.plan_ended(plan, PlanMaking("ConfigMap gpt3 is there already"), cluster.now)
    cluster.reported(stage(0), stage(1, 0.31))
    world, uid = cluster.world(), "uid-other"
    other = replace(view, metadata=msgspec.structs.replace(view.metadata, uid=uid, name="other"))
    world = replace(
        world,
        jobs={**world.jobs, uid: other},
        incarnations={**world.incarnations, uid: [incarnation_view(uid, 1, A)]},
        pods_of={**world.pods_of, uid: [running_pod("other", "a", uid=uid, incarnation=1, gpus=4)]},
        reports_of={**world.reports_of, uid: world.reports_of[UID]},
    )
    cluster.cycle(1.0, world, statuses_wait=True)
    assert [item.job.uid for item in cluster.step.plans] == [uid, UID]


def test_what_cannot_be_made_is_tried_again_only_where_that_may_help() -> None:
    cluster = Measuring()
    cluster.reported(stage(0), stage(1))
    plan = cluster.plan()
    before = read_energy_aware_job(cluster.raw)
    cluster.controller.plan_ended(plan, PlanMaking("the planner is away", final=False), cluster.now)
    assert cluster.plans() == []
    first = cluster.raw["status"]["measuredPlan"]
    (told,) = [
        item for item in job_announcements(before, read_energy_aware_job(cluster.raw).status) if "Plan" in item.reason
    ]
    assert (told.reason, told.warning) == ("PipelineNotPlanned", True)
    assert [again.digest for again in cluster.plans(RETRY_SECONDS)] == [plan.digest]
    cluster.controller.plan_ended(plan, PlanMaking("the planner is away", final=False), cluster.now)
    cluster.cycle(1.0)
    assert cluster.raw["status"]["measuredPlan"] == first, "that is no news"
    cluster.new_operator()
    assert cluster.plan().digest == plan.digest
    cluster.controller.plan_ended(plan, PlanMaking("row 3: no such clock"), cluster.now)
    assert cluster.plans(RETRY_SECONDS) == []
    measured = read_energy_aware_job(cluster.raw).status.measured_plan
    assert isinstance(measured, MeasuredPlan)
    assert (measured.outcome, measured.profile, measured.message) == ("NotMade", plan.digest, "row 3: no such clock")
