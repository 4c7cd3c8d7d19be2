"""Free TCP ports on loopback, kept clear of the range from which the kernel gives ports to outgoing connections."""

from __future__ import annotations

import random
import socket
from pathlib import Path

LOOPBACK = "127.0.0.1"
LOWEST_PORT = 10_000
EPHEMERAL_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
DEFAULT_EPHEMERAL_START = 32_768
ATTEMPTS = 200


def _ephemeral_start() -> int:
    try:
        return int(EPHEMERAL_RANGE_FILE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return DEFAULT_EPHEMERAL_START


def is_free(port: int) -> bool:
    """Whether a server could bind `port` on loopback now (nothing keeps it free after that)."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As Go's listeners do: a port whose last connections linger in TIME_WAIT counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A port that was free just now.

    Not one from the ephemeral range: a component that is stopped and started again must find its port free, and there
    any client that retries could have been given it (or have connected to itself). Raises OSError where none is found.
    """
    highest = max(LOWEST_PORT + 1000, _ephemeral_start() - 1)
    for _ in range(ATTEMPTS):
        port = random.randint(LOWEST_PORT, min(highest, 65_535))  # noqa: S311 - a spread, not a secret
        if is_free(port):
            return port
    raise OSError(f"no free TCP port on {LOOPBACK} in {ATTEMPTS} tries between {LOWEST_PORT} and {highest}")
