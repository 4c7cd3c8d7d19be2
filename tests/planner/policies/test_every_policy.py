"""What holds for every policy, whatever it optimises."""

from __future__ import annotations

import copy

import pytest
from flyball_planner.policies.registry import policy_named, policy_names
from flyball_planner.policies.view import ClusterView, JobView, Knob, OrderedPolicy, Performance
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.policy_views import CLOCKS, cluster, job, table

VIEWED = [name for name in policy_names() if not policy_named(name).traits.needs_model]  # they run in tests/simulator
NAMES = [*VIEWED, "afs+zeus", "tiresias+zeus", "gandiva+zeus", "afs+priced"]


@st.composite
def views(draw: st.DrawFn) -> ClusterView:
    kinds: list[Performance] = []
    for _ in range(draw(st.integers(1, 3))):
        seconds = [draw(st.floats(0.05, 2.0))]
        for _ in range(draw(st.integers(0, 4))):
            seconds.append(seconds[-1] * draw(st.floats(0.45, 1.2)))
        kinds.append(table(seconds, draw(st.floats(80.0, 300.0))))
    gpus = draw(st.sampled_from([1, 2, 8, 16, 32]))
    free = gpus
    jobs: list[JobView] = []
    for index in range(draw(st.integers(0, 12))):
        performance = draw(st.sampled_from(kinds))
        fitting = [size for size in performance.sizes if size <= gpus]
        requested = draw(st.sampled_from(fitting))
        held = 0
        running = [size for size in performance.sizes if size <= free]
        runs = draw(st.booleans())
        if running and runs:
            held = draw(st.sampled_from(running))
            free -= held
        jobs.append(
            job(
                f"job-{index}",
                performance,
                draw(st.floats(1.0, 1e5)),
                requested,
                submit=draw(st.sampled_from([0.0, 10.0, 100.0])),
                gpus=held,
                clock_index=draw(st.integers(0, len(CLOCKS) - 1)),
                attained_gpu_seconds=draw(st.floats(0.0, 2e4)),
                since_seconds=draw(st.sampled_from([0.0, 500.0, 990.0])),
                resizable=not held or draw(st.booleans()),
            )
        )
    return cluster(
        jobs,
        gpus,
        now=1000.0,
        price=draw(st.sampled_from([0.0, 1e-4, 1e-2])),
        idle_gpu_watts=50.0,
        guard_fraction=0.05,
        power_limit_watts=draw(st.sampled_from([None, 60.0 * gpus, 150.0 * gpus])),
    )


@pytest.mark.parametrize("name", NAMES)
@given(view=views())
@settings(max_examples=examples(60))
def test_choices_are_possible_deterministic_and_of_jobs_that_were_offered(name: str, view: ClusterView) -> None:
    policy = policy_named(name)
    before = copy.copy([(job.uid, job.gpus, job.remaining_iterations, job.clock_index) for job in view.jobs])
    choices = policy.decide(view)
    jobs = {job.uid: job for job in view.jobs}
    assert len({choice.uid for choice in choices}) == len(choices)
    assert sum(choice.gpus for choice in choices) <= view.gpus
    for choice in choices:
        assert choice.gpus in jobs[choice.uid].performance.sizes
        assert 0 <= choice.clock_index < len(CLOCKS)
    assert [(job.uid, job.gpus, job.remaining_iterations, job.clock_index) for job in view.jobs] == before
    again = policy_named(name).decide(view)
    assert again == choices
    reordered = ClusterView(**{field: getattr(view, field) for field in view.__slots__} | {"jobs": view.jobs[::-1]})
    assert sorted(policy.decide(reordered)) == sorted(choices)


@pytest.mark.parametrize("name", NAMES)
@given(view=views())
@settings(max_examples=examples(40))
def test_of_two_alike_that_wait_the_first_in_the_order_starts_first(name: str, view: ClusterView) -> None:
    policy = policy_named(name)
    assert isinstance(policy, OrderedPolicy)
    order = policy.precedence(view)
    assert sorted(order) == sorted(one.uid for one in view.jobs)
    reordered = ClusterView(**{field: getattr(view, field) for field in view.__slots__} | {"jobs": view.jobs[::-1]})
    assert policy.precedence(reordered) == order
    if view.power_limit_watts is not None:
        return  # a limit takes from whoever gives up least
    chosen = {choice.uid for choice in policy.decide(view)}
    jobs = {one.uid: one for one in view.jobs}
    waiting = [jobs[uid] for uid in order if not jobs[uid].gpus]
    for place, behind in enumerate(waiting):
        before = [one for one in waiting[:place] if one.performance is behind.performance]
        alike = {one.uid for one in before if one.requested_gpus == behind.requested_gpus}
        assert behind.uid not in chosen or alike <= chosen


