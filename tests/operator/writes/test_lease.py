"""One leader, and an epoch that fences its forerunners: on the real API server, with faults at the session's edge.

Time is the real boot clock plus what a test adds to it. Renewals are made far more often than a claim needs, so that a
slow machine loses no leadership that a test does not take from it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any

import pytest
import pytest_asyncio
from flyball_kube.credentials import load_configuration
from flyball_kube.errors import ApiError, ApiUnreachable
from flyball_kube.resources import LEASES
from flyball_kube.server_clock import boottime_seconds
from flyball_kube.session import ApiSession, JsonObject
from flyball_operator.writes.lease import MAX_DURATION_SECONDS, LeaderLease, LeadershipLost

from tests.support.waiting import PATIENCE_SECONDS, until

NAME = "leader"
DURATION_SECONDS = 60
RENEW_SECONDS = 0.25


class Clock:
    """The boot clock, with leaps."""

    def __init__(self) -> None:
        self.leap_seconds = 0.0

    def __call__(self) -> float:
        return boottime_seconds() + self.leap_seconds


class FaultySession(ApiSession):
    """A session that can lose the API server: `down` refuses, `mute` never answers, `lose_answers` loses some answers."""

    down = False
    mute = False
    lose_answers = 0
    under_way = 0

    async def request(self, method: str, path: str, *, timeout_seconds: float | None = None, **rest: Any) -> JsonObject:
        if self.down:
            raise ApiUnreachable(f"{method} {path}: cut off by the test")
        if self.mute:
            await asyncio.sleep(timeout_seconds or 0.0)
            raise ApiUnreachable(f"{method} {path}: no answer")
        self.under_way += 1
        try:
            answer = await super().request(method, path, timeout_seconds=PATIENCE_SECONDS, **rest)
        finally:
            self.under_way -= 1
        if method == "PUT" and self.lose_answers:
            self.lose_answers -= 1
            raise ApiUnreachable(f"{method} {path}: the answer was lost")
        return answer


class Candidate:
    """A contender with a session and a clock of its own, and the list of what it was told."""

    def __init__(self, session: FaultySession, namespace: str, identity: str, clock: Clock, **options: Any) -> None:
        self.session = session
        self.clock = clock
        self.changes: list[int | None] = []
        self.on_change: Callable[[int | None], None] = lambda epoch: None
        self.lease = LeaderLease(
            session,
            identity,
            namespace,
            NAME,
            **{"duration_seconds": DURATION_SECONDS, "renew_seconds": RENEW_SECONDS, **options},
            clock=clock,
            on_change=self._changed,
        )
        self.task: asyncio.Task[None] | None = None

    def _changed(self, epoch: int | None) -> None:
        self.changes.append(epoch)
        self.on_change(epoch)

    def start(self) -> None:
        self.task = asyncio.create_task(self.lease.run())

    async def crash(self) -> None:
        """Stop without a word, as SIGKILL does."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)

    async def leads(self) -> int:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.lease.wait_leading()


Entrant = Callable[..., Awaitable[Candidate]]


class Court:
    """The Lease as anybody sees it, and the candidates for it."""

    def __init__(self, session: ApiSession, namespace: str, enter: Entrant) -> None:
        self.session, self.namespace, self.enter = session, namespace, enter

    @property
    def path(self) -> str:
        return LEASES.path(self.namespace, NAME)

    async def spec(self) -> JsonObject:
        spec: JsonObject = (await self.session.get(self.path))["spec"]
        return spec

    async def list(self) -> list[JsonObject]:
        items: list[JsonObject] = (await self.session.get(LEASES.path(self.namespace)))["items"]
        return items

    async def write(self, spec: JsonObject) -> None:
        body = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": {"name": NAME}, "spec": spec}
        await self.session.create(LEASES.path(self.namespace), body)

    async def renewals(self, count: int) -> None:
        """Return once the Lease has been renewed `count` times more."""
        seen = {(await self.spec())["renewTime"]}
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(seen) <= count:
                await asyncio.sleep(0.02)
                seen.add((await self.spec())["renewTime"])


@pytest_asyncio.fixture
async def court(cluster: Any) -> AsyncIterator[Court]:
    configuration = load_configuration(cluster.devcluster.control_plane.kubeconfig())
    async with AsyncExitStack() as stack:
        candidates: list[Candidate] = []

        async def enter(identity: str, *, clock: Clock | None = None, start: bool = True, **options: Any) -> Candidate:
            session = await stack.enter_async_context(FaultySession(configuration))
            candidate = Candidate(session, cluster.namespace, identity, clock or Clock(), **options)
            candidates.append(candidate)
            if start:
                candidate.start()
            return candidate

        yield Court(await stack.enter_async_context(ApiSession(configuration)), cluster.namespace, enter)
        for candidate in candidates:
            await candidate.crash()


