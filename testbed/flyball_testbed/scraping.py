"""Who scrapes a site, as command lines: Prometheus, or VictoriaMetrics, which reads the same file and shows dashboards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from flyball_testbed.controlplane.ports import LOOPBACK


def prometheus_command(
    program: Path,
    targets: Mapping[str, str],
    directory: Path,
    port: int,
    *,
    rules: Sequence[Path] = (),
    interval_seconds: int = 1,
) -> list[str]:
    """The command line of a Prometheus on loopback with its file and its data in `directory`, which is made."""
    configuration = _written(directory / "prometheus.yml", scrape_configuration(targets, rules, interval_seconds))
    return [
        str(program),
        f"--config.file={configuration}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address={LOOPBACK}:{port}",
    ]


def victoria_metrics_command(
    program: Path,
    targets: Mapping[str, str],
    directory: Path,
    port: int,
    *,
    dashboards: Path,
    interval_seconds: int = 1,
) -> list[str]:
    """The command line of a VictoriaMetrics on loopback with its file and its data in `directory`, which is made."""
    configuration = _written(directory / "scrape.yml", scrape_configuration(targets, (), interval_seconds))
    return [
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
    ]


def scrape_configuration(targets: Mapping[str, str], rules: Sequence[Path], interval_seconds: int) -> dict[str, Any]:
    """The file by which a Prometheus, or who reads the same, scrapes `targets` (`host:port` by name)."""
    every = f"{interval_seconds}s"
    return {
        "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
        "rule_files": [str(path.resolve()) for path in rules],
        "scrape_configs": [
            {"job_name": f"flyball-{name}", "honor_labels": True, "static_configs": [{"targets": [address]}]}
            for name, address in targets.items()
        ],
    }


def _written(path: Path, configuration: Mapping[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(configuration))
    return path
