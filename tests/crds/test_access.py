"""Who may do what: asked of the API server's own authorizer, for the accounts and roles that deploy/base creates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from flyball_api.names import DEFAULT_NAMESPACE
from flyball_kube.errors import ApiError
from flyball_testbed.controlplane import install
from flyball_testbed.controlplane.api import ApiClient
from flyball_testbed.controlplane.cluster import DevCluster
from flyball_testbed.controlplane.processes import wait_until

REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
SYSTEM, ELSEWHERE = DEFAULT_NAMESPACE, "default"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases"
FLYBALL, CORE, BATCH, COORDINATION, EXTENSIONS = (
    "flyball.dev", "", "batch", "coordination.k8s.io", "apiextensions.k8s.io",
)  # fmt: skip
READ = ("get", "list", "watch")
WRITE = ("create", "update", "patch", "delete", "deletecollection")

# (verbs, group, resource, namespace, name)
Right = tuple[tuple[str, ...], str, str, str, str]

OPERATOR_MAY: list[Right] = [
    ((*READ, "patch", "delete"), FLYBALL, "energyawarejobs", ELSEWHERE, ""),
    ((*READ, "patch"), FLYBALL, "powercaps", "", ""),
    ((*READ, "create", "update", "patch"), FLYBALL, "gpunodes", "", ""),
    ((*READ, "create", "update", "patch"), FLYBALL, "powerbrakes", "", ""),
    (READ, FLYBALL, "brakeacknowledgements", "", ""),
    ((*READ, "create", "update", "patch"), FLYBALL, "energyprofiles", ELSEWHERE, ""),
    (("patch", "update"), FLYBALL, "energyawarejobs/status", ELSEWHERE, ""),
    (("patch", "update"), FLYBALL, "powercaps/status", "", ""),
    (("patch", "update"), FLYBALL, "energyprofiles/status", ELSEWHERE, ""),
    (("get", "create", "update", "delete"), FLYBALL, "energyreports", "", ""),
    (READ, FLYBALL, "energyquotas", ELSEWHERE, ""),
    (("patch", "update"), FLYBALL, "energyquotas/status", ELSEWHERE, ""),
    ((*READ, "create", "patch", "delete"), BATCH, "jobs", ELSEWHERE, ""),
    ((*READ, "create", "update"), CORE, "services", ELSEWHERE, ""),
    (("create",), CORE, "configmaps", ELSEWHERE, ""),
    (("list", "watch"), CORE, "resourcequotas", ELSEWHERE, ""),
    ((*READ, "patch", "delete"), CORE, "pods", ELSEWHERE, ""),
    ((*READ, "patch"), CORE, "nodes", "", ""),
    (("list", "watch", "create", "patch"), CORE, "events", ELSEWHERE, ""),
    (("create", "patch"), "events.k8s.io", "events", ELSEWHERE, ""),
    (("list", "watch"), EXTENSIONS, "customresourcedefinitions", "", ""),
    (("list", "watch"), CORE, "namespaces", "", ""),
    (("create",), COORDINATION, "leases", SYSTEM, ""),
    (("get", "update"), COORDINATION, "leases", SYSTEM, "flyball-operator"),
]
OPERATOR_MAY_NOT: list[Right] = [
    (WRITE, FLYBALL, "gpunodes/status", "", "node-1"),
    (("create", "update", "delete", "deletecollection"), FLYBALL, "powercaps", "", ""),
    (("create",), FLYBALL, "energyawarejobs", ELSEWHERE, ""),
    (WRITE, FLYBALL, "energyquotas", ELSEWHERE, ""),
    (("patch", "delete", "deletecollection"), CORE, "services", ELSEWHERE, ""),
    (WRITE, CORE, "resourcequotas", ELSEWHERE, ""),
    (("delete", "deletecollection"), FLYBALL, "gpunodes", "", ""),
    (("delete", "deletecollection", "emergency"), FLYBALL, "powerbrakes", "", "hall"),
    (WRITE, FLYBALL, "brakeacknowledgements", "", "node-1"),
    (("create", "update", "deletecollection"), CORE, "pods", ELSEWHERE, ""),
    (("update", "deletecollection"), BATCH, "jobs", ELSEWHERE, ""),
    (WRITE, BATCH, "jobs/status", ELSEWHERE, ""),
    ((*READ, *WRITE), "jobset.x-k8s.io", "jobsets", ELSEWHERE, ""),
    (("create", "delete", "update"), CORE, "nodes", "", ""),
    ((*READ, *WRITE), CORE, "secrets", ELSEWHERE, ""),
    ((*READ, *WRITE), CORE, "secrets", SYSTEM, ""),
    ((*READ, "update", "patch", "delete", "deletecollection"), CORE, "configmaps", SYSTEM, ""),
    ((*READ, "update", "patch", "delete", "deletecollection"), CORE, "configmaps", ELSEWHERE, ""),
    (("create",), CORE, "pods/exec", ELSEWHERE, ""),
    (("create",), CORE, "serviceaccounts/token", SYSTEM, install.AGENT),
    (WRITE, EXTENSIONS, "customresourcedefinitions", "", ""),
    (WRITE, "rbac.authorization.k8s.io", "clusterroles", "", ""),
    (WRITE, "admissionregistration.k8s.io", "validatingadmissionpolicies", "", ""),
    ((*READ, *WRITE), COORDINATION, "leases", ELSEWHERE, "flyball-operator"),
    (("get", "update", "delete"), COORDINATION, "leases", SYSTEM, "another"),
    (("delete",), COORDINATION, "leases", SYSTEM, "flyball-operator"),
]
AGENT_MAY: list[Right] = [
    (READ, FLYBALL, "gpunodes", "", ""),
    (READ, FLYBALL, "powerbrakes", "", ""),
    (("get", "create", "patch"), FLYBALL, "brakeacknowledgements", "", "node-1"),
    (("patch", "update"), FLYBALL, "gpunodes/status", "", "node-1"),
    (READ, COORDINATION, "leases", SYSTEM, "flyball-operator"),
]
AGENT_MAY_NOT: list[Right] = [
    (WRITE, FLYBALL, "gpunodes", "", "node-1"),
    ((*WRITE, "emergency"), FLYBALL, "powerbrakes", "", "hall"),
    (("update", "delete", "deletecollection"), FLYBALL, "brakeacknowledgements", "", "node-1"),
    ((*READ, *WRITE), FLYBALL, "powercaps", "", ""),
    ((*READ, *WRITE), FLYBALL, "energyawarejobs", ELSEWHERE, ""),
    ((*READ, *WRITE), FLYBALL, "energyprofiles", ELSEWHERE, ""),
    ((*READ, *WRITE), CORE, "pods", ELSEWHERE, ""),
    ((*READ, *WRITE), CORE, "pods", SYSTEM, ""),
    ((*READ, *WRITE), CORE, "nodes", "", ""),
    ((*READ, *WRITE), CORE, "secrets", SYSTEM, ""),
    (("create",), CORE, "serviceaccounts/token", SYSTEM, install.AGENT),
    (WRITE, COORDINATION, "leases", SYSTEM, "flyball-operator"),
    (READ, COORDINATION, "leases", SYSTEM, ""),
    (READ, COORDINATION, "leases", SYSTEM, "another"),
    (READ, COORDINATION, "leases", ELSEWHERE, "flyball-operator"),
]
SRE_MAY: list[Right] = [
    ((*READ, "create", "update", "patch", "delete"), FLYBALL, "energyquotas", ELSEWHERE, ""),
    ((*READ, "create", "update", "patch", "delete"), FLYBALL, "powercaps", "", ""),
    ((*READ, "patch", "delete"), FLYBALL, "gpunodes", "", ""),
    ((*READ, "create", "update", "emergency"), FLYBALL, "powerbrakes", "", "hall"),
    (READ, FLYBALL, "energyawarejobs", ELSEWHERE, ""),
]
SRE_MAY_NOT: list[Right] = [
    (WRITE, FLYBALL, "energyreports", "", ""),
    (("delete", "deletecollection"), FLYBALL, "powerbrakes", "", "hall"),
    (("update", "patch"), FLYBALL, "powercaps/status", "", ""),
    (("create", "update"), FLYBALL, "gpunodes", "", ""),
    (WRITE, FLYBALL, "gpunodes/status", "", ""),
    (WRITE, FLYBALL, "energyawarejobs", ELSEWHERE, ""),
    (READ, CORE, "secrets", ELSEWHERE, ""),
]
EDITOR_MAY: list[Right] = [
    ((*READ, *WRITE), FLYBALL, "energyawarejobs", ELSEWHERE, ""),
    ((*READ, "delete"), FLYBALL, "energyprofiles", ELSEWHERE, ""),
    (READ, FLYBALL, "energyquotas", ELSEWHERE, ""),
]
EDITOR_MAY_NOT: list[Right] = [
    ((*READ, *WRITE), FLYBALL, "energyreports", "", ""),
    (WRITE, FLYBALL, "energyquotas", ELSEWHERE, ""),
    (WRITE, FLYBALL, "energyquotas/status", ELSEWHERE, ""),
    (("update", "patch"), FLYBALL, "energyawarejobs/status", ELSEWHERE, ""),
    ((*READ, *WRITE), FLYBALL, "powercaps", "", ""),
    (WRITE, FLYBALL, "gpunodes", "", ""),
    (("create", "update", "patch"), FLYBALL, "energyprofiles", ELSEWHERE, ""),
    (READ, FLYBALL, "energyawarejobs", SYSTEM, ""),
]
VIEWER_MAY: list[Right] = [
    (READ, FLYBALL, "energyawarejobs", ELSEWHERE, ""),
    (READ, FLYBALL, "energyprofiles", ELSEWHERE, ""),
]
VIEWER_MAY_NOT: list[Right] = [(WRITE, FLYBALL, "energyawarejobs", ELSEWHERE, ""), (READ, FLYBALL, "powercaps", "", "")]
WATCHER_MAY: list[Right] = [
    (READ, FLYBALL, kind, "", "") for kind in ("powercaps", "gpunodes", "powerbrakes", "brakeacknowledgements")
]
WATCHER_MAY_NOT: list[Right] = [
    (WRITE, FLYBALL, "powercaps", "", ""),
    (WRITE, FLYBALL, "gpunodes", "", ""),
    ((*WRITE, "emergency"), FLYBALL, "powerbrakes", "", "hall"),
]
LOOKER_MAY: list[Right] = [
    (READ, FLYBALL, "energyreports", "", ""),
    *WATCHER_MAY,
    (READ, FLYBALL, "energyawarejobs", ELSEWHERE, ""),
    (READ, FLYBALL, "energyprofiles", SYSTEM, ""),
    (READ, COORDINATION, "leases", SYSTEM, "flyball-operator"),
]
LOOKER_MAY_NOT: list[Right] = [
    *WATCHER_MAY_NOT,
    (WRITE, FLYBALL, "energyawarejobs", ELSEWHERE, ""),
    (READ, COORDINATION, "leases", SYSTEM, "another"),
    (READ, CORE, "secrets", ELSEWHERE, ""),
]

OPERATOR_USER = f"system:serviceaccount:{SYSTEM}:{install.OPERATOR}"
AGENT_USER = f"system:serviceaccount:{SYSTEM}:{install.AGENT}"
# A person -> the role that the test binds them to, and where ("" is everywhere).
PEOPLE = {
    "test-sre": ("flyball-sre", ""),
    "test-editor": ("edit", ELSEWHERE),
    "test-viewer": ("view", ELSEWHERE),
    "test-watcher": ("flyball-power-viewer", ""),
    "test-looker": ("flyball-viewer", ""),
}
TABLE = [
    (OPERATOR_USER, OPERATOR_MAY, OPERATOR_MAY_NOT),
    (AGENT_USER, AGENT_MAY, AGENT_MAY_NOT),
    ("test-sre", SRE_MAY, SRE_MAY_NOT),
    ("test-editor", EDITOR_MAY, EDITOR_MAY_NOT),
    ("test-viewer", VIEWER_MAY, VIEWER_MAY_NOT),
    ("test-watcher", WATCHER_MAY, WATCHER_MAY_NOT),
    ("test-looker", LOOKER_MAY, LOOKER_MAY_NOT),
]


@pytest.fixture(scope="module")
def people(control_plane: DevCluster) -> Iterator[None]:
    """One person bound to each of the roles meant for people."""
    api = control_plane.api
    paths = []
    for person, (role, namespace) in PEOPLE.items():
        scope = f"{RBAC}/namespaces/{namespace}/rolebindings" if namespace else f"{RBAC}/clusterrolebindings"
        body = {
            "metadata": {"name": person},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": person}],
        }
        api.create(scope, body)
        paths.append(f"{scope}/{person}")
    # The authorizer and the aggregation of roles follow a moment later; the last of each person's rights is the last.
    last = [(person, may[0]) for person, may, _ in TABLE]
    assert wait_until(
        lambda: all(_allowed(api, person, right[0][0], *right[1:]) for person, right in last), 30.0, every_seconds=0.1
    )
    yield
    for path in paths:
        api.delete(path)


def _allowed(api: ApiClient, user: str, verb: str, group: str, resource: str, namespace: str, name: str) -> bool:
    resource, _, subresource = resource.partition("/")
    attributes: dict[str, Any] = {"verb": verb, "group": group, "resource": resource}
    attributes |= {
        key: value for key, value in (("subresource", subresource), ("namespace", namespace), ("name", name)) if value
    }
    groups = ["system:authenticated"]
    if user.startswith("system:serviceaccount:"):
        groups += ["system:serviceaccounts", f"system:serviceaccounts:{SYSTEM}"]
    spec = {"user": user, "groups": groups, "resourceAttributes": attributes}
    return bool(api.create(REVIEWS, {"spec": spec})["status"]["allowed"])


@pytest.mark.usefixtures("people")
@pytest.mark.parametrize(("user", "may", "may_not"), TABLE, ids=[user.rpartition(":")[2] for user, *_ in TABLE])
def test_who_may_do_what(control_plane: DevCluster, user: str, may: list[Right], may_not: list[Right]) -> None:
    def wrong(rights: list[Right], expected: bool) -> list[str]:
        asked = [(verb, *right[1:]) for right in rights for verb in right[0]]
        answers = control_plane.api.for_each(lambda one: _allowed(control_plane.api, user, *one), asked)
        return [" ".join(one) for one, answer in zip(asked, answers, strict=True) if answer is not expected]

    assert wrong(may, expected=True) == []
    assert wrong(may_not, expected=False) == []


def test_the_agent_lists_the_heartbeat_by_its_name_only(control_plane: DevCluster) -> None:
    plane = control_plane.control_plane
    agent = plane.api_with_token(plane.token(SYSTEM, install.AGENT))
    try:
        selected = agent.get(LEASES, fieldSelector="metadata.name=flyball-operator")
        assert selected["kind"] == "LeaseList"
        with pytest.raises(ApiError) as refusal:
            agent.get(LEASES)
        assert refusal.value.status == 403
    finally:
        agent.close()
