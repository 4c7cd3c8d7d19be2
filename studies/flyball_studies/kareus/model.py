"""A model of kernels that share a GPU: a measuring function where there is neither GPU nor record.

It has what section 3.2 of Kareus names: SMs given to the communication are taken from computations; memory-bound kernels
and the communication contend for bandwidth; a lower clock slows arithmetic and not memory; exposed communication leaves
the SMs idle while static power runs on. Everything is exact and cheap, so the frontier of a whole search space can be
enumerated, which is what tests and comparisons need. It does not claim any GPU's numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flyball_frontiers.kareus.partition import Kernel, Partition
from flyball_frontiers.kareus.schedule import NOT_OVERLAPPED, KernelSchedule, Measurement

EXHAUSTED = 1e-12
"""Shares of a kernel below this are done: what rounding leaves over."""


@dataclass(frozen=True, slots=True)
class GpuGroup:
    """The GPUs that run a partition together (a tensor-parallel group), each shaped like an A100.

    Voltage is 1 up to the knee and rises linearly to `voltage_at_highest`. At voltage 1 and the highest clock, an SM
    that holds a kernel draws `held_sm_watts`, arithmetic on all SMs `compute_watts` more; these scale with voltage
    squared and clock. Full memory bandwidth draws `memory_watts`, the links `link_watts`, at any clock. The defaults
    give 296 W and 228 W of compute-bound and memory-bound work at 1410 MHz, 140 W and 145 W at 1005 MHz (measured on an
    A100: 296, 228, 135 and 145 W). Below `sms_for_links` SMs the communication is slower than the links; a kernel of
    half the samples takes `nanobatch_overhead` more than half the time.
    """

    gpus: int = 8
    sms: int = 108
    highest_megahertz: int = 1410
    knee_megahertz: int = 1005
    voltage_at_highest: float = 1.45
    static_watts: float = 60.0
    compute_watts: float = 52.5
    held_sm_watts: float = 0.554
    memory_watts: float = 42.0
    link_watts: float = 20.0
    sms_for_links: int = 12
    link_memory_share: float = 0.3
    nanobatch_overhead: float = 0.04

    @property
    def static_power_watts(self) -> float:
        """Of the whole group at rest."""
        return self.gpus * self.static_watts

    def voltage_squared(self, clock_megahertz: float) -> float:
        above = max(0.0, clock_megahertz - self.knee_megahertz) / (self.highest_megahertz - self.knee_megahertz)
        return (1.0 + (self.voltage_at_highest - 1.0) * above) ** 2


def measure_partition(group: GpuGroup, partition: Partition, schedule: KernelSchedule) -> Measurement:
    """What one execution of a partition takes under a schedule: a timeline of its kernels, piece by piece.

    Raises ValueError where the schedule names a kernel that the partition does not have, or SMs that the GPU has not.
    """
    count, sms = len(partition.computations), schedule.communication_sms
    if not (NOT_OVERLAPPED <= schedule.launch_kernel < count and 0 < sms < group.sms):
        raise ValueError(f"{schedule}: the partition has kernels 0 to {count - 1}, the GPU {group.sms} SMs")
    clock = schedule.clock_megahertz / group.highest_megahertz
    communication = 1.0  # share left
    time = alone = 0.0  # alone: seconds in which only the communication runs
    for index, kernel in enumerate(partition.computations):
        left = 1.0
        beside = NOT_OVERLAPPED < schedule.launch_kernel <= index
        if beside and schedule.last_kernel is not None and index > schedule.last_kernel and communication > 0:
            alone += communication / _link_rate(group, partition.communication, sms, 0.0)
            communication = 0.0
        while left > EXHAUSTED:
            if not (beside and communication > EXHAUSTED):
                time += left / _rate(group, kernel, clock, group.sms, 0.0)
                break
            taken = _link_share(group, sms)
            rate = _rate(group, kernel, clock, group.sms - sms, taken)
            link_rate = _link_rate(group, partition.communication, sms, kernel.memory_seconds * rate)
            step = min(left / rate, communication / link_rate)
            time += step
            left, communication = left - step * rate, communication - step * link_rate
    if communication > EXHAUSTED:
        alone += communication / _link_rate(group, partition.communication, sms, 0.0)
    kernels = (*partition.computations, partition.communication)
    return _measurement(group, kernels, schedule.clock_megahertz, time, alone, sms)


def measure_alone(group: GpuGroup, kernels: Iterable[Kernel], clock_megahertz: int) -> Measurement:
    """What kernels of a nanobatch take one after another, with nothing beside them."""
    clock = clock_megahertz / group.highest_megahertz
    listed = tuple(kernels)
    computing = communicating = 0.0
    for kernel in listed:
        if kernel.communication:
            communicating += 1.0 / _link_rate(group, kernel, group.sms_for_links, 0.0)
        else:
            computing += 1.0 / _rate(group, kernel, clock, group.sms, 0.0)
    return _measurement(group, listed, clock_megahertz, computing, communicating, group.sms_for_links)


def measure_sequential(group: GpuGroup, kernels: Sequence[Kernel], clock_megahertz: int) -> Measurement:
    """What a whole microbatch takes unsplit, kernel after kernel (Kareus, section 4.5, "Execution model switching").

    `kernels` are those of one nanobatch; unsplit they do twice the work without the overhead of splitting.
    """
    nanobatch = measure_alone(group, kernels, clock_megahertz)
    share = 2.0 / (1.0 + group.nanobatch_overhead)
    return Measurement(share * nanobatch.time_seconds, share * nanobatch.energy_joules)


def _rate(group: GpuGroup, kernel: Kernel, clock: float, sms: int, taken_bandwidth: float) -> float:
    """Shares of a computation done per second: its roofline, with fewer SMs and with what bandwidth is left."""
    slowest = max(
        kernel.compute_seconds / (clock * sms / group.sms), kernel.memory_seconds / (1.0 - taken_bandwidth), EXHAUSTED
    )
    return 1.0 / slowest


def _link_share(group: GpuGroup, sms: int) -> float:
    """The share of memory bandwidth that the communication takes: it writes what the links bring."""
    return group.link_memory_share * min(1.0, sms / group.sms_for_links)


def _link_rate(group: GpuGroup, communication: Kernel, sms: int, bandwidth_used: float) -> float:
    """Shares of the communication done per second: the links', less where its SMs or the bandwidth left are few."""
    wanted = _link_share(group, sms)
    room = min(1.0, max(0.2, (1.0 - bandwidth_used) / wanted)) if wanted > 0 else 1.0
    return min(1.0, sms / group.sms_for_links) * room / max(communication.memory_seconds, EXHAUSTED)


def _measurement(
    group: GpuGroup, kernels: Iterable[Kernel], clock_megahertz: int, computing: float, alone: float, sms: int
) -> Measurement:
    """Time and energy of kernels that computed for `computing` s and communicated on `sms` SMs for `alone` s more.

    The work itself takes the same dynamic energy at one clock however it is scheduled (Kareus, section 3.1); static
    power and the SMs that are held take longer schedules' toll.
    """
    squared = group.voltage_squared(clock_megahertz)
    joules = 0.0
    for kernel in kernels:
        if kernel.communication:
            joules += group.link_watts * kernel.memory_seconds
        else:
            joules += (
                group.compute_watts * squared * kernel.compute_seconds + group.memory_watts * kernel.memory_seconds
            )
    clock = clock_megahertz / group.highest_megahertz
    joules += group.held_sm_watts * squared * clock * (group.sms * computing + sms * alone)
    time = computing + alone
    return Measurement(time, group.static_power_watts * time + group.gpus * joules)
