"""`RealCluster`: the control plane with one or two real nodes in it, whose pods run, in one call."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from flyball_api.names import GPU_RESOURCE

from flyball_testbed.controlplane import cluster as simulated
from flyball_testbed.controlplane.api import ApiClient, Json
from flyball_testbed.controlplane.cluster import DevCluster
from flyball_testbed.controlplane.components import KUBE_PROXY_USER
from flyball_testbed.controlplane.control_plane import Options
from flyball_testbed.controlplane.credentials import issue, write_certificate_kubeconfig
from flyball_testbed.controlplane.nodes import DEFAULT_GPU_PRODUCT, NODES, wait_schedulable
from flyball_testbed.controlplane.processes import ProcessIdentity
from flyball_testbed.controlplane.programs.binaries import NODE_PROGRAMS, PROGRAMS, Binaries, Report, find_binaries
from flyball_testbed.realnode import cgroups, gpus, requirements
from flyball_testbed.realnode.configuration import PAUSE_IMAGE, Machine
from flyball_testbed.realnode.images import ImageDefaults, write_image
from flyball_testbed.realnode.node import NodeError, RealNode
from flyball_testbed.realnode.nvidia_runtime import LIBRARY

DEFAULT_GPUS_PER_NODE = 4
MAX_NODES = 9
READY_TIMEOUT_SECONDS = 240.0
STATE_FILE = "nodes.json"
KUBE_PROXY_BINDING = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "devcluster-kube-proxy"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:node-proxier"},
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:kube-proxy"}],
}


class UnfitMachineError(Exception):
    """This machine cannot run real nodes; the message has one line a reason."""


def node_name(index: int) -> str:
    """`real-1`, `real-2`: the nodes that a cluster is started with."""
    return f"real-{index}"


class RealCluster:
    """A throwaway cluster whose nodes are real: kubelet, containerd, kube-proxy, and a device plugin for simulated GPUs.

    A context manager; leaving it stops the cluster. Everything of it is in its folder and in namespaces that end with its
    processes, which end with the process that started it (unless the options say otherwise).
    """

    def __init__(self, devcluster: DevCluster, nodes: dict[str, RealNode]) -> None:
        self.devcluster = devcluster
        self.nodes = nodes

    @classmethod
    def start(
        cls,
        nodes: int = 1,
        gpus_per_node: int = DEFAULT_GPUS_PER_NODE,
        *,
        product: str = DEFAULT_GPU_PRODUCT,
        directory: Path | str | None = None,
        images: Iterable[Path] = (),
        install: bool = True,
        startup_taint: bool = False,
        die_with_parent: bool = True,
        binaries: Binaries | None = None,
        report: Report = lambda _line: None,
    ) -> Self:
        """Start a cluster and wait until its nodes are ready and offer their GPUs.

        `images` are tars that every node has from its start; `install` puts Flyball's kinds, accounts and policies in, and
        `startup_taint` the taint on that keeps pods off a node until its agent has acknowledged. Raises
        UnfitMachineError where this machine cannot, ValueError for a number of nodes or a product that there is not,
        NodeError where a node does not become ready, and what `ControlPlane.start` raises; nothing is left running.
        """
        if not 1 <= nodes <= MAX_NODES:
            raise ValueError(f"{nodes} real nodes: 1 to {MAX_NODES} can be had")
        images = list(images)
        obstacles = requirements.obstacles()
        if obstacles:
            raise UnfitMachineError("\n".join(obstacles))
        cgroups.sweep()
        programs = binaries if binaries is not None else find_binaries(report, (*PROGRAMS, *NODE_PROGRAMS))
        report("starting the control plane")
        devcluster = DevCluster.start(
            0,
            directory=directory,
            install=False,
            options=Options(real_nodes=True, die_with_parent=die_with_parent),
            binaries=programs,
            report=report,
        )
        cluster = cls(devcluster, {})
        try:
            cluster._furnish(images)
            if install:
                devcluster.install_api()
            given = [image.name for image in images]
            report(
                f"starting {', '.join(node_name(index) for index in range(1, nodes + 1))}: containerd"
                f"{', which imports ' + ' and '.join(given) if given else ''}, the kubelet, and a device plugin"
            )
            for index in range(1, nodes + 1):
                cluster._add_node(index, programs, gpus_per_node, product, startup_taint)
            cluster.wait_ready()
        except BaseException:
            cluster.stop()
            raise
        return cluster

    @classmethod
    def attach(cls, directory: Path | str) -> Self:
        """The running cluster whose files are in `directory`. Raises FileNotFoundError where there is none."""
        devcluster = DevCluster.attach(directory)
        state = json.loads((devcluster.directory / STATE_FILE).read_text())
        plane = devcluster.control_plane
        nodes = [
            RealNode.attach(node, plane.network_namespace, die_with_parent=plane.options.die_with_parent)
            for node in state["nodes"]
        ]
        return cls(devcluster, {node.name: node for node in nodes})

    def stop(self) -> None:
        """Cut the nodes' power, stop the control plane, and remove what they left."""
        for node in self.nodes.values():
            node.stop()
        self.devcluster.stop()
        for node in self.nodes.values():  # images and pods: far more than the logs of a control plane
            shutil.rmtree(node.machine.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    # --- what it is made of ----------------------------------------------------------------------------------------

    def _furnish(self, images: list[Path]) -> None:
        """What the nodes share: the pause image, the images asked for, the GPUs' library, kube-proxy's account."""
        self._images.mkdir()
        self._library.parent.mkdir()
        with tempfile.TemporaryDirectory(dir=self.directory) as root:
            gpus.build_pause(Path(root) / "pause")
            write_image(
                ImageDefaults(PAUSE_IMAGE, ["/pause"], user="65535:65535"), Path(root), self._images / "pause.tar"
            )
        for image in images:
            (self._images / image.name).symlink_to(image.resolve(strict=True))
        gpus.build_library(self._library.parent)
        layout = self.devcluster.control_plane.layout
        issue(layout, KUBE_PROXY_USER, "system:kube-proxy", None, "localhost")
        self.api.apply(KUBE_PROXY_BINDING)

    def _add_node(self, index: int, programs: Binaries, gpus_per_node: int, product: str, startup_taint: bool) -> None:
        name = node_name(index)
        folder = self.directory / name
        (folder / "logs").mkdir(parents=True)
        (folder / "images").symlink_to(self._images)
        hardware = folder / f"{name}.gpus"
        if gpus_per_node:
            gpus.create_hardware(hardware, product, gpus_per_node)
        plane = self.devcluster.control_plane
        runtime = requirements.runtime()
        machine = Machine(
            name=name,
            index=index,
            pki=str(plane.layout.pki),
            directory=str(folder),
            runtime=str(runtime),
            programs={program: str(programs[program]) for program in NODE_PROGRAMS},
            server_url=plane.node_server_url,
            gpu_product=product if gpus_per_node else "",
            hardware=str(hardware) if gpus_per_node else "",
            gpu_library=str(self._library),
            startup_taint=startup_taint,
        )
        # The node authorizer knows a kubelet by this name and group.
        issue(plane.layout, name, f"system:node:{name}", "system:nodes", machine.address, name)
        for user, target in ((name, "kubelet"), (KUBE_PROXY_USER, "kube-proxy")):
            write_certificate_kubeconfig(plane.layout, plane.node_server_url, user, folder / f"{target}.kubeconfig")
        node = RealNode(machine, plane.network_namespace, die_with_parent=plane.options.die_with_parent)
        self.nodes[name] = node
        node.start()
        self._save()

    def _save(self) -> None:
        path = self.directory / STATE_FILE
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps({"nodes": [node.state() for node in self.nodes.values()]}, indent=1))
        os.replace(temporary, path)

    @property
    def _images(self) -> Path:
        return self.directory / "images"

    @property
    def _library(self) -> Path:
        return self.directory / "lib" / LIBRARY

    # --- access ----------------------------------------------------------------------------------------------------

    @property
    def api(self) -> ApiClient:
        """The API as the administrator."""
        return self.devcluster.api

    @property
    def directory(self) -> Path:
        return self.devcluster.directory

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.devcluster.kubeconfig

    def hardware(self, node: str) -> Path:
        """The file of a node's simulated GPUs."""
        return Path(self.nodes[node].machine.hardware)

    @property
    def gpu_library(self) -> Path:
        """The NVML library over simulated GPUs."""
        return self._library

    def load_image(self, image: Path) -> None:
        """Import an image's tar on every node, now and whenever one is started again."""
        kept = self._images / image.name
        if not kept.is_symlink():
            kept.symlink_to(image.resolve(strict=True))
        for node in self.nodes.values():
            node.load_image(image)

    def start_node(self, name: str) -> None:
        """Power a node that was stopped; it comes back with its disk as it was."""
        self.nodes[name].start()
        self._save()

    def wait_ready(self, names: Iterable[str] | None = None, *, timeout_seconds: float = READY_TIMEOUT_SECONDS) -> None:
        """Wait until the named nodes (by default all) are ready and offer their GPUs.

        Raises NodeError with the ends of the logs where one ends or is not ready in time.
        """
        wanted = [self.nodes[name] for name in names] if names is not None else list(self.nodes.values())
        try:
            self.api.wait_for(
                NODES, lambda found: bool(_ended(wanted)) or _offered(found, wanted), timeout_seconds=timeout_seconds
            )
            if not _ended(wanted):
                wait_schedulable(self.api, [node.name for node in wanted], timeout_seconds=timeout_seconds)
        except TimeoutError as error:
            raise NodeError(f"{error}\n{self.node_log_tails()}") from error
        if _ended(wanted):
            raise NodeError(f"{', '.join(_ended(wanted))} ended while it was starting\n{self.node_log_tails()}")

    def node_log_tails(self, lines: int = 25) -> str:
        """The end of every node's logs, titled."""
        return "\n".join(node.log_tails(lines) for node in self.nodes.values())


