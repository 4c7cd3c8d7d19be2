"""What a PowerCap allows at an instant: tables for the words of the API, properties for its promises."""

from __future__ import annotations

import math
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

import msgspec
import pytest
from flyball_api.power_cap import CapSchedule, EnergyBudget, PowerCapSpec
from flyball_api.values.times import whole_second
from flyball_operator.power.caps import schedule as cap_schedule
from flyball_operator.power.caps.schedule import (
    EDGES_AT_ONCE,
    EDGES_LOOKED_AT,
    RAMP_STEP_SECONDS,
    EffectiveCap,
    EnergyPeriod,
    KnownChange,
    LastEvaluation,
    ScheduledChange,
    charge_energy,
    current_period,
    effective_cap,
    next_scheduled_change,
)
from hypothesis import assume, given
from hypothesis import strategies as st

NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)  # a Monday
MAX_WATTS = 16_000.0
NEW = LastEvaluation()
LUNCH = CapSchedule("lunch", 3000, cron="0 12 * * 1-5", duration_seconds=3600)
PEAK = CapSchedule("peak", 2000, cron="30 12 * * *", duration_seconds=600)


def at(
    spec: PowerCapSpec, now: datetime = NOON, last: LastEvaluation = NEW, max_watts: float = MAX_WATTS
) -> EffectiveCap:
    return effective_cap(spec, last, now, max_watts)


def test_the_base_is_the_watts_or_the_share_of_the_largest_limits_and_the_overhead() -> None:
    assert at(PowerCapSpec(watts=5000, static_overhead_watts=500)).watts == 5000
    effective = at(PowerCapSpec(permille_of_max=600, static_overhead_watts=500))
    assert effective.watts == 0.6 * MAX_WATTS + 500
    assert effective.next_change_seconds == math.inf
    assert effective.reason.endswith(
        "600 permille of the 16000 W of all GPUs at their largest limits and 500 W of overhead"
    )
    assert "overhead" not in at(PowerCapSpec(permille_of_max=600)).reason


def test_while_two_clocks_differ_windows_open_by_either_count() -> None:
    spec = PowerCapSpec(watts=5000, schedule=(LUNCH, PEAK))

    def off(minutes: float, ahead: float) -> EffectiveCap:
        return effective_cap(spec, NEW, NOON + timedelta(minutes=minutes), MAX_WATTS, ahead * 60)

    assert [off(minutes, 0.0).watts for minutes in (-1, 1, 59, 61)] == [5000, 3000, 3000, 5000]
    # The leader's clock is ahead: a window that is over by its clock is open by the server's, and the other way round.
    assert [off(minutes, 2.0).watts for minutes in (-1, 1, 59, 61, 63)] == [5000, 3000, 3000, 3000, 5000]
    assert [off(minutes, -2.0).watts for minutes in (-3, -1, 1, 57, 59, 61)] == [5000, 3000, 3000, 3000, 3000, 5000]
    effective = off(61, 2.0)
    assert effective.reason.endswith("by the API server's clock")
    assert effective.active_window == "lunch"
    assert effective.next_change_seconds == 60.0
    assert off(-1, -2.0).next_change_seconds == 60.0  # the server's window opens now, the leader's in a minute
    assert off(-3, -2.0).next_change_seconds == 60.0
    assert off(-3, -2.0).falls_in_seconds == 60.0
    # Less than cron can tell is the same time.
    assert effective_cap(spec, NEW, NOON - timedelta(seconds=0.5), MAX_WATTS, -0.9).watts == 5000
    assert effective_cap(spec, NEW, NOON - timedelta(seconds=0.5), MAX_WATTS, -1.0).watts == 3000


@pytest.mark.parametrize(
    ("minutes", "watts", "window", "next_change_seconds"),
    [
        (-30, 5000, None, 30 * 60),
        (0, 3000, "lunch", 30 * 60),  # open at its very second; the peak begins next
        (30, 2000, "peak", 600),
        (39.5, 2000, "peak", 30),
        (40, 3000, "lunch", 20 * 60),  # closed at its very end
        (60, 5000, None, 23 * 3600),
    ],
)
def test_the_lowest_open_window_counts(
    minutes: float, watts: float, window: str | None, next_change_seconds: float
) -> None:
    effective = at(PowerCapSpec(watts=5000, schedule=(LUNCH, PEAK)), NOON + timedelta(minutes=minutes))
    assert (effective.watts, effective.active_window) == (watts, window)
    assert effective.next_change_seconds == next_change_seconds
    assert window is None or window in effective.reason


