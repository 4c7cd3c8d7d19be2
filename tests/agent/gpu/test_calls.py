"""Driver calls: an error is its GPU's own, a hang is abandoned at the deadline and the neighbours go on."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Never

import pytest
from flyball_agent.gpu.calls import DirectCalls, DriverCalls, ThreadedCalls
from flyball_agent.gpu.gpu import CallTimedOut, GpuLost


def fail() -> Never:
    raise GpuLost("read", "b", 15)


@pytest.mark.parametrize("calls", [DirectCalls(), ThreadedCalls(deadline_seconds=30)], ids=["direct", "threaded"])
async def test_each_result_is_its_own_and_in_order(calls: DriverCalls) -> None:
    results = await calls.each("read", [("a", lambda: 1), ("b", fail), ("c", lambda: 3)])
    assert (results[0], results[2]) == (1, 3)
    assert isinstance(results[1], GpuLost)
    assert await calls.each("read", []) == []
    with pytest.raises(ZeroDivisionError):  # a defect of ours is not a GPU's error
        await calls.each("read", [("a", lambda: 1 // 0)])
    calls.close()


async def test_an_error_that_is_a_result_is_not_logged_as_lost(caplog: pytest.LogCaptureFixture) -> None:
    calls = ThreadedCalls(deadline_seconds=30)
    assert isinstance((await calls.each("read", [("a", fail)]))[0], GpuLost)
    calls.close()
    gc.collect()
    assert caplog.records == []


async def test_gpus_are_called_at_the_same_time_and_off_the_loop() -> None:
    calls = ThreadedCalls(deadline_seconds=30)
    together = threading.Barrier(3)
    results = await calls.each("read", [(uuid, lambda: together.wait(20)) for uuid in "abc"])
    assert sorted(results, key=str) == [0, 1, 2]
    calls.close()


def test_closing_says_whether_a_call_is_still_under_way() -> None:
    release = threading.Event()
    for hangs in (False, True):
        calls = ThreadedCalls(deadline_seconds=0.05)
        asyncio.run(calls.each("read", [("a", lambda: release.wait(60)), ("b", lambda: True)] if hangs else []))
        assert calls.close() is not hangs
    release.set()


async def test_a_call_that_hangs_is_abandoned_and_its_gpu_waits_for_it() -> None:
    calls = ThreadedCalls(deadline_seconds=1.0)
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
