"""What `helm test` runs, against the real API server: it waits for the operator's answer, and says what is wrong else."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import Any

from tests.support.chart import CHART
from tests.support.control_plane import IsolatedCluster
from tests.support.waiting import until

PROGRAM = CHART / "files" / "test_installation.py"
JOB = "flyball-installation-test"
GROUP = "/apis/flyball.dev/v1alpha1"


async def start(cluster: IsolatedCluster, **environment: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, str(PROGRAM),
        env={**os.environ, "NAMESPACE": cluster.namespace, "KUBECONFIG": str(cluster.devcluster.kubeconfig), **environment},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def answer(cluster: IsolatedCluster, generation: int) -> None:
    """What an operator says of a suspended job."""
    path = cluster.path("energyawarejobs", JOB, GROUP)
    condition = {
        "type": "Admitted", "status": "False", "reason": "Suspended", "message": "spec.suspend is true",
        "lastTransitionTime": "2026-11-20T10:00:00Z",
    }  # fmt: skip
    cluster.api.patch(f"{path}/status", {"status": {"observedGeneration": generation, "conditions": [condition]}})


async def test_it_waits_for_the_operators_answer_and_tells_the_nodes(cluster: IsolatedCluster) -> None:
    path = cluster.path("energyawarejobs", JOB, GROUP)
    spec: dict[str, Any] = {
        "epoch": 1, "generation": 1, "leaseSeconds": 60, "boundMilliwatts": 800_000, "expectedMilliwatts": 464_000,
        "committedMilliwatts": 3_200_000, "committedExpectedMilliwatts": 3_200_000,
    }  # fmt: skip
    node = {"apiVersion": "flyball.dev/v1alpha1", "kind": "GPUNode", "metadata": {"name": "gpu-1"}, "spec": spec}
    cluster.api.create(f"{GROUP}/gpunodes", node)
    test = await start(cluster)
    await until(lambda: cluster.api.get_or_none(path) is not None)
    assert cluster.api.get(path)["spec"]["suspend"]  # nothing is started
    answer(cluster, 1)
    out, err = await test.communicate()
    assert test.returncode == 0, err.decode()
    assert "the operator answers: Suspended: spec.suspend is true" in out.decode()
    assert "gpu-1: no agent yet, nothing acknowledged yet" in out.decode()
    assert cluster.api.get_or_none(path) is None


async def test_an_answer_to_an_older_job_is_none(cluster: IsolatedCluster) -> None:
    test = await start(cluster, TIMEOUT_SECONDS="3")
    await until(lambda: cluster.api.get_or_none(cluster.path("energyawarejobs", JOB, GROUP)) is not None)
    answer(cluster, 0)
    _, err = await test.communicate()
    assert (test.returncode, "no operator answered within 3 s" in err.decode()) == (1, True)
    assert cluster.api.get_or_none(cluster.path("energyawarejobs", JOB, GROUP)) is None


async def test_without_definitions_it_says_so(cluster: IsolatedCluster) -> None:
    test = await start(cluster, NAMESPACE="there-is-none")
    _, err = await test.communicate()
    assert test.returncode == 1
    assert "the API server refuses" in err.decode()
    assert "Traceback" not in err.decode()
