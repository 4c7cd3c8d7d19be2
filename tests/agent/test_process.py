"""The agent as a process on the hardware file and the real API server: kills, a clean end, and what it says."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import pytest
from flyball_agent.core import PodName
from flyball_agent.drivers.catalogue import CATALOGUE
from flyball_agent.drivers.simulated import SimulatedNode, create_node_file
from flyball_agent.journal import Journal

A100 = CATALOGUE["NVIDIA-A100-SXM4-40GB"]
NODES = "/apis/flyball.dev/v1alpha1/gpunodes"
POD = PodName("research", "gpt2-1-0")
FLYBALL = str(Path(sysconfig.get_path("scripts")) / "flyball")
PATIENCE_SECONDS = 60.0


def until(condition, what=""):
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end, f"never came true: {what}"
        time.sleep(0.01)


def spec(generation: int, grant: int, job_limit: int) -> dict:
    return {
        "epoch": 1,
        "generation": generation,
        "leaseSeconds": 600,
        "grantMilliwatts": grant,
        "expectedMilliwatts": 0,
        "worstHoldMilliwatts": grant,
        "worstExpectedMilliwatts": 0,
        "jobs": [
            {
                "namespace": POD.namespace,
                "name": "gpt2",
                "uid": "7b5a8f2e-0000-4000-8000-000000000001",
                "incarnation": 1,
                "podName": POD.name,
                "gpus": 2,
                "powerLimitMilliwatts": job_limit,
                "clockMegahertz": {"min": 0, "max": 1410},
            }
        ],
    }


class Bench:
    """One simulated node of four boards, two of them busy with a job, and its agent as a process."""

    def __init__(self, cluster, folder: Path) -> None:
        self.cluster, self.folder, self.name = cluster, folder, "agent-process-0"
        uuids = create_node_file(folder / f"{self.name}.gpus", [A100] * 4)
        self.node = SimulatedNode.open(folder / f"{self.name}.gpus")
        pods = {"pods": [{"namespace": POD.namespace, "name": POD.name, "uid": "pod-uid", "devices": uuids[:2]}]}
        (folder / f"{self.name}.pods.json").write_text(json.dumps(pods))
        for device in self.node.devices[:2]:
            device.set_activity(0.8)
        self.process: subprocess.Popen | None = None
        self.log = folder / "agent.log"

    def start(self, *arguments: str, environment=None) -> None:
        command = [FLYBALL, "agent", "run", "--node-name", self.name, "--tick-seconds", "0.1", "--metrics-port", "-1"]
        command += ["--kubeconfig", str(self.cluster.devcluster.kubeconfig), "--journal-dir", str(self.folder / "j")]
        command += ["--hardware-dir", str(self.folder), "--socket-dir", str(self.folder / "s")]
        command += arguments or ("--driver", "simulated")
        with self.log.open("a") as log:
            self.process = subprocess.Popen(command, stderr=log, env=environment)

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)

    def limits(self) -> list[int]:
        return [device.read().requested_limit_milliwatts for device in self.node.devices]

    def create(self, *arguments) -> None:
        body = {"apiVersion": "flyball.dev/v1alpha1", "kind": "GPUNode", "metadata": {"name": self.name}}
        self.cluster.devcluster.api.create(NODES, {**body, "spec": spec(*arguments)})

    def grant(self, *arguments) -> None:
        self.cluster.devcluster.api.patch(f"{NODES}/{self.name}", {"spec": spec(*arguments)})

    def status(self) -> dict:
        return self.cluster.devcluster.api.get(f"{NODES}/{self.name}").get("status") or {}

    def acknowledged(self, generation: int) -> None:
        until(
            lambda: self.status().get("acknowledged", {}).get("generation") == generation,
            f"generation {generation} acknowledged; {self.log.read_text()[-2000:]}",
        )

    def lines(self) -> list[dict]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@pytest.fixture
def bench(cluster):
    folder = Path(tempfile.mkdtemp(prefix="fa", dir="/tmp"))  # short, for the sockets' paths
    bench = Bench(cluster, folder)
    yield bench
    if bench.process is not None and bench.process.poll() is None:
        bench.end(signal.SIGKILL)
    bench.node.close()
    shutil.rmtree(folder)


def test_a_clean_end_keeps_the_limits_and_says_so(bench):
    bench.start()
    bench.create(1, 900_000, 300_000)
    bench.acknowledged(1)
    assert bench.limits() == [300_000, 300_000, 100_000, 100_000]
    assert (bench.folder / "s" / "pod-uid" / "flyball.sock").is_socket()
    assert bench.end(signal.SIGTERM) == 0
    assert bench.limits() == [300_000, 300_000, 100_000, 100_000]
    assert not (bench.folder / "s" / "pod-uid").exists()
    events = [line["event"] for line in bench.lines()]
    assert events[-1] == "agent stopped; limits stay as they are"
    for event in ("agent started", "spec accepted", "limit", "acknowledged", "mode"):
        assert event in events
    for line in bench.lines():
        assert line["time"]
        if line["event"] == "limit":
            assert {"node", "uuid", "old_milliwatts", "new_milliwatts", "epoch", "generation", "reason"} <= set(line)


def test_kills_at_random_moments_raise_nothing_and_lose_no_energy(bench):
    generator = random.Random(7)
    bench.start()
    bench.create(1, 900_000, 300_000)
    bench.acknowledged(1)
    counters = [device.read().energy_millijoules for device in bench.node.devices]
    generation, allowed = 1, 900_000
    for _ in range(6):
        generation += 1
        job_limit = generator.choice([150_000, 250_000, 350_000])
        grant = 2 * job_limit + 200_000
        allowed = max(sum(bench.limits()), grant)
        bench.grant(generation, grant, job_limit)
        pause = time.monotonic() + generator.uniform(0, 0.3)
        while time.monotonic() < pause:  # watch every moment of it
            assert sum(bench.limits()) <= allowed
        bench.end(signal.SIGKILL)
        assert sum(bench.limits()) <= allowed
        bench.start()
        bench.acknowledged(generation)
        assert bench.limits() == [job_limit, job_limit, 100_000, 100_000]
    bench.end(signal.SIGKILL)
    journal = Journal(bench.folder / "j", bench.name)
    energy = journal.state.energy
    journal.close()
    assert journal.state.spec.pair == (1, generation)
    assert journal.unreadable_records <= 1
    given = sum(energy["pods"].values()) + energy["idle"] + energy["unattributed"] + energy["discarded"]
    assert given == sum(energy["boards"].values())
    assert energy["unattributed"] == energy["discarded"] == 0
    # From about the first grant to the last record: bracketed by the hardware itself.
    now = [device.read().energy_millijoules for device in bench.node.devices]
    last = {uuid: counter for uuid, (counter, _, _) in energy["last"].items()}
    for device, first, latest in zip(bench.node.devices, counters, now, strict=True):
        assert energy["boards"][device.uuid] >= last[device.uuid] - first - 1
        assert last[device.uuid] <= latest
    assert (
        energy["pods"]["pod-uid"]
        == energy["boards"][bench.node.devices[0].uuid] + (energy["boards"][bench.node.devices[1].uuid])
    )


def test_the_same_on_the_c_library_by_nvml(bench, nvml_library, monkeypatch):
    monkeypatch.setenv("FLYBALL_SIMULATED_GPUS", str(bench.folder / f"{bench.name}.gpus"))
    monkeypatch.setenv("FLYBALL_SIMULATED_PRIVILEGED", "1")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_library.parent))
    bench.start("--driver", "nvml", "--pods", "file")
    bench.create(1, 900_000, 300_000)
    bench.acknowledged(1)
    assert bench.limits() == [300_000, 300_000, 100_000, 100_000]
    bench.end(signal.SIGKILL)
    assert bench.limits() == [300_000, 300_000, 100_000, 100_000]
    bench.start("--driver", "nvml", "--pods", "file")
    bench.grant(2, 600_000, 200_000)
    bench.acknowledged(2)
    assert bench.limits() == [200_000, 200_000, 100_000, 100_000]
    assert bench.end(signal.SIGTERM) == 0


def test_without_privilege_it_ends_with_a_sentence(bench, nvml_library, monkeypatch):
    monkeypatch.setenv("FLYBALL_SIMULATED_GPUS", str(bench.folder / f"{bench.name}.gpus"))
    monkeypatch.delenv("FLYBALL_SIMULATED_PRIVILEGED", raising=False)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_library.parent))
    bench.create(1, 900_000, 300_000)
    bench.start("--driver", "nvml", "--pods", "file")
    assert bench.process.wait(60) == 1
    assert "no board may be set" in bench.log.read_text()
    assert "CAP_SYS_ADMIN" in bench.log.read_text()
    assert bench.limits() == [400_000] * 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--driver", "simulated"], "needs the hardware directory"),
        (["--driver", "simulated", "--hardware-dir", "/nowhere"], "/nowhere/node-x.gpus"),
        (["--driver", "magic"], "driver 'magic' is unknown (nvml or simulated)"),
        (["--driver", "simulated", "--log-format", "xml"], "log format 'xml' is unknown"),
    ],
)
def test_options_that_cannot_be_end_with_a_sentence(tmp_path, arguments, words):
    command = [FLYBALL, "agent", "run", "--node-name", "node-x", "--no-kubernetes", "--journal-dir", str(tmp_path)]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert words in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_alone_it_adopts_and_touches_nothing(tmp_path):
    create_node_file(tmp_path / "node-x.gpus", [A100])
    with SimulatedNode.open(tmp_path / "node-x.gpus") as node:
        node.devices[0].set_power_limit_milliwatts(222_000)
        command = [sys.executable, FLYBALL, "agent", "run", "--node-name", "node-x", "--no-kubernetes"]
        command += ["--journal-dir", str(tmp_path), "--driver", "simulated", "--hardware-dir", str(tmp_path)]
        process = subprocess.Popen([*command, "--metrics-port", "0"], stderr=subprocess.PIPE, text=True)
        started = json.loads(process.stderr.readline())
        assert (started["event"], started["gpus"]) == ("agent started", 1)
        assert started["metrics_port"] > 0
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        assert process.returncode == 0
        assert node.devices[0].read().requested_limit_milliwatts == 222_000
