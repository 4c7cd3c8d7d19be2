"""One simulated site: a cluster, its GPUs, the node agents, the training processes, the operator and the referee.

Every part is a process of its own that dies with this one, so that any of them can be killed and started again, as in a
machine room, and nothing outlives the demo.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
import tempfile
import urllib.request
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from flyball_simulated_gpu.catalogue import CATALOGUE
from flyball_simulated_gpu.physics import DeviceConstants
from flyball_simulated_gpu.shared import SimulatedNode

from flyball_testbed.controlplane.cluster import DevCluster
from flyball_testbed.controlplane.control_plane import Options
from flyball_testbed.controlplane.nodes import DEFAULT_GPU_PRODUCT
from flyball_testbed.controlplane.ports import LOOPBACK
from flyball_testbed.controlplane.processes import Process, wait_until
from flyball_testbed.controlplane.programs.binaries import Report
from flyball_testbed.parts import AGENTS, OPERATOR, REFEREE, WORKLOAD, Pace, Parts, metrics_port, module, quiet_threads
from flyball_testbed.workload.agent_host import away_path
from flyball_testbed.workload.devices import create_hardware, hardware_path

STOP_SECONDS = 10.0
REFEREE_READY_SECONDS = 30.0
METRICS_SECONDS, METRICS_TIMEOUT_SECONDS = 60.0, 30.0


class PartError(Exception):
    """A part of the site ended by itself; the message has the end of its log."""


@dataclass(frozen=True)
class SitePlan:
    """What a site is made of. Durations in seconds; `operator_arguments` and `workload_arguments`
    are added to those command lines. The nodes' agents share so many processes."""

    nodes: int = 16
    gpus_per_node: int = 8
    product: str = DEFAULT_GPU_PRODUCT
    pod_start_delay_seconds: float = 0.5
    pace: Pace = field(default_factory=Pace)
    operator_arguments: tuple[str, ...] = ()
    workload_arguments: tuple[str, ...] = ()
    agent_processes: int = 1

    @property
    def agent_hosts(self) -> list[str]:
        """The names of the agents' processes."""
        return [AGENTS, *(f"{AGENTS}-{number}" for number in range(2, self.agent_processes + 1))]

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def constants(self) -> DeviceConstants:
        return CATALOGUE[self.product]

    @property
    def max_watts(self) -> int:
        """What all GPUs may draw at their largest limits."""
        return self.gpus * self.constants.max_limit_milliwatts // 1000


