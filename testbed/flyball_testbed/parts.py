"""The processes of a simulated site beside its control plane, as command lines: agents, training, operator, page."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from flyball_api.names import DEFAULT_NAMESPACE
from flyball_kube.process.log_settings import LogSettings

from flyball_testbed.controlplane.cluster import DevCluster
from flyball_testbed.controlplane.state import Options

AGENTS, WORKLOAD, REFEREE, OPERATOR, PAGE = "agent-host", "workload-host", "referee", "operator", "page"
PAGE_ACCOUNT = "flyball-page"


@dataclass(frozen=True)
class Pace:
    """How quickly all that runs on nodes goes about what is not training; durations in seconds.

    The ticks are those of the agents' rounds and of the training processes, which report every `report_seconds`. Kubelets
    renew their node's Lease every quarter of `node_lease_seconds`, and the referee looks `referee_hertz` times a second.
    Agents log what is of `agent_log_level`.
    """

    restore_seconds: float = 0.5
    save_seconds: float = 0.5
    noise: float = 0.02
    status_interval_seconds: float = 2.0
    agent_tick_seconds: float = 0.25
    training_tick_seconds: float = 0.1
    report_seconds: float = 1.0
    node_lease_seconds: int = Options.node_lease_seconds
    referee_hertz: float = 20.0
    agent_log_level: str = LogSettings().log_level


def hardware_folder(directory: Path) -> Path:
    """The nodes' simulated GPUs, in the folder of what lasts of a site or a cluster."""
    return directory / "hardware"


@dataclass(frozen=True)
class Parts:
    """Where the parts of one site find each other: `directory` for all that lasts, `sockets` a short path."""

    cluster: DevCluster
    directory: Path
    sockets: Path
    pace: Pace = field(default_factory=Pace)

    @property
    def hardware(self) -> Path:
        """The nodes' simulated GPUs."""
        return hardware_folder(self.directory)

    @property
    def journals(self) -> Path:
        """The agents' journals and credentials."""
        return self.directory / "agents"

    def agents_command(self, only: Iterable[str] = ()) -> list[str]:
        """The agents of these nodes, or of all, in one process."""
        return module(
            "workload.agent_host",
            {
                "--cluster": self.cluster.directory,
                "--hardware": self.hardware,
                "--sockets": self.sockets,
                "--state": self.journals,
                "--tick-seconds": self.pace.agent_tick_seconds,
                "--status-interval-seconds": self.pace.status_interval_seconds,
                "--operator-namespace": DEFAULT_NAMESPACE,
                "--log-level": self.pace.agent_log_level,
                "--only": ",".join(only),
            },
        )

    def workload_command(self, *arguments: str) -> list[str]:
        """What runs in the pods."""
        command = module(
            "workload.host",
            {
                "--kubeconfig": self.cluster.kubeconfig,
                "--hardware": self.hardware,
                "--sockets": self.sockets,
                "--state": self.directory / "workload",
                "--tick-seconds": self.pace.training_tick_seconds,
                "--report-seconds": self.pace.report_seconds,
                "--noise": self.pace.noise,
                "--restore-seconds": self.pace.restore_seconds,
                "--save-seconds": self.pace.save_seconds,
            },
        )
        return [*command, *arguments]

    def operator_command(self, *arguments: str) -> list[str]:
        """The operator, with the rights that it has in a cluster."""
        kubeconfig = self.cluster.operator_kubeconfig()
        command = [_flyball(), "operator", "run", "--kubeconfig", str(kubeconfig), "--namespace", DEFAULT_NAMESPACE]
        return [*command, "--metrics-port", "0", "--probe-port", "0", *arguments]

    def page_command(self, port: int) -> list[str]:
        """The status page on loopback, with the rights that it has in a cluster; it asks nobody who they are."""
        kubeconfig = self.cluster.control_plane.service_account_kubeconfig(DEFAULT_NAMESPACE, PAGE_ACCOUNT)
        command = [_flyball(), "page", "run", "--kubeconfig", str(kubeconfig), "--namespace", DEFAULT_NAMESPACE]
        return [*command, "--port", str(port)]


def _flyball() -> str:
    return str(Path(sysconfig.get_path("scripts")) / "flyball")


def metrics_port(log: Path) -> int | None:
    """The port on which a part serves its metrics, by the last line of its log that says so; None while there is none."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    served = [json.loads(line) for line in lines if '"metrics served"' in line and line.endswith("}")]
    return int(served[-1]["port"]) if served else None


def module(name: str, arguments: Mapping[str, object]) -> list[str]:
    """The command line of a module of this package."""
    words = [str(word) for pair in arguments.items() for word in pair]
    return [sys.executable, "-m", f"flyball_testbed.{name}", *words]


def quiet_threads() -> dict[str, str]:
    """Numerical libraries that start a thread a core fight each other on a small machine."""
    return {name: os.environ.get(name, "1") for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
