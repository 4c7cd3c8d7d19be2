"""The dashboards for vmui, the page that VictoriaMetrics has built in (`-vmui.customDashboardsPath`).

It draws lines and knows no variables: choices are taken whole, constants as they begin, windows as below.
"""

from __future__ import annotations

import json

from flyball_testbed.monitoring.panel import COLUMNS, Dashboard, Panel, Unit

RATE_INTERVAL, SPAN = "5m", "24h"
VMUI_COLUMNS = 12
UNITS = {
    Unit.WATTS: "W", Unit.JOULES: "J", Unit.KILOWATT_HOURS: "kWh", Unit.SECONDS: "s", Unit.HERTZ: "Hz",
    Unit.PER_SECOND: "/s", Unit.KILOGRAMS: "kg", Unit.BYTES: "B", Unit.CELSIUS: "°C",
}  # fmt: skip


def vmui_json(made: Dashboard) -> str:
    """The file of one dashboard, with a newline at its end."""
    rows = [{"title": row.title, "panels": [_panel(made, panel) for panel in row.panels]} for row in made.rows]
    return json.dumps({"title": made.title, "rows": rows}, indent=1, ensure_ascii=False) + "\n"


def _panel(made: Dashboard, panel: Panel) -> dict[str, object]:
    # Of several caps in one panel a line must say whose it is.
    suffix = f" {{{{{panel.repeated}}}}}" if panel.repeated else ""
    return {
        "title": panel.title.removesuffix(f" ${panel.repeated}") if panel.repeated else panel.title,
        "description": panel.question,
        "unit": UNITS.get(panel.unit, ""),
        "expr": [made.bound(query.expr, rate_interval=RATE_INTERVAL, span=SPAN) for query in panel.queries],
        "alias": [query.legend + suffix for query in panel.queries],
        "showLegend": True,
        "width": max(1, panel.width * VMUI_COLUMNS // COLUMNS),
    }
