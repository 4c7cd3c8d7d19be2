"""The books of EnergyQuotas: what the jobs of a namespace have used in the period, and whether they may go on.

A book is in its quota's status, with the total up to which each job is counted in it. So it goes on after any crash without
counting anything twice, and forgets nothing when jobs are deleted, made anew or lose their statuses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec
from flyball_api.energy.quota import CountedJob, EnergyQuota, EnergyQuotaStatus, QuotaAllocation, QuotaPeriod
from flyball_api.power_cap import EnergyBudget
from flyball_api.values.conditions import Condition, merge_conditions
from flyball_api.values.times import format_time, whole_second
from flyball_api.values.units import MILLIJOULES_PER_JOULE, MILLIJOULES_PER_KILOJOULE
from flyball_planner.snapshot import Allocation

from flyball_operator.jobs.runs.consumption import Consumption
from flyball_operator.jobs.runs.marks import Mark, used_since
from flyball_operator.jobs.steps.step import LiveJob
from flyball_operator.power.caps.schedule import EnergyPeriod, charge_energy

# A status names so many jobs at most: 1.2 of the 1.5 MB that etcd takes.
MAX_COUNTED_JOBS = 16384


def charged(
    budget: EnergyBudget, period: QuotaPeriod | None, consumptions: Iterable[Consumption], now: datetime
) -> QuotaPeriod:
    """The period at `now`, with what the jobs have used since it was charged last.

    `consumptions` are those of the namespace's jobs.
    """
    since = None if period is None else period.counted_since
    until = None if period is None else period.charged_until
    marks = {} if period is None else {job.uid: Mark(job.millijoules) for job in period.jobs}
    uses = list(used_since(marks, consumptions, counted_since=since, counted_until=until, now=now))
    used = sum(use.millijoules for use in uses)
    counted = [CountedJob(use.job.uid, use.mark.millijoules) for use in uses if use.mark is not None]
    seconds = 0.0 if until is None else max(0.0, (now - until).total_seconds())
    known = None if period is None else EnergyPeriod(period.start, period.consumed_millijoules / MILLIJOULES_PER_JOULE)
    energy = charge_energy(budget, known, now, used / MILLIJOULES_PER_JOULE, seconds)
    millijoules = round(energy.consumed_joules * MILLIJOULES_PER_JOULE)
    return QuotaPeriod(
        start=energy.start,
        counted_since=whole_second(since or now),
        charged_until=whole_second(now),
        consumed_kilojoules=millijoules // MILLIJOULES_PER_KILOJOULE,
        consumed_millijoules=millijoules,
        jobs=tuple(sorted(counted, key=lambda job: (-job.millijoules, job.uid))),
    )


def _gone_on_from(period: QuotaPeriod | None) -> QuotaPeriod | None:
    """A status' period, to count on from. Where its list is full others may have been left out of it: up to where they are
    counted nobody knows, and of those there are by then only what they use from now on is."""
    if period is None or len(period.jobs) < MAX_COUNTED_JOBS:
        return period
    return msgspec.structs.replace(period, counted_since=period.charged_until)


def _as_written(period: QuotaPeriod | None) -> QuotaPeriod | None:
    """A period with no more jobs than a status may name, those that have used the most."""
    return None if period is None else msgspec.structs.replace(period, jobs=period.jobs[:MAX_COUNTED_JOBS])


def spent_text(quota: EnergyQuota, period: QuotaPeriod | None) -> str | None:
    """Why the namespace's jobs may use no more, and when they may again; None where they may."""
    budget = quota.spec.energy_budget
    if budget is None or period is None or period.consumed_millijoules < budget.kilojoules * MILLIJOULES_PER_KILOJOULE:
        return None
    begins = format_time(period.start + timedelta(seconds=budget.period_seconds))
    return f"the {budget.kilojoules} kJ of EnergyQuota {quota.name} are used up; its next period begins at {begins}"


@dataclass(slots=True)
class _Book:
    """One quota's period, as far as this leader knows, and when its status was made last."""

    period: QuotaPeriod | None
    written_at: float = float("-inf")


