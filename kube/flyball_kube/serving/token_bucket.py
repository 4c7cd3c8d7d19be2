"""How often something may be done: so many times a second on average, and so many at once."""

from __future__ import annotations

import time
from collections.abc import Callable


class TokenBucket:
    """A bucket of `burst` tokens, into which `per_second` flow."""

    def __init__(self, per_second: float, burst: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._per_second, self._burst = per_second, burst
        self._monotonic = monotonic
        self._tokens = burst
        self._at = monotonic()

    def take(self) -> bool:
        """Take a token; False where there is none."""
        now = self._monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._per_second)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
