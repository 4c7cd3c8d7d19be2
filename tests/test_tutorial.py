"""docs/tutorial.md, run as it stands: every command of it, one after the other, on a cluster of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"^```sh\n(.*?)^```", (ROOT / "docs/tutorial.md").read_text(), re.MULTILINE | re.DOTALL)
# Each block is followed by a line that says so: what failed is the one after the last that did.
DONE = "=== done:"


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """A shell's environment in which `flyball` is this checkout's, and clusters lie in a folder of the test's own."""
    folder = tempfile.mkdtemp(prefix="fb-")  # short: the paths of Unix sockets must fit into 107 bytes
    scripts = sysconfig.get_path("scripts")
    made = {**os.environ, "XDG_STATE_HOME": folder, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    made.pop("KUBECONFIG", None)
    yield made
    subprocess.run(
        [f"{scripts}/flyball", "devcluster", "down"], env=made, check=False, capture_output=True, timeout=120
    )
    shutil.rmtree(folder)


def test_the_tutorial_has_commands_of_every_kind() -> None:
    text = "\n".join(BLOCKS)
    for command in (
        "devcluster up",
        "devcluster down",
        "kind: PowerCap",
        "kind: EnergyAwareJob",
        "flyball why",
        "emergency",
    ):
        assert command in text


@pytest.mark.cluster
@pytest.mark.timeout(600)
@pytest.mark.long
def test_the_tutorial_works_line_by_line(environment: dict[str, str]) -> None:
    script = "\n".join(f"{block}echo '{DONE}' {number}" for number, block in enumerate(BLOCKS, 1))
    answer = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=540,
    )  # fmt: skip
    finished = re.findall(rf"^{DONE} (\d+)$", answer.stdout, re.MULTILINE)
    left = BLOCKS[len(finished)] if len(finished) < len(BLOCKS) else ""
    assert answer.returncode == 0, f"in\n{left}\n{answer.stdout[-3000:]}\n{answer.stderr[-3000:]}"
    parts = re.split(rf"^{DONE} \d+\n", answer.stdout, flags=re.MULTILINE)
    assert len(re.findall(r"^node-\d+", parts[0], re.MULTILINE)) == 4, parts[0]
    assert re.search(r"^cluster\b.*\b9000\b.*True", parts[1], re.MULTILINE), parts[1]
    assert re.search(r"^first\b.*Running", parts[2], re.MULTILINE), parts[2]
    assert re.search(r"\d+ GPUs?\b.* MHz", parts[3]), parts[3]
    before, after = (re.search(rf"^cluster +{cap} +(\d+) .*True", parts[4], re.MULTILINE) for cap in (9000, 3500))
    assert before is not None, parts[4]
    assert after is not None, parts[4]
    assert int(after[1]) <= 3500 < int(before[1]), "the lower cap takes watts from the job"
    assert parts[4].splitlines()[-1] != parts[3].splitlines()[0], "and the job says so"
