"""docs/install.md, typed as it stands: from the chart to nothing left, on two real nodes that have the built images.

The sections between the images and what was seen, without those for a browser and for support; line by line, in one shell
that ends where a command fails.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from flyball_testbed.controlplane.programs.binaries import Binaries
from flyball_testbed.controlplane.programs.chart_tools import HELM
from flyball_testbed.realnode.cluster import RealCluster

from tests.support.chart import Chart
from tests.support.own_targets import integrations

pytestmark = [*integrations, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
SECTIONS = ("The chart", "A cap that is held", "A job", "Upgrades", "Removing it")
GPUS_PER_NODE = 4
SHELL_SECONDS = 900
# Each block is followed by a line that says so: what failed is the one after the last that did.
DONE = "=== done:"


def blocks() -> list[str]:
    """The commands of those sections; of a section with parts, those before its first part."""
    sections = re.split(r"^## ", (ROOT / "docs/install.md").read_text(), flags=re.MULTILINE)
    named = {section.partition("\n")[0]: section.partition("\n### ")[0] for section in sections}
    return [
        block for name in SECTIONS for block in re.findall(r"^```sh\n(.*?)^```", named[name], re.MULTILINE | re.DOTALL)
    ]


def test_what_install_md_says_works_line_by_line(
    images: dict[str, Path], real_node_programs: Binaries, chart: Chart, tmp_path: Path
) -> None:
    typed = blocks()
    assert len(typed) >= 8
    for name, program in {"helm": chart.tools[HELM], "kubectl": real_node_programs["kubectl"]}.items():
        (tmp_path / name).symlink_to(program)
    with RealCluster.start(
        2, GPUS_PER_NODE, images=images.values(), install=False, binaries=real_node_programs
    ) as cluster:
        environment = {
            **os.environ,
            "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
            "KUBECONFIG": str(cluster.kubeconfig),
            "REGISTRY": "localhost",
        }
        script = "\n".join(f"{block}echo '{DONE}' {number}" for number, block in enumerate(typed, 1))
        answer = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=SHELL_SECONDS,
        )  # fmt: skip
        finished = re.findall(rf"^{DONE} (\d+)$", answer.stdout, re.MULTILINE)
        left = typed[len(finished)] if len(finished) < len(typed) else ""
        assert answer.returncode == 0, f"in\n{left}\n{answer.stdout[-3000:]}\n{answer.stderr[-3000:]}"
        assert "the GPUs can be held to between 800 and 3200 W" in answer.stdout
        assert "the operator answers" in answer.stderr, "Helm logs what its test said"
        assert cluster.api.list_objects("/apis/apiextensions.k8s.io/v1/customresourcedefinitions") == []
