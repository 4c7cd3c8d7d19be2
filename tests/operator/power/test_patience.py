"""How often a grant is sent again to an agent that has acknowledged it and is held below it by a brake, and what waits for
the rest of a raise."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from flyball_api.grant import BrakeVersion, CapOverNode, Grant, GrantVersion, PowerBound
from flyball_api.values.units import NodeMilliwatts
from flyball_operator.power.bound import NodePower
from flyball_operator.power.patience import (
    FEW_TURNS,
    FIRST_REPETITION_SECONDS,
    FIRST_TURN_PAUSE_SECONDS,
    LONGEST_REPETITION_SECONDS,
    LONGEST_TURN_PAUSE_SECONDS,
    SMALL_CUT_SECONDS,
    SMALL_RAISE_SECONDS,
    TURN_SECONDS,
    TURNS_FORGOTTEN_SECONDS,
    Repetitions,
    Reversals,
    SmallChanges,
)
from msgspec.structs import replace

from tests.support.milliwatts import power_bound
from tests.support.operator_objects import grant, job_grant

SOON = FIRST_REPETITION_SECONDS / 2
STANDING = grant(2_400_000, generation=1, caps=("row",))
AGAIN = replace(STANDING, generation=2)
OTHERWISE = replace(AGAIN, bound=power_bound(2_000_000))
BRAKED = NodePower(STANDING, power_bound(800_000), STANDING.version, braked_milliwatts=NodeMilliwatts(800_000))


def sent_at(*asked: tuple[float, Grant | None, NodePower]) -> list[float]:
    """When grants of one node went, each given with the instant at which it was ready, and what was known of the node."""
    repetitions, sent = Repetitions(), []
    for time, given, power in asked:
        grants = {} if given is None else {"a": given}
        nodes = grants.keys() - repetitions.held_back(grants, {"a": power}, time)
        repetitions.sent(nodes, grants, {"a": power}, time)
        sent += [time for _ in nodes]
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
    repetitions.sent(["a"], {"a": AGAIN}, {"a": BRAKED}, 0.0)
    assert repetitions.held_back({"a": AGAIN}, {"a": BRAKED}, SOON) == {"a"}
    repetitions.sent([], {}, {}, SOON / 2)
    assert repetitions.held_back({"a": AGAIN}, {"a": BRAKED}, SOON) == frozenset()


def test_what_was_kept_from_being_sent_does_not_count() -> None:
    repetitions = Repetitions()
    repetitions.sent([], {"a": AGAIN}, {"a": BRAKED}, 0.0)  # another write of its node had no answer yet, say
    assert repetitions.held_back({"a": AGAIN}, {"a": BRAKED}, SOON) == frozenset()


def test_asking_changes_nothing() -> None:
    repetitions = Repetitions()
    assert repetitions.held_back({"a": AGAIN}, {"a": BRAKED}, 0.0) == frozenset()
    assert repetitions.held_back({"a": AGAIN}, {"a": BRAKED}, 0.0) == frozenset()


# --- small raises --------------------------------------------------------------------------------------------------------


def granted(watts: int, other_watts: int = 100, expected: int = 200, **otherwise: Any) -> Grant:
    """Two jobs of one GPU each, at so many watts."""
    jobs = (job_grant("first", gpus=1, limit=watts * 1000), job_grant("other", gpus=1, limit=other_watts * 1000))
    given = grant((watts + other_watts) * 1000, expected=expected * 1000, jobs=jobs, caps=("row",))
    return replace(given, **otherwise)


HAS = granted(200)


def waits(given: Grant, standing: Grant | None = HAS, after: float = SMALL_RAISE_SECONDS / 2) -> bool:
    """Whether a grant waits, so long after another one of its node."""
    raises = SmallChanges()
    raises.sent(["a"], 7.0)
    return raises.held_back({"a": given}, {"a": NodePower(standing, HAS.bound)}, 7.0 + after) == {"a"}


def test_a_raise_by_a_watt_or_two_waits_for_more() -> None:
    assert waits(granted(201))
    assert waits(granted(206))  # a fiftieth of 300 W
    assert waits(granted(203, 103))
    assert waits(granted(201, expected=201))
    assert waits(granted(200, expected=206))  # of the same limits
    assert not waits(granted(200, expected=207))
    assert waits(granted(201, expected=290))  # more of the same limits may be drawn than was thought
    assert not waits(granted(207))
    assert not waits(granted(201), after=SMALL_RAISE_SECONDS)


def test_only_a_node_that_was_granted_something_waits() -> None:
    raises = SmallChanges()
    power = {name: NodePower(HAS, HAS.bound) for name in "ab"}
    assert raises.held_back({"a": granted(201)}, power, 0.0) == frozenset()
    raises.sent(["b"], 0.0)
    assert raises.held_back({"a": granted(201), "b": granted(201)}, power, 0.5) == {"b"}
    assert raises.held_back({"a": granted(201)}, power, 0.75) == frozenset()
    raises.sent(["a"], 0.75)
    assert raises.held_back({"a": granted(201), "b": granted(201)}, power, 1.25) == {"a"}


@pytest.mark.parametrize(
    ("given", "standing"),
    [
        (granted(201), None),
        (granted(200), HAS),
        (granted(199, 100), HAS),
        (granted(203, 99), HAS),
        (granted(201, expected=199), HAS),
        (granted(201, epoch=2), HAS),
        (granted(201, caps=(CapOverNode("row", BrakeVersion(1, 1)),)), HAS),
        (granted(201, lease_seconds=61), HAS),
        (replace(granted(201), jobs=granted(201).jobs[:1]), HAS),
        (replace(granted(201), jobs=(*granted(201).jobs, job_grant("new", gpus=1, limit=1000))), HAS),
        (replace(granted(201), jobs=tuple(replace(job, clock_max_megahertz=1000) for job in granted(201).jobs)), HAS),
    ],
    ids=[
        "the first one",
        "the same again",
        "lower",
        "one job lower",
        "less expected",
        "a new leader's",
        "made with another brake",
        "another lease",
        "a job less",
        "a job more",
        "another clock",
    ],
)
def test_whatever_else_is_new_waits_for_nothing(given: Grant, standing: Grant | None) -> None:
    assert not waits(given, standing)


# --- cuts of what does not come down ------------------------------------------------------------------------------------


def cut_waits(given: Grant, *, held_watts: int = 310, after: float = SMALL_CUT_SECONDS / 2, **otherwise: Any) -> bool:
    """Whether a grant waits, so long after another one of its node, which holds so many watts by its own word."""
    changes = SmallChanges()
    changes.sent(["a"], 7.0)
    power = replace(NodePower(HAS, power_bound(held_watts * 1000), HAS.version), **otherwise)
    return changes.held_back({"a": given}, {"a": power}, 7.0 + after) == {"a"}


def test_a_small_cut_of_what_does_not_come_down_waits_for_more() -> None:
    """Else what it does not give is asked of it as fast as it acknowledges, and of all that share a cap with it."""
    assert cut_waits(granted(199, expected=199))
    assert cut_waits(granted(200, 94))  # a fiftieth of 300 W
    assert not cut_waits(granted(200, 93))
    assert not cut_waits(granted(199), after=SMALL_CUT_SECONDS)
    assert cut_waits(granted(199), held_watts=301)
    assert not cut_waits(granted(199), held_watts=300), "it has come down to what it was granted"
    assert not cut_waits(granted(199), accepted=GrantVersion(1, 0)), "it may be coming down"
    assert not cut_waits(granted(199), unsettled=True)
    assert not cut_waits(granted(199), grant=None)


def test_a_cut_that_waits_is_looked_at_again_as_soon_as_it_may_go() -> None:
    """Nothing else may happen until then: its node has acknowledged already."""
    changes = SmallChanges()
    for name, at in (("a", 7.0), ("b", 7.25), ("c", 7.0)):
        changes.sent([name], at)
    power = {name: NodePower(HAS, power_bound(310_000), HAS.version) for name in "abc"}
    grants = {"a": granted(199), "b": granted(199), "c": granted(201)}
    assert changes.next_cut_seconds(grants, power, 7.375) == SMALL_CUT_SECONDS - 0.375
    assert changes.next_cut_seconds({"b": grants["b"]}, power, 7.375) == SMALL_CUT_SECONDS - 0.125
    assert changes.next_cut_seconds(grants, power, 7.5) == 0.25
    assert changes.next_cut_seconds({"c": grants["c"]}, power, 7.375) == math.inf, "raises come with what comes next"
    assert changes.next_cut_seconds(grants, power, 8.0) == math.inf


@pytest.mark.parametrize(
    "given",
    [
        granted(200),
        granted(199, epoch=2),
        granted(199, caps=(CapOverNode("row", BrakeVersion(1, 1)),)),
        granted(199, lease_seconds=61),
        replace(granted(199), jobs=granted(199).jobs[:1]),
        replace(granted(199), jobs=(*granted(199).jobs, job_grant("new", gpus=1, limit=1000))),
    ],
    ids=[
        "the same again",
        "a new leader's",
        "made with another brake",
        "another lease",
        "a job less",
        "a job more",
    ],
)
def test_a_cut_that_is_more_than_that_waits_for_nothing(given: Grant) -> None:
    assert not cut_waits(given)


# --- limits that go up and down ---------------------------------------------------------------------------------------


class UpAndDown:
    """A node whose jobs' limits are to be `high` for as long as they are low, and low again once they are high."""

    def __init__(self) -> None:
        self.reversals, self.stands, self.time = Reversals(), HAS, 0.0
        self.raised_at: list[float] = []

    def send(self, given: Grant) -> bool:
        power = {"a": NodePower(self.stands, HAS.bound)}
        if self.reversals.held_back({"a": given}, power, self.time):
            return False
        self.reversals.sent(["a"], {"a": given}, power, self.time)
        self.stands = given
        return True

    def turn(self, *, lowered_after: float = 0.02) -> None:
        """Raised as soon as it may be, and lowered a moment later."""
        while not self.send(granted(250)):
            self.time += 0.02
        self.raised_at.append(self.time)
        self.time += lowered_after
        assert self.send(granted(200)), "a cut waits for nothing"
        self.time += 0.02