def test_a_window_open_within_a_second_counts_from_that_second_on() -> None:
    spec = PowerCapSpec(watts=5000, schedule=(LUNCH,))
    assert at(spec, NOON + timedelta(microseconds=1)).watts == 3000
    before = at(spec, NOON - timedelta(microseconds=1))
    assert before.watts == 5000
    assert before.next_change_seconds == pytest.approx(1e-6)


def test_a_window_longer_than_its_interval_is_open_throughout() -> None:
    spec = PowerCapSpec(watts=5000, schedule=(CapSchedule("always", 1000, "0 * * * *", 7200),))
    assert all(at(spec, NOON + timedelta(minutes=17 * step)).watts == 1000 for step in range(20))


def test_a_window_above_the_base_does_not_raise_it() -> None:
    spec = PowerCapSpec(permille_of_max=100, schedule=(LUNCH,))
    effective = at(spec)
    assert (effective.watts, effective.active_window) == (1600, None)


def test_times_of_other_zones_are_read_in_utc() -> None:
    spec = PowerCapSpec(watts=5000, schedule=(LUNCH,))
    assert at(spec, datetime.fromisoformat("2026-03-02T17:30:00+05:00")).watts == 3000
    with pytest.raises(ValueError, match="no time zone"):
        at(spec, datetime(2026, 3, 2, 12))


@pytest.mark.parametrize(
    "cron", ["61 * * * *", "0 12 * *", "0 0 12 * * *", "@daily", "", "0 12 * * MON-", "0 0 31 2 *", "*/0 * * * *"]
)
def test_a_cron_that_cannot_be_read_counts_all_the_time_and_is_reported(cron: str) -> None:
    spec = PowerCapSpec(watts=5000, schedule=(CapSchedule("bad", 3500, cron, 60), PEAK))
    effective = at(spec)
    assert effective.watts == 3500
    (problem,) = effective.problems
    assert problem.reason == "CronUnreadable"
    assert problem.message.startswith(f"schedule bad: cron {cron!r}: ")
    assert "five fields" in problem.message
    assert at(spec, NOON + timedelta(minutes=30)).watts == 2000


@pytest.mark.parametrize(
    "half",
    [
        CapSchedule("half", 3500),
        CapSchedule("half", 3500, cron="0 3 * * *"),
        CapSchedule("half", 3500, duration_seconds=60),
        CapSchedule("half", 3500, start=NOON + timedelta(hours=1)),
        CapSchedule("half", 3500, end=NOON - timedelta(hours=1)),
    ],
    ids=["nothing", "cron", "duration", "start", "end"],
)
def test_an_entry_that_says_only_half_of_when_counts_all_the_time_and_is_reported(half: CapSchedule) -> None:
    """The API server refuses it; one that is stored all the same ends no evaluation and frees no watts."""
    effective = at(PowerCapSpec(watts=5000, schedule=(half,)))
    assert effective.watts == 3500
    (problem,) = effective.problems
    assert problem.reason == "CronUnreadable"
    assert "neither cron and durationSeconds, nor start and end" in problem.message


def test_a_budget_is_spread_over_what_is_left_of_its_period() -> None:
    budget = EnergyBudget(kilojoules=3600, period_seconds=3600)
    spec = PowerCapSpec(watts=5000, static_overhead_watts=100, energy_budget=budget)
    fresh = at(spec)
    assert fresh.energy_period == EnergyPeriod(NOON)
    assert fresh.watts == 1000 + 100
    assert fresh.next_change_seconds == 36
    half = LastEvaluation(energy_period=EnergyPeriod(NOON, 2_700_000))
    assert at(spec, NOON + timedelta(minutes=30), half).watts == pytest.approx(900_000 / 1800 + 100)
    spent = LastEvaluation(energy_period=EnergyPeriod(NOON, 4_000_000))
    assert at(spec, NOON + timedelta(minutes=30), spent).watts == 100
    late = at(spec, NOON + timedelta(seconds=3599), spent)
    assert late.next_change_seconds == 1
    assert at(spec, NOON + timedelta(hours=1), spent).watts == 1100


