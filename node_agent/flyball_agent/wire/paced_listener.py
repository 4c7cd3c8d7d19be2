"""Connections to one socket, taken no more often than a rate: who connects and goes again costs a loop turn each time."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

from flyball_kube.serving.token_bucket import TokenBucket

PAUSE_SECONDS = 0.05

Connected = Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]


class PacedListener:
    """Gives the connections of a socket that listens to `connected`, as asyncio's servers do, each for a token of `bucket`.

    Who comes while there is none waits in the kernel's queue, and whoever comes when that is full, in his own process.
    """

    def __init__(self, listening: socket.socket, connected: Connected, bucket: TokenBucket) -> None:
        listening.setblocking(False)  # noqa: FBT003 - the socket's own
        self._socket = listening
        self._connected = connected
        self._bucket = bucket
        self._again: asyncio.TimerHandle | None = None
        self._beginning: set[asyncio.Task[None]] = set()
        self._listen()

    def close(self) -> None:
        """Take no more connections; those that were taken are whose they are."""
        if self._again is not None:
            self._again.cancel()
        for task in self._beginning:
            task.cancel()
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()

    def _listen(self) -> None:
        self._again = None
        asyncio.get_running_loop().add_reader(self._socket, self._take)

    def _rest(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket)
        self._again = loop.call_later(PAUSE_SECONDS, self._listen)

    def _take(self) -> None:
        if not self._bucket.take():
            self._rest()
            return
        try:
            accepted, _ = self._socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # who came has gone again
        except OSError:  # no descriptor is left, for instance: what has come stays in the queue
            self._rest()
            return
        task = asyncio.get_running_loop().create_task(self._begin(accepted))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    async def _begin(self, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader(loop=loop), self._connected, loop=loop)
        accepted.setblocking(False)  # noqa: FBT003 - the socket's own
        try:
            await loop.connect_accepted_socket(lambda: protocol, accepted)
        except BaseException:
            with contextlib.suppress(OSError):
                accepted.close()
            raise
