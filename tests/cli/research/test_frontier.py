"""`flyball frontier` and `flyball schedule-plot` as a user meets them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from flyball_frontiers.pipeline import PipelineProfile, Schedule, graph_to_json, pipeline_graph

from tests.support.command_line import flyball

PROFILE = Path(__file__).parents[3] / "examples" / "profiles" / "gpt3-a100-unbalanced.csv"
PNG = b"\x89PNG"


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
    for point in points:
        for stage in map(str, range(4)):
            assert sum(len(block) * times for block, times in point["clocks"][stage]["forward"]) == 6
    run = [entry[2] for entry in document["schedule"][0] if entry[0] == "forward"]
    assert [clock for block, times in points[0]["clocks"]["0"]["forward"] for clock in block * times] == run
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
    said = result.output.partition("no plan takes 0.1 s; the fastest takes ")[2].split()[0]
    again = ("--points", 5, "--at", said, "--output", tmp_path / "again.json")
    result = flyball("frontier", "--profile", PROFILE, "--microbatches", 4, *again)
    assert result.exit_code == 0, "what was told to be the fastest can be asked for"
    assert f"5 points from {said} s to " in result.output


def test_replicas_multiply_the_energy(tmp_path: Path) -> None:
    one = planned(tmp_path, "--microbatches", 4, "--points", 3)
    many = planned(tmp_path, "--microbatches", 4, "--points", 3, "--data-parallel", 2, "--tensor-parallel", 8)
    assert many["gpus"] == 64
    assert many["schedule"] == one["schedule"]
    assert many["points"][0]["energy"] == pytest.approx(16 * one["points"][0]["energy"])
    assert many["flat_out"]["energy"] == pytest.approx(16 * one["flat_out"]["energy"])


@pytest.mark.slow
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


GOOD = "0,forward,1410,1,9\n0,backward,1410,2,9\n"


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        (GOOD + "\n\n\n0,forward,1410,x,9\n", (), r"stages.csv: row 3 \(line 7: 0,forward,1410,x,9\): time must be"),
        (
            GOOD + "\n0,forwrad,1410,1,9\n",
            (),
            r"stages.csv: row 3 \(line 5\): stage 0 has rows of 'forwrad', which no schedule runs: wanted forward\?",
        ),
        ("0,forward,1410,1,9\n", (), "stages.csv: stage 0 has no backward rows, only forward"),
        (GOOD, ("--activation-slots", "4"), "--activation-slots is for EnvPipe: --planner envpipe-balanced"),
        (
            GOOD,
            ("--activation-slots", "a,b", "--planner", "envpipe-greedy"),
            "--activation-slots a,b: wanted a whole number for each of the 1 stages, as 8,8,6,4",
        ),
        (GOOD, ("--at", "nan"), "--at nan: wanted an iteration time in seconds, above 0"),
        (GOOD, ("--at", "-1"), "--at -1.0: wanted an iteration time in seconds, above 0"),
    ],
)
def test_more_bad_input_is_said_in_one_line(
    tmp_path: Path, text: str, arguments: tuple[str, ...], message: str
) -> None:
    profile = tmp_path / "stages.csv"
    profile.write_text("stage,instruction,frequency,time,energy\n" + text)
    result = flyball("frontier", "--profile", profile, "--microbatches", 2, *arguments)
    assert result.exit_code == 2
    assert len(result.output.strip().splitlines()) == 1
    assert re.search(message, result.output)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"dependencies": None}, '"dependencies" is None: wanted a list'),
        ({"dependencies": 7}, '"dependencies" is 7: wanted a list'),
        ({"operations": [{"name": "a", "stage": 0, "points": 5}]}, r"operations\[0\] \(a\): points 5 must be a list"),
        ({"operations": [{"name": "a", "stage": 0, "points": [5]}]}, r"operations\[0\] \(a\): points \[5\] must be"),
        (
            {"operations": [{"name": "a", "stage": 0, "points": [{"time": 0}]}]},
            r"operations\[0\] \(a\), points: row 1 ",
        ),
    ],
)
def test_a_wrong_graph_is_said_in_one_line(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    written = tmp_path / "graph.json"
    written.write_text(json.dumps({"operations": [{"name": "forward", "stage": 0}], "dependencies": []} | changed))
    result = flyball("frontier", "--profile", PROFILE, "--schedule", written)
    assert result.exit_code == 2
    assert len(result.output.strip().splitlines()) == 1
    assert re.search(f"graph.json: {message}", result.output)


@pytest.mark.parametrize("option", ["--output", "--plot"])
def test_a_file_that_cannot_be_written_is_refused_before_the_solve(
    tmp_path: Path, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "flyball_frontiers.pipeline.document.perseus_document", None
    )  # a solve would end in a traceback
    (tmp_path / "file").write_text("")
    for path, message in (
        (tmp_path / "missing" / "f.json", f"{option} .*there is no folder .*missing; make it first"),
        (tmp_path, f"{option} .*that is a folder"),
        (tmp_path / "file" / "f.json", f"{option} .*there is no folder .*file"),
    ):
        result = flyball("frontier", "--profile", PROFILE, "--microbatches", 2, option, path)
        assert (result.exit_code, len(result.output.strip().splitlines())) == (2, 1)
        assert re.search(message, result.output)


def test_a_profile_from_a_spreadsheet_is_read(tmp_path: Path) -> None:
    """Byte order mark, carriage returns: the same frontier."""
    saved = tmp_path / "stages.csv"
    saved.write_bytes(b"\xef\xbb\xbf" + PROFILE.read_bytes().replace(b"\n", b"\r\n"))
    plain, spreadsheet = (
        flyball("frontier", "--profile", path, "--microbatches", 2, "--points", 2) for path in (PROFILE, saved)
    )
    assert spreadsheet.exit_code == 0, spreadsheet.output
    assert spreadsheet.output == plain.output
    saved.write_bytes(b"\xff\xfe\x00")
    refused = flyball("frontier", "--profile", saved, "--microbatches", 2)
    assert refused.exit_code == 2
    assert "stages.csv: byte 0 is no UTF-8" in refused.output


@pytest.mark.parametrize(("slower", "said"), [(0.0025, "0.25% more time"), (-0.0025, "0.25% less time")])
def test_the_summary_says_less_where_it_is_less(slower: float, said: str) -> None:
    from flyball_cli.research.frontier import summary

    at = {"time": 1.0, "realised_time": 1.0 + slower, "realised_energy": 90.0}
    flat_out = {"time": 1.0, "energy": 100.0}
    text = summary({"at": at, "flat_out": flat_out, "points": [at], "t_min": 1.0, "t_star": 2.0})
    assert "10.00% less energy" in text
    assert said in text


@pytest.mark.slow
def test_the_pictures_of_the_documents_are_drawn() -> None:
    from flyball_studies.pipeline.pictures import PICTURES

    assert set(PICTURES) == {"perseus-frontier", "perseus-schedule", "envpipe-schedule", "stragglers"}
    assert PICTURES["perseus-schedule"]().startswith(PNG)
    assert PICTURES["envpipe-schedule"]().startswith(PNG)


def test_a_file_that_is_no_frontier_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    for text, message in (
        ("{}", "'timeline' is missing"),
        ('{"points": []}', "it has points, and no schedule that could be drawn"),
        ("stage,instruction", "no JSON: line 1, column 1: Expecting value"),
    ):
        path.write_text(text)
        result = flyball("schedule-plot", path, "--output", tmp_path / "x.png")
        assert result.exit_code == 2
        assert f"other.json: not what `flyball frontier` writes: {message}" in result.output


def test_milliwatts_in_the_place_of_watts_are_refused(tmp_path: Path) -> None:
    result = flyball(
        "frontier", "--profile", PROFILE, "--microbatches", 2, "--blocking-power", 8000, "--output", tmp_path / "f.json"
    )
    assert (result.exit_code, result.output) == (
        2,
        "flyball frontier: --blocking-power 8000: no GPU draws more than 1400 W; wanted the watts of one that waits "
        "(milliwatts would be 8 W)\n",
    )
    assert not list(tmp_path.iterdir())
    planned(tmp_path, "--microbatches", 2, "--points", 2, "--blocking-power", 1400)


def test_an_empty_plan_and_a_missing_folder_are_refused(tmp_path: Path) -> None:
    planned(tmp_path, "--microbatches", 2, "--points", 2)
    document = json.loads((tmp_path / "frontier.json").read_text())
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"timeline": [[]], "schedule": [[]]}, "its plan has no operations"),
        ({"schedule": [[]] * 4}, "stage 0 has 0 operations in 'schedule', 4 in 'timeline'"),
        ({"schedule": [[]]}, "1 stages in 'schedule', 4 in 'timeline'"),
        ({"timeline": 3}, "'timeline' must be a list with a list for each stage"),
    ]
    for changed, message in wrong:
        path = tmp_path / "changed.json"
        path.write_text(json.dumps(document | changed))
        result = flyball("schedule-plot", path, "--output", tmp_path / "x.png")
        assert (result.exit_code, len(result.output.strip().splitlines())) == (2, 1)
        assert f"changed.json: not what `flyball frontier` writes: {message}" in result.output
    result = flyball("schedule-plot", tmp_path / "frontier.json", "--output", tmp_path / "missing" / "x.png")
    assert result.exit_code == 2
    assert "there is no folder" in result.output


def test_a_pipeline_that_is_too_large_is_refused_with_what_would_fit() -> None:
    for planner in ("perseus", "envpipe-greedy"):
        result = flyball("frontier", "--profile", PROFILE, "--microbatches", 10**7, "--planner", planner)
        assert (result.exit_code, len(result.output.strip().splitlines())) == (2, 1)
        assert "4 stages x 10000000 microbatches are too many to plan" in result.output
        assert "microbatches fit" in result.output


def test_a_long_solve_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flyball_cli.research.frontier.ANNOUNCED_FROM_SECONDS", 0.0)
    result = flyball("frontier", "--profile", PROFILE, "--microbatches", 2, "--points", 2)
    assert "16 operations, 16 planned one by one: about 0.1 s of one core" in result.stderr
    assert json.loads(result.stdout)["planner"] == "perseus"


def test_clocks_that_lag_are_planned_for(tmp_path: Path) -> None:
    fast = planned(tmp_path, "--microbatches", 4, "--points", 3)
    assert "with_clock_lag" not in fast
    wanted = 1.1 * fast["t_min"]
    document = planned(tmp_path, "--microbatches", 4, "--points", 3, "--at", wanted, "--clock-lag", 0.015)
    run = document["with_clock_lag"]
    assert run["time"] <= wanted * (1 + 1e-9)
    assert run["energy"] < document["flat_out"]["energy"]
    assert len(run["clock_changes"]) == 4
    result = flyball(
        "frontier", "--profile", PROFILE, "--microbatches", 4, "--planner", "envpipe-greedy", "--clock-lag", 1
    )
    assert result.exit_code == 2
    assert "--clock-lag is for perseus" in result.output


@pytest.mark.parametrize("command", [["frontier", "p.csv"], ["frontier-groups", "p.json"], ["kareus", "pipeline"]])
def test_a_number_of_points_that_nobody_can_mean_is_refused_at_once(command: list[str]) -> None:
    result = flyball(*command, "--points", "100000000")
    assert result.exit_code == 2
    assert "100000000 is too large; wanted at most 10000" in " ".join(result.output.split())
