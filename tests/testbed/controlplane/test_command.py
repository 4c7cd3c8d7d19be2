"""`flyball devcluster` from the shell."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from flyball_testbed.controlplane.components import COMPONENTS
from flyball_testbed.controlplane.control_plane import ControlPlane
from flyball_testbed.controlplane.processes import ProcessIdentity, wait_until
from flyball_testbed.parts import AGENTS, OPERATOR, PAGE, WORKLOAD
from flyball_testbed.standing import addresses_of, processes_of

pytestmark = pytest.mark.cluster


class Flyball:
    """Runs `flyball devcluster` in a home of its own."""

    def __init__(self, home: Path) -> None:
        self._environment = {**os.environ, "XDG_STATE_HOME": str(home / "state"), "COLUMNS": "120"}
        self.directory = home / "state" / "flyball" / "devcluster"

    def __call__(self, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        answer = subprocess.run(
            self._command(*arguments),
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert answer.returncode == status, answer.stderr
        return answer

    def background(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(self._command(*arguments), env=self._environment, stderr=subprocess.PIPE, text=True)

    def _command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-c", "from flyball_cli.main import main; main()", "devcluster", *arguments]


@pytest.fixture
def flyball(tmp_path: Path) -> Iterator[Flyball]:
    """The command; what is still up at the end is taken down."""
    run = Flyball(tmp_path)
    yield run
    run("down", "--all")


def identities(directory: Path) -> list[ProcessIdentity]:
    plane = ControlPlane.attach(directory)
    return [plane.component(name).identity for name in COMPONENTS]


@pytest.mark.long
def test_up_runs_on_until_down(flyball: Flyball) -> None:
    up = flyball("up", "--nodes", "2", "--gpus-per-node", "4", "--name", "mine")
    assert "2 nodes with 4 GPUs each" in up.stderr
    directory = flyball.directory / "mine"
    parts = processes_of(directory)
    assert {part.name for part in parts} >= {AGENTS, WORKLOAD, OPERATOR, PAGE}, "and who scrapes, where that is there"
    page = addresses_of(directory)[PAGE]
    assert f"{page}  the status page" in up.stderr
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{page}readyz", timeout=30) as answer:
        assert answer.status == 200
    processes = [*identities(directory), *(part.identity for part in parts)]
    assert all(process.is_running() for process in processes), "they live on without the command that started them"

    names = flyball("kubectl", "--name", "mine", "--", "get", "nodes", "-o", "name").stdout
    assert names.split() == ["node/node-000", "node/node-001"]
    status = flyball("status").stdout
    assert "mine" in status
    assert "2 nodes" in status
    assert all(name in status for name in (*COMPONENTS, AGENTS, WORKLOAD, OPERATOR, page))

    path = flyball("kubeconfig", "--name", "mine").stdout.strip()
    assert flyball("env", "--name", "mine").stdout.strip() == f"export KUBECONFIG={path}"
    account = flyball("kubeconfig", "--name", "mine", "--service-account", "flyball-system/flyball-operator").stdout
    whoami = flyball("kubectl", "--name", "mine", "--", f"--kubeconfig={account.strip()}", "auth", "whoami").stdout
    assert "system:serviceaccount:flyball-system:flyball-operator" in whoami

    again = flyball("up", "--name", "mine", status=1)
    assert "already up" in again.stderr
    assert all(process.is_running() for process in processes)

    flyball("down", "--name", "mine")
    assert not any(process.is_running() for process in processes)
    assert not directory.exists()
    assert "no devcluster" in flyball("status").stdout


def test_status_fails_where_a_component_is_lost(flyball: Flyball) -> None:
    flyball("up", "--bare", "--nodes", "0", "--name", "hurt")
    ControlPlane.attach(flyball.directory / "hurt").kill_component("kube-scheduler")
    status = flyball("status", "--name", "hurt", status=1).stdout
    assert "not running" in status
    assert "kube-scheduler.log" in status
    # What is left of it gives way to a new one only when it is down.
    assert "already up" in flyball("up", "--bare", "--nodes", "0", "--name", "hurt", status=1).stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_foreground_cluster_goes_with_its_command(flyball: Flyball, number: signal.Signals) -> None:
    with flyball.background("up", "--bare", "--nodes", "1", "--name", "here", "--foreground") as up:
        for line in up.stderr or ():
            if "Ctrl-C" in line:
                break
        processes = identities(flyball.directory / "here")
        up.send_signal(number)
        assert up.wait(timeout=60) == 128 + number
    assert not any(process.is_running() for process in processes)
    assert not (flyball.directory / "here").exists()


def test_a_foreground_cluster_ends_when_another_shell_takes_it_down(flyball: Flyball) -> None:
    with flyball.background("up", "--bare", "--nodes", "0", "--name", "here", "--foreground") as up:
        for line in up.stderr or ():
            if "Ctrl-C" in line:
                break
        flyball("down", "--name", "here")
        assert up.wait(timeout=60) == 0


def test_an_interrupted_start_leaves_nothing(flyball: Flyball) -> None:
    with flyball.background("up", "--bare", "--nodes", "1", "--name", "brief") as up:
        directory = flyball.directory / "brief"
        assert wait_until((directory / "logs" / "kube-apiserver.log").exists, 60)
        processes = [process.identity for process in ControlPlane.attach(directory)._processes.values()]
        assert processes
        up.send_signal(signal.SIGINT)
        assert up.wait(timeout=60) == 130
    assert not any(process.is_running() for process in processes)
    assert not directory.exists()
    assert "no devcluster" in flyball("status").stdout


def test_mistakes_are_answered_with_what_would_be_right(flyball: Flyball) -> None:
    assert (
        "start one with: flyball devcluster up --name nowhere"
        in flyball("kubectl", "--name", "nowhere", "--", "get", "pods", status=1).stderr
    )
    assert "--install is for real nodes" in flyball("up", "--install", status=1).stderr
    assert "exclude each other" in flyball("up", "--bare", "--api-only", status=1).stderr
    assert "'../etc' is no cluster name" in flyball("up", "--name", "../etc", status=1).stderr
    assert "there is no devcluster 'nowhere'" in flyball("down", "--name", "nowhere").stderr
