"""A devcluster with everything on it: operator, agents, training, the status page, and who scrapes them where it is there.

They are processes that outlive the shell that started them, are found again by a file in the cluster's folder, and end
with `take_down`.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flyball_api.gpu_node import read_gpu_node
from flyball_api.names import DEFAULT_NAMESPACE, LEADER_LEASE
from flyball_kube.resources import GPU_NODES, LEASES
from flyball_simulated_gpu.catalogue import CATALOGUE

from flyball_testbed.controlplane.api import ApiClient, Json
from flyball_testbed.controlplane.cluster import DevCluster
from flyball_testbed.controlplane.install import REPOSITORY
from flyball_testbed.controlplane.nodes import NODES
from flyball_testbed.controlplane.ports import LOOPBACK, free_port
from flyball_testbed.controlplane.processes import Process, ProcessIdentity, wait_until
from flyball_testbed.controlplane.programs.binaries import Report
from flyball_testbed.controlplane.programs.integrations import VICTORIA_METRICS, present_integration
from flyball_testbed.controlplane.programs.monitoring_tools import PROMETHEUS, present_monitoring_tools
from flyball_testbed.parts import AGENTS, OPERATOR, PAGE, WORKLOAD, Parts, metrics_port, quiet_threads
from flyball_testbed.realnode import cluster as realnode
from flyball_testbed.scraping import prometheus_command, victoria_metrics_command
from flyball_testbed.workload.devices import create_hardware

STATE_FILE = "parts.json"
STOP_SECONDS = 10.0
READY_SECONDS = 120.0
VOLUMES = 32
SCRAPE_SECONDS = 5
CHART = REPOSITORY / "deploy" / "helm" / "flyball"
RULES, DASHBOARDS = CHART / "rules" / "alerts.yaml", CHART / "dashboards" / "vmui"
# Whatever proxy the environment names is not on the way to loopback.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class StandingError(Exception):
    """A part ended by itself, or never came to lead, to acknowledge or to answer; the message has the end of its log."""


@dataclass
class _Started:
    """What runs so far, and where people find what answers them: addresses by the part's name."""

    directory: Path
    sockets: Path
    die_with_parent: bool
    processes: list[Process] = field(default_factory=list)
    addresses: dict[str, str] = field(default_factory=dict)

    def start(self, name: str, command: Sequence[str], address: str = "") -> None:
        """Start a part, and note it."""
        log = self.log(name)
        self.processes.append(
            Process.spawn(
                name, command, log_path=log, environment=quiet_threads(), die_with_parent=self.die_with_parent
            )
        )
        if address:
            self.addresses[name] = address
        self.save()

    def save(self) -> None:
        path = self.directory / STATE_FILE
        temporary = path.with_suffix(".new")
        listed = [[process.name, process.identity.pid, process.identity.started_ticks] for process in self.processes]
        state = {"sockets": str(self.sockets), "processes": listed, "addresses": self.addresses}
        temporary.write_text(json.dumps(state))
        os.replace(temporary, path)

    def log(self, name: str) -> Path:
        return self.directory / "logs" / f"{name}.log"

    def ended(self) -> list[Process]:
        return [process for process in self.processes if not process.is_running()]

    def check(self) -> None:
        """Raises StandingError where a part has ended."""
        for process in self.ended():
            raise StandingError(f"{process.name} has ended; the end of its log:\n{process.log_tail(20)}")

    def wait_answers(self, name: str, url: str) -> None:
        """Wait until a part answers. Raises StandingError."""
        if not wait_until(lambda: bool(self.ended()) or _answers(url), READY_SECONDS, every_seconds=0.1):
            tail = "\n".join(process.log_tail(10) for process in self.processes if process.name == name)
            raise StandingError(f"{name} does not answer {url}; the end of its log:\n{tail}")
        self.check()


def set_up(
    cluster: DevCluster,
    gpus_per_node: int,
    product: str,
    *,
    die_with_parent: bool,
    report: Report = lambda _line: None,
) -> Mapping[str, str]:
    """Start every part; wait until the operator leads, each node's agent has acknowledged a grant, and the page answers.

    Gives the addresses for a browser: of PAGE and, where their programs are there, of PROMETHEUS and VICTORIA_METRICS.
    Raises StandingError, and LookupError for a product that is not in the catalogue; what has been started by then is
    found by `take_down`.
    """
    if product not in CATALOGUE:
        raise LookupError(f"{product} is none of the GPUs that are simulated: {', '.join(CATALOGUE)}")
    # Sockets' paths must fit into 107 bytes, and a home's folder may be anywhere.
    started = _Started(cluster.directory, Path(tempfile.mkdtemp(prefix="flyball-s-")), die_with_parent)
    parts = Parts(cluster, started.directory, started.sockets)
    started.save()
    create_volumes(cluster.api)
    label_nodes(cluster)
    create_hardware(parts.hardware, cluster.node_names(), CATALOGUE[product], gpus_per_node)
    report("starting the node agents, the training processes, the operator and the status page")
    started.start(AGENTS, parts.agents_command())
    started.start(WORKLOAD, parts.workload_command("--train-every-job"))
    started.start(OPERATOR, parts.operator_command())
    port = free_port()
    started.start(PAGE, parts.page_command(port), f"http://{LOOPBACK}:{port}/")
    _wait_ready(cluster, started)
    started.wait_answers(PAGE, f"http://{LOOPBACK}:{port}/readyz")
    _start_scraping(started)
    return started.addresses


