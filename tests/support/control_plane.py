"""The marker `cluster`, its rule, and the real control planes that tests share or break; a plugin of pytest.

The rule: a test that starts a control plane has the marker `cluster`. It gets the marker by asking, itself or through
its fixtures, for `control_plane_programs`, which every fixture that starts a control plane does; a test that starts one
by other means (a command in a process of its own) marks itself. Any other test that starts one fails: the programs that
it finds only say why.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from flyball_api.names import DEFAULT_NAMESPACE
from flyball_testbed.controlplane.api import ApiClient, Json
from flyball_testbed.controlplane.cluster import DevCluster
from flyball_testbed.controlplane.nodes import NODES
from flyball_testbed.controlplane.programs.binaries import (
    ASSETS_VARIABLE,
    PROGRAMS,
    Binaries,
    BinariesUnavailableError,
    find_binaries,
)
from flyball_testbed.controlplane.programs.build import MODULE_OF_PROGRAM, pinned_version

from tests.support.last_words import Sections, last_words

GROUP = "/apis/flyball.dev/v1alpha1"
CLUSTER_COLLECTIONS = (
    f"{GROUP}/powercaps",
    f"{GROUP}/gpunodes",
    f"{GROUP}/powerbrakes",
    f"{GROUP}/brakeacknowledgements",
    f"{GROUP}/energyreports",
)
NAMESPACED_COLLECTIONS = (f"{GROUP}/energyawarejobs", f"{GROUP}/energyprofiles", f"{GROUP}/energyquotas")
SYSTEM_LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{DEFAULT_NAMESPACE}/leases"
MARKER = "cluster"
PROGRAMS_FIXTURE = "control_plane_programs"
REFUSAL = "a test without the marker `cluster` started a control plane: mark it, or take a fixture that starts one"
# Gives its version, so that it is taken for the real program, and does nothing else.
REFUSING_PROGRAM = """#!/bin/sh
case "$1" in --version|version) echo {version}; exit 0;; esac
echo '{refusal}' >&2
exit 1
"""
REFUSING_PROGRAMS = pytest.StashKey[str]()


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


# --- the marker and its rule -------------------------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    """Make the programs that a test without the marker finds in place of the control plane's."""
    directory = tempfile.TemporaryDirectory(prefix="flyball-no-control-plane-")
    config.add_cleanup(directory.cleanup)
    for program in PROGRAMS:
        path = Path(directory.name) / program
        path.write_text(REFUSING_PROGRAM.format(version=pinned_version(MODULE_OF_PROGRAM[program]), refusal=REFUSAL))
        path.chmod(0o755)
    config.stash[REFUSING_PROGRAMS] = directory.name


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what asks for the control plane's programs."""
    for item in items:
        if PROGRAMS_FIXTURE in getattr(item, "fixturenames", ()):
            item.add_marker(MARKER)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Let only what has the marker find the control plane's programs, in this process and in those it starts."""
    if item.get_closest_marker(MARKER):
        return (yield)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(ASSETS_VARIABLE, item.config.stash[REFUSING_PROGRAMS])
        return (yield)


def pytest_runtestloop(session: pytest.Session) -> None:
    """Have the control plane's programs before the first test: building them takes longer than a test may."""
    if session.config.option.collectonly or not any(item.get_closest_marker(MARKER) for item in session.items):
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    try:
        find_binaries(reporter.write_line if reporter is not None else print)
    except BinariesUnavailableError as error:
        # Every test on the cluster would try the same again, for minutes each.
        pytest.exit(str(error), returncode=pytest.ExitCode.TESTS_FAILED)


# --- control planes ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def control_plane_programs() -> Binaries:
    """The control plane's programs; what asks for them is marked `cluster`."""
    return find_binaries()


@pytest.fixture(scope="session")
def control_plane(control_plane_programs: Binaries) -> Iterator[DevCluster]:
    """One control plane for the whole session, started by the first test that asks.

    Flyball's API is installed and there are no nodes. A test that changes anything takes `cluster`.
    """
    with DevCluster.start(0, binaries=control_plane_programs) as devcluster:
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
def fresh_cluster(control_plane_programs: Binaries) -> Iterator[DevCluster]:
    """A control plane of the test's own (four nodes), for tests that stop, pause or damage its components."""
    with DevCluster.start(4, binaries=control_plane_programs) as devcluster:
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


@last_words.register
def _of_a_devcluster(devcluster: DevCluster) -> Sections:
    return [("control plane", devcluster.control_plane.log_tails())]


@last_words.register
def _of_a_part_of_one(cluster: IsolatedCluster) -> Sections:
    return last_words(cluster.devcluster)
