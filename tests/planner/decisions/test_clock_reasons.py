"""What is said of a job's clock is what decided it: its bounds, its GPU, a cap, its budget, or the going price."""

from __future__ import annotations

from dataclasses import replace

from flyball_planner.models.gpu import GpuModel
from flyball_planner.models.job import JobModel
from flyball_planner.planner import plan
from flyball_planner.snapshot import (
    Allocation,
    CapConstraint,
    ClusterSnapshot,
    Enforcement,
    JobState,
    NodeState,
    Objective,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples

# A board to calculate with: 50 W and 0.09 W/MHz while it computes, and a voltage that rises above 1000 MHz.
BOARD = GpuModel("board", 100.0, 400.0, 400.0, 50.0, (500, 1000, 1500, 2000), knee_megahertz=1000.0, voltage_slope=0.4)
STEADY = JobModel(
    gpu_model=BOARD,
    gradient_seconds=0.0,
    gradient_seconds_per_sample=0.0,
    gradient_megacycles_per_sample=100.0,
    gradient_watts_per_megahertz=0.9e-4,
    gradient_batch_shift=1.0,
    gradient_batch_offset=1000.0,
)
HOT = replace(STEADY, gradient_watts_per_megahertz=2.5e-4)  # draws more than the board may at its highest clock


def job(objective: Objective, name: str = "a", gpus: int = 1, **keywords: object) -> JobState:
    state = JobState(
        uid=name,
        name=f"default/{name}",
        gpus_min=gpus,
        gpus_max=gpus,
        global_batch_size=64,
        model=STEADY,
        submit_time_seconds=0.0,
        remaining_iterations=1e3,
        objective=objective,
    )
    return replace(state, **keywords)  # type: ignore[arg-type]


def snapshot(*jobs: JobState, gpus: int = 8, watts: float | None = None, expected: bool = False) -> ClusterSnapshot:
    kind = Enforcement.EXPECTED if expected else Enforcement.HARD
    caps = () if watts is None else (CapConstraint("rack", frozenset({"n0"}), watts, kind),)
    return ClusterSnapshot((NodeState("n0", BOARD, gpus),), jobs, caps, guard_fraction=0.0)


def decided(made: ClusterSnapshot, uid: str = "a") -> tuple[int, str]:
    """The clock of a job, and why it is that: what the explanation says after its size."""
    decision = plan(made).decision(uid)
    assert decision is not None
    assert decision.allocation is not None, decision.explanation
    return decision.allocation.clock_megahertz, decision.explanation.partition("; ")[2]


def test_at_a_gpus_highest_clock_nothing_is_said_of_a_higher_one() -> None:
    for objective in (Objective.BALANCED, Objective.TIME):
        assert decided(snapshot(job(objective))) == (2000, "the highest clock of its GPU.")


def test_a_jobs_own_bounds_are_named() -> None:
    for objective in (Objective.BALANCED, Objective.TIME):
        bounded = job(objective, clock_max_megahertz=1200)
        assert decided(snapshot(bounded)) == (1000, "no higher clock is within its maxMegahertz of 1200.")
        limited = job(objective, power_limit_max_watts=150.0)
        assert decided(snapshot(limited)) == (
            1000,
            "a higher clock would need more than the 150 W that its GPUs may have.",
        )
        # Below the smallest limit of its GPU a bound is passed over.
        below = job(objective, power_limit_max_watts=1.0)
        assert decided(snapshot(below))[1] == "a higher clock would need more than the 100 W that its GPUs may have."
    thrifty = job(Objective.ENERGY, clock_max_megahertz=900)
    assert decided(snapshot(thrifty)) == (500, "no higher clock is within its maxMegahertz of 900.")


def test_a_clock_that_its_gpu_cannot_hold_is_no_matter_of_price() -> None:
    clock, why = decided(snapshot(job(Objective.BALANCED, model=HOT)))
    assert clock < 2000
    assert why == "a higher clock would need more than the 400 W that its GPU may have at the most."


def test_the_going_price_is_named_where_it_decides() -> None:
    poor = snapshot(*(job(Objective.BALANCED, name) for name in "abcdefgh"), gpus=8, watts=None)
    poor = replace(poor, joules_per_job_second=20.0)
    clock, why = decided(poor)
    assert clock < 2000
    assert why == "a higher clock would pass the going price of 20 J a second."


def test_an_energy_budget_is_named_where_it_holds_the_clock_down() -> None:
    rich = snapshot(job(Objective.TIME))
    iterations = 1e3
    at_1000 = float(STEADY.curves(1, 1, 64).joules[0, 1]) * iterations
    for objective in (Objective.TIME, Objective.BALANCED):
        budgeted = job(objective, remaining_energy_joules=at_1000 * 1.01)
        clock, why = decided(replace(rich, jobs=(budgeted,)))
        assert (clock, why) == (1000, "a higher clock would take more than its energy budget has left.")


def test_a_cap_that_cannot_be_held_is_named_whatever_the_objective() -> None:
    """8 GPUs of 100 W at the least cannot be capped at 790; the predicted draw fits, so the job stays, at 500 MHz."""
    for objective in Objective:
        for expected in (False, True):
            # What is expected of idle GPUs are 50 W each.
            made = snapshot(job(objective), watts=390.0 if expected else 790.0, expected=expected)
            running = replace(made.jobs[0], current=Allocation((("n0", 1),), 1000, 150.0))
            made = replace(made, jobs=(running,), caps=(replace(made.caps[0], pauses=False),))
            assert decided(made) == (500, "cap rack cannot be held, so every limit is at the floor.")


def test_a_job_wants_no_more_gpus_under_a_cap_that_cannot_be_held_because_of_the_cap() -> None:
    made = snapshot(job(Objective.BALANCED, gpus=1), watts=790.0)
    grown = replace(made.jobs[0], gpus_max=8, current=Allocation((("n0", 1),), 500, 100.0))
    decision = plan(replace(made, jobs=(grown,), joules_per_job_second=0.0)).decision("a")
    assert decision is not None
    assert decision.allocation is not None
    size = decision.explanation.partition("; ")[0]
    assert size.startswith("1 GPU at 500 MHz: at the floor of cap rack, which cannot be held, 2 GPUs would "), size


def test_what_keeps_a_job_from_its_largest_size_is_named() -> None:
    for most, words in ((2, "2 GPUs at 2000 MHz"), (1, "1 GPU at 2000 MHz")):
        bounded = replace(job(Objective.TIME), gpus_max=most, bounded_by="EnergyQuota team")
        decision = plan(snapshot(bounded)).decision("a")
        assert decision is not None
        assert decision.explanation.startswith(f"{words}: all that EnergyQuota team leaves it; ")
    held = Allocation((("n0", 1),), 500, 100.0)
    fixed = replace(job(Objective.TIME), gpus_max=8, current=held, resizable=False, size_fixed="while it starts")
    decision = plan(snapshot(fixed)).decision("a")
    assert decision is not None
    assert ": its size may not change while it starts; " in decision.explanation


def test_a_job_that_waits_for_gpus_is_told_of_the_nodes_that_it_cannot_use() -> None:
    lacks = "3 of 4 nodes do not fit: 3 have taint gpu=reserved."
    waits = replace(job(Objective.TIME, "b", gpus=8), passed_over=lacks)
    decision = plan(snapshot(job(Objective.TIME, gpus=8), waits)).decision("b")
    assert decision is not None
    assert decision.explanation == f"Needs 8 GPUs in whole cells of nodes that it may use; 0 are free. {lacks}"


def test_the_cap_that_is_named_is_the_one_that_stops_the_clock() -> None:
    """What a cap has left says nothing by itself: eight GPUs need eight times the watts of one."""
    members = (NodeState("n0", BOARD, 8), NodeState("n1", BOARD, 1))
    caps = (
        CapConstraint("wide", frozenset({"n0"}), 1000.0 + 7 * 10.0),
        CapConstraint("small", frozenset({"n1"}), 400.0),
    )
    made = ClusterSnapshot(members, (job(Objective.TIME, gpus=8, global_batch_size=64),), caps, guard_fraction=0.0)
    assert "cap wide leaves" in decided(made)[1]


def test_a_node_that_cannot_be_told_to_go_faster_is_named_before_a_cap() -> None:
    silent = NodeState("n0", BOARD, 8, fixed_bound_watts=900.0)
    running = job(Objective.TIME, current=Allocation((("n0", 1),), 1000, 150.0))
    for caps in ((), (CapConstraint("rack", frozenset({"n0"}), 5000.0),)):
        made = ClusterSnapshot((silent,), (running,), caps, guard_fraction=0.0)
        assert decided(made) == (1000, "its node cannot be made to go faster now.")


SOME_JOBS = st.lists(
    st.builds(
        lambda objective, gpus, gpus_max, megahertz, watts, budget, hot: job(
            objective,
            gpus=gpus,
            gpus_max=gpus * gpus_max,
            clock_max_megahertz=megahertz,
            power_limit_max_watts=watts,
            remaining_energy_joules=budget,
            model=HOT if hot else STEADY,
        ),
        st.sampled_from(Objective),
        st.sampled_from((1, 2)),
        st.sampled_from((1, 4)),
        st.sampled_from((None, 900, 1200, 3000)),
        st.sampled_from((None, 150.0, 250.0)),
        st.sampled_from((None, 1e6, 2e6)),
        st.booleans(),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=examples(150))
@given(SOME_JOBS, st.floats(600.0, 3300.0), st.booleans(), st.booleans(), st.sampled_from((None, 1.0, 30.0, 1e5)))
def test_every_reason_holds_of_the_next_clock_up(
    jobs: list[JobState], watts: float, expected: bool, pauses: bool, price: float | None
) -> None:
    """Judged by the model itself: what is given as the reason forbids the next clock, or makes it not worth its joules."""
    named = tuple(replace(one, uid=str(index), name=f"default/{index}") for index, one in enumerate(jobs))
    made = replace(snapshot(*named, watts=watts, expected=expected), joules_per_job_second=price)
    made = replace(made, caps=(replace(made.caps[0], pauses=pauses),))
    planned = plan(made)
    left = watts - planned.caps[0].committed_watts
    for one in named:
        decision = planned.decision(one.uid)
        assert decision is not None
        if decision.allocation is None:
            continue
        curves = one.model.curves(decision.allocation.gpus, 1, one.global_batch_size)
        at = BOARD.clocks_megahertz.index(decision.allocation.clock_megahertz)
        why = decision.explanation.partition("; ")[2].removesuffix(".")
        if why == "the highest clock of its GPU":
            assert at == 3
            continue
        joules, seconds, draw = (
            [float(v[0, min(i, 3)]) for i in (at, at + 1)] for v in (curves.joules, curves.seconds, curves.gpu_watts)
        )
        most = min(one.power_limit_max_watts or 400.0, 400.0)
        words = {
            "a higher clock would pass": at < 3
            and price is not None
            and joules[1] - joules[0] >= price * (seconds[0] - seconds[1]),
            "the clock of least energy": at == 3 or joules[1] >= joules[0],
            "no higher clock is within its maxMegahertz": at < 3
            and BOARD.clocks_megahertz[at + 1] > (one.clock_max_megahertz or 9e9),
            "a higher clock would need more than": at < 3 and draw[1] >= most * (1 - 1e-9),
            "a higher clock would take more than its energy": at < 3
            and joules[1] * 1e3 > (one.remaining_energy_joules or 9e99),
            "cap rack cannot be held": not planned.caps[0].feasible,
            "cap rack leaves": at < 3 and (draw[1] - min(draw[0], 100.0)) * decision.allocation.gpus > left,
        }
        reason = next((start for start in words if why.startswith(start)), None)
        assert reason is not None, why
        if reason == "a higher clock would pass" and price is None:
            continue
        assert words[reason], (why, at, joules, seconds, draw, left)
