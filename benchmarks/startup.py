"""How long an operator takes to start on a large cluster: 1,000 GPU nodes and 5,000 jobs, most of them finished.

    python benchmarks/startup.py [--nodes 1000] [--jobs 5000] [--unfinished 200]

Builds the cluster on a real API server (nodes by kwok; GPUNodes with the statuses of agents that have acknowledged), then
starts the operator and reads its log. Prints seconds from the start of the process to the informers being in sync and to
the first plan, and the process's memory. Exits with 1 where synced and planned takes more than 15 s.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import sysconfig
import time
import uuid
from pathlib import Path
from typing import Any

from flyball_api.names import DEFAULT_NAMESPACE, FLYBALL_API_VERSION, LEADER_LEASE
from flyball_testbed.controlplane.cluster import DevCluster

TARGET_SECONDS = 15.0
GROUP = f"/apis/{FLYBALL_API_VERSION}"
JOBS = f"{GROUP}/namespaces/default/energyawarejobs"
NOW = "2026-11-20T10:00:00Z"


def job(index: int) -> dict[str, Any]:
    return {
        "apiVersion": FLYBALL_API_VERSION,
        "kind": "EnergyAwareJob",
        "metadata": {"name": f"job-{index:05d}", "namespace": "default"},
        "spec": {
            "gpus": {"min": 1, "max": 32},
            "training": {"globalBatchSize": 1024, "iterations": 10_000 + index, "modelClass": "resnet50"},
            "template": {"spec": {"containers": [{"name": "trainer", "image": "example.org/trainer"}]}},
        },
    }


def finished_status() -> dict[str, Any]:
    condition = {"status": "True", "lastTransitionTime": NOW, "reason": "Succeeded", "message": "all ranks ended"}
    return {"conditions": [{"type": "Succeeded", **condition}], "state": "Succeeded", "completionTime": NOW}


def gpu_node(name: str, labels: dict[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": FLYBALL_API_VERSION,
        "kind": "GPUNode",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "epoch": 1,
            "generation": 1,
            "leaseSeconds": 60,
            "boundMilliwatts": 800_000,
            "expectedMilliwatts": 464_000,
            "committedMilliwatts": 3_200_000,
            "committedExpectedMilliwatts": 3_200_000,
        },
    }


def acknowledged_status() -> dict[str, Any]:
    limits = {"minMilliwatts": 100_000, "maxMilliwatts": 400_000, "defaultMilliwatts": 400_000}
    return {
        "bootID": "boot",
        "driverSession": "1",
        "mode": "Granted",
        "devices": [
            {
                "uuid": f"GPU-{uuid.uuid4()}",
                "index": index,
                "model": "NVIDIA-A100-SXM4-40GB",
                "limits": {**limits, "requestedMilliwatts": 100_000, "enforcedMilliwatts": 100_000},
                "clocksMegahertz": {"min": 210, "max": 1410, "step": 15},
                "energyMillijoules": 1_000_000,
                "powerMilliwatts": 58_000,
            }
            for index in range(8)
        ],
        "acknowledged": {
            "epoch": 1,
            "generation": 1,
            "time": NOW,
            "limitsMilliwatts": 800_000,
            "bootID": "boot",
            "driverSession": "1",
        },
    }


def memory_megabytes(pid: int) -> float:
    """Resident memory of a process and its children (the planner's worker), in MB."""
    total = 0.0
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
        except OSError:
            continue
        if fields["Pid"].strip() == str(pid) or fields["PPid"].strip() == str(pid):
            total += float(fields.get("VmRSS", "0 kB").split()[0]) / 1024
    return total


def fill(cluster: DevCluster, jobs: int, unfinished: int) -> None:
    """Jobs, `unfinished` of which are not, GPUNodes whose agents have acknowledged, a cap, and the Lease of nobody."""
    api = cluster.api
    api.for_each(lambda index: api.create(JOBS, job(index)), range(jobs))
    api.for_each(
        lambda index: api.patch(f"{JOBS}/job-{index:05d}/status", {"status": finished_status()}),
        range(unfinished, jobs),
    )
    labels = {node["metadata"]["name"]: node["metadata"]["labels"] for node in api.list_objects("/api/v1/nodes")}
    api.for_each(lambda name: api.create(f"{GROUP}/gpunodes", gpu_node(name, labels[name])), labels)
    api.for_each(lambda name: api.patch(f"{GROUP}/gpunodes/{name}/status", {"status": acknowledged_status()}), labels)
    api.apply(
        {
            "apiVersion": FLYBALL_API_VERSION,
            "kind": "PowerCap",
            "metadata": {"name": "all"},
            "spec": {"permilleOfMax": 700},
        }
    )
    # As an operator leaves it that was stopped in order.
    api.create(
        "/apis/coordination.k8s.io/v1/namespaces/flyball-system/leases",
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": LEADER_LEASE, "namespace": DEFAULT_NAMESPACE},
            "spec": {"holderIdentity": "", "leaseDurationSeconds": 15, "leaseTransitions": 1},
        },
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--unfinished", type=int, default=200)
    arguments = parser.parse_args()
    with DevCluster.start(arguments.nodes, report=print) as cluster:
        print(f"creating {arguments.jobs} jobs and {arguments.nodes} GPUNodes")
        fill(cluster, arguments.jobs, arguments.unfinished)
        program = Path(sysconfig.get_path("scripts")) / "flyball"
        command = [str(program), "operator", "run", "--kubeconfig", str(cluster.operator_kubeconfig())]
        started = time.monotonic()
        seen: dict[str, float] = {}
        with subprocess.Popen(
            [*command, "--metrics-port", "0", "--probe-port", "0"], stderr=subprocess.PIPE, text=True
        ) as operator:
            assert operator.stderr is not None
            for line in operator.stderr:
                event = json.loads(line).get("event", "") if line.startswith("{") else ""
                for name in ("synced", "first plan"):
                    if event.startswith(name) and name not in seen:
                        seen[name] = time.monotonic() - started
                        print(f"{name}: {seen[name]:.1f} s   {line.strip()[:160]}")
                if "first plan" in seen:
                    break
            megabytes = memory_megabytes(operator.pid)
            operator.kill()
    print(
        f"{arguments.nodes} nodes, {arguments.jobs} jobs ({arguments.unfinished} unfinished): synced in"
        f" {seen['synced']:.1f} s, planned in {seen['first plan']:.1f} s (limit {TARGET_SECONDS:g} s),"
        f" {megabytes:.0f} MB resident with the planner's process"
    )
    return 0 if seen["first plan"] <= TARGET_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
