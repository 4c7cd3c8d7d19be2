"""The most that a node may draw, state by state, and the sum under a cap."""

from __future__ import annotations

import msgspec
import pytest
from flyball_api.gpu_node import Acknowledgement, DriverSession
from flyball_api.grant import Grant, PowerBound
from flyball_api.values.units import NodeMilliwatts
from flyball_operator.power.bound import acknowledges_another, committed_bound
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.examples import examples
from tests.support.milliwatts import power_bound
from tests.support.operator_objects import grant

SESSION = DriverSession("boot-1", "driver-1")
DEFAULTS = NodeMilliwatts(800)


def acknowledgement(version: tuple[int, int], limits: int, session: tuple[str, str] = SESSION) -> Acknowledgement:
    return Acknowledgement(*version, NodeMilliwatts(limits), *session)


@pytest.mark.parametrize(
    ("what", "given_grant", "acknowledged", "wanted"),
    [
        ("a new node may draw the most that its GPUs can", None, None, power_bound(800)),
        ("a first grant changes nothing before it is acknowledged", grant(200), None, power_bound(800)),
        ("nor does one above that", grant(900), None, power_bound(900)),
        ("an acknowledged grant", grant(200), acknowledgement((1, 1), 200), power_bound(200)),
        (
            "a pod that has yet to start leaves the read-back low",
            grant(700),
            acknowledgement((1, 1), 200),
            power_bound(700),
        ),
        ("a GPU that refused to be lowered", grant(200), acknowledgement((1, 1), 500), power_bound(500)),
        (
            "what a refusing GPU draws above the prediction is unknown",
            grant(200, expected=150),
            acknowledgement((1, 1), 500),
            power_bound(500, 450),
        ),
        (
            "a prediction below the limits",
            grant(700, expected=300),
            acknowledgement((1, 1), 700),
            power_bound(700, 300),
        ),
        (
            "a cut that is not acknowledged is not done",
            grant(200, committed=700, generation=2),
            acknowledgement((1, 1), 700),
            power_bound(700),
        ),
        (
            "a raise counts as soon as it is sent",
            grant(900, committed=900, generation=2),
            acknowledgement((1, 1), 200),
            power_bound(900),
        ),
        (
            "the worst of several grants in a row outlasts whoever sent them",
            grant(200, committed=900, generation=3),
            acknowledgement((1, 1), 300),
            power_bound(900),
        ),
        (
            "acknowledged, it is forgotten",
            grant(200, committed=900, generation=3),
            acknowledgement((1, 3), 200),
            power_bound(200),
        ),
        (
            "after a reboot nobody has read the limits",
            grant(200),
            acknowledgement((1, 1), 200, ("boot-0", "driver-1")),
            power_bound(800),
        ),
        (
            "so does a new driver",
            grant(200),
            acknowledgement((1, 1), 200, ("boot-1", "driver-0")),
            power_bound(800),
        ),
        (
            "or above them, where a grant allows it",
            grant(850),
            acknowledgement((1, 1), 200, ("boot-0", "driver-1")),
            power_bound(850),
        ),
        (
            "an agent with a grant that nobody else knows may raise",
            None,
            acknowledgement((1, 1), 300),
            power_bound(800),
        ),
        ("after a restore too", grant(200), acknowledgement((3, 7), 200), power_bound(800)),
        (
            "an agent that still holds a grant that was deleted with its object",
            grant(200, committed=800),
            acknowledgement((1, 9), 900),
            power_bound(900),
        ),
    ],
)
def test_what_a_node_may_draw(
    what: str, given_grant: Grant | None, acknowledged: Acknowledgement | None, wanted: PowerBound
) -> None:
    assert committed_bound(given_grant, acknowledged, SESSION, DEFAULTS) == wanted, what


@pytest.mark.parametrize(
    ("given_grant", "acknowledged", "wanted"),
    [
        (None, None, 800),  # the largest limits count all GPUs, seen or not
        (grant(300, committed=800), None, 800),
        (grant(700), acknowledgement((1, 1), 200), 700),  # the grant provides for those that nobody has seen
        (grant(200), acknowledgement((1, 1), 200), 300),  # where it does not, they come on top of what was read back
    ],
)
def test_gpus_that_the_agent_never_saw(
    given_grant: Grant | None, acknowledged: Acknowledgement | None, wanted: int
) -> None:
    assert committed_bound(given_grant, acknowledged, SESSION, DEFAULTS, NodeMilliwatts(100)).limit_milliwatts == wanted


