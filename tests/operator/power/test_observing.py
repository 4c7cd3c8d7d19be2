"""An operator that observes: it makes GPUNodes, writes statuses, does nothing else, and says what it would come to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from flyball_api.gpu_node import GpuNode, read_gpu_node
from flyball_api.power_brake import PowerBrake, PowerBrakeSpec
from flyball_api.power_cap import PowerCap, PowerCapSpec
from flyball_api.reading import ObjectMeta
from flyball_operator.cluster.outcome import Outcome
from flyball_operator.cluster.state import ClusterState
from flyball_operator.power.caps import tracker as cap_tracker
from flyball_operator.power.caps.schedule import EffectiveCap
from flyball_operator.power.controller import PowerController, PowerSettings
from flyball_operator.power.cycle import Answered, PlanInForce, PowerCycle, PowerInstructions, PowerState
from flyball_operator.power.grants.brakes import SendBrake
from flyball_operator.power.holds import HoldAction
from flyball_operator.power.nodes.info import NodeInfo
from flyball_operator.power.observing import ObservingController
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.operator_objects import (
    DEFAULT,
    FLOOR,
    NOW,
    cap_view,
    gpu_node_view,
    grant,
    in_version,
    node_view,
    raw_gpu_node,
    running_pod,
)

GPUS = 8


class Bench:
    """An observing operator over nodes of eight GPUs, on each of which a foreign pod holds four."""

    def __init__(self, nodes: Sequence[str] = "ab", controller: Any = None) -> None:
        self.time = 0.0
        self.reads, self.caps_stand = 0, False
        self.pods_run = True
        self.nodes = nodes
        self.controller = controller or ObservingController(1, PowerSettings())
        self.gpu_nodes: dict[str, GpuNode] = {}
        self.brakes: dict[str, PowerBrake] = {}
        self.braked: tuple[SendBrake, ...] = ()  # in all its cycles

    def reports(self, *names: str) -> None:
        """The agents of these nodes observe, and report: nothing is acknowledged."""
        for name in names:
            self.gpu_nodes[name] = gpu_node_view(name, grant(GPUS * FLOOR))

    def cluster(self, *caps: PowerCap) -> ClusterState:
        self.reads += not self.caps_stand
        return ClusterState(
            jobs={},
            caps=[in_version(cap, 100 + self.reads) for cap in caps],
            gpu_nodes=dict(self.gpu_nodes),
            nodes=[node_view(name) for name in self.nodes],
            pods=[running_pod(f"foreign-{name}", name, gpus=4) for name in self.nodes if self.pods_run],
            incarnations={},
            pods_of={},
            reports_of={},
            unread=(),
            age_seconds=0.0,
            brakes=self.brakes,
        )

    def cycle(self, *caps: PowerCap, seconds: float = 1.0) -> PowerInstructions:
        now = NOW + timedelta(seconds=self.time)
        state = self.controller.observe(self.cluster(*caps), now, self.time)
        first = self.controller.brake(PowerCycle(state, PlanInForce(), now, self.time), ends=True)
        self.braked += first.brakes
        instructions: PowerInstructions = self.controller.step(PowerCycle(state, PlanInForce(), now, self.time))
        self.time += seconds
        return instructions

    def settled(self, *caps: PowerCap) -> PowerInstructions:
        """The last of as many cycles as it takes until nothing changes."""
        for _ in range(5):
            self.cycle(*caps, seconds=10.0)
        return self.cycle(*caps)


def said(instructions: PowerInstructions, kind: str) -> tuple[str, str, str]:
    """A condition of the one cap whose status is written."""
    (write,) = instructions.cap_statuses
    (found,) = (item for item in write.status.conditions if item.type == kind)
    return found.status, found.reason, found.message


def test_gpunodes_are_made_at_what_a_governing_operator_would_begin_with() -> None:
    bench = Bench()
    made = bench.cycle().sends
    governing = Bench(controller=PowerController(1, PowerSettings())).cycle().sends
    assert [(send.node.name, send.grant) for send in made] == [(send.node.name, send.grant) for send in governing]
    assert len(made) == 2
    assert bench.cycle().sends == (), "once: its answer is still to come"
    bench.controller.handle(Answered("a", Outcome.REFUSED))
    assert [send.node.name for send in bench.cycle().sends] == ["a"]


@pytest.mark.parametrize("watts", [3000, 20_000])
def test_no_cap_is_enforced_and_what_it_would_come_to_is_said(watts: int) -> None:
    """Eight GPUs of each node at 400 W are 6.4 kW; governed, the four that no pod holds would go to 100 W."""
    bench = Bench()
    bench.reports("a", "b")
    cap = cap_view(watts=watts, foreignPods="Limit")
    instructions = bench.settled(cap)
    status, reason, message = said(instructions, "Enforced")
    assert (status, reason) == ("False", "Observing")
    found = re.search(r"those of 2 nodes allow 6400 W; governed, .* they would allow (\d+) W", message)
    assert found is not None
    assert 2 * GPUS * FLOOR < int(found[1]) * 1000 <= min(watts * 1000, 2 * (4 * DEFAULT + 4 * FLOOR))
    assert said(instructions, "Feasible")[:2] == ("True", "FloorsFit")
    (write,) = instructions.cap_statuses
    assert (write.status.committed_watts, write.status.headroom_watts) == (6400, 0)


def test_a_cap_that_could_not_be_held_is_said_to_be_so_before_anybody_governs() -> None:
    bench = Bench()
    bench.reports("a", "b")
    instructions = bench.settled(cap_view(watts=2 * GPUS * FLOOR // 1000 - 1, foreignPods="Limit"))
    assert said(instructions, "Feasible")[:2] == ("False", "FloorsExceedCap")


def test_it_comes_to_what_a_governing_operator_comes_to() -> None:
    """Against agents that acknowledge at once, in the same cluster."""
    watts = 3000
    cap = cap_view(watts=watts, foreignPods="Limit", status={"effectiveWatts": watts, "committedWatts": 6400})
    bench = Bench()
    bench.reports("a", "b")
    bench.settled(cap)
    state = bench.controller.planned_on(bench.controller.observe(bench.cluster(cap), NOW, bench.time))
    governing = Bench(controller=PowerController(1, PowerSettings()))
    governing.reports("a", "b")
    for version in range(8, 16):
        for send in governing.cycle(cap, seconds=10.0).sends:
            governing.controller.handle(Answered(send.node.name, Outcome.DONE))
            limits = send.grant.bound.limit_milliwatts
            raw = raw_gpu_node(send.node.name, send.grant, limits=limits)
            raw["metadata"]["resourceVersion"] = str(version)
            governing.gpu_nodes[send.node.name] = read_gpu_node(raw)
    bounds = {name: item.grant.bound for name, item in governing.gpu_nodes.items() if item.grant is not None}
    assert {name: info.power.grant.bound for name, info in state.nodes.items() if info.power.grant} == bounds
    assert sum(bound.limit_milliwatts for bound in bounds.values()) > 2 * GPUS * FLOOR


def test_it_follows_a_cap_that_changes_again() -> None:
    """Each grant that it imagines has arrived, so that the next is imagined too."""
    bench = Bench()
    bench.reports("a", "b")
    would_come_to = []
    for watts in (3000, 6000, 2000):
        cap = cap_view(watts=watts, foreignPods="Limit")
        bench.settled(cap)
        state = bench.controller.planned_on(bench.controller.observe(bench.cluster(cap), NOW, bench.time))
        assert not any(info.power.unsettled for info in state.nodes.values())
        would_come_to.append(sum(info.power.committed.limit_milliwatts for info in state.nodes.values()) // 1000)
    assert would_come_to[0] <= 3000 < would_come_to[1] <= 6000
    assert would_come_to[2] <= 2000


@pytest.mark.parametrize("limits", [None, GPUS * FLOOR], ids=["observed", "governed before"])
def test_what_would_be_granted_waits_for_no_status_that_says_so(limits: int | None) -> None:
    """None does: what is written says what stands, and that goes on as it is when pods come."""
    bench = Bench()
    bench.caps_stand = True
    for name in "ab":
        bench.gpu_nodes[name] = gpu_node_view(name, grant(GPUS * FLOOR), limits=limits)
    committed = 2 * GPUS * (DEFAULT if limits is None else FLOOR) // 1000
    cap = cap_view(watts=6000, foreignPods="Limit", status={"effectiveWatts": 6000, "committedWatts": committed})
    would_come_to = []
    for bench.pods_run in (False, True):
        for _ in range(5):
            bench.cycle(cap)
        state = bench.controller.planned_on(bench.controller.observe(bench.cluster(cap), NOW, bench.time))
        would_come_to.append(sum(info.power.committed.limit_milliwatts for info in state.nodes.values()))
    assert would_come_to == [2 * GPUS * FLOOR, 2 * 4 * (FLOOR + DEFAULT)]


def imagined(bench: Bench, node: str = "a") -> NodeInfo:
    """The node as it would be, were it governed."""
    state: PowerState = bench.controller.observe(bench.cluster(), NOW + timedelta(seconds=bench.time), bench.time)
    planned_on: PowerState = bench.controller.planned_on(state)
    return planned_on.nodes[node]


def test_a_node_counts_at_the_grant_that_stands_until_another_would_have_been_sent() -> None:
    bench = Bench()
    standing = grant(GPUS * 250_000)
    bench.gpu_nodes["a"] = gpu_node_view("a", standing)
    assert imagined(bench).power.grant == standing
    assert imagined(bench).power.committed == standing.bound


def test_a_node_whose_grant_is_gone_is_granted_one_as_if_it_were_new() -> None:
    bench = Bench()
    bench.gpu_nodes["a"] = gpu_node_view("a", None)
    assert imagined(bench).power.grant is None
    bench.settled()
    assert imagined(bench).acknowledged


@pytest.mark.parametrize("later", [(2, 1), None], ids=["by a later leader", "of the same version"])
def test_a_grant_that_somebody_has_written_counts_for_more_than_an_imagined_one(later: tuple[int, int] | None) -> None:
    bench = Bench()
    bench.reports("a", "b")
    bench.settled()
    before = imagined(bench).power.grant
    assert before is not None
    assert before.version > (1, 1)
    epoch, generation = later or before.version
    written = grant(GPUS * 150_000, epoch=epoch, generation=generation)
    bench.gpu_nodes["a"] = gpu_node_view("a", written)
    assert imagined(bench).power.grant == written


def test_what_was_imagined_of_a_gpunode_that_is_gone_is_not_said_of_a_new_one() -> None:
    bench = Bench()
    bench.reports("a", "b")
    bench.settled()
    standing = grant(GPUS * FLOOR)
    assert imagined(bench).power.grant != standing
    del bench.gpu_nodes["a"]
    bench.cycle()
    bench.reports("a")
    assert imagined(bench).power.grant == standing


def test_no_status_waits_for_a_cut_that_nobody_makes() -> None:
    cap = cap_view(watts=3000, foreignPods="Limit")
    cutting = []
    for controller in (PowerController(1, PowerSettings()), ObservingController(1, PowerSettings())):
        bench = Bench(controller=controller)
        for name in "ab":  # as an operator that governed has left them
            bench.gpu_nodes[name] = gpu_node_view(name, grant(GPUS * DEFAULT), limits=GPUS * DEFAULT)
        state = controller.observe(bench.cluster(cap), NOW, 0.0)
        cutting.append((state.cutting, state.figures_wait))
    assert cutting == [(True, True), (False, False)]


def test_a_node_whose_agent_has_reported_nothing_counts_as_it_would_then() -> None:
    bench = Bench()
    bench.reports("a", "b")
    for name in "ab":
        silent = msgspec.structs.replace(bench.gpu_nodes[name].status, boot_id="", devices=())
        bench.gpu_nodes[name] = replace(bench.gpu_nodes[name], status=silent)
    instructions = bench.settled(cap_view(watts=3000, foreignPods="Limit"))
    assert said(instructions, "Feasible")[0] == "False"


def test_an_emergency_is_said_not_to_be_followed() -> None:
    bench = Bench()
    bench.reports("a", "b")
    bench.brakes = {"row": PowerBrake(ObjectMeta("row"), PowerBrakeSpec(1, 1, 0, "Active", "too hot"))}
    status, reason, message = said(bench.settled(cap_view(watts=3000)), "Emergency")
    assert (status, reason, message) == ("True", "Declared", "agents that only observe do not follow it: too hot")


def test_a_deletion_that_was_held_before_is_let_go_by_its_word() -> None:
    bench = Bench()
    cap = cap_view(watts=3000)
    annotations = {"flyball.dev/release": "true"}
    deleted = replace(
        cap, metadata=msgspec.structs.replace(cap.metadata, deletion_timestamp=NOW, annotations=annotations)
    )
    assert [change.action for change in bench.cycle(deleted).holds] == [HoldAction.RELEASE]
    # A new one is not held: it binds nobody.
    fresh = replace(cap, metadata=msgspec.structs.replace(cap.metadata, finalizers=()))
    assert bench.cycle(fresh).holds == ()


nodes = st.fixed_dictionaries(
    {
        name: st.tuples(
            st.sampled_from(["none", "observes", "governed before", "silent"]),
            st.integers(1, 4),  # epoch
            st.integers(FLOOR, DEFAULT),
        )
        for name in "abc"
    }
)


@settings(max_examples=examples(150), deadline=None)
@given(
    worlds=st.lists(nodes, min_size=1, max_size=4),
    watts=st.integers(1, 12_000),
    emergency=st.booleans(),
    outcome=st.sampled_from([*Outcome, None]),
)
def test_nothing_is_ever_granted_braked_closed_or_called_enforced(
    worlds: list[dict[str, tuple[str, int, int]]], watts: int, emergency: bool, outcome: Outcome | None
) -> None:
    bench = Bench("abc")
    if emergency:
        bench.brakes = {"row": PowerBrake(ObjectMeta("row"), PowerBrakeSpec(1, 1, 0, "Active"))}
    for version, world in enumerate(worlds):
        for name, (state, epoch, limit) in world.items():
            if state == "none":
                bench.gpu_nodes.pop(name, None)
                continue
            given_grant = grant(GPUS * limit, epoch=epoch)
            limits = GPUS * limit if state == "governed before" else None
            raw = raw_gpu_node(name, given_grant, limits=limits)
            raw["metadata"]["resourceVersion"] = f"{version}"
            if state == "silent":
                raw["status"] = {}
            bench.gpu_nodes[name] = read_gpu_node(raw)
        for _ in range(3):
            instructions = bench.cycle(cap_view(watts=watts), seconds=40.0)
            assert all(send.node.gpu_node is None for send in instructions.sends)
            done = (instructions.taint, instructions.untaint, instructions.label_syncs)
            assert done == ((), (), ())
            assert bench.braked == ()
            assert instructions.reserved == frozenset()
            assert instructions.owing == 0
            for write in instructions.cap_statuses:
                enforced = next(item for item in write.status.conditions if item.type == "Enforced")
                assert (enforced.status, enforced.reason) == ("False", "Observing")
            for send in instructions.sends:
                if outcome is not None:
                    bench.controller.handle(Answered(send.node.name, outcome))


@pytest.mark.parametrize("calls", [(1,), (2,), (1, 2)], ids=["as it stands", "as it would be", "both"])
def test_a_cap_that_cannot_be_worked_out_is_not_taken_for_one_that_is_governed(
    calls: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    worked_out, asked = cap_tracker.effective_cap, 0

    def stumbles(spec: PowerCapSpec, *rest: Any) -> EffectiveCap:
        nonlocal asked
        asked += spec.watts == 13
        if spec.watts == 13 and asked in calls:
            raise OverflowError("date value out of range")
        return worked_out(spec, *rest)

    monkeypatch.setattr(cap_tracker, "effective_cap", stumbles)
    bench = Bench()
    bench.reports("a", "b")
    cluster = bench.cluster(cap_view("odd", watts=13, status={"committedWatts": 7}), cap_view("good", watts=5000))
    state = bench.controller.observe(cluster, NOW, 0.0)
    assert [item.name for item in state.caps.states] == ["good"]
    (unknown,) = state.caps.unreadable
    assert (unknown.name, unknown.status.committed_watts) == ("odd", 7)
    assert "cannot be worked out" in unknown.refusal
    step = bench.controller.step(PowerCycle(state, PlanInForce(), NOW, 0.0))
    assert {write.cap.name for write in step.cap_statuses} == {"odd", "good"}
