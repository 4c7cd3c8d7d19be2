"""The agent host as a process: real agents, each held to its own node by its pod's token."""

from __future__ import annotations

import json
import re
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from flyball_kube.errors import ApiError
from flyball_simulated_gpu.catalogue import CATALOGUE
from flyball_simulated_gpu.shared import SimulatedNode
from flyball_testbed.controlplane.install import agent_pods
from flyball_testbed.controlplane.processes import Process
from flyball_testbed.workload.devices import create_hardware, hardware_path

from tests.support.waiting import wait_until

A100 = CATALOGUE["NVIDIA-A100-SXM4-40GB"]
GPU_NODES = "/apis/flyball.dev/v1alpha1/gpunodes"


class Bench:
    """Nodes with hardware and GPUNodes, and the host that serves them."""

    def __init__(self, cluster: Any, directory: Path, count: int) -> None:
        self.cluster, self.api = cluster, cluster.api
        self.directory = directory
        self.hardware, self.state = directory / "hardware", directory / "agents"
        self._short = tempfile.TemporaryDirectory(prefix="fb-")
        self.nodes: list[str] = cluster.add_nodes(count)
        create_hardware(self.hardware, self.nodes, A100, 2)
        self.log = directory / "agent-host.log"
        for node in self.nodes:
            self.grant(node, 1, 200_000)
        cluster.devcluster.agent_pods(self.nodes)  # the DaemonSet controller takes its time where nodes come and go
        self.process = self.start_host()

    def grant(self, node: str, generation: int, milliwatts: int) -> None:
        """Let the node's two GPUs have so much between them, idle ones their equal share."""
        spec = {
            "epoch": 1,
            "generation": generation,
            "leaseSeconds": 600,
            "boundMilliwatts": milliwatts,
            "expectedMilliwatts": milliwatts,
            "committedMilliwatts": milliwatts,
            "committedExpectedMilliwatts": milliwatts,
            "otherGpus": {"idlePowerLimitMilliwatts": milliwatts // 2},
        }
        gpu_node = {"apiVersion": "flyball.dev/v1alpha1", "kind": "GPUNode", "metadata": {"name": node}, "spec": spec}
        self.api.apply(gpu_node)

    def start_host(self) -> Process:
        arguments = {
            "--cluster": self.cluster.devcluster.directory,
            "--hardware": self.hardware,
            "--sockets": self._short.name,
            "--state": self.state,
            "--status-interval-seconds": 1,
        }
        words = [str(word) for pair in arguments.items() for word in pair]
        self.process = Process.spawn(
            "agent-host", [sys.executable, "-m", "flyball_testbed.workload.agent_host", *words], log_path=self.log
        )
        return self.process

    def acknowledged(self, node: str) -> int:
        """The generation that the node's agent has acknowledged; 0 for none."""
        status = self.api.get(f"{GPU_NODES}/{node}").get("status") or {}
        return int((status.get("acknowledged") or {}).get("generation", 0))

    def limits(self, node: str) -> list[int]:
        with SimulatedNode.open(hardware_path(self.hardware, node)) as boards:
            return [device.read().enforced_limit_milliwatts for device in boards.devices]

    def logged(self, event: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == event]

    def close(self) -> None:
        self.process.kill()
        self._short.cleanup()


@pytest.fixture
def bench(cluster: Any, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(cluster, tmp_path, 3)
    try:
        yield made
    finally:
        made.close()


def test_every_node_has_an_agent_that_is_held_to_it(bench: Bench) -> None:
    wait_until(lambda: all(bench.acknowledged(node) == 1 for node in bench.nodes), "every agent acknowledges")
    assert all(bench.limits(node) == [100_000, 100_000] for node in bench.nodes)

    kubeconfig = yaml.safe_load((bench.state / f"{bench.nodes[0]}.kubeconfig").read_text())
    as_agent = bench.cluster.devcluster.control_plane.api_with_token(kubeconfig["users"][0]["user"]["token"])
    lie = {"status": {"agentVersion": "somebody else"}}
    with pytest.raises(ApiError, match=bench.nodes[0]) as refused:
        as_agent.patch(f"{GPU_NODES}/{bench.nodes[1]}/status", lie)
    assert refused.value.status in (403, 422)
    as_agent.patch(f"{GPU_NODES}/{bench.nodes[0]}/status", {"status": {"agentVersion": "myself"}})

    port = bench.logged("metrics served")[-1]["port"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    draws = re.findall(r'^flyball_gpu_power_watts{.*node="([^"]+)".*} ([0-9.]+)$', text, re.MULTILINE)
    assert {node for node, _ in draws} == set(bench.nodes)
    assert {float(watts) for _, watts in draws} == {58.0}


def test_killed_and_started_again_they_go_on_without_a_limit_moving(bench: Bench) -> None:
    bench.grant(bench.nodes[0], 2, 500_000)
    wait_until(lambda: bench.acknowledged(bench.nodes[0]) == 2, "the raise is acknowledged")
    bench.process.kill()
    assert bench.limits(bench.nodes[0]) == [250_000, 250_000]
    bench.grant(bench.nodes[1], 2, 300_000)
    bench.start_host()
    wait_until(lambda: bench.acknowledged(bench.nodes[1]) == 2, "what came meanwhile is applied")
    assert bench.limits(bench.nodes[1]) == [150_000, 150_000]
    assert bench.limits(bench.nodes[0]) == [250_000, 250_000]


def test_an_agent_lives_as_long_as_its_pod(bench: Bench) -> None:
    node = bench.nodes[0]
    wait_until(lambda: bench.acknowledged(node) == 1, "the agent acknowledges")
    before = agent_pods(bench.api)[node]
    bench.api.delete(f"/api/v1/namespaces/flyball-system/pods/{before}")
    wait_until(lambda: agent_pods(bench.api).get(node, before) != before, "the DaemonSet makes another pod")
    bench.grant(node, 2, 260_000)
    wait_until(lambda: bench.acknowledged(node) == 2, "the agent of the new pod, with its token, acknowledges")
    assert bench.limits(node) == [130_000, 130_000]
