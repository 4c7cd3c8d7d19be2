"""Under which caps a node counts while its Node is relabelled, made anew or deleted: its watts stay where they are."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from flyball_api.gpu_node import (
    GpuNode,
    Labels,
    former_labels_annotation,
    read_former_labels,
    read_gpu_node,
)
from flyball_api.grant import Grant
from flyball_api.power_cap import PowerCap
from flyball_api.reading import InvalidObject
from flyball_api.workloads import NodeView
from flyball_operator.cluster.outcome import Outcome
from flyball_operator.cluster.state import ClusterState
from flyball_operator.power.caps.memberships import MAX_LOSSES, Memberships
from flyball_operator.power.controller import PowerController, PowerSettings
from flyball_operator.power.cycle import Answered, PlanInForce, PowerCycle, PowerInstructions
from hypothesis import given
from hypothesis import strategies as st

from tests.support.operator_objects import (
    NOW,
    cap_view,
    decision,
    incarnation_view,
    node_view,
    raw_gpu_node,
    running_pod,
    with_status,
)
from tests.support.operator_objects import grant as granted

SETTLE_SECONDS = 60.0
LEAST = 800  # watts of a node of eight GPUs at their smallest limits
ROW_A, ROW_B = {"row": "a"}, {"row": "b"}


class Hall:
    """Nodes with a job of eight GPUs each, whose agents acknowledge at once, under one leader after the other."""

    def __init__(self, *caps: PowerCap, **labels: Labels) -> None:
        self.caps = list(caps)
        self.seconds = 0.0
        self.labels: dict[str, Labels | None] = dict(labels)  # of the Nodes; None: there is none
        self.gpu_nodes: dict[str, GpuNode] = {}
        self.answering = set(labels)
        self.wants = dict.fromkeys(labels, 400)  # watts of each GPU, by the plan
        self.age_seconds = 0.0
        self.version = 10
        for name in labels:
            self.put(name, granted(LEAST * 1000), labels[name])
        self.leads(1)

    def leads(self, epoch: int) -> None:
        """A new leader knows what the API server has, and nothing else."""
        self.controller = PowerController(epoch, PowerSettings(label_settle_seconds=SETTLE_SECONDS))

    def put(self, name: str, grant: Grant, labels: Labels, former: tuple[Labels, ...] = (), word: bool = False) -> None:
        self.version += 1
        before = self.gpu_nodes.get(name)
        raw = raw_gpu_node(name, grant, limits=grant.bound.limit_milliwatts)
        raw["metadata"] |= {"resourceVersion": str(self.version), "labels": dict(labels)}
        annotations = {"flyball.dev/former-labels": former_labels_annotation(former)} if former else {}
        if word:
            annotations["flyball.dev/release"] = "true"
        raw["metadata"]["annotations"] = annotations
        node = read_gpu_node(raw)
        if before is not None and name not in self.answering:
            node = replace(node, status=before.status)
        self.gpu_nodes[name] = node

    def says(self, name: str) -> None:
        """Somebody annotates the GPUNode."""
        item = self.gpu_nodes[name]
        assert item.grant is not None
        self.put(name, item.grant, item.labels, item.former_labels, word=True)

    def node(self, name: str) -> list[NodeView]:
        labels = self.labels[name]
        return [] if labels is None else [msgspec.structs.replace(node_view(name), labels=dict(labels))]

    def cluster(self) -> ClusterState:
        pods = {f"uid-{name}": [running_pod(f"pod-{name}", name, uid=f"uid-{name}", gpus=8)] for name in self.labels}
        return ClusterState(
            jobs={},
            caps=self.caps,
            gpu_nodes=dict(self.gpu_nodes),
            nodes=[view for name in self.labels for view in self.node(name)],
            pods=[pod for of_job in pods.values() for pod in of_job],
            incarnations={f"uid-{name}": [incarnation_view(f"uid-{name}", 1, (name, 8))] for name in self.labels},
            pods_of=pods,
            reports_of={},
            unread=(),
            age_seconds=self.age_seconds,
        )

    def cycle(self, *, synced: bool = True, answered: bool = True) -> PowerInstructions:
        """One cycle; what it sends is taken where `answered`, what it says of labels where `synced`."""
        now = NOW + timedelta(seconds=self.seconds)
        decisions = {
            f"uid-{name}": decision(f"uid-{name}", (name, 8), watts=float(watts)) for name, watts in self.wants.items()
        }
        state = self.controller.observe(self.cluster(), now, self.seconds)
        self.under = {cap.name: cap.nodes for cap in state.caps.states}
        instructions = self.controller.step(PowerCycle(state, PlanInForce(decisions), now, self.seconds))
        for send in instructions.sends if answered else ():
            item = self.gpu_nodes[send.node.name]
            self.put(item.name, send.grant, item.labels, item.former_labels, item.release_asked)
            self.controller.handle(Answered(item.name, Outcome.DONE))
        for sync in instructions.label_syncs if synced else ():
            item = self.gpu_nodes[sync.node.name]
            assert item.grant is not None
            self.put(
                item.name,
                item.grant,
                sync.node.labels,
                sync.former_labels,
                item.release_asked and not sync.by_annotation,
            )
        published = {write.cap.name: write.status for write in instructions.cap_statuses}
        self.caps = [with_status(cap, published[cap.name]) if cap.name in published else cap for cap in self.caps]
        return instructions

    def rests(self, seconds: float = 0.0) -> dict[str, int]:
        """So many seconds go by; returns what each node may draw then, in watts."""
        self.seconds += seconds
        for _ in range(8):
            self.cycle()
        return self.watts()

    def enforced(self, name: str) -> tuple[str, str]:
        """What a cap's status says of its enforcement, and why."""
        conditions = next(cap.status.conditions for cap in self.caps if cap.name == name)
        found = next(condition for condition in conditions if condition.type == "Enforced")
        return found.status, found.reason

    def watts(self) -> dict[str, int]:
        found = {}
        for name, item in self.gpu_nodes.items():
            assert item.grant is not None
            found[name] = item.grant.bound.limit_milliwatts // 1000
        return found


