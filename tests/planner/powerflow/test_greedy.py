"""Allocation: PowerFlow's greedy against its definition, and what caps, priorities and hysteresis make of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from flyball_planner.ledger.workspace import going_price
from flyball_planner.models.gpu import GpuModel, gpu_model_for
from flyball_planner.models.job import JobModel
from flyball_planner.models.priors import known_model_classes, model_class_prior
from flyball_planner.planner import plan
from flyball_planner.powerflow import greedy
from flyball_planner.powerflow.plan import plan_strictly
from flyball_planner.snapshot import (
    Admission,
    Allocation,
    CapConstraint,
    ClusterSnapshot,
    Enforcement,
    JobDecision,
    JobState,
    NodeState,
    Objective,
    Plan,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.plans import in_force

# A board to calculate with: V = 1 throughout, so one GPU draws 50 W + 0.1 W/MHz while it computes.
PLAIN = GpuModel("plain", 100.0, 400.0, 400.0, 50.0, (500, 1000, 1500, 2000), knee_megahertz=2000.0, voltage_slope=0.0)
# The same, with a voltage that rises above 1000 MHz: there the fewest joules an iteration are.
CURVED = replace(
    PLAIN,
    product="curved",
    knee_megahertz=1000.0,
    voltage_slope=1.0,
    max_power_limit_watts=600.0,
    default_power_limit_watts=600.0,
)


def a100() -> GpuModel:
    model = gpu_model_for("NVIDIA-A100-SXM4-40GB")
    assert model is not None
    return model


def steady(gpu: GpuModel = PLAIN) -> JobModel:
    """A job that only computes: a sample takes 100/f seconds (f in MHz) at just over 0.1 W/MHz; sizes scale perfectly."""
    return JobModel(
        gpu_model=gpu,
        gradient_seconds=0.0,
        gradient_seconds_per_sample=0.0,
        gradient_megacycles_per_sample=100.0,
        gradient_watts_per_megahertz=1e-4,
        gradient_batch_shift=1.0,
        gradient_batch_offset=1000.0,  # against which the logarithm of the batch is nothing
    )


def nodes(count: int, gpus: int = 8, gpu: GpuModel | None = None) -> tuple[NodeState, ...]:
    return tuple(NodeState(f"n{index}", gpu or a100(), gpus) for index in range(count))


def cap(members: Iterable[NodeState], watts: float, name: str = "all", expected: bool = False) -> CapConstraint:
    kind = Enforcement.EXPECTED if expected else Enforcement.HARD
    return CapConstraint(name, frozenset(node.name for node in members), watts, kind)


def job(name: str, low: int = 1, high: int | None = None, **keywords: object) -> JobState:
    state = JobState(
        uid=name,
        name=f"default/{name}",
        gpus_min=low,
        gpus_max=low if high is None else high,
        global_batch_size=64,
        model=model_class_prior("vgg16", a100()),
        submit_time_seconds=0.0,
        remaining_iterations=1e6,
        objective=Objective.TIME,
    )
    return replace(state, **keywords)  # type: ignore[arg-type]


def running(state: JobState, *on: tuple[str, int], clock: int = 0) -> JobState:
    return replace(state, current=Allocation(on, clock, 0.0))


def sizes(made: Plan) -> dict[str, int]:
    return {item.uid: item.allocation.gpus if item.allocation else 0 for item in made.decisions}


def clocks(made: Plan) -> dict[str, int]:
    return {item.uid: item.allocation.clock_megahertz if item.allocation else 0 for item in made.decisions}


def decided(made: Plan, uid: str) -> JobDecision:
    decision = made.decision(uid)
    assert decision is not None
    return decision


# --- PowerFlow's Algorithm 1 ---------------------------------------------------------------------------------------------


def base_point(state: JobState, gpus: int) -> tuple[float, float, float]:
    """Seconds, joules and one GPU's limit at the clock of fewest joules, straight from the model."""
    found = state.model.curves(gpus, max(1, gpus // 8), state.global_batch_size)
    best = int(found.joules[0].argmin())
    limit = min(max(math.ceil(found.gpu_watts[0, best] * 1.05 - 1e-9), 100), 400)
    return float(found.seconds[0, best]), float(found.joules[0, best]), limit


def powerflow(jobs: tuple[JobState, ...], gpus: int, watts: float) -> dict[str, int]:
    """Algorithm 1, strict, one GPU pool and one Hard cap, written down as plainly as it can be."""
    at: dict[str, int] = {state.uid: 0 for state in jobs}
    by_uid = {state.uid: state for state in jobs}

    def cluster_watts() -> float:
        used = sum(at.values())
        return sum(n * base_point(by_uid[uid], n)[2] for uid, n in at.items() if n) + 100.0 * (gpus - used)

    for state in sorted(jobs, key=lambda item: (item.remaining_iterations or 0) * base_point(item, item.gpus_min)[0]):
        if sum(at.values()) + state.gpus_min <= gpus:
            at[state.uid] = state.gpus_min
    out: set[str] = set()
    while True:
        steps = []
        for uid, n in at.items():
            state = by_uid[uid]
            if not n or uid in out or 2 * n > min(state.gpus_max, state.global_batch_size):
                continue
            now, more = base_point(state, n), base_point(state, 2 * n)
            if more[0] >= now[0] * (1 - 1e-9):
                continue
            faster, joules = now[0] - more[0], more[1] - now[1]
            gain = faster * (state.remaining_iterations or 0)
            steps.append(((0, -gain) if joules <= 0 else (1, -faster / joules), state.name, uid))
        if not steps:
            return at
        _, _, uid = min(steps)
        at[uid] *= 2
        if sum(at.values()) > gpus or cluster_watts() > watts + 1e-6:
            at[uid] //= 2
            out.add(uid)


@st.composite
def elastic_jobs(draw: st.DrawFn) -> tuple[JobState, ...]:
    found = []
    for index in range(draw(st.integers(1, 6))):
        low = draw(st.sampled_from([1, 1, 2, 4]))
        found.append(
            job(
                f"j{index}",
                low,
                low * draw(st.sampled_from([1, 2, 8, 32])),
                model=model_class_prior(draw(st.sampled_from(known_model_classes())), a100()),
                global_batch_size=draw(st.sampled_from([64, 128, 256])),
                remaining_iterations=draw(st.floats(1e4, 1e6)),
            )
        )
    return tuple(found)


@settings(max_examples=examples(100))
@given(elastic_jobs(), st.integers(1, 4))
def test_from_nothing_the_sizes_are_those_of_powerflow(jobs: tuple[JobState, ...], count: int) -> None:
    members = nodes(count)
    assert sizes(plan(ClusterSnapshot(members, jobs))) == powerflow(jobs, 8 * count, math.inf)


@settings(max_examples=examples(100))
@given(elastic_jobs(), st.integers(1, 3), st.floats(0.45, 1.0))
def test_under_a_cap_no_step_passes_it(jobs: tuple[JobState, ...], count: int, share: float) -> None:
    """Growth below base clocks left out, and as long as the cap bears whoever is admitted: `strict` to the letter."""
    members = nodes(count)
    watts = share * 400 * 8 * count
    expected = powerflow(jobs, 8 * count, watts)
    smallest = sum(
        state.gpus_min * (base_point(state, state.gpus_min)[2] - 100) for state in jobs if expected[state.uid]
    )
    if smallest + 100 * 8 * count <= watts:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(greedy, "squeeze", lambda state, candidates, stepper, blocked: (False, blocked))
            assert sizes(plan(ClusterSnapshot(members, jobs, (cap(members, watts),)))) == expected


@settings(max_examples=examples(100))
@given(elastic_jobs(), st.integers(1, 3), st.floats(0.25, 0.6), st.booleans())
def test_growth_below_base_clocks_never_slows_the_cluster_down(
    jobs: tuple[JobState, ...], count: int, share: float, expected: bool
) -> None:
    """Sum of the logarithms of all speeds, with that growth and without it: what the clocks show a loss is taken back."""
    members = nodes(count)
    snapshot = ClusterSnapshot(members, jobs, (cap(members, share * 400 * 8 * count, expected=expected),))

    def score(made: Plan) -> float:
        return -sum(math.log(item.predicted_iteration_seconds) for item in made.decisions if item.allocation)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(greedy, "squeeze", lambda state, candidates, stepper, blocked: (False, blocked))
        without = plan(snapshot)
    made = plan(snapshot)
    assert [item.allocation is None for item in made.decisions] == [
        item.allocation is None for item in without.decisions
    ]
    assert score(made) >= score(without) - 1e-9


def test_the_shortest_remaining_time_is_admitted_first_then_the_earlier_submission() -> None:
    members = nodes(1, 2)
    long, short = job("a-long", 1, remaining_iterations=1e6), job("b-short", 1, remaining_iterations=1e3)
    late = job("a-late", 1, remaining_iterations=1e3, submit_time_seconds=5.0)
    assert sizes(plan(ClusterSnapshot(members, (long, late, short)))) == {"a-long": 0, "a-late": 1, "b-short": 1}
    made = plan(ClusterSnapshot(nodes(1, 1), (late, short)))
    assert sizes(made) == {"a-late": 0, "b-short": 1}
    assert decided(made, "a-late").admission is Admission.WAITING_FOR_GPUS
    assert "Needs 1 GPU" in decided(made, "a-late").explanation


def test_a_job_without_a_known_end_is_placed_by_its_attained_service() -> None:
    old = job("a-old", 1, remaining_iterations=None, attained_gpu_seconds=1e6)
    new = job("b-new", 1, remaining_iterations=None)
    assert sizes(plan(ClusterSnapshot(nodes(1, 1), (old, new)))) == {"a-old": 0, "b-new": 1}


def test_memory_and_batch_bound_the_sizes() -> None:
    members = nodes(4)
    assert sizes(plan(ClusterSnapshot(members, (job("a", 1, 32, max_local_batch_size=16),))))["a"] >= 4
    assert sizes(plan(ClusterSnapshot(members, (job("a", 1, 32, global_batch_size=4),)))) == {"a": 4}
    made = plan(ClusterSnapshot(members, (job("a", 1, 2, max_local_batch_size=16),)))
    assert sizes(made) == {"a": 0}
    assert decided(made, "a").explanation == (
        "No size from 1 to 2 GPUs splits a batch of 64 into what one GPU can take (16)."
    )


@pytest.mark.parametrize("objective", Objective)
def test_a_job_that_is_left_no_size_which_its_memory_allows_stays_and_keeps_nobody_from_a_plan(
    objective: Objective,
) -> None:
    """It runs on all that it may have, and then others of its namespace leave it less of their quota."""
    before = ClusterSnapshot(nodes(2), (job("a", 1, 4, max_local_batch_size=16, objective=objective), job("b", 2)))
    made = plan(before)
    assert sizes(made) == {"a": 4, "b": 2}
    running = in_force(before, made)
    left = tuple(replace(each, gpus_max=min(2, each.gpus_max)) for each in running.jobs)
    assert sizes(plan(replace(running, jobs=(*left, job("c", 2))))) == {"a": 4, "b": 2, "c": 2}


def test_rigid_jobs_run_at_their_size_or_not_at_all() -> None:
    made = plan(ClusterSnapshot(nodes(1), (job("a", 4), job("b", 8), job("c", 4))))
    assert sizes(made) == {"a": 0, "b": 8, "c": 0}, "the eight are done first"
    long = job("b", 8, remaining_iterations=1e8)
    assert sizes(plan(ClusterSnapshot(nodes(1), (job("a", 4), long, job("c", 4))))) == {"a": 4, "b": 0, "c": 4}


# --- Objectives ----------------------------------------------------------------------------------------------------------


def objectives(price: float | None = None) -> Plan:
    three = tuple(job(kind.value, 4, model=steady(CURVED), global_batch_size=64, objective=kind) for kind in Objective)
    return plan(ClusterSnapshot(nodes(2, gpu=CURVED), three, joules_per_job_second=price))


def test_time_takes_the_highest_clock_and_energy_the_cheapest() -> None:
    """CURVED: 50*V + 0.1*V^2*f over 1/f. Per iteration 500 MHz costs 0.2 J, 1000 0.15, 1500 V=1.25 0.198, 2000 0.2625."""
    assert clocks(objectives())["Time"] == 2000
    assert clocks(objectives())["Energy"] == 1000


def test_balanced_pays_the_going_price_for_a_second_and_no_more() -> None:
    """4 GPUs, 16 samples each: 1000 MHz 1.6 s, 960 J; 1500 MHz 1.067 s, 1266.7 J; 2000 MHz 0.8 s, 1680 J.

    The step to 1500 costs 575 J a second, the step to 2000 1550 J a second.
    """
    assert clocks(objectives(price=570.0))["Balanced"] == 1000
    assert clocks(objectives(price=580.0))["Balanced"] == 1500
    assert clocks(objectives(price=1540.0))["Balanced"] == 1500
    assert clocks(objectives(price=1560.0))["Balanced"] == 2000


def test_the_going_price_is_the_power_that_may_be_drawn_a_job() -> None:
    members = nodes(2)
    assert going_price(members, (), 4) == 2 * 8 * 400 / 4
    assert going_price(members, (cap(members, 3200.0),), 4) == 3200 / 4
    assert going_price(members, (cap(members[:1], 800.0), cap(members, 4800.0, "row")), 1) == 800 + 2400


def test_energy_grows_only_where_that_saves_joules() -> None:
    made = plan(ClusterSnapshot(nodes(4), (job("a", 1, 32, objective=Objective.ENERGY),)))
    assert sizes(made) == {"a": 1}
    assert "would take" in decided(made, "a").explanation


# --- Deadlines and budgets -----------------------------------------------------------------------------------------------


def cheapest_that_meets(state: JobState, seconds: float) -> tuple[int, int]:
    """(GPUs, MHz) of least energy among all that end in time, one restart kept in hand."""
    best = None
    for gpus in (1, 2, 4, 8, 16, 32):
        found = state.model.curves(gpus, max(1, gpus // 8), state.global_batch_size)
        for index, clock in enumerate(a100().clocks_megahertz):
            if 1e6 * found.seconds[0, index] + 30 <= seconds:
                entry = (float(found.joules[0, index]), gpus, clock)
                best = entry if best is None else min(best, entry)
    assert best is not None
    return best[1], best[2]


@pytest.mark.parametrize("seconds", [50_000.0, 70_000.0, 120_000.0, 400_000.0])
def test_a_deadline_is_met_with_the_fewest_joules(seconds: float) -> None:
    state = job("a", 1, 32, seconds_to_deadline=seconds, objective=Objective.BALANCED)
    made = plan(ClusterSnapshot(nodes(4), (state,)))
    decision = decided(made, "a")
    assert decision.allocation is not None
    assert (decision.allocation.gpus, decision.allocation.clock_megahertz) == cheapest_that_meets(state, seconds)
    assert decision.predicted_iteration_seconds * 1e6 + 30 <= seconds
    assert not decision.deadline_at_risk


def test_between_two_progress_reports_the_clock_of_a_dated_job_stands_still() -> None:
    """Time passes, the work left is the same as reported: up to half a restart of that changes nothing."""
    members = nodes(1)
    state = job("a", 8, seconds_to_deadline=60_000.0, objective=Objective.ENERGY)
    first = in_force(ClusterSnapshot(members, (state,)), plan(ClusterSnapshot(members, (state,)))).jobs[0]
    assert first.current is not None
    seconds = 1e6 * first.model.iteration_seconds(8, 1, first.current.clock_megahertz, 64)
    for late, moves in ((0.0, False), (14.0, False), (16.0, True)):
        now = replace(first, seconds_to_deadline=seconds + 30 - late)
        clock = clocks(plan(ClusterSnapshot(members, (now,))))["a"]
        assert (clock > first.current.clock_megahertz) == moves, late


def test_a_deadline_that_no_choice_meets_gets_the_best_there_is_and_the_nearest_time() -> None:
    state = job("a", 1, 8, seconds_to_deadline=1000.0, objective=Objective.BALANCED)
    made = plan(ClusterSnapshot(nodes(4), (state,)))
    decision = decided(made, "a")
    fastest = min(state.model.iteration_seconds(gpus, 1, 1410, 64) for gpus in (1, 2, 4, 8))
    assert decision.deadline_at_risk
    assert decision.nearest_deadline_seconds == pytest.approx(1e6 * fastest + 30)
    assert decision.allocation is not None
    assert (decision.allocation.gpus, decision.allocation.clock_megahertz) == (8, 1410)
    assert "Its deadline is in" in decision.explanation


def test_a_deadline_in_time_is_not_reached_for_want_of_power_and_says_so() -> None:
    members = nodes(1)
    state = job("a", 8, seconds_to_deadline=60_000.0)
    made = plan(ClusterSnapshot(members, (state,), (cap(members, 900.0),)))
    decision = decided(made, "a")
    assert decision.deadline_at_risk
    assert decision.nearest_deadline_seconds is not None
    assert decision.nearest_deadline_seconds < 60_000 < decision.predicted_iteration_seconds * 1e6


def test_a_job_behind_its_deadline_grows_before_others_do() -> None:
    members = nodes(1)
    urgent = job("b", 1, 8, seconds_to_deadline=60_000.0, objective=Objective.ENERGY)
    made = plan(ClusterSnapshot(members, (job("a", 1, 8), urgent)))
    gpus, clock = cheapest_that_meets(urgent, 60_000.0)
    assert (sizes(made)["b"], clocks(made)["b"]) == (gpus, clock)


def test_an_energy_budget_bounds_size_and_clock() -> None:
    members = nodes(4)
    free = job("a", 1, 32)
    whole = {gpus: 1e6 * base_point(free, gpus)[1] for gpus in (1, 2, 4, 8, 16, 32)}
    made = plan(ClusterSnapshot(members, (replace(free, remaining_energy_joules=whole[8] * 1.02),)))
    decision = decided(made, "a")
    assert sizes(made)["a"] == 8
    watts = decision.predicted_gpu_watts * 8
    assert watts * decision.predicted_iteration_seconds * 1e6 <= whole[8] * 1.02
    assert "more than its energy budget has left" in decision.explanation


def test_a_budget_that_cannot_carry_the_job_leaves_the_cheapest_choice() -> None:
    made = plan(ClusterSnapshot(nodes(4), (job("a", 1, 32, remaining_energy_joules=1e6),)))
    best = a100().clocks_megahertz[int(job("x").model.curves(1, 1, 64).joules[0].argmin())]
    assert (sizes(made)["a"], clocks(made)["a"]) == (1, best)


def test_a_spent_budget_waits_and_a_throttled_job_takes_its_smallest_size() -> None:
    members = nodes(2)
    spent = job("spent", 2, 16, remaining_energy_joules=0.0)
    made = plan(ClusterSnapshot(members, (running(spent, ("n0", 8)),)))
    assert decided(made, "spent").admission is Admission.WAITING_FOR_BUDGET
    made = plan(ClusterSnapshot(members, (running(replace(spent, throttled=True), ("n0", 8)),)))
    best = a100().clocks_megahertz[int(spent.model.curves(2, 1, 64).joules[0].argmin())]
    assert (sizes(made)["spent"], clocks(made)["spent"]) == (2, best)


# --- Clocks --------------------------------------------------------------------------------------------------------------


def test_watts_go_where_they_buy_most_speed() -> None:
    """PLAIN, Hard. A computing GPU wants limits of 106, 158, 211 and 263 W at 500 to 2000 MHz, guard included.

    A part of what `slow` computes does not follow the clock, so the same watts buy it less speed: the steps up gain `quick`
    0.69, 0.41 and 0.29 (logarithms of speed), `slow` 0.57, 0.30 and, above the clock of fewest joules, 0.19.
    """
    members = nodes(1, gpu=PLAIN)
    quick = running(job("quick", 4, model=steady(), global_batch_size=4), ("n0", 4))
    slow = running(job("slow", 4, model=replace(steady(), gradient_seconds=0.03), global_batch_size=4), ("n0", 4))
    for watts, expected in (
        (4 * (106 + 106), (500, 500)),
        (4 * (158 + 106), (1000, 500)),
        (4 * (158 + 158), (1000, 1000)),
        (4 * (211 + 158), (1500, 1000)),
        (4 * (211 + 211), (1500, 1500)),
        (4 * (263 + 211), (2000, 1500)),
        (4 * (263 + 263), (2000, 2000)),
    ):
        made = plan(ClusterSnapshot(members, (quick, slow), (cap(members, float(watts)),)))
        assert (clocks(made)["quick"], clocks(made)["slow"]) == expected, watts
        assert made.caps[0].committed_watts <= watts


@st.composite
def climbing_jobs(draw: st.DrawFn) -> tuple[tuple[JobState, ...], float, bool]:
    found = []
    for index in range(draw(st.integers(1, 3))):
        model = replace(
            steady(),
            io_seconds=draw(st.floats(0.0, 0.3)),
            gradient_megacycles_per_sample=draw(st.floats(50.0, 300.0)),
            gradient_watts_per_megahertz=draw(st.floats(0.3e-4, 1.4e-4)),
        )
        gpus = draw(st.sampled_from([1, 2, 4]))
        state = job(f"j{index}", gpus, model=model, global_batch_size=gpus, objective=Objective.ENERGY)
        found.append(running(state, (f"n{index % 2}", gpus)))
    return tuple(found), draw(st.floats(0.0, 1.0)), draw(st.booleans())


@settings(max_examples=examples(150))
@given(climbing_jobs())
def test_clocks_below_the_base_are_within_one_step_of_the_best_sum_of_log_speeds(
    case: tuple[tuple[JobState, ...], float, bool],
) -> None:
    """Against every combination of clocks. A greedy over concave gains can miss the last step that would have fitted."""
    jobs, share, expected = case
    members = nodes(2, gpu=PLAIN)
    every = [state.model.curves(state.gpus_min, 1, state.global_batch_size) for state in jobs]
    idle = 16 * (50.0 if expected else 100.0)

    def watts(index: int, position: int) -> float:
        guarded = float(every[index].gpu_watts[0, position]) * 1.05
        limit = min(max(math.ceil(guarded - 1e-9), 100.0), 400.0)
        gpus = jobs[index].gpus_min
        return gpus * (min(guarded, limit) - 50.0 if expected else limit - 100.0)

    tops = [int(curves.joules[0].argmin()) for curves in every]
    low = idle + sum(watts(index, 0) for index in range(len(jobs)))
    high = idle + sum(watts(index, top) for index, top in enumerate(tops))
    budget = low + share * (high - low)
    made = plan(ClusterSnapshot(members, jobs, (cap(members, budget, expected=expected),)))

    def score(choice: Iterable[int]) -> float:
        return -sum(math.log(float(every[index].seconds[0, position])) for index, position in enumerate(choice))

    best = max(
        score(choice)
        for choice in itertools.product(*(range(top + 1) for top in tops))
        if idle + sum(watts(index, position) for index, position in enumerate(choice)) <= budget + 1e-6
    )
    chosen = [PLAIN.clocks_megahertz.index(clocks(made)[state.uid]) for state in jobs]
    step = max(float(np.max(-np.diff(np.log(curves.seconds[0])))) for curves in every)
    assert best - step - 1e-9 <= score(chosen) <= best + 1e-9


def test_a_job_in_a_tight_rack_does_not_hold_back_the_one_beside_it() -> None:
    members = nodes(2)
    caps = (cap(members[:1], 850.0, "rack"), cap(members, 1e5, "row"))
    jobs = (running(job("a", 8), ("n0", 8)), running(job("b", 8), ("n1", 8)))
    made = plan(ClusterSnapshot(members, jobs, caps))
    assert clocks(made)["b"] == 1410
    assert clocks(made)["a"] < 700
    assert "cap rack leaves" in decided(made, "a").explanation


def test_a_gang_over_two_racks_obeys_both_and_their_row() -> None:
    members = nodes(4)
    caps = (
        cap(members[:2], 2400.0, "rack-0"),
        cap(members[2:], 3000.0, "rack-1", expected=True),
        cap(members, 5000.0, "row"),
    )
    made = plan(ClusterSnapshot(members, (job("wide", 32),), caps))
    assert sizes(made) == {"wide": 32}
    for outcome, given_cap in zip(made.caps, caps, strict=True):
        assert outcome.feasible
        assert outcome.committed_watts <= given_cap.budget_watts
    assert made.caps[0].committed_watts > 2400 - 16 * 8, "the rack that binds is used up to a step"


def test_the_user_may_lower_the_limit_and_then_runs_at_a_clock_that_fits_it() -> None:
    made = plan(ClusterSnapshot(nodes(1), (job("a", 8, power_limit_max_watts=130.0),)))
    decision = decided(made, "a")
    assert decision.allocation is not None
    assert decision.allocation.power_limit_watts <= 130
    assert decision.predicted_gpu_watts * 1.05 <= 130
    assert decision.allocation.clock_megahertz < 1410


# --- Caps that fall ------------------------------------------------------------------------------------------------------


def test_a_falling_cap_takes_clocks_first_and_restarts_nobody() -> None:
    members = nodes(4)
    jobs = tuple(job(f"j{index}", 1, 8, remaining_iterations=1e6 * (index + 1)) for index in range(6))
    snapshot = ClusterSnapshot(members, jobs, (cap(members, 12_800.0),))
    full = in_force(snapshot, plan(snapshot))
    for watts in (8000.0, 5000.0, 3500.0, 3201.0):
        cut = replace(full, caps=(cap(members, watts),))
        made = plan(cut)
        assert made.caps[0].committed_watts <= watts
        for before, after in zip(full.jobs, made.decisions, strict=True):
            assert before.current is not None
            assert after.allocation is not None
            assert after.allocation.nodes == before.current.nodes
            assert after.allocation.clock_megahertz <= before.current.clock_megahertz


def test_where_clocks_are_not_enough_sizes_go_by_least_loss_then_jobs_by_priority() -> None:
    """PLAIN, Expected, clocks pinned to 1000 MHz: a busy GPU counts 157.5 W, an idle one 50 W.

    `scaling` loses most by halving, `flat` (all of its time is input) nothing, so it is the one to shrink.
    """
    members = nodes(2, gpu=PLAIN)
    pinned = {"clock_min_megahertz": 1000, "clock_max_megahertz": 1000, "global_batch_size": 8}
    scaling = running(job("scaling", 4, 8, model=steady(), **pinned), ("n0", 8))
    flat = running(job("flat", 4, 8, model=replace(steady(), io_seconds=1.0, io_overlap=10.0), **pinned), ("n1", 8))
    everything = sum(8 * 1.05 * state.model.gpu_watts(8, 1, 1000, 8) for state in (scaling, flat))
    snapshot = ClusterSnapshot(members, (scaling, flat), (cap(members, everything + 1, expected=True),))
    assert sizes(plan(snapshot)) == {"scaling": 8, "flat": 8}
    assert sizes(plan(replace(snapshot, caps=(cap(members, everything - 5, expected=True),)))) == {
        "scaling": 8,
        "flat": 4,
    }
    # Less than both at their smallest: the lower priority is paused, whoever loses least.
    low = replace(scaling, priority=-1)
    made = plan(replace(snapshot, jobs=(low, flat), caps=(cap(members, 1200.0, expected=True),)))
    assert sizes(made)["scaling"] == 0
    assert sizes(made)["flat"] >= 4
    assert decided(made, "scaling").admission is Admission.WAITING_FOR_POWER
    assert "cap all has" in decided(made, "scaling").explanation


def test_a_cap_below_the_floor_is_said_to_be_infeasible_and_the_lowest_priority_is_paused() -> None:
    """8 GPUs at 100 W each cannot be capped at 700. An idle one draws 50 W, a busy one at 500 MHz 95: six may stay busy."""
    members = nodes(1, gpu=PLAIN)
    model = replace(steady(), gradient_watts_per_megahertz=0.9e-4)
    jobs = tuple(
        running(job(f"p{priority}", 2, model=model, priority=priority, global_batch_size=2), ("n0", 2))
        for priority in range(4)
    )
    snapshot = ClusterSnapshot(members, jobs, (cap(members, 700.0),), guard_fraction=0.0)
    made = plan(snapshot)
    assert not made.caps[0].feasible
    assert made.caps[0].committed_at_min_watts == 800
    assert sizes(made) == {"p0": 0, "p1": 2, "p2": 2, "p3": 2}
    assert set(clocks(made).values()) == {0, 500}
    words = "Cap all cannot be held (it leaves GPUs 700 W, and they count with 800 W with everything paused)"
    assert decided(made, "p0").explanation == f"{words}, so nothing starts under it."
    assert sizes(plan(replace(snapshot, caps=(cap(members, 399.0),)))) == dict.fromkeys(("p0", "p1", "p2", "p3"), 0)


def below_the_floor(rigid: Sequence[bool]) -> ClusterSnapshot:
    """As above: four jobs of two GPUs, of priority 0 to 3, under a cap that not even their smallest limits fit."""
    members = nodes(1, gpu=PLAIN)
    model = replace(steady(), gradient_watts_per_megahertz=0.9e-4)
    jobs = tuple(
        replace(running(job(f"p{index}", 2, model=model, priority=index, global_batch_size=2), ("n0", 2)), rigid=one)
        for index, one in enumerate(rigid)
    )
    return ClusterSnapshot(members, jobs, (cap(members, 700.0),), guard_fraction=0.0)


@pytest.mark.parametrize("policy", ["powerflow-strict", "fifo"])
def test_a_rigid_job_is_paused_for_a_cap_last_of_all(policy: str) -> None:
    snapshot = below_the_floor((True, False, False, True))
    everybody = {"p0": 2, "p1": 2, "p2": 2, "p3": 2}
    left = {600.0: {"p1", "p2"}, 500.0: {"p1", "p2", "p0"}, 399.0: set(everybody)}
    for watts, paused in left.items():
        made = plan(replace(snapshot, caps=(cap(snapshot.nodes, watts),)), policy)
        assert sizes(made) == {name: 0 if name in paused else 2 for name in everybody}, watts


@pytest.mark.parametrize("policy", ["powerflow-strict", "fifo"])
def test_a_cap_that_pauses_nobody_leaves_every_job_at_its_lowest_clock(policy: str) -> None:
    snapshot = below_the_floor((False, False, False, False))
    for watts in (700.0, 399.0):
        lenient = replace(cap(snapshot.nodes, watts), pauses=False)
        made = plan(replace(snapshot, caps=(lenient,)), policy)
        assert set(sizes(made).values()) == {2}
        assert set(clocks(made).values()) == {500}
        assert not made.caps[0].feasible
    waiting = replace(snapshot, jobs=tuple(replace(one, current=None) for one in snapshot.jobs), caps=(lenient,))
    assert set(sizes(plan(waiting, policy)).values()) == {0}, "and nothing starts under it"


def test_a_rigid_job_is_stopped_for_no_other_whatever_its_priority() -> None:
    members = nodes(1)
    low, mid = running(job("low", 4), ("n0", 4)), running(job("mid", 4, priority=1), ("n0", 4))
    urgent = job("urgent", 4, priority=9)
    assert sizes(plan(ClusterSnapshot(members, (low, mid, urgent)))) == {"low": 0, "mid": 4, "urgent": 4}
    made = plan(ClusterSnapshot(members, (replace(low, rigid=True, resizable=False), mid, urgent)))
    assert sizes(made) == {"low": 4, "mid": 0, "urgent": 4}


def test_under_a_hard_cap_near_the_floor_idle_gpus_are_used_and_not_only_reserved() -> None:
    """A Hard cap counts an idle GPU at its smallest limit, so a job may as well have it, at what that limit allows."""
    members = nodes(4)
    made = plan(ClusterSnapshot(members, (job("a", 1, 32),), (cap(members, 3200.0),)))
    assert sizes(made)["a"] >= 8
    decision = decided(made, "a")
    assert decision.allocation is not None
    assert decision.allocation.power_limit_watts == 100
    alone = plan(ClusterSnapshot(members, (job("a", 1),), (cap(members, 3200.0),)))
    assert decision.predicted_iteration_seconds < decided(alone, "a").predicted_iteration_seconds / 4


# --- Changes must pay ----------------------------------------------------------------------------------------------------


def test_a_job_grows_only_if_that_pays_for_its_restart() -> None:
    members = nodes(1)
    state = running(job("a", 1, 8), ("n0", 1))
    seconds = {gpus: base_point(state, gpus)[0] for gpus in (1, 2, 4, 8)}
    one_doubling = 30.0 / (seconds[1] - seconds[2])
    to_the_top = 30.0 / (seconds[1] - seconds[8])
    assert to_the_top < one_doubling
    for iterations, expected in ((to_the_top * 0.98, 1), (to_the_top * 1.02, 8), (1e6, 8)):
        made = plan(ClusterSnapshot(members, (replace(state, remaining_iterations=iterations),)))
        assert sizes(made) == {"a": expected}, iterations
    made = plan(ClusterSnapshot(members, (replace(state, remaining_iterations=to_the_top * 0.98),)))
    assert "less than a restart costs" in decided(made, "a").explanation
    made = plan(ClusterSnapshot(members, (replace(state, resizable=False),)))
    assert sizes(made) == {"a": 1}


def test_a_waiting_job_is_let_in_by_the_one_that_loses_least() -> None:
    members = nodes(2)
    good = running(job("good", 1, 8), ("n0", 8))
    bad = running(job("bad", 1, 8, model=model_class_prior("bert", a100())), ("n1", 8))
    made = plan(ClusterSnapshot(members, (good, bad, job("new", 4))))
    assert sizes(made) == {"good": 8, "bad": 4, "new": 4}
    # who may not be resized is left alone, and so is who would be done before the restart is
    made = plan(ClusterSnapshot(members, (good, replace(bad, resizable=False), job("new", 4))))
    assert sizes(made) == {"good": 4, "bad": 8, "new": 4}
    made = plan(ClusterSnapshot(members, (good, replace(bad, remaining_iterations=10.0), job("new", 4))))
    assert sizes(made) == {"good": 4, "bad": 8, "new": 4}


def test_gpus_are_exchanged_for_a_larger_return_if_both_restarts_are_paid() -> None:
    members = nodes(1)
    holder = running(job("holder", 1, 4, model=model_class_prior("bert", a100()), remaining_iterations=1e6), ("n0", 4))
    wanter = running(job("wanter", 4, 8, remaining_iterations=1e7), ("n0", 4))
    holder = replace(holder, gpus_max=4)
    made = plan(ClusterSnapshot(members, (holder, replace(wanter, gpus_min=2))))
    assert sizes(made) == {"holder": 4, "wanter": 4}, "eight are not to be had without pausing the holder"
    small = replace(running(job("holder", 1, 4, remaining_iterations=2e3), ("n0", 4)), model=holder.model)
    two = replace(running(replace(wanter, gpus_min=2), ("n0", 2)), remaining_iterations=1e7)
    other = running(job("other", 2), ("n0", 2))
    made = plan(ClusterSnapshot(members, (small, two, other)))
    assert sizes(made) == {"holder": 2, "wanter": 4, "other": 2}
    made = plan(ClusterSnapshot(members, (small, replace(two, remaining_iterations=800.0), other)))
    assert sizes(made) == {"holder": 4, "wanter": 2, "other": 2}, "the gain does not pay for two restarts"


def test_only_a_lower_priority_is_paused_and_the_latest_of_it() -> None:
    members = nodes(1)
    early = running(job("early", 4, submit_time_seconds=1.0), ("n0", 4))
    late = running(job("late", 4, submit_time_seconds=2.0), ("n0", 4))
    assert sizes(plan(ClusterSnapshot(members, (early, late, job("new", 4))))) == {"early": 4, "late": 4, "new": 0}
    made = plan(ClusterSnapshot(members, (early, late, job("new", 4, priority=1))))
    assert sizes(made) == {"early": 4, "late": 0, "new": 4}
    assert decided(made, "late").admission is Admission.PREEMPTED
    assert decided(made, "late").explanation == "Paused for default/new, priority 1 over 0."
    made = plan(ClusterSnapshot(members, (replace(early, priority=-1), late, job("new", 4, priority=1))))
    assert sizes(made) == {"early": 0, "late": 4, "new": 4}


def test_nobody_is_paused_for_a_job_that_does_not_fit_all_the_same() -> None:
    members = nodes(1)
    low = running(job("low", 4), ("n0", 4))
    equal = running(job("equal", 4, priority=1), ("n0", 4))
    assert sizes(plan(ClusterSnapshot(members, (low, equal, job("new", 8, priority=1))))) == {
        "low": 4,
        "equal": 4,
        "new": 0,
    }


def test_shrinking_comes_before_pausing() -> None:
    members = nodes(1)
    elastic = running(job("elastic", 1, 8), ("n0", 8))
    made = plan(ClusterSnapshot(members, (elastic, job("new", 2, priority=1))))
    assert sizes(made) == {"elastic": 4, "new": 2}


# --- Nodes that cannot be commanded --------------------------------------------------------------------------------------


def test_a_silent_node_keeps_its_jobs_and_its_hold() -> None:
    members = (replace(nodes(1)[0], fixed_bound_watts=2500.0, schedulable=False), nodes(2)[1])
    wide = running(job("wide", 16), ("n0", 8), ("n1", 8), clock=900)
    made = plan(ClusterSnapshot(members, (wide,), (cap(members, 20_000.0),)))
    decision = decided(made, "wide")
    assert decision.allocation is not None
    assert decision.allocation.nodes == (("n0", 8), ("n1", 8))
    assert decision.allocation.clock_megahertz == 900, "the ranks on the silent node could not follow a higher clock"
    assert made.caps[0].committed_watts == 2500 + 8 * decision.allocation.power_limit_watts
    squeezed = plan(ClusterSnapshot(members, (wide,), (cap(members, 3310.0),)))
    assert squeezed.caps[0].committed_watts <= 3310
    assert sizes(squeezed) == {"wide": 16}


def test_reserved_watts_of_foreign_and_lost_gpus_count() -> None:
    member = replace(
        nodes(1)[0], foreign_gpus=2, foreign_power_limit_watts=400.0, lost_gpus=1, lost_power_limit_watts=350.0
    )
    made = plan(ClusterSnapshot((member,), (job("a", 4),), (cap((member,), 1e5),)))
    decision = decided(made, "a")
    assert decision.allocation is not None
    assert made.caps[0].committed_at_min_watts == 2 * 400 + 350 + 5 * 100
    assert made.caps[0].committed_watts == 2 * 400 + 350 + 100 + 4 * decision.allocation.power_limit_watts


# --- Words ---------------------------------------------------------------------------------------------------------------


def test_an_explanation_is_one_sentence_with_the_figures_that_decided() -> None:
    members = nodes(4)
    made = plan(ClusterSnapshot(members, (job("a", 1, 32),), (cap(members, 4400.0, "row-a"),)))
    decision = decided(made, "a")
    assert decision.allocation is not None
    given_nodes, clock = decision.allocation.nodes, decision.allocation.clock_megahertz
    assert decision.explanation.startswith(
        f"{decision.allocation.gpus} GPUs on {len(given_nodes)} nodes at {clock} MHz: "
    )
    assert "cap row-a leaves" in decision.explanation
    assert decision.explanation.count(". ") == 0


def test_a_snapshot_that_contradicts_itself_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="node 'n0' is there more than once"):
        ClusterSnapshot((*nodes(1), *nodes(1)), ())
    with pytest.raises(ValueError, match=r"job default/a: gpus\.min 4 and gpus\.max 2"):
        job("a", 4, 2)
    with pytest.raises(ValueError, match=r"policy 'fair-share' is unknown; there is .*fifo"):
        plan(ClusterSnapshot(nodes(1), ()), policy="fair-share")


def test_an_empty_cluster_and_an_empty_queue_are_plans_too() -> None:
    assert plan(ClusterSnapshot((), ())) == Plan(())
    made = plan(ClusterSnapshot((), (job("a"),), (cap((), 100.0),)))
    assert decided(made, "a").admission is Admission.WAITING_FOR_GPUS
    assert made.caps[0].feasible
    assert plan(ClusterSnapshot(nodes(1), (), (cap(nodes(1), 800.0),))).caps[0].committed_watts == 800


@settings(max_examples=examples(60))
@given(elastic_jobs(), st.integers(1, 3), st.floats(0.3, 1.0))
def test_a_plan_without_sentences_and_with_shared_models_is_the_same_plan(
    jobs: tuple[JobState, ...], count: int, share: float
) -> None:
    """Jobs with one model object between them have their curves computed once; equal models of their own, each."""
    members = nodes(count)
    caps = (cap(members, share * 400 * 8 * count),)
    sharing = tuple(replace(one, model=jobs[0].model, global_batch_size=jobs[0].global_batch_size) for one in jobs)
    apart = tuple(replace(one, model=replace(one.model)) for one in sharing)
    told = plan_strictly(ClusterSnapshot(members, apart, caps))
    silent = plan_strictly(ClusterSnapshot(members, sharing, caps), explained=False)
    assert [(one.uid, one.allocation, one.predicted_iteration_seconds) for one in silent.decisions] == [
        (one.uid, one.allocation, one.predicted_iteration_seconds) for one in told.decisions
    ]
    assert silent.caps == told.caps
    assert all(one.explanation for one in told.decisions)
    assert not any(one.explanation for one in silent.decisions)


@settings(max_examples=examples(60))
@given(elastic_jobs(), st.floats(0.25, 0.6), st.booleans())  # from where the smallest limits of all GPUs are within it
def test_a_cap_that_moves_by_a_hundredth_starts_nobody_again_and_again(
    jobs: tuple[JobState, ...], share: float, expected: bool
) -> None:
    """Where a job is paused and where it is let in again lie apart: the lowest clock, and the one of admission."""
    members = nodes(2)
    watts = share * 2 * 8 * 400
    snapshot = ClusterSnapshot(members, jobs)
    starts = dict.fromkeys(sizes(plan(snapshot)), 0)
    before = dict.fromkeys(starts, 0)
    for number in range(8):
        moved = cap(members, watts * (1.01 if number % 2 else 1.0), expected=expected)
        made = plan(replace(snapshot, caps=(moved,)))
        for name, gpus in sizes(made).items():
            starts[name] += bool(gpus) and not before[name]
        before, snapshot = sizes(made), in_force(snapshot, made)
    assert max(starts.values()) <= 2, starts
