"""Runs of a matrix: kept, found again, made anew where anything they depend on has changed; and what they come to."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from flyball_planner.policies.view import Knob
from flyball_simulator import matrix
from flyball_simulator.comparison import Estimate, comparison_document, comparisons, curves, run_rows
from flyball_simulator.matrix import Cell, Outcome, run_key, run_matrix
from flyball_simulator.plots import MEAN_JCT, energy_figure, inline_svg, inlined, pareto_figure, png
from flyball_simulator.report import duration, energy, report_html
from flyball_simulator.settings import Knowledge, SimulationSettings
from flyball_simulator.sweeps import cells_of, parse_sweeps
from flyball_simulator.worker_processes import Event, Finished
from flyball_simulator.workload_source import WorkloadSource, gpus_for_load

BASE = SimulationSettings(policy="fifo", gpus=8, knowledge=Knowledge.IDEAL)


@pytest.fixture
def source(tmp_path: Path) -> WorkloadSource:
    path = tmp_path / "trace.csv"
    rows = [f"job-{index},{30 * index},{200 + 50 * index},{1 << index % 3}" for index in range(5)]
    path.write_text("\n".join(["job_id,submission_time,duration,num_gpu", *rows]) + "\n")
    return WorkloadSource(str(path))


def test_a_kept_run_is_reused_and_a_damaged_one_is_not(source: WorkloadSource, tmp_path: Path) -> None:
    cells = [Cell(BASE, source), Cell(replace(BASE, policy="srtf"), source)]
    folder = tmp_path / "runs"
    first = run_matrix(cells, folder, processes=1)
    assert [outcome.error for outcome in first] == [None, None]
    assert not any(outcome.reused for outcome in first)
    assert len(list(folder.glob("*.json"))) == 2
    heard: list[Event] = []
    again = run_matrix(cells, folder, processes=1, listen=heard.append)
    assert all(outcome.reused for outcome in again)
    assert [outcome.result for outcome in again] == [outcome.result for outcome in first]
    assert sum(isinstance(event, Finished) for event in heard) == 2
    damaged, foreign = sorted(folder.glob("*.json"))
    damaged.write_text(damaged.read_text()[:100])
    foreign.write_text("[]")
    mended = run_matrix(cells, folder, processes=1)
    assert not any(outcome.reused for outcome in mended)
    assert [outcome.result["mean_jct_seconds"] for outcome in mended if outcome.result] == [
        outcome.result["mean_jct_seconds"] for outcome in first if outcome.result
    ]
    assert all(json.loads(path.read_text())["result"] for path in (damaged, foreign))
    assert not any(outcome.reused for outcome in run_matrix(cells[:1], folder, processes=1, resume=False))


def test_a_run_is_named_by_all_that_it_depends_on() -> None:
    key = run_key(BASE, "trace", "jobs", "code")
    assert key == run_key(replace(BASE), "trace", "jobs", "code")
    others = [
        run_key(replace(BASE, seed=1), "trace", "jobs", "code"),
        run_key(replace(BASE, price=1e-4), "trace", "jobs", "code"),
        run_key(BASE, "other", "jobs", "code"),
        run_key(BASE, "trace", "others", "code"),
        run_key(BASE, "trace", "jobs", "later"),
    ]
    assert len({key, *others}) == 6


def test_new_code_finds_nothing_kept(source: WorkloadSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_matrix([Cell(BASE, source)], tmp_path / "runs", processes=1)
    monkeypatch.setattr(matrix, "code_version", lambda: "of later")
    assert not run_matrix([Cell(BASE, source)], tmp_path / "runs", processes=1)[0].reused


def test_a_run_that_fails_leaves_the_others_alone(source: WorkloadSource, tmp_path: Path) -> None:
    missing = WorkloadSource(str(tmp_path / "nothing.csv"))
    failed, ended = run_matrix([Cell(BASE, missing), Cell(BASE, source)], tmp_path / "runs", processes=2)
    assert failed.result is None
    assert "nothing.csv" in (failed.error or "")
    assert ended.result is not None


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


def test_a_policy_runs_at_each_value_of_its_own_knob(source: WorkloadSource) -> None:
    cells = cells_of(["price", "afs", "afs+zeus"], parse_sweeps(["price=0,0.001", "clock=900"]), (0, 1), BASE, source)
    assert [str(cell) for cell in cells[:4]] == [
        "price, price 0, seed 0",
        "price, price 0.001, seed 0",
        "afs, clock 900, seed 0",
        "afs+zeus, seed 0",
    ]
    assert [cell.settings.seed for cell in cells] == [0] * 4 + [1] * 4
    assert [cell.workload.seed for cell in cells] == [0] * 4 + [1] * 4
    off = cells_of(["fifo"], {}, (0,), BASE, source, (False, True))
    assert [(cell.curve, cell.settings.power_off_empty_nodes) for cell in off] == [
        ("fifo", False),
        ("fifo, nodes off", True),
    ]
    with pytest.raises(ValueError, match="no policy has the knob price"):
        cells_of(["afs"], parse_sweeps(["price=0"]), (0,), BASE, source)
    with pytest.raises(ValueError, match="named more than once"):
        cells_of(["afs", "afs"], {}, (0,), BASE, source)


def test_the_gpus_of_a_load_keep_that_share_busy(source: WorkloadSource) -> None:
    jobs = source.trace_jobs()
    busy = sum(job.gpus * job.duration_seconds for job in jobs) / (jobs[-1].submit_seconds - jobs[0].submit_seconds)
    assert gpus_for_load(jobs, busy / 64, 8) == 64
    assert gpus_for_load(jobs, 1e6, 8) == 8, "one node at least"
    with pytest.raises(ValueError, match="must be above 0"):
        gpus_for_load(jobs, 0.0, 8)
    with pytest.raises(ValueError, match="all submitted at once"):
        gpus_for_load(jobs[:1], 0.8, 8)


def outcome(policy: str, seed: int, joules: float, seconds: float, price: float = 0.0) -> Outcome:
    settings = replace(BASE, policy=policy, seed=seed)
    result = {
        "policy": policy,
        "mean_jct_seconds": seconds,
        "p50_jct_seconds": seconds / 2,
        "p99_jct_seconds": 9 * seconds,
        "makespan_seconds": 99.0 * seconds,
        "energy_joules": {"gpu": 0.9 * joules, "idle": 0.1 * joules, "node": 0.0, "total": joules},
        "max_watts": 1000.0 + seed,
        "cap_violation_seconds": 0.0,
        "restarts": 3,
        "wall_seconds": 0.1,
    }
    return Outcome(Cell(settings, WorkloadSource("trace", seed), (("price", price),)), result)


MADE = [
    *(outcome("price", seed, 4e9, 100.0 + seed, 0.0) for seed in (0, 1)),
    *(outcome("price", seed, 2e9, 200.0, 1.0) for seed in (0, 1)),
    *(outcome("price", seed, 5e9, 150.0, 2.0) for seed in (0, 1)),
    *(outcome("afs", seed, 3e9, 300.0) for seed in (0, 1)),
]
FAILED = Outcome(Cell(replace(BASE, policy="gandiva"), WorkloadSource("trace")), None, error="it <broke>")


def test_curves_are_means_over_seeds_with_their_intervals() -> None:
    price, afs = curves([*MADE, FAILED])
    assert (price.label, afs.label) == ("price", "afs"), "the fastest first, what failed nowhere"
    assert [one.sweep[0][1] for one in price.settings] == [1.0, 0.0, 2.0], "by energy"
    assert [one.on_envelope for one in price.settings] == [True, True, False]
    assert price.fastest.mean_jct_seconds == Estimate(pytest.approx(100.5), pytest.approx(12.7062 / 2, rel=1e-4))  # type: ignore[arg-type]
    assert price.fastest.max_watts == 1001.0, "the worst of any seed"
    assert Estimate.of([5.0]) == Estimate(5.0, 0.0)


def test_the_documents_hold_every_run_and_what_failed() -> None:
    document = comparison_document([*MADE, FAILED], comparisons([*MADE, FAILED]))
    assert len(document["runs"]) == len(MADE)
    assert document["runs"][0]["sweep"] == {"price": 0.0}
    assert document["failed"][0]["error"] == "it <broke>"
    assert {(entry["policy"], entry["against"]) for entry in document["at_equal_energy"]} == {
        ("price", "afs"),
        ("afs", "price"),
    }
    rows = run_rows([*MADE, FAILED])
    assert len(rows) == len(MADE)
    assert rows[0]["total_joules"] == 4e9


def test_the_report_is_one_page_that_asks_for_nothing() -> None:
    made = curves(MADE)
    page = report_html(
        "A <title>", [("trace", "mine & yours")], [*MADE, FAILED], made, comparisons(MADE), "flyball compare"
    )
    assert "A &lt;title&gt;" in page
    assert "mine &amp; yours" in page
    assert "it &lt;broke&gt;" in page
    assert page.count("<svg") == 3
    for outside in ("http://", "https://", "src=", "@import", "<script", "<link"):
        assert outside not in page
    for label in ("price", "afs"):
        assert label in page
    with pytest.raises(ValueError, match="no run has ended"):
        report_html("nothing", [], [FAILED], [], [], "")


def test_pictures_name_every_policy() -> None:
    made = curves(MADE)
    with inlined():
        svg = inline_svg(pareto_figure(made, MEAN_JCT, "heading"), "mean", "described")
    for text in ("price", "afs", "heading", "total energy", 'aria-label="described"'):
        assert text in svg
    assert png(energy_figure(made)).startswith(b"\x89PNG")


def test_figures_are_said_in_units_that_people_use() -> None:
    assert [duration(s) for s in (45.0, 738.0, 16_400.0, 200_000.0)] == ["45 s", "12.3 min", "4.56 h", "2.31 d"]
    assert [energy(j) for j in (5.0, 5e3, 5e6, 5.25e9)] == ["5 J", "5 kJ", "5 MJ", "5.25 GJ"]
