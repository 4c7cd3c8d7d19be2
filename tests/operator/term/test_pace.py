"""How long the loop rests between cycles, and what wakes it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from flyball_operator.term.pace import LONGEST_REST_SECONDS, CyclePace, rest_seconds

from tests.support.schedules.virtual_time import VirtualLoop


async def test_an_end_that_comes_together_with_a_waking_is_not_forgotten() -> None:
    pace = CyclePace(0.0)
    rest = asyncio.create_task(pace.rest(60.0, 60.0))
    await asyncio.sleep(0)
    pace.wake()
    await asyncio.sleep(0)  # what it waits for is done, and it has not run since
    rest.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(20.0):
            await rest


def test_what_comes_after_an_idle_time_waits_only_until_its_burst_is_gathered() -> None:
    async def rested(woken_after: float) -> float:
        """For how long a cycle that owes a rest of 4 s is waited for, where something happens after so long."""
        pace = CyclePace(0.0)
        asyncio.get_running_loop().call_later(woken_after, pace.wake)
        began_at = asyncio.get_running_loop().time()
        await pace.rest(60.0, 4.0)
        return asyncio.get_running_loop().time() - began_at

    assert in_virtual_time(rested(1.0)) == pytest.approx(4.0)
    assert in_virtual_time(rested(10.0)) == pytest.approx(10.0)
    assert in_virtual_time(rested(90.0)) == pytest.approx(60.0)


def test_a_cap_that_falls_ends_the_rest_that_a_long_cycle_owes() -> None:
    async def rested() -> float:
        pace = CyclePace(0.0)
        loop = asyncio.get_running_loop()
        loop.call_later(1.0, pace.wake)
        loop.call_later(2.0, pace.wake_at_once)
        began_at = loop.time()
        await pace.rest(60.0, 4.0)
        return loop.time() - began_at

    assert in_virtual_time(rested()) == pytest.approx(2.0)


def test_a_node_that_may_draw_more_ends_a_long_rest_but_not_a_short_one() -> None:
    async def rested(soon_after: float) -> float:
        pace = CyclePace(0.0)
        loop = asyncio.get_running_loop()
        loop.call_later(0.1, pace.wake)
        loop.call_later(soon_after, pace.wake_soon)
        began_at = loop.time()
        await pace.rest(60.0, 1.0)
        return loop.time() - began_at

    assert in_virtual_time(rested(0.2)) == pytest.approx(LONGEST_REST_SECONDS)
    assert in_virtual_time(rested(0.6)) == pytest.approx(0.6)
    assert in_virtual_time(rested(2.0)) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("work", "soonest_change_seconds", "rest"),
    [
        (0.01, 60.0, 0.04),
        (0.1, 60.0, 0.25),
        (0.3, 60.0, 0.6),
        (2.0, 60.0, 1.0),
        (2.0, 0.5, 0.5),
        (2.0, 0.0, 0.25),
    ],
)
def test_the_longer_a_cycle_the_longer_its_rest_but_where_limits_are_to_be_lowered(
    work: float, soonest_change_seconds: float, rest: float
) -> None:
    assert rest_seconds(work, soonest_change_seconds) == pytest.approx(rest)


def in_virtual_time(coroutine: Coroutine[Any, Any, float]) -> float:
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.close()