def test_limits_that_go_up_and_down_do_so_ever_less_often() -> None:
    node = UpAndDown()
    for _ in range(14):
        node.turn()
    pauses = [after - before for before, after in itertools.pairwise(node.raised_at)]
    assert pauses[:3] == pytest.approx([0.04] * 3)  # a few turns are nothing: a plan changes, and a cap
    assert pauses[3:10] == pytest.approx([0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0], abs=0.05)
    assert max(pauses) <= LONGEST_TURN_PAUSE_SECONDS + 0.05


def test_limits_that_stay_for_a_while_have_not_turned() -> None:
    node = UpAndDown()
    for _ in range(14):
        node.turn(lowered_after=TURN_SECONDS)
    assert node.raised_at == pytest.approx([turn * (TURN_SECONDS + 0.02) for turn in range(14)])


def test_turns_are_forgotten_after_a_while() -> None:
    node = UpAndDown()
    for _ in range(9):
        node.turn()
    assert not node.send(granted(250))
    node.time += TURNS_FORGOTTEN_SECONDS
    node.raised_at.clear()
    for _ in range(4):
        node.turn()
    assert node.raised_at[-1] - node.raised_at[0] < 0.5


def test_only_a_raise_waits_and_nothing_that_is_new() -> None:
    node = UpAndDown()
    for _ in range(9):
        node.turn()
    new = (*granted(250).jobs, job_grant("new", gpus=1, limit=100_000))
    for given in (granted(250, 99), replace(granted(250), jobs=new), granted(250, epoch=2), granted(199)):
        assert not node.reversals.held_back({"a": given}, {"a": NodePower(HAS, HAS.bound)}, node.time)
    assert node.reversals.held_back({"a": granted(201)}, {"a": NodePower(HAS, HAS.bound)}, node.time) == {"a"}
    other = {name: NodePower(HAS, HAS.bound) for name in "ab"}
    assert node.reversals.held_back(dict.fromkeys("ab", granted(250)), other, node.time) == {"a"}


