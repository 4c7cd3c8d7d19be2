"""The rows that people are shown, from objects as the API server has them."""

from __future__ import annotations

import ast
import sys
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import flyball_views
import msgspec
from flyball_api.energy.frontier import FrontierPoint, Tradeoff
from flyball_api.energy.profile import read_energy_profile
from flyball_api.energy_aware_job import read_energy_aware_job
from flyball_views.jobs import ends_of, frontier_of
from flyball_views.nodes import SILENT_SECONDS, row_of
from flyball_views.overview import Overview, read_overview
from flyball_views.row import UNREPORTED, Aspect
from flyball_views.sightings import Sighting, Sightings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.crd_schema import ANY_JSON, json_of, schema_of
from tests.support.examples import examples
from tests.support.shown_cluster import (
    NOW,
    cluster,
    condition,
    held_cap,
    late_node,
    lease,
    profile,
    raw_cap,
    running_job,
    serving_node,
    waiting_job,
)

SINCE = datetime(2030, 6, 1, 11, 58, tzinfo=UTC)


def shown(**changes: Any) -> Overview:
    return read_overview(NOW, **{**cluster(), **changes})


def test_a_cap_that_is_held() -> None:
    cap = shown().caps[1]
    assert (cap.name, cap.target_watts, cap.in_force_watts, cap.schedule) == ("row-a", 1200, 1000, "evening")
    assert (cap.committed_watts, cap.measured_watts, cap.headroom_watts) == (400, 330, 600)
    assert cap.measured is not None
    assert (cap.measured.source, cap.measured.time) == ("agents", None)
    assert cap.enforced == Aspect(True, "LimitsAcknowledged", "the limits of 1 node add up to 400 W at most", SINCE)
    assert cap.feasible.status is True
    assert cap.breached.status is False
    assert cap.emergency is None
    assert (cap.nodes, cap.counted_nodes, cap.current) == (("node-a",), 1, True)


def test_caps_stand_in_the_order_of_their_names_with_their_nodes() -> None:
    assert [(cap.name, cap.nodes, cap.enforced.status) for cap in shown().caps] == [
        ("cluster", ("node-a", "node-b"), False),
        ("row-a", ("node-a",), True),
    ]


def test_a_node_that_left_a_row_counts_there_as_long_as_its_former_labels_say() -> None:
    moved = serving_node()
    moved["metadata"]["labels"] = {"row": "c"}
    moved["metadata"]["annotations"] = {"flyball.dev/former-labels": '[{"row": "a"}]'}
    found = shown(gpu_nodes=[moved])
    assert found.caps[1].nodes == ("node-a",)
    assert found.nodes[0].caps == ("cluster", "row-a")


def test_a_cap_without_a_status_says_that_nothing_is_known() -> None:
    cap = read_overview(
        NOW, caps=[{"metadata": {"name": "new", "generation": 1}, "spec": {"permilleOfMax": 600}}]
    ).caps[0]
    assert (cap.target_watts, cap.target_permille) == (None, 600)
    assert cap.enforced == cap.feasible == cap.breached == UNREPORTED
    assert (cap.in_force_watts, cap.committed_watts, cap.measured, cap.headroom_watts) == (None, None, None, None)
    assert not cap.current


def test_a_status_of_an_earlier_spec_is_not_current() -> None:
    changed = held_cap()
    changed["metadata"]["generation"] = 2
    assert [cap.current for cap in shown(caps=[changed]).caps] == [False]


def test_a_cap_whose_spec_cannot_be_read_stays_with_its_refusal() -> None:
    cap = shown(caps=[raw_cap("odd", 5, permilleOfMax=7)]).caps[0]
    assert "exactly one of watts and permilleOfMax" in cap.refusal
    assert (cap.target_watts, cap.nodes, cap.enforcement) == (None, (), "")


def test_the_period_of_an_energy_budget() -> None:
    cap = held_cap()
    cap["spec"]["energyBudget"] = {"kilojoules": 5000, "periodSeconds": 86400}
    cap["status"]["energyPeriod"] = {"start": "2030-06-01T00:00:00Z", "consumedKilojoules": 1200}
    period = shown(caps=[cap]).caps[0].period
    assert period is not None
    assert (period.seconds, period.budget_kilojoules, period.consumed_kilojoules) == (86400, 5000, 1200)


def test_a_node_that_serves() -> None:
    node = shown().nodes[0]
    assert (node.name, node.row, node.product) == ("node-a", "a", "NVIDIA-A100-SXM4-40GB")
    assert (node.gpus, node.unread_gpus, node.measured_watts, node.limit_watts) == (2, 0, 330.0, 400.0)
    assert (node.min_watts, node.max_watts, node.granted_watts, node.committed_watts) == (200.0, 800.0, 400.0, 400.0)
    assert node.ready == Aspect(True, "Serving", "", SINCE)
    assert node.acknowledged_current
    assert (node.kubelet_ready, node.cordoned) == (True, False)
    assert (node.caps, node.jobs, node.mode) == (("cluster", "row-a"), ("team/train",), "Granted")
    assert node.devices[0].pod == "team/train-1-0"
    assert node.devices[0].limit_watts == 300.0


