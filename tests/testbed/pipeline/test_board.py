"""Simulated boards that compute as a profile says: the time and the joules that were measured, whatever the clock does."""

from __future__ import annotations

import pytest
from flyball_frontiers.pipeline.profile import PipelineProfile
from flyball_simulated_gpu.catalogue import CATALOGUE
from flyball_simulated_gpu.virtual import VirtualNode
from flyball_testbed.pipeline.board import Board, MeasuredComputation
from flyball_testbed.pipeline.demo import BLOCKED_WATTS, PRODUCT, PROFILE, throttled_watts

MEASURED = PipelineProfile.from_csv(PROFILE.read_text())


class Site:
    """One board of the demo's in virtual time; `at` are things that happen to it, by when."""

    def __init__(self) -> None:
        self.seconds = 100.0
        self.node = VirtualNode("n", [CATALOGUE[PRODUCT]], lambda: round(self.seconds * 1e9))
        self.device = self.node.devices[0]
        self.at: dict[float, int] = {}
        self.board = Board(self.device, lambda: self.seconds, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        for moment in [moment for moment in self.at if moment <= self.seconds]:
            self.device.set_locked_clocks_megahertz(345, self.at.pop(moment))


def test_what_was_measured_is_what_it_takes_and_draws_at_every_clock() -> None:
    for (stage, instruction), points in MEASURED.points.items():
        for point in points[:: max(1, len(points) // 5)]:
            site = Site()
            assert point.clock_megahertz is not None
            site.device.set_locked_clocks_megahertz(345, point.clock_megahertz)
            before = site.board.joules
            ran = site.board.compute(MeasuredComputation(MEASURED.of(stage, instruction)), 100.0)
            assert ran.clock_megahertz == point.clock_megahertz
            assert ran.end - ran.start == pytest.approx(point.time_seconds, rel=1e-6)
            assert site.board.joules - before == pytest.approx(point.energy_joules, rel=1e-3)


def test_a_clock_that_changes_on_the_way_counts_from_then_on() -> None:
    computation = MeasuredComputation(MEASURED.of(0, "forward"))
    fast, slow = (computation.at(clock)[0] for clock in (1740, 960))
    site = Site()
    site.device.set_locked_clocks_megahertz(345, 1740)
    site.at[100.0 + fast / 4] = 960
    ran = site.board.compute(computation, 100.0)
    assert ran.end - ran.start == pytest.approx(fast / 4 + 0.75 * slow, abs=0.011)
    assert ran.clock_megahertz == 960


def test_a_process_that_is_woken_late_sets_nothing_back() -> None:
    computation = MeasuredComputation(MEASURED.of(0, "forward"))
    site = Site()
    site.device.set_locked_clocks_megahertz(345, 1740)
    site.seconds = 100.005
    first = site.board.compute(computation, 100.0)
    site.seconds += 0.02
    second = site.board.compute(computation, first.end)
    assert second.end - 100.0 == pytest.approx(2 * computation.at(1740)[0])
    assert site.seconds == pytest.approx(second.end)


def test_a_board_that_waits_draws_what_was_measured_of_waiting() -> None:
    site = Site()
    site.device.set_locked_clocks_megahertz(345, 1740)
    site.board.compute(MeasuredComputation(MEASURED.of(0, "forward")), 100.0)
    before = site.board.joules
    site.sleep(10.0)
    assert (site.board.joules - before) / 10 == pytest.approx(BLOCKED_WATTS, rel=1e-3)


def test_a_throttled_board_is_slower_and_keeps_to_its_cap() -> None:
    throttled, free = 0.0, 0.0
    for instruction in ("forward", "backward"):
        computation = MeasuredComputation(MEASURED.of(1, instruction))
        site = Site()
        site.device.set_locked_clocks_megahertz(345, 1740)
        site.device.set_out_of_band_cap_milliwatts(round(throttled_watts() * 1000))
        ran = site.board.compute(computation, 100.0)
        assert site.board.joules <= throttled_watts() * (ran.end - ran.start) * (1 + 1e-4)
        throttled += ran.end - ran.start
        free += computation.at(1740)[0]
    assert 1.3 < throttled / free < 1.6


def test_between_and_beyond_the_measured_clocks() -> None:
    computation = MeasuredComputation(MEASURED.of(0, "backward"))
    points = sorted(MEASURED.of(0, "backward"), key=lambda point: point.clock_megahertz or 0)
    lowest, highest = points[0], points[-1]
    assert lowest.clock_megahertz is not None
    assert computation.at(10**5) == computation.at(highest.clock_megahertz or 0)
    assert computation.at(lowest.clock_megahertz // 2)[0] > 1.9 * lowest.time_seconds
    seconds = [computation.at(clock)[0] for clock in range(lowest.clock_megahertz, 1741)]
    assert min(seconds) >= min(point.time_seconds for point in points)