def after_turns(turns: int) -> Reversals:
    """A node `a` that was raised at each even second and lowered at each odd one."""
    reversals = Reversals()
    for second in range(2 * turns):
        given, standing = (granted(250), HAS) if second % 2 == 0 else (HAS, granted(250))
        reversals.sent(["a"], {"a": given}, {"a": NodePower(standing, HAS.bound)}, float(second))
    return reversals


def test_a_raise_waits_until_its_pause_is_over_and_only_where_there_is_one() -> None:
    reversals, power = after_turns(FEW_TURNS + 1), {"a": NodePower(HAS, HAS.bound)}
    lowered = 2.0 * FEW_TURNS + 1.0
    raised = {"a": granted(250)}
    assert reversals.held_back(raised, power, lowered + FIRST_TURN_PAUSE_SECONDS - 0.125) == {"a"}
    assert not reversals.held_back(raised, power, lowered + FIRST_TURN_PAUSE_SECONDS)
    assert not reversals.held_back({}, power, lowered)
    assert not reversals.held_back(raised, {"a": NodePower(None, HAS.bound)}, lowered)  # its GPUNode was made anew
    assert not after_turns(FEW_TURNS).held_back(raised, power, lowered)


def test_turns_are_forgotten_just_when_they_are_so_old() -> None:
    for late, forgotten in ((0.0, True), (-1.0, False)):
        reversals, power = after_turns(FEW_TURNS), {"a": NodePower(HAS, HAS.bound)}
        time = 2.0 * FEW_TURNS - 1.0 + TURNS_FORGOTTEN_SECONDS + late
        reversals.sent(["a"], {"a": granted(250)}, power, time)
        reversals.sent(["a"], {"a": HAS}, {"a": NodePower(granted(250), HAS.bound)}, time)
        assert (not reversals.held_back({"a": granted(250)}, power, time)) is forgotten