def _ended(nodes: Iterable[RealNode]) -> list[str]:
    return [node.name for node in nodes if not node.is_running()]


def _offered(found: Json | None, wanted: Iterable[RealNode]) -> bool:
    """Whether every wanted node is registered, and offers its GPUs where it has some."""
    allocatable = {
        node["metadata"]["name"]: node["status"].get("allocatable", {}) for node in (found or {"items": []})["items"]
    }
    return all(
        node.name in allocatable and (not node.machine.hardware or allocatable[node.name].get(GPU_RESOURCE, "0") != "0")
        for node in wanted
    )


# --- clusters of other processes ------------------------------------------------------------------------------------------


def is_real(directory: Path) -> bool:
    """Whether the cluster in a folder has real nodes."""
    return (directory / STATE_FILE).exists()


def take_down(directory: Path, *, only_dead: bool = False) -> bool:
    """Stop a cluster with whatever nodes, whole or crashed, and remove its folder; whether there was one.

    With `only_dead`, raises FileExistsError where anything of it still runs.
    """
    if is_real(directory):
        nodes = [
            (Path(node["directory"]).name, node["process"])
            for node in json.loads((directory / STATE_FILE).read_text())["nodes"]
        ]
        processes = [(name, ProcessIdentity(*process)) for name, process in nodes if process is not None]
        running = [name for name, identity in processes if identity.is_running()]
        if only_dead and running:
            raise FileExistsError(f"the devcluster in {directory} is already up ({', '.join(running)} run)")
        if running:
            RealCluster.attach(directory).stop()
    try:
        return simulated.take_down(directory, only_dead=only_dead)
    finally:
        cgroups.sweep()
