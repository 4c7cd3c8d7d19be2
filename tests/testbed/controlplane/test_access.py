"""Who is who: kubeconfigs, service accounts, and tokens bound to pods."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml
from flyball_api.names import DEFAULT_NAMESPACE
from flyball_kube.errors import ApiError
from flyball_testbed.controlplane.api import ApiClient, Json
from flyball_testbed.controlplane.cluster import DevCluster
from flyball_testbed.controlplane.control_plane import ControlPlane
from flyball_testbed.controlplane.install import AGENT, OPERATOR
from flyball_testbed.controlplane.nodes import NODES

from tests.support.control_plane import IsolatedCluster

REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


def who_am_i(api: ApiClient) -> Json:
    review = api.create(REVIEWS, {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"})
    user: Json = review["status"]["userInfo"]
    return user


def api_of(control_plane: ControlPlane, kubeconfig: Path) -> ApiClient:
    """The API as the user of a kubeconfig with a token."""
    user = yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]
    return control_plane.api_with_token(user["token"])


def test_kubectl_works_with_the_admin_kubeconfig(control_plane: DevCluster) -> None:
    plane = control_plane.control_plane
    answer = subprocess.run(
        [plane.kubectl, f"--kubeconfig={plane.kubeconfig()}", "auth", "whoami", "-o", "yaml"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    user = yaml.safe_load(answer.stdout)["status"]["userInfo"]
    assert user["username"] == "devcluster-admin"
    assert "system:masters" in user["groups"]


def test_the_kubeconfigs_can_be_read_by_their_owner_only(control_plane: DevCluster) -> None:
    plane = control_plane.control_plane
    assert plane.kubeconfig().stat().st_mode & 0o077 == 0
    assert plane.layout.key("admin").stat().st_mode & 0o077 == 0
    assert plane.directory.stat().st_mode & 0o077 == 0


def test_a_service_account_may_do_only_what_it_is_granted(control_plane: DevCluster) -> None:
    plane = control_plane.control_plane
    path = plane.service_account_kubeconfig("default", "default")
    api = api_of(plane, path)
    assert who_am_i(api)["username"] == "system:serviceaccount:default:default"
    with pytest.raises(ApiError) as refused:
        api.list_objects(NODES)
    assert refused.value.status == 403


def test_the_operator_is_its_service_account(control_plane: DevCluster) -> None:
    api = api_of(control_plane.control_plane, control_plane.operator_kubeconfig())
    assert who_am_i(api)["username"] == f"system:serviceaccount:{DEFAULT_NAMESPACE}:{OPERATOR}"


def test_an_agents_token_carries_the_name_of_its_node(cluster: IsolatedCluster) -> None:
    nodes = cluster.add_nodes(3)
    kubeconfigs = cluster.devcluster.agent_kubeconfigs(nodes)
    assert list(kubeconfigs) == nodes
    for node, kubeconfig in kubeconfigs.items():
        user = who_am_i(api_of(cluster.devcluster.control_plane, kubeconfig))
        assert user["username"] == f"system:serviceaccount:{DEFAULT_NAMESPACE}:{AGENT}"
        assert user["extra"]["authentication.kubernetes.io/node-name"] == [node]


def test_a_token_dies_with_its_pod(cluster: IsolatedCluster) -> None:
    cluster.add_nodes(1, taints=())
    spec = {"containers": [{"name": "c", "image": "example.com/c"}]}
    cluster.api.create(cluster.path("pods"), {"metadata": {"name": "short-lived"}, "spec": spec})
    plane = cluster.devcluster.control_plane
    api = plane.api_with_token(plane.token_bound_to_pod(cluster.namespace, "default", "short-lived"))
    assert who_am_i(api)["extra"]["authentication.kubernetes.io/pod-name"] == ["short-lived"]
    cluster.api.delete(cluster.path("pods", "short-lived"), grace_seconds=0)
    cluster.api.wait_gone(cluster.path("pods", "short-lived"))

    def refused(_: Json | None) -> bool:
        try:
            who_am_i(api)
        except ApiError as error:
            return error.status == 401
        return False  # the API server remembers a good token for some seconds

    cluster.api.wait_for("/version", refused, timeout_seconds=60, what="refused")


def test_a_token_for_a_missing_pod_or_account_is_refused_by_name(cluster: IsolatedCluster) -> None:
    plane = cluster.devcluster.control_plane
    with pytest.raises(ApiError, match=f"no pod {cluster.namespace}/ghost"):
        plane.token_bound_to_pod(cluster.namespace, "default", "ghost")
    with pytest.raises(ApiError, match="ghost"):
        plane.token(cluster.namespace, "ghost")


def test_an_unknown_user_has_no_kubeconfig(control_plane: DevCluster) -> None:
    with pytest.raises(KeyError, match="no user 'mallory'"):
        control_plane.control_plane.kubeconfig("mallory")