def test_a_grant_of_the_same_limits_is_no_raise_that_a_cut_takes_back() -> None:
    reversals, standing = Reversals(), granted(290)
    for watts in range(289, 200, -1):
        for given in (replace(standing, lease_seconds=61), granted(watts)):
            reversals.sent(["a"], {"a": given}, {"a": NodePower(standing, HAS.bound)}, 290.0 - watts)
            standing = given
    assert not reversals.held_back({"a": granted(290)}, {"a": NodePower(standing, HAS.bound)}, 90.0)


def test_each_pods_limit_turns_by_itself() -> None:
    """Of eight jobs on a node, each lowered for a moment in its turn, none goes up and down."""
    reversals, time = Reversals(), 0.0
    for _ in range(12):
        for given, standing in (
            (granted(150), HAS),
            (HAS, granted(150)),
            (granted(200, 50), HAS),
            (HAS, granted(200, 50)),
        ):
            power = {"a": NodePower(standing, HAS.bound)}
            assert not reversals.held_back({"a": given}, power, time)
            reversals.sent(["a"], {"a": given}, power, time)
            time += 2.0
    turned, power = after_turns(FEW_TURNS + 1), {"a": NodePower(HAS, HAS.bound)}
    lowered = 2.0 * FEW_TURNS + 1.0
    assert not turned.held_back({"a": granted(200, 150)}, power, lowered)
    assert turned.held_back({"a": granted(250, 150)}, power, lowered) == {"a"}


def test_jobs_that_come_and_go_have_not_turned() -> None:
    """Each pod's limits begin low and rise, and the next pod's begin low again."""
    reversals, time = Reversals(), 0.0
    for number in range(20):
        low, high = (
            grant(watts * 1000, jobs=(job_grant(f"job-{number}", gpus=1, limit=watts * 1000),)) for watts in (100, 300)
        )
        before = grant(300_000, jobs=(job_grant(f"job-{number - 1}", gpus=1, limit=300_000),))
        for given, standing in ((low, before), (high, low)):
            power = {"a": NodePower(standing, standing.bound)}
            assert not reversals.held_back({"a": given}, power, time)
            reversals.sent(["a"], {"a": given}, power, time)
            time += 0.1
