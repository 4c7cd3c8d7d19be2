"""The clock of the simulated hardware: every process of a machine reads the same one."""

from __future__ import annotations

import time


def boottime_ns() -> int:
    """Nanoseconds since boot, time asleep included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