def row(name: str, watts: int, labels: Labels, **spec: Any) -> PowerCap:
    return cap_view(name, watts=watts, nodeSelector={"matchLabels": dict(labels)}, **spec)


def test_a_node_registered_anew_without_its_labels_keeps_its_watts_in_its_row() -> None:
    """The labels come back by themselves: nothing has been handed out meanwhile, and no job was slowed down for it."""
    named = {"kubernetes.io/hostname": "n1"}
    hall = Hall(row("a", 4000, ROW_A), n1={**named, **ROW_A}, n2=ROW_A)
    assert hall.rests() == {"n1": 2000, "n2": 2000}
    hall.labels["n1"] = named
    assert hall.rests(5.0) == {"n1": 2000, "n2": 2000}
    hall.labels["n1"] = {**named, **ROW_A}
    assert hall.rests(SETTLE_SECONDS) == {"n1": 2000, "n2": 2000}
    assert hall.gpu_nodes["n1"].former_labels == ()


def test_it_counts_before_anything_of_it_is_written_and_over_a_change_of_leaders() -> None:
    hall = Hall(row("a", 4000, ROW_A), n1=ROW_A, n2=ROW_A)
    hall.rests()
    hall.labels["n1"] = {}
    hall.cycle(synced=False)
    assert hall.under == {"a": {"n1", "n2"}}
    hall.rests()
    assert (hall.gpu_nodes["n1"].labels, hall.gpu_nodes["n1"].former_labels) == ({}, (ROW_A,))
    hall.leads(2)
    hall.labels["n1"] = None
    hall.cycle()
    assert hall.under == {"a": {"n1", "n2"}}


def test_a_cap_is_called_enforced_only_once_its_nodes_are_recorded_as_its_own() -> None:
    """A label that is lost again before it stands in the GPUNode would take the node's watts along, unseen."""
    hall = Hall(row("a", 8000, ROW_A), n1={}, n2=ROW_A)
    hall.rests()
    assert hall.enforced("a") == ("True", "LimitsAcknowledged")
    hall.labels["n1"] = ROW_A
    for _ in range(4):
        hall.cycle(synced=False)
    assert hall.under == {"a": {"n1", "n2"}}
    assert hall.enforced("a") == ("Unknown", "Joining")
    hall.rests()
    assert hall.enforced("a") == ("True", "LimitsAcknowledged")
    hall.labels["n1"] = {}
    hall.cycle(synced=False)
    assert hall.under == {"a": {"n1", "n2"}}
    assert hall.enforced("a") == ("True", "LimitsAcknowledged")


