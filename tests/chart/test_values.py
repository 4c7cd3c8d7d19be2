"""The chart's values: what the schema refuses, and that documents and schema say what values.yaml says."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from flyball_planner.policies.registry import policy_named, policy_names
from flyball_testbed.controlplane.programs.chart_tools import HELM_DOCS

from tests.support.chart import CHART, EVERYTHING, Chart, HelmRefused

Json = dict[str, Any]

SCHEMA: Json = json.loads((CHART / "values.schema.json").read_text())
VALUES: Json = yaml.safe_load((CHART / "values.yaml").read_text())


def leaves(schema: Json, values: Any, path: str = "") -> Iterator[tuple[str, Json, Any]]:
    """Each value with its schema, those inside of free-form objects left out."""
    if "properties" in schema:
        for name, child in schema["properties"].items():
            if path or name != "global":
                yield from leaves(child, values[name], f"{path}.{name}".lstrip("."))
    else:
        yield path, schema, values


def test_the_chart_is_without_fault(chart: Chart) -> None:
    for more in ((), EVERYTHING):
        settings = [argument for setting in more for argument in ("--set", setting)]
        assert "0 chart(s) failed" in chart.helm("lint", "--strict", str(CHART), *settings)


def test_the_schema_knows_exactly_the_values_there_are() -> None:
    def check(schema: Json, values: Json, path: str) -> None:
        assert schema["additionalProperties"] is False, path
        assert set(schema["properties"]) - {"global"} == set(values), path
        for name, value in values.items():
            if "properties" in schema["properties"][name] and path == "values":
                check(schema["properties"][name], value, f"{path}.{name}")

    check(SCHEMA, VALUES, "values")


@pytest.mark.parametrize(
    "typo",
    [
        "operator.replica=3", "operators.replicas=3", "operator.replicas=0", "operator.replicas=two", "agent.driver=nvlm",
        "image.pullPolicy=always", "image.registry=registry/", "agent.journalDir=relative", "powerCap.watts=-1",
        "powerCap.watts=30kW", "operator.policy=powerflow", "monitoring.interval=15", "operator.extraArgs[0]=replan",
        "operator.extraArgs[0]=--profiled-power-limits 4", "operator.observeJobs=maybe",
        "operator.resources.limit.memory=1Gi", "operator.logLevel=debug", "operator.gpuResources[0]=gpu",
        "agent.tolerations[0].operator=exists", "crds.install=yes",
        "page.ingress.host=https://power", "page.ingress.hosts=power", "operator.signalConfigMap=1",
        "image.pullSecrets[0].nam=x", "planner.workers=0", "planner.token=secret",
    ],
)  # fmt: skip
def test_a_typo_is_refused_and_named(chart: Chart, typo: str) -> None:
    with pytest.raises(HelmRefused) as refused:
        chart.render(typo)
    first = typo.split("=")[0].split(".")[0].split("[")[0]
    assert first in str(refused.value)
    assert "schema" in str(refused.value)


def test_an_empty_registry_is_none_given(chart: Chart) -> None:
    """It is what `--set image.registry=$REGISTRY` says where the shell's variable is not set."""
    assert chart.render("image.registry=") == chart.render()


def test_policies_are_the_planners() -> None:
    allowed = set(SCHEMA["properties"]["operator"]["properties"]["policy"]["enum"])
    for name in allowed:
        policy_named(name)
    assert set(policy_names()) <= allowed, "name it in values.schema.json, under operator.policy"


def test_the_chart_has_the_projects_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == version("flyball")


def test_the_readme_is_fresh_and_describes_every_value(chart: Chart, tmp_path: Path) -> None:
    copy = tmp_path / "flyball"
    shutil.copytree(CHART, copy)
    (copy / "README.md").unlink()
    subprocess.run([str(chart.tools[HELM_DOCS]), "--chart-search-root", str(tmp_path)], check=True, capture_output=True)
    fresh = (copy / "README.md").read_text()
    assert fresh == (CHART / "README.md").read_text(), "run `make chart-docs`"
    rows = [line for line in fresh.splitlines() if line.startswith("| ") and "`" in line]
    assert len(rows) > 30
    assert not [row for row in rows if row.rstrip().endswith("|  |")], "a value without a description (`# -- ...`)"
