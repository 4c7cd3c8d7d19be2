"""When a cap's status is written: at once for what must not be read as it was, else once an interval."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from flyball_api.power_cap import CapMeterStatus, PowerCap, PowerCapStatus
from flyball_api.values.conditions import StoredCondition
from flyball_operator.power.caps.state import SentWatts
from flyball_operator.power.caps.status import GrantsUnderWay
from flyball_operator.power.caps.status_writes import RISE_SHARE, CapStatuses
from flyball_operator.power.caps.tracker import CapTracker

from tests.support.operator_objects import NOW, cap_view, in_version, ready_node

INTERVAL = 5.0
STALE_SECONDS = 90.0
SOON, RISES = 0.1, RISE_SHARE * INTERVAL


class Writer:
    """Writes the statuses of one cap over a node as they become due; the first one is written."""

    def __init__(self) -> None:
        self.cap, self.tracker, self.statuses, self.monotonic = (
            cap_view(watts=3000),
            CapTracker(),
            CapStatuses(INTERVAL, 1, STALE_SECONDS),
            100.0,
        )
        self.status = PowerCapStatus()
        (self.status,) = self.due()

    def due(self, seconds: float = 0.0, **under_way: Any) -> list[PowerCapStatus]:
        """What is to be written after so many seconds more."""
        self.monotonic += seconds
        cap = replace(self.cap, status=self.status)
        caps = self.tracker.step([cap], {"a": ready_node("a")}, NOW, self.monotonic)
        writes = self.statuses.step(caps, (), GrantsUnderWay(), NOW, self.monotonic, **under_way)
        return [write.status for write in writes]

    def stands(self, **fields: Any) -> None:
        """Have the API server's copy say something else."""
        self.status = msgspec.structs.replace(self.status, **fields)


def other(*conditions: StoredCondition, kind: str) -> tuple[StoredCondition, ...]:
    return tuple(msgspec.structs.replace(item, status="Unknown") if item.type == kind else item for item in conditions)


def test_what_stands_already_is_not_written_again() -> None:
    writer = Writer()
    assert [writer.due(INTERVAL) for _ in range(3)] == [[], [], []]


@pytest.mark.parametrize(
    "stands",
    [
        {"epoch": 0},
        {"observed_generation": 0},
        {"effective_watts": 3001},  # they fell
        {"committed_watts": 1},  # it is more
        {"committed_watts": None},
        {"meter": CapMeterStatus("Silent", 700)},
        {"epoch": 0, "effective_watts": 2000},  # they rose, and that is not all
    ],
    ids=lambda stands: " ".join(stands),
)
def test_what_must_not_be_read_as_it_was_is_written_at_once(stands: dict[str, Any]) -> None:
    writer = Writer()
    writer.stands(**stands)
    assert len(writer.due(SOON)) == 1


@pytest.mark.parametrize(
    ("kind", "at_once"), [("Enforced", True), ("Breached", True), ("MeterSilent", True), ("Feasible", False)]
)
def test_conditions_are_written_at_once_but_for_what_could_be_held(kind: str, at_once: bool) -> None:
    writer = Writer()
    writer.stands(conditions=other(*writer.status.conditions, kind=kind))
    assert bool(writer.due(SOON)) == at_once


@pytest.mark.parametrize(
    "stands",
    [{"measured_watts": 1}, {"committed_watts": 9999}, {"least_watts": 1}, {"headroom_watts": 1}, {"nodes": 9}],
    ids=lambda stands: " ".join(stands),
)
def test_figures_are_written_once_an_interval(stands: dict[str, Any]) -> None:
    writer = Writer()
    writer.stands(**stands)
    assert writer.due(INTERVAL - 0.5) == []
    (written,) = writer.due(0.5)
    writer.status = written
    writer.stands(**stands)
    assert writer.due(INTERVAL - SOON) == [], "counted from the last one"


