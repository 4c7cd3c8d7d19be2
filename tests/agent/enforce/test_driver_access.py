"""A driver that goes and comes back under a running enforcer: nobody may count on limits that nobody reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flyball_agent.enforce.adoption import LARGEST_LIMIT_MILLIWATTS
from flyball_agent.enforce.driver_access import AbsentDriver
from flyball_agent.enforce.gpu_state import COMING_NS
from flyball_agent.enforce.records import FoundGpu, unnamed_uuid
from flyball_agent.enforce.requests import request_forget
from flyball_agent.gpu.gpu import CallTimedOut, DriverUnavailable, GpuDriver, GpuError, GpuLost, UnopenedGpu
from flyball_agent.gpu.simulated import SimulatedDriver
from flyball_agent.node.status import reported_gpus
from flyball_api.gpu_node import GpuNodeStatus, GpuReport, PowerLimits
from flyball_api.values.units import MilliwattsPerGpu
from flyball_simulated_gpu.device import DeviceFault
from msgspec.structs import replace

from tests.support.enforcer_rig import GPUS, MIN_LIMITS, SECOND, Rig
from tests.support.fewer_gpus import FewerGpus
from tests.support.gpu_node_specs import gpu_node_spec, job_grant

GONE = AbsentDriver(DriverUnavailable("open", detail="released"), "boot-1")


def numbered(number: int) -> str:
    return f"GPU-11111111-2222-3333-4444-{number:012d}"


def reported(*uuids: str, least: int = 100_000, most: int = 400_000, default: int = 400_000) -> tuple[FoundGpu, ...]:
    """What a status with these GPUs says of them."""
    limits = PowerLimits(MilliwattsPerGpu(least), MilliwattsPerGpu(most), MilliwattsPerGpu(default))
    return reported_gpus(GpuNodeStatus(devices=tuple(GpuReport(uuid, limits=limits) for uuid in uuids)))


def begin_anew(rig: Rig, driver: GpuDriver) -> None:
    """As on a node that was imaged anew: there is no journal, nor its lock."""
    rig.enforcer.close()
    rig.journal.path.unlink()
    (rig.folder / "node-0.lock").unlink()
    rig.start(driver=driver)


def test_a_driver_let_go_of_counts_at_the_largest_limits_in_a_session_of_its_own(rig: Rig) -> None:
    rig.hold("gpt2", 0)
    rig.enforcer.accept(gpu_node_spec(1, 700_000, job_grant("gpt2", 300_000)))
    rig.step()
    acknowledged = rig.enforcer.state.acknowledged
    assert acknowledged is not None
    assert rig.enforcer.swap_driver(GONE) is rig.driver
    state = rig.enforcer.state
    assert state.held_milliwatts == GPUS * 400_000
    # By the session the operator sees at once that what was acknowledged may be true no more.
    assert state.session != acknowledged.session
    assert state.driver_error is not None
    rig.step(1)
    assert state.acknowledged is acknowledged  # and nothing more is acknowledged
    assert {gpu.failure.reason for gpu in state.gpus.values() if gpu.failure is not None} == {"DriverUnavailable"}
    rig.node.reload_driver()
    rig.enforcer.swap_driver(SimulatedDriver(rig.node))
    assert state.session != acknowledged.session
    rig.step(1)
    assert rig.limits() == [300_000, 100_000, 100_000, 100_000]
    assert state.acknowledged.session == state.session != acknowledged.session
    assert state.driver_error is None


@pytest.mark.parametrize("shown", [True, False], ids=["shown by the driver", "shown by energy counters"])
@pytest.mark.parametrize("restarted", [False, True], ids=["under an agent", "under no agent"])
def test_a_gpu_that_cannot_be_read_after_a_load_of_the_driver_counts_at_its_largest_limit(
    rig: Rig, shown: bool, restarted: bool
) -> None:
    """What it held before is no more: the load has put it to its default."""
    rig.hold("gpt2", 0, 1)
    for generation, milliwatts in ((1, 150_000), (2, 120_000)):
        rig.enforcer.accept(gpu_node_spec(generation, 500_000, job_grant("gpt2", milliwatts)))
        rig.step(1)
    assert rig.acknowledged == (1, 2, 440_000)
    rig.journal.note(rig.enforcer.driver_record())
    rig.node.devices[0].flags = DeviceFault.LOST
    rig.node.reload_driver()
    rig.node.driver_load -= not shown
    if restarted:
        rig.restart()
        rig.enforcer.accept(gpu_node_spec(2, 500_000, job_grant("gpt2", 120_000)))
    for _ in range(4):
        rig.step(1)
    assert rig.limits() == [400_000, 100_000, 100_000, 100_000]
    assert rig.acknowledged == (1, 2, 700_000)
    assert rig.enforcer.state.acknowledged is not None
    assert rig.enforcer.state.acknowledged.session == rig.enforcer.state.session
    for _ in range(2):  # what its journal knows as set last was set before the load
        rig.restart()
        rig.enforcer.accept(gpu_node_spec(2, 500_000, job_grant("gpt2", 120_000)))
        rig.step(1)
        rig.step(COMING_NS / SECOND)
        assert rig.acknowledged == (1, 2, 700_000)
    rig.node.devices[0].flags = DeviceFault(0)
    rig.step(1)
    rig.step(1)
    assert rig.limits() == [120_000, 120_000, 100_000, 100_000]
    assert rig.acknowledged == (1, 2, 440_000)


@pytest.mark.parametrize("let_go", [False, True])
def test_persistence_mode_is_turned_on_again_after_a_load_of_the_driver(rig: Rig, let_go: bool) -> None:
    """A load forgets it, and then the next end of an agent would take the limits along."""
    for _ in range(2):
        for device in rig.node.devices:
            device.flags = DeviceFault.NOT_PERSISTENT
        rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS))
        rig.step(1)
        assert {device.flags for device in rig.node.devices} == {DeviceFault(0)}
        rig.node.devices[0].flags = DeviceFault.NOT_PERSISTENT
        rig.step(1)
        assert rig.node.devices[0].flags == DeviceFault.NOT_PERSISTENT, "in one session it is asked for once"
        if let_go:
            rig.enforcer.swap_driver(GONE)
        rig.node.reload_driver()
        if let_go:
            rig.enforcer.swap_driver(SimulatedDriver(rig.node))


def test_no_session_has_the_name_of_one_before_whatever_comes_and_goes(rig: Rig) -> None:
    seen = [rig.enforcer.state.session]
    for _ in range(3):
        rig.enforcer.swap_driver(GONE)
        seen.append(rig.enforcer.state.session)
        rig.restart()
        seen.append(rig.enforcer.state.session)
        rig.node.reload_driver()
        rig.step(1)
        seen.append(rig.enforcer.state.session)
    assert len(set(seen)) == len(seen)


def test_an_enforcer_starts_without_a_driver_and_adopts_it_when_it_comes(rig: Rig) -> None:
    rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS))
    rig.step()
    before = rig.enforcer.state.acknowledged
    assert before is not None
    rig.restart(driver=GONE)
    rig.step()
    assert rig.enforcer.state.acknowledged is None
    assert len(rig.enforcer.state.gpus) == GPUS  # those that the journal remembers
    assert rig.enforcer.state.held_milliwatts == GPUS * 400_000
    assert rig.enforcer.state.session != before.session
    rig.enforcer.swap_driver(SimulatedDriver(rig.node))
    rig.enforcer.accept(gpu_node_spec(2, MIN_LIMITS))
    rig.step()
    assert rig.acknowledged == (1, 2, MIN_LIMITS)


@pytest.mark.parametrize("uuid", ["", "GPU-lost"])
@pytest.mark.parametrize("error", [GpuLost, CallTimedOut])
def test_a_gpu_that_never_opened_counts_until_it_is_forgotten(rig: Rig, uuid: str, error: type[GpuError]) -> None:
    """To let go of the driver, by which it is to be reset, takes it out of no sum, nor does one that lists it no more."""
    lost = UnopenedGpu(GPUS, uuid, "", MilliwattsPerGpu(400_000), error("handle", uuid))
    rig.restart(driver=FewerGpus(rig.node, "none", unopened=(lost,)))
    rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS))
    rig.step()
    assert rig.acknowledged == (1, 1, MIN_LIMITS + 400_000)
    known = set(rig.enforcer.state.gpus)
    (never_opened,) = known - {device.uuid for device in rig.node.devices}
    for driver in (GONE, GONE, SimulatedDriver(rig.node), FewerGpus(rig.node, "none", unopened=(lost,))):
        rig.enforcer.swap_driver(driver)
        rig.step(1)
        assert set(rig.enforcer.state.gpus) == known
        each = 400_000 if driver is GONE else 100_000
        assert rig.enforcer.state.held_milliwatts == GPUS * each + 400_000
    for unopened in ((lost,), ()):
        rig.restart(driver=FewerGpus(rig.node, "none", unopened=unopened))
        rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS))
        rig.step(1)
        assert set(rig.enforcer.state.gpus) == known
        assert rig.acknowledged == (1, 1, MIN_LIMITS + 400_000)
    request_forget(rig.folder, "node-0", never_opened)
    rig.enforcer.forget([never_opened])
    rig.step(1)
    assert rig.acknowledged == (1, 1, MIN_LIMITS)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_gpu_that_says_its_uuid_once_it_has_opened_is_there_once(rig: Rig, restarted: bool) -> None:
    late, other = rig.node.devices[2].uuid, UnopenedGpu(GPUS, "", "", None, GpuLost("handle"))
    unnamed = UnopenedGpu(2, "", "", MilliwattsPerGpu(300_000), CallTimedOut("open"))
    begin_anew(rig, FewerGpus(rig.node, late, unopened=(unnamed, other)))
    rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS))
    rig.step()
    assert rig.acknowledged == (1, 1, 300_000 + 300_000 + 400_000)
    after = FewerGpus(rig.node, "none", unopened=(other,))
    if restarted:
        rig.restart(driver=after)
        rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS))
    else:
        rig.enforcer.swap_driver(after)
    rig.step(1)
    assert rig.acknowledged == (1, 1, MIN_LIMITS + 400_000)
    for _ in range(2):
        rig.restart(driver=after)
        assert set(rig.enforcer.state.gpus) == {*(device.uuid for device in rig.node.devices), unnamed_uuid(GPUS)}
    assert set(rig.journal.state.gpus) == set(rig.enforcer.state.gpus)
    rig.restart(driver=FewerGpus(rig.node, late, unopened=(other,)))  # what it is stands in the journal by now
    assert rig.enforcer.state.gpus[late].limits.max_milliwatts == 400_000


def test_gpus_that_were_let_go_of_before_they_were_read_count(rig: Rig) -> None:
    rig.enforcer.swap_driver(GONE)
    rig.step()
    assert rig.enforcer.state.held_milliwatts == GPUS * 400_000


@pytest.mark.parametrize("restarted", [False, True])
def test_a_gpu_that_opens_at_last_is_remembered_as_what_it_is(rig: Rig, restarted: bool) -> None:
    late = rig.node.devices[2].uuid
    lost = UnopenedGpu(2, late, "", MilliwattsPerGpu(300_000), GpuLost("limits"))
    begin_anew(rig, FewerGpus(rig.node, late, unopened=(lost,)))
    rig.step()
    assert rig.journal.state.gpus[late].max_milliwatts == 300_000
    if restarted:
        rig.restart()
    else:
        rig.enforcer.swap_driver(SimulatedDriver(rig.node))
    rig.step(1)
    assert rig.journal.state.gpus[late].max_milliwatts == 400_000
    assert rig.journal.state.gpus[late].min_milliwatts == 100_000


@pytest.mark.parametrize("absent", [False, True], ids=["at once", "once there is a driver"])
def test_a_gpu_that_was_reported_and_is_not_listed_under_a_new_journal_counts_until_it_is_forgotten(
    rig: Rig, absent: bool
) -> None:
    """A node that was imaged anew may have lost one at its boot, of which neither its plugin nor its journal knows."""
    uuids = [device.uuid for device in rig.node.devices]
    lost = uuids[3]
    driver = FewerGpus(rig.node, lost)
    begin_anew(rig, GONE if absent else driver)
    assert not rig.enforcer.state.knows_reported
    rig.enforcer.take_reported(reported(*uuids))
    assert rig.enforcer.state.knows_reported
    if absent:
        assert not rig.enforcer.state.gpus, "it may be another machine"
        rig.enforcer.swap_driver(driver)
    rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS))
    rig.step()
    assert rig.acknowledged == (1, 1, 300_000 + 400_000)
    rig.restart(driver=driver)
    rig.enforcer.take_reported(reported(*uuids))
    rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS))
    rig.step()
    assert rig.acknowledged == (1, 1, 300_000 + 400_000)
    request_forget(rig.folder, "node-0", lost)
    rig.enforcer.forget([lost])
    for _ in range(2):
        rig.enforcer.take_reported(reported(*uuids))
        rig.step(1)
        assert rig.acknowledged == (1, 1, 300_000)
    rig.enforcer.swap_driver(driver)
    assert lost not in rig.enforcer.state.gpus


@pytest.mark.parametrize("first", ["reported", "acknowledged"])
def test_a_gpu_that_was_reported_and_comes_back_may_take_what_nobody_remembers(tmp_path: Path, first: str) -> None:
    """An agent before this one may have asked for it, and its node's driver be late."""
    rig = Rig(tmp_path, gpus=1)
    uuid = rig.node.devices[0].uuid
    rig.enforcer.accept(gpu_node_spec(1, 100_000))
    rig.step()
    acknowledged = rig.enforcer.state.acknowledged
    assert acknowledged is not None
    begin_anew(rig, FewerGpus(rig.node, uuid))
    if first == "reported":
        rig.enforcer.take_reported(reported(uuid))
    rig.enforcer.accept(gpu_node_spec(2, 100_000), acknowledged=(acknowledged,))
    rig.enforcer.take_reported(reported(uuid))
    rig.step(1)
    rig.enforcer.swap_driver(rig.driver)
    rig.step(1)
    assert rig.acknowledged is None
    rig.step(COMING_NS / SECOND)
    assert rig.acknowledged == (1, 2, 100_000)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("read_before", [False, True])
