"""Partitions: found in Kareus' own examples, and against a step-by-step execution of two staggered nanobatches."""

from __future__ import annotations

from collections import Counter

import pytest
from flyball_frontiers.kareus import NOT_OVERLAPPED, Kernel, KernelSchedule, Measurement, Partition, find_partitions
from flyball_frontiers.kareus.partition import search_space
from flyball_frontiers.kareus.schedule import clock_choices, communication_sm_choices, encode, launch_timings
from flyball_frontiers.kareus.search import SearchBudget
from hypothesis import given
from hypothesis import strategies as st


def compute(name: str, *, short: bool = False) -> Kernel:
    return Kernel(name, memory_bound=short)


def send(name: str = "AllReduce") -> Kernel:
    return Kernel(name, communication=True)


BLOCK = (
    compute("Norm", short=True),
    compute("Linear 1"),
    compute("FlashAttention"),
    send(),
    compute("Linear 2"),
    compute("Linear 3"),
    send(),
)


def test_a_transformer_stage_has_two_types_of_partition() -> None:
    blocks = 5
    found = find_partitions(BLOCK * blocks)
    attention, mlp = Partition(send(), BLOCK[:3]), Partition(send(), BLOCK[4:6])
    # Both nanobatches pass every part of every block; only the first computations and the last send run alone.
    assert dict(found.types) == {attention: 2 * blocks - 1, mlp: 2 * blocks}
    assert found.alone == (*BLOCK[:3], send())
    assert attention.name == "Norm > Linear 1 > FlashAttention || AllReduce"


def test_consecutive_communications_are_one_and_short_kernels_are_grouped() -> None:
    found = find_partitions(
        [
            compute("Dropout", short=True),
            compute("Norm", short=True),
            compute("Linear"),
            send("AllGather K"),
            send("AllGather V"),
            compute("Attention"),
            send(),
        ]
    )
    (first, _), (second, _), (third, _) = found.types
    assert first.communication.name == "AllGather K + AllGather V"
    assert first.communication.communication
    assert [kernel.name for kernel in first.computations] == ["Dropout + Norm", "Linear"]
    assert [kernel.name for kernel in second.computations] == ["Attention"]
    assert (second.communication, third.communication) == (first.communication, send())


def test_work_adds_up_when_kernels_are_grouped() -> None:
    found = find_partitions(
        [
            Kernel("a", memory_bound=True, compute_seconds=1.0, memory_seconds=2.0),
            Kernel("b", memory_bound=True, compute_seconds=3.0, memory_seconds=4.0),
            send(),
            compute("c"),
        ]
    )
    ((first, _), _) = found.types
    assert first.computations == (Kernel("a + b", memory_bound=True, compute_seconds=4.0, memory_seconds=6.0),)


streams = st.lists(st.sampled_from(["a", "b", "c", "C", "D"]), min_size=2, max_size=14)


@given(streams)
def test_every_kernel_of_both_nanobatches_runs_exactly_once_and_never_beside_its_own(names: list[str]) -> None:
    kernels = [send(name) if name.isupper() else compute(name) for name in names]
    try:
        found = find_partitions(kernels)
    except ValueError:
        assert all(k.communication for k in kernels) or not any(k.communication for k in kernels)
        return
    ran: Counter[str] = Counter()
    for partition, count in found.types:
        assert partition.computations
        for kernel in (partition.communication, *partition.computations):
            for part in kernel.name.split(" + "):
                ran[part] += count
    for kernel in found.alone:
        for part in kernel.name.split(" + "):
            ran[part] += 1
    assert ran == Counter({name: 2 * count for name, count in Counter(names).items()})


