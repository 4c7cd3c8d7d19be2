"""Plans on boards whose clocks come late: what that costs, measured in virtual time, and what the client makes of it."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from flyball.pipelines.clock_changes import AGAIN_LATE, MOST_LATE, ClockChanges
from flyball.pipelines.plan import StagePlans
from flyball_frontiers.pipeline import PipelineProfile, Schedule, pipeline_graph
from flyball_frontiers.pipeline.document import perseus_document
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.late_clocks import LatePipeline

PROFILES = Path(__file__).parents[3] / "examples/profiles"
MICROBATCHES = 16
WAITING_WATTS = {"gpt3-a40-unbalanced": 70.38, "gpt3-a100-unbalanced": 83.64}
# Of the middle one of all computations: a clock that takes a twentieth of it to be set, half of it, and as long as it.
SOON, LATE, TOO_LATE = 0.05, 0.5, 1.0


class Recorded:
    """A recorded profile, and what `flyball frontier` writes of it."""

    def __init__(self, name: str) -> None:
        self.watts = WAITING_WATTS[name]
        self.profile = PipelineProfile.from_csv((PROFILES / f"{name}.csv").read_text(encoding="utf-8"))
        graph = pipeline_graph(self.profile, Schedule.ONE_F_ONE_B, MICROBATCHES)
        self.document: Any = json.loads(json.dumps(perseus_document(graph, self.watts, 60)))
        shortest = sorted(min(point.time_seconds for point in points) for points in self.profile.points.values())
        self.computation_seconds = shortest[len(shortest) // 2]
        self.energy_seconds = StagePlans(self.document, 0).seconds_for("Energy")
        self.fast = self.run(0.0, steady=True)

    def run(
        self, late: float, seconds: float | None = None, *, known: bool = False, steady: bool = False
    ) -> tuple[float, float, int]:
        """The last of some iterations: seconds, joules, and how many stages follow their plan; `steady`: none."""
        set_seconds = late * self.computation_seconds
        tells = (lambda: 1e9) if steady else (lambda: set_seconds if known else None)
        pipeline = LatePipeline(self.profile, self.document, MICROBATCHES, self.watts, set_seconds, seconds, tells)
        for _ in range(4):
            took, joules = pipeline.iterate()
        return took, joules, sum(stage.follows_computations for stage in pipeline.pipelines)

    def against_the_highest(
        self, late: float, seconds: float | None = None, *, known: bool = False
    ) -> tuple[float, float]:
        """How much longer, and of how many more joules, an iteration is than at the highest clock."""
        took, joules, _ = self.run(late, seconds, known=known)
        return took / self.fast[0] - 1, joules / self.fast[1] - 1


@pytest.fixture(scope="module", params=sorted(WAITING_WATTS))
def recorded(request: pytest.FixtureRequest) -> Recorded:
    return Recorded(request.param)


def test_clocks_that_come_late_make_the_fastest_plan_longer_and_save_joules_all_the_same(recorded: Recorded) -> None:
    """What docs/decisions.md says of it, before anything is decided by it."""
    in_time, soon, late, too_late = (recorded.against_the_highest(share) for share in (0.0, SOON, LATE, TOO_LATE))
    assert in_time[0] == pytest.approx(0.0, abs=1e-6)
    assert in_time[0] < soon[0] < 0.01 < 0.02 < late[0] < 0.05
    assert 0.03 < too_late[0] < 0.05
    assert in_time[1] < soon[1] < late[1]
    assert too_late[1] < -0.09, "at a clock that is another's, but on average as low"


def test_where_time_is_what_is_wanted_no_iteration_becomes_longer_by_late_clocks(recorded: Recorded) -> None:
    for late in (0.0, SOON, 0.1, 0.13, 0.2, LATE, TOO_LATE, 4.0):
        assert recorded.against_the_highest(late, known=True)[0] < 0.01, late
    assert recorded.run(SOON, known=True) == recorded.run(SOON), "where they come in time the plan is followed"
    assert recorded.run(TOO_LATE, known=True)[2] == 0


def test_where_joules_are_what_is_wanted_a_plan_is_followed_however_late(recorded: Recorded) -> None:
    for late in (SOON, LATE, TOO_LATE, 4.0):
        followed = recorded.run(late, recorded.energy_seconds, known=True)
        assert followed == recorded.run(late, recorded.energy_seconds)
        assert followed[1] / recorded.fast[1] - 1 < -0.2


@given(
    latencies=st.lists(st.none() | st.floats(0.0, 0.5), min_size=1, max_size=20),
    clocks=st.lists(st.none() | st.sampled_from([780, 1200, 1410]), min_size=1, max_size=12),
    seconds=st.floats(0.001, 1.0),
    fastest=st.booleans(),
)
@settings(max_examples=examples(200))
def test_it_is_given_up_only_where_clocks_are_known_to_be_late_and_taken_up_again(
    latencies: list[float | None], clocks: list[int | None], seconds: float, fastest: bool
) -> None:
    latency: list[float | None] = [None]
    changes = ClockChanges(lambda: latency[0])
    for latency[0] in latencies:
        before = changes.followed
        for clock in clocks:
            changes.computed(clock, seconds)
        changes.iteration_over(0, fastest=fastest)
        known = latency[0]
        if known is None or not fastest or len({clock for clock in clocks if clock is not None}) < 2:
            assert changes.followed
        elif known > MOST_LATE * seconds * (1 + 1e-9):
            assert not changes.followed
        elif known < AGAIN_LATE * seconds * (1 - 1e-9):
            assert changes.followed
        else:
            assert (
                changes.followed == before or abs(known / seconds - MOST_LATE) < 1e-6 or known / seconds <= AGAIN_LATE
            )


def test_that_a_plan_is_not_followed_costs_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    latency = [0.04]
    changes = ClockChanges(lambda: latency[0])
    with caplog.at_level(logging.WARNING):
        for latency[0] in (0.04, 0.001, 0.04, 0.001):
            for clock in (1410, 780):
                changes.computed(clock, 0.1)
            changes.iteration_over(2, fastest=True)
    (record,) = caplog.records
    assert "stage 2 runs at its plan's highest clock" in record.getMessage()
    assert "40.0 ms to be set here, 40 % of the computations" in record.getMessage()
