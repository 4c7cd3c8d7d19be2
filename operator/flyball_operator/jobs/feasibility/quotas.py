"""At most how many GPUs and watts the quotas of its namespace leave each job, or why they leave it none.

A ResourceQuota bounds the pods of a namespace, and the API server refuses those above it; an EnergyQuota bounds what the
plan gives to the jobs of a namespace together. Both are handed out before the plan, so that whatever the plan makes of
it fits: the highest priority and then the oldest get their smallest sizes, and what is left lets them grow in the same
order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from flyball_api.energy.quota import EnergyQuota
from flyball_api.energy_aware_job import EnergyAwareJob
from flyball_api.values.bounds import least
from flyball_api.workloads import GpuQuota

from flyball_operator.jobs.runs.memory import Refusal

QUOTA_EXCEEDED = "QuotaExceeded"


@dataclass(frozen=True, slots=True)
class QuotaBound:
    """The most that quotas leave one job: GPUs, and watts for each of them (None: no bound), or why nothing.

    `by` is the quota that bounds its GPUs.
    """

    gpus_max: int | None = None
    watts_per_gpu: int | None = None
    refusal: Refusal | None = None
    by: str = field(default="", compare=False)

    def __and__(self, other: QuotaBound) -> QuotaBound:
        """What both leave."""
        gpus_max = least(self.gpus_max, other.gpus_max)
        return QuotaBound(
            gpus_max,
            least(self.watts_per_gpu, other.watts_per_gpu),
            self.refusal or other.refusal,
            self.by if gpus_max == self.gpus_max else other.by,
        )


NO_BOUND = QuotaBound()


class GpuWatts(NamedTuple):
    """One GPU's smallest and default power limit: the largest that any is believed to have, so that all can be had."""

    smallest: int
    default: int


def handed_out(jobs: Sequence[EnergyAwareJob], gpus: int, fixed: Mapping[str, int] | None = None) -> dict[str, int]:
    """The most GPUs that each of `jobs` may have, by uid, where all of them together have `gpus`.

    They are served in their order, and who gets none is not in it. `fixed` has the sizes of those that cannot change now.
    """
    given: dict[str, int] = {}
    for job in jobs:
        least = _smallest(job, fixed or {})
        if least <= gpus:
            given[job.uid] = least
            gpus -= least
    for job in jobs:
        size = given.get(job.uid)
        if size is None or (fixed or {}).get(job.uid):
            continue
        while 2 * size <= job.spec.gpus.max and size <= gpus:
            gpus -= size
            size *= 2
        given[job.uid] = size
    return given


def resource_quota_bounds(
    jobs: Sequence[EnergyAwareJob], quotas: Sequence[GpuQuota], foreign_gpus: Mapping[tuple[str, str], int]
) -> dict[str, QuotaBound]:
    """What ResourceQuotas leave each job, by uid; `foreign_gpus` of them pods have that are not Flyball's."""
    bounds: dict[str, QuotaBound] = {}
    for quota in quotas:
        place = (quota.namespace, quota.resource_name)
        concerned = [job for job in jobs if (job.namespace, job.spec.gpus.resource_name) == place]
        order = sorted(concerned, key=lambda job: (-job.spec.priority, job.created, job.name))
        hard = quota.hard - foreign_gpus.get(place, 0)
        given = handed_out(order, hard)
        left = max(0, hard - sum(_fewest(job) for job in order if job.uid in given))
        for job in order:
            bound = QuotaBound(given.get(job.uid), by=f"ResourceQuota {quota.name}")
            if job.uid not in given:
                needs, of_what = _gpus(_fewest(job)), f"the {quota.hard} of ResourceQuota {quota.name}"
                words = f"needs {needs}, and of {of_what} {left} are left"
                bound = QuotaBound(refusal=Refusal(QUOTA_EXCEEDED, words))
            bounds[job.uid] = bounds.get(job.uid, NO_BOUND) & bound
    return bounds


