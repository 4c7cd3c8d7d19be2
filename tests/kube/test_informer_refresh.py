"""A refresh: a list that began after it was asked for, whatever the watch brings meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

import pytest
from flyball_kube.errors import ApiError, ApiUnreachable
from flyball_kube.informer import PATIENT, Informer, Patience
from flyball_kube.resources import NODES
from flyball_kube.session import ApiSession, JsonObject

from tests.support.schedules.memory_api import Json, MemoryApi
from tests.support.schedules.network import Link, Network
from tests.support.schedules.virtual_time import VirtualLoop
from tests.support.waiting import until


class BehindSession:
    """An API server whose lists are right, and whose watches bring nothing at all; `failures` lists fail first, `hanging`
    ones are never answered."""

    def __init__(self) -> None:
        self.names = ["a"]
        self.version = 10
        self.lists = self.watches = self.failures = self.hanging = 0

    async def get(self, path: str, **params: str) -> JsonObject:
        self.lists += 1
        if self.hanging:
            self.hanging -= 1
            await asyncio.Event().wait()
        if self.failures:
            self.failures -= 1
            raise ApiUnreachable("cut off by the test")
        items = [{"metadata": {"name": name, "resourceVersion": str(self.version)}} for name in self.names]
        return {"metadata": {"resourceVersion": str(self.version)}, "items": items}

    async def page(self, path: str, params: Mapping[str, str], max_bytes: int) -> JsonObject:
        return await self.get(path, **params)

    async def watch(self, path: str, **options: Any) -> AsyncIterator[JsonObject]:
        self.watches += 1
        await asyncio.Event().wait()
        yield {}


async def test_a_refresh_brings_what_a_watch_that_is_behind_has_missed() -> None:
    session: Any = BehindSession()
    informer: Informer[str] = Informer(session, NODES, lambda raw: str(raw["metadata"]["resourceVersion"]))
    running = asyncio.create_task(informer.run())
    await until(lambda: session.watches == 1)
    assert dict(informer.items()) == {"a": "10"}
    session.names, session.version = ["b"], 20
    await informer.refresh()
    assert dict(informer.items()) == {"b": "20"}
    await until(lambda: session.watches == 2)
    assert informer.broken_watches == 0
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert running.cancelled()


async def test_a_refresh_lasts_until_a_list_has_come() -> None:
    session: Any = BehindSession()
    informer: Informer[str] = Informer(session, NODES, lambda raw: str(raw["metadata"]["resourceVersion"]))
    running = asyncio.create_task(informer.run())
    await until(lambda: session.watches == 1)
    session.version, session.failures = 20, 1
    await asyncio.gather(informer.refresh(), informer.refresh())
    assert session.lists == 3
    assert dict(informer.items()) == {"a": "20"}
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_refresh_waits_for_no_list_that_hangs() -> None:
    session: Any = BehindSession()
    session.hanging = 1
    informer: Informer[str] = Informer(session, NODES, lambda raw: str(raw["metadata"]["resourceVersion"]))
    running = asyncio.create_task(informer.run())
    await until(lambda: session.lists == 1)
    async with asyncio.timeout(5.0):
        await informer.refresh()
    assert dict(informer.items()) == {"a": "10"}
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert running.cancelled()


async def test_a_refresh_that_is_asked_for_as_a_list_ends_waits_for_no_watch() -> None:
    session: Any = BehindSession()
    refreshes: list[asyncio.Task[None]] = []

    def ask(key: str) -> None:
        if not refreshes:  # once the list has ended, and before a watch has begun
            asyncio.get_running_loop().call_soon(lambda: refreshes.append(asyncio.create_task(informer.refresh())))

    informer: Informer[str] = Informer(
        session, NODES, lambda raw: str(raw["metadata"]["resourceVersion"]), on_change=ask
    )
    running = asyncio.create_task(informer.run())
    await until(lambda: len(refreshes) == 1)
    async with asyncio.timeout(5.0):
        await refreshes[0]
    assert session.lists == 2
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_a_refresh_waits_for_no_pause_after_failures() -> None:
    """A leader that takes over after the API server was away must not go on without a look for as long as pauses grew."""

    async def play() -> float:
        loop = asyncio.get_running_loop()
        network = Network(MemoryApi(lambda change: None))
        informer: Informer[Json] = Informer(cast(ApiSession, Link(network, random.Random(1)).session()), NODES, dict)
        running = asyncio.create_task(informer.run())
        await informer.wait_synced()
        network.go_down()
        await asyncio.sleep(60.0)
        network.come_up()
        began_at = loop.time()
        await informer.refresh()
        seconds = loop.time() - began_at
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return seconds

    loop = VirtualLoop()
    assert all(loop.run_until_complete(play()) < 0.1 for _ in range(10))
    loop.close()


def seconds_until_seen(*outages: tuple[float, float], patience: Patience = PATIENT) -> list[float]:
    """How long a new object is unseen once the API server is back from each outage, given as seconds away and then up."""

    async def play(seed: int) -> float:
        loop = asyncio.get_running_loop()
        network = Network(api := MemoryApi(lambda change: None))
        session = cast(ApiSession, Link(network, random.Random(seed)).session())
        informer: Informer[Json] = Informer(session, NODES, dict, patience=patience)
        running = asyncio.create_task(informer.run())
        await informer.wait_synced()
        for away, up in outages:
            network.go_down()
            await asyncio.sleep(away)
            network.come_up()
            began_at = loop.time()
            if (away, up) == outages[-1]:
                api.put("nodes", {"kind": "Node", "metadata": {"name": "late"}})
                await until(lambda: informer.get("late") is not None)
                break
            await asyncio.sleep(up)
        seconds = loop.time() - began_at
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return seconds

    loop = VirtualLoop()
    found = [loop.run_until_complete(play(seed)) for seed in range(20)]
    loop.close()
    return found


def test_pauses_grow_no_longer_than_asked_for() -> None:
    assert max(seconds_until_seen((60.0, 0.0), patience=Patience(last_pause_seconds=1.0))) < 1.3
    assert max(seconds_until_seen((60.0, 0.0))) > 2.0


def test_what_failed_before_a_watch_that_was_served_makes_no_pause_longer() -> None:
    assert max(seconds_until_seen((60.0, 10.0), (0.1, 0.0))) < 0.5
    assert max(seconds_until_seen((60.0, 0.0), (0.1, 0.0))) > 0.5


class Answers:
    """An API server that answers each list by the next of `answers`: after so many seconds, or by raising; of a list that
    was answered all is listed. `under_way` are those that nobody has called back."""

    def __init__(self, *answers: float | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[float] = []
        self.under_way = self.most_under_way = 0

    async def get(self, path: str, **params: str) -> JsonObject:
        self.asked.append(asyncio.get_running_loop().time())
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        answer = self.answers.pop(0)
        try:
            if isinstance(answer, Exception):
                raise answer
            await asyncio.sleep(answer)
        finally:
            self.under_way -= 1
        return {"metadata": {"resourceVersion": "1"}, "items": []}

    async def page(self, path: str, params: Mapping[str, str], max_bytes: int) -> JsonObject:
        return await self.get(path, **params)

    async def watch(self, path: str, **options: Any) -> AsyncIterator[JsonObject]:
        await asyncio.Event().wait()
        yield {}


def seconds_until_listed(server: Answers, patience: Patience) -> float:
    async def play() -> float:
        informer: Informer[JsonObject] = Informer(cast(Any, server), NODES, dict, patience=patience)
        began_at = asyncio.get_running_loop().time()
        running = asyncio.create_task(informer.run())
        await informer.wait_synced()
        seconds = asyncio.get_running_loop().time() - began_at
        assert server.under_way == 0  # nobody waits for what has come by another way
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return seconds

    loop = VirtualLoop()
    seconds = loop.run_until_complete(play())
    loop.close()
    return seconds


NEVER = 1e6
ASKS_AGAIN = Patience(1.0, 1.0)


@pytest.mark.parametrize(
    ("answers", "seconds"),
    [
        ((0.5,), 0.5),
        ((NEVER, 0.5), 1.5),  # lost
        ((NEVER, NEVER, NEVER, 0.1), 3.1),
        ((3.5, NEVER, NEVER, NEVER), 3.5),  # a slow server is not asked anew each time
        ((1.4, 5.0), 1.4),
        ((NEVER, ApiUnreachable("refused"), 0.2), 2.2),
        ((ApiUnreachable("refused"), 0.3), 0.5),  # nobody is left to wait for: a pause, and again
        ((NEVER, ApiError(410, "Expired", "too old", "GET"), 0.1), 1.3),  # a refusal is an answer: a pause, and again
    ],
)
def test_a_list_that_has_no_answer_is_asked_for_once_more_beside_it(
    answers: tuple[float | Exception, ...], seconds: float
) -> None:
    server = Answers(*answers)
    found = seconds_until_listed(server, ASKS_AGAIN)
    assert seconds - 0.11 <= found <= seconds + 1e-6
    assert len(server.asked) == len(answers)
    assert server.most_under_way <= 2


def test_who_has_time_asks_once() -> None:
    server = Answers(30.0)
    assert seconds_until_listed(server, PATIENT) == pytest.approx(30.0)
    assert len(server.asked) == 1


def test_what_a_request_that_is_called_back_with_its_informer_leaves_behind() -> None:
    async def play() -> int:
        server = Answers(NEVER, NEVER, NEVER)
        informer: Informer[JsonObject] = Informer(cast(Any, server), NODES, dict, patience=ASKS_AGAIN)
        running = asyncio.create_task(informer.run())
        await asyncio.sleep(2.5)
        assert server.under_way == 2
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return server.under_way

    loop = VirtualLoop()
    assert loop.run_until_complete(play()) == 0
    loop.close()


def test_a_refresh_after_a_restore_waits_for_no_pause_of_the_failures_before_it() -> None:
    """A store is restored while its server is away: whoever leads then must not let stand for long what it says of old."""

    async def play() -> float:
        loop = asyncio.get_running_loop()
        api = MemoryApi(lambda change: None)
        api.put("nodes", {"kind": "Node", "metadata": {"name": "a"}})
        backup = api.backup()
        for value in ("before", "after"):
            api.put("nodes", {"kind": "Node", "metadata": {"name": "a", "labels": {"value": value}}})
        network = Network(api)
        informer: Informer[Json] = Informer(cast(ApiSession, Link(network, random.Random(1)).session()), NODES, dict)
        running = asyncio.create_task(informer.run())
        await informer.wait_synced()
        network.go_down()
        await asyncio.sleep(60.0)
        api.restore(backup)
        network.come_up()
        began_at = loop.time()
        await informer.refresh()
        seconds = loop.time() - began_at
        restored = informer.get("a")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert restored is not None
        assert "labels" not in restored["metadata"]
        return seconds

    loop = VirtualLoop()
    assert all(loop.run_until_complete(play()) < 0.5 for _ in range(10))
    loop.close()


@pytest.mark.parametrize("writes_since", [0, 1, 5])
def test_a_store_that_was_put_back_to_a_moment_ago_is_noticed_as_soon_as_its_server_answers(writes_since: int) -> None:
    """Also where nothing else is written, and where the versions have passed the lost ones before anybody watches again."""

    async def play() -> None:
        api = MemoryApi(lambda change: None)
        api.put("nodes", {"kind": "Node", "metadata": {"name": "a"}})
        network, changed = Network(api), asyncio.Event()
        session = cast(ApiSession, Link(network, random.Random(1)).session())
        informer: Informer[Json] = Informer(session, NODES, dict, on_change=lambda key: changed.set())

        async def until_labelled(labels: Json | None) -> None:
            while (informer.get("a") or {"metadata": {}})["metadata"].get("labels") != labels:
                changed.clear()
                await changed.wait()

        running = asyncio.create_task(informer.run())
        await informer.wait_synced()
        backup = api.backup()
        api.put("nodes", {"kind": "Node", "metadata": {"name": "a", "labels": {"value": "lost"}}})
        await until_labelled({"value": "lost"})
        network.go_down()
        api.restore(backup)
        for count in range(writes_since):
            api.put("nodes", {"kind": "Node", "metadata": {"name": "b", "labels": {"value": str(count)}}})
        network.come_up()
        async with asyncio.timeout(2.0):
            await until_labelled(None)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    loop = VirtualLoop()
    loop.run_until_complete(play())
    loop.close()


@pytest.mark.parametrize("writes_since", [0, 1, 5])
def test_a_list_after_a_restore_counts_whatever_versions_have_come_to_since(writes_since: int) -> None:
    """The server's versions went back, and others' writes brought them towards, or past, what our own write returned."""

    async def play() -> tuple[str, str]:
        api = MemoryApi(lambda change: None)

        def put(name: str, value: str) -> None:
            api.put("nodes", {"kind": "Node", "metadata": {"name": name, "labels": {"value": value}}})

        put("a", "before")
        backup = api.backup()
        session = cast(ApiSession, Link(Network(api), random.Random(1)).session())
        informer: Informer[Json] = Informer(session, NODES, dict)
        running = asyncio.create_task(informer.run())
        await informer.wait_synced()
        put("a", "after")
        put("a", "after that")
        informer.absorb(api.items["nodes"]["a"])  # as a write of ours; the watch has yet to bring it
        seen = informer.get("a")
        api.restore(backup)
        for number in range(writes_since):
            put("b", str(number))
        await informer.refresh()
        restored = informer.get("a")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert seen is not None
        assert restored is not None
        return seen["metadata"]["labels"]["value"], restored["metadata"]["labels"]["value"]

    loop = VirtualLoop()
    assert loop.run_until_complete(play()) == ("after that", "before")
    loop.close()
