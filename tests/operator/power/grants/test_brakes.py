"""When a brake is written, how far it goes, and what waits for it; and what stands while an emergency does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from flyball_api.gpu_node import GpuNode
from flyball_api.grant import BrakeVersion, CapOverNode
from flyball_api.power_brake import PowerBrake, PowerBrakeSpec
from flyball_api.power_cap import PowerCap
from flyball_api.reading import ObjectMeta
from flyball_api.values.units import NodeMilliwatts
from flyball_operator.cluster.outcome import Outcome
from flyball_operator.cluster.state import ClusterState
from flyball_operator.power.caps.state import CapState
from flyball_operator.power.controller import PowerController, PowerSettings
from flyball_operator.power.cycle import Answered, BrakeAnswered, PlanInForce, PowerCycle, PowerInstructions
from flyball_operator.power.grants.brakes import (
    HOLD_BACK_SECONDS,
    HOLD_BACK_SECONDS_EACH,
    HOLD_BACK_TURN,
    LATE_HOLD_BACK_SECONDS,
    LONGEST_HOLD_BACK,
    MAX_CAPS_OVER_NODE,
    PAUSE_SECONDS,
    STILL_COMING_SECONDS,
    Brakes,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.operator_objects import (
    FLOOR,
    NOW,
    cap_view,
    decision,
    gpu_node_view,
    grant,
    incarnation_view,
    job_grant,
    node_view,
    running_pod,
)

NODES = "abcdef"
GPUS = 8


class Bench:
    """Six nodes of eight GPUs under the cap `row`, a job on each, granted and acknowledged at 300 W a GPU."""

    def __init__(self, nodes: str = NODES, watts: int = 300, **cap: Any) -> None:
        self.nodes, self.time, self.cap_fields = nodes, 0.0, cap
        self.controller = PowerController(1, PowerSettings())
        self.brakes: dict[str, PowerBrake] = {}
        self.gpu_nodes = {node: self.granted(node, watts) for node in nodes}
        self.plan_is_near = False
        self.told = False  # the cap's status says Enforced
        self.others: list[PowerCap] = []

    def granted(
        self, node: str, watts: int, *, generation: int = 1, brake: int = 0, caps: tuple[CapOverNode, ...] = ()
    ) -> GpuNode:
        jobs = (job_grant(f"uid-{node}", watts * 1000, GPUS, pod=f"pod-{node}"),)
        given = grant(watts * 8000, jobs=jobs, expected=watts * 6000, generation=generation, caps=("row",))
        given = msgspec.structs.replace(given, caps=caps or (CapOverNode("row", BrakeVersion(1, brake)),)).sealed()
        view = gpu_node_view(node, given, limits=watts * 8000)
        return self.acknowledging(view, given.bound.limit_milliwatts)

    @staticmethod
    def acknowledging(view: GpuNode, bound: int | None, **fields: Any) -> GpuNode:
        assert view.acknowledged is not None
        acknowledged = msgspec.structs.replace(view.acknowledged, bound_milliwatts=bound, **fields)
        return replace(view, status=msgspec.structs.replace(view.status, acknowledged=acknowledged))

    def follow(self, node: str) -> None:
        """The node's agent has followed the brake that stands."""
        view = self.gpu_nodes[node]
        assert view.grant is not None
        bound = view.grant.lowered(self.brakes["row"].spec.kept_millionths).bound.limit_milliwatts
        self.gpu_nodes[node] = self.acknowledging(view, bound, limits_milliwatts=NodeMilliwatts(bound))

    def step(self, watts: int, *, published: int | None = None, plan_watts: int = 300) -> PowerInstructions:
        cycle = self.cycle(watts, published, plan_watts)
        first = self.controller.brake(cycle, ends=False)
        return replace(self.controller.step(cycle), brakes=first.brakes)

    def only_brake(self, watts: int) -> PowerInstructions:
        """A cycle that ends with its brakes, if there are any."""
        return self.controller.brake(self.cycle(watts, None, 300), ends=True)

    def cycle(self, watts: int, published: int | None, plan_watts: int) -> PowerCycle:
        decisions = {
            f"uid-{node}": decision(f"uid-{node}", (node, GPUS), watts=float(plan_watts)) for node in self.nodes
        }
        self.state = self.controller.observe(self.cluster(watts, published), NOW, self.time)
        plan = PlanInForce(decisions, next_is_near=self.plan_is_near)
        return PowerCycle(self.state, plan, NOW, self.time)

    def cluster(self, watts: int, published: int | None) -> ClusterState:
        conditions = [{"type": "Enforced", "status": "True", "reason": "LimitsAcknowledged"}] if self.told else []
        status = {"effectiveWatts": published or watts, "conditions": conditions}
        cap: PowerCap = cap_view("row", watts=watts, status=status, **self.cap_fields)
        pods = {f"uid-{node}": [running_pod(f"pod-{node}", node, uid=f"uid-{node}", gpus=8)] for node in self.nodes}
        return ClusterState(
            jobs={},
            caps=[cap, *self.others],
            gpu_nodes=dict(self.gpu_nodes),
            nodes=[node_view(node) for node in self.nodes],
            pods=[pod for of_job in pods.values() for pod in of_job],
            incarnations={f"uid-{node}": [incarnation_view(f"uid-{node}", 1, (node, 8))] for node in self.nodes},
            pods_of=pods,
            reports_of={},
            unread=(),
            age_seconds=0.0,
            brakes=dict(self.brakes),
        )

    def land(self, instructions: PowerInstructions) -> None:
        """The API server takes the brake that was sent, and says so."""
        (send,) = instructions.brakes
        self.brakes[send.cap] = PowerBrake(ObjectMeta(send.cap, resource_version="9"), send.spec)
        self.controller.handle_brake(BrakeAnswered(send.cap, Outcome.DONE))


