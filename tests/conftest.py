"""The real cluster that the tests share, and the fresh ones for tests that break things."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from flyball_devcluster.api import ApiClient, Json
from flyball_devcluster.binaries import BinariesUnavailableError, find_binaries
from flyball_devcluster.cluster import DevCluster
from flyball_devcluster.install import SYSTEM_NAMESPACE
from flyball_devcluster.nodes import NODES

GROUP = "/apis/flyball.dev/v1alpha1"
CLUSTER_COLLECTIONS = (f"{GROUP}/powercaps", f"{GROUP}/gpunodes")
NAMESPACED_COLLECTIONS = (f"{GROUP}/energyawarejobs", f"{GROUP}/energyprofiles")
SYSTEM_LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases"
CLUSTER_FIXTURES = ("control_plane", "cluster", "fresh_cluster")


@dataclass(frozen=True)
class IsolatedCluster:
    """The shared cluster with a namespace of the test's own.

    Its nodes and Flyball's cluster-wide objects are the test's own too: tests run one after the other, and each is
    cleaned up after.
    """

    devcluster: DevCluster
    namespace: str

    @property
    def api(self) -> ApiClient:
        """The API as the administrator."""
        return self.devcluster.api

    def add_nodes(self, count: int, **keywords: Any) -> list[str]:
        """Add simulated nodes, as `DevCluster.add_nodes`."""
        return self.devcluster.add_nodes(count, **keywords)

    def path(self, plural: str, name: str | None = None, group: str = "/api/v1") -> str:
        """The path of an object in the test's namespace, or of the whole collection."""
        collection = f"{group}/namespaces/{self.namespace}/{plural}"
        return collection if name is None else f"{collection}/{name}"


def pytest_configure() -> None:
    """Let Ctrl-C work in the tests and in what they start, also where pytest was started in the background.

    A shell without job control starts background commands with SIGINT ignored, and every child would inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if set(CLUSTER_FIXTURES) & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.cluster)


def pytest_runtestloop(session: pytest.Session) -> None:
    """Have the control plane's programs before the first test: building them takes longer than a test may."""
    if session.config.option.collectonly or not any(item.get_closest_marker("cluster") for item in session.items):
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    try:
        find_binaries(reporter.write_line if reporter is not None else print)
    except BinariesUnavailableError as error:
        # Every test on the cluster would try the same again, for minutes each.
        pytest.exit(str(error), returncode=pytest.ExitCode.TESTS_FAILED)


@pytest.fixture(scope="session")
def control_plane() -> Iterator[DevCluster]:
    """One control plane for the whole session, started by the first test that asks.

    Flyball's API is installed and there are no nodes. A test that changes anything takes `cluster`.
    """
    with DevCluster.start(0) as devcluster:
        yield devcluster


@pytest.fixture
def cluster(control_plane: DevCluster) -> Iterator[IsolatedCluster]:
    """The shared control plane with a fresh namespace; afterwards nodes, caps, GPUNodes and leases are gone."""
    api = control_plane.api
    namespace = f"test-{uuid.uuid4().hex[:8]}"
    api.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    # A pod can be created once the namespace has its account.
    api.wait_for(f"/api/v1/namespaces/{namespace}/serviceaccounts/default", lambda account: account is not None)
    yield IsolatedCluster(control_plane, namespace)
    # From here on nothing new can be created in it; what ran in it has nobody any more to end it gracefully.
    api.delete(f"/api/v1/namespaces/{namespace}")
    for collection in (*CLUSTER_COLLECTIONS, *NAMESPACED_COLLECTIONS):
        _delete_all(api, collection)
    control_plane.delete_nodes(control_plane.node_names(), with_pods=True)
    api.delete_collection(f"/api/v1/namespaces/{namespace}/pods", grace_seconds=0)
    api.delete_collection(SYSTEM_LEASES)
    for collection in (*CLUSTER_COLLECTIONS, NODES):
        api.wait_for(collection, _is_empty, what="empty")


@pytest.fixture
def fresh_cluster() -> Iterator[DevCluster]:
    """A control plane of the test's own (four nodes), for tests that stop, pause or damage its components."""
    with DevCluster.start(4) as devcluster:
        yield devcluster


def _delete_all(api: ApiClient, collection: str) -> None:
    """Delete the objects of a collection, with their finalizers: who would have served them is gone."""
    for found in api.list_objects(collection):
        namespace = found["metadata"].get("namespace")
        prefix, _, plural = collection.rpartition("/")
        scope = f"{prefix}/namespaces/{namespace}/{plural}" if namespace is not None else collection
        path = f"{scope}/{found['metadata']['name']}"
        api.delete(path)
        if found["metadata"].get("finalizers") and api.get_or_none(path) is not None:
            api.patch(path, {"metadata": {"finalizers": None}})


def _is_empty(collection: Json | None) -> bool:
    return collection is None or not collection["items"]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Put the ends of the components' logs into the report of a failed test."""
    report: Any = yield
    if report.failed:
        for name in CLUSTER_FIXTURES:
            value = getattr(item, "funcargs", {}).get(name)
            devcluster = value.devcluster if isinstance(value, IsolatedCluster) else value
            if isinstance(devcluster, DevCluster):
                report.sections.append(("control plane", devcluster.control_plane.log_tails()))
                break
    return report
