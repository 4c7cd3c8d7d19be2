"""A devcluster with everything on it: operator, agents and training as processes that outlive the shell that started them.

They are found again by a file in the cluster's folder, and end with `take_down`.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

from flyball_api.names import DEFAULT_NAMESPACE, LEADER_LEASE
from flyball_simulated_gpu.catalogue import CATALOGUE

from flyball_testbed.controlplane.api import ApiClient, Json
from flyball_testbed.controlplane.cluster import DevCluster
from flyball_testbed.controlplane.nodes import NODES
from flyball_testbed.controlplane.processes import Process, ProcessIdentity
from flyball_testbed.controlplane.programs.binaries import Report
from flyball_testbed.parts import AGENTS, OPERATOR, WORKLOAD, Parts, quiet_threads
from flyball_testbed.realnode import cluster as realnode
from flyball_testbed.workload.devices import create_hardware

STATE_FILE = "parts.json"
STOP_SECONDS = 10.0
READY_SECONDS = 120.0
VOLUMES = 32
GPU_NODES = "/apis/flyball.dev/v1alpha1/gpunodes"


class StandingError(Exception):
    """A part ended by itself, or never came to lead or to acknowledge; the message has the end of its log."""


def set_up(
    cluster: DevCluster,
    gpus_per_node: int,
    product: str,
    *,
    die_with_parent: bool,
    report: Report = lambda _line: None,
) -> None:
    """Start every part, and wait until the operator leads and each node's agent has acknowledged a grant.

    Raises StandingError, and LookupError for a product that is not in the catalogue; what has been started by then is
    found by `take_down`.
    """
    if product not in CATALOGUE:
        raise LookupError(f"{product} is none of the GPUs that are simulated: {', '.join(CATALOGUE)}")
    # Sockets' paths must fit into 107 bytes, and a home's folder may be anywhere.
    sockets = Path(tempfile.mkdtemp(prefix="flyball-s-"))
    parts = Parts(cluster, cluster.directory, sockets)
    processes: list[Process] = []
    _save(cluster.directory, sockets, processes)
    create_volumes(cluster.api)
    label_nodes(cluster)
    create_hardware(parts.hardware, cluster.node_names(), CATALOGUE[product], gpus_per_node)
    report("starting the node agents, the training processes and the operator")
    commands = {
        AGENTS: parts.agents_command(),
        WORKLOAD: parts.workload_command("--train-every-job"),
        OPERATOR: parts.operator_command(),
    }
    for name, command in commands.items():
        processes.append(
            Process.spawn(
                name,
                command,
                log_path=cluster.directory / "logs" / f"{name}.log",
                environment=quiet_threads(),
                die_with_parent=die_with_parent,
            )
        )
        _save(cluster.directory, sockets, processes)
    _wait_ready(cluster, processes)


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


def _wait_ready(cluster: DevCluster, processes: list[Process]) -> None:
    nodes = set(cluster.node_names())
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{DEFAULT_NAMESPACE}/leases/{LEADER_LEASE}"

    def ended() -> list[Process]:
        return [process for process in processes if not process.is_running()]

    def acknowledged(found: Json | None) -> bool:
        items = (found or {"items": []})["items"]
        return nodes <= {item["metadata"]["name"] for item in items if (item.get("status") or {}).get("acknowledged")}

    try:
        cluster.api.wait_for(lease, lambda found: bool(ended() or found), timeout_seconds=READY_SECONDS)
        cluster.api.wait_for(
            GPU_NODES, lambda found: bool(ended()) or acknowledged(found), timeout_seconds=READY_SECONDS
        )
    except TimeoutError as error:
        tails = "\n".join(f"{process.name}:\n{process.log_tail(10)}" for process in processes)
        raise StandingError(f"the operator does not lead, or agents do not acknowledge: {error}\n{tails}") from error
    for process in ended():
        raise StandingError(f"{process.name} has ended; the end of its log:\n{process.log_tail(20)}")


def _save(directory: Path, sockets: Path, processes: list[Process]) -> None:
    path = directory / STATE_FILE
    temporary = path.with_suffix(".new")
    listed = [[process.name, process.identity.pid, process.identity.started_ticks] for process in processes]
    temporary.write_text(json.dumps({"sockets": str(sockets), "processes": listed}))
    os.replace(temporary, path)


def processes_of(directory: Path) -> list[Process]:
    """The parts of the cluster in a folder, running or not; none where it was started without."""
    try:
        state = json.loads((directory / STATE_FILE).read_text())
    except FileNotFoundError:
        return []
    return [
        Process(name, ProcessIdentity(pid, ticks), directory / "logs" / f"{name}.log")
        for name, pid, ticks in state["processes"]
    ]


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
