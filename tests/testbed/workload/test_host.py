"""The workload host as a process, with real pods of a real control plane on simulated nodes."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flyball_simulated_gpu.catalogue import CATALOGUE
from flyball_simulated_gpu.shared import SimulatedNode
from flyball_simulator.measured.iterations import iteration
from flyball_simulator.measured.throughputs import model_class
from flyball_testbed.controlplane.processes import Process
from flyball_testbed.workload.devices import create_hardware, hardware_path, pods_path
from flyball_testbed.workload.reports import socket_path

from tests.support.waiting import wait_until

A100 = CATALOGUE["NVIDIA-A100-SXM4-40GB"]
BATCH = "/apis/batch/v1"
ITERATIONS = 100  # ten seconds on eight GPUs: what is done in the midst of them must not come after their end


class AgentSockets:
    """Stands for the agents' ends of the pods' sockets: takes every report, on an event loop of its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.reports: dict[str, list[dict[str, Any]]] = {}

    def serve(self, pod_uid: str) -> None:
        path = socket_path(self._directory, pod_uid)
        path.parent.mkdir(parents=True)

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            assert head.startswith(b"POST /v1/steps HTTP/1.1\r\n")
            self.reports.setdefault(pod_uid, []).append(json.loads(await reader.readexactly(length)))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            writer.close()

        asyncio.run_coroutine_threadsafe(asyncio.start_unix_server(answer, path), self._loop).result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


class Bench:
    """One test's nodes, hardware and workload host."""

    def __init__(self, cluster: Any, directory: Path) -> None:
        self.cluster, self.api = cluster, cluster.api
        self.directory = directory
        self.hardware, self.state = directory / "hardware", directory / "state"
        # A Unix socket's path has at most 107 bytes, which pytest's folders use up.
        self._short = tempfile.TemporaryDirectory(prefix="fb-")
        self.sockets = AgentSockets(Path(self._short.name))
        self.nodes: list[str] = cluster.add_nodes(2, taints=())
        create_hardware(self.hardware, self.nodes, A100, 8)
        self.process = self.start_host()

    def start_host(self) -> Process:
        arguments = {
            "--kubeconfig": self.cluster.devcluster.kubeconfig,
            "--hardware": self.hardware,
            "--sockets": self._short.name,
            "--state": self.state,
            "--restore-seconds": 0.1,
            "--save-seconds": 0.1,
            "--noise": 0,
        }
        words = [str(word) for pair in arguments.items() for word in pair]
        self.process = Process.spawn(
            "workload-host",
            [sys.executable, "-m", "flyball_testbed.workload.host", *words],
            log_path=self.directory / "workload-host.log",
        )
        return self.process

    def submit(self, number: int, iterations: int, pods: int = 2, gpus: int = 4) -> None:
        environment = {
            "DEVCLUSTER_MODEL_CLASS": "resnet50",
            "DEVCLUSTER_GLOBAL_BATCH": 256,
            "DEVCLUSTER_ITERATIONS": iterations,
            "FLYBALL_WORLD_SIZE": pods * gpus,
        }
        trainer = {
            "name": "trainer",
            "image": "trainer",
            "env": [{"name": name, "value": str(value)} for name, value in environment.items()],
            "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
        }
        labels = {
            "flyball.dev/job-name": "job",
            "flyball.dev/job-uid": "job-uid",
            "flyball.dev/incarnation": str(number),
        }
        spec = {"restartPolicy": "Never", "containers": [trainer], "terminationGracePeriodSeconds": 30}
        job = {
            "metadata": {"name": f"job-{number}"},
            "spec": {
                "completionMode": "Indexed",
                "completions": pods,
                "parallelism": pods,
                "backoffLimit": 0,
                "template": {"metadata": {"labels": labels}, "spec": spec},
            },
        }
        self.api.create(self.cluster.path("jobs", group=BATCH), job)

    def running(self) -> dict[str, str]:
        """uid -> name of the pods that run."""
        pods = self.api.list_objects(self.cluster.path("pods"))
        return {
            pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in pods if pod["status"].get("phase") == "Running"
        }

    def holders(self) -> dict[str, list[str]]:
        """uid -> GPUs, as the agents read them."""
        files = [pods_path(self.hardware, node) for node in self.nodes]
        pods = [pod for file in files if file.exists() for pod in json.loads(file.read_text())["pods"]]
        return {pod["uid"]: pod["devices"] for pod in pods}

    def busy(self) -> int:
        """GPUs that do something."""
        count = 0
        for name in self.nodes:
            with SimulatedNode.open(hardware_path(self.hardware, name)) as node:
                count += sum(device.read().activity > 0 for device in node.devices)
        return count

    def progress(self) -> float:
        entries = (
            json.loads((self.state / "running.json").read_text()) if (self.state / "running.json").exists() else []
        )
        return max((entry["progress"] for entry in entries), default=0.0)

    def succeeded(self, name: str) -> bool:
        return bool(self.api.get(self.cluster.path("jobs", name, group=BATCH))["status"].get("succeeded") == 2)

    def close(self) -> None:
        self.process.kill()
        self.sockets.close()
        self._short.cleanup()


