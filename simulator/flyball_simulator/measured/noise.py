"""Noise that is the same in every run: a factor is a function of a key, not of the order of draws."""

from __future__ import annotations

import hashlib
import math


def noise_factor(key: str, relative_deviation: float) -> float:
    """A log-normal factor, the same for the same key; 1.0 where the deviation is 0."""
    if relative_deviation == 0.0:
        return 1.0
    digest = hashlib.sha256(key.encode()).digest()
    # Box-Muller from 2 x 48 bits of the digest; the +1 keeps the logarithm's argument above zero.
    first = (int.from_bytes(digest[:6], "big") + 1) / 2.0**48
    second = int.from_bytes(digest[6:12], "big") / 2.0**48
    normal = math.sqrt(-2.0 * math.log(first)) * math.cos(2.0 * math.pi * second)
    return math.exp(relative_deviation * normal)
