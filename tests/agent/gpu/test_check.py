"""The check of a GPU: it finds what does not hold, and leaves the GPU as it found it, whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sysconfig
from pathlib import Path

import pytest
from flyball_agent.gpu import check
from flyball_agent.gpu.gpu import GpuDriver, GpuError
from flyball_agent.gpu.simulated import SimulatedDriver
from flyball_simulated_gpu.catalogue import CATALOGUE
from flyball_simulated_gpu.device import DeviceFault
from flyball_simulated_gpu.hardware_file import create_node_file
from flyball_simulated_gpu.shared import SimulatedNode

from tests.support.waiting import wait_until

A100 = CATALOGUE["NVIDIA-A100-SXM4-40GB"]
FOUND = 321_000


class Bench:
    """A node of two GPUs, one of them at a limit of its own, and where a check keeps it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "node-0.gpus"
        create_node_file(self.path, [A100] * 2)
        self.node = SimulatedNode.open(self.path)
        self.node.devices[1].set_power_limit_milliwatts(FOUND)
        self.kept = folder / "kept.json"

    def open(self) -> GpuDriver:
        return SimulatedDriver.open(self.path)

    def readings(self) -> dict[str, bool | None]:
        return {item.check: item.holds for item in check.readings(self.open().gpus()[1], 0.2)}

    def changes(self) -> dict[str, bool | None]:
        findings: dict[str, bool | None] = {}
        for item in check.changes(self.open, 1, self.kept):
            findings[item.check] = findings.get(item.check, True) and item.holds
        return findings

    @property
    def limit(self) -> int:
        return self.node.devices[1].read().requested_limit_milliwatts


