"""The watch of the operator's Lease: whoever leads is seen to, also once a store was restored behind a watch."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest
from flyball_agent.cluster.lease_watch import RESUMED_SILENCE_SECONDS, WATCH_SECONDS, LeaseWatch
from flyball_api.lease import lease_spec
from flyball_api.names import DEFAULT_NAMESPACE, LEADER_LEASE
from flyball_kube.session import ApiSession

from tests.support.schedules import network as network_module
from tests.support.schedules.memory_api import MemoryApi
from tests.support.schedules.network import Link, Network
from tests.support.schedules.virtual_time import VirtualLoop

RENEWED_EVERY_SECONDS = 2.0


@pytest.fixture(autouse=True)
def _watches_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as they are asked for, and no less."""
    monkeypatch.setattr(network_module, "WATCH_ENDS_SECONDS", float("inf"))


class Leased:
    """An API server with the operator's Lease, and a watch of it whose renewals are in `seen`."""

    def __init__(self) -> None:
        self.api = MemoryApi(lambda change: None)
        self.seen: list[int] = []
        self._renewals = 0
        self.renew(1)
        loop = asyncio.get_running_loop()
        self.network = Network(self.api)
        session = cast(ApiSession, Link(self.network, random.Random(1)).session())
        self.watch = LeaseWatch(session, clock_ns=lambda: round(loop.time() * 1e9))
        self.watch.listen(self.seen.append)

    def renew(self, epoch: int) -> None:
        self._renewals += 1
        renewed = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self._renewals)
        spec = lease_spec("tests", epoch, 15, acquired=renewed, renewed=renewed)
        metadata = {"name": LEADER_LEASE, "namespace": DEFAULT_NAMESPACE}
        self.api.put("leases", {"kind": "Lease", "metadata": metadata, "spec": spec})

    async def lead(self, epoch: int, seconds: float) -> None:
        for _ in range(round(seconds / RENEWED_EVERY_SECONDS)):
            await asyncio.sleep(RENEWED_EVERY_SECONDS)
            self.renew(epoch)


def play(course: Callable[[Leased], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        leased = Leased()
        running = asyncio.create_task(leased.watch.run())
        try:
            await course(leased)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    loop = VirtualLoop()
    try:
        loop.run_until_complete(all_of_it())
    finally:
        loop.close()


def test_renewals_are_seen_again_soon_after_a_restore_behind_a_watch_that_ended_in_order() -> None:
    async def course(leased: Leased) -> None:
        backup = leased.api.backup()
        for _ in range(100):
            leased.renew(1)
        await asyncio.sleep(WATCH_SECONDS - 1.0)
        leased.renew(1)
        await asyncio.sleep(0.5)
        assert leased.seen == [1]
        leased.api.restore(backup)
        await asyncio.sleep(1.0)  # the watch ends, in order; the next asks for a version that is no more
        await leased.lead(2, RESUMED_SILENCE_SECONDS + 4 * RENEWED_EVERY_SECONDS)
        assert leased.seen[1:]
        assert set(leased.seen[1:]) == {2}

    play(course)


def test_watch_after_watch_no_renewal_is_missed_and_nothing_listed_anew() -> None:
    async def course(leased: Leased) -> None:
        await asyncio.sleep(1.0)
        await leased.lead(1, 4 * WATCH_SECONDS)
        await asyncio.sleep(1.0)
        assert len(leased.seen) == round(4 * WATCH_SECONDS / RENEWED_EVERY_SECONDS)
        assert leased.watch.reconnects == 0

    play(course)


def test_while_nobody_leads_there_is_no_storm_of_lists() -> None:
    async def course(leased: Leased) -> None:
        await asyncio.sleep(10 * WATCH_SECONDS)
        assert leased.watch.reconnects <= 10
        await leased.lead(2, 2 * RESUMED_SILENCE_SECONDS)
        assert set(leased.seen) == {2}

    play(course)


def test_the_first_sight_after_an_outage_is_no_renewal() -> None:
    """It may be of any age: who leads now may have died while nobody looked."""

    async def course(leased: Leased) -> None:
        await leased.lead(1, 2 * RENEWED_EVERY_SECONDS)
        await asyncio.sleep(1.0)
        before = list(leased.seen)
        leased.network.go_down()
        leased.renew(1)
        await asyncio.sleep(30.0)
        leased.network.come_up()
        await asyncio.sleep(30.0)
        assert leased.seen == before
        leased.renew(1)
        await asyncio.sleep(1.0)
        assert leased.seen == [*before, 1]

    play(course)


def test_the_first_sight_of_a_lease_that_was_made_anew_is_no_renewal() -> None:
    async def course(leased: Leased) -> None:
        await asyncio.sleep(1.0)
        leased.api.remove("leases", LEADER_LEASE)
        leased.renew(1)
        await asyncio.sleep(1.0)
        assert leased.seen == []
        leased.renew(1)
        await asyncio.sleep(1.0)
        assert leased.seen == [1]

    play(course)


@pytest.mark.parametrize(
    "nonsense", [{}, {"items": 3}, {"items": [{"spec": {"renewTime": 7}}]}, {"items": [], "metadata": {}}, []]
)
def test_an_answer_that_is_nonsense_ends_no_watch(nonsense: object) -> None:
    """As a proxy gives it in the API server's name, with status 200."""

    async def course(leased: Leased) -> None:
        answer = leased.watch._session.get

        async def nonsense_first(path: str, **params: str) -> object:
            return nonsense if leased.watch.reconnects < 3 else await answer(path, **params)

        leased.watch._session.get = nonsense_first  # type: ignore[method-assign, assignment]
        await leased.lead(1, 60.0)
        assert leased.watch.reconnects == 3
        assert set(leased.seen) == {1}

    play(course)
