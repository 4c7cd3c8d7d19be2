"""Numbers in the sentences of the plan are written as people read them."""

from __future__ import annotations

import re

import pytest
from flyball_planner.decisions.explain import late
from flyball_planner.decisions.texts import joules_text
from hypothesis import given
from hypothesis import strategies as st


@given(st.floats(0, 1e15), st.floats(0, 1e9))
def test_no_number_has_an_exponent(joules: float, seconds: float) -> None:
    said = joules_text(joules) + late(seconds, seconds)
    assert not re.search(r"\de[+-]\d", said), said


@pytest.mark.parametrize(
    ("joules", "text"),
    [(12.345, "12.3 J"), (999.7, "1000 J"), (45_678.0, "45.7 kJ"), (999_700.0, "1000 kJ"), (2.5e12, "2500 GJ")],
)
def test_energy_has_three_digits(joules: float, text: str) -> None:
    assert joules_text(joules) == text


def test_time_is_in_seconds_then_in_minutes_and_then_in_hours() -> None:
    assert late(999.7, 47.23) == " Its deadline is in 47.2 s; it can be done in 16.7 min."
    assert late(4_000_000.0, 4130.4) == " Its deadline is in 68.8 min; it can be done in 1111 h."