def test_a_gpu_that_does_not_open_counts_as_the_largest_of_those_that_were_reported_which_it_may_be(
    rig: Rig, read_before: bool, named: bool
) -> None:
    """The others of its node may be smaller."""
    *uuids, lost = (device.uuid for device in rig.node.devices)
    unopened = UnopenedGpu(3, lost if named else "", "", None, GpuLost("handle"))
    driver = FewerGpus(rig.node, lost, unopened=(unopened,))
    begin_anew(rig, driver)
    if read_before:
        rig.step()
    rig.enforcer.take_reported((*reported(*uuids), *reported(lost, most=700_000, default=500_000)))
    rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS))
    rig.step()
    assert rig.acknowledged == (1, 1, 300_000 + 700_000)
    rig.restart(driver=driver)
    rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS))
    rig.step()
    assert rig.acknowledged == (1, 1, 300_000 + 700_000)
    rig.restart()
    rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS))
    rig.step()
    assert rig.acknowledged == (1, 1, MIN_LIMITS)


@pytest.mark.parametrize("imaged_again", [False, True])
def test_a_gpu_that_says_its_uuid_later_and_does_not_open_counts_as_it_did_before(rig: Rig, imaged_again: bool) -> None:
    """The status has it by the name that stood in place of its own then."""
    *uuids, lost = (device.uuid for device in rig.node.devices)
    hangs = UnopenedGpu(3, "", "", None, CallTimedOut("open"))
    begin_anew(rig, FewerGpus(rig.node, lost, unopened=(hangs,)))
    rig.enforcer.take_reported((*reported(*uuids), *reported(lost, most=700_000, default=500_000)))
    rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS))
    rig.step()
    assert rig.acknowledged == (1, 1, 300_000 + 700_000)
    driver = FewerGpus(rig.node, lost, unopened=(UnopenedGpu(3, lost, "", None, GpuLost("limits")),))
    begin_anew(rig, driver) if imaged_again else rig.restart(driver=driver)
    rig.enforcer.take_reported((*reported(*uuids), *reported(unnamed_uuid(3), least=1, most=700_000, default=700_000)))
    rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS))
    rig.step()
    assert rig.acknowledged == (1, 1, 300_000 + 700_000)


