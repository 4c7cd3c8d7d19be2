"""A stage that is measured while it trains: it finds what its GPU does, from a counter that is read once a second."""

from __future__ import annotations

import random
import statistics
from typing import Any

import pytest
from flyball.pipelines import drawn_watts
from flyball.pipelines.drawn_watts import drawn
from flyball.pipelines.stage_profile import StageProfile, csv_of
from flyball_frontiers.pipeline.profile import PipelineProfile
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples

CLOCKS = (1410, 1200, 990, 780)
WAITING_WATTS = 60.0


def truth(instruction: str, clock: int) -> tuple[float, float]:
    """Seconds and watts of a computation."""
    share = clock / 1410
    seconds = {"forward": 0.11, "backward": 0.23}[instruction] / share
    return seconds, {"forward": 70, "backward": 60}[instruction] + 160 * share**3


class Stage:
    """A GPU with a counter that its agent reads each second, and a stage that computes on it and waits.

    The counter moves every `counter_seconds` (0: all the time), and readings are told to be up to `late_seconds` earlier or
    later than they were.
    """

    def __init__(
        self,
        generator: random.Random,
        clocks: tuple[int, ...] = CLOCKS,
        *,
        counter_seconds: float = 0.0,
        late_seconds: float = 0.0,
    ) -> None:
        self.generator = generator
        self.now = self.joules = 0.0
        self.counter_seconds, self.late_seconds = counter_seconds, late_seconds
        self.counter_moves_at = generator.uniform(0.0, counter_seconds) if counter_seconds else 0.0
        self.counter_joules = 0.0
        self.next_read_at = 1.0
        self.read_at, self.read_joules = 0.0, 0.0
        self.profile = StageProfile(clocks, lambda: (self.read_at, self.read_joules, self.ran_at))
        self.asked: list[int] = []
        self.ran_at: int | None = None

    def spend(self, seconds: float, watts: float) -> None:
        until = self.now + seconds
        while True:
            moves_at = self.counter_moves_at if self.counter_seconds else self.next_read_at
            event = min(moves_at, self.next_read_at)
            if event > until:
                break
            self.joules += watts * (event - self.now)
            self.now = event
            if event == moves_at:
                self.counter_joules = self.joules
                self.counter_moves_at += self.counter_seconds
            if event == self.next_read_at:
                late = self.generator.uniform(-self.late_seconds, self.late_seconds)
                self.read_at, self.read_joules = event + late, self.counter_joules
                # Rounds come a little earlier or later than a second after the one before.
                self.next_read_at += 1.0 + (self.generator.uniform(-0.05, 0.05) if self.counter_seconds else 0.0)
        self.joules += watts * (until - self.now)
        self.now = until

    def iterate(self, microbatches: int = 3) -> None:
        clock = self.profile.clock_megahertz
        assert clock is not None
        if not self.asked or self.asked[-1] != clock:
            self.asked.append(clock)
        for instruction in ("forward", "backward"):
            for _ in range(microbatches):
                seconds, watts = truth(instruction, clock)
                began = self.now
                self.spend(seconds * self.generator.uniform(0.99, 1.01), watts)
                self.profile.computed(instruction, began, self.now)
                self.spend(self.generator.uniform(0.0, 0.1), WAITING_WATTS)
        self.profile.iteration_over()

    def run(self) -> StageProfile:
        for _ in range(400):
            if self.profile.done:
                return self.profile
            self.iterate()
        raise AssertionError("it never ends")


@given(seed=st.integers(0, 10_000))
@settings(max_examples=examples(40))
def test_what_is_measured_is_what_the_gpu_does(seed: int) -> None:
    stage = Stage(random.Random(seed))
    profile = stage.run()
    assert not profile.failed
    assert stage.asked[:2] == [1410, 1200], "from the highest down"
    for row in profile.rows:
        seconds, watts = truth(row.instruction, row.clock_megahertz)
        assert row.seconds == pytest.approx(seconds, rel=0.01)
        assert row.joules == pytest.approx(seconds * watts, rel=0.05)
    assert profile.waiting_watts == pytest.approx(WAITING_WATTS, rel=0.4)
    read = PipelineProfile.from_csv("stage,instruction,frequency,time,energy\n" + csv_of(0, profile.rows))
    assert {(stage, name) for stage, name in read.points} == {(0, "forward"), (0, "backward")}


