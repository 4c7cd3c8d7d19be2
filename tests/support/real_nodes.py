"""The marker `realnode`, its rule, and the clusters with real nodes that tests share or break; a plugin of pytest.

A test that starts real nodes has the markers `cluster` and `realnode`. It gets them by asking, itself or through its
fixtures, for `real_node_programs`, and is skipped, with the reasons, on a machine that cannot run real nodes.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from flyball_testbed.controlplane.api import ApiClient, Json
from flyball_testbed.controlplane.programs.binaries import (
    NODE_PROGRAMS,
    PROGRAMS,
    Binaries,
    BinariesUnavailableError,
    find_binaries,
)
from flyball_testbed.real_site import RealSite
from flyball_testbed.realnode import requirements
from flyball_testbed.realnode.cluster import RealCluster
from flyball_testbed.realnode.images import ImageDefaults, write_image

from tests.support.last_words import Sections, last_words

MARKER = "realnode"
PROGRAMS_FIXTURE = "real_node_programs"
UNAVAILABLE = pytest.StashKey[str]()
"""Why the programs could not be had: tried once, before the first test."""
GPUS_PER_NODE = 4
TOOLS_IMAGE = "flyball.dev/tools:1"
QUICK_OPERATOR = (
    "--replan-seconds", "1", "--status-interval-seconds", "1", "--restart-seconds", "1", "--first-pause-seconds", "0.5",
)  # fmt: skip
TOOLS = ("sh", "cat", "echo", "env", "id", "ls", "nc", "sleep", "test", "true")


@dataclass(frozen=True)
class RealBench:
    """A cluster with real nodes and a namespace of the test's own in it."""

    cluster: RealCluster
    namespace: str

    @property
    def api(self) -> ApiClient:
        """The API as the administrator."""
        return self.cluster.api

    @property
    def pods(self) -> str:
        """The path of the test's pods."""
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def path(self, name: str) -> str:
        """The path of one of the test's pods."""
        return f"{self.pods}/{name}"

    def run(self, name: str, script: str, *, gpus: int = 0, **spec: Any) -> None:
        """Create a pod that runs a shell script in the image of tools."""
        container: Json = {"name": "main", "image": TOOLS_IMAGE, "command": ["sh", "-c", script]}
        if gpus:
            container["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
        self.api.create(
            self.pods,
            {
                "metadata": {"name": name},
                "spec": {
                    "containers": [{**container, **spec.pop("container", {})}],
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": 1,
                    **spec,
                },
            },
        )

    def wait_phase(self, name: str, *phases: str) -> Json:
        """The pod, once it is in one of these phases."""
        return self.api.wait_for(
            self.path(name),
            lambda pod: pod is not None and pod["status"].get("phase") in phases,
            timeout_seconds=90,
            what=" or ".join(phases),
        )

    def exit_code(self, name: str) -> int:
        """The exit code of a pod's container, once it has ended."""
        pod = self.wait_phase(name, "Succeeded", "Failed")
        assert "containerStatuses" in pod["status"], f"{name} was turned away: {pod['status']}"
        code: int = pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"]
        return code

    def log(self, name: str) -> str:
        """What a pod has written."""
        return str(self.api.request("GET", f"{self.path(name)}/log"))

    def output(self, name: str, script: str, **keywords: Any) -> str:
        """What a script writes in a pod of its own, which must succeed."""
        self.run(name, script, **keywords)
        code = self.exit_code(name)
        assert code == 0, f"{name} ended with {code}: {self.log(name)}"
        return self.log(name)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what asks for the programs of real nodes."""
    for item in items:
        if PROGRAMS_FIXTURE in getattr(item, "fixturenames", ()):
            item.add_marker("cluster")
            item.add_marker(MARKER)


def pytest_runtestloop(session: pytest.Session) -> None:
    """Have the programs before the first test: building them takes longer than a test may."""
    wanted = any(item.get_closest_marker(MARKER) for item in session.items)
    if session.config.option.collectonly or not wanted or requirements.obstacles():
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    try:
        find_binaries(reporter.write_line if reporter is not None else print, (*PROGRAMS, *NODE_PROGRAMS))
    except BinariesUnavailableError as error:
        session.config.stash[UNAVAILABLE] = str(error)


@pytest.fixture(scope="session")
def real_node_programs(pytestconfig: pytest.Config) -> Binaries:
    """The programs of a control plane and of real nodes; skips where the machine cannot run them, or get them."""
    obstacles = requirements.obstacles() or [pytestconfig.stash.get(UNAVAILABLE, "")]
    if any(obstacles):
        pytest.skip("; ".join(obstacles))
    return find_binaries(programs=(*PROGRAMS, *NODE_PROGRAMS))


@pytest.fixture(scope="session")
def tools_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tar of an image with a shell and a few tools, from this machine's own busybox; skips where it has none."""
    busybox = shutil.which("busybox")
    if busybox is None or b"/ld-linux" in Path(busybox).read_bytes()[:4096]:
        pytest.skip("a test's image needs a busybox without libraries (apt-get install busybox-static)")
    folder = tmp_path_factory.mktemp("tools")
    (folder / "root" / "bin").mkdir(parents=True)
    shutil.copy(busybox, folder / "root" / "bin" / "busybox")
    for tool in TOOLS:
        (folder / "root" / "bin" / tool).symlink_to("busybox")
    write_image(ImageDefaults(TOOLS_IMAGE, ["/bin/sh", "-c"]), folder / "root", folder / "tools.tar")
    return folder / "tools.tar"


@pytest.fixture(scope="session")
def real_cluster(real_node_programs: Binaries, tools_image: Path) -> Iterator[RealCluster]:
    """One cluster with a real node for the whole session, started by the first test that asks."""
    with RealCluster.start(1, GPUS_PER_NODE, images=[tools_image], binaries=real_node_programs) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def real_site(
    real_node_programs: Binaries, tools_image: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealSite]:
    """Two real nodes with agents, an operator and a referee for the whole session, started by the first test that asks."""
    with RealSite.start(
        tmp_path_factory.mktemp("real-site"),
        operator_arguments=QUICK_OPERATOR,
        images=[tools_image],
        binaries=real_node_programs,
    ) as site:
        yield site


@pytest.fixture
def real_bench(real_cluster: RealCluster) -> Iterator[RealBench]:
    """The shared cluster with a fresh namespace; its pods are gone afterwards, and their GPUs free."""
    made = bench_on(real_cluster)
    yield made
    made.api.delete(f"/api/v1/namespaces/{made.namespace}")
    made.api.delete_collection(made.pods)
    # Not by force: the kubelet, too, must be done with them.
    made.api.wait_for(made.pods, lambda pods: not (pods or {}).get("items"), timeout_seconds=60, what="empty")


def bench_on(cluster: RealCluster) -> RealBench:
    """A bench with a fresh namespace, in which pods can be created."""
    namespace = f"test-{uuid.uuid4().hex[:8]}"
    cluster.api.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    cluster.api.wait_for(f"/api/v1/namespaces/{namespace}/serviceaccounts/default", lambda account: account is not None)
    return RealBench(cluster, namespace)


@last_words.register
def _of_real_nodes(cluster: RealCluster) -> Sections:
    return [("nodes", cluster.node_log_tails()), *last_words(cluster.devcluster)]


@last_words.register
def _of_a_bench(bench: RealBench) -> Sections:
    return last_words(bench.cluster)
