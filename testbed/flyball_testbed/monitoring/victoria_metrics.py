"""A VictoriaMetrics of our own on loopback: it scrapes as a Prometheus does, and its page, vmui, shows our dashboards."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Self

import yaml

from flyball_testbed.controlplane.ports import LOOPBACK, free_port
from flyball_testbed.controlplane.processes import Process
from flyball_testbed.monitoring.prometheus import Prometheus, scrape_configuration


class VictoriaMetrics(Prometheus):
    """A running VictoriaMetrics; a context manager, and asked as a Prometheus is."""

    @classmethod
    def serve(
        cls,
        program: Path,
        targets: Mapping[str, str],
        directory: Path,
        *,
        dashboards: Path,
        interval_seconds: int = 1,
    ) -> Self:
        """Scrape `targets` and show the `dashboards` of a folder, with data and log in `directory`.

        Raises PrometheusError where it does not become ready.
        """
        directory.mkdir(parents=True, exist_ok=True)
        configuration = directory / "scrape.yml"
        configuration.write_text(yaml.safe_dump(scrape_configuration(targets, (), interval_seconds)))
        port = free_port()
        process = Process.spawn(
            "VictoriaMetrics",
            [
                str(program),
                f"-httpListenAddr={LOOPBACK}:{port}",
                f"-storageDataPath={directory / 'data'}",
                f"-promscrape.config={configuration}",
                # It refuses what is Prometheus' alone in that file, otherwise.
                "-promscrape.config.strictParse=false",
                # What was scraped is shown at once, and not after half a minute.
                "-search.latencyOffset=1s",
                "-memory.allowedBytes=200MB",
                f"-vmui.customDashboardsPath={dashboards}",
            ],
            log_path=directory / "victoria-metrics.log",
        )
        return cls(process, port, targets)._once_ready()

    @property
    def dashboards_page(self) -> str:
        """The address of the page that shows the dashboards."""
        return f"{self._base}/vmui/#/dashboards"
