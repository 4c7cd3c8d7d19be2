"""Pods on a real node: they run, hold simulated GPUs, and are held to what the cluster allows."""

from __future__ import annotations

import asyncio
import subprocess

import pytest
from flyball_agent.pods.kubelet import KubeletPodResources
from flyball_agent.pods.resources import PodDevices
from flyball_api.names import GPU_RESOURCE, LABEL_GPU_PRODUCT
from flyball_kube.errors import ApiError
from flyball_simulated_gpu.device import DeviceFault
from flyball_simulated_gpu.shared import SimulatedNode
from flyball_testbed.controlplane.nodes import NODES, is_ready
from flyball_testbed.controlplane.programs import build
from flyball_testbed.realnode.cluster import RealCluster

from tests.support.real_nodes import GPUS_PER_NODE, RealBench
from tests.support.waiting import wait_until

NODE = f"{NODES}/real-1"


def uuids(cluster: RealCluster) -> set[str]:
    with SimulatedNode.open(cluster.hardware("real-1")) as node:
        return {device.uuid for device in node.devices}


def holders(cluster: RealCluster) -> dict[str, PodDevices]:
    """What the kubelet says of who holds which GPUs, as the node agent asks it."""

    async def ask() -> dict[str, PodDevices]:
        async with KubeletPodResources(cluster.nodes["real-1"].pod_resources_socket, timeout_seconds=10) as kubelet:
            return {pod.name: pod for pod in await kubelet.list()}

    return asyncio.run(ask())


def test_the_node_is_a_real_one_with_gpus(real_bench: RealBench) -> None:
    node = real_bench.api.get(NODE)
    assert is_ready(node)
    info = node["status"]["nodeInfo"]
    assert info["kubeletVersion"] == build.pinned_version(build.KUBERNETES_MODULE)
    assert (
        info["containerRuntimeVersion"] == f"containerd://{build.pinned_version(build.CONTAINERD_MODULE).lstrip('v')}"
    )
    assert node["status"]["allocatable"][GPU_RESOURCE] == str(GPUS_PER_NODE)
    assert node["metadata"]["labels"][LABEL_GPU_PRODUCT] == "NVIDIA-A100-SXM4-40GB"


def test_a_pod_runs_and_its_exit_code_and_log_are_seen(real_bench: RealBench) -> None:
    real_bench.run("fails", "echo to the log; exit 3")
    assert real_bench.exit_code("fails") == 3
    assert real_bench.log("fails") == "to the log\n"
    assert real_bench.api.get(real_bench.path("fails"))["status"]["phase"] == "Failed"


