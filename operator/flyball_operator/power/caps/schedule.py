"""How many watts a PowerCap allows at an instant: its base, its schedule, its energy budget, and its ramp.

Pure: the instant, the time since the last evaluation and what was consumed are given. Schedules and budget periods are
agreed with people, and so follow the wall clock, budgets in UTC and schedules in the time zone that they name; the ramp
follows the caller's own, monotonic measure of time. Whatever is in doubt (a cron expression that cannot be read, a clock
set back) is decided for fewer watts.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from flyball_api.power_cap import CapSchedule, EnergyBudget, PowerCapSpec
from flyball_api.values.units import JOULES_PER_KILOJOULE
from msgspec import Struct
from msgspec.structs import replace

# Rises are taken in steps, as each is a new plan for the cluster.
RAMP_STEP_SECONDS = 5.0
# An energy budget's watts move with what is drawn; they are worked out anew a hundred times a period, within these.
BUDGET_STEPS = 100
BUDGET_STEP_MIN_SECONDS = 1.0
BUDGET_STEP_MAX_SECONDS = 60.0

CRON_FIELDS = 5
SECOND = timedelta(seconds=1)
# Longer than any clock is put back at once.
CLOCKS_PUT_BACK = timedelta(hours=4)
# In some zone it is past the last year that a datetime has from here on: what comes later comes now, or never.
LATEST = datetime(9999, 12, 30, tzinfo=UTC)
# Clocks that are less apart show the same time: cron knows nothing shorter than a minute.
SAME_TIME_SECONDS = 1.0
# So many edges of a schedule are looked at for the next one that changes anything: at once, and in all.
EDGES_AT_ONCE, EDGES_LOOKED_AT = 64, 1024


class EnergyPeriod(Struct, frozen=True):
    """A budget's period and the joules used in it so far; status.energyPeriod keeps it over restarts."""

    start: datetime
    consumed_joules: float = 0.0


class LastEvaluation(Struct, frozen=True):
    """What the next evaluation of a cap needs of the last one.

    `effective_watts` is what it came to (None: there was none), and `ramp_age_seconds` for how long the ramp has held it
    below what is allowed. `energy_period` is as last charged, `budget_watts` what the energy budget came to in it (None:
    not yet), `budget_age_seconds` ago.
    """

    effective_watts: float | None = None
    ramp_age_seconds: float = 0.0
    energy_period: EnergyPeriod | None = None
    budget_watts: float | None = None
    budget_age_seconds: float = 0.0


class ScheduleProblem(Struct, frozen=True):
    """An entry of a schedule that cannot be followed: the reason in one word, and what would be right."""

    reason: str
    message: str


