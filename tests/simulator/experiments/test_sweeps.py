"""Which runs a comparison is made of."""

from __future__ import annotations

import pytest
from flyball_planner.policies.view import Knob
from flyball_simulator.experiments.sweeps import cells_of, default_sweeps, parse_sweeps
from flyball_simulator.workloads.source import WorkloadSource

from tests.support.made_outcomes import BASE

SOURCE = WorkloadSource("trace.csv")


def test_sweeps_are_read_or_refused() -> None:
    assert parse_sweeps(["clock=1410,1200,1410", " power-limit=0.3"]) == {
        Knob.CLOCK: (1410.0, 1200.0),
        Knob.POWER_LIMIT: (0.3,),
    }
    for text, complaint in (
        ("eta=0.3", "is not KNOB=VALUE"),
        ("clock", "is not KNOB=VALUE"),
        ("clock=fast", "are not numbers"),
        ("clock=", "has no value"),
    ):
        with pytest.raises(ValueError, match=complaint):
            parse_sweeps([text])
    with pytest.raises(ValueError, match="swept twice"):
        parse_sweeps(["clock=1", "clock=2"])


def test_without_a_sweep_each_policy_is_swept_over_its_own_knob() -> None:
    assert parse_sweeps(["none"]) == {}
    found = default_sweeps(["price", "afs", "afs+zeus"])
    assert set(found) == {Knob.PRICE, Knob.CLOCK}
    cells = cells_of(["afs+zeus"], default_sweeps(["afs+zeus"]), (0,), BASE, SOURCE)
    assert len(cells) == 1
    paper = cells_of(["powerflow-paper"], default_sweeps(["powerflow-paper"]), (0,), BASE, SOURCE)
    assert [cell.settings.power_limit_fraction for cell in paper][:2] == [None, 0.4]
    assert paper[0].sweep == ()


@pytest.mark.parametrize("clock", [50, 99_999])
def test_a_clock_that_no_job_runs_at_is_no_point_of_a_sweep(clock: int) -> None:
    with pytest.raises(ValueError, match=f"clock {clock} MHz is outside 5[0-9]+ to 1410 MHz"):
        cells_of(["afs"], {Knob.CLOCK: (clock,)}, (0,), BASE, SOURCE)


def test_a_policy_runs_at_each_value_of_its_own_knob() -> None:
    cells = cells_of(["price", "afs", "afs+zeus"], parse_sweeps(["price=0,0.001", "clock=900"]), (0, 1), BASE, SOURCE)
    assert [str(cell) for cell in cells[:4]] == [
        "price, price 0, seed 0",
        "price, price 0.001, seed 0",
        "afs, clock 900, seed 0",
        "afs+zeus, seed 0",
    ]
    assert [cell.settings.seed for cell in cells] == [0] * 4 + [1] * 4
    assert [cell.workload.seed for cell in cells] == [0] * 4 + [1] * 4
    off = cells_of(["fifo"], {}, (0,), BASE, SOURCE, (False, True))
    assert [(cell.curve, cell.settings.power_off_empty_nodes) for cell in off] == [
        ("fifo", False),
        ("fifo, nodes off", True),
    ]
    with pytest.raises(ValueError, match="no policy has the knob price"):
        cells_of(["afs"], parse_sweeps(["price=0"]), (0,), BASE, SOURCE)
    with pytest.raises(ValueError, match="named more than once"):
        cells_of(["afs", "afs"], {}, (0,), BASE, SOURCE)