async def never_commanded() -> int:
    return 0


async def first_leader(court: Court, **options: Any) -> Candidate:
    """A leader of a Lease that nobody held before, without the wait for a forerunner that there cannot be."""
    candidate = await court.enter("first", least_epoch=never_commanded, **options)
    assert await candidate.leads() == 1
    return candidate


async def test_of_two_candidates_one_leads_and_its_renewals_keep_it(court: Court) -> None:
    floor = {"least_epoch": never_commanded}
    candidates = [await court.enter(name, **floor) for name in ("a", "b")]
    await until(lambda: any(candidate.lease.epoch for candidate in candidates))
    await court.renewals(8)
    (leader,) = [candidate for candidate in candidates if candidate.lease.epoch is not None]
    assert sorted(candidate.changes for candidate in candidates) == [[], [1]]
    spec = await court.spec()
    assert spec["holderIdentity"] == leader.lease.identity
    assert spec["leaseTransitions"] == leader.lease.epoch == 1
    assert spec["leaseDurationSeconds"] == DURATION_SECONDS
    assert spec["acquireTime"] < spec["renewTime"]
    leader.lease.check(1)
    assert 0 < leader.lease.remaining_seconds() < DURATION_SECONDS


async def test_a_crashed_leader_is_followed_under_a_higher_epoch_once_its_claim_has_ended(court: Court) -> None:
    first = await first_leader(court)
    second = await court.enter("second")
    await court.renewals(4)
    await first.crash()
    assert first.lease.epoch == 1
    assert second.lease.epoch is None

    claims: list[int | None] = []
    second.on_change = lambda epoch: claims.append(first.lease.epoch)
    # Both clocks run alike; a little at a time, so that the takeover is seen at the moment when it happens.
    while not second.changes:
        first.clock.leap_seconds += 0.5
        second.clock.leap_seconds += 0.5
        await asyncio.sleep(0.01)
        assert second.clock.leap_seconds < 3 * DURATION_SECONDS
    assert claims == [None]
    assert second.changes == [2]
    with pytest.raises(LeadershipLost, match=r"decided under epoch 1, but held is none now"):
        first.lease.check(1)


async def test_a_process_stopped_past_its_lease_sees_the_loss_before_it_acts(court: Court) -> None:
    first = await first_leader(court)
    first.lease.check(1)
    await first.crash()  # stopped: its tasks do not run, the boot clock does
    first.clock.leap_seconds += DURATION_SECONDS
    with pytest.raises(LeadershipLost):
        first.lease.check(1)
    assert first.lease.epoch is None
    assert first.lease.remaining_seconds() == 0

    first.start()  # continued: nobody else has led, yet what was decided before the stop stays undone
    assert await first.leads() == 2
    assert first.changes == [1, None, 2]
    with pytest.raises(LeadershipLost, match=r"decided under epoch 1, but held is 2 now"):
        first.lease.check(1)


@pytest.mark.parametrize("fault", ["down", "mute"])
async def test_in_an_outage_the_epoch_ends_before_anyone_else_can_have_one(court: Court, fault: str) -> None:
    first = await first_leader(court)
    second = await court.enter("second")
    await court.renewals(3)
    setattr(first.session, fault, True)
    claims: list[int | None] = []
    second.on_change = lambda epoch: claims.append(first.lease.epoch)
    while not second.changes:
        first.clock.leap_seconds += 0.5
        second.clock.leap_seconds += 0.5
        await asyncio.sleep(0.01)
    assert claims == [None]
    await until(lambda: first.changes == [1, None])  # its own task has noticed, without any answer

    setattr(first.session, fault, False)
    await court.renewals(4)
    assert (await court.spec())["holderIdentity"] == "second"
    assert first.changes == [1, None]


async def test_a_short_outage_costs_nothing(court: Court) -> None:
    first = await first_leader(court)
    first.session.down = True
    await asyncio.sleep(4 * RENEW_SECONDS)  # not a wait for anything: the length of the outage
    first.session.down = False
    await court.renewals(2)
    first.lease.check(1)
    assert first.changes == [1]


async def test_a_release_lets_the_next_leader_in_at_once_and_is_no_heartbeat(court: Court) -> None:
    first = await first_leader(court, duration_seconds=MAX_DURATION_SECONDS)
    second = await court.enter("second", start=False, duration_seconds=MAX_DURATION_SECONDS)
    await court.renewals(2)
    await first.lease.release()
    with pytest.raises(LeadershipLost):
        first.lease.check(1)
    released = await court.spec()
    assert not released.get("holderIdentity")
    assert released["leaseTransitions"] == 1
    assert first.changes == [1, None]
    assert first.task is not None
    await asyncio.wait_for(first.task, PATIENCE_SECONDS)  # a released lease does not compete again
    assert await court.spec() == released

    second.start()
    assert await second.leads() == 2  # long before 300 s are over


