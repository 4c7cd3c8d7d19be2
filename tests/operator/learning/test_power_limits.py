"""The power limits of jobs of which nothing is known: which are tried, within what, and which is found."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from flyball_api.gpu_node import read_gpu_node
from flyball_api.values.units import MilliwattsPerGpu, allowed_milliwatts
from flyball_operator.learning.exploration import LEAST_SAMPLES, LONGEST_SECONDS, Running, acknowledged_limit
from flyball_operator.learning.power_limits import PowerLimitProfiles, Slice, cheapest, cost
from flyball_operator.learning.profiles import Point, Profile, ProfileKey
from flyball_operator.learning.windows import Window
from flyball_operator.power.nodes.info import read_nodes
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.support.examples import examples
from tests.support.learned_jobs import A100, incarnation, job
from tests.support.operator_objects import NOW, decision, grant, job_grant, node_view, raw_gpu_node

GPUS, PLANNED_WATTS, DRAWN_WATTS = 4, 350.0, 300.0
KEY, UID = ProfileKey("research", "gpt2", A100.product), "uid-research-gpt2"


class Trained:
    """A job that takes `seconds(watts)` for an iteration where each GPU draws so much, and one window a cycle."""

    def __init__(self, exponent: float = 0.4) -> None:
        self.exponent = exponent
        self.known: Profile | None = None
        self.windows: list[Window] = []

    def profile(self, key: ProfileKey) -> Profile | None:
        return self.known if key == KEY else None

    def window(self, uid: str) -> tuple[int, Window | None]:
        return len(self.windows), self.windows[-1] if self.windows else None

    def iteration(self, limit_watts: float) -> tuple[float, float]:
        """Seconds and joules; a third of the draw does nothing for the speed."""
        watts = min(limit_watts, DRAWN_WATTS)
        seconds = (DRAWN_WATTS / watts) ** self.exponent
        return seconds, GPUS * watts * seconds

    def train(self, limit_watts: float, clock: int = 1200) -> None:
        seconds, joules = self.iteration(limit_watts)
        self.windows.append(Window(Point(GPUS, 1, 16, clock), A100, seconds, joules))


def running(number: int = 1, planned: float = PLANNED_WATTS, **spec: Any) -> Running:
    view = job(**{"objective": "Energy", **spec})
    found = decision(view.uid, ("n1", GPUS), watts=planned, clock=1410)
    return Running(view, incarnation(view, {"n1": GPUS}, number), found, A100)


class Trial:
    """One job under one operator; each cycle of five seconds its GPUs have what was granted in the one before."""

    def __init__(self, limits: int = 4, trained: Trained | None = None) -> None:
        self.trained = trained or Trained()
        self.profiles = PowerLimitProfiles(self.trained, limits)
        self.now = self.gpu_seconds = 0.0
        self.limit: float | None = None
        self.explanation = ""
        self.uid = ""

    def cycle(self, item: Running | None, seconds: float = 5.0, *, reports: bool = True) -> float:
        """What each GPU is granted after it."""
        self.now += seconds
        if item is None:
            self.gpu_seconds += self.profiles.step([], {UID}, self.now)
            return 0.0
        allocation = item.decision.allocation
        assert allocation is not None
        standing = allocation.power_limit_watts if self.limit is None else self.limit
        if reports:
            self.trained.train(standing)
        held = item._replace(limit_milliwatts=MilliwattsPerGpu(allowed_milliwatts(standing)))
        self.gpu_seconds += self.profiles.step([held], {UID}, self.now)
        decisions = {item.job.uid: item.decision}
        granted = self.profiles.granted(decisions)[item.job.uid].allocation
        self.explanation = self.profiles.explained(decisions)[item.job.uid].explanation
        assert granted is not None
        assert replace(granted, power_limit_watts=allocation.power_limit_watts) == allocation, "nothing else changes"
        assert A100.min_power_limit_watts <= granted.power_limit_watts <= allocation.power_limit_watts
        self.limit = granted.power_limit_watts
        return self.limit

    def run(self, item: Running, cycles: int = 400) -> list[float]:
        """The limits in the order in which they were granted."""
        tried: list[float] = []
        for _ in range(cycles):
            limit = self.cycle(item)
            if not tried or tried[-1] != limit:
                tried.append(limit)
        return tried


@pytest.mark.parametrize(("bound", "limit"), [({}, 270_000), ({"boundMilliwatts": 1_000_000}, None)])
def test_what_was_measured_under_a_brake_is_of_no_limit(bound: dict[str, int], limit: int | None) -> None:
    item = running()
    own = job_grant(item.job.uid, 270_000, GPUS)
    raw = raw_gpu_node("n1", grant(8 * 270_000, jobs=(own,)), limits=1_000_000)
    raw["status"]["acknowledged"] |= bound
    nodes = read_nodes([node_view("n1")], {"n1": read_gpu_node(raw)}, [], frozenset())
    assert acknowledged_limit(item.job.uid, item.incarnation, nodes) == limit


def test_limits_below_the_draw_are_tried_one_after_the_other_and_the_cheapest_acts() -> None:
    trial = Trial(limits=4)
    assert trial.run(running()) == [350.0, 270.0, 240.0, 210.0, 180.0], "slower, but of ever fewer joules"
    assert "held to 180 W: the cheapest of those that were tried" in trial.explanation
    # Each for the window in which it was set, and two that count.
    assert trial.gpu_seconds == pytest.approx(GPUS * 5.0 * 4 * (2 + LEAST_SAMPLES), rel=0.3)
    spent = trial.gpu_seconds
    trial.run(running())
    assert trial.gpu_seconds == spent, "what was found is no trial"


def test_each_limit_is_measured_in_time_where_agents_report_every_half_minute() -> None:
    """As long as an agent may take between two reports, of which the one in which the limit changes counts for nothing."""
    found: list[Any] = []
    trial = Trial(limits=4)
    for number in range(400):
        limit = trial.cycle(running(), reports=number % 6 == 0)
        if not found or found[-1] != limit:
            found.append(limit)
    assert found == [350.0, 270.0, 240.0, 210.0, 180.0]
    (profiled,) = trial.profiles._jobs.values()
    assert len(profiled.slices) == 5, "none was given up"
    assert trial.gpu_seconds <= GPUS * 4 * LONGEST_SECONDS


def test_what_is_found_is_of_least_cost_by_the_jobs_objective() -> None:
    """Time counts in a Balanced job: the limits below the draw are dearer, and the first that is ends it."""
    trial = Trial(limits=6, trained=Trained(exponent=0.9))
    assert trial.run(running(objective="Balanced")) == [350.0, 270.0, 350.0]
    assert "held to" not in trial.explanation
    item = running(objective="Balanced")
    planned, lower = (Slice(limit, *trial.trained.iteration(limit or PLANNED_WATTS)) for limit in (None, 270.0))
    most = A100.max_power_limit_watts * GPUS
    assert cost(planned, item) == pytest.approx(0.5 * planned.joules + 0.5 * most * planned.seconds)
    assert cost(lower, item) > cost(planned, item)
    assert cheapest([planned, lower], item) is None
    assert cheapest([planned, lower], running(objective="Energy")) == 270.0


@pytest.mark.parametrize(
    "kept",
    [
        lambda: running()._replace(job=replace(running().job, observed=True)),
        lambda: running(objective="Time"),
        lambda: running(clocks={"minMegahertz": 900}),
        lambda: running(deadline=(NOW + timedelta(days=9)).isoformat()),
        lambda: running(pipeline={"stages": 4, "microbatches": 2, "plan": {"configMap": "p"}}),
        lambda: running()._replace(decision=decision(running().job.uid, ("n1", 2), watts=PLANNED_WATTS)),
    ],
    ids=["observed", "time alone", "its own bounds", "a deadline", "a pipeline", "about to be resized"],
)
def test_whose_limits_are_not_to_be_tried(kept: Any) -> None:
    assert set(Trial().run(kept())) == {PLANNED_WATTS}


def test_without_leave_nothing_is_tried() -> None:
    assert set(Trial(limits=0).run(running())) == {PLANNED_WATTS}


def test_a_job_that_is_known_is_planned_by_its_model_and_not_tried() -> None:
    trained = Trained()
    trained.known = Profile(KEY)
    for clock in (1410, 1200, 1005):
        for _ in range(LEAST_SAMPLES):
            trained.known = trained.known.with_window(Point(8, 1, 16, clock), 1.0, 400.0, NOW)
    assert set(Trial(trained=trained).run(running())) == {PLANNED_WATTS}


def test_windows_that_began_before_the_limit_was_there_say_nothing_of_it() -> None:
    trial = Trial(limits=1)
    while trial.cycle(running()) == PLANNED_WATTS:
        pass
    assert trial.limit == 270.0
    item = running()
    for _ in range(8):  # not acknowledged: the GPUs have the limit from before
        trial.trained.train(PLANNED_WATTS)
        late = item._replace(limit_milliwatts=MilliwattsPerGpu(allowed_milliwatts(PLANNED_WATTS)))
        trial.profiles.step([late], {UID}, trial.now)
    trial.trained.train(PLANNED_WATTS)
    trial.cycle(item, reports=False)
    trial.trained.train(1.0)  # spans both
    for _ in range(LEAST_SAMPLES + 1):
        trial.cycle(item)
    (profiled,) = trial.profiles._jobs.values()
    assert profiled.over
    assert profiled.slices[1] == Slice(270.0, *trial.trained.iteration(270.0))


def test_a_limit_that_nothing_is_heard_of_is_given_up_and_a_job_that_reports_nothing_stays_as_planned() -> None:
    silent = Trial()
    for _ in range(100):
        assert silent.cycle(running(), reports=False) == PLANNED_WATTS
    assert not silent.profiles.under_way(running())
    trial, heard = Trial(limits=2), 0.0
    for _ in range(300):
        limit = trial.cycle(running(), reports=trial.limit != 270.0)
        heard += 5.0 if limit == 270.0 else 0.0
    assert heard <= LONGEST_SECONDS + 5.0
    assert trial.limit == 240.0


def test_what_was_found_is_for_the_place_at_which_it_was_measured_and_below_the_plan() -> None:
    trial = Trial(limits=1)
    trial.run(running())
    assert trial.limit == 270.0
    assert trial.cycle(running(planned=200.0)) == 200.0, "a cap comes first"
    assert trial.cycle(running()) == 270.0
    trial.trained.known = Profile(KEY)
    for clock in (1410, 1200, 1005):
        for _ in range(LEAST_SAMPLES):
            trial.trained.known = trial.trained.known.with_window(Point(4, 1, 16, clock), 1.0, 400.0, NOW)
    assert set(trial.run(running(number=2))) == {PLANNED_WATTS}, "its model knows it by now"


def test_of_jobs_that_share_a_profile_one_is_tried_at_a_time() -> None:
    trained = Trained()
    profiles = PowerLimitProfiles(trained, 4)
    first = running()
    second = first._replace(job=replace(first.job, metadata=structs.replace(first.job.metadata, uid="other")))
    for now in range(3):
        profiles.step([first, second], {UID, "other"}, float(now))
    assert [profiles.under_way(item) for item in (first, second)] == [True, False]


@given(
    limits=st.integers(0, 8),
    exponent=st.floats(0.0, 1.0),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["reports", "is silent", "restarts", "waits", "is cut"]),
            st.floats(0.1, 60.0),
            st.floats(100.0, 400.0),
        ),
        max_size=150,
    ),
)
@settings(max_examples=examples(100))
def test_no_limit_is_above_the_plan_and_trials_end(
    limits: int, exponent: float, steps: list[tuple[str, float, float]]
) -> None:
    """Whatever comes: `Trial.cycle` looks at every grant; and what is tried takes no longer than it may."""
    trial, number, longest = Trial(limits, Trained(exponent)), 1, 0.0
    for what, seconds, planned in steps:
        longest = max(longest, seconds)
        if what in ("restarts", "waits"):
            number += 1
        if what == "waits":
            trial.cycle(None, seconds)
            trial.limit = None
        else:
            trial.cycle(
                running(number=number, planned=planned if what == "is cut" else PLANNED_WATTS),
                seconds,
                reports=what != "is silent",
            )
    assert trial.gpu_seconds <= GPUS * ((limits + 1) * LONGEST_SECONDS + longest) * (limits > 0)
