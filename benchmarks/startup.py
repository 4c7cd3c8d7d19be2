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
from datetime import UTC, datetime
from pathlib import Path

from flyball_api.energy_aware_job import EnergyAwareJobSpec, EnergyAwareJobStatus, GpuRange, Training
from flyball_api.gpu_node import Acknowledgement, GpuClocks, GpuNodeStatus, GpuReport, PowerLimits, gpu_node_object
from flyball_api.grant import Grant, PowerBound
from flyball_api.names import DEFAULT_NAMESPACE, LEADER_LEASE
from flyball_api.power_cap import PowerCapSpec
from flyball_api.reading import JsonObject
from flyball_api.values.conditions import StoredCondition
from flyball_api.values.units import MilliwattsPerGpu, NodeMilliwatts, node_milliwatts
from flyball_api.writing import api_object, to_json
from flyball_kube.resources import ENERGY_AWARE_JOBS, GPU_NODES, LEASES, POWER_CAPS
from flyball_testbed.controlplane.cluster import DevCluster

TARGET_SECONDS = 15.0
JOBS = ENERGY_AWARE_JOBS.path("default")
NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)


def job(index: int) -> JsonObject:
    spec = EnergyAwareJobSpec(
        gpus=GpuRange(1, 32),
        training=Training(1024, 10_000 + index, model_class="resnet50"),
        template={"spec": {"containers": [{"name": "trainer", "image": "example.org/trainer"}]}},
    )
    return api_object(ENERGY_AWARE_JOBS.kind, f"job-{index:05d}", spec, namespace="default")


def finished_status() -> JsonObject:
    succeeded = StoredCondition("Succeeded", "True", "Succeeded", "all ranks ended", last_transition_time=NOW)
    return to_json(EnergyAwareJobStatus(conditions=(succeeded,), state="Succeeded", completion_time=NOW))


def grant() -> Grant:
    bound = PowerBound(NodeMilliwatts(800_000), NodeMilliwatts(464_000))
    most = PowerBound(NodeMilliwatts(3_200_000), NodeMilliwatts(3_200_000))
    return Grant(epoch=1, generation=1, lease_seconds=60, bound=bound, committed=most)


def acknowledged_status() -> JsonObject:
    least, most = MilliwattsPerGpu(100_000), MilliwattsPerGpu(400_000)
    devices = tuple(
        GpuReport(
            uuid=f"GPU-{uuid.uuid4()}",
            index=index,
            model="NVIDIA-A100-SXM4-40GB",
            limits=PowerLimits(least, most, most, requested_milliwatts=least, enforced_milliwatts=least),
            clocks_megahertz=GpuClocks(210, 1410, 15),
            energy_millijoules=1_000_000,
            power_milliwatts=MilliwattsPerGpu(58_000),
        )
        for index in range(8)
    )
    acknowledged = Acknowledgement(1, 1, node_milliwatts(least, 8), "boot", "1", NOW)
    return to_json(
        GpuNodeStatus(boot_id="boot", driver_load="1", mode="Granted", devices=devices, acknowledged=acknowledged)
    )


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
        lambda index: api.patch(
            ENERGY_AWARE_JOBS.path("default", f"job-{index:05d}", "status"), {"status": finished_status()}
        ),
        range(unfinished, jobs),
    )
    labels = {node["metadata"]["name"]: node["metadata"]["labels"] for node in api.list_objects("/api/v1/nodes")}
    api.for_each(lambda name: api.create(GPU_NODES.path(), gpu_node_object(name, labels[name], grant())), labels)
    api.for_each(
        lambda name: api.patch(GPU_NODES.path(name=name, subresource="status"), {"status": acknowledged_status()}),
        labels,
    )
    api.apply(api_object(POWER_CAPS.kind, "all", PowerCapSpec(permille_of_max=700)))
    # As an operator leaves it that was stopped in order.
    api.create(
        LEASES.path(DEFAULT_NAMESPACE),
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
