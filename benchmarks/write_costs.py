"""What one write costs the API server, in processor time: grants, statuses, acknowledgements here and there, Leases, jobs.

    python -m benchmarks.write_costs [--nodes 64] [--rounds 3]

Starts a control plane with so many GPUNodes of eight GPUs, each watched as by its agent and all as by an operator, and as
many EnergyAwareJobs, and makes each kind of write on every one at once, so many times over. Prints milliseconds of
processor for each write, of the API server, of etcd and of this client. Ends with 1 where the acknowledgement of a brake
costs more than half of one in GPUNode.status.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from flyball_api.brake_acknowledgement import brake_acknowledgement_object
from flyball_api.gpu_node import Acknowledgement, gpu_node_object
from flyball_api.grant import Grant, JobGrant, PowerBound, grant_spec
from flyball_api.names import DEFAULT_NAMESPACE, FLYBALL_API_VERSION
from flyball_api.values.units import MilliwattsPerGpu, NodeMilliwatts
from flyball_kube.credentials import load_configuration
from flyball_kube.resources import BRAKE_ACKNOWLEDGEMENTS, ENERGY_AWARE_JOBS, GPU_NODES, LEASES
from flyball_kube.session import ApiSession, JsonObject
from flyball_testbed.controlplane.cluster import DevCluster
from flyball_testbed.controlplane.processes import processor_seconds

from benchmarks.churn import manifest

GPUS = 8
WATCH_SECONDS = 600.0
UNTRACKED: JsonObject = {"managedFields": [{}]}
IN_STATUS, IN_BRAKE = "acknowledgement in GPUNode.status", "BrakeAcknowledgement"


def name(node: int) -> str:
    return f"node-{node:04}"


def grant(node: int, generation: int) -> Grant:
    # Of the same watts each time: what is committed may not fall before it is acknowledged.
    limit, clock = MilliwattsPerGpu(300_000), 1000 + generation % 400
    job = JobGrant("default", "job", f"uid-{node}", 1, f"pod-{node}", GPUS, limit, 0, clock)
    bound = PowerBound(job.limit_milliwatts, job.limit_milliwatts)
    return Grant(1, generation, 60, bound, bound, jobs=(job,))


def acknowledged(number: int) -> JsonObject:
    limits = NodeMilliwatts(2_400_000 - number)
    made = brake_acknowledgement_object(
        "", "", Acknowledgement(1, number, limits, "boot", "1", None, limits, "1.0", number)
    )
    spec: JsonObject = made["spec"]
    return {**spec, "time": "2026-01-01T00:00:00Z"}


def status(node: int, number: int) -> JsonObject:
    healthy = {"type": "Healthy", "status": "True", "reason": "Governed", "message": ""}
    healthy["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    device: JsonObject = {"model": "NVIDIA A100-SXM4-40GB", "clocksMegahertz": {"min": 210, "max": 1410, "step": 15}}
    limits = {"minMilliwatts": 100_000, "maxMilliwatts": 400_000, "defaultMilliwatts": 400_000}
    now = {"requestedMilliwatts": 300_000 - number, "enforcedMilliwatts": 300_000 - number}
    devices = [
        {
            **device,
            "uuid": f"GPU-{node:08x}-0000-0000-0000-{index:012x}",
            "index": index,
            "limits": limits | now,
            "pod": {"namespace": "default", "name": f"pod-{node}"},
            "energyMillijoules": number * 1000 + index,
            "powerMilliwatts": 200_000,
            "conditions": [healthy],
        }
        for index in range(GPUS)
    ]
    conditions = [healthy | {"type": kind} for kind in ("Ready", "Drifted", "Degraded")]
    whole = {"bootID": "boot", "driverSession": "1", "agentVersion": "1.0", "mode": "Granted"}
    return {**whole, "devices": devices, "acknowledged": acknowledged(number), "conditions": conditions}


def job_status(number: int) -> JsonObject:
    """Of a job that runs, with everything that its operator says of one."""
    at = f"2026-01-01T00:{number // 60:02}:{number % 60:02}Z"
    message = "4 GPUs at 1125 MHz: its only size; a higher clock would pass the going price of 1.43 kJ a second."
    kinds = ("Admitted", "Placed", "PodsReady", "Resizing", "PowerLimitsEnforced", "BudgetHealthy", "DeadlineAtRisk")
    conditions = [
        {
            "type": kind,
            "status": "True",
            "reason": "Running",
            "message": message if kind in ("Admitted", "Ready") else "",
        }
        | {"lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1}
        for kind in (*kinds, "BoundsKept", "Ready")
    ]
    applied: JsonObject = {"clockMegahertz": 1125, "epoch": 1, "gpus": 4, "incarnation": 1, "powerLimitWatts": 179}
    applied["nodes"] = [{"gpus": 4, "name": "node-001"}]
    choice = {"clockMegahertz": 1410, "gpus": 4, "kilojoules": 637_153, "seconds": 584_306}
    summary = ("budget", "clock", "energy", "eta", "finish", "power", "progress", "queue", "start")
    return {
        "time": at,
        "observedGeneration": 1,
        "state": "Running",
        "explanation": message,
        "conditions": conditions,
        "allocation": applied,
        "applied": applied,
        "energy": {"consumedKilojoules": number, "incarnations": [{"key": "1/node-001", "millijoules": number}]},
        "prediction": {
            "microsecondsPerIteration": 655_574,
            "watts": 681,
            "timeErrorPermille": 0,
            "energyErrorPermille": 0,
        },
        "progress": {"iterations": number, "incarnation": 1, "lastReportTime": at, "estimatedCompletionTime": at},
        "summary": dict.fromkeys(summary, f"{number}"),
        "tradeoff": {"choices": 32, "gpuModel": "NVIDIA-A100-SXM4-40GB", "fastest": choice, "thriftiest": choice},
        "restarts": 0,
        "startTime": "2026-01-01T00:00:00Z",
    }


class Jobs:
    """EnergyAwareJobs, of which each is created once and then told its status, by one way or another."""

    def __init__(self, session: ApiSession) -> None:
        self._session = session
        self._metadata: dict[int, JsonObject] = {}

    async def create(self, job: int, number: int) -> None:
        body = manifest(f"job-{number}-{job}", DEFAULT_NAMESPACE, 4)
        self._metadata[job] = (await self._session.create(ENERGY_AWARE_JOBS.path(DEFAULT_NAMESPACE), body))["metadata"]

    async def put_status(self, job: int, number: int) -> None:
        """As the operator does."""
        await self._write(job, self._session.replace, job_status(number))

    async def patch_status(self, job: int, number: int) -> None:
        await self._write(job, self._session.patch, job_status(number))

    async def _write(
        self, job: int, write: Callable[[str, JsonObject], Awaitable[JsonObject]], status: JsonObject
    ) -> None:
        read = self._metadata[job]
        metadata = {key: read[key] for key in ("name", "namespace", "uid", "resourceVersion")}
        body = {"apiVersion": FLYBALL_API_VERSION, "kind": "EnergyAwareJob", "metadata": metadata, "status": status}
        path = ENERGY_AWARE_JOBS.path(DEFAULT_NAMESPACE, read["name"], "status")
        self._metadata[job] = (await write(path, body))["metadata"]


async def prepare(session: ApiSession, nodes: int) -> None:
    for node in range(nodes):
        await session.create(GPU_NODES.path(), gpu_node_object(name(node), {}, grant(node, 1)))
        await session.patch(
            GPU_NODES.path(name=name(node)), {"metadata": UNTRACKED, "spec": grant_spec(grant(node, 2))}
        )
        path = GPU_NODES.path(name=name(node), subresource="status")
        await session.patch(path, {"status": status(node, 2)})
        first = brake_acknowledgement_object(name(node), "uid", Acknowledgement(1, 1, NodeMilliwatts(1), "boot", "1"))
        await session.create(BRAKE_ACKNOWLEDGEMENTS.path(), first | {"metadata": {"name": name(node)}})
        lease = {"metadata": {"name": name(node)}, "spec": {"holderIdentity": "agent"}}
        await session.create(LEASES.path(DEFAULT_NAMESPACE), lease)


def writes(session: ApiSession) -> dict[str, Callable[[int, int], Awaitable[Any]]]:
    """Each kind of write, of a node and a number that rises."""

    def node_path(node: int, subresource: str | None = None) -> str:
        return GPU_NODES.path(name=name(node), subresource=subresource)

    jobs = Jobs(session)
    return {
        "grant": lambda node, number: session.patch(
            node_path(node), {"metadata": UNTRACKED, "spec": grant_spec(grant(node, number))}
        ),
        "whole GPUNode.status": lambda node, number: session.patch(
            node_path(node, "status"), {"status": status(node, number)}
        ),
        IN_STATUS: lambda node, number: session.patch(
            node_path(node, "status"), {"status": {"acknowledged": acknowledged(number)}}
        ),
        IN_BRAKE: lambda node, number: session.patch(
            BRAKE_ACKNOWLEDGEMENTS.path(name=name(node)), {"spec": acknowledged(number)}
        ),
        "Lease": lambda node, number: session.patch(
            LEASES.path(DEFAULT_NAMESPACE, name(node)), {"spec": {"leaseTransitions": number}}
        ),
        "a new EnergyAwareJob": jobs.create,
        "its status, put as a whole": jobs.put_status,
        "its status, by a merge patch": jobs.patch_status,
    }


async def follow(session: ApiSession, path: str, **params: str) -> None:
    async for _ in session.watch(path, params=params, read_timeout_seconds=WATCH_SECONDS):
        pass


async def measure(cluster: DevCluster, nodes: int, rounds: int) -> dict[str, float]:
    pids = cluster.control_plane.running()
    costs: dict[str, float] = {}
    async with ApiSession(load_configuration(cluster.kubeconfig)) as session:
        await prepare(session, nodes)
        watched = [(GPU_NODES.path(), {"fieldSelector": f"metadata.name={name(node)}"}) for node in range(nodes)]
        watched += [(GPU_NODES.path(), {}), (BRAKE_ACKNOWLEDGEMENTS.path(), {}), (LEASES.path(DEFAULT_NAMESPACE), {})]
        watched.append((ENERGY_AWARE_JOBS.path(), {}))
        watches = [asyncio.create_task(follow(session, path, **params)) for path, params in watched]
        await asyncio.sleep(2.0)
        number = 2
        for kind, write in writes(session).items():
            before = [processor_seconds(pids["kube-apiserver"]), processor_seconds(pids["etcd"]), time.process_time()]
            for _ in range(rounds):
                number += 1
                await asyncio.gather(*(write(node, number) for node in range(nodes)))
            await asyncio.sleep(0.5)  # the watches are part of what a write costs
            after = [processor_seconds(pids["kube-apiserver"]), processor_seconds(pids["etcd"]), time.process_time()]
            each = [1e3 * (now - then) / (nodes * rounds) for now, then in zip(after, before, strict=True)]
            costs[kind] = each[0]
            print(
                f"{kind:34} API server {each[0]:6.2f} ms, etcd {each[1]:5.2f} ms, client {each[2]:5.2f} ms", flush=True
            )
        for task in watches:
            task.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
    return costs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="flyball-") as folder,
        DevCluster.start(0, directory=Path(folder) / "c") as cluster,
    ):
        costs = asyncio.run(measure(cluster, arguments.nodes, arguments.rounds))
    return 0 if costs[IN_BRAKE] <= costs[IN_STATUS] / 2 else 1


if __name__ == "__main__":
    sys.exit(main())
