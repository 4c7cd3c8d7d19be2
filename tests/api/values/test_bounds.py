"""The least of several bounds, of which there may be none."""

from __future__ import annotations

import pytest
from flyball_api.values.bounds import least


@pytest.mark.parametrize(
    ("bounds", "found"),
    [((), None), ((None,), None), ((3,), 3), ((None, 3), 3), ((3, None, 2), 2), ((0, 3), 0), ((None, None), None)],
)
def test_a_bound_that_is_none_bounds_nothing(bounds: tuple[int | None, ...], found: int | None) -> None:
    assert least(*bounds) == found