class QuotaBooks:
    """The books of all quotas during one leader's term; it goes on from what their statuses have."""

    def __init__(self, interval_seconds: float) -> None:
        self._interval_seconds = interval_seconds
        self._books: dict[str, _Book] = {}  # by the quota's uid

    def spent(self, quotas: Iterable[EnergyQuota]) -> dict[str, str]:
        """The words for each quota whose energy is used up, by its uid."""
        found = {quota.uid: spent_text(quota, self._book(quota).period) for quota in quotas}
        return {uid: words for uid, words in found.items() if words is not None}

    def charge(self, quotas: Collection[EnergyQuota], consumptions: Iterable[Consumption], now: datetime) -> None:
        """Count what the jobs have used until `now`."""
        budgets = [quota for quota in quotas if quota.spec.energy_budget is not None]
        if not budgets:
            self._books = {quota.uid: self._book(quota) for quota in quotas}
            return
        used_in: dict[str, list[Consumption]] = {}
        for item in consumptions:
            used_in.setdefault(item.namespace, []).append(item)
        for quota in budgets:
            book = self._book(quota)
            if quota.spec.energy_budget is not None:
                book.period = charged(quota.spec.energy_budget, book.period, used_in.get(quota.namespace, ()), now)
        self._books = {quota.uid: self._book(quota) for quota in quotas}

    def step(
        self,
        quotas: Iterable[EnergyQuota],
        jobs: Iterable[LiveJob],
        now: datetime,
        monotonic: float,
        writes: Collection[str],
    ) -> list[tuple[EnergyQuota, EnergyQuotaStatus]]:
        """The statuses to write now: at once where more than figures changed; none of a quota in `writes`."""
        allocated = _allocated(jobs)
        found = []
        for quota in quotas:
            book = self._book(quota)
            status = quota_status(quota, book.period, allocated.get(quota.namespace, QuotaAllocation()), now)
            due = monotonic - book.written_at >= self._interval_seconds
            if quota.uid in writes or not _new(quota.status, status, due=due):
                continue
            book.written_at = monotonic
            found.append((quota, status))
        return found

    def _book(self, quota: EnergyQuota) -> _Book:
        return self._books.setdefault(quota.uid, _Book(_gone_on_from(quota.status.energy_period)))


def quota_status(
    quota: EnergyQuota, period: QuotaPeriod | None, allocated: QuotaAllocation, now: datetime
) -> EnergyQuotaStatus:
    """The whole status of a quota."""
    words = spent_text(quota, period)
    condition = (
        Condition("WithinQuota", True, "WithinQuota", "the namespace's jobs may use what the quota leaves")
        if words is None
        else Condition("WithinQuota", False, "EnergySpent", words)
    )
    return EnergyQuotaStatus(
        observed_generation=quota.metadata.generation,
        conditions=merge_conditions(quota.status.conditions, [condition], quota.metadata.generation, now),
        allocated=allocated,
        energy_period=None if quota.spec.energy_budget is None else _as_written(period),
    )


def _new(before: EnergyQuotaStatus, after: EnergyQuotaStatus, *, due: bool) -> bool:
    """Whether a status says something else than the one that stands; figures alone do only when they are `due`."""
    if (before.observed_generation, before.conditions) != (after.observed_generation, after.conditions):
        return True
    if not due:
        return False
    used = [0 if item.energy_period is None else item.energy_period.consumed_millijoules for item in (before, after)]
    starts = [None if item.energy_period is None else item.energy_period.start for item in (before, after)]
    return before.allocated != after.allocated or used[0] != used[1] or starts[0] != starts[1]


def _allocated(jobs: Iterable[LiveJob]) -> Mapping[str, QuotaAllocation]:
    """What the plan gives the jobs of each namespace."""
    found: dict[str, list[Allocation]] = {}
    for job in jobs:
        if job.memory.refusal is None and job.memory.current is not None and job.memory.current.nodes:
            found.setdefault(job.view.namespace, []).append(job.memory.current)
    return {
        namespace: QuotaAllocation(
            sum(item.gpus for item in given),
            round(sum(item.gpus * item.power_limit_watts for item in given)),
            len(given),
        )
        for namespace, given in found.items()
    }