def test_the_boot_of_a_node_by_the_two_clocks_of_its_acknowledgement() -> None:
    acknowledged = shown().nodes[0].acknowledged
    assert acknowledged is not None
    assert shown().nodes[0].booted == acknowledged - timedelta(hours=1)
    other_boot = serving_node()
    other_boot["status"]["bootID"] = "boot-2"
    assert shown(gpu_nodes=[other_boot]).nodes[0].booted is None


def test_what_a_gpu_does_not_say_is_unknown_and_counted() -> None:
    node = shown().nodes[1]
    assert (node.gpus, node.unread_gpus, node.measured_watts) == (2, 1, 58.0)
    assert node.limit_watts is None
    assert node.devices[1].limit_watts is None
    assert (node.ready.status, node.ready.reason, node.degraded.status) == (False, "NotAcknowledged", True)
    assert node.drifted == UNREPORTED
    assert (node.granted_watts, node.committed_watts, node.acknowledged_current) == (200.0, 500.0, False)
    assert node.cordoned is True


def test_how_many_gpus_a_node_has_by_a_resource_of_another_name_is_not_known_before_its_agent_reports() -> None:
    node, silent = cluster()["nodes"][0], serving_node()
    node["status"]["capacity"]["example.com/gpu"] = node["status"]["capacity"].pop("nvidia.com/gpu")
    node["metadata"]["labels"] = {}
    del silent["status"]
    shown_node = shown(gpu_nodes=[silent], nodes=[node]).nodes[0]
    assert (shown_node.name, shown_node.gpus) == ("node-a", None)
    assert shown(nodes=[node]).nodes[0].gpus == 2


def test_a_node_without_a_gpu_node_and_one_without_a_node() -> None:
    only_node = shown(gpu_nodes=[]).nodes
    assert [node.name for node in only_node] == ["node-a", "node-b"]  # the control plane has no GPUs
    assert (only_node[0].gpus, only_node[0].measured_watts, only_node[0].ready) == (2, None, UNREPORTED)
    only_gpu_node = shown(nodes=[]).nodes
    assert [(node.name, node.row, node.kubelet_ready) for node in only_gpu_node] == [
        ("node-a", "a", None),
        ("node-b", "b", None),
    ]


def test_the_nearest_label_says_where_a_node_stands() -> None:
    assert row_of({"zone": "z", "rack": "r"}) == "r"
    assert row_of({"zone": "z"}) == "z"
    assert row_of({"row": ""}) == ""
    assert row_of({"row": "a", "hall": "h"}, ("hall",)) == "h"


def test_a_job_that_runs() -> None:
    job = shown().jobs[2]
    assert (job.key, job.state, job.gpus, job.min_gpus, job.max_gpus) == ("team/train", "Running", 1, 1, 8)
    assert (job.nodes, job.watts, job.clock_megahertz, job.power_limit_watts) == (("node-a",), 272, 1395, 300)
    assert job.progress is not None
    assert job.progress.fraction == 0.25
    assert (job.progress.iterations_per_second, job.progress.reported) == (0.5, NOW - timedelta(seconds=3))
    assert job.energy is not None
    assert (job.energy.consumed_kilojoules, job.energy.projected_kilojoules, job.energy.budget_kilojoules) == (
        200, 800, 1000,
    )  # fmt: skip
    assert job.finish == datetime(2030, 6, 1, 12, 25, tzinfo=UTC)
    assert (job.earliest_finish, job.latest_finish) == (
        datetime(2030, 6, 1, 12, 20, tzinfo=UTC), datetime(2030, 6, 1, 12, 31, 15, tzinfo=UTC),
    )  # fmt: skip
    assert job.queue is None
    assert job.deadline == datetime(2030, 6, 1, 18, 0, tzinfo=UTC)
    assert job.why.startswith("1 GPU at 1410 MHz")
    assert not job.finished
    assert [point.kilojoules for point in ends_of(job.tradeoff)] == [600, 480]