def test_relabelled_and_then_deleted_it_counts_where_it_was_put() -> None:
    """Its copy of labels is written at each change, also where no grant is."""
    hall = Hall(row("a", 10_000, ROW_A), row("b", 4000, ROW_B), n1=ROW_A, n2=ROW_B)
    hall.wants["n2"] = 100
    hall.rests()
    hall.labels["n1"] = ROW_B
    hall.rests()
    hall.labels["n1"] = None
    hall.wants["n2"] = 400
    hall.rests()
    assert hall.under["b"] == {"n1", "n2"}
    assert sum(hall.watts().values()) <= 4000


def test_no_watts_are_handed_out_under_labels_that_its_gpu_node_does_not_record_yet() -> None:
    """Relabelled, raised at once and then deleted, it would draw what nobody counts under its new cap."""
    hall = Hall(row("b", 4000, ROW_B), n1={}, n2=ROW_B)
    hall.wants |= {"n1": 100, "n2": 100}
    hall.rests()
    hall.labels["n1"] = ROW_B
    hall.wants["n1"] = 400
    while hall.watts()["n1"] == LEAST:
        hall.cycle()
    hall.labels["n1"] = None
    hall.wants["n2"] = 400
    hall.rests()
    assert hall.under == {"b": {"n1", "n2"}}
    assert hall.watts()["n2"] == LEAST, "n1 counts at its largest limits while its Node is gone"


def test_a_cut_waits_for_no_labels_nor_a_raise_for_those_that_its_caps_do_not_ask_for() -> None:
    hall = Hall(row("b", 2000, ROW_B), n1={})
    assert hall.rests() == {"n1": 3200}
    hall.labels["n1"] = ROW_B
    assert [send.node.name for send in hall.cycle().sends] == ["n1"]
    hall = Hall(row("b", 4000, ROW_B), n1=ROW_B)
    hall.labels["n1"] = {**ROW_B, "time": "2"}
    assert [send.node.name for send in hall.cycle().sends] == ["n1"]


def test_labels_that_come_back_are_remembered_as_former_ones_and_hold_no_raise_back() -> None:
    hall = Hall(row("b", 4000, ROW_B), n1=ROW_B)
    hall.wants["n1"] = 100
    hall.rests()
    hall.labels["n1"] = {}
    hall.rests()
    hall.labels["n1"] = ROW_B
    hall.wants["n1"] = 400
    for _ in range(3):
        hall.cycle(synced=False)
    assert hall.watts() == {"n1": 3200}


def test_a_node_leaves_at_the_acknowledged_minimum_after_some_time() -> None:
    hall = Hall(row("a", 4000, ROW_A), row("b", 4000, ROW_B), n1=ROW_A, n2=ROW_A)
    assert hall.rests() == {"n1": 2000, "n2": 2000}
    hall.labels["n1"] = ROW_B
    assert hall.rests() == {"n1": 2000, "n2": 2000}
    assert hall.rests(SETTLE_SECONDS - 1.0) == {"n1": 2000, "n2": 2000}
    hall.answering.discard("n1")
    # Granted less; but its agent is silent, so that it may still draw as before.
    assert hall.rests(1.0) == {"n1": LEAST, "n2": 2000}
    assert hall.under == {"a": {"n1", "n2"}, "b": {"n1"}}
    hall.rests(30.0)  # it owes the answer for so long that nobody counts on it any more: it stays all the same
    assert hall.under == {"a": {"n1", "n2"}, "b": {"n1"}}
    hall.answering.add("n1")
    hall.put("n1", hall.gpu_nodes["n1"].grant or granted(0), ROW_B, (ROW_A,))
    assert hall.rests() == {"n1": 3200, "n2": 3200}
    assert hall.under == {"a": {"n2"}, "b": {"n1"}}
    assert hall.gpu_nodes["n1"].former_labels == ()


