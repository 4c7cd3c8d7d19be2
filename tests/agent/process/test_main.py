"""The agent as a process on the hardware file and the real API server: kills, a clean end, and what it says."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flyball_agent.enforce.gpu_state import PodName
from flyball_agent.enforce.journal import Journal
from flyball_simulated_gpu.catalogue import CATALOGUE
from flyball_simulated_gpu.device import DeviceFault
from flyball_simulated_gpu.hardware_file import create_node_file
from flyball_simulated_gpu.shared import SimulatedNode

from tests.support.control_plane import IsolatedCluster
from tests.support.gpu_node_specs import gpu_node_spec, job_grant
from tests.support.waiting import wait_until

A100 = CATALOGUE["NVIDIA-A100-SXM4-40GB"]
NODES = "/apis/flyball.dev/v1alpha1/gpunodes"
POD = PodName("research", "gpt2-1-0")
FLYBALL = str(Path(sysconfig.get_path("scripts")) / "flyball")


def spec(generation: int, grant: int, job_limit: int) -> dict[str, Any]:
    granted = job_grant(POD.name, job_limit, job="gpt2", uid="7b5a8f2e-0000-4000-8000-000000000001")
    return gpu_node_spec(generation, grant, granted, lease=600)


class Bench:
    """One simulated node of four GPUs, two of them busy with a job, and its agent as a process."""

    def __init__(self, cluster: IsolatedCluster, folder: Path) -> None:
        self.cluster, self.folder, self.name = cluster, folder, "agent-process-0"
        uuids = create_node_file(folder / f"{self.name}.gpus", [A100] * 4)
        self.node = SimulatedNode.open(folder / f"{self.name}.gpus")
        pods = {"pods": [{"namespace": POD.namespace, "name": POD.name, "uid": "pod-uid", "devices": uuids[:2]}]}
        (folder / f"{self.name}.pods.json").write_text(json.dumps(pods))
        for device in self.node.devices[:2]:
            device.set_activity(0.8)
        self.process: subprocess.Popen | None = None
        self.log = folder / "agent.log"

    def start(self, *arguments: str, environment: dict[str, str] | None = None) -> None:
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

    def create(self, *arguments: int) -> None:
        body = {"apiVersion": "flyball.dev/v1alpha1", "kind": "GPUNode", "metadata": {"name": self.name}}
        self.cluster.devcluster.api.create(NODES, {**body, "spec": spec(*arguments)})

    def grant(self, *arguments: int) -> None:
        self.cluster.devcluster.api.patch(f"{NODES}/{self.name}", {"spec": spec(*arguments)})

    def status(self) -> dict:
        return self.cluster.devcluster.api.get(f"{NODES}/{self.name}").get("status") or {}

    def acknowledged(self, generation: int) -> None:
        wait_until(
            lambda: self.status().get("acknowledged", {}).get("generation") == generation,
            f"generation {generation} acknowledged; {self.log.read_text()[-2000:]}",
        )

    def lines(self) -> list[dict]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@pytest.fixture
def bench(cluster: IsolatedCluster, short_folder: Path) -> Iterator[Bench]:
    bench = Bench(cluster, short_folder)
    yield bench
    if bench.process is not None and bench.process.poll() is None:
        bench.end(signal.SIGKILL)
    bench.node.close()


def test_a_clean_end_keeps_the_limits_and_says_so(bench: Bench) -> None:
    bench.start()
    bench.create(1, 900_000, 300_000)
    bench.acknowledged(1)
    assert bench.limits() == [300_000, 300_000, 100_000, 100_000]
    wait_until((bench.folder / "s" / "pod-uid" / "flyball.sock").is_socket, "the pod's socket")
    assert bench.end(signal.SIGTERM) == 0
    assert bench.limits() == [300_000, 300_000, 100_000, 100_000]
    assert list((bench.folder / "s" / "pod-uid").iterdir()) == []  # the folder is mounted into the pod, and stays
    events = [line["event"] for line in bench.lines()]
    assert events[-1] == "agent stopped; limits stay as they are"
    for event in ("agent started", "grant accepted", "limits", "acknowledged", "mode"):
        assert event in events
    for line in bench.lines():
        assert line["time"]
        if line["event"] == "limits":
            assert {"node", "uuids", "old_milliwatts", "new_milliwatts", "epoch", "generation", "reason"} <= set(line)


def test_kills_at_random_moments_raise_nothing_and_lose_no_energy(bench: Bench) -> None:
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
    assert journal.state.grant.version == (1, generation)
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


def test_the_same_on_the_c_library_by_nvml(bench: Bench, nvml_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_same_in_two_processes_either_of_which_may_die(bench: Bench) -> None:
    socket = bench.folder / "e.sock"
    enforcer: list[subprocess.Popen[bytes]] = []

    def start_enforcer() -> None:
        command = [FLYBALL, "agent", "enforcer", "--node-name", bench.name, "--tick-seconds", "0.1"]
        command += [
            "--driver",
            "simulated",
            "--hardware-dir",
            str(bench.folder),
            "--journal-dir",
            str(bench.folder / "j"),
        ]
        command += ["--socket", str(socket), "--agent-uid", str(os.getuid())]
        with bench.log.open("a") as log:
            enforcer.append(subprocess.Popen(command, stderr=log))

    def start_agent() -> None:
        bench.start("--enforcer-socket", str(socket), "--pods", "file")

    try:
        start_agent()  # in whichever order
        start_enforcer()
        bench.create(1, 900_000, 300_000)
        bench.acknowledged(1)
        assert bench.limits() == [300_000, 300_000, 100_000, 100_000]
        # The agent learns of the pods from the enforcer's word of its round, which may come after the acknowledgement.
        wait_until((bench.folder / "s" / "pod-uid" / "flyball.sock").is_socket, "the pod's socket")
        bench.end(signal.SIGKILL)
        assert bench.limits() == [300_000, 300_000, 100_000, 100_000]
        bench.grant(2, 600_000, 200_000)
        start_agent()
        bench.acknowledged(2)
        assert bench.limits() == [200_000, 200_000, 100_000, 100_000]
        enforcer[0].kill()
        enforcer[0].wait()
        bench.grant(3, 800_000, 300_000)
        assert bench.limits() == [200_000, 200_000, 100_000, 100_000]
        start_enforcer()
        bench.acknowledged(3)
        assert bench.limits() == [300_000, 300_000, 100_000, 100_000]
        enforcer[1].terminate()
        assert enforcer[1].wait(30) == 0
        assert bench.end(signal.SIGTERM) == 0
        assert bench.limits() == [300_000, 300_000, 100_000, 100_000]
    finally:
        for process in enforcer:
            process.kill()
            process.wait()


def test_without_privilege_it_ends_with_a_sentence(
    bench: Bench, nvml_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYBALL_SIMULATED_GPUS", str(bench.folder / f"{bench.name}.gpus"))
    monkeypatch.delenv("FLYBALL_SIMULATED_PRIVILEGED", raising=False)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_library.parent))
    bench.create(1, 900_000, 300_000)
    bench.start("--driver", "nvml", "--pods", "file")
    assert bench.process.wait(60) == 1
    assert "no GPU may be set" in bench.log.read_text()
    assert "CAP_SYS_ADMIN" in bench.log.read_text()
    assert bench.limits() == [400_000] * 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--driver", "simulated"], "needs the hardware directory"),
        (["--driver", "simulated", "--hardware-dir", "/nowhere"], "/nowhere/node-x.gpus"),
        (["--driver", "magic"], "driver 'magic' is unknown (nvml or simulated)"),
        (["--log-format", "xml"], "log format 'xml' is unknown"),
    ],
)
def test_options_that_cannot_be_end_with_a_sentence(tmp_path: Path, arguments: list[str], words: str) -> None:
    command = [FLYBALL, "agent", "run", "--node-name", "node-x", "--no-kubernetes", "--journal-dir", str(tmp_path)]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert words in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_alone_it_adopts_and_touches_nothing(tmp_path: Path) -> None:
    create_node_file(tmp_path / "node-x.gpus", [A100])
    with SimulatedNode.open(tmp_path / "node-x.gpus") as node:
        node.devices[0].set_power_limit_milliwatts(222_000)
        command = [sys.executable, FLYBALL, "agent", "run", "--node-name", "node-x", "--no-kubernetes"]
        command += ["--journal-dir", str(tmp_path), "--driver", "simulated", "--hardware-dir", str(tmp_path)]
        process = subprocess.Popen([*command, "--metrics-port", "0"], stderr=subprocess.PIPE, text=True)
        started = json.loads(process.stderr.readline())
        assert (started["event"], started["gpus"]) == ("agent started", 1)
        served = json.loads(process.stderr.readline())
        assert (served["event"], served["port"] > 0) == ("metrics served", True)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        assert process.returncode == 0
        assert node.devices[0].read().requested_limit_milliwatts == 222_000


class Alone:
    """An agent without Kubernetes as a process, its log read line by line."""

    def __init__(self, folder: Path, *arguments: str, environment: dict[str, str] | None = None) -> None:
        command = [FLYBALL, "agent", "run", "--node-name", "node-x", "--no-kubernetes", "--journal-dir", str(folder)]
        command += ["--hardware-dir", str(folder), "--pods", "file", "--metrics-port", "-1", *arguments]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)

    def logged(self, event: str) -> None:
        for line in self.process.stderr:
            if json.loads(line)["event"] == event:
                return
        raise AssertionError(f"{event!r} was never logged")

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        _, rest = self.process.communicate(timeout=30)
        assert "agent stopped" in rest
        return self.process.returncode


def test_an_agent_that_waits_for_the_journal_ends_at_once(tmp_path: Path) -> None:
    create_node_file(tmp_path / "node-x.gpus", [A100])
    journal = Journal(tmp_path, "node-x")
    agent = Alone(tmp_path, "--driver", "simulated")
    agent.logged("waiting for the journal")
    assert agent.terminate() == 0
    journal.close()


@pytest.mark.slow
@pytest.mark.parametrize("hangs", ["while it opens", "in a round"])
def test_an_agent_whose_driver_hangs_ends_cleanly(tmp_path: Path, nvml_library: Path, hangs: str) -> None:
    create_node_file(tmp_path / "node-x.gpus", [A100] * 2)
    environment = {
        **os.environ,
        "FLYBALL_SIMULATED_GPUS": str(tmp_path / "node-x.gpus"),
        "FLYBALL_SIMULATED_PRIVILEGED": "1",
        "LD_LIBRARY_PATH": str(nvml_library.parent),
    }
    with SimulatedNode.open(tmp_path / "node-x.gpus") as node:
        if hangs == "while it opens":
            node.devices[0].flags |= DeviceFault.HANG
        agent = Alone(tmp_path, "--driver", "nvml", "--tick-seconds", "0.1", environment=environment)
        agent.logged("the driver is slow to open" if hangs == "while it opens" else "agent started")
        if hangs == "in a round":
            node.devices[0].flags |= DeviceFault.HANG
            agent.logged("GPU failed")
        assert agent.terminate() == 0