def test_a_gpu_that_does_not_say_its_uuid_may_be_another_than_the_one_that_did_not_before(rig: Rig) -> None:
    *uuids, _, lost = (device.uuid for device in rig.node.devices)
    hangs = UnopenedGpu(3, "", "", None, CallTimedOut("open"))
    begin_anew(rig, FewerGpus(rig.node, lost, unopened=(hangs,)))
    never = reported(unnamed_uuid(3), least=1)
    rig.enforcer.take_reported((*reported(*uuids), *never, *reported(lost, most=700_000, default=500_000)))
    rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS))
    rig.step()
    assert rig.acknowledged == (1, 1, 300_000 + 700_000)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_gpu_that_was_forgotten_stays_so_though_a_status_has_it_still(rig: Rig, restarted: bool) -> None:
    """It is asked for before the agent begins, or the agent ends before the API server has heard of it."""
    uuids = [device.uuid for device in rig.node.devices]
    rig.step()
    driver = FewerGpus(rig.node, uuids[3])
    rig.restart(driver=driver)
    request_forget(rig.folder, "node-0", uuids[3])
    rig.enforcer.forget([uuids[3]])
    if restarted:
        rig.restart(driver=driver)
        rig.restart(driver=driver)
    rig.enforcer.take_reported(reported(*uuids))
    rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS))
    rig.step()
    assert rig.acknowledged == (1, 1, 300_000)
    rig.restart()
    rig.step()
    rig.restart(driver=driver)
    assert uuids[3] in rig.enforcer.state.gpus, "it was put back, and is lost now"


