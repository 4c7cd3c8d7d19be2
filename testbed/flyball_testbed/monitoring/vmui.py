"""The dashboards for vmui, the page that VictoriaMetrics has built in (`-vmui.customDashboardsPath`).

It draws lines alone, prints numbers in full, opens the first row of a dashboard only, and orders dashboards by their
files' names. So numbers of one unit stand in one panel, with what is good beside their names; units are of a size that
people read; a dashboard is one row; and tables are left out, whose columns are lines elsewhere. It knows no variables:
choices are taken whole, constants as they begin, windows as below.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import groupby

from flyball_testbed.monitoring.panel import COLUMNS, Colour, Dashboard, Panel, Query, Row, Shape, Unit

RATE_INTERVAL, SPAN = "5m", "24h"
VMUI_COLUMNS = 12
# Its unit beside each number, and what makes a number of the series' base unit one of that.
UNITS = {
    Unit.WATTS: ("W", ""), Unit.JOULES: ("J", ""), Unit.KILOWATT_HOURS: ("kWh", ""), Unit.SECONDS: ("s", ""),
    Unit.HERTZ: ("MHz", " / 1e6"), Unit.PER_SECOND: ("/s", ""), Unit.KILOGRAMS: ("kg", ""), Unit.BYTES: ("MB", " / 1e6"),
    Unit.CELSIUS: ("°C", ""), Unit.SHARE: ("%", " * 100"),
}  # fmt: skip
LITTLE = 1e-6  # a threshold just above nothing


def vmui_json(made: Dashboard) -> str:
    """The file of one dashboard, with a newline at its end."""
    panels = [panel for row in made.rows for panel in _panels(made, row)]
    # The heading stands above all of them.
    whole = {"title": made.title, "rows": [{"title": made.description, "panels": panels}]}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _panels(made: Dashboard, row: Row) -> list[dict[str, object]]:
    numbers = sorted((panel for panel in row.panels if panel.shape is Shape.NUMBER), key=_kind)
    groups = [list(group) for _, group in groupby(numbers, key=_kind)]
    # As they stand in the list, by the first of each.
    groups.sort(key=lambda group: row.panels.index(group[0]))
    drawn = [_numbers(made, group, VMUI_COLUMNS // len(groups)) for group in groups]
    charts = [panel for panel in row.panels if panel.shape in (Shape.LINES, Shape.STACKED)]
    # One that is repeated elsewhere has the lines of all here: what compares them is read more quickly.
    return drawn + [_lines(made, panel) for panel in sorted(charts, key=lambda panel: bool(panel.repeated))]


def _kind(panel: Panel) -> tuple[str, bool]:
    """Numbers of one unit stand together, and those that should be nothing apart from the others."""
    return panel.unit, _should_be_nothing(panel)


def _should_be_nothing(panel: Panel) -> bool:
    return panel.base is Colour.GOOD and bool(panel.thresholds) and panel.thresholds[0].value < LITTLE


def _numbers(made: Dashboard, group: list[Panel], width: int) -> dict[str, object]:
    """Numbers of one unit, each a line with what is good beside its name."""
    titles = ", ".join(panel.title for panel in group)
    if _should_be_nothing(group[0]):
        titles = f"{titles} (should be 0)" if len(group) == 1 else "Should all be 0"
    return {
        "title": titles,
        "description": " ".join(panel.question for panel in group),
        "expr": [_expression(made, query, panel.unit) for panel in group for query in panel.queries],
        "alias": [panel.title + _good(panel) for panel in group],
        **_shown(group[0].unit, width),
    }


def _good(panel: Panel) -> str:
    """What a number should be, in brackets, where one value alone is good."""
    if _should_be_nothing(panel):
        return " (should be 0)"
    good = [threshold.value for threshold in panel.thresholds if threshold.colour is Colour.GOOD]
    return f" (should be {good[0]:g})" if panel.unit is Unit.COUNT and good else ""


def _lines(made: Dashboard, panel: Panel) -> dict[str, object]:
    # Of several caps in one panel a line must say whose it is.
    suffix = f" {{{{{panel.repeated}}}}}" if panel.repeated else ""
    width = VMUI_COLUMNS if panel.repeated else max(1, panel.width * VMUI_COLUMNS // COLUMNS)
    return {
        "title": panel.title.removesuffix(f" ${panel.repeated}") if panel.repeated else panel.title,
        "description": panel.question,
        "expr": [_expression(made, query, panel.unit) for query in panel.queries],
        "alias": [query.legend + suffix for query in panel.queries],
        **_shown(panel.unit, width),
    }


def _shown(unit: Unit, width: int) -> dict[str, object]:
    return {"unit": UNITS[unit][0] if unit in UNITS else "", "showLegend": True, "width": width}


def _expression(made: Dashboard, query: Query, unit: Unit) -> str:
    bound = made.bound(query.expr, rate_interval=RATE_INTERVAL, span=SPAN)
    scale = UNITS[unit][1] if unit in UNITS else ""
    return f"({bound}){scale}" if scale else bound


def file_names(dashboards: Iterable[Dashboard]) -> dict[str, Dashboard]:
    """The name of each dashboard's file: by these names vmui orders its tabs."""
    return {f"{number}-{made.uid}.json": made for number, made in enumerate(dashboards, 1)}
