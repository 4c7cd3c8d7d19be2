"""The closed loop on the real controller and the agents' real decisions: what a meter says moves the hardware's limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from flyball_operator.power.caps.meter import IMPLAUSIBLE_SECONDS, LARGEST_RISE, NEVER_READ, MeterReading, Silence
from flyball_operator.power.caps.state import CapState
from flyball_operator.power.caps.status import REASONS, GrantsUnderWay, cap_status
from flyball_operator.power.caps.tracker import CapTracker
from flyball_operator.power.nodes.info import NodeInfo

from tests.support.crd_schema import assert_valid
from tests.support.operator_objects import NOW, as_stored, cap_view, ready_node
from tests.support.power_cluster import GPUS, LARGEST, NODES, PowerCluster, cap_watts, few_grants_at_once

ALL = len(NODES) * GPUS
ROUND_SECONDS = 3.0


@pytest.fixture(autouse=True)
def few_grants() -> Iterator[None]:
    with few_grants_at_once():
        yield


class Metered(PowerCluster):
    """Three nodes under a hall's cap with a meter, whose jobs draw a share of what they are given."""

    def __init__(self, tenths: int, *, expected: bool = False, share: float = 1.0) -> None:
        super().__init__()
        self.cap = cap_watts("hall", tenths)
        self.hidden_watts = 0.0
        self.drawn_share = 0.5
        self.meter_works = True
        self.begin([tenths, 10, 10], [expected, False, False], [(LARGEST, share)] * ALL, rounds=0, metered=["hall"])
        self.rounds(8)

    @property
    def drawn(self) -> float:
        return self.drawn_share * self.hardware_watts("hall") + self.hidden_watts

    def rounds(self, number: int) -> None:
        for _ in range(number):
            if self.meter_works:
                self.meter_reads("hall", self.drawn)
            self.clean_round()
            self.check()

    def condition(self, kind: str) -> tuple[str, str]:
        (found,) = [item for item in self.api.caps["hall"].status.conditions if item.type == kind]
        return found.status, found.reason


def test_a_dead_meter_lowers_the_hardware_in_the_stated_time() -> None:
    hall = Metered(10)
    hall.meter_works = False
    died, before = hall.seconds, hall.hardware_watts("hall")
    while hall.seconds - died < 30:  # silentSeconds
        hall.rounds(1)
    hall.rounds(2)  # the grants, and their acknowledgements
    assert hall.hardware_watts("hall") <= 0.9 * hall.cap < before
    assert hall.condition("MeterSilent") == ("True", "NoReading")
    assert hall.condition("Breached") == ("Unknown", "MeterSilent")
    hall.meter_works = True
    hall.rounds(2)
    assert hall.condition("MeterSilent") == ("False", "Reading")


def test_watts_that_nobody_told_the_cap_come_off_the_limits() -> None:
    hall = Metered(8)
    hall.drawn_share, hall.hidden_watts = 1.0, 400.0
    hall.rounds(2)
    assert hall.drawn > hall.cap
    assert hall.condition("Breached") == ("True", "MeasuredOverCap")
    hall.rounds(6)
    assert hall.drawn <= hall.cap
    hall.rounds(20)
    assert hall.drawn <= 0.96 * hall.cap
    assert hall.condition("Breached") == ("False", "WithinCap")
    assert hall.condition("Enforced") == ("True", "LimitsAcknowledged")


def test_a_cap_that_adds_up_predictions_is_cut_where_they_were_too_low() -> None:
    hall = Metered(6, expected=True, share=0.5)
    assert hall.hardware_watts("hall") > hall.cap  # which such a cap allows
    assert hall.drawn <= hall.cap
    hall.drawn_share = 1.0  # the jobs draw all that they may, and not what was predicted
    hall.rounds(1)
    assert hall.drawn > hall.cap
    hall.rounds(10)
    assert hall.drawn <= hall.cap


def test_limits_come_back_after_a_breach_without_passing_the_cap_again() -> None:
    hall = Metered(8)
    hall.drawn_share, hall.hidden_watts = 1.0, 400.0
    hall.rounds(20)
    hall.hidden_watts = 0.0
    lowered = hall.hardware_watts("hall")
    hall.rounds(100)
    assert lowered < hall.hardware_watts("hall") <= hall.cap


