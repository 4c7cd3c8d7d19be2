"""The leader's Lease shows that the API server's store was put back to a backup, and the epoch ends, for good."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, cast

import pytest
from flyball_kube.session import ApiSession, JsonObject
from flyball_operator.writes.lease import LeaderLease

from tests.support.schedules.memory_api import MemoryApi
from tests.support.schedules.network import Link, Network
from tests.support.schedules.virtual_time import VirtualLoop


async def epochs_over_a_restore(since_backup_seconds: float) -> list[int | None]:
    """The epochs of a holder whose Lease is restored to what it was so long ago."""
    epochs: list[int | None] = []
    api = MemoryApi(lambda change: None)
    session = cast(ApiSession, Link(Network(api), random.Random(1)).session())
    clock = asyncio.get_running_loop().time
    lease = LeaderLease(session, "us", "flyball", "leader", 15, 3.0, clock=clock, on_change=epochs.append)
    running = asyncio.create_task(lease.run())
    await lease.wait_leading()
    backup = api.backup()
    await asyncio.sleep(since_backup_seconds)
    api.restore(backup)
    await asyncio.sleep(10.0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return epochs


def test_a_restored_lease_ends_the_epoch_and_the_next_one_is_higher() -> None:
    loop = VirtualLoop()
    epochs = loop.run_until_complete(epochs_over_a_restore(20.0))
    loop.close()
    assert epochs[1] is None
    assert [epoch for epoch in epochs if epoch is not None] == sorted({epoch for epoch in epochs if epoch is not None})
    assert len(epochs) == 3


def test_a_lease_that_only_goes_on_keeps_its_epoch() -> None:
    loop = VirtualLoop()
    assert len(loop.run_until_complete(epochs_over_a_restore(0.0))) == 1
    loop.close()


class Answering:
    """A session that calls `on_answer` before it hands on the answer to the next write of an object that is there."""

    def __init__(self, session: ApiSession) -> None:
        self._session = session
        self.on_answer: Callable[[], None] | None = None

    async def request(self, method: str, path: str, **rest: Any) -> JsonObject:
        answer = await self._session.request(method, path, **rest)
        if method == "PUT" and self.on_answer is not None:
            on_answer, self.on_answer = self.on_answer, None
            on_answer()
        return answer


async def epochs_of_who_gives_up_while_it_renews(stand_back_seconds: float) -> list[tuple[float, int | None]]:
    """The epochs of a holder that gives its own up while the answer to a renewal is on its way, each with its time."""
    epochs: list[tuple[float, int | None]] = []
    clock = asyncio.get_running_loop().time
    session = Answering(cast(ApiSession, Link(Network(MemoryApi(lambda change: None)), random.Random(1)).session()))
    lease = LeaderLease(
        cast(ApiSession, session),
        "us",
        "flyball",
        "leader",
        15,
        3.0,
        clock=clock,
        on_change=lambda epoch: epochs.append((clock(), epoch)),
    )
    running = asyncio.create_task(lease.run())
    await lease.wait_leading()
    session.on_answer = lambda: lease.give_up("the store was put back", stand_back_seconds)
    await asyncio.sleep(60.0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return epochs


@pytest.mark.parametrize("stand_back_seconds", [0.0, 30.0])
def test_no_answer_that_was_on_its_way_brings_back_an_epoch_that_was_given_up(stand_back_seconds: float) -> None:
    loop = VirtualLoop()
    (_, first), (gave_up, none), (leads_again, second) = loop.run_until_complete(
        epochs_of_who_gives_up_while_it_renews(stand_back_seconds)
    )
    loop.close()
    assert (first, none, second) == (1, None, 2)
    assert leads_again - gave_up >= stand_back_seconds
