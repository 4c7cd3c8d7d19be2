"""The enforcer on virtual hardware: convergence, fencing, leases, drift, faults, and crashes at every write."""

from __future__ import annotations

import asyncio
import threading

import pytest
from flyball_agent.calls import ThreadedCalls
from flyball_agent.core import Mode, PodName
from flyball_agent.drivers import physics
from flyball_agent.drivers.catalogue import CATALOGUE
from flyball_agent.drivers.simulated import DeviceFault
from flyball_agent.drivers.simulated_gpu import SimulatedDriver, SimulatedGpu
from flyball_agent.drivers.virtual import VirtualNode
from flyball_agent.gpu import CallTimedOut, GpuLost, UnknownDriverError
from flyball_agent.journal import Disk, Journal
from flyball_agent.loop import ROUNDS_BEFORE_EXIT, Enforcer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

A100 = CATALOGUE["NVIDIA-A100-SXM4-40GB"]
SECOND = 1_000_000_000
BOARDS = 4
FLOOR = BOARDS * 100_000


class QuickDisk(Disk):
    """Without the waiting: what a process wrote survives its own death, synced or not."""

    def sync(self, descriptor):
        pass

    def replace(self, source, target):
        source.replace(target)


def job_grant(pod: str, limit: int, gpus: int = 2, clocks: tuple[int, int] = (0, 1410)) -> dict:
    return {
        "namespace": "research",
        "name": pod,
        "uid": f"uid-{pod}",
        "incarnation": 1,
        "podName": pod,
        "gpus": gpus,
        "powerLimitMilliwatts": limit,
        "clockMegahertz": {"min": clocks[0], "max": clocks[1]},
    }


def spec(generation: int, grant: int, *jobs: dict, epoch: int = 1, lease: int = 30, **devices: int) -> dict:
    return {
        "epoch": epoch,
        "generation": generation,
        "leaseSeconds": lease,
        "grantMilliwatts": grant,
        "devices": devices,
        "jobs": list(jobs),
    }


class Rig:
    """One virtual node, its journal on disk, and an enforcer that can be killed and started again."""

    def __init__(self, folder, disk: Disk | None = None, boards: int = BOARDS) -> None:
        self.now_ns = 1000 * SECOND
        self.folder = folder
        self.disk = disk or QuickDisk()
        self.node = VirtualNode("node-0", [A100] * boards, lambda: self.now_ns)
        self.driver = SimulatedDriver(self.node)
        self.pods: dict[str, tuple[PodName, ...]] = {}
        self.start()

    def start(self, driver=None, calls=None) -> None:
        self.journal = Journal(self.folder, "node-0", disk=self.disk)
        self.enforcer = Enforcer(
            "node-0",
            driver or self.driver,
            self.journal,
            clock_ns=lambda: self.now_ns,
            wall_seconds=lambda: 0.0,
            calls=calls,
        )
        self.enforcer.set_pods(self.pods)

    def restart(self, **keywords) -> None:
        self.enforcer.close()
        self.start(**keywords)

    def hold(self, pod: str, *indexes: int) -> None:
        """Let a pod hold just these boards."""
        name = PodName("research", pod)
        for index, device in enumerate(self.node.devices):
            others = tuple(other for other in self.pods.get(device.uuid, ()) if other != name)
            self.pods[device.uuid] = (*others, name) if index in indexes else others
        self.enforcer.set_pods(self.pods)

    def step(self, seconds: float = 0.0) -> None:
        self.now_ns += round(seconds * SECOND)
        asyncio.run(self.enforcer.step())

    def limits(self) -> list[int]:
        return [device.read().requested_limit_milliwatts for device in self.node.devices]

    def locks(self) -> list[tuple[int, int]]:
        return [(d.read().locked_min_megahertz, d.read().locked_max_megahertz) for d in self.node.devices]

    @property
    def acknowledged(self) -> tuple[int, int, int] | None:
        ack = self.enforcer.acknowledged
        return None if ack is None else (ack.epoch, ack.generation, ack.limits_milliwatts)


@pytest.fixture
def rig(tmp_path):
    rig = Rig(tmp_path)
    yield rig
    rig.enforcer.close()