@pytest.mark.parametrize("restarted", [False, True])
def test_a_gpu_that_never_said_its_uuid_may_be_forgotten_though_a_status_has_it_still(
    rig: Rig, restarted: bool
) -> None:
    uuids, lost = [device.uuid for device in rig.node.devices], unnamed_uuid(GPUS)
    unopened = UnopenedGpu(GPUS, "", "", MilliwattsPerGpu(400_000), GpuLost("handle"))
    rig.step()
    rig.restart(driver=FewerGpus(rig.node, "none", unopened=(unopened,)))
    rig.restart()
    if restarted:
        rig.enforcer.forget([lost])
        rig.restart()
        rig.restart()
    rig.enforcer.take_reported(reported(*uuids, lost))
    if not restarted:
        rig.enforcer.forget([lost])
    rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS))
    rig.step()
    assert rig.acknowledged == (1, 1, MIN_LIMITS)
    rig.restart(driver=FewerGpus(rig.node, "none", unopened=(unopened,)))
    rig.restart()
    assert lost in rig.enforcer.state.gpus, "it is there again, and lost"


def test_a_gpu_that_never_said_its_uuid_counts_though_the_agent_ends_before_it_has_read_the_others(rig: Rig) -> None:
    """The next one takes it for one of those, which its journal does not know; there was one more."""
    *uuids, lost = [device.uuid for device in rig.node.devices]
    driver = FewerGpus(rig.node, lost)
    begin_anew(rig, driver)
    rig.enforcer.take_reported(reported(*uuids, unnamed_uuid(3)))
    for _ in range(2):
        rig.restart(driver=driver)
        rig.enforcer.take_reported(reported(*uuids, unnamed_uuid(3)))
    rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS))
    rig.step()
    assert rig.acknowledged == (1, 1, 300_000 + 400_000)


