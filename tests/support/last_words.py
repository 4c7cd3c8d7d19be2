"""What stood behind a failed test says in its report what it said last."""

from __future__ import annotations

from collections.abc import Generator
from functools import singledispatch

import pytest

Sections = list[tuple[str, str]]


@singledispatch
def last_words(value: object) -> Sections:
    """Of one of a test's fixtures, the sections for the report, title and text; registered by who makes such fixtures."""
    return []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put the last words of the first fixture that has some into the report of a failed test."""
    report = yield
    if report.failed:
        found = map(last_words, getattr(item, "funcargs", {}).values())
        report.sections += next(filter(None, found), [])
    return report
