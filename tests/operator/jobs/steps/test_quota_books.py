"""The books of EnergyQuotas: nothing counted twice, nothing forgotten, whatever becomes of operators and jobs."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from flyball_api.energy.quota import EnergyQuota, QuotaAllocation, QuotaPeriod, read_energy_quota
from flyball_api.power_cap import EnergyBudget
from flyball_operator.jobs.runs.consumption import Consumption
from flyball_operator.jobs.steps.quota_books import MAX_COUNTED_JOBS, QuotaBooks, charged, quota_status, spent_text
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.examples import examples
from tests.support.operator_objects import as_stored

DAY = 86_400
START = datetime(2030, 6, 1, 12, 0, 0, tzinfo=UTC)
BUDGET = EnergyBudget(kilojoules=10, period_seconds=DAY)


def used(uid: str, millijoules: int, *, created: datetime = START, ended_at: datetime | None = None) -> Consumption:
    return Consumption("team", uid, uid, created, millijoules, ended_at=ended_at)


def quota(status: Any = None, **budget: Any) -> EnergyQuota:
    spec = {"energyBudget": {"kilojoules": 10, "periodSeconds": DAY, **budget}}
    metadata = {"name": "team", "namespace": "team", "uid": "uid-quota", "generation": 3}
    return read_energy_quota({"metadata": metadata, "spec": spec, "status": status or {}})


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def test_a_new_book_begins_with_what_jobs_use_from_now_on() -> None:
    old = used("old", 7_000_000, created=after(-100))
    period = charged(BUDGET, None, [old], START)
    assert period.consumed_millijoules == 0
    assert period.start == datetime(2030, 6, 1, tzinfo=UTC)
    period = charged(BUDGET, period, [replace(old, millijoules=7_500_000), used("new", 250_000)], after(10))
    assert (period.consumed_millijoules, period.consumed_kilojoules) == (750_000, 0)


def test_a_job_that_is_deleted_and_made_anew_gets_nothing_back() -> None:
    period = charged(BUDGET, charged(BUDGET, None, [], START), [used("first", 4_000_000)], after(10))
    period = charged(BUDGET, period, [], after(20))
    period = charged(BUDGET, period, [used("second", 1_000_000, created=after(20))], after(30))
    assert period.consumed_kilojoules == 5


def test_a_status_that_was_lost_is_gone_on_from() -> None:
    period = charged(BUDGET, charged(BUDGET, None, [], START), [used("job", 4_000_000)], after(10))
    period = charged(BUDGET, period, [used("job", 100_000)], after(20))
    period = charged(BUDGET, period, [used("job", 600_000)], after(30))
    assert period.consumed_millijoules == 4_500_000


def test_late_energy_of_an_ended_job_counts_once_and_its_entry_goes() -> None:
    period = charged(BUDGET, charged(BUDGET, None, [], START), [used("job", 1_000_000)], after(10))
    ended = used("job", 1_500_000, ended_at=after(12))
    for second in (20, 30, 4000, 4010):
        period = charged(BUDGET, period, [ended], after(second))
        assert period.consumed_millijoules == 1_500_000
    assert period.jobs == ()


def test_what_begins_and_ends_between_two_looks_counts() -> None:
    period = charged(BUDGET, None, [], START)
    short = used("short", 300_000, created=after(2), ended_at=after(8))
    period = charged(BUDGET, period, [short], after(10))
    assert charged(BUDGET, period, [short], after(20)).consumed_millijoules == 300_000


def test_a_new_period_begins_with_the_share_of_what_was_used_in_it() -> None:
    """An operator that was away over midnight charges each period what fell into it, evenly."""
    begun = charged(BUDGET, None, [], datetime(2030, 6, 1, 23, 0, tzinfo=UTC))
    period = charged(
        BUDGET, begun, [used("job", 4_000_000, created=after(DAY))], datetime(2030, 6, 2, 1, 0, tzinfo=UTC)
    )
    assert period.start == datetime(2030, 6, 2, tzinfo=UTC)
    assert period.consumed_millijoules == 2_000_000


def test_the_words_name_the_quota_and_when_it_is_free_again() -> None:
    period = QuotaPeriod(start=datetime(2030, 6, 1, tzinfo=UTC), consumed_millijoules=10_000_000)
    assert spent_text(quota(), period) == (
        "the 10 kJ of EnergyQuota team are used up; its next period begins at 2030-06-02T00:00:00Z"
    )
    assert spent_text(quota(kilojoules=11), period) is None
    assert spent_text(quota(), msgspec.structs.replace(period, consumed_millijoules=9_999_999)) is None


def test_the_next_leader_goes_on_from_the_status() -> None:
    books = QuotaBooks(10.0)
    books.charge([quota()], [], START)
    books.charge([quota()], [used("job", 6_000_000)], after(10))
    ((_, status),) = books.step([quota()], [], after(10), 0.0, ())
    assert [(item.status, item.reason) for item in status.conditions] == [("True", "WithinQuota")]
    stored = quota(as_stored(status))
    successor = QuotaBooks(10.0)
    assert successor.spent([stored]) == {}
    successor.charge([stored], [used("job", 11_000_000)], after(60))
    assert list(successor.spent([stored])) == ["uid-quota"]
    ((_, status),) = successor.step([stored], [], after(60), 0.0, ())
    assert [(item.status, item.reason) for item in status.conditions] == [("False", "EnergySpent")]
    # Before it has charged anything, too: a new leader gives nobody a start in the meantime.
    assert list(QuotaBooks(10.0).spent([quota(as_stored(status))])) == ["uid-quota"]


def test_figures_are_written_now_and_then_and_nothing_while_a_write_is_under_way() -> None:
    books = QuotaBooks(10.0)
    books.charge([quota()], [], START)
    ((_, status),) = books.step([quota()], [], START, 0.0, ())
    stored = quota(as_stored(status))
    books.charge([stored], [used("job", 1)], after(1))
    assert books.step([stored], [], after(1), 1.0, ()) == []
    assert books.step([stored], [], after(10), 10.0, ["uid-quota"]) == []
    assert len(books.step([stored], [], after(10), 10.0, ())) == 1


def test_a_quota_without_a_budget_keeps_no_book() -> None:
    bare = read_energy_quota({"metadata": {"name": "t", "namespace": "team", "uid": "u"}, "spec": {"gpus": 4}})
    books = QuotaBooks(10.0)
    books.charge([bare], [used("job", 5)], START)
    ((_, status),) = books.step([bare], [], START, 0.0, ())
    assert status.energy_period is None
    assert quota_status(bare, None, QuotaAllocation(4, 1600, 1), START).allocated == QuotaAllocation(4, 1600, 1)


def test_more_jobs_than_a_status_can_name_are_each_counted_once() -> None:
    jobs = [used(f"job-{number:05d}", 1_000 + number) for number in range(MAX_COUNTED_JOBS + 5)]
    together = sum(job.millijoules for job in jobs)
    books = QuotaBooks(10.0)
    books.charge([quota()], [], START)
    for second in (1, 2, 3):
        books.charge([quota()], jobs, after(second))
        ((_, status),) = books.step([quota()], [], after(second), 20.0 * second, ())
        assert status.energy_period is not None
        assert status.energy_period.consumed_millijoules == together
        assert len(status.energy_period.jobs) == MAX_COUNTED_JOBS
    # The next leader cannot know up to where those that are left out are counted: only what they use from then on counts.
    successor, stored = QuotaBooks(10.0), quota(as_stored(status))
    successor.charge([stored], jobs, after(20))
    jobs[0] = replace(jobs[0], millijoules=jobs[0].millijoules + 7)
    successor.charge([stored], [*jobs, used("later", 50, created=after(19))], after(30))
    ((_, status),) = successor.step([stored], [], after(30), 100.0, ())
    assert status.energy_period is not None
    assert status.energy_period.consumed_millijoules == together + 57


class Book(RuleBasedStateMachine):
    """Jobs come, use energy, end, are deleted; operators crash between two writes: the book is what was used, exactly."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.jobs: dict[str, Consumption] = {}
        self.truth = 0
        self.counter = 0
        self.stored: QuotaPeriod = charged(BUDGET, None, [], self.now)
        self.memory: QuotaPeriod = self.stored
        self.seen: dict[str, int] = {}

    @rule()
    def submit(self) -> None:
        self.counter += 1
        name = f"job-{self.counter}"
        self.jobs[name] = used(name, 0, created=self.now)

    @precondition(lambda self: any(job.ended_at is None for job in self.jobs.values()))
    @rule(data=st.data(), millijoules=st.integers(1, 10**9))
    def run(self, data: st.DataObject, millijoules: int) -> None:
        name = data.draw(st.sampled_from(sorted(key for key, job in self.jobs.items() if job.ended_at is None)))
        self.jobs[name] = replace(self.jobs[name], millijoules=self.jobs[name].millijoules + millijoules)
        self.truth += millijoules

    @precondition(lambda self: any(job.ended_at is None for job in self.jobs.values()))
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(key for key, job in self.jobs.items() if job.ended_at is None)))
        self.jobs[name] = replace(self.jobs[name], ended_at=self.now)

    @precondition(lambda self: bool(self.jobs))
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        """What a deleted job used last is taken in, by the operator that goes on, before it is forgotten."""
        self.look(1)
        del self.jobs[data.draw(st.sampled_from(sorted(self.jobs)))]
        self.stored = self.memory

    @rule(seconds=st.integers(1, 5))
    def look(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)
        self.memory = charged(BUDGET, self.memory, self.jobs.values(), self.now)

    @rule()
    def write(self) -> None:
        self.stored = self.memory

    @rule()
    def crash(self) -> None:
        """Another operator goes on from the status that was written last."""
        self.memory = self.stored

    @invariant()
    def the_book_is_what_was_used(self) -> None:
        if self.now.date() == START.date():
            found = charged(BUDGET, self.memory, self.jobs.values(), self.now)
            assert found.consumed_millijoules == self.truth


TestBook = Book.TestCase
TestBook.settings = settings(max_examples=examples(60), stateful_step_count=40)
