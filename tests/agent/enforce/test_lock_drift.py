"""Clock locks that somebody else removes: nothing reads a lock back, but a clock above its range gives it away."""

from __future__ import annotations

import pytest
from flyball_agent.enforce import decisions
from flyball_agent.enforce.decisions import LOCK_SETTLE_NS, lock_drift_of
from flyball_agent.enforce.gpu_state import UNLOCKED, ClockLock, GpuState
from flyball_agent.gpu.gpu import GpuLimits, GpuReading, PowerLimitReading
from flyball_api.values.units import MilliwattsPerGpu
from flyball_simulated_gpu.device import DeviceFault

from tests.support.enforcer_rig import Rig
from tests.support.gpu_node_specs import gpu_node_spec, job_grant


def locked(rig: Rig) -> None:
    for device in rig.node.devices:
        device.set_activity(1.0)
    rig.hold("gpt2", 0, 1)
    rig.enforcer.accept(gpu_node_spec(1, 1_000_000, job_grant("gpt2", 400_000, clocks=(900, 1005)), lease=10**6))
    rig.step()
    assert rig.locks()[:2] == [(900, 1005)] * 2


def test_a_lock_that_somebody_removed_is_put_back_in_the_next_round_and_counted(rig: Rig) -> None:
    locked(rig)
    rig.step(1)
    assert rig.enforcer.state.counts.lock_drift_corrections == 0
    rig.node.devices[0].reset_locked_clocks()
    rig.step(1)
    assert rig.locks()[:2] == [(900, 1005)] * 2
    assert rig.enforcer.state.counts.lock_drift_corrections == 1
    drift = rig.enforcer.state.last_drift
    assert drift is not None
    assert drift.reason == "ClocksChanged"
    assert drift.message == f"{rig.node.devices[0].uuid}: clock 1410 MHz is above 1005 MHz, to which it was locked"
    rig.step(1)
    assert rig.enforcer.state.counts.lock_drift_corrections == 1


def test_a_driver_that_lies_about_its_locks_is_asked_less_and_less(rig: Rig) -> None:
    rig.node.devices[0].flags |= DeviceFault.SETTERS_LIE
    for device in rig.node.devices:
        device.set_activity(1.0)
    rig.hold("gpt2", 0)
    rig.enforcer.accept(gpu_node_spec(1, 1_600_000, job_grant("gpt2", 400_000, clocks=(900, 1005)), lease=10**6))
    for _ in range(600):
        rig.step(1)
    assert 10 <= rig.enforcer.state.counts.lock_drift_corrections <= 10 + 6 + 600 // 60 + 1
    gpu = rig.enforcer.state.gpus[rig.node.devices[0].uuid]
    assert gpu.lock_drifts >= decisions.REFUSALS_IN_EACH_ROUND
    rig.node.devices[0].flags = DeviceFault(0)
    rig.step(60)
    rig.step(1)
    assert rig.locks()[0] == (900, 1005)
    assert rig.enforcer.state.gpus[gpu.uuid].lock_drifts == 0


WATTS = MilliwattsPerGpu(400_000)
LIMITS = GpuLimits(WATTS, WATTS, WATTS, (900, 1005, 1410))


@pytest.mark.parametrize(
    ("lock", "clock", "after_ns", "drifts"),
    [
        (ClockLock(900, 1005), 1410, LOCK_SETTLE_NS, True),
        (ClockLock(900, 1005), 1410, LOCK_SETTLE_NS - 1, False),  # perhaps read before the lock came into force
        (ClockLock(900, 1005), 1005, LOCK_SETTLE_NS, False),
        (ClockLock(900, 1005), 300, LOCK_SETTLE_NS, False),  # power or heat holds it down
        (ClockLock(900, 1005), None, LOCK_SETTLE_NS, False),
        (UNLOCKED, 1410, LOCK_SETTLE_NS, False),
        (None, 1410, LOCK_SETTLE_NS, False),
    ],
)
def test_only_a_clock_above_the_range_proves_something(
    lock: ClockLock | None, clock: int | None, after_ns: int, drifts: bool
) -> None:
    reading = GpuReading(PowerLimitReading(WATTS, WATTS), sm_clock_megahertz=clock)
    gpu = GpuState("GPU-1", 0, "A100", LIMITS, WATTS, reading=reading, limit=reading.limit, lock=lock, lock_set_ns=7)
    assert (lock_drift_of(gpu, 7 + after_ns) is not None) is drifts
    coming = gpu.changed(lock_coming=ClockLock(900, 1410))
    assert lock_drift_of(coming, 7 + after_ns) is None, "it may have what a call that has not returned asks for"
