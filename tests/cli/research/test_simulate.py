"""`flyball simulate` and `flyball compare` as their users meet them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from flyball_cli.research.simulation_options import read_cap_schedule, read_node_events
from flyball_simulator.settings import CapStep, NodeEvent
from flyball_simulator.workloads.trace_formats import FORMATS

from tests.support.command_line import flyball

RESULT_KEYS = [
    "policy",
    "trace",
    "gpus",
    "jobs",
    "mean_jct_seconds",
    "p50_jct_seconds",
    "p99_jct_seconds",
    "makespan_seconds",
    "energy_joules",
    "max_watts",
    "cap_watts",
    "cap_violation_seconds",
    "restarts",
    "profiling_joules",
    "wall_seconds",
]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    rows = [f"job-{index},{60 * index},{600 + 100 * index},{1 << index % 3}" for index in range(8)]
    path.write_text("\n".join(["job_id,submission_time,duration,num_gpu", *rows]) + "\n")
    return path


@pytest.mark.slow
def test_a_run_leaves_its_result_in_the_agreed_names(trace: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    done = flyball(
        "simulate", "--trace", trace, "--policy", "price", "--gpus", 8, "--power-limit", 0.5, "--model", "ideal",
        "--power-off-empty-nodes", "--output", output,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    result = json.loads((output / "result.json").read_text())
    assert list(result)[: len(RESULT_KEYS)] == RESULT_KEYS
    assert list(result["energy_joules"]) == ["gpu", "idle", "node", "total"]
    assert (result["policy"], result["trace"], result["gpus"], result["jobs"]) == ("price", "trace.csv", 8, 8)
    assert result["cap_watts"] == 1600.0
    assert result["cap_violation_seconds"] == 0.0
    assert len((output / "jobs.csv").read_text().splitlines()) == 9
    assert (output / "timeline.png").read_bytes().startswith(b"\x89PNG")
    assert "mean JCT" in done.output


@pytest.mark.slow
def test_bad_input_is_refused_in_one_line(trace: Path, tmp_path: Path) -> None:
    for arguments, said in (
        (("--policy", "nonesuch", "--gpus", 8), "'nonesuch' is unknown"),
        (
            ("--policy", "fifo", "--gpus", 8, "--trace", "synthetik"),
            "--trace synthetik: there is no such file, and it is none of itp, itp-months",
        ),
        (("--policy", "fifo"), "either --gpus N or --load"),
        (
            ("--policy", "fifo", "--gpus", 8, "--load", 1.0),
            "--gpus 8 and --load 1 both say how large the cluster is",
        ),
        (("--policy", "fifo", "--gpus", 8_000_000_000_000), "gpus is 8000000000000, and must be at most 1048576"),
        (("--policy", "fifo", "--load", 1e-9), "load is 1e-09, which takes more than the 1048576 GPUs"),
        (("--policy", "fifo", "--gpus", 9), "multiple of the 8"),
        (("--policy", "fifo", "--gpus", 8, "--model", "perfect"), "none of ideal, fitted, noisy"),
        (("--policy", "fifo", "--gpus", 8, "--clock", 99999), "clock 99999 MHz is outside"),
        (("--policy", "afs", "--gpus", 8, "--price", 0.1), "afs does not listen to --price: its knob is clock"),
        (("--policy", "price", "--gpus", 8, "--clock", 1410), "price does not listen to --clock: its knob is price"),
        (("--policy", "fifo", "--load", "inf"), "load is inf"),
        (("--policy", "fifo", "--gpus", 8, "--objective", "glory"), "none of time, energy, balanced"),
        (("--policy", "nowhere:Policy", "--gpus", 8), "policy 'nowhere:Policy': No module named 'nowhere'"),
        (("--policy", "json:Policy", "--gpus", 8), "module json has no 'Policy'"),
        (("--policy", "json:JSONDecoder", "--gpus", 8), "is no policy: it needs a name, traits and decide(view)"),
    ):
        refused = flyball("simulate", "--trace", trace, *arguments)
        assert refused.exit_code == 2
        assert said in refused.output
    trace.write_text("job_id,submission_time,duration,num_gpu\na,0,ten,1\n")
    refused = flyball("simulate", "--trace", trace, "--policy", "fifo", "--gpus", 8)
    assert refused.exit_code == 2
    assert "line 2: column duration" in refused.output


def test_a_job_larger_than_any_can_be_here_is_told(trace: Path) -> None:
    trace.write_text("job_id,submission_time,duration,num_gpu\na,0,600,1\nhuge,60,600,100000\n")
    told = flyball("simulate", "--trace", trace, "--policy", "fifo", "--gpus", 16, "--model", "ideal")
    assert told.exit_code == 0
    assert "1 of the trace's jobs ask for more than 16 GPUs" in told.output
    assert "(job huge: 100,000)" in told.output


OUTSIDE = """
from flyball_planner.policies.view import Choice, Knob, Traits