def test_a_new_change_of_labels_begins_the_time_anew() -> None:
    hall = Hall(row("a", 10_000, ROW_A), n1=ROW_A)
    hall.rests()
    hall.labels["n1"] = ROW_B
    hall.rests()
    hall.rests(SETTLE_SECONDS - 1.0)
    hall.labels["n1"] = {"row": "c"}
    hall.rests(1.0)
    assert hall.rests(SETTLE_SECONDS - 1.0) == {"n1": 3200}
    assert hall.under == {"a": {"n1"}}


def test_somebodys_word_lets_a_node_leave_at_once_and_only_once() -> None:
    hall = Hall(row("a", 4000, ROW_A), n1=ROW_A, n2=ROW_A)
    hall.wants["n2"] = 100
    hall.rests()
    hall.answering.discard("n1")
    hall.labels["n1"] = {}
    hall.wants["n2"] = 400
    assert hall.rests()["n2"] == LEAST
    hall.says("n1")
    assert hall.rests()["n2"] == 3200
    assert hall.under == {"a": {"n2"}}
    assert not hall.gpu_nodes["n1"].release_asked


def test_a_word_is_used_up_only_where_it_let_the_node_leave_and_is_named_only_there() -> None:
    hall = Hall(row("a", 4000, ROW_A), n1=ROW_A)
    hall.rests()
    hall.says("n1")
    hall.labels["n1"] = {**ROW_A, "time": "2"}
    (sync,) = hall.cycle().label_syncs
    assert (sync.left, sync.by_annotation, hall.gpu_nodes["n1"].release_asked) == ((), False, True)
    hall = Hall(row("a", 4000, ROW_A), n1=ROW_A)
    hall.rests()
    hall.labels["n1"] = {}
    hall.rests()
    hall.seconds += SETTLE_SECONDS
    left = [sync for _ in range(8) for sync in hall.cycle().label_syncs]
    assert [(sync.left, sync.by_annotation) for sync in left] == [(("a",), False)]


@pytest.mark.parametrize("trouble", ["an old copy", "a cap that cannot be read"])
def test_no_node_leaves_while_nobody_knows_what_it_would_leave(trouble: str) -> None:
    hall = Hall(row("a", 4000, ROW_A), n1=ROW_A, n2=ROW_A)
    hall.rests()
    hall.labels["n1"] = {}
    if trouble == "an old copy":
        hall.age_seconds = 1000.0
    else:
        hall.caps.append(cap_view("odd"))
    hall.says("n1")
    hall.rests(SETTLE_SECONDS + 1.0)
    assert hall.under["a"] == {"n1", "n2"}
    assert ROW_A in (hall.gpu_nodes["n1"].labels, *hall.gpu_nodes["n1"].former_labels)


def test_labels_that_no_cap_asks_for_leave_nothing_behind() -> None:
    hall = Hall(row("a", 4000, ROW_A), n1={**ROW_A, "time": "1"})
    hall.rests()
    hall.labels["n1"] = {**ROW_A, "time": "2"}
    assert hall.rests() == {"n1": 3200}
    assert (hall.gpu_nodes["n1"].labels["time"], hall.gpu_nodes["n1"].former_labels) == ("2", ())


def test_labels_that_were_lost_under_no_cap_are_remembered_for_one_that_comes_back_to_them() -> None:
    hall = Hall(row("a", 4000, ROW_A), n1=ROW_A)
    hall.rests()
    hall.caps = [row("a", 4000, ROW_B)]  # somebody edits what it selects
    hall.rests()
    for labels in ({}, {"time": "1"}, {"time": "2"}):  # registered anew, and then found out about
        hall.labels["n1"] = labels
        hall.rests()
    assert hall.gpu_nodes["n1"].former_labels == (ROW_A,)
    hall.labels["n1"] = {}
    hall.rests()
    assert hall.gpu_nodes["n1"].former_labels == ({"time": "2"}, ROW_A)
    hall.leads(2)
    hall.caps = [row("a", 4000, ROW_A)]  # and edits it back
    hall.cycle()
    assert hall.under == {"a": {"n1"}}
    hall.rests(SETTLE_SECONDS + 1.0)  # a label that stays lost for longer takes the node out of its cap
    assert (hall.under, hall.gpu_nodes["n1"].former_labels) == ({"a": frozenset()}, ())


