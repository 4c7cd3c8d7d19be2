"""No agent's word makes a job's energy more than its node's GPUs can have used since the last that was known."""

from __future__ import annotations

import msgspec
from flyball_api.gpu_node import PodReport
from flyball_api.values.units import NodeMilliwatts
from flyball_operator.jobs.runs.energy_history import ABSENCE_SECONDS, MOST_OVER_LIMITS, SLACK_SECONDS, EnergyHistory
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.operator_objects import raw_report

LARGEST = {"a": NodeMilliwatts(3_200_000)}
LIE = 10**15


def believed(history: EnergyHistory, millijoules: int, seconds: float, incarnation: int = 1, node: str = "a") -> int:
    report = msgspec.convert(raw_report("uid", incarnation, millijoules), PodReport)
    ((of, found),) = history.believe([(node, report)], LARGEST, seconds)
    assert of == node
    assert msgspec.structs.replace(found, energy_millijoules=millijoules) == report
    return found.energy_millijoules


def possible(seconds: float) -> int:
    return int(LARGEST["a"] * MOST_OVER_LIMITS * (seconds + SLACK_SECONDS))


def test_what_gpus_can_have_used_is_believed() -> None:
    history = EnergyHistory("team/job", {}, 0, 100.0)
    assert believed(history, 3_000_000 * 50, 150.0) == 3_000_000 * 50


def test_what_they_cannot_counts_as_far_as_it_is_possible_and_the_rest_later() -> None:
    history = EnergyHistory("team/job", {}, 0, 100.0)
    assert believed(history, LIE, 110.0) == possible(10.0)
    assert believed(history, LIE, 110.0) == possible(10.0)  # saying it again makes it no truer
    assert believed(history, LIE, 120.0) == possible(20.0)
    assert believed(history, 1000, 121.0) == 1000


def test_a_new_leader_goes_on_from_what_the_status_has() -> None:
    history = EnergyHistory("team/job", {"3/a": 10**12}, 3, 100.0)
    assert believed(history, 10**12 + 10**9, 110.0, incarnation=3) == 10**12 + 10**9
    assert believed(history, LIE, 110.0, incarnation=3) == 10**12 + possible(10.0 + ABSENCE_SECONDS)
    history = EnergyHistory("team/job", {"3/a": 10**12}, 3, 100.0)
    assert believed(history, LIE, 110.0, incarnation=4) == possible(10.0)


def test_all_incarnations_on_a_node_have_used_what_its_gpus_can() -> None:
    """An agent may name as many as it likes: not each of them has an allowance of its own."""
    history = EnergyHistory("team/job", {}, 0, 100.0)
    assert sum(believed(history, LIE, 110.0, incarnation) for incarnation in range(1, 50)) == possible(10.0)
    assert believed(history, 1000, 200.0, incarnation=50) == 1000


def test_of_a_node_that_nobody_knows_the_report_stands() -> None:
    assert believed(EnergyHistory("team/job", {}, 0, 0.0), LIE, 1.0, node="b") == LIE


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(st.floats(0.0, 100.0), st.integers(0, 2**62)), max_size=30))
def test_whatever_is_reported_energy_rises_no_faster_than_gpus_can_draw(reports: list[tuple[float, int]]) -> None:
    history, seconds = EnergyHistory("team/job", {}, 0, 0.0), 0.0
    for pause, millijoules in reports:
        seconds += pause
        assert believed(history, millijoules, seconds) <= min(millijoules, possible(seconds))
