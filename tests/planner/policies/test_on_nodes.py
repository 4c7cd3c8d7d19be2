"""Policies by choices on a real cluster: their sizes and clocks as far as nodes and caps go, and true sentences."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from flyball_planner.models.gpu import GpuModel, gpu_model_for
from flyball_planner.models.priors import model_class_prior
from flyball_planner.planner import plan, plan_by_choices
from flyball_planner.policies.view import Choice, ClusterView, Traits
from flyball_planner.snapshot import (
    Admission,
    Allocation,
    CapConstraint,
    ClusterSnapshot,
    JobDecision,
    JobState,
    NodeState,
    Plan,
)


def board(product: str = "NVIDIA-A100-SXM4-40GB") -> GpuModel:
    model = gpu_model_for(product)
    assert model is not None
    return model


def node(name: str, gpus: int = 8, **keywords: object) -> NodeState:
    return replace(NodeState(name, board(), gpus), **keywords)  # type: ignore[arg-type]


def job(name: str, gpus: int, most: int | None = None, submitted: float = 0.0, **keywords: object) -> JobState:
    made = JobState(
        uid=name,
        name=f"default/{name}",
        gpus_min=gpus,
        gpus_max=most or gpus,
        global_batch_size=256,
        model=model_class_prior("vgg16", board()),
        submit_time_seconds=submitted,
        remaining_iterations=1e6,
    )
    return replace(made, **keywords)  # type: ignore[arg-type]


@dataclass
class Scripted:
    """Chooses what the test says, and keeps the views that it was shown."""

    choices: dict[str, tuple[int, int]]
    views: list[ClusterView]
    repacks: bool = True

    name = "scripted"

    @property
    def traits(self) -> Traits:
        return Traits(elastic=True, repacks=self.repacks)

    def decide(self, view: ClusterView) -> list[Choice]:
        self.views.append(view)
        present = {one.uid for one in view.jobs}
        return [Choice(uid, *choice) for uid, choice in self.choices.items() if uid in present]


def scripted(**choices: tuple[int, int]) -> Scripted:
    return Scripted(choices, [])


def decision(made: Plan, uid: str) -> JobDecision:
    found = made.decision(uid)
    assert found is not None
    return found


def allocation(made: Plan, uid: str) -> Allocation:
    found = decision(made, uid)
    assert found.allocation is not None, found.explanation
    return found.allocation


def test_first_come_first_served_gives_what_was_asked_for_in_turn() -> None:
    jobs = (job("a", 4, 32, 0.0), job("b", 8, 8, 1.0), job("c", 4, 4, 2.0), job("d", 2, 2, 3.0))
    made = plan(ClusterSnapshot((node("n0"), node("n1", 4)), jobs), "fifo")
    assert allocation(made, "a").gpus == 4, "its minimum is what it asks for, however much it could use"
    assert allocation(made, "a").clock_megahertz == 1410
    assert decision(made, "b").allocation is None or decision(made, "a").allocation is not None
    made = plan(ClusterSnapshot((node("n0"),), jobs), "fifo")
    waiting = decision(made, "c")
    assert waiting.allocation is None, "b does not fit and holds up whoever comes after it"
    assert waiting.admission is Admission.WAITING_FOR_GPUS
    assert waiting.explanation == "Needs 4 GPUs; 4 are free, and fifo does not give it any yet."
    assert decision(made, "b").explanation == "Needs 8 GPUs in whole cells of nodes that it may use; 4 are free."
    assert decision(made, "a").explanation == ("4 GPUs at 1410 MHz: the size that fifo chose; the clock that it chose.")


def test_caps_lower_the_clocks_that_a_policy_chose() -> None:
    members = (node("n0"),)
    cap = CapConstraint("row", frozenset({"n0"}), 1500.0)
    made = plan(ClusterSnapshot(members, (job("a", 8),), (cap,)), "fifo")
    given = allocation(made, "a")
    assert given.clock_megahertz < 1410
    assert 8 * given.power_limit_watts <= 1500.0
    assert "it chose 1410 MHz, and cap row leaves" in decision(made, "a").explanation


def test_where_not_even_the_lowest_clocks_fit_the_next_smaller_size_is_given() -> None:
    policy = scripted(a=(8, 80))
    cap = CapConstraint("row", frozenset({"n0"}), 8 * 100.0 + 30.0)
    hungry = job("a", 1, 8, clock_min_megahertz=1200)
    made = plan_by_choices(ClusterSnapshot((node("n0"),), (hungry,), (cap,)), policy)
    assert made.caps[0].feasible
    assert made.caps[0].committed_watts <= 830.0
    found = decision(made, "a")
    assert found.allocation is None or found.allocation.gpus < 8
    if found.allocation is None:
        assert found.admission is Admission.WAITING_FOR_POWER


def test_a_job_of_the_same_size_stays_and_a_job_left_out_is_paused() -> None:
    running = job("a", 2, 8, current=Allocation((("n1", 2),), 1200, 250.0))
    other = job("b", 2, 8, current=Allocation((("n0", 2),), 1200, 250.0))
    snapshot = ClusterSnapshot((node("n0"), node("n1")), (running, other))
    policy = scripted(a=(2, 60))
    made = plan_by_choices(snapshot, policy)
    assert allocation(made, "a") == Allocation((("n1", 2),), 1110, allocation(made, "a").power_limit_watts)
    paused = decision(made, "b")
    assert paused.admission is Admission.PREEMPTED
    assert paused.explanation == "Paused: scripted gives its GPUs to other jobs for now."
    seen = {one.uid: one for one in policy.views[0].jobs}
    assert seen["a"].gpus == 2
    assert policy.views[0].clocks_megahertz[seen["a"].clock_index] == 1200
    assert seen["a"].performance.sizes == (2, 4, 8)


def test_a_job_that_may_not_change_keeps_its_place_whatever_is_chosen() -> None:
    fixed = job("a", 2, 8, current=Allocation((("n0", 2),), 1200, 250.0), resizable=False)
    for policy in (scripted(), scripted(a=(8, 80))):
        made = plan_by_choices(ClusterSnapshot((node("n0"),), (fixed,)), policy)
        assert allocation(made, "a").nodes == (("n0", 2),)
        assert not policy.views[0].jobs[0].resizable


def test_the_view_tells_what_the_cluster_has_and_what_the_caps_leave() -> None:
    members = (node("n0"), node("n1", foreign_gpus=2, foreign_power_limit_watts=400.0), node("n2", schedulable=False))
    running = job("b", 4, current=Allocation((("n2", 4),), 1200, 250.0))
    policy = scripted()
    caps = (
        CapConstraint("all", frozenset({"n0", "n1", "n2"}), 5000.0),
        CapConstraint("one", frozenset({"n0"}), 900.0),
    )
    plan_by_choices(ClusterSnapshot(members, (job("a", 1, 64), running), caps), policy)
    (view,) = policy.views
    assert view.gpus == 8 + 6 + 4, "the cordoned node counts with what runs there"
    assert view.gpus_per_node == 8
    seen = {one.uid: one for one in view.jobs}
    assert seen["a"].performance.sizes == (1, 2, 4, 8), "no two whole nodes are free for jobs"
    assert view.power_limit_watts is not None
    assert view.power_limit_watts <= 5000.0 - 2 * 400.0
    assert view.power_limit_watts > 18 * 100.0


def test_a_clock_that_a_job_may_not_have_is_predicted_as_the_nearest_that_it_may() -> None:
    policy = scripted(a=(1, 80), b=(1, 0))
    jobs = (job("a", 1, clock_max_megahertz=900), job("b", 1, clock_min_megahertz=1200))
    made = plan_by_choices(ClusterSnapshot((node("n0"),), jobs), policy)
    assert allocation(made, "a").clock_megahertz == 900
    assert decision(made, "a").explanation.endswith("it chose 1410 MHz, and this is the highest that the job may have.")
    assert allocation(made, "b").clock_megahertz == 1200
    assert decision(made, "b").explanation.endswith("it chose 210 MHz, and this is the lowest that the job may have.")
    seen = {one.uid: one for one in policy.views[0].jobs}["a"].performance
    at_900 = policy.views[0].clocks_megahertz.index(900)
    assert seen.seconds_rows[0][-1] == seen.seconds_rows[0][at_900] < seen.seconds_rows[0][at_900 - 1]


def test_a_spent_energy_budget_throttles_under_every_policy() -> None:
    policy = scripted(a=(1, 80))
    throttled = job("a", 1, 8, throttled=True, remaining_energy_joules=0.0)
    made = plan_by_choices(ClusterSnapshot((node("n0"),), (throttled,)), policy)
    assert policy.views[0].jobs[0].performance.sizes == (1,)
    assert allocation(made, "a").clock_megahertz < 1410
    assert decision(made, "a").explanation.endswith("it chose 1410 MHz, and its energy budget is spent.")


def test_each_gpu_model_is_a_view_of_its_own_the_largest_first() -> None:
    v100 = board("Tesla-V100-SXM2-16GB")
    members = (NodeState("v0", v100, 8), node("a0"), node("a1"))
    policy = scripted(a=(16, 0), b=(8, 0))
    made = plan_by_choices(ClusterSnapshot(members, (job("a", 16), job("b", 8))), policy)
    assert [view.gpus for view in policy.views] == [16, 8]
    assert {name for name, _ in allocation(made, "a").nodes} == {"a0", "a1"}
    assert allocation(made, "b").nodes == (("v0", 8),)
    assert [one.uid for one in policy.views[1].jobs] == ["b"]


def test_whether_running_jobs_migrate_for_a_cell_is_the_policys_to_say() -> None:
    members = (node("n0", 2), node("n1", 2))
    running = (
        job("a", 1, current=Allocation((("n0", 1),), 1410, 300.0)),
        job("b", 1, current=Allocation((("n1", 1),), 1410, 300.0)),
    )
    snapshot = ClusterSnapshot(members, (*running, job("new", 2)))
    wanted = {"a": (1, 80), "b": (1, 80), "new": (2, 80)}
    assert plan_by_choices(snapshot, Scripted(wanted, [], repacks=False)).decision("new").allocation is None  # type: ignore[union-attr]
    made = plan_by_choices(snapshot, Scripted(wanted, [], repacks=True))
    assert allocation(made, "new").gpus == 2
    assert len(made.migrations) == 1


def test_choices_that_break_the_interface_are_refused() -> None:
    class Wild(Scripted):
        def decide(self, view: ClusterView) -> list[Choice]:
            return [Choice("nobody", 1, 0)]

    with pytest.raises(ValueError, match=r"policy scripted: .*nobody.* is not what it was offered"):
        plan_by_choices(ClusterSnapshot((node("n0"),), (job("a", 1),)), Wild({}, []))


def test_an_unknown_policy_is_refused_with_the_names_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"policy 'fair-share' is unknown; there is .*fifo"):
        plan(ClusterSnapshot((), ()), "fair-share")
