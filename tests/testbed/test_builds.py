"""Everything that the tests build, had beforehand: beside each other, line by line, on a machine that has little."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from flyball_testbed import builds
from flyball_testbed.controlplane.programs import build
from flyball_testbed.controlplane.programs.binaries import PROGRAMS, BinariesUnavailableError, Report
from flyball_testbed.images.build import ImageBuildError

from tests.support.waiting import wait_until

# A Go that "builds" a program by writing where it was asked to, says so first, and takes its time: until the package that
# GO_WAITS_FOR names is being built, too.
FAKE_GO = """#!/bin/sh
if [ "$1" = env ]; then echo go1.26.8; exit; fi
while [ $# -gt 1 ]; do [ "$1" = -o ] && out=$2; shift; done
echo "$1 $$" >> "$GO_RECORD"
sleep "$GO_SECONDS"
while ! grep -q "$GO_WAITS_FOR" "$GO_RECORD"; do sleep 0.05; done
[ "$1" = "$GO_FAILS_ON" ] && { echo "$1: does not compile"; exit 1; }
printf '#!/bin/sh\\n' > "$out" && chmod +x "$out"
"""


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine with a Go compiler and next to nothing else, an empty cache, and no way out."""
    path = tmp_path / "path"
    path.mkdir()
    (path / "go").write_text(FAKE_GO)
    (path / "go").chmod(0o755)
    for tool in ("sleep", "chmod", "grep"):
        found = shutil.which(tool)
        assert found is not None
        (path / tool).symlink_to(found)
    environment = {key: value for key, value in os.environ.items() if key != "KUBEBUILDER_ASSETS"}
    return environment | {
        "PATH": str(path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "GO_RECORD": str(tmp_path / "record"),
        "GO_SECONDS": "0.1",
        "GO_FAILS_ON": "",
        "GO_WAITS_FOR": "",
        # Nobody is there: the official releases cannot be reached.
        "https_proxy": "http://127.0.0.1:9",
        "HTTPS_PROXY": "http://127.0.0.1:9",
    }


def compiled(machine: dict[str, str]) -> list[str]:
    """The packages that were built, in order."""
    record = Path(machine["GO_RECORD"])
    return [line.split()[0] for line in record.read_text().splitlines()] if record.exists() else []


def run(machine: dict[str, str], *names: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flyball_testbed.builds", *names]
    return subprocess.run(command, env=machine, capture_output=True, text=True, check=False, timeout=240)


@pytest.mark.slow
def test_all_is_had_beside_each_other_and_said_line_by_line(machine: dict[str, str]) -> None:
    # The control plane, which is begun first, is not done before something of the next is begun.
    answer = run(machine | {"GO_WAITS_FOR": build.PACKAGES["helm"]})
    assert answer.returncode == 0, answer.stdout + answer.stderr
    order = compiled(machine)
    control_plane = [build.PACKAGES[program] for program in PROGRAMS]
    tools = [*build.PACKAGE_OF_CHART_TOOL.values(), *build.PACKAGE_OF_MONITORING_TOOL.values()]
    assert sorted(order) == sorted([*control_plane, *tools])
    said = answer.stdout.splitlines()
    assert any(line.startswith("control-plane: [1/6]") and "building from" in line for line in said), said
    assert any(line.startswith("chart-tools: ready after") for line in said), said
    # What this machine cannot have is no failure, and has its reason.
    assert [line.split(":")[:2] for line in said if "left out" in line] in (
        [["real-nodes", " left out"], ["images", " left out"]],
        [["images", " left out"], ["real-nodes", " left out"]],
    )
    # Where all is there nothing is said, and nothing built.
    again = run(machine, "control-plane", "chart-tools", "prometheus")
    assert (again.returncode, again.stdout) == (0, "")
    assert compiled(machine) == order


def test_a_line_is_written_whole_so_that_none_comes_between_it_and_its_end(machine: dict[str, str]) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # each write is a packet of its own
    command = [sys.executable, "-m", "flyball_testbed.builds", "prometheus"]
    with ours, theirs:
        subprocess.run(
            command, env=machine | {"PYTHONUNBUFFERED": "1"}, stdout=theirs.fileno(), check=True, timeout=240
        )
        theirs.close()
        written = list(iter(lambda: ours.recv(65536), b""))
    assert len(written) > 1
    assert [packet for packet in written if not re.fullmatch(rb"prometheus: [^\n]+\n", packet)] == []


def test_what_cannot_be_built_is_named_and_the_others_are_built_all_the_same(machine: dict[str, str]) -> None:
    answer = run(machine | {"GO_FAILS_ON": build.PACKAGES["helm"]}, "chart-tools", "prometheus")
    assert answer.returncode == 1
    assert "chart-tools: failed:" in answer.stdout
    assert "does not compile" in answer.stdout
    assert build.PACKAGES["promtool"] in compiled(machine)


def test_one_that_is_ended_leaves_no_compiler_behind(machine: dict[str, str]) -> None:
    command = [sys.executable, "-m", "flyball_testbed.builds"]
    process = subprocess.Popen(command, env=machine | {"GO_SECONDS": "600"}, stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: len(compiled(machine)) == 2, lambda: f"both compile: {compiled(machine)}")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    compilers = [int(line.split()[1]) for line in Path(machine["GO_RECORD"]).read_text().splitlines()]
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in compilers), f"{compilers} are gone")


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["builds", "helm"])
    with pytest.raises(SystemExit):
        builds.main()
    assert "helm: none of control-plane, real-nodes, chart-tools, prometheus, images" in capsys.readouterr().err


def test_a_failure_ends_none_of_those_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_report: Report) -> None:
        raise BinariesUnavailableError("no etcd")

    lines: list[str] = []
    monkeypatch.setitem(builds.BUILDS, "control-plane", fails)
    monkeypatch.setitem(builds.BUILDS, "prometheus", lambda report: report("fetching"))
    assert not builds.build(["control-plane", "prometheus"], lines.append)
    assert lines[0] == "control-plane: failed: no etcd"
    assert lines[1] == "prometheus: fetching"


def test_images_that_cannot_be_built_keep_no_test_from_being_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_report: Report) -> dict[str, Path]:
        raise ImageBuildError("no way to the mirror")

    lines: list[str] = []
    monkeypatch.setattr(builds, "find_images", fails)
    assert builds.build(["images"], lines.append)
    assert lines == ["images: left out: no way to the mirror"]


def test_every_build_is_in_a_chain() -> None:
    assert sorted(name for chain in builds.SIDE_BY_SIDE for name in chain) == sorted(builds.BUILDS)
