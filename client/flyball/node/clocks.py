"""Asks the node's agent for a GPU's clock in one small datagram: what a computation can spare before it begins."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Mapping
from typing import Callable, Protocol

SOCKET_NAME = "clocks.sock"
# The agent forgets a clock ten seconds after it was asked for.
RENEW_SECONDS = 3.0
RETRY_SECONDS = 1.0
ALL_GPUS = "*"


def own_gpu(variables: Mapping[str, str], local_rank: int) -> str | None:
    """The UUID of this process' GPU, as the device plugin names the pod's; all of the pod's where that is one.

    None where the pod has several and none is named: to ask for all would set the other processes' clocks.
    """
    named = variables.get("NVIDIA_VISIBLE_DEVICES", "").split(",")
    if local_rank < len(named) and named[local_rank].startswith("GPU-"):
        return named[local_rank]
    return ALL_GPUS if variables.get("FLYBALL_LOCAL_GPUS", "1") == "1" else None


class ClockRequests(Protocol):
    """What takes requests for a GPU's clock."""

    def ask(self, megahertz: int) -> None:
        """Let the GPU run no faster than this from now on."""
        ...


class Clock:
    """The clock of one GPU, asked for at the socket beside `agent_socket`; without an agent nothing happens.

    Nothing is awaited: a datagram that cannot be sent at once is left out, and the GPU runs as fast as before.
    """

    def __init__(self, agent_socket: str, gpu: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._path = os.path.join(os.path.dirname(agent_socket), SOCKET_NAME)
        self._gpu = gpu
        self._monotonic = monotonic
        self._socket: socket.socket | None = None
        self._not_before = 0.0
        self._asked: int | None = None
        self._renew_at = 0.0

    def ask(self, megahertz: int) -> None:
        """Let the GPU run no faster than this from now on; what it is asked for already is asked again now and then."""
        now = self._monotonic()
        if megahertz == self._asked and now < self._renew_at:
            return
        if self._socket is None and not self._connect(now):
            return
        try:
            self._socket.send(b"%s %d" % (self._gpu.encode(), megahertz))  # type: ignore[union-attr]
        except BlockingIOError:
            self._asked = None
            return
        except OSError:
            self.close()
            return
        self._asked, self._renew_at = megahertz, now + RENEW_SECONDS

    def _connect(self, now: float) -> bool:
        if now < self._not_before:
            return False
        self._not_before = now + RETRY_SECONDS
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        connection.setblocking(False)  # noqa: FBT003 - the socket's own
        try:
            connection.connect(self._path)
        except OSError:
            connection.close()
            return False
        self._socket = connection
        return True

    def close(self) -> None:
        """Ask no more; the agent forgets the last clock by itself."""
        self._asked = None
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None
