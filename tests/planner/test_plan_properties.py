"""What must hold for every plan, whatever the cluster: searched for counterexamples by hypothesis."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from flyball_planner.ledger.pools import block_of, cell_of, shape
from flyball_planner.ledger.workspace import Workspace
from flyball_planner.models.gpu import GpuModel, gpu_model_for
from flyball_planner.models.priors import known_model_classes, model_class_prior
from flyball_planner.planner import plan
from flyball_planner.policies.registry import policy_names
from flyball_planner.powerflow.greedy import ROUNDS, allocate
from flyball_planner.snapshot import (
    Admission,
    Allocation,
    CapConstraint,
    ClusterSnapshot,
    Consolidation,
    Enforcement,
    JobState,
    NodeState,
    Objective,
    Plan,
)
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from tests.support.examples import examples, of
from tests.support.plans import in_force

TOLERANCE_WATTS = 1e-6


def catalogue_model(product: str) -> GpuModel:
    model = gpu_model_for(product)
    assert model is not None
    return model


A100 = catalogue_model("NVIDIA-A100-SXM4-40GB")
V100 = catalogue_model("Tesla-V100-PCIE-16GB")
# The same board with a tighter range, as another vendor's firmware reports it.
A100_TIGHT = replace(A100, min_power_limit_watts=150.0, max_power_limit_watts=350.0, default_power_limit_watts=350.0)
MODELS = st.sampled_from([(A100,), (A100,), (A100, A100_TIGHT), (A100, V100)])
EITHER_MODEL = st.sampled_from([A100, V100])
SEARCH = settings(max_examples=examples(75), suppress_health_check=[HealthCheck.too_slow])
every_policy = pytest.mark.parametrize("policy", sorted({"powerflow-strict", "tiresias+zeus", *policy_names()}))


@st.composite
def nodes(draw: st.DrawFn) -> tuple[NodeState, ...]:
    models = draw(MODELS)
    found = []
    for index in range(draw(st.integers(1, 6))):
        model = draw(of(*models))
        gpus = draw(of(8, 8, 8, 4, 2, 6, 10, 1))
        ordinary = draw(st.booleans())
        node = NodeState(f"node-{index}", model, gpus)
        if not ordinary:
            node = replace(
                node,
                schedulable=draw(st.booleans()),
                foreign_gpus=draw(st.integers(0, min(2, gpus))),
                lost_gpus=draw(st.integers(0, 1)),
                foreign_power_limit_watts=draw(of(model.min_power_limit_watts, 400.0)),
                lost_power_limit_watts=model.default_power_limit_watts,
                idle_power_limit_watts=draw(of(None, model.min_power_limit_watts + 25.0)),
                fixed_bound_watts=draw(of(None, None, gpus * 300.0)),
                fixed_draw_watts=draw(of(None, gpus * 200.0)),
                evacuate=draw(of(False, False, False, True)),
            )
        found.append(node)
    return tuple(found)


@st.composite
def jobs(draw: st.DrawFn, nodes: tuple[NodeState, ...], prefix: str, most: int = 7) -> tuple[JobState, ...]:
    names = sorted(node.name for node in nodes)
    found = []
    for index in range(draw(st.integers(0, most))):
        least = draw(of(1, 1, 2, 4, 8, 16, 3, 6, 12))
        model = model_class_prior(draw(of(*known_model_classes())), draw(EITHER_MODEL))
        job = JobState(
            uid=f"{prefix}-{index}",
            name=f"default/{prefix}-{index}",
            gpus_min=least,
            gpus_max=least * draw(of(1, 1, 2, 4, 8)),
            global_batch_size=draw(of(8, 64, 256)),
            model=model,
            submit_time_seconds=float(draw(st.integers(0, 3))),
            remaining_iterations=draw(of(None, 10.0, 1e3, 1e5, 1e6)),
            attained_gpu_seconds=draw(of(0.0, 5e3)),
            priority=draw(of(0, 0, 0, 1, 5)),
            objective=draw(of(*Objective)),
            resizable=draw(of(True, True, False)),
            tenant=draw(of("a", "a", "b", "c")),
        )
        if draw(st.booleans()):
            job = replace(
                job,
                max_local_batch_size=draw(of(None, 4, 64)),
                seconds_to_deadline=draw(of(None, -5.0, 100.0, 1e4, 1e6)),
                remaining_energy_joules=draw(of(None, None, 0.0, 1e4, 1e7)),
                throttled=draw(of(False, False, True)),
                clock_min_megahertz=draw(of(None, 900, 1200)),
                clock_max_megahertz=draw(of(None, 1000, 1300)),
                power_limit_max_watts=draw(of(None, 50.0, 180.0, 320.0)),
                eligible_nodes=draw(of(None, None, frozenset(names[:2]), frozenset(names[1:]))),
            )
        found.append(job)
    return tuple(found)


@st.composite
def caps(draw: st.DrawFn, nodes: tuple[NodeState, ...]) -> tuple[CapConstraint, ...]:
    names = sorted(node.name for node in nodes)
    found = []
    for index in range(draw(st.integers(0, 3))):
        members = frozenset(draw(st.lists(st.sampled_from(names), min_size=1, unique=True)) if index else names)
        enforcement = draw(of(*Enforcement))
        most = sum(node.gpus * node.gpu_model.max_power_limit_watts for node in nodes if node.name in members)
        share = draw(of(0.0, 0.15, 0.25, 0.28, 0.32, 0.4, 0.6, 1.0))
        found.append(CapConstraint(f"cap-{index}", members, share * most, enforcement))
    return tuple(found)


@st.composite
def snapshots(draw: st.DrawFn) -> ClusterSnapshot:
    """A cluster at rest, or one whose plan is in force while nodes, caps and jobs have changed since."""
    members = draw(nodes())
    first = ClusterSnapshot(members, draw(jobs(members, "job")), draw(caps(members)))
    if draw(st.booleans()):
        return first
    running = in_force(first, plan(first))
    kept = tuple(job for job in running.jobs if draw(st.integers(0, 4)))
    later = tuple(
        replace(node, schedulable=draw(st.booleans()), lost_gpus=draw(st.integers(0, 1)), evacuate=draw(st.booleans()))
        if not draw(st.integers(0, 4))
        else node
        for node in members
    )
    kept = tuple(replace(job, resizable=draw(st.booleans())) if draw(st.booleans()) else job for job in kept)
    return replace(first, nodes=later, jobs=kept + draw(jobs(members, "new", 4)), caps=draw(caps(members)))


def counted_watts(snapshot: ClusterSnapshot, cap: CapConstraint, made: Plan) -> float:
    """What the cap sums, GPU by GPU, from its definition and from nothing of the planner's accounting."""
    hard = cap.enforcement is Enforcement.HARD
    held: dict[str, list[float]] = {}
    for decision in made.decisions:
        if decision.allocation is None:
            continue
        limit = decision.allocation.power_limit_watts
        draw = min(limit, decision.predicted_gpu_watts * (1 + snapshot.guard_fraction))
        for name, gpus in decision.allocation.nodes:
            held.setdefault(name, []).extend([limit if hard else draw] * gpus)
    total = 0.0
    for node in snapshot.nodes:
        if node.name not in cap.node_names:
            continue
        if node.fixed_bound_watts is not None:
            draw = node.fixed_bound_watts if node.fixed_draw_watts is None else node.fixed_draw_watts
            total += node.fixed_bound_watts if hard else draw
            continue
        idle_limit = node.idle_power_limit_watts
        idle = (node.gpu_model.min_power_limit_watts if idle_limit is None else idle_limit) if hard else None
        ours = held.get(node.name, [])
        free = max(0, node.gpus - node.foreign_gpus - node.lost_gpus) - len(ours)
        total += sum(ours) + free * (node.gpu_model.idle_power_watts if idle is None else idle)
        total += node.foreign_gpus * node.foreign_power_limit_watts + node.lost_gpus * node.lost_power_limit_watts
    return total