def test_a_cap_that_falls_is_met_by_one_brake_and_no_grant() -> None:
    bench = Bench()
    cut = bench.step(9600)  # of 14,400 W
    (send,) = cut.brakes
    assert (send.cap, send.resource_version) == ("row", "")
    assert (send.spec.epoch, send.spec.sequence, send.spec.kept_millionths) == (1, 1, 500_000)
    assert cut.sends == ()
    assert bench.step(9600).brakes == ()  # its answer is awaited
    bench.land(cut)
    bench.time = HOLD_BACK_SECONDS / 2
    waiting = bench.step(9600)
    assert (waiting.brakes, waiting.sends) == ((), ())


def test_what_is_committed_falls_with_the_acknowledgements_and_not_with_the_brake() -> None:
    bench = Bench()
    bench.land(bench.step(9600))
    bench.step(9600)
    assert bench.state.caps.states[0].committed_watts == 14_400
    for node in "abc":
        bench.follow(node)
    bench.step(9600)
    assert bench.state.caps.states[0].committed_watts == 12_000
    for node in "def":
        bench.follow(node)
    bench.step(9600)
    assert bench.state.caps.states[0].enforced


def test_a_brake_leaves_room_for_the_reserve_that_is_there_once_all_have_followed() -> None:
    """A node that jumps to its 3,200 W is 1,600 W above what the brake leaves it, not 800 W as before it."""
    bench = Bench(reserveNodes=1)
    watts = 5 * 1600 + 3200
    instructions = bench.step(watts)
    assert instructions.brakes[0].spec.kept_millionths == 500_000
    bench.land(instructions)
    for node in NODES:
        bench.follow(node)
    assert bench.step(watts).brakes == ()
    (cap,) = bench.state.caps.states
    assert (cap.committed_watts, cap.reserve_milliwatts, cap.is_over_budget) == (6 * 1600, 1_600_000, False)


def test_the_grants_that_follow_name_the_brake_and_lift_it() -> None:
    bench = Bench()
    bench.land(bench.step(9600))
    for node in NODES:
        bench.follow(node)
    bench.told = True
    grants = {send.node.name: send.grant for send in bench.step(9600).sends}
    assert sorted(grants) == sorted(NODES)
    for item in grants.values():
        assert item.caps == (CapOverNode("row", BrakeVersion(1, 1)),)
        assert item.bound.limit_milliwatts == 1_600_000


def test_the_status_that_says_enforced_goes_before_the_grants_that_follow_for_a_while() -> None:
    bench = Bench()
    bench.land(bench.step(9600))
    for node in NODES:
        bench.follow(node)
    done = bench.step(9600)
    (write,) = done.cap_statuses
    assert {item.type: item.status for item in write.status.conditions}["Enforced"] == "True"
    assert done.sends == ()
    bench.time = HOLD_BACK_SECONDS  # the status does not arrive
    assert len(bench.step(9600).sends) == len(NODES)


def test_a_brake_that_is_done_is_forgotten_also_where_no_status_arrives() -> None:
    bench = Bench()
    bench.land(bench.step(9600))
    for node in NODES:
        bench.follow(node)
    bench.time = HOLD_BACK_SECONDS
    bench.step(9600)
    for node in NODES:
        granted = bench.granted(node, 300, generation=2, brake=1)
        metadata = msgspec.structs.replace(granted.metadata, resource_version="77")
        bench.gpu_nodes[node] = replace(granted, metadata=metadata)
    (again,) = bench.step(12_000).brakes  # a shallower one: every grant since was made with the one before
    assert again.spec.kept_millionths > bench.brakes["row"].spec.kept_millionths


def test_with_the_brake_in_force_the_grants_wait_for_the_plan_that_is_near() -> None:
    bench = Bench()
    bench.plan_is_near = True
    bench.land(bench.step(9600))
    for node in NODES:
        bench.follow(node)
    bench.time = 1.0  # longer than a cut would wait
    assert bench.step(9600).sends == ()
    bench.time = 3.0
    assert len(bench.step(9600).sends) == len(NODES)


def test_nodes_that_do_not_follow_are_cut_by_grants_after_a_while() -> None:
    bench = Bench()
    bench.land(bench.step(9600))
    for node in "abcde":
        bench.follow(node)
    bench.time = HOLD_BACK_SECONDS
    assert "f" in {send.node.name for send in bench.step(9600).sends}


