"""How often a grant is sent again to an agent that has acknowledged it and is held below it by a brake."""

from __future__ import annotations

from typing import Any

import pytest
from flyball_api.grant import BrakeVersion, CapOverNode, Grant, GrantVersion, PowerBound
from flyball_api.units import NodeMilliwatts
from flyball_operator.power.bound import NodePower
from flyball_operator.power.patience import FIRST_REPETITION_SECONDS, LONGEST_REPETITION_SECONDS, Repetitions
from msgspec.structs import replace

from tests.support.operator_objects import grant

SOON = FIRST_REPETITION_SECONDS / 2
STANDING = grant(2_400_000, generation=1, caps=("row",))
AGAIN = replace(STANDING, generation=2)
OTHERWISE = replace(AGAIN, bound=PowerBound(2_000_000, 2_000_000))
BRAKED = NodePower(STANDING, PowerBound(800_000, 800_000), STANDING.version, braked_milliwatts=NodeMilliwatts(800_000))


def sent_at(*asked: tuple[float, Grant | None, NodePower]) -> list[float]:
    """When grants of one node went, each given with the instant at which it was ready, and what was known of the node."""
    repetitions, sent = Repetitions(), []
    for time, given, power in asked:
        grants = {} if given is None else {"a": given}
        if "a" not in repetitions.held_back(grants, {"a": power}, time) and given is not None:
            sent.append(time)
    return sent


def test_it_is_sent_at_once_and_then_after_twice_as_long_each_time() -> None:
    every = [step * SOON for step in range(16)]
    assert sent_at(*((time, AGAIN, BRAKED) for time in every)) == [0.0, 2 * SOON, 6 * SOON, 14 * SOON]


def test_the_pause_does_not_grow_for_ever() -> None:
    longest = LONGEST_REPETITION_SECONDS
    sent = sent_at(*((step * longest, AGAIN, BRAKED) for step in range(20)))
    assert sent == [step * longest for step in range(20)]


@pytest.mark.parametrize(
    ("given", "power"),
    [
        (AGAIN, NodePower(None, PowerBound(), braked_milliwatts=NodeMilliwatts(800_000))),
        (AGAIN, replace(BRAKED, braked_milliwatts=None)),
        (AGAIN, replace(BRAKED, unsettled=True)),
        (replace(AGAIN, epoch=2), BRAKED),
        (replace(AGAIN, caps=(CapOverNode("row", BrakeVersion(1, 1)),)), BRAKED),
        (OTHERWISE, BRAKED),
    ],
    ids=[
        "no grant stands",
        "not braked",
        "unsettled",
        "a new leader's",
        "made with another brake",
        "asks something else",
    ],
)
def test_what_is_no_repetition_waits_for_nothing(given: Grant, power: NodePower) -> None:
    assert sent_at((0.0, given, power), (0.0, given, power)) == [0.0, 0.0]


def followed(**changes: Any) -> NodePower:
    """What is known of a node whose agent has acknowledged its grant, which nothing holds below that."""
    return replace(BRAKED, braked_milliwatts=None, **changes)


@pytest.mark.parametrize(
    ("meanwhile", "begins_anew"),
    [
        (followed(), True),
        (BRAKED, False),
        (followed(accepted=GrantVersion(1, 0)), False),
        (followed(grant=None), False),
    ],
    ids=["followed", "braked", "not acknowledged", "no grant stands"],
)
def test_only_an_agent_that_has_followed_its_grant_is_a_new_case(meanwhile: NodePower, begins_anew: bool) -> None:
    asked = ((0.0, AGAIN, BRAKED), (SOON / 2, None, meanwhile), (SOON, AGAIN, BRAKED))
    assert sent_at(*asked) == ([0.0, SOON] if begins_anew else [0.0])


def test_what_was_asked_otherwise_in_between_begins_anew() -> None:
    assert sent_at((0.0, AGAIN, BRAKED), (SOON / 2, OTHERWISE, BRAKED), (SOON, AGAIN, BRAKED)) == [0.0, SOON / 2, SOON]


def test_a_node_that_is_gone_is_forgotten() -> None:
    repetitions = Repetitions()
    assert repetitions.held_back({"a": AGAIN}, {"a": BRAKED}, 0.0) == frozenset()
    assert repetitions.held_back({}, {}, SOON / 2) == frozenset()
    assert repetitions.held_back({"a": AGAIN}, {"a": BRAKED}, SOON) == frozenset()
