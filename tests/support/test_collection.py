"""What is collected costs the garbage collector nothing while the tests run."""

from __future__ import annotations

import gc
import sys

import pytest


def test_what_was_imported_for_the_tests_is_looked_through_no_more(request: pytest.FixtureRequest) -> None:
    assert gc.isenabled()
    assert gc.get_freeze_count() > len(sys.modules)
    young = {id(item) for item in gc.get_objects()}  # all but what is frozen
    assert id(vars(sys.modules[__name__])) not in young
    assert id(request.node) not in young