def test_before_the_first_spec_everything_stays_as_it_is(rig):
    rig.node.devices[0].set_power_limit_milliwatts(150_000)
    rig.step()
    assert rig.enforcer.mode is Mode.ADOPTING
    assert rig.limits() == [150_000, 400_000, 400_000, 400_000]
    assert rig.acknowledged is None


def test_on_arrival_the_floor_is_applied_and_acknowledged(rig):
    rig.enforcer.accept(spec(1, FLOOR))
    rig.step()
    assert rig.enforcer.mode is Mode.FLOOR
    assert rig.limits() == [100_000] * BOARDS
    assert rig.acknowledged == (1, 1, FLOOR)
    assert rig.enforcer.acknowledged.boot_id == "boot-1"


def test_jobs_get_their_limit_and_clock_within_one_step(rig):
    rig.enforcer.accept(spec(1, FLOOR))
    rig.step()
    rig.hold("gpt2", 1, 2)
    rig.enforcer.accept(spec(2, 700_000, job_grant("gpt2", 250_000, clocks=(900, 1005))))
    rig.step()
    assert rig.enforcer.mode is Mode.GRANTED
    assert rig.limits() == [100_000, 250_000, 250_000, 100_000]
    assert rig.locks() == [(0, 0), (900, 1005), (900, 1005), (0, 0)]
    assert rig.acknowledged == (1, 2, 700_000)
    rig.hold("gpt2")  # the pod has gone
    rig.step()
    assert rig.limits() == [100_000] * BOARDS
    assert rig.locks() == [(0, 0)] * BOARDS


def test_stale_pairs_are_refused_also_after_a_restart(rig):
    rig.enforcer.accept(spec(5, FLOOR, epoch=2))
    rig.step()
    for stale in (spec(4, 1_600_000, epoch=2), spec(99, 1_600_000, epoch=1)):
        assert not rig.enforcer.accept(stale)
    assert rig.enforcer.tally.refused_specs == 2
    rig.restart()
    assert not rig.enforcer.accept(spec(4, 1_600_000, epoch=2))
    assert not rig.enforcer.accept(spec(5, FLOOR, epoch=2))  # the same again: no news
    assert rig.enforcer.tally.refused_specs == 1
    assert rig.enforcer.accept(spec(1, FLOOR, epoch=3))
    rig.step()
    assert rig.acknowledged == (3, 1, FLOOR)


def test_an_invalid_spec_is_said_and_the_old_one_holds(rig):
    rig.enforcer.accept(spec(1, FLOOR))
    rig.step()
    assert not rig.enforcer.accept({**spec(2, 10**6), "grantMilliwatts": float("inf")})
    assert "spec.grantMilliwatts" in rig.enforcer.invalid_spec
    rig.step()
    assert rig.acknowledged == (1, 1, FLOOR)
    rig.enforcer.accept(spec(2, FLOOR))
    assert rig.enforcer.invalid_spec is None


def test_the_lease_ends_steps_down_and_comes_back_with_a_renewal(rig):
    rig.hold("gpt2", 0, 1)
    rig.enforcer.accept(spec(1, 900_000, job_grant("gpt2", 350_000), lease=10, failsafePowerLimitMilliwatts=150_000))
    rig.step()
    assert rig.limits() == [350_000, 350_000, 100_000, 100_000]
    rig.step(6)
    rig.enforcer.renew_lease()
    rig.step(9)
    assert rig.enforcer.mode is Mode.GRANTED
    rig.step(1)
    assert rig.enforcer.mode is Mode.FAILSAFE
    assert rig.limits() == [150_000, 150_000, 100_000, 100_000]
    assert rig.enforcer.lease_remaining_seconds() == 0
    assert rig.enforcer.tally.lease_expiries == 1
    assert rig.enforcer.renew_lease()
    rig.step()
    assert rig.limits() == [350_000, 350_000, 100_000, 100_000]


def test_in_failsafe_nothing_is_raised_whatever_changes(rig):
    rig.hold("gpt2", 0)
    rig.enforcer.accept(spec(1, 800_000, job_grant("gpt2", 350_000), lease=1, failsafePowerLimitMilliwatts=300_000))
    rig.step()
    rig.step(5)
    assert rig.limits() == [300_000, 100_000, 100_000, 100_000]
    rig.hold("gpt2", 0, 1)
    rig.step(1)
    assert rig.limits() == [300_000, 100_000, 100_000, 100_000]


