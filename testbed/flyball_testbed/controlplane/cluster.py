"""`DevCluster`: a control plane with simulated GPU nodes and Flyball's API in it, in one call."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from flyball_api.manifests import manifests
from flyball_api.names import DEFAULT_NAMESPACE

from flyball_testbed.controlplane import install, nodes
from flyball_testbed.controlplane.api import ApiClient, Json
from flyball_testbed.controlplane.control_plane import ControlPlane, Options
from flyball_testbed.controlplane.prepared import prepared_store
from flyball_testbed.controlplane.programs.binaries import Binaries, Report, find_binaries
from flyball_testbed.controlplane.programs.build import locked

DEFAULT_NODES = 16
AGENT_TIMEOUT_SECONDS = 120.0
AnyCluster = TypeVar("AnyCluster")


def clusters_directory() -> Path:
    """Where named clusters live: `$XDG_STATE_HOME/flyball/devcluster`."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "flyball" / "devcluster"


def named_directory(name: str) -> Path:
    """The folder of a named cluster. Raises ValueError for a name that could lead elsewhere."""
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name):
        raise ValueError(f"{name!r} is no cluster name: lower-case letters, digits and hyphens, at most 63")
    return clusters_directory() / name


def cluster_names() -> list[str]:
    """The named clusters that have been started and not taken down."""
    return sorted(path.parent.name for path in clusters_directory().glob("*/state.json"))


class DevCluster:
    """A throwaway cluster: the real control plane, simulated GPU nodes, Flyball's API and the agents' identities.

    A context manager, for `with` and for `async with`; leaving it stops the cluster.
    """

    def __init__(self, control_plane: ControlPlane) -> None:
        self.control_plane = control_plane
        self._numbers = itertools.count()  # of nodes; each is given out once

    @classmethod
    def start(
        cls,
        nodes: int = DEFAULT_NODES,
        gpus_per_node: int = nodes.DEFAULT_GPUS_PER_NODE,
        *,
        product: str = nodes.DEFAULT_GPU_PRODUCT,
        directory: Path | str | None = None,
        install: bool = True,
        options: Options | None = None,
        binaries: Binaries | None = None,
        report: Report = lambda _line: None,
    ) -> Self:
        """Start a cluster and wait until it can be used: the API is installed, the nodes are ready.

        An agent's pod comes to each node within a second or so; `agent_pods` waits for them. `install` False leaves
        Flyball's API and the agents' pods out. See `ControlPlane.start` for the rest and for the errors; whatever
        fails, nothing is left running.
        """
        programs = binaries if binaries is not None else find_binaries(report)
        simulated = not (options or Options()).real_nodes
        store = prepared_store(programs, report) if install and simulated else None
        control_plane = ControlPlane.start(
            directory,
            options=options,
            binaries=programs,
            before_controllers=(_install_api if store is None else _complete_api) if install else None,
            store=store,
            report=report,
        )
        cluster = cls(control_plane)
        try:
            if install:
                cluster.install_agents()
            if nodes:
                cluster.add_nodes(nodes, gpus=gpus_per_node, product=product)
        except BaseException:
            cluster.stop()
            raise
        return cluster

    @classmethod
    async def start_async(cls, *arguments: Any, **keywords: Any) -> Self:
        """`start`, without blocking the event loop."""
        return await asyncio.to_thread(cls.start, *arguments, **keywords)

    @classmethod
    def attach(cls, directory: Path | str) -> Self:
        """The running cluster whose files are in `directory`. Raises FileNotFoundError where there is none."""
        return cls(ControlPlane.attach(directory))

    def stop(self) -> None:
        """Stop every process of the cluster; a temporary folder is removed."""
        self.control_plane.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)

    # --- access ----------------------------------------------------------------------------------------------------

    @property
    def api(self) -> ApiClient:
        """The API as the administrator."""
        return self.control_plane.api

    @property
    def directory(self) -> Path:
        return self.control_plane.directory

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.control_plane.kubeconfig()

    def operator_kubeconfig(self) -> Path:
        """A kubeconfig of the operator's service account: what it may not do in a cluster it may not do here."""
        return self.control_plane.service_account_kubeconfig(DEFAULT_NAMESPACE, install.OPERATOR)

    def agent_pods(
        self, names: Iterable[str] | None = None, *, timeout_seconds: float = AGENT_TIMEOUT_SECONDS
    ) -> dict[str, str]:
        """The name of the agent's running pod on each of the named nodes (by default on every one), once all run.

        Raises TimeoutError naming the nodes without one, with what became of the pods that there are.
        """
        wanted = set(self.node_names() if names is None else names)
        found: dict[str, str] = {}
        seen: Json = {"items": []}

        def all_run(pods: Json | None) -> bool:
            seen.update(pods or {"items": []})
            install.touch_passed_over(self.api, seen)
            found.clear()
            found.update(install.running_pods(seen))
            return wanted <= set(found)

        try:
            self.api.wait_for(install.AGENT_PODS, all_run, timeout_seconds=timeout_seconds)
        except TimeoutError as error:
            missing = ", ".join(sorted(wanted - set(found))[:5])
            raise TimeoutError(
                f"no agent pod runs on {missing} after {timeout_seconds:g} s; "
                f"the agents' pods: {install.pods_summary(seen)}"
            ) from error
        return {node: found[node] for node in sorted(wanted)}

    def agent_kubeconfigs(self, names: Iterable[str] | None = None) -> dict[str, Path]:
        """For each of the named nodes (by default every one) a kubeconfig with the token of the agent's pod there.

        The API server reads the node's name from such a token. Waits for the pods, as `agent_pods`.
        """
        pods = self.agent_pods(names)
        paths = self.api.for_each(
            lambda pod: self.control_plane.service_account_kubeconfig(DEFAULT_NAMESPACE, install.AGENT, pod=pod),
            pods.values(),
        )
        return dict(zip(pods, paths, strict=True))

    def agent_kubeconfig(self, node: str) -> Path:
        """`agent_kubeconfigs` for one node."""
        return self.agent_kubeconfigs([node])[node]

    # --- nodes -----------------------------------------------------------------------------------------------------

    def node_names(self) -> list[str]:
        """The nodes of the cluster, in the order of their names."""
        return sorted(node["metadata"]["name"] for node in self.api.list_objects(nodes.NODES))

    def add_nodes(
        self,
        count: int,
        *,
        gpus: int = nodes.DEFAULT_GPUS_PER_NODE,
        product: str = nodes.DEFAULT_GPU_PRODUCT,
        wait: bool = True,
        **keywords: Any,
    ) -> list[str]:
        """Add simulated nodes, named by numbers that were not given out before, and wait until they are ready. Their names.

        A name that came again would meet what is still on its way of the node before it: its Lease, which the garbage
        collector takes away under the new node, and pods that nobody ends any more.
        """
        taken = set(self.node_names())
        names: list[str] = []
        while len(names) < count:
            name = nodes.node_name(next(self._numbers))
            if name not in taken:
                names.append(name)
        nodes.create_nodes(self.api, [nodes.gpu_node(name, gpus=gpus, product=product, **keywords) for name in names])
        if wait:
            nodes.wait_schedulable(self.api, names, timeout_seconds=AGENT_TIMEOUT_SECONDS)
        return names

    def delete_nodes(self, names: Iterable[str], *, with_pods: bool = False) -> None:
        """Delete nodes; see `nodes.delete_nodes`."""
        nodes.delete_nodes(self.api, names, with_pods=with_pods)

    def install_api(self) -> None:
        """Put Flyball's kinds, accounts and policies in."""
        install.install_api(self.api)

    def install_agents(self) -> None:
        """Create the DaemonSet whose pods carry the agents' identities."""
        install.install_agent_daemon_set(self.api)


