"""krew's archive as `make krew` makes it, unpacked into a folder of PATH: the real kubectl finds and runs it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from flyball_testbed.controlplane.programs.binaries import KUBECTL, Binaries
from flyball_testbed.krew_archive import LAUNCHER, archive_name

from tests.support.own_targets import integrations

pytestmark = [*integrations, pytest.mark.timeout(600)]

PLATFORM = "linux-amd64"


def test_kubectl_runs_what_was_unpacked(control_plane_programs: Binaries, tmp_path: Path) -> None:
    out, store = tmp_path / "out", tmp_path / "store"
    here = "{}.{}".format(*sys.version_info[:2])
    made = subprocess.run(
        [sys.executable, "-m", "flyball_testbed.krew_archive", "--output", str(out), "--platform", PLATFORM,
         "--python", here],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    archive = out / archive_name(PLATFORM)
    (platform,) = yaml.safe_load((out / "flyball.yaml").read_text())["spec"]["platforms"]
    assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    with tarfile.open(archive) as unpacked:
        unpacked.extractall(store)  # noqa: S202 - our own
    # A Python that has nothing of ours: that from which this one's environment was made.
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(Path(sys.base_prefix) / "bin" / "python3")
    environment = {"PATH": f"{store}{os.pathsep}{tmp_path / 'bin'}{os.pathsep}/bin", "HOME": str(tmp_path)}

    def kubectl(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(control_plane_programs[KUBECTL]), *words]
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert str(store / LAUNCHER) in kubectl("plugin", "list").stdout
    answer = kubectl("flyball", "--version")
    assert answer.stdout == f"flyball {version('flyball')}\n", answer.stderr
    for command in ("top", "why", "logs", "report", "doctor", "emergency", "release"):
        assert kubectl("flyball", command, "--help").returncode == 0, command
    # It gets as far as a cluster that is not there.
    answer = kubectl("flyball", "top", "--once")
    assert answer.returncode == 1
    assert "Traceback" not in answer.stderr, answer.stderr
