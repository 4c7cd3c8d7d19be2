"""The Helm chart under test: its tools, which are built before the first test that needs them, and what it renders to.

A test that asks for `chart_tools`, itself or through its fixtures, has the marker `chart`.
"""

from __future__ import annotations

import copy
import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from flyball_testbed.controlplane.programs.binaries import Binaries, BinariesUnavailableError
from flyball_testbed.controlplane.programs.chart_tools import HELM, find_chart_tools

Json = dict[str, Any]

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "flyball"
NAMESPACE = "flyball-system"
MARKER = "chart"
TOOLS_FIXTURE = "chart_tools"
# Every optional object at once.
EVERYTHING = (
    "monitoring.podMonitors=true", "monitoring.rules=true", "powerCap.watts=30000",
    "powerCap.staticOverheadWatts=4000", "dashboards.grafana=true", "dashboards.vmui=true",
    "agent.runtimeClassName=nvidia", "operator.gpuModelsConfigMap=models", "operator.metersSecret=meters",
    "page.enabled=true", "page.rowLabel=row", "page.ingress.host=power.example.com", "page.ingress.className=edge",
    "page.ingress.tlsSecret=certificate", "operator.signalConfigMap=signal",
    "planner.enabled=true", "planner.tokenSecret=planner-token",
    "image.pullSecrets[0].name=registry",
)  # fmt: skip


class HelmRefused(Exception):
    """What helm said on its way to an exit status that is not 0."""


@dataclass(frozen=True)
class Chart:
    """The chart of this checkout, through the real helm."""

    tools: Binaries
    rendered: dict[tuple[str, ...], list[Json]] = field(default_factory=dict)

    def helm(self, *arguments: str, timeout_seconds: float = 120.0) -> str:
        """Run helm; its output. Raises HelmRefused."""
        answer = subprocess.run(
            [str(self.tools[HELM]), *arguments], capture_output=True, text=True, check=False, timeout=timeout_seconds
        )
        if answer.returncode != 0:
            raise HelmRefused(answer.stdout + answer.stderr)
        return answer.stdout

    def render(self, *settings: str, namespace: str = NAMESPACE, values: Json | None = None) -> list[Json]:
        """The objects that an installation with `key=value` settings consists of, its hooks included."""
        arguments = [argument for setting in settings for argument in ("--set", setting)]
        if values is not None:
            arguments += [word for key in values for word in ("--set-json", f"{key}={json.dumps(values[key])}")]
        asked = (namespace, *arguments)
        if asked not in self.rendered:
            text = self.helm("template", "flyball", str(CHART), "--namespace", namespace, *arguments)
            self.rendered[asked] = [found for found in yaml.load_all(text, yaml.CSafeLoader) if found]
        return copy.deepcopy(self.rendered[asked])

    def one(self, kind: str, name: str, *settings: str, **keywords: Any) -> Json:
        """The rendered object of a kind and a name."""
        (found,) = (
            each
            for each in self.render(*settings, **keywords)
            if (each["kind"], each["metadata"]["name"]) == (kind, name)
        )
        return found


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what asks for the chart's tools."""
    for item in items:
        if TOOLS_FIXTURE in getattr(item, "fixturenames", ()):
            item.add_marker(MARKER)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Have the tools before the first test: building them takes longer than a test may."""
    if session.config.option.collectonly or not any(item.get_closest_marker(MARKER) for item in session.items):
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    try:
        find_chart_tools(reporter.write_line if reporter is not None else print)
    except BinariesUnavailableError as error:
        pytest.exit(str(error), returncode=pytest.ExitCode.TESTS_FAILED)


@pytest.fixture(scope="session")
def chart_tools() -> Binaries:
    """Helm, helm-docs and kubeconform; what asks for them is marked `chart`."""
    return find_chart_tools()


@pytest.fixture(scope="session")
def chart(chart_tools: Binaries) -> Chart:
    """The chart of this checkout."""
    return Chart(chart_tools)