def test_of_lost_labels_no_more_than_a_few_are_remembered() -> None:
    hall = Hall(row("a", 4000, ROW_A), n1={})
    for number in range(2 * MAX_LOSSES):
        hall.labels["n1"] = {f"key-{number}": "1"}
        hall.rests()
    remembered = [labels for labels in hall.gpu_nodes["n1"].former_labels if labels]
    assert remembered == [{f"key-{2 * MAX_LOSSES - 2 - number}": "1"} for number in range(MAX_LOSSES)]


def test_labels_that_got_another_value_or_came_back_are_not_remembered() -> None:
    hall = Hall(row("a", 4000, ROW_A), n1={**ROW_B, "time": "1"})
    hall.rests()
    hall.labels["n1"] = {"row": "c", "time": "1"}
    hall.rests()
    assert hall.gpu_nodes["n1"].former_labels == ()
    for labels in ({"time": "1"}, {"row": "d", "time": "2"}):
        hall.labels["n1"] = labels
        hall.rests()
    assert hall.gpu_nodes["n1"].former_labels == ()


def test_no_more_former_labels_are_kept_than_there_are_caps_to_leave() -> None:
    hall = Hall(row("a", 4000, ROW_A), row("b", 4000, ROW_B), n1=ROW_A)
    hall.rests()
    for turn in range(20):
        hall.labels["n1"] = {**(ROW_B if turn % 2 else ROW_A), "turn": str(turn)}
        hall.rests()
    hall.labels["n1"] = {}
    hall.rests()
    assert len(hall.gpu_nodes["n1"].former_labels) == 2
    assert hall.under == {"a": {"n1"}, "b": {"n1"}}


def test_no_labels_are_written_beside_a_grant() -> None:
    """Both are of the object as it was read: one of them would be refused, and it could be a cut."""
    hall = Hall(row("a", 4000, ROW_A), n1=ROW_A)
    hall.labels["n1"] = {**ROW_A, "time": "2"}
    first = hall.cycle()
    assert [send.node.name for send in first.sends] == ["n1"]
    assert first.label_syncs == ()
    # Nor while one is under way.
    hall = Hall(row("a", 4000, ROW_A), n1=ROW_A)
    assert hall.cycle(answered=False).sends != ()
    hall.labels["n1"] = {**ROW_A, "time": "2"}
    waiting = hall.cycle()
    assert (waiting.sends, waiting.label_syncs) == ((), ())


def test_labels_that_somebody_puts_back_at_each_write_are_taken_off_ever_less_often() -> None:
    """As an admission policy does that labels every object. Each write brings the next cycle, and that the next write."""
    hall, writes = Hall(row("a", 4000, ROW_A), n1=ROW_A), []
    hall.rests()
    marked = {**ROW_A, "team": "x"}
    item = hall.gpu_nodes["n1"]
    assert item.grant is not None
    hall.put("n1", item.grant, marked)
    while hall.seconds < 200.0:
        for sync in hall.cycle().label_syncs:
            writes.append(hall.seconds)
            hall.put("n1", item.grant, marked, sync.former_labels)
        hall.seconds += 0.25
    pauses = [later - at for at, later in pairwise(writes)]
    assert len(writes) < 20
    assert pauses == pytest.approx(sorted(pauses), abs=0.26)
    assert max(pauses) <= 60.25
    # Other labels are written at once.
    hall.labels["n1"] = {**ROW_A, "time": "2"}
    assert [dict(sync.node.labels) for sync in hall.cycle().label_syncs] == [{**ROW_A, "time": "2"}]


