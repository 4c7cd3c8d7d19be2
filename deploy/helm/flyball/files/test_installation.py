"""What `helm test` runs: submit a suspended job of one GPU, and wait for what the operator says of it. Nothing is started.

That an answer comes shows that the definitions are there, that admission lets jobs in, that an operator leads, and that it
may read jobs and write their statuses. Then the nodes are told, and whether their agents have acknowledged a grant.
"""

from __future__ import annotations

import asyncio
import os
import sys

from flyball_api.energy_aware_job import EnergyAwareJob, EnergyAwareJobSpec, GpuRange, Training, read_energy_aware_job
from flyball_api.gpu_node import GpuNode, read_gpu_node
from flyball_api.reading import JsonObject
from flyball_api.values.units import MILLIWATTS_PER_WATT
from flyball_api.writing import api_object
from flyball_kube.errors import ApiError, ApiUnreachable
from flyball_kube.resources import ENERGY_AWARE_JOBS, GPU_NODES
from flyball_kube.session import ApiSession

NAME = "flyball-installation-test"


def job(namespace: str) -> JsonObject:
    spec = EnergyAwareJobSpec(
        gpus=GpuRange(1, 1),
        training=Training(1),
        template={"spec": {"containers": [{"name": "trainer", "image": "none"}]}},
        suspend=True,
    )
    return api_object(ENERGY_AWARE_JOBS.kind, NAME, spec, namespace=namespace)


def answer(found: EnergyAwareJob) -> str:
    """Why the job waits, as the operator has written it; empty as long as it has written nothing of this job."""
    admitted = found.conditions.get("Admitted")
    if admitted is None or found.status.observed_generation != found.generation:
        return ""
    return f"{admitted.reason}: {admitted.message}"


def tell_nodes(nodes: list[GpuNode]) -> None:
    for node in nodes:
        acknowledged, limits = node.acknowledged, "nothing acknowledged yet"
        if acknowledged is not None:
            limits = f"{acknowledged.limits_milliwatts / MILLIWATTS_PER_WATT:.0f} W acknowledged"
        print(f"  {node.name}: {node.status.mode or 'no agent yet'}, {limits}")


async def check(api: ApiSession, namespace: str, timeout_seconds: float) -> int:
    """Run the test; its exit status."""
    path = ENERGY_AWARE_JOBS.path(namespace, NAME)
    try:
        await api.delete(path)  # of a test that was killed
    except ApiError as error:
        if error.status != 404:
            raise
    await api.create(ENERGY_AWARE_JOBS.path(namespace), job(namespace))
    try:
        async with asyncio.timeout(timeout_seconds):
            while True:
                answered = answer(read_energy_aware_job(await api.get(path)))
                if answered:
                    break
                await asyncio.sleep(0.5)
    except TimeoutError:
        print(
            f"no operator answered within {timeout_seconds:.0f} s: kubectl --namespace {namespace} logs"
            " --selector app.kubernetes.io/component=operator",
            file=sys.stderr,
        )
        return 1
    finally:
        await api.delete(path)
    print(f"the operator answers: {answered}")
    nodes = [read_gpu_node(raw) for raw in (await api.get(GPU_NODES.path()))["items"]]
    print(f"{len(nodes)} GPU nodes:")
    tell_nodes(nodes)
    return 0


async def main() -> int:
    """Read where we are from the environment and run the test."""
    namespace = os.environ["NAMESPACE"]
    try:
        async with await ApiSession.connect(os.environ.get("KUBECONFIG")) as api:
            return await check(api, namespace, float(os.environ.get("TIMEOUT_SECONDS", "60")))
    except (ApiError, ApiUnreachable) as error:
        print(f"the API server refuses or does not answer: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
