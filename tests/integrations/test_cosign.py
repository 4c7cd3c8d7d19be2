"""The images' archives signed by the real cosign with a key of one's own, as docs/install.md has it: no network, no log.

The commands are those of the page, with its paths in a folder of the test's.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from flyball_testbed.controlplane.programs.integrations import COSIGN, find_integration

from tests.support.own_targets import integrations

pytestmark = [*integrations, pytest.mark.timeout(1800)]

PAGE = Path(__file__).parents[2] / "docs" / "install.md"
ARCHIVE = "out/images/flyball-operator.tar"


def commands() -> list[list[str]]:
    """The lines of the page that call cosign, each as its words."""
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.startswith("cosign ")]


@pytest.fixture
def room(images: dict[str, Path], tmp_path: Path) -> Path:
    """A folder with the operator's archive where the page has it."""
    archive = tmp_path / ARCHIVE
    archive.parent.mkdir(parents=True)
    archive.symlink_to(images["operator"])
    return tmp_path


def cosign(room: Path, words: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(room),
        "COSIGN_PASSWORD": "of a test",
        # Nobody is there: whatever asked for a service would fail.
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "HTTP_PROXY": "http://127.0.0.1:9",
    }
    return subprocess.run(
        [str(find_integration(COSIGN)), *words], cwd=room, env=environment, capture_output=True, text=True, check=False,
        timeout=120,
    )  # fmt: skip


def test_an_archive_is_signed_and_another_is_refused(room: Path) -> None:
    generate, sign, verify = ([*words[1:]] for words in commands())
    for words in (generate, sign, verify):
        answer = cosign(room, words)
        assert answer.returncode == 0, f"{words}: {answer.stderr}"
    assert "Verified OK" in answer.stderr + answer.stdout
    assert oct((room / "cosign.key").stat().st_mode & 0o077) == "0o0", "the private key is its owner's alone"

    # One byte more, and it is not what was signed.
    archive = room / ARCHIVE
    contents = archive.read_bytes()
    archive.unlink()
    archive.write_bytes(contents + b"\0")
    answer = cosign(room, verify)
    assert answer.returncode != 0
    assert "Verified OK" not in answer.stderr + answer.stdout

    # Nor is it signed by another key.
    archive.write_bytes(contents)
    assert cosign(room, verify).returncode == 0
    other = room / "other"
    other.mkdir()
    assert cosign(other, generate).returncode == 0
    (room / "cosign.pub").write_bytes((other / "cosign.pub").read_bytes())
    assert cosign(room, verify).returncode != 0
