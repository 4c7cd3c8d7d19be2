"""What is granted to nodes whose agents answer late."""

from __future__ import annotations

from typing import Any

import pytest
from flyball_api.values.units import NodeMilliwatts
from flyball_api.workloads import PodView
from flyball_operator.power.bound import CapBudget
from flyball_operator.power.caps.state import CapStates
from flyball_operator.power.grants.admission import GrantTarget
from flyball_operator.power.grants.late_nodes import left_as_granted, throttled, unraised
from flyball_operator.power.grants.targets import grant_targets
from flyball_operator.power.nodes.info import NodeInfo, read_nodes
from flyball_operator.power.nodes.reservations import NodeRules
from msgspec.structs import replace

from tests.support.milliwatts import power_bound
from tests.support.operator_objects import (
    FLOOR,
    decision,
    gpu_node_view,
    grant,
    incarnation_view,
    job_grant,
    node_view,
    raw_device,
    running_pod,
)

GRANTED = 300_000  # to each of eight GPUs
NOBODY: frozenset[str] = frozenset()


def pods(node: str) -> list[PodView]:
    return [running_pod(f"pod-{node}", node, uid=f"uid-{node}", gpus=8)]


def node(name: str = "a", *, late: bool = True, granted: int = GRANTED, **report: Any) -> NodeInfo:
    """A node that has been granted so much for each GPU of one job since what its agent acknowledged last."""
    job = replace(job_grant(f"uid-{name}", granted, 8, pod=f"pod-{name}", clock=1200), pod_uid=f"pod-pod-{name}")
    given = grant(8 * granted, generation=2, jobs=(job,))
    report = {"limits": 8 * FLOOR, "acknowledged": (1, 1)} | report
    view = gpu_node_view(name, given, **report)
    return read_nodes([node_view(name)], {name: view}, pods(name), frozenset([name] if late else []))[name]


def left(info: NodeInfo, *, leaving: frozenset[str] = NOBODY, emergency: bool = False, epoch: int = 1) -> bool:
    rules = {info.name: NodeRules(emergency=emergency)}
    return info.name in left_as_granted({info.name: info}, CapStates(rules=rules), leaving, epoch)


def test_the_grant_of_a_late_node_is_left_until_it_is_acknowledged() -> None:
    assert node().late
    assert left(node())
    assert not left(node(late=False))
    assert not node(late=False).late


@pytest.mark.parametrize(
    ("what", "info", "circumstances"),
    [
        ("it is to leave its cap at the smallest limits", node(), {"leaving": frozenset("a")}),
        ("an emergency", node(), {"emergency": True}),
        ("another leader's grant, which this one has to replace", node(), {"epoch": 2}),
        ("its agent has passed it", node(acknowledged=(1, 3)), {}),
        ("it is acknowledged, of another content", node(acknowledged=(1, 2)), {}),
        ("a lost GPU", node(devices=[raw_device(index, healthy=index > 0) for index in range(8)]), {}),
        ("nobody knows whether it arrived", replace(node(), power=replace(node().power, unsettled=True)), {}),
        ("none has been granted", replace(node(), power=replace(node().power, grant=None)), {}),
        ("a doubted node", replace(node(), doubt="it has booted"), {}),
    ],
)
def test_a_late_node_is_granted_what_it_should_have_where(what: str, info: NodeInfo, circumstances: Any) -> None:
    assert not left(info, **circumstances), what


PLANNED_MEGAHERTZ = 1400


def targets(infos: list[NodeInfo], plan_watts: float) -> list[GrantTarget]:
    """What the nodes' jobs should have by a plan."""
    nodes = {info.name: info for info in infos}
    return grant_targets(
        nodes,
        {
            f"uid-{name}": decision(f"uid-{name}", (name, 8), watts=plan_watts, clock=PLANNED_MEGAHERTZ)
            for name in nodes
        },
        [incarnation_view(f"uid-{name}", 1, (name, 8)) for name in nodes],
        [pod for name in nodes for pod in pods(name)],
        {},
        60,
        0.05,
    )