def test_the_frontier_of_a_job_follows_from_its_profile_and_what_is_left() -> None:
    job, learned = read_energy_aware_job(running_job()), read_energy_profile(profile())
    points = frontier_of(job, [learned])
    assert [(point.clock_megahertz, point.seconds, point.kilojoules) for point in points] == [
        (1410, 1500, 600),
        (1200, 1650, 525),
        (1005, 1800, 480),
    ]
    assert job.status.tradeoff is not None
    assert (points[0], points[-1]) == ends_of(job.status.tradeoff), "as its own status has them"
    for other in (
        {"gpus": {"min": 1, "max": 4}},
        {"clocks": {"maxMegahertz": 1200}},
        {"training": {"globalBatchSize": 512, "iterations": 1000}},
        {"training": {"globalBatchSize": 256}},
        {"profileKey": "another"},
    ):
        raw = running_job()
        raw["spec"].update(other)
        assert frontier_of(read_energy_aware_job(raw), [learned]) == (), other
    wrong_ones: list[dict[str, Any]] = [{"spec": {"profileKey": "train", "gpuModel": "H100"}}, {"status": {}}]
    for wrong in wrong_ones:
        assert frontier_of(job, [read_energy_profile({**profile(), **wrong})]) == ()
    assert frontier_of(job, [read_energy_profile(profile("other"))]) == ()
    assert frontier_of(read_energy_aware_job(waiting_job()), [learned]) == ()


def test_one_choice_alone_is_told_once() -> None:
    point = FrontierPoint(1, 1410, 5, 6)
    assert ends_of(Tradeoff("A100", 1, point, point)) == (point,)
    assert ends_of(None) == ()


def test_a_job_that_waits_has_no_gpus_no_clock_and_a_reason() -> None:
    job = shown().jobs[1]
    assert (job.key, job.gpus, job.nodes, job.clock_megahertz) == ("team/big", 0, (), None)
    assert (job.admitted.status, job.admitted.reason) == (False, "WaitingForPower")
    assert job.succeeded is None
    assert job.finish is None
    assert job.queue is not None
    assert (job.queue.position, job.queue.waiting) == (1, 2)
    assert (job.queue.start, job.queue.time) == (datetime(2030, 6, 1, 12, 25, tzinfo=UTC), NOW - timedelta(seconds=5))
    assert job.waiting == NOW - timedelta(minutes=10)


def test_a_job_of_which_nothing_is_written_yet() -> None:
    fresh = running_job()
    fresh["status"] = {}
    job = shown(jobs=[fresh]).jobs[0]
    assert (job.watts, job.progress, job.energy, job.restarts) == (None, None, None, None)
    assert job.admitted == UNREPORTED
    assert job.state == ""
    assert not job.current


def test_an_estimate_says_that_a_job_is_done_only_once_it_is() -> None:
    done = shown().jobs[0]
    assert done.finished
    assert done.progress is not None
    assert done.progress.fraction == 1.0
    running = running_job()
    running["status"]["progress"] = {"iterations": 5000, "estimated": True}
    progress = shown(jobs=[running]).jobs[0].progress
    assert progress is not None
    assert progress.fraction == 0.99


def test_a_job_without_an_end_has_no_fraction() -> None:
    endless = running_job()
    del endless["spec"]["training"]["iterations"]
    progress = shown(jobs=[endless]).jobs[0].progress
    assert progress is not None
    assert (progress.iterations, progress.total, progress.fraction) == (250, None, None)


def test_who_leads_and_since_when_nobody_does() -> None:
    leader = shown().leader
    assert leader is not None
    assert (leader.holder, leader.epoch, leader.duration_seconds) == ("operator-1", 1, 15)
    assert not leader.silent_at(NOW)
    assert leader.silent_at(NOW + timedelta(seconds=30))
    assert shown(lease=None).leader is None
    released = shown(lease=lease(holder="")).leader
    assert released is not None
    assert released.silent_at(NOW)


def test_sums() -> None:
    totals = shown().totals
    assert (totals.nodes, totals.ready_nodes, totals.unread_nodes) == (2, 1, 1)
    assert (totals.gpus, totals.gpus_in_jobs, totals.measured_watts, totals.limit_watts) == (4, 1, 388.0, 400.0)
    assert totals.jobs == {"Running": 1, "Succeeded": 1, "WaitingForPower": 1}


def test_nothing_at_all_is_not_zero_watts() -> None:
    empty = read_overview(NOW)
    assert (empty.totals.measured_watts, empty.totals.limit_watts, empty.leader) == (None, None, None)


def test_what_cannot_be_read_is_named_and_hides_nothing_beside_it() -> None:
    bad = running_job()
    bad["metadata"]["name"], bad["spec"]["gpus"] = "bad", {"min": 4, "max": 2}
    found = shown(jobs=[bad, running_job()])
    assert [job.name for job in found.jobs] == ["train"]
    assert len(found.problems) == 1
    assert "EnergyAwareJob team/bad" in found.problems[0]
    assert "1 <= min <= max" in found.problems[0]


def test_a_part_of_a_status_that_cannot_be_read_is_a_problem_of_its_row() -> None:
    odd = held_cap()
    odd["status"]["committedWatts"] = "many"
    cap = shown(caps=[odd]).caps[0]
    assert cap.committed_watts is None
    assert cap.headroom_watts == 600
    assert any("status.committedWatts" in problem for problem in cap.problems)