class UnreadableEntry(ValueError):
    """An entry of a schedule that cannot be followed; `reason` in one word, the message says what would be right."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ScheduledChange(Struct, frozen=True):
    """When a schedule changes its cap next, to how many watts, and by which entry (None: it ends)."""

    time: datetime
    watts: float
    window: str | None


class KnownChange(Struct, frozen=True):
    """When a schedule changes its cap next: at `change`, or not before `until`, after `edges` edges that change nothing
    (None for both: never)."""

    change: ScheduledChange | None = None
    until: datetime | None = None
    edges: int = 0

    @property
    def final(self) -> bool:
        """Nothing more is looked for before `until`."""
        return self.change is not None or self.until is None or self.edges >= EDGES_LOOKED_AT


class EffectiveCap(Struct, frozen=True):
    """What a cap comes to: watts (static overhead included) and one sentence why.

    `next_change_seconds` is when they must be worked out anew (infinite: only when the cap changes), `target_watts` where
    the ramp leads, `falls_in_seconds` when the schedule or a budget's next period lowers it (infinite: never), `problems`
    what the cap's owner must put right, `energy_period` and `budget_watts` what to remember.
    """

    watts: float
    reason: str
    next_change_seconds: float
    target_watts: float
    active_window: str | None = None
    problems: tuple[ScheduleProblem, ...] = ()
    energy_period: EnergyPeriod | None = None
    falls_in_seconds: float = math.inf
    budget_watts: float | None = None


class _Limit(Struct, frozen=True):
    watts: float
    reason: str
    window: str | None = None


def effective_cap(
    spec: PowerCapSpec,
    last: LastEvaluation,
    now: datetime,
    max_limit_watts: float,
    clock_ahead_seconds: float = 0.0,
) -> EffectiveCap:
    """The watts that `spec` allows at `now`, the least of everything that limits them.

    While `now` is by a clock that is certainly ahead of the API server's, or behind it, nobody knows which windows of the
    schedule are open: those by either clock count.

    `max_limit_watts` is the sum of the largest limits of all GPUs under the cap, to which permilleOfMax refers.
    Raises ValueError where `now` has no time zone.
    """
    if now.tzinfo is None:
        raise ValueError(f"the time {now} has no time zone; schedules are in UTC")
    now = now.astimezone(UTC)
    scheduled = _scheduled(spec, now, max_limit_watts)
    if abs(clock_ahead_seconds) >= SAME_TIME_SECONDS:
        scheduled = scheduled.by_either(_scheduled(spec, now - timedelta(seconds=clock_ahead_seconds), max_limit_watts))
    limits, next_change = list(scheduled.limits), scheduled.next_edge_seconds
    period = budget_watts = None
    if spec.energy_budget is not None:
        period = current_period(spec.energy_budget, last.energy_period, now)
        limit, step = _budget(spec, spec.energy_budget, period, now)
        held = last.budget_watts
        if held is not None and held < limit.watts and last.budget_age_seconds < step:
            # What is left rises all the time while less is drawn; each rise is a grant to every node.
            limit, step = _Limit(held, limit.reason), step - last.budget_age_seconds
        budget_watts = limit.watts
        limits.append(limit)
        next_change = min(next_change, step)
    least = min(limits, key=lambda limit: limit.watts)
    watts, reason = least.watts, f"{least.watts:.0f} W: {least.reason}"
    ramp, before = spec.ramp_watts_per_second, last.effective_watts
    if ramp is not None and before is not None and least.watts > before:
        # In steps, for each is a grant to every node: what is acknowledged wakes the operator, which would find the ramp
        # a little higher and grant that, as fast as it can.
        step, age = min(RAMP_STEP_SECONDS, (least.watts - before) / ramp), max(0.0, last.ramp_age_seconds)
        watts = min(least.watts, before + ramp * age) if age >= step else before
        if watts < least.watts:
            reason = f"{watts:.0f} W: rising by {ramp:g} W/s towards {reason}"
            next_step = step - age if age < step else min(RAMP_STEP_SECONDS, (least.watts - watts) / ramp)
            next_change = min(next_change, next_step)
    falls = [begins_in for begins_in, lower in scheduled.begins if lower < watts]
    if spec.energy_budget is not None and period is not None and _from_next_period(spec, spec.energy_budget) < watts:
        falls.append(_seconds_left(spec.energy_budget, period, now))
    falls_in = min(falls, default=math.inf)
    problems = scheduled.problems
    return EffectiveCap(watts, reason, next_change, least.watts, least.window, problems, period, falls_in, budget_watts)


def next_scheduled_change(
    spec: PowerCapSpec, now: datetime, max_limit_watts: float, known: KnownChange | None = None
) -> KnownChange:
    """The next edge of the schedule at which the cap changes, as far as is looked at once; goes on from what is `known`
    of the time from `now` on, up to EDGES_LOOKED_AT edges in all."""
    known = known or KnownChange(None, now)
    if known.final or known.until is None:
        return known
    at, present = known.until, min(_scheduled(spec, now, max_limit_watts).limits, key=lambda limit: limit.watts)
    for _ in range(EDGES_AT_ONCE):
        edge = _scheduled(spec, at, max_limit_watts).next_edge_seconds
        if not math.isfinite(edge):
            return KnownChange()
        at += timedelta(seconds=edge)
        least = min(_scheduled(spec, at, max_limit_watts).limits, key=lambda limit: limit.watts)
        if least.watts != present.watts:
            return KnownChange(ScheduledChange(at, least.watts, least.window), at)
    return KnownChange(None, at, known.edges + EDGES_AT_ONCE)


class _Scheduled(Struct, frozen=True):
    """What base and schedule allow at an instant: the limits, the seconds to the next edge, and (seconds, watts) of each
    entry's next beginning."""

    limits: tuple[_Limit, ...]
    next_edge_seconds: float
    begins: tuple[tuple[float, int], ...]
    problems: tuple[ScheduleProblem, ...]

    def by_either(self, other: _Scheduled) -> _Scheduled:
        """The limits of both, of which `other` is by the API server's clock; what cannot be read is the same."""
        limits = tuple(replace(limit, reason=f"{limit.reason}, by the API server's clock") for limit in other.limits)
        edge = min(self.next_edge_seconds, other.next_edge_seconds)
        return _Scheduled(self.limits + limits, edge, self.begins + other.begins, self.problems)