def test_of_very_many_nodes_the_grants_wait_longer_for_their_acknowledgements() -> None:
    bench, brakes = Bench(), Brakes(1)
    bench.step(9600)
    (cap,), few = bench.state.caps.states, bench.state.nodes
    many = {f"{name}-{number}": few[name] for name in few for number in range(100)}
    wide = msgspec.structs.replace(cap, nodes=frozenset(many))
    assert brakes.step((wide,), many, 0.0)
    seconds = HOLD_BACK_SECONDS_EACH * len(many)
    assert seconds > HOLD_BACK_SECONDS
    assert brakes.held_back(seconds - 0.1) == frozenset(many)
    assert brakes.held_back(seconds) == frozenset()


def seen_with(brakes: Brakes, bench: Bench, committed_watts: int, time: float) -> None:
    """The brakes see the bench's cap as it is with so many watts committed."""
    (cap,) = bench.state.caps.states
    seen = msgspec.structs.replace(cap, committed_milliwatts=NodeMilliwatts(committed_watts * 1000))
    brakes.step((seen,), bench.state.nodes, time)


def test_while_acknowledgements_come_in_the_grants_wait_for_the_rest() -> None:
    bench, brakes = Bench(), Brakes(1)
    bench.step(9600)
    seen_with(brakes, bench, 14_400, 0.0)
    late = HOLD_BACK_SECONDS - 0.1
    seen_with(brakes, bench, 12_000, late)
    assert brakes.held_back(late + STILL_COMING_SECONDS - 0.1) == frozenset(NODES)
    seen_with(brakes, bench, 12_000, late + 0.5)  # nothing new: nobody is waited for any longer
    assert brakes.held_back(late + STILL_COMING_SECONDS) == frozenset()
    seen_with(brakes, bench, 11_000, late + STILL_COMING_SECONDS)  # grants have their turn now
    assert brakes.held_back(late + STILL_COMING_SECONDS + 0.1) == frozenset()


def test_once_all_have_acknowledged_or_after_very_long_nobody_is_waited_for() -> None:
    bench, brakes = Bench(), Brakes(1)
    bench.step(9600)
    seen_with(brakes, bench, 14_400, 0.0)
    seen_with(brakes, bench, 9600, HOLD_BACK_SECONDS - 0.1)
    assert brakes.held_back(HOLD_BACK_SECONDS) == frozenset()

    brakes = Brakes(1)
    longest = LONGEST_HOLD_BACK * HOLD_BACK_SECONDS
    for seen in range(int(2 * longest / STILL_COMING_SECONDS)):  # a few watts at a time
        seen_with(brakes, bench, 14_400 - seen, seen * STILL_COMING_SECONDS / 2)
    assert brakes.held_back(longest - 0.1) == frozenset(NODES)
    assert brakes.held_back(longest) == frozenset()


def test_what_another_cap_takes_off_waits_for_no_brake() -> None:
    bench = Bench()
    bench.land(bench.step(9600))
    few = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["a", "b", "c"]}]}
    bench.others = [cap_view("few", watts=3000, nodeSelector=few, status={"effectiveWatts": 3000})]
    cut = bench.step(9600)
    assert cut.brakes == ()  # three nodes are too few for one of its own
    assert [send.node.name for send in cut.sends] == ["a", "b", "c"]
    assert sum(send.grant.bound.limit_milliwatts for send in cut.sends) <= 3_000_000


def test_a_cap_that_is_just_held_has_no_grants_sent_beside_anothers_brake() -> None:
    bench = Bench()
    bench.others = [cap_view("hall", watts=14_400, status={"effectiveWatts": 14_400})]
    cut = bench.step(9600)
    assert [send.cap for send in cut.brakes] == ["row"]
    assert cut.sends == ()


@pytest.mark.parametrize(("allowed_watts", "is_cut"), [(14_400, False), (14_399, True)])
def test_what_a_meter_takes_off_waits_for_no_brake(allowed_watts: int, is_cut: bool) -> None:
    bench = Bench()
    told = {"effectiveWatts": 20_000, "meter": {"state": "Shaping", "allowedWatts": allowed_watts}}
    bench.others = [cap_view("hall", watts=20_000, meter={"file": "pdu"}, status=told)]
    cut = bench.step(9600)
    assert [send.cap for send in cut.brakes] == ["row"]
    assert [send.node.name for send in cut.sends] == (list(NODES) if is_cut else [])


def test_a_cap_that_falls_all_the_time_holds_no_grant_back_for_ever() -> None:
    bench = Bench()
    sent = []
    for tick in range(40):  # as an energy budget does that is drawn on faster than it allows
        bench.time = tick * 0.1
        step = bench.step(9600 - 10 * tick)
        sent += [tick for _ in step.sends]
        if step.brakes:
            bench.land(step)
            for node in NODES:
                bench.follow(node)
    assert min(sent) <= 10 * HOLD_BACK_SECONDS + 1


def test_a_brake_of_a_cap_that_is_gone_holds_its_nodes_back_no_longer_than_any_other() -> None:
    bench, brakes = Bench(), Brakes(1)
    bench.step(9600)
    assert brakes.step(bench.state.caps.states, bench.state.nodes, 0.0)
    assert brakes.step((), bench.state.nodes, HOLD_BACK_SECONDS / 2) == ()
    assert brakes.held_back(HOLD_BACK_SECONDS / 2) == frozenset(NODES)
    assert brakes.held_back(HOLD_BACK_SECONDS) == frozenset()


