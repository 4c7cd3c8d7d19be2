"""Attribution: not one millijoule lost or counted twice, whatever counters, pods and restarts do."""

from __future__ import annotations

import json
from typing import Any

import pytest
from flyball_agent.energy.attribution import MAX_ENDED_PODS, Attribution, Sample, split
from flyball_agent.energy.record import EnergyRecord
from flyball_api.values.units import MilliwattsPerGpu
from hypothesis import given
from hypothesis import strategies as st

SECOND = 1_000_000_000
LIMIT = MilliwattsPerGpu(400_000)


def restored(books: Attribution) -> EnergyRecord | None:
    """What the journal gives back."""
    return EnergyRecord.read(json.loads(json.dumps(books.record().to_json())))


def sample(counter: int | None, uuid: str = "GPU-a") -> Sample:
    return Sample(uuid, counter, LIMIT)


@given(st.integers(0, 10**15), st.lists(st.integers(0, 10**9), min_size=1, max_size=9))
def test_a_split_adds_up_and_is_fair_to_one_unit(amount: int, weights: list[int]) -> None:
    shares = split(amount, weights)
    assert sum(shares) == amount
    effective = weights if any(weights) else [1] * len(weights)
    whole = sum(effective)
    for share, weight in zip(shares, effective, strict=True):
        assert amount * weight // whole <= share <= amount * weight // whole + 1


def test_a_split_needs_weights() -> None:
    with pytest.raises(ValueError, match="cannot split"):
        split(5, [])
    with pytest.raises(ValueError, match="cannot split"):
        split(5, [1, -1])


def test_a_gpu_is_its_pods_from_when_it_is_seen_there() -> None:
    books = Attribution()
    assert books.update(0, [sample(1000)], {})
    books.update(SECOND, [sample(59_000)], {"GPU-a": ("pod-1",)})  # idle until now
    books.update(2 * SECOND, [sample(359_000)], {"GPU-a": ("pod-1",)})
    books.update(3 * SECOND, [sample(459_000)], {})  # the pod's until it was seen gone
    books.update(4 * SECOND, [sample(517_000)], {})
    assert books.accounts.idle == 58_000 + 58_000
    assert books.accounts.pod_millijoules("pod-1") == 400_000
    assert books.accounts.pods == {}
    assert books.accounts.ended == {"pod-1": 400_000}
    assert books.accounts.total() == 516_000


def test_a_shared_gpu_is_split_by_weight() -> None:
    books = Attribution()
    shared = {"GPU-a": ("one", "two")}
    books.update(0, [sample(0)], shared)
    books.update(SECOND, [sample(101)], shared)
    assert books.accounts.pods == {"one": 51, "two": 50}
    books.update(2 * SECOND, [sample(401)], shared, {"one": 2, "two": 1})
    assert books.accounts.pods == {"one": 251, "two": 150}


def test_a_counter_that_fell_back_has_started_again() -> None:
    books = Attribution()
    holders = {"GPU-a": ("pod",)}
    books.update(0, [sample(10**9)], holders)
    books.update(SECOND, [sample(100_000)], holders)
    assert books.accounts.pods == {"pod": 100_000}
    assert books.accounts.discarded == 0


def test_a_rise_above_what_the_gpu_can_draw_is_cut_there() -> None:
    books = Attribution()
    holders = {"GPU-a": ("pod",)}
    books.update(0, [sample(0)], holders)
    books.update(SECOND, [sample(10**12)], holders)
    assert books.accounts.pods["pod"] == LIMIT * 3 // 2 * 110 // 100
    assert books.accounts.total() == 10**12 == books.accounts.gpus["GPU-a"]


def test_a_restart_goes_on_where_it_was_and_after_a_change_of_hands_nobody_knows() -> None:
    books = Attribution(boot_id="b1")
    books.update(0, [sample(0), sample(0, "GPU-b")], {"GPU-a": ("one",), "GPU-b": ("two",)})
    books.update(SECOND, [sample(100), sample(200, "GPU-b")], {"GPU-a": ("one",), "GPU-b": ("two",)})
    again = Attribution(restored(books), "b1")
    again.update(
        60 * SECOND,
        [sample(1100), sample(2200, "GPU-b")],
        {"GPU-a": ("one",), "GPU-b": ("three",)},
        after_absence=True,
    )
    assert again.accounts.pods == {"one": 1100, "three": 0}
    assert again.accounts.ended == {"two": 200}
    assert again.accounts.unattributed == 2000
    again.update(61 * SECOND, [sample(1100), sample(2300, "GPU-b")], {"GPU-b": ("three",)})
    assert again.accounts.pods == {"three": 100}


