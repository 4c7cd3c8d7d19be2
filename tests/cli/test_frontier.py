"""`flyball frontier` and `flyball schedule-plot` as a user meets them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from flyball_cli.main import build_app
from flyball_frontiers.pipeline import PipelineProfile, Schedule, graph_to_json, pipeline_graph
from typer.testing import CliRunner

PROFILE = Path(__file__).parents[2] / "examples" / "profiles" / "gpt3-a100-unbalanced.csv"
PNG = b"\x89PNG"


def flyball(*arguments: object) -> Result:
    return CliRunner().invoke(build_app(), [str(each) for each in arguments])


def planned(tmp_path: Path, *arguments: object) -> dict[str, Any]:
    output = tmp_path / "frontier.json"
    result = flyball("frontier", "--profile", PROFILE, "--blocking-power", 83.64, "--output", output, *arguments)
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(output.read_text())
    return document


def test_the_documented_command(tmp_path: Path) -> None:
    plot = tmp_path / "frontier.png"
    document = planned(tmp_path, "--schedule", "1f1b", "--microbatches", 6, "--points", 30, "--plot", plot)
    assert plot.read_bytes().startswith(PNG)
    points = document["points"]
    assert len(points) == 30
    assert {"time", "energy", "realised_time", "realised_energy"} <= set(points[0])
    assert document["t_min"] == points[0]["time"] == document["at"]["time"]
    assert document["t_star"] == points[-1]["time"]
    assert all(point["realised_time"] <= point["time"] for point in points)
    assert [len(stage) for stage in document["schedule"]] == [12] * 4
    assert document["schedule"][3][:2] == [["forward", 0, 1410], ["backward", 0, 1410]]
    assert document["flat_out"]["time"] == pytest.approx(document["t_min"])
    assert document["flat_out"]["energy"] > points[0]["realised_energy"]


def test_at_plans_for_that_time(tmp_path: Path) -> None:
    fast = planned(tmp_path, "--microbatches", 4, "--points", 5)
    wanted = 1.07 * fast["t_min"]
    slower = planned(tmp_path, "--microbatches", 4, "--points", 5, "--at", wanted)
    assert slower["points"] == fast["points"]
    assert slower["at"]["time"] == pytest.approx(wanted)
    assert slower["at"]["realised_time"] <= wanted
    assert slower["at"]["realised_energy"] < fast["at"]["realised_energy"]
    assert max(finish for row in slower["timeline"] for _, finish in row) == slower["at"]["realised_time"]
    result = flyball("frontier", "--profile", PROFILE, "--microbatches", 4, "--at", 0.1)
    assert result.exit_code == 2
    assert "no plan takes 0.1 s; the fastest takes" in result.output


def test_replicas_multiply_the_energy(tmp_path: Path) -> None:
    one = planned(tmp_path, "--microbatches", 4, "--points", 3)
    many = planned(tmp_path, "--microbatches", 4, "--points", 3, "--data-parallel", 2, "--tensor-parallel", 8)
    assert many["gpus"] == 64
    assert many["schedule"] == one["schedule"]
    assert many["points"][0]["energy"] == pytest.approx(16 * one["points"][0]["energy"])
    assert many["flat_out"]["energy"] == pytest.approx(16 * one["flat_out"]["energy"])


@pytest.mark.parametrize(
    "schedule", [("gpipe",), ("early-recompute-1f1b",), ("interleaved-1f1b", "--chunks-per-gpu", "2")]
)
def test_other_schedules_and_their_picture(tmp_path: Path, schedule: tuple[str, ...]) -> None:
    document = planned(tmp_path, "--microbatches", 4, "--points", 3, "--schedule", *schedule)
    gpus = 2 if len(schedule) > 1 else 4
    assert len(document["schedule"]) == gpus
    assert all(len(entry) == (4 if gpus == 2 else 3) for row in document["schedule"] for entry in row)
    picture = tmp_path / "schedule.png"
    result = flyball("schedule-plot", tmp_path / "frontier.json", "--output", picture)
    assert result.exit_code == 0, result.output
    assert picture.read_bytes().startswith(PNG)


def test_a_written_graph_gives_the_same_frontier(tmp_path: Path) -> None:
    graph = pipeline_graph(PipelineProfile.from_csv(PROFILE.read_text()), Schedule.ONE_F_ONE_B, 3)
    written = tmp_path / "graph.json"
    written.write_text(json.dumps(graph_to_json(graph)))
    named = planned(tmp_path, "--microbatches", 3, "--points", 4)
    assert planned(tmp_path, "--schedule", written, "--points", 4) == named


def test_the_example_graph_is_planned(tmp_path: Path) -> None:
    document = planned(tmp_path, "--schedule", PROFILE.with_name("two-branches.json"), "--points", 8)
    assert [[entry[0] for entry in row] for row in document["schedule"]] == [["forward", "backward"]] * 3
    assert document["points"][0]["realised_energy"] < document["flat_out"]["energy"]
    assert flyball("schedule-plot", tmp_path / "frontier.json", "--output", tmp_path / "graph.png").exit_code == 0


def test_envpipe_beside_perseus(tmp_path: Path) -> None:
    perseus = planned(tmp_path, "--microbatches", 6, "--points", 3)
    for extra in ((), ("--activation-slots", "6,5,4,3")):
        balanced = planned(tmp_path, "--microbatches", 6, "--planner", "envpipe-balanced", *extra)
        assert balanced["t_min"] == pytest.approx(perseus["t_min"])
        assert len(balanced["points"]) == 1
        if not extra:
            assert perseus["at"]["realised_energy"] < balanced["at"]["realised_energy"]
            assert balanced["at"]["realised_energy"] < balanced["flat_out"]["energy"]


def test_without_an_output_the_json_goes_to_standard_output() -> None:
    result = flyball("frontier", "--profile", PROFILE, "--microbatches", 2, "--points", 2)
    assert json.loads(result.output)["planner"] == "perseus"


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("0,forward,1410,1,9\n0,backward,1410,-2,9\n", (), r"row 2 \(line 3: 0,backward,1410,-2,9\): time must be"),
        ("0,forward,1410,1,9\n", (), "stage 0 has no backward rows"),
        ("0,forward,1410,1,9\n0,backward,1410,2,9\n", ("--schedule", "2f2b"), "'2f2b' is none of 1f1b, gpipe"),
        ("0,forward,1410,1,9\n0,backward,1410,2,9\n", ("--schedule", "none.json"), "none.json"),
        (
            "0,forward,1410,1,9\n0,backward,1410,2,9\n",
            ("--schedule", "gpipe", "--planner", "envpipe-greedy"),
            "EnvPipe plans 1f1b, not gpipe",
        ),
        ("0,forward,1410,1,9\n0,backward,1410,2,9\n", ("--no-microbatches",), "--microbatches is needed"),
        (
            "0,forward,1410,1,9\n0,backward,1410,2,9\n",
            ("--at", "3", "--planner", "envpipe-greedy"),
            "--at is for perseus",
        ),
    ],
)
def test_bad_input_is_said_in_one_line(tmp_path: Path, text: str, arguments: tuple[str, ...], message: str) -> None:
    profile = tmp_path / "stages.csv"
    profile.write_text("stage,instruction,frequency,time,energy\n" + text)
    if "--no-microbatches" not in arguments:
        arguments = ("--microbatches", "2", *arguments)
    result = flyball("frontier", "--profile", profile, *(each for each in arguments if each != "--no-microbatches"))
    assert result.exit_code == 2
    assert len(result.output.strip().splitlines()) == 1
    assert re.search(message, result.output)


def test_the_pictures_of_the_documents_are_drawn() -> None:
    from flyball_studies.pipeline.pictures import PICTURES

    assert set(PICTURES) == {"perseus-frontier", "perseus-schedule", "envpipe-schedule", "stragglers"}
    assert PICTURES["perseus-schedule"]().startswith(PNG)
    assert PICTURES["envpipe-schedule"]().startswith(PNG)


def test_a_file_that_is_no_frontier_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text('{"points": []}')
    result = flyball("schedule-plot", path, "--output", tmp_path / "x.png")
    assert result.exit_code == 2
    assert "other.json: not what `flyball frontier` writes" in result.output