def test_a_budget_of_a_long_period_is_looked_at_every_minute_all_the_same() -> None:
    spec = PowerCapSpec(watts=5000, energy_budget=EnergyBudget(kilojoules=86_400, period_seconds=86_400))
    assert at(spec).next_change_seconds == 60


@pytest.mark.parametrize(
    ("held", "age_seconds", "watts", "next_change_seconds"),
    [(900, 10, 900, 26), (900, 36, 1000, 36), (1100, 10, 1000, 36), (1000, 10, 1000, 36), (None, 10, 1000, 36)],
    ids=["held", "for a step", "less at once", "the same", "at first"],
)
def test_what_a_budget_comes_to_rises_once_a_step_and_falls_at_once(
    held: float | None, age_seconds: float, watts: float, next_change_seconds: float
) -> None:
    """Each rise is a grant to every node."""
    spec = PowerCapSpec(watts=5000, energy_budget=EnergyBudget(kilojoules=3600, period_seconds=3600))
    last = LastEvaluation(energy_period=EnergyPeriod(NOON), budget_watts=held, budget_age_seconds=age_seconds)
    effective = at(spec, last=last)
    assert (effective.watts, effective.budget_watts, effective.next_change_seconds) == (
        watts,
        watts,
        next_change_seconds,
    )


def test_energy_drawn_across_the_edge_of_a_period_is_shared() -> None:
    budget = EnergyBudget(3600, 3600)
    before = EnergyPeriod(NOON - timedelta(hours=1), 1000)
    assert charge_energy(budget, before, NOON + timedelta(seconds=20), 500, 100) == EnergyPeriod(NOON, 100)
    assert charge_energy(budget, EnergyPeriod(NOON, 1000), NOON + timedelta(seconds=20), 500, 100) == EnergyPeriod(
        NOON, 1500
    )
    # Nothing is lost of what comes at once, either, such as what a counter says in its first moment.
    assert charge_energy(budget, before, NOON, 500, 0) == EnergyPeriod(NOON, 500)
    # The operator was away for a day: what one period of it can have used is what its length gives.
    assert charge_energy(budget, EnergyPeriod(NOON - timedelta(days=1)), NOON, 86_400, 86_400).consumed_joules == 0
    for joules, seconds in ((-1.0, 1.0), (math.nan, 1.0), (1.0, -1.0), (math.inf, 1.0), (1.0, math.inf)):
        with pytest.raises(ValueError, match="cannot be charged"):
            charge_energy(budget, None, NOON, joules, seconds)


def test_a_clock_set_back_does_not_give_the_budget_again() -> None:
    budget = EnergyBudget(3600, 3600)
    known = EnergyPeriod(NOON, 3_000_000)
    assert current_period(budget, known, NOON - timedelta(seconds=1)) == known
    assert current_period(budget, known, NOON - timedelta(hours=1)) == known, "by one whole period"
    assert current_period(budget, known, NOON - timedelta(days=300)).consumed_joules == 3_000_000
    # ... and a clock that had been a year ahead does not leave the watts of an hour to be spread over a year.
    spec = PowerCapSpec(watts=5000, energy_budget=budget)
    assert at(spec, NOON - timedelta(days=300), LastEvaluation(energy_period=known)).watts == pytest.approx(
        600_000 / 3600
    )


def test_a_clock_that_goes_far_ahead_for_a_moment_and_back_does_not_give_the_budget_again() -> None:
    budget, spec = EnergyBudget(3600, 3600), PowerCapSpec(watts=5000, energy_budget=EnergyBudget(3600, 3600))
    drawn, period = 0.0, None
    for minute in range(60):
        now = NOON + timedelta(minutes=minute)
        for ahead in (timedelta(days=30), timedelta(0)) if minute in (20, 45) else (timedelta(0),):
            allowed = at(spec, now + ahead, LastEvaluation(energy_period=period)).watts
            joules = 0.0 if ahead else allowed * 60
            drawn += joules
            period = charge_energy(budget, period, now + ahead, joules, 60.0)
    assert 0.5 * 3_600_000 < drawn <= 3_600_000 * 1.02


