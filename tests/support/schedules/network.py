"""The way between one process and the API server, and everything that can happen to a request or a watch on it.

A request that the client has given up, or whose client has died, still arrives: what is on its way cannot be called back.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime, timedelta
from email.utils import format_datetime
from typing import Any, Self

from flyball_kube.errors import ApiError, ApiUnreachable
from flyball_kube.server_clock import ServerClock

from tests.support.operator_objects import NOW
from tests.support.schedules.memory_api import Change, Json, MemoryApi, plural_of, selected_name
from tests.support.schedules.virtual_time import OUTSIDE

LATENCY_SECONDS = 0.002
TIMEOUT_SECONDS = 2.5
WATCH_ENDS_SECONDS = 6.0  # the server may end any watch at any time
FATES = ("answered", "lost", "answer lost", "late", "answered late", "twice")
LATEST_SECONDS = 6.0  # so long after it was sent, a request still arrives


class Network:
    """The API server as processes reach it: `up` is False while nobody does."""

    def __init__(self, api: MemoryApi) -> None:
        self.api = api
        self.up = True
        self.links: list[Link] = []

    def go_down(self) -> None:
        """The API server's process ends: every connection breaks."""
        self.up = False
        for link in self.links:
            link.break_watches()

    def come_up(self) -> None:
        self.up = True


