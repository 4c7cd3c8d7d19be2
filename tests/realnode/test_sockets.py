"""Training sockets where pods may mount no folder of their host: a device of each pod's node."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from flyball.node.agent import Agent, AgentError
from flyball.node.measuring import EnergyMeter, Measurement
from flyball_testbed.real_site import RealSite

from tests.support.real_nodes import TOOLS_IMAGE
from tests.support.site_bench import GROUP, job_manifest
from tests.support.waiting import wait_until

JOB = "fit"
# Containers that start beside a whole test run on two cores.
PATIENCE_SECONDS = 180.0


@pytest.mark.timeout(600)
def test_a_restricted_pod_has_a_socket_of_its_own_and_its_pipelines_point(real_site: RealSite) -> None:
    """Without any folder of the host, as the strictest of the Pod Security Standards has it."""
    site = real_site
    namespace, api = "restricted", site.api
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    api.create("/api/v1/namespaces", {"metadata": {"name": namespace, "labels": labels}})
    api.wait_for(f"/api/v1/namespaces/{namespace}/serviceaccounts/default", lambda account: account is not None)
    plan = {"metadata": {"name": "plan"}, "data": {"plan.json": "{}"}}
    api.create(f"/api/v1/namespaces/{namespace}/configmaps", plan)
    manifest = job_manifest(JOB, namespace, gpus=(2, 2), iterations=1_000_000, objective="Time")
    manifest["spec"]["pipeline"] = {"stages": 2, "microbatches": 4, "plan": {"configMap": "plan"}}
    manifest["spec"]["template"]["spec"] = {
        "terminationGracePeriodSeconds": 1,
        "containers": [
            {
                "name": "trainer",
                "image": TOOLS_IMAGE,
                "command": ["sh", "-c", "test -S $FLYBALL_SOCKET || sleep 5; sleep 36000"],
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                    "runAsNonRoot": True,
                    "runAsUser": 65532,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
            }
        ],
    }
    jobs = f"{GROUP}/namespaces/{namespace}/energyawarejobs"
    api.create(jobs, manifest)
    try:
        wait_until(
            lambda: bool(site.pod_processes("sleep 36000")), lambda: str(api.get(f"{jobs}/{JOB}")), PATIENCE_SECONDS
        )
        process, *_ = processes = site.pod_processes("sleep 36000")
        folder = Path(f"/proc/{process}/root/run/flyball")
        wait_until((folder / "flyball.sock").exists, "its agent serves it", PATIENCE_SECONDS)
        assert {path.name for path in folder.iterdir()} <= {"flyball.sock", "clocks.sock"}, "and sees no other's"
        agent = Agent(str(folder / "flyball.sock"))

        def is_governed() -> bool:
            try:
                return "energyMillijoules" in agent.call("GET", "/v1/energy")
            except AgentError:
                return False

        wait_until(is_governed, "its pod's energy is known", PATIENCE_SECONDS)

        body = {"iterations": 4321, "windowIterations": 10, "windowSeconds": 2.5, "localBatchSize": 128}
        with Measurement("until it is seen", EnergyMeter(agent), time.monotonic) as taken:
            assert agent.call("POST", "/v1/steps", body)["powerLimitMilliwatts"] > 0
            api.wait_for(
                f"{jobs}/{JOB}",
                lambda job: ((job or {}).get("status", {}).get("progress") or {}).get("iterations") == 4321,
                timeout_seconds=PATIENCE_SECONDS,
                what="its report is seen",
            )
        mounted = Path(f"/proc/{process}/root/etc/flyball")
        assert (mounted / "plan.json").read_text() == "{}"
        for objective in ("Time", "Energy"):
            api.patch(f"{jobs}/{JOB}", {"spec": {"objective": objective}})
            wait_until(
                lambda wanted=objective: json.loads((mounted / "point.json").read_text())["objective"] == wanted,  # type: ignore[misc]
                lambda: f"its kubelet writes {(mounted / 'point.json').read_text()}",
                PATIENCE_SECONDS,
            )
        assert json.loads((mounted / "point.json").read_text())["maxMegahertz"] > 0
        assert set(processes) <= set(site.pod_processes("sleep 36000")), "it was not restarted"
        assert taken.watts is not None
        assert 60 < taken.watts < 1000, f"{taken}: two boards of 52 W at rest and 400 W at the most"
    finally:
        api.delete(f"{jobs}/{JOB}")
        api.wait_for(
            f"/api/v1/namespaces/{namespace}/pods",
            lambda found: not (found or {}).get("items"),
            timeout_seconds=PATIENCE_SECONDS,
            what="no pods",
        )
