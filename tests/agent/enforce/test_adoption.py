"""The GPUs that an agent finds when it starts: each is there once, and counts at no less than it may hold."""

from __future__ import annotations

import pytest
from flyball_agent.enforce.adoption import (
    LARGEST_LIMIT_MILLIWATTS,
    UNKNOWN_MIN_MILLIWATTS,
    find_gpus,
    found_anew,
    in_a_status,
    may_be_larger,
    newly_found,
)
from flyball_agent.enforce.gpu_state import ComingLimits, GpuState
from flyball_agent.enforce.records import Forgotten, FoundGpu, FoundGpus, Intent, Intents, JournalState, unnamed_uuid
from flyball_agent.gpu.gpu import (
    CallTimedOut,
    Gpu,
    GpuError,
    GpuLimits,
    GpuLost,
    PowerLimitReading,
    UnopenedGpu,
)
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


def found_with(*uuids: str, unopened: tuple[UnopenedGpu, ...], gpus: int = 0) -> dict[str, GpuState]:
    """What is found where the journal knows GPUs of these UUIDs."""
    return find_gpus(shown(gpus), remembering(*uuids), resumed=False, asked_at_ns=None, unopened=unopened)


def test_as_many_gpus_that_never_said_their_uuid_are_gone_as_others_say_theirs_for_the_first_time() -> None:
    never = unnamed_uuid(0), unnamed_uuid(1)
    (other,) = shown()
    assert list(found_with(*never, unopened=(), gpus=1)) == [other.uuid, never[1]]
    assert list(found_with(*never, unopened=(unopened(0, "GPU-new"),))) == [never[1], "GPU-new"]
    assert list(found_with(never[0], "GPU-new", unopened=(unopened(0, "GPU-new"),))) == ["GPU-new", never[0]], (
        "that was known before"
    )


def test_gpus_that_never_said_their_uuid_are_told_by_where_they_are() -> None:
    never = unnamed_uuid(1), unnamed_uuid(0)
    hanging = unopened(1, error=CallTimedOut("limits", "GPU 1"))
    found = found_with(*never, unopened=(unopened(0), hanging))
    assert {uuid: (gpu.index, reason(gpu)) for uuid, gpu in found.items()} == {
        never[0]: (1, "CallTimedOut"),
        never[1]: (0, "Lost"),
    }


def test_one_that_cannot_be_opened_and_does_not_say_its_uuid_is_no_other_than_before() -> None:
    never = unnamed_uuid(0), unnamed_uuid(1)
    assert set(found_with(*never, unopened=(unopened(0),))) == set(never)


@pytest.mark.parametrize(("unlisted", "counts"), [(500_000, 500_000), (300_000, None), (LARGEST, None)])
def test_one_that_does_not_say_its_uuid_may_be_larger_than_the_others_but_is_none_that_is_listed(
    unlisted: int, counts: int | None
) -> None:
    gpus = find_gpus(shown(), JournalState("node-0"), resumed=False, asked_at_ns=None, unopened=(unopened(1),))
    (listed, never) = gpus
    assert gpus[never].limits.max_milliwatts == LARGEST, "as its node's other one"
    limits = [MilliwattsPerGpu(limit) for limit in (100_000, unlisted, 250_000, 250_000)]
    larger = [MilliwattsPerGpu(limit) for limit in (100_000, 700_000, 250_000, 250_000)]
    reported = (FoundGpu("GPU-gone", "A30", *limits), FoundGpu(listed, "another by then", *larger))
    found = may_be_larger(gpus, reported)
    assert [(gpu.uuid, gpu.limits.max_milliwatts) for gpu in found] == ([] if counts is None else [(never, counts)])


def remembered(gpu: GpuState, smallest: int) -> dict[str, FoundGpu]:
    limits = [MilliwattsPerGpu(limit) for limit in (smallest, 400_000, 400_000, 400_000)]
    return {gpu.uuid: FoundGpu(gpu.uuid, gpu.model, *limits)}


def test_a_gpu_is_news_once_it_was_read_and_again_once_it_has_opened_at_last() -> None:
    (unread,) = find_gpus(shown(), JournalState("node-0"), resumed=False, asked_at_ns=None).values()
    watts = MilliwattsPerGpu(300_000)
    read = unread.changed(limit=PowerLimitReading(watts, watts))
    anything = GpuLimits(UNKNOWN_MIN_MILLIWATTS, MilliwattsPerGpu(400_000), MilliwattsPerGpu(400_000))

    def is_news(gpu: GpuState, known: dict[str, FoundGpu] | None = None) -> bool:
        return bool(newly_found({gpu.uuid: gpu}, known or {}))

    assert not is_news(unread)
    assert newly_found({unread.uuid: unread}, {}, unread_too=True)
    assert is_news(read)
    known, never_opened = remembered(read, 100_000), remembered(read, UNKNOWN_MIN_MILLIWATTS)
    assert not is_news(read, known)
    assert not is_news(unread, never_opened)
    assert is_news(read, never_opened)
    assert not is_news(read.changed(limits=anything), never_opened), "no more is known of it than was"


def test_one_that_is_not_there_is_forgotten_only_where_it_never_said_which_it_is() -> None:
    (read,) = find_gpus(shown(), JournalState("node-0"), resumed=False, asked_at_ns=None).values()
    never, gone = (found.changed(uuid=uuid) for found, uuid in ((read, unnamed_uuid(0)), (read, "GPU-gone")))
    known = {**remembered(read, 1), **remembered(never, 1), **remembered(gone, 1)}
    assert newly_found({read.uuid: read}, known) == [Forgotten((never.uuid,), renamed=True)]
    assert newly_found({read.uuid: read, never.uuid: never}, known) == []


def test_a_model_has_as_many_characters_as_a_status_can_have() -> None:
    limits = [MilliwattsPerGpu(limit) for limit in (100_000, 400_000, 400_000, 400_000)]
    longest, longer = (FoundGpu(shown()[0].uuid, "A" * length, *limits) for length in (128, 129))
    assert in_a_status(longest)
    assert not in_a_status(longer)
