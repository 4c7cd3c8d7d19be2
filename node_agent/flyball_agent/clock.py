"""The clock of the agent's leases and of its energy accounts: it goes on during suspend, and nobody can set it."""

from __future__ import annotations

import time

NANOSECONDS = 1_000_000_000  # a second


def boottime_ns() -> int:
    """Nanoseconds since boot, time asleep included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