@pytest.mark.parametrize(
    ("seconds", "held"), [(HOLD_BACK_TURN * HOLD_BACK_SECONDS - 0.1, ""), (HOLD_BACK_TURN * HOLD_BACK_SECONDS, NODES)]
)
def test_grants_have_their_turn_before_the_next_brake_holds_them_back(seconds: float, held: str) -> None:
    bench, brakes = Bench(), Brakes(1)
    bench.step(9600)
    assert brakes.step(bench.state.caps.states, bench.state.nodes, 100.0)
    brakes.take_answer("row", done=True, monotonic=100.0)
    bench.step(8000)
    assert brakes.step(bench.state.caps.states, bench.state.nodes, 100.0 + seconds)
    assert brakes.held_back(100.0 + seconds) == frozenset(held)


def test_grants_of_very_many_nodes_have_their_turn_for_as_long_as_they_were_held_back() -> None:
    bench, brakes = Bench(), Brakes(1)
    bench.step(9600)
    (cap,), few = bench.state.caps.states, bench.state.nodes
    many = {f"{name}-{number}": few[name] for name in few for number in range(100)}

    def of(watts: int) -> CapState:
        effective = msgspec.structs.replace(cap.effective, watts=watts)
        committed = NodeMilliwatts(100 * cap.committed_milliwatts)
        return msgspec.structs.replace(cap, nodes=frozenset(many), committed_milliwatts=committed, effective=effective)

    seconds = HOLD_BACK_TURN * HOLD_BACK_SECONDS_EACH * len(many)
    for time, watts, held in ((0.0, 960_000, frozenset(many)), (seconds - 0.1, 800_000, frozenset())):
        assert brakes.step((of(watts),), many, time)
        assert brakes.held_back(time) == held
        brakes.take_answer("row", done=True, monotonic=time)


def test_a_second_brake_of_more_nodes_holds_their_grants_for_as_long_as_those_need() -> None:
    bench, brakes = Bench(), Brakes(1)
    bench.step(9600)
    (cap,), few = bench.state.caps.states, bench.state.nodes
    assert brakes.step((cap,), few, 0.0)
    brakes.take_answer("row", done=True, monotonic=0.0)
    many = {f"{name}-{number}": few[name] for name in few for number in range(100)}
    committed = NodeMilliwatts(100 * cap.committed_milliwatts)
    wide = msgspec.structs.replace(cap, nodes=frozenset(many), committed_milliwatts=committed)
    assert brakes.step((wide,), many, 1.0)
    seconds = HOLD_BACK_SECONDS_EACH * len(many)
    assert brakes.held_back(seconds - 0.1) == frozenset(many)
    assert brakes.held_back(seconds) == frozenset()