def test_a_spec_at_the_floor_needs_no_lease(rig):
    rig.enforcer.accept(spec(1, FLOOR, lease=1))
    rig.step(100)
    assert rig.enforcer.mode is Mode.FLOOR
    assert rig.enforcer.tally.lease_expiries == 0


def test_a_restart_adopts_without_a_spike_and_does_not_extend_the_lease(rig):
    rig.hold("gpt2", 0, 1)
    rig.enforcer.accept(spec(1, 900_000, job_grant("gpt2", 350_000), lease=10))
    rig.step()
    before = rig.limits()
    rig.now_ns += 8 * SECOND
    rig.restart()
    seen = watch_sets(rig)
    rig.step()
    assert rig.limits() == before
    assert seen == []  # not one limit was set
    assert rig.acknowledged == (1, 1, 900_000)
    rig.step(2)
    assert rig.enforcer.mode is Mode.FAILSAFE


def test_after_a_reboot_the_floor_is_applied_until_the_operator_is_seen(rig):
    rig.hold("gpt2", 0, 1)
    rig.enforcer.accept(spec(1, 900_000, job_grant("gpt2", 350_000), lease=1000))
    rig.step()
    rig.node.reboot("boot-2")
    rig.restart()
    assert rig.limits() == [400_000] * BOARDS
    rig.step()
    assert rig.enforcer.mode is Mode.FAILSAFE
    assert rig.limits() == [100_000] * BOARDS
    assert rig.acknowledged == (1, 1, FLOOR)
    assert rig.enforcer.acknowledged.boot_id == "boot-2"
    rig.enforcer.renew_lease()
    rig.step()
    assert rig.limits() == [350_000, 350_000, 100_000, 100_000]


def test_a_reloaded_driver_is_a_new_incarnation_and_put_down_within_a_step(rig):
    rig.hold("gpt2", 0)
    rig.enforcer.accept(spec(1, 700_000, job_grant("gpt2", 300_000, clocks=(900, 900))))
    rig.step()
    first = rig.enforcer.acknowledged.driver_incarnation
    rig.node.reload_driver()
    rig.step(1)
    assert rig.limits() == [300_000, 100_000, 100_000, 100_000]
    assert rig.locks()[0] == (900, 900)
    assert rig.enforcer.acknowledged.driver_incarnation != first
    assert rig.enforcer.tally.drift_corrections == 0


@pytest.mark.parametrize("while_away", [False, True])
def test_a_counter_that_falls_back_is_a_new_incarnation(rig, while_away):
    rig.enforcer.accept(spec(1, FLOOR))
    rig.step(10)
    rig.step(10)
    first = rig.enforcer.acknowledged.driver_incarnation
    rig.journal.commit(rig.enforcer.incarnation.record())
    if while_away:
        rig.enforcer.close()
    rig.node.devices[0].reset_energy_counter()
    if while_away:
        rig.start()
    rig.step(1)
    assert rig.enforcer.acknowledged.driver_incarnation != first
    assert rig.enforcer.tally.counter_resets == 1
    again = str(rig.enforcer.incarnation)
    rig.restart()
    rig.step(1)
    assert str(rig.enforcer.incarnation) == again


def test_drift_is_put_back_within_one_step_and_counted(rig):
    rig.hold("gpt2", 0)
    rig.enforcer.accept(spec(1, 650_000, job_grant("gpt2", 300_000)))
    rig.step()
    rig.node.devices[0].set_power_limit_milliwatts(400_000)
    rig.node.devices[1].set_power_limit_milliwatts(390_000)
    rig.step(1)
    assert rig.limits() == [300_000, 100_000, 100_000, 100_000]
    assert rig.enforcer.tally.drift_corrections == 2
    assert len(rig.enforcer.drifted) == 2
    rig.node.devices[0].set_power_limit_milliwatts(120_000)  # somebody took watts away: given back
    rig.step(1)
    assert rig.limits()[0] == 300_000
    rig.step(1)
    assert rig.enforcer.tally.drift_corrections == 3
    assert rig.enforcer.drifted == {}


