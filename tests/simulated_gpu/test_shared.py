"""The hardware file: crash safety at every write, exclusion between processes and threads, and its layout."""

from __future__ import annotations

import fcntl
import inspect
import os
import re
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from flyball_simulated_gpu import physics
from flyball_simulated_gpu.catalogue import CATALOGUE
from flyball_simulated_gpu.device import DeviceFault
from flyball_simulated_gpu.hardware_file import HardwareFileError, NodeFile, create_node_file
from flyball_simulated_gpu.physics import DeviceConstants, DeviceState
from flyball_simulated_gpu.shared import SimulatedNode

A100 = CATALOGUE["NVIDIA-A100-SXM4-40GB"]
SECOND = 1_000_000_000


class Clock:
    def __init__(self) -> None:
        self.now_ns = 1000 * SECOND

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node.gpus"


def test_layout_is_the_documented_one(path: Path) -> None:
    clock = Clock()
    (uuid,) = create_node_file(path, [A100], "boot-a", settle_milliseconds=7, clock_ns=clock)
    with SimulatedNode.open(path, clock) as node:
        node.devices[0].set_power_limit_milliwatts(250_000)
        node.devices[0].set_activity(0.5)
    data = path.read_bytes()
    assert len(data) == 256 + 512
    assert struct.unpack_from("<8sIIQ", data) == (b"FLYGPU01", 1, 1, 1)
    assert data[24:64].rstrip(b"\0") == b"boot-a"
    assert struct.unpack_from("<II", data, 64) == (0, 7)
    record = data[256:]
    assert struct.unpack_from("<I", record, 0)[0] % 2 == 0
    assert record[8:56].rstrip(b"\0").decode() == uuid
    assert record[56:120].rstrip(b"\0") == b"NVIDIA-A100-SXM4-40GB"
    assert struct.unpack_from("<8I", record, 120) == (100_000, 400_000, 400_000, 58_000, 210, 1410, 15, 1125)
    assert struct.unpack_from("<dd", record, 152) == (1.0, 0.162)
    assert struct.unpack_from("<4Id", record, 168) == (250_000, 400_000, 0, 0, 0.5)
    pending_at, base, enforced, _, _, cap = struct.unpack_from("<QQIIII", record, 216)
    assert (pending_at - clock.now_ns, base, enforced, cap) == (7_000_000, 0, 250_000, 0)


def test_faults_are_those_of_the_document_and_of_the_c_library() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs/simulated-gpu.md").read_text(encoding="utf-8").split("\n## Faults\n")[1]
    documented = {1 << int(bit) for bit in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    (in_c,) = re.findall(r"enum \{\s*(LOST = [^}]*)\};", (root / "simulated_gpu/nvml/nvml.c").read_text())
    assert documented == {fault.value for fault in DeviceFault}
    assert {int(value) for value in re.findall(r"= (\d+)", in_c)} == {fault.value for fault in DeviceFault}


def test_state_outlives_the_opening(path: Path) -> None:
    create_node_file(path, [A100] * 2)
    with SimulatedNode.open(path) as node:
        node.devices[1].set_power_limit_milliwatts(123_000)
        node.devices[1].set_locked_clocks_megahertz(900, 1005)
    with SimulatedNode.open(path) as node:
        state = node.devices[1].read()
        assert (state.requested_limit_milliwatts, state.locked_min_megahertz, state.locked_max_megahertz) == (
            123_000,
            900,
            1005,
        )
        assert node.devices[0].read().requested_limit_milliwatts == 400_000


class Killed(BaseException):
    pass


class DyingNodeFile(NodeFile):
    """A process that is killed in its n-th store, after the first `torn_bytes` bytes of it, then writes nothing."""

    def __init__(self, path: Path, clock: Callable[[], int], stores: int, torn_bytes: int) -> None:
        super().__init__(path, clock)
        self.left, self.torn_bytes = stores, torn_bytes

    def store(self, offset: int, content: bytes) -> None:
        if self.left == 0:
            super().store(offset, content[: self.torn_bytes])
            self.torn_bytes = 0
            raise Killed
        self.left -= 1
        super().store(offset, content)


@pytest.mark.parametrize("torn_bytes", [0, 1, 4, 28, 40, 79])
def test_a_writer_killed_inside_any_of_its_stores_leaves_the_old_state_or_the_new(path: Path, torn_bytes: int) -> None:
    clock = Clock()
    create_node_file(path, [A100], clock_ns=clock)
    outcomes = set()
    for stores in range(5):
        with SimulatedNode.open(path, clock) as node:
            node.devices[0].set_power_limit_milliwatts(400_000)
            energy_before = node.devices[0].read().energy_millijoules
        clock.now_ns += SECOND
        victim = DyingNodeFile(path, clock, stores, torn_bytes)
        died = False
        try:
            victim.records[0].change(_halve)
        except Killed:
            died = True
        victim.close()  # the kernel drops a dead process's locks
        with SimulatedNode.open(path, clock) as node:
            state = node.devices[0].read()
            outcomes.add((died, state.requested_limit_milliwatts))
            assert state.energy_millijoules == energy_before + 58_000
            node.devices[0].set_activity(0.0)  # and the record can be written again
            assert struct.unpack_from("@I", node.file.map, 256)[0] % 2 == 0
    assert outcomes >= {(True, 400_000), (False, 200_000)}
    assert {limit for _, limit in outcomes} == {400_000, 200_000}


def test_a_reader_that_needs_the_lock_reads_its_time_under_it(path: Path) -> None:
    """Else a writer could come in between with an earlier time, and the energy would seem to fall."""
    create_node_file(path, [A100])
    stranger = open(path, "r+b", buffering=0)  # noqa: SIM115 - closed below
    locked_at_each_look = []

    def clock() -> int:
        try:
            fcntl.fcntl(stranger, fcntl.F_OFD_SETLK, struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, 256, 512, 0))
        except BlockingIOError:
            locked_at_each_look.append(True)
        else:
            fcntl.fcntl(stranger, fcntl.F_OFD_SETLK, struct.pack("hhqqi0q", fcntl.F_UNLCK, os.SEEK_SET, 256, 512, 0))
            locked_at_each_look.append(False)
        return 1000 * SECOND

    with stranger, SimulatedNode.open(path, clock) as node:
        undo, state = slice(256 + 384, 256 + 464), slice(256 + 168, 256 + 248)
        node.file.map[undo] = node.file.map[state]
        struct.pack_into("@I", node.file.map, 256, 1)  # a writer is inside its write
        node.devices[0].read()
    assert not any(locked_at_each_look[:-1])
    assert locked_at_each_look[-1]


