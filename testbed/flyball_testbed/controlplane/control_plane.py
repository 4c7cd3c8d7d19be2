"""The real control plane as plain processes: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, and kwok.

Everything is on loopback (etcd on a Unix socket; for real nodes, the API server in a network namespace, which needs
root) and lives in one folder: keys, data, logs, kubeconfigs and a state file from which another process can take the
cluster over. By default the processes die with the one that started them, however it ends.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import yaml

from flyball_testbed.controlplane import network
from flyball_testbed.controlplane.access import Access
from flyball_testbed.controlplane.api import ApiClient
from flyball_testbed.controlplane.components import (
    API_SERVER,
    COMPONENTS,
    CONTROLLER_MANAGER,
    ETCD,
    KWOK,
    NETWORK,
    SCHEDULER,
    Layout,
    api_server_arguments,
    controller_manager_arguments,
    etcd_arguments,
    kwok_arguments,
    scheduler_arguments,
    scheduler_configuration,
)
from flyball_testbed.controlplane.credentials import create_keys, write_user_kubeconfigs
from flyball_testbed.controlplane.nodes import release_node_leases
from flyball_testbed.controlplane.ports import LOOPBACK, free_port
from flyball_testbed.controlplane.processes import (
    Process,
    ProcessIdentity,
    log_tail,
    resident_bytes,
    uninterrupted,
    wait_until,
)
from flyball_testbed.controlplane.programs.binaries import KUBECTL, Binaries, Report, find_binaries
from flyball_testbed.controlplane.readiness import READY_TIMEOUT_SECONDS, ComponentError, await_ready
from flyball_testbed.controlplane.stages import kwok_configuration
from flyball_testbed.controlplane.state import Options, State, read_state, write_state

__all__ = ["ComponentError", "ControlPlane", "Options"]

TEMPORARY_PREFIX = "flyball-devcluster-"
# Half as many collections as Go's default: a start takes an eighth less processor time for some 50 MB more memory.
GARBAGE_COLLECTION_PERCENT = "200"
ETCD_DATA = "etcd"
PORT_ATTEMPTS = 5
STOP_TIMEOUT_SECONDS = 10.0


class ControlPlane(Access):
    """A running control plane. `start` one, or `attach` to one that another process started.

    Methods may be called from any thread; they block, so call them by `asyncio.to_thread` from an event loop.
    """

    def __init__(self, directory: Path, binaries: dict[str, Path], options: Options, ports: dict[str, int]) -> None:
        super().__init__(Layout(directory))
        self.options = options
        self._binaries = binaries
        self._ports = ports
        self._link: network.Link | None = None
        self._processes: dict[str, Process] = {}
        self._temporary = False
        self._owner = ProcessIdentity.own()

    # --- starting and stopping -------------------------------------------------------------------------------------

    @classmethod
    def start(
        cls,
        directory: Path | str | None = None,
        *,
        options: Options | None = None,
        binaries: Binaries | None = None,
        before_controllers: Callable[[ApiClient], None] | None = None,
        store: Path | None = None,
        report: Report = lambda _line: None,
    ) -> Self:
        """Start a control plane and wait until it is ready.

        `directory` must be empty or absent; None makes a temporary one, removed by `stop`. `before_controllers` is
        called when the API server is ready and the controller manager does not run yet: the kinds created there are
        known to its garbage collector at once, which otherwise looks for new ones every 30 s. `store` has data that etcd
        begins with, which are copied. Raises ComponentError where a component does not start (nothing is left running),
        FileExistsError where the directory is in use.
        """
        programs = binaries if binaries is not None else find_binaries(report)
        temporary = directory is None
        if directory is None:
            _sweep_temporary_directories()
            directory = tempfile.mkdtemp(prefix=TEMPORARY_PREFIX)
        root = Path(directory).resolve()
        root.mkdir(parents=True, exist_ok=True)
        if any(root.iterdir()):
            raise FileExistsError(f"{root} is not empty: a devcluster needs a folder of its own")
        plane = cls(root, programs.paths, options or Options(), {})
        plane._temporary = temporary
        try:
            plane._start_all(before_controllers, store)
        except BaseException:
            plane.stop(keep_directory=not temporary)
            raise
        return plane

    @classmethod
    def attach(cls, directory: Path | str) -> Self:
        """The control plane whose files are in `directory`, which any process may have started.

        Raises FileNotFoundError where there is none. Components that have ended in the meantime can be started again.
        """
        root = Path(directory).resolve()
        state = read_state(Layout(root))
        plane = cls(root, state.binaries, state.options, state.ports)
        plane._link = state.link
        plane._owner = state.owner
        for name, identity in state.processes.items():
            plane._processes[name] = Process(name, identity, plane.layout.log(name))
        return plane

    def _start_all(self, before_controllers: Callable[[ApiClient], None] | None, store: Path | None) -> None:
        self.layout.directory.chmod(0o700)
        self.layout.log(ETCD).parent.mkdir()
        if store is not None:
            copy_store(store, self.layout.directory / ETCD_DATA)
        self._spawn(ETCD)
        if self.options.real_nodes:
            self._start_network()
        create_keys(self.layout, [self._api_server_address, network.BRIDGE_ADDRESS] if self.options.real_nodes else [])
        self.layout.stages.write_text(kwok_configuration(self.options.pod_start_delay_seconds))
        self.layout.scheduler_configuration.write_text(yaml.safe_dump(scheduler_configuration()))
        # An API server that finds no etcd at its first try waits a second for the next.
        self._await_ready(ETCD)
        self._spawn_on_free_port(API_SERVER)
        self._await_started(API_SERVER)
        self._spawn_on_free_port(SCHEDULER)
        self._spawn_on_free_port(KWOK)
        if before_controllers is not None:
            before_controllers(self.api)
        self._spawn_on_free_port(CONTROLLER_MANAGER)
        for name in (SCHEDULER, KWOK, CONTROLLER_MANAGER):
            self._await_started(name)
        # Pods can be created once the namespace has its account (the first thing that the controller manager creates).
        self.api.wait_for(
            "/api/v1/namespaces/default/serviceaccounts/default",
            lambda account: account is not None,
            timeout_seconds=READY_TIMEOUT_SECONDS,
            what="created by the controller manager",
        )

    def _start_network(self) -> None:
        """Make the namespace in which the API server will be. Raises NetworkError, ComponentError."""
        holder = self._spawn(NETWORK)
        if not wait_until(lambda: not holder.is_running() or _left_our_network(holder.pid), READY_TIMEOUT_SECONDS):
            raise ComponentError(f"{NETWORK} has made no namespace after {READY_TIMEOUT_SECONDS:g} s")
        if not holder.is_running():
            raise ComponentError(f"{NETWORK} ended with status {holder.exit_status}: {holder.log_tail()}")
        self._link = network.furnish(holder.pid)
        self._save()

    def _command(self, name: str) -> list[str]:
        if name == NETWORK:
            return network.holder_command()
        program = str(self._binaries[name])
        if name == ETCD:
            return [program, *etcd_arguments()]
        port = self._ports[name]
        if name == API_SERVER:
            command = [program, *api_server_arguments(port, real_nodes=self.options.real_nodes)]
            return network.within(self.network_namespace, command) if self.options.real_nodes else command
        if name == CONTROLLER_MANAGER:
            return [program, *controller_manager_arguments(port, self.options.node_lease_seconds)]
        if name == SCHEDULER:
            return [program, *scheduler_arguments(port)]
        return [program, *kwok_arguments(port, self.options.node_lease_seconds)]

    def _spawn(self, name: str) -> Process:
        with uninterrupted():
            process = Process.spawn(
                name,
                self._command(name),
                log_path=self.layout.log(name),
                directory=self.layout.directory,
                environment={"GOGC": os.environ.get("GOGC", GARBAGE_COLLECTION_PERCENT)},
                die_with_parent=self.options.die_with_parent,
            )
            self._processes[name] = process
            self._save()
        return process

    def _spawn_on_free_port(self, name: str) -> None:
        self._ports[name] = free_port()
        if name == API_SERVER:
            write_user_kubeconfigs(self.layout, self.server_url)
        self._spawn(name)

    def _await_started(self, name: str) -> None:
        """Wait until a component is ready; one that lost its port is started again on another."""
        for attempt in range(PORT_ATTEMPTS):
            try:
                self._await_ready(name)
                return
            except ComponentError as error:
                if not error.lost_its_port or attempt == PORT_ATTEMPTS - 1:
                    raise
            self.layout.log(name).rename(self.layout.log(f"{name}-port-taken-{attempt}"))
            self._spawn_on_free_port(name)

    def _await_ready(self, name: str) -> None:
        address = self._api_server_address if name == API_SERVER else LOOPBACK
        await_ready(self._processes[name], self.layout, self._ports.get(name), address=address)

    def stop(self, *, keep_directory: bool = False) -> None:
        """Stop every component, clients before servers, and remove the folder if it is a temporary one."""
        with self._lock, uninterrupted():
            clients = [
                self._processes[name] for name in (KWOK, SCHEDULER, CONTROLLER_MANAGER) if name in self._processes
            ]
            # A paused server would keep the others from their last requests.
            for process in self._processes.values():
                process.resume()
            # The clients need no order among themselves.
            for process in clients:
                process.signal_stop()
            for process in clients:
                process.stop(STOP_TIMEOUT_SECONDS)
            for name in (API_SERVER, ETCD, NETWORK):
                if name in self._processes:
                    self._processes[name].stop(STOP_TIMEOUT_SECONDS)
            self._processes.clear()
            if self._link is not None:
                self._link.remove()
            self.close_api()
            if self.layout.directory.is_dir():
                self._save()
            if self._temporary and not keep_directory:
                shutil.rmtree(self.layout.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _save(self) -> None:
        processes = {name: process.identity for name, process in self._processes.items()}
        write_state(self.layout, State(self._binaries, self.options, self._ports, self._link, self._owner, processes))

    # --- one component ---------------------------------------------------------------------------------------------

    def component(self, name: str) -> Process:
        """The process of a component. Raises KeyError with the names there are."""
        if name not in self.components():
            raise KeyError(f"no component {name!r}; there are {', '.join(self.components())}")
        return self._processes[name]

    def stop_component(self, name: str) -> None:
        """Stop one component (SIGTERM); its port and its data stay its own."""
        self.component(name).stop(STOP_TIMEOUT_SECONDS)

    def kill_component(self, name: str) -> None:
        """SIGKILL one component, as a crash would."""
        self.component(name).kill()

    def start_component(self, name: str) -> None:
        """Start a stopped component again, on the same port with the same data, and wait until it is ready.

        Raises ComponentError where it does not become ready, ValueError where it runs already.
        """
        with self._lock:
            if self.component(name).is_running():
                raise ValueError(f"{name} is running (process {self.component(name).pid})")
            if name == KWOK:
                release_node_leases(self.api)
            self._spawn(name)
            self._await_ready(name)

    def pause_component(self, name: str) -> None:
        """SIGSTOP one component: its connections stay open and nothing answers."""
        self.component(name).pause()

    def resume_component(self, name: str) -> None:
        self.component(name).resume()

    def is_running(self) -> bool:
        """Whether every component runs."""
        return set(self._processes) == set(self.components()) and all(p.is_running() for p in self._processes.values())

    def components(self) -> tuple[str, ...]:
        """The names of this control plane's components, in the order of starting."""
        return (NETWORK, *COMPONENTS) if self.options.real_nodes else COMPONENTS

    def running(self) -> dict[str, int]:
        """The process ids of the components that run."""
        return {name: process.pid for name, process in self._processes.items() if process.is_running()}

    def resident_bytes(self) -> dict[str, int]:
        """Resident memory of each running component."""
        return {name: resident_bytes(pid) for name, pid in self.running().items()}

    def log_tails(self, lines: int = 25) -> str:
        """The end of every component's log, titled; for the report of a failed test."""
        parts = [f"--- {name}\n{log_tail(self.layout.log(name), lines)}" for name in self.components()]
        return "\n".join(parts)

    # --- access ----------------------------------------------------------------------------------------------------

    @property
    def directory(self) -> Path:
        return self.layout.directory

    @property
    def _api_server_address(self) -> str:
        return self._link.address if self._link is not None else LOOPBACK

    @property
    def server_url(self) -> str:
        return f"https://{self._api_server_address}:{self._ports[API_SERVER]}"

    @property
    def node_server_url(self) -> str:
        """The API server as real nodes and their pods reach it."""
        return f"https://{network.BRIDGE_ADDRESS}:{self._ports[API_SERVER]}"

    @property
    def network_namespace(self) -> Path:
        """The namespace that real nodes join. Raises KeyError where the control plane was started without one."""
        return network.namespace_path(self._processes[NETWORK].pid)

    @property
    def kubectl(self) -> Path:
        """The kubectl of the cluster's own version."""
        return self._binaries[KUBECTL]


