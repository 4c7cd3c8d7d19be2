"""The real cluster that the tests share, and the fresh ones for tests that break things."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from flyball_devcluster import nodes
from flyball_devcluster.api import ApiClient, Json, NotFoundError
from flyball_devcluster.cluster import DevCluster

GROUP = "/apis/flyball.dev/v1alpha1"
CLUSTER_COLLECTIONS = (f"{GROUP}/powercaps", f"{GROUP}/gpunodes")
CLUSTER_FIXTURES = {"control_plane", "cluster", "fresh_cluster"}


@dataclass(frozen=True)
class IsolatedCluster:
    """The shared cluster with a namespace of the test's own; its nodes and Flyball's cluster-wide objects are its own
    too, because tests run one after the other and each is cleaned up after."""

    devcluster: DevCluster
    namespace: str

    @property
    def api(self) -> ApiClient:
        return self.devcluster.api

    def add_nodes(self, count: int, **keywords: object) -> list[str]:
        return self.devcluster.add_nodes(count, **keywords)  # type: ignore[arg-type]

    def path(self, plural: str, name: str | None = None, group: str = "/api/v1") -> str:
        """The path of an object (or of the collection) in the test's namespace."""
        collection = f"{group}/namespaces/{self.namespace}/{plural}"
        return collection if name is None else f"{collection}/{name}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if CLUSTER_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def control_plane() -> Iterator[DevCluster]:
    """One control plane for the whole session, started by the first test that asks; Flyball's API is installed, there
    are no nodes. Use `cluster` unless the test changes nothing."""
    with DevCluster.start(0) as devcluster:
        yield devcluster


@pytest.fixture
def cluster(control_plane: DevCluster) -> Iterator[IsolatedCluster]:
    """The shared control plane with a fresh namespace; afterwards nodes, caps and GPUNodes are gone."""
    api = control_plane.api
    namespace = f"test-{uuid.uuid4().hex[:8]}"
    api.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    # A pod can be created once the namespace has its account.
    api.wait_for(f"/api/v1/namespaces/{namespace}/serviceaccounts/default", lambda account: account is not None)
    yield IsolatedCluster(control_plane, namespace)
    # The objects that bring others forth go first, then the pods (at once: nobody plays their containers any more).
    api.delete(f"/api/v1/namespaces/{namespace}")
    for collection in ("pods",):
        api.delete_collection(f"/api/v1/namespaces/{namespace}/{collection}", grace_seconds=0)
    for collection in CLUSTER_COLLECTIONS:
        _delete_all(api, collection)
    nodes.delete_nodes(api, control_plane.node_names())
    for collection in CLUSTER_COLLECTIONS:
        api.wait_for(collection, _is_empty, what="empty")
    api.wait_for(nodes.NODES, _is_empty, what="empty")


@pytest.fixture
def fresh_cluster() -> Iterator[DevCluster]:
    """A control plane of the test's own (four nodes), for tests that stop, pause or damage its components."""
    with DevCluster.start(4) as devcluster:
        yield devcluster


def _delete_all(api: ApiClient, collection: str) -> None:
    try:
        api.delete_collection(collection)
    except NotFoundError:
        return  # a control plane without Flyball's API


def _is_empty(collection: Json | None) -> bool:
    return collection is None or not collection["items"]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.failed:
        for name in CLUSTER_FIXTURES:
            value = getattr(item, "funcargs", {}).get(name)
            devcluster = value.devcluster if isinstance(value, IsolatedCluster) else value
            if isinstance(devcluster, DevCluster):
                report.sections.append((f"control plane of {name!r}", devcluster.control_plane.log_tails()))
                break
    return report