def _scheduled(spec: PowerCapSpec, now: datetime, max_limit_watts: float) -> _Scheduled:
    limits, next_edge = [_base(spec, max_limit_watts)], math.inf
    begins: list[tuple[float, int]] = []
    problems: list[ScheduleProblem] = []
    for window in spec.schedule:
        try:
            ends_in, begins_in = _window_edges(window, now)
        except UnreadableEntry as error:
            words = f"schedule {window.name}: {error}; until it is put right, its {window.watts:g} W count all the time"
            problems.append(ScheduleProblem(error.reason, words))
            limits.append(_Limit(window.watts, f"schedule {window.name}, which cannot be read", window.name))
            continue
        next_edge = min(next_edge, begins_in)
        begins.append((begins_in, window.watts))
        if ends_in is not None:
            next_edge = min(next_edge, ends_in)
            until = (now + timedelta(seconds=ends_in)).strftime("%Y-%m-%d %H:%M:%S UTC")
            limits.append(_Limit(window.watts, f"schedule {window.name} until {until}", window.name))
    return _Scheduled(tuple(limits), next_edge, tuple(begins), tuple(problems))


def _base(spec: PowerCapSpec, max_limit_watts: float) -> _Limit:
    if spec.watts is not None:
        return _Limit(spec.watts, "the cap's watts")
    permille = spec.permille_of_max or 0
    overhead = f" and {spec.static_overhead_watts:g} W of overhead" if spec.static_overhead_watts else ""
    return _Limit(
        permille / 1000 * max_limit_watts + spec.static_overhead_watts,
        f"{permille:g} permille of the {max_limit_watts:.0f} W of all GPUs at their largest limits{overhead}",
    )


def _window_edges(window: CapSchedule, now: datetime) -> tuple[float | None, float]:
    """Seconds until the window ends (None: it is not open) and until it begins next; raises UnreadableEntry."""
    if window.start is not None and window.end is not None:
        starts_in, ends_in = ((min(edge, LATEST) - now).total_seconds() for edge in (window.start, window.end))
        return (ends_in if starts_in <= 0 < ends_in else None), (starts_in if starts_in > 0 else math.inf)
    if window.cron is None or window.duration_seconds is None:
        raise UnreadableEntry("CronUnreadable", "it has neither cron and durationSeconds, nor start and end")
    zone = _time_zone(window.time_zone)
    fields = window.cron.split()
    try:
        if len(fields) != CRON_FIELDS:
            raise CronSimError(f"it has {len(fields)} fields")
        last, begin = _beginnings(window.cron, now, zone)
    except (CronSimError, AssertionError, ValueError, OverflowError) as error:
        raise UnreadableEntry(
            "CronUnreadable",
            f"cron {window.cron!r}: {str(error) or 'it cannot be read'} (five fields: minute, hour, day of month, month, "
            f"day of week, in {window.time_zone or 'UTC'})",
        ) from error
    begins_in = math.inf if begin is None else (begin - now).total_seconds()
    ends_in = -1.0 if last is None else window.duration_seconds - (now - last).total_seconds()
    return (ends_in if ends_in > 0 else None), begins_in


