"""Pods' commands as processes: their environment, their end, and that none of them outlives its pod."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flyball_simulated_gpu.catalogue import CATALOGUE
from flyball_simulated_gpu.hardware_file import create_node_file
from flyball_simulated_gpu.shared import SimulatedDevice, SimulatedNode
from flyball_testbed.workload.pods import GpuPod
from flyball_testbed.workload.programs import PROCESSES_FILE, ProgramPlaces, Programs, environment_of
from flyball_testbed.workload.trainer import Phase

from tests.support.waiting import wait_until

A100 = CATALOGUE["NVIDIA-A100-SXM4-40GB"]
LABELS = {
    "flyball.dev/job-name": "train",
    "flyball.dev/job-uid": "u1",
    "flyball.dev/incarnation": "3",
    "batch.kubernetes.io/job-completion-index": "1",
}


def pod(name: str, program: str = "", grace_seconds: float = 30.0, **more: Any) -> GpuPod:
    """A pod that runs a Python program, read from what the API server would give."""
    variables = [
        {"name": "FLYBALL_JOB", "value": "ns/train"},
        {"name": "FLYBALL_WORLD_SIZE", "value": "4"},
        {"name": "FLYBALL_CHECKPOINT_DIR", "value": "/checkpoint"},
        {"name": "PET_MASTER_ADDR", "value": "train-3-0.train-3.ns"},
        {
            "name": "PET_NODE_RANK",
            "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['batch.kubernetes.io/job-completion-index']"}},
        },
        {"name": "FLYBALL_POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
    ]
    trainer = {"name": "trainer", "command": [sys.executable, "-c"], "args": [program], "env": variables}
    raw = {
        "metadata": {"namespace": "ns", "name": name, "uid": f"uid-{name}", "labels": LABELS},
        "spec": {"nodeName": "n0", "containers": [trainer], "terminationGracePeriodSeconds": grace_seconds, **more},
    }
    return GpuPod.read(raw)


@pytest.fixture
def devices(tmp_path: Path) -> Iterator[list[SimulatedDevice]]:
    create_node_file(tmp_path / "n.gpus", devices=[A100] * 4)
    with SimulatedNode.open(tmp_path / "n.gpus") as node:
        yield node.devices


@pytest.fixture
def places(tmp_path: Path) -> ProgramPlaces:
    return ProgramPlaces(
        tmp_path / "volumes", tmp_path / "config-maps", tmp_path / "sockets", tmp_path / "logs", tmp_path / "hardware"
    )


Start = Callable[..., Programs]


@pytest.fixture
def start(devices: list[SimulatedDevice], places: ProgramPlaces) -> Iterator[Start]:
    """Starts programs on two pods of two GPUs each; ends what is left of them."""
    made: list[Programs] = []

    def begin(first: GpuPod, second: GpuPod) -> Programs:
        pods = {each.uid: each for each in (first, second)}
        programs = Programs(pods.__getitem__, 4, places)
        made.append(programs)
        programs.join(first.uid, "n0", devices[:2])
        programs.tick(0.0)
        assert programs.phase is Phase.WAITING, "half of the gang does not start"
        programs.join(second.uid, "n0", devices[2:])
        programs.tick(0.0)
        return programs

    yield begin
    for programs in made:
        programs.kill()


def wait_phase(programs: Programs, phase: Phase, now: float = 0.0) -> None:
    def reached() -> bool:
        programs.tick(now)
        return programs.phase is phase

    wait_until(reached, lambda: f"{phase}, not {programs.phase}: {programs.failure}")


def busy(devices: list[SimulatedDevice]) -> set[bool]:
    return {device.read().activity > 0 for device in devices}


WAITS = "import time; print('up', flush=True); time.sleep(600)"
SAVES = (
    "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)); "
    "print('up', flush=True); time.sleep(600)"
)
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"


def wait_up(places: ProgramPlaces, *names: str) -> None:
    wait_until(lambda: all("up" in (places.logs / f"ns-{name}.log").read_text() for name in names), "programs are up")


def test_programs_see_their_pod_s_environment_with_this_machine_s_places(places: ProgramPlaces) -> None:
    seen = environment_of(pod("a"), places, {"PATH": "/bin", "AWS_SECRET_ACCESS_KEY": "x"}, 12345, ["GPU-1", "GPU-2"])
    assert seen == {
        "PATH": "/bin",
        "FLYBALL_JOB": "ns/train",
        "FLYBALL_WORLD_SIZE": "4",
        "FLYBALL_CHECKPOINT_DIR": str(places.volumes / "ns" / "train"),
        "FLYBALL_SOCKET": str(places.sockets / "uid-a" / "flyball.sock"),
        "FLYBALL_POD_UID": "uid-a",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": "12345",
        "JAX_COORDINATOR_ADDRESS": "127.0.0.1:12345",
        "NVIDIA_VISIBLE_DEVICES": "GPU-1,GPU-2",
        "FLYBALL_SIMULATED_GPUS": str(places.hardware / f"{pod('a').node}.gpus"),
        "GLOO_SOCKET_IFNAME": "lo",
    }


def test_all_end_well(start: Start, places: ProgramPlaces, devices: list[SimulatedDevice]) -> None:
    program = (
        "import os, pathlib; pathlib.Path(os.environ['FLYBALL_CHECKPOINT_DIR'], os.environ['FLYBALL_POD_UID']).touch()"
    )
    programs = start(pod("a", program), pod("b", program))
    wait_phase(programs, Phase.SUCCEEDED)
    assert sorted(os.listdir(places.volumes / "ns" / "train")) == ["uid-a", "uid-b"]
    assert busy(devices) == {False}
    assert json.loads((places.logs / PROCESSES_FILE).read_text()) == {}


def test_one_that_fails_ends_the_others(start: Start, devices: list[SimulatedDevice], places: ProgramPlaces) -> None:
    programs = start(pod("a", WAITS), pod("b", "import sys; sys.exit(7)"))
    pids = json.loads((places.logs / PROCESSES_FILE).read_text())
    wait_phase(programs, Phase.FAILED)
    assert programs.failure == "b ended with status 7"
    assert busy(devices) == {False}
    with pytest.raises(ProcessLookupError):
        os.kill(pids["uid-a"], 0)


def test_a_stop_is_sigterm_and_time_to_save(
    start: Start, places: ProgramPlaces, devices: list[SimulatedDevice]
) -> None:
    programs = start(pod("a", SAVES), pod("b", SAVES))
    assert busy(devices) == {True}
    wait_up(places, "a", "b")
    programs.stop(100.0)
    wait_phase(programs, Phase.STOPPED, 100.0)
    assert (programs.failure, busy(devices)) == ("", {False})


def test_one_that_does_not_leave_is_killed_after_its_grace_period(start: Start, places: ProgramPlaces) -> None:
    programs = start(pod("a", DEAF, grace_seconds=5.0), pod("b", DEAF, grace_seconds=9.0))
    wait_up(places, "a", "b")
    pids = json.loads((places.logs / PROCESSES_FILE).read_text())
    programs.stop(100.0)
    programs.tick(108.9)
    assert programs.phase is Phase.SAVING
    for pid in pids.values():
        os.kill(pid, 0)
    programs.tick(109.0)
    wait_phase(programs, Phase.STOPPED, 109.0)


def test_what_a_program_has_started_ends_with_it(start: Start, places: ProgramPlaces) -> None:
    begun = f"subprocess.Popen([sys.executable, '-c', {WAITS!r}], start_new_session=True).pid"
    parent = f"import subprocess, sys, time; print('child', {begun}, flush=True); time.sleep(600)"
    programs = start(pod("a", parent), pod("b", WAITS))
    log = places.logs / "ns-a.log"
    wait_until(lambda: "child" in log.read_text() and "up" in log.read_text(), "the child runs")
    child = int(log.read_text().split("child ")[1].split()[0])
    programs.kill()
    wait_until(lambda: not Path(f"/proc/{child}").exists() or is_zombie(child), "the child is gone")


def is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_command_that_is_not_there_is_a_failure_in_words(
    start: Start, places: ProgramPlaces, devices: list[SimulatedDevice]
) -> None:
    absent = GpuPod("ns", "a", "uid-a", "n0", 2, "Running", False, command=("/no/such/program",))
    programs = start(absent, pod("b", WAITS))
    assert programs.phase is Phase.FAILED
    assert programs.failure.startswith("/no/such/program: ")
    assert busy(devices) == {False}


def test_a_stop_before_the_start_starts_nothing(devices: list[SimulatedDevice], places: ProgramPlaces) -> None:
    programs = Programs({"uid-a": pod("a", WAITS)}.__getitem__, 4, places)
    programs.join("uid-a", "n0", devices[:2])
    programs.stop(1.0)
    programs.join("uid-b", "n0", devices[2:])
    programs.tick(2.0)
    assert (programs.phase, places.logs.exists()) == (Phase.STOPPED, False)
