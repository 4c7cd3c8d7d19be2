"""The enforcer on virtual hardware: convergence, fencing, leases, drift, faults, and crashes at every write."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, Never, TypeVar

import pytest
from flyball_agent.enforce.decisions import Mode
from flyball_agent.enforce.driver_access import AbsentDriver
from flyball_agent.enforce.enforcer import Enforcer
from flyball_agent.enforce.gpu_state import COMING_NS, PodName
from flyball_agent.enforce.journal import Journal
from flyball_agent.enforce.reader import ROUNDS_BEFORE_EXIT
from flyball_agent.enforce.records import unnamed_uuid
from flyball_agent.enforce.requests import Requests, request_forget
from flyball_agent.gpu.calls import DirectCalls, Returned
from flyball_agent.gpu.gpu import (
    CallTimedOut,
    DriverUnavailable,
    Gpu,
    GpuError,
    GpuLost,
    UnknownDriverError,
    UnopenedGpu,
)
from flyball_agent.gpu.operations import GpuCall
from flyball_agent.gpu.simulated import SimulatedDriver, SimulatedGpu
from flyball_api.grant import grant_spec
from flyball_api.values.units import MilliwattsPerGpu
from flyball_simulated_gpu import physics
from flyball_simulated_gpu.device import DeviceFault
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.agent_doubles import QuickDisk
from tests.support.enforcer_rig import A100, GPUS, MIN_LIMITS, SECOND, Rig
from tests.support.examples import examples
from tests.support.fewer_gpus import FewerGpus
from tests.support.gpu_node_specs import gpu_node_spec, job_grant
from tests.support.waiting import until

T = TypeVar("T")


def test_before_the_first_spec_everything_stays_as_it_is(rig: Rig) -> None:
    rig.node.devices[0].set_power_limit_milliwatts(150_000)
    rig.step()
    assert rig.enforcer.state.mode is Mode.ADOPTING
    assert rig.limits() == [150_000, 400_000, 400_000, 400_000]
    assert rig.acknowledged is None


def test_on_arrival_the_min_limit_is_applied_and_acknowledged(rig: Rig) -> None:
    rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS))
    rig.step()
    assert rig.enforcer.state.mode is Mode.FLOOR
    assert rig.limits() == [100_000] * GPUS
    assert rig.acknowledged == (1, 1, MIN_LIMITS)
    assert rig.enforcer.state.acknowledged.boot_id == "boot-1"


def test_jobs_get_their_limit_and_clock_within_one_step(rig: Rig) -> None:
    rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS))
    rig.step()
    rig.hold("gpt2", 1, 2)
    rig.enforcer.accept(gpu_node_spec(2, 700_000, job_grant("gpt2", 250_000, clocks=(900, 1005))))
    rig.step()
    assert rig.enforcer.state.mode is Mode.GRANTED
    assert rig.limits() == [100_000, 250_000, 250_000, 100_000]
    assert rig.locks() == [(0, 0), (900, 1005), (900, 1005), (0, 0)]
    assert rig.acknowledged == (1, 2, 700_000)
    rig.hold("gpt2")  # the pod has gone
    rig.step()
    assert rig.limits() == [100_000] * GPUS
    assert rig.locks() == [(0, 0)] * GPUS


def test_another_grant_of_the_accepted_version_is_refused_and_raises_nothing(rig: Rig) -> None:
    """The GPUNode was made anew while this agent was cut off: what it holds is not what stands there."""
    first, second = gpu_node_spec(2, 1_600_000), gpu_node_spec(2, MIN_LIMITS)
    rig.enforcer.accept({**first, "digest": "d1"})
    rig.step()
    assert not rig.enforcer.accept({**second, "digest": "d2"})
    assert not rig.enforcer.state.confirmed
    assert rig.enforcer.state.counts.refused_grants == 1
    assert "not the one" in str(rig.enforcer.state.stale_grant)
    rig.step()
    acknowledged = rig.enforcer.state.acknowledged
    assert acknowledged is not None
    assert acknowledged.digest == "d1"
    assert rig.enforcer.accept({**gpu_node_spec(3, MIN_LIMITS), "digest": "d3"})
    rig.step()
    assert rig.enforcer.state.confirmed
    assert rig.acknowledged == (1, 3, MIN_LIMITS)


def test_a_grant_accepted_before_digests_were_known_is_confirmed_by_its_version(rig: Rig) -> None:
    rig.enforcer.accept(gpu_node_spec(2, MIN_LIMITS))
    rig.step()
    rig.restart()
    assert rig.enforcer.accept({**gpu_node_spec(2, MIN_LIMITS), "digest": "d1"})


def test_a_digest_survives_a_restart(rig: Rig) -> None:
    rig.enforcer.accept({**gpu_node_spec(2, MIN_LIMITS), "digest": "d1"})
    rig.step()
    rig.restart()
    assert not rig.enforcer.accept({**gpu_node_spec(2, 1_600_000), "digest": "d2"})


def test_gpus_that_are_renumbered_keep_what_is_theirs(rig: Rig) -> None:
    rig.hold("gpt2", 0)
    rig.enforcer.accept(gpu_node_spec(1, 600_000, job_grant("gpt2", 250_000)))
    rig.step()
    theirs = rig.node.devices[0].uuid
    rig.node.reboot("boot-2")
    rig.node.devices.reverse()
    for index, device in enumerate(rig.node.devices):
        device.index = index
    rig.restart(driver=SimulatedDriver(rig.node))
    rig.enforcer.accept(gpu_node_spec(1, 600_000, job_grant("gpt2", 250_000)))
    rig.enforcer.renew_lease(1)
    rig.step()
    assert [device.uuid for device, limit in zip(rig.node.devices, rig.limits(), strict=True) if limit == 250_000] == [
        theirs
    ]
    assert rig.limits() == [100_000, 100_000, 100_000, 250_000]


def test_older_grants_are_refused_also_after_a_restart(rig: Rig) -> None:
    rig.enforcer.accept(gpu_node_spec(5, MIN_LIMITS, epoch=2))
    rig.step()
    for stale in (gpu_node_spec(4, 1_600_000, epoch=2), gpu_node_spec(99, 1_600_000, epoch=1)):
        assert not rig.enforcer.accept(stale)
    assert rig.enforcer.state.counts.refused_grants == 2
    rig.restart()
    assert not rig.enforcer.accept(gpu_node_spec(4, 1_600_000, epoch=2))
    assert not rig.enforcer.state.confirmed  # an older grant at the API server confirms nothing
    assert rig.enforcer.accept(
        gpu_node_spec(5, MIN_LIMITS, epoch=2)
    )  # the same is seen there: raises are allowed again
    assert not rig.enforcer.accept(gpu_node_spec(5, MIN_LIMITS, epoch=2))  # and once more is no news
    assert rig.enforcer.state.counts.refused_grants == 1
    assert rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS, epoch=3))
    rig.step()
    assert rig.acknowledged == (3, 1, MIN_LIMITS)


def test_an_invalid_spec_is_said_and_the_old_one_holds(rig: Rig) -> None:
    rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS))
    rig.step()
    assert not rig.enforcer.accept({**gpu_node_spec(2, 10**6), "boundMilliwatts": float("inf")})
    assert "spec.boundMilliwatts" in rig.enforcer.state.invalid_grant
    rig.step()
    assert rig.acknowledged == (1, 1, MIN_LIMITS)
    rig.enforcer.accept(gpu_node_spec(2, MIN_LIMITS))
    assert rig.enforcer.state.invalid_grant is None


def test_the_lease_ends_steps_down_and_comes_back_with_a_renewal(rig: Rig) -> None:
    rig.hold("gpt2", 0, 1)
    rig.enforcer.accept(
        gpu_node_spec(1, 900_000, job_grant("gpt2", 350_000), lease=10, failsafePowerLimitMilliwatts=150_000)
    )
    rig.step()
    assert rig.limits() == [350_000, 350_000, 100_000, 100_000]
    rig.step(6)
    rig.enforcer.renew_lease(1)
    rig.step(9)
    assert rig.enforcer.state.mode is Mode.GRANTED
    rig.step(1)
    assert rig.enforcer.state.mode is Mode.FAILSAFE
    assert rig.limits() == [150_000, 150_000, 100_000, 100_000]
    assert rig.enforcer.state.lease_remaining_seconds(rig.now_ns) == 0
    assert rig.enforcer.state.counts.lease_expiries == 1
    assert rig.enforcer.renew_lease(1)
    rig.step()
    assert rig.limits() == [350_000, 350_000, 100_000, 100_000]


HOLD = gpu_node_spec(
    1, 900_000, job_grant("gpt2", 350_000), lease=10, failsafePowerLimitMilliwatts=150_000, failsafeHoldSeconds=100
)


def test_a_grant_that_says_so_is_held_for_a_while_after_its_lease(rig: Rig) -> None:
    rig.hold("gpt2", 0, 1)
    rig.enforcer.accept(HOLD)
    rig.step()
    for seconds in (10, 99):
        rig.step(seconds)
        assert rig.enforcer.state.mode is Mode.HOLDING
        assert rig.limits() == [350_000, 350_000, 100_000, 100_000]
    rig.step(1)
    assert rig.enforcer.state.mode is Mode.FAILSAFE
    assert rig.limits() == [150_000, 150_000, 100_000, 100_000]
    assert rig.enforcer.state.counts.lease_expiries == 1
    assert rig.enforcer.renew_lease(1)
    rig.step()
    assert rig.limits() == [350_000, 350_000, 100_000, 100_000]


def test_while_holding_limits_fall_and_never_rise(rig: Rig) -> None:
    rig.hold("gpt2", 0)
    rig.enforcer.accept(HOLD)
    rig.step()
    rig.step(11)
    rig.hold("gpt2", 1)  # its pod has moved to another GPU
    rig.step(1)
    assert rig.enforcer.state.mode is Mode.HOLDING
    assert rig.limits() == [100_000] * GPUS


def test_a_restart_does_not_extend_the_hold_and_a_reboot_ends_it(rig: Rig) -> None:
    rig.hold("gpt2", 0, 1)
    rig.enforcer.accept(HOLD)
    rig.step()
    rig.now_ns += 50 * SECOND
    rig.restart()
    rig.step()
    assert rig.enforcer.state.mode is Mode.HOLDING
    rig.step(60)
    assert rig.enforcer.state.mode is Mode.FAILSAFE
    rig.enforcer.renew_lease(1)
    rig.node.reboot("boot-2")
    rig.restart()
    rig.step()
    assert rig.enforcer.state.mode is Mode.FAILSAFE
    assert rig.limits() == [150_000, 150_000, 100_000, 100_000]


def test_in_failsafe_nothing_is_raised_whatever_changes(rig: Rig) -> None:
    rig.hold("gpt2", 0)
    rig.enforcer.accept(
        gpu_node_spec(1, 800_000, job_grant("gpt2", 350_000), lease=1, failsafePowerLimitMilliwatts=300_000)
    )
    rig.step()
    rig.step(5)
    assert rig.limits() == [300_000, 100_000, 100_000, 100_000]
    rig.hold("gpt2", 0, 1)
    rig.step(1)
    assert rig.limits() == [300_000, 100_000, 100_000, 100_000]


def test_a_spec_at_the_min_limit_needs_no_lease(rig: Rig) -> None:
    rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS, lease=1))
    rig.step(100)
    assert rig.enforcer.state.mode is Mode.FLOOR
    assert rig.enforcer.state.counts.lease_expiries == 0


def test_a_restart_adopts_without_a_spike_and_does_not_extend_the_lease(rig: Rig) -> None:
    rig.hold("gpt2", 0, 1)
    rig.enforcer.accept(gpu_node_spec(1, 900_000, job_grant("gpt2", 350_000), lease=10))
    rig.step()
    before = rig.limits()
    rig.now_ns += 8 * SECOND
    rig.restart()
    seen = watch_sets(rig)
    rig.step()
    assert rig.limits() == before
    assert seen == []  # not one limit was set
    assert rig.acknowledged is None  # which the one before has done, and may be of a later grant than the journal has
    rig.step(2)
    assert rig.enforcer.state.mode is Mode.FAILSAFE


def test_after_a_reboot_the_min_limit_is_applied_until_the_operator_is_seen(rig: Rig) -> None:
    rig.hold("gpt2", 0, 1)
    rig.enforcer.accept(gpu_node_spec(1, 900_000, job_grant("gpt2", 350_000), lease=1000))
    rig.step()
    rig.node.reboot("boot-2")
    rig.restart()
    assert rig.limits() == [400_000] * GPUS
    rig.step()
    assert rig.enforcer.state.mode is Mode.FAILSAFE
    assert rig.limits() == [100_000] * GPUS
    rig.enforcer.renew_lease(1)
    rig.step()
    assert rig.limits() == [100_000] * GPUS  # by the journal alone nothing is raised
    rig.enforcer.accept(gpu_node_spec(1, 900_000, job_grant("gpt2", 350_000), lease=1000))
    rig.step()
    assert rig.limits() == [350_000, 350_000, 100_000, 100_000]
    assert rig.acknowledged == (1, 1, 900_000)
    assert rig.enforcer.state.acknowledged.boot_id == "boot-2"


@pytest.mark.parametrize("damage", ["disk full", "line spoilt", "record lost"])
def test_a_journal_older_than_the_acknowledgement_raises_nothing(tmp_path: Path, damage: str) -> None:
    """A cut was acknowledged, and the restarted agent's journal knows only the grant before it."""
    disk = FullDisk()
    rig = Rig(tmp_path, disk)
    rig.hold("gpt2", 0, 1)
    first, cut = (
        gpu_node_spec(1, 900_000, job_grant("gpt2", 350_000), lease=60),
        gpu_node_spec(2, 600_000, job_grant("gpt2", 200_000), lease=60),
    )
    rig.enforcer.accept(first)
    rig.step()
    disk.full = damage == "disk full"
    rig.enforcer.accept(cut)
    rig.step()
    assert rig.limits() == [200_000, 200_000, 100_000, 100_000]
    assert rig.acknowledged == ((1, 1, 900_000) if damage == "disk full" else (1, 2, 600_000))
    disk.full = False
    rig.enforcer.close()
    if damage != "disk full":
        spoil_last_grant(tmp_path, lost=damage == "record lost")
    rig.start()
    assert rig.enforcer.state.grant.version == (1, 1)
    seen = watch_sets(rig)
    for _ in range(3):
        rig.step(1)
        assert rig.enforcer.state.mode is Mode.GRANTED
    assert seen == []
    # The API server has the cut; only then does anything move, and within it.
    rig.enforcer.accept(cut)
    rig.step(COMING_NS / SECOND)  # what the journal knows as set last may have come until now
    assert rig.limits() == [200_000, 200_000, 100_000, 100_000]
    assert rig.acknowledged == (1, 2, 600_000)
    rig.enforcer.close()