def test_a_brake_that_keeps_nothing_is_not_sent_again_where_that_is_not_enough() -> None:
    bench = Bench()
    cut = bench.step(GPUS * FLOOR * len(NODES) // 1000 - 100)
    assert cut.brakes[0].spec.kept_millionths == 0
    bench.land(cut)
    assert bench.step(GPUS * FLOOR * len(NODES) // 1000 - 100).brakes == ()
    bench.follow("a")
    assert bench.step(GPUS * FLOOR * len(NODES) // 1000 - 100).brakes == ()


@pytest.mark.parametrize("outcome", [Outcome.REFUSED, Outcome.UNKNOWN])
def test_where_a_brake_cannot_be_written_grants_do_its_work_at_once(outcome: Outcome) -> None:
    bench = Bench()
    bench.step(9600)
    bench.controller.handle_brake(BrakeAnswered("row", outcome))
    cut = bench.step(9600)
    assert cut.brakes == ()
    assert len(cut.sends) == len(NODES)
    sent = []
    for seconds in (PAUSE_SECONDS - 0.1, PAUSE_SECONDS):
        again = Bench()
        again.time = 100.0
        again.step(9600)
        again.controller.handle_brake(BrakeAnswered("row", outcome))
        again.time = 100.0 + seconds
        sent += [(seconds, send) for send in again.step(9600).brakes]
    ((seconds, send),) = sent
    assert seconds == PAUSE_SECONDS
    assert send.spec.sequence == 2  # the first may have landed


def test_what_is_over_for_want_of_acknowledgements_is_not_braked() -> None:
    bench = Bench()
    bench.step(9600)
    for node in NODES:  # cut by grants that are on their way to their agents: they count with the ones before
        standing = bench.gpu_nodes[node]
        lower = bench.granted(node, 200, generation=2)
        assert lower.grant is not None
        assert standing.grant is not None
        sent = msgspec.structs.replace(lower.grant, committed=standing.grant.bound)
        bench.gpu_nodes[node] = replace(standing, grant=sent)
    bench.controller = PowerController(1, PowerSettings())
    assert bench.step(9600).brakes == ()
    assert bench.state.caps.states[0].committed_watts == 14_400


def test_an_operator_that_is_not_to_brake_cuts_by_grants() -> None:
    bench = Bench()
    bench.controller = PowerController(1, PowerSettings(brakes=False))
    cut = bench.step(9600)
    assert cut.brakes == ()
    assert len(cut.sends) == len(NODES)


def test_few_nodes_are_cut_by_grants() -> None:
    bench = Bench("abc")
    cut = bench.step(4800)
    assert cut.brakes == ()
    assert len(cut.sends) == 3


def test_four_nodes_are_worth_a_brake() -> None:
    cut = Bench("abcd").step(6400)
    assert len(cut.brakes) == 1
    assert cut.sends == ()


def test_a_cap_that_falls_further_waits_for_the_answer_to_its_brake() -> None:
    bench = Bench()
    bench.step(9600)
    assert bench.step(7200).brakes == ()  # a second write would only race with the first
    bench.controller.handle_brake(BrakeAnswered("row", Outcome.DONE))
    (deeper,) = bench.step(7200).brakes
    assert deeper.spec.kept_millionths == 250_000


def after_a_boot(bench: Bench, node: str) -> GpuNode:
    """The node has booted since its agent acknowledged its grant: its limits are not known."""
    return bench.acknowledging(bench.gpu_nodes[node], 2_400_000, boot_id="another")


def with_another_grant(bench: Bench, node: str) -> GpuNode:
    """Its agent has another grant of the same version: only another write tells."""
    return bench.acknowledging(bench.gpu_nodes[node], 2_400_000, digest="0" * 32)


def under_another_cap(bench: Bench, node: str) -> GpuNode:
    """Its grant is from before it came under the cap, and names only the one that it was under then."""
    return bench.granted(node, 300, caps=(CapOverNode("hall", BrakeVersion(1, 0)),))


@pytest.mark.parametrize(
    ("made", "counted_watts"), [(after_a_boot, 3200), (with_another_grant, 3200), (under_another_cap, 2400)]
)
def test_a_node_that_the_brake_does_not_lower_counts_in_full_and_gets_its_grant(
    made: Callable[[Bench, str], GpuNode], counted_watts: int
) -> None:
    bench = Bench("abcdefg")
    bench.gpu_nodes["a"] = made(bench, "a")
    cut = bench.step(counted_watts + 6 * 1600)
    assert cut.brakes[0].spec.kept_millionths == 500_000
    assert [send.node.name for send in cut.sends] == ["a"]


def test_what_a_node_holds_above_its_grant_counts_and_no_brake_takes_it_off() -> None:
    bench = Bench()
    stuck = NodeMilliwatts(2_800_000)  # some of its GPUs do not take their limits
    bench.gpu_nodes["a"] = bench.acknowledging(bench.gpu_nodes["a"], 2_400_000, limits_milliwatts=stuck)
    cut = bench.step(2800 + 5 * 1600)
    assert cut.brakes[0].spec.kept_millionths == 500_000


def test_a_node_that_another_caps_brake_holds_lower_counts_with_that() -> None:
    bench = Bench()
    held = NodeMilliwatts(1_600_000)
    bench.gpu_nodes["a"] = bench.acknowledging(bench.gpu_nodes["a"], held, limits_milliwatts=held)
    cut = bench.step(1600 + 5 * 2000)
    assert cut.brakes[0].spec.kept_millionths == 750_000


def make_late(bench: Bench, nodes: str) -> None:
    """Their agents have owed the acknowledgement of a grant, which asks for less, for longer than they are waited for."""
    for node in nodes:
        standing, lower = bench.gpu_nodes[node], bench.granted(node, 280, generation=2)
        assert standing.grant is not None
        assert lower.grant is not None
        sent = msgspec.structs.replace(lower.grant, committed=standing.grant.bound)
        bench.gpu_nodes[node] = replace(standing, grant=sent)
    for seconds in (0.0, PowerSettings().acknowledge_timeout_seconds + 1.0):
        bench.time += seconds
        for send in bench.step(14_400).sends:  # what is granted beside that comes to nothing
            view = bench.gpu_nodes[send.node.name]
            version = f"{view.metadata.resource_version}1"
            metadata = msgspec.structs.replace(view.metadata, resource_version=version)
            bench.gpu_nodes[view.name] = replace(view, metadata=metadata)
            bench.controller.handle(Answered(view.name, Outcome.DONE))
    assert {name for name, info in bench.state.nodes.items() if info.late} == set(nodes)


@pytest.mark.parametrize("late", [NODES, NODES[:3]])
def test_where_half_of_the_nodes_are_late_they_are_cut_by_one_brake_with_the_others(late: str) -> None:
    bench = Bench()
    make_late(bench, late)
    cut = bench.step(9600)
    assert len(cut.brakes) == 1
    assert cut.sends == ()
    kept = cut.brakes[0].spec.kept_millionths
    left = sum(item.grant.lowered(kept).bound.limit_milliwatts for item in bench.gpu_nodes.values() if item.grant)
    assert 9_590_000 < left <= 9_600_000


def test_few_late_nodes_may_never_answer_and_the_others_make_room_for_them() -> None:
    bench = Bench()
    make_late(bench, "a")
    cut = bench.step(9600)
    assert cut.brakes[0].spec.kept_millionths == 400_000  # 2,400 W, and five times 800 W and 0.4 of 1,600 W
    assert [send.node.name for send in cut.sends] == ["a"]


def test_a_cycle_that_ends_with_its_brakes_says_which_caps_are_over_and_one_without_any_says_nothing() -> None:
    bench = Bench()
    bench.told = True
    assert bench.only_brake(14_400) == PowerInstructions()
    cut = bench.only_brake(9600)
    assert len(cut.brakes) == 1
    (written,) = cut.cap_statuses
    assert next(item.status for item in written.status.conditions if item.type == "Enforced") == "False"
    bench = Bench()
    bench.told = True
    cycle = bench.cycle(9600, None, 300)
    assert bench.controller.brake(cycle, ends=False) == PowerInstructions(brakes=cut.brakes), (
        "it goes on, and says it then"
    )


@pytest.mark.parametrize(
    ("granted", "acknowledged", "reason"),
    [(1, 1, "Joining"), (1, 0, "Adopting"), (0, 1, "Adopting"), (0, 0, "Adopting")],
)
def test_a_cycle_that_ends_with_its_brakes_calls_no_cap_enforced_whose_nodes_are_an_earlier_leaders(
    granted: int, acknowledged: int, reason: str
) -> None:
    """By the epochs of the grant that stands on the node of another cap, and of the one that its agent has acknowledged."""
    bench = Bench()
    only = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["f"]}]}
    bench.others = [cap_view("other", watts=4000, nodeSelector=only, status={"effectiveWatts": 4000})]
    view = bench.gpu_nodes["f"]
    assert view.grant is not None
    adopted = replace(view, grant=msgspec.structs.replace(view.grant, epoch=granted).sealed())
    bench.gpu_nodes["f"] = bench.acknowledging(adopted, view.grant.bound.limit_milliwatts, epoch=acknowledged)
    cut = bench.only_brake(9600)
    assert [send.cap for send in cut.brakes] == ["row"]
    statuses = {write.cap.name: write.status for write in cut.cap_statuses}
    assert next(item.reason for item in statuses["other"].conditions if item.type == "Enforced") == reason