class OneGpuEach:
    name = "one-gpu-each"
    traits = Traits(knob=Knob.CLOCK, elastic=True, repacks=True)

    def decide(self, view):
        kept = sorted(view.jobs, key=lambda job: (not job.gpus, job.order))[: view.gpus]
        return [Choice(job.uid, 1, view.clock_of(job, 1)) for job in kept]
"""


@pytest.mark.slow
def test_a_policy_from_outside_is_simulated_and_compared(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_policy.py").write_text(OUTSIDE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    alone = flyball("simulate", "--trace", trace, "--policy", "my_policy:OneGpuEach", "--gpus", 8, "--model", "ideal")
    assert alone.exit_code == 0, alone.output
    arguments = (
        "compare", "--trace", trace, "--gpus", 8, "--policies", "fifo,my_policy:OneGpuEach,my_policy:OneGpuEach+zeus",
        "--sweep", "none", "--node-overhead-watts", 1400, "--boot-seconds", 60, "--model", "ideal", "--jobs", 1,
        "--output", tmp_path / "out",
    )  # fmt: skip
    done = flyball(*arguments)
    assert done.exit_code == 0, done.output
    runs = json.loads((tmp_path / "out/comparison.json").read_text())["runs"]
    assert {run["policy"] for run in runs} == {"fifo", "my_policy:OneGpuEach", "my_policy:OneGpuEach+zeus"}
    assert all(run["energy_joules"]["node"] > 0.0 for run in runs)
    kept = {path.name for path in (tmp_path / "out/runs").glob("*.json")}
    (tmp_path / "my_policy.py").write_text(OUTSIDE + "# changed\n")
    assert flyball(*arguments).exit_code == 0
    made = {path.name for path in (tmp_path / "out/runs").glob("*.json")} - kept
    assert len(made) == 2, "runs of code that has changed are made anew, and fifo's is found"


@pytest.mark.slow
def test_a_file_whose_header_does_not_say_is_read_by_the_format_named(tmp_path: Path) -> None:
    path = tmp_path / "pai.csv"
    path.write_text("arrival_time,length,cpus\n" + "".join(f"{60 * i},0.25,{1 << i % 3}\n" for i in range(4)))
    arguments = ("simulate", "--trace", path, "--gpus", 8, "--policy", "fifo", "--model", "ideal")
    assert "name the format, pai-hours or pai-seconds" in flyball(*arguments).output
    named = flyball(*arguments, "--trace-format", "pai-hours", "--output", tmp_path / "out")
    assert named.exit_code == 0, named.output
    assert json.loads((tmp_path / "out/result.json").read_text())["mean_jct_seconds"] >= 900.0
    compared = flyball(
        "compare", "--trace", path, "--gpus", 8, "--policies", "fifo", "--sweep", "none", "--model", "ideal", "--jobs", 1,
        "--trace-format", "pai-seconds", "--output", tmp_path / "compared",
    )  # fmt: skip
    assert compared.exit_code == 0, compared.output
    (made,) = json.loads((tmp_path / "compared/comparison.json").read_text())["runs"]
    assert made["mean_jct_seconds"] < 900.0, "a quarter of a second each, not of an hour"
    for refused, complaint in (
        (("simulate", "--trace", path, "--trace-format", "tape"), "trace format 'tape' is unknown"),
        (("simulate", "--trace", "synthetic", "--trace-format", "pai-hours"), "is for files"),
    ):
        found = flyball(*refused, "--gpus", 8, "--policy", "fifo")
        assert found.exit_code == 2
        assert complaint in found.output


def test_a_cap_schedule_is_read_or_refused_by_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "caps.csv"
    path.write_text("seconds,fraction\n3600,0.4\n0,0.9\n")
    assert read_cap_schedule(path) == (CapStep(0.0, 0.9), CapStep(3600.0, 0.4))
    for text, said in (
        ("at,fraction\n", "line 1: the header"),
        ("seconds,fraction\n0,1.5\n", "line 2: column fraction: 1.5"),
        ("seconds,fraction\n0,0.5\n-1,0.5\n", "line 3: column seconds: -1"),
        ("seconds,fraction\nnoon,0.5\n", "line 2: column seconds: 'noon'"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=said):
            read_cap_schedule(path)


def test_node_events_are_read_or_refused_by_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text("seconds,node,state\n900,1,up\n300.5,1,down\n")
    assert read_node_events(path, 2) == (NodeEvent(300.5, 1, False), NodeEvent(900.0, 1, True))
    for text, complaint in (
        ("seconds,node\n1,2\n", "line 1: the header must have the columns seconds,node,state"),
        ("seconds,node,state\n1,2,up\n1,2,off\n", "line 3: column state: 'off' must be up or down"),
        ("seconds,node,state\n1,1.5,up\n", "line 2: column node: '1.5' is no number of a node, from 0 to 2"),
        ("seconds,node,state\n1,2,up\n1,3,up\n", "line 3: column node: '3' is no number of a node, from 0 to 2"),
        ("seconds,node,state\n1,2\n", "line 2: column state: '' must be"),
        ("seconds,node,state\n1,2,up,down\n", "line 2: more values than the header's 3 columns"),
        (f"seconds,node,state\n1,2,{'x' * 200_000}\n", "line 2: not valid CSV"),
        ("seconds,node,state\n1,2,\udcff\n", "not a text file"),
        ("seconds,node,state\n-1,1,up\n", "line 2: column seconds: -1.0 must be 0 or more"),
        ("seconds,node,state\nnan,1,up\n", "line 2: column seconds: nan must be finite"),
    ):
        path.write_text(text, errors="surrogateescape")
        with pytest.raises(ValueError, match=complaint) as refused:
            read_node_events(path, 3)
        assert str(path) in str(refused.value)
    path.write_text("\ufeffseconds,node,state\n1,0,down\n")  # as a spreadsheet saves it
    assert read_node_events(path, 1) == (NodeEvent(1.0, 0, False),)


def test_the_formats_that_there_are_stand_in_the_help() -> None:
    for command in ("simulate", "compare"):
        told = flyball(command, "--help").output
        assert all(name in told for name in FORMATS)


def test_what_failed_and_what_was_drawn_is_told(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text("seconds,node,state\n200,0,down\n2000,0,up\n")
    done = flyball(
        "simulate", "--trace", trace, "--policy", "price", "--gpus", 16, "--model", "ideal", "--node-events", path,
        "--checkpoint-seconds", 100, "--energy-budget-watts", 900, "--output", tmp_path / "run",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["node_failures"] == 1
    assert result["evictions"] > 0
    assert result["settings"]["checkpoint_seconds"] == 100.0
    assert f"1: {result['evictions']} jobs evicted" in done.output
    assert "the budget is 0.9 kW" in done.output
    path.write_text("seconds,node,state\n200,1,down\n")
    refused = flyball("simulate", "--trace", trace, "--policy", "fifo", "--gpus", 8, "--node-events", path)
    assert refused.exit_code == 2
    assert "column node: '1' is no number of a node, from 0 to 0" in refused.output
    refused = flyball("simulate", "--trace", trace, "--policy", "afs", "--gpus", 8, "--energy-budget-watts", 900)
    assert refused.exit_code == 2
    assert "afs has no price" in refused.output


@pytest.mark.slow
def test_a_comparison_reports_resumes_and_names_what_cannot_be(trace: Path, tmp_path: Path) -> None:
    output = tmp_path / "compare"
    arguments = (
        "compare", "--trace", trace, "--gpus", 8, "--policies", "price,afs,afs+zeus", "--seeds", 2, "--model", "ideal",
        "--sweep", "clock=1410,1110", "--sweep", "price=0,0.001", "--jobs", 1, "--output", output,
    )  # fmt: skip
    done = flyball(*arguments)
    assert done.exit_code == 0, done.output
    document = json.loads((output / "comparison.json").read_text())
    assert len(document["runs"]) == 2 * (2 + 2 + 1)
    assert {run["seed"] for run in document["runs"]} == {0, 1}
    assert {tuple(run["sweep"]) for run in document["runs"]} == {("price",), ("clock",), ()}
    for entry in document["at_equal_energy"]:
        assert {"policy", "against", "energy_joules", "mean_jct_ratio", "p99_jct_ratio", "low", "high"} <= set(entry)
        assert entry["mean_jct_ratio"] is not None or "shares no energy range" in entry["note"]
    page = (output / "report.html").read_text()
    assert "<svg" in page
    assert "http" not in page.replace("http-equiv", "")
    kept = {path: path.stat().st_mtime_ns for path in (output / "runs").glob("*.json")}
    assert len(kept) == len(document["runs"])
    again = flyball(*arguments)
    assert again.exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in (output / "runs").glob("*.json")} == kept
    refused = flyball(*arguments, "--sweep", "eta=0.3")
    assert refused.exit_code == 2
    assert "'eta=0.3' is not KNOB=VALUE" in refused.output
