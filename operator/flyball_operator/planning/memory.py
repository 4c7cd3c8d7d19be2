"""What memory a process has taken, and how much its container may take."""

from __future__ import annotations

import math
import os
from pathlib import Path

# cgroup v2. Version 1 kills the largest process of a container that has taken too much, not all of them.
CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")


def container_bytes(limit: Path = CONTAINER_LIMIT) -> float:
    """What all processes of this container together may take; infinite where nothing says."""
    try:
        return float(limit.read_text())
    except (OSError, ValueError):  # no such file, or `max`
        return math.inf


def process_bytes(pid: int) -> int:
    """What a process has in memory; 0 where nobody says, as of one that has ended."""
    try:
        resident = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except (OSError, IndexError):
        return 0
    return int(resident) * os.sysconf("SC_PAGE_SIZE")
