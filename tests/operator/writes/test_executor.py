"""Every write: fenced, against the object that was read, and no failure where another writer was first."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from flyball_api.energy_aware_job import EnergyAwareJobStatus, PlanSource
from flyball_api.gpu_node import read_gpu_node
from flyball_api.grant import OtherGpuLimits
from flyball_api.power_brake import PowerBrakeSpec
from flyball_api.power_cap import PowerCapStatus
from flyball_api.workloads import DEFAULT_GPU_RESOURCES, read_plain_job
from flyball_api.writing import to_json
from flyball_kube.errors import ApiError, ApiUnreachable
from flyball_kube.resources import GPU_NODES, PODS, Resource
from flyball_operator.cluster.outcome import DONE, UNKNOWN, Outcome, WriteResult
from flyball_operator.jobs.manifests import incarnation_service
from flyball_operator.jobs.pipeline_plans import PlanPipeline
from flyball_operator.jobs.pipeline_points import PointChange
from flyball_operator.jobs.runs.lifecycle import CreateService, OpenGates, RemovePods, StopIncarnation
from flyball_operator.power.caps.memberships import LabelSync
from flyball_operator.power.grants.brakes import SendBrake
from flyball_operator.power.holds import HoldAction, HoldChange
from flyball_operator.power.nodes.info import NodeInfo, read_nodes
from flyball_operator.writes.executor import Executor
from flyball_operator.writes.lease import LeadershipLost

from tests.support.operator_objects import (
    FLOOR,
    Json,
    cap_view,
    grant,
    incarnation_view,
    job_view,
    node_view,
    pod_view,
    raw_gpu_node,
    raw_node,
    raw_pod,
)


class Server:
    """Remembers what it is asked; `answers` maps "METHOD path" to what it answers or raises."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[tuple[str, str, Any]] = []
        self.urgent = False
        self.asked_urgently: list[tuple[str, str]] = []

    def with_turns_of_its_own(self, connections: int) -> Server:
        assert connections > 0
        session = copy.copy(self)
        session.urgent = True
        return session

    def _answer(self, method: str, path: str, body: Any) -> Json:
        self.asked.append((method, path, body))
        if self.urgent:
            self.asked_urgently.append((method, path))
        answer = self.answers.get(f"{method} {path}", {})
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)

    async def get(self, path: str) -> Json:
        return self._answer("GET", path, None)

    async def create(self, path: str, body: Json, **params: str) -> Json:
        self.params = params
        return self._answer("POST", path, body)

    async def patch(self, path: str, body: Any, content_type: str = "") -> Json:
        return self._answer("PATCH", path, body)

    async def replace(self, path: str, body: Json) -> Json:
        return self._answer("PUT", path, body)

    async def delete(self, path: str, options: Json | None = None) -> Json:
        return self._answer("DELETE", path, options)


def error(status: int, message: str = "why") -> ApiError:
    return ApiError(status, "Reason", message, "request")


class Desk:
    """An executor on a server, under a lease that may be lost before the n-th check."""

    def __init__(self, loses_at: int = 10**6) -> None:
        self.server = Server()
        self.absorbed: list[tuple[Resource, Json]] = []
        self.counted: list[str] = []
        self.outcomes: list[tuple[Outcome, bool]] = []
        self.checks = 0
        self.loses_at = loses_at
        session: Any = self.server
        self.executor = Executor(
            session,
            self.check,
            lambda resource, raw: self.absorbed.append((resource, raw)),
            self.counted.append,
            gpu_resources=DEFAULT_GPU_RESOURCES,
            observe_write=lambda outcome, seconds: self.outcomes.append((outcome, seconds >= 0)),
        )

    def check(self) -> None:
        self.checks += 1
        if self.checks >= self.loses_at:
            raise LeadershipLost("the lease is another's")


GPU_NODE = "/apis/flyball.dev/v1alpha1/gpunodes/a"


