"""Runs of a matrix: kept, found again, made anew where anything they depend on has changed."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from flyball_simulator.experiments import matrix
from flyball_simulator.experiments.matrix import Cell, run_key, run_matrix
from flyball_simulator.experiments.worker_processes import Event, Finished, Started
from flyball_simulator.workloads.source import WorkloadSource

from tests.support.made_outcomes import BASE


@pytest.fixture
def source(tmp_path: Path) -> WorkloadSource:
    path = tmp_path / "trace.csv"
    rows = [f"job-{index},{30 * index},{200 + 50 * index},{1 << index % 3}" for index in range(5)]
    path.write_text("\n".join(["job_id,submission_time,duration,num_gpu", *rows]) + "\n")
    return WorkloadSource(str(path))


@pytest.mark.slow
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


@pytest.mark.slow
def test_new_code_finds_nothing_kept(source: WorkloadSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_matrix([Cell(BASE, source)], tmp_path / "runs", processes=1)
    monkeypatch.setattr(matrix, "code_version", lambda: "of later")
    assert not run_matrix([Cell(BASE, source)], tmp_path / "runs", processes=1)[0].reused


@pytest.mark.slow
def test_a_run_that_fails_leaves_the_others_alone(source: WorkloadSource, tmp_path: Path) -> None:
    missing = WorkloadSource(str(tmp_path / "nothing.csv"))
    failed, ended = run_matrix([Cell(BASE, missing), Cell(BASE, source)], tmp_path / "runs", processes=2)
    assert failed.result is None
    assert "nothing.csv" in (failed.error or "")
    assert ended.result is not None


@pytest.mark.slow
def test_what_was_interrupted_goes_on_from_there(source: WorkloadSource, tmp_path: Path) -> None:
    cells = [Cell(replace(BASE, policy=policy), source) for policy in ("fifo", "srtf", "afs")]

    def interrupt(event: Event) -> None:
        if isinstance(event, Finished) and event.task == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_matrix(cells, tmp_path / "runs", processes=1, listen=interrupt)
    assert not list((tmp_path / "runs").glob(".*")), "nothing half written"
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()}
    assert len(kept) == 2
    rest = run_matrix(cells, tmp_path / "runs", processes=1)
    assert [outcome.reused for outcome in rest] == [True, True, False]
    assert all(outcome.result for outcome in rest)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    other_seed = run_matrix([Cell(replace(BASE, seed=1), source)], tmp_path / "runs", processes=1)
    assert not other_seed[0].reused


@pytest.mark.slow
def test_a_run_whose_process_dies_is_told_by_its_cell(source: WorkloadSource, tmp_path: Path) -> None:
    cells = [Cell(replace(BASE, policy=policy), source) for policy in ("fifo", "srtf")]

    def kill(event: Event) -> None:
        if isinstance(event, Started) and event.task == 0:
            os.kill(event.pid, signal.SIGKILL)

    dead, ended = run_matrix(cells, tmp_path / "runs", processes=1, listen=kill)
    assert (dead.cell, dead.result, dead.error) == (cells[0], None, "its process ended with signal SIGKILL")
    assert str(dead.cell) == "fifo, seed 0"
    assert ended.result is not None
    assert ended.result["policy"] == "srtf"


@pytest.mark.slow
def test_a_kept_file_of_another_run_or_shape_is_not_trusted(source: WorkloadSource, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    (first,) = run_matrix([Cell(BASE, source)], folder, processes=1)
    (path,) = folder.iterdir()
    whole = json.loads(path.read_text())
    for damage in (
        {"key": "another"},
        {"result": None},
        {"jct_quantiles_seconds": [1.0]},
        {"jct_quantiles_seconds": 7},
    ):
        path.write_text(json.dumps(whole | damage))
        (mended,) = run_matrix([Cell(BASE, source)], folder, processes=1)
        assert not mended.reused, damage
        assert mended.jct_quantiles_seconds == first.jct_quantiles_seconds
    path.write_bytes(b"\xff\x00")
    assert not run_matrix([Cell(BASE, source)], folder, processes=1)[0].reused
