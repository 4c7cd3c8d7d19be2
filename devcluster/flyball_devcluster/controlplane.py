"""The real control plane as plain processes: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, and kwok.

Everything is on loopback (etcd on a Unix socket), needs no root, and lives in one folder: keys, data, logs, kubeconfigs
and a state file from which another process can take the cluster over. By default the processes die with the one that
started them, however it ends.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import urllib3
import yaml

from flyball_devcluster.api import ApiClient, Json, NotFoundError
from flyball_devcluster.binaries import KUBECTL, Binaries, Report, find_binaries
from flyball_devcluster.components import (
    API_SERVER,
    COMPONENTS,
    CONTROLLER_MANAGER,
    ETCD,
    ETCD_SOCKET,
    KWOK,
    SCHEDULER,
    SERVICE_ADDRESS,
    Layout,
    api_server_arguments,
    controller_manager_arguments,
    etcd_arguments,
    kwok_arguments,
    scheduler_arguments,
    scheduler_configuration,
)
from flyball_devcluster.pki import CertificateAuthority, signing_key_pem, write_private
from flyball_devcluster.ports import LOOPBACK, free_port
from flyball_devcluster.processes import Process, ProcessIdentity, log_tail, resident_bytes, uninterrupted
from flyball_devcluster.stages import kwok_configuration

ADMIN = "admin"
# user -> (common name, organization): who each client certificate is
USERS = {
    ADMIN: ("devcluster-admin", "system:masters"),
    CONTROLLER_MANAGER: ("system:kube-controller-manager", None),
    SCHEDULER: ("system:kube-scheduler", None),
    KWOK: ("devcluster-kwok", "system:masters"),
}
# Half as many collections as Go's default: a start takes an eighth less processor time for some 50 MB more memory.
GARBAGE_COLLECTION_PERCENT = "200"
PORT_ATTEMPTS = 5
PORT_TAKEN = "address already in use"
READY_TIMEOUT_SECONDS = 120.0
STOP_TIMEOUT_SECONDS = 10.0
PROBE_INTERVAL_SECONDS = 0.02
TOKEN_SECONDS = 7 * 24 * 3600
NODE_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
STATE_VERSION = 1


class ComponentError(Exception):
    """A component ended or did not become ready; the message has the end of its log."""


@dataclass(frozen=True)
class Options:
    """How a control plane is run, kept in its state file so that components can be started again in the same way."""

    pod_start_delay_seconds: float = 0.5
    node_lease_seconds: int = 40
    die_with_parent: bool = True


class ControlPlane:
    """A running control plane. `start` one, or `attach` to one that another process started.

    Methods may be called from any thread; they block, so call them by `asyncio.to_thread` from an event loop.
    """

    def __init__(self, directory: Path, binaries: dict[str, Path], options: Options, ports: dict[str, int]) -> None:
        self.layout = Layout(directory)
        self.options = options
        self._binaries = binaries
        self._ports = ports
        self._processes: dict[str, Process] = {}
        self._temporary = False
        self._lock = threading.RLock()
        self._api: ApiClient | None = None

    # --- starting and stopping -------------------------------------------------------------------------------------

    @classmethod
    def start(
        cls,
        directory: Path | str | None = None,
        *,
        options: Options | None = None,
        binaries: Binaries | None = None,
        before_controllers: Callable[[ApiClient], None] | None = None,
        report: Report = lambda _line: None,
    ) -> Self:
        """Start a control plane and wait until it is ready.

        `directory` must be empty or absent; None makes a temporary one, removed by `stop`. `before_controllers` is
        called when the API server is ready and the controller manager does not run yet: the kinds created there are
        known to its garbage collector at once, which otherwise looks for new ones every 30 s. Raises ComponentError where a
        component does not start (nothing is left running), FileExistsError where the directory is in use.
        """
        programs = binaries if binaries is not None else find_binaries(report)
        temporary = directory is None
        root = Path(tempfile.mkdtemp(prefix="flyball-devcluster-") if directory is None else directory).resolve()
        root.mkdir(parents=True, exist_ok=True)
        if any(root.iterdir()):
            raise FileExistsError(f"{root} is not empty: a devcluster needs a folder of its own")
        plane = cls(root, programs.paths, options or Options(), {})
        plane._temporary = temporary
        try:
            plane._start_all(before_controllers)
        except BaseException:
            plane.stop(keep_directory=not temporary)
            raise
        return plane

    @classmethod
    def attach(cls, directory: Path | str) -> Self:
        """The control plane whose files are in `directory`, whoever started it.

        Raises FileNotFoundError where there is none. Components that have ended in the meantime can be started again.
        """
        root = Path(directory).resolve()
        state = json.loads(Layout(root).state.read_text())
        if state.get("version") != STATE_VERSION:
            raise ValueError(f"{root}: state of version {state.get('version')}, this is version {STATE_VERSION}")
        plane = cls(
            root,
            {name: Path(path) for name, path in state["binaries"].items()},
            Options(**state["options"]),
            dict(state["ports"]),
        )
        for name, (pid, started_ticks) in state["processes"].items():
            plane._processes[name] = Process(name, ProcessIdentity(pid, started_ticks), plane.layout.log(name))
        return plane

    def _start_all(self, before_controllers: Callable[[ApiClient], None] | None) -> None:
        self.layout.directory.chmod(0o700)
        self.layout.log(ETCD).parent.mkdir()
        self._spawn(ETCD)
        self._write_keys()
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
        # Pods can be created once the namespace has its account (the controller manager's first deed).
        self.api.wait_for(
            "/api/v1/namespaces/default/serviceaccounts/default",
            lambda account: account is not None,
            timeout_seconds=READY_TIMEOUT_SECONDS,
            what="created by the controller manager",
        )

    def _write_keys(self) -> None:
        authority = CertificateAuthority()
        self.layout.pki.mkdir()
        self.layout.authority.write_bytes(authority.certificate_pem)
        write_private(self.layout.pki / "service-account.key", signing_key_pem())
        server = authority.issue(
            "devcluster",
            addresses=(LOOPBACK, SERVICE_ADDRESS),
            names=("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"),
        )
        pairs = {"serving": server}
        for user, (common_name, organization) in USERS.items():
            pairs[user] = authority.issue(common_name, organization=organization)
        for user, pair in pairs.items():
            self.layout.certificate(user).write_bytes(pair.certificate_pem)
            write_private(self.layout.key(user), pair.key_pem)

    def _write_kubeconfigs(self) -> None:
        for user in USERS:
            credentials = {
                "client-certificate-data": _base64(self.layout.certificate(user)),
                "client-key-data": _base64(self.layout.key(user)),
            }
            self._write_kubeconfig(self.layout.kubeconfig(user), user, credentials)

    def _write_kubeconfig(self, path: Path, user: str, credentials: Json, namespace: str | None = None) -> None:
        context: Json = {"cluster": "devcluster", "user": user}
        if namespace is not None:
            context["namespace"] = namespace
        cluster = {"server": self.server_url, "certificate-authority-data": _base64(self.layout.authority)}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "devcluster", "cluster": cluster}],
            "users": [{"name": user, "user": credentials}],
            "contexts": [{"name": "devcluster", "context": context}],
            "current-context": "devcluster",
        }
        write_private(path, yaml.safe_dump(content, sort_keys=False).encode())

    def _arguments(self, name: str) -> list[str]:
        if name == ETCD:
            return etcd_arguments()
        port = self._ports[name]
        if name == API_SERVER:
            return api_server_arguments(port)
        if name == CONTROLLER_MANAGER:
            return controller_manager_arguments(port)
        if name == SCHEDULER:
            return scheduler_arguments(port)
        return kwok_arguments(port, self.options.node_lease_seconds)

    def _spawn(self, name: str) -> Process:
        with uninterrupted():
            process = Process.spawn(
                name,
                [str(self._binaries[name]), *self._arguments(name)],
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
            self._write_kubeconfigs()
        self._spawn(name)

    def _await_started(self, name: str) -> None:
        """Wait until a component is ready; one that lost its port is started again on another."""
        for attempt in range(PORT_ATTEMPTS):
            try:
                self._await_ready(name)
                return
            except ComponentError as error:
                if PORT_TAKEN not in str(error) or attempt == PORT_ATTEMPTS - 1:
                    raise
            self.layout.log(name).rename(self.layout.log(f"{name}-port-taken-{attempt}"))
            self._spawn_on_free_port(name)

    def _await_ready(self, name: str, timeout_seconds: float = READY_TIMEOUT_SECONDS) -> None:
        process = self._processes[name]
        deadline = time.monotonic() + timeout_seconds
        with self._probe(name) as is_ready:
            while not is_ready():
                if not process.is_running():
                    raise ComponentError(
                        f"{name} ended with status {process.exit_status}; the end of {process.log_path}:\n"
                        f"{process.log_tail()}"
                    )
                if time.monotonic() >= deadline:
                    raise ComponentError(
                        f"{name} is not ready after {timeout_seconds:g} s; the end of {process.log_path}:\n"
                        f"{process.log_tail()}"
                    )
                process.wait(PROBE_INTERVAL_SECONDS)  # returns at once when the component ends

    @contextlib.contextmanager
    def _probe(self, name: str) -> Iterator[Callable[[], bool]]:
        if name == ETCD:
            with self._etcd_probe() as accepts:
                yield accepts
            return
        scheme = "http" if name == KWOK else "https"
        path = {API_SERVER: "/readyz", SCHEDULER: "/readyz"}.get(name, "/healthz")
        with urllib3.PoolManager(
            retries=False,
            timeout=urllib3.Timeout(connect=1.0, read=5.0),
            ca_certs=str(self.layout.authority),
            cert_file=str(self.layout.certificate(ADMIN)),
            key_file=str(self.layout.key(ADMIN)),
        ) as pool:

            def is_ready() -> bool:
                try:
                    return pool.request("GET", f"{scheme}://{LOOPBACK}:{self._ports[name]}{path}").status == 200
                except urllib3.exceptions.HTTPError:
                    return False

            yield is_ready

    @contextlib.contextmanager
    def _etcd_probe(self) -> Iterator[Callable[[], bool]]:
        descriptor = os.open(self.layout.directory, os.O_PATH | os.O_DIRECTORY)

        def accepts() -> bool:
            with socket.socket(socket.AF_UNIX) as client:
                try:
                    # By way of the open folder: the socket's own path may be too long to connect to.
                    client.connect(f"/proc/self/fd/{descriptor}/{ETCD_SOCKET}")
                except OSError:
                    return False
            return True

        try:
            yield accepts
        finally:
            os.close(descriptor)

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
            for name in (API_SERVER, ETCD):
                if name in self._processes:
                    self._processes[name].stop(STOP_TIMEOUT_SECONDS)
            self._processes.clear()
            if self._api is not None:
                self._api.close()
                self._api = None
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
        state = {
            "version": STATE_VERSION,
            "binaries": {name: str(path) for name, path in self._binaries.items()},
            "options": vars(self.options),
            "ports": self._ports,
            "processes": {
                name: [process.identity.pid, process.identity.started_ticks]
                for name, process in self._processes.items()
            },
        }
        temporary = self.layout.state.with_suffix(".new")
        temporary.write_text(json.dumps(state, indent=1))
        os.replace(temporary, self.layout.state)

    # --- one component ---------------------------------------------------------------------------------------------

    def component(self, name: str) -> Process:
        """The process of a component. Raises KeyError with the names there are."""
        if name not in COMPONENTS:
            raise KeyError(f"no component {name!r}; there are {', '.join(COMPONENTS)}")
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
                self._release_node_leases()
            self._spawn(name)
            self._await_ready(name)

    def pause_component(self, name: str) -> None:
        """SIGSTOP one component: its connections stay open and nothing answers."""
        self.component(name).pause()

    def resume_component(self, name: str) -> None:
        self.component(name).resume()

    def _release_node_leases(self) -> None:
        """Take the dead kwok's name off its leases: the new one has another, and would wait until they run out."""
        api = self.api

        def release(lease: Json) -> None:
            api.patch(f"{NODE_LEASES}/{lease['metadata']['name']}", {"spec": {"holderIdentity": None}})

        api.for_each(release, api.list_objects(NODE_LEASES))

    def is_running(self) -> bool:
        """Whether every component runs."""
        return len(self._processes) == len(COMPONENTS) and all(p.is_running() for p in self._processes.values())

    def running(self) -> dict[str, int]:
        """The process ids of the components that run."""
        return {name: process.pid for name, process in self._processes.items() if process.is_running()}

    def resident_bytes(self) -> dict[str, int]:
        """Resident memory of each running component."""
        return {name: resident_bytes(pid) for name, pid in self.running().items()}

    def log_tails(self, lines: int = 25) -> str:
        """The end of every component's log, titled; for the report of a failed test."""
        parts = [f"--- {name}\n{log_tail(self.layout.log(name), lines)}" for name in COMPONENTS]
        return "\n".join(parts)

    # --- access ----------------------------------------------------------------------------------------------------

    @property
    def directory(self) -> Path:
        return self.layout.directory

    @property
    def server_url(self) -> str:
        return f"https://{LOOPBACK}:{self._ports[API_SERVER]}"

    @property
    def kubectl(self) -> Path:
        """The kubectl of the cluster's own version."""
        return self._binaries[KUBECTL]

    @property
    def api(self) -> ApiClient:
        """The API as the cluster's administrator."""
        with self._lock:
            if self._api is None:
                self._api = ApiClient(
                    self.server_url,
                    authority_file=self.layout.authority,
                    certificate_file=self.layout.certificate(ADMIN),
                    key_file=self.layout.key(ADMIN),
                )
            return self._api

    def api_with_token(self, token: str, *, timeout_seconds: float = 30.0) -> ApiClient:
        """The API as the bearer of a token."""
        return ApiClient(
            self.server_url, authority_file=self.layout.authority, token=token, timeout_seconds=timeout_seconds
        )

    def kubeconfig(self, user: str = ADMIN) -> Path:
        """The kubeconfig of the administrator or of a component."""
        if user not in USERS:
            raise KeyError(f"no user {user!r}; there are {', '.join(USERS)}; others are service accounts")
        return self.layout.kubeconfig(user)

    def token(self, namespace: str, service_account: str, *, seconds: int = TOKEN_SECONDS) -> str:
        """A token of a service account. Raises NotFoundError where there is no such account."""
        return self._request_token(namespace, service_account, {"expirationSeconds": seconds})

    def token_bound_to_pod(
        self, namespace: str, service_account: str, pod: str, *, seconds: int = TOKEN_SECONDS
    ) -> str:
        """The token that a pod's container would find mounted: it carries the pod and, once bound, its node.

        Valid as long as the pod exists. Raises NotFoundError where pod or account do not exist.
        """
        found = self.api.get_or_none(f"/api/v1/namespaces/{namespace}/pods/{pod}")
        if found is None:
            raise NotFoundError(404, "NotFound", f"no pod {namespace}/{pod} to bind a token to", "token_bound_to_pod")
        reference = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": found["metadata"]["uid"]}
        return self._request_token(
            namespace, service_account, {"expirationSeconds": seconds, "boundObjectRef": reference}
        )

    def _request_token(self, namespace: str, service_account: str, spec: dict[str, Any]) -> str:
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        token: str = self.api.create(path, body)["status"]["token"]
        return token

    def service_account_kubeconfig(
        self, namespace: str, name: str, *, pod: str | None = None, path: Path | None = None
    ) -> Path:
        """A kubeconfig with a token of a service account, bound to `pod` if one is given.

        Written to `path`, by default into the cluster's folder, where a second call replaces it.
        """
        token = self.token(namespace, name) if pod is None else self.token_bound_to_pod(namespace, name, pod)
        if path is None:
            suffix = f"-{pod}" if pod is not None else ""
            path = self.layout.directory / f"{namespace}-{name}{suffix}.kubeconfig"
        self._write_kubeconfig(path, name, {"token": token}, namespace)
        return path


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
