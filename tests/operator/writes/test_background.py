"""Writes in the background: one at a time for each object, whatever becomes of them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools

import pytest
from flyball_operator.cluster.outcome import DONE, UNKNOWN, Outcome, WriteResult
from flyball_operator.writes.background import RETRY_SECONDS, Background
from flyball_operator.writes.lease import LeadershipLost

from tests.support.schedules.virtual_time import VirtualLoop


async def test_one_write_at_a_time_for_each_object() -> None:
    woken = asyncio.Event()
    background = Background(woken.set)
    goes_on = asyncio.Event()

    async def write() -> WriteResult:
        await goes_on.wait()
        return DONE

    background.start("a", write())
    assert background.busy("a")
    assert not background.busy("b")
    with pytest.raises(ValueError, match="under way already"):
        background.start("a", write())
    assert not woken.is_set()
    goes_on.set()
    await woken.wait()
    assert not background.busy("a")
    assert len(background) == 0


@pytest.mark.parametrize("failure", [None, LeadershipLost("gone"), RuntimeError("broken")])
def test_a_write_that_fails_wakes_the_loop_later(failure: Exception | None) -> None:
    async def play() -> float:
        woken = asyncio.Event()
        background = Background(woken.set)

        async def write() -> WriteResult:
            if failure is not None:
                raise failure
            return UNKNOWN

        background.start("a", write())
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))
        assert not background.busy("a")
        assert not woken.is_set()
        ended_at = asyncio.get_running_loop().time()
        await woken.wait()
        return asyncio.get_running_loop().time() - ended_at

    loop = VirtualLoop()
    assert loop.run_until_complete(play()) == pytest.approx(RETRY_SECONDS)
    loop.close()


def test_what_is_refused_for_what_is_in_it_is_tried_ever_less_often_where_it_can_wait() -> None:
    """A status that the API server cannot store would else be written twice a second, for as long as its job is there."""
    refused = WriteResult(Outcome.REFUSED, invalid="status.eta: too large")

    async def play(key: tuple[str, str], answers: list[WriteResult], seconds: float) -> list[float]:
        loop, began = asyncio.get_running_loop(), []
        woken = asyncio.Event()
        background = Background(woken.set, patient=("status",))

        async def write() -> WriteResult:
            began.append(loop.time())
            return answers.pop(0) if answers else refused

        until = loop.time() + seconds
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                while True:
                    if not background.busy(key):
                        background.start(key, write())
                    await woken.wait()
                    woken.clear()
        await background.stop()
        return began

    loop = VirtualLoop()
    often = loop.run_until_complete(play(("cap", "hall"), [], 10.0))
    assert len(often) == 20
    seldom = loop.run_until_complete(play(("status", "odd"), [], 1000.0))
    pauses = [after - before for before, after in itertools.pairwise(seldom)]
    assert pauses[:7] == pytest.approx([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0])
    assert pauses[-1] == pytest.approx(60.0)
    answers = [refused, refused, DONE, refused, UNKNOWN, refused]
    anew = loop.run_until_complete(play(("status", "mended"), answers, 7.0))
    assert [after - before for before, after in itertools.pairwise(anew)][:6] == pytest.approx([1, 2, 0, 1, 0.5, 1])
    loop.close()


def test_an_object_whose_writes_fail_again_and_again_wakes_the_loop_once() -> None:
    """Each failure of a busy second would else bring a cycle of its own."""

    errors: list[object] = []

    async def play() -> int:
        woken: list[None] = []
        background = Background(lambda: woken.append(None))
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))

        async def write() -> WriteResult:
            return UNKNOWN

        for _ in range(5):
            background.start("a", write())
            await asyncio.sleep(RETRY_SECONDS / 10)
        await asyncio.sleep(2 * RETRY_SECONDS)
        return len(woken)

    loop = VirtualLoop()
    assert loop.run_until_complete(play()) == 1
    assert not errors
    loop.close()


async def test_what_is_given_up_ends_without_an_answer_and_wakes_the_loop() -> None:
    woken = asyncio.Event()
    background = Background(woken.set)
    answers: list[WriteResult] = []

    async def write() -> WriteResult:
        await asyncio.Event().wait()
        return DONE

    background.give_up("a")  # nothing is under way
    background.start("a", write(), answers.append)
    await asyncio.sleep(0)
    background.give_up("a")
    assert background.busy("a"), "until it has ended"
    await woken.wait()
    assert not background.busy("a")
    assert answers == [UNKNOWN]


async def test_stopping_cancels_what_is_under_way() -> None:
    background = Background(lambda: None)
    cancelled = asyncio.Event()

    async def write() -> WriteResult:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return DONE

    background.start("a", write())
    await asyncio.sleep(0)
    await background.stop()
    assert cancelled.is_set()
    assert not background.busy("a")


def test_a_write_without_an_answer_makes_room_for_the_next_and_may_yet_arrive() -> None:
    """It is not called back: an API server that takes longer than anybody waits would begin anew each time."""
    arrived: list[str] = []

    async def write(name: str, seconds: float) -> WriteResult:
        await asyncio.sleep(seconds)
        arrived.append(name)
        return DONE

    async def play() -> int:
        woken: list[float] = []
        background = Background(lambda: woken.append(asyncio.get_running_loop().time()))
        background.start(("cap", "row"), write("first", 3.0))
        background.start(("grant", "a"), write("grant", 3.0))
        await asyncio.sleep(0.4)
        background.start(("cap", "hall"), write("hall", 3.0))
        assert background.next_unanswered_seconds("cap", 1.0) == pytest.approx(0.6)
        await asyncio.sleep(0.6)
        background.leave_unanswered("cap", 1.0)
        assert not background.busy(("cap", "row"))
        assert background.busy(("grant", "a"))
        assert background.busy(("cap", "hall")), "its second is not over"
        assert background.next_unanswered_seconds("cap", 1.0) == pytest.approx(0.4)
        assert len(background) == 3
        background.start(("cap", "row"), write("second", 0.5))
        await asyncio.sleep(2.1)
        assert arrived == ["second", "first", "grant"]
        assert woken == pytest.approx([1.5, 3.0]), "nobody waits for the first any more"
        assert background.next_unanswered_seconds("row", 1.0) == float("inf")
        return len(background)

    loop = VirtualLoop()
    assert loop.run_until_complete(play()) == 1
    loop.close()


def test_what_is_waited_for_no_longer_ends_with_the_term() -> None:
    async def play() -> bool:
        background = Background(lambda: None)
        ended: list[str] = []

        async def write() -> WriteResult:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("first")
            return DONE

        background.start(("cap", "row"), write())
        await asyncio.sleep(1.0)
        background.leave_unanswered("cap", 1.0)
        await background.stop()
        return ended == ["first"] and len(background) == 0

    loop = VirtualLoop()
    assert loop.run_until_complete(play())
    loop.close()
