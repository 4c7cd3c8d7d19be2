"""When an operator gives its lease up."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from flyball_api.gpu_node import GpuNode
from flyball_kube.server_clock import ServerClock
from flyball_operator.cluster.epochs import MAX_EPOCHS_LOST
from flyball_operator.loop import Operator
from flyball_operator.report.metrics import OperatorMetrics
from flyball_operator.settings import Settings
from flyball_operator.writes.lease import LeadershipLost

from tests.support.operator_objects import gpu_node_view, grant


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
    assert Bench(node).operator.take_in_epochs() == highest


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
        self.refreshed_before: list[int] = []  # how many cycles there had been
        self.fails: set[int] = set()
        self.lease = Lease()
        self.settings = Settings(leader_lease_seconds=15, coalesce_seconds=0.0)
        lease: Any = self.lease
        session: Any = SimpleNamespace(server_clock=ServerClock())
        learner: Any = self
        term: Any = self
        self.operator = Operator(
            session,
            lease,
            self.settings,
            OperatorMetrics(),
            learner=learner,
            make_term=lambda *_: term,
            monotonic=lambda: self.time,
        )
        for node in nodes:
            self.operator._watches.gpu_nodes._objects[node.name] = node

    soonest_change_seconds = 60.0
    power_decided = False
    only_braked = False

    async def load(self) -> None: ...

    async def refresh(self) -> None:
        self.refreshed_before.append(self.cycles)

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
        monkeypatch.setattr(self.operator._watches, "refresh", self.refresh)
        async with asyncio.timeout(60.0):
            with pytest.raises(LeadershipLost):
                await self.operator._lead(1)


async def test_a_leader_that_meets_a_higher_epoch_competes_for_one_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(gpu_node_view("a", grant(100_000), limits=100_000, acknowledged=(3, 7)))
    await bench.lead(monkeypatch)
    assert bench.cycles == 0
    assert [stand_back for _, stand_back in bench.lease.given_up] == [0.0]


async def test_a_leader_reads_everything_anew_before_its_first_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    """A standby's watches may have been behind for a minute."""
    bench = Bench()
    await bench.lead(monkeypatch)
    assert bench.cycles == 9
    assert bench.refreshed_before == [0]


async def test_a_leader_that_loses_its_lease_waits_for_no_list_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    monkeypatch.setattr("flyball_operator.loop.RETRY_SECONDS", 0.01)

    async def hangs() -> None:
        bench.lease.give_up("another one leads")
        await asyncio.Event().wait()

    monkeypatch.setattr(bench, "refresh", hangs)
    await bench.lead(monkeypatch)
    assert bench.cycles == 0


async def test_a_leader_whose_cycles_fail_makes_way_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.fails = {2, 4, 5}
    await bench.lead(monkeypatch)
    assert bench.cycles == 5  # the third succeeded; the fifth began 20 s after it
    assert bench.lease.given_up == [("its cycles fail", 30.0)]
    bench.time += 7.0
    assert bench.operator.seconds_since_cycle() == 37.0  # for the probe, which goes on counting


@pytest.mark.parametrize("copy", ["caps", "gpu_nodes", "nodes", "brakes", "brake_acknowledgements"])
def test_a_leader_whose_api_server_was_put_back_to_a_backup_begins_anew_before_it_believes_it(copy: str) -> None:
    """What it says that agents have acknowledged is of a past that they have left, and the next renewal of the Lease, which
    would tell, may be seconds away."""
    bench = Bench()
    getattr(bench.operator._watches, copy)._on_rewound()
    assert [why.startswith("the API server's versions went back") for why, _ in bench.lease.given_up] == [True]