def _install_api(api: ApiClient) -> None:
    install.install_api(api)


def _complete_api(api: ApiClient) -> None:
    """What a prepared store lacks."""
    install.wait_served(api, manifests())
    install.install_parameterized(api)


def take_down(directory: Path, *, only_dead: bool = False) -> bool:
    """Stop a cluster and remove its folder; whether there was one.

    With `only_dead`, raises FileExistsError where any of its components still runs.
    """
    try:
        control_plane = ControlPlane.attach(directory)
    except FileNotFoundError:
        shutil.rmtree(directory, ignore_errors=True)
        return False
    running = control_plane.running()
    if only_dead and running:
        raise FileExistsError(f"the devcluster in {directory} is already up ({', '.join(running)} run)")
    control_plane.stop()
    try:
        shutil.rmtree(directory)
    except FileNotFoundError:  # the command that it ran in the foreground of removes it meanwhile, too
        shutil.rmtree(directory, ignore_errors=True)
    return True


def start_named(
    name: str, start: Callable[[Path], AnyCluster], report: Report = print, take_down: Callable[..., bool] = take_down
) -> AnyCluster:
    """Start the cluster `name` by calling `start` with its folder, one process at a time.

    What a crashed cluster of that name left is removed by `take_down`, and so is what a start that fails leaves (the
    error has the end of the log). Raises FileExistsError where it is already running.
    """
    directory = named_directory(name)
    directory.parent.mkdir(parents=True, exist_ok=True)
    with locked(directory.parent / f".{name}.lock", report):
        take_down(directory, only_dead=True)
        try:
            return start(directory)
        except BaseException:
            take_down(directory)
            raise