def test_a_node_that_has_yet_to_be_sent_the_smallest_limits_does_not_leave() -> None:
    """Its cut may have to wait for a write under way: what it was granted under its former cap still stands."""
    hall = Hall(row("a", 4000, ROW_A), n1=ROW_A)
    hall.rests()
    hall.labels["n1"] = {}
    hall.rests()
    state = hall.controller.observe(hall.cluster(), NOW, hall.seconds)
    found = Memberships(0.0).syncs(state.caps, state.nodes, frozenset(["n1"]), may_leave=True)
    assert [sync.left for sync in found] == []
    assert state.nodes["n1"].power.committed.limit_milliwatts > LEAST * 1000


def test_while_a_cap_cannot_be_read_all_former_labels_are_kept_as_it_may_select_them() -> None:
    hall = Hall(cap_view("odd"), n1={"row": "c"})
    hall.rests()
    hall.labels["n1"] = {"row": "d"}  # one that was lost without another value would be remembered anyway
    hall.rests()
    assert hall.gpu_nodes["n1"].former_labels == ({"row": "c"},)
    hall.caps = [row("odd", 4000, {"row": "c"})]  # somebody has mended it
    hall.cycle()
    assert hall.under == {"odd": {"n1"}}


def test_of_former_labels_the_newest_are_kept_for_each_cap_that_the_node_leaves_and_none_for_others() -> None:
    hall = Hall(row("a", 4000, ROW_A), row("b", 4000, ROW_B), n1=ROW_A)
    hall.rests()
    for labels in ({**ROW_A, "turn": "1"}, ROW_B, {"row": "c"}, {**ROW_B, "turn": "2"}):
        hall.labels["n1"] = labels
        hall.rests()
    # It counts under b by its labels of now: only what it leaves has to be remembered.
    assert hall.gpu_nodes["n1"].former_labels == ({**ROW_A, "turn": "1"},)
    hall.labels["n1"] = {}
    hall.rests()
    hall.labels["n1"] = {"turn": "3"}
    hall.rests()
    assert hall.gpu_nodes["n1"].former_labels == ({**ROW_B, "turn": "2"}, {**ROW_A, "turn": "1"})


def test_one_set_of_former_labels_is_kept_for_a_cap_however_many_have_selected_it() -> None:
    hall = Hall(row("a", 4000, ROW_A), row("h", 4000, {"hall": "h"}), n1={**ROW_A, "hall": "h"})
    hall.rests()
    for labels in (ROW_A, {}, {"hall": "h"}):
        hall.labels["n1"] = labels
        hall.rests()
    assert hall.gpu_nodes["n1"].former_labels == (ROW_A,)
    assert hall.under == {"a": {"n1"}, "h": {"n1"}}


@given(st.lists(st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3), max_size=4))
def test_former_labels_come_back_as_they_were_written(former: list[dict[str, str]]) -> None:
    assert read_former_labels(former_labels_annotation(former) or "") == tuple(former)


@pytest.mark.parametrize("text", ["{", "{}", "[1]", '[{"a": 1}]', "null"])
def test_former_labels_that_cannot_be_read_are_named_and_hide_nothing(text: str) -> None:
    with pytest.raises(InvalidObject, match=r"flyball\.dev/former-labels"):
        read_former_labels(text)
    raw = raw_gpu_node("a", granted(LEAST * 1000), limits=LEAST * 1000)
    raw["metadata"]["annotations"] = {"flyball.dev/former-labels": text}
    item = read_gpu_node(raw)
    assert item.acknowledged_current
    assert "flyball.dev/former-labels" in item.problems[0]


def test_a_late_node_that_leaves_its_row_is_lowered_all_the_same() -> None:
    """Else it would keep what it was granted for as long as its agent is late, and its row the watts for it."""
    hall = Hall(row("a", 4000, ROW_A), n1=ROW_A, n2=ROW_A)
    assert hall.rests() == {"n1": 2000, "n2": 2000}
    hall.answering.remove("n1")
    hall.wants["n1"] = 200
    asked = hall.rests()["n1"]
    assert LEAST < asked < 2000
    assert hall.rests(PowerSettings().acknowledge_timeout_seconds + 1.0)["n1"] == asked
    hall.labels["n1"] = ROW_B
    hall.rests()
    assert hall.rests(SETTLE_SECONDS)["n1"] == LEAST
