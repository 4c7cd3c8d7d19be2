"""Flyball's API in the cluster, as the repository's manifests define it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from flyball_api.manifests import manifests
from flyball_kube.errors import ApiError
from flyball_testbed.controlplane.api import Json
from flyball_testbed.controlplane.cluster import DevCluster
from flyball_testbed.controlplane.install import (
    AGENT,
    BASE_DIRECTORY,
    CRDS,
    MOST_TOUCHED,
    TOUCHED_ANNOTATION,
    install_agent_daemon_set,
    install_api,
    pods_summary,
    read_manifests,
    touch_passed_over,
)

from tests.support.control_plane import IsolatedCluster


def test_the_repositorys_crds_are_served(control_plane: DevCluster) -> None:
    resources = control_plane.api.get("/apis/flyball.dev/v1alpha1")["resources"]
    kinds = {resource["kind"] for resource in resources if "/" not in resource["name"]}
    assert kinds == {crd["spec"]["names"]["kind"] for crd in manifests()}
    assert {"EnergyAwareJob", "PowerCap", "GPUNode", "EnergyProfile"} < kinds


def test_every_base_manifest_is_there(control_plane: DevCluster) -> None:
    manifests = read_manifests(BASE_DIRECTORY)
    assert manifests[0]["kind"] == "Namespace"
    for manifest in manifests:
        found = control_plane.api.get(control_plane.api.path_of(manifest))
        assert found["metadata"]["name"] == manifest["metadata"]["name"]


def test_installing_again_changes_nothing(control_plane: DevCluster) -> None:
    def generations() -> dict[str, int]:
        return {crd["metadata"]["name"]: crd["metadata"]["generation"] for crd in control_plane.api.list_objects(CRDS)}

    before = generations()
    install_api(control_plane.api)
    install_agent_daemon_set(control_plane.api)
    assert generations() == before


def test_an_owned_object_goes_with_its_custom_owner_at_once(cluster: IsolatedCluster) -> None:
    """The garbage collector knows the CRDs from its start; one installed later it meets after up to 30 s."""
    profile = {
        "apiVersion": "flyball.dev/v1alpha1",
        "kind": "EnergyProfile",
        "metadata": {"name": "owner"},
        "spec": {"profileKey": "gpt2", "gpuModel": "NVIDIA-A100-SXM4-40GB"},
    }
    owner = cluster.api.create(cluster.path("energyprofiles", group="/apis/flyball.dev/v1alpha1"), profile)
    reference = {
        "apiVersion": "flyball.dev/v1alpha1",
        "kind": "EnergyProfile",
        "name": "owner",
        "uid": owner["metadata"]["uid"],
    }
    cluster.api.create(cluster.path("configmaps"), {"metadata": {"name": "owned", "ownerReferences": [reference]}})
    cluster.api.delete(cluster.path("energyprofiles", "owner", "/apis/flyball.dev/v1alpha1"))
    cluster.api.wait_gone(cluster.path("configmaps", "owned"), timeout_seconds=25)


def test_namespaces_go_before_what_is_in_them(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("{kind: Role, metadata: {name: r}}\n---\n{kind: Service, metadata: {name: s}}\n")
    (tmp_path / "z.yaml").write_text("---\n{kind: Namespace, metadata: {name: n}}\n---\n")
    kinds = [manifest["kind"] for manifest in read_manifests(tmp_path)]
    assert kinds == ["Namespace", "Role", "Service"]


def test_an_empty_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        read_manifests(tmp_path)


def test_the_agents_need_their_account() -> None:
    class NoAccounts:
        def get_or_none(self, path: str) -> Json | None:
            return None

    with pytest.raises(LookupError, match=f"{AGENT}: install the API first"):
        install_agent_daemon_set(NoAccounts())  # type: ignore[arg-type]


def test_pods_are_told_with_node_phase_and_deletion() -> None:
    field = {"key": "metadata.name", "operator": "In", "values": ["node-001"]}
    term = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    target = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}
    told = pods_summary(
        {
            "items": [
                {
                    "metadata": {"name": "b", "creationTimestamp": "10:00"},
                    "spec": {"affinity": target},
                    "status": {"phase": "Pending"},
                },
                {
                    "metadata": {"name": "a", "creationTimestamp": "09:00", "deletionTimestamp": "10:01"},
                    "spec": {"nodeName": "node-000"},
                    "status": {"phase": "Running"},
                },
                {"metadata": {"name": "c"}, "spec": {}},
            ]
        }
    )
    assert told.split("; ") == [
        "a on node-000: Running, made at 09:00, being deleted since 10:01",
        "b for node-001, not bound: Pending, made at 10:00",
        "c for any node, not bound: no phase, made at ?",
    ]
    assert pods_summary({"items": []}) == "none"


class Patches:
    """Keeps what is patched; of the pod `gone` it says that there is none."""

    def __init__(self) -> None:
        self.patched: list[str] = []

    def patch(self, path: str, _body: Json) -> None:
        self.patched.append(path.rpartition("/")[2])
        if path.endswith("/gone"):
            raise ApiError(404, "NotFound", "there is no such pod", f"PATCH {path}")


def agents_pod(name: str, seconds: float, phase: str = "Pending", node: str = "node-000", touched: float = 0) -> Json:
    """A pod that was made so many seconds ago, and touched so many ago (0: never)."""
    now = datetime.now(UTC)
    annotations = {TOUCHED_ANNOTATION: (now - timedelta(seconds=touched)).isoformat()} if touched else {}
    made = (now - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
    metadata = {"name": name, "namespace": "flyball-system", "creationTimestamp": made, "annotations": annotations}
    return {"metadata": metadata, "spec": {"nodeName": node}, "status": {"phase": phase}}


def test_pods_that_kwok_has_passed_over_are_brought_to_its_notice_a_few_at_a_time() -> None:
    pods = [
        agents_pod("passed-over", 60),
        agents_pod("touched-long-ago", 60, touched=30),
        agents_pod("gone", 60),
        agents_pod("just-made", 0),
        agents_pod("just-touched", 60, touched=1),
        agents_pod("running", 60, "Running"),
        agents_pod("not-bound", 60, node=""),
    ]
    api = Patches()
    touch_passed_over(api, {"items": pods})  # type: ignore[arg-type]
    assert api.patched == ["passed-over", "touched-long-ago", "gone"]

    api = Patches()
    touch_passed_over(api, {"items": [agents_pod(f"pod-{number}", 60) for number in range(1000)]})  # type: ignore[arg-type]
    assert api.patched == [f"pod-{number}" for number in range(MOST_TOUCHED)]