def sizes(job: JobState) -> set[int]:
    found, gpus = set(), job.gpus_min
    while gpus <= min(job.gpus_max, job.global_batch_size):
        if job.max_local_batch_size is None or job.global_batch_size <= gpus * job.max_local_batch_size:
            found.add(gpus)
        gpus *= 2
    return found


def no_feasible_cap_is_exceeded(snapshot: ClusterSnapshot, made: Plan) -> None:
    for cap, outcome in zip(snapshot.caps, made.caps, strict=True):
        watts = counted_watts(snapshot, cap, made)
        assert outcome.committed_watts == pytest.approx(watts, abs=1e-3)
        paused = Plan(tuple(replace(decision, allocation=None) for decision in made.decisions))
        floor = counted_watts(snapshot, cap, paused)
        assert outcome.committed_at_min_watts == pytest.approx(floor, abs=1e-3)
        assert outcome.feasible == (floor <= cap.budget_watts + TOLERANCE_WATTS)
        event(f"{cap.enforcement}, {'feasible' if outcome.feasible else 'infeasible'}")
        if outcome.feasible:
            assert watts <= cap.budget_watts + TOLERANCE_WATTS


def under_an_infeasible_hard_cap_every_limit_is_at_the_floor(snapshot: ClusterSnapshot, made: Plan) -> None:
    by_name = {node.name: node for node in snapshot.nodes}
    for cap, outcome in zip(snapshot.caps, made.caps, strict=True):
        if outcome.feasible:
            continue
        for decision in made.decisions:
            if decision.allocation is None:
                continue
            for name, _ in decision.allocation.nodes:
                node = by_name[name]
                if name not in cap.node_names or node.fixed_bound_watts is not None:
                    continue
                assert cap.enforcement is Enforcement.HARD, "an Expected cap below its idle draw leaves nothing running"
                lowest = max(
                    (other.gpu_model.min_power_limit_watts for other in snapshot.nodes),
                    default=node.gpu_model.min_power_limit_watts,
                )
                assert decision.allocation.power_limit_watts <= max(lowest, node.idle_power_limit_watts or 0.0)


