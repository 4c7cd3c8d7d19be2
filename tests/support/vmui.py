"""VictoriaMetrics' page in a browser: one of our dashboards opened, looked at, and pictured."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from flyball_testbed.monitoring.panel import Dashboard

from tests.support.browser import PATIENCE_MILLISECONDS, go_to

WIDTH = 1500
# As tall as any of them: it asks only for panels that are on the screen.
HEIGHT = 6000
FIRST_SCREEN = 1500
TABS, PANEL = ".vm-predefined-panels-tabs__tab", ".vm-predefined-panel"
READ_PANELS = """
() => [...document.querySelectorAll(".vm-predefined-panel")].map((panel) => ({
  title: panel.querySelector("h3").textContent,
  drawn: panel.querySelector("canvas") !== null,
  legend: [...panel.querySelectorAll(".vm-legend-item")].map((item) => item.textContent.trim()),
  error: panel.querySelector(".vm-alert_error")?.textContent ?? "",
}))
"""
LOADED = """
(count) => document.querySelectorAll(".vm-predefined-panel canvas").length === count
  && document.querySelectorAll(".vm-spinner").length === 0
"""


@dataclass(frozen=True)
class SeenPanel:
    """A panel as the page shows it: its title, whether it is drawn, the names in its legend, what went wrong."""

    title: str
    drawn: bool
    legend: tuple[str, ...]
    error: str


def open_dashboard(browser: Any, address: str, made: Dashboard, minutes: int) -> tuple[Any, list[str]]:
    """The page with a dashboard over the last minutes, once each of its panels is drawn; and the titles of all tabs."""
    page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
    shown = {
        "g0.range_input": f"{minutes}m",
        "g0.end_input": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}",
        "g0.relative_time": "none",
    }
    go_to(page, f"{address}?{urlencode(shown)}")
    page.wait_for_selector(TABS, timeout=PATIENCE_MILLISECONDS)
    tabs = page.locator(TABS).all_text_contents()
    page.locator(TABS).get_by_text(made.title, exact=True).click()
    page.wait_for_selector(f".vm-predefined-dashboard-header__title:has-text({made.description!r})")
    page.wait_for_function(LOADED, arg=page.locator(PANEL).count(), timeout=PATIENCE_MILLISECONDS)
    page.wait_for_load_state("networkidle", timeout=PATIENCE_MILLISECONDS)
    return page, tabs


def seen_panels(page: Any) -> list[SeenPanel]:
    return [SeenPanel(**{**found, "legend": tuple(found["legend"])}) for found in page.evaluate(READ_PANELS)]


def dashboard_picture(browser: Any, address: str, made: Dashboard, minutes: int, path: Path) -> None:
    """The dashboard as it is seen first: legends with figures of every line make it several screens tall."""
    page, _ = open_dashboard(browser, address, made, minutes)
    page.mouse.move(0, 0)
    page.screenshot(path=path, clip={"x": 0, "y": 0, "width": WIDTH, "height": FIRST_SCREEN})
    page.close()