def spoil_last_grant(folder: Path, *, lost: bool) -> None:
    """Flip a byte of the journal's last accepted grant, or take its line away."""
    (file,) = [path for path in folder.iterdir() if b'"accept"' in path.read_bytes()]
    lines = file.read_bytes().splitlines(keepends=True)
    last = max(index for index, line in enumerate(lines) if b'"accept"' in line)
    spoilt = b"" if lost else lines[last].replace(b"600000", b"700000", 1)
    assert spoilt != lines[last]
    lines[last] = spoilt
    file.write_bytes(b"".join(lines))


def test_a_new_leaders_heartbeat_arms_no_grant_of_the_one_before(rig: Rig) -> None:
    """After an outage in which caps may have fallen, only what the new leader has granted itself comes back."""
    rig.hold("gpt2", 0, 1)
    rig.enforcer.accept(gpu_node_spec(1, 900_000, job_grant("gpt2", 350_000), lease=10))
    rig.step()
    rig.step(20)
    assert rig.enforcer.state.mode is Mode.FAILSAFE
    assert not rig.enforcer.renew_lease(2)
    rig.step(1)
    assert rig.limits() == [100_000] * GPUS
    rig.enforcer.accept(gpu_node_spec(1, 600_000, job_grant("gpt2", 200_000), epoch=2, lease=10))
    rig.step()
    assert rig.limits() == [200_000, 200_000, 100_000, 100_000]
    rig.now_ns += 9 * SECOND
    assert not rig.enforcer.renew_lease(1)  # nor does a leader that is no more keep the new one's alive
    rig.step(1)
    assert rig.enforcer.state.mode is Mode.FAILSAFE


def test_a_reloaded_driver_is_a_new_driver_session_and_put_down_within_a_step(rig: Rig) -> None:
    rig.hold("gpt2", 0)
    rig.enforcer.accept(gpu_node_spec(1, 700_000, job_grant("gpt2", 300_000, clocks=(900, 900))))
    rig.step()
    first = rig.enforcer.state.acknowledged.driver_load
    rig.node.reload_driver()
    rig.step(1)
    assert rig.limits() == [300_000, 100_000, 100_000, 100_000]
    assert rig.locks()[0] == (900, 900)
    assert rig.enforcer.state.acknowledged.driver_load != first
    assert rig.enforcer.state.counts.drift_corrections == 0


@pytest.mark.parametrize("while_away", [False, True])
def test_a_counter_that_falls_back_is_a_new_driver_session(rig: Rig, while_away: bool) -> None:
    rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS))
    rig.step(10)
    rig.step(10)
    first = rig.enforcer.state.acknowledged.driver_load
    rig.journal.note(rig.enforcer.driver_record())
    if while_away:
        rig.enforcer.close()
    rig.node.devices[0].reset_energy_counter()
    if while_away:
        rig.start()
        rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS))
    rig.step(1)
    assert rig.enforcer.state.acknowledged.driver_load != first
    assert rig.enforcer.state.counts.counter_resets == 1
    again = rig.enforcer.state.session.driver_load
    rig.restart()
    rig.step(1)
    assert rig.enforcer.state.session.driver_load == again