def a_gang_is_placed_whole_on_gpus_that_are_its_own(snapshot: ClusterSnapshot, made: Plan) -> None:
    by_name = {node.name: node for node in snapshot.nodes}
    used: Counter[str] = Counter()
    for job, decision in zip(snapshot.jobs, made.decisions, strict=True):
        assert decision.uid == job.uid
        assert decision.explanation.endswith(".")
        given_nodes = decision.allocation
        if given_nodes is None:
            assert decision.admission is not Admission.ADMITTED
            continue
        assert decision.admission is Admission.ADMITTED
        names = [name for name, _ in given_nodes.nodes]
        assert len(set(names)) == len(names)
        assert all(gpus > 0 for _, gpus in given_nodes.nodes)
        unchanged = job.current is not None and given_nodes.nodes == job.current.nodes
        if not unchanged:
            assert given_nodes.gpus in sizes(job)
            assert len({gpus for _, gpus in given_nodes.nodes}) == 1, "every pod of an Indexed Job is alike"
            assert len({by_name[name].gpu_model.product for name in names}) == 1
            for name in names:
                assert by_name[name].schedulable
                assert not by_name[name].evacuate
                assert by_name[name].fixed_bound_watts is None
                assert job.eligible_nodes is None or name in job.eligible_nodes
        used.update(dict(given_nodes.nodes))
    for name, gpus in used.items():
        node = by_name[name]
        if node.schedulable and not node.evacuate and node.fixed_bound_watts is None:
            assert gpus <= node.gpus - node.foreign_gpus - node.lost_gpus


def at_most_one_job_of_several_nodes_is_on_a_node(snapshot: ClusterSnapshot, made: Plan) -> None:
    spanning: Counter[str] = Counter()
    for decision in made.decisions:
        if decision.allocation is not None and len(decision.allocation.nodes) > 1:
            spanning.update(name for name, _ in decision.allocation.nodes)
    assert all(count == 1 for count in spanning.values())