@given(streams)
def test_partitions_are_what_two_staggered_nanobatches_run_side_by_side(names: list[str]) -> None:
    kernels = [send(name) if name.isupper() else compute(name) for name in names]
    if not any(k.communication for k in kernels) or all(k.communication for k in kernels):
        return
    # Execute: each nanobatch is a list of maximal runs; the one that is to communicate goes with the other's next run.
    parts: list[tuple[str, tuple[str, ...]]] = []
    for name in names:
        kind = "send" if name.isupper() else "compute"
        if parts and parts[-1][0] == kind:
            parts[-1] = (kind, (*parts[-1][1], name))
        else:
            parts.append((kind, (name,)))
    if parts[0][0] == "send":
        parts.insert(0, ("compute", ()))
    if parts[-1][0] == "send":
        parts.append(("compute", ()))
    expected: Counter[tuple[tuple[str, ...], tuple[str, ...]]] = Counter()
    first, second = 1, 0  # nanobatch one has run its first computations, nanobatch two nothing
    while second < len(parts) - 1:
        expected[parts[first][1], parts[second][1]] += 1  # one communicates while two computes
        second += 1
        first += 1
        expected[parts[second][1], parts[first][1]] += 1  # then the other way round
        first += 1
        second += 1
        if first >= len(parts):
            break
    wanted = Counter({key: count for key, count in expected.items() if key[1]})
    got: Counter[tuple[tuple[str, ...], tuple[str, ...]]] = Counter()
    for partition, count in find_partitions(kernels).types:
        communication = tuple(partition.communication.name.split(" + "))
        got[communication, tuple(kernel.name for kernel in partition.computations)] += count
    assert got == wanted


@pytest.mark.parametrize("kernels", [[], [compute("a")], [send()]])
def test_without_both_there_is_nothing_to_overlap(kernels: list[Kernel]) -> None:
    with pytest.raises(ValueError, match="needs a communication and a computation"):
        find_partitions(kernels)


def test_the_search_space_of_an_a100_is_the_paper_s() -> None:
    # Appendix C: 900 to 1410 MHz in steps of 30, 3 to 30 SMs in threes for groups of 4 or more, 1 to 20 below.
    clocks = clock_choices(900, 1410, 30)
    assert clocks == tuple(range(900, 1411, 30))
    assert communication_sm_choices(8) == (3, 6, 9, 12, 15, 18, 21, 24, 27, 30)
    assert communication_sm_choices(2) == tuple(range(1, 21))
    space = search_space(clocks, communication_sm_choices(8), range(5), not_overlapped=True)
    assert len(space) == len(set(space)) == 18 * 10 * 6
    assert {schedule.launch_kernel for schedule in space} == {NOT_OVERLAPPED, 0, 1, 2, 3, 4}
    with pytest.raises(ValueError, match="search space is empty"):
        search_space(clocks, (), range(5))


@pytest.mark.parametrize(("computations", "most"), [(1, 36 + 48), (2, 48 + 64), (3, 48 + 64), (5, 96 + 128)])
def test_budgets_are_appendix_c_s(computations: int, most: int) -> None:
    assert SearchBudget.for_partition(computations).most == most


def test_features_tell_every_two_schedules_apart() -> None:
    space = search_space((900, 1410), (3, 6), range(3), threads_per_block=(512, 1024), not_overlapped=True)
    space += (KernelSchedule(900, 3, 0, 1, 512), KernelSchedule(900, 3, 0, 2, 512))
    timings = launch_timings(space)
    features = encode(space, timings)
    assert features.shape == (len(space), 6 + len(timings))
    assert len({tuple(row) for row in features.tolist()}) == len(space)
    assert (features[:, 6:].sum(axis=1) == 1).all()
    assert [timings[row.argmax()] for row in features[:, 6:]] == [schedule.launch_timing for schedule in space]


def test_dynamic_energy_is_what_static_power_leaves() -> None:
    assert Measurement(0.01, 5.0).dynamic_energy_joules(120.0) == pytest.approx(3.8)
    with pytest.raises(ValueError, match=r"no more than a static power of 600\.0 W explains"):
        Measurement(0.01, 5.0).dynamic_energy_joules(600.0)
    schedule = KernelSchedule(1410, 9, 2, 6, 1024)
    assert KernelSchedule.from_json(schedule.to_json()) == schedule