class Site:
    """A running site; a context manager. `directory` is temporary, and short: Unix sockets' paths must fit into 107 bytes.

    `out` takes what remains: the referee's files and every part's log.
    """

    def __init__(self, plan: SitePlan, out: Path) -> None:
        self.plan = plan
        self.out = out
        self.directory = Path(tempfile.mkdtemp(prefix="flyball-demo-"))
        self.logs = self.directory / "logs"
        self.logs.mkdir()
        self.parts: dict[str, Process] = {}
        self._last_commands: dict[str, list[str]] = {}
        self._commands: dict[str, Callable[[], list[str]]] = {
            **{name: partial(self._agents_command, number) for number, name in enumerate(plan.agent_hosts)},
            WORKLOAD: lambda: self._processes.workload_command(*self.plan.workload_arguments),
            REFEREE: self._referee_command,
            OPERATOR: lambda: self._processes.operator_command(*self.plan.operator_arguments),
        }
        self._cluster: DevCluster | None = None

    @classmethod
    def start(cls, plan: SitePlan, out: Path, report: Report = lambda _line: None) -> Self:
        """Start every part. Raises what the cluster's start raises; whatever fails, nothing is left running."""
        out.mkdir(parents=True, exist_ok=True)
        site = cls(plan, out)
        try:
            site._start(report)
        except BaseException:
            site.stop()
            raise
        return site

    def _start(self, report: Report) -> None:
        report("starting the control plane: etcd, kube-apiserver, controller manager, scheduler, kwok")
        self._cluster = DevCluster.start(
            self.plan.nodes,
            self.plan.gpus_per_node,
            product=self.plan.product,
            directory=self.directory / "cluster",
            options=Options(
                pod_start_delay_seconds=self.plan.pod_start_delay_seconds,
                node_lease_seconds=self.plan.pace.node_lease_seconds,
            ),
            report=report,
        )
        create_hardware(self.hardware, self.cluster.node_names(), self.plan.constants, self.plan.gpus_per_node)
        report(f"starting {self.plan.nodes} node agents, the training processes, the operator and the referee")
        for name in (REFEREE, *self.plan.agent_hosts, WORKLOAD, OPERATOR):
            self.start_part(name)
        if not wait_until(lambda: bool(self.referee_summary()) or not self.running(REFEREE), REFEREE_READY_SECONDS):
            raise PartError(f"the referee has written nothing after {REFEREE_READY_SECONDS:g} s")
        self.check()

    @property
    def cluster(self) -> DevCluster:
        assert self._cluster is not None, "the site has been started"  # noqa: S101 - for the type checker
        return self._cluster

    @property
    def _processes(self) -> Parts:
        return Parts(self.cluster, self.directory, self.directory / "s", self.plan.pace)

    @property
    def hardware(self) -> Path:
        return self._processes.hardware

    @property
    def agents(self) -> Path:
        """The agents' journals."""
        return self._processes.journals

    # --- parts -----------------------------------------------------------------------------------------------------

    def start_part(self, name: str, environment: Mapping[str, str] = {}) -> Process:
        """Start a part (again), with more in its environment: one of the `agent_hosts`, WORKLOAD, REFEREE, OPERATOR."""
        return self._spawn(name, self._commands[name](), environment)

    def start_part_as_before(self, name: str) -> Process:
        """Start a part again with the command line that it had, as a kubelet does, which asks nobody."""
        return self._spawn(name, self._last_commands[name], {})

    def _spawn(self, name: str, command: list[str], environment: Mapping[str, str]) -> Process:
        log, variables = self.logs / f"{name}.log", {**quiet_threads(), **environment}
        process = Process.spawn(name, command, log_path=log, environment=variables)
        self._last_commands[name] = command
        self.parts[name] = process
        return process

    def running(self, name: str) -> bool:
        return name in self.parts and self.parts[name].is_running()

    def metrics_addresses(self) -> dict[str, str]:
        """Where the operator and the agents serve metrics now, `host:port` by the part's name; waits until both do.

        Raises PartError where one does not.
        """
        return {name: f"{LOOPBACK}:{self._metrics_port(name)}" for name in (OPERATOR, AGENTS)}

    def metrics(self, name: str) -> str:
        """What the operator or the agents serve now, whatever proxy the environment names. Raises OSError, PartError."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://{self.metrics_addresses()[name]}/metrics", timeout=METRICS_TIMEOUT_SECONDS) as answer:
            text: bytes = answer.read()
        return text.decode()

    def _metrics_port(self, name: str) -> int:
        log = self.logs / f"{name}.log"
        wait_until(lambda: metrics_port(log) is not None or not self.running(name), METRICS_SECONDS)
        port = metrics_port(log)
        if port is None:
            raise PartError(f"{name} serves no metrics; the end of its log:\n{self.parts[name].log_tail(15)}")
        return port

    def check(self) -> None:
        """Raises PartError where a part has ended by itself."""
        for name, process in self.parts.items():
            if not process.is_running():
                raise PartError(
                    f"{name} ended with status {process.exit_status}; the end of its log:\n{process.log_tail(15)}"
                )

    def ended(self) -> str:
        """The ends of the logs of the parts and of the control plane's components that do not run; for a failed test."""
        processes = [*self.parts.values()]
        if self._cluster is not None:
            plane = self._cluster.control_plane
            processes += [plane.component(name) for name in plane.components()]
        return "\n".join(
            f"--- {process.name}, ended with {process.exit_status}\n{process.log_tail(25)}"
            for process in processes
            if not process.is_running()
        )

    # --- what befalls one node ---------------------------------------------------------------------------------------

    def keep_agent_away(self, node: str) -> None:
        """End a node's agent until `let_agent_back`. Raises PartError where it does not end."""
        away_path(self.agents, node).touch()
        if not wait_until(lambda: not self.agent_runs(node), STOP_SECONDS):
            raise PartError(f"the agent of {node} has not ended within {STOP_SECONDS:g} s")

    def let_agent_back(self, node: str) -> None:
        away_path(self.agents, node).unlink(missing_ok=True)

    def agent_runs(self, node: str) -> bool:
        """Whether somebody holds the node's journal."""
        with contextlib.suppress(FileNotFoundError), (self.agents / f"{node}.lock").open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def reboot(self, node: str) -> None:
        """Boot a node anew: its GPUs are at their defaults, and its kubelet says in which boot it is."""
        with SimulatedNode.open(hardware_path(self.hardware, node)) as hardware:
            hardware.reboot(str(uuid.uuid4()))
            boot = {"status": {"nodeInfo": {"bootID": hardware.boot_id}}}
        self.cluster.api.patch(f"/api/v1/nodes/{node}/status", boot)

    def reload_driver(self, node: str) -> None:
        """Load a node's GPU driver anew: its GPUs are at their defaults, and nobody says so."""
        with SimulatedNode.open(hardware_path(self.hardware, node)) as hardware:
            hardware.reload_driver()

    def _agents_command(self, number: int) -> list[str]:
        """All agents where they share one process, which serves nodes that come later, too; else every so many-th."""
        hosts = self.plan.agent_processes
        return self._processes.agents_command(self.cluster.node_names()[number::hosts] if hosts > 1 else ())

    def _referee_command(self) -> list[str]:
        return module(
            "referee",
            {
                "--hardware": self.hardware,
                "--csv": self.out / "referee.csv",
                "--summary": self.directory / "referee.json",
                "--kubeconfig": self.cluster.kubeconfig,
                "--hertz": self.plan.pace.referee_hertz,
            },
        )

    def referee_summary(self) -> dict[str, Any]:
        """The referee's summary; empty while there is none."""
        return referee_summary(self.directory)

    # --- the end ---------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop every part and the cluster, keep the logs in `out`, and remove the rest."""
        for name in (REFEREE, OPERATOR, WORKLOAD, *self.plan.agent_hosts):
            if name in self.parts:
                self.parts[name].stop(STOP_SECONDS)
        if self._cluster is not None:
            self._cluster.stop()
            self._cluster = None
        shutil.rmtree(self.out / "logs", ignore_errors=True)
        shutil.copytree(self.logs, self.out / "logs")
        with contextlib.suppress(FileNotFoundError):
            shutil.copy(self.directory / "referee.json", self.out)
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


def referee_summary(directory: Path) -> dict[str, Any]:
    """What the referee of a site's folder has written last; empty while that is nothing."""
    try:
        summary: dict[str, Any] = json.loads((directory / "referee.json").read_text())
    except FileNotFoundError:
        return {}
    return summary
