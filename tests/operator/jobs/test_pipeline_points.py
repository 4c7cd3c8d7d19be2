"""Which point of its plan a pipeline is told to run at, as its job, its deadline and its grant change."""

from __future__ import annotations

import json
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from flyball_api.energy_aware_job import read_energy_aware_job
from flyball_api.names import ANNOTATION_PIPELINE_POINT, ANNOTATION_STRAGGLER, LABEL_MODE, MODE_OBSERVE
from flyball_operator.jobs.manifests import incarnation_job
from flyball_operator.jobs.pipeline_points import (
    LONGEST_POINT,
    PAUSE_SECONDS,
    SIGNIFICANT_SHARE,
    STRAGGLER_PAUSE_SECONDS,
)
from flyball_operator.jobs.steps import pipelines

from tests.support.one_job import UID, A, Cluster
from tests.support.operator_objects import NOW, decision, incarnation_view, job_view, pod_view, raw_job, running_pod

PIPELINE = {"stages": 4, "microbatches": 16, "plan": {"configMap": "gpt3"}}
TRAINING = {"globalBatchSize": 64, "iterations": 10_000}


class Pods:
    """A job's pods, as they are told: the API server's part."""

    def __init__(self, **spec: Any) -> None:
        self.cluster = Cluster(raw=raw_job(pipeline=PIPELINE, training=TRAINING, **spec))
        made = incarnation_job(job_view(pipeline=PIPELINE, training=TRAINING, **spec), 1, (A,), now=NOW)
        self.annotation: str = made["spec"]["template"]["metadata"]["annotations"][ANNOTATION_PIPELINE_POINT]
        self.cluster.incarnations = [incarnation_view(UID, 1, A)]
        self.grant(1410)
        self.run()

    def run(self, **keywords: Any) -> None:
        self.cluster.pods = [
            running_pod(
                "p1", "a", uid=UID, incarnation=1, gpus=4, annotations={ANNOTATION_PIPELINE_POINT: self.annotation},
                **keywords,
            )
        ]  # fmt: skip

    def grant(self, megahertz: int) -> None:
        self.cluster.decisions = {UID: decision(UID, A, clock=megahertz, predicted_iteration_seconds=1e6)}

    def change(self, **spec: Any) -> None:
        raw = self.cluster.raw
        self.cluster.raw = {
            **raw,
            "metadata": {**raw["metadata"], "generation": raw["metadata"].get("generation", 1) + 1},
            "spec": {**raw["spec"], **spec},
        }

    def annotate(self, straggler: str) -> None:
        raw = self.cluster.raw
        annotations = {ANNOTATION_STRAGGLER: straggler}
        self.cluster.raw = {**raw, "metadata": {**raw["metadata"], "annotations": annotations}}

    def told(self, seconds: float = PAUSE_SECONDS) -> dict[str, Any] | None:
        """What a cycle tells them."""
        actions = self.cluster.cycle(seconds)
        assert actions == [], "no restart"
        points = self.cluster.step.points
        if not points:
            return None
        (point,) = points
        assert [pod.name for pod in point.pods] == ["p1"]
        self.annotation = point.point
        self.run()
        return json.loads(point.point)  # type: ignore[no-any-return]


def test_what_stands_in_the_pods_is_not_told_again() -> None:
    pods = Pods(objective="Energy")
    assert pods.told() == {"objective": "Energy", "maxMegahertz": 1410}, "the grant is known now"
    assert [pods.told() for _ in range(3)] == [None] * 3
    pods.cluster.new_operator()
    assert pods.told() is None, "nor by the next operator"


def test_another_objective_deadline_or_clock_is_told_without_a_restart() -> None:
    pods = Pods(objective="Energy")
    pods.told()
    pods.change(objective="Time")
    assert pods.told() == {"objective": "Time", "maxMegahertz": 1410}
    pods.grant(990)
    assert pods.told() == {"objective": "Time", "maxMegahertz": 990}
    due = pods.cluster.now + timedelta(seconds=50_000 + PAUSE_SECONDS)
    pods.change(objective="Energy", deadline=due.isoformat())
    said = pods.told()
    assert said == {"objective": "Energy", "iterationSeconds": pytest.approx(0.95 * 5), "maxMegahertz": 990}


def test_a_deadline_that_comes_nearer_than_it_was_to_is_told() -> None:
    """Of a training that stands still: every second brings it nearer."""
    due = NOW + timedelta(seconds=50_000)
    pods = Pods(objective="Energy", deadline=due.isoformat())
    assert pods.told() is not None
    seconds = [0.95 * 5.0]
    for _ in range(40):
        said = pods.told(250.0)
        if said is not None:
            seconds.append(said["iterationSeconds"])
    steps = [1.0 - after / before for before, after in pairwise(seconds)]
    assert len(steps) > 5
    assert min(steps[1:]) > 0.9 * SIGNIFICANT_SHARE, "by no trifle"
    assert seconds[-1] == pytest.approx(0.95 * (due - pods.cluster.now).total_seconds() / 10_000, rel=0.03)