def test_who_forgets_one_gpu_before_it_is_known_what_was_reported_forgets_no_other(rig: Rig) -> None:
    uuids = [device.uuid for device in rig.node.devices]
    other = UnopenedGpu(GPUS, numbered(1), "", MilliwattsPerGpu(300_000), GpuLost("limits"))
    begin_anew(rig, FewerGpus(rig.node, uuids[3], unopened=(other,)))
    rig.restart(driver=FewerGpus(rig.node, uuids[3]))
    rig.enforcer.forget([numbered(1)])
    rig.enforcer.take_reported(reported(*uuids, numbered(1)))
    rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS))
    rig.step()
    assert rig.acknowledged == (1, 1, 300_000 + 400_000)


@pytest.mark.parametrize("uuid", ["", "known", numbered(1)])
def test_a_gpu_that_is_listed_and_does_not_open_is_not_forgotten(rig: Rig, uuid: str) -> None:
    """It is there, and may draw what it likes: somebody has named the wrong one."""
    rig.step()
    uuid = rig.node.devices[3].uuid if uuid == "known" else uuid
    unopened = UnopenedGpu(3, uuid, "", MilliwattsPerGpu(400_000), GpuLost("handle"))
    rig.restart(driver=FewerGpus(rig.node, rig.node.devices[3].uuid, unopened=(unopened,)))
    rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS))
    for _ in range(2):
        rig.step(1)
        before = rig.enforcer.state.held_milliwatts
        rig.enforcer.forget(list(rig.enforcer.state.gpus))
    kept = {uuid or rig.node.devices[3].uuid, *(device.uuid for device in rig.node.devices[:3])}
    assert set(rig.enforcer.state.gpus) == kept
    assert rig.enforcer.state.held_milliwatts == before