def test_the_boards_of_foreign_pods_are_left_alone_until_they_are_reserved(rig):
    rig.pods[rig.node.devices[3].uuid] = (PodName("other", "inference"),)
    rig.enforcer.set_pods(rig.pods)
    rig.enforcer.accept(spec(1, 700_000))
    rig.step()
    assert rig.limits() == [100_000, 100_000, 100_000, 400_000]
    assert rig.acknowledged == (1, 1, 700_000)
    rig.node.devices[3].set_power_limit_milliwatts(222_000)  # its owner's business
    rig.step(1)
    assert rig.limits()[3] == 222_000
    assert rig.enforcer.tally.drift_corrections == 0
    rig.enforcer.accept(spec(2, 700_000, foreignGpus=1, foreignPowerLimitMilliwatts=180_000))
    rig.step()
    assert rig.limits()[3] == 180_000


def test_one_lost_board_keeps_its_watts_and_stops_nobody(rig):
    rig.hold("gpt2", 0, 1)
    rig.enforcer.accept(spec(1, 800_000, job_grant("gpt2", 300_000)))
    rig.step()
    rig.node.devices[0].flags |= DeviceFault.LOST
    rig.enforcer.accept(spec(2, 700_000, job_grant("gpt2", 200_000)))
    rig.step()
    assert rig.limits()[1:] == [200_000, 100_000, 100_000]
    assert isinstance(rig.enforcer.boards[rig.node.devices[0].uuid].error, GpuLost)
    assert rig.acknowledged == (1, 2, 700_000)  # 300 W of the lost one among them
    rig.node.devices[0].flags = DeviceFault(0)
    rig.step(1)
    assert rig.limits()[0] == 200_000
    assert rig.acknowledged == (1, 2, 600_000)


def test_a_board_that_is_not_found_any_more_stays_reserved(rig):
    rig.enforcer.accept(spec(1, FLOOR))
    rig.step()
    uuid = rig.node.devices[3].uuid

    class Without(SimulatedDriver):
        def gpus(self):
            return [gpu for gpu in super().gpus() if gpu.uuid != uuid]

    rig.restart(driver=Without(rig.node))
    rig.step()
    missing = rig.enforcer.boards[uuid]
    assert (missing.gpu, missing.index, missing.model) == (None, -1, A100.product_name)
    assert "not found now" in str(missing.error)
    # The journal's last set of it was 400 -> 100 W; what it holds now nobody can read.
    assert rig.acknowledged == (1, 1, 300_000 + 400_000)


def test_a_setter_that_lies_blocks_the_acknowledgement_then_is_reported(rig):
    rig.enforcer.accept(spec(1, FLOOR))
    rig.node.devices[0].flags |= DeviceFault.SETTERS_LIE
    rig.step()
    assert rig.acknowledged is None
    assert rig.enforcer.settling
    rig.hold("gpt2", 1)
    rig.enforcer.accept(spec(2, 700_000, job_grant("gpt2", 300_000)))
    rig.step()
    assert rig.limits() == [400_000, 100_000, 100_000, 100_000]  # no watt for the job: the liar holds them
    assert rig.acknowledged is None
    rig.step(3)
    assert rig.acknowledged == (1, 2, 700_000)
    liar = rig.enforcer.boards[rig.node.devices[0].uuid]
    assert rig.enforcer.above_for_good(liar)
    assert "reads back 400000 mW" in liar.set_error
    rig.node.devices[0].flags = DeviceFault(0)
    rig.step(1)
    assert rig.limits() == [100_000, 300_000, 100_000, 100_000]
    assert rig.acknowledged == (1, 2, 600_000)
    assert liar.set_error is None


def test_a_board_above_the_grant_is_told_never_hidden(rig):
    for device in rig.node.devices[:2]:
        device.flags |= DeviceFault.SETTERS_FAIL
    rig.enforcer.accept(spec(1, FLOOR))
    rig.step()
    rig.step(3)
    assert rig.acknowledged == (1, 1, 1_000_000)  # far above the grant of 400 W, and said so


def test_a_late_limit_is_waited_for_before_anything_is_raised(rig):
    rig.node.settle_milliseconds = 500
    rig.hold("gpt2", 0)
    rig.enforcer.accept(spec(1, 700_000, job_grant("gpt2", 400_000)))
    rig.step()
    assert rig.acknowledged is None
    rig.hold("gpt2", 1)
    rig.hold("bert", 0)
    rig.enforcer.accept(spec(2, 700_000, job_grant("bert", 100_000), job_grant("gpt2", 400_000)))
    rig.step(0.6)
    assert rig.limits() == [100_000, 100_000, 100_000, 100_000]  # 0 still holds 400 W, and 1 may not have them yet
    assert rig.enforcer.settling
    rig.step(0.6)
    assert rig.limits() == [100_000, 400_000, 100_000, 100_000]
    assert rig.acknowledged == (1, 2, 700_000)


