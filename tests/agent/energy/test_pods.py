"""The window over a pod's recent energy and clocks."""

from __future__ import annotations

from flyball_agent.energy.pods import Window

SECOND = 1_000_000_000


def test_a_window_measures_between_its_samples() -> None:
    window = Window()
    assert window.energy_millijoules(0, SECOND) is None
    assert window.clock_megahertz(0, SECOND) is None
    for second, energy, clock in ((10, 0, 1000), (11, 300, 1200), (12, 400, 1400)):
        window.add(second * SECOND, energy, clock)
    assert window.energy_millijoules(10 * SECOND, 12 * SECOND) == 400
    assert window.energy_millijoules(round(10.5 * SECOND), round(11.5 * SECOND)) == 200
    assert window.energy_millijoules(11 * SECOND, 13 * SECOND) == 200  # goes on at the last rate
    assert window.energy_millijoules(0, 11 * SECOND) == 300  # no further back than it knows
    assert window.clock_megahertz(10 * SECOND, 12 * SECOND) == 1300
    assert window.clock_megahertz(round(12.1 * SECOND), 13 * SECOND) == 1400
    window.add(12 * SECOND, 999, 1)  # not a later time: nothing new
    assert window.energy_millijoules(10 * SECOND, 12 * SECOND) == 400
