"""What `helm test` runs: submit a suspended job of one GPU, and wait for what the operator says of it. Nothing is started.

That an answer comes shows that the definitions are there, that admission lets jobs in, that an operator leads, and that it
may read jobs and write their statuses. Then the nodes are told, and whether their agents have acknowledged a grant.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from flyball_kube.errors import ApiError, ApiUnreachable
from flyball_kube.session import ApiSession

GROUP = "/apis/flyball.dev/v1alpha1"
NAME = "flyball-installation-test"


def job(namespace: str) -> dict[str, Any]:
    return {
        "apiVersion": "flyball.dev/v1alpha1",
        "kind": "EnergyAwareJob",
        "metadata": {"name": NAME, "namespace": namespace},
        "spec": {
            "suspend": True,
            "gpus": {"min": 1, "max": 1},
            "training": {"globalBatchSize": 1},
            "template": {"spec": {"containers": [{"name": "trainer", "image": "none"}]}},
        },
    }


def answer(found: dict[str, Any]) -> str:
    """What the operator says of the job; empty as long as it says nothing of this job."""
    status = found.get("status") or {}
    if status.get("observedGeneration") != found["metadata"]["generation"]:
        return ""
    admitted = [item for item in status.get("conditions") or () if item["type"] == "Admitted"]
    return f"{admitted[0]['reason']}: {admitted[0].get('message', '')}" if admitted else ""


def tell_nodes(nodes: list[dict[str, Any]]) -> None:
    for node in nodes:
        status = node.get("status") or {}
        acknowledged = (status.get("acknowledged") or {}).get("limitsMilliwatts")
        limits = "nothing acknowledged yet" if acknowledged is None else f"{acknowledged / 1000:.0f} W acknowledged"
        print(f"  {node['metadata']['name']}: {status.get('mode', 'no agent yet')}, {limits}")


async def check(api: ApiSession, namespace: str, timeout_seconds: float) -> int:
    """Run the test; its exit status."""
    jobs = f"{GROUP}/namespaces/{namespace}/energyawarejobs"
    try:
        await api.delete(f"{jobs}/{NAME}")  # of a test that was killed
    except ApiError as error:
        if error.status != 404:
            raise
    await api.create(jobs, job(namespace))
    try:
        async with asyncio.timeout(timeout_seconds):
            while True:
                answered = answer(await api.get(f"{jobs}/{NAME}"))
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
        await api.delete(f"{jobs}/{NAME}")
    print(f"the operator answers: {answered}")
    nodes = (await api.get(f"{GROUP}/gpunodes"))["items"]
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
