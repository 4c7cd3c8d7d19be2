"""The power controller, cycle by cycle: what counts while a grant's fate is unknown, what waits for a plan, and each guard
that keeps a raise, another status or one grant too many back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from flyball_api.energy_aware_job import read_energy_aware_job
from flyball_api.gpu_node import GpuNode, RoundTime, read_gpu_node
from flyball_api.grant import grant_spec
from flyball_api.power_cap import PowerCap
from flyball_api.workloads import read_node
from flyball_operator.cluster.outcome import Outcome
from flyball_operator.cluster.state import ClusterState
from flyball_operator.power.caps.meter import MeterReading
from flyball_operator.power.controller import PowerController, PowerSettings
from flyball_operator.power.cycle import Answered, PlanInForce, PowerCycle, PowerInstructions, PowerState
from flyball_operator.power.grant_writes import MAX_GRANTS_AT_ONCE
from flyball_operator.power.patience import (
    BRAKED_PLAN_GRACE_SECONDS,
    CUT_YIELD_SECONDS,
    FEW_TURNS,
    FIGURES_YIELD_SECONDS,
    PLAN_GRACE_SECONDS,
    TURNS_FORGOTTEN_SECONDS,
)
from flyball_operator.settings import Settings
from flyball_planner.snapshot import JobDecision

from tests.support.crd_schema import assert_valid
from tests.support.operator_objects import (
    A100,
    NOW,
    cap_view,
    decision,
    gpu_node_view,
    grant,
    in_version,
    incarnation_view,
    job_grant,
    node_view,
    pod_view,
    raw_gpu_node,
    raw_job,
    raw_node,
    running_pod,
    with_status,
)

WATTS = 300  # of each GPU, by the plan
GUARDED_MILLIWATTS = 262_500  # that each is expected to draw at most: the plan's 250 W and the guard band


class Bench:
    """One leader over nodes of eight GPUs, a job of eight GPUs on each, at the smallest limits."""

    def __init__(self, nodes: Sequence[str] = "ab", epoch: int = 1, **settings: Any) -> None:
        self.time = 0.0
        self.nodes = nodes
        self.age_seconds = 0.0
        self.reads, self.caps_stand = 0, False
        self.unread: tuple[str, ...] = ()
        self.plan_is_near = False
        self.infeasible: tuple[str, ...] = ()
        self.answer: Outcome | None = Outcome.DONE  # of every grant; None: none within the cycle
        self.controller = PowerController(epoch, PowerSettings(**settings))
        self.gpu_nodes: dict[str, GpuNode] = {}
        self.decisions: dict[str, JobDecision] = {}
        for node in nodes:
            self.put(node, 100)
            self.wants(node, WATTS)

    def put(
        self,
        node: str,
        watts: int,
        *,
        epoch: int = 1,
        generation: int = 1,
        version: str = "7",
        acknowledged: tuple[int, int] | None = None,
    ) -> None:
        """The API server has a grant of so many watts for each GPU, and its agent has acknowledged it, or another one."""
        job = job_grant(f"uid-{node}", watts * 1000, 8, pod=f"pod-{node}", clock=1200)
        jobs = (msgspec.structs.replace(job, pod_uid=f"pod-pod-{node}"),)
        expected = min(watts * 8000, GUARDED_MILLIWATTS * 8)
        given = grant(watts * 8000, epoch=epoch, generation=generation, jobs=jobs, expected=expected, caps=("row",))
        raw = raw_gpu_node(node, given, limits=watts * 8000, acknowledged=acknowledged)
        raw["metadata"]["resourceVersion"] = version
        self.gpu_nodes[node] = read_gpu_node(raw)

    def wants(self, node: str, watts: float) -> None:
        """The plan gives each GPU of the node's job so many watts."""
        self.decisions[f"uid-{node}"] = decision(f"uid-{node}", (node, 8), watts=float(watts))

    not_ready: frozenset[str] = frozenset()
    plan_is_made = True

    def cluster(self, *caps: PowerCap) -> ClusterState:
        """What is read now; each cap in a version of its own, unless `caps_stand`."""
        if not self.caps_stand:
            self.reads += 1
            caps = tuple(in_version(cap, 100 + self.reads) for cap in caps)
        pods = {f"uid-{node}": [running_pod(f"pod-{node}", node, uid=f"uid-{node}", gpus=8)] for node in self.nodes}
        return ClusterState(
            jobs={},
            caps=list(caps),
            gpu_nodes=dict(self.gpu_nodes),
            nodes=[node_view(node, ready=node not in self.not_ready) for node in self.nodes],
            pods=[pod for of_job in pods.values() for pod in of_job],
            incarnations={f"uid-{node}": [incarnation_view(f"uid-{node}", 1, (node, 8))] for node in self.nodes},
            pods_of=pods,
            reports_of={},
            unread=self.unread,
            age_seconds=self.age_seconds,
        )

    def observe(self, *caps: PowerCap) -> PowerState:
        return self.controller.observe(self.cluster(*caps), self.now, self.time)

    @property
    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.time)

    def step(self, *caps: PowerCap) -> PowerInstructions:
        """One cycle, and the answers to what it sent."""
        plan = PlanInForce(self.decisions, self.infeasible, self.plan_is_near, self.plan_is_made)
        state = self.observe(*caps)
        instructions = self.controller.step(PowerCycle(state, plan, self.now, self.time))
        if self.answer is not None:
            for send in instructions.sends:
                self.controller.handle(Answered(send.node.name, self.answer))
        return instructions

    def sent(self, *caps: PowerCap) -> list[tuple[str, int]]:
        """What is sent in one cycle, as node and watts."""
        return [(item.node.name, item.grant.bound.limit_milliwatts // 1000) for item in self.step(*caps).sends]


def row(watts: int, **spec: Any) -> PowerCap:
    """A cap over all nodes, published already."""
    return cap_view("row", watts=watts, status={"effectiveWatts": watts}, **spec)


# --- grants whose fate is not known ----------------------------------------------------------------------------------


def test_raises_go_as_far_as_the_cap_does() -> None:
    assert Bench().sent(row(4800)) == [("a", 2400), ("b", 2400)]
    assert Bench().sent(row(3200)) == [("a", 1600), ("b", 1600)]


@pytest.mark.parametrize("then", [Outcome.REFUSED, Outcome.UNKNOWN])
def test_a_raise_that_may_have_arrived_counts_until_its_object_is_seen(then: Outcome) -> None:
    bench = Bench()
    bench.wants("b", 100)
    bench.answer = Outcome.UNKNOWN
    assert bench.sent(row(3200)) == [("a", 2400)]
    # The plan changes its mind: b is to have what a was to have.
    bench.wants("a", 100)
    bench.wants("b", 300)
    # A conflict is just what an object that took the first grant answers to the second.
    bench.answer = then
    for _ in range(3):
        assert [node for node, watts in bench.sent(row(3200)) if watts > 800] == []
        assert bench.observe(row(3200)).nodes["a"].power.committed.limit_milliwatts == 2400_000
    # The object is seen: with the first grant, which is acknowledged, and then taken back.
    bench.answer = Outcome.DONE
    bench.put("a", 300, generation=2, version="8")
    assert bench.sent(row(3200)) == [("a", 800)]
    bench.put("a", 100, generation=3, version="9")
    assert bench.sent(row(3200)) == [("b", 2400)]


def test_a_node_that_is_doubted_after_a_raise_without_an_answer_counts_at_its_largest_limits() -> None:
    bench = Bench()
    bench.wants("b", 100)
    bench.answer = Outcome.UNKNOWN
    assert bench.sent(row(3200)) == [("a", 2400)]
    bench.not_ready = frozenset("a")
    assert bench.observe(row(3200)).nodes["a"].power.committed.limit_milliwatts == 3200_000
    # Nor is the doubt then all that keeps the cap from being enforced: the raise may have arrived.
    (state,) = bench.observe(row(3000)).caps.states
    assert not state.proof_stale
    assert state.committed_if_believed == 3200_000


def test_a_refusal_after_an_object_was_seen_again_proves_that_the_raise_did_not_arrive() -> None:
    bench = Bench()
    bench.wants("b", 100)
    bench.answer = Outcome.UNKNOWN
    assert bench.sent(row(3200)) == [("a", 2400)]
    bench.put("a", 100, generation=2, version="8")  # something else was written: that raise is lost
    bench.answer = Outcome.REFUSED
    assert bench.sent(row(3200)) == [("a", 2400)]
    assert bench.observe(row(3200)).nodes["a"].power.committed.limit_milliwatts == 800_000


def test_a_raise_that_was_refused_frees_its_watts() -> None:
    bench = Bench()
    bench.wants("b", 100)
    bench.answer = Outcome.REFUSED
    assert bench.sent(row(3200)) == [("a", 2400)]
    bench.wants("a", 100)
    bench.wants("b", 300)
    assert bench.sent(row(3200)) == [("b", 2400)]


def test_a_raise_under_way_counts_before_it_is_answered() -> None:
    bench = Bench()
    bench.wants("b", 100)
    bench.answer = None
    assert bench.sent(row(3200)) == [("a", 2400)]
    bench.wants("b", 300)
    assert bench.sent(row(3200)) == []


def test_what_stands_is_not_sent_again_unless_an_unanswered_grant_may_have_changed_it() -> None:
    bench = Bench()
    bench.put("a", 300)
    bench.put("b", 300)
    assert bench.sent(row(4800)) == []
    bench.answer = Outcome.UNKNOWN
    assert bench.sent(row(3200)) == [("a", 1600), ("b", 1600)]
    # The plan wants what our copy shows as standing: the lost write may have changed it.
    assert bench.sent(row(4800)) == [("a", 2400), ("b", 2400)]


def test_an_unanswered_grant_counts_with_all_that_it_commits() -> None:
    """Also what an agent may hold by an earlier grant that this one's author knew of."""
    bench = Bench()
    bench.gpu_nodes["a"] = gpu_node_view("a", grant(800_000, committed=2400_000, generation=2), limits=800_000)
    bench.gpu_nodes["a"] = replace(
        bench.gpu_nodes["a"],
        status=replace_acknowledged(bench.gpu_nodes["a"], generation=1),
    )
    bench.answer = Outcome.UNKNOWN
    bench.wants("a", 100)
    assert bench.sent(row(3200)) == [("a", 800)]  # the job's pod is named newly; b has to wait
    assert bench.observe(row(3200)).nodes["a"].power.committed.limit_milliwatts == 2400_000


def replace_acknowledged(gpu_node: GpuNode, *, generation: int) -> Any:
    """The status of a GPUNode whose agent has acknowledged another generation."""
    assert gpu_node.acknowledged is not None
    return msgspec.structs.replace(
        gpu_node.status, acknowledged=msgspec.structs.replace(gpu_node.acknowledged, generation=generation)
    )


def test_a_node_that_is_gone_leaves_no_unanswered_grant() -> None:
    bench = Bench()
    bench.answer = Outcome.UNKNOWN
    assert bench.sent(row(4800)) == [("a", 2400), ("b", 2400)]
    del bench.gpu_nodes["b"]
    bench.nodes = "a"
    assert bench.observe(row(4800)).nodes.keys() == {"a"}


def test_the_first_grant_of_a_node_needs_no_object_and_counts_at_the_defaults() -> None:
    bench = Bench()
    del bench.gpu_nodes["b"]
    bench.answer = Outcome.UNKNOWN
    assert bench.sent(row(4800)) == [("a", 1600), ("b", 800)]
    assert bench.observe(row(4800)).nodes["b"].power.committed.limit_milliwatts == 3200_000


def test_an_answer_that_nobody_waits_for_changes_nothing() -> None:
    bench = Bench()
    bench.controller.handle(Answered("a", Outcome.REFUSED))
    assert bench.sent(row(4800)) == [("a", 2400), ("b", 2400)]
    # Nor does a late one of a write that was given up: what may have arrived goes on counting.
    bench = Bench()
    bench.answer = Outcome.UNKNOWN
    bench.wants("b", 100)
    assert bench.sent(row(3200)) == [("a", 2400)]
    bench.controller.handle(Answered("a", Outcome.REFUSED))
    assert bench.observe(row(3200)).nodes["a"].power.committed.limit_milliwatts == 2400_000


# --- what allows a raise -----------------------------------------------------------------------------------------------


def test_nothing_is_raised_while_a_former_leaders_grant_stands() -> None:
    bench = Bench(epoch=2)
    assert bench.sent(row(4800)) == [("a", 800), ("b", 800)]
    bench.put("a", 100, epoch=2, version="8")
    assert bench.sent(row(4800)) == [("b", 800)]
    bench.put("b", 100, epoch=2, version="8")
    assert bench.sent(row(4800)) == [("a", 2400), ("b", 2400)]


def test_a_gpu_node_made_anew_at_the_same_version_counts_at_the_most_until_a_later_one_is_acknowledged() -> None:
    """Its agent was cut off, and comes back with the grant that the GPUNode before it had under that very version."""
    bench = Bench()
    (sent, _) = bench.step(row(4800)).sends
    raw = raw_gpu_node("a", sent.grant, limits=800_000)
    raw["metadata"]["resourceVersion"] = "8"
    raw["status"]["acknowledged"]["digest"] = "of-another"
    bench.gpu_nodes["a"] = read_gpu_node(raw)
    assert bench.observe(row(4800)).nodes["a"].power.committed.limit_milliwatts == 3200_000
    again = [send.grant for send in bench.step(row(4800)).sends if send.node.name == "a"]
    assert [item.version > sent.grant.version for item in again] == [True]
    raw = raw_gpu_node("a", again[0], limits=again[0].bound.limit_milliwatts)
    raw["metadata"]["resourceVersion"] = "9"
    raw["status"]["acknowledged"]["digest"] = again[0].digest
    bench.gpu_nodes["a"] = read_gpu_node(raw)
    assert bench.observe(row(4800)).nodes["a"].power.committed == again[0].bound


def test_a_gpu_node_without_a_grant_is_no_former_leaders() -> None:
    bench = Bench()
    bench.gpu_nodes["b"] = gpu_node_view("b", None)
    assert bench.sent(row(6400)) == [("b", 800), ("a", 2400)]


def test_an_old_copy_raises_nothing_and_still_cuts() -> None:
    bench = Bench(stale_after_seconds=90.0)
    bench.put("b", 300)
    bench.age_seconds = 90.1
    bench.wants("b", 200)
    assert bench.sent(row(4800)) == [("b", 1600)]  # and a, whose raise would fit, has to wait
    bench.age_seconds = 90.0
    assert bench.sent(row(4800)) == [("b", 1600), ("a", 2400)]


@pytest.mark.parametrize(
    ("unread", "caps"),
    [
        ((), [row(4800), cap_view("hall")]),  # without watts nobody knows what the hall may draw
        (("GPUNode c: not as the CRD has it",), [row(4800)]),
    ],
    ids=["a cap", "a GPUNode"],
)
def test_what_cannot_be_read_lets_nothing_rise_and_still_cuts(unread: tuple[str, ...], caps: list[PowerCap]) -> None:
    bench = Bench()
    bench.put("b", 300)
    bench.wants("b", 200)
    bench.unread = unread
    assert bench.sent(*caps) == [("b", 1600)]
    assert not bench.observe(*caps).all_read
    bench.unread = ()
    bench.put("b", 200, generation=2, version="8")
    assert bench.sent(row(4800)) == [("a", 2400)]
    assert bench.observe(row(4800)).all_read


def test_no_cap_is_called_enforced_while_a_gpu_node_cannot_be_read() -> None:
    """Nobody knows then under which caps its node counts: its Node may be gone, or have lost its labels."""
    bench = Bench()
    bench.unread = ("c",)
    (write,) = bench.step(row(6400)).cap_statuses
    (enforced,) = (item for item in write.status.conditions if item.type == "Enforced")
    assert (enforced.status, enforced.reason) == ("Unknown", "Unreadable")
    assert "c" in enforced.message


def test_no_gpu_node_is_made_in_the_place_of_one_that_cannot_be_read() -> None:
    bench = Bench()
    del bench.gpu_nodes["a"]
    bench.unread = ("a",)
    assert bench.sent(row(6400)) == []
    bench.unread = ()
    assert "a" in dict(bench.sent(row(6400)))


def test_more_is_committed_only_once_the_status_of_the_cap_says_so() -> None:
    bench = Bench()
    cap = cap_view("row", watts=4800, status={"effectiveWatts": 4800, "committedWatts": 1600, "epoch": 1})
    bench.put("b", 300)
    bench.wants("b", 200)
    instructions = bench.step(cap)  # b's cut waits for no status
    assert [(send.node.name, send.grant.bound.limit_milliwatts) for send in instructions.sends] == [("b", 1600_000)]
    (write,) = instructions.cap_statuses
    assert write.status.committed_watts == 4800  # what b may draw until it acknowledges, and a's raise
    assert ("a", 2400) in bench.sent(replace(cap, status=write.status))


def test_no_status_leaves_out_a_raise_that_goes_in_the_place_of_one_that_waits_for_its_status() -> None:
    """Until c is down there is room for one of two. The first one's cap has yet to publish it, so the other one goes."""
    bench = Bench("abc")
    bench.put("c", 300)
    bench.wants("c", 100)
    for name, node in bench.gpu_nodes.items():
        labels = {"kubernetes.io/hostname": name}
        bench.gpu_nodes[name] = replace(node, metadata=msgspec.structs.replace(node.metadata, labels=labels))

    def over(node: str, committed_watts: int) -> PowerCap:
        told: dict[str, Any] = {"effectiveWatts": 5000, "committedWatts": committed_watts, "epoch": 1}
        selector = {"matchLabels": {"kubernetes.io/hostname": node}}
        return cap_view(f"of-{node}", watts=5000, status=told, nodeSelector=selector)

    instructions = bench.step(row(6400), over("a", 800), over("b", 2400))
    sent = {send.node.name: send.grant.bound.limit_milliwatts for send in instructions.sends}
    assert sent["b"] == 2400_000
    assert sent.get("a", 800_000) == sent["c"] == 800_000
    committed = {write.cap.name: write.status.committed_watts for write in instructions.cap_statuses}
    assert committed["of-a"] == 2400, "published for the next cycle"
    assert committed["of-b"] == 2400, "what is sent now"


def used_up_row(bench: Bench) -> PowerCap:
    """A cap whose status calls all of it committed, while its nodes want no more than the least."""
    bench.caps_stand = True
    bench.wants("a", 100)
    bench.wants("b", 100)
    told: dict[str, Any] = {"effectiveWatts": 4800, "committedWatts": 4800, "epoch": 1, "observedGeneration": 1}
    return cap_view("row", watts=4800, status=told)


def test_a_status_on_its_way_counts_as_said_until_a_copy_shows_what_became_of_it() -> None:
    """It says of less that it is committed than the one that is read, and may be taken at any moment."""
    bench = Bench(stale_after_seconds=90.0, status_interval_seconds=5.0)
    read = used_up_row(bench)
    (write,) = bench.step(read).cap_statuses
    assert write.status.committed_watts == 1600
    bench.wants("a", 200)
    bench.time = 1.0
    assert bench.sent(read) == []
    bench.time = 2.0
    seen = with_status(read, write.status)
    (more,) = bench.step(seen).cap_statuses
    assert more.status.committed_watts == 2400
    assert bench.sent(with_status(seen, more.status)) == [("a", 1600)]


@pytest.mark.parametrize("age_seconds", [0.0, 80.0])
@pytest.mark.parametrize(("later", "raised"), [(90.0, []), (90.1, [("a", 1600)])])
def test_so_it_does_as_long_as_the_copy_that_lacks_it_may_be_from_before_it_was_taken(
    age_seconds: float, later: float, raised: list[tuple[str, int]]
) -> None:
    bench = Bench(stale_after_seconds=90.0, report_timeout_seconds=1000.0)
    read = used_up_row(bench)
    assert bench.step(read).cap_statuses
    bench.wants("a", 200)
    bench.age_seconds, bench.time = age_seconds, age_seconds + later
    assert bench.sent(read) == raised


def test_nothing_is_raised_while_a_status_calls_an_earlier_spec_enforced() -> None:
    """It claims its watts of the nodes that the cap selected then: whoever is let go would take them along."""
    bench = Bench()
    told: dict[str, Any] = {"effectiveWatts": 1600, "committedWatts": 1600, "epoch": 1, "observedGeneration": 1}
    told["conditions"] = [{"type": "Enforced", "status": "True"}]  # of both nodes, at their smallest limits
    cap = cap_view("row", watts=1600, status=told, nodeSelector={"matchLabels": {"kubernetes.io/hostname": "a"}})
    cap = replace(cap, metadata=msgspec.structs.replace(cap.metadata, generation=2))
    instructions = bench.step(cap)
    assert all(send.grant.bound.limit_milliwatts <= 800_000 for send in instructions.sends)
    (write,) = instructions.cap_statuses  # at once, though neither the watts nor their enforcement are others
    assert (write.status.observed_generation, write.status.nodes) == (2, 1)
    assert ("b", 2400) in bench.sent(replace(cap, status=write.status))


def test_no_more_is_published_than_the_cap_allows() -> None:
    bench = Bench()
    cap = cap_view("row", watts=3200, status={"effectiveWatts": 3200, "committedWatts": 1600, "epoch": 1})
    (write,) = bench.step(cap).cap_statuses
    assert write.status.committed_watts == 3200
    (enforced,) = (item for item in write.status.conditions if item.type == "Enforced")
    assert (enforced.status, write.status.headroom_watts) == ("True", 0)


def test_a_new_leader_calls_no_cap_enforced_before_every_node_has_acknowledged_a_grant_of_its_own() -> None:
    bench = Bench(epoch=2)
    (write,) = bench.step(row(4800)).cap_statuses
    (enforced,) = (item for item in write.status.conditions if item.type == "Enforced")
    assert (enforced.status, enforced.reason, write.status.epoch) == ("Unknown", "Adopting", 2)
    cap = replace(row(4800), status=write.status)
    for node in "ab":
        bench.put(node, 100, epoch=2, version="8", acknowledged=(1, 1))
    (write,) = bench.step(cap).cap_statuses
    (enforced,) = (item for item in write.status.conditions if item.type == "Enforced")
    assert (enforced.status, enforced.reason) == (
        "Unknown",
        "Adopting",
    )  # what another leader was told may be of any age
    for node in "ab":
        bench.put(node, 100, epoch=2, version="9")
    (write,) = bench.step(cap).cap_statuses
    (enforced,) = (item for item in write.status.conditions if item.type == "Enforced")
    assert enforced.is_true
    # Nor where it is doubted anyway: its former leader could write there still.
    bench = Bench(epoch=2)
    bench.not_ready = frozenset("ab")
    (write,) = bench.step(row(9000)).cap_statuses
    (enforced,) = (item for item in write.status.conditions if item.type == "Enforced")
    assert (enforced.status, enforced.reason) == ("Unknown", "Adopting")


@pytest.mark.parametrize("why", ["its Node is not ready", "its driver was loaded anew"])
def test_a_node_that_counts_at_the_most_whatever_it_acknowledged_keeps_no_cap_from_being_enforced(why: str) -> None:
    """Its silence proves nothing that the cap needs: there is room for its largest limits."""
    bench = Bench(epoch=2)
    bench.put("b", 100, epoch=2)
    bench.put("a", 100, epoch=2, acknowledged=(1, 1))
    if "ready" in why:
        bench.not_ready = frozenset("a")
    else:
        given = bench.gpu_nodes["a"].grant
        told = raw_gpu_node("a", given, limits=800_000, acknowledged=(1, 1), acknowledged_on=("boot-1", "driver-0"))
        bench.gpu_nodes["a"] = read_gpu_node(told)
    (write,) = bench.step(row(9000)).cap_statuses
    (enforced,) = (item for item in write.status.conditions if item.type == "Enforced")
    assert (enforced.status, write.status.committed_watts) == ("True", 5600)


def test_the_status_of_an_earlier_leader_is_replaced_at_once() -> None:
    bench = Bench()
    (first,) = bench.step(row(4800)).cap_statuses
    cap = replace(row(4800), status=first.status)
    assert bench.step(cap).cap_statuses == ()
    earlier = replace(cap, status=msgspec.structs.replace(first.status, epoch=0))
    assert [write.status.epoch for write in bench.step(earlier).cap_statuses] == [1]


def test_a_cap_whose_status_is_being_written_gets_no_second_one() -> None:
    bench = Bench()
    state = bench.observe(row(4800))
    assert bench.controller.step(PowerCycle(state, PlanInForce(), bench.now, 0.0, {"uid-row"})).cap_statuses == ()
    assert len(bench.controller.step(PowerCycle(state, PlanInForce(), bench.now, 0.0)).cap_statuses) == 1


def test_a_new_leader_lowers_nothing_before_its_first_plan_but_what_its_caps_ask_for() -> None:
    for watts, sent in ((4800, [("a", 2400), ("b", 1600)]), (3200, [("a", 1864), ("b", 1328)])):
        bench = Bench(epoch=2)
        bench.put("a", 300)
        bench.put("b", 200)
        bench.plan_is_made = False
        assert bench.sent(row(watts)) == sent
    bench.plan_is_made = True
    bench.wants("b", 100)
    assert bench.sent(row(4800)) == [("b", 800), ("a", 2400)]


# --- limits that turn ----------------------------------------------------------------------------------------------------


def test_a_limit_that_goes_up_and_down_is_raised_ever_less_often_and_lowered_at_once() -> None:
    bench, turns, sent = Bench("a"), 3 * (FEW_TURNS + 1), []
    for _ in range(turns):
        for watts in (WATTS, 200):
            bench.wants("a", watts)
            for each in bench.step(row(4800)).sends:
                sent.append(each.grant.bound.limit_milliwatts // 8000)
                version = each.grant.version
                bench.put("a", sent[-1], epoch=version.epoch, generation=version.generation, version=str(len(sent)))
            bench.time += 0.1
    raises = sent.count(WATTS)
    assert FEW_TURNS < raises < turns - FEW_TURNS
    assert sent == [WATTS, 200] * raises
    bench.time += TURNS_FORGOTTEN_SECONDS
    bench.wants("a", WATTS)
    assert bench.sent(row(4800)) == [("a", 8 * WATTS)]


# --- waiting for a plan ------------------------------------------------------------------------------------------------


def test_grants_wait_for_a_plan_that_is_near_and_not_for_one_after_the_other() -> None:
    bench = Bench()
    bench.plan_is_near = True  # a ramp moves its cap all the time: each plan that ends is followed by the next
    sent = []
    for _ in range(20):
        sent.append(bool(bench.sent(row(3200))))
        bench.time += PLAN_GRACE_SECONDS / 4
    assert sent[:4] == [False] * 4
    assert all(sent[4:])


def test_the_wait_for_a_plan_begins_anew_once_a_plan_has_fitted() -> None:
    bench = Bench()
    bench.plan_is_near = True
    assert bench.sent(row(3200)) == []
    bench.time += PLAN_GRACE_SECONDS
    assert bench.sent(row(4800)) != []
    assert bench.sent(row(3200)) == []


def test_what_fits_its_caps_waits_for_no_plan() -> None:
    bench = Bench()
    bench.plan_is_near = True
    assert bench.sent(row(4800)) == [("a", 2400), ("b", 2400)]


def test_what_does_not_fit_waits_for_no_plan_that_nobody_makes() -> None:
    assert Bench().sent(row(3200)) == [("a", 1600), ("b", 1600)]


def braked(node: GpuNode, watts: int) -> GpuNode:
    """The GPUNode with what its agent says that it holds itself to by a brake, for each of its eight GPUs."""
    acknowledged = msgspec.structs.replace(node.status.acknowledged, bound_milliwatts=watts * 8000)
    return replace(node, status=msgspec.structs.replace(node.status, acknowledged=acknowledged))


@pytest.mark.parametrize(
    ("watts", "grace"), [(1600, BRAKED_PLAN_GRACE_SECONDS), (1599, PLAN_GRACE_SECONDS)], ids=["held", "not held"]
)
def test_a_plan_may_take_longer_where_brakes_hold_every_cap_and_not_while_one_is_exceeded(
    watts: int, grace: float
) -> None:
    bench = Bench()
    bench.plan_is_near = True
    for node in "ab":
        bench.put(node, 300)
        raw = raw_gpu_node(node, bench.gpu_nodes[node].grant, limits=800_000)
        bench.gpu_nodes[node] = braked(read_gpu_node(raw), 100)
    caps = [row(1600), cap_view("hall", watts=watts, status={"effectiveWatts": watts})]
    assert bench.sent(*caps) == []
    bench.time = grace - 0.01
    assert bench.sent(*caps) == []
    bench.time = grace
    assert bench.sent(*caps) != []


# --- other statuses and a cut -------------------------------------------------------------------------------------------


def test_what_a_meter_asks_for_is_taken_by_priority_and_waits_for_no_plan() -> None:
    bench = Bench()
    bench.put("a", 300)
    bench.put("b", 300)
    uids = {"a": 10, "b": 0}
    jobs = {f"uid-{name}": read_energy_aware_job(raw_job(name, priority=rank)) for name, rank in uids.items()}
    status = {"effectiveWatts": 4800, "meter": {"state": "Cut", "allowedWatts": 4000}}
    cap = cap_view("row", watts=4800, meter={"file": "pdu"}, status=status)
    reading = MeterReading(4900.0, 0.0, NOW, "")
    cluster = replace(bench.cluster(cap), jobs=jobs)
    state = bench.controller.observe(cluster, NOW, 0.0, readings={cap.uid: reading})
    sends = bench.controller.step(PowerCycle(state, PlanInForce(bench.decisions, next_is_near=True), NOW, 0.0)).sends
    assert [(send.node.name, send.grant.bound.limit_milliwatts) for send in sends] == [("b", 1600_000)]


def test_a_cut_takes_the_api_servers_time_for_a_moment() -> None:
    bench = Bench()
    bench.put("a", 300)
    bench.put("b", 300)
    assert not bench.observe(row(4800)).cutting
    for _ in range(3):
        assert bench.observe(row(3200)).cutting
        bench.time += CUT_YIELD_SECONDS / 3 - 0.01
    bench.time = CUT_YIELD_SECONDS  # a cap may stay unmet for ever: then everybody else goes on
    assert not bench.observe(row(3200)).cutting
    assert bench.observe(row(3200)).figures_wait
    bench.time = FIGURES_YIELD_SECONDS
    assert not bench.observe(row(3200)).figures_wait
    # Once it is met the next cut is a new one.
    bench.put("a", 200)
    bench.put("b", 200)
    assert not bench.observe(row(3200)).cutting
    assert bench.observe(row(1600)).cutting


def test_a_cap_that_no_cut_can_meet_takes_nobodys_time() -> None:
    bench = Bench()
    bench.put("a", 300)
    assert not bench.observe(row(1599)).cutting  # the smallest limits add up to 1600 W
    assert bench.observe(row(1600)).cutting


def test_a_cap_is_known_to_be_enforced_by_what_its_status_says_of_what_is_in_force() -> None:
    bench = Bench()  # at 1,600 W

    def known(watts: int, told_watts: int, kind: str = "Enforced", status: str = "True") -> bool:
        told = {"effectiveWatts": told_watts, "conditions": [{"type": kind, "status": status}]}
        return bench.observe(cap_view("row", watts=watts, status=told)).caps.states[0].known_enforced

    assert known(1600, 1600)
    assert not known(1599, 1599)
    assert not known(1600, 1700)
    assert not known(1600, 1600, kind="Feasible")
    assert not known(1600, 1600, status="False")


def test_nothing_is_enforced_by_an_operator_that_only_observes() -> None:
    state = Bench().observe(row(1600)).caps.states[0]
    assert state.enforced
    assert not msgspec.structs.replace(state, if_governed=state).enforced


# --- not too many at once ------------------------------------------------------------------------------------------------


def test_more_nodes_than_may_be_sent_to_at_once_are_sent_to_deepest_cuts_first() -> None:
    nodes = [f"n{index:03}" for index in range(MAX_GRANTS_AT_ONCE + 2)]
    bench = Bench(nodes)
    shallow, deep = nodes[-2:]
    bench.put(shallow, 350)
    bench.put(deep, 400)
    sent = bench.sent(row(2400 * len(nodes)))
    assert len(sent) == MAX_GRANTS_AT_ONCE
    assert sent[:2] == [(deep, 2400), (shallow, 2400)]
    assert [node for node, _ in sent[2:]] == nodes[: MAX_GRANTS_AT_ONCE - 2]


def test_grants_under_way_leave_room_for_fewer() -> None:
    nodes = [f"n{index:03}" for index in range(MAX_GRANTS_AT_ONCE + 4)]
    bench = Bench(nodes)
    bench.answer = None
    assert len(bench.sent(row(2400 * len(nodes)))) == MAX_GRANTS_AT_ONCE
    assert bench.sent(row(2400 * len(nodes))) == []
    for node in nodes[:3]:
        bench.controller.handle(Answered(node, Outcome.DONE))
    # Three of those that have found no room: the first three are not sent to again, their objects being unseen...
    later = [node for node, _ in bench.sent(row(2400 * len(nodes)))]
    assert later == nodes[:3]  # ...but, as nobody has seen what became of them, sent to anew, in order
    assert bench.sent(row(2400 * len(nodes))) == []


def test_a_node_is_sent_one_grant_at_a_time() -> None:
    bench = Bench()
    bench.answer = None
    assert bench.sent(row(4800)) == [("a", 2400), ("b", 2400)]
    bench.put("a", 300, generation=2, version="8")
    assert bench.sent(row(1600)) == []  # the answer to the first is still to come
    bench.controller.handle(Answered("a", Outcome.DONE))
    assert bench.sent(row(1600)) == [("a", 800)]


# --- instructions beside grants ------------------------------------------------------------------------------------------


def test_a_grant_says_whether_a_part_of_it_waits() -> None:
    bench = Bench()
    bench.put("b", 300)
    bench.wants("b", 200)
    instructions = bench.step(row(3200))
    assert {send.node.name: send.waits for send in instructions.sends} == {"b": False}  # a's grant stands as it is
    bench = Bench(epoch=2)
    assert [send.waits for send in bench.step(row(4800)).sends] == [True, True]


def test_a_cap_is_told_how_many_nodes_are_not_there_yet() -> None:
    bench = Bench()
    bench.put("a", 300)
    bench.put("b", 300)
    (write,) = bench.step(row(3200)).cap_statuses
    enforced = next(item for item in write.status.conditions if item.type == "Enforced")
    assert "2 nodes have yet to acknowledge their grants" in enforced.message
    assert bench.step(row(3200)).owing == 0
    # One that is to be cut, one whose raise waits for that, and one that has its grant and owes the answer.
    bench = Bench("abc")
    bench.put("a", 300)
    bench.wants("a", 100)
    bench.wants("c", 100)
    standing = bench.gpu_nodes["c"].grant
    assert standing is not None
    later = msgspec.structs.replace(standing, generation=2)
    bench.gpu_nodes["c"] = read_gpu_node(raw_gpu_node("c", later, limits=800_000, acknowledged=(1, 1)))
    instructions = bench.step(row(3900))
    assert "c" not in {send.node.name for send in instructions.sends}
    (write,) = instructions.cap_statuses
    enforced = next(item for item in write.status.conditions if item.type == "Enforced")
    assert "3 nodes have yet to acknowledge their grants" in enforced.message


def test_nodes_owe_an_acknowledgement_and_are_unresponsive_after_the_timeout() -> None:
    bench = Bench(acknowledge_timeout_seconds=10.0)
    acknowledged = bench.gpu_nodes["a"]
    given = grant(800_000, generation=2)
    bench.gpu_nodes["a"] = replace(gpu_node_view("a", given, limits=800_000), status=acknowledged.status)
    assert bench.step(row(4800)).owing == 1
    assert bench.observe(row(4800)).nodes["a"].responsive
    bench.time = 10.1
    assert not bench.observe(row(4800)).nodes["a"].responsive


def test_a_node_whose_agent_reports_nothing_any_more_counts_at_its_largest_limits() -> None:
    bench = Bench(report_timeout_seconds=75.0)
    for watts in (101, 102):  # silence, a report, silence
        assert bench.observe(row(4800)).nodes["a"].doubt == ""
        bench.time += 75.1
        state = bench.observe(row(4800))
        assert state.nodes["a"].power.committed.limit_milliwatts == 3200_000
        assert [cap.proof_stale for cap in state.caps.states] == [True]
        bench.put("a", watts)


def heard(gpu_node: GpuNode, boottime: float) -> GpuNode:
    """The same, as its agent says it so many seconds after its node's boot."""
    nanoseconds, status = int(boottime * 1e9), gpu_node.status
    assert status.acknowledged is not None
    acknowledged = msgspec.structs.replace(status.acknowledged, boottime_nanoseconds=nanoseconds, bound_by="2.0")
    last_round = RoundTime(nanoseconds, "2.0")
    said = msgspec.structs.replace(status, agent_version="2.0", last_round=last_round, acknowledged=acknowledged)
    return replace(gpu_node, status=said)


def test_a_first_acknowledgement_is_a_sign_of_life_from_when_the_grant_was_sent() -> None:
    bench = Bench("a", report_timeout_seconds=75.0)
    bench.gpu_nodes["a"] = heard(bench.gpu_nodes["a"], 5000.0)
    assert bench.sent(row(4800)) == [("a", 2400)]
    bench.time = 40.0
    bench.put("a", WATTS, generation=2, version="8")
    bench.gpu_nodes["a"] = heard(bench.gpu_nodes["a"], 5010.0)
    assert bench.observe(row(4800)).next_silence_seconds == 35.0, "it may have been on its way for all of the 40 s"


def test_a_silent_agent_is_believed_no_more_once_its_gpu_node_could_not_be_read_for_a_moment() -> None:
    bench = Bench(report_timeout_seconds=75.0)
    bench.observe(row(4800))
    bench.time = 75.1
    assert bench.observe(row(4800)).nodes["a"].doubt
    silent, bench.unread = bench.gpu_nodes.pop("a"), ("a",)
    assert not bench.observe(row(4800)).all_read
    bench.gpu_nodes["a"], bench.unread = silent, ()
    assert bench.observe(row(4800)).nodes["a"].power.committed.limit_milliwatts == 3200_000
    bench.put("a", 101)
    assert bench.observe(row(4800)).nodes["a"].doubt == ""


def test_a_node_in_doubt_is_not_opened_and_its_grant_is_not_raised() -> None:
    bench = Bench("ab")
    taints = [{"key": "flyball.dev/unacknowledged", "effect": "NoSchedule"}]
    doubted = node_view("a", ready=False, taints=taints)
    cluster = replace(bench.cluster(row(9600)), nodes=[doubted, node_view("b", taints=taints)])
    state = bench.controller.observe(cluster, NOW, 0.0)
    instructions = bench.controller.step(PowerCycle(state, PlanInForce(bench.decisions), NOW, 0.0))
    assert [info.name for info in instructions.untaint] == ["b"]
    assert [(send.node.name, send.grant.bound.limit_milliwatts) for send in instructions.sends] == [
        ("a", 800_000),
        ("b", 2400_000),
    ]


def test_a_cap_that_the_plan_cannot_hold_is_published_as_infeasible() -> None:
    bench = Bench()
    bench.infeasible = ("row",)
    (write,) = bench.step(row(4800)).cap_statuses
    feasible = next(item for item in write.status.conditions if item.type == "Feasible")
    assert feasible.status == "False"


def test_statuses_are_due_at_the_interval_that_is_set() -> None:
    bench = Bench(status_interval_seconds=7.0)
    first = bench.step(row(4800))
    cap = replace(row(4800), status=first.cap_statuses[0].status)
    bench.put("a", 101)  # a figure
    bench.time = 6.9
    assert bench.step(cap).cap_statuses == ()
    bench.time = 7.0
    assert len(bench.step(cap).cap_statuses) == 1


@pytest.mark.parametrize(
    ("taint", "acknowledged", "opened"), [(True, True, True), (False, True, False), (True, False, False)]
)
def test_a_node_is_opened_once_its_agent_has_acknowledged(taint: bool, acknowledged: bool, opened: bool) -> None:
    bench = Bench("a")
    taints = [{"key": "flyball.dev/unacknowledged", "effect": "NoSchedule"}] if taint else []
    cluster = replace(bench.cluster(), nodes=[node_view("a", taints=taints)])
    if not acknowledged:
        cluster = replace(cluster, gpu_nodes={"a": gpu_node_view("a", grant(800_000))})
    state = bench.controller.observe(cluster, NOW, 0.0)
    instructions = bench.controller.step(PowerCycle(state, PlanInForce(), NOW, 0.0))
    assert [info.name for info in instructions.untaint] == (["a"] if opened else [])
    gone = replace(cluster, nodes=[])
    assert (
        bench.controller.step(PowerCycle(bench.controller.observe(gone, NOW, 0.0), PlanInForce(), NOW, 0.0)).untaint
        == ()
    )


@pytest.mark.parametrize(
    ("what", "closed"),
    [
        ("all is well", False),
        ("its Node has booted", True),
        ("its Node is not ready", True),
        ("its agent has reported a new driver session", True),
        ("it is closed already", False),
        ("its agent has yet to acknowledge for the first time", False),
    ],
)
def test_a_node_whose_proof_is_stale_is_closed_again(what: str, closed: bool) -> None:
    """Pods that come to it now would find GPUs at limits that nobody has granted."""
    bench = Bench("a")
    raw = raw_node("a", ready="not ready" not in what)
    if "booted" in what or "already" in what:
        raw["status"]["nodeInfo"] = {"bootID": "boot-2"}
    if "already" in what:
        raw["spec"]["taints"] = [{"key": "flyball.dev/unacknowledged", "effect": "NoSchedule"}]
    if "session" in what:
        bench.gpu_nodes["a"] = gpu_node_view(
            "a", grant(800_000), limits=800_000, acknowledged_on=("boot-1", "driver-0")
        )
    if "first time" in what:
        raw["status"]["nodeInfo"] = {"bootID": "boot-2"}
        bench.gpu_nodes["a"] = gpu_node_view("a", grant(800_000))
    state = bench.controller.observe(replace(bench.cluster(), nodes=[read_node(raw)]), NOW, 0.0)
    instructions = bench.controller.step(PowerCycle(state, PlanInForce(), NOW, 0.0))
    assert [info.name for info in instructions.taint] == (["a"] if closed else [])
    assert instructions.untaint == ()
    gone = bench.controller.observe(replace(bench.cluster(), nodes=[]), NOW, 0.0)
    assert bench.controller.step(PowerCycle(gone, PlanInForce(), NOW, 0.0)).taint == ()


def test_a_pods_watts_are_reserved_once_the_api_server_has_the_grant_that_it_should_have() -> None:
    bench = Bench()
    pods = {node: pod_view(f"pod-{node}", uid=f"uid-{node}") for node in "ab"}
    bench.put("a", 300)
    first = bench.step(row(4800))
    assert {node: first.is_reserved(pod) for node, pod in pods.items()} == {"a": True, "b": False}
    bench.put("b", 300, generation=2, version="8")
    assert all(bench.step(row(4800)).is_reserved(pod) for pod in pods.values())
    # While a plan is near that fits a lower cap, what was wanted before goes on counting.
    bench.plan_is_near = True
    assert all(bench.step(row(3200)).is_reserved(pod) for pod in pods.values())
    bench.plan_is_near = False
    assert not any(bench.step(row(3200)).is_reserved(pod) for pod in pods.values())


def test_of_reserved_jobs_under_a_ramp_one_may_start_while_the_other_waits_for_its_step() -> None:
    bench = Bench()
    cap = row(4800, rampWattsPerSecond=100)
    gated = [pod_view(f"pod-{node}", uid=f"uid-{node}", gpus=8, gated=True) for node in "ab"]
    cluster = replace(bench.cluster(cap), pods=gated, pods_of={pod.job_uid: [pod] for pod in gated})
    for node in "ab":
        bench.wants(node, 100)
    state = bench.controller.observe(cluster, NOW, 0.0)
    instructions = bench.controller.step(PowerCycle(state, PlanInForce(bench.decisions), NOW, 0.0))
    assert [instructions.is_reserved(pod) for pod in gated] == [True, False]


def test_the_lease_and_the_guard_band_are_those_that_are_set() -> None:
    bench = Bench("a", grant_lease_seconds=17, guard_fraction=0.0)
    (send,) = bench.step(row(4800)).sends
    assert send.grant.lease_seconds == 17
    assert send.grant.bound.expected_milliwatts == 8 * 250_000


def test_nodes_are_read_with_the_gpu_models_that_the_operator_was_given(tmp_path: Path) -> None:
    path = tmp_path / "a100.yaml"
    path.write_text(
        f"product: {A100}\nlimits: [100, 400, 400]\nidle: 41\nclocks: [210, 1410, 15]\nknee: 1000\nslope: 0.7\n",
        encoding="utf-8",
    )
    bench = Bench(gpu_models=Settings(gpu_model_files=(path,)).gpu_models)
    models = [info.gpu_model for info in bench.observe().nodes.values()]
    assert [None if model is None else (model.idle_power_watts, model.knee_megahertz) for model in models] == [
        (41.0, 1000.0),
        (41.0, 1000.0),
    ]


# --- grants that the API server does not take -------------------------------------------------------------------------


def test_a_cut_goes_through_where_the_api_server_refuses_the_entries_of_a_node() -> None:
    """One entry that it does not take must not keep every grant from the node, cuts included."""
    bench = Bench("a")
    bench.put("a", 300)
    bench.answer = None
    first = bench.step(row(1000)).sends[0]
    assert first.grant.jobs
    assert bench.controller.handle(Answered("a", Outcome.REFUSED, first.grant))
    second = bench.step(row(1000)).sends[0].grant
    assert (second.jobs, second.bound.limit_milliwatts) == ((), 800_000)
    others = second.other_gpus
    assert (others.foreign_gpus, others.foreign_power_limit_milliwatts) == (8, 100_000)  # the agent cuts all of them
    assert not bench.controller.handle(Answered("a", Outcome.REFUSED, second))  # nothing is left to leave out
    assert bench.step(row(1000)).sends[0].grant.jobs == ()


@pytest.mark.parametrize(
    ("acknowledged", "limits", "devices", "left"),
    [
        ((1, 2**63 - 1), 2400_000, 8, 1000_000),
        ((1, 10**15), 2400_000, 8, 1000_000),
        ((1, 1), 10**9, 4, 2400_000),  # four at the defaults to which a reset puts them
    ],
    ids=["the last number", "the last that a grant may have", "the most watts, and fewer GPUs"],
)
def test_whatever_is_acknowledged_falsely_the_api_server_takes_the_next_cut(
    acknowledged: tuple[int, int], limits: int, devices: int, left: int
) -> None:
    """By whoever has the agent's token; the agent itself takes what is above its own last grant."""
    bench = Bench("a")
    standing = grant(3000_000)
    raw = raw_gpu_node("a", standing, limits=limits, devices=devices, acknowledged=acknowledged)
    bench.gpu_nodes["a"] = read_gpu_node(raw)
    (send,) = bench.step(row(1000)).sends
    assert_valid("GPUNode", "spec", grant_spec(send.grant))
    assert send.grant.version > standing.version
    assert send.grant.bound.limit_milliwatts == left


@pytest.mark.parametrize("gpus", [384, 2**63 - 1])
@pytest.mark.parametrize("ready", [True, False])
@pytest.mark.parametrize(
    "watts", [{"watts": 1_000_000}, {"permilleOfMax": 500, "reserveNodes": 1}], ids=["watts", "share"]
)
def test_however_many_gpus_a_node_offers_its_grants_and_its_caps_statuses_can_be_stored(
    gpus: int, ready: bool, watts: dict[str, Any]
) -> None:
    """Slices that no label calls so, each of which a pod may have; or any number, which a kubelet may state."""
    bench = Bench("a")
    cap = cap_view("row", **watts, foreignPods="Limit")
    foreign = [
        pod_view(f"other-{index}", gpus=1, node="a", phase="Running", controlled=False, namespace="other")
        for index in range(70)
    ]
    cluster = bench.cluster(cap)
    cluster = replace(
        cluster, nodes=[read_node(raw_node("a", gpus, ready=ready))], pods=[pod.of_nobody() for pod in foreign]
    )
    state = bench.controller.observe(cluster, bench.now, bench.time)
    done = bench.controller.step(PowerCycle(state, PlanInForce({}, (), False, True), bench.now, bench.time))
    (send,) = done.sends
    assert_valid("GPUNode", "spec", grant_spec(send.grant))
    (write,) = done.cap_statuses
    assert max(write.status.committed_watts or 0, write.status.effective_watts or 0) <= 1_000_000


def test_other_entries_are_tried_anew() -> None:
    bench = Bench("a")
    bench.answer = None
    refused = grant(800_000, jobs=(job_grant("uid-ghost", 100_000, 8),))
    assert bench.controller.handle(Answered("a", Outcome.REFUSED, refused))
    assert bench.step(row(4000)).sends[0].grant.jobs


# --- two feeds -------------------------------------------------------------------------------------------------------


def test_of_two_feeds_the_one_that_is_halved_decides_at_once_and_until_it_is_back() -> None:
    bench = Bench()

    def feeds(a: int, b: int) -> list[PowerCap]:
        return [
            cap_view(name, watts=watts, status={"effectiveWatts": watts})
            for name, watts in (("feed-a", a), ("feed-b", b))
        ]

    for node in bench.nodes:
        bench.put(node, WATTS)
    assert bench.sent(*feeds(4800, 4800)) == [("a", 2400), ("b", 2400)]
    assert bench.sent(*feeds(2400, 4800)) == [("a", 1200), ("b", 1200)]  # feed B is gone, and A carries everything
    for node in bench.nodes:
        bench.put(node, 150, generation=2, version="8")
    state = bench.observe(*feeds(2400, 4800))
    assert [cap.enforced for cap in state.caps.states] == [True, True]
    assert bench.sent(*feeds(2400, 4800)) == [("a", 1200), ("b", 1200)]
    assert bench.sent(*feeds(4800, 4800)) == [("a", 2400), ("b", 2400)]


# --- agents that answer late -------------------------------------------------------------------------------------------


def late_bench() -> Bench:
    """Two nodes at what the plan gives them, of which the first has owed its acknowledgement of that for long."""
    bench = Bench()
    bench.put("a", WATTS, generation=2, acknowledged=(1, 1))
    bench.put("b", WATTS)
    assert bench.sent(row(4800)) == []
    bench.time = bench.controller._settings.acknowledge_timeout_seconds + 1.0
    assert bench.observe(row(4800)).nodes["a"].late
    return bench


def test_an_agent_that_answers_late_costs_no_grant_and_no_plan_until_it_has() -> None:
    bench = late_bench()
    assert bench.sent(row(4800)) == []
    bench.wants("a", 200)
    assert bench.sent(row(4800)) == []
    bench.put("a", WATTS, generation=2, version="8")
    assert bench.sent(row(4800)) == [("a", 1600)]


def test_where_a_cap_needs_its_watts_a_late_node_is_cut_at_once_and_the_others_make_room_for_it() -> None:
    bench = late_bench()
    assert bench.sent(row(4000)) == [("b", 1600), ("a", 2000)]
    bench.put("b", 200, generation=2, version="8")
    bench.put("a", 250, generation=3, version="8")  # it answers: what it held is the other's, too
    assert bench.sent(row(4000)) == [("b", 2000)]


def test_watts_that_only_a_late_node_could_take_stay_the_others_to_have() -> None:
    """Its raise, which nobody would know of, is not counted as sent."""
    bench = late_bench()
    bench.put("b", 200)
    bench.wants("a", 350)
    bench.wants("b", 290)
    assert bench.sent(row(4800)) == [("b", 2320)]
