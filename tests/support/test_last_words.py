"""The report of a failed test has what its fixtures said last."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest
from tests.support.last_words import last_words

class Part:
    pass

class Whole:
    part = Part()

@last_words.register
def _of_a_part(part: Part):
    return [("part", "it could not bind its port")]

@last_words.register
def _of_a_whole(whole: Whole):
    return last_words(whole.part)

@pytest.fixture
def whole():
    return Whole()

def test_that_fails(tmp_path, whole):
    assert False

def test_that_passes(whole):
    pass
"""


def test_a_failed_test_says_what_stood_behind_it_and_no_other(pytester: pytest.Pytester) -> None:
    pytester.makeini(
        f"""
        [pytest]
        addopts = -p tests.support.last_words -p no:cacheprovider -p no:hypothesispytest -p no:asyncio
        pythonpath = {ROOT}
        """
    )
    pytester.makepyfile(test_a=TESTS)
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=1, failed=1)
    assert result.stdout.str().count("it could not bind its port") == 1