def test_drift_is_put_back_within_one_step_and_counted(rig: Rig) -> None:
    rig.hold("gpt2", 0)
    rig.enforcer.accept(gpu_node_spec(1, 650_000, job_grant("gpt2", 300_000)))
    rig.step()
    rig.node.devices[0].set_power_limit_milliwatts(400_000)
    rig.node.devices[1].set_power_limit_milliwatts(390_000)
    rig.step(1)
    assert rig.limits() == [300_000, 100_000, 100_000, 100_000]
    assert rig.enforcer.state.counts.drift_corrections == 2
    first = rig.enforcer.state.last_drift
    assert first is not None
    assert first.message.startswith(rig.node.devices[0].uuid)
    rig.node.devices[0].set_power_limit_milliwatts(120_000)  # somebody took watts away: given back
    rig.step(1)
    assert rig.limits()[0] == 300_000
    rig.step(1)
    assert rig.enforcer.state.counts.drift_corrections == 3


def test_the_gpus_of_foreign_pods_are_left_alone_until_they_are_reserved(rig: Rig) -> None:
    rig.pods[rig.node.devices[3].uuid] = (PodName("other", "inference"),)
    rig.enforcer.set_pods(rig.pods)
    rig.enforcer.accept(gpu_node_spec(1, 700_000))
    rig.step()
    assert rig.limits() == [100_000, 100_000, 100_000, 400_000]
    assert rig.acknowledged == (1, 1, 700_000)
    rig.node.devices[3].set_power_limit_milliwatts(222_000)  # its owner's business
    rig.step(1)
    assert rig.limits()[3] == 222_000
    assert rig.enforcer.state.counts.drift_corrections == 0
    rig.enforcer.accept(gpu_node_spec(2, 700_000, foreignGpus=1, foreignPowerLimitMilliwatts=180_000))
    rig.step()
    assert rig.limits()[3] == 180_000


def test_one_lost_gpu_keeps_its_watts_and_stops_nobody(rig: Rig) -> None:
    rig.hold("gpt2", 0, 1)
    rig.enforcer.accept(gpu_node_spec(1, 800_000, job_grant("gpt2", 300_000)))
    rig.step()
    rig.node.devices[0].flags |= DeviceFault.LOST
    rig.enforcer.accept(gpu_node_spec(2, 700_000, job_grant("gpt2", 200_000)))
    rig.step()
    assert rig.limits()[1:] == [200_000, 100_000, 100_000]
    assert rig.enforcer.state.gpus[rig.node.devices[0].uuid].failure.reason == "Lost"
    assert rig.acknowledged == (1, 2, 700_000)  # 300 W of the lost one among them
    rig.node.devices[0].flags = DeviceFault(0)
    rig.step(1)
    assert rig.limits()[0] == 200_000
    assert rig.acknowledged == (1, 2, 600_000)


def test_a_gpu_that_is_not_found_any_more_stays_reserved(rig: Rig) -> None:
    rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS))
    rig.step()
    uuid = rig.node.devices[3].uuid
    rig.restart(driver=FewerGpus(rig.node, uuid))
    rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS))
    rig.step()
    missing = rig.enforcer.state.gpus[uuid]
    assert (missing.usable, missing.index, missing.model) == (False, -1, A100.product_name)
    assert "not found now" in missing.failure.message
    # The journal's last set of it was 400 -> 100 W; what it holds now nobody can read.
    assert rig.acknowledged == (1, 1, 300_000 + 400_000)


def test_a_gpu_that_cannot_be_opened_and_does_not_say_its_uuid_is_the_one_that_is_missing(rig: Rig) -> None:
    rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS))
    rig.step()
    uuid = rig.node.devices[3].uuid
    lost = UnopenedGpu(3, "", "", None, GpuLost("handle", "GPU 3", 15))
    unknown = UnopenedGpu(4, "", "", None, GpuLost("handle", "GPU 4", 15))
    rig.restart(driver=FewerGpus(rig.node, uuid, unopened=(lost, unknown)))
    rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS))
    rig.step()
    gpus = rig.enforcer.state.gpus
    assert set(gpus) == {device.uuid for device in rig.node.devices} | {unnamed_uuid(4)}
    assert gpus[uuid].failure is not None
    assert gpus[uuid].failure.reason == "Lost"
    assert (gpus[unnamed_uuid(4)].index, gpus[unnamed_uuid(4)].held_milliwatts) == (4, 400_000)
    assert rig.acknowledged == (1, 1, 300_000 + 2 * 400_000)


def test_a_gpu_that_was_replaced_counts_until_it_is_forgotten(rig: Rig) -> None:
    rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS))
    rig.step()
    uuid = rig.node.devices[3].uuid
    rig.restart(driver=FewerGpus(rig.node, uuid))
    rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS))
    rig.step()
    assert rig.acknowledged == (1, 1, 300_000 + 400_000)
    present = rig.node.devices[0].uuid
    request_forget(rig.folder, "node-0", uuid)
    request_forget(rig.folder, "node-0", present)
    requests = Requests(rig.folder, "node-0")
    asked = requests.take_forgotten()
    assert asked == [uuid, present]
    assert requests.take_forgotten() == []
    rig.enforcer.forget(asked)
    rig.step()
    assert rig.acknowledged == (1, 1, 300_000)  # what is there is never forgotten
    rig.restart(driver=FewerGpus(rig.node, uuid))
    assert uuid not in rig.enforcer.state.gpus
    with pytest.raises(ValueError, match=f"GPU {uuid} is not remembered"):
        request_forget(rig.folder, "node-0", uuid)


def test_a_gpu_that_refuses_its_limit_is_asked_less_and_less(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rig.node.devices[0].flags |= DeviceFault.SETTERS_FAIL
    rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS, lease=10**6))
    rig.step()
    asked = rig.enforcer.state.counts.applied["lower"]
    for _ in range(600):
        rig.step(1)
    again = rig.enforcer.state.counts.applied["lower"] - asked
    assert 10 <= again <= 9 + 6 + 600 // 60 + 1  # in each of ten rounds, then with pauses of up to a minute
    lines: list[Any] = [record.msg for record in caplog.records if record.msg["event"] == "limits"]  # type: ignore[index]
    # Each change once, and those that went the same way together.
    assert sorted((len(line["uuids"]), line["read_back_milliwatts"]) for line in lines) == [
        (1, 400_000),
        (GPUS - 1, 100_000),
    ]
    assert rig.acknowledged == (1, 1, 300_000 + 400_000)
    rig.enforcer.accept(gpu_node_spec(2, 450_000, idlePowerLimitMilliwatts=110_000, lease=10**6))
    rig.node.devices[0].flags = DeviceFault(0)
    rig.step()
    assert rig.limits() == [110_000] * GPUS  # another limit is asked for at once


def test_a_setter_that_lies_blocks_the_acknowledgement_then_is_reported(rig: Rig) -> None:
    rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS))
    rig.node.devices[0].flags |= DeviceFault.SETTERS_LIE
    rig.step()
    assert rig.acknowledged is None
    assert rig.enforcer.state.settling
    rig.hold("gpt2", 1)
    rig.enforcer.accept(gpu_node_spec(2, 700_000, job_grant("gpt2", 300_000)))
    rig.step()
    assert rig.limits() == [400_000, 100_000, 100_000, 100_000]  # no watt for the job: the liar holds them
    assert rig.acknowledged is None
    rig.step(3)
    assert rig.acknowledged == (1, 2, 700_000)
    liar = rig.enforcer.state.gpus[rig.node.devices[0].uuid]
    assert liar.stays_above
    assert "reads back 400000 mW" in liar.set_error
    rig.node.devices[0].flags = DeviceFault(0)
    rig.step(1)
    assert rig.limits() == [100_000] * 4
    rig.step(1)  # what it had taken from the job is given back once it is seen to be free
    assert rig.limits() == [100_000, 300_000, 100_000, 100_000]
    assert rig.acknowledged == (1, 2, 600_000)
    assert rig.enforcer.state.gpus[liar.uuid].set_error is None


def test_a_gpu_above_the_grant_is_told_never_hidden(rig: Rig) -> None:
    for device in rig.node.devices[:2]:
        device.flags |= DeviceFault.SETTERS_FAIL
    rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS))
    rig.step()
    rig.step(3)
    assert rig.acknowledged == (1, 1, 1_000_000)  # far above the grant of 400 W, and said so


def test_a_late_limit_is_waited_for_before_anything_is_raised(rig: Rig) -> None:
    rig.node.settle_milliseconds = 500
    rig.hold("gpt2", 0)
    rig.enforcer.accept(gpu_node_spec(1, 700_000, job_grant("gpt2", 400_000)))
    rig.step()
    assert rig.acknowledged is None
    rig.hold("gpt2", 1)
    rig.hold("bert", 0)
    rig.enforcer.accept(gpu_node_spec(2, 700_000, job_grant("bert", 100_000), job_grant("gpt2", 400_000)))
    rig.step(0.6)
    assert rig.limits() == [100_000, 100_000, 100_000, 100_000]  # 0 still holds 400 W, and 1 may not have them yet
    assert rig.enforcer.state.settling
    rig.step(0.6)
    assert rig.limits() == [100_000, 400_000, 100_000, 100_000]
    assert rig.acknowledged == (1, 2, 700_000)