@SEARCH
@given(snapshots())
def test_planning_again_changes_nothing(snapshot: ClusterSnapshot) -> None:
    made = plan(snapshot)
    again = plan(in_force(snapshot, made))
    assert [decision.allocation for decision in again.decisions] == [decision.allocation for decision in made.decisions]
    assert again.migrations == ()
    frozen = in_force(snapshot, made)
    frozen = replace(frozen, jobs=tuple(replace(job, resizable=False) for job in frozen.jobs))
    assert [decision.allocation for decision in plan(frozen).decisions] == [item.allocation for item in made.decisions]


@SEARCH
@given(snapshots())
def test_planning_again_first_come_first_served_changes_nothing(snapshot: ClusterSnapshot) -> None:
    """Of policies by choices, the one that never takes back a choice, and where all GPUs are of one kind: then every job
    that waits is offered to one view only."""
    assume(len({(node.gpu_model, cell_of(node.gpus)) for node in snapshot.nodes}) == 1)
    made = plan(snapshot, "fifo")
    again = plan(in_force(snapshot, made), "fifo")
    assert [decision.allocation for decision in again.decisions] == [decision.allocation for decision in made.decisions]


@st.composite
def half_empty(draw: st.DrawFn) -> ClusterSnapshot:
    """Jobs of one to four GPUs strewn over the nodes, under caps or none, and what an empty node saves."""
    members = tuple(
        NodeState(f"node-{index}", A100, 8, foreign_gpus=draw(of(0, 0, 0, 1)), schedulable=index != 4)
        for index in range(draw(st.integers(2, 5)))
    )
    running = []
    for member in members:
        left = member.usable_gpus
        for index in range(draw(st.integers(0, 2))):
            gpus = draw(of(1, 1, 2, 4))
            if gpus > left:
                continue
            left -= gpus
            name = f"{member.name}-{index}"
            running.append(
                JobState(
                    uid=name,
                    name=f"default/{name}",
                    gpus_min=gpus,
                    gpus_max=gpus * draw(of(1, 1, 1, 1, 1, 2)),
                    global_batch_size=64,
                    model=model_class_prior(draw(of(*known_model_classes())), A100),
                    submit_time_seconds=float(draw(st.integers(0, 3))),
                    remaining_iterations=draw(of(1e7, 1e7, 1e7, None, 1e3)),
                    objective=draw(of(*Objective)),
                    resizable=draw(of(True, True, True, True, True, False)),
                    seconds_to_deadline=draw(of(None, None, None, None, None, 1e7)),
                    current=Allocation(((member.name, gpus),), 1410, 300.0),
                )
            )
    waiting = draw(jobs(members, "new", 2)) if draw(st.booleans()) else ()
    saves = Consolidation(node_watts=400.0, empty_seconds=draw(of(7200.0, 7200.0, 600.0)))
    return ClusterSnapshot(
        members, (*running, *waiting), draw(caps(members)) if draw(st.booleans()) else (), consolidation=saves
    )


@settings(parent=SEARCH, max_examples=examples(150))
@given(half_empty())
def test_consolidation_moves_only_what_may_move_and_is_at_rest_afterwards(snapshot: ClusterSnapshot) -> None:
    made = plan(snapshot)
    plain = plan(replace(snapshot, consolidation=None))
    moved = [
        (job, decision.allocation, other.allocation)
        for job, decision, other in zip(snapshot.jobs, made.decisions, plain.decisions, strict=True)
        if (decision.allocation and decision.allocation.nodes) != (other.allocation and other.allocation.nodes)
    ]
    event(f"{len(moved)} moved")
    for job, allocation, other in moved:
        assert allocation is not None
        assert other is not None
        assert allocation.gpus == other.gpus, "consolidation changes no size, and neither admits nor pauses anybody"
        assert len(other.nodes) == 1
        assert job.resizable
        assert job.seconds_to_deadline is None
    used: Counter[str] = Counter()
    used_before: Counter[str] = Counter()
    for counts, found in ((used, made), (used_before, plain)):
        for decision in found.decisions:
            counts.update(dict(decision.allocation.nodes) if decision.allocation else {})
    assert all(gpus <= node.usable_gpus for node in snapshot.nodes for gpus in [used[node.name]])
    own = {node.name for node in snapshot.nodes if not node.foreign_gpus}
    if moved:
        assert len(own.intersection(+used)) < len(own.intersection(+used_before))
    for cap, outcome in zip(snapshot.caps, made.caps, strict=True):
        if outcome.feasible:
            assert counted_watts(snapshot, cap, made) <= cap.budget_watts + TOLERANCE_WATTS
    again = plan(in_force(snapshot, made))
    assert [decision.allocation for decision in again.decisions] == [decision.allocation for decision in made.decisions]
    assert again.migrations == ()