def test_an_out_of_band_cap_is_no_drift_and_its_room_is_not_given_away(rig):
    rig.hold("gpt2", 0, 1)
    rig.enforcer.accept(spec(1, 800_000, job_grant("gpt2", 300_000)))
    rig.step()
    rig.node.devices[0].set_out_of_band_cap_milliwatts(120_000)
    rig.step(1)
    assert rig.limits() == [300_000, 300_000, 100_000, 100_000]
    assert rig.enforcer.tally.drift_corrections == 0
    assert rig.acknowledged == (1, 1, 800_000)


def test_a_hung_board_is_not_acknowledged_for_and_others_are_served(tmp_path):
    """Through threads, with a call that really does not return."""
    rig = Rig(tmp_path)
    release, hang = threading.Event(), threading.Event()

    class Hanging(SimulatedGpu):
        def read(self):
            if hang.is_set():
                release.wait(60)
            return super().read()

    class Driver(SimulatedDriver):
        def __init__(self, node):
            super().__init__(node)
            self._gpus[0] = Hanging(node.devices[0])

    rig.hold("gpt2", 1)
    rig.restart(driver=Driver(rig.node), calls=ThreadedCalls(deadline_seconds=0.2))
    rig.enforcer.accept(spec(1, 650_000, job_grant("gpt2", 300_000)))

    async def scenario():
        await rig.enforcer.step()
        assert rig.acknowledged == (1, 1, 600_000)
        hang.set()
        rig.enforcer.accept(spec(2, 650_000, job_grant("gpt2", 200_000)))
        await rig.enforcer.step()
        assert rig.limits() == [100_000, 200_000, 100_000, 100_000]
        assert isinstance(rig.enforcer.boards[rig.node.devices[0].uuid].error, CallTimedOut)
        assert rig.acknowledged == (1, 1, 600_000)  # not for generation 2
        hang.clear()
        release.set()
        async with asyncio.timeout(20):
            while rig.acknowledged != (1, 2, 500_000):
                await rig.enforcer.step()

    asyncio.run(scenario())
    rig.enforcer.close()


def test_a_driver_that_stays_broken_ends_the_process_and_one_bad_board_does_not(rig, monkeypatch):
    def broken(gpu):
        raise UnknownDriverError("read", gpu.uuid, 999)

    rig.step()
    monkeypatch.setattr(SimulatedGpu, "read", broken)
    for _ in range(ROUNDS_BEFORE_EXIT - 1):
        rig.step(1)
    assert rig.enforcer.must_exit is None
    rig.step(1)
    assert "NVML error 999" in rig.enforcer.must_exit


def test_no_permission_on_every_board_ends_the_process_with_a_sentence(rig):
    for device in rig.node.devices[1:]:
        device.flags |= DeviceFault.NO_PERMISSION
    rig.enforcer.accept(spec(1, FLOOR))
    for _ in range(ROUNDS_BEFORE_EXIT + 2):
        rig.node.devices[0].set_power_limit_milliwatts(400_000)  # this one can still be set, each time
        rig.step(1)
    assert rig.enforcer.must_exit is None
    rig.node.devices[0].flags |= DeviceFault.NO_PERMISSION
    for _ in range(ROUNDS_BEFORE_EXIT):
        rig.step(1)
    assert "CAP_SYS_ADMIN" in rig.enforcer.must_exit


class FullDisk(QuickDisk):
    full = False

    def write(self, descriptor, data):
        if self.full:
            raise OSError(28, "No space left on device")
        return super().write(descriptor, data)


