"""The clock of everything that must survive suspend and ignore wall-clock steps."""

from __future__ import annotations

import time


def boottime_ns() -> int:
    """Nanoseconds since boot, time asleep included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