@pytest.mark.parametrize("late_seconds", [0.0, 0.002])
def test_a_counter_that_moves_ten_times_a_second_tells_as_much(late_seconds: float) -> None:
    """An H200's stands still for 100 ms, and reading it takes some: taken for what was used when it was read, joules were
    off by 5 % on average, and by 20 % at worst."""
    off = []
    for seed in range(20):
        profile = Stage(random.Random(seed), counter_seconds=0.1, late_seconds=late_seconds).run()
        for row in profile.rows:
            seconds, watts = truth(row.instruction, row.clock_megahertz)
            off.append(abs(row.joules / (seconds * watts) - 1.0))
    assert statistics.mean(off) < 0.005
    assert statistics.quantiles(off, n=20)[-1] < 0.01


def test_many_readings_are_solved_for_no_more_often_than_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Iterations of a minute bring hundreds of them, and the training waits until their clock is solved for."""
    fits = []
    fit = drawn_watts._fit

    def counted(*of: Any) -> Any:
        fits.append(of)
        return fit(*of)

    monkeypatch.setattr(drawn_watts, "_fit", counted)
    computed = [(("forward", "backward")[turn % 2], turn * 0.11, turn * 0.11 + 0.1) for turn in range(800)]
    for count in (20, 80):
        readings = [(at - at % 0.1, 300.0 * (at - at % 0.1)) for at in (0.5 + 1.03 * number for number in range(count))]
        drawn_watts.watts_of_each(computed, readings)
    few = sum(len(readings) <= 20 for _, _, readings in fits)
    assert len(fits) == 2 * few < 250


def test_the_sweep_ends_where_slower_saves_nothing() -> None:
    """Below some clock what is drawn at rest counts for more: there no plan would ever run."""
    stage = Stage(random.Random(1), clocks=(*CLOCKS, 600, 450, 300, 210))
    profile = stage.run()
    joules = {row.clock_megahertz: row.joules for row in profile.rows if row.instruction == "backward"}
    assert 210 not in joules
    assert min(joules.values()) < joules[min(joules)], "the last one needs more"


def test_one_clock_measured_while_the_machine_was_busy_does_not_end_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(instruction: str, clock: int) -> tuple[float, float]:
        seconds, watts = undisturbed(instruction, clock)
        return seconds, watts * (1.5 if clock == 1200 else 1.0)

    undisturbed = truth
    monkeypatch.setitem(globals(), "truth", busy)
    assert {row.clock_megahertz for row in Stage(random.Random(1)).run().rows} == set(CLOCKS)


def test_without_a_counter_there_is_no_profile() -> None:
    stage = Stage(random.Random(1))
    stage.profile._read = lambda: None  # type: ignore[method-assign]
    assert "does not say what this GPU uses" in stage.run().failed
    assert stage.profile.clock_megahertz is None
    assert StageProfile((), lambda: None).failed


def test_states_that_cannot_be_told_apart_draw_the_mean() -> None:
    found, _ = drawn(["forward", "backward"], [[1.0, 1.0, 0.0]] * 5, [300.0] * 5)
    assert found["forward"] == pytest.approx(150.0)
    assert found["backward"] == pytest.approx(150.0)


def test_a_clock_that_the_gpu_does_not_have_is_not_measured() -> None:
    """Held to less by its grant, or by its limit: what is measured then would be another clock's."""
    stage = Stage(random.Random(1))
    stage.ran_at = 1200
    assert {row.clock_megahertz for row in stage.run().rows} == {1200, 990, 780}
    held = Stage(random.Random(1), clocks=(1410, 1200))
    held.ran_at = 900
    assert "at none of its clocks, but at 900 MHz" in held.run().failed
    assert held.profile.rows == []


def test_readings_that_come_late_do_not_tell_computations_apart_that_are_alike() -> None:
    generator = random.Random(1)
    rows = [[share, 0.8 - share, 0.2] for share in (generator.uniform(0.3, 0.5) for _ in range(10))]
    joules = [180.0 * 0.8 + 60.0 * 0.2 + generator.gauss(0.0, 4.0) for _ in rows]
    found, _ = drawn(["forward", "backward"], rows, joules)
    assert found["forward"] == pytest.approx(180.0, rel=0.06)
    assert found["backward"] == pytest.approx(180.0, rel=0.06)
