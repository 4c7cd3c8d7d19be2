"""The dashboards: their files are those of the list of panels, every metric exists, and each panel says what it is for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flyball_testbed.monitoring.dashboards import DASHBOARDS
from flyball_testbed.monitoring.files import CHART_DIRECTORY, files, write_files
from flyball_testbed.monitoring.panel import Choice, Dashboard, Panel, Query, Shape, Unit
from flyball_testbed.monitoring.vmui import vmui_json
from grafana_foundation_sdk.models.dashboard import Dashboard as GrafanaDashboard

from tests.support.chart import Chart
from tests.support.metrics_document import documented

Json = dict[str, Any]
PANELS = [(made, panel) for made in DASHBOARDS for panel in made.panels()]
METRIC = re.compile(r"\bflyball_[a-z_]+")


def under(value: Any, key: str) -> Iterator[Any]:
    """Every value under a key, however deep."""
    for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
        if name == key:
            yield inner
        elif isinstance(inner, dict | list):
            yield from under(inner, key)


def test_the_charts_files_are_those_of_the_list_of_panels() -> None:
    there = {path.relative_to(CHART_DIRECTORY): path.read_text() for path in CHART_DIRECTORY.glob("*/*")}
    assert there == files(), "run `make dashboards`"


def test_writing_takes_away_what_is_no_dashboard_any_more(tmp_path: Path) -> None:
    (tmp_path / "grafana").mkdir()
    (tmp_path / "grafana" / "old.json").write_text("{}")
    written = write_files(tmp_path)
    assert sorted(tmp_path.glob("*/*")) == sorted(written)
    assert len(written) == 2 * len(DASHBOARDS)


@pytest.mark.parametrize(("made", "panel"), PANELS, ids=lambda one: getattr(one, "title", ""))
def test_a_panel_asks_for_metrics_that_there_are(made: Dashboard, panel: Panel) -> None:
    known = documented("The operator") | documented("The agents")
    suffix = re.compile(r"_(bucket|count|sum)$")
    for query in panel.queries:
        asked = {name if name in known else suffix.sub("", name) for name in METRIC.findall(query.expr)}
        assert asked
        assert asked <= set(known)
        # A counter means nothing by its value; what is no counter has no rate; a share of a budget is the exception.
        for name in asked:
            rated = re.search(rf"(rate|increase)\({name}(_bucket|_count)?\b", query.expr) is not None
            if "job_energy_joules_total" not in name and "rounds_total) * 0" not in query.expr:
                assert rated == (known[name].type in ("counter", "histogram")), name
        labels = set(re.findall(r"\{\{(\w+)}}", query.legend))
        assert labels <= {label for name in asked for label in known[name].labels} | {"instance"}


def test_addresses_are_the_dashboards_own_and_titles_tell_panels_apart() -> None:
    assert len({made.uid for made in DASHBOARDS}) == len(DASHBOARDS) == 4
    for made in DASHBOARDS:
        titles = [panel.title for panel in made.panels()]
        assert len(set(titles)) == len(titles)
        choices = {variable.name for variable in made.variables}
        for panel in made.panels():
            assert not panel.repeated or panel.repeated in choices
            for query in panel.queries:
                used = set(re.findall(r"\$(\w+)", query.expr)) - {"__rate_interval", "__range"}
                assert used <= choices, f"{panel.title}: {used - choices}"
        for row in made.rows:
            numbers = [panel.width for panel in row.panels if panel.shape is Shape.NUMBER]
            assert sum(numbers) in (0, 24), f"{made.title}, {row.title}: the numbers do not fill a row"


def test_a_query_is_bound_whole() -> None:
    for made, panel in PANELS:
        for query in panel.queries:
            assert "$" not in made.bound(query.expr, rate_interval="1m", span="1h")
    made = DASHBOARDS[0]
    assert made.bound('x{cap=~"$cap"}', rate_interval="1m", span="1h", chosen={"cap": "row-1"}) == 'x{cap=~"row-1"}'
    with pytest.raises(KeyError, match="unheard_of"):
        made.bound("$unheard_of", rate_interval="1m", span="1h")


def test_a_panel_without_a_question_is_refused() -> None:
    with pytest.raises(ValueError, match="a question"):
        Panel("Caps", "caps", (Query("x", "x"),), Unit.WATTS)


@pytest.mark.parametrize("made", DASHBOARDS, ids=lambda made: made.uid)
def test_grafana_reads_back_what_was_written(made: Dashboard) -> None:
    raw: Json = json.loads((CHART_DIRECTORY / "grafana" / f"{made.uid}.json").read_text())
    again = GrafanaDashboard.from_json(raw)
    assert (again.uid, again.title) == (made.uid, made.title)
    drawn = {panel["title"]: panel for panel in raw["panels"] if panel["type"] != "row"}
    assert list(drawn) == [panel.title for panel in made.panels()]
    # One data source for all, by the first variable: a dashboard that names its own shows nothing elsewhere.
    assert raw["templating"]["list"][0]["type"] == "datasource"
    sources = list(under(raw, "datasource"))
    assert len(sources) > len(drawn)
    assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)
    assert len({panel["id"] for panel in raw["panels"]}) == len(raw["panels"])
    for panel in made.panels():
        found = drawn[panel.title]
        assert found["type"] in ("stat", "timeseries", "table")  # what Grafana deprecated is not among them
        assert found["description"] == panel.question
        assert [(target["expr"], target["legendFormat"]) for target in found["targets"]] == [
            (query.expr, query.legend) for query in panel.queries
        ]
        assert found["gridPos"]["w"] == panel.width
        steps = found["fieldConfig"]["defaults"]["thresholds"]["steps"]
        assert [step["value"] for step in steps] == [None, *(step.value for step in panel.thresholds)]
    used = [tuple(panel["gridPos"][side] for side in "xywh") for panel in raw["panels"]]
    cells = [(x + dx, y + dy) for x, y, w, h in used for dx in range(w) for dy in range(h)]
    assert len(set(cells)) == len(cells), "panels lie over each other"
    assert max(x for x, _ in cells) < 24
    for variable in made.variables:
        (shown,) = (one for one in raw["templating"]["list"] if one["name"] == variable.name)
        assert shown["type"] == ("query" if isinstance(variable, Choice) else "textbox")


@pytest.mark.parametrize(("number", "made"), list(enumerate(DASHBOARDS, 1)), ids=lambda one: getattr(one, "uid", ""))
def test_vmui_gets_the_same_queries_without_variables(number: int, made: Dashboard) -> None:
    raw: Json = json.loads((CHART_DIRECTORY / "vmui" / f"{number}-{made.uid}.json").read_text())
    (row,) = raw["rows"]  # of several it would open the first only
    panels = row["panels"]
    asked = [expr for panel in panels for expr in panel["expr"]]
    drawn = [panel for panel in made.panels() if panel.shape is not Shape.TABLE]
    assert len(asked) == sum(len(panel.queries) for panel in drawn)
    for panel in panels:
        assert len(panel["expr"]) == len(panel["alias"]) == len(set(panel["alias"]))
        assert not [one for one in (*panel["expr"], panel["title"]) if "$" in one]
        assert 1 <= panel["width"] <= 12
        # Lines over one another must be of one unit, and of a size that is read at a glance.
        assert panel["unit"] in ("", "W", "J", "kWh", "s", "MHz", "/s", "kg", "MB", "°C", "%")
        assert all(expr.endswith(" * 100") for expr in panel["expr"]) == (panel["unit"] == "%")
        assert all(expr.endswith(" / 1e6") for expr in panel["expr"]) == (panel["unit"] in ("MHz", "MB"))
    # What a table shows alone would be nowhere.
    charted = {name for panel in drawn for query in panel.queries for name in METRIC.findall(query.expr)}
    tables = {
        name for panel in made.panels() for query in panel.queries for name in METRIC.findall(query.expr)
    } - charted
    # The states are counted in another panel, and who waits is in the order of the times at which they can expect to start.
    assert tables <= {"flyball_job_state", "flyball_job_queue_position"}


def test_vmui_says_beside_a_number_what_is_good() -> None:
    (health,) = (made for made in DASHBOARDS if made.uid == "flyball-health")
    aliases = {
        alias for row in json.loads(vmui_json(health))["rows"] for panel in row["panels"] for alias in panel["alias"]
    }
    assert {"Operators that lead (should be 1)", "Journals not writable (should be 0)", "Nodes ready"} <= aliases


def test_the_chart_ships_each_in_a_config_map(chart: Chart) -> None:
    assert not [one for one in chart.render() if one["kind"] == "ConfigMap" and "dashboard" in str(one)]
    values = {
        "dashboards": {
            "grafana": True, "vmui": True, "labels": {"grafana_dashboard": "1"}, "annotations": {"folder": "Power"},
        }
    }  # fmt: skip
    maps = {one["metadata"]["name"]: one for one in chart.render(values=values) if one["kind"] == "ConfigMap"}
    for path, text in files().items():
        shipped = maps[f"{path.stem.lstrip('1234-')}-{path.parent}"]
        assert shipped["data"] == {path.name: text}
        labelled = shipped["metadata"]["labels"].get("grafana_dashboard") == "1"
        assert labelled == (str(path.parent) == "grafana"), "the sidecar would give Grafana vmui's file"
        assert ("annotations" in shipped["metadata"]) == labelled
