"""The rule of the marker `cluster`, on made-up test files: what starts a control plane has it, or fails."""

from __future__ import annotations

from pathlib import Path

import pytest
from flyball_testbed.controlplane.programs.binaries import PROGRAMS
from flyball_testbed.controlplane.programs.build import MODULE_OF_PROGRAM, pinned_version

from tests.support.control_plane import REFUSING_PROGRAM

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parents[2]
PREAMBLE = """
import subprocess
import sys
import pytest
from flyball_testbed.controlplane.programs.binaries import find_binaries
from flyball_testbed.controlplane.cluster import DevCluster
from flyball_testbed.controlplane.control_plane import ControlPlane
from tests.support.control_plane import REFUSAL
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Where test files are made, in a project with the plugin of the control plane."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    pytester.makeini(
        f"""
        [pytest]
        addopts = -p tests.support.control_plane -p no:cacheprovider -p no:hypothesispytest -p no:asyncio
        pythonpath = {ROOT}
        markers =
            cluster: starts a control plane
        """
    )
    return pytester


@pytest.mark.slow
def test_an_unmarked_test_that_starts_a_control_plane_fails(run: pytest.Pytester) -> None:
    program = "from flyball_testbed.controlplane.control_plane import ControlPlane\\nControlPlane.start()"
    run.makepyfile(
        PREAMBLE
        + f"""
def test_directly():
    ControlPlane.start()

@pytest.fixture(scope="session")
def a_cluster_of_its_own():
    with DevCluster.start(0) as cluster:
        yield cluster

def test_by_a_fixture(a_cluster_of_its_own):
    pass

def test_by_a_command():
    subprocess.run([sys.executable, "-c", "{program}"], check=True)
"""
    )
    result = run.runpytest_subprocess("-m", "not cluster")
    result.assert_outcomes(failed=2, errors=1)
    result.stdout.fnmatch_lines_random(
        [
            "*etcd ended with status 1*",
            "*a test without the marker `cluster` started a control plane: mark it*",
        ]
    )
    assert str(result.stdout).count("a test without the marker `cluster` started a control plane") >= 3


def test_what_asks_for_the_programs_is_marked_however_many_fixtures_lie_between(run: pytest.Pytester) -> None:
    run.makepyfile(
        PREAMBLE
        + """
@pytest.fixture
def far(cluster):
    return cluster

@pytest.fixture
def farther(far):
    return far

def test_own_site(control_plane_programs): ...
def test_shared(control_plane): ...
def test_isolated(cluster): ...
def test_fresh(fresh_cluster): ...
def test_far(farther): ...
@pytest.mark.usefixtures("farther")
def test_used(): ...
@pytest.mark.cluster
def test_by_itself(): ...
def test_of_something_else(tmp_path): ...
"""
    )
    result = run.runpytest_subprocess("--collect-only", "-q", "-m", "not cluster")
    result.stdout.fnmatch_lines(["*::test_of_something_else", "*1/8 tests collected (7 deselected)*"])


@pytest.mark.slow
def test_a_marked_test_finds_the_real_programs(run: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its environment stays as it was, while that of the unmarked one beside it does not."""
    assets = run.mkdir("assets")
    for program in PROGRAMS:
        version = pinned_version(MODULE_OF_PROGRAM[program])
        (assets / program).write_text(REFUSING_PROGRAM.format(version=version, refusal="started by nothing here"))
        (assets / program).chmod(0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    run.makepyfile(
        f"""
import os
import pytest

@pytest.mark.cluster
def test_marked():
    assert os.environ["KUBEBUILDER_ASSETS"] == {str(assets)!r}

def test_unmarked():
    assert os.environ["KUBEBUILDER_ASSETS"] != {str(assets)!r}
"""
    )
    result = run.runpytest_subprocess()
    result.assert_outcomes(passed=2)
