"""What a node may draw at worst, state by state."""

from __future__ import annotations

import pytest
from flyball_operator.hold import Acknowledgement, Grant, Hold, worst_hold
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_objects import grant

BOOT = ("boot-1", "driver-1")
DEFAULTS = 800


def acknowledgement(version: tuple[int, int], limits: int, incarnation: tuple[str, str] = BOOT) -> Acknowledgement:
    return Acknowledgement(*version, limits, *incarnation)


@pytest.mark.parametrize(
    ("what", "given_grant", "acknowledged", "wanted"),
    [
        ("a new node is at its defaults", None, None, Hold(800, 800)),
        ("a first grant changes nothing before it is acknowledged", grant(200), None, Hold(800, 800)),
        ("nor does one above the defaults", grant(900), None, Hold(900, 900)),
        ("an acknowledged grant", grant(200), acknowledgement((1, 1), 200), Hold(200, 200)),
        (
            "a pod that has yet to start leaves the read-back low",
            grant(700),
            acknowledgement((1, 1), 200),
            Hold(700, 700),
        ),
        ("a GPU that refused to be lowered", grant(200), acknowledgement((1, 1), 500), Hold(500, 500)),
        (
            "what a refusing GPU draws above the prediction is unknown",
            grant(200, expected=150),
            acknowledgement((1, 1), 500),
            Hold(500, 450),
        ),
        ("a prediction below the limits", grant(700, expected=300), acknowledgement((1, 1), 700), Hold(700, 300)),
        (
            "a cut that is not acknowledged is not done",
            grant(200, worst=700, generation=2),
            acknowledgement((1, 1), 700),
            Hold(700, 700),
        ),
        (
            "a raise counts as soon as it is sent",
            grant(900, worst=900, generation=2),
            acknowledgement((1, 1), 200),
            Hold(900, 900),
        ),
        (
            "the worst of several grants in a row outlasts whoever sent them",
            grant(200, worst=900, generation=3),
            acknowledgement((1, 1), 300),
            Hold(900, 900),
        ),
        (
            "acknowledged, it is forgotten",
            grant(200, worst=900, generation=3),
            acknowledgement((1, 3), 200),
            Hold(200, 200),
        ),
        (
            "a reboot puts limits at their defaults",
            grant(200),
            acknowledgement((1, 1), 200, ("boot-0", "driver-1")),
            Hold(800, 800),
        ),
        (
            "so does a new driver",
            grant(200),
            acknowledgement((1, 1), 200, ("boot-1", "driver-0")),
            Hold(800, 800),
        ),
        (
            "or above them, where a grant allows it",
            grant(850),
            acknowledgement((1, 1), 200, ("boot-0", "driver-1")),
            Hold(850, 850),
        ),
        ("no grant: what was read back", None, acknowledgement((1, 1), 300), Hold(300, 300)),
        (
            "an agent that still holds a grant that was deleted with its object",
            grant(200, worst=800),
            acknowledgement((1, 9), 900),
            Hold(900, 900),
        ),
    ],
)
def test_worst_hold(what: str, given_grant: Grant | None, acknowledged: Acknowledgement | None, wanted: Hold) -> None:
    assert worst_hold(given_grant, acknowledged, BOOT, DEFAULTS) == wanted, what


@pytest.mark.parametrize(
    ("given_grant", "acknowledged", "wanted"),
    [
        (None, None, 800),  # the defaults count all GPUs, seen or not
        (grant(300, worst=800), None, 800),
        (grant(700), acknowledgement((1, 1), 200), 700),  # the grant provides for those that nobody has seen
        (grant(200), acknowledgement((1, 1), 200), 300),  # where it does not, they come on top of what was read back
    ],
)
def test_gpus_that_the_agent_never_saw(
    given_grant: Grant | None, acknowledged: Acknowledgement | None, wanted: int
) -> None:
    assert worst_hold(given_grant, acknowledged, BOOT, DEFAULTS, 100).limit_milliwatts == wanted


def test_repeated_writes_to_a_node_without_an_agent_do_not_add_up() -> None:
    held = worst_hold(None, None, ("", ""), DEFAULTS, DEFAULTS)
    for generation in range(1, 6):
        sent = grant(200, worst=held.limit_milliwatts, generation=generation)
        held = worst_hold(sent, None, ("", ""), DEFAULTS, DEFAULTS)
        assert held == Hold(DEFAULTS, DEFAULTS)


holds = st.builds(Hold, st.integers(0, 1000), st.integers(0, 1000))


@given(holds, holds)
@settings(max_examples=50, deadline=None)
def test_the_worse_of_two_covers_both(first: Hold, second: Hold) -> None:
    both = first | second
    assert both.covers(first)
    assert both.covers(second)
    assert (first + second).covers(both)


@given(
    hold=st.integers(0, 1000),
    worst=st.integers(0, 1000),
    sent=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    acknowledged=st.none() | st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 1000)),
    rebooted=st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_it_covers_the_grant_the_read_back_and_what_is_not_acknowledged(
    hold: int,
    worst: int,
    sent: tuple[int, int],
    acknowledged: tuple[int, int, int] | None,
    rebooted: bool,
) -> None:
    standing = grant(hold, worst=worst, epoch=sent[0], generation=sent[1])
    word = None if acknowledged is None else acknowledgement(acknowledged[:2], acknowledged[2])
    found = worst_hold(standing, word, ("boot-2", "") if rebooted else BOOT, DEFAULTS)
    assert found.covers(standing.hold)
    if word is not None and not rebooted:
        assert found.limit_milliwatts >= word.limits_milliwatts
    if word is None or word.version != standing.version:
        assert found.covers(standing.worst)
    if word is None or rebooted:
        assert found.limit_milliwatts >= DEFAULTS


def test_the_same_content_is_asked_whatever_the_version() -> None:
    assert grant(200).same_content(grant(200, epoch=4, generation=9, worst=900))
    assert not grant(200).same_content(grant(201))