def info(given: bool = True) -> NodeInfo:
    raw = raw_gpu_node("a", grant(8 * FLOOR), limits=8 * FLOOR)
    raw["metadata"]["labels"] = {"old": "label"}
    views = {"a": read_gpu_node(raw)} if given else {}
    return read_nodes([node_view("a")], views, [], frozenset())["a"]


# --- grants ------------------------------------------------------------------------------------------------------


async def test_a_grant_replaces_the_one_that_was_read_and_no_other() -> None:
    desk = Desk()
    desk.server.answers[f"PATCH {GPU_NODE}"] = {"kind": "GPUNode", "metadata": {"name": "a"}}
    sent = grant(5 * FLOOR, generation=2, other_gpus=OtherGpuLimits(foreign_gpus=1))
    assert (await desk.executor.write_grant(info(), sent)).done
    ((method, path, body),) = desk.server.asked
    assert (method, path) == ("PATCH", GPU_NODE)
    assert body["metadata"]["resourceVersion"] == "7"
    assert body["metadata"]["managedFields"] == [{}]
    assert "labels" not in body["metadata"]  # they have a write of their own, and do not wait for a grant
    assert (body["spec"]["generation"], body["spec"]["otherGpus"]["foreignGpus"]) == (2, 1)
    assert desk.absorbed == [(GPU_NODES, {"kind": "GPUNode", "metadata": {"name": "a"}})]
    assert desk.counted == ["lower-grant"]


@pytest.mark.parametrize("by_annotation", [False, True])
async def test_labels_are_copied_into_the_object_that_was_read(by_annotation: bool) -> None:
    desk = Desk()
    sync = LabelSync(info(), ({"old": "label"},), ("row",) if by_annotation else (), by_annotation)
    assert (await desk.executor.sync_labels(sync)).done
    ((method, path, body),) = desk.server.asked
    assert (method, path) == ("PATCH", GPU_NODE)
    annotations = {"flyball.dev/former-labels": '[{"old":"label"}]'}
    if by_annotation:
        annotations["flyball.dev/release"] = None  # type: ignore[assignment]
    assert body == {
        "metadata": {
            "resourceVersion": "7",
            "managedFields": [{}],
            "labels": {**dict(info().labels), "old": None},
            "annotations": annotations,
        }
    }


async def test_labels_that_nothing_counts_under_any_more_are_taken_away() -> None:
    desk = Desk()
    await desk.executor.sync_labels(LabelSync(info()))
    assert desk.server.asked[0][2]["metadata"]["annotations"] == {"flyball.dev/former-labels": None}


CAP = "/apis/flyball.dev/v1alpha1/powercaps/row"
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/powercaps.flyball.dev"


@pytest.mark.parametrize(
    ("action", "before", "after"),
    [
        (HoldAction.HOLD, [], ["flyball.dev/hold"]),
        (HoldAction.HOLD, ["example.com/other"], ["example.com/other", "flyball.dev/hold"]),
        (HoldAction.RELEASE, ["example.com/other", "flyball.dev/hold"], ["example.com/other"]),
        (HoldAction.RELEASE, ["flyball.dev/hold"], None),
    ],
)
async def test_our_finalizer_alone_is_written_over_the_object_that_was_read(
    action: HoldAction, before: list[str], after: list[str] | None
) -> None:
    desk = Desk()
    cap = cap_view("row", watts=1000)
    cap = replace(cap, metadata=msgspec.structs.replace(cap.metadata, finalizers=tuple(before)))
    assert (await desk.executor.write_hold(HoldChange(cap, action))).done
    metadata = {"uid": "uid-row", "resourceVersion": "12", "finalizers": after}
    assert desk.server.asked == [("PATCH", CAP, {"metadata": metadata})]


@pytest.mark.parametrize("goes", [False, True])
async def test_a_cap_that_goes_with_its_kind_is_not_released(goes: bool) -> None:
    desk = Desk()
    desk.server.answers[f"GET {CRD}"] = {"metadata": {"deletionTimestamp": "2030-01-01T00:00:00Z"} if goes else {}}
    result = await desk.executor.write_hold(
        HoldChange(cap_view("row", watts=1000), HoldAction.RELEASE_UNLESS_KIND_GOES)
    )
    assert result.done != goes
    assert [method for method, _, _ in desk.server.asked] == (["GET"] if goes else ["GET", "PATCH"])


