"""What caps come to and what their statuses may say: never "enforced" above what the limits can be."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from flyball_api.power_brake import PowerBrakeSpec, power_brake_object, read_power_brake
from flyball_api.power_cap import PowerCap, PowerCapSpec, PowerCapStatus, read_power_cap
from flyball_api.values.units import MilliwattsPerGpu, NodeMilliwatts
from flyball_operator.power.caps import tracker as cap_tracker
from flyball_operator.power.caps.schedule import KnownChange, next_scheduled_change
from flyball_operator.power.caps.state import CapState
from flyball_operator.power.caps.status import ALWAYS_SHOWN, REASONS, GrantsUnderWay, cap_status, unreadable_status
from flyball_operator.power.caps.tracker import CapTracker
from flyball_operator.power.nodes.failsafe import MINIMUM, Failsafe
from flyball_operator.power.nodes.info import NodeInfo, read_nodes
from flyball_operator.power.nodes.reservations import NodeRules
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.support.crd_schema import assert_valid
from tests.support.examples import examples
from tests.support.operator_objects import (
    DEFAULT,
    FLOOR,
    NOW,
    Json,
    as_stored,
    cap_view,
    gpu_node_view,
    grant,
    node_view,
    raw_device,
    ready_node,
    running_pod,
)

NO_GRANTS = GrantsUnderWay()
REFERENCE = (Path(__file__).parents[4] / "docs" / "api.md").read_text()


def holding(name: str, watts: int, *, unresponsive: bool = False, ready: bool = True, **keywords: Any) -> NodeInfo:
    """A node of eight A100s whose limits add up to so many watts, as read back."""
    view = gpu_node_view(name, grant(watts * 1000), limits=watts * 1000, **keywords)
    node = node_view(name, ready=ready)
    return read_nodes([node], {name: view}, [], frozenset([name] if unresponsive else []))[name]


def stored(status: PowerCapStatus) -> Json:
    """A status as the API server stores it, and as the next operator reads it."""
    kept = as_stored(status)
    read = read_power_cap({"metadata": {"name": "row"}, "spec": {"watts": 1}, "status": kept})
    assert (read.status, read.problems) == (status, ())
    assert_valid("PowerCap", "status", kept)
    return kept


class Site:
    """A cap over some nodes, read and published over and over."""

    def __init__(self, *nodes: NodeInfo, **spec: Any) -> None:
        self.nodes = {info.name: info for info in nodes}
        self.spec: Json = spec
        self.status: Json = {}
        self.tracker = CapTracker()
        self.now, self.monotonic = NOW, 1000.0

    @property
    def view(self) -> PowerCap:
        return cap_view(status=self.status, **self.spec)

    def read(self, seconds: float = 0.0) -> CapState:
        self.now += timedelta(seconds=seconds)
        self.monotonic += seconds
        caps = self.tracker.step([self.view], self.nodes, self.now, self.monotonic)
        assert caps.problems == []
        (state,) = caps.states
        return state

    def publish(self, state: CapState, *, feasible: bool | None = None, grants: GrantsUnderWay = NO_GRANTS) -> Json:
        """Write the status, as the API server stores it."""
        fits = state.attainable if feasible is None else feasible
        status = cap_status(state, [], grants, self.now, feasible=fits)
        self.status = stored(status)
        for kind, item in self.conditions().items():
            assert item["reason"] in REASONS[kind]
        return self.status

    def conditions(self) -> dict[str, Json]:
        return {item["type"]: item for item in self.status["conditions"]}

    def message(self, kind: str) -> str:
        return str(self.conditions()[kind]["message"])

    def condition(self, kind: str) -> tuple[str, str]:
        item = self.conditions()[kind]
        return item["status"], item["reason"]


# --- one reading -------------------------------------------------------------------------------------------------


def test_a_cap_that_is_held() -> None:
    site = Site(holding("a", 1600), holding("b", 800), watts=3000, staticOverheadWatts=100)
    reading = site.read()
    assert reading.nodes == {"a", "b"}
    assert (reading.committed_watts, reading.least_watts) == (2500.0, 1700.0)
    assert reading.measured_watts == 100 + 16 * 58
    status = site.publish(reading)
    assert (status["effectiveWatts"], status["committedWatts"], status["headroomWatts"]) == (3000, 2500, 500)
    assert (status["measuredWatts"], status["nodes"]) == (1028, 2)
    assert [site.condition(kind) for kind in ALWAYS_SHOWN] == [
        ("True", "FloorsFit"),
        ("True", "LimitsAcknowledged"),
        ("False", "WithinCap"),
        ("False", "NoMeter"),
    ]


def test_a_cap_that_nothing_changes_by_itself_needs_no_other_look() -> None:
    assert Site(holding("a", 800), watts=3000).read().next_change_seconds == math.inf


def test_only_the_nodes_that_the_selector_takes_count() -> None:
    view = gpu_node_view("b", grant(FLOOR))
    other = read_nodes([node_view("b", product="NVIDIA-H100-80GB-HBM3")], {"b": view}, [], frozenset())["b"]
    selector = {"matchLabels": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}}
    assert Site(holding("a", 800), other, watts=3000, nodeSelector=selector).read().nodes == {"a"}


def test_a_cap_that_selects_no_node_holds_nothing_and_says_so() -> None:
    site = Site(holding("a", 800), watts=3000, nodeSelector={"matchLabels": {"rack": "nowhere"}})
    status = site.publish(site.read())
    assert site.condition("Enforced") == ("Unknown", "NoNodes")
    assert (status["nodes"], status["headroomWatts"]) == (0, 0)


def test_a_cron_that_cannot_be_read_is_a_condition_of_its_own() -> None:
    window = {"name": "noon", "cron": "0 99 * * *", "durationSeconds": 600, "watts": 1200}
    site = Site(holding("a", 800), watts=3000, schedule=[window])
    status = site.publish(site.read())
    assert site.condition("ScheduleInvalid") == ("True", "CronUnreadable")
    said = next(item["message"] for item in status["conditions"] if item["type"] == "ScheduleInvalid")
    assert said.startswith("schedule noon: cron '0 99 * * *'")
    assert "1200 W count all the time" in said


def test_a_cap_by_permille_of_what_the_gpus_can_draw_at_most() -> None:
    site = Site(holding("a", 800), permilleOfMax=333, staticOverheadWatts=10)
    reading = site.read()
    assert reading.effective.watts == 1075.0  # 333 permille of 3200 W are 1065.6 W: whole watts, rounded down
    assert reading.budget().budget_milliwatts == 1_065_000
    assert site.publish(reading)["effectiveWatts"] == 1075


def test_what_is_predicted_counts_under_expected() -> None:
    view = gpu_node_view("a", grant(1600_000, expected=900_000), limits=1600_000)
    info = read_nodes([node_view("a")], {"a": view}, [], frozenset())["a"]
    reading = Site(info, watts=1000, enforcement="Expected").read()
    assert (reading.committed_watts, reading.enforced) == (900.0, True)
    assert reading.least_watts == 8 * 58  # idle GPUs draw less than their smallest limit
    assert reading.budget().expected
    hard = Site(info, watts=1000).read()
    assert (hard.committed_watts, hard.enforced, hard.least_watts) == (1600.0, False, 800.0)


@pytest.mark.parametrize(("foreign", "floor"), [("Reserve", 6 * 100 + 2 * 400), ("Limit", 8 * 100)])
def test_the_least_with_foreign_pods(foreign: str, floor: int) -> None:
    info = ready_node("a", pods=(running_pod("theirs", "a", gpus=2),))
    assert Site(info, watts=5000, foreignPods=foreign).read().least_watts == floor


def test_another_caps_word_on_foreign_pods_counts_for_a_node_under_both() -> None:
    info = ready_node("a", pods=(running_pod("theirs", "a", gpus=2),))
    caps = [cap_view("row", watts=5000), cap_view("rack", watts=5000, foreignPods="Limit")]
    states = CapTracker().step(caps, {"a": info}, NOW, 0.0).states
    assert [state.least_watts for state in states] == [800.0, 800.0]


def test_the_least_with_lost_gpus_and_nodes_that_cannot_be_commanded() -> None:
    lost = ready_node("a", devices=[raw_device(index, healthy=index > 0) for index in range(8)])
    silent = holding("b", 2000, unresponsive=True)
    assert Site(lost, silent, watts=9000).read().least_watts == 400 + 7 * 100 + 2000


# --- a cap that moves --------------------------------------------------------------------------------------------


def test_a_lower_cap_is_published_as_not_enforced_until_the_limits_are_read_back() -> None:
    site = Site(holding("a", 2400), watts=2500)
    site.publish(site.read())
    assert site.condition("Enforced") == ("True", "LimitsAcknowledged")
    site.spec["watts"] = 1000
    reading = site.read()
    assert reading.budget().budget_milliwatts == 1_000_000  # what may be granted falls at once
    status = site.publish(reading, grants=GrantsUnderWay(1))
    assert (status["effectiveWatts"], status["headroomWatts"]) == (1000, 0)
    assert site.condition("Enforced") == ("False", "WaitingForAcknowledgements")
    assert "1400 W over the cap; 1 node has yet to acknowledge" in site.conditions()["Enforced"]["message"]
    site.nodes["a"] = holding("a", 1000)
    site.publish(site.read())
    assert site.condition("Enforced") == ("True", "LimitsAcknowledged")


def test_nobody_is_said_to_have_yet_to_acknowledge_where_no_grant_waits() -> None:
    site = Site(holding("a", 2400), watts=1000)
    site.publish(site.read())
    assert site.conditions()["Enforced"]["message"] == "the nodes may still draw 2400 W, 1400 W over the cap"


@pytest.mark.parametrize(
    "grants",
    [GrantsUnderWay(1), GrantsUnderWay(1, unread=("GPUNode b",)), GrantsUnderWay(1, unconfirmed=frozenset({"a"}))],
)
def test_a_cap_that_is_passed_is_called_so_whatever_else_is_not_known(grants: GrantsUnderWay) -> None:
    site = Site(holding("a", 2400), watts=1000)
    for state in (site.read(), structs.replace(site.read(), unrecorded=frozenset({"a"}))):
        site.publish(state, grants=grants)
        assert site.condition("Enforced") == ("False", "WaitingForAcknowledgements")


def test_where_something_cannot_be_read_nobody_says_that_no_node_is_under_the_cap() -> None:
    site = Site(holding("a", 800), watts=3000, nodeSelector={"matchLabels": {"rack": "nowhere"}})
    site.publish(site.read(), grants=GrantsUnderWay(unread=("Node b",)))
    assert site.condition("Enforced") == ("Unknown", "Unreadable")


def test_an_emergency_is_told_by_what_it_does_to_those_who_are_governed() -> None:
    site = Site(holding("a", 800), watts=3000)
    brake = read_power_brake(power_brake_object("row", PowerBrakeSpec(0, 1, 0, "Active", "smoke")))
    site.publish(structs.replace(site.read(), brake=brake))
    told = "every GPU is held at its smallest limit until the emergency is ended: smoke"
    assert site.conditions()["Emergency"]["message"] == told
    cut = read_power_brake(power_brake_object("row", PowerBrakeSpec(1, 2, 500_000)))
    site.publish(structs.replace(site.read(), brake=cut))
    assert "Emergency" not in site.conditions(), "a cut by a brake is none"


def test_a_cap_that_is_drawn_to_the_watt_is_not_breached() -> None:
    site = Site(holding("a", 800), watts=8 * 58)
    site.publish(site.read())
    assert site.condition("Breached") == ("False", "WithinCap")
    site.spec["watts"] -= 1
    site.publish(site.read())
    assert site.condition("Breached") == ("True", "MeasuredOverCap")


def test_watts_that_are_held_back_are_said_where_there_are_some() -> None:
    site = Site(holding("a", 800), watts=3000)
    site.publish(site.read())
    assert "held back" not in site.conditions()["Enforced"]["message"]
    site.publish(structs.replace(site.read(), reserve_milliwatts=NodeMilliwatts(500_000)))
    assert "; 500 W are held back for 0 of them" in site.conditions()["Enforced"]["message"]


def test_a_higher_cap_is_published_before_anything_is_granted_for_it() -> None:
    site = Site(holding("a", 900), watts=1000, staticOverheadWatts=50)
    site.publish(site.read())
    site.spec["watts"] = 2000
    reading = site.read()
    assert reading.planning_budget().budget_milliwatts == 1_950_000  # the plan may aim at it
    assert reading.budget().budget_milliwatts == 950_000
    site.publish(reading)
    assert site.read().budget().budget_milliwatts == 1_950_000


def published_milliwatts(reading: CapState) -> int:
    budget = reading.published_budget()
    assert budget is not None
    return budget.budget_milliwatts


def test_until_the_next_status_grants_use_no_more_than_the_last_one_calls_committed() -> None:
    site = Site(holding("a", 1600), holding("b", 800), watts=3000, staticOverheadWatts=100)
    reading = site.read()
    assert reading.published_budget() is None  # no status has said anything yet
    site.publish(reading)
    reading = site.read()
    assert published_milliwatts(reading) == 2400_000  # of 2500 W the GPUs' share
    assert reading.budget().budget_milliwatts == 2900_000
    site.spec["watts"] = 2000  # what was called committed under a higher cap is no leave under this one
    assert published_milliwatts(site.read()) == 2400_000
    assert site.read().budget().budget_milliwatts == 1900_000


def test_a_cap_that_never_had_a_status_has_told_nobody_of_less() -> None:
    assert Site(holding("a", 900), watts=1000).read().budget().budget_milliwatts == 1_000_000


def test_a_cap_of_just_the_least_can_be_held_and_is_no_doubt_of_anybodys() -> None:
    state = Site(holding("a", 800), watts=800).read()
    assert (state.attainable, state.enforced, state.proof_stale) == (True, True, False)


def test_a_cap_below_the_least_is_infeasible_and_never_enforced() -> None:
    site = Site(holding("a", 800), watts=700)
    site.publish(site.read())
    assert site.condition("Feasible") == ("False", "FloorsExceedCap")
    assert site.condition("Enforced") == ("False", "Infeasible")


def test_a_reboot_ends_enforcement_at_once() -> None:
    site = Site(holding("a", 900), watts=1000)
    site.publish(site.read())
    site.nodes["a"] = holding("a", 900, acknowledged_on=("boot-0", "driver-1"))
    reading = site.read()
    assert reading.committed_watts == 3200.0
    site.publish(reading)
    assert site.condition("Enforced")[0] == "False"


def test_a_cap_that_only_doubted_nodes_keep_from_being_enforced_has_a_stale_proof() -> None:
    site = Site(holding("a", 900), holding("b", 800), watts=2000)
    site.publish(site.read())
    assert site.condition("Enforced") == ("True", "LimitsAcknowledged")
    site.nodes["b"] = holding("b", 800, ready=False)
    reading = site.read()
    assert reading.committed_watts == 900 + 3200
    site.publish(reading)
    assert site.condition("Enforced") == ("Unknown", "ProofStale")
    assert "; 1 of them counts at its GPUs' largest limits (b: its Node is not ready" in site.message("Enforced")
    assert set(reading.doubts) == {"b"}
    site.spec["watts"] = 900 + 800  # just what they would draw if all were believed
    site.publish(site.read())
    assert site.condition("Enforced") == ("Unknown", "ProofStale")
    both = Site(holding("a", 800, ready=False), holding("b", 800, ready=False), watts=2000)
    both.publish(both.read())
    assert "; 2 of them count at their GPUs' largest limits (a: its Node is not ready" in both.message("Enforced")
    # A node that has yet to be cut is another reason, and a cap that holds all that the doubted can draw needs no proof.
    site.nodes["a"] = holding("a", 1300)
    site.publish(site.read())
    assert site.condition("Enforced") == ("False", "Infeasible")
    site.spec["watts"] = 4500
    site.publish(site.read())
    assert site.condition("Enforced") == ("True", "LimitsAcknowledged")


# --- ramps -------------------------------------------------------------------------------------------------------


def test_a_ramp_takes_its_time_upwards_and_none_downwards() -> None:
    site = Site(holding("a", 800), watts=1000, rampWattsPerSecond=10)
    site.publish(site.read())
    site.spec["watts"] = 2000
    watts = []
    for seconds in (0.0, 1.0, 4.0, 0.25):
        reading = site.read(seconds)
        site.publish(reading)
        watts.append(reading.effective.watts)
    assert watts == [1000.0, 1000.0, 1050.0, 1050.0]
    site.spec["watts"] = 900
    assert site.read().effective.watts == 900.0


def test_a_ramp_rises_in_steps_however_often_the_operator_looks() -> None:
    """Each step is a grant to every node, of which each acknowledgement wakes the operator: it would look at once again."""
    site = Site(holding("a", 800), watts=1000, rampWattsPerSecond=50)
    site.publish(site.read())
    site.spec["watts"] = 2000
    seen = [site.read(1 / 64).effective.watts for _ in range(64 * 25)]
    assert seen == sorted(seen)
    assert list(dict.fromkeys(seen)) == [1000.0, 1250.0, 1500.0, 1750.0, 2000.0]
    assert all(watts <= 1000 + 50 * (index + 1) / 64 for index, watts in enumerate(seen))
    assert site.read().next_change_seconds == math.inf


def test_a_ramp_counts_from_when_the_cap_was_raised_and_not_from_its_last_rise() -> None:
    site = Site(holding("a", 800), watts=1000, rampWattsPerSecond=10)
    site.publish(site.read())
    for _ in range(100):
        site.read(1.0)
    site.spec["watts"] = 5000
    assert [site.read(1.0).effective.watts for _ in range(6)] == [1000.0, 1000.0, 1000.0, 1000.0, 1050.0, 1050.0]


def test_no_time_of_a_ramp_is_lost_to_whole_watts() -> None:
    site = Site(holding("a", 800), watts=1000, rampWattsPerSecond=1)
    site.publish(site.read())
    site.spec["watts"] = 2000
    for _ in range(100):
        reading = site.read(0.25)
        site.publish(reading)
        assert reading.effective.watts == int(reading.effective.watts)
    assert reading.effective.watts == 1025.0


def test_the_next_operator_goes_on_where_the_status_stands() -> None:
    site = Site(holding("a", 800), watts=1000, rampWattsPerSecond=10)
    site.publish(site.read())
    site.spec["watts"] = 2000
    site.read()
    site.publish(site.read(5.0))
    site.tracker = CapTracker()
    assert site.read(100.0).effective.watts == 1050.0
    assert site.read(5.0).effective.watts == 1100.0


# --- energy budgets ----------------------------------------------------------------------------------------------


def with_draw(watts: int) -> NodeInfo:
    """A node whose GPUs have no energy counters."""
    devices = [{**raw_device(index), "powerMilliwatts": watts * 125} for index in range(8)]
    for device in devices:
        del device["energyMillijoules"]
    return holding("a", 800, devices=devices)


def test_an_energy_budget_is_charged_with_what_is_measured() -> None:
    budget = {"kilojoules": 3600, "periodSeconds": 3600}
    site = Site(with_draw(1200), watts=5000, energyBudget=budget)
    assert site.read().effective.watts == 1000.0  # 3600 kJ over the hour that begins now
    reading = site.read(1800.0)
    assert reading.effective.watts == 800.0  # 2160 of 3600 kJ are used at half-time
    assert site.publish(reading)["energyPeriod"] == {
        "start": "2030-06-01T12:00:00Z",
        "consumedKilojoules": 2160,
        "chargedUntil": "2030-06-01T12:30:00Z",
    }
    site.tracker = CapTracker()
    assert site.read().effective.watts == 800.0


@pytest.mark.parametrize(("seconds", "kilojoules"), [(600.0, 720), (0.0, 0), (-60.0, 0), (2 * 3600.0, 0)])
def test_what_is_drawn_without_a_leader_is_charged_by_the_next_one(seconds: float, kilojoules: int) -> None:
    """Once, and only what falls into the present period; a clock that is behind takes nothing back."""
    site = Site(with_draw(1200), watts=5000, energyBudget={"kilojoules": 7200, "periodSeconds": 3600})
    before = site.publish(site.read())["energyPeriod"]["consumedKilojoules"]
    site.tracker = CapTracker()
    first = site.publish(site.read(seconds))["energyPeriod"]["consumedKilojoules"]
    assert first - before == kilojoules
    assert site.publish(site.read())["energyPeriod"]["consumedKilojoules"] == first


def test_energy_is_charged_once_while_a_ramp_rises() -> None:
    budget = {"kilojoules": 100_000, "periodSeconds": 3600}
    site = Site(with_draw(1000), watts=1000, rampWattsPerSecond=1, energyBudget=budget)
    site.publish(site.read())
    site.spec["watts"] = 5000
    for _ in range(40):
        site.publish(site.read(0.25))
    assert site.status["energyPeriod"]["consumedKilojoules"] == 10


def test_what_a_budget_leaves_rises_a_hundred_times_a_period_and_begins_anew_with_the_next() -> None:
    """Each rise is a grant to every node, and what they draw less than they may makes the next one."""
    site = Site(with_draw(100), watts=5000, energyBudget={"kilojoules": 3600, "periodSeconds": 3600})
    seen = [site.read(0.5).effective.watts for _ in range(600)]
    assert seen == sorted(seen)
    assert len(set(seen)) == 9  # of 36 s each
    assert site.read(0.0).effective.next_change_seconds <= 36.0
    # What is made of it by people, and by the clock, waits for none of that.
    site.spec["energyBudget"] = {"kilojoules": 7200, "periodSeconds": 3600}
    assert site.read(0.5).effective.watts > 2000
    late = site.read(3200.0).effective.watts
    assert late == 5000
    assert site.read(200.0).effective.watts < 2100


def test_the_next_period_of_a_budget_waits_for_nothing_of_the_last_one() -> None:
    site = Site(with_draw(1500), watts=5000, energyBudget={"kilojoules": 3600, "periodSeconds": 3600})
    site.read()
    assert site.read(3595.0).effective.watts == 0  # all of it was used long ago
    assert site.read(10.0).effective.watts > 990  # sooner than what is left may rise within a period


def test_a_budget_that_is_taken_away_leaves_no_trace() -> None:
    site = Site(with_draw(1000), watts=5000, energyBudget={"kilojoules": 3600, "periodSeconds": 3600})
    assert "energyPeriod" in site.publish(site.read())
    del site.spec["energyBudget"]
    assert "energyPeriod" not in site.publish(site.read())


class Counted(Site):
    """One node of eight GPUs with energy counters under a cap with a budget; its agent reports every 30 s."""

    def __init__(self, **spec: Any) -> None:
        self.joules, self.watts, self.load = 0.0, 0.0, "load-1"
        budget = {"kilojoules": 7200, "periodSeconds": 3600}
        super().__init__(self._node(), **{"watts": 5000, "energyBudget": budget, **spec})

    def _node(self) -> NodeInfo:
        devices = [
            {**raw_device(index), "energyMillijoules": round(self.joules * 125) + index, "powerMilliwatts": 0}
            for index in range(8)
        ]
        return holding("a", 800, devices=devices, session=("boot", self.load))

    def goes_by(self, seconds: float, watts: float, *, read: bool = True) -> None:
        """The GPUs draw for so long, the agent reports at the end of it, and an operator looks, if there is one."""
        self.joules += watts * seconds
        self.nodes = {"a": self._node()}
        if read:
            self.publish(self.read(seconds))
        else:
            self.now += timedelta(seconds=seconds)
            self.monotonic += seconds

    def charged(self) -> float:
        period = self.read().energy_period
        assert period is not None
        return period.consumed_joules


def test_a_budget_is_charged_by_the_counters_whatever_a_sample_said() -> None:
    site = Counted()
    site.read()
    for _ in range(10):
        site.goes_by(30.0, 1200.0)
        for _ in range(29):
            site.read()  # nothing new of it: no joule is charged twice
    assert site.charged() == pytest.approx(10 * 30 * 1200, rel=1e-6)


def test_five_minutes_without_an_operator_are_charged_by_the_counters() -> None:
    site = Counted()
    site.read()
    site.goes_by(45.5, 1111.0)
    before = site.joules
    for watts in (3000.0, 100.0, 900.0, 0.0, 2500.0):
        site.goes_by(60.0, watts, read=False)
    site.tracker = CapTracker()
    site.publish(site.read())
    assert site.charged() == pytest.approx(site.joules, abs=2.0), "what was below a kilojoule before is not forgotten"
    assert site.joules - before == 390_000
    for _ in range(5):  # leaders come and go: nothing is lost or charged twice
        site.tracker = CapTracker()
        site.goes_by(0.3, 1000.0)
    assert site.charged() == pytest.approx(site.joules, abs=2.0)


def test_a_counter_that_begins_again_loses_only_what_nobody_read() -> None:
    site = Counted()
    site.read()
    site.goes_by(10.0, 1000.0)
    charged = site.charged()
    assert charged == pytest.approx(10_000)
    site.joules, site.load = 0.0, "load-2"
    site.goes_by(20.0, 800.0)
    assert site.charged() == pytest.approx(charged + 16_000, abs=0.1)


def test_a_driver_load_in_the_time_without_a_leader_is_charged_at_what_is_drawn_now() -> None:
    site = Counted()
    site.read()
    site.goes_by(10.0, 1000.0)
    site.joules, site.load = 0.0, "load-2"
    site.goes_by(100.0, 800.0, read=False)
    site.tracker = CapTracker()
    measured = site.read().measured_watts
    assert site.charged() == pytest.approx(10_000 + 100 * measured, abs=1000.0)


def test_what_counters_rose_by_while_leaders_changed_in_an_instant_is_charged() -> None:
    site = Counted()
    site.read()
    site.goes_by(10.0, 1000.0)
    site.joules += 500.0
    site.nodes = {"a": site._node()}
    site.tracker = CapTracker()
    assert site.charged() == pytest.approx(10_500, abs=1.0)


def test_what_an_operator_drew_that_kept_no_counters_is_charged_at_what_is_drawn_now() -> None:
    site = Counted()
    site.read()
    site.goes_by(10.0, 1000.0)
    del site.status["energyPeriod"]["countedMillijoules"], site.status["energyPeriod"]["countedOf"]
    site.goes_by(100.0, 800.0, read=False)
    site.tracker = CapTracker()
    assert site.charged() == pytest.approx(10_000 + 100 * site.read().measured_watts, abs=1000.0)


def test_counters_that_are_not_reported_any_more_are_charged_at_what_is_drawn_now() -> None:
    site = Counted()
    site.read()
    site.goes_by(10.0, 1000.0)
    site.goes_by(100.0, 800.0, read=False)
    site.nodes = {"a": with_draw(900)}
    site.tracker = CapTracker()
    assert site.charged() == pytest.approx(10_000 + 100 * 900, abs=1000.0)


def test_counters_that_begin_again_in_the_time_without_a_leader_are_charged_at_what_is_drawn_now() -> None:
    """Also where no driver was loaded: all that was drawn would else be nothing, as the sum has fallen."""
    site = Counted()
    site.read()
    site.goes_by(10.0, 1000.0)
    site.joules = 0.0
    site.goes_by(100.0, 50.0, read=False)
    site.nodes = {"a": structs.replace(site._node(), measured_milliwatts=900_000)}
    site.tracker = CapTracker()
    site.read()
    assert site.charged() == pytest.approx(10_000 + 100 * 900, abs=1000.0)


def test_counters_that_stood_still_in_the_time_without_a_leader_charge_nothing() -> None:
    site = Counted()
    site.read()
    site.goes_by(10.0, 1000.0)
    site.goes_by(100.0, 0.0, read=False)
    site.nodes = {"a": structs.replace(site._node(), measured_milliwatts=900_000)}
    site.tracker = CapTracker()
    site.read()
    assert site.charged() == pytest.approx(10_000, abs=1000.0), "what a sample says now was not so all the time"


def test_a_counter_that_lies_in_the_time_without_a_leader_spends_no_more_than_its_gpus_can_draw() -> None:
    site = Counted(energyBudget={"kilojoules": 10**6, "periodSeconds": 3600})
    site.read()
    site.goes_by(10.0, 1000.0)
    site.goes_by(100.0, 1e9, read=False)
    site.tracker = CapTracker()
    site.read()
    assert site.charged() == pytest.approx(10_000 + 160.0 * 2 * 8 * 400, abs=1000.0)


@pytest.mark.parametrize(("millijoules", "counted"), [(2**63 - 1, 2**63 - 1), (2**63, None)])
def test_counters_that_lie_make_no_status_that_the_api_server_refuses(millijoules: int, counted: int | None) -> None:
    """What it says of its cap could not be withdrawn any more."""
    site = Counted()
    site.nodes = {"b": holding("b", 100, devices=[{**raw_device(0), "energyMillijoules": 2**63 - 8}])}
    site.nodes["a"] = holding("a", 100, devices=[{**raw_device(0), "energyMillijoules": millijoules - 2**63 + 8}])
    assert site.publish(site.read())["energyPeriod"].get("countedMillijoules") == counted
    assert site.read().energy_period is not None


def test_a_node_whose_gpu_node_is_gone_is_charged_once_and_never_again() -> None:
    site = Counted()
    site.read()
    site.goes_by(10.0, 1000.0)
    site.nodes = {"a": structs.replace(site.nodes["a"], gpu_node=None)}
    assert [site.charged() for _ in range(3)] == [10_000.0] * 3


def test_a_counter_that_lies_takes_no_more_than_twice_what_its_gpus_can_draw() -> None:
    site = Counted(energyBudget={"kilojoules": 10**6, "periodSeconds": 3600})
    site.read()
    site.goes_by(10.0, 1e9)
    assert site.charged() == 10.0 * 2 * 8 * 400
    site.joules = 5.0
    site.goes_by(1.0, 0.0)  # and back: a counter that falls has begun again
    assert site.charged() == pytest.approx(10.0 * 2 * 8 * 400 + 5.0, abs=0.1)


@settings(max_examples=examples(60))
@given(
    st.lists(
        st.tuples(st.floats(0.1, 120.0), st.floats(1.0, 3200.0), st.sampled_from(["reads", "away", "anew"])),
        max_size=20,
    )
)
def test_what_is_charged_is_what_the_counters_say_whoever_leads(steps: list[tuple[float, float, str]]) -> None:
    site = Counted(energyBudget={"kilojoules": 10**9, "periodSeconds": 86_400})
    site.publish(site.read())
    for seconds, watts, leader in steps:
        if leader != "reads":
            site.tracker = CapTracker()
        site.goes_by(seconds, watts, read=leader != "away")
    site.publish(site.read())
    assert site.charged() == pytest.approx(site.joules, abs=2.0 + 1e-5 * site.joules)


# --- breaches ----------------------------------------------------------------------------------------------------


def test_a_breach_is_told_with_its_time_its_worst_and_its_joules() -> None:
    site = Site(with_draw(1500), watts=1500)
    assert "breach" not in site.publish(site.read())
    site.nodes["a"] = with_draw(1600)
    assert site.publish(site.read(1.0))["breach"] == {"since": "2030-06-01T12:00:01Z", "watts": 100, "joules": 0}
    assert site.condition("Breached") == ("True", "MeasuredOverCap")
    site.nodes["a"] = with_draw(1800)
    assert site.publish(site.read(2.0))["breach"] == {"since": "2030-06-01T12:00:01Z", "watts": 300, "joules": 600}
    site.nodes["a"] = with_draw(1000)
    ended = site.publish(site.read(1.0))["breach"]
    assert ended == {"since": "2030-06-01T12:00:01Z", "until": "2030-06-01T12:00:04Z", "watts": 300, "joules": 600}
    assert site.condition("Breached") == ("False", "WithinCap")
    site.tracker = CapTracker()
    assert site.publish(site.read(60.0))["breach"] == ended  # the last one stays to be seen
    site.nodes["a"] = with_draw(1600)
    again = site.publish(site.read(1.0))["breach"]
    assert again == {"since": "2030-06-01T12:01:05Z", "watts": 100, "joules": 0}  # without the former one's end


# --- schedules, several caps, caps that cannot be read ---------------------------------------------------------------


def test_a_schedule_in_force_is_named_and_forgotten_when_it_ends() -> None:
    noon = {"name": "noon", "cron": "0 12 * * *", "durationSeconds": 600, "watts": 1200}
    site = Site(holding("a", 800), watts=2000, schedule=[noon])
    status = site.publish(site.read())
    assert (status["effectiveWatts"], status["activeSchedule"]) == (1200, "noon")
    status = site.publish(site.read(601.0))
    assert status["effectiveWatts"] == 2000
    assert "activeSchedule" not in status


def test_the_next_change_is_looked_for_once_until_it_comes_or_the_cap_is_edited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[datetime] = []

    def counted(
        spec: PowerCapSpec, now: datetime, max_limit_watts: float, known: KnownChange | None = None
    ) -> KnownChange:
        looked.append(now)
        return next_scheduled_change(spec, now, max_limit_watts, known)

    monkeypatch.setattr(cap_tracker, "next_scheduled_change", counted)
    noon = {"name": "noon", "cron": "0 12 * * *", "durationSeconds": 600, "watts": 1200}
    site = Site(holding("a", 800), watts=2000, schedule=[noon])
    for seconds in (0.0, 300.0):
        assert site.publish(site.read(seconds))["nextChange"] == {"time": "2030-06-01T12:10:00Z", "watts": 2000}
    change = site.publish(site.read(300.0))["nextChange"]
    assert change == {"time": "2030-06-02T12:00:00Z", "watts": 1200, "schedule": "noon"}
    site.read(1.0)
    site.read()
    assert [(at - NOW).total_seconds() for at in looked] == [0.0, 600.0]
    site.spec["schedule"] = [{**noon, "cron": "0 14 * * *"}]
    assert site.publish(site.read())["nextChange"]["time"] == "2030-06-01T14:00:00Z"


def test_a_clock_that_is_set_back_finds_the_changes_before_it_again() -> None:
    noon = {"name": "noon", "cron": "0 12 * * *", "durationSeconds": 600, "watts": 1200}
    site = Site(holding("a", 800), watts=2000, schedule=[noon])
    site.read(1200.0)
    site.now -= timedelta(hours=2)
    assert site.publish(site.read())["nextChange"]["time"] == "2030-06-01T12:00:00Z"


def test_a_change_behind_a_hundred_edges_that_change_nothing_is_found_in_the_cycles_that_follow() -> None:
    # Every half an hour something above the base opens and closes; on the third day at noon there is a drill below it.
    masked = {"name": "masked", "cron": "*/30 * * * *", "durationSeconds": 60, "watts": 3000}
    drill = {"name": "drill", "start": "2030-06-04T12:00:00Z", "end": "2030-06-04T13:00:00Z", "watts": 1200}
    site = Site(holding("a", 800), watts=2000, schedule=[masked, drill])
    found = [change for _ in range(10) if (change := site.publish(site.read(1.0)).get("nextChange"))]
    assert found[:1] == [{"time": "2030-06-04T12:00:00Z", "watts": 1200, "schedule": "drill"}]


@pytest.mark.parametrize(("on_infeasible", "pauses"), [("Pause", True), ("FloorOnly", False)])
def test_a_plan_pauses_jobs_under_a_cap_that_cannot_be_held_where_the_cap_says_so(
    on_infeasible: str, pauses: bool
) -> None:
    assert Site(holding("a", 800), watts=2000, onInfeasible=on_infeasible).read().planning_budget().pauses is pauses


def test_caps_are_read_in_the_order_of_their_names_each_with_a_memory_of_its_own() -> None:
    caps = [cap_view("b", watts=10, rampWattsPerSecond=1), cap_view("a", watts=20)]
    tracker = CapTracker()
    nodes = {"n": holding("n", 800)}
    first = tracker.step(caps, nodes, NOW, 0.0).states
    assert [state.name for state in first] == ["a", "b"]
    tracker.step([caps[1]], nodes, NOW, 1.0)
    faster = cap_view("b", watts=50, rampWattsPerSecond=1)
    later = tracker.step([faster], nodes, NOW, 2.0).states
    assert later[0].effective.watts == 50.0  # a cap that was gone and came back is a new one


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"watts": 1, "permilleOfMax": 1},
        {"watts": 10, "nodeSelector": {"matchExpressions": [{"key": "x", "operator": "Near"}]}},
        {"watts": 10, "schedule": [{"name": "x"}]},
    ],
)
def test_a_cap_that_cannot_be_read_has_unknown_conditions_and_keeps_its_figures(spec: Json) -> None:
    before = cap_view(status={"effectiveWatts": 10, "conditions": [{"type": "Enforced", "status": "True"}]}, **spec)
    caps = CapTracker().step([before, cap_view("good", watts=5000)], {"a": holding("a", 800)}, NOW, 0.0)
    assert [state.name for state in caps.states] == ["good"]
    assert caps.unreadable == (before,)
    assert caps.problems == [before.refusal]
    assert before.refusal.startswith("PowerCap row: ")
    status = unreadable_status(before, NOW)
    assert {item.type: (item.status, item.reason) for item in status.conditions} == dict.fromkeys(
        ALWAYS_SHOWN, ("Unknown", "Unreadable")
    )
    assert all(before.refusal in item.message for item in status.conditions)
    assert (status.effective_watts, status.observed_generation) == (10, 1)
    stored(status)


def test_a_cap_that_cannot_be_worked_out_is_as_one_that_cannot_be_read_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A mistake of ours, which one cap shows, must keep no cut from any other."""
    worked_out = cap_tracker.effective_cap

    def stumbles(spec: PowerCapSpec, *rest: Any) -> Any:
        if spec.watts == 13:
            raise OverflowError("date value out of range")
        return worked_out(spec, *rest)

    monkeypatch.setattr(cap_tracker, "effective_cap", stumbles)
    nodes, tracker = {"a": holding("a", 800)}, CapTracker()
    enforced = {"effectiveWatts": 13, "conditions": [{"type": "Enforced", "status": "True"}]}
    odd, good = cap_view("odd", watts=13, status=enforced), cap_view("good", watts=5000)
    for seconds in range(3):
        caps = tracker.step([odd, good], nodes, NOW, float(seconds))
        assert [state.name for state in caps.states] == ["good"]
        assert caps.problems == ["PowerCap odd cannot be worked out: OverflowError: date value out of range"]
    assert caplog.text.count("a cap that cannot be worked out") == 1
    status = unreadable_status(caps.unreadable[0], NOW)
    assert {item.type: item.status for item in status.conditions} == dict.fromkeys(ALWAYS_SHOWN, "Unknown")
    caps = tracker.step([cap_view("odd", watts=14), good], nodes, NOW, 3.0)
    assert (len(caps.states), caps.unreadable) == (2, ())