def test_a_command_can_be_run_in_a_pod(real_bench: RealBench) -> None:
    real_bench.run("waits", "sleep 3600")
    real_bench.wait_phase("waits", "Running")
    plane = real_bench.cluster.devcluster.control_plane
    answer = subprocess.run(
        [plane.kubectl, f"--kubeconfig={plane.kubeconfig()}", "--namespace", real_bench.namespace,
         "exec", "waits", "--", "sh", "-c", "echo inside; exit 4"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (answer.stdout, answer.returncode) == ("inside\n", 4), answer.stderr


def test_a_pod_gets_its_gpus_and_the_kubelet_says_which(real_bench: RealBench) -> None:
    real_bench.run("trains", "env; cat $FLYBALL_SIMULATED_GPUS >/dev/null && ls $LD_LIBRARY_PATH; sleep 3600", gpus=2)
    real_bench.run("watches", "sleep 3600")
    real_bench.wait_phase("trains", "Running")
    real_bench.wait_phase("watches", "Running")
    wait_until(lambda: "libnvidia-ml" in real_bench.log("trains"), "the library is in the pod")
    variables = dict(line.split("=", 1) for line in real_bench.log("trains").splitlines() if "=" in line)
    held = holders(real_bench.cluster)
    assert set(held) == {"trains"}, "a pod without GPUs holds none"
    assert held["trains"].namespace == real_bench.namespace
    assert len(held["trains"].gpus) == 2
    assert set(held["trains"].gpus) == set(variables["NVIDIA_VISIBLE_DEVICES"].split(","))
    assert set(held["trains"].gpus) < uuids(real_bench.cluster)


def test_gpus_are_given_once_and_given_back(real_bench: RealBench) -> None:
    real_bench.run("first", "sleep 3600", gpus=GPUS_PER_NODE - 1)
    real_bench.wait_phase("first", "Running")
    real_bench.run("second", "true", gpus=2)
    real_bench.api.wait_for(
        real_bench.path("second"),
        lambda pod: any(
            condition.get("reason") == "Unschedulable" for condition in (pod or {})["status"].get("conditions", [])
        ),
        what="unschedulable",
    )
    real_bench.api.delete(real_bench.path("first"))
    assert real_bench.exit_code("second") == 0


def test_a_lost_gpu_is_not_offered_until_it_is_back(real_bench: RealBench) -> None:
    def offered(count: int) -> None:
        real_bench.api.wait_for(
            NODE,
            lambda node: (node or {})["status"]["allocatable"][GPU_RESOURCE] == str(count),
            timeout_seconds=60,
            what=f"offering {count} GPUs",
        )

    with SimulatedNode.open(real_bench.cluster.hardware("real-1")) as node:
        node.devices[1].flags |= DeviceFault.LOST
        try:
            offered(GPUS_PER_NODE - 1)
        finally:
            node.devices[1].flags &= ~DeviceFault.LOST
        offered(GPUS_PER_NODE)


def test_pod_security_is_enforced(real_bench: RealBench) -> None:
    real_bench.api.patch(
        f"/api/v1/namespaces/{real_bench.namespace}",
        {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}},
    )
    with pytest.raises(ApiError, match=r"violates PodSecurity.*privileged"):
        real_bench.run("privileged", "true", container={"securityContext": {"privileged": True}})
    allowed = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "readOnlyRootFilesystem": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert "uid=65532" in real_bench.output("restricted", "id", container={"securityContext": allowed})


def test_a_pod_reaches_the_api_server_by_its_service(real_bench: RealBench) -> None:
    script = (
        "nc -w 10 $KUBERNETES_SERVICE_HOST $KUBERNETES_SERVICE_PORT </dev/null && cat /var/run/secrets/*/*/namespace"
    )
    assert real_bench.output("asks", script) == real_bench.namespace


def test_a_killed_kubelet_comes_back_and_its_pods_have_run_on(real_bench: RealBench) -> None:
    real_bench.run("stays", "sleep 3600", gpus=1)
    before = real_bench.wait_phase("stays", "Running")["status"]["containerStatuses"][0]["containerID"]
    node = real_bench.cluster.nodes["real-1"]

    def kubelets() -> list[int]:
        return [pid for pid, name in node.processes().items() if name == "kubelet"]

    (killed,) = kubelets()
    subprocess.run(["/bin/kill", "-9", str(killed)], check=True)
    wait_until(lambda: kubelets() not in ([], [killed]), "another kubelet")
    names = [f"after-{number}" for number in range(100)]

    def given_out() -> bool:
        real_bench.run(names[0], "echo $NVIDIA_VISIBLE_DEVICES", gpus=1)
        status = real_bench.wait_phase(names[0], "Succeeded", "Failed")["status"]
        if status["phase"] == "Succeeded":
            return True
        # Until it has taken the plugin in anew it turns away who wants GPUs.
        assert status["reason"] == "UnexpectedAdmissionError", status
        names.pop(0)
        return False

    wait_until(given_out, "a pod that is given a GPU")
    assert real_bench.log(names[0]).startswith("GPU-")
    status = real_bench.api.get(real_bench.path("stays"))["status"]["containerStatuses"][0]
    assert (status["containerID"], status["restartCount"]) == (before, 0)