def test_a_full_disk_keeps_enforcing_and_refuses_increases(tmp_path):
    disk = FullDisk()
    rig = Rig(tmp_path, disk)
    rig.hold("gpt2", 0)
    rig.hold("bert", 1)
    rig.enforcer.accept(spec(1, 800_000, job_grant("gpt2", 300_000), job_grant("bert", 200_000)))
    rig.step()
    disk.full = True
    rig.enforcer.accept(spec(2, 800_000, job_grant("gpt2", 150_000), job_grant("bert", 350_000)))
    rig.step()
    assert rig.limits() == [150_000, 200_000, 100_000, 100_000]
    assert "No space left" in rig.journal.degraded
    assert not rig.enforcer.accept(spec(1, 1_600_000))  # fenced in memory
    disk.full = False
    rig.step(1)
    assert rig.limits() == [150_000, 350_000, 100_000, 100_000]
    assert rig.journal.degraded is None
    rig.restart()
    assert rig.enforcer.spec.pair == (1, 2)
    rig.enforcer.close()


def watch_sets(rig: Rig) -> list[tuple[str, int, int]]:
    """Every physical set from now on: (uuid, before, after)."""
    seen: list[tuple[str, int, int]] = []
    for device in rig.node.devices:
        real = type(device).set_power_limit_milliwatts

        def record(limit, device=device, real=real):
            seen.append((device.uuid, device.state.requested_limit_milliwatts, limit))
            real(device, limit)

        device.set_power_limit_milliwatts = record
    return seen


class Crash(BaseException):
    pass