def late_raise(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """GPU 0 says that it takes a raise and does so later, when what the answer has is set."""
    rig.hold("gpt2", 0)
    rig.hold("bert", 1)
    rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS, job_grant("gpt2", 100_000), job_grant("bert", 100_000)))
    rig.step()
    coming: list[int] = []
    with monkeypatch.context() as late:
        take = type(rig.node.devices[0]).set_power_limit_milliwatts
        first = rig.node.devices[0]
        late.setattr(
            type(first),
            "set_power_limit_milliwatts",
            lambda gpu, mw: coming.append(mw) if gpu is first else take(gpu, mw),
        )
        rig.enforcer.accept(gpu_node_spec(2, 500_000, job_grant("gpt2", 200_000), job_grant("bert", 100_000)))
        rig.step(1)
    assert coming == [200_000]
    return coming


def test_a_raise_that_has_not_come_yet_is_counted_when_its_watts_go_to_another(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    coming = late_raise(rig, monkeypatch)
    assert rig.acknowledged == (1, 2, 500_000)
    assert rig.limits() == [100_000, 100_000, 100_000, 100_000]
    rig.enforcer.accept(gpu_node_spec(3, 500_000, job_grant("gpt2", 100_000), job_grant("bert", 200_000)))
    rig.step(1)
    assert rig.limits() == [100_000, 100_000, 100_000, 100_000]  # the other's watts may come at any moment
    assert rig.acknowledged == (1, 2, 500_000)
    rig.node.devices[0].set_power_limit_milliwatts(*coming)
    rig.step(1)
    assert rig.limits() == [100_000, 200_000, 100_000, 100_000]
    assert rig.acknowledged == (1, 3, 500_000)


def test_a_raise_that_never_comes_is_counted_for_a_while(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    late_raise(rig, monkeypatch)
    rig.enforcer.accept(gpu_node_spec(3, 500_000, job_grant("gpt2", 100_000), job_grant("bert", 200_000)))
    rig.step(COMING_NS / SECOND - 0.1)
    assert rig.limits() == [100_000, 100_000, 100_000, 100_000]
    rig.step(0.1)
    assert rig.limits() == [100_000, 200_000, 100_000, 100_000]
    assert rig.acknowledged == (1, 3, 500_000)


def test_a_raise_that_was_overtaken_by_another_limit_never_comes(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    late_raise(rig, monkeypatch)
    rig.enforcer.accept(gpu_node_spec(3, 500_000, job_grant("gpt2", 150_000), job_grant("bert", 100_000)))
    rig.step(1)  # taken: what was asked before it has been worked off
    rig.enforcer.accept(gpu_node_spec(4, 500_000, job_grant("gpt2", 100_000), job_grant("bert", 200_000)))
    rig.step(1)
    assert rig.limits() == [100_000, 200_000, 100_000, 100_000]


class Unanswered(DirectCalls):
    """Calls that end in an error though the driver has what they ask for; none is made on a GPU that hangs."""

    def __init__(self) -> None:
        self.error: type[GpuError] | None = None

    def each(
        self, operation: str, calls: Sequence[tuple[Gpu, GpuCall[T]]], returned: Returned | None = None
    ) -> Coroutine[Any, Any, list[T | GpuError]]:
        if self.error is None:
            return super().each(operation, calls, returned)
        return self._all_failed([self.error(operation, gpu.uuid) for gpu, _ in calls])

    async def _all_failed(self, errors: list[GpuError]) -> list[T | GpuError]:
        return [*errors]


@pytest.mark.parametrize("error", [CallTimedOut, DriverUnavailable])
def test_a_raise_may_come_though_nobody_has_heard_what_became_of_it(rig: Rig, error: type[GpuError]) -> None:
    """A worker may die between the call and its answer, and a call may hang for longer than a raise is waited for."""
    calls = Unanswered()
    rig.restart(calls=calls)
    rig.hold("gpt2", 0)
    rig.hold("bert", 1)
    rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS, job_grant("gpt2", 100_000), job_grant("bert", 100_000)))
    rig.step()
    raised = rig.enforcer.state.gpus[rig.node.devices[0].uuid]
    rig.enforcer.state.put(raised.after_set(MilliwattsPerGpu(200_000), error("set"), error("read back"), rig.now_ns))
    calls.error = error
    for _ in range(12 if error is CallTimedOut else 3):
        rig.step(1)
    calls.error = None
    rig.enforcer.accept(gpu_node_spec(3, 500_000, job_grant("gpt2", 100_000), job_grant("bert", 200_000)))
    rig.step(1)
    assert rig.limits() == [100_000] * GPUS, "the other's watts may come at any moment"
    rig.step(COMING_NS / SECOND)
    assert rig.limits() == [100_000, 200_000, 100_000, 100_000]


def test_a_raise_may_come_of_a_gpu_that_hung_for_as_long_as_nobody_looked(rig: Rig) -> None:
    """An enforcer that was frozen, or starved, finds the call that sets the limit still under way."""
    calls = Unanswered()
    rig.restart(calls=calls)
    rig.hold("gpt2", 0)
    rig.hold("bert", 1)
    rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS, job_grant("gpt2", 100_000), job_grant("bert", 100_000)))
    rig.step()
    error = CallTimedOut("set", rig.node.devices[0].uuid)
    raised = rig.enforcer.state.gpus[rig.node.devices[0].uuid]
    rig.enforcer.state.put(raised.after_set(MilliwattsPerGpu(200_000), error, error, rig.now_ns))
    calls.error = CallTimedOut
    rig.step(2 * COMING_NS / SECOND)
    calls.error = None
    rig.enforcer.accept(gpu_node_spec(3, 500_000, job_grant("gpt2", 100_000), job_grant("bert", 200_000)))
    rig.step(1)
    assert rig.limits() == [100_000] * GPUS, "the other's watts may come at any moment"
    # What would have come long ago does not come by a hang that begins now.
    rig.step(COMING_NS / SECOND)
    assert rig.limits() == [100_000, 200_000, 100_000, 100_000]
    calls.error = CallTimedOut
    rig.step(1)
    rig.step(1)
    calls.error = None
    rig.step(1)
    assert rig.acknowledged == (1, 3, 500_000)


class Slow(DirectCalls):
    """Calls that take a second each time; `rig` is the one whose clock shows it."""

    rig: Rig

    def each(
        self, operation: str, calls: Sequence[tuple[Gpu, GpuCall[T]]], returned: Returned | None = None
    ) -> Coroutine[Any, Any, list[T | GpuError]]:
        begun = super().each(operation, calls, returned)
        self.rig.now_ns += SECOND
        return begun


def test_what_is_known_is_of_when_it_began_to_be_read(rig: Rig) -> None:
    """The driver may be loaded anew before the round is over: nothing says then that the agent was there to see it."""
    calls = Slow()
    calls.rig = rig
    rig.restart(calls=calls)
    assert rig.enforcer.state.looked_ns is None
    rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS))
    for _ in range(2):
        began_ns = rig.now_ns
        rig.step()
        assert rig.now_ns > began_ns
        assert rig.enforcer.state.looked_ns == began_ns
    rig.enforcer.accept(gpu_node_spec(2, MIN_LIMITS))
    began_ns = rig.now_ns
    rig.step()
    acknowledged = rig.enforcer.state.acknowledged
    assert acknowledged is not None
    assert (acknowledged.generation, acknowledged.boottime_nanoseconds) == (2, began_ns)