def test_an_overview_as_json_and_back() -> None:
    found = shown(missing={"nodes": "may not be listed"})
    encoded = msgspec.json.encode(found)
    assert msgspec.json.decode(encoded, type=Overview) == found
    cap = msgspec.json.decode(encoded)["caps"][0]
    assert {"name", "inForceWatts", "committedWatts", "headroomWatts", "enforced"} <= cap.keys()
    assert cap["enforced"].keys() == {"status", "reason", "message", "since"}


# --- when an agent was last heard --------------------------------------------------------------------------------------


def reported(watts: int) -> dict[str, Any]:
    node = serving_node()
    node["status"]["devices"][0]["powerMilliwatts"] = watts
    return node


def test_a_report_is_as_old_as_it_was_seen_to_change() -> None:
    sightings = Sightings()

    def look(seconds: float, watts: int) -> tuple[datetime | None, bool | None]:
        now = NOW + timedelta(seconds=seconds)
        node = read_overview(now, gpu_nodes=[reported(watts)], sightings=sightings).nodes[0]
        return node.reported, node.silent

    assert look(0, 1) == (None, None)  # how old it is, nobody can know
    assert look(30, 1) == (None, None)
    assert look(40, 2) == (NOW + timedelta(seconds=40), False)
    assert look(40 + SILENT_SECONDS, 2) == (NOW + timedelta(seconds=40), False)
    assert look(41 + SILENT_SECONDS, 2) == (NOW + timedelta(seconds=40), True)
    later = 42 + SILENT_SECONDS
    assert look(later, 3) == (NOW + timedelta(seconds=later), False)


def test_an_agent_that_never_speaks_is_silent_after_a_while() -> None:
    sightings = Sightings()
    read_overview(NOW, gpu_nodes=[reported(1)], sightings=sightings)
    later = NOW + timedelta(seconds=SILENT_SECONDS + 1)
    node = read_overview(later, gpu_nodes=[reported(1)], sightings=sightings).nodes[0]
    assert (node.reported, node.silent) == (None, True)


def test_a_node_that_comes_back_is_looked_at_anew() -> None:
    sightings = Sightings()
    for seconds, present in ((0, True), (10, False), (200, True)):
        now = NOW + timedelta(seconds=seconds)
        found = read_overview(now, gpu_nodes=[reported(1)] if present else [], sightings=sightings)
    assert Sighting(found.nodes[0].reported, found.nodes[0].silent) == Sighting()


# --- any object --------------------------------------------------------------------------------------------------------


def of_kind(kind: str) -> st.SearchStrategy[dict[str, Any]]:
    spec, status = json_of(schema_of(kind, "spec")), st.one_of(json_of(schema_of(kind, "status")), ANY_JSON)
    metadata = {"name": "subject", "namespace": "team", "generation": 2, "creationTimestamp": "2030-06-01T12:00:00Z"}
    return st.builds(lambda spec, status: {"metadata": dict(metadata), "spec": spec, "status": status}, spec, status)


@settings(max_examples=examples(100), suppress_health_check=list(HealthCheck))
@given(of_kind("PowerCap"), of_kind("GPUNode"), of_kind("EnergyAwareJob"))
def test_any_object_is_shown_or_named_as_a_problem(cap: Any, gpu_node: Any, job: Any) -> None:
    found = read_overview(NOW, caps=[cap], gpu_nodes=[gpu_node], jobs=[job], sightings=Sightings())
    assert len(found.caps) == 1
    assert len(found.nodes) + len(found.jobs) + len(found.problems) == 2
    msgspec.json.encode(found)


def test_looking_changes_nothing() -> None:
    given_objects = cluster()
    before = deepcopy(given_objects)
    read_overview(NOW, **given_objects)
    assert given_objects == before


def test_a_condition_that_became_unknown() -> None:
    cap = raw_cap("row", 5, condition("Enforced", None, "ProofStale", "nobody can prove it"))
    assert shown(caps=[cap]).caps[0].enforced == Aspect(None, "ProofStale", "nobody can prove it", SINCE)


def test_the_views_import_the_api_and_the_standard_library_alone() -> None:
    allowed = {"flyball_api", "flyball_views", "msgspec", *sys.stdlib_module_names} - {
        "asyncio",
        "socket",
        "subprocess",
    }
    for path in Path(flyball_views.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            wrong = {name for name in names if name.partition(".")[0] not in allowed}
            assert not wrong, f"{path.name} imports {wrong}"


def test_a_late_node_is_under_every_cap_that_selects_it() -> None:
    assert shown(gpu_nodes=[late_node()]).nodes[1].caps == ("cluster",)
