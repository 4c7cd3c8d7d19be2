"""How long a connection of an HTTP server may take for a request and its answer.

uvicorn bounds how many connections there are, how long a header is, and how long one idles between two requests; it
waits for ever for the rest of a request that has begun, and for who does not read the answer.
"""

from __future__ import annotations

import asyncio
from typing import Any


class TimedRequests(asyncio.Protocol):
    """Ends a connection whose request takes longer than `request_seconds`: from its first byte (of the first one, from the
    connection's beginning) until its answer has left this process. To be mixed into uvicorn's H11Protocol."""

    request_seconds: float
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._deadline: asyncio.TimerHandle | None = None
        self._asking = True  # not between two requests

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._arm()

    def data_received(self, data: bytes) -> None:
        if not self._asking:
            self._asking = True
            self._arm()
        super().data_received(data)

    def on_response_complete(self) -> None:
        # The whole answer has been handed over, and lies in the buffer for as long as nobody reads it.
        self._asking = False
        self._arm()
        super().on_response_complete()  # type: ignore[misc]

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def _arm(self) -> None:
        self._disarm()
        self._deadline = self.loop.call_later(self.request_seconds, self._expire)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expire(self) -> None:
        self._deadline = None
        if self._asking or self.transport.get_write_buffer_size():
            self.transport.abort()
