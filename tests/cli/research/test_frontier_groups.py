"""`flyball frontier-groups` as a user meets it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from tests.support.command_line import flyball

EXAMPLES = Path(__file__).parents[3] / "examples" / "profiles"
LAYOUT = EXAMPLES / "two-groups.json"


def groups(*arguments: object) -> Result:
    return flyball("frontier-groups", *arguments)


def planned(tmp_path: Path, *arguments: object) -> tuple[dict[str, Any], str]:
    output = tmp_path / "groups-plan.json"
    result = groups(LAYOUT, "--points", 12, "--output", output, *arguments)
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(output.read_text())
    return document, result.output


def test_each_point_has_the_clocks_of_every_group(tmp_path: Path) -> None:
    document, said = planned(tmp_path)
    layout = {group["name"]: group for group in json.loads(LAYOUT.read_text())["groups"]}
    assert set(document["groups"]) == set(layout)
    assert 8 <= len(document["points"]) <= 12 + len(layout)  # and where a group is at its cheapest
    for point in document["points"]:
        assert point["realised_time"] <= point["time"] * (1 + 1e-9)
        for name, group in layout.items():
            clocks = point["groups"][name]["clocks"]["0"]["forward"]
            assert sum(len(block) * times for block, times in clocks) == group["microbatches"]
    assert document["at"]["iteration"] == pytest.approx(document["t_min"])
    alone, together = document["each_at_its_fastest"]["energy"], document["points"][0]["realised_energy"]
    assert document["flat_out"]["energy"] > alone > 1.05 * together
    assert "less than at the highest clocks" in said


def test_a_straggler_is_planned_around(tmp_path: Path) -> None:
    plain, _ = planned(tmp_path)
    slowest = max(plain["groups"], key=lambda name: plain["groups"][name]["t_min"])
    document, said = planned(tmp_path, "--straggler", f"{slowest}=1.2")
    assert document["at"]["iteration"] == pytest.approx(1.2 * plain["t_min"])
    assert document["points"] == plain["points"]
    for name, point in document["at"]["groups"].items():
        before = plain["at"]["groups"][name]["realised_energy"]
        assert (point["realised_energy"] < before) == (name != slowest)
    assert f"{slowest}: planned for" in said
    assert "1.2 times as long as measured" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--straggler", "a40"), "--straggler a40: wanted GROUP=DEGREE, as a40=1.2"),
        (("--straggler", "a40=0.5"), "--straggler a40=0.5: wanted GROUP=DEGREE, a name and a number from 1"),
        (("--straggler", "h100=2"), "--straggler h100: there is no such group, only a100, a40"),
        (("--at", "nan"), "--at nan: wanted an iteration time in seconds, above 0"),
        (("--at", "0.1"), "no plan takes 0.1 s; the fastest takes"),
        (("--at", "-1"), "--at -1.0: wanted an iteration time in seconds, above 0"),
        (("--output", "/missing/x.json"), "there is no folder /missing"),
    ],
)
def test_bad_options_are_said_in_one_line(arguments: tuple[str, ...], message: str) -> None:
    result = groups(LAYOUT, "--points", 2, *arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert len(result.output.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "groups.json: no JSON: line 1, column 2: Expecting property name"),
        ('{"groups": 7}', 'groups.json: wanted an object with "groups"'),
        (
            '{"groups": [{"name": "a", "profile": "b.csv", "microbatches": 2}]}',
            "groups[0] (a): profile b.csv: No such file or directory",
        ),
        (
            '{"groups": [{"name": "a", "profile": "two-groups.json", "microbatches": 2}]}',
            "the header has no column stage",
        ),
    ],
)
def test_a_bad_layout_is_said_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    layout = tmp_path / "groups.json"
    layout.write_text(text)
    shutil.copy(LAYOUT, tmp_path)
    result = groups(layout)
    assert result.exit_code == 2
    assert message in result.output
    assert len(result.output.strip().splitlines()) == 1