def test_a_rise_is_ramped_and_a_cut_is_not() -> None:
    spec = PowerCapSpec(watts=5000, ramp_watts_per_second=100)
    assert at(spec).watts == 5000  # nothing was allowed before, nothing rises
    waits = at(spec, last=LastEvaluation(2000, 3))
    assert (waits.watts, waits.target_watts, waits.next_change_seconds) == (2000, 5000, 2)
    assert "rising by 100 W/s towards 5000 W" in waits.reason
    rising = at(spec, last=LastEvaluation(2000, 6))
    assert (rising.watts, rising.target_watts, rising.next_change_seconds) == (2600, 5000, 5)
    stepped = at(spec, last=LastEvaluation(2000, 5))
    assert (stepped.watts, stepped.next_change_seconds) == (2500, 5)
    last_step = at(spec, last=LastEvaluation(2000, 28))
    assert (last_step.watts, last_step.next_change_seconds) == (4800, 2)
    nearly = at(spec, last=LastEvaluation(4800, 1))
    assert (nearly.watts, nearly.next_change_seconds) == (4800, 1)
    arrived = at(spec, last=LastEvaluation(4900, 1))
    assert (arrived.watts, arrived.next_change_seconds) == (5000, math.inf)
    assert at(spec, last=LastEvaluation(9000, 0)).watts == 5000
    assert at(spec, last=LastEvaluation(2000, -7)).watts == 2000


# --- properties ---------------------------------------------------------------------------------------------------

watts = st.floats(1, 1e6)
instants = st.datetimes(datetime(2024, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC))
minutes, hours = st.integers(0, 59), st.integers(0, 23)
crons = st.one_of(
    st.builds("{} {} * * *".format, minutes, hours),
    st.builds("*/{} * * * *".format, st.integers(1, 59)),
    st.builds("{} {} {} * *".format, minutes, hours, st.integers(1, 28)),
    st.builds("{} {} * * {}".format, minutes, hours, st.integers(0, 7)),
)
garbage = st.text("0123456789*/,- MONL#", max_size=12)
budgets = st.builds(EnergyBudget, st.floats(1, 1e6), st.integers(60, 10**6))


def windows(crons: st.SearchStrategy[str]) -> st.SearchStrategy[CapSchedule]:
    zones = st.sampled_from([None, "Europe/Berlin", "America/New_York"])
    names = st.sampled_from(["a", "b", "c"])
    return st.builds(CapSchedule, names, watts, crons, st.integers(1, 200_000), zones)


def specs_with(
    schedules: st.SearchStrategy[list[CapSchedule]], budgets: st.SearchStrategy[EnergyBudget | None]
) -> st.SearchStrategy[PowerCapSpec]:
    return st.builds(
        PowerCapSpec,
        watts=watts,
        static_overhead_watts=st.floats(0, 100),
        schedule=schedules.map(tuple),
        energy_budget=budgets,
        ramp_watts_per_second=st.none() | st.floats(0.1, 1e4),
    )


specs = specs_with(st.lists(windows(crons | garbage), max_size=3), st.none() | budgets)
scheduled_specs = specs_with(st.lists(windows(crons), min_size=1, max_size=3), st.none())
states = st.builds(LastEvaluation, st.none() | watts, st.floats(0, 1e5))


@given(specs, states, instants)
def test_no_bound_is_ever_passed(spec: PowerCapSpec, last: LastEvaluation, now: datetime) -> None:
    effective = effective_cap(spec, last, now, MAX_WATTS)
    assert spec.watts is not None
    assert 0 <= effective.watts <= effective.target_watts <= spec.watts
    assert effective.next_change_seconds > 0
    assert effective.active_window is None or any(window.watts >= effective.watts for window in spec.schedule)


@given(specs, states, instants)
def test_a_ramp_never_delays_a_cut_and_bounds_every_rise(
    spec: PowerCapSpec, last: LastEvaluation, now: datetime
) -> None:
    effective = effective_cap(spec, last, now, MAX_WATTS)
    unramped = effective_cap(spec, NEW, now, MAX_WATTS)
    assert effective.target_watts == unramped.watts
    if last.effective_watts is None or unramped.watts <= last.effective_watts:
        assert effective.watts == unramped.watts
    elif spec.ramp_watts_per_second is not None:
        ramp, age = spec.ramp_watts_per_second, last.ramp_age_seconds
        due = age >= min(RAMP_STEP_SECONDS, (unramped.watts - last.effective_watts) / ramp)
        risen = min(unramped.watts, last.effective_watts + ramp * age)
        assert effective.watts == (risen if due else last.effective_watts)
        assert effective.watts == unramped.watts or effective.next_change_seconds <= RAMP_STEP_SECONDS


