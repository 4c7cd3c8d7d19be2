"""Shared control planes stay on one worker and end with their last test, and workers begin with what is theirs."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.support.workers import WORKERS_VARIABLE, lanes_of_control_planes

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]

TESTS = {
    "test_a_unit": "def test_a(): ...\ndef test_b(): ...\n",
    "test_b_shared": "def test_c(control_plane): ...\ndef test_of_no_cluster(): ...\n",
    "test_c_shared": "def test_d(control_plane): ...\n",
    "test_d_shared": "def test_e(control_plane): ...\n",
    "test_e_own": "import pytest\n@pytest.mark.cluster\ndef test_f(): ...\n@pytest.mark.cluster\ndef test_g(): ...\n",
    "test_f_long": "import pytest\n@pytest.mark.long\n@pytest.mark.cluster\ndef test_h(): ...\n"
    "@pytest.mark.cluster\ndef test_i(): ...\n",
    "test_g_units": "import pytest\ndef test_j(): ...\n@pytest.mark.long\ndef test_k(): ...\n",
}
STAND_IN = """
import pytest
@pytest.fixture(scope="session")
def control_plane(control_plane_programs, request):
    yield
    print("the control plane has ended after", request.session.testscollected)
@pytest.fixture(scope="session")
def control_plane_programs(): ...
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project with these plugins and a control plane that is none."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.delenv(WORKERS_VARIABLE, raising=False)
    pytester.makeini(
        f"""
        [pytest]
        addopts = -p tests.support.control_plane -p tests.support.workers
            -p no:cacheprovider -p no:hypothesispytest -p no:asyncio
        pythonpath = {ROOT}
        markers =
            cluster: starts a control plane
            long: takes long
        """
    )
    pytester.makeconftest(STAND_IN)
    return pytester


def ran(result: pytest.RunResult) -> list[tuple[str, str]]:
    """Worker and name of each test, in the order in which they ended."""
    return re.findall(r"\[(gw\d)\].* PASSED test_\w+\.py::(test_\w+)", str(result.stdout))


@pytest.mark.slow
def test_of_five_workers_for_two_processors_three_begin_with_control_planes_and_what_is_shared_stays_on_one(
    project: pytest.Pytester,
) -> None:
    allowed = os.sched_getaffinity(0)
    two = len(allowed) > 1  # five workers are what `auto` comes to then
    project.makepyfile(**TESTS)
    os.sched_setaffinity(0, sorted(allowed)[:2])
    try:
        result = project.runpytest_subprocess("-n", "auto" if two else "5", "--dist", "loadfile", "-v")
    finally:
        os.sched_setaffinity(0, allowed)
    result.stdout.fnmatch_lines(["created: 5/*"])
    result.assert_outcomes(passed=12)
    found = ran(result)
    worker = {name: where for where, name in found}
    assert len({worker[name] for name in ("test_c", "test_d", "test_e")}) == 1
    assert len({worker[name] for name in ("test_f", "test_g")}) == 1
    assert len({worker[name] for name in ("test_a", "test_b")}) == 1
    first: dict[str, str] = {}
    for where, name in found:
        first.setdefault(where, name)
    # Which of them has its turn first is chance.
    assert sorted(first.values()) == ["test_a", "test_c", "test_f", "test_h", "test_k"]


@pytest.mark.parametrize(("workers", "lanes"), [(1, 1), (2, 1), (3, 2), (4, 3), (5, 3), (8, 6), (16, 12)])
def test_most_workers_begin_with_control_planes_and_some_with_the_rest(workers: int, lanes: int) -> None:
    assert lanes_of_control_planes(workers) == lanes


@pytest.mark.slow
def test_what_a_module_has_by_the_name_of_what_is_shared_is_its_own(project: pytest.Pytester) -> None:
    """The worker of what is shared would have its tests to run as well, after all others, while the rest have nothing."""
    own = "import pytest\n@pytest.fixture(scope='module')\ndef control_plane(): ...\ndef test_own(control_plane): ...\n"
    project.makepyfile(test_one="def test_shared(control_plane): ...\n", test_two=own)
    found = ran(project.runpytest_subprocess("-n", "2", "--dist", "loadfile", "-v"))
    assert {name for _, name in found} == {"test_shared", "test_own"}
    assert len({where for where, _ in found}) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "order"),
    [
        ((), ["test_c", "ended", "test_other"]),
        (("-n", "1", "--dist", "loadfile"), ["test_c", "ended", "test_other"]),
    ],
    ids=["here", "on a worker"],
)
def test_what_is_shared_ends_with_the_last_test_that_asks_for_it(
    project: pytest.Pytester, arguments: tuple[str, ...], order: list[str]
) -> None:
    project.makeconftest(STAND_IN.replace("print(", "open('said', 'a').write('ended\\n') or print("))
    say = "open('said', 'a').write('{0}\\n')"
    project.makepyfile(
        test_one=f"def test_before(control_plane): ...\ndef test_c(control_plane): {say.format('test_c')}\n",
        test_two=f"def test_other(): {say.format('test_other')}\n",
    )
    result = project.runpytest_subprocess(*arguments)
    result.assert_outcomes(passed=3)
    assert (project.path / "said").read_text().split() == order
