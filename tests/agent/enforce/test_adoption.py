"""The GPUs that an agent finds when it starts: each is there once, and counts at no less than it may hold."""

from __future__ import annotations

import pytest
from flyball_agent.enforce.adoption import LARGEST_LIMIT_MILLIWATTS, find_gpus, found_anew, unnamed_uuid
from flyball_agent.enforce.gpu_state import ComingLimits, GpuState
from flyball_agent.enforce.records import FoundGpu, FoundGpus, Intent, Intents, JournalState
from flyball_agent.gpu.gpu import CallTimedOut, Gpu, GpuError, GpuLost, UnopenedGpu
from flyball_agent.gpu.simulated import SimulatedDriver
from flyball_api.values.units import MilliwattsPerGpu
from flyball_simulated_gpu.catalogue import CATALOGUE
from flyball_simulated_gpu.virtual import VirtualNode

LARGEST = 400_000  # of the A100s that are shown
REMEMBERED_LARGEST = 300_000


def a_driver(gpus: int = 1) -> SimulatedDriver:
    return SimulatedDriver(VirtualNode("node-0", [CATALOGUE["NVIDIA-A100-SXM4-40GB"]] * gpus, lambda: 0))


def shown(gpus: int = 1) -> list[Gpu]:
    return list(a_driver(gpus).gpus())


NOW_NS = 1000


def remembering(*uuids: str) -> JournalState:
    journal = JournalState("node-0")
    limits = [MilliwattsPerGpu(limit) for limit in (60_000, REMEMBERED_LARGEST, 250_000, 250_000)]
    journal.apply(FoundGpus(tuple(FoundGpu(uuid, "A30", *limits) for uuid in uuids)))
    return journal


def unopened(index: int, uuid: str = "", largest: int | None = None, error: GpuError | None = None) -> UnopenedGpu:
    most = None if largest is None else MilliwattsPerGpu(largest)
    return UnopenedGpu(index, uuid, "", most, error or GpuLost("handle", f"GPU {index}", 15))


def reason(gpu: GpuState) -> str:
    assert gpu.failure is not None
    return gpu.failure.reason


@pytest.mark.parametrize(("old", "new"), [(200_000, 150_000), (150_000, 200_000)])
def test_what_a_gpu_holds_before_it_is_read_is_what_was_last_set_only_in_the_same_driver_session(
    old: int, new: int
) -> None:
    (gpu,) = shown()
    journal = remembering("GPU-gone")
    limits = MilliwattsPerGpu(old), MilliwattsPerGpu(new), (MilliwattsPerGpu(180_000),)
    journal.apply(Intents(1, 1, tuple(Intent(uuid, *limits) for uuid in (gpu.uuid, "GPU-gone"))))
    resumed = find_gpus([gpu], journal, resumed=True, asked_at_ns=NOW_NS)
    coming = ComingLimits((MilliwattsPerGpu(180_000), MilliwattsPerGpu(new)), NOW_NS)
    assert {found.coming for found in resumed.values()} == {coming}
    assert {uuid: found.held_milliwatts for uuid, found in resumed.items()} == {gpu.uuid: 200_000, "GPU-gone": 200_000}
    # A load of the driver puts back the defaults, and forgets what it was asked for.
    anew = find_gpus([gpu], journal, resumed=False, asked_at_ns=None)
    assert {found.coming for found in anew.values()} == {None}
    assert {uuid: found.held_milliwatts for uuid, found in anew.items()} == {
        gpu.uuid: LARGEST,
        "GPU-gone": REMEMBERED_LARGEST,
    }


def test_of_a_driver_that_was_loaded_anew_nothing_comes_whatever_the_journal_has_forgotten() -> None:
    (gpu,) = find_gpus(shown(), JournalState("node-0", gaps=True), resumed=False, asked_at_ns=None).values()
    assert (gpu.coming, gpu.forgotten_ns) == (None, None)


@pytest.mark.parametrize("gaps", [True, False])
def test_a_gpu_that_a_driver_shows_only_when_it_is_opened_anew_counts_at_its_largest(gaps: bool) -> None:
    """What it was set to before is of another load, as far as anybody knows; what it was asked for since, a journal that
    has all of it would know."""
    driver, journal = a_driver(), JournalState("node-0", gaps=gaps)
    limits = MilliwattsPerGpu(150_000), MilliwattsPerGpu(200_000), (MilliwattsPerGpu(180_000),)
    journal.apply(Intents(1, 1, tuple(Intent(gpu.uuid, *limits) for gpu in driver.gpus())))
    (gpu,) = found_anew(driver, journal, {}, NOW_NS).values()
    assert gpu.held_milliwatts == LARGEST
    assert gpu.forgotten_ns == (NOW_NS if gaps else None)


def test_a_gpu_that_was_never_set_may_hold_the_most_that_it_can() -> None:
    (gpu,) = shown()
    found = find_gpus([gpu], remembering("GPU-gone"), resumed=True, asked_at_ns=NOW_NS)
    assert (found[gpu.uuid].held_milliwatts, found["GPU-gone"].held_milliwatts) == (LARGEST, REMEMBERED_LARGEST)


def test_a_remembered_gpu_that_says_its_uuid_and_cannot_be_opened_is_there_once_for_its_own_reason() -> None:
    hanging = unopened(1, "GPU-gone", 700_000, CallTimedOut("limits", "GPU-gone"))
    found = find_gpus([], remembering("GPU-gone"), resumed=False, asked_at_ns=None, unopened=(unopened(0), hanging))
    assert list(found) == ["GPU-gone", unnamed_uuid(0)]
    gone = found["GPU-gone"]
    assert (reason(gone), gone.model, gone.held_milliwatts) == ("CallTimedOut", "A30", REMEMBERED_LARGEST)
    assert gone.failure is not None
    assert not gone.failure.keeps_limits, "what it holds while it hangs is not known"
    assert reason(found[unnamed_uuid(0)]) == "Lost"


def test_a_gpu_that_says_another_uuid_is_not_the_missing_one() -> None:
    found = find_gpus(
        [], remembering("GPU-gone"), resumed=False, asked_at_ns=None, unopened=(unopened(0, "GPU-new", 700_000),)
    )
    assert {uuid: (reason(gpu), gpu.held_milliwatts) for uuid, gpu in found.items()} == {
        "GPU-gone": ("NotFound", REMEMBERED_LARGEST),
        "GPU-new": ("Lost", 700_000),
    }


def test_a_gpu_of_which_nothing_is_known_counts_like_the_largest_beside_it_or_as_the_largest_of_all() -> None:
    beside = find_gpus(
        shown(), remembering("GPU-gone"), resumed=False, asked_at_ns=None, unopened=(unopened(1), unopened(2))
    )
    assert reason(beside["GPU-gone"]) == "Lost"
    assert beside[unnamed_uuid(2)].held_milliwatts == LARGEST
    alone = find_gpus([], JournalState("node-0"), resumed=True, asked_at_ns=NOW_NS, unopened=(unopened(0),))
    (gpu,) = alone.values()
    assert (gpu.held_milliwatts, gpu.usable) == (LARGEST_LIMIT_MILLIWATTS, False)
    assert gpu.failure is not None
    assert gpu.failure.keeps_limits, "the node may be acknowledged with it"