@pytest.fixture
def gpus(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def failed(findings: dict[str, bool | None]) -> list[str]:
    return [name for name, holds in findings.items() if not holds]


def test_everything_holds_of_a_gpu_without_a_fault(gpus: Bench) -> None:
    assert [item.holds for item in check.driver_findings(gpus.open())] == [True]
    assert failed(gpus.readings()) == []
    assert failed(gpus.changes()) == []
    assert gpus.limit == FOUND
    assert not gpus.kept.exists()


def test_reading_sets_nothing(gpus: Bench) -> None:
    gpus.node.devices[1].flags |= DeviceFault.NO_PERMISSION  # so that any set would raise
    assert failed(gpus.readings()) == []


@pytest.mark.parametrize(
    ("fault", "check_that_fails"),
    [
        (DeviceFault.NOT_PERSISTENT, "persistence mode is on"),
        (DeviceFault.IMPLAUSIBLE_POWER, "everything that the agent reads is there"),
    ],
)
def test_what_does_not_hold_is_found(gpus: Bench, fault: DeviceFault, check_that_fails: str) -> None:
    gpus.node.devices[1].flags |= fault
    assert [name for name in failed(gpus.readings()) if name.startswith(check_that_fails)]


def test_an_energy_counter_that_stands_still_is_found(gpus: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flyball_simulated_gpu.physics.counter_millijoules", lambda state: 5)
    assert failed(gpus.readings()) == [
        "the energy counter moves ten times a second, or more often",
        "the energy counter rises as the power sensor says",
    ]


@pytest.mark.parametrize(("milliseconds", "holds"), [(0, True), (100, True), (400, False)])
def test_a_counter_that_moves_less_often_than_an_h200s_is_found(gpus: Bench, milliseconds: int, holds: bool) -> None:
    gpus.node.counter_milliseconds = milliseconds
    wait_until(lambda: not milliseconds or gpus.node.devices[1].read().ticked_ns != 0)
    assert check._counter_moves(gpus.open().gpus()[1]).holds is holds


@pytest.mark.slow
def test_limits_that_settle_late_are_found(gpus: Bench) -> None:
    gpus.node.file.set_latency(0, 3000)
    assert failed(gpus.changes()) == [
        "a limit is read back as requested at once, and enforced before the agent reports it"
    ]
    assert gpus.limit == FOUND


@pytest.mark.slow
def test_setters_that_lie_are_found_and_what_was_there_is_still_there(gpus: Bench) -> None:
    gpus.node.devices[1].flags |= DeviceFault.SETTERS_LIE
    assert "a limit outlives the client that set it" in failed(gpus.changes())
    assert gpus.limit == FOUND
    assert not gpus.kept.exists()


def test_a_check_that_is_given_up_puts_back_what_it_found(gpus: Bench) -> None:
    findings = check.changes(gpus.open, 1, gpus.kept)
    while gpus.limit == FOUND:
        next(findings)
    findings.close()
    assert gpus.limit == FOUND
    assert not gpus.kept.exists()


def test_a_limit_that_cannot_be_put_back_is_said_and_kept(gpus: Bench) -> None:
    findings = check.changes(gpus.open, 1, gpus.kept)
    while gpus.limit == FOUND:
        next(findings)
    gpus.node.devices[1].flags |= DeviceFault.SETTERS_FAIL
    with pytest.raises(check.NotRestored, match=r"321000 mW"):
        findings.close()
    with pytest.raises(FileExistsError):
        next(check.changes(gpus.open, 0, gpus.kept))
    gpus.node.devices[1].flags = DeviceFault(0)
    assert check.restore(gpus.open().gpus(), gpus.kept) == gpus.node.devices[1].uuid
    assert gpus.limit == FOUND


@pytest.mark.parametrize("content", ["{}", "[]", '{"uuid": "GPU-other", "milliwatts": 100000}', "nonsense"])
def test_a_file_that_is_of_no_gpu_here_restores_nothing(gpus: Bench, content: str) -> None:
    gpus.kept.write_text(content)
    with pytest.raises(ValueError, match=r"."):
        check.restore(gpus.open().gpus(), gpus.kept)
    assert gpus.limit == FOUND


def test_without_the_privilege_nothing_is_changed(gpus: Bench) -> None:
    gpus.node.devices[1].flags |= DeviceFault.NO_PERMISSION
    with pytest.raises((GpuError, check.NotRestored)):
        gpus.changes()
    assert gpus.limit == FOUND


# --- the command, on the C library -------------------------------------------------------------------------------------


def command(gpus: Bench, library: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "FLYBALL_SIMULATED_GPUS": str(gpus.path), "FLYBALL_SIMULATED_PRIVILEGED": "1"}
    own = ["--nvml-library", str(library), "--kept", str(gpus.kept), "--seconds", "0.2", "--index", "1"]
    program = Path(sysconfig.get_path("scripts")) / "flyball"
    words = [str(program), "agent", "check-gpu", *own, *arguments]
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_command_checks_both_gpus_and_changes_one(gpus: Bench, nvml_library: Path) -> None:
    output, errors = command(gpus, nvml_library, "--change").communicate()
    findings = [json.loads(line) for line in output.splitlines()]
    assert errors == ""
    assert {item["holds"] for item in findings} == {True}
    assert len([item for item in findings if "uuid" in item]) == 2
    assert gpus.limit == FOUND


def test_the_command_puts_back_what_it_found_when_it_is_terminated(gpus: Bench, nvml_library: Path) -> None:
    gpus.node.file.set_latency(0, 60_000)  # so that it waits for a limit that settles
    process = command(gpus, nvml_library, "--change")
    wait_until(lambda: gpus.limit not in (FOUND,))
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert gpus.limit == FOUND


def test_what_a_killed_command_left_is_put_back_by_the_next(gpus: Bench, nvml_library: Path) -> None:
    gpus.node.file.set_latency(0, 60_000)
    process = command(gpus, nvml_library, "--change")
    wait_until(lambda: gpus.limit != FOUND)
    process.kill()
    process.communicate()
    gpus.node.file.set_latency(0, 0)
    assert gpus.limit != FOUND
    output, _ = command(gpus, nvml_library, "--restore").communicate()
    assert gpus.node.devices[1].uuid in output
    assert gpus.limit == FOUND
