"""Jobs at other clocks for a moment, to learn them: within their budget, below what is planned, and to what avail."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from flyball_operator.learning.exploration import LEAST_SAMPLES, LONGEST_SECONDS, Explorations, Running, clock_to_try
from flyball_operator.learning.learner import REFIT_SECONDS
from flyball_operator.learning.profiles import Point, Profile, ProfileKey
from flyball_planner.snapshot import JobDecision
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.learned_jobs import A100, NODES, Cluster, incarnation, job, learner
from tests.support.operator_objects import NOW, decision
from tests.support.recorded_tables import RecordedJob
from tests.support.waiting import until

SIZE = {"n1": 4}
KEY = ProfileKey("research", "gpt2", A100.product)


class Measured:
    """Profiles as somebody measures them."""

    def __init__(self) -> None:
        self.known: Profile | None = Profile(KEY)

    def profile(self, key: ProfileKey) -> Profile | None:
        return self.known if key == KEY else None

    def window(self, clock: int) -> None:
        assert self.known is not None
        self.known = self.known.with_window(Point(4, 1, 16, clock), 1.0, 400.0, NOW)


def running(clock: int = 1410, number: int = 1, size: dict[str, int] = SIZE, **spec: Any) -> Running:
    view = job(**spec)
    return Running(view, incarnation(view, size, number), decision(view.uid, *size.items(), clock=clock), A100)


class Trial:
    """One job under one operator, a cycle every five seconds."""

    def __init__(self, permille: int) -> None:
        self.profiles = Measured()
        self.explorations = Explorations(self.profiles, permille)
        self.now = 0.0
        self.gpu_seconds = 0.0

    def cycle(self, item: Running | None, seconds: float = 5.0) -> int | None:
        """The clock that is granted after it, where it is another than the plan's."""
        self.now += seconds
        self.gpu_seconds += self.explorations.step([] if item is None else [item], {"uid-research-gpt2"}, self.now)
        if item is None:
            return None
        decisions = {item.job.uid: item.decision}
        changed = self.explorations.granted(decisions)[item.job.uid]
        explained = self.explorations.explained(decisions)[item.job.uid]
        before, after = item.decision.allocation, changed.allocation
        assert before is not None
        assert after is not None
        assert (after.nodes, after.power_limit_watts) == (before.nodes, before.power_limit_watts)
        assert replace(changed, allocation=before) == item.decision
        if after == before:
            return None
        assert after.clock_megahertz < before.clock_megahertz
        assert f"{after.clock_megahertz} MHz" in explained.explanation
        return after.clock_megahertz


def test_two_lower_clocks_are_tried_one_after_the_other_once_the_planned_one_is_known() -> None:
    tried: list[Any] = []
    trial = Trial(permille=100)
    for second in range(2000):
        clock = trial.cycle(running())
        if second == 300:
            assert not tried, "nothing is known of what it does as planned"
            for _ in range(LEAST_SAMPLES):
                trial.profiles.window(1410)
        if clock is not None:
            tried.append(clock)
            trial.profiles.window(clock)
    assert sorted(set(tried)) == [pytest.approx(0.7 * 1410, abs=8), pytest.approx(0.85 * 1410, abs=8)]
    assert len(tried) <= 2 * (LEAST_SAMPLES + 1)
    assert trial.gpu_seconds == pytest.approx(4 * 5.0 * len(tried)), "four GPUs, as long as it was so"


def test_without_a_budget_nothing_is_tried() -> None:
    trial = Trial(permille=0)
    for _ in range(LEAST_SAMPLES):
        trial.profiles.window(1410)
    assert {trial.cycle(running()) for _ in range(500)} == {None}


@pytest.mark.parametrize(
    "kept",
    [
        lambda item: replace_job(item, observed=True),
        lambda item: running(deadline=(NOW + timedelta(days=9)).isoformat()),
        lambda item: running(pipeline={"stages": 4, "microbatches": 2, "plan": {"configMap": "p"}}),
        lambda item: item._replace(decision=decision(item.job.uid, ("n1", 2), clock=1410)),
        lambda item: running(clocks={"minMegahertz": 1400}),
    ],
    ids=["observed", "a deadline", "a pipeline", "about to be resized", "its own bounds"],
)
def test_whose_clocks_are_not_to_be_tried(kept: Any) -> None:
    trial = Trial(permille=100)
    for _ in range(LEAST_SAMPLES):
        trial.profiles.window(1410)
    item = kept(running())
    assert {trial.cycle(item) for _ in range(500)} == {None}
    assert any(trial.cycle(running()) for _ in range(500)), "another one's are"