def test_limits_come_back_in_steps_also_above_a_cap_that_adds_up_predictions() -> None:
    hall = Metered(6, expected=True, share=0.5)
    before = hall.hardware_watts("hall")
    hall.drawn_share = 1.0
    hall.rounds(10)
    hall.drawn_share = 0.3
    seen = [hall.hardware_watts("hall")]
    for _ in range(100):
        hall.rounds(1)
        seen.append(hall.hardware_watts("hall"))
    assert seen[0] < hall.cap < seen[-1] <= before
    assert max(after - earlier for earlier, after in pairwise(seen)) <= LARGEST_RISE * hall.cap + 1


# --- what a status says of it ----------------------------------------------------------------------------------------


def status_of(
    reading: Callable[[float], MeterReading], seconds: float = 0.0, **meter: Any
) -> tuple[CapState, dict[str, Any]]:
    """The state and the stored status of a cap of 1,000 W over two GPUs, followed for so many seconds."""
    tracker, cap = CapTracker(), cap_view("row", watts=1000, meter={"file": "pdu", **meter})
    nodes = {"a": ready_node("a", gpus=2)}
    at = 0.0
    while True:
        (state,) = tracker.step([cap], nodes, NOW, at, readings={cap.uid: reading(at)}).states
        if at >= seconds:
            break
        at += 1.0
    stored = as_stored(cap_status(state, [], GrantsUnderWay(), NOW, feasible=True))
    assert_valid("PowerCap", "status", stored)
    for item in stored["conditions"]:
        assert item["reason"] in REASONS[item["type"]]
    return state, stored


def condition(stored: dict[str, Any], kind: str) -> tuple[str, str, str]:
    (found,) = [item for item in stored["conditions"] if item["type"] == kind]
    return found["status"], found["reason"], found["message"]


def test_a_status_says_what_was_measured_by_what_and_when() -> None:
    _, stored = status_of(lambda at: MeterReading(612.4, 1.0, NOW, ""), seconds=4.0)
    assert stored["measuredWatts"] == 612
    assert stored["measured"] == {"source": "file pdu", "time": "2030-06-01T12:00:00Z", "ageSeconds": 3}
    assert stored["meter"] == {"state": "Within"}
    assert condition(stored, "MeterSilent") == ("False", "Reading", "file pdu is read")


def test_a_status_shows_what_is_drawn_outside_the_gpus() -> None:
    _, stored = status_of(lambda at: MeterReading(616.0, at, NOW, ""), seconds=60.0)
    assert stored["meter"] == {"state": "Within", "overheadWatts": 616 - 2 * 58}


def test_what_is_drawn_outside_the_gpus_is_known_by_new_readings_of_a_meter_that_is_believed() -> None:
    tracker, cap = CapTracker(), cap_view("row", watts=1000, meter={"file": "pdu", "silentSeconds": 60})
    few, many = {"a": ready_node("a", gpus=2)}, {"a": ready_node("a", gpus=8)}

    def overhead(at: float, nodes: dict[str, NodeInfo], watts: float, read_at: float) -> int | None:
        reading = {cap.uid: MeterReading(watts, read_at, NOW, "")}
        return tracker.step([cap], nodes, NOW, at, readings=reading).states[0].overhead.watts

    for at in range(101):
        overhead(at, few, 500.0, at)
    # The GPUs draw more in many a cycle before the meter is read again.
    assert [overhead(100 + each / 20, many, 500.0, 100.0) for each in range(1, 300)][-1] == 500 - 2 * 58
    # It is read again, says less than the GPUs draw, and is believed no longer after a while.
    for at in (*range(120, 220, 20), *range(220, 400)):
        shown = overhead(at, few, 10.0, at)
    assert shown == 500 - 2 * 58


def test_a_silent_meter_is_told_with_its_error_and_what_is_done() -> None:
    _, stored = status_of(lambda at: MeterReading(error="file pdu: No such file"), seconds=30.0)
    status, reason, message = condition(stored, "MeterSilent")
    assert (status, reason) == ("True", "NoReading")
    assert "No such file" in message
    assert "limits are lowered: they and the static overhead add up to 900 W at most" in message
    assert stored["measured"] == {"source": "agents"}
    assert stored["measuredWatts"] == 2 * 58
    assert stored["meter"] == {"state": "Silent", "allowedWatts": 900}
    assert condition(stored, "Breached")[:2] == ("Unknown", "MeterSilent")