@SEARCH
@given(snapshots())
def test_the_allocation_comes_to_rest_by_itself(snapshot: ClusterSnapshot) -> None:
    """No step undoes another: a cycle would only end at the bound on rounds, wherever it happened to be."""
    workspace = Workspace(snapshot)
    rounds = allocate(workspace.state, workspace.candidates, workspace.stepper)
    event(f"{rounds} rounds")
    assert rounds < ROUNDS


@every_policy
@SEARCH
@given(snapshot=snapshots(), random=st.randoms(use_true_random=False))
def test_the_order_of_the_snapshot_does_not_matter(policy: str, snapshot: ClusterSnapshot, random: Random) -> None:
    nodes, jobs, caps = list(snapshot.nodes), list(snapshot.jobs), list(snapshot.caps)
    random.shuffle(nodes)
    random.shuffle(jobs)
    random.shuffle(caps)
    other = replace(snapshot, nodes=tuple(nodes), jobs=tuple(jobs), caps=tuple(caps))
    made, again = plan(snapshot, policy), plan(other, policy)
    assert {item.uid: item for item in made.decisions} == {item.uid: item for item in again.decisions}
    assert [item.uid for item in again.decisions] == [job.uid for job in other.jobs]
    assert {item.name: item for item in made.caps} == {item.name: item for item in again.caps}


def bounds_on_size_clock_and_limit_are_honoured(snapshot: ClusterSnapshot, made: Plan) -> None:
    by_name = {node.name: node for node in snapshot.nodes}
    for job, decision in zip(snapshot.jobs, made.decisions, strict=True):
        allocation = decision.allocation
        if allocation is None:
            continue
        boards = [by_name[name].gpu_model for name, _ in allocation.nodes]
        changed = job.current is None or allocation.nodes != job.current.nodes
        if changed:
            assert job.gpus_min <= allocation.gpus <= job.gpus_max
        clocks = set.intersection(*(set(board.clocks_megahertz) for board in boards))
        assert allocation.clock_megahertz in clocks
        highest = job.clock_max_megahertz or math.inf
        if any(clock <= highest for clock in clocks):
            assert allocation.clock_megahertz <= highest
        lowest = min((clock for clock in clocks if clock >= (job.clock_min_megahertz or 0)), default=0)
        uncontrollable = any(by_name[name].fixed_bound_watts is not None for name, _ in allocation.nodes)
        if lowest <= highest and not uncontrollable:
            assert allocation.clock_megahertz >= lowest
        limit = allocation.power_limit_watts
        if not uncontrollable:
            assert max(board.min_power_limit_watts for board in boards) <= limit
            assert limit <= min(board.max_power_limit_watts for board in boards)
        if job.power_limit_max_watts is not None:
            assert limit <= max(job.power_limit_max_watts, *(board.min_power_limit_watts for board in boards), 150.0)
        assert limit == int(limit), "an API in whole watts must not round a limit up past its cap"


def a_job_that_may_not_be_resized_keeps_its_size_and_nodes(snapshot: ClusterSnapshot, made: Plan) -> None:
    by_name = {node.name: node for node in snapshot.nodes}
    crowded = {
        node.name
        for node in snapshot.nodes
        if sum(dict(job.current.nodes).get(node.name, 0) for job in snapshot.jobs if job.current)
        > node.gpus - node.foreign_gpus - node.lost_gpus
    }
    for job, decision in zip(snapshot.jobs, made.decisions, strict=True):
        current = job.current
        if current is None or job.resizable or decision.allocation is None:
            continue
        if any(by_name[name].evacuate or name in crowded for name, _ in current.nodes):
            continue
        # Paused and started again elsewhere only where a cap or a higher priority drove it out.
        if decision.allocation.nodes != current.nodes:
            assert snapshot.caps or any(other.priority > job.priority for other in snapshot.jobs)


