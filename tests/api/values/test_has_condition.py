"""A condition counts where it is there and True, whatever else stands beside it."""

from __future__ import annotations

import pytest
from flyball_api.values.conditions import StoredCondition, has_condition


@pytest.mark.parametrize(("status", "has"), [("True", True), ("False", False), ("Unknown", False)])
def test_only_the_status_of_the_one_that_is_asked_about_counts(status: str, has: bool) -> None:
    others = [StoredCondition("Feasible", "True"), StoredCondition("Breached", "False")]
    assert has_condition([*others, StoredCondition("Enforced", status)], "Enforced") is has
    assert not has_condition(others, "Enforced")