async def test_a_release_during_a_renewal_is_final(court: Court) -> None:
    first = await first_leader(court, renew_seconds=0.001)
    await first.lease.release()
    assert first.lease.epoch is None
    assert not (await court.spec()).get("holderIdentity")
    assert first.changes == [1, None]


async def test_a_release_without_the_api_does_not_raise(court: Court) -> None:
    first = await first_leader(court)
    first.session.down = True
    await first.lease.release()
    assert first.lease.epoch is None
    assert (await court.spec())["holderIdentity"] == "first"


async def test_a_loser_releases_nothing(court: Court) -> None:
    await first_leader(court)
    second = await court.enter("second")
    await second.lease.release()
    assert (await court.spec())["holderIdentity"] == "first"


async def test_lost_answers_and_foreign_edits_do_not_end_a_leadership(court: Court) -> None:
    first = await first_leader(court)
    first.session.lose_answers = 3
    for count in range(5):
        await court.session.patch(court.path, {"metadata": {"labels": {"edited": str(count)}}})
        await court.renewals(1)
    assert first.session.lose_answers == 0
    assert first.changes == [1]
    first.lease.check(1)
    assert (await court.session.get(court.path))["metadata"]["labels"]["edited"] == "4"


async def test_edits_that_renew_nothing_do_not_keep_a_dead_leader_in_office(court: Court) -> None:
    first = await first_leader(court)
    second = await court.enter("second")
    await court.renewals(2)
    await first.crash()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not second.changes:
            await court.session.patch(court.path, {"metadata": {"labels": {"edited": str(random.random())}}})
            second.clock.leap_seconds += DURATION_SECONDS / 10
            await asyncio.sleep(RENEW_SECONDS / 5)
    assert second.changes == [2]


async def test_a_deleted_lease_is_made_again_by_its_holder_under_the_same_epoch(court: Court) -> None:
    first = await first_leader(court)
    second = await court.enter("second")
    await court.renewals(2)
    uid = (await court.session.get(court.path))["metadata"]["uid"]
    await court.session.delete(court.path)

    async with asyncio.timeout(PATIENCE_SECONDS):
        while not [item for item in await court.list() if item["metadata"]["uid"] != uid]:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await court.renewals(3)
    assert (await court.spec())["holderIdentity"] == "first"
    assert (first.changes, second.changes) == ([1], [])


async def test_a_missing_lease_is_only_made_when_no_claim_to_it_can_be_left(court: Court) -> None:
    """Its holder may not know yet that it is gone; the epoch goes on above whatever the nodes were commanded under."""
    asked = 0

    async def floor() -> int:
        nonlocal asked
        asked += 1
        return 41

    candidate = await court.enter("late", least_epoch=floor)
    await until(lambda: asked >= 5)
    assert candidate.changes == []
    candidate.clock.leap_seconds += DURATION_SECONDS
    assert await candidate.leads() == 42


async def test_without_a_floor_a_missing_lease_is_waited_for_as_well(court: Court) -> None:
    candidate = await court.enter("blind")
    await asyncio.sleep(2 * RENEW_SECONDS)  # several looks
    assert candidate.changes == []
    candidate.clock.leap_seconds += DURATION_SECONDS
    assert await candidate.leads() == 1


async def test_a_lease_set_back_does_not_set_the_epoch_back(court: Court) -> None:
    first = await first_leader(court)
    for _ in range(2):
        first.clock.leap_seconds += DURATION_SECONDS
        await until(lambda: first.lease.epoch is not None)
    epoch = first.lease.epoch
    assert epoch is not None
    await court.session.patch(court.path, {"spec": {"leaseTransitions": 0}})
    await until(lambda: first.changes[-1] == epoch + 1)
    assert (await court.spec())["leaseTransitions"] == epoch + 1


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"holderIdentity": ""},
        {"leaseTransitions": 7},
        {"holderIdentity": "", "leaseTransitions": 7, "renewTime": "2100-01-01T00:00:00.000000Z"},
    ],
)
async def test_a_lease_of_nobody_is_taken_at_once(court: Court, spec: JsonObject) -> None:
    await court.write(spec)
    candidate = await court.enter("a", duration_seconds=MAX_DURATION_SECONDS)
    assert await candidate.leads() == spec.get("leaseTransitions", 0) + 1


@pytest.mark.parametrize("duration", [None, 2**31 - 1])
async def test_a_holder_of_a_senseless_duration_is_waited_for_within_reason(court: Court, duration: int | None) -> None:
    renewed = "2001-01-01T00:00:00.000000Z"  # long ago, by a wall clock that nobody believes
    spec = {"holderIdentity": "ghost", "renewTime": renewed, "leaseTransitions": 3}
    await court.write(spec if duration is None else {**spec, "leaseDurationSeconds": duration})
    candidate = await court.enter("a")
    await asyncio.sleep(4 * RENEW_SECONDS)
    assert candidate.changes == []
    candidate.clock.leap_seconds += DURATION_SECONDS if duration is None else MAX_DURATION_SECONDS
    assert await candidate.leads() == 4