@given(scheduled_specs, instants)
def test_nothing_changes_before_the_next_change_unless_energy_is_drawn(spec: PowerCapSpec, now: datetime) -> None:
    effective = effective_cap(spec, NEW, now, MAX_WATTS)
    assert effective.next_change_seconds < math.inf
    for share in (0.25, 0.999):
        later = now + timedelta(seconds=share * effective.next_change_seconds)
        assume(later < now + timedelta(seconds=effective.next_change_seconds))
        assert effective_cap(spec, NEW, later, MAX_WATTS).watts == effective.watts


@given(
    budget=st.builds(EnergyBudget, st.floats(1, 1e5), st.integers(60, 10**5)),
    overhead=st.integers(0, 1000),
    start=instants,
    steps=st.lists(st.tuples(st.floats(0.05, 1.0), st.floats(0, 1)), min_size=1, max_size=60),
)
def test_a_budget_is_never_overspent_by_a_draw_below_the_effective_watts(
    budget: EnergyBudget, overhead: int, start: datetime, steps: list[tuple[float, float]]
) -> None:
    spec = PowerCapSpec(watts=1_000_000 + overhead, static_overhead_watts=overhead, energy_budget=budget)
    now, period = start, None
    for share, load in steps:
        effective = effective_cap(spec, LastEvaluation(energy_period=period), now, MAX_WATTS)
        seconds = share * effective.next_change_seconds
        now += timedelta(seconds=seconds)
        period = charge_energy(
            budget, effective.energy_period, now, load * (effective.watts - overhead) * seconds, seconds
        )
        assert period.consumed_joules <= budget.kilojoules * 1000 * (1 + 1e-9)


# --- dates and time zones --------------------------------------------------------------------------------------------

BERLIN = "Europe/Berlin"


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


ONCE = CapSchedule("drill", 1500, start=utc("2026-03-02T13:00:00+01:00"), end=utc("2026-03-02T15:30:00+01:00"))


@pytest.mark.parametrize(
    ("minutes", "watts", "next_change_seconds"),
    [(-1, 5000, 60), (0, 1500, 9000), (149, 1500, 60), (150, 5000, math.inf)],
)
def test_a_window_with_dates_comes_once(minutes: float, watts: float, next_change_seconds: float) -> None:
    effective = at(PowerCapSpec(watts=5000, schedule=(ONCE,)), NOON + timedelta(minutes=minutes))
    assert (effective.watts, effective.next_change_seconds) == (watts, next_change_seconds)
    assert effective.falls_in_seconds == (60 if minutes < 0 else math.inf)


@pytest.mark.parametrize(("watts", "falls_in_seconds"), [(3000, math.inf), (3001, 3600), (2999, math.inf)])
def test_a_cap_falls_only_where_a_window_below_it_begins(watts: int, falls_in_seconds: float) -> None:
    assert (
        at(PowerCapSpec(watts=watts, schedule=(LUNCH,)), NOON - timedelta(hours=1)).falls_in_seconds == falls_in_seconds
    )


@pytest.mark.parametrize("end", ["9999-12-31T23:59:59-23:59", "9999-12-31T23:59:59Z", "9999-12-31T00:00:00.999999Z"])
@pytest.mark.parametrize("start", ["0001-01-01T00:00:00+23:59", "2026-01-01T00:00:00Z", "9999-12-31T00:00:00-23:00"])
def test_a_window_may_begin_and_end_whenever_the_api_server_takes(start: str, end: str) -> None:
    """In UTC such a time can be beyond the years that there are: one cap with it must not end the cycle for all."""
    window = msgspec.convert({"name": "long", "watts": 3000, "start": start, "end": end}, CapSchedule)
    spec = PowerCapSpec(watts=5000, schedule=(window,))
    for ahead in (0.0, 7200.0, -7200.0):
        effective = effective_cap(spec, NEW, NOON, MAX_WATTS, ahead)
        assert effective.watts == (5000 if start.startswith("9999") else 3000)
        assert effective.problems == ()
    change = next_scheduled_change(spec, NOON, MAX_WATTS).change
    assert change is None or whole_second(change.time).year == 9999


def test_the_reason_says_until_when_a_window_is_open() -> None:
    assert (
        at(PowerCapSpec(watts=5000, schedule=(LUNCH,))).reason == "3000 W: schedule lunch until 2026-03-02 13:00:00 UTC"
    )


