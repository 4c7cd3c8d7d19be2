"""An epoch of which somebody was told that it is over does not come back: who leads under it has forgotten what it sent."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, cast

import pytest
from flyball_kube.errors import ApiUnreachable
from flyball_kube.session import ApiSession, JsonObject
from flyball_operator.writes.lease import LeaderLease, LeadershipLost

from tests.support.schedules.memory_api import MemoryApi
from tests.support.schedules.network import Link, Network
from tests.support.schedules.virtual_time import VirtualLoop


class SlowSession:
    """A session that, once it is slow, answers nothing but what was asked for late, and that only after `answers_at`."""

    def __init__(self, session: ApiSession, clock: Callable[[], float]) -> None:
        self._session = session
        self._clock = clock
        self.answers_at: float | None = None

    async def request(self, method: str, path: str, *, timeout_seconds: float, **rest: Any) -> JsonObject:
        if self.answers_at is None:
            return await self._session.request(method, path, timeout_seconds=timeout_seconds, **rest)
        if self._clock() + timeout_seconds < self.answers_at:
            await asyncio.sleep(timeout_seconds)
            raise ApiUnreachable(f"{method} {path}: no answer")
        answer = await self._session.request(method, path, timeout_seconds=timeout_seconds, **rest)
        await asyncio.sleep(max(0.0, self.answers_at - self._clock()))
        return answer


async def epochs_where_a_renewal_is_answered_late(notice: Callable[[LeaderLease], object]) -> list[int | None]:
    """The epochs of a holder of which a renewal is answered once its claim has ended; `notice` is called in between."""
    epochs: list[int | None] = []
    clock = asyncio.get_running_loop().time
    inner = cast(ApiSession, Link(Network(MemoryApi(lambda change: None)), random.Random(1)).session())
    session = SlowSession(inner, clock)
    lease = LeaderLease(
        cast(ApiSession, session), "us", "flyball", "leader", 15, 3.0, clock=clock, on_change=epochs.append
    )
    running = asyncio.create_task(lease.run())
    await lease.wait_leading()
    ends_at = clock() + lease.remaining_seconds()
    session.answers_at = ends_at + 0.5
    await asyncio.sleep(ends_at + 0.2 - clock())
    assert lease.epoch is None
    notice(lease)
    await asyncio.sleep(20.0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return epochs


def act(lease: LeaderLease) -> None:
    with pytest.raises(LeadershipLost):
        lease.check(1)


@pytest.mark.parametrize(
    ("notice", "expected"),
    [(act, [1, None, 2]), (LeaderLease._notice_lapse, [1, None, 2]), (lambda lease: None, [1])],
    ids=["who acts", "who waits to lead", "nobody"],
)
def test_no_answer_that_was_on_its_way_brings_back_an_epoch_that_somebody_has_seen_to_be_over(
    notice: Callable[[LeaderLease], object], expected: list[int | None]
) -> None:
    """Its next term would begin without the grants that the one before it has sent, and with agents' silences forgotten."""
    loop = VirtualLoop()
    epochs = loop.run_until_complete(epochs_where_a_renewal_is_answered_late(notice))
    loop.close()
    assert epochs == expected
