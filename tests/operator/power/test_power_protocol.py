"""The power protocol whole: the real PowerController against the agents' real decisions, under random interleavings.

The small cluster of `tests.support.power_cluster` is driven twice: by schedules from a seeded generator, which are many and
long, and by a state machine, which shrinks what it finds. Caps overlap, add up limits or predicted draw, move, and cannot
be read for a while; plans follow each other; grants, answers, statuses and reports are lost or late; leaders change and
begin with an old copy; Nodes lose their labels; meters say anything, or nothing; agents lag, stop between two sets, reboot,
lose their lease, and have GPUs whose setter lies. Brakes are written, lost, land late, and are seen late, twice or as they
once were; emergencies are declared and ended by people.

After every step:

1. No node's limits add up to more than what the API's objects show that it may draw.
2. A cap that holds goes on holding, until someone lowers it or a node reboots: the sum of what its nodes may draw, every
   grant that may yet land included, stays within what the leader knows of the cap.
3. A cap whose status says Enforced is kept by the limits that the hardware has.

At the end, when the faults have ceased, everything comes to rest and every cap that can be met is enforced.
`make mutants` shows that each guard of the controller is needed here or in the unit tests (docs/proof.md).
"""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.examples import examples
from tests.support.power_cluster import (
    AT_ONCE,
    DEFAULT,
    GPUS,
    LARGEST,
    MIN,
    NODES,
    SELECTORS,
    PowerCluster,
    few_grants_at_once,
)

PLACES = len(NODES) * GPUS
STEPS = 80  # of a schedule
SCHEDULES = 60

# What becomes of a grant: "zombie" ones are given up and land later, or never; "slow" ones are answered later.
FATES = [*["answered"] * 4, *["answer lost", "zombie", "slow"] * 2, "refused", "lost"]
STATUS_FATES = ["answered", "answered", "lost", "answer lost"]
LAGS = [0, 0, 0, 1, 3]  # changes that the watch has yet to bring
SECONDS = [0.1, 1.0, 1.0, 1.0, 5.0, 11.0]
UNREADABLE = [*[""] * 12, *NODES, *SELECTORS]  # a GPUNode or a cap, for one cycle
SETS, REPORTS = (
    [0, 1, 9, 9, 9],
    [True, True, True, False],
)  # how many an agent gets to make, and whether its report arrives
LIMITS_WATTS = [MIN, LARGEST, 250, DEFAULT]
SHARES = [0.5, 1.0]  # of a limit that is predicted to be drawn
TENTHS = [2, 3, 5, 7, 10]
METER_WATTS = [0.0, 300.0, 900.0, 1500.0, 2750.0, 1e9]
FAULTS = [
    "lease ends",
    "lease is renewed",
    "setter lies",
    "reboot",
    "another hand raises a limit",
    "leader changes",
    "labels change",
]


# --- schedules from a seeded generator ------------------------------------------------------------------------------


class Schedule:
    """One random schedule; the same seed is the same schedule."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.cluster = PowerCluster()

    def run(self) -> None:
        draw = self.random
        self.cluster.begin(
            [draw.choice(TENTHS) for _ in SELECTORS],
            [draw.random() < 0.4 for _ in SELECTORS],
            self.wishes(),
            draw.choice([0, 5]),
            metered=[name for name in SELECTORS if draw.random() < 0.3],
            ramped={name: draw.choice([10, 100, 1000]) for name in SELECTORS if draw.random() < 0.2},
        )
        actions = [self.cycle, self.round, self.plan, self.write_ends, self.cap, self.pod, self.fault, self.emergency]
        weights = [3, 8, 5, 4, draw.choice([1, 4]), 1, draw.choice([0, 1]), draw.choice([0, 0, 0.5])]
        for action in draw.choices(actions, weights, k=STEPS):
            action()
            self.cluster.check()
        self.cluster.comes_to_rest()

    def wishes(self) -> list[tuple[int, float]]:
        return [(self.random.choice(LIMITS_WATTS), self.random.choice(SHARES)) for _ in range(PLACES)]

    def cycle(self) -> None:
        draw = self.random
        for name in SELECTORS:
            if draw.random() < 0.7:
                self.cluster.meter_reads(name, draw.choice(METER_WATTS))
        sent, statuses = draw.choices(FATES, k=AT_ONCE), draw.choices(STATUS_FATES, k=len(SELECTORS))
        self.cluster.operator_cycle(sent, statuses, draw.choice(SECONDS), draw.choice(LAGS), draw.choice(UNREADABLE))

    def round(self) -> None:
        self.cycle()
        self.cluster.check()
        self.cluster.agents_tick([(self.random.choice(SETS), self.random.choice(REPORTS)) for _ in NODES])

    def plan(self) -> None:
        self.cluster.plan_changes(self.wishes(), near=self.random.random() < 0.2)
        self.cycle()

    def write_ends(self) -> None:
        self.cluster.a_write_under_way_ends(self.random.randrange(10), self.random.choice(FATES))

    def cap(self) -> None:
        self.cluster.cap_changes(self.random.choice(list(SELECTORS)), self.random.choice([1, *TENTHS]))

    def pod(self) -> None:
        draw = self.random
        gpu = draw.choice([None, *range(GPUS)])
        self.cluster.pod_comes_or_goes(draw.choice(NODES), draw.randint(0, GPUS), draw.random() < 0.5, gpu)

    def emergency(self) -> None:
        self.cluster.emergency(self.random.choice(list(SELECTORS)), self.random.choice(["Active", "Ended", "Ended"]))

    def fault(self) -> None:
        self.cluster.fault(self.random.choice(NODES), self.random.choice(FAULTS), self.random.choice([0, 2, 6]))


@pytest.mark.parametrize("part", range(4))
def test_random_schedules_keep_every_promise(part: int) -> None:
    with few_grants_at_once():
        for number in range(examples(SCHEDULES)):
            seed = 4 * number + part
            try:
                Schedule(seed).run()
            except AssertionError as error:
                raise AssertionError(f"schedule {seed}: {error}") from error


def test_a_leader_that_has_yet_to_see_a_reboot_goes_on_with_a_grant_that_may_have_been_lost() -> None:
    """It counts it all the time: that the reboot and the grant together pass the cap is nobody's command."""
    with few_grants_at_once():
        Schedule(100391).run()


