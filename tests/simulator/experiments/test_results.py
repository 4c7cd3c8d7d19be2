"""The files that a run leaves."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
from flyball_simulator.experiments.results import (
    jobs_csv,
    result_document,
    table_csv,
    timeline_csv,
    write_result,
    write_whole,
)
from flyball_simulator.workloads.workload import SimulatedJob

from tests.support.made_results import RESULT

JOBS = [
    SimulatedJob("later, or not", 20.0, 2, "vgg16", 64, 1234.56),
    SimulatedJob("first", 10.0, 1, "gpt2", 128, 10.0),
]


def test_the_document_is_reckoned_from_jobs_and_joules() -> None:
    document = result_document(RESULT)
    assert document["jobs"] == 2
    assert document["mean_jct_seconds"] == document["p50_jct_seconds"] == 200.0
    assert document["p99_jct_seconds"] == pytest.approx(298.0)
    assert document["energy_joules"] == {"gpu": 5.0, "idle": 3.0, "node": 0.0, "total": 8.0}
    assert json.loads(json.dumps(document)) == document
    assert document["settings"]["node_events"] == [{"at_seconds": 5.0, "node": 1, "up": False}]
    with pytest.raises(ValueError, match="the run of price has no jobs"):
        result_document(replace(RESULT, completion_seconds={}))


def test_every_job_and_every_decision_has_a_line() -> None:
    jobs = list(csv.DictReader(jobs_csv(RESULT, JOBS).splitlines()))
    assert [(row["job_id"], row["num_gpu"], row["jct_seconds"]) for row in jobs] == [
        ("first", "1", "100.000"),
        ("later, or not", "2", "300.000"),
    ], "in the order of submission"
    rows = list(csv.DictReader(timeline_csv(RESULT).splitlines()))
    assert [(row["seconds"], row["watts"], row["cap_watts"]) for row in rows] == [
        ("0.000", "1000.0", ""),
        ("100.000", "3000.0", "1500.0"),
        ("300.000", "500.0", "1500.0"),
    ]


def test_files_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    paths = write_result(RESULT, JOBS, tmp_path / "new/run")
    assert sorted(path.name for path in (tmp_path / "new/run").iterdir()) == sorted(path.name for path in paths)
    assert json.loads(paths[0].read_text()) == result_document(RESULT)
    target = write_whole(tmp_path / "target", "old")
    write_whole(target, b"new")
    assert target.read_bytes() == b"new"
    taken = tmp_path / "taken"
    taken.mkdir()
    with pytest.raises(OSError, match="taken"):
        write_whole(taken, "a folder is in the way")
    assert {path.name for path in tmp_path.iterdir()} == {"new", "target", "taken"}, "nothing unfinished is left"


def test_tables_are_csv_with_a_heading() -> None:
    assert table_csv([{"a": 1, "b": None}, {"a": "x,y", "b": 2.5}]) == 'a,b\n1,\n"x,y",2.5\n'
    assert table_csv([]).strip() == ""
