"""What the browser gets: nothing that is unknown becomes a figure, and no list grows without end."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from flyball_api.energy.frontier import FrontierPoint
from flyball_api.event import read_event
from flyball_page.documents import (
    MAX_EVENTS,
    MAX_JOBS,
    job_document,
    jobs_document,
    latest,
    node_state,
    nodes_document,
    overview_document,
    present_point,
    unreadable,
)
from flyball_page.owing import ACKNOWLEDGEMENT_SECONDS, Owing
from flyball_views.jobs import JobRow
from flyball_views.nodes import NodeRow
from flyball_views.overview import Overview, read_overview
from flyball_views.row import UNREPORTED, Aspect

from tests.support import shown_cluster
from tests.support.shown_page import large_cluster, made_event

Json = dict[str, Any]

ENDS = [
    {"gpus": 1, "clockMegahertz": 1410, "seconds": 1500, "kilojoules": 600},
    {"gpus": 1, "clockMegahertz": 1005, "seconds": 1800, "kilojoules": 480},
]


@pytest.fixture
def view() -> Overview:
    return read_overview(shown_cluster.NOW, **shown_cluster.cluster())


def as_sent(document: Any) -> Any:
    return json.loads(msgspec.json.encode(document))


def job(view: Overview, name: str) -> JobRow:
    return next(row for row in view.jobs if row.name == name)


def node(view: Overview, name: str) -> NodeRow:
    return next(row for row in view.nodes if row.name == name)


def test_caps_are_sent_with_their_figures_and_without_their_nodes(view: Overview) -> None:
    sent = as_sent(overview_document(view, began=1.0, leader_seen=None, copies={"Nodes": None}))
    row_a = next(cap for cap in sent["caps"] if cap["name"] == "row-a")
    assert (row_a["inForceWatts"], row_a["committedWatts"], row_a["measured"]["watts"]) == (1000, 400, 330)
    assert row_a["nodes"] == []
    assert (sent["copies"], sent["operator"]["seen"], sent["operator"]["durationSeconds"]) == (
        {"Nodes": None},
        None,
        15,
    )


def test_without_a_lease_nobody_knows_who_leads(view: Overview) -> None:
    without = msgspec.structs.replace(view, leader=None)
    assert overview_document(without, began=1.0, leader_seen=None, copies={})["operator"] is None


def test_who_acknowledges_one_grant_after_the_other_owes_the_latest_only(view: Overview) -> None:
    owing, late = Owing(), node(view, "node-b")
    owing.look(view.nodes, 0.0)
    owing.look(view.nodes, ACKNOWLEDGEMENT_SECONDS - 1)
    assert owing.names == frozenset()
    later = msgspec.structs.replace(late, acknowledged=shown_cluster.NOW)
    owing.look([later], ACKNOWLEDGEMENT_SECONDS)
    assert owing.names == frozenset()
    owing.look([later], 2 * ACKNOWLEDGEMENT_SECONDS)
    assert owing.names == {"node-b"}
    owing.look([msgspec.structs.replace(later, acknowledged_current=True)], 3 * ACKNOWLEDGEMENT_SECONDS)
    assert owing.names == frozenset()


def test_columns_of_nodes_are_of_one_length_and_unknown_is_null(view: Overview) -> None:
    sent = as_sent(nodes_document(view))
    assert {len(column) for name, column in sent.items() if name != "asOf"} == {len(view.nodes)}
    late = sent["name"].index("node-b")
    assert (sent["limitWatts"][late], sent["unreadGpus"][late]) == (None, 1)
    assert sent["reported"] == [None, None]


def test_an_acknowledgement_is_owed_for_a_moment_by_whoever_is_granted_anew(view: Overview) -> None:
    assert not node(view, "node-b").acknowledged_current
    calm = msgspec.structs.replace(node(view, "node-b"), degraded=Aspect(False), devices=node(view, "node-a").devices)
    assert node_state(calm)[0] == "well"
    assert node_state(calm, {"node-b"})[0] == "waiting"


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ({}, "well"),
        ({"degraded": Aspect(True, "GpuFailed", "no answer")}, "trouble"),
        ({"drifted": Aspect(True, "Drifted")}, "trouble"),
        ({"acknowledged_current": False, "degraded": Aspect(True, "GpuFailed")}, "waiting"),
        ({"acknowledged_current": False, "mode": "Observing"}, "well"),
        ({"silent": True, "acknowledged_current": False}, "silent"),
        ({"kubelet_ready": False, "silent": True}, "lost"),
        ({"devices": (), "kubelet_ready": False}, "unknown"),
        ({"silent": None, "kubelet_ready": None, "degraded": UNREPORTED}, "well"),
    ],
)
def test_a_node_is_what_is_gravest_of_it(view: Overview, change: Json, state: str) -> None:
    changed = msgspec.structs.replace(node(view, "node-a"), **change)
    found, why = node_state(changed, () if changed.acknowledged_current else ("node-a",))
    assert found == state
    assert bool(why) is (state != "well")


def test_jobs_that_are_not_finished_come_first_and_the_rest_is_bounded() -> None:
    view = large_cluster(4, jobs=20)
    done = msgspec.structs.replace(view.jobs[0], succeeded=Aspect(True), gpus=0)
    many = [msgspec.structs.replace(done, name=f"done-{number}") for number in range(MAX_JOBS)]
    document = jobs_document(msgspec.structs.replace(view, jobs=(*many, *view.jobs)))
    assert (len(document["jobs"]), document["omitted"]) == (MAX_JOBS, 20)
    assert [each["finished"] for each in document["jobs"][:21]] == [False] * 20 + [True]


def test_a_job_is_where_its_own_forecast_puts_it(view: Overview) -> None:
    running = job(view, "train")
    assert present_point(running, view.time) == {"gpus": 1, "clockMegahertz": 1395, "seconds": 1500, "kilojoules": 600}
    assert present_point(running, view.time + timedelta(days=1))["seconds"] == 0  # type: ignore[index]
    for change in ({"gpus": 0}, {"finish": None}, {"energy": None}):
        assert present_point(msgspec.structs.replace(running, **change), view.time) is None, change


def test_one_job_is_sent_whole(view: Overview) -> None:
    events = [
        made_event("Resized", "EnergyAwareJob", "train", "to 1 GPU", namespace="team"),
        made_event("Resized", "EnergyAwareJob", "train", "another's", namespace="other"),
    ]
    sent = as_sent(job_document(view, job(view, "train"), events=events))
    assert (sent["frontier"], sent["onlyEnds"]) == (ENDS, True), "what its status has, where no profile is known"
    assert [event["note"] for event in sent["events"]] == ["to 1 GPU"]
    assert sent["profiles"] == []
    assert as_sent(job_document(view, job(view, "train"), None))["profiles"] is None
    point = FrontierPoint(1, 1200, 1650, 525)
    whole = as_sent(job_document(view, job(view, "train"), frontier=(point,)))
    assert (whole["frontier"], whole["onlyEnds"]) == (as_sent([point]), False)
    nothing = as_sent(job_document(view, job(view, "big")))
    assert (nothing["frontier"], nothing["onlyEnds"]) == ([], False)


def test_a_thousand_nodes_are_a_bounded_document() -> None:
    small, large = (len(msgspec.json.encode(nodes_document(large_cluster(number, jobs=0)))) for number in (100, 1000))
    assert large < 11 * small
    assert large < 300_000


def test_the_latest_events_come_first_and_not_all_of_them() -> None:
    def at(second: int) -> Json:
        return {"eventTime": f"2030-06-01T11:58:{second:02d}.000000Z", "reason": str(second), "series": None}

    rows = [read_event(at(second)) for second in range(60)] + [read_event({"reason": "never"})]
    shown = latest(rows)
    assert [event.reason for event in shown[:2]] == ["59", "58"]
    assert len(shown) == MAX_EVENTS
    counted = read_event({**at(1), "series": {"count": 7, "lastObservedTime": "2030-06-01T11:59:59.000000Z"}})
    assert (counted.count, latest([*rows, counted])[0].reason) == (7, "1")


def test_of_what_namespaces_hold_only_the_number_that_cannot_be_read_is_told_to_all() -> None:
    errors = {"secret/project-x": "spec.gpus: not a number", "other/y": "no spec"}
    assert unreadable("EnergyAwareJobs", errors, of_namespaces=True) == ["2 EnergyAwareJobs cannot be read"]
    assert unreadable("EnergyAwareJobs", {}, of_namespaces=True) == []
    assert unreadable("PowerCaps", {"b": "no watts", "a": "no spec"}, of_namespaces=False) == [
        "PowerCaps a: no spec",
        "PowerCaps b: no watts",
    ]
