"""A real VictoriaMetrics scrapes a site, and its page, in a real browser, shows the chart's dashboards of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from flyball_testbed.controlplane.programs.binaries import Binaries
from flyball_testbed.controlplane.programs.integrations import VICTORIA_METRICS, find_integration
from flyball_testbed.monitoring.dashboards import DASHBOARDS
from flyball_testbed.monitoring.files import CHART_DIRECTORY
from flyball_testbed.monitoring.victoria_metrics import VictoriaMetrics
from flyball_testbed.site import Site, SitePlan

from tests.support.browser import chromium
from tests.support.own_targets import integrations
from tests.support.site_bench import bench_on
from tests.support.vmui import open_dashboard, seen_panels
from tests.support.waiting import wait_until

pytestmark = [*integrations, pytest.mark.timeout(900)]

PATIENCE_SECONDS = 240.0
DASHBOARD_FILES = CHART_DIRECTORY / "vmui"


def test_every_panel_is_drawn_and_names_its_lines(control_plane_programs: Binaries, tmp_path: Path) -> None:
    program = find_integration(VICTORIA_METRICS)
    with (
        Site.start(SitePlan(nodes=2, gpus_per_node=4), tmp_path / "site") as site,
        VictoriaMetrics.serve(
            program, site.metrics_addresses(), tmp_path / "victoria", dashboards=DASHBOARD_FILES
        ) as server,
        chromium() as browser,
    ):
        bench = bench_on(site)
        bench.set_cap("site", 2400)
        bench.wait_enforced("site", 2400, PATIENCE_SECONDS)
        bench.submit("trains", gpus=(2, 4), iterations=10_000_000)
        bench.wait_running("trains")
        wait_until(
            lambda: bool(server.query("flyball_job_power_watts > 0")), "the job's draw is scraped", PATIENCE_SECONDS
        )
        for made in DASHBOARDS:
            page, tabs = open_dashboard(browser, server.dashboards_page, made, minutes=5)
            assert tabs == [each.title for each in DASHBOARDS], "the first tab is the one that matters most"
            panels = seen_panels(page)
            assert [(panel.title, panel.error) for panel in panels if panel.error or not panel.drawn] == []
            named = {name for panel in panels for name in panel.legend}
            page.close()
            if made.uid == "flyball-power":
                assert any(name.startswith("Caps not enforced (should be 0)") for name in named), named
                assert any(name.startswith(f"committed {bench.cap_name('site')}") for name in named), named
