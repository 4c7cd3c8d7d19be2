"""Driver calls: an error is its board's own, a hang is abandoned at the deadline and the neighbours go on."""

from __future__ import annotations

import asyncio
import threading

import pytest
from flyball_agent.calls import DirectCalls, ThreadedCalls
from flyball_agent.gpu import CallTimedOut, GpuLost


def fail():
    raise GpuLost("read", "b", 15)


@pytest.mark.parametrize("calls", [DirectCalls(), ThreadedCalls(deadline_seconds=30)], ids=["direct", "threaded"])
async def test_each_result_is_its_own_and_in_order(calls):
    results = await calls.each("read", [("a", lambda: 1), ("b", fail), ("c", lambda: 3)])
    assert (results[0], results[2]) == (1, 3)
    assert isinstance(results[1], GpuLost)
    assert await calls.each("read", []) == []
    with pytest.raises(ZeroDivisionError):  # a defect of ours is not a board's error
        await calls.each("read", [("a", lambda: 1 // 0)])
    calls.close()


async def test_boards_are_called_at_the_same_time_and_off_the_loop():
    calls = ThreadedCalls(deadline_seconds=30)
    together = threading.Barrier(3)
    results = await calls.each("read", [(uuid, lambda: together.wait(20)) for uuid in "abc"])
    assert sorted(results) == [0, 1, 2]
    calls.close()


async def test_a_call_that_hangs_is_abandoned_and_its_board_waits_for_it():
    calls = ThreadedCalls(deadline_seconds=0.05)
    release = threading.Event()
    hung, fine = await calls.each("read", [("a", lambda: release.wait(60)), ("b", lambda: 2)])
    assert isinstance(hung, CallTimedOut)
    assert fine == 2
    called = []
    hung, fine = await calls.each("read", [("a", lambda: called.append(1)), ("b", lambda: 3)])
    assert isinstance(hung, CallTimedOut)
    assert "earlier call" in str(hung)
    assert fine == 3
    assert called == []  # nothing is queued behind a call of which nobody knows when it ends
    release.set()
    async with asyncio.timeout(20):
        while isinstance((await calls.each("read", [("a", lambda: 4)]))[0], CallTimedOut):
            pass
    calls.close()