@pytest.mark.parametrize(("zone", "told"), [(None, "UTC"), ("Europe/Berlin", "Europe/Berlin")])
def test_a_cron_that_cannot_be_read_is_reported_with_what_is_wrong_and_in_which_zone_it_is_read(
    zone: str | None, told: str
) -> None:
    window = CapSchedule("bad", 3500, "0 12 * *", 60, time_zone=zone)
    (problem,) = at(PowerCapSpec(watts=5000, schedule=(window,))).problems
    assert problem.message.startswith("schedule bad: cron '0 12 * *': it has 4 fields (five fields: ")
    assert f"day of week, in {told})" in problem.message


def test_a_cron_over_which_its_library_stumbles_without_a_word_is_reported_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def stumble(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(cap_schedule, "CronSim", stumble)
    (problem,) = at(PowerCapSpec(watts=5000, schedule=(LUNCH,))).problems
    assert problem.message.startswith("schedule lunch: cron '0 12 * * 1-5': it cannot be read (five fields: ")


def test_it_is_known_that_what_a_period_saved_is_gone_with_it() -> None:
    """Nothing is held beyond that without an operator, as beyond the beginning of a window."""
    spec = PowerCapSpec(watts=5000, static_overhead_watts=100, energy_budget=EnergyBudget(3600, 3600))
    saved = LastEvaluation(energy_period=EnergyPeriod(NOON, 100_000))
    late = at(spec, NOON + timedelta(minutes=50), saved)
    assert late.watts == 5000
    assert late.falls_in_seconds == 600  # to 1100 W
    # A cap that is no higher than the next period's watts, overhead included, does not fall.
    for watts in (1050, 1100):
        low = PowerCapSpec(watts=watts, static_overhead_watts=100, energy_budget=EnergyBudget(3600, 3600))
        assert at(low, NOON + timedelta(minutes=50), saved).falls_in_seconds == math.inf
    spent = LastEvaluation(energy_period=EnergyPeriod(NOON, 3_500_000))
    assert at(spec, NOON + timedelta(minutes=30), spent).falls_in_seconds == math.inf


@pytest.mark.parametrize(
    ("begins", "hour"),
    [
        (utc("2026-01-15T17:00:00+01:00"), 17),  # winter
        (utc("2026-07-15T17:00:00+02:00"), 17),  # summer
        (utc("2026-03-29T03:00:00+02:00"), 2),  # in the hour that is skipped: right after it
        (utc("2026-10-25T02:00:00+02:00"), 2),  # in the hour that comes twice: the first time
    ],
)
def test_a_cron_follows_the_clocks_of_its_zone(begins: datetime, hour: int) -> None:
    window = CapSchedule("evening", 2000, f"0 {hour} * * *", 5400, time_zone=BERLIN)
    spec = PowerCapSpec(watts=5000, schedule=(window,))
    open_at = {minutes: at(spec, begins + timedelta(minutes=minutes)).watts == 2000 for minutes in (-1, 0, 60, 89, 90)}
    assert open_at == {-1: False, 0: True, 60: True, 89: True, 90: False}
    assert at(spec, begins - timedelta(minutes=1)).next_change_seconds == 60


@pytest.mark.parametrize(
    ("zone", "cron", "begins"),
    [
        (BERLIN, "30 2 * * *", utc("2026-10-25T02:30:00+02:00")),
        ("Australia/Lord_Howe", "45 1 * * *", utc("2026-04-05T01:45:00+11:00")),  # its clocks are put back half an hour
    ],
)
def test_a_window_goes_on_while_the_clocks_show_the_time_before_its_beginning_again(
    zone: str, cron: str, begins: datetime
) -> None:
    """It has begun already, and begins no second time that night."""
    spec = PowerCapSpec(watts=5000, schedule=(CapSchedule("night", 2000, cron, 3600, time_zone=zone),))
    for minutes in (0, 16, 20, 40, 59):
        effective = at(spec, begins + timedelta(minutes=minutes))
        assert (effective.watts, effective.next_change_seconds) == (2000, (60 - minutes) * 60)
    assert at(spec, begins + timedelta(minutes=60)).watts == 5000
    assert at(spec, begins + timedelta(minutes=75)).watts == 5000


def test_a_window_that_began_hours_before_the_clocks_were_put_back_is_still_open() -> None:
    begins = utc("2026-10-25T02:30:00+02:00")
    spec = PowerCapSpec(watts=5000, schedule=(CapSchedule("night", 2000, "30 2 * * *", 18_000, time_zone=BERLIN),))
    assert [at(spec, begins + timedelta(hours=hours)).watts for hours in range(6)] == [2000] * 5 + [5000]


@pytest.mark.parametrize("name", ["Europe/Berlyn", "../../etc/passwd", "Europe", "/UTC", "a" * 64])
def test_a_time_zone_that_nobody_knows_counts_all_the_time_and_is_reported(name: str) -> None:
    effective = at(PowerCapSpec(watts=5000, schedule=(CapSchedule("odd", 3500, "0 3 * * *", 60, time_zone=name),)))
    assert effective.watts == 3500
    (problem,) = effective.problems
    assert problem.reason == "TimeZoneUnknown"
    assert problem.message.startswith(f"schedule odd: timeZone {name!r} is not known (an IANA name")


ZONES = st.sampled_from([None, BERLIN, "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "America/St_Johns"])
CHANGES_OF_CLOCKS = st.sampled_from(
    [utc(f"2026-{day}T12:00:00+00:00") for day in ("03-08", "03-29", "04-05", "10-25", "11-01")]
)


@given(ZONES, CHANGES_OF_CLOCKS, st.integers(0, 23), st.integers(0, 59), st.integers(1, 30), st.integers(-2880, 2880))
def test_a_window_is_open_exactly_from_each_beginning_to_its_end(
    zone: str | None, day: datetime, hour: int, minute: int, half_hours: int, offset: int
) -> None:
    """Against the day's beginnings, walked through minute by minute on the zone's clock."""
    spec = PowerCapSpec(
        watts=5000, schedule=(CapSchedule("w", 2000, f"{minute} {hour} * * *", half_hours * 1800, time_zone=zone),)
    )
    clock = ZoneInfo(zone) if zone else UTC
    first = (day - timedelta(days=4)).astimezone(clock).date()
    begins = []
    for number in range(9):
        local = datetime.combine(first + timedelta(days=number), time(hour, minute), clock)
        while local != local.astimezone(UTC).astimezone(clock):  # no clock ever shows it
            local += timedelta(minutes=1)
        begins.append(local.astimezone(UTC))
    now = day + timedelta(minutes=offset)
    edges = [edge for begin in begins for edge in (begin, begin + timedelta(seconds=half_hours * 1800))]
    effective = at(spec, now)
    assert (effective.watts == 2000) == any(
        begin <= now < begin + timedelta(seconds=half_hours * 1800) for begin in begins
    )
    assert effective.next_change_seconds == (min(edge for edge in edges if edge > now) - now).total_seconds()


def test_the_next_change_is_the_first_edge_that_changes_anything() -> None:
    inside = CapSchedule("inside", 3500, "15 12 * * *", 600)  # above what holds then
    spec = PowerCapSpec(watts=5000, schedule=(LUNCH, inside, ONCE))
    before = next_scheduled_change(spec, NOON + timedelta(minutes=-5), MAX_WATTS)
    assert before == KnownChange(ScheduledChange(NOON, 1500, "drill"), NOON)
    ends = next_scheduled_change(PowerCapSpec(watts=5000, schedule=(LUNCH, inside)), NOON, MAX_WATTS)
    assert ends.change == ScheduledChange(NOON + timedelta(hours=1), 5000, None)
    assert next_scheduled_change(PowerCapSpec(watts=5000), NOON, MAX_WATTS) == KnownChange()
    # What has been found is not looked for again.
    assert ends.final
    assert next_scheduled_change(PowerCapSpec(watts=5000), NOON, MAX_WATTS, ends) is ends
    assert KnownChange().final


def test_what_never_changes_is_looked_at_a_few_edges_at_once_and_then_no_more() -> None:
    always = PowerCapSpec(watts=5000, schedule=(CapSchedule("always", 1000, "0 * * * *", 7200),))
    known = next_scheduled_change(always, NOON, MAX_WATTS)
    assert (known.change, known.edges, known.final) == (None, EDGES_AT_ONCE, False)
    for _ in range(2 * EDGES_LOOKED_AT // EDGES_AT_ONCE):
        known = next_scheduled_change(always, NOON, MAX_WATTS, known)
    assert (known.change, known.edges, known.final) == (None, EDGES_LOOKED_AT, True)
    assert known.until is not None
    assert known.until > NOON + timedelta(days=30), "an edge an hour"