class CrashingDisk(QuickDisk):
    """Dies in its n-th write or rename, half done."""

    def __init__(self) -> None:
        self.left = 10**9

    def write(self, descriptor, data):
        self.left -= 1
        if self.left < 0:
            super().write(descriptor, data[: len(data) // 2])
            raise Crash
        return super().write(descriptor, data)

    def replace(self, source, target):
        self.left -= 1
        if self.left < 0:
            raise Crash
        super().replace(source, target)


def crash_scenario(rig: Rig) -> None:
    """A grant moves from one job to another and back, with a stale spec in between."""
    rig.hold("gpt2", 0, 1)
    rig.hold("bert", 2, 3)
    rig.enforcer.accept(spec(1, 900_000, job_grant("gpt2", 300_000), job_grant("bert", 150_000)))
    rig.step()
    rig.enforcer.accept(spec(2, 900_000, job_grant("gpt2", 100_000), job_grant("bert", 350_000)))
    rig.step(1)
    rig.enforcer.accept(spec(3, 600_000, job_grant("gpt2", 200_000), job_grant("bert", 100_000)))
    rig.step(1)


@pytest.mark.parametrize("where", ["journal", "before a set", "after a set"])
def test_a_kill_at_any_write_or_set_raises_nothing_and_forgets_no_pair(tmp_path, where):
    kills = 0
    for count in range(100):
        disk = CrashingDisk()
        rig = Rig(tmp_path / where / str(count), disk)
        bound = sum(rig.limits())  # at the defaults, as at power on
        sets_left = [count if where != "journal" else 10**9]
        for device in rig.node.devices:
            real = type(device).set_power_limit_milliwatts

            def dying(limit, device=device, real=real, sets_left=sets_left):
                sets_left[0] -= 1
                if sets_left[0] < 0 and where == "before a set":
                    raise Crash
                real(device, limit)
                if sets_left[0] < 0:
                    raise Crash

            device.set_power_limit_milliwatts = dying
        if where == "journal":
            disk.left = count
        died = False
        try:
            crash_scenario(rig)
        except Crash:
            died = True
        kills += died
        limits = rig.limits()
        top_generation = rig.enforcer.spec.generation if rig.enforcer.spec else 0
        for device in rig.node.devices:
            del device.set_power_limit_milliwatts
        disk.left = 10**9
        rig.restart()
        seen = watch_sets(rig)
        known = 0 if rig.enforcer.spec is None else rig.enforcer.spec.generation
        assert known in (top_generation, top_generation - 1)
        assert known > 0 or limits == [400_000] * BOARDS  # nothing was set by a spec that the journal does not know
        before = sum(limits)
        rig.step(0.5)
        total = before
        for _, old, new in seen:
            total += new - old
            grant = rig.enforcer.spec.grant_milliwatts if rig.enforcer.spec else 0
            assert total <= max(before, grant)
        assert total <= bound
        if known:
            assert rig.acknowledged[:2] == (1, known)
            assert rig.acknowledged[2] == sum(rig.limits()) <= rig.enforcer.spec.grant_milliwatts
            assert not rig.enforcer.accept(spec(known - 1, 1_600_000))
        rig.enforcer.close()
        if not died:
            break
    assert kills > 8


ACTIONS = st.one_of(
    st.tuples(
        st.just("spec"), st.integers(0, 1_700_000), st.lists(st.integers(50_000, 450_000), min_size=2, max_size=2)
    ),
    st.tuples(st.just("stale"), st.integers(0, 1_700_000)),
    st.tuples(st.just("hold"), st.sampled_from(["a", "b"]), st.sets(st.integers(0, BOARDS - 1))),
    st.tuples(
        st.just("fault"),
        st.integers(0, BOARDS - 1),
        st.sampled_from([0, *DeviceFault]),
    ),
    st.tuples(st.just("time"), st.floats(0, 20)),
    st.tuples(st.just("renew")),
    st.tuples(st.just("restart")),
    st.tuples(st.just("settle"), st.sampled_from([0, 300, 5000])),
    st.tuples(st.just("step")),
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(low=st.booleans(), grant=st.integers(FLOOR, 1_700_000), actions=st.lists(ACTIONS, min_size=3, max_size=25))
def test_whatever_happens_the_total_is_never_above_the_larger_of_grant_and_before(
    tmp_path_factory, low, grant, actions
):
    """Random specs, faults, pods, time and restarts; after every physical set the true total is within its bound."""
    rig = Rig(tmp_path_factory.mktemp("chaos"))
    state = {"bound": true_total(rig), "generation": 0}

    def check() -> None:
        assert true_total(rig) <= state["bound"]

    for device in rig.node.devices:
        real = type(device).set_power_limit_milliwatts

        def checked(limit, device=device, real=real):
            before = device.read().requested_limit_milliwatts
            if limit > before:
                assert rig.enforcer.lease_valid or rig.enforcer.mode is Mode.FLOOR
            real(device, limit)
            check()

        device.set_power_limit_milliwatts = checked
    # From the floor with every board in use, or from wherever the first actions lead from the defaults.
    prefix = [("spec", FLOOR, [100_000] * 2), ("step",), ("hold", "a", {0, 1}), ("hold", "b", {2, 3})] if low else []
    prefix += [("spec", grant, [400_000] * 2), ("step",)] if low else []
    for action, *values in [*prefix, *actions, ("step",), ("time", 5.0), ("step",)]:
        if action == "spec":
            state["generation"] += 1
            grant, (first, second) = values
            state["bound"] = max(true_total(rig), grant)
            new = spec(state["generation"], grant, job_grant("a", first), job_grant("b", second), lease=10)
            assert rig.enforcer.accept(new)
        elif action == "stale" and state["generation"] > 0:
            assert not rig.enforcer.accept(spec(state["generation"] - 1, values[0]))
        elif action == "hold":
            rig.hold(values[0], *values[1])
        elif action == "fault":
            rig.node.devices[values[0]].flags = DeviceFault(values[1])
        elif action == "time":
            rig.now_ns += round(values[0] * SECOND)
        elif action == "renew":
            rig.enforcer.renew_lease()
        elif action == "restart":
            rig.restart()
        elif action == "settle":
            rig.node.settle_milliseconds = values[0]
        else:
            rig.step()
            check()
            ack = rig.enforcer.acknowledged
            if ack is not None:
                readable = all(board.limit is not None for board in rig.enforcer.boards.values())
                if readable and ack.generation == state["generation"] and not rig.enforcer.settling:
                    assert ack.limits_milliwatts >= true_total(rig)
    rig.enforcer.close()


def true_total(rig: Rig) -> int:
    return sum(
        max(state.requested_limit_milliwatts, state.enforced_limit_milliwatts)
        for state in (device.read() for device in rig.node.devices)
    )


def test_power_follows_the_limits_on_busy_boards(rig):
    for device in rig.node.devices:
        device.set_activity(1.0)
    rig.hold("gpt2", 0, 1, 2, 3)
    rig.enforcer.accept(spec(1, 800_000, job_grant("gpt2", 200_000, gpus=4)))
    rig.step()
    draw = sum(device.read().power_milliwatts for device in rig.node.devices)
    assert draw <= 800_000
    expected = physics.operating_point(A100, 200_000, *rig.locks()[0], 1.0)[1]
    assert draw == 4 * expected