def test_a_raise_never_comes_of_a_driver_that_was_loaded_anew(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    late_raise(rig, monkeypatch)
    rig.node.driver_load += 1
    rig.enforcer.accept(gpu_node_spec(3, 500_000, job_grant("gpt2", 100_000), job_grant("bert", 200_000)))
    rig.step(1)
    assert rig.limits() == [100_000, 200_000, 100_000, 100_000]


def test_a_raise_that_an_agent_asked_for_before_its_end_may_come_under_the_next_one(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    coming = late_raise(rig, monkeypatch)
    rig.restart()
    rig.enforcer.accept(gpu_node_spec(3, 500_000, job_grant("gpt2", 100_000), job_grant("bert", 200_000)))
    rig.step(1)
    assert rig.limits() == [100_000, 100_000, 100_000, 100_000]
    rig.node.devices[0].set_power_limit_milliwatts(*coming)
    rig.step(1)
    assert rig.limits() == [100_000, 200_000, 100_000, 100_000]


def test_of_two_raises_that_an_agent_asked_for_before_its_end_the_first_may_come_under_the_next_one(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that is late works them off in order; only the last set of each GPU is in the journal."""
    coming = late_raise(rig, monkeypatch)
    with monkeypatch.context() as late:
        late.setattr(type(rig.node.devices[0]), "set_power_limit_milliwatts", lambda gpu, mw: coming.append(mw))
        rig.enforcer.accept(gpu_node_spec(3, 500_000, job_grant("gpt2", 150_000), job_grant("bert", 100_000)))
        rig.step(1)
    assert coming == [200_000, 150_000]
    rig.restart()
    rig.enforcer.accept(gpu_node_spec(4, 500_000, job_grant("gpt2", 100_000), job_grant("bert", 200_000)))
    rig.step(1)
    assert rig.limits() == [100_000, 100_000, 100_000, 100_000]
    for milliwatts in coming:
        rig.node.devices[0].set_power_limit_milliwatts(milliwatts)
    rig.step(1)
    assert rig.limits() == [100_000, 200_000, 100_000, 100_000]


@pytest.mark.parametrize("restarts", [1, 2])
@pytest.mark.parametrize("again", [False, True], ids=["opens", "opens once the agent has begun again"])
def test_a_raise_may_come_under_an_agent_that_begins_without_a_driver(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, restarts: int, again: bool
) -> None:
    """A driver that does not open may have been asked for a raise by the agent before, and be the same that opens then."""
    coming = late_raise(rig, monkeypatch)
    for _ in range(restarts):
        rig.restart(driver=AbsentDriver(DriverUnavailable("open"), "boot-1"))
        rig.step(1)
    if again:
        rig.restart()
    else:
        rig.step(COMING_NS / SECOND)  # while it is away nobody knows that its GPUs do not hang
        rig.enforcer.swap_driver(rig.driver)
    rig.enforcer.accept(gpu_node_spec(3, 500_000, job_grant("gpt2", 100_000), job_grant("bert", 200_000)))
    rig.step(1)
    assert rig.limits() == [100_000, 100_000, 100_000, 100_000]
    rig.node.devices[0].set_power_limit_milliwatts(*coming)
    rig.step(1)
    assert rig.limits() == [100_000, 200_000, 100_000, 100_000]


@pytest.mark.parametrize("restarts", [0, 2])
@pytest.mark.parametrize("damage", ["lost", "its last set unreadable", "unreadable for a moment"])
def test_a_raise_may_come_that_the_journal_has_forgotten(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, damage: str, restarts: int
) -> None:
    coming = late_raise(rig, monkeypatch)
    rig.enforcer.close()
    path = rig.journal.path
    if damage == "lost":
        path.unlink()
    elif damage == "unreadable for a moment":
        with monkeypatch.context() as sick:
            sick.setattr(Path, "read_bytes", no_disk)
            rig.start()
    else:
        forget_last_set(path)
    if damage != "unreadable for a moment":
        rig.start()
    for _ in range(restarts):  # one that begins anew has a journal that can be read
        rig.step(1)
        rig.restart()
    rig.enforcer.accept(gpu_node_spec(3, 500_000, job_grant("gpt2", 100_000), job_grant("bert", 200_000)))
    rig.step(1)
    assert rig.limits() == [100_000, 100_000, 100_000, 100_000]
    rig.node.devices[0].set_power_limit_milliwatts(*coming)
    rig.step(1)
    assert rig.limits()[0] == 100_000
    rig.step(COMING_NS / SECOND)
    assert rig.limits() == [100_000, 200_000, 100_000, 100_000]


def assert_others_are_raised_after(rig: Rig, coming: list[int]) -> None:
    """The raise that was forgotten comes now, and is worked off before another GPU gets its watts."""
    rig.node.devices[0].set_power_limit_milliwatts(*coming)
    rig.step(1)
    rig.step(COMING_NS / SECOND)
    assert rig.limits() == [100_000, 200_000, 100_000, 100_000]


def test_a_forgotten_raise_may_come_though_a_gpu_has_what_it_was_set_to(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have that by an earlier set of the agent before, whose driver is late; the raise comes between the two."""
    coming = late_raise(rig, monkeypatch)
    rig.enforcer.close()
    rig.journal.path.unlink()
    for device in rig.node.devices:
        device.set_power_limit_milliwatts(150_000)
    rig.start()
    rig.enforcer.accept(gpu_node_spec(3, 500_000, job_grant("gpt2", 100_000), job_grant("bert", 100_000)))
    rig.step(1)
    assert rig.limits() == [100_000, 100_000, 100_000, 100_000]
    assert rig.acknowledged is None
    rig.enforcer.accept(gpu_node_spec(4, 500_000, job_grant("gpt2", 100_000), job_grant("bert", 200_000)))
    rig.step(1)
    assert rig.limits() == [100_000, 100_000, 100_000, 100_000]
    assert_others_are_raised_after(rig, coming)
    assert rig.acknowledged == (1, 4, 500_000)


def test_a_forgotten_raise_may_come_though_the_driver_opens_only_later(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    coming = late_raise(rig, monkeypatch)
    rig.enforcer.close()
    forget_last_set(rig.journal.path)
    rig.start(driver=AbsentDriver(DriverUnavailable("open"), "boot-1"))
    rig.step(COMING_NS / SECOND)
    rig.enforcer.swap_driver(rig.driver)
    rig.enforcer.accept(gpu_node_spec(3, 500_000, job_grant("gpt2", 100_000), job_grant("bert", 200_000)))
    rig.step(1)
    assert rig.limits() == [100_000, 100_000, 100_000, 100_000]
    assert rig.acknowledged is None
    assert_others_are_raised_after(rig, coming)


@pytest.mark.parametrize("told", ["at once", "later", "after a restart", "after two restarts"])
@pytest.mark.parametrize("journal", ["as it was before", "of another folder"])
def test_a_raise_may_come_that_was_made_under_a_later_grant_than_the_journal_knows(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, told: str, journal: str
) -> None:
    """By what was acknowledged an agent sees that its journal is not the one before it wrote last."""
    rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS))
    rig.step()
    before = rig.journal.path.read_bytes()
    coming = late_raise(rig, monkeypatch)
    acknowledged = rig.enforcer.state.acknowledged
    assert acknowledged is not None
    rig.enforcer.close()
    if journal == "as it was before":
        rig.journal.path.write_bytes(before)
    else:
        rig.folder = rig.folder / "other"
    rig.start()
    spec = gpu_node_spec(3, 500_000, job_grant("gpt2", 100_000), job_grant("bert", 200_000))
    if told != "at once":
        rig.enforcer.accept(spec, acknowledged=None)
        rig.step(1)
        assert rig.acknowledged is None
    for _ in range({"after a restart": 1, "after two restarts": 2}.get(told, 0)):  # the grant is in the journal by then
        rig.restart()
        rig.enforcer.accept(spec, acknowledged=None)
    rig.enforcer.accept(spec, acknowledged=(acknowledged,))
    rig.step(1)
    assert rig.acknowledged is None
    assert rig.limits() == [100_000, 100_000, 100_000, 100_000]
    assert_others_are_raised_after(rig, coming)
    assert rig.acknowledged == (1, 3, 500_000)
    its_own = rig.enforcer.state.acknowledged
    assert its_own is not None
    spec = gpu_node_spec(4, 600_000, job_grant("gpt2", 100_000), job_grant("bert", 300_000))
    rig.enforcer.accept(spec, acknowledged=(its_own,))  # as by an agent's process that began anew
    rig.step(1)
    assert rig.acknowledged == (1, 4, 600_000)
    rig.restart()
    rig.enforcer.accept(spec, acknowledged=(its_own,))
    assert not rig.journal.state.gaps, "what was acknowledged since is this journal's own"


def test_a_gpu_that_is_lost_counts_at_its_largest_limit_where_the_journal_is_older_than_what_was_acknowledged(
    rig: Rig,
) -> None:
    rig.hold("gpt2", 0)
    for generation, milliwatts in ((1, 150_000), (2, 120_000), (3, 200_000)):
        rig.enforcer.accept(gpu_node_spec(generation, 500_000, job_grant("gpt2", milliwatts)))
        rig.step(1)
        if generation == 2:
            before = rig.journal.path.read_bytes()
    acknowledged = rig.enforcer.state.acknowledged
    assert acknowledged is not None
    rig.enforcer.close()
    rig.journal.path.write_bytes(before)
    rig.node.devices[0].flags = DeviceFault.LOST
    rig.start()
    rig.enforcer.accept(gpu_node_spec(3, 500_000, job_grant("gpt2", 200_000)), acknowledged=(acknowledged,))
    rig.step(1)
    rig.step(COMING_NS / SECOND)
    assert rig.acknowledged == (1, 3, 700_000)


@pytest.mark.parametrize("at", ["the start", "a moment later", "the next start"])
def test_a_gpu_that_is_lost_counts_at_its_largest_limit_while_nobody_knows_what_it_was_set_to(
    rig: Rig, at: str
) -> None:
    """The set that was its last may be the one that the journal has lost, or have yet to come."""
    rig.hold("gpt2", 0)
    rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS, job_grant("gpt2", 100_000)))
    rig.step()
    for generation, milliwatts in ((2, 150_000), (3, 200_000)):
        rig.enforcer.accept(gpu_node_spec(generation, 500_000, job_grant("gpt2", milliwatts)))
        rig.step(1)
    rig.enforcer.close()
    forget_last_set(rig.journal.path)
    first = rig.node.devices[0]
    if at == "the start":
        first.flags = DeviceFault.LOST
    rig.start()
    rig.enforcer.accept(gpu_node_spec(3, 500_000, job_grant("gpt2", 200_000)))
    rig.step(1)
    if at == "the next start":
        rig.step(COMING_NS / SECOND)
        assert rig.acknowledged == (1, 3, 500_000)
        rig.restart()
        rig.enforcer.accept(gpu_node_spec(3, 500_000, job_grant("gpt2", 200_000)))
    first.flags = DeviceFault.LOST
    rig.step(1)
    rig.step(COMING_NS / SECOND)
    assert rig.acknowledged == (1, 3, 700_000)