async def test_a_new_leader_that_finds_the_store_put_back_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its copies may find that out, one after the other, and it has decided nothing by any."""
    bench = Bench()

    async def finds_out() -> None:
        bench.operator._watches.gpu_nodes._on_rewound()
        await bench.refresh()

    monkeypatch.setattr(bench.operator._watches, "refresh", finds_out)
    await bench.operator._read_anew(1)
    assert bench.lease.given_up == []
    bench.operator._watches.nodes._on_rewound()
    assert len(bench.lease.given_up) == 1


async def test_caps_wait_for_nothing_that_is_known_of_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of thousands of profiles, or of which the answer is lost, would hold up a new leader's first look."""
    bench = Bench()
    given_up = asyncio.Event()

    async def hangs() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            given_up.set()

    monkeypatch.setattr("flyball_operator.loop.LOADING_SECONDS", 0.01)
    monkeypatch.setattr(bench, "load", hangs)
    await bench.lead(monkeypatch)
    assert bench.cycles == 9
    assert given_up.is_set()  # with the term


async def test_a_term_begins_with_what_is_known_of_jobs_where_that_comes_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would begin with limits that no plan has made."""
    bench = Bench()
    loaded_before: list[int] = []

    async def loads() -> None:
        await asyncio.sleep(0.05)
        loaded_before.append(bench.cycles)

    monkeypatch.setattr("flyball_operator.loop.LOADING_SECONDS", 60.0)
    monkeypatch.setattr(bench, "load", loads)
    await bench.lead(monkeypatch)
    assert loaded_before == [0]


@pytest.mark.parametrize("fails", [False, True])
async def test_only_cycles_that_fail_are_counted_on_after_a_term(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """Else a probe would end a standby, or let an operator stay that cannot lead."""
    bench = Bench()
    if fails:
        bench.fails = set(range(1, 9))
    monkeypatch.setattr(bench.operator._watches, "refresh", bench.refresh)
    monkeypatch.setattr(bench.operator._watches, "runs", list)
    monkeypatch.setattr(bench.operator._watches, "wait_synced", bench.load)
    monkeypatch.setattr(bench.operator._worker, "start", lambda: None)
    monkeypatch.setattr(bench.operator._worker, "stop", lambda: None)
    terms = iter([1])
    over = asyncio.Event()

    async def wait_leading() -> int:
        for epoch in terms:
            return epoch
        over.set()
        return await asyncio.Future()

    monkeypatch.setattr(bench.lease, "wait_leading", wait_leading, raising=False)
    running = asyncio.create_task(bench.operator.run())
    async with asyncio.timeout(60.0):
        await over.wait()
    assert (bench.operator.seconds_since_cycle() is not None) is fails
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_leader_that_still_decides_on_power_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs that make its cycles fail would do so with every other."""
    bench = Bench()
    bench.power_decided, bench.fails = True, {1, 2, 3, 4, 5, 6, 7, 8}
    await bench.lead(monkeypatch)
    assert bench.cycles == 9
    assert bench.lease.given_up == [("the test is over", 0.0)]


async def test_what_follows_a_brake_owes_no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a whole cycle of so much work there is one."""
    bench, rests = Bench(), []

    async def rest(longest: float, shortest: float) -> None:
        rests.append(bench.cycles)

    monkeypatch.setattr(bench.operator._pace, "rest", rest)
    cycle = bench.cycle

    def braking(now: object, monotonic: float) -> float:
        pause = cycle(now, monotonic)
        bench.only_braked = bench.cycles in (3, 6)
        return pause

    monkeypatch.setattr(bench, "cycle", braking)
    await bench.lead(monkeypatch)
    assert rests == [1, 2, 4, 5, 7, 8, 9]


async def test_brakes_between_them_do_not_hide_that_cycles_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.fails = {2, 4, 6}
    cycle = bench.cycle

    def braking(now: object, monotonic: float) -> float:
        bench.only_braked = False
        pause = cycle(now, monotonic)
        bench.only_braked = bench.cycles in (3, 5)
        return pause

    monkeypatch.setattr(bench, "cycle", braking)
    await bench.lead(monkeypatch)
    assert bench.lease.given_up == [("its cycles fail", 30.0)]
