"""The alerts: each fires in its case and is silent in the ordinary one, and asks only for metrics that there are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from flyball_testbed.controlplane.programs.binaries import Binaries

from tests.support.chart import CHART, Chart
from tests.support.metrics_document import documented
from tests.support.monitoring import promtool

Json = dict[str, Any]

ROOT = Path(__file__).parents[2]
RULES = CHART / "rules" / "alerts.yaml"
RUNBOOKS = ROOT / "docs/runbooks.md"
# When it is looked whether an alert fires, with a sample a minute before.
LOOKED_AT_MINUTE = 19


class Case(NamedTuple):
    """The values of one series with which the alert fires, with which it does not, and further series of both."""

    series: str
    fires: str
    silent: str
    beside: tuple[tuple[str, str], ...] = ()


OF_JOB = "namespace='team',job_name='j'"
CASES = {
    "FlyballCapBreached": Case("flyball_cap_overshoot_seconds_total{cap='c'}", "0+5x20", "0x16 3x3"),
    "FlyballCapNotEnforced": Case("flyball_cap_enforced{cap='c'}", "0x20", "0x15 1x4"),
    "FlyballCapProofStale": Case("flyball_cap_proof_stale{cap='c'}", "0x15 1x4", "1x15 0x4"),
    "FlyballCapInfeasible": Case("flyball_cap_feasible{cap='c'}", "0x20", "1x20"),
    "FlyballMeterSilent": Case("flyball_cap_meter_silent{cap='c'}", "1x20", "0x20"),
    "FlyballNoLeader": Case("flyball_leader{instance='a'}", "0x20", "1x20", (("flyball_leader{instance='b'}", "0x20"),)),
    "FlyballInformerStale": Case("flyball_informer_age_seconds{resource='pods'}", "0+60x20", "2x20"),
    "FlyballClockOff": Case("flyball_clock_ahead_seconds", "-3x20", "-1x20"),
    "FlyballPlanFailing": Case("flyball_plan_failures_total", "0+1x20", "0x10 1x10"),
    "FlyballCyclesFailing": Case("flyball_cycle_failures_total", "0+2x20", "0x16 1x4"),
    "FlyballAgentAway": Case("flyball_nodes{state='unproven'}", "0x15 1x4", "2x10 0x10"),
    "FlyballNodeNotGoverned": Case("flyball_nodes{state='unacknowledged'}", "2x20", "2x15 0x5"),
    # Seconds of the time at which it is looked.
    "FlyballSignalEnded": Case(
        "flyball_grid_signal_end_timestamp_seconds{unit='gCO2/kWh'}", "600x20", f"{60 * LOOKED_AT_MINUTE + 60}x20"
    ),
    "FlyballBudgetNearlySpent": Case(
        f"flyball_job_energy_joules_total{{{OF_JOB}}}", "0+50x20", "0+40x20",
        ((f"flyball_job_energy_budget_joules{{{OF_JOB}}}", "1000x20"),),
    ),
    "FlyballQuotaNearlySpent": Case(
        "flyball_quota_energy_joules{namespace='team',quota='q'}", "0+50x20", "0+40x20",
        (("flyball_quota_energy_budget_joules{namespace='team',quota='q'}", "1000x20"),),
    ),
    "FlyballDeadlineAtRisk": Case(f"flyball_job_deadline_at_risk{{{OF_JOB}}}", "0x10 1x10", "0x16 1x3"),
    "FlyballJobStuckStarting": Case(
        f"flyball_job_state{{{OF_JOB},state='Starting'}}", "1x20", "_x10 1x9",
        ((f"flyball_job_state{{{OF_JOB},state='Running'}}", "1x20"),),
    ),
    "FlyballModelOff": Case(
        f"flyball_job_power_watts{{{OF_JOB}}}", "1200x20", "1100x20",
        (
            (f"flyball_job_predicted_power_watts{{{OF_JOB}}}", "1000x20"),
            (f"flyball_job_iterations_per_second{{{OF_JOB}}}", "2x20"),
            (f"flyball_job_predicted_iterations_per_second{{{OF_JOB}}}", "2.2x20"),
        ),
    ),
    "FlyballFailsafe": Case("flyball_agent_mode{mode='Failsafe',node='n'}", "1x20", "0x20"),
    "FlyballJournalUnwritable": Case("flyball_agent_journal_ok{node='n'}", "0x20", "1x20"),
    "FlyballDrift": Case("flyball_agent_drift_corrections_total{node='n'}", "0+2x20", "0+0x18 1"),
    "FlyballLimitNotTaken": Case(
        "flyball_gpu_health{node='n',gpu='g',reason='LimitNotTaken'}", "1x20", "1x10 _x10",
        (("flyball_gpu_health{node='n',gpu='h',reason='Governed'}", "1x20"),),
    ),
    "FlyballGpuDown": Case("flyball_gpu_up{node='n',gpu='g'}", "0x20", "1x20"),
}  # fmt: skip
# The model may be right of the draw and wrong of the speed.
SLOW_JOB = Case(
    f"flyball_job_iterations_per_second{{{OF_JOB}}}", "1.8x20", "1.9x20",
    ((f"flyball_job_predicted_iterations_per_second{{{OF_JOB}}}", "2.2x20"),),
)  # fmt: skip


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
    known = documented("The operator") | documented("The agents")
    asked = {metric for rule in alerts().values() for metric in re.findall(r"\bflyball_[a-z_]+", rule["expr"])}
    assert asked <= set(known), asked - set(known)


def test_every_alert_has_its_runbook_and_every_runbook_its_alert() -> None:
    text = RUNBOOKS.read_text()
    parts = dict(re.findall(r"^## (Flyball\w+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    assert list(parts) == list(alerts())  # in the same order
    for name, rule in alerts().items():
        assert rule["annotations"]["runbook_url"] == f"runbooks.md#{name.lower()}"
        for heading in ("**Means.**", "**Look.**", "**Do.**"):
            assert heading in parts[name], f"{name}: {heading}"
        assert re.search(r"`(kubectl|flyball|nvidia-smi) ", parts[name]), f"{name}: no command helps"


def unit_test(name: str, case: Case, values: str, expected: bool) -> Json:
    inputs = [{"series": case.series, "values": values}]
    inputs += [{"series": series, "values": beside} for series, beside in case.beside]
    return {
        "name": f"{name} {'fires' if expected else 'is silent'}",
        "interval": "1m",
        "input_series": inputs,
        "promql_expr_test": [
            {
                "expr": f"count(ALERTS{{alertname='{name}',alertstate='firing'}}) or vector(0)",
                "eval_time": f"{LOOKED_AT_MINUTE}m",
                "exp_samples": [{"labels": "{}", "value": int(expected)}],
            }
        ],
    }


def test_each_alert_fires_in_its_case_alone(monitoring_tools: Binaries, tmp_path: Path) -> None:
    (tmp_path / "alerts.yaml").write_text(RULES.read_text())
    cases = [*CASES.items(), ("FlyballModelOff", SLOW_JOB)]
    tests = [
        unit_test(name, case, values, expected)
        for name, case in cases
        for values, expected in ((case.fires, True), (case.silent, False))
    ]
    # Where nothing is set, no node is governed, and that is meant.
    observing = Case(
        "flyball_operator_info{mode='observe'}", "", "1x20", (("flyball_nodes{state='unacknowledged'}", "2x20"),)
    )
    absent = unit_test("FlyballNoLeader", Case("up", "0x20", "0x20"), "0x20", True)
    document = {
        "rule_files": ["alerts.yaml"],
        "evaluation_interval": "1m",
        "tests": [*tests, absent, unit_test("FlyballNodeNotGoverned", observing, observing.silent, False)],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(document))
    promtool(monitoring_tools, "test", "rules", "test.yaml", folder=tmp_path)


def test_promtool_would_notice_an_alert_that_is_silent_in_its_case(monitoring_tools: Binaries, tmp_path: Path) -> None:
    (tmp_path / "alerts.yaml").write_text(RULES.read_text().replace("flyball_gpu_up == 0", "flyball_gpu_up == 2"))
    case = CASES["FlyballGpuDown"]
    tests = [unit_test("FlyballGpuDown", case, case.fires, True)]
    document = {"rule_files": ["alerts.yaml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(document))
    with pytest.raises(AssertionError, match="FlyballGpuDown"):
        promtool(monitoring_tools, "test", "rules", "test.yaml", folder=tmp_path)


def test_promtool_takes_the_rules(monitoring_tools: Binaries) -> None:
    assert f"{len(CASES)} rules found" in promtool(monitoring_tools, "check", "rules", "--lint-fatal", str(RULES))


def test_the_chart_ships_them_with_their_runbooks_addresses(chart: Chart) -> None:
    settings = ("monitoring.rules=true", "monitoring.labels.release=prom", "monitoring.runbooks=https://wiki/flyball/")
    rule = chart.one("PrometheusRule", "flyball-alerts", *settings)
    assert rule["metadata"]["labels"]["release"] == "prom"
    shipped = yaml.safe_load(RULES.read_text().replace("runbook_url: ", "runbook_url: https://wiki/flyball/"))
    assert rule["spec"] == shipped
    # Without an address of the documents, an alert has no link that leads nowhere.
    (bare,) = [found for found in chart.render("monitoring.rules=true") if found["kind"] == "PrometheusRule"]
    assert "runbook_url" not in str(bare)
    assert len(str(bare)) > len(str(rule)) * 0.7
