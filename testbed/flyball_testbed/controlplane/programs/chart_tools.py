"""Where helm, helm-docs and kubeconform come from: built once from the pins in `testbed/chart_tools_build/go.mod`.

Others are not taken from the machine: what they write and refuse changes from version to version.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from flyball_testbed.controlplane.programs import build
from flyball_testbed.controlplane.programs.binaries import Binaries, BinariesUnavailableError, Report, cache_directory

HELM = "helm"
HELM_DOCS = "helm-docs"
KUBECONFORM = "kubeconform"
CHART_TOOLS = tuple(build.PACKAGE_OF_CHART_TOOL)


def chart_tools_directory() -> Path:
    """The folder of the cached tools of the pinned versions."""
    pins = (build.CHART_TOOLS_DIRECTORY / "go.mod").read_bytes()
    return cache_directory().parents[1] / f"chart-tools-{hashlib.sha256(pins).hexdigest()[:12]}" / "bin"


def built_chart_tools() -> Binaries | None:
    """The tools where all of them have been built, else None."""
    found = {tool: chart_tools_directory() / tool for tool in CHART_TOOLS}
    return Binaries(found) if all(os.access(path, os.X_OK) for path in found.values()) else None


def find_chart_tools(report: Report = print) -> Binaries:
    """The chart's tools; builds what is missing (minutes, once). Raises BinariesUnavailableError."""
    directory = chart_tools_directory()
    directory.mkdir(parents=True, exist_ok=True)
    with build.locked(directory.parent / "lock", report):
        missing = [tool for tool in CHART_TOOLS if not os.access(directory / tool, os.X_OK)]
        try:
            if missing:
                build.build_programs(missing, directory, report)
        except build.BuildError as error:
            raise BinariesUnavailableError(f"no {', '.join(missing)} for the chart: {error}") from error
    return Binaries({tool: directory / tool for tool in CHART_TOOLS})


def main() -> int:
    """Build the tools, and run one of them where it is named: `python -m ...chart_tools helm lint --strict ...`."""
    tools = find_chart_tools()
    if len(sys.argv) == 1:
        print("\n".join(str(path) for path in tools.paths.values()))
        return 0
    if sys.argv[1] not in tools.paths:
        print(f"{sys.argv[1]} is none of {', '.join(CHART_TOOLS)}", file=sys.stderr)
        return 2
    return subprocess.run([str(tools[sys.argv[1]]), *sys.argv[2:]], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