def _halve(constants: DeviceConstants, state: DeviceState, now: int) -> None:
    physics.set_power_limit(constants, state, now, 200_000, 0)


def toggle(path: Path, rounds: int) -> None:
    with SimulatedNode.open(path) as node:
        for index in range(rounds):
            node.devices[0].set_activity((index % 5) / 4)
            node.devices[0].set_power_limit_milliwatts(100_000 + 1000 * (index % 300))


CHILD = (
    "from __future__ import annotations\nimport sys\nfrom flyball_simulated_gpu.shared import SimulatedNode\n"
    + inspect.getsource(toggle)
    + "toggle(sys.argv[1], int(sys.argv[2]))\n"
)


def test_processes_share_a_gpu_without_tearing_it_or_turning_its_energy_back(path: Path) -> None:
    (uuid,) = create_node_file(path, [A100])
    command = [sys.executable, "-c", CHILD, str(path), "3000"]
    workers = [subprocess.Popen(command) for _ in range(2)]
    last, power_seen = 0.0, set()
    with SimulatedNode.open(path) as node:
        device = node.device(uuid)
        while any(worker.poll() is None for worker in workers):
            state = device.read()
            assert state.energy_millijoules >= last
            assert state.enforced_limit_milliwatts == state.requested_limit_milliwatts
            assert state.power_milliwatts <= max(state.enforced_limit_milliwatts, 58_000)
            last = state.energy_millijoules
            power_seen.add(state.power_milliwatts)
        power_seen.add(device.read().power_milliwatts)  # where this process had no turn while they ran
    assert [worker.returncode for worker in workers] == [0, 0]
    assert len(power_seen) > 1
    sequence = struct.unpack_from("<I", path.read_bytes(), 256)[0]
    assert sequence == 2 * 2 * 2 * 3000  # two steps of the sequence a change: no write was lost


def test_two_openings_and_threads_in_one_process_exclude_each_other(path: Path) -> None:
    create_node_file(path, [A100])
    threads = [threading.Thread(target=toggle, args=(str(path), 500)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert struct.unpack_from("<I", path.read_bytes(), 256)[0] == 2 * 2 * 4 * 500


def test_reload_and_reboot_are_new_incarnations_at_defaults(path: Path) -> None:
    create_node_file(path, [A100] * 2, "boot-a")
    with SimulatedNode.open(path) as node:
        node.devices[0].set_power_limit_milliwatts(100_000)
        node.reload_driver()
        assert (node.boot_id, node.driver_load) == ("boot-a", 2)
        assert node.devices[0].read().requested_limit_milliwatts == 400_000
        node.reboot("boot-b")
        assert (node.boot_id, node.driver_load) == ("boot-b", 3)


def test_out_of_range_values_are_refused_by_name(path: Path) -> None:
    create_node_file(path, [A100])
    with SimulatedNode.open(path) as node:
        device = node.devices[0]
        with pytest.raises(ValueError, match=r"power limit 99000 mW is not within 100000\.\.400000 mW"):
            device.set_power_limit_milliwatts(99_000)
        with pytest.raises(ValueError, match="clock range"):
            device.set_locked_clocks_megahertz(1000, 900)
        with pytest.raises(ValueError, match="activity"):
            device.set_activity(float("nan"))
        with pytest.raises(KeyError, match="no device GPU-none"):
            node.device("GPU-none")
        device.flags |= DeviceFault.LOST
        assert device.flags == DeviceFault.LOST


def test_a_file_that_is_something_else_is_refused(path: Path) -> None:
    path.write_bytes(b"x" * 100)
    with pytest.raises(HardwareFileError, match="no hardware file"):
        SimulatedNode.open(path)
    path.write_bytes(b"x" * 768)
    with pytest.raises(HardwareFileError, match="FLYGPU01"):
        SimulatedNode.open(path)
    create_node_file(path, [A100])
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(HardwareFileError, match="do not hold 1 devices"):
        SimulatedNode.open(path)
    with pytest.raises(ValueError, match="1 to 256 devices"):
        create_node_file(path, [])
    with pytest.raises(ValueError, match="different UUIDs"):
        create_node_file(path, [A100] * 2, uuids=["GPU-a", "GPU-a"])
