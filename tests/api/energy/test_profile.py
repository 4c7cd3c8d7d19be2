"""Real numbers in an EnergyProfile: decimal strings that keep every digit."""

from __future__ import annotations

import math
import re

import pytest
from flyball_api.energy.profile import decimal_string
from hypothesis import given
from hypothesis import strategies as st


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-9e98, max_value=9e98))
def test_a_decimal_string_is_the_number_and_what_the_crd_allows(number: float) -> None:
    text = decimal_string(number)
    assert re.fullmatch(r"-?[0-9]{1,20}(\.[0-9]{1,20})?([eE][-+]?[0-9]{1,2})?", text), text
    assert len(text) <= 32
    assert float(text) == number or abs(number) < 1e-99


def test_a_number_that_has_no_decimal_string_is_refused() -> None:
    for number in (math.nan, math.inf, 1e99):
        with pytest.raises(ValueError, match="cannot be written"):
            decimal_string(number)
