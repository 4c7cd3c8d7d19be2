"""The blocking client, against the real API server."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from flyball_kube.errors import ApiError, ApiUnreachable
from flyball_testbed.controlplane import api as api_module
from flyball_testbed.controlplane.api import ApiClient, Json
from flyball_testbed.controlplane.cluster import DevCluster
from flyball_testbed.controlplane.ports import free_port

from tests.support.control_plane import IsolatedCluster
from tests.support.waiting import PATIENCE_SECONDS, wait_until


def config_map(name: str, **data: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def test_refusals_are_the_shared_errors_and_say_what_was_asked(cluster: IsolatedCluster) -> None:
    path = cluster.path("configmaps")
    cluster.api.create(path, config_map("one"))
    with pytest.raises(ApiError, match=f"POST {path}: 409 AlreadyExists"):
        cluster.api.create(path, config_map("one"))
    with pytest.raises(ApiError, match="404 NotFound"):
        cluster.api.get(f"{path}/two")
    stale = {**config_map("one"), "metadata": {"name": "one", "resourceVersion": "1"}}
    with pytest.raises(ApiError, match="409 Conflict"):
        cluster.api.replace(f"{path}/one", stale)
    with pytest.raises(ApiError, match="422 Invalid"):
        cluster.api.create(path, config_map("Not_A_Name"))
    assert cluster.api.get_or_none(f"{path}/two") is None
    cluster.api.delete(f"{path}/two")
    with pytest.raises(ApiError, match="404 NotFound"):
        cluster.api.delete(f"{path}/two", missing_ok=False)


def test_each_kind_of_patch(cluster: IsolatedCluster) -> None:
    path = cluster.path("configmaps", "patched")
    manifest = {**config_map("patched", a="1"), "metadata": {"name": "patched", "namespace": cluster.namespace}}
    cluster.api.apply(manifest)
    cluster.api.patch(path, {"data": {"b": "2"}})
    cluster.api.patch(path, [{"op": "add", "path": "/data/c", "value": "3"}], kind="json")
    cluster.api.patch(path, {"data": {"a": None}}, kind="strategic")
    assert cluster.api.get(path)["data"] == {"b": "2", "c": "3"}


def test_paths_come_from_the_servers_own_discovery(control_plane: DevCluster) -> None:
    path_of = control_plane.api.path_of
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "namespace": "n"}}
    assert path_of(deployment) == "/apis/apps/v1/namespaces/n/deployments/d"
    assert path_of(config_map("c")) == "/api/v1/namespaces/default/configmaps/c"
    assert path_of({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}) == "/api/v1/nodes/n"
    with pytest.raises(LookupError, match=r"no kind Governor in flyball\.dev/v1alpha1"):
        path_of({"apiVersion": "flyball.dev/v1alpha1", "kind": "Governor", "metadata": {"name": "n"}})
    with pytest.raises(LookupError, match=r"no kind Thing in example\.com/v1"):
        path_of({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "n"}})


def test_a_wait_in_vain_shows_what_was_last_seen(cluster: IsolatedCluster) -> None:
    cluster.api.create(cluster.path("configmaps"), config_map("still", answer="41"))
    with pytest.raises(TimeoutError, match=r"not answered within 0\.1 s(?s:.*)answer: '41'"):
        cluster.api.wait_for(
            cluster.path("configmaps", "still"),
            lambda found: found is not None and found["data"]["answer"] == "42",
            timeout_seconds=0.1,
            what="answered",
        )
    with pytest.raises(TimeoutError, match="it does not exist"):
        cluster.api.wait_for(cluster.path("configmaps", "ghost"), lambda found: found is not None, timeout_seconds=0.1)
    with pytest.raises(TimeoutError, match=r"objects, .*still"):
        cluster.api.wait_for(cluster.path("configmaps"), lambda found: False, timeout_seconds=0.1)


def test_what_is_awaited_is_watched_and_not_asked_for_again_and_again(
    cluster: IsolatedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_module, "WATCH_SECONDS", PATIENCE_SECONDS)
    waiting, path = looking(cluster, "get", "watch", "list"), cluster.path("configmaps", "moving")
    cluster.api.create(cluster.path("configmaps"), config_map("moving", answer="0"))
    asked: list[object] = []
    seen: list[str | None] = []
    ask = waiting.request

    def counted(*arguments: Any, **options: Any) -> Any:
        asked.append(0)
        return ask(*arguments, **options)

    monkeypatch.setattr(waiting, "request", counted)

    def moves_on(found: Json | None) -> bool:
        """Every look changes it: the next one comes with that."""
        seen.append(None if found is None else found["data"]["answer"])
        if found is None:
            return True
        if len(seen) < 10:
            cluster.api.patch(path, {"data": {"answer": str(len(seen))}})
        else:
            cluster.api.delete(path)
        return False

    assert waiting.wait_for(path, moves_on, timeout_seconds=PATIENCE_SECONDS) == {}
    assert seen == [*map(str, range(10)), None]
    assert len(asked) == 1


def test_who_may_not_watch_asks_again(cluster: IsolatedCluster) -> None:
    waiting, path = looking(cluster, "get"), cluster.path("configmaps", "still")
    cluster.api.create(cluster.path("configmaps"), config_map("still", answer="0"))
    looks = itertools.count(1)
    waiting.wait_for(path, lambda found: next(looks) == 3, timeout_seconds=PATIENCE_SECONDS)


def looking(cluster: IsolatedCluster, *verbs: str) -> ApiClient:
    """The API as an account that may do these with ConfigMaps, once it may."""
    rights = "/apis/rbac.authorization.k8s.io/v1"
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": list(verbs)}]
    cluster.api.create(cluster.path("roles", group=rights), {"metadata": {"name": "looks"}, "rules": rules})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "looks"}
    account = {"kind": "ServiceAccount", "name": "default"}
    binding = {"metadata": {"name": "looks"}, "roleRef": role, "subjects": [account]}
    cluster.api.create(cluster.path("rolebindings", group=rights), binding)
    plane = cluster.devcluster.control_plane
    found = plane.api_with_token(plane.token(cluster.namespace, "default"))

    def may() -> bool:
        try:
            return found.get_or_none(cluster.path("configmaps", "nothing")) is None
        except ApiError:
            return False

    wait_until(may, "its rights are known")
    return found


def test_a_wait_bears_a_server_that_is_away(cluster: IsolatedCluster) -> None:
    away = ApiClient(f"https://127.0.0.1:{free_port()}")
    with pytest.raises(ApiUnreachable, match=r"GET /version: .*refused"):
        away.get("/version")
    with pytest.raises(TimeoutError, match="refused"):
        away.wait_for("/version", lambda found: True, timeout_seconds=0.2)
    plane = cluster.devcluster.control_plane
    forbidden = plane.api_with_token(plane.token(cluster.namespace, "default"))
    with pytest.raises(ApiError, match="403"):
        forbidden.wait_for("/api/v1/nodes", lambda found: True, timeout_seconds=30)


def test_many_calls_at_once_keep_their_order_and_raise_the_first_error(cluster: IsolatedCluster) -> None:
    path = cluster.path("configmaps")
    made = cluster.api.for_each(lambda number: cluster.api.create(path, config_map(f"c{number}")), range(40))
    assert [found["metadata"]["name"] for found in made] == [f"c{number}" for number in range(40)]
    with pytest.raises(ApiError, match="c7"):
        cluster.api.for_each(lambda number: cluster.api.create(path, config_map(f"c{number}")), [40, 7, 8])