async def test_a_rival_waits_as_long_as_the_holder_was_promised(court: Court) -> None:
    await court.write({"holderIdentity": "slow", "leaseDurationSeconds": 200})
    candidate = await court.enter("a", duration_seconds=10)
    await asyncio.sleep(2 * RENEW_SECONDS)
    candidate.clock.leap_seconds += 100
    await asyncio.sleep(2 * RENEW_SECONDS)
    assert candidate.changes == []
    candidate.clock.leap_seconds += 100
    assert await candidate.leads() == 1


async def test_wall_clocks_decide_nothing_and_every_renewal_is_a_new_heartbeat(court: Court) -> None:
    stopped = datetime(1999, 12, 31, tzinfo=UTC)
    first = await first_leader(court, wall_clock=lambda: stopped)
    second = await court.enter("second", wall_clock=lambda: datetime(2100, 1, 1, tzinfo=UTC))
    await court.renewals(5)
    assert (await court.spec())["renewTime"].startswith("1999-12-31")
    assert (first.changes, second.changes) == ([1], [])


async def test_who_gives_its_lease_up_stands_back_and_leads_again_under_a_higher_epoch(court: Court) -> None:
    first = await first_leader(court)
    first.lease.give_up("the test wants it", 1000.0)
    with pytest.raises(LeadershipLost):
        first.lease.check(1)
    await until(lambda: not first.session.under_way)  # a renewal may have been on its way
    renewed = (await court.spec())["renewTime"]
    await asyncio.sleep(4 * RENEW_SECONDS)
    assert (await court.spec())["renewTime"] == renewed
    first.clock.leap_seconds += 1001.0
    assert await first.leads() == 2


async def test_an_api_that_refuses_is_asked_again(court: Court) -> None:
    refusals = 2

    async def floor() -> int:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise ApiError(403, "Forbidden", "not allowed yet", "LIST gpunodes")
        return 0

    candidate = await court.enter("a", least_epoch=floor)
    assert await candidate.leads() == 1
    assert refusals == 0


async def test_a_floor_that_never_comes_holds_up_no_release(court: Court) -> None:
    asked = 0

    async def never() -> int:
        nonlocal asked
        asked += 1
        await asyncio.Event().wait()
        return 0

    candidate = await court.enter("a", least_epoch=never, duration_seconds=1, renew_seconds=0.1)
    await until(lambda: asked >= 2)  # given up, and asked again
    async with asyncio.timeout(PATIENCE_SECONDS):
        await candidate.lease.release()
    assert candidate.changes == []


async def test_under_random_outages_nobody_leads_beside_another(court: Court) -> None:
    """Whenever one begins to lead, no other may hold an epoch, and the epochs rise; over many forced takeovers."""
    dice = random.Random(3)
    clock = Clock()  # all on one machine
    candidates = [
        await court.enter(name, clock=clock, duration_seconds=10, least_epoch=never_commanded) for name in "abc"
    ]
    epochs: list[int] = []
    beside: list[tuple[int, list[int]]] = []

    def watch(candidate: Candidate) -> Callable[[int | None], None]:
        def changed(epoch: int | None) -> None:
            if epoch is not None:
                epochs.append(epoch)
                others = [other.lease.epoch for other in candidates if other is not candidate]
                if held := [other for other in others if other is not None]:
                    beside.append((epoch, held))

        return changed

    for candidate in candidates:
        candidate.on_change = watch(candidate)
    async with asyncio.timeout(4 * PATIENCE_SECONDS):
        while len(epochs) < 12:
            for candidate in candidates:
                candidate.session.down = dice.random() < 0.4
                candidate.session.lose_answers = dice.choice([0, 0, 1])
            for _ in range(dice.randrange(4, 30)):
                clock.leap_seconds += dice.uniform(0, 0.6)
                await asyncio.sleep(0.005)
    assert beside == []
    assert epochs == sorted(set(epochs))


@pytest.mark.parametrize(
    ("identity", "duration", "renew", "message"),
    [
        ("", 15, 5.0, "empty identity"),
        ("a", 15, 7.0, r"renewing every 7.0 s under a duration of 15 s \(wanted: renew <= 0.45 x duration"),
        ("a", 15, 0.0, "renewing every 0.0 s"),
        ("a", MAX_DURATION_SECONDS + 1, 5.0, "duration <= 300 s"),
    ],
)
def test_settings_that_cannot_work_are_refused(identity: str, duration: int, renew: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LeaderLease(None, identity, "ns", "name", duration, renew)  # type: ignore[arg-type]