def test_what_a_cap_needed_of_a_late_node_when_its_brake_was_sent_is_granted_once_in_the_next_cycle() -> None:
    bench = Bench()
    make_late(bench, "a")
    bench.land(bench.only_brake(9600))
    for node in "bcdef":  # by which the cap is met: as if it did not need the late node
        bench.follow(node)
    bench.time += 0.1
    (send,) = bench.step(9600).sends
    assert send.node.name == "a"
    assert send.grant.bound.limit_milliwatts < 280 * 8000
    # What was granted so is late, too: of the next plan it is left as it is.
    view = bench.gpu_nodes["a"]
    version = msgspec.structs.replace(view.metadata, resource_version=f"{view.metadata.resource_version}1")
    bench.gpu_nodes["a"] = replace(view, metadata=version, grant=send.grant)
    bench.controller.handle(Answered("a", Outcome.DONE))
    bench.time += HOLD_BACK_SECONDS
    assert "a" not in {send.node.name for send in bench.step(9600, plan_watts=150).sends}


def test_a_brake_is_no_ground_to_lower_a_late_node_of_another_cap() -> None:
    only, others = (
        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": operator, "values": ["f"]}]}
        for operator in ("In", "NotIn")
    )
    bench = Bench(nodeSelector=others)
    bench.others = [cap_view("other", watts=4000, nodeSelector=only, status={"effectiveWatts": 4000})]
    for node, view in bench.gpu_nodes.items():
        labels = {"kubernetes.io/hostname": node}
        bench.gpu_nodes[node] = replace(view, metadata=msgspec.structs.replace(view.metadata, labels=labels))
    make_late(bench, "af")
    bench.land(bench.only_brake(9600))
    bench.time += 0.1
    assert [send.node.name for send in bench.step(9600, plan_watts=200).sends] == ["a"]


def test_grants_of_late_nodes_wait_longer_for_their_brake_and_no_deeper_one_follows_while_some_answer() -> None:
    bench = Bench()
    make_late(bench, NODES)
    begun = bench.time
    bench.land(bench.step(9600))
    for node in "abcd":  # their answers come, to what was owed and to the brake
        view, grant_of = bench.gpu_nodes[node], bench.gpu_nodes[node].grant
        assert grant_of is not None
        bench.gpu_nodes[node] = bench.acknowledging(view, None, generation=2, digest=grant_of.digest)
        bench.follow(node)
    for seconds in (0.1, HOLD_BACK_SECONDS):
        bench.time += seconds
        step = bench.step(9600)
        assert step.brakes == ()
        assert not {send.node.name for send in step.sends} & set("ef")
    bench.time = begun + LATE_HOLD_BACK_SECONDS
    step = bench.step(9600)
    assert {send.node.name for send in step.sends} >= set("ef")


def test_what_another_cap_takes_off_late_nodes_waits_for_no_brake() -> None:
    bench = Bench()
    make_late(bench, NODES)
    bench.land(bench.step(9600))
    few = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["a", "b", "c"]}]}
    bench.others = [cap_view("few", watts=3000, nodeSelector=few, status={"effectiveWatts": 3000})]
    assert [send.node.name for send in bench.step(9600).sends] == ["a", "b", "c"]


def test_an_agent_that_follows_no_brakes_is_cut_by_its_grant_and_counts_in_full_until_then() -> None:
    bench = Bench("abcdefg")
    bench.gpu_nodes["a"] = bench.acknowledging(bench.gpu_nodes["a"], None)
    cut = bench.step(12_000)  # of 16,800 W, of which 2,400 W cannot be braked
    assert cut.brakes[0].spec.kept_millionths == 500_000
    assert [send.node.name for send in cut.sends] == ["a"]