LIMITED = "limits are lowered: they and the static overhead add up to 900 W at most"


def test_of_a_silent_meter_nobody_knows_what_is_drawn() -> None:
    _, stored = status_of(lambda at: MeterReading(error="file pdu: No such file"), seconds=30.0)
    assert condition(stored, "MeterSilent")[2] == f"file pdu has not been read: file pdu: No such file; {LIMITED}"
    assert condition(stored, "Breached")[2] == (
        "nobody knows what is drawn; the agents report 116 W of the GPUs, with the static overhead, cap 1000 W"
    )


@pytest.mark.parametrize(("error", "why"), [("", "its last one is not renewed"), ("it is locked", "it is locked")])
def test_a_meter_that_stops_says_why_its_reading_is_old(error: str, why: str) -> None:
    _, stored = status_of(lambda at: MeterReading(612.0, min(at, 5.0), NOW, error if at > 5 else ""), seconds=40.0)
    expected = ("True", "NoReading", f"file pdu has no new reading: {why}; {LIMITED}")
    assert condition(stored, "MeterSilent") == expected


def test_a_meter_that_reads_less_than_the_gpus_report_is_told_with_both_figures() -> None:
    _, stored = status_of(lambda at: MeterReading(10.0, at, NOW, ""), seconds=IMPLAUSIBLE_SECONDS)
    message = f"file pdu reads 10 W, and the agents report 116 W of the GPUs alone; {LIMITED}"
    assert condition(stored, "MeterSilent") == ("True", "Implausible", message)


def test_where_the_operator_only_observes_no_meter_does_anything_to_limits() -> None:
    state, _ = status_of(lambda at: MeterReading(error="gone"), seconds=30.0)
    observed = as_stored(
        cap_status(msgspec.structs.replace(state, if_governed=state), [], GrantsUnderWay(), NOW, feasible=True)
    )
    assert condition(observed, "MeterSilent")[2] == "file pdu has not been read: gone"


def test_a_breach_says_what_is_measured_and_that_jobs_are_cut() -> None:
    state, stored = status_of(lambda at: MeterReading(1100.0, at, NOW, ""), seconds=6.0)
    assert condition(stored, "Breached")[:2] == ("True", "MeasuredOverCap")
    assert "jobs are cut by priority" in condition(stored, "Breached")[2]
    assert stored["breach"]["watts"] == 100
    budget = state.meter_budget()
    assert budget is not None
    assert budget.by_priority
    assert budget.budget_milliwatts == (stored["meter"]["allowedWatts"]) * 1000


def test_what_a_node_reported_before_it_went_away_makes_no_meter_implausible() -> None:
    cap = cap_view("row", watts=1000, meter={"file": "pdu"})
    for ready, silence in ((True, Silence.IMPLAUSIBLE), (False, None)):
        tracker, nodes = CapTracker(), {"a": ready_node("a", gpus=2, ready=ready)}
        for at in range(0, 101, 2):
            reading = MeterReading(10.0, float(at), NOW, "")
            (state,) = tracker.step([cap], nodes, NOW, float(at), readings={cap.uid: reading}).states
        assert state.meter is not None
        assert state.meter.silence is silence
        assert (state.overhead.watts is None) == bool(state.doubts)


def test_a_cap_without_a_meter_says_so() -> None:
    tracker = CapTracker()
    (state,) = tracker.step([cap_view("row", watts=1000)], {"a": ready_node("a")}, NOW, 0.0).states
    stored = as_stored(cap_status(state, [], GrantsUnderWay(), NOW, feasible=True))
    assert condition(stored, "MeterSilent")[:2] == ("False", "NoMeter")
    assert "meter" not in stored
    assert (state.reading, state.meter_budget()) == (NEVER_READ, None)


@pytest.mark.parametrize(("metered", "looks_again"), [(500.0, 2.0), (1100.0, 0.5)])
def test_a_breach_is_looked_at_again_soon(metered: float, looks_again: float) -> None:
    state, _ = status_of(lambda at: MeterReading(metered, at, NOW, ""))
    assert state.next_change_seconds == looks_again
