"""When an operator gives its lease up, and how long it rests between cycles."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from flyball_api.gpu_node import GpuNode
from flyball_operator.loop import LONGEST_REST_SECONDS, MAX_EPOCHS_LOST, Operator, rest_seconds
from flyball_operator.report.metrics import OperatorMetrics
from flyball_operator.settings import Settings
from flyball_operator.writes.lease import LeadershipLost

from tests.support.operator_objects import gpu_node_view, grant
from tests.support.schedules.virtual_time import VirtualLoop


@pytest.mark.parametrize(
    ("granted", "acknowledged", "highest"),
    [
        (None, None, 0),
        (2, None, 2),
        (2, 1, 2),
        (1, 3, 3),  # the API server's store was restored from a backup
        (None, 3, 3),
        (1, 1 + MAX_EPOCHS_LOST, 1 + MAX_EPOCHS_LOST),
        (1, 2**31 - 1, 1),  # no single node may use up the numbers that a Lease can have
    ],
)
def test_the_highest_epoch(granted: int | None, acknowledged: int | None, highest: int) -> None:
    given = None if granted is None else grant(100_000, epoch=granted)
    version = None if acknowledged is None else (acknowledged, 7)
    node = gpu_node_view("a", given, limits=None if version is None else 100_000, acknowledged=version)
    assert Bench(node).operator.highest_epoch() == highest


class Lease:
    """A lease that is held until it is given up."""

    def __init__(self) -> None:
        self.given_up: list[tuple[str, float]] = []

    def check(self, epoch: int) -> None:
        if self.given_up:
            raise LeadershipLost("given up")

    def give_up(self, why: str, stand_back_seconds: float = 0.0) -> None:
        self.given_up.append((why, stand_back_seconds))


class Bench:
    """An operator that leads, with cycles that take ten seconds each; those numbered in `fails` raise an error."""

    def __init__(self, *nodes: GpuNode) -> None:
        self.time, self.cycles = 0.0, 0
        self.fails: set[int] = set()
        self.lease: Any = Lease()
        self.settings = Settings(leader_lease_seconds=15, coalesce_seconds=0.0)
        session: Any = None
        learner: Any = self
        self.operator = Operator(
            session, self.lease, self.settings, OperatorMetrics(), learner=learner, monotonic=lambda: self.time
        )
        for node in nodes:
            self.operator._watches.gpu_nodes._objects[node.name] = node

    soonest_change_seconds = 60.0
    power_decided = False

    async def load(self) -> None: ...

    async def refresh(self) -> None: ...

    async def close(self) -> None: ...

    def cycle(self, now: object, monotonic: float) -> float:
        self.cycles += 1
        self.time += 10.0
        self.operator.wake()
        if self.cycles in self.fails:
            raise ValueError("a cycle that fails")
        if self.cycles == 9:
            self.lease.give_up("the test is over")
        return 0.0

    async def lead(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(self.operator, "_term", lambda epoch: self)
        monkeypatch.setattr(self.operator._watches, "refresh", self.refresh)
        async with asyncio.timeout(60.0):
            with pytest.raises(LeadershipLost):
                await self.operator._lead(1)


async def test_a_leader_that_meets_a_higher_epoch_competes_for_one_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(gpu_node_view("a", grant(100_000), limits=100_000, acknowledged=(3, 7)))
    await bench.lead(monkeypatch)
    assert bench.cycles == 0
    assert [stand_back for _, stand_back in bench.lease.given_up] == [0.0]


async def test_a_leader_whose_cycles_fail_makes_way_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.fails = {2, 4, 5}
    await bench.lead(monkeypatch)
    assert bench.cycles == 5  # the third succeeded; the fifth began 20 s after it
    assert bench.lease.given_up == [("its cycles fail", 30.0)]
    bench.time += 7.0
    assert bench.operator.seconds_since_cycle() == 37.0  # for the probe, which goes on counting


async def test_a_leader_that_still_decides_on_power_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs that make its cycles fail would do so with every other."""
    bench = Bench()
    bench.power_decided, bench.fails = True, {1, 2, 3, 4, 5, 6, 7, 8}
    await bench.lead(monkeypatch)
    assert bench.cycles == 9
    assert bench.lease.given_up == [("the test is over", 0.0)]


async def test_an_end_that_comes_together_with_a_waking_is_not_forgotten() -> None:
    operator = Bench().operator
    rest = asyncio.create_task(operator._rest(60.0, 60.0))
    await asyncio.sleep(0)
    operator.wake()
    await asyncio.sleep(0)  # what it waits for is done, and it has not run since
    rest.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(20.0):
            await rest


def test_what_comes_after_an_idle_time_waits_only_until_its_burst_is_gathered() -> None:
    async def rested(woken_after: float) -> float:
        """For how long a cycle that owes a rest of 4 s is waited for, where something happens after so long."""
        operator = Bench().operator
        asyncio.get_running_loop().call_later(woken_after, operator.wake)
        began_at = asyncio.get_running_loop().time()
        await operator._rest(60.0, 4.0)
        return asyncio.get_running_loop().time() - began_at

    assert in_virtual_time(rested(1.0)) == pytest.approx(4.0)
    assert in_virtual_time(rested(10.0)) == pytest.approx(10.0)
    assert in_virtual_time(rested(90.0)) == pytest.approx(60.0)


def test_a_cap_that_falls_ends_the_rest_that_a_long_cycle_owes() -> None:
    async def rested() -> float:
        operator = Bench().operator
        loop = asyncio.get_running_loop()
        loop.call_later(1.0, operator.wake)
        loop.call_later(2.0, operator.wake_at_once)
        began_at = loop.time()
        await operator._rest(60.0, 4.0)
        return loop.time() - began_at

    assert in_virtual_time(rested()) == pytest.approx(2.0)


def test_a_node_that_may_draw_more_ends_a_long_rest_but_not_a_short_one() -> None:
    async def rested(soon_after: float) -> float:
        operator = Bench().operator
        loop = asyncio.get_running_loop()
        loop.call_later(0.1, operator.wake)
        loop.call_later(soon_after, operator.wake_soon)
        began_at = loop.time()
        await operator._rest(60.0, 1.0)
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
