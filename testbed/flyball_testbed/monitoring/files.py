"""The files of the dashboards in the chart: what each is to have in it."""

from __future__ import annotations

from pathlib import Path

from flyball_testbed.monitoring.dashboards import DASHBOARDS
from flyball_testbed.monitoring.grafana import grafana_json
from flyball_testbed.monitoring.vmui import file_names, vmui_json

CHART_DIRECTORY = Path(__file__).resolve().parents[3] / "deploy/helm/flyball/dashboards"


def files() -> dict[Path, str]:
    """The text of each file, by its path in the chart's folder of dashboards."""
    grafana = {Path("grafana") / f"{made.uid}.json": grafana_json(made) for made in DASHBOARDS}
    return grafana | {Path("vmui") / name: vmui_json(made) for name, made in file_names(DASHBOARDS).items()}


def write_files(folder: Path = CHART_DIRECTORY) -> list[Path]:
    """Write every file anew, and take away what is no dashboard any more."""
    wanted = files()
    for path in folder.glob("*/*.json"):
        if path.relative_to(folder) not in wanted:
            path.unlink()
    for path, text in wanted.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return [folder / path for path in wanted]
