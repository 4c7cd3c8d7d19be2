"""The columns that kubectl prints of a job: few words, rounded for people."""

from __future__ import annotations

from datetime import datetime

from flyball_api.energy_aware_job import EnergyAwareJob, JobSummary
from flyball_api.values.times import whole_second

from flyball_operator.jobs.runs.progress import JobProgress
from flyball_operator.jobs.status.facts import JobFacts

KILOJOULES_PER_KILOWATT_HOUR = 3600.0
LEAST_SHOWN = 0.001  # kilowatt-hours
ESTIMATE_MARK = "~"  # before what the model says because the job itself reports nothing


def summary_of(
    job: EnergyAwareJob,
    facts: JobFacts,
    remaining_seconds: float | None,
    ends: tuple[datetime | None, datetime | None, datetime | None],
) -> JobSummary:
    """The columns; an empty one where there is nothing to say. `ends` are the expected end, the earliest and the latest."""
    progress, decision = facts.progress, facts.decision
    running = facts.runs
    iterations, budget = job.spec.training.iterations, job.spec.energy.budget_kilojoules
    guess = ESTIMATE_MARK if progress.estimated else ""
    planned_clock = decision.allocation.clock_megahertz if decision and decision.allocation else 0
    return JobSummary(
        clock=f"{progress.clock_megahertz or planned_clock} MHz" if running else "",
        power=f"{facts.watts} W" if running and facts.watts else "",
        progress=_progress_text(progress, iterations, ended=bool(facts.outcome)),
        energy=kilojoules_text(progress.consumed_millijoules / 1e6),
        budget="" if not budget else f"{100 * progress.consumed_millijoules // (budget * 1_000_000)}%",
        eta="" if remaining_seconds is None or facts.outcome else guess + _duration(remaining_seconds),
        finish=guess * (ends[0] is not None) + _finish_text(*ends),
        queue="" if facts.queue is None else f"{facts.queue.position}/{facts.queue.waiting}",
        start="" if job.spec.suspend else _start_text(facts),
    )


def kilojoules_text(value: float) -> str:
    """`812.0 kJ (0.226 kWh)`: what the books are kept in, and what electricity is sold in."""
    joules = f"{value:.1f} kJ" if value < 1000 else f"{value / 1e3:.1f} MJ" if value < 1e6 else f"{value / 1e6:.1f} GJ"
    hours = value / KILOJOULES_PER_KILOWATT_HOUR
    return (
        f"{joules} ({_three_digits(hours)} kWh)" if hours < 999.5 else f"{joules} ({_three_digits(hours / 1000)} MWh)"
    )


def _three_digits(value: float) -> str:
    """The number with three digits, without an exponent: it stands in a column that people read."""
    if 0 < value < LEAST_SHOWN:
        return f"<{LEAST_SHOWN:g}"
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


def _start_text(facts: JobFacts) -> str:
    """When a job that has no GPUs starts: by the plan, or once a pause, or what it is put off for, is over."""
    if facts.queue is not None:
        return _time_text(facts.queue.start) or "unknown"
    if facts.runs or facts.outcome:
        return ""
    if facts.refusal is not None:
        return _time_text(facts.refusal.until)
    return "" if facts.back_off is None else _time_text(facts.back_off.until)


def _time_text(instant: datetime | None) -> str:
    """`2030-06-01 12:25Z`: to the minute, in UTC as all times of a status."""
    return "" if instant is None else f"{whole_second(instant):%Y-%m-%d %H:%MZ}"


def _finish_text(end: datetime | None, earliest: datetime | None, latest: datetime | None) -> str:
    """The end, with the band that it is in: `2030-06-01 12:25Z (12:20-12:31)`, with dates where they are others."""
    if end is None or earliest is None or latest is None:
        return _time_text(end)
    same_day = earliest.date() == end.date() == latest.date()
    band = f"{earliest:%H:%M}-{latest:%H:%M}" if same_day else f"{earliest:%m-%d %H:%M} to {latest:%m-%d %H:%M}"
    return f"{_time_text(end)} ({band})"


def _duration(seconds: float) -> str:
    minutes, hours = seconds / 60, seconds / 3600
    if minutes < 2:
        return f"{seconds:.0f}s"
    return f"{minutes:.0f}m" if hours < 2 else f"{hours:.0f}h" if hours < 48 else f"{hours / 24:.0f}d"


def _progress_text(progress: JobProgress, iterations: int | None, *, ended: bool) -> str:
    """How far the job is: a share of its iterations where it has a number of them, marked where it is estimated.

    Rounded down, as all shares are, so that only what is done reads 100%. The model may be ahead of a job that says
    nothing, so that an estimate alone never calls a job done.
    """
    mark = ESTIMATE_MARK if progress.estimated else ""
    if iterations is None:
        return f"{mark}{progress.iterations:.0f}"
    percent = min(100.0, 100.0 * progress.iterations / max(1, iterations))
    return f"{mark}{int(min(percent, 99.0) if progress.estimated and not ended else percent)}%"
