"""The dashboards as Grafana's JSON, by Grafana's own SDK, whose types are those of Grafana 11.6's schema.

Every panel asks the data source that the dashboard's first variable names, so that none depends on what it is called.
"""

from __future__ import annotations

import itertools
import json
import string
from collections.abc import Iterable
from typing import Any

from grafana_foundation_sdk.builders import common as shared
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from flyball_testbed.monitoring.panel import COLUMNS, Choice, Constant, Dashboard, Panel, Shape, Unit, lines

SOURCE = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")
NUMBER_HEIGHT, PANEL_HEIGHT, TABLE_HEIGHT = 4, 9, 10
MOST_REPEATED_IN_A_ROW = 3

AnyPanel = stat.Panel | table.Panel | timeseries.Panel


def grafana_json(made: Dashboard) -> str:
    """The file of one dashboard, with a newline at its end."""
    builder = (
        builders.Dashboard(made.title)
        .uid(made.uid)
        .description(made.description)
        .tags(["flyball"])
        .readonly()
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .refresh("30s")
        .time("now-6h", "now")
        .timezone("browser")
        .with_variable(builders.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    )
    for variable in made.variables:
        builder = builder.with_variable(_variable(variable))
    numbers, top = itertools.count(1), 0
    for row in made.rows:
        heading = dashboard.GridPos(h=1, w=COLUMNS, x=0, y=top)
        builder = builder.with_row(builders.Row(row.title).id(next(numbers)).grid_pos(heading))
        top += 1
        for line in lines(row.panels):
            height, left = max(_height(panel) for panel in line), 0
            for panel in line:
                place = dashboard.GridPos(h=height, w=panel.width, x=left, y=top)
                builder = builder.with_panel(_panel(panel).id(next(numbers)).grid_pos(place))
                left += panel.width
            top += height
    return json.dumps(json.loads(JSONEncoder(sort_keys=True).encode(builder.build())), indent=1, sort_keys=True) + "\n"


def _height(panel: Panel) -> int:
    return {Shape.NUMBER: NUMBER_HEIGHT, Shape.TABLE: TABLE_HEIGHT}.get(panel.shape, PANEL_HEIGHT)


def _variable(variable: Choice | Constant) -> builders.QueryVariable | builders.TextBoxVariable:
    if isinstance(variable, Constant):
        return builders.TextBoxVariable(variable.name).label(variable.label).default_value(f"{variable.value:g}")
    return (
        builders.QueryVariable(variable.name)
        .label(variable.label)
        .datasource(SOURCE)
        .query(f"label_values({variable.metric}, {variable.name})")
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(dashboard.VariableOption(selected=True, text="All", value="$__all"))
    )


def _panel(panel: Panel) -> AnyPanel:
    builder = {Shape.NUMBER: _number, Shape.TABLE: _table}.get(panel.shape, _lines)(panel)
    builder = builder.title(panel.title).description(panel.question).datasource(SOURCE)
    builder = builder.thresholds(_thresholds(panel))
    if panel.unit is not Unit.COUNT:
        builder = builder.unit(panel.unit.value)
    if panel.repeated:
        builder = builder.repeat(panel.repeated).repeat_direction("h").max_per_row(MOST_REPEATED_IN_A_ROW)
    return builder


def _number(panel: Panel) -> AnyPanel:
    coloured = panel.base is not None
    return _asking(
        stat.Panel()
        .color_mode(common.BigValueColorMode.BACKGROUND if coloured else common.BigValueColorMode.NONE)
        .graph_mode(common.BigValueGraphMode.NONE)
        .reduce_options(shared.ReduceDataOptions().calcs(["lastNotNull"])),
        panel,
        instant=True,
    )


def _lines(panel: Panel) -> AnyPanel:
    builder = (
        timeseries.Panel()
        .axis_soft_min(0)
        .line_width(2)
        .legend(shared.VizLegendOptions().display_mode(common.LegendDisplayMode.LIST).placement(common.LegendPlacement.BOTTOM).show_legend(True))
        .tooltip(shared.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING))
    )  # fmt: skip
    if panel.shape is Shape.STACKED:
        builder = builder.fill_opacity(40).line_width(1)
        builder = builder.stacking(shared.StackingConfig().mode(common.StackingMode.NORMAL))
    if panel.thresholds:
        builder = builder.thresholds_style(
            shared.GraphThresholdsStyleConfig().mode(common.GraphThresholdsStyleMode.DASHED)
        )
    if panel.at_most is not None:
        builder = builder.max(panel.at_most)
    for query in panel.queries:
        drawn = []
        if query.colour is not None:
            colour = {"mode": "fixed", "fixedColor": query.colour.value}
            drawn.append(dashboard.DynamicConfigValue(id_val="color", value=colour))
        if query.upper:
            dashes = {"fill": "dash", "dash": [10, 6]}
            drawn.append(dashboard.DynamicConfigValue(id_val="custom.lineStyle", value=dashes))
        if drawn:
            builder = builder.override_by_name(query.legend, drawn)
    return _asking(builder, panel, instant=False)


def _table(panel: Panel) -> AnyPanel:
    """One row for the labels that all its queries have in common, one column for each query's value."""
    titles = {f"Value #{letter}": query.legend for letter, query in zip(_letters(), panel.queries, strict=False)}
    label_columns = [column for column, query in zip(titles, panel.queries, strict=True) if query.unit is None]
    renamed = {"namespace": "Namespace", "job_name": "Job", "state": "State", **titles}
    builder = (
        table.Panel()
        .with_transformation(dashboard.DataTransformerConfig(id_val="merge", options={}))
        .with_transformation(
            dashboard.DataTransformerConfig(
                id_val="organize",
                options={
                    "excludeByName": dict.fromkeys(("Time", *label_columns), True),
                    "renameByName": {name: title for name, title in renamed.items() if name not in label_columns},
                },
            )
        )
    )
    for query in panel.queries:
        if query.unit is not None and query.unit is not Unit.COUNT:
            unit = dashboard.DynamicConfigValue(id_val="unit", value=query.unit.value)
            builder = builder.override_by_name(query.legend, [unit])
    return _asking(builder, panel, instant=True)


def _asking(builder: AnyPanel, panel: Panel, *, instant: bool) -> AnyPanel:
    for letter, query in zip(_letters(), panel.queries, strict=False):
        asked = prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(letter).datasource(SOURCE)
        asked = asked.instant() if instant else asked.range()
        if panel.shape is Shape.TABLE:
            asked = asked.format(PromQueryFormat.TABLE)
        builder = builder.with_target(asked)
    return builder


def _letters() -> Iterable[str]:
    return string.ascii_uppercase


def _thresholds(panel: Panel) -> builders.ThresholdsConfig:
    base: Any = "text" if panel.base is None else panel.base.value
    steps = [dashboard.Threshold(value=None, color=base)]
    steps += [dashboard.Threshold(value=step.value, color=step.colour.value) for step in panel.thresholds]
    return builders.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(steps)
