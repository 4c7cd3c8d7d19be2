"""The alerts: each fires in its case and is silent in the ordinary one, and asks only for metrics that there are."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.chart import CHART, Chart

Json = dict[str, Any]

ROOT = Path(__file__).parents[2]
RULES = CHART / "rules" / "alerts.yaml"
DOCUMENTS = (ROOT / "docs/operator.md", ROOT / "docs/agent.md")
# Alert -> a series with its values a minute apart: one with which it fires by the tenth minute, one with which it does not.
CASES = {
    "FlyballCapBreached": ("flyball_cap_overshoot_seconds_total{cap='c'}", "0+5x10", "7x10"),
    "FlyballCapNotEnforced": ("flyball_cap_enforced{cap='c'}", "0x10", "0x4 1x6"),
    "FlyballCapInfeasible": ("flyball_cap_feasible{cap='c'}", "0x10", "1x10"),
    "FlyballMeterSilent": ("flyball_cap_meter_silent{cap='c'}", "1x10", "0x10"),
    "FlyballNoLeader": ("flyball_leader{instance='a'}", "0x10", "1x10"),
    "FlyballInformerStale": ("flyball_informer_age_seconds{resource='pods'}", "0+60x10", "2x10"),
    "FlyballNodeNotGoverned": ("flyball_nodes{state='unacknowledged'}", "2x10", "2x3 0x7"),
    "FlyballFailsafe": ("flyball_agent_mode{mode='Failsafe',node='n'}", "1x10", "0x10"),
    "FlyballJournalUnwritable": ("flyball_agent_journal_ok{node='n'}", "0x10", "1x10"),
    "FlyballDrift": ("flyball_agent_drift_corrections_total{node='n'}", "0+2x10", "0+0x9 1"),
    "FlyballGpuDown": ("flyball_gpu_up{node='n',gpu='g'}", "0x10", "1x10"),
}


def alerts() -> dict[str, Json]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def test_every_alert_has_a_case_and_says_what_to_do() -> None:
    assert set(CASES) == set(alerts())
    for name, rule in alerts().items():
        assert rule["labels"]["severity"] in ("warning", "critical"), name
        assert rule["annotations"]["summary"], name
        assert len(rule["annotations"]["description"]) > 40, name


def test_alerts_ask_for_metrics_that_there_are() -> None:
    known = set()
    for document in DOCUMENTS:
        section = document.read_text().split("\n## Metrics\n")[1].split("\n## ")[0]
        known |= {f"flyball_{name}" for name in re.findall(r"`([a-z_]+)(?:\{[^}]*})?`", section)}
    asked = {metric for rule in alerts().values() for metric in re.findall(r"\bflyball_[a-z_]+", rule["expr"])}
    assert len(asked) == len(CASES)
    assert asked <= known, asked - known


@pytest.fixture
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("no promtool on this machine (it comes with prometheus)")
    return found


@pytest.mark.parametrize("name", CASES)
def test_an_alert_fires_in_its_case_alone(name: str, promtool: str, tmp_path: Path) -> None:
    series, firing, silent = CASES[name]
    (tmp_path / "alerts.yaml").write_text(RULES.read_text())
    for values, expected in ((firing, True), (silent, False)):
        # A leader that is there, but in the case that has none: its absence is an alert of its own.
        inputs = [{"series": series, "values": values}]
        test = {
            "rule_files": ["alerts.yaml"],
            "evaluation_interval": "1m",
            "tests": [
                {
                    "interval": "1m",
                    "input_series": inputs,
                    "promql_expr_test": [
                        {
                            "expr": f"count(ALERTS{{alertname='{name}',alertstate='firing'}}) or vector(0)",
                            "eval_time": "9m",
                            "exp_samples": [{"labels": "{}", "value": int(expected)}],
                        }
                    ],
                }
            ],
        }
        (tmp_path / "test.yaml").write_text(yaml.safe_dump(test))
        answer = subprocess.run(
            [promtool, "test", "rules", "test.yaml"], capture_output=True, text=True, check=False, cwd=tmp_path
        )
        assert answer.returncode == 0, f"{values}: {answer.stdout}{answer.stderr}"


def test_the_chart_ships_them_as_they_are(chart: Chart) -> None:
    rule = chart.one("PrometheusRule", "flyball-alerts", "monitoring.rules=true", "monitoring.labels.release=prom")
    assert rule["spec"] == yaml.safe_load(RULES.read_text())
    assert rule["metadata"]["labels"]["release"] == "prom"