def test_pods_are_told_something_every_few_seconds_at_most() -> None:
    pods = Pods(objective="Energy")
    assert pods.told() is not None
    pods.change(objective="Time")
    assert pods.told(PAUSE_SECONDS / 2) is None
    assert pods.told(PAUSE_SECONDS / 2) is not None


@pytest.mark.parametrize("annotation", ["", "nonsense", "[]", '{"objective": 5}', '{"maxMegahertz": "x"}'])
def test_what_somebody_else_has_written_is_put_right(annotation: str) -> None:
    pods = Pods(objective="Energy")
    pods.annotation = annotation
    pods.run()
    assert pods.told() == {"objective": "Energy", "maxMegahertz": 1410}


def test_what_is_longer_than_all_that_is_told_is_put_right_and_not_read() -> None:
    """A pod's annotation may be a quarter of a megabyte, and those of all pods are looked at in each cycle."""
    pods = Pods()
    pods.told()
    pods.annotation = pods.annotation.ljust(LONGEST_POINT)
    pods.run()
    assert pods.told() is None
    pods.annotation += " "
    pods.run()
    assert pods.told() is not None
    assert len(pods.annotation) < LONGEST_POINT


@pytest.mark.parametrize("sign", ["", "-"])
def test_a_number_that_is_larger_than_any_that_is_told_is_put_right(sign: str) -> None:
    """Whoever may write to his own pods could end each cycle of the operator by it, for all jobs."""
    due = NOW + timedelta(seconds=50_000)
    pods = Pods(objective="Energy", deadline=due.isoformat())
    said = pods.told()
    assert said is not None
    pods.annotation = json.dumps(said).replace(str(said["iterationSeconds"]), sign + "9" * 400)
    pods.run()
    assert pods.told() is not None
    assert len(pods.annotation) < 400


def test_a_point_that_nobody_can_make_ends_no_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OverflowError

    pods = Pods(objective="Energy")
    with monkeypatch.context() as patched:
        patched.setattr(pipelines, "point_change", fails)
        assert pods.told() is None
    assert pods.told() is not None, "and it is told once it can be"


def test_nobody_else_is_told_anything() -> None:
    pods = Pods(objective="Energy")
    pods.cluster.pods = [
        pod_view("p1", node="a", uid=UID, incarnation=1, gpus=4, phase="Running", ready=True, deleting=True)
    ]
    pods.cluster.cycle(PAUSE_SECONDS)
    assert not pods.cluster.step.points
    plain = Cluster()
    plain.run_on(1)
    plain.cycle(PAUSE_SECONDS)
    assert not plain.step.points, "a job without a pipeline"


def test_a_straggler_that_somebody_announces_is_told_at_once_however_lately_they_were_told_something_else() -> None:
    pods = Pods(objective="Energy")
    assert pods.told() is not None
    pods.grant(990)
    pods.annotate("1.2 replica 1 until 2026-01-31T12:00:00+01:00")
    said = pods.told(STRAGGLER_PAUSE_SECONDS)
    assert said is not None
    assert said.pop("straggler") == {"degree": 1.2, "replica": 1, "until": "2026-01-31T11:00:00Z"}
    assert said == {"objective": "Energy", "maxMegahertz": 990}
    pods.annotate("1.3 from 2026-01-31T12:00:00Z")
    assert pods.told(STRAGGLER_PAUSE_SECONDS / 2) is None, "not as often as somebody may write it"
    said = pods.told(STRAGGLER_PAUSE_SECONDS / 2)
    assert said is not None
    assert said["straggler"] == {"degree": 1.3, "from": "2026-01-31T12:00:00Z"}
    pods.annotate("")
    said = pods.told(STRAGGLER_PAUSE_SECONDS)
    assert said is not None
    assert "straggler" not in said


def test_a_start_is_told_of_the_straggler_that_there_is_and_a_job_that_is_observed_of_none() -> None:
    raw = raw_job(pipeline=PIPELINE, training=TRAINING)
    raw["metadata"]["annotations"] = {ANNOTATION_STRAGGLER: "1.5"}
    for labels, told in ({}, {"degree": 1.5}), ({LABEL_MODE: MODE_OBSERVE}, None):
        raw["metadata"]["labels"] = labels
        made = incarnation_job(read_energy_aware_job(raw), 1, (A,), now=NOW)
        point = json.loads(made["spec"]["template"]["metadata"]["annotations"][ANNOTATION_PIPELINE_POINT])
        assert point.get("straggler") == told
