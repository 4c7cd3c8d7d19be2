"""The slice profiler: driven by a trainer with exact counters, in every order that events can come."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
from flyball_frontiers.zeus import LeastCost, LeastEnergy, Phase, PowerLimitMeasurement, Reading, SliceProfiler
from hypothesis import given
from hypothesis import strategies as st

LIMITS = (100_000, 150_000, 200_000)
SECONDS = {100_000: 0.5, 150_000: 0.35, 200_000: 0.3}  # of one iteration at each limit
WATTS = {100_000: 98.0, 150_000: 145.0, 200_000: 190.0}


@dataclass
class Trainer:
    """A training loop with counters: one iteration takes SECONDS and WATTS of whatever limit is set."""

    limit: int = 200_000
    iterations: float = 0.0
    time: float = 1000.0
    energy: float = 5e6

    def step(self) -> Reading:
        self.iterations += 1
        self.time += SECONDS[self.limit]
        self.energy += SECONDS[self.limit] * WATTS[self.limit]
        return self.reading()

    def reading(self) -> Reading:
        return Reading(self.iterations, self.time, self.energy, self.limit)


def run_to_end(profiler: SliceProfiler, trainer: Trainer, most: int = 1000) -> SliceProfiler:
    for _ in range(most):
        if profiler.done:
            return profiler
        trainer.limit = profiler.wanted_power_limit_milliwatts
        profiler = profiler.advance(trainer.step())
    raise AssertionError(f"not done after {most} iterations: {profiler}")


def true(profiler: SliceProfiler) -> bool:
    """Whether every measurement is what the trainer does at that limit: no slice mixes limits or counts a pause."""
    return all(
        m.seconds_per_iteration == pytest.approx(SECONDS[m.power_limit_milliwatts])
        and m.average_power_watts == pytest.approx(WATTS[m.power_limit_milliwatts])
        for m in profiler.measurements
    )


def test_every_limit_is_measured_from_the_largest_down_and_the_best_is_set() -> None:
    profiler = run_to_end(SliceProfiler(LIMITS, LeastEnergy()), Trainer())
    assert [m.power_limit_milliwatts for m in profiler.measurements] == [200_000, 150_000, 100_000]
    assert all(5.0 <= m.time_seconds <= 5.0 + SECONDS[m.power_limit_milliwatts] for m in profiler.measurements)
    assert true(profiler)
    assert profiler.wanted_power_limit_milliwatts == 100_000  # 49.0 J against 50.75 J and 57.0 J
    assert profiler.current() == profiler.measurements[-1]
    assert profiler.report().energy_saved_fraction == pytest.approx(1 - 49.0 / 57.0)
    assert profiler.advance(Trainer().step()) == profiler


def test_training_never_stops_for_it_and_costs_one_slice_a_limit() -> None:
    trainer = Trainer()
    run_to_end(SliceProfiler(LIMITS, LeastEnergy()), trainer)
    longest = sum(1.0 + 5.0 + 3 * seconds for seconds in SECONDS.values())  # settle, slice, and their iterations' ends
    assert trainer.time - 1000.0 <= longest


def test_an_observer_ends_at_the_largest_limit_and_reports() -> None:
    profiler = run_to_end(SliceProfiler(LIMITS, LeastEnergy(), observe_only=True), Trainer())
    assert profiler.wanted_power_limit_milliwatts == 200_000
    current = profiler.current()
    assert current is not None
    assert current.power_limit_milliwatts == 200_000
    assert profiler.report().power_limit_milliwatts == 100_000


def test_a_slice_counts_only_once_the_limit_is_seen_applied() -> None:
    profiler, trainer = SliceProfiler(LIMITS, LeastCost(0.5)), Trainer(limit=150_000)
    for _ in range(50):
        profiler = profiler.advance(trainer.step())
    assert profiler.phase is Phase.SETTLING
    assert profiler.measurements == ()
    trainer.limit = 200_000
    while profiler.phase is Phase.SETTLING:
        profiler = profiler.advance(trainer.step())
    trainer.limit = 150_000  # somebody else changes it within the slice
    profiler = profiler.advance(trainer.step())
    assert profiler.phase is Phase.SETTLING
    assert true(run_to_end(profiler, trainer))


def test_an_interruption_voids_the_slice_and_asks_for_the_largest_limit() -> None:
    profiler, trainer = SliceProfiler(LIMITS, LeastEnergy()), Trainer()
    while profiler.phase is not Phase.MEASURING or len(profiler.measurements) < 1:
        trainer.limit = profiler.wanted_power_limit_milliwatts
        profiler = profiler.advance(trainer.step())
    profiler = profiler.interrupted()
    assert (profiler.phase, profiler.wanted_power_limit_milliwatts) == (Phase.PAUSED, 200_000)
    trainer.time += 60.0  # an evaluation: time and energy pass without iterations
    trainer.energy += 60.0 * 90.0
    profiler = run_to_end(profiler, trainer)
    assert len(profiler.measurements) == 3
    assert true(profiler)


def test_a_limit_that_a_cap_refuses_is_left_out() -> None:
    profiler = run_to_end(SliceProfiler(LIMITS, LeastEnergy()).refused(), Trainer())
    assert [m.power_limit_milliwatts for m in profiler.measurements] == [150_000, 100_000]
    nothing = SliceProfiler(LIMITS, LeastEnergy()).refused().refused().refused()
    assert nothing.done
    assert nothing.current() is None
    assert nothing.wanted_power_limit_milliwatts == 200_000
    with pytest.raises(ValueError, match="no power limit has been measured"):
        nothing.report()


def test_counters_that_run_backwards_are_an_error_unless_the_job_said_so() -> None:
    profiler, trainer = SliceProfiler(LIMITS, LeastEnergy()), Trainer()
    for _ in range(8):
        profiler = profiler.advance(trainer.step())
    assert profiler.phase is Phase.MEASURING
    restarted = Trainer(iterations=0.0, time=0.0, energy=0.0)
    with pytest.raises(ValueError, match=r"call interrupted\(\)"):
        profiler.advance(restarted.step())
    assert true(run_to_end(profiler.interrupted(), restarted))


events = st.lists(st.sampled_from(["step", "step", "step", "late", "interrupt", "refuse", "elsewhere"]), max_size=60)


@given(events)
def test_whatever_happens_measurements_are_true_and_the_state_survives_storage(happens: list[str]) -> None:
    profiler, trainer = SliceProfiler(LIMITS, LeastEnergy(), slice_seconds=1.0, settle_seconds=0.4), Trainer()
    for event in happens:
        before = len(profiler.remaining_milliwatts)
        if event == "interrupt":
            profiler = profiler.interrupted()
            trainer.time += 10.0
        elif event == "refuse":
            profiler = profiler.refused()
        else:
            trainer.limit = 150_000 if event == "elsewhere" else profiler.wanted_power_limit_milliwatts
            profiler = profiler.advance(trainer.step())
        assert len(profiler.remaining_milliwatts) <= before
        assert true(profiler)
        assert profiler.done == (not profiler.remaining_milliwatts)
        stored = json.loads(json.dumps(profiler.to_json()))
        assert SliceProfiler.from_json(stored, LeastEnergy()) == profiler
    finished = run_to_end(profiler, trainer)
    assert len(finished.measurements) + len(finished.refused_milliwatts) == len(LIMITS)
    assert true(finished)


@pytest.mark.parametrize(
    ("limits", "slice_seconds", "settle_seconds"),
    [((), 5.0, 1.0), ((1, 1), 5.0, 1.0), ((0, 1), 5.0, 1.0), ((1,), 0.0, 1.0), ((1,), 5.0, -1.0)],
)
def test_what_makes_no_profile_is_refused(limits: tuple[int, ...], slice_seconds: float, settle_seconds: float) -> None:
    with pytest.raises(ValueError, match=r"power limits|slices"):
        SliceProfiler(limits, LeastEnergy(), slice_seconds, settle_seconds)


def test_without_settling_the_first_reading_begins_the_slice() -> None:
    profiler = SliceProfiler((150_000,), LeastEnergy(), slice_seconds=0.7, settle_seconds=0.0)
    trainer = Trainer(limit=150_000)
    profiler = profiler.advance(trainer.reading())
    assert profiler.phase is Phase.MEASURING
    profiler = profiler.advance(trainer.step()).advance(trainer.step()).advance(trainer.step())
    assert [m.iterations for m in profiler.measurements] in ([2.0], [3.0])
    assert profiler.measurements[0] == PowerLimitMeasurement(
        150_000,
        profiler.measurements[0].time_seconds,
        profiler.measurements[0].energy_joules,
        profiler.measurements[0].iterations,
    )