def test_a_second_cut_goes_deeper_and_never_keeps_more() -> None:
    bench = Bench()
    bench.land(bench.step(9600))
    for node in "abc":
        bench.follow(node)
    cut = bench.step(7200)
    assert cut.brakes[0].spec.sequence == 2
    assert cut.brakes[0].spec.kept_millionths == 250_000
    assert cut.brakes[0].resource_version == "9"
    bench.land(cut)
    for node in NODES:
        bench.gpu_nodes[node] = bench.granted(node, 150, generation=2, brake=1)  # from before the second brake
    # Of these grants more could be kept; an agent that lost its memory would follow the new brake alone.
    bench.step(7200)
    assert bench.step(7100).brakes == ()


def test_a_node_at_its_smallest_limits_keeps_no_later_cut_from_being_a_brake() -> None:
    """Its grant stays as it is when all others are raised again, so that it never names the brake before."""
    bench = Bench("abcdefg")
    bench.gpu_nodes["g"] = bench.granted("g", FLOOR // 1000)
    bench.land(bench.step(10_400))
    for node in NODES:
        bench.follow(node)
    for node in NODES:
        bench.gpu_nodes[node] = bench.granted(node, 300, generation=2, brake=1)
    bench.time = HOLD_BACK_SECONDS
    assert bench.only_brake(15_200).brakes == ()  # all is raised again, and nothing is over
    assert [send.spec.kept_millionths for send in bench.only_brake(10_400).brakes] == [500_000]


def test_where_predicted_draw_counts_limits_are_lowered_until_they_bound_it() -> None:
    bench = Bench(enforcement="Expected")
    cut = bench.step(9600)  # of 10,800 W predicted under 14,400 W of limits
    assert cut.brakes[0].spec.kept_millionths == 500_000


@pytest.mark.parametrize(("watts", "kept_millionths"), [(12_000, []), (7200, [250_000])])
def test_a_new_leader_keeps_no_more_than_the_brake_that_is_being_followed(
    watts: int, kept_millionths: list[int]
) -> None:
    bench = Bench()
    caps = (CapOverNode("hall", BrakeVersion(1, 9)), CapOverNode("row", BrakeVersion(1, 0)))
    bench.gpu_nodes = {node: bench.granted(node, 300, caps=caps) for node in NODES}
    bench.land(bench.step(9600))
    bench.controller = PowerController(2, PowerSettings())
    specs = [send.spec for send in bench.step(watts).brakes]
    # An agent that lost its memory would follow a shallower one alone.
    assert [spec.kept_millionths for spec in specs] == kept_millionths
    assert all((spec.epoch, spec.sequence) == (2, 1) for spec in specs)  # numbers begin anew with the term


def test_a_brake_after_an_emergency_is_numbered_beyond_it() -> None:
    bench = Bench()
    bench.brakes["row"] = PowerBrake(ObjectMeta("row", resource_version="3"), PowerBrakeSpec(1, 7, 0, "Ended", "smoke"))
    bench.gpu_nodes = {node: bench.granted(node, 300, brake=7) for node in NODES}
    (send,) = bench.step(9600).brakes
    assert send.spec.sequence == 8  # agents take what is numbered below for an earlier one


def test_a_new_leader_names_no_brake_of_an_earlier_term_that_may_yet_land() -> None:
    bench = Bench()
    bench.controller = PowerController(2, PowerSettings())
    grants = [send.grant for send in bench.step(14_400).sends]
    assert len(grants) == len(NODES)
    assert {item.caps for item in grants} == {(CapOverNode("row", BrakeVersion(2, 0)),)}


def test_of_more_caps_than_a_grant_names_it_names_those_with_an_emergency() -> None:
    bench = Bench()
    bench.others = [cap_view(f"{index:02}", watts=99_999) for index in range(MAX_CAPS_OVER_NODE)]
    bench.brakes["row"] = PowerBrake(
        ObjectMeta("row", resource_version="3"), PowerBrakeSpec(1, 7, 0, "Active", "smoke")
    )
    named = [[cap.name for cap in send.grant.caps] for send in bench.step(99_999).sends]
    assert named == [[*(f"{index:02}" for index in range(MAX_CAPS_OVER_NODE - 1)), "row"]] * len(NODES)


@given(
    limits=st.lists(st.integers(100, 400), min_size=4, max_size=6),
    share=st.floats(0.3, 1.0),
    expected=st.booleans(),
)
@settings(max_examples=examples(100), deadline=None)
def test_once_everybody_has_followed_the_cap_is_held(limits: list[int], share: float, expected: bool) -> None:
    bench = Bench(NODES[: len(limits)], enforcement="Expected" if expected else "Hard")
    bench.gpu_nodes = {node: bench.granted(node, watts) for node, watts in zip(bench.nodes, limits, strict=True)}
    least = sum(min(watts * 6 if expected else watts * 8, 800) for watts in limits)
    watts = max(least, int(sum(limits) * (6 if expected else 8) * share))
    cut = bench.step(watts)
    if not cut.brakes:
        return
    bench.land(cut)
    for node in bench.nodes:
        bench.follow(node)
    bench.step(watts)
    assert bench.state.caps.states[0].enforced


# --- emergencies ------------------------------------------------------------------------------------------------------


def emergency(state: str, sequence: int = 1) -> PowerBrake:
    spec = PowerBrakeSpec(0, sequence, 0, state, "smoke")  # type: ignore[arg-type]
    return PowerBrake(ObjectMeta("row", resource_version="3"), spec)


def conditions(instructions: PowerInstructions) -> dict[str, tuple[str, str]]:
    (write,) = instructions.cap_statuses
    return {item.type: (item.status, item.reason) for item in write.status.conditions}


def test_in_an_emergency_every_grant_is_the_smallest_and_the_status_says_why() -> None:
    bench = Bench()
    bench.brakes["row"] = emergency("Active")
    step = bench.step(14_400)
    assert step.brakes == ()
    assert {send.grant.bound.limit_milliwatts for send in step.sends} == {GPUS * FLOOR}
    assert conditions(step)["Emergency"] == ("True", "Declared")
    bench.brakes["row"] = emergency("Ended", 2)
    after = bench.step(14_400)
    assert conditions(after)["Emergency"] == ("False", "Ended")


def test_an_emergency_is_nobodys_to_brake_over() -> None:
    bench = Bench()
    bench.brakes["row"] = emergency("Active")
    assert bench.step(4800).brakes == ()


def test_an_emergency_outlasts_its_cap_and_a_change_of_labels() -> None:
    bench = Bench(nodeSelector={"matchLabels": {"row": "another"}})
    bench.brakes["row"] = emergency("Active")
    sends = bench.step(14_400).sends
    assert {send.grant.bound.limit_milliwatts for send in sends} == {GPUS * FLOOR}
    assert all([cap.name for cap in send.grant.caps] == ["row"] for send in sends)


@pytest.mark.parametrize("others", [(), ("site",)])
def test_an_emergency_is_for_the_nodes_of_a_cap_that_cannot_be_read_any_more(others: tuple[str, ...]) -> None:
    """Agents look only for what their grants name: an edit that nobody can read must not take the lever away."""
    bound = 200 * GPUS * 1000
    for brakes in ({}, {"row": emergency("Active")}):
        bench = Bench(schedule=[{"name": "neither cron nor dates nor watts"}])
        bench.others = [cap_view(name, watts=20_000, status={"effectiveWatts": 20_000}) for name in others]
        bench.brakes = brakes
        sends = bench.step(14_400, plan_watts=200).sends
        assert [[cap.name for cap in send.grant.caps] for send in sends] == [["row", *others]] * len(NODES)
        assert {send.grant.bound.limit_milliwatts for send in sends} == {bound}
        bound = FLOOR * GPUS


def test_without_an_emergency_no_cap_speaks_of_one() -> None:
    assert "Emergency" not in conditions(Bench().step(14_400))


@pytest.mark.parametrize("brakes", [{}, {"row": emergency("Ended", 2)}], ids=["none", "an emergency that has ended"])
def test_the_grant_of_a_node_that_has_left_its_cap_does_not_name_it(brakes: dict[str, PowerBrake]) -> None:
    bench = Bench(nodeSelector={"matchLabels": {"row": "another"}})
    bench.brakes = brakes
    sends = bench.step(14_400, plan_watts=200).sends
    assert len(sends) == len(NODES)
    assert {send.grant.caps for send in sends} == {()}


def test_an_agent_that_goes_on_under_what_has_ended_is_granted_anew_at_once_and_then_ever_less_often() -> None:
    """It acknowledges each grant and stays below it, where its watch is behind or the store was restored from a backup."""
    bench, sent = Bench(), []
    while bench.time < 60.0:
        for node, view in bench.gpu_nodes.items():
            bench.gpu_nodes[node] = bench.acknowledging(view, GPUS * FLOOR)
        for send in bench.step(14_400).sends:
            assert send.grant.bound.limit_milliwatts == 300 * GPUS * 1000, "and nothing else changes"
            sent.append((bench.time, send.node.name))
            bench.controller.handle(Answered(send.node.name, Outcome.DONE))
            view = gpu_node_view(send.node.name, send.grant, limits=GPUS * FLOOR)
            metadata = msgspec.structs.replace(view.metadata, resource_version=f"{bench.time:.0f}{len(sent)}")
            bench.gpu_nodes[send.node.name] = replace(view, metadata=metadata)
        bench.time += 0.05
    first = [time for time, node in sent if node == "a"]
    assert first[0] == 0.0
    assert first[1] < 1.0
    assert 5 <= len(first) <= 12
    # What it is asked otherwise waits for none of that.
    assert bench.step(14_400).sends == ()
    other = bench.step(14_400, plan_watts=200).sends
    assert {send.node.name for send in other} == set(NODES)
    for send in other:
        bench.controller.handle(Answered(send.node.name, Outcome.REFUSED))
    for node, view in bench.gpu_nodes.items():  # and once it follows again, the next time begins anew
        assert view.grant is not None
        bench.gpu_nodes[node] = bench.acknowledging(view, view.grant.bound.limit_milliwatts)
    bench.step(14_400)
    bench.time += 0.05
    bench.gpu_nodes = {node: bench.acknowledging(view, GPUS * FLOOR) for node, view in bench.gpu_nodes.items()}
    assert {send.node.name for send in bench.step(14_400).sends} == set(NODES)