def _beginnings(cron: str, now: datetime, zone: tzinfo) -> tuple[datetime | None, datetime | None]:
    """The last beginning, `now` itself included, and the next one, in UTC: within one zone a difference of times would be
    that of its clocks. Raises what CronSim raises."""
    # The search goes strictly back from its start: from the next whole second, `now` itself can be found.
    second = now.replace(microsecond=0) + SECOND
    if (now - CLOCKS_PUT_BACK).astimezone(zone).utcoffset() == (now + CLOCKS_PUT_BACK).astimezone(zone).utcoffset():
        return _in_utc(CronSim(cron, second.astimezone(zone), reverse=True)), _in_utc(
            CronSim(cron, now.astimezone(zone))
        )
    # In an hour that comes twice the clock does not say what has begun already: from before it, one after the other.
    before = (now - CLOCKS_PUT_BACK).replace(microsecond=0)
    last = _in_utc(CronSim(cron, (before + SECOND).astimezone(zone), reverse=True))
    for local in CronSim(cron, before.astimezone(zone)):
        begin = local.astimezone(UTC)
        if begin > now:
            return last, begin
        last = begin
    return last, None


def _in_utc(found: CronSim) -> datetime | None:
    local = next(found, None)
    return None if local is None else local.astimezone(UTC)


def _time_zone(name: str | None) -> tzinfo:
    if name is None:
        return UTC
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError) as error:  # ZoneInfoNotFoundError is a KeyError
        words = f"timeZone {name!r} is not known (an IANA name such as Europe/Berlin, or none for UTC)"
        raise UnreadableEntry("TimeZoneUnknown", words) from error


def _budget(spec: PowerCapSpec, budget: EnergyBudget, period: EnergyPeriod, now: datetime) -> tuple[_Limit, float]:
    """What is left of the budget, spread over what is left of its period, and the seconds until the next look."""
    joules = max(0.0, budget.kilojoules * JOULES_PER_KILOJOULE - period.consumed_joules)
    seconds = _seconds_left(budget, period, now)
    step = min(BUDGET_STEP_MAX_SECONDS, max(BUDGET_STEP_MIN_SECONDS, budget.period_seconds / BUDGET_STEPS), seconds)
    reason = f"{joules / JOULES_PER_KILOJOULE:.0f} of {budget.kilojoules:g} kJ are left for {seconds:.0f} s"
    return _Limit(joules / seconds + spec.static_overhead_watts, reason), step


def _seconds_left(budget: EnergyBudget, period: EnergyPeriod, now: datetime) -> float:
    return (period.start - now).total_seconds() + budget.period_seconds


def _from_next_period(spec: PowerCapSpec, budget: EnergyBudget) -> float:
    """The watts with which the next period begins: what was saved in this one is none of it."""
    return budget.kilojoules * JOULES_PER_KILOJOULE / budget.period_seconds + spec.static_overhead_watts


def current_period(budget: EnergyBudget, known: EnergyPeriod | None, now: datetime) -> EnergyPeriod:
    """The period that `now` is charged to: the known one while it lasts, else a new one.

    A known period that begins next stays: a clock set back a little must not give its budget a second time. One that
    begins later still came of a clock that was far ahead: what it was charged is charged now.
    """
    start = _period_start(budget, now)
    if known is None or known.start < start:
        return EnergyPeriod(start)
    if (known.start - now).total_seconds() > budget.period_seconds:
        share = (now - start).total_seconds() / budget.period_seconds
        return EnergyPeriod(start, known.consumed_joules + share * budget.kilojoules * JOULES_PER_KILOJOULE)
    return known


def _period_start(budget: EnergyBudget, now: datetime) -> datetime:
    """When the period of `now` began."""
    seconds = math.floor(now.timestamp())
    return datetime.fromtimestamp(seconds - seconds % budget.period_seconds, UTC)


def charge_energy(
    budget: EnergyBudget, known: EnergyPeriod | None, now: datetime, joules: float, seconds: float
) -> EnergyPeriod:
    """The period of `now` with `joules`, drawn over the last `seconds`, added; of a new one only the share since its start.

    Raises ValueError on a negative or not finite number of joules or seconds.
    """
    if not (math.isfinite(joules) and math.isfinite(seconds) and joules >= 0 and seconds >= 0):
        raise ValueError(f"{joules} J over {seconds} s cannot be charged (finite numbers, not below zero)")
    period = current_period(budget, known, now)
    if known is not None and period.start > known.start and seconds > 0:
        joules *= min(1.0, (now - period.start).total_seconds() / seconds)
    return EnergyPeriod(period.start, period.consumed_joules + joules)