# --- and by a state machine -------------------------------------------------------------------------------------------

sent_fates = st.lists(st.sampled_from(FATES), min_size=AT_ONCE, max_size=AT_ONCE)
status_fates = st.lists(st.sampled_from(STATUS_FATES), min_size=len(SELECTORS), max_size=len(SELECTORS))
agent_rounds = st.lists(
    st.tuples(st.sampled_from(SETS), st.sampled_from(REPORTS)), min_size=len(NODES), max_size=len(NODES)
)
all_wishes = st.lists(
    st.tuples(st.sampled_from(LIMITS_WATTS), st.sampled_from(SHARES)), min_size=PLACES, max_size=PLACES
)
node_names, lags = st.sampled_from(NODES), st.sampled_from(LAGS)


class PowerProtocol(RuleBasedStateMachine):
    @initialize(
        tenths=st.lists(st.sampled_from(TENTHS), min_size=len(SELECTORS), max_size=len(SELECTORS)),
        expected=st.lists(st.booleans(), min_size=len(SELECTORS), max_size=len(SELECTORS)),
        wishes=all_wishes,
        rounds=st.sampled_from([0, 5]),
    )
    def begin(self, tenths: list[int], expected: list[bool], wishes: list[tuple[int, float]], rounds: int) -> None:
        self.cluster = PowerCluster()
        self.cluster.begin(tenths, expected, wishes, rounds)

    @rule(
        sent=sent_fates,
        statuses=status_fates,
        seconds=st.sampled_from(SECONDS),
        behind=lags,
        unreadable=st.sampled_from(UNREADABLE),
    )
    def operator_cycle(
        self, sent: list[str], statuses: list[str], seconds: float, behind: int, unreadable: str
    ) -> None:
        self.cluster.operator_cycle(sent, statuses, seconds, behind, unreadable)

    @rule(sent=sent_fates, behind=lags, ticks=agent_rounds, wishes=all_wishes)
    def a_new_plan_and_a_round(
        self, sent: list[str], behind: int, ticks: list[tuple[int, bool]], wishes: list[tuple[int, float]]
    ) -> None:
        self.cluster.plan_changes(wishes, near=False)
        self.cluster.operator_cycle(sent, ["answered"] * len(SELECTORS), 1.0, behind, "")
        self.cluster.agents_tick(ticks)

    @rule(ticks=agent_rounds)
    def agents_tick(self, ticks: list[tuple[int, bool]]) -> None:
        self.cluster.agents_tick(ticks)

    @rule(wishes=all_wishes, near=st.booleans())
    def plan_changes(self, wishes: list[tuple[int, float]], near: bool) -> None:
        self.cluster.plan_changes(wishes, near)

    @rule(which=st.integers(0, 9), fate=st.sampled_from(FATES))
    def a_write_under_way_ends(self, which: int, fate: str) -> None:
        self.cluster.a_write_under_way_ends(which, fate)

    @rule(name=st.sampled_from(list(SELECTORS)), tenths=st.sampled_from([1, *TENTHS]))
    def cap_changes(self, name: str, tenths: int) -> None:
        self.cluster.cap_changes(name, tenths)

    @rule(name=node_names, index=st.integers(0, GPUS), seen=st.booleans(), gpu=st.none() | st.integers(0, GPUS - 1))
    def pod_comes_or_goes(self, name: str, index: int, seen: bool, gpu: int | None) -> None:
        self.cluster.pod_comes_or_goes(name, index, seen, gpu)

    @rule(name=node_names, fault=st.sampled_from(FAULTS), behind=st.sampled_from([0, 2, 6]))
    def fault(self, name: str, fault: str, behind: int) -> None:
        self.cluster.fault(name, fault, behind)

    @rule(name=st.sampled_from(list(SELECTORS)), state=st.sampled_from(["Active", "Ended"]))
    def emergency(self, name: str, state: str) -> None:
        self.cluster.emergency(name, state)

    @invariant()
    def every_promise_is_kept(self) -> None:
        if hasattr(self, "cluster"):
            self.cluster.check()


PowerProtocol.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)


class TestPowerProtocol(PowerProtocol.TestCase):  # type: ignore[misc, valid-type]
    def runTest(self) -> None:
        with few_grants_at_once():
            super().runTest()