def test_gpus_of_another_machine_take_the_places_of_those_that_were_reported(rig: Rig) -> None:
    begin_anew(rig, rig.driver)
    rig.enforcer.take_reported(reported(unnamed_uuid(0), *(numbered(number) for number in range(GPUS - 1))))
    assert set(rig.enforcer.state.gpus) == {device.uuid for device in rig.node.devices}
    begin_anew(rig, rig.driver)
    rig.enforcer.take_reported(reported("", unnamed_uuid(0), *(numbered(number) for number in range(GPUS))))
    assert set(rig.enforcer.state.gpus) == {numbered(0), *(device.uuid for device in rig.node.devices)}, (
        "there was one more"
    )


@pytest.mark.parametrize(
    "limits",
    [(0, 0, 0), (100_000, 400_000, 0), (0, 400_000, 400_000), (100_000, 0, 400_000), (400_000, 300_000, 200_000)],
)
def test_of_a_gpu_whose_limits_a_status_does_not_say_or_not_in_order_the_largest_counts(
    rig: Rig, limits: tuple[int, int, int]
) -> None:
    least, most, default = limits
    uuids = [device.uuid for device in rig.node.devices]
    begin_anew(rig, FewerGpus(rig.node, uuids[3]))
    rig.enforcer.take_reported(reported(*uuids, least=least, most=most, default=default))
    rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS))
    rig.step()
    assert rig.acknowledged == (1, 1, 300_000 + (max(limits) if most else LARGEST_LIMIT_MILLIWATTS))


@pytest.mark.parametrize(
    "lie",
    [
        {"max_milliwatts": -(10**9), "min_milliwatts": -(10**9), "default_milliwatts": -(10**9)},
        {"found_milliwatts": -1},
        {"min_milliwatts": 0},
        {"min_milliwatts": 500_000},
        {"default_milliwatts": 500_000},
        {"max_milliwatts": 2**60},
        {"uuid": "x"},
        {"uuid": "GPU-" + "1" * 100_000},
        {"model": "x" * 100_000},
    ],
)
def test_of_gpus_that_no_status_can_have_nobody_makes_the_enforcer_believe(rig: Rig, lie: dict[str, Any]) -> None:
    """They would end each of its rounds, or be remembered after that agent, and no status with them be stored."""
    uuids = [device.uuid for device in rig.node.devices]
    (true,) = reported(numbered(1))
    begin_anew(rig, FewerGpus(rig.node, uuids[3]))
    rig.enforcer.take_reported((*reported(*uuids), *[replace(true, **lie)] * GPUS))
    rig.enforcer.accept(gpu_node_spec(1, MIN_LIMITS))
    rig.step()
    assert rig.acknowledged == (1, 1, 300_000 + 400_000)
    assert set(rig.journal.state.gpus) == set(uuids)
