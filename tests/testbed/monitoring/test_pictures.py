"""The pictures of dashboards: what they write of numbers, and that every panel is drawn, whatever the answers are."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from flyball_testbed.monitoring.dashboards import DASHBOARDS
from flyball_testbed.monitoring.panel import (
    COLUMNS,
    Colour,
    Dashboard,
    Panel,
    Query,
    Row,
    Shape,
    Threshold,
    Unit,
    lines,
)
from flyball_testbed.monitoring.pictures import PlotRange, colour_of, draw, legend, written
from flyball_testbed.monitoring.prometheus import Series, SeriesValue
from matplotlib.image import imread

LABELS = {"namespace": "team", "job_name": "gpt2", "node": "n1", "state": "Running", "cap": "row-1", "kind": "x"}
POWER, JOBS, SAVINGS, _ = DASHBOARDS


@dataclass
class Answers:
    """In place of a Prometheus: the same series for every query, and a record of what was asked."""

    values: tuple[float, ...] = (1.0, 2.0, 3.0)
    asked: list[str] = field(default_factory=list)

    def query(self, expr: str, at: float | None = None) -> list[SeriesValue]:
        self.asked.append(expr)
        return [SeriesValue(LABELS | {"cap": f"row-{number}"}, value) for number, value in enumerate(self.values)]

    def query_range(self, expr: str, start: float, end: float, step_seconds: float) -> list[Series]:
        self.asked.append(expr)
        times = [start + step_seconds * number for number in range(100)]
        return [Series(LABELS, times, [value] * len(times)) for value in self.values]


def view(answers: Any) -> PlotRange:
    return PlotRange(answers, 1_000_000.0, 1_000_300.0, "15s")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "values"),
    [*((made, (1.0, 2.0)) for made in DASHBOARDS), (POWER, ()), (JOBS, (math.nan,))],
)
def test_every_query_is_asked_and_drawn(made: Dashboard, values: tuple[float, ...], tmp_path: Path) -> None:
    answers = Answers(values)
    draw(made, view(answers), tmp_path / "new" / "picture.png")
    height, width = imread(tmp_path / "new" / "picture.png").shape[:2]
    assert (width, height > 400) == (1500, True)
    assert not [expr for expr in answers.asked if "$" in expr]
    for panel in made.panels():
        if values or not panel.repeated:
            for query in panel.queries:
                chosen = {panel.repeated: "row-0"} if panel.repeated else {}
                assert made.bound(query.expr, rate_interval="15s", span="300s", chosen=chosen) in answers.asked


@pytest.mark.slow
def test_a_picture_of_other_answers_is_another(tmp_path: Path) -> None:
    for name, values in (("low.png", (1.0,)), ("high.png", (2.0,))):
        draw(SAVINGS, view(Answers(values)), tmp_path / name)
    assert (tmp_path / "low.png").read_bytes() != (tmp_path / "high.png").read_bytes()


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (math.nan, Unit.HERTZ, "no data"),
        (0.0, Unit.WATTS, "0 W"),
        (2240.0, Unit.WATTS, "2.24 kW"),
        (0.189, Unit.SHARE, "18.9 %"),
        (4.0, Unit.COUNT, "4"),
        (0.0142, Unit.MONEY, "0.0142"),
        (0.0708, Unit.KILOWATT_HOURS, "0.0708 kWh"),
        (0.32, Unit.PER_SECOND, "0.32 /s"),
        (61.4, Unit.CELSIUS, "61 °C"),
        (0.96848, Unit.SECONDS, "968.48 ms"),
        (1.41e9, Unit.HERTZ, "1.41 GHz"),
    ],
)
def test_numbers_are_written_as_people_read_them(value: float, unit: Unit, text: str) -> None:
    assert re.sub(r"\s", " ", written(value, unit)) == text


def test_a_legend_has_its_labels() -> None:
    assert legend("{{namespace}}/{{job_name}} {{gone}}", LABELS) == "team/gpt2 {{gone}}"


def test_a_number_is_as_bad_as_its_highest_threshold() -> None:
    steps = (Threshold(90, Colour.LOOK), Threshold(150, Colour.ACT))
    panel = Panel("Age", "How old?", (Query("x", "x"),), Unit.SECONDS, Shape.NUMBER, steps, Colour.GOOD)
    found = [colour_of(panel, value) for value in (1, 90, 149, 150, 1e9, math.nan)]
    assert found == [Colour.GOOD, Colour.LOOK, Colour.LOOK, Colour.ACT, Colour.ACT, None]
    neither = Panel("Draw", "How much?", (Query("x", "x"),), Unit.WATTS, Shape.NUMBER, steps)
    assert colour_of(neither, 1e9) is None


def test_lines_are_full_and_a_repeated_panel_has_its_own() -> None:
    def panel(width: int, repeated: str = "") -> Panel:
        return Panel(f"{width}", "What?", (Query("x", "x"),), Unit.COUNT, width=width, repeated=repeated)

    row = Row("row", (panel(12), panel(12), panel(8, "cap"), panel(12), panel(8), panel(8)))
    assert [[one.width for one in line] for line in lines(row.panels)] == [[12, 12], [8], [12, 8], [8]]
    assert all(sum(one.width for one in line) <= COLUMNS for line in lines(row.panels))
    assert list(lines(())) == []
