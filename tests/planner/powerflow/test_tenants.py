"""Fair shares between tenants of one priority: who waits, who gives way, and that nobody takes turns at it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from flyball_planner.models.gpu import gpu_model_for
from flyball_planner.models.priors import model_class_prior
from flyball_planner.planner import plan
from flyball_planner.snapshot import (
    Admission,
    Allocation,
    ClusterSnapshot,
    JobState,
    NodeState,
    Plan,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.plans import in_force

A100 = gpu_model_for("NVIDIA-A100-SXM4-40GB")


def cluster(count: int, gpus: int = 8) -> tuple[NodeState, ...]:
    assert A100 is not None
    return tuple(NodeState(f"n{index}", A100, gpus) for index in range(count))


def job(tenant: str, index: int = 0, gpus: int = 1, **keywords: object) -> JobState:
    assert A100 is not None
    state = JobState(
        uid=f"{tenant}-{index}",
        name=f"{tenant}/{index}",
        gpus_min=gpus,
        gpus_max=gpus,
        global_batch_size=64,
        model=model_class_prior("vgg16", A100),
        submit_time_seconds=float(index),
        remaining_iterations=1e6,
        tenant=tenant,
    )
    return replace(state, **keywords)  # type: ignore[arg-type]


def held(made: Plan) -> Counter[str]:
    """GPUs by tenant."""
    found: Counter[str] = Counter()
    for decision in made.decisions:
        found[decision.uid.partition("-")[0]] += decision.allocation.gpus if decision.allocation else 0
    return found


def test_a_tenant_with_one_job_gets_in_beside_one_with_a_hundred() -> None:
    many = ClusterSnapshot(cluster(4), tuple(job("a", index) for index in range(100)))
    first = plan(many)
    assert held(first) == {"a": 32}
    later = in_force(many, first)
    single = job("b", submit_time_seconds=1000.0)
    made = plan(replace(later, jobs=(*later.jobs, single)))
    assert held(made) == {"a": 31, "b": 1}
    paused = [
        decision
        for decision, item in zip(made.decisions, later.jobs, strict=False)
        if item.current is not None and decision.allocation is None
    ]
    assert [(item.uid, item.admission) for item in paused] == [("a-31", Admission.PREEMPTED)]  # the latest, alone
    assert "for a fair share: a keeps at least as many GPUs as b then has" in paused[0].explanation


def test_it_comes_before_the_hundred_where_a_gpu_becomes_free() -> None:
    running = [replace(job("a", index), current=Allocation(((f"n{index}", 1),), 1410, 400.0)) for index in range(2)]
    waiting = [job("a", index, remaining_iterations=1.0) for index in range(2, 10)]
    made = plan(ClusterSnapshot(cluster(3, 1), (*running, *waiting, job("b", 99))))
    assert held(made) == {"a": 2, "b": 1}


def test_of_one_tenant_nobody_gives_way() -> None:
    snapshot = ClusterSnapshot(cluster(1), tuple(job("a", index) for index in range(8)))
    later = in_force(snapshot, plan(snapshot))
    made = plan(replace(later, jobs=(*later.jobs, job("a", 8, remaining_iterations=1.0))))
    assert [item.uid for item in made.decisions if item.allocation is None] == ["a-8"]


def test_nobody_gives_up_the_last_that_it_has() -> None:
    snapshot = ClusterSnapshot(cluster(1), (job("a", gpus=8),))
    later = in_force(snapshot, plan(snapshot))
    assert held(plan(replace(later, jobs=(*later.jobs, job("b", gpus=8))))) == {"a": 8, "b": 0}


def test_priority_comes_before_fairness() -> None:
    snapshot = ClusterSnapshot(cluster(1), tuple(job("a", index, priority=1) for index in range(8)))
    later = in_force(snapshot, plan(snapshot))
    assert held(plan(replace(later, jobs=(*later.jobs, job("b"))))) == {"a": 8, "b": 0}


def test_a_job_that_may_not_be_stopped_now_is_not() -> None:
    snapshot = ClusterSnapshot(cluster(1), tuple(job("a", index) for index in range(8)))
    later = in_force(snapshot, plan(snapshot))
    fixed = tuple(replace(item, resizable=item.uid == "a-3") for item in later.jobs)
    made = plan(replace(later, jobs=(*fixed, job("b"))))
    assert [item.uid for item in made.decisions if item.allocation is None] == ["a-3"]


@settings(max_examples=examples(100))
@given(
    first=st.dictionaries(st.sampled_from("abcd"), st.integers(0, 12), min_size=1),
    then=st.dictionaries(st.sampled_from("abcd"), st.integers(0, 12)),
    nodes=st.integers(1, 3),
)
def test_nobody_who_waits_envies_and_planning_again_changes_nothing(
    first: dict[str, int], then: dict[str, int], nodes: int
) -> None:
    """Jobs of one size and priority: whose tenant has a job that waits holds at most one fewer than any other."""
    snapshot = ClusterSnapshot(cluster(nodes, 4), tuple(job(of, index) for of in first for index in range(first[of])))
    snapshot = in_force(snapshot, plan(snapshot))
    come = tuple(job(of, 100 + index) for of in then for index in range(then[of]))
    snapshot = replace(snapshot, jobs=(*snapshot.jobs, *come))
    made = plan(snapshot)
    shares, wanted = held(made), Counter(item.tenant for item in snapshot.jobs)
    assert sum(shares.values()) == min(4 * nodes, sum(wanted.values()))
    for of, wants in wanted.items():
        if shares[of] < wants:
            assert shares[of] >= max(shares.values()) - 1, shares
    again = plan(in_force(snapshot, made))
    assert [item.allocation for item in again.decisions] == [item.allocation for item in made.decisions]