def test_after_a_reboot_the_first_reading_is_nobodys() -> None:
    books = Attribution(boot_id="b1")
    books.update(0, [sample(0)], {"GPU-a": ("one",)})
    books.update(SECOND, [sample(500)], {"GPU-a": ("one",)})
    again = Attribution(restored(books), "b2")
    again.update(5 * SECOND, [sample(70)], {}, after_absence=True)
    assert (again.accounts.unattributed, again.accounts.ended) == (70, {"one": 500})
    assert again.accounts.total() == 570 == again.accounts.gpus["GPU-a"]


def test_a_gpu_that_changes_hands_while_nobody_can_read_it_is_nobodys() -> None:
    books = Attribution()
    books.update(0, [sample(0)], {"GPU-a": ("one",)})
    books.update(SECOND, [sample(None)], {"GPU-a": ("one",)})
    books.update(2 * SECOND, [sample(300)], {"GPU-a": ("one",)})
    assert books.accounts.pods == {"one": 300}  # the same pod all along
    books.update(3 * SECOND, [sample(None)], {"GPU-a": ("two",)})
    books.update(4 * SECOND, [sample(500)], {"GPU-a": ("two",)})
    assert books.accounts.unattributed == 200
    books.update(5 * SECOND, [sample(600)], {"GPU-a": ("two",)})
    assert books.accounts.pod_millijoules("two") == 100


def test_the_list_of_ended_pods_is_bounded_and_its_energy_is_kept() -> None:
    books = Attribution()
    books.update(0, [sample(0)], {})
    for number in range(3 * MAX_ENDED_PODS):
        books.update((number + 1) * SECOND, [sample(100 * (number + 1))], {"GPU-a": (f"pod-{number}",)})
    assert len(books.accounts.ended) == MAX_ENDED_PODS
    assert books.accounts.total() == 300 * MAX_ENDED_PODS
    assert books.accounts.ended_before > 0


UUIDS = ["GPU-a", "GPU-b", "GPU-c"]
HOLDERS = st.dictionaries(
    st.sampled_from(UUIDS), st.lists(st.sampled_from(["p1", "p2", "p3"]), max_size=2, unique=True).map(tuple)
)
EVENTS = st.one_of(
    st.tuples(
        st.just("tick"),
        st.integers(0, 10 * SECOND),
        st.lists(st.integers(0, 3_000_000) | st.just(10**13), min_size=3, max_size=3),
        HOLDERS,
        st.dictionaries(st.sampled_from(["p1", "p2", "p3"]), st.integers(0, 100)),
    ),
    st.tuples(st.just("reset"), st.sampled_from(UUIDS)),
    st.tuples(st.just("lost"), st.sampled_from(UUIDS), st.booleans()),
    st.tuples(st.just("restart")),
    st.tuples(st.just("reboot")),
)


@given(st.lists(EVENTS, max_size=30))
def test_everything_given_is_exactly_what_the_counters_rose_by(events: list[Any]) -> None:
    now, boot = 100 * SECOND, 0
    counters = dict.fromkeys(UUIDS, 0)
    seen: dict[str, int] = {}
    risen = dict.fromkeys(UUIDS, 0)
    lost: set[str] = set()
    books = Attribution(boot_id="boot-0")
    absent = False
    for kind, *values in events:
        if kind == "reset":
            counters[values[0]] = 0
        elif kind == "lost":
            (lost.add if values[1] else lost.discard)(values[0])
        elif kind in ("restart", "reboot"):
            if kind == "reboot":
                boot += 1
                counters = dict.fromkeys(UUIDS, 0)
                seen = dict.fromkeys(seen, 0)
            books = Attribution(restored(books), f"boot-{boot}")
            absent = True
        else:
            elapsed, rises, holders, weights = values
            now += elapsed
            before = dict(books.accounts.pods), books.accounts.idle, books.accounts.unattributed
            for uuid, rise in zip(UUIDS, rises, strict=True):
                counters[uuid] += rise
            samples = []
            for uuid in UUIDS:
                readable = uuid not in lost
                samples.append(Sample(uuid, counters[uuid] if readable else None, LIMIT))
                if readable:
                    if uuid in seen:
                        risen[uuid] += counters[uuid] - seen[uuid] if counters[uuid] >= seen[uuid] else counters[uuid]
                    seen[uuid] = counters[uuid]
            books.update(now, samples, holders, weights, after_absence=absent)
            absent = False
            assert books.accounts.total() == sum(risen.values())
            for pod, energy in before[0].items():
                assert books.accounts.pod_millijoules(pod) >= energy  # never less than it was
            assert books.accounts.idle >= before[1]
            assert books.accounts.unattributed >= before[2]
    assert {uuid: energy for uuid, energy in books.accounts.gpus.items() if energy} == {
        uuid: energy for uuid, energy in risen.items() if energy
    }
