"""Kubernetes' quantities ("500m", "128Gi", "1e3") as whole thousandths of their unit, so that sums are exact."""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache
from typing import Any

# Longer than any that an API server gives; in a template of our own kind, which it does not look into, stands whatever a
# user has written: a number of a megabyte takes from seconds to hours to read.
LONGEST_QUANTITY = 64
# Of any larger quantity an API server makes this.
_MOST_THOUSANDTHS = 1000 * (2**63 - 1)
_QUANTITY = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?)(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {name: 1024**power for power, name in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)}


def thousandths(value: Any) -> int:
    """A quantity in thousandths of its unit, rounded up, as an API server bounds it; 0 where it is none, or too long."""
    text = str(value)
    return _thousandths(text) if len(text) <= LONGEST_QUANTITY else 0


@lru_cache(maxsize=1024)  # thousands of pods ask for the same few quantities
def _thousandths(text: str) -> int:
    found = _QUANTITY.fullmatch(text)
    if found is None:
        return 0
    number, suffix = Decimal(found[1]), found[2] or ""
    scaled = number * _BINARY[suffix] if suffix in _BINARY else number.scaleb(_DECIMAL.get(suffix, 0))
    rounded = int((scaled * 1000).to_integral_value(ROUND_CEILING))
    return max(-_MOST_THOUSANDTHS, min(rounded, _MOST_THOUSANDTHS))
