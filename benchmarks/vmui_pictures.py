"""The picture of vmui in docs/dashboards.md: a real VictoriaMetrics watches the run of the others, seen in Chromium.

python -m benchmarks.vmui_pictures --output docs/images      # five minutes, and three more to build it once
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from flyball_testbed.controlplane.programs.integrations import VICTORIA_METRICS, find_integration
from flyball_testbed.monitoring.dashboards import DASHBOARDS
from flyball_testbed.monitoring.files import CHART_DIRECTORY
from flyball_testbed.monitoring.victoria_metrics import VictoriaMetrics
from flyball_testbed.monitoring.watched_run import let_things_happen, watched_site

from tests.support.browser import chromium, why_no_browser
from tests.support.vmui import dashboard_picture


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="the folder of the pictures")
    parser.add_argument("--seconds", type=float, default=300.0, help="how long the run takes")
    names = [made.uid.removeprefix("flyball-") for made in DASHBOARDS]
    parser.add_argument(
        "--only", choices=names, action="append", help="of this dashboard; may be repeated; default: power"
    )
    arguments = parser.parse_args()
    why_not = why_no_browser()
    if why_not is not None:
        print(why_not, file=sys.stderr)
        return 1
    program = find_integration(VICTORIA_METRICS)
    with (
        watched_site() as site,
        VictoriaMetrics.serve(
            program, site.metrics_addresses(), site.out / "victoria", dashboards=CHART_DIRECTORY / "vmui"
        ) as server,
        chromium() as browser,
    ):
        let_things_happen(site, arguments.seconds)
        minutes = max(1, round(arguments.seconds / 60))
        wanted = arguments.only or ["power"]
        for made in (each for each in DASHBOARDS if each.uid.removeprefix("flyball-") in wanted):
            path = arguments.output / f"vmui-{made.uid.removeprefix('flyball-')}.png"
            dashboard_picture(browser, server.dashboards_page, made, minutes, path)
            print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
