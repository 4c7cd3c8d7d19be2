"""Kubernetes' quantities, exactly."""

from __future__ import annotations

from typing import Any

import pytest
from flyball_api.values.quantities import thousandths

# No API server has larger ones: it writes this in place of them.
MOST = 1000 * (2**63 - 1)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1000),
        (2, 2000),
        ("500m", 500),
        ("0.1", 100),
        (".5", 500),
        ("1e3", 10**6),
        ("2E2", 200_000),
        ("1k", 10**6),
        ("1Ki", 1024_000),
        ("1.5Gi", 1_610_612_736_000),
        ("100n", 1),  # rounded up
        ("1E", 10**21),
        ("", 0),
        ("many", 0),
        (None, 0),
        ("1 Gi", 0),
        ("1.", 1000),
        ("1.m", 1),
        (".", 0),
        ("1" + "0" * 63, MOST),
        ("1e999", MOST),
        ("1e999E", MOST),
        ("9e18", 9 * 10**21),
        ("-1e999Ei", -MOST),
        ("1" + "0" * 64, 0),  # in a template that no API server has looked at, one may be a megabyte
    ],
)
def test_thousandths(text: Any, value: int) -> None:
    assert thousandths(text) == value