@pytest.mark.parametrize("restarts", [0, 2])
def test_a_gpu_that_is_lost_counts_at_its_largest_limit_though_it_was_set_since_something_was_forgotten(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, restarts: int
) -> None:
    """What was forgotten may come after that set."""
    late_raise(rig, monkeypatch)
    rig.enforcer.close()
    forget_last_set(rig.journal.path)
    first = rig.node.devices[0]
    first.set_power_limit_milliwatts(150_000)
    rig.start()
    grant = gpu_node_spec(3, 700_000, job_grant("gpt2", 100_000), job_grant("bert", 100_000))
    rig.enforcer.accept(grant)
    rig.step(1)
    assert rig.limits() == [100_000] * GPUS
    lost = FewerGpus(rig.node, first.uuid)
    rig.restart(driver=lost)
    for _ in range(restarts):
        rig.step(1)
        rig.step(COMING_NS / SECOND)
        rig.restart(driver=lost)
    rig.enforcer.accept(grant)
    rig.step(1)
    rig.step(COMING_NS / SECOND)
    assert rig.acknowledged == (1, 3, 700_000)


@pytest.mark.parametrize(
    "error",
    [GpuLost("open"), None, CallTimedOut("open"), DriverUnavailable("open")],
    ids=["lost", "gone", "hung", "without a driver"],
)
def test_for_a_gpu_that_cannot_be_read_no_later_agent_waits_for_what_is_forgotten(
    rig: Rig, error: GpuError | None
) -> None:
    """Unless it hangs, perhaps in the very call that nobody remembers, or its driver is gone, perhaps behind that call."""
    rig.step()
    rig.enforcer.close()
    rig.journal.path.write_bytes(rig.journal.path.read_bytes() + b"spoilt\n")
    uuid = rig.node.devices[3].uuid
    unopened = () if error is None else (UnopenedGpu(3, uuid, "", MilliwattsPerGpu(400_000), error),)
    driver = FewerGpus(rig.node, uuid, unopened=unopened)
    rig.start(driver=driver)
    rig.enforcer.accept(gpu_node_spec(1, 700_000))
    rig.step(1)
    assert rig.acknowledged is None
    rig.step(COMING_NS / SECOND)
    unheard = isinstance(error, CallTimedOut | DriverUnavailable)
    assert rig.journal.state.gaps is unheard
    rig.restart(driver=driver)
    rig.enforcer.accept(gpu_node_spec(1, 700_000))
    rig.step(1)
    assert rig.acknowledged == (None if unheard else (1, 1, 700_000))


@pytest.mark.parametrize("from_the_start", [True, False])
def test_a_gpu_that_hangs_now_and_then_keeps_nobody_waiting_for_ever_for_what_is_forgotten(
    rig: Rig, from_the_start: bool
) -> None:
    """As long as it hangs nothing of that comes; once it has begun to answer it was no call of the agent before."""
    rig.step()
    rig.enforcer.close()
    rig.journal.path.unlink()
    rig.start()
    rig.enforcer.accept(gpu_node_spec(1, 700_000))
    first = rig.node.devices[0]
    if from_the_start:
        first.flags |= DeviceFault.HANG
        for _ in range(5):
            rig.step(5)
        first.flags &= ~DeviceFault.HANG
    answered = 0
    while rig.acknowledged is None and answered < 30:
        rig.step(1)
        answered += 1
        if answered % 5 == 0:
            first.flags |= DeviceFault.HANG
            rig.step(2)
            first.flags &= ~DeviceFault.HANG
    assert COMING_NS / SECOND <= answered <= COMING_NS / SECOND + 4


def forget_last_set(journal: Path) -> None:
    *lines, last = [line for line in journal.read_bytes().splitlines() if b'"intent"' in line]
    assert lines
    journal.write_bytes(journal.read_bytes().replace(last, last[:-9]))


def no_disk(path: Path) -> Never:
    raise OSError(f"{path}: input/output error")


def test_a_raise_may_come_of_a_driver_that_was_let_go_of_and_opened_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    coming = late_raise(rig, monkeypatch)
    rig.enforcer.swap_driver(AbsentDriver(DriverUnavailable("read"), "boot-1"))
    rig.step(COMING_NS / SECOND)
    rig.enforcer.swap_driver(rig.driver)
    rig.enforcer.accept(gpu_node_spec(3, 500_000, job_grant("gpt2", 100_000), job_grant("bert", 200_000)))
    rig.step(1)
    assert rig.limits() == [100_000, 100_000, 100_000, 100_000]
    rig.node.devices[0].set_power_limit_milliwatts(*coming)
    rig.step(1)
    assert rig.limits() == [100_000, 200_000, 100_000, 100_000]


def test_what_a_cut_has_taken_is_not_counted_any_more_by_the_next_process(rig: Rig) -> None:
    rig.hold("gpt2", 0)
    rig.enforcer.accept(gpu_node_spec(1, 600_000, job_grant("gpt2", 300_000)))
    rig.step()
    rig.enforcer.accept(gpu_node_spec(2, 500_000, job_grant("gpt2", 200_000)))
    rig.step()
    rig.restart()
    rig.enforcer.accept(gpu_node_spec(2, 500_000, job_grant("gpt2", 200_000)))
    rig.step()
    assert rig.acknowledged == (1, 2, 500_000)


def test_a_raise_may_come_though_an_energy_counter_began_anew(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """That alone proves no load of the driver."""
    rig.step(10)
    late_raise(rig, monkeypatch)
    rig.node.devices[0].reset_energy_counter()
    rig.enforcer.accept(gpu_node_spec(3, 500_000, job_grant("gpt2", 100_000), job_grant("bert", 200_000)))
    for _ in range(2):
        rig.step(1)
    assert rig.enforcer.state.counts.counter_resets == 1
    assert rig.limits() == [100_000, 100_000, 100_000, 100_000]


def test_an_out_of_band_cap_is_no_drift_and_its_room_is_not_given_away(rig: Rig) -> None:
    rig.hold("gpt2", 0, 1)
    rig.enforcer.accept(gpu_node_spec(1, 800_000, job_grant("gpt2", 300_000)))
    rig.step()
    rig.node.devices[0].set_out_of_band_cap_milliwatts(120_000)
    rig.step(1)
    assert rig.limits() == [300_000, 300_000, 100_000, 100_000]
    assert rig.enforcer.state.counts.drift_corrections == 0
    assert rig.acknowledged == (1, 1, 800_000)


def test_a_hung_gpu_is_not_acknowledged_for_and_others_are_served(tmp_path: Path) -> None:
    """Here its calls are given up at once; `test_a_call_that_hangs_in_the_library_costs_one_gpu_only` waits for one."""
    rig = Rig(tmp_path)
    hung: set[str] = set()

    class Hanging(DirectCalls):
        async def each(
            self, operation: str, calls: Sequence[tuple[Gpu, GpuCall[T]]], returned: Returned | None = None
        ) -> list[T | GpuError]:
            answered = await super().each(operation, [call for call in calls if call[0].uuid not in hung], returned)
            answers = iter(answered)
            return [CallTimedOut(operation, gpu.uuid) if gpu.uuid in hung else next(answers) for gpu, _ in calls]

    rig.hold("gpt2", 1)
    rig.restart(calls=Hanging())
    rig.enforcer.accept(gpu_node_spec(1, 650_000, job_grant("gpt2", 300_000)))
    rig.step()
    assert rig.acknowledged == (1, 1, 600_000)
    hung.add(rig.node.devices[0].uuid)
    rig.enforcer.accept(gpu_node_spec(2, 650_000, job_grant("gpt2", 200_000)))
    rig.step()
    assert rig.limits() == [100_000, 200_000, 100_000, 100_000]
    assert rig.enforcer.state.gpus[rig.node.devices[0].uuid].failure.reason == "CallTimedOut"
    assert rig.acknowledged == (1, 1, 600_000)  # not for generation 2
    hung.clear()
    rig.step()
    assert rig.acknowledged == (1, 2, 500_000)


def test_a_driver_that_stays_broken_is_said_to_be_until_it_works_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(gpu: SimulatedGpu) -> Never:
        raise UnknownDriverError("read", gpu.uuid, 999)

    rig.step()
    monkeypatch.setattr(SimulatedGpu, "read", broken)
    for _ in range(ROUNDS_BEFORE_EXIT - 1):
        rig.step(1)
    assert rig.enforcer.state.driver_broken is None
    rig.step(1)
    assert "NVML error 999" in str(rig.enforcer.state.driver_broken)
    monkeypatch.undo()
    rig.step(1)
    assert rig.enforcer.state.driver_broken is None


def test_no_permission_on_every_gpu_ends_the_process_with_a_sentence(rig: Rig) -> None:
    for device in rig.node.devices[1:]:
        device.flags |= DeviceFault.NO_PERMISSION
    rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS))
    for _ in range(ROUNDS_BEFORE_EXIT + 2):
        rig.node.devices[0].set_power_limit_milliwatts(400_000)  # this one can still be set, each time
        rig.step(1)
    assert rig.enforcer.state.must_exit is None
    rig.node.devices[0].flags |= DeviceFault.NO_PERMISSION
    for _ in range(3 * ROUNDS_BEFORE_EXIT):  # the others are asked less and less by now
        rig.step(1)
    assert "CAP_SYS_ADMIN" in str(rig.enforcer.state.must_exit)