def rules(*specs: Mapping[str, Any]) -> NodeRules:
    """What caps over one node ask of it together."""
    caps = [cap_view(str(index), **{"watts": 9000, **spec}) for index, spec in enumerate(specs)]
    return CapTracker(grant_lease_seconds=60).step(caps, {"a": holding("a", 800)}, NOW, 0.0).rules["a"]


def test_the_strictest_of_each_rule_counts() -> None:
    reserve = {"foreignPods": "Reserve"}
    assert rules(reserve) == NodeRules(limit_foreign_pods=False, failsafe=MINIMUM)
    assert rules(reserve, {}) == NodeRules(limit_foreign_pods=True, failsafe=MINIMUM)
    assert rules({"failsafeWattsPerGpu": 200}, {"failsafeWattsPerGpu": 150}).failsafe == Failsafe(
        MilliwattsPerGpu(150_000)
    )


def test_while_a_cap_cannot_be_read_no_node_is_to_hold_its_limits_without_an_operator() -> None:
    """It may be over any node, and have chosen the minimum."""
    hold, unreadable = cap_view("a", watts=9000, failsafe="Hold"), cap_view("b")
    tracker, nodes = CapTracker(grant_lease_seconds=60), {"a": holding("a", 800)}
    assert tracker.step([hold], nodes, NOW, 0.0).rules["a"].failsafe.hold_seconds == 3600
    assert tracker.step([hold, unreadable], nodes, NOW, 1.0).rules["a"].failsafe == MINIMUM