def watts(infos: list[NodeInfo], budget_watts: int, plan_watts: float = 300.0) -> dict[str, int]:
    """What each GPU of the nodes' jobs should have under a cap over all of them."""
    nodes = {info.name: info for info in infos}
    cap = CapBudget("row", frozenset(nodes), NodeMilliwatts(budget_watts * 1000))
    fitting, _ = throttled(targets(infos, plan_watts), nodes, [cap], {})
    return {target.node: target.jobs[0].power_limit_milliwatts // 1000 for target in fitting}


def test_where_a_cap_needs_watts_late_nodes_pay_as_the_others_which_make_room_until_they_have() -> None:
    assert watts([node("a"), node("b", late=False)], 4800) == {"a": 300, "b": 300}
    assert watts([node("a"), node("b", late=False)], 4000) == {"a": 250, "b": 200}
    assert watts([node("a", late=False), node("b", late=False)], 4000) == {"a": 250, "b": 250}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(("budget_watts", "fits"), [(4800, True), (4000, False)])
def test_it_is_known_whether_a_plan_fits_as_it_is(late: bool, budget_watts: int, fits: bool) -> None:
    infos = [node("a", late=late), node("b", late=False)]
    cap = CapBudget("row", frozenset(("a", "b")), NodeMilliwatts(budget_watts * 1000))
    assert throttled(targets(infos, 300.0), {info.name: info for info in infos}, [cap], {})[1] is fits


def test_a_plan_that_asks_more_of_a_late_node_than_it_is_granted_fits() -> None:
    """To lower what others have would gain nothing: the next plan comes to the same."""
    infos = [node("a", granted=250_000), node("b", late=False)]
    cap = CapBudget("row", frozenset(("a", "b")), NodeMilliwatts(9999 * 1000))
    fitting, fits = throttled(targets(infos, 300.0), {info.name: info for info in infos}, [cap], {})
    assert ([target.jobs[0].power_limit_milliwatts for target in fitting], fits) == ([250_000, 300_000], True)


def test_a_cut_of_a_late_node_is_not_the_ground_for_the_next() -> None:
    """Its share follows from what is planned of all: by what it was granted last it would be lowered in each cycle."""
    assert watts([node("a", granted=250_000), node("b", late=False)], 4000) == {"a": 250, "b": 250}
    assert watts([node("a", granted=200_000), node("b", late=False)], 4000) == {"a": 200, "b": 300}


def test_beside_a_late_node_the_others_make_room_for_a_doubted_one_too() -> None:
    doubted = replace(node("c", late=False), doubt="it has booted")
    infos = [node("a"), node("b", late=False), doubted]
    assert watts(infos, 6400) == {"a": 250, "b": 200, "c": 100}


def test_pods_on_a_late_node_keep_what_they_were_granted_and_get_no_more() -> None:
    """Nor is a higher clock granted, or more predicted of them than their limit; a pod that has no entry gets the least."""
    info = node("a", granted=200_000)
    (target,) = targets([info], 350.0)
    (kept,) = unraised([target], {"a": info})
    assert (target.jobs[0].power_limit_milliwatts, target.jobs[0].clock_max_megahertz) == (350_000, PLANNED_MEGAHERTZ)
    assert (kept.jobs[0].power_limit_milliwatts, kept.jobs[0].clock_max_megahertz) == (200_000, 1200)
    assert kept.job_bounds == (power_bound(8 * 200_000, min(8 * 200_000, target.job_bounds[0].expected_milliwatts)),)
    assert kept.rest == target.rest
    stranger = replace(info, power=replace(info.power, grant=grant(8 * FLOOR, generation=2)))
    assert unraised([target], {"a": stranger})[0].jobs[0].power_limit_milliwatts == FLOOR
    assert unraised([target], {"a": node("a", late=False, granted=200_000)}) == [target]


def test_nothing_is_raised_on_a_late_node() -> None:
    assert watts([node("a"), node("b", late=False)], 9999, plan_watts=350.0) == {"a": 300, "b": 350}
    assert watts([node("a"), node("b", late=False)], 9999, plan_watts=200.0) == {"a": 200, "b": 200}