async def test_a_cap_is_held_where_the_lease_is_lost_while_its_kind_is_looked_at() -> None:
    desk = Desk(loses_at=2)
    desk.server.answers[f"GET {CRD}"] = {"metadata": {}}
    with pytest.raises(LeadershipLost):
        await desk.executor.write_hold(HoldChange(cap_view("row", watts=1000), HoldAction.RELEASE_UNLESS_KIND_GOES))
    assert [method for method, _, _ in desk.server.asked] == ["GET"]


async def test_a_first_grant_makes_its_object() -> None:
    desk = Desk()
    assert (await desk.executor.write_grant(info(given=False), grant(8 * FLOOR))).done
    ((method, path, body),) = desk.server.asked
    assert (method, path) == ("POST", GPU_NODE.rpartition("/")[0])
    assert body["metadata"] == {"name": "a", "labels": dict(info().labels), "finalizers": ["flyball.dev/hold"]}


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (error(409), WriteResult(Outcome.REFUSED, conflict=True, message="why")),
        (error(404), WriteResult(Outcome.REFUSED, not_found=True, message="why")),
        (error(403), WriteResult(Outcome.REFUSED, message="why")),
        (error(422), WriteResult(Outcome.REFUSED, invalid="why", message="why")),
        (error(500), WriteResult(Outcome.UNKNOWN)),  # it may have taken effect all the same
        (error(504), WriteResult(Outcome.UNKNOWN)),
        (ApiUnreachable("no answer"), WriteResult(Outcome.UNKNOWN)),
    ],
)
async def test_only_a_4xx_answer_proves_that_a_write_took_no_effect(answer: Exception, result: WriteResult) -> None:
    desk = Desk()
    desk.server.answers[f"PATCH {GPU_NODE}"] = answer
    assert await desk.executor.write_grant(info(), grant(1)) == result
    assert desk.outcomes == [(result.outcome, True)]


async def test_nothing_is_sent_once_the_lease_is_lost() -> None:
    desk = Desk(loses_at=1)
    with pytest.raises(LeadershipLost):
        await desk.executor.write_grant(info(), grant(1))
    assert desk.server.asked == []
    assert desk.outcomes == []


async def test_independent_writes_all_end_before_the_loss_is_told() -> None:
    desk = Desk(loses_at=2)
    calls = [desk.executor.write_cap_status(cap_view(name, watts=1), PowerCapStatus()) for name in ("x", "y", "z")]
    with pytest.raises(LeadershipLost):
        await desk.executor.all(calls)
    assert len(desk.server.asked) == 1
    desk = Desk()
    desk.server.answers["PUT /apis/flyball.dev/v1alpha1/powercaps/x/status"] = RuntimeError("unexpected")
    calls = [desk.executor.write_cap_status(cap_view(name, watts=1), PowerCapStatus()) for name in ("x", "y")]
    assert await desk.executor.all(calls) == [UNKNOWN, DONE]


async def test_brakes_and_claims_wait_for_the_turn_of_no_other_write() -> None:
    """Grants without an answer may have all connections there are."""
    desk = Desk()
    brake = PowerBrakeSpec(epoch=1, sequence=1, kept_millionths=0)
    await desk.executor.write_grant(info(), grant(1))
    await desk.executor.write_job_status(job_view(), EnergyAwareJobStatus())
    await desk.executor.write_brake(SendBrake("row", brake, ""))
    await desk.executor.write_brake(SendBrake("row", brake, "7"))
    await desk.executor.write_cap_status(cap_view(watts=1), PowerCapStatus())
    brakes = "/apis/flyball.dev/v1alpha1/powerbrakes"
    assert desk.server.asked_urgently == [
        ("POST", brakes),
        ("PUT", f"{brakes}/row"),
        ("PUT", "/apis/flyball.dev/v1alpha1/powercaps/row/status"),
    ]


