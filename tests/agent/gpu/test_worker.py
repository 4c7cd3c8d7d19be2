"""NVML in a process of its own: what hangs or crashes there costs the agent nothing but the answer."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from flyball_agent.enforce.enforcer import Enforcer
from flyball_agent.enforce.journal import Journal
from flyball_agent.gpu.gpu import CallTimedOut, DriverUnavailable, GpuLost, GpuNotFound, LibraryMismatch
from flyball_agent.gpu.messages import (
    MAX_PACKET_BYTES,
    Failed,
    Opened,
    Request,
    ShownGpu,
    _encoder,
    receive_answer,
    send_now,
)
from flyball_agent.gpu.operations import Read
from flyball_agent.gpu.worker_driver import WorkerDriver
from flyball_simulated_gpu.catalogue import CATALOGUE
from flyball_simulated_gpu.device import DeviceFault
from flyball_simulated_gpu.hardware_file import create_node_file
from flyball_simulated_gpu.shared import SimulatedNode

from tests.support.gpu_node_specs import gpu_node_spec
from tests.support.milliwatts import gpu_limits
from tests.support.waiting import until, wait_until

A100 = CATALOGUE["NVIDIA-A100-SXM4-40GB"]


@pytest.fixture
def hardware(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedNode]:
    create_node_file(tmp_path / "node.gpus", [A100] * 2)
    monkeypatch.setenv("FLYBALL_SIMULATED_GPUS", str(tmp_path / "node.gpus"))
    monkeypatch.setenv("FLYBALL_SIMULATED_PRIVILEGED", "1")
    with SimulatedNode.open(tmp_path / "node.gpus") as node:
        yield node


def open_files(process: int) -> list[str]:
    return [os.readlink(file) for file in Path(f"/proc/{process}/fd").iterdir()]


def ended(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


async def test_a_gpu_that_hangs_there_costs_one_gpu_and_the_worker_holds_nothing_of_ours(
    hardware: SimulatedNode, nvml_library: Path, tmp_path: Path
) -> None:
    journal = Journal(tmp_path / "journal", "node")
    driver = WorkerDriver(nvml_library)
    assert not [file for file in open_files(driver._process.pid) if "journal" in file]
    enforcer = Enforcer("node", driver, journal)
    enforcer.set_pods({})
    enforcer.accept(gpu_node_spec(1, 800_000, idlePowerLimitMilliwatts=200_000))
    await enforcer.step()
    assert enforcer.state.acknowledged is not None
    hardware.devices[0].flags |= DeviceFault.HANG
    enforcer.accept(gpu_node_spec(2, 800_000, idlePowerLimitMilliwatts=150_000))
    await enforcer.step()
    limits = [device.read().requested_limit_milliwatts for device in hardware.devices]
    assert limits == [200_000, 150_000]
    failure = enforcer.state.gpus[hardware.devices[0].uuid].failure
    assert failure is not None
    assert failure.reason == CallTimedOut.reason
    worker = driver._process.pid
    enforcer.close()
    driver.close()  # while the call still hangs
    wait_until(lambda: ended(worker))
    Journal(tmp_path / "journal", "node").close()  # the next one gets it at once


async def test_a_worker_that_crashes_fails_every_call_and_nothing_else(
    hardware: SimulatedNode, nvml_library: Path
) -> None:
    driver = WorkerDriver(nvml_library)
    hardware.devices[0].flags |= DeviceFault.HANG
    waiting = asyncio.create_task(asyncio.to_thread(driver.gpus()[0].read))
    await until(lambda: bool(driver._waiting))
    os.kill(driver._process.pid, signal.SIGSEGV)
    with pytest.raises(DriverUnavailable, match="worker has ended"):
        await waiting
    with pytest.raises(DriverUnavailable, match="worker has ended"):
        driver.gpus()[1].read()
    driver.close()


def test_errors_keep_their_kind_and_their_words(hardware: SimulatedNode, nvml_library: Path) -> None:
    driver = WorkerDriver(nvml_library)
    hardware.devices[0].flags |= DeviceFault.LOST
    with pytest.raises(GpuLost, match=f"{hardware.devices[0].uuid}: requested limit: .*fallen off.*NVML error 15"):
        driver.gpus()[0].read()
    driver.close()


def test_a_driver_that_cannot_be_opened_says_why(
    tmp_path: Path, nvml_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").write_bytes(b"x" * 4096)
    monkeypatch.setenv("FLYBALL_SIMULATED_GPUS", str(tmp_path / "other"))
    with pytest.raises(LibraryMismatch, match="NVML error 18"):
        WorkerDriver(nvml_library)
    with pytest.raises(DriverUnavailable, match="load library"):
        WorkerDriver(tmp_path / "libnothing.so")


def test_a_driver_that_hangs_as_it_opens_is_given_up(hardware: SimulatedNode, nvml_library: Path) -> None:
    for device in hardware.devices:
        device.flags |= DeviceFault.HANG
    with pytest.raises(CallTimedOut, match=r"did not open within 0\.5 s"):
        WorkerDriver(nvml_library, open_seconds=0.5)


def test_a_worker_whose_own_call_hangs_ends_with_the_agent() -> None:
    """As it opens, or asks to be told of events: nobody reads there that the agent has ended, nor what it sent last."""
    code = """
import sys, time
from flyball_agent.gpu import worker
class Hanging:
    def __init__(self, library):
        print("hangs", flush=True)
        time.sleep(3600)
worker.nvml_driver = lambda: Hanging
worker.main(sys.argv[1:])
"""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-c", code, str(theirs.fileno())]
    with subprocess.Popen(command, pass_fds=(theirs.fileno(),), stdout=subprocess.PIPE) as process:
        try:
            theirs.close()
            assert process.stdout is not None
            assert process.stdout.readline() == b"hangs\n"
            ours.send(b"what nobody reads any more")
            ours.close()
            wait_until(lambda: process.poll() is not None)
        finally:
            process.kill()


def test_a_gpu_that_hangs_as_its_errors_are_asked_for_holds_up_no_call() -> None:
    code = """
import sys, time
from flyball_agent.gpu import worker
class Hanging:
    boot_id = driver_load = version = "1"
    unopened = ()
    def __init__(self, library):
        pass
    def gpus(self):
        return []
    def watch_xid_errors(self, seen):
        time.sleep(3600)
worker.nvml_driver = lambda: Hanging
worker.main(sys.argv[1:])
"""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-c", code, str(theirs.fileno())]
    with subprocess.Popen(command, pass_fds=(theirs.fileno(),)), ours:  # which ends it
        theirs.close()
        ours.settimeout(30.0)
        send_now(ours, Request(1, "GPU-of-nobody", Read()))
        assert isinstance(receive_answer(ours), Opened)
        answer = receive_answer(ours)
        assert isinstance(answer, Failed)
        assert isinstance(answer.error, GpuNotFound)


def test_the_largest_node_fits_into_a_packet() -> None:

    limits = gpu_limits(100_000, 700_000, 700_000, tuple(range(210, 1981, 15)))
    gpus = tuple(ShownGpu(f"GPU-{index:032d}", index, "NVIDIA-H100-80GB-HBM3", limits) for index in range(256))
    assert len(_encoder.encode(Opened("boot", "580", "580", gpus, ()))) < MAX_PACKET_BYTES


def test_the_worker_loads_nothing_that_starts_processes_or_makes_files() -> None:
    """It is there for NVML alone, in memory that each node pays for."""
    code = (
        "import sys; from flyball_agent.gpu.worker import nvml_driver; nvml_driver();"
        "assert not {'asyncio', 'shutil', 'ssl', 'subprocess', 'tempfile'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