def test_a_cap_that_chooses_no_failsafe_has_chosen_the_minimum() -> None:
    assert rules({"failsafeWattsPerGpu": 200}, {}).failsafe == MINIMUM
    assert rules({"failsafe": "Hold"}, {}).failsafe == MINIMUM
    # Limits may add up to more than such a cap, which counts what is drawn: nobody watches that meanwhile.
    assert rules({"failsafe": "Hold", "enforcement": "Expected"}).failsafe == MINIMUM
    assert rules({"failsafe": "Hold"}, {"failsafe": "Limit", "failsafeWattsPerGpu": 200}).failsafe == MINIMUM
    both = rules({"failsafe": "Hold", "failsafeWattsPerGpu": 300}, {"failsafe": "Limit", "failsafeWattsPerGpu": 200})
    assert both.failsafe == Failsafe(MilliwattsPerGpu(200_000))
    assert rules({"failsafe": "Hold"}, {"failsafe": "Hold", "failsafeHoldSeconds": 600}).failsafe.hold_seconds == 600


def test_nothing_is_held_longer_than_until_the_schedule_lowers_the_cap() -> None:
    def held(seconds: int, watts: int = 5000, **spec: Any) -> int:
        begin = NOW + timedelta(hours=2)
        window = {"name": "w", "cron": f"{begin.minute} {begin.hour} * * *", "durationSeconds": 60, "watts": watts}
        return rules({"failsafe": "Hold", "failsafeHoldSeconds": seconds, "schedule": [window]}).failsafe.hold_seconds

    # The cap falls in 7,200 s; a node cut off now would begin to hold after its lease of 60 s.
    assert held(7000) == 7000
    assert held(7200 - 60 - 60) == 0
    assert held(7200) == 0
    assert held(7200, watts=9000) == 7200  # such a window lowers nothing


