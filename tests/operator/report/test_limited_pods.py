"""What the owners of pods outside Flyball are told of their GPUs' limits."""

from __future__ import annotations

from typing import cast

import pytest
from flyball_api.values.units import MilliwattsPerGpu
from flyball_api.workloads import PodView
from flyball_kube.session import ApiSession
from flyball_operator.power.nodes.info import NodeInfo
from flyball_operator.power.nodes.reservations import ForeignShare, NodeRules
from flyball_operator.report.events import EventRecorder, Regarding
from flyball_operator.report.limited_pods import LimitedPods

from tests.support.operator_objects import pod_view, ready_node

CAPS = {"a": ["row", "hall"], "b": ["row"]}
PODS = [pod_view("plain", gpus=4, node="a"), pod_view("ours", uid="uid-train", gpus=2, node="a")]


def nodes(pods: list[PodView]) -> dict[str, NodeInfo]:
    foreign = tuple(pod for pod in pods if not pod.job_uid)
    return {name: ready_node(name, pods=tuple(pod for pod in foreign if pod.node == name)) for name in ("a", "b")}


def limited_to(watts: int, *, emergency: bool = False) -> dict[str, NodeRules]:
    share = ForeignShare(MilliwattsPerGpu(watts * 1000))
    return {"a": NodeRules(limit_foreign_pods=True, foreign_shares=(share,), emergency=emergency)}


def events(
    limited: LimitedPods, rules: dict[str, NodeRules], pods: list[PodView] = PODS, most: int = 100
) -> list[tuple[str, str, str]]:
    found = limited.update(pods, nodes(pods), rules, CAPS, most)
    assert all(regarding.kind == "Pod" and regarding.uid == f"pod-{regarding.name}" for regarding, _ in found)
    return [(regarding.name, item.reason, item.note) for regarding, item in found]


def test_a_pod_is_told_that_it_is_limited_how_far_and_by_which_caps() -> None:
    limited = LimitedPods()
    assert events(limited, {}) == []
    assert events(limited, limited_to(200)) == [
        (
            "plain",
            "PowerLimited",
            "each of its 4 GPUs may draw 200 W, by default 400 W: it is under PowerCaps hall, row, which limit pods "
            "outside Flyball, too",
        )
    ]
    assert events(limited, limited_to(200)) == [], "once"
    assert events(limited, limited_to(170)) == [], "shares move with every job"
    assert events(limited, limited_to(220)) == []
    ((_, reason, note),) = events(limited, limited_to(160))
    assert (reason, note[:36]) == ("PowerLimited", "each of its 4 GPUs may draw 160 W, b"), (
        "a tenth of the default less"
    )
    assert events(limited, limited_to(500)) == [
        ("plain", "PowerLimitLifted", "each of its 4 GPUs may draw 400 W again, as by default")
    ]
    assert events(limited, {}) == []


def test_an_emergency_is_named() -> None:
    limited = LimitedPods()
    events(limited, {})
    ((_, _, note),) = events(limited, limited_to(300, emergency=True))
    assert (
        note == "each of its 4 GPUs may draw 100 W, by default 400 W: there is an emergency under PowerCaps hall, row"
    )


def test_a_pod_that_comes_under_a_low_cap_is_told_and_one_that_a_new_leader_finds_is_not() -> None:
    limited = LimitedPods()
    assert events(limited, limited_to(200)) == [], "another leader has told it"
    more = [*PODS, pod_view("late", gpus=1, node="a")]
    ((name, reason, note),) = events(limited, limited_to(200), more)
    assert (name, reason) == ("late", "PowerLimited")
    assert note.startswith("its GPU may draw 200 W, by default 400 W")
    ((name, reason, _),) = events(limited, {}, PODS)
    assert (name, reason) == ("plain", "PowerLimitLifted")
    assert events(limited, {}, more) == [], "who is gone is forgotten, and who comes anew was never limited"


def test_of_more_pods_than_there_is_room_for_each_is_told_in_the_end_and_of_what_holds_then() -> None:
    limited, pods = LimitedPods(), [pod_view(f"p{number}", gpus=1, node="a") for number in range(4)]
    assert events(limited, {}, pods) == []

    def told(rules: dict[str, NodeRules], most: int) -> list[str]:
        return [f"{name} {reason}" for name, reason, _ in events(limited, rules, pods, most)]

    assert told(limited_to(200), 0) == []
    first = told(limited_to(200), 3)
    assert first == ["p0 PowerLimited", "p1 PowerLimited", "p2 PowerLimited"]
    assert told(limited_to(200), 3) == ["p3 PowerLimited"]
    assert told(limited_to(200), 3) == []
    assert told({}, 3) == ["p0 PowerLimitLifted", "p1 PowerLimitLifted", "p2 PowerLimitLifted"]
    assert told(limited_to(200), 2) == ["p0 PowerLimited", "p1 PowerLimited"], "p3 was told so, and of nothing since"
    assert told({}, 0) == []
    assert told(limited_to(200), 3) == ["p2 PowerLimited"]


@pytest.mark.slow
def test_thousands_of_pods_that_a_cap_limits_at_once_leave_room_for_what_is_said_of_caps() -> None:
    now = [1000.0]
    recorder = EventRecorder(cast(ApiSession, None), "operator", monotonic=lambda: now[0])
    limited, pods = LimitedPods(), [pod_view(f"p{number}", gpus=1, node=f"n{number}") for number in range(1000)]
    infos = {pod.node: ready_node(pod.node, pods=(pod,)) for pod in pods}
    rules, told = {name: limited_to(200)["a"] for name in infos}, set[str]()

    def cycle(rules: dict[str, NodeRules]) -> None:
        for regarding, item in limited.update(pods, infos, rules, {}, recorder.room):
            recorder.record(regarding, item.reason, item.note, action=item.action)
            told.add(regarding.name)

    cycle({})
    for number in range(1000):
        cycle(rules)
        if not number:
            recorder.record(Regarding("v1", "PowerCap", "row", "uid-row"), "NotEnforced", "it fell", action="Enforce")
        now[0] += 1.0
    assert len(told) == len(pods)
    assert recorder.dropped == 0