# --- nodes and pods ----------------------------------------------------------------------------------------------


async def test_only_our_taint_is_removed() -> None:
    desk = Desk()
    node = raw_node("a", taints=[{"key": "flyball.dev/unacknowledged"}, {"key": "theirs"}])
    desk.server.answers["GET /api/v1/nodes/a"] = node
    assert (await desk.executor.set_startup_taint(info(), closed=False)).done
    assert desk.server.asked[-1] == (
        "PATCH",
        "/api/v1/nodes/a",
        {"metadata": {"resourceVersion": "1"}, "spec": {"taints": [{"key": "theirs"}]}},
    )


@pytest.mark.parametrize(
    "before", [[], [{"key": "theirs"}], [{"key": "theirs"}, {"key": "flyball.dev/unacknowledged"}]]
)
async def test_our_taint_is_put_back_beside_others(before: list[Json]) -> None:
    desk = Desk()
    desk.server.answers["GET /api/v1/nodes/a"] = raw_node("a", taints=before)
    assert (await desk.executor.set_startup_taint(info(), closed=True)).done
    ours = {"key": "flyball.dev/unacknowledged", "effect": "NoSchedule", "value": "proof-stale"}
    kept = [taint for taint in before if taint["key"] == "theirs"]
    assert desk.server.asked[-1][2] == {"metadata": {"resourceVersion": "1"}, "spec": {"taints": [*kept, ours]}}


async def test_a_taint_stays_where_the_lease_is_lost_between_look_and_write() -> None:
    desk = Desk(loses_at=2)
    desk.server.answers["GET /api/v1/nodes/a"] = raw_node("a", taints=[{"key": "flyball.dev/unacknowledged"}])
    with pytest.raises(LeadershipLost):
        await desk.executor.set_startup_taint(info(), closed=False)
    assert [method for method, _, _ in desk.server.asked] == ["GET"]


POD = "/api/v1/namespaces/team/pods/p"


async def test_a_gate_is_opened_towards_its_node_and_others_stay() -> None:
    desk = Desk()
    raw = raw_pod("p", uid="uid-train", gated=True)
    raw["spec"]["schedulingGates"].append({"name": "theirs"})
    raw["spec"]["nodeSelector"] = {"disk": "fast"}
    desk.server.answers[f"GET {POD}"] = raw
    opened = OpenGates(((pod_view("p", uid="uid-train", gated=True), "a"),))
    assert (await desk.executor.open_gates(opened, {"a": "host-of-a"})).done
    assert desk.server.asked[-1][2] == [
        {"op": "test", "path": "/metadata/uid", "value": "pod-p"},
        {"op": "test", "path": "/metadata/resourceVersion", "value": "5"},
        {
            "op": "add",
            "path": "/spec/nodeSelector",
            "value": {"disk": "fast", "kubernetes.io/hostname": "host-of-a"},
        },
        {"op": "replace", "path": "/spec/schedulingGates", "value": [{"name": "theirs"}]},
    ]


async def test_a_gate_that_is_open_is_not_written_again() -> None:
    """The answer was lost, or the copy is behind: what it returns is what stands."""
    desk = Desk()
    raw = desk.server.answers[f"GET {POD}"] = {"kind": "Pod", **raw_pod("p", uid="uid-train")}
    opened = OpenGates(((pod_view("p", uid="uid-train", gated=True), "a"),))
    assert (await desk.executor.open_gates(opened, {})).done
    assert [method for method, _, _ in desk.server.asked] == ["GET"]
    assert desk.absorbed == [(PODS, raw)]
    desk.server.answers[f"GET {POD}"] = {**raw, "metadata": {**raw["metadata"], "uid": "another"}}
    desk.server.answers[f"PATCH {POD}"] = error(422, "test failed")
    assert not (await desk.executor.open_gates(opened, {})).done, "one of the same name is another pod"