class StuckDisk(QuickDisk):
    """Does not come back from a sync while it is `stuck`."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.free.set()
        self.waiting = 0

    def sync(self, descriptor: int) -> None:
        self.waiting += 1
        self.free.wait(60)


async def test_a_disk_that_hangs_delays_no_cut_and_stops_no_round(tmp_path: Path) -> None:
    threads = set(threading.enumerate())
    disk = StuckDisk()
    rig = Rig(tmp_path, disk)
    rig.enforcer.close()
    rig.journal = Journal(tmp_path, "node-0", disk=disk, disk_seconds=0.5)
    rig.enforcer = Enforcer("node-0", rig.driver, rig.journal, clock_ns=lambda: rig.now_ns)
    rig.hold("gpt2", 0, 1)
    rig.enforcer.accept(gpu_node_spec(1, 900_000, job_grant("gpt2", 350_000), lease=10))
    await rig.enforcer.step()
    assert rig.limits() == [350_000, 350_000, 100_000, 100_000]
    disk.free.clear()
    rig.enforcer.accept(gpu_node_spec(2, 700_000, job_grant("gpt2", 200_000), lease=10))
    await rig.enforcer.step()
    assert rig.limits() == [200_000, 200_000, 100_000, 100_000]
    assert rig.acknowledged == (1, 1, 900_000)
    assert "has not answered" in rig.enforcer.state.journal_error
    rig.enforcer.accept(gpu_node_spec(3, 900_000, job_grant("gpt2", 350_000), lease=10))
    waiting = disk.waiting
    await rig.enforcer.step()
    assert rig.limits() == [200_000, 200_000, 100_000, 100_000]  # no raise without the disk
    assert disk.waiting == waiting  # nor one thread more
    rig.now_ns += 20 * SECOND
    await rig.enforcer.step()
    assert rig.limits() == [100_000] * GPUS  # and the lease's end is enforced
    disk.free.set()
    rig.enforcer.renew_lease(1)
    await until(lambda: set(threading.enumerate()) <= threads)
    await rig.enforcer.step()
    assert rig.limits() == [350_000, 350_000, 100_000, 100_000]
    assert rig.acknowledged == (1, 3, 900_000)
    rig.enforcer.close()


async def test_a_grant_that_comes_while_the_disk_is_busy_stops_the_raise(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS))
    await rig.enforcer.step()
    rig.enforcer.close()
    disk = StuckDisk()
    rig.disk = disk
    rig.start()
    rig.hold("gpt2", 0, 1)
    rig.enforcer.accept(gpu_node_spec(2, 900_000, job_grant("gpt2", 350_000)))
    disk.free.clear()
    waiting = disk.waiting
    step = asyncio.create_task(rig.enforcer.step())
    await until(lambda: disk.waiting > waiting)
    rig.enforcer.accept(gpu_node_spec(3, MIN_LIMITS))
    disk.free.set()
    await step
    assert rig.limits() == [100_000] * GPUS
    rig.enforcer.close()


async def test_a_grant_that_comes_while_the_disk_is_busy_is_acknowledged_and_not_the_one_before_it(
    tmp_path: Path,
) -> None:
    """The operator would take the watts of the one before for free, which the newer one may have given back."""
    disk = StuckDisk()
    rig = Rig(tmp_path, disk)
    rig.hold("gpt2", 0, 1)
    rig.enforcer.accept(gpu_node_spec(1, 900_000, job_grant("gpt2", 350_000)))
    await rig.enforcer.step()
    assert rig.acknowledged == (1, 1, 900_000)
    disk.free.clear()
    rig.enforcer.accept(gpu_node_spec(2, 700_000, job_grant("gpt2", 200_000)))
    waiting = disk.waiting
    step = asyncio.create_task(rig.enforcer.step())
    await until(lambda: disk.waiting > waiting)
    assert rig.limits() == [200_000, 200_000, 100_000, 100_000]
    rig.enforcer.accept(gpu_node_spec(3, 900_000, job_grant("gpt2", 350_000)))
    disk.free.set()
    await step
    assert rig.acknowledged == (1, 1, 900_000)
    await rig.enforcer.step()
    assert rig.acknowledged == (1, 3, 900_000)
    rig.enforcer.close()


@pytest.mark.parametrize("ahead_seconds", [-10, 0, 1000])
def test_a_lease_runs_from_what_was_seen_and_never_from_later_than_now(tmp_path: Path, ahead_seconds: int) -> None:
    """Who says when a grant or a renewal was seen is another process, whose clock or word may be wrong."""
    rig = Rig(tmp_path)
    left = 30 + min(0, ahead_seconds)
    seen_ns = rig.now_ns + ahead_seconds * SECOND
    rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS, lease=30), seen_ns=seen_ns)
    assert rig.enforcer.state.lease_remaining_seconds(rig.now_ns) == left
    rig.enforcer.renew_lease(1, seen_ns=seen_ns)
    assert rig.enforcer.state.lease_remaining_seconds(rig.now_ns) == left
    rig.enforcer.close()


async def test_a_cut_that_comes_in_the_middle_of_a_round_is_not_acknowledged_by_it(tmp_path: Path) -> None:
    """The round has judged the GPUs by the grant before."""
    disk = StuckDisk()
    rig = Rig(tmp_path, disk)
    rig.hold("gpt2", 0, 1)
    rig.enforcer.accept(gpu_node_spec(1, 900_000, job_grant("gpt2", 350_000)))
    await rig.enforcer.step()
    disk.free.clear()
    rig.enforcer.accept(gpu_node_spec(2, 1_000_000, job_grant("gpt2", 400_000)))
    waiting = disk.waiting
    step = asyncio.create_task(rig.enforcer.step())
    await until(lambda: disk.waiting > waiting)  # the raise waits
    rig.enforcer.accept(gpu_node_spec(3, 700_000, job_grant("gpt2", 200_000)))
    disk.free.set()
    await step
    assert rig.limits() == [350_000, 350_000, 100_000, 100_000]
    assert rig.acknowledged == (1, 1, 900_000)
    await rig.enforcer.step()
    assert rig.acknowledged == (1, 3, 600_000)
    rig.enforcer.close()


class FullDisk(QuickDisk):
    full = False

    def write(self, descriptor: int, data: bytes) -> int:
        if self.full:
            raise OSError(28, "No space left on device")
        return super().write(descriptor, data)


def test_a_full_disk_keeps_enforcing_and_refuses_increases(tmp_path: Path) -> None:
    disk = FullDisk()
    rig = Rig(tmp_path, disk)
    rig.hold("gpt2", 0)
    rig.hold("bert", 1)
    rig.enforcer.accept(gpu_node_spec(1, 800_000, job_grant("gpt2", 300_000), job_grant("bert", 200_000)))
    rig.step()
    disk.full = True
    rig.enforcer.accept(gpu_node_spec(2, 800_000, job_grant("gpt2", 150_000), job_grant("bert", 350_000)))
    rig.step()
    assert rig.limits() == [150_000, 200_000, 100_000, 100_000]
    assert "No space left" in rig.journal.degraded
    assert rig.acknowledged[:2] == (1, 1)  # what cannot be remembered is not promised
    assert not rig.enforcer.accept(gpu_node_spec(1, 1_600_000))  # fenced in memory
    disk.full = False
    rig.step(1)
    assert rig.limits() == [150_000, 350_000, 100_000, 100_000]
    assert rig.journal.degraded is None
    assert rig.acknowledged[:2] == (1, 2)
    rig.restart()
    assert rig.enforcer.state.grant.version == (1, 2)
    rig.enforcer.close()


def test_a_disk_that_comes_back_heals_the_journal_without_a_grant_too(tmp_path: Path) -> None:
    disk = FullDisk()
    disk.full = True
    rig = Rig(tmp_path, disk)
    rig.step()
    assert rig.enforcer.state.journal_error is not None
    disk.full = False
    rig.step()
    assert rig.enforcer.state.journal_error is None
    rig.enforcer.close()


def test_no_cut_waits_for_the_disk_and_no_raise_or_acknowledgement_goes_before_it(tmp_path: Path) -> None:
    seen: list[tuple[list[int], object]] = []

    class WatchedDisk(QuickDisk):
        def sync(self, descriptor: int) -> None:
            seen.append((rig.limits(), rig.acknowledged))

    rig = Rig(tmp_path, gpus=2)
    rig.disk = WatchedDisk()
    rig.restart()
    seen.clear()
    rig.enforcer.accept(gpu_node_spec(1, 200_000))
    rig.step()
    assert seen == [([100_000, 100_000], None)]  # after the cuts, before the acknowledgement
    seen.clear()
    rig.hold("gpt2", 0)
    rig.enforcer.accept(gpu_node_spec(2, 400_000, job_grant("gpt2", 300_000)))
    rig.step()
    assert seen[0] == ([100_000, 100_000], (1, 1, 200_000))  # before the raise
    assert rig.acknowledged == (1, 2, 400_000)
    rig.enforcer.close()


def watch_sets(rig: Rig) -> list[tuple[str, int, int]]:
    """Every physical set from now on: (uuid, before, after)."""
    seen: list[tuple[str, int, int]] = []
    for device in rig.node.devices:
        real = type(device).set_power_limit_milliwatts

        def record(limit: int, device: Any = device, real: Any = real) -> None:
            seen.append((device.uuid, device.state.requested_limit_milliwatts, limit))
            real(device, limit)

        device.set_power_limit_milliwatts = record  # type: ignore[assignment]
    return seen


class Crash(BaseException):
    pass


class CrashingDisk(QuickDisk):
    """Dies in its n-th write or rename, half done."""

    def __init__(self) -> None:
        self.left = 10**9

    def write(self, descriptor: int, data: bytes) -> int:
        self.left -= 1
        if self.left < 0:
            super().write(descriptor, data[: len(data) // 2])
            raise Crash
        return super().write(descriptor, data)

    def rename(self, source: Path, target: Path) -> None:
        self.left -= 1
        if self.left < 0:
            raise Crash
        super().rename(source, target)


def crash_scenario(rig: Rig) -> None:
    """A grant moves from one job to another and back, with a stale spec in between."""
    rig.hold("gpt2", 0, 1)
    rig.hold("bert", 2, 3)
    rig.enforcer.accept(gpu_node_spec(1, 900_000, job_grant("gpt2", 300_000), job_grant("bert", 150_000)))
    rig.step()
    rig.enforcer.accept(gpu_node_spec(2, 900_000, job_grant("gpt2", 100_000), job_grant("bert", 350_000)))
    rig.step(1)
    rig.enforcer.accept(gpu_node_spec(3, 600_000, job_grant("gpt2", 200_000), job_grant("bert", 100_000)))
    rig.step(1)


@pytest.mark.parametrize("where", ["journal", "before a set", "after a set"])
def test_a_kill_at_any_write_or_set_raises_nothing_and_forgets_no_grant(tmp_path: Path, where: str) -> None:
    kills = 0
    for count in range(100):
        disk = CrashingDisk()
        rig = Rig(tmp_path / where / str(count), disk)
        bound = sum(rig.limits())  # at the defaults, as at power on
        sets_left = [count if where != "journal" else 10**9]
        for device in rig.node.devices:
            real = type(device).set_power_limit_milliwatts

            def dying(limit: int, device: Any = device, real: Any = real, sets_left: list[int] = sets_left) -> None:
                sets_left[0] -= 1
                if sets_left[0] < 0 and where == "before a set":
                    raise Crash
                real(device, limit)
                if sets_left[0] < 0:
                    raise Crash

            device.set_power_limit_milliwatts = dying  # type: ignore[assignment]
        if where == "journal":
            disk.left = count
        died = False
        try:
            crash_scenario(rig)
        except Crash:
            died = True
        kills += died
        limits = rig.limits()
        top_generation = rig.enforcer.state.grant.generation if rig.enforcer.state.grant else 0
        for device in rig.node.devices:
            del device.set_power_limit_milliwatts
        disk.left = 10**9
        rig.restart()
        seen = watch_sets(rig)
        known = 0 if rig.enforcer.state.grant is None else rig.enforcer.state.grant.generation
        assert known in (top_generation, top_generation - 1)
        assert known > 0 or limits == [400_000] * GPUS  # nothing was set by a spec that the journal does not know
        before = sum(limits)
        rig.step(0.5)
        total = before
        for _, old, new in seen:
            total += new - old
            grant = rig.enforcer.state.grant.bound.limit_milliwatts if rig.enforcer.state.grant else 0
            assert total <= max(before, grant)
        assert total <= bound
        if known:
            assert rig.enforcer.state.acknowledged is None  # before anybody knows what was
            rig.enforcer.accept(grant_spec(rig.enforcer.state.grant))
            rig.step()
            assert rig.acknowledged[:2] == (1, known)
            # A raise that was asked for before the kill may come.
            assert sum(rig.limits()) <= rig.acknowledged[2] <= rig.enforcer.state.grant.bound.limit_milliwatts
            assert not rig.enforcer.accept(gpu_node_spec(known - 1, 1_600_000))
        rig.enforcer.close()
        if not died:
            break
    assert kills > 8


ACTIONS = st.one_of(
    st.tuples(
        st.just("spec"), st.integers(0, 1_700_000), st.lists(st.integers(50_000, 450_000), min_size=2, max_size=2)
    ),
    st.tuples(st.just("stale"), st.integers(0, 1_700_000)),
    st.tuples(st.just("hold"), st.sampled_from(["a", "b"]), st.sets(st.integers(0, GPUS - 1))),
    st.tuples(
        st.just("fault"),
        st.integers(0, GPUS - 1),
        st.sampled_from([0, *DeviceFault]),
    ),
    st.tuples(st.just("time"), st.floats(0, 20)),
    st.tuples(st.just("renew")),
    st.tuples(st.just("restart")),
    st.tuples(st.just("settle"), st.sampled_from([0, 300, 5000])),
    st.tuples(st.just("step")),
)


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(low=st.booleans(), grant=st.integers(MIN_LIMITS, 1_700_000), actions=st.lists(ACTIONS, min_size=3, max_size=25))
def test_whatever_happens_the_total_is_never_above_the_larger_of_grant_and_before(
    tmp_path_factory: pytest.TempPathFactory, low: bool, grant: int, actions: list[Any]
) -> None:
    """Random specs, faults, pods, time and restarts; after every physical set the true total is within its bound."""
    rig = Rig(tmp_path_factory.mktemp("chaos"))
    state = {"bound": true_total(rig), "generation": 0}

    def check() -> None:
        assert true_total(rig) <= state["bound"]

    for device in rig.node.devices:
        real = type(device).set_power_limit_milliwatts

        def checked(limit: int, device: Any = device, real: Any = real) -> None:
            before = device.read().requested_limit_milliwatts
            if limit > before:
                assert (
                    rig.enforcer.state.lease_remaining_seconds(rig.now_ns) > 0 or rig.enforcer.state.mode is Mode.FLOOR
                )
            real(device, limit)
            check()

        device.set_power_limit_milliwatts = checked  # type: ignore[assignment]
    # From the min limits with every GPU in use, or from wherever the first actions lead from the defaults.
    prefix = (
        [("spec", MIN_LIMITS, [100_000] * 2), ("step",), ("hold", "a", {0, 1}), ("hold", "b", {2, 3})] if low else []
    )
    prefix += [("spec", grant, [400_000] * 2), ("step",)] if low else []
    for action, *values in [*prefix, *actions, ("step",), ("time", 5.0), ("step",)]:
        if action == "spec":
            state["generation"] += 1
            grant, (first, second) = values
            state["bound"] = max(true_total(rig), grant)
            new = gpu_node_spec(state["generation"], grant, job_grant("a", first), job_grant("b", second), lease=10)
            assert rig.enforcer.accept(new)
        elif action == "stale" and state["generation"] > 0:
            assert not rig.enforcer.accept(gpu_node_spec(state["generation"] - 1, values[0]))
        elif action == "hold":
            rig.hold(values[0], *values[1])
        elif action == "fault":
            rig.node.devices[values[0]].flags = DeviceFault(values[1])
        elif action == "time":
            rig.now_ns += round(values[0] * SECOND)
        elif action == "renew":
            rig.enforcer.renew_lease(1)
        elif action == "restart":
            rig.restart()
        elif action == "settle":
            rig.node.settle_milliseconds = values[0]
        else:
            rig.step()
            check()
            ack = rig.enforcer.state.acknowledged
            if ack is not None:
                readable = all(gpu.limit is not None for gpu in rig.enforcer.state.gpus.values())
                if readable and ack.generation == state["generation"] and not rig.enforcer.state.settling:
                    assert ack.limits_milliwatts >= true_total(rig)
    rig.enforcer.close()


def true_total(rig: Rig) -> int:
    return sum(
        max(state.requested_limit_milliwatts, state.enforced_limit_milliwatts)
        for state in (device.read() for device in rig.node.devices)
    )


def test_power_follows_the_limits_on_busy_gpus(rig: Rig) -> None:
    for device in rig.node.devices:
        device.set_activity(1.0)
    rig.hold("gpt2", 0, 1, 2, 3)
    rig.enforcer.accept(gpu_node_spec(1, 800_000, job_grant("gpt2", 200_000, gpus=4)))
    rig.step()
    draw = sum(device.read().power_milliwatts for device in rig.node.devices)
    assert draw <= 800_000
    expected = physics.operating_point(A100, 200_000, *rig.locks()[0], 1.0)[1]
    assert draw == 4 * expected