def copy_store(source: Path, target: Path) -> None:
    """Copy the data of an etcd that does not run: of the 64 MB that its log sets aside nearly all is nothing.

    Raises ComponentError where that fails.
    """
    copy = ["cp", "--archive", "--reflink=auto", "--sparse=always", str(source), str(target)]
    copied = subprocess.run(copy, stderr=subprocess.PIPE, check=False)
    if copied.returncode:
        raise ComponentError(f"{ETCD}'s data cannot be copied: {copied.stderr.decode(errors='replace').strip()}")


def _left_our_network(pid: int) -> bool:
    try:
        return network.namespace_path(pid).readlink() != network.namespace_path(os.getpid()).readlink()
    except FileNotFoundError:
        return False


def _sweep_temporary_directories() -> None:
    """Remove the temporary folders of clusters whose processes have died with a killed owner."""
    for directory in Path(tempfile.gettempdir()).glob(f"{TEMPORARY_PREFIX}*"):
        try:
            plane = ControlPlane.attach(directory)
            abandoned = not plane._owner.is_running() and not plane.running()
        except (OSError, ValueError, KeyError, TypeError):
            continue  # one that is being started or removed now, or another user's
        if abandoned:
            plane.stop(keep_directory=True)
            shutil.rmtree(directory, ignore_errors=True)