PROMISES = (
    no_feasible_cap_is_exceeded,
    under_an_infeasible_hard_cap_every_limit_is_at_the_floor,
    a_gang_is_placed_whole_on_gpus_that_are_its_own,
    at_most_one_job_of_several_nodes_is_on_a_node,
    bounds_on_size_clock_and_limit_are_honoured,
    a_job_that_may_not_be_resized_keeps_its_size_and_nodes,
)


@every_policy
@settings(parent=SEARCH, max_examples=examples(100))
@given(snapshot=snapshots())
def test_every_plan_keeps_every_promise(policy: str, snapshot: ClusterSnapshot) -> None:
    made = plan(snapshot, policy)
    for holds in PROMISES:
        holds(snapshot, made)


@SEARCH
@given(snapshots())
def test_without_caps_a_running_job_is_paused_only_for_a_higher_priority_or_another_tenant(
    snapshot: ClusterSnapshot,
) -> None:
    calm = replace(snapshot, caps=(), nodes=tuple(replace(node, evacuate=False) for node in snapshot.nodes))
    settled = in_force(calm, plan(calm))
    more = tuple(replace(job, uid=f"late-{job.uid}", name=f"{job.name}-late", current=None) for job in snapshot.jobs)
    busy = replace(settled, jobs=settled.jobs + more)
    made = plan(busy)
    gained = [
        job
        for job, decision in zip(busy.jobs, made.decisions, strict=True)
        if decision.allocation is not None and job.current is None
    ]
    for job, decision in zip(busy.jobs, made.decisions, strict=True):
        if job.current is not None and decision.allocation is None:
            assert any(
                other.priority > job.priority or (other.priority == job.priority and other.tenant != job.tenant)
                for other in gained
            )


@SEARCH
@given(st.data())
def test_no_job_waits_while_pausing_lower_priorities_would_let_it_run(data: st.DataObject) -> None:
    members = tuple(NodeState(f"node-{index}", A100, 8) for index in range(data.draw(st.integers(1, 3))))
    everyone = data.draw(jobs(members, "job", 10))
    everyone = tuple(
        replace(job, eligible_nodes=None, remaining_energy_joules=None, throttled=False, resizable=True)
        for job in everyone
    )
    snapshot = ClusterSnapshot(members, everyone)
    split = data.draw(st.integers(0, len(everyone)))
    before = in_force(replace(snapshot, jobs=everyone[:split]), plan(replace(snapshot, jobs=everyone[:split])))
    made = plan(replace(snapshot, jobs=before.jobs + everyone[split:]))
    total = sum(node.gpus for node in members)
    for job, decision in zip(everyone, made.decisions, strict=True):
        if decision.allocation is not None or not sizes(job):
            continue
        kept = sum(
            block_of(gpus)
            for other, other_decision in zip(everyone, made.decisions, strict=True)
            if other_decision.allocation is not None and other.priority >= job.priority
            for _, gpus in other_decision.allocation.nodes
        )
        nodes_of_job, on_each = shape(min(sizes(job)), 8)
        assert total - kept < nodes_of_job * block_of(on_each)


def test_the_search_reaches_jobs_that_run() -> None:
    """Guards the properties above against becoming empty: an ordinary cluster has running jobs and a cap that binds."""
    members = tuple(NodeState(f"node-{index}", A100, 8) for index in range(2))
    job = JobState("job", "default/job", 1, 8, 64, model_class_prior("vgg16", A100), 0.0, remaining_iterations=1e5)
    cap = CapConstraint("all", frozenset(node.name for node in members), 2000.0)
    made = plan(ClusterSnapshot(members, (job,), (cap,)))
    assert isinstance(made.decisions[0].allocation, Allocation)
    assert made.caps[0].committed_watts > made.caps[0].committed_at_min_watts
