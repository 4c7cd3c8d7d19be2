"""The admission policies: an agent speaks for its own node only, and a running job keeps its template."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from flyball_api.names import DEFAULT_NAMESPACE
from flyball_kube.errors import ApiError
from flyball_testbed.controlplane import install, nodes
from flyball_testbed.controlplane.api import ApiClient
from flyball_testbed.controlplane.cluster import DevCluster
from flyball_testbed.controlplane.processes import wait_until

TIMEOUT_SECONDS = 30.0
RBAC = "/apis/rbac.authorization.k8s.io/v1"
MORE_RIGHTS = "test-agent-with-too-many-rights"
TEMPLATE_LOCKED = "spec.template cannot change while the job may be running; set suspend to true first"
NO_CONTAINER = "spec.template.spec.containers must have at least one container"


@dataclass(frozen=True)
class Agents:
    """Two nodes with a GPUNode each, and the API as the agent of the first one, and as an agent of no node."""

    own: str
    neighbour: str
    api: ApiClient
    nowhere: ApiClient


def _refused(call: Any, *arguments: Any, **keywords: Any) -> str | None:
    try:
        call(*arguments, **keywords)
    except ApiError as error:
        return error.message
    return None


@pytest.fixture(scope="module")
def agents(control_plane: DevCluster, kinds: Any) -> Iterator[Agents]:
    own, neighbour = control_plane.add_nodes(2)
    plane = control_plane.control_plane
    agent = plane.api_with_token(
        plane.token_bound_to_pod(DEFAULT_NAMESPACE, install.AGENT, control_plane.agent_pods([own])[own])
    )
    nowhere = plane.api_with_token(plane.token(DEFAULT_NAMESPACE, install.AGENT))
    for name in (own, neighbour):
        kinds.api.create(kinds.path("GPUNode"), kinds.object("GPUNode", name=name))
    # A policy is in force a moment after it was created.
    assert wait_until(
        lambda: _refused(agent.patch, _status(neighbour), _mode("Floor"), dryRun="All") is not None, TIMEOUT_SECONDS
    )
    yield Agents(own, neighbour, agent, nowhere)
    agent.close()
    nowhere.close()
    nodes.delete_nodes(control_plane.api, [own, neighbour])


@pytest.fixture
def too_many_rights(control_plane: DevCluster, agents: Agents) -> Iterator[None]:
    """RBAC gives the agents everything on GPUNodes, so that the policy alone stands in the way."""
    api = control_plane.api
    rule = {"apiGroups": ["flyball.dev"], "resources": ["gpunodes"], "verbs": ["*"]}
    subject = {"kind": "ServiceAccount", "name": install.AGENT, "namespace": DEFAULT_NAMESPACE}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": MORE_RIGHTS}
    api.create(f"{RBAC}/clusterroles", {"metadata": {"name": MORE_RIGHTS}, "rules": [rule]})
    api.create(
        f"{RBAC}/clusterrolebindings", {"metadata": {"name": MORE_RIGHTS}, "roleRef": role, "subjects": [subject]}
    )
    assert wait_until(lambda: not _refused_by_rbac(agents), TIMEOUT_SECONDS)
    yield
    api.delete(f"{RBAC}/clusterrolebindings/{MORE_RIGHTS}")
    api.delete(f"{RBAC}/clusterroles/{MORE_RIGHTS}")
    assert wait_until(lambda: _refused_by_rbac(agents), TIMEOUT_SECONDS)


def _refused_by_rbac(agents: Agents) -> bool:
    refusal = _refused(agents.api.patch, _path(agents.own), {"spec": {"generation": 11}}, dryRun="All")
    return 'cannot patch resource "gpunodes"' in str(refusal)


def _path(name: str) -> str:
    return f"/apis/flyball.dev/v1alpha1/gpunodes/{name}"


def _status(name: str) -> str:
    return _path(name) + "/status"


def _mode(mode: str) -> dict[str, Any]:
    return {"status": {"mode": mode}}


def test_an_agent_writes_the_status_of_its_own_node(agents: Agents) -> None:
    assert agents.api.patch(_status(agents.own), _mode("Floor"))["status"] == {"mode": "Floor"}
    whole = agents.api.get(_path(agents.own))
    assert agents.api.replace(_status(agents.own), whole | _mode("Granted"))["status"] == {"mode": "Granted"}


def test_an_agent_cannot_write_its_neighbours_status(agents: Agents) -> None:
    with pytest.raises(ApiError) as refusal:
        agents.api.patch(_status(agents.neighbour), _mode("Granted"))
    assert refusal.value.status == 403
    said = f"the agent of node {agents.own} may not write GPUNode {agents.neighbour} (only GPUNode {agents.own})"
    assert said in refusal.value.message


def test_an_agent_acknowledges_brakes_in_its_own_nodes_name_only(agents: Agents) -> None:
    collection = "/apis/flyball.dev/v1alpha1/brakeacknowledgements"

    def made(node: str) -> dict[str, Any]:
        spec = {"epoch": 1, "generation": 1, "limitsMilliwatts": 1, "bootID": "b", "driverSession": "d"}
        return {
            "apiVersion": "flyball.dev/v1alpha1",
            "kind": "BrakeAcknowledgement",
            "metadata": {"name": node},
            "spec": spec,
        }

    agents.api.create(collection, made(agents.own))
    agents.api.patch(f"{collection}/{agents.own}", {"spec": {"limitsMilliwatts": 2}})
    with pytest.raises(ApiError, match="may not write BrakeAcknowledgement"):
        agents.api.create(collection, made(agents.neighbour))
    with pytest.raises(ApiError, match="the agent's token names no node"):
        agents.nowhere.patch(f"{collection}/{agents.own}", {"spec": {"limitsMilliwatts": 3}})


def test_a_token_without_a_node_writes_nothing(agents: Agents) -> None:
    with pytest.raises(ApiError) as refusal:
        agents.nowhere.patch(_status(agents.own), _mode("Granted"))
    assert refusal.value.status == 403
    assert (
        "the agent's token names no node; use the token that is mounted into the agent's pod" in refusal.value.message
    )


@pytest.mark.usefixtures("too_many_rights")
def test_the_policy_alone_keeps_the_agent_off_the_spec(agents: Agents) -> None:
    spec = {"spec": {"generation": 11, "boundMilliwatts": 900_000}}
    for name in (agents.own, agents.neighbour):
        with pytest.raises(ApiError, match="an agent writes only the status of its GPUNode; spec is the operator's"):
            agents.api.patch(_path(name), spec)
    with pytest.raises(ApiError, match="an agent writes only the status"):
        agents.api.delete(_path(agents.own))
    with pytest.raises(ApiError, match="an agent writes only the status"):
        agents.api.delete_collection("/apis/flyball.dev/v1alpha1/gpunodes")
    with pytest.raises(ApiError, match="an agent writes only the status"):
        agents.api.create(
            "/apis/flyball.dev/v1alpha1/gpunodes",
            {
                "apiVersion": "flyball.dev/v1alpha1",
                "kind": "GPUNode",
                "metadata": {"name": "invented"},
                "spec": agents.api.get(_path(agents.own))["spec"],
            },
        )


def test_rbac_keeps_the_agent_off_the_spec_as_well(agents: Agents) -> None:
    with pytest.raises(ApiError) as refusal:
        agents.api.patch(_path(agents.own), {"spec": {"generation": 11}})
    assert refusal.value.status == 403
    assert 'cannot patch resource "gpunodes"' in refusal.value.message


def test_others_are_not_touched_by_the_agents_policy(control_plane: DevCluster, agents: Agents) -> None:
    plane = control_plane.control_plane
    operator = plane.api_with_token(plane.token(DEFAULT_NAMESPACE, install.OPERATOR))
    try:
        spec = {"spec": {"generation": 12, "boundMilliwatts": 900_000}}
        assert operator.patch(_path(agents.own), spec)["spec"]["generation"] == 12
    finally:
        operator.close()
    assert control_plane.api.patch(_status(agents.neighbour), _mode("Failsafe"))["status"] == {"mode": "Failsafe"}


@pytest.fixture
def job(kinds: Any) -> Iterator[Any]:
    """A stored job, once the policy on templates is in force."""
    bare = kinds.object("EnergyAwareJob", {"template": {"spec": {"containers": []}}})
    assert wait_until(lambda: _refused(kinds.try_create, bare) is not None, TIMEOUT_SECONDS)
    yield kinds.api.create(kinds.path("EnergyAwareJob"), kinds.object("EnergyAwareJob"))
    kinds.api.delete(kinds.path("EnergyAwareJob", "subject"))
    kinds.api.wait_gone(kinds.path("EnergyAwareJob", "subject"))


OTHER_TEMPLATE = {"template": {"spec": {"containers": [{"name": "trainer", "image": "trainer:2"}]}}}


def test_a_template_changes_only_while_the_job_is_suspended(kinds: Any, job: Any) -> None:
    refusal = kinds.refusal(kinds.try_update, job, OTHER_TEMPLATE)
    assert TEMPLATE_LOCKED in refusal.message
    kinds.try_update(job, OTHER_TEMPLATE | {"suspend": True})
    kinds.try_update(job, {"priority": 1})


@pytest.mark.parametrize("template", [{}, {"spec": {}}, {"spec": {"containers": []}}], ids=str)
@pytest.mark.usefixtures("job")
def test_a_template_needs_a_container(kinds: Any, template: dict[str, Any]) -> None:
    manifest = kinds.object("EnergyAwareJob", name="another")
    manifest["spec"]["template"] = template
    assert NO_CONTAINER in kinds.refusal(kinds.try_create, manifest).message