def energy_quota_bounds(
    jobs: Sequence[EnergyAwareJob],
    quotas: Sequence[EnergyQuota],
    held: Mapping[str, int],
    fixed: Mapping[str, int],
    watts: GpuWatts | None,
    spent: Mapping[str, str],
) -> dict[str, QuotaBound]:
    """What EnergyQuotas leave each of `jobs`, those that want GPUs, by uid.

    `held` is how many GPUs the pods of a job have now, which come before those that wait; `fixed` the same of jobs whose
    size cannot change now. `watts` is None while no GPU is known: then no job starts under a quota of watts. `spent` has
    the words for quotas whose energy is used up, by their uid.
    """
    bounds: dict[str, QuotaBound] = {}
    for quota in quotas:
        concerned = [job for job in jobs if job.namespace == quota.namespace]
        order = sorted(concerned, key=lambda job: (-job.spec.priority, not held.get(job.uid), job.created, job.name))
        for job_uid, bound in _bounds_of(quota, order, fixed, watts, spent.get(quota.uid)).items():
            bounds[job_uid] = bounds.get(job_uid, NO_BOUND) & bound
    return bounds


def _bounds_of(
    quota: EnergyQuota,
    order: Sequence[EnergyAwareJob],
    fixed: Mapping[str, int],
    watts: GpuWatts | None,
    spent: str | None,
) -> dict[str, QuotaBound]:
    if spent is not None:
        return {job.uid: QuotaBound(refusal=Refusal(QUOTA_EXCEEDED, spent)) for job in order}
    bounds: dict[str, QuotaBound] = {}
    if quota.spec.gpus is not None:
        given = handed_out(order, quota.spec.gpus, fixed)
        left = quota.spec.gpus - sum(_smallest(job, fixed) for job in order if job.uid in given)
        for job in order:
            bounds[job.uid] = (
                QuotaBound(given[job.uid], by=f"EnergyQuota {quota.name}")
                if job.uid in given
                else _too_few(job, quota.spec.gpus, left, f"GPUs of EnergyQuota {quota.name}")
            )
    if quota.spec.watts is not None:
        served = [job for job in order if bounds.get(job.uid, NO_BOUND).refusal is None]
        for uid, bound in _watt_bounds(quota, served, bounds, fixed, watts).items():
            bounds[uid] = bounds.get(uid, NO_BOUND) & bound
    return bounds


def _fewest(job: EnergyAwareJob) -> int:
    """The fewest GPUs that a job can run on: its smallest size of which each holds its part of the batch."""
    training, gpus = job.spec.training, job.spec.gpus.min
    each = training.max_local_batch_size or training.global_batch_size
    while gpus * each < training.global_batch_size and 2 * gpus <= job.spec.gpus.max:
        gpus *= 2
    return gpus


def _smallest(job: EnergyAwareJob, fixed: Mapping[str, int]) -> int:
    """The GPUs that a job has at the least, if it has any."""
    return max(_fewest(job), fixed.get(job.uid, 0))


def _too_few(job: EnergyAwareJob, hard: int, left: int, of_what: str) -> QuotaBound:
    """That a job needs more GPUs than the smallest sizes of those before it leave of a quota."""
    words = f"needs {_gpus(_fewest(job))}, and of the {hard} {of_what} {max(0, left)} are left"
    if _fewest(job) > hard:
        words = f"needs {_gpus(_fewest(job))}, and there are only the {hard} {of_what}"
    return QuotaBound(refusal=Refusal(QUOTA_EXCEEDED, words))


def _watt_bounds(
    quota: EnergyQuota,
    order: Sequence[EnergyAwareJob],
    before: Mapping[str, QuotaBound],
    fixed: Mapping[str, int],
    watts: GpuWatts | None,
) -> dict[str, QuotaBound]:
    """As many GPUs as the quota's watts carry at their default limits; as many more as the smallest sizes need, at less."""
    hard = quota.spec.watts or 0
    most = 0 if watts is None else hard // watts.smallest
    of_what = f"GPUs that the {hard} W of EnergyQuota {quota.name} carry at their smallest limits"
    least: dict[str, int] = {}
    left = most
    for job in order:
        size = _smallest(job, fixed)
        if size <= left:
            least[job.uid] = size
            left -= size
    needed = sum(least.values())
    served = [job for job in order if job.uid in least]
    at_default = 0 if watts is None else hard // watts.default
    given = handed_out(served, max(needed, at_default), fixed)
    for uid, size in given.items():
        bound = before.get(uid, NO_BOUND).gpus_max
        given[uid] = size if bound is None else min(size, bound)
    together = sum(given.values())
    by = f"EnergyQuota {quota.name}"
    bounds = {uid: QuotaBound(size, hard // together, by=by) for uid, size in given.items()}
    bounds |= {job.uid: _too_few(job, most, left, of_what) for job in order if job.uid not in least}
    return bounds


def _gpus(number: int) -> str:
    return "1 GPU" if number == 1 else f"{number} GPUs"
