"""The modelled kernels: bounds by hand, and what section 3.2 of Kareus observes on real ones."""

from __future__ import annotations

import pytest
from flyball_frontiers.kareus import NOT_OVERLAPPED, Kernel, KernelSchedule, Partition, find_partitions
from flyball_frontiers.kareus.partition import search_space
from flyball_frontiers.kareus.schedule import clock_choices
from flyball_studies.kareus.model import GpuGroup, measure_alone, measure_partition, measure_sequential
from flyball_studies.kareus.pipeline_study import transformer_block
from hypothesis import given
from hypothesis import strategies as st

GROUP = GpuGroup()
ATTENTION = find_partitions(transformer_block() * 2).types[0][0]
KERNELS = len(ATTENTION.computations)

schedules = st.builds(
    KernelSchedule,
    st.sampled_from(clock_choices(900, 1410, 15)),
    st.integers(1, 40),
    st.integers(NOT_OVERLAPPED, KERNELS - 1),
    st.one_of(st.none(), st.integers(0, KERNELS - 1)),
)


@given(schedules)
def test_time_lies_between_perfect_overlap_and_none(schedule: KernelSchedule) -> None:
    took = measure_partition(GROUP, ATTENTION, schedule)
    computing = measure_alone(GROUP, ATTENTION.computations, schedule.clock_megahertz).time_seconds
    sending = ATTENTION.communication.memory_seconds / min(1.0, schedule.communication_sms / GROUP.sms_for_links)
    assert took.time_seconds >= max(computing, sending) * (1 - 1e-9)
    slowed = computing * GROUP.sms / (GROUP.sms - schedule.communication_sms) / (1 - GROUP.link_memory_share)
    assert took.time_seconds <= (slowed + 5 * sending) * (1 + 1e-9)
    assert took.energy_joules > GROUP.static_power_watts * took.time_seconds
    if schedule.launch_kernel == NOT_OVERLAPPED:
        assert took.time_seconds == pytest.approx(computing + sending)


@given(schedules)
def test_a_higher_clock_is_never_slower(schedule: KernelSchedule) -> None:
    faster = KernelSchedule(1410, schedule.communication_sms, schedule.launch_kernel, schedule.last_kernel)
    assert measure_partition(GROUP, ATTENTION, faster).time_seconds <= measure_partition(
        GROUP, ATTENTION, schedule
    ).time_seconds * (1 + 1e-9)


def test_one_kernel_and_one_communication_by_hand() -> None:
    # 10 ms of arithmetic on 96 of 108 SMs beside 5 ms of communication, then the rest on all SMs.
    partition = Partition(Kernel("send", True, memory_seconds=0.005), (Kernel("multiply", compute_seconds=0.010),))
    took = measure_partition(GROUP, partition, KernelSchedule(1410, 12, 0))
    assert took.time_seconds == pytest.approx(0.005 + 0.010 - 0.005 * 96 / 108)
    exposed = measure_partition(GROUP, partition, KernelSchedule(1410, 12, NOT_OVERLAPPED))
    assert exposed.time_seconds == pytest.approx(0.015)
    squared = GROUP.voltage_squared(1410)
    per_gpu = 0.010 * GROUP.compute_watts * squared + 0.005 * GROUP.link_watts
    per_gpu += GROUP.held_sm_watts * squared * (108 * 0.010 + 12 * 0.005) + 60.0 * 0.015
    assert exposed.energy_joules == pytest.approx(8 * per_gpu)


def test_what_runs_after_the_last_kernel_waits_for_the_communication() -> None:
    partition = Partition(
        Kernel("send", True, memory_seconds=0.010),
        (Kernel("one", compute_seconds=0.002), Kernel("two", compute_seconds=0.004)),
    )
    free = measure_partition(GROUP, partition, KernelSchedule(1410, 12, 0))
    waits = measure_partition(GROUP, partition, KernelSchedule(1410, 12, 0, last_kernel=0))
    assert free.time_seconds == pytest.approx(0.010)
    assert waits.time_seconds == pytest.approx(0.010 + 0.004)


def test_power_is_an_a100_s_at_two_clocks() -> None:
    arithmetic, memory = Kernel("multiply", compute_seconds=1.0), Kernel("copy", memory_seconds=1.0)
    watts = {
        (kernel.name, clock): measure_alone(GROUP, [kernel], clock).energy_joules
        / measure_alone(GROUP, [kernel], clock).time_seconds
        / GROUP.gpus
        for kernel in (arithmetic, memory)
        for clock in (1005, 1410)
    }
    assert watts["multiply", 1410] == pytest.approx(296, rel=0.01)
    assert watts["multiply", 1005] == pytest.approx(135, rel=0.05)
    assert watts["copy", 1410] == pytest.approx(228, rel=0.01)
    assert watts["copy", 1005] == pytest.approx(145, rel=0.01)


def test_the_middle_of_sms_is_best_and_the_best_schedule_depends_on_the_clock() -> None:
    # Kareus, Table 2: a sweet spot of SMs; which launch is best changes with the clock.
    best = {}
    for clock in (960, 1410):
        space = search_space([clock], range(1, 41), range(KERNELS))
        energy = {schedule: measure_partition(GROUP, ATTENTION, schedule).energy_joules for schedule in space}
        best[clock] = min(energy, key=lambda schedule: energy[schedule])
        assert 1 < best[clock].communication_sms < 40
        few, many = (KernelSchedule(clock, sms, best[clock].launch_kernel) for sms in (1, 40))
        assert min(energy[few], energy[many]) > energy[best[clock]] * 1.02
    assert best[960].launch_timing != best[1410].launch_timing or (
        best[960].communication_sms != best[1410].communication_sms
    )


def test_sequential_execution_is_two_nanobatches_without_the_splitting() -> None:
    kernels = transformer_block()
    split, whole = measure_alone(GROUP, kernels, 1200), measure_sequential(GROUP, kernels, 1200)
    assert whole.time_seconds == pytest.approx(2 * split.time_seconds / 1.04)
    assert whole.energy_joules == pytest.approx(2 * split.energy_joules / 1.04)


@pytest.mark.parametrize("schedule", [KernelSchedule(1410, 12, KERNELS), KernelSchedule(1410, 108, 0)])
def test_a_schedule_that_cannot_be_is_refused(schedule: KernelSchedule) -> None:
    with pytest.raises(ValueError, match="the partition has kernels 0 to 4, the GPU 108 SMs"):
        measure_partition(GROUP, ATTENTION, schedule)