def _start_scraping(started: _Started) -> None:
    """Prometheus with the chart's alerts, and VictoriaMetrics with its dashboards: where their programs are there."""
    tools, victoria = present_monitoring_tools(), present_integration(VICTORIA_METRICS)
    if tools is None and victoria is None:
        return
    targets = {name: f"{LOOPBACK}:{_metrics_port(started, name)}" for name in (OPERATOR, AGENTS)}
    folder, every = started.directory / "scraped", SCRAPE_SECONDS
    if tools is not None:
        port = free_port()
        command = prometheus_command(
            tools[PROMETHEUS], targets, folder / PROMETHEUS, port, rules=(RULES,), interval_seconds=every
        )
        # Debian's has no page of its own: what it answers in JSON is there always.
        started.start(PROMETHEUS, command, f"http://{LOOPBACK}:{port}/api/v1/alerts")
        started.wait_answers(PROMETHEUS, f"http://{LOOPBACK}:{port}/-/ready")
    if victoria is not None:
        port = free_port()
        command = victoria_metrics_command(
            victoria, targets, folder / VICTORIA_METRICS, port, dashboards=DASHBOARDS, interval_seconds=every
        )
        started.start(VICTORIA_METRICS, command, f"http://{LOOPBACK}:{port}/vmui/#/dashboards")
        started.wait_answers(VICTORIA_METRICS, f"http://{LOOPBACK}:{port}/-/ready")


def _metrics_port(started: _Started, name: str) -> int:
    log = started.log(name)
    wait_until(lambda: metrics_port(log) is not None or bool(started.ended()), READY_SECONDS)
    port = metrics_port(log)
    if port is None:
        started.check()
        raise StandingError(f"{name} serves no metrics; its log: {log}")
    return port


def _answers(url: str) -> bool:
    try:
        with _OPENER.open(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def create_volumes(api: ApiClient) -> None:
    """Volumes for the claims that examples make for their checkpoints; nothing is ever written to them here."""
    for number in range(VOLUMES):
        name = f"devcluster-{number:02}"
        spec = {
            "capacity": {"storage": "10Ti"},
            "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
            "hostPath": {"path": f"/var/lib/flyball-devcluster/{name}"},
        }
        api.apply({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec})


def label_nodes(cluster: DevCluster) -> None:
    """Put the nodes into the racks, the row and on the feeds that the examples' caps select."""
    for index, node in enumerate(cluster.node_names()):
        labels = {
            "topology.example.com/rack": "ab"[index % 2],
            "example.com/row": "a",
            "example.com/feeds": "a-b",
        }
        cluster.api.patch(f"{NODES}/{node}", {"metadata": {"labels": labels}})


def _wait_ready(cluster: DevCluster, started: _Started) -> None:
    nodes = set(cluster.node_names())
    lease = LEASES.path(DEFAULT_NAMESPACE, LEADER_LEASE)

    def acknowledged(found: Json | None) -> bool:
        seen = map(read_gpu_node, (found or {"items": []})["items"])
        return nodes <= {node.name for node in seen if node.acknowledged is not None}

    try:
        cluster.api.wait_for(lease, lambda found: bool(started.ended() or found), timeout_seconds=READY_SECONDS)
        cluster.api.wait_for(
            GPU_NODES.path(),
            lambda found: bool(started.ended()) or acknowledged(found),
            timeout_seconds=READY_SECONDS,
        )
    except TimeoutError as error:
        tails = "\n".join(f"{process.name}:\n{process.log_tail(10)}" for process in started.processes)
        raise StandingError(f"the operator does not lead, or agents do not acknowledge: {error}\n{tails}") from error
    started.check()


def processes_of(directory: Path) -> list[Process]:
    """The parts of the cluster in a folder, running or not; none where it was started without."""
    return [
        Process(name, ProcessIdentity(pid, ticks), directory / "logs" / f"{name}.log")
        for name, pid, ticks in _state(directory).get("processes", ())
    ]


def addresses_of(directory: Path) -> Mapping[str, str]:
    """What `set_up` gave, of the cluster in a folder."""
    addresses: Mapping[str, str] = _state(directory).get("addresses", {})
    return addresses


def _state(directory: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = json.loads((directory / STATE_FILE).read_text())
    except FileNotFoundError:
        return {}
    return state


def take_down(directory: Path, *, only_dead: bool = False) -> bool:
    """Stop a cluster with all that stands on it, whole or crashed, and remove its folder; whether there was one.

    With `only_dead`, raises FileExistsError where anything of it still runs.
    """
    parts = processes_of(directory)
    running = [process.name for process in parts if process.is_running()]
    if only_dead and running:
        raise FileExistsError(f"the devcluster in {directory} is already up ({', '.join(running)} run)")
    for process in parts:
        process.signal_stop()
    for process in parts:
        process.stop(STOP_SECONDS)
    if parts or (directory / STATE_FILE).exists():
        shutil.rmtree(json.loads((directory / STATE_FILE).read_text())["sockets"], ignore_errors=True)
    return realnode.take_down(directory, only_dead=only_dead)
