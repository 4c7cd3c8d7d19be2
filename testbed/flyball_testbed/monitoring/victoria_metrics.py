"""A VictoriaMetrics of our own on loopback: it scrapes as a Prometheus does, and its page, vmui, shows our dashboards."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Self

from flyball_testbed.controlplane.ports import free_port
from flyball_testbed.controlplane.processes import Process
from flyball_testbed.monitoring.prometheus import Prometheus
from flyball_testbed.scraping import victoria_metrics_command


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
        port = free_port()
        command = victoria_metrics_command(
            program, targets, directory, port, dashboards=dashboards, interval_seconds=interval_seconds
        )
        process = Process.spawn("VictoriaMetrics", command, log_path=directory / "victoria-metrics.log")
        return cls(process, port, targets)._once_ready()

    @property
    def dashboards_page(self) -> str:
        """The address of the page that shows the dashboards."""
        return f"{self._base}/vmui/#/dashboards"
