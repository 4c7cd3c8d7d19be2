"""What caps come to and what their statuses may say: never "enforced" above what the limits can be."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from flyball_crds.models import PowerCapStatus
from flyball_operator.cap_ledger import REASONS, CapLedger, CapReading, node_rules
from flyball_operator.conditions import as_stored
from flyball_operator.picture import NodePicture, picture_nodes
from flyball_operator.requests import CapView
from flyball_operator.wanting import NodeRules
from operator_objects import (
    DEFAULT,
    FLOOR,
    NOW,
    Json,
    cap_view,
    gpu_node_view,
    grant,
    node_view,
    raw_device,
    ready_picture,
    running_pod,
)

REFERENCE = (Path(__file__).parents[2] / "docs" / "api.md").read_text()


def holding(name: str, watts: int, *, silent: bool = False, **keywords: Any) -> NodePicture:
    """A node of eight A100s whose limits add up to so many watts, as read back."""
    view = gpu_node_view(name, grant(watts * 1000), limits=watts * 1000, **keywords)
    return picture_nodes([node_view(name)], {name: view}, [], frozenset([name] if silent else []))[name]


class Site:
    """A cap over some nodes, read and published over and over."""

    def __init__(self, *pictures: NodePicture, **spec: Any) -> None:
        self.pictures = {picture.name: picture for picture in pictures}
        self.spec: Json = spec
        self.status: Json = {}
        self.ledger = CapLedger()
        self.now, self.monotonic = NOW, 1000.0

    @property
    def view(self) -> CapView:
        return cap_view(status=self.status, **self.spec)

    def read(self, seconds: float = 0.0) -> CapReading:
        self.now += timedelta(seconds=seconds)
        self.monotonic += seconds
        (reading,), problems = self.ledger.read([self.view], self.pictures, self.now, self.monotonic)
        assert problems == []
        return reading

    def publish(self, reading: CapReading, *, feasible: bool | None = None, waiting: int = 0) -> Json:
        """Write the status, as the API server stores it."""
        fits = reading.floor_watts <= reading.effective.watts if feasible is None else feasible
        status = self.ledger.status(reading, fits, [], waiting, self.now)
        self.status = as_stored({**self.status, **status})
        PowerCapStatus.model_validate(self.status)
        for kind, item in self.conditions().items():
            assert item["reason"] in REASONS[kind]
        return self.status

    def conditions(self) -> dict[str, Json]:
        return {item["type"]: item for item in self.status["conditions"]}

    def said(self, kind: str) -> tuple[str, str]:
        item = self.conditions()[kind]
        return item["status"], item["reason"]


# --- one reading -------------------------------------------------------------------------------------------------


def test_a_cap_that_is_held() -> None:
    site = Site(holding("a", 1600), holding("b", 800), watts=3000, staticOverheadWatts=100)
    reading = site.read()
    assert reading.nodes == {"a", "b"}
    assert (reading.committed_watts, reading.floor_watts) == (2500.0, 1700.0)
    assert reading.measured_watts == 100 + 16 * 58
    status = site.publish(reading)
    assert (status["effectiveWatts"], status["committedWatts"], status["headroomWatts"]) == (3000, 2500, 500)
    assert (status["measuredWatts"], status["nodes"]) == (1028, 2)
    assert [site.said(kind) for kind in REASONS] == [
        ("True", "FloorsFit"),
        ("True", "LimitsAcknowledged"),
        ("False", "WithinCap"),
    ]


def test_only_the_nodes_that_the_selector_takes_count() -> None:
    view = gpu_node_view("b", grant(FLOOR))
    other = picture_nodes([node_view("b", product="NVIDIA-H100-80GB-HBM3")], {"b": view}, [], frozenset())["b"]
    selector = {"matchLabels": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}}
    assert Site(holding("a", 800), other, watts=3000, nodeSelector=selector).read().nodes == {"a"}


def test_a_cap_by_permille_of_what_the_gpus_can_draw_at_most() -> None:
    site = Site(holding("a", 800), permilleOfMax=333, staticOverheadWatts=10)
    reading = site.read()
    assert reading.effective.watts == 1075.0  # 333 permille of 3200 W are 1065.6 W: whole watts, rounded down
    assert reading.budget().budget_milliwatts == 1_065_000
    assert site.publish(reading)["effectiveWatts"] == 1075


def test_what_is_predicted_counts_under_expected() -> None:
    view = gpu_node_view("a", grant(1600_000, expected=900_000), limits=1600_000)
    picture = picture_nodes([node_view("a")], {"a": view}, [], frozenset())["a"]
    reading = Site(picture, watts=1000, enforcement="Expected").read()
    assert (reading.committed_watts, reading.enforced) == (900.0, True)
    assert reading.floor_watts == 8 * 58  # idle GPUs draw less than their smallest limit
    assert reading.budget().expected
    hard = Site(picture, watts=1000).read()
    assert (hard.committed_watts, hard.enforced, hard.floor_watts) == (1600.0, False, 800.0)


@pytest.mark.parametrize(("foreign", "floor"), [("Reserve", 6 * 100 + 2 * 400), ("Limit", 8 * 100)])
def test_the_least_with_foreign_pods(foreign: str, floor: int) -> None:
    picture = ready_picture("a", pods=(running_pod("theirs", "a", gpus=2),))
    assert Site(picture, watts=5000, foreignPods=foreign).read().floor_watts == floor


def test_another_caps_word_on_foreign_pods_counts_for_a_node_under_both() -> None:
    picture = ready_picture("a", pods=(running_pod("theirs", "a", gpus=2),))
    caps = [cap_view("row", watts=5000), cap_view("rack", watts=5000, foreignPods="Limit")]
    readings, _ = CapLedger().read(caps, {"a": picture}, NOW, 0.0)
    assert [reading.floor_watts for reading in readings] == [800.0, 800.0]


def test_the_least_with_lost_gpus_and_nodes_that_cannot_be_commanded() -> None:
    lost = ready_picture("a", devices=[raw_device(index, healthy=index > 0) for index in range(8)])
    silent = holding("b", 2000, silent=True)
    assert Site(lost, silent, watts=9000).read().floor_watts == 400 + 7 * 100 + 2000


# --- a cap that moves --------------------------------------------------------------------------------------------


def test_a_lower_cap_is_published_as_not_enforced_until_the_limits_are_read_back() -> None:
    site = Site(holding("a", 2400), watts=2500)
    site.publish(site.read())
    assert site.said("Enforced") == ("True", "LimitsAcknowledged")
    site.spec["watts"] = 1000
    reading = site.read()
    assert reading.budget().budget_milliwatts == 1_000_000  # what may be granted falls at once
    status = site.publish(reading, waiting=1)
    assert (status["effectiveWatts"], status["headroomWatts"]) == (1000, 0)
    assert site.said("Enforced") == ("False", "WaitingForAcknowledgements")
    assert "1400 W over the cap; 1 nodes have yet to acknowledge" in site.conditions()["Enforced"]["message"]
    site.pictures["a"] = holding("a", 1000)
    site.publish(site.read())
    assert site.said("Enforced") == ("True", "LimitsAcknowledged")


def test_a_higher_cap_is_published_before_anything_is_granted_for_it() -> None:
    site = Site(holding("a", 900), watts=1000, staticOverheadWatts=50)
    site.publish(site.read())
    site.spec["watts"] = 2000
    reading = site.read()
    assert reading.planning_budget().budget_milliwatts == 1_950_000  # the plan may aim at it
    assert reading.budget().budget_milliwatts == 950_000
    site.publish(reading)
    assert site.read().budget().budget_milliwatts == 1_950_000


def test_a_cap_that_never_had_a_status_has_told_nobody_of_less() -> None:
    assert Site(holding("a", 900), watts=1000).read().budget().budget_milliwatts == 1_000_000


def test_a_cap_below_the_least_is_infeasible_and_never_enforced() -> None:
    site = Site(holding("a", 800), watts=700)
    site.publish(site.read())
    assert site.said("Feasible") == ("False", "FloorsExceedCap")
    assert site.said("Enforced") == ("False", "Infeasible")


def test_a_reboot_ends_enforcement_at_once() -> None:
    site = Site(holding("a", 900), watts=1000)
    site.publish(site.read())
    site.pictures["a"] = holding("a", 900, acknowledged_on=("boot-0", "driver-1"))
    reading = site.read()
    assert reading.committed_watts == 3200.0
    site.publish(reading)
    assert site.said("Enforced")[0] == "False"


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
    assert watts == [1000.0, 1010.0, 1050.0, 1052.0]
    site.spec["watts"] = 900
    assert site.read().effective.watts == 900.0


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
    site.ledger = CapLedger()
    assert site.read(100.0).effective.watts == 1050.0
    assert site.read(1.0).effective.watts == 1060.0


# --- energy budgets ----------------------------------------------------------------------------------------------


def with_draw(watts: int) -> NodePicture:
    devices = [{**raw_device(index), "powerMilliwatts": watts * 125} for index in range(8)]
    return holding("a", 800, devices=devices)


def test_an_energy_budget_is_charged_with_what_is_measured() -> None:
    budget = {"kilojoules": 3600, "periodSeconds": 3600}
    site = Site(with_draw(1200), watts=5000, energyBudget=budget)
    assert site.read().effective.watts == 1000.0  # 3600 kJ over the hour that begins now
    reading = site.read(1800.0)
    assert reading.effective.watts == 800.0  # 2160 of 3600 kJ are used at half-time
    assert site.publish(reading)["energyPeriod"] == {"start": "2030-06-01T12:00:00Z", "consumedKilojoules": 2160}
    site.ledger = CapLedger()
    assert site.read().effective.watts == 800.0


def test_energy_is_charged_once_while_a_ramp_rises() -> None:
    budget = {"kilojoules": 100_000, "periodSeconds": 3600}
    site = Site(with_draw(1000), watts=1000, rampWattsPerSecond=1, energyBudget=budget)
    site.publish(site.read())
    site.spec["watts"] = 5000
    for _ in range(40):
        site.publish(site.read(0.25))
    assert site.status["energyPeriod"]["consumedKilojoules"] == 10


def test_a_budget_that_is_taken_away_leaves_no_trace() -> None:
    site = Site(with_draw(1000), watts=5000, energyBudget={"kilojoules": 3600, "periodSeconds": 3600})
    assert "energyPeriod" in site.publish(site.read())
    del site.spec["energyBudget"]
    assert "energyPeriod" not in site.publish(site.read())


# --- breaches ----------------------------------------------------------------------------------------------------


def test_a_breach_is_told_with_its_time_its_worst_and_its_joules() -> None:
    site = Site(with_draw(1000), watts=1500)
    assert "breach" not in site.publish(site.read())
    site.pictures["a"] = with_draw(1600)
    assert site.publish(site.read(1.0))["breach"] == {"since": "2030-06-01T12:00:01Z", "watts": 100, "joules": 0}
    assert site.said("Breached") == ("True", "MeasuredOverCap")
    site.pictures["a"] = with_draw(1800)
    assert site.publish(site.read(2.0))["breach"] == {"since": "2030-06-01T12:00:01Z", "watts": 300, "joules": 600}
    site.pictures["a"] = with_draw(1000)
    ended = site.publish(site.read(1.0))["breach"]
    assert ended == {"since": "2030-06-01T12:00:01Z", "until": "2030-06-01T12:00:04Z", "watts": 300, "joules": 600}
    assert site.said("Breached") == ("False", "WithinCap")
    site.ledger = CapLedger()
    assert site.publish(site.read(60.0))["breach"] == ended  # the last one stays to be seen
    site.pictures["a"] = with_draw(1600)
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


def test_caps_are_read_in_the_order_of_their_names_each_with_a_memory_of_its_own() -> None:
    caps = [cap_view("b", watts=10, rampWattsPerSecond=1), cap_view("a", watts=20)]
    ledger = CapLedger()
    pictures = {"n": holding("n", 800)}
    first, _ = ledger.read(caps, pictures, NOW, 0.0)
    assert [reading.view.name for reading in first] == ["a", "b"]
    ledger.read([caps[1]], pictures, NOW, 1.0)
    faster = cap_view("b", watts=50, rampWattsPerSecond=1)
    later, _ = ledger.read([faster], pictures, NOW, 2.0)
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
def test_a_cap_that_cannot_be_read_is_told_to_be_unknown(spec: Json) -> None:
    ledger = CapLedger()
    before = cap_view(status={"effectiveWatts": 10, "conditions": [{"type": "Enforced", "status": "True"}]}, **spec)
    readings, problems = ledger.read([before, cap_view("good", watts=5000)], {"a": holding("a", 800)}, NOW, 0.0)
    assert [reading.view.name for reading in readings] == ["good"]
    assert len(problems) == 1
    assert problems[0].startswith("PowerCap row: ")
    ((view, status),) = ledger.unread_statuses(NOW)
    assert view == before
    PowerCapStatus.model_validate(as_stored({**before.status, **status}))
    assert {item["type"]: (item["status"], item["reason"]) for item in status["conditions"]} == dict.fromkeys(
        REASONS, ("Unknown", "Unreadable")
    )
    assert ledger.read([], {}, NOW, 1.0) == ([], [])
    assert ledger.unread_statuses(NOW) == []


def test_the_strictest_of_each_rule_counts() -> None:
    def rules(*specs: Mapping[str, Any]) -> NodeRules:
        caps = [cap_view(str(index), watts=9000, **spec) for index, spec in enumerate(specs)]
        readings, _ = CapLedger().read(caps, {"a": holding("a", 800)}, NOW, 0.0)
        return node_rules(readings)["a"]

    assert rules({}) == NodeRules(False, 0)
    assert rules({}, {"foreignPods": "Limit"}) == NodeRules(True, 0)
    assert rules({"failsafeWattsPerGpu": 200}, {}) == NodeRules(False, 200_000)
    assert rules({"failsafeWattsPerGpu": 200}, {"failsafeWattsPerGpu": 150}) == NodeRules(False, 150_000)


def test_the_default_of_gpus_in_the_fixture_is_what_the_figures_above_say() -> None:
    assert (FLOOR, DEFAULT) == (100_000, 400_000)


def test_the_reference_lists_the_same_reasons() -> None:
    section = REFERENCE.split("## PowerCap")[1].split("## GPUNode")[0]
    rows = re.findall(r"^\| (`[A-Z]\w+`|all three) \| (.*) \|$", section, re.MULTILINE)
    listed = {kind.strip("`"): set(re.findall(r"`([A-Z][A-Za-z]+)`", reasons)) for kind, reasons in rows}
    for_all = listed.pop("all three")
    assert {kind: reasons | for_all for kind, reasons in listed.items()} == {
        kind: set(reasons) for kind, reasons in REASONS.items()
    }


def test_readings_are_taken_with_a_time_zone() -> None:
    with pytest.raises(ValueError, match="time zone"):
        CapLedger().read([cap_view(watts=1)], {}, datetime(2030, 1, 1), 0.0)