@pytest.fixture
def bench(cluster: Any, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(cluster, tmp_path)
    try:
        yield made
    finally:
        made.close()


def test_a_gang_trains_reports_and_succeeds_even_if_the_host_is_killed(bench: Bench) -> None:
    bench.submit(1, ITERATIONS)
    wait_until(lambda: len(bench.holders()) == 2, "both pods have GPUs")
    for uid in bench.holders():
        bench.sockets.serve(uid)
    wait_until(lambda: bench.busy() == 8, "8 GPUs compute")
    holders = bench.holders()
    assert sorted(len(devices) for devices in holders.values()) == [4, 4]
    assert set(holders) == set(bench.running())
    nodes = sum(pods_path(bench.hardware, node).exists() for node in bench.nodes)
    wait_until(lambda: bench.progress() >= 15, "progress is written down")

    bench.process.kill()
    assert bench.busy() == 8, "a dead host leaves the hardware as it is"
    before = bench.progress()
    bench.start_host()
    wait_until(lambda: bench.succeeded("job-1"), "the job succeeds")
    wait_until(lambda: bench.busy() == 0 and not bench.holders(), "the GPUs are given back")

    for uid, reports in bench.sockets.reports.items():
        assert uid in holders
        assert [report["iterations"] for report in reports] == sorted(report["iterations"] for report in reports)
        assert reports[-1]["iterations"] == ITERATIONS
        after_restart = [report for report in reports if report["iterations"] > before]
        assert after_restart[0]["iterations"] - after_restart[0]["windowIterations"] >= int(before)
        truth = iteration(model_class("resnet50"), 8, nodes, 256, 1.0).seconds
        for report in reports:
            assert report["windowSeconds"] / report["windowIterations"] == pytest.approx(truth, rel=1e-3)
        assert {report["localBatchSize"] for report in reports} == {32}
    assert len(bench.sockets.reports) == 2


def test_a_deleted_job_checkpoints_and_its_successor_goes_on(bench: Bench) -> None:
    bench.submit(1, iterations=100_000)
    wait_until(lambda: bench.progress() >= 5, "progress")
    bench.api.delete(bench.cluster.path("jobs", "job-1", group=BATCH), propagation="Background")
    wait_until(lambda: not bench.running() and not bench.holders(), "the pods have left")
    assert bench.busy() == 0
    saved = json.loads((bench.state / "checkpoints" / bench.cluster.namespace / "job.json").read_text())
    assert saved["jobUid"] == "job-uid"
    assert saved["iterations"] >= 5

    bench.submit(2, iterations=saved["iterations"] + 20)
    wait_until(lambda: bench.succeeded("job-2"), "the successor does what was left")
    done = json.loads((bench.state / "checkpoints" / bench.cluster.namespace / "job.json").read_text())
    assert done["iterations"] == saved["iterations"] + 20


def test_a_pod_of_somebody_else_keeps_its_gpus_busy_until_it_is_deleted(bench: Bench) -> None:
    container = {"name": "notebook", "image": "notebook", "resources": {"limits": {"nvidia.com/gpu": "2"}}}
    pod = {
        "metadata": {"name": "notebook", "annotations": {"devcluster.flyball.dev/activity": "0.25"}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 30},
    }
    bench.api.create(bench.cluster.path("pods"), pod)
    wait_until(lambda: bench.busy() == 2, "two GPUs are busy")
    bench.api.delete(bench.cluster.path("pods", "notebook"))
    wait_until(lambda: bench.busy() == 0 and not bench.holders(), "and are given back")
    wait_until(lambda: not bench.running(), "the pod is gone")
