"""Powering empty nodes off and on: never more than twice what knowing the future would cost, and no flapping."""

from __future__ import annotations

import math

import pytest
from flyball_planner.placement.node_power import NodePowerPolicy
from hypothesis import event, given
from hypothesis import strategies as st

A_NODE = NodePowerPolicy(boot_seconds=120.0, boot_joules=120.0 * 900.0, idle_watts=864.0, off_watts=20.0)


@st.composite
def policies(draw: st.DrawFn) -> NodePowerPolicy:
    """Nodes whose boots draw at least what idling would: any real one."""
    idle, off = draw(st.floats(50.0, 2000.0)), draw(st.floats(0.0, 40.0))
    boot_seconds = draw(st.floats(0.0, 600.0))
    return NodePowerPolicy(boot_seconds, boot_seconds * idle * draw(st.floats(1.0, 3.0)), idle, off)


def clairvoyant_joules(policy: NodePowerPolicy, gap_seconds: float) -> float:
    """The least that a gap of known length can cost: idle through it, or off at once."""
    return min(gap_seconds * policy.idle_watts, gap_seconds * policy.off_watts + policy.boot_joules)


def paid_joules(policy: NodePowerPolicy, gap_seconds: float) -> float:
    """What one empty node takes over a gap between two jobs, the boot at its end included."""
    idle = min(gap_seconds, policy.off_time(0.0))
    off = gap_seconds - idle
    return idle * policy.idle_watts + (off * policy.off_watts + policy.boot_joules if off > 0 else 0.0)


@given(policies(), st.lists(st.floats(0.0, 5000.0), max_size=30))
def test_idle_gaps_never_cost_more_than_twice_the_optimum(policy: NodePowerPolicy, gaps: list[float]) -> None:
    paid = sum(paid_joules(policy, gap) for gap in gaps)
    assert paid <= 2 * sum(clairvoyant_joules(policy, gap) for gap in gaps) * (1 + 1e-9)


@given(policies(), st.floats(1.001, 50.0))
def test_just_past_break_even_the_worst_case_is_reached(policy: NodePowerPolicy, idle_to_off: float) -> None:
    """The bound is tight: with nothing drawn while off, a job right after the power-off finds twice the optimum paid."""
    free = NodePowerPolicy(policy.boot_seconds, policy.boot_joules + 1.0, policy.idle_watts)
    gap = free.break_even_seconds * (1 + 1e-9)
    assert paid_joules(free, gap) == pytest.approx(2 * clairvoyant_joules(free, gap), rel=1e-6)
    assert paid_joules(free, gap * idle_to_off) <= 2 * clairvoyant_joules(free, gap * idle_to_off) * (1 + 1e-9)


@given(
    st.lists(st.tuples(st.floats(1.0, 400.0), st.integers(0, 6)), min_size=1, max_size=40),
    st.floats(0.0, 300.0),
)
def test_a_fleet_is_within_twice_the_optimum_if_jobs_take_the_node_emptied_last(
    steps: list[tuple[float, int]], boot_seconds: float
) -> None:
    """Demand for whole nodes goes up and down; the optimum knows it all (and boots each node in time for its next job)."""
    policy = NodePowerPolicy(boot_seconds, boot_seconds * 900.0, 864.0, 20.0)
    busy: set[int] = set()
    empty: dict[int, float] = {}
    off = set(range(6))
    now = paid = 0.0
    booted = 0
    for seconds, wanted in steps:
        while len(busy) > wanted:
            node = max(busy)
            busy.remove(node)
            empty[node] = now
        while len(busy) < wanted:
            if empty:
                node = max(empty, key=lambda node: empty[node])
                del empty[node]
            else:
                node = min(off)
                off.remove(node)
                paid += policy.boot_joules
                booted += 1
            busy.add(node)
        end = now + seconds
        while now < end:
            off_times = {node: policy.off_time(since) for node, since in empty.items()}
            until = min(end, max(now, min(off_times.values(), default=end)))
            paid += (until - now) * (len(empty) * policy.idle_watts + len(off) * policy.off_watts)
            now = until
            for node in [node for node, due in off_times.items() if due <= now]:
                del empty[node]
                off.add(node)
    event(f"{min(booted, 10)} boots")
    optimum = 0.0
    for level in range(
        1, 7
    ):  # with the node emptied last taken first, the level-th node is needed while demand >= level
        gap, needed_before = 0.0, False
        for seconds, wanted in steps:
            if wanted >= level:
                first = policy.boot_joules + gap * policy.off_watts
                optimum += clairvoyant_joules(policy, gap) if needed_before else first
                gap, needed_before = 0.0, True
            else:
                gap += seconds
        optimum += min(gap * policy.off_watts, gap * policy.idle_watts)
    assert paid <= 2 * optimum + 6 * policy.boot_joules + 1e-6, "the last gap's boot may never be asked for"


def test_a_node_is_off_once_it_has_idled_away_a_boot() -> None:
    assert A_NODE.off_time(1000.0) == pytest.approx(1000.0 + 120.0 * 900.0 / 844.0)


def test_a_node_that_has_just_booted_idles_at_least_as_long_as_its_boot_took() -> None:
    cheap = NodePowerPolicy(boot_seconds=300.0, boot_joules=0.0, idle_watts=500.0)
    assert cheap.off_time(0.0) == 300.0


def test_where_being_off_saves_nothing_nodes_stay_on() -> None:
    policy = NodePowerPolicy(60.0, 1000.0, idle_watts=30.0, off_watts=30.0)
    assert policy.off_time(0.0) == math.inf
    assert paid_joules(policy, 100.0) == pytest.approx(3000.0)


@pytest.mark.parametrize("figures", [(-1.0, 0.0, 1.0), (0.0, math.inf, 1.0), (0.0, 0.0, math.nan)])
def test_figures_that_no_node_can_have_are_refused(figures: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="must be finite and not negative"):
        NodePowerPolicy(*figures)