@pytest.mark.parametrize("name", NAMES)
@given(view=views())
@settings(max_examples=examples(40))
def test_a_job_that_may_not_change_keeps_its_size(name: str, view: ClusterView) -> None:
    policy = policy_named(name)
    if policy.traits.holds_limits and view.power_limit_watts is not None:
        return  # a cap comes before everything
    chosen = {choice.uid: choice for choice in policy.decide(view)}
    for one in view.jobs:
        # A policy that is not elastic gives what was asked for; a job of another size is not its doing.
        if one.gpus and not one.resizable and (policy.traits.elastic or one.gpus == one.requested_gpus):
            assert one.uid in chosen or not policy.traits.elastic
            if policy.traits.elastic:
                assert chosen[one.uid].gpus == one.gpus


@st.composite
def views_as_asked(draw: st.DrawFn) -> ClusterView:
    """Views in which whoever runs has what it asked for, as under a policy that is not elastic."""
    view = draw(views())
    free = view.gpus
    for one in view.jobs:
        one.gpus = one.requested_gpus if one.gpus and one.requested_gpus <= free else 0
        one.resizable |= not one.gpus
        free -= one.gpus
    return view


@pytest.mark.parametrize("name", [name for name in NAMES if not policy_named(name).traits.elastic])
@given(view=views_as_asked())
@settings(max_examples=examples(60))
def test_policies_that_are_not_elastic_give_what_was_asked_for(name: str, view: ClusterView) -> None:
    chosen = {choice.uid: choice.gpus for choice in policy_named(name).decide(view)}
    for one in view.jobs:
        assert chosen.get(one.uid, one.requested_gpus) == one.requested_gpus
        assert one.resizable or one.uid in chosen


@pytest.mark.parametrize("name", ["tiresias", "tiresias-gittins", "gandiva"])
@given(view=views_as_asked())
@settings(max_examples=examples(60))
def test_preemptive_policies_leave_nobody_waiting_for_whom_there_is_room(name: str, view: ClusterView) -> None:
    choices = policy_named(name).decide(view)
    free = view.gpus - sum(choice.gpus for choice in choices)
    chosen = {choice.uid for choice in choices}
    assert all(one.requested_gpus > free for one in view.jobs if one.uid not in chosen)


@pytest.mark.parametrize("name", ["afs", "pollux", "srtf"])
@given(view=views())
@settings(max_examples=examples(60))
def test_elastic_policies_leave_nobody_waiting_for_whom_there_is_room(name: str, view: ClusterView) -> None:
    choices = policy_named(name).decide(view)
    free = view.gpus - sum(choice.gpus for choice in choices)
    chosen = {choice.uid for choice in choices}
    assert all(one.performance.sizes[0] > free for one in view.jobs if one.uid not in chosen)


@pytest.mark.parametrize("name", NAMES)
def test_an_idle_cluster_runs_whoever_comes(name: str) -> None:
    one = job("only", table([1.0, 0.6, 0.4]), requested=2)
    chosen = policy_named(name).decide(cluster([one]))
    assert [choice.uid for choice in chosen] == ["only"]


def test_unknown_names_are_told_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"'nonesuch' is unknown; there is .*tiresias"):
        policy_named("nonesuch")
    with pytest.raises(ValueError, match="price chooses its clocks itself"):
        policy_named("price+zeus")


@pytest.mark.parametrize(
    ("price", "sunk", "host", "clock"),
    [
        (0.0, 0.0, 0.0, 1500),
        (0.01, 0.0, 0.0, 1200),
        (1.0, 0.0, 0.0, 900),
        (1.0, 100.0, 0.0, 900),
        (1.0, 0.0, 175.0, 1500),
    ],
)
def test_priced_clocks_are_those_of_least_time_and_priced_joules(
    price: float, sunk: float, host: float, clock: int
) -> None:
    one = job("only", table([1.0, 0.6]), requested=1)
    policy = policy_named("fifo+priced")
    for _ in range(2):  # the clocks of a table are remembered
        (chosen,) = policy.decide(cluster([one], price=price, sunk_gpu_watts=sunk, host_gpu_watts=host))
        assert CLOCKS[chosen.clock_index] == clock
    (free,) = policy.decide(cluster([one]))
    assert CLOCKS[free.clock_index] == 1500, "and asked for again where the price is another"
    with pytest.raises(ValueError, match="price chooses its clocks itself"):
        policy_named("price+priced")


def test_knobs_say_what_a_sweep_varies() -> None:
    assert policy_named("afs").traits.knob is Knob.CLOCK
    assert policy_named("afs+zeus").traits.knob is Knob.NONE
    assert policy_named("powerflow-paper").traits.knob is Knob.POWER_LIMIT
    assert policy_named("price").traits.knob is Knob.PRICE
    assert policy_named("afs+priced").traits.knob is Knob.PRICE
