"""Prometheus and promtool under the tests: found before the first test that asks for them, and what promtool says.

What asks for `monitoring_tools`, itself or through its fixtures, has the marker `chart`: it judges the chart's rules.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from flyball_testbed.controlplane.programs.binaries import Binaries, BinariesUnavailableError
from flyball_testbed.controlplane.programs.monitoring_tools import PROMTOOL, find_monitoring_tools

from tests.support.chart import MARKER

TOOLS_FIXTURE = "monitoring_tools"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what asks for Prometheus or promtool."""
    for item in items:
        if TOOLS_FIXTURE in getattr(item, "fixturenames", ()):
            item.add_marker(MARKER)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Have the programs before the first test: where they must be built, that takes longer than a test may."""
    asked = any(TOOLS_FIXTURE in getattr(item, "fixturenames", ()) for item in session.items)
    if session.config.option.collectonly or not asked:
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    try:
        find_monitoring_tools(reporter.write_line if reporter is not None else lambda _line: None)
    except BinariesUnavailableError as error:
        pytest.exit(str(error), returncode=pytest.ExitCode.TESTS_FAILED)


@pytest.fixture(scope="session")
def monitoring_tools() -> Binaries:
    """Prometheus and promtool; what asks for them is marked `chart`."""
    return find_monitoring_tools()


def promtool(tools: Binaries, *arguments: str, folder: Path | None = None, text: str | None = None) -> str:
    """What promtool says of it; fails where it finds anything wrong."""
    answer = subprocess.run(
        [str(tools[PROMTOOL]), *arguments], capture_output=True, text=True, check=False, cwd=folder, input=text
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout + answer.stderr