async def test_a_gate_stays_shut_where_the_lease_is_lost_between_look_and_write() -> None:
    desk = Desk(loses_at=2)
    desk.server.answers[f"GET {POD}"] = raw_pod("p", gated=True)
    with pytest.raises(LeadershipLost):
        await desk.executor.open_gates(OpenGates(((pod_view("p", gated=True), "a"),)), {})
    assert [method for method, _, _ in desk.server.asked] == ["GET"]


async def test_one_pod_that_is_gone_leaves_the_others_to_be_opened() -> None:
    desk = Desk()
    desk.server.answers[f"GET {POD}"] = error(404)
    desk.server.answers["GET /api/v1/namespaces/team/pods/q"] = raw_pod("q", gated=True)
    pods = tuple((pod_view(name, gated=True), "a") for name in "pq")
    assert not (await desk.executor.open_gates(OpenGates(pods), {})).done
    assert desk.server.asked[-1][:2] == ("PATCH", "/api/v1/namespaces/team/pods/q")


async def test_each_pod_is_told_its_pipelines_point_and_no_other_of_its_name() -> None:
    desk = Desk()
    desk.server.answers["PATCH /api/v1/namespaces/team/pods/q"] = error(409)
    told = PointChange(job_view(), (pod_view("p"), pod_view("q")), '{"objective": "Energy"}')
    assert not (await desk.executor.write_point(told)).done
    annotations = {"flyball.dev/pipeline-point": '{"objective": "Energy"}'}
    assert desk.server.asked == [
        ("PATCH", POD, {"metadata": {"uid": "pod-p", "annotations": annotations}}),
        ("PATCH", "/api/v1/namespaces/team/pods/q", {"metadata": {"uid": "pod-q", "annotations": annotations}}),
    ]


# --- incarnations ------------------------------------------------------------------------------------------------

BATCH_JOBS = "/apis/batch/v1/namespaces/team/jobs"


@pytest.mark.parametrize(
    ("answer", "made", "words"),
    [
        ({"kind": "Job", "metadata": {"name": "train-1"}}, True, ""),
        (error(422, "spec.containers[0].name: Invalid value"), False, "spec.containers[0].name: Invalid value"),
        (error(403, "exceeded quota"), False, ""),  # may pass; it is tried again
        (error(409), False, ""),
        (ApiUnreachable("no answer"), False, ""),
    ],
)
async def test_an_incarnation_is_made_or_refused_in_the_servers_words(answer: Any, made: bool, words: str) -> None:
    desk = Desk()
    desk.server.answers[f"POST {BATCH_JOBS}"] = answer
    result = await desk.executor.create_incarnation(job_view(), 1, (("a", 4),))
    assert (result.done, result.invalid) == (made, words)
    assert desk.server.params == {"fieldValidation": "Strict"}, "a misspelt field is refused, not dropped"


async def test_a_template_is_checked_with_nothing_made_or_believed_to_be() -> None:
    desk = Desk()
    desk.server.answers[f"POST {BATCH_JOBS}"] = {"kind": "Job", "metadata": {"name": "train-1"}}
    assert (await desk.executor.check_template(job_view())).done
    assert desk.server.params == {"fieldValidation": "Strict", "dryRun": "All"}
    assert desk.absorbed == []
    desk.server.answers[f"POST {BATCH_JOBS}"] = error(400, "unknown field")
    assert (await desk.executor.check_template(job_view())).invalid == "unknown field"
    assert "must name at least one container" in (await desk.executor.check_template(job_view(template={}))).invalid


async def test_a_service_belongs_to_the_job_of_its_incarnation() -> None:
    desk = Desk()
    assert (await desk.executor.create_service(CreateService(incarnation_view("uid-train", 1, ("a", 4))))).done
    ((method, path, body),) = desk.server.asked
    assert (method, path) == ("POST", "/api/v1/namespaces/team/services")
    (owner,) = body["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Job", "train-1", "batch-uid-train-1")