def replace_job(item: Running, **changes: Any) -> Running:
    return item._replace(job=replace(item.job, **changes))


def test_a_clock_that_tells_nothing_is_given_up_and_a_plan_below_it_ends_it() -> None:
    trial = Trial(permille=100)
    for _ in range(LEAST_SAMPLES):
        trial.profiles.window(1410)
    tried = [clock for _ in range(4000) if (clock := trial.cycle(running())) is not None]
    assert len(set(tried)) == 2
    assert len(tried) <= 2 * (LONGEST_SECONDS / 5.0 + 1), "each once"
    again = Trial(permille=100)
    for _ in range(LEAST_SAMPLES):
        again.profiles.window(1410)
        again.profiles.window(1000)
    while (clock := again.cycle(running())) is None:
        pass
    assert again.cycle(running(clock=1000)) is None
    assert again.cycle(running(number=2)) is None


@given(
    permille=st.integers(0, 100),
    steps=st.lists(
        st.tuples(st.sampled_from(["runs", "restarts", "waits", "measured"]), st.floats(0.1, 400.0)), max_size=120
    ),
)
@settings(max_examples=examples(100))
def test_no_job_spends_more_of_its_time_than_the_budget(permille: int, steps: list[tuple[str, float]]) -> None:
    """Whatever it does, and however long the cycles are; a cycle is as long as nobody looks."""
    trial, number, ran, explored, longest = Trial(permille), 1, 0.0, 0.0, 0.0
    for _ in range(LEAST_SAMPLES):
        trial.profiles.window(1410)
    tried: int | None = None
    for what, seconds in steps:
        number += what == "restarts"
        item = None if what == "waits" else running(number=number)
        if item is not None:
            ran += seconds
            explored += seconds if tried is not None else 0.0
        longest = max(longest, seconds)
        tried = trial.cycle(item, seconds)
        if what == "measured" and tried is not None:
            trial.profiles.window(tried)
    assert explored <= permille / 1000 * ran + longest


async def test_what_is_tried_tells_what_the_class_could_not() -> None:
    """A net that nobody knows, by recorded tables: its energy at other clocks, before and after two of them were tried."""
    table: Any = RecordedJob("bert", 64)
    view = job(training={"globalBatchSize": 64, "iterations": 100_000, "modelClass": "nobodys-net"})
    clock = 0.0
    cluster = Cluster(learner(clock=lambda: clock), table, view)
    item = running()._replace(job=view)

    async def measured(megahertz: int) -> None:
        nonlocal clock
        for _ in range(3):
            clock += REFIT_SECONDS
            cluster.run(SIZE, megahertz, 3, local_batch=16)
            await until(lambda: cluster.learner._fitting is None or cluster.learner._fitting.done())

    def worst() -> float:
        model = cluster.learner.model_for(view, NODES)
        return max(
            abs(model.iteration_joules(4, 1, megahertz, 64) / table.iteration_joules(4, 1, megahertz, 64) - 1)
            for megahertz in (930, 1050, 1170, 1290, 1410)
        )

    def next_clock() -> int | None:
        return clock_to_try(cluster.learner.profile(cluster.key), item._replace(incarnation=incarnation(view, SIZE)))

    await measured(1410)
    before, tried = worst(), []
    while (found := next_clock()) is not None:
        recorded = min(table.clocks, key=lambda megahertz: abs(megahertz - found))
        tried.append(recorded)
        await measured(recorded)
    assert len(tried) == 2
    assert worst() < 0.06
    assert worst() < before / 2


def test_only_decisions_of_who_is_tried_are_others() -> None:
    decisions: dict[str, JobDecision] = {"x": decision("x", ("n1", 4))}
    explorations = Explorations(Measured(), 100)
    assert explorations.granted(decisions) is explorations.explained(decisions) is decisions
