"""A TCP proxy on loopback that fails the way networks do: cut, silent, slow."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self


class Proxy:
    """Passes connections on to `target_port`, and breaks them when told to.

    `cut` closes what is open (RST); `refusing` closes what comes; while `silent`, nothing passes either way and nothing is
    closed; `delay_seconds` holds every chunk back; `hold_answers` lets requests pass and keeps the answers.
    """

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._open = asyncio.Event()
        self._open.set()
        self._answers = asyncio.Event()
        self._answers.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.refusing = False
        self.delay_seconds = 0.0
        self.accepted = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.cut()
        await self._server.wait_closed()

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def connections(self) -> int:
        return len(self._writers) // 2

    @property
    def silent(self) -> bool:
        return not self._open.is_set()

    @silent.setter
    def silent(self, silent: bool) -> None:
        _set(self._open, not silent)

    @property
    def hold_answers(self) -> bool:
        return not self._answers.is_set()

    @hold_answers.setter
    def hold_answers(self, hold: bool) -> None:
        _set(self._answers, not hold)

    def cut(self) -> None:
        """Reset every connection that is open now."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self.refusing:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._writers.add(writer)
        upstream: asyncio.StreamWriter | None = None
        try:
            upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", self._target_port)
            self._writers.add(upstream)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass(reader, upstream, self._open))
                group.create_task(self._pass(upstream_reader, writer, self._answers))
        except (OSError, ExceptionGroup):
            pass
        finally:
            for end in (writer, upstream):
                if end is not None:
                    self._writers.discard(end)
                    end.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event) -> None:
        while chunk := await reader.read(2**16):
            await self._open.wait()
            await gate.wait()
            if self.delay_seconds:
                await asyncio.sleep(self.delay_seconds)
            writer.write(chunk)
            await writer.drain()
        writer.close()


def _set(event: asyncio.Event, value: bool) -> None:
    if value:
        event.set()
    else:
        event.clear()