SERVICE = "/api/v1/namespaces/team/services/train-1"
TRAIN_1 = incarnation_view("uid-train", 1, ("a", 4))


def damaged_service(**metadata: Any) -> Json:
    """The Service of the first incarnation as it stands in the cluster, but for its selector."""
    made = incarnation_service(TRAIN_1)
    spec = {**made["spec"], "selector": {"app": "other"}, "type": "ClusterIP"}
    return {**made, "metadata": {**made["metadata"], "uid": "s", "resourceVersion": "7", **metadata}, "spec": spec}


@pytest.mark.parametrize(
    "left",
    [{}, {"labels": {"team": "x"}}, {"ownerReferences": [], "annotations": {"mesh": "off"}}],
    ids=["selector", "labels", "owner"],
)
async def test_a_service_that_somebody_has_changed_is_put_right_and_keeps_what_others_added(left: Json) -> None:
    desk = Desk()
    desk.server.answers[f"POST {SERVICE.rpartition('/')[0]}"] = error(409)
    desk.server.answers[f"GET {SERVICE}"] = damaged_service(**left)
    desk.server.answers[f"PUT {SERVICE}"] = whole = incarnation_service(TRAIN_1)
    assert (await desk.executor.create_service(CreateService(TRAIN_1))).done
    method, path, body = desk.server.asked[-1]
    assert (method, path, body["spec"]) == ("PUT", SERVICE, whole["spec"])
    metadata = body["metadata"]
    assert metadata["labels"] == {**left.get("labels", {}), **whole["metadata"]["labels"]}
    assert metadata["ownerReferences"] == whole["metadata"]["ownerReferences"]
    assert (metadata["uid"], metadata["resourceVersion"]) == ("s", "7")
    assert metadata.get("annotations") == left.get("annotations")
    assert desk.absorbed[0][1] == whole


@pytest.mark.parametrize(
    "of_another",
    [
        {"labels": {}, "ownerReferences": []},
        {"labels": {"flyball.dev/job-uid": "other"}, "ownerReferences": [{"kind": "Job", "uid": "other"}]},
        {"deletionTimestamp": "2026-01-01T00:00:00Z"},
    ],
    ids=["nobody", "another", "leaving"],
)
async def test_a_service_of_somebody_else_under_its_name_is_left_alone(of_another: Json) -> None:
    desk = Desk()
    desk.server.answers[f"POST {SERVICE.rpartition('/')[0]}"] = error(409, "services train-1 already exists")
    desk.server.answers[f"GET {SERVICE}"] = damaged_service(**of_another)
    result = await desk.executor.create_service(CreateService(TRAIN_1))
    assert (result.outcome, result.conflict) == (Outcome.REFUSED, True)
    assert result.message == "services train-1 already exists"
    assert [method for method, _, _ in desk.server.asked] == ["POST", "GET"]


async def test_a_service_that_is_changed_as_soon_as_it_is_written_is_not_put_right_again_at_once() -> None:
    desk = Desk()
    desk.server.answers[f"POST {SERVICE.rpartition('/')[0]}"] = error(409)
    desk.server.answers[f"GET {SERVICE}"] = desk.server.answers[f"PUT {SERVICE}"] = damaged_service()
    result = await desk.executor.create_service(CreateService(TRAIN_1))
    assert (result.outcome, result.conflict) == (Outcome.REFUSED, True)
    assert "something changed it in the same moment" in result.message


async def test_a_template_that_no_job_can_be_made_of_asks_the_server_nothing() -> None:
    desk = Desk()
    result = await desk.executor.create_incarnation(job_view(template={}), 1, (("a", 4),))
    assert result.outcome is Outcome.REFUSED
    assert "must name at least one container" in result.invalid
    assert desk.server.asked == []


