"""The evaluation's own parts: the page's markers, the tables, the carbon schedule, the small claims."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flyball_planner.policies.view import Performance
from flyball_simulator.experiments.at_equal_energy import Point
from flyball_simulator.experiments.matrix import Cell, Outcome
from flyball_simulator.settings import SimulationSettings
from flyball_simulator.workloads.source import WorkloadSource
from flyball_studies.evaluation import carbon, small, studies, tables
from flyball_studies.evaluation.lower_bound import BoundJob, Bounds
from flyball_studies.evaluation.page import fill

PAGE = Path(__file__).parents[3] / "docs/evaluation.md"


def test_blocks_are_replaced_between_their_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- begin a -->\nold\n<!-- end a -->\nafter\n")
    assert fill(page, {"a": "new \\1", "b": "homeless"}) == ["b"]
    assert page.read_text() == "before\n<!-- begin a -->\nnew \\1\n<!-- end a -->\nafter\n"
    page.write_text("<!-- begin a -->\n")
    with pytest.raises(ValueError, match="has no <!-- end a -->"):
        fill(page, {"a": "new"})


def test_every_marker_of_the_page_has_its_end_and_every_picture_is_there() -> None:
    text = PAGE.read_text()
    begun = [line.split()[2] for line in text.splitlines() if line.startswith("<!-- begin ")]
    ended = [line.split()[2] for line in text.splitlines() if line.startswith("<!-- end ")]
    assert begun == ended
    assert len(begun) == len(set(begun)) > 0
    for part in text.split("](")[1:]:
        target = part.split(")")[0]
        if target.startswith("images/"):
            assert (PAGE.parent / target).is_file()


def test_caps_are_tight_where_the_grid_is_dirty(tmp_path: Path) -> None:
    path = tmp_path / "grid.csv.gz"
    rows = [f"{carbon.FIRST_DAY} {hour:02d}:00:00+00:00,{200 + 10 * (hour % 12)}" for hour in range(24)]
    path.write_bytes(gzip.compress("\n".join(["timestamp,avg_CI", *rows]).encode()))
    hourly = carbon.hourly_carbon(path)
    assert hourly[:2] == [(0.0, 200.0), (3600.0, 210.0)]
    caps = carbon.day_ahead_caps(hourly)
    assert caps[0].fraction == carbon.LOOSE
    assert caps[11].fraction == pytest.approx(carbon.TIGHT)
    signal = carbon.price_signal(hourly)
    assert signal[0][1] < 1.0 < signal[11][1]
    path.write_bytes(gzip.compress(b"timestamp,other\n2020-01-01,1\n"))
    with pytest.raises(ValueError, match="no hour of"):
        carbon.hourly_carbon(path)


def test_energy_saved_is_read_at_the_others_thriftiest_jct() -> None:
    ours = {0: [Point(4.0, 10.0, 20.0), Point(8.0, 6.0, 12.0)]}
    theirs = {0: [Point(10.0, 8.0, 20.0), Point(12.0, 7.0, 12.0)]}
    assert tables.saved_energy(ours, theirs) == pytest.approx(1.0 - 6.0 / 10.0)
    slow = {0: [Point(4.0, 30.0, 40.0)]}
    assert tables.saved_energy(slow, theirs) is None


def test_price_beats_tiresias_on_the_two_gpus_in_time_and_energy() -> None:
    found = {each.policy: each for each in small.two_gpus()}
    tiresias = found.pop("tiresias")
    assert all(each.mean_jct_seconds < tiresias.mean_jct_seconds for each in found.values())
    assert all(each.joules < tiresias.joules for each in found.values())


def test_every_policy_that_the_study_names_is_run_with_nodes_off_and_on() -> None:
    loads = studies.Workloads(None)
    named = {name for name in (*studies.MAIN, *studies.OTHERS, studies.FIRST_SEED_ONLY) if "+" not in name}
    for nodes_off in (True, False):
        cells = [
            *studies.main_policies(loads, "synthetic", 1.5, (0, 1), nodes_off=nodes_off),
            *studies.other_policies(loads, "synthetic", 1.5, (0,), nodes_off=nodes_off),
        ]
        assert {cell.settings.power_off_empty_nodes for cell in cells} == {nodes_off}
        bare = {cell.settings.policy for cell in cells if "+" not in cell.settings.policy}
        assert bare == named
        assert {"afs+priced", studies.DEFAULT_CURVE} <= {cell.curve for cell in cells}
        assert len({(str(cell), cell.settings.seed) for cell in cells}) == len(cells), "each run once"
        for cell in cells:
            swept = dict(cell.sweep)
            assert swept.get("price") == cell.settings.price
            assert swept.get("clock") == cell.settings.clock_megahertz
            assert swept.get("power_limit") == cell.settings.power_limit_fraction


def test_the_lead_is_taken_apart_by_runs_that_differ_in_what_their_curve_says() -> None:
    cells = studies.lead(studies.Workloads(None), "synthetic", 1.5, 0)
    by_curve = {cell.curve: cell.settings for cell in cells}
    assert set(by_curve) == set(studies.LEAD_CURVES)
    assert {curve for curve, found in by_curve.items() if found.measure_every_job} == {"price, every job measured"}
    assert {curve for curve, found in by_curve.items() if found.objective == "Balanced"} == {
        "powerflow-strict, Balanced"
    }
    assert len({(cell.curve, cell.settings.price, cell.settings.clock_megahertz) for cell in cells}) == len(cells)
    afs = next(cell for cell in cells if cell.curve == "afs+priced")
    outcomes = [
        Outcome(cell, {"energy_joules": {"total": joules}, "mean_jct_seconds": jct, "p99_jct_seconds": 2 * jct})
        for cell, joules, jct in (
            (cells[0], 1e6, 90.0),
            (next(c for c in cells if c.curve == "afs"), 1e6, 99.0),
            (afs, 2e6, 50.0),
        )
    ]
    known = Bounds.of([BoundJob(0.0, 100.0, Performance([1], np.array([[0.9]]), np.array([[500.0]])))], 1)
    key = ("synthetic", 1.5)
    found = tables.at_equal_energy({key: outcomes}, ["price", "afs+priced"], "afs", {(*key, 0): known})
    price, priced = found.splitlines()[2:]
    assert price.startswith(
        "| synthetic, load 1.5: price | **1.10** | 1.10 to 1.10 | 1.10 to 1.10 | 0% | 1.10 | 1.10 | 1.00 |"
    )
    assert "synthetic, load 1.5: afs+priced | no energy shared" in priced


def test_a_picture_shows_the_seeds_that_everybody_was_run_with() -> None:
    source = WorkloadSource("synthetic")
    base = SimulationSettings(policy="fifo", gpus=8)

    def outcome(policy: str, seed: int, ended: bool = True) -> Outcome:
        return Outcome(Cell(replace(base, policy=policy, seed=seed), source), {"ended": True} if ended else None)

    runs = [outcome("price", seed) for seed in range(3)] + [
        outcome("afs", 2),
        outcome("afs", 1),
        outcome("fifo", 9, False),
    ]
    alike, seeds = studies.of_common_seeds(runs)
    assert seeds == 2
    assert [(one.cell.curve, one.cell.settings.seed) for one in alike] == [
        ("price", 1),
        ("price", 2),
        ("afs", 2),
        ("afs", 1),
    ]
    assert studies.of_common_seeds([]) == ([], 0)
    strict = outcome("powerflow-strict", 1)
    assert studies.of_common_seeds([*runs, strict]) == (alike, 2), "it has fewer, and is not shown"
    assert studies.of_common_seeds([outcome("afs", 1), strict]) == ([outcome("afs", 1), strict], 1)
