"""How often something may happen."""

from __future__ import annotations

import time
from collections.abc import Callable


class Rate:
    """A bucket of tokens: `burst` at once, and `per_second` over time."""

    def __init__(self, per_second: float, burst: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._per_second, self._burst, self._monotonic = per_second, burst, monotonic
        self._tokens, self._at = burst, monotonic()

    def take(self) -> bool:
        """Whether it may happen once more now."""
        now = self._monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._per_second)
        self._at = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