async def test_stopping_deletes_the_very_job() -> None:
    desk = Desk()
    desk.server.answers[f"DELETE {BATCH_JOBS}/train-1"] = error(404)
    stopped = StopIncarnation(incarnation_view("uid-train", 1, ("a", 4)), "why")
    assert not (await desk.executor.stop_incarnation(stopped)).done
    assert [(method, path) for method, path, _ in desk.server.asked] == [("DELETE", f"{BATCH_JOBS}/train-1")]
    assert desk.server.asked[0][2] == {
        "propagationPolicy": "Background",
        "preconditions": {"uid": "batch-uid-train-1"},
    }


async def test_pods_that_were_left_behind_are_deleted_one_by_one_and_no_others() -> None:
    desk = Desk()
    left = tuple(pod_view(f"train-1-{index}", uid="uid-train", controlled=False) for index in range(2))
    assert (await desk.executor.remove_pods(RemovePods(left))).done
    assert sorted((method, path.rpartition("/")[2], body) for method, path, body in desk.server.asked) == [
        ("DELETE", f"train-1-{index}", {"preconditions": {"uid": f"pod-train-1-{index}"}}) for index in range(2)
    ]


async def test_statuses_and_deletions_are_of_the_object_that_was_read() -> None:
    desk = Desk()
    await desk.executor.write_job_status(job_view(), EnergyAwareJobStatus(state="Running"))
    await desk.executor.write_cap_status(cap_view(watts=1), PowerCapStatus(nodes=1))
    await desk.executor.delete_job(job_view())
    assert desk.server.asked == [
        (
            "PUT",
            "/apis/flyball.dev/v1alpha1/namespaces/team/energyawarejobs/train/status",
            {
                "apiVersion": "flyball.dev/v1alpha1",
                "kind": "EnergyAwareJob",
                "metadata": {"name": "train", "namespace": "team", "uid": "uid-train", "resourceVersion": "3"},
                "status": to_json(EnergyAwareJobStatus(state="Running")),
            },
        ),
        (
            "PUT",
            "/apis/flyball.dev/v1alpha1/powercaps/row/status",
            {
                "apiVersion": "flyball.dev/v1alpha1",
                "kind": "PowerCap",
                "metadata": {"name": "row", "uid": "uid-row", "resourceVersion": "12"},
                "status": to_json(PowerCapStatus(nodes=1)),
            },
        ),
        (
            "DELETE",
            "/apis/flyball.dev/v1alpha1/namespaces/team/energyawarejobs/train",
            {"propagationPolicy": "Background", "preconditions": {"uid": "uid-train"}},
        ),
    ]


async def test_a_suspended_job_is_let_run_as_it_was_read_and_is_no_incarnation() -> None:
    """One that somebody has changed meanwhile may ask for other GPUs than were judged."""
    desk = Desk()
    path = "/apis/batch/v1/namespaces/team/jobs/waits"
    metadata = {"name": "waits", "namespace": "team", "uid": "u", "resourceVersion": "5"}
    desk.server.answers[f"PATCH {path}"] = {"kind": "Job", "metadata": metadata}
    job = read_plain_job({"metadata": metadata, "spec": {"suspend": True, "template": {"spec": {"containers": []}}}})
    assert (await desk.executor.admit_plain_job(job)).done
    assert desk.server.asked == [
        ("PATCH", path, {"metadata": {"resourceVersion": "5"}, "spec": {"suspend": False}}),
    ]
    assert desk.absorbed == []


async def test_a_plan_is_put_where_the_job_has_it_and_never_over_another() -> None:
    desk = Desk()
    wanted = PlanPipeline(job_view(), PlanSource("gpt3", "fast.json"), 16, "stage,...", 57.5, "digest")
    assert (await desk.executor.create_pipeline_plan(wanted, '{"points": []}')).done
    ((method, path, body),) = desk.server.asked
    assert (method, path) == ("POST", f"/api/v1/namespaces/{wanted.job.namespace}/configmaps")
    assert body["data"] == {"fast.json": '{"points": []}'}
    assert body["metadata"]["name"] == "gpt3"
    assert body["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "flyball"
    desk.server.answers[f"POST {path}"] = error(409, "exists")
    assert (await desk.executor.create_pipeline_plan(wanted, "{}")).conflict
