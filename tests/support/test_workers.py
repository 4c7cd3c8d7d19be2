"""Shared control planes stay on one worker, what starts one comes first, and files stay whole."""

from __future__ import annotations

import re

import pytest

from tests.support.test_cluster_marker import ROOT

pytest_plugins = ["pytester"]

TESTS = {
    "test_a_unit": "def test_a(): ...\ndef test_b(): ...\n",
    "test_b_shared": "def test_c(control_plane): ...\ndef test_of_no_cluster(): ...\n",
    "test_c_shared": "def test_d(control_plane): ...\n",
    "test_d_shared": "def test_e(control_plane): ...\n",
    "test_e_own": "import pytest\n@pytest.mark.cluster\ndef test_f(): ...\n@pytest.mark.cluster\ndef test_g(): ...\n",
}
STAND_IN = """
import pytest
@pytest.fixture(scope="session")
def control_plane(control_plane_programs): ...
@pytest.fixture(scope="session")
def control_plane_programs(): ...
"""


def test_control_planes_come_first_and_each_shared_one_is_on_one_worker(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makeini(
        f"""
        [pytest]
        addopts = -p tests.support.control_plane -p tests.support.workers
            -p no:cacheprovider -p no:hypothesispytest -p no:asyncio
        pythonpath = {ROOT}
        markers =
            cluster: starts a control plane
        """
    )
    pytester.makeconftest(STAND_IN)
    pytester.makepyfile(**TESTS)
    result = pytester.runpytest_subprocess("-n", "2", "--dist", "loadfile", "-v")
    result.assert_outcomes(passed=8)
    ran = re.findall(r"\[(gw\d)\].* PASSED test_\w+\.py::(test_\w+)", str(result.stdout))
    worker = {name: where for where, name in ran}
    assert len({worker[name] for name in ("test_c", "test_d", "test_e")}) == 1
    assert len({worker[name] for name in ("test_f", "test_g")}) == 1
    assert len({worker[name] for name in ("test_a", "test_b")}) == 1
    assert worker["test_c"] != worker["test_f"], "what starts control planes is begun first, side by side"