def test_a_grant_whose_writer_left_out_what_it_commits_commits_its_bound() -> None:
    written = replace(grant(900), committed=PowerBound())
    assert committed_bound(written, None, SESSION, DEFAULTS) == power_bound(900)


def test_what_an_agent_holds_of_a_grant_that_is_gone_comes_on_top_of_what_was_sent() -> None:
    sent = grant(950, committed=1000)
    assert committed_bound(sent, acknowledgement((1, 9), 200), SESSION, DEFAULTS) == power_bound(1000)


def test_without_a_grant_what_was_read_back_counts() -> None:
    assert committed_bound(None, acknowledgement((0, 0), 300), SESSION, DEFAULTS) == power_bound(300)


def test_repeated_writes_to_a_node_without_an_agent_do_not_add_up() -> None:
    held = committed_bound(None, None, DriverSession(), DEFAULTS, DEFAULTS)
    for generation in range(1, 6):
        sent = grant(200, committed=held.limit_milliwatts, generation=generation)
        held = committed_bound(sent, None, DriverSession(), DEFAULTS, DEFAULTS)
        assert held == power_bound(DEFAULTS)


holds = st.builds(PowerBound, st.integers(0, 1000), st.integers(0, 1000))


@given(holds, holds)
@settings(max_examples=examples(50))
def test_the_worse_of_two_covers_both(first: PowerBound, second: PowerBound) -> None:
    both = first | second
    assert both.covers(first)
    assert both.covers(second)
    assert (first + second).covers(both)


@given(
    limit=st.integers(0, 1000),
    committed=st.integers(0, 1000),
    sent=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    acknowledged=st.none() | st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 1000)),
    rebooted=st.booleans(),
)
@settings(max_examples=examples(100))
def test_it_covers_the_grant_the_read_back_and_what_is_not_acknowledged(
    limit: int,
    committed: int,
    sent: tuple[int, int],
    acknowledged: tuple[int, int, int] | None,
    rebooted: bool,
) -> None:
    standing = grant(limit, committed=committed, epoch=sent[0], generation=sent[1])
    word = None if acknowledged is None else acknowledgement(acknowledged[:2], acknowledged[2])
    found = committed_bound(standing, word, DriverSession("boot-2", "") if rebooted else SESSION, DEFAULTS)
    assert found.covers(standing.bound)
    if word is not None and not rebooted:
        assert found.limit_milliwatts >= word.limits_milliwatts
    if word is None or word.version != standing.version:
        assert found.covers(standing.committed)
    if word is None or rebooted:
        assert found.limit_milliwatts >= DEFAULTS


def test_the_same_content_is_asked_whatever_the_version() -> None:
    assert grant(200).same_content(grant(200, epoch=4, generation=9, committed=900))
    assert not grant(200).same_content(grant(201))


@pytest.mark.parametrize(
    ("sent", "acknowledged", "believed"),
    [("d1", "d1", True), ("d1", "d2", False), ("", "d2", True), ("d1", "", True)],
)
def test_the_same_version_of_another_grant_is_not_acknowledged(sent: str, acknowledged: str, believed: bool) -> None:
    """A GPUNode that was made anew began its generations anew; writers and agents of before know no digests."""
    standing = replace(grant(200), digest=sent)
    answer = msgspec.structs.replace(acknowledgement((1, 1), 200), digest=acknowledged)
    bound = committed_bound(standing, answer, SESSION, NodeMilliwatts(DEFAULTS))
    assert bound == (power_bound(200) if believed else power_bound(DEFAULTS))  # type: ignore[arg-type]
    assert acknowledges_another(standing, answer) is not believed


@pytest.mark.parametrize(
    ("what", "given_grant", "since", "wanted"),
    [
        ("no more than was acknowledged", grant(200), 0, power_bound(200)),
        ("above a grant that is in force", grant(200), 500, power_bound(500)),
        ("above one that is not acknowledged", grant(300, generation=2), 500, power_bound(500)),
        ("what a grant allows counts once", grant(700, generation=2), 500, power_bound(700)),
    ],
)
def test_what_was_read_back_since_an_acknowledgement_counts(
    what: str, given_grant: Grant, since: int, wanted: PowerBound
) -> None:
    found = committed_bound(
        given_grant,
        acknowledgement((1, 1), 200),
        SESSION,
        NodeMilliwatts(DEFAULTS),
        read_back_since=NodeMilliwatts(since),
    )
    assert found == wanted, what
