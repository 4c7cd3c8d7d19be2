"""Slots for writes that nobody waits for: few where the server is slow, none of them lost by those that are cancelled."""

from __future__ import annotations

import asyncio
import contextlib

from flyball_operator.writes.slots import SLOW_SECONDS, PacedSlots


class Server:
    """Writes that are under way until they are answered; each takes `seconds` by the clock."""

    def __init__(self, most: int) -> None:
        self.now, self.seconds = 0.0, 0.1
        self.slots = PacedSlots(most, lambda: self.now)
        self.under_way: list[asyncio.Event] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def begin(self, count: int) -> None:
        self.tasks += [asyncio.create_task(self._write()) for _ in range(count)]
        await self.settle()

    async def _write(self) -> None:
        async with self.slots:
            answered = asyncio.Event()
            self.under_way.append(answered)
            await answered.wait()

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def answer(self) -> int:
        """Answer all that is under way; how many that were."""
        answered, self.under_way = self.under_way, []
        self.now += self.seconds
        for each in answered:
            each.set()
        await self.settle()
        return len(answered)


async def test_no_more_are_under_way_than_there_are_slots_and_all_have_their_turn() -> None:
    server = Server(4)
    await server.begin(10)
    assert [await server.answer() for _ in range(4)] == [4, 4, 2, 0]
    assert all(task.done() for task in server.tasks)


async def test_what_a_write_has_waited_for_in_its_slot_does_not_count_as_slow() -> None:
    slots, now, cut = PacedSlots(8, lambda: now[0]), [0.0], asyncio.Event()

    async def write() -> None:
        async with slots:
            await cut.wait()  # a cap is on its way down: statuses wait
            slots.begin()

    tasks = [asyncio.create_task(write()) for _ in range(8)]
    await asyncio.sleep(0)
    now[0] = 2 * SLOW_SECONDS
    cut.set()
    await asyncio.gather(*tasks)
    assert slots.open == 8


async def test_a_slow_server_is_asked_less_and_one_that_is_quick_again_more() -> None:
    server = Server(8)
    await server.begin(200)
    server.seconds = 2 * SLOW_SECONDS
    assert [await server.answer() for _ in range(3)] == [8, 1, 1]
    assert server.slots.open == 1
    server.seconds = 0.1
    under_way = [await server.answer() for _ in range(20)]
    assert under_way[:3] == [1, 2, 2]
    assert under_way[-1] == 8
    assert max(under_way) == 8


async def test_who_is_cancelled_takes_nobody_s_turn() -> None:
    server = Server(1)
    await server.begin(3)
    _, second, third = server.tasks
    second.cancel()
    await server.settle()
    assert await server.answer() == 1
    assert await server.answer() == 1
    assert third.done()
    await server.begin(3)
    second, third = server.tasks[-2:]
    server.under_way.pop().set()
    second.cancel()  # just as its turn has come, or before
    await server.settle()
    assert await server.answer() == 1
    with contextlib.suppress(asyncio.CancelledError):
        await third
    assert third.done()
    assert not third.cancelled()