class Link:
    """One process' connection. Until `troubled_until`, requests meet fates drawn from `draw`; until `cut_until` nothing
    passes either way; watches bring changes `lag_seconds` late until `lagging_until`; one request is `held_up`."""

    def __init__(self, network: Network, draw: random.Random) -> None:
        self.network = network
        self.draw = draw
        self.troubled_until = 0.0
        self.cut_until = 0.0
        self.lagging_until = 0.0
        self.lag_seconds = 0.0
        self.held_up: dict[
            tuple[str, str], asyncio.Event
        ] = {}  # by method and path: the next such request waits for it
        self._waiting: set[asyncio.Task[bool]] = set()
        self._streams: list[_Stream] = []
        network.links.append(self)

    def clear(self, now: float) -> bool:
        """Nothing is the matter with this link now, and nothing late is still on its way."""
        return (
            self.network.up
            and now >= self.troubled_until
            and now >= self.cut_until
            and now >= self.lagging_until
            and not any(stream.behind(now) for stream in self._streams)
        )

    def close(self) -> None:
        """The process has ended."""
        self.network.links.remove(self)
        self.break_watches()

    def break_watches(self) -> None:
        for stream in list(self._streams):
            stream.break_off()

    def session(
        self, timeout_seconds: float = TIMEOUT_SECONDS, wall_clock: Callable[[], datetime] | None = None
    ) -> MemorySession:
        return MemorySession(self, timeout_seconds, wall_clock)

    def send(self, work: Callable[[], Json], held_up: asyncio.Event | None = None) -> asyncio.Future[Json]:
        """Have the API server do `work`, or not, sooner or later; the answer comes, or never does."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Json] = loop.create_future()
        now = loop.time()
        fate = self.draw.choice(FATES) if now < self.troubled_until else "answered"
        arrives = max(0.0, self.cut_until - now) + LATENCY_SECONDS
        if fate == "late":
            arrives += self.draw.uniform(0.0, LATEST_SECONDS)
        if fate == "lost" or (self.cut_until > now and self.draw.random() < 0.5):
            return answer
        back = LATENCY_SECONDS + (self.draw.uniform(0.0, LATEST_SECONDS) if fate == "answered late" else 0.0)

        def arrive(answers: bool) -> None:
            if not self.network.up:
                if answers:
                    loop.call_later(back, _refuse, answer, context=OUTSIDE)
                return
            try:
                result: Json | ApiError = work()
            except ApiError as error:
                result = error
            if answers:
                loop.call_later(max(back, self.cut_until - loop.time()), _deliver, answer, result, context=OUTSIDE)

        if held_up is not None:
            waiting = loop.create_task(held_up.wait(), context=OUTSIDE.copy())
            waiting.add_done_callback(lambda _: loop.call_later(LATENCY_SECONDS, arrive, False), context=OUTSIDE)
            self._waiting.add(waiting)
            return answer
        loop.call_later(arrives, arrive, fate != "answer lost", context=OUTSIDE)
        if fate == "twice":
            loop.call_later(arrives + self.draw.uniform(0.0, LATEST_SECONDS), arrive, False, context=OUTSIDE)
        return answer

    def open(self, plural: str, only: str | None, version: int, ends: float) -> _Stream:
        stream = _Stream(self, plural, only, version, ends)
        self._streams.append(stream)
        return stream

    def forget(self, stream: _Stream) -> None:
        self._streams.remove(stream)


def _refuse(answer: asyncio.Future[Json]) -> None:
    if not answer.done():
        answer.set_exception(ApiUnreachable("connection refused"))


def _give_up(answer: asyncio.Future[Json], request: str, seconds: float) -> None:
    if not answer.done():
        answer.set_exception(ApiUnreachable(f"{request}: no answer within {seconds} s"))


def _deliver(answer: asyncio.Future[Json], result: Json | ApiError) -> None:
    if answer.done():
        return
    if isinstance(result, ApiError):
        answer.set_exception(result)
    else:
        answer.set_result(result)


class _Stream:
    """The changes of one watch on their way to the client, until the server `ends` it."""

    def __init__(self, link: Link, plural: str, only: str | None, version: int, ends: float) -> None:
        self._link = link
        self._plural = plural
        self._only = only
        self._after = version
        self._ends = ends
        self._loop = asyncio.get_running_loop()
        self._ready: deque[tuple[float, Change]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._last_ready = 0.0
        self._end = self._loop.call_at(ends, self._wake, context=OUTSIDE)
        self.broken = False
        for change in link.network.api.open(plural, version, self.take):
            self.take(change)

    def take(self, change: Change) -> None:
        if change.version <= self._after:
            return  # what a watch that asked for more than a restored store has is not told of, until that has passed it
        if self._only is not None and self._only != change.item["metadata"]["name"]:
            return
        now = self._loop.time()
        lag = self._link.lag_seconds if now < self._link.lagging_until else 0.0
        self._last_ready = max(self._last_ready, self._link.cut_until, now + LATENCY_SECONDS + lag)
        self._ready.append((self._last_ready, change))
        self._loop.call_at(self._last_ready, self._wake, context=OUTSIDE)

    def behind(self, now: float) -> bool:
        return bool(self._ready) and self._ready[-1][0] > now + 2 * LATENCY_SECONDS

    def break_off(self) -> None:
        self.broken = True
        self._wake()

    def close(self) -> None:
        self._end.cancel()
        self._link.network.api.close(self._plural, self.take)
        self._link.forget(self)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> Change | None:
        """The next change; None once the server ends the watch. Raises ApiUnreachable where it breaks."""
        while True:
            now = self._loop.time()
            if self.broken:
                raise ApiUnreachable("watch broken")
            if self._ready and self._ready[0][0] <= now + 1e-6:
                return self._ready.popleft()[1]
            if now >= self._ends - 1e-6:
                if now >= self._link.cut_until and not self._ready:
                    return None
                # That it has ended comes no sooner than anything else.
                ends = max(now + LATENCY_SECONDS, self._link.cut_until)
                self._end = self._loop.call_at(ends, self._wake, context=OUTSIDE)
            self._waiter = self._loop.create_future()
            await self._waiter


class MemorySession:
    """What `ApiSession` is to the operator and the agents, over a link to the API server in memory.

    `wall_clock` is the machine's, which is compared with the server's; None: with none.
    """

    def __init__(self, link: Link, timeout_seconds: float, wall_clock: Callable[[], datetime] | None = None) -> None:
        self._link = link
        self._timeout_seconds = timeout_seconds
        self._wall_clock = wall_clock
        wall = (lambda: 0.0) if wall_clock is None else lambda: wall_clock().timestamp()
        self.server_clock = ServerClock(wall, asyncio.get_running_loop().time)
        self._before_sending: Callable[[], None] = lambda: None

    def guarded(self, before_sending: Callable[[], None]) -> Self:
        session = copy.copy(self)
        session._before_sending = before_sending
        return session

    def with_turns_of_its_own(self, connections: int) -> Self:
        return self  # nothing waits for its turn here

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "",
        timeout_seconds: float | None = None,
    ) -> Json:
        self._before_sending()
        sent = None if self._wall_clock is None else self._wall_clock()
        api, selection = self._link.network.api, dict(params or {})
        held_up = self._link.held_up.pop((method, path), None)
        answer = self._link.send(lambda: api.handle(method, path, selection, body), held_up)
        seconds = self._timeout_seconds if timeout_seconds is None else timeout_seconds
        given_up = asyncio.get_running_loop().call_later(seconds, _give_up, answer, f"{method} {path}", seconds)
        try:
            found = await answer
        finally:
            given_up.cancel()
        if sent is not None and self._wall_clock is not None and self.server_clock.due(sent.timestamp()):
            shown = format_datetime(NOW + timedelta(seconds=asyncio.get_running_loop().time()), usegmt=True)
            self.server_clock.answered(shown, sent.timestamp(), self._wall_clock().timestamp())
        return found

    async def get(self, path: str, **params: str) -> Json:
        return await self.request("GET", path, params=params)

    async def create(self, path: str, body: Json, **params: str) -> Json:
        return await self.request("POST", path, params=params, body=body)

    async def replace(self, path: str, body: Json) -> Json:
        return await self.request("PUT", path, body=body)

    async def patch(self, path: str, body: Any, content_type: str = "", **params: str) -> Json:
        return await self.request("PATCH", path, params=params, body=body)

    async def delete(self, path: str, options: Json | None = None) -> Json:
        return await self.request("DELETE", path, body=options)

    async def page(self, path: str, params: Mapping[str, str], max_bytes: int) -> Json:
        return await self.get(path, **params)

    async def watch(self, path: str, *, params: Mapping[str, str], read_timeout_seconds: float) -> AsyncIterator[Json]:
        loop = asyncio.get_running_loop()
        if not self._link.network.up:
            await asyncio.sleep(LATENCY_SECONDS)
            raise ApiUnreachable("connection refused")
        begins = max(LATENCY_SECONDS, self._link.cut_until - loop.time())
        await asyncio.sleep(begins)
        selection = dict(params)
        version = int(selection["resourceVersion"])
        ends = loop.time() + min(WATCH_ENDS_SECONDS, float(selection["timeoutSeconds"]))
        stream = self._link.open(plural_of(path), selected_name(selection), version, ends)
        try:
            while (change := await stream.next()) is not None:
                yield {"type": change.kind, "object": change.item}
            # A version from before a restore has no changes after it, and no bookmark either.
            if self._link.network.api.version >= version:
                bookmark = {"metadata": {"resourceVersion": str(self._link.network.api.version)}}
                yield {"type": "BOOKMARK", "object": bookmark}
        finally:
            stream.close()