@pytest.mark.parametrize("before", [2000, None])
def test_watts_that_only_rise_wait_for_a_tenth_of_the_interval(before: int | None) -> None:
    writer = Writer()
    writer.stands(effective_watts=before)
    assert writer.due(RISES / 2) == []
    assert len(writer.due(RISES / 2)) == 1


def test_what_did_not_arrive_is_due_again_but_not_while_it_is_being_written() -> None:
    writer = Writer()
    writer.stands(epoch=0)
    assert writer.due(SOON, under_way={writer.cap.uid}) == []
    assert len(writer.due()) == 1
    assert len(writer.due(SOON)) == 1


def test_of_a_cap_that_could_never_be_read_it_is_written_that_nobody_knows_at_once_and_until_that_stands() -> None:
    writer = Writer()
    broken: PowerCap = cap_view("broken", watts=1, permilleOfMax=1)
    writer.cap, writer.status = broken, PowerCapStatus()
    for _ in range(3):
        (written,) = writer.due(SOON)
    assert {item.status for item in written.conditions} == {"Unknown"}
    writer.status = written
    assert writer.due(SOON) == []
    writer.cap = cap_view("broken", watts="many")  # no more is known of it than before
    assert writer.due(SOON) == []
    assert len(writer.due(INTERVAL)) == 1


def test_what_was_sent_over_a_version_counts_by_its_least_until_another_version_is_read_or_none_can_be_without_it() -> (
    None
):
    writer = Writer()
    (effective, committed), read = (writer.status.effective_watts, writer.status.committed_watts), writer.cap
    assert committed is not None
    (sent,) = writer.statuses.update_sent([read], writer.monotonic).values()
    assert (sent.effective_watts, sent.committed_watts) == (effective, committed)
    writer.stands(committed_watts=committed - 1)  # over the same version: any of the two may be the one that is taken
    assert writer.due(RISES)
    (least,) = writer.statuses.update_sent([read], writer.monotonic).values()
    assert (least.effective_watts, least.committed_watts, least.at) == (effective, committed, writer.monotonic)
    assert writer.statuses.update_sent([read], writer.monotonic + STALE_SECONDS)
    assert not writer.statuses.update_sent([read], writer.monotonic + STALE_SECONDS + 0.1)


@pytest.mark.parametrize("seen", [[], [in_version(cap_view(watts=3000), 13)]])
def test_what_was_sent_is_forgotten_with_its_cap_and_once_another_version_of_it_is_read(seen: list[PowerCap]) -> None:
    writer = Writer()
    assert writer.statuses.update_sent([writer.cap], writer.monotonic)
    assert not writer.statuses.update_sent(seen, writer.monotonic)
    assert not writer.statuses.update_sent([writer.cap], writer.monotonic)


@pytest.mark.parametrize(
    ("said", "sent", "least"), [(5, 3, 3), (3, 5, 3), (None, 3, 3), (3, None, 3), (None, None, None)]
)
def test_the_least_of_what_is_said_and_sent_counts(said: int | None, sent: int | None, least: int | None) -> None:
    cap = cap_view(watts=3000, status={"effectiveWatts": said, "committedWatts": said} if said is not None else {})
    unseen = SentWatts("12", 0.0, sent, sent)
    (state,) = CapTracker().step([cap], {"a": ready_node("a")}, NOW, 0.0).with_unseen({cap.uid: unseen}).states
    assert state.budget().budget_milliwatts == (3000 if least is None else least) * 1000
    assert state.published_milliwatts == (None if least is None else least * 1000)


def test_of_what_was_sent_over_one_version_the_least_counts_and_nothing_of_another_one() -> None:
    later, earlier = SentWatts("12", 2.0, 5, None), SentWatts("12", 1.0, 4, 7)
    assert later.or_less(earlier) == SentWatts("12", 2.0, 4, 7)
    assert later.or_less(SentWatts("11", 1.0, 4, 7)) == later.or_less(None) == later