def test_the_default_of_gpus_in_the_fixture_is_what_the_figures_above_say() -> None:
    assert (FLOOR, DEFAULT) == (100_000, 400_000)


def test_the_reference_lists_the_same_reasons() -> None:
    section = REFERENCE.split("## PowerCap")[1].split("## GPUNode")[0]
    rows = re.findall(r"^\| (`[A-Z]\w+`|all of them) \| (.*) \|$", section, re.MULTILINE)
    listed = {kind.strip("`"): set(re.findall(r"`([A-Z][A-Za-z]+)`", reasons)) for kind, reasons in rows}
    for_all = listed.pop("all of them")
    assert {kind: reasons | (for_all if kind in ALWAYS_SHOWN else set()) for kind, reasons in listed.items()} == {
        kind: set(reasons) for kind, reasons in REASONS.items()
    }


def test_states_are_taken_with_a_time_zone() -> None:
    with pytest.raises(ValueError, match="time zone"):
        CapTracker().step([cap_view(watts=1)], {}, datetime(2030, 1, 1), 0.0)


def test_a_cap_that_is_whole_but_for_floating_point_is_said_whole() -> None:
    """As what is granted under it is reckoned."""
    site = Site(holding("a", 800), watts=2000)
    state = site.read()
    state = structs.replace(state, effective=structs.replace(state.effective, watts=1999.999_999_9))
    assert state.budget().budget_milliwatts == 2_000_000
    assert cap_status(state, [], NO_GRANTS, NOW, feasible=True).effective_watts == 2000


def test_a_stolen_agent_that_reports_gpus_that_are_not_there_lifts_no_cap_that_is_a_share_of_all() -> None:
    """64 GPUs of a node of eight: the other three would have got what they are said to add to the hall."""

    def effective_watts(reported: int) -> float:
        lying = gpu_node_view(
            "a", grant(8 * FLOOR), devices=[raw_device(index) for index in range(reported)], limits=8 * FLOOR
        )
        honest = {name: gpu_node_view(name, grant(8 * FLOOR), limits=8 * FLOOR) for name in "bcd"}
        views = {"a": lying, **honest}
        nodes = read_nodes([node_view(name) for name in views], views, [], frozenset())
        cap = cap_view("hall", permilleOfMax=300)
        (state,) = CapTracker().step([cap], nodes, NOW, 0.0).states
        return state.effective.watts

    assert effective_watts(64) == effective_watts(8) == 4 * 8 * 400 * 0.3
