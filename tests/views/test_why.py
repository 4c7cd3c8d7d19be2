"""Why a job, a cap or a node stands as it does, in situations that people ask about."""

from __future__ import annotations

import inspect
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from flyball_agent.enforce.decisions import Mode
from flyball_agent.node import status as agent_status
from flyball_api.event import EventView, read_event
from flyball_operator.jobs.starts.obstacles import READY_OBSTACLES
from flyball_operator.jobs.status import REASONS as JOB_REASONS
from flyball_operator.power.caps.status import REASONS as CAP_REASONS
from flyball_planner.decisions import clock_reasons
from flyball_views.nodes import SERVING_MODES
from flyball_views.overview import Overview, read_overview
from flyball_views.sightings import Sightings
from flyball_views.why.cap import why_cap
from flyball_views.why.job import why_job
from flyball_views.why.job_changes import CLOCK_CHANGE, WAITING_CHANGE
from flyball_views.why.node import DEGRADED_CHANGE, why_node
from flyball_views.why.reasons import Explanation, NoSuchObject, Weight
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.crd_schema import json_of, schema_of
from tests.support.examples import examples
from tests.support.shown_cluster import (
    NOW,
    cluster,
    condition,
    held_cap,
    late_cap,
    late_node,
    lease,
    nodes,
    running_job,
    serving_node,
    succeeded_job,
    waiting_job,
)

Json = dict[str, Any]
STOPS, LIMITS, NOTE = Weight.STOPS, Weight.LIMITS, Weight.NOTE
STARTS = (NOTE, "it can expect to start in 25m, when team/train has ended (by the plan of 5s ago)")


def shown(**changes: Any) -> Overview:
    return read_overview(NOW, **{**cluster(), **changes})


def told(explanation: Explanation) -> list[tuple[Weight, str]]:
    return [(reason.weight, reason.what) for reason in explanation.reasons]


def with_condition(raw: Json, *changed: Json) -> Json:
    kinds = {item["type"] for item in changed}
    kept = [item for item in raw["status"].get("conditions", ()) if item["type"] not in kinds]
    raw["status"]["conditions"] = [*kept, *changed]
    return raw


def event(kind: str, name: str, reason: str, note: str, minutes_ago: float = 5, namespace: str = "") -> EventView:
    return EventView(kind, name, namespace, reason, note, True, NOW - timedelta(minutes=minutes_ago))


# --- jobs --------------------------------------------------------------------------------------------------------------


def test_a_job_that_waits_for_power_is_told_which_caps_are_tight() -> None:
    found = why_job(shown(), "team", "big")
    assert found.headline == "WaitingForPower: no GPUs, number 1 of 2 that wait"
    assert not found.well
    assert told(found) == [
        (STOPS, "not even 4 GPUs at the lowest clock fit under the cap cluster: 240 W are left, 400 W are needed"),
        (STOPS, "the cap cluster has 0 W left of 600 W, and is not enforced (WaitingForAcknowledgements)"),
        STARTS,
        (NOTE, "the cap row-a has 600 W left of 1000 W"),
    ]
    assert found.reasons[0].change.startswith("a higher cap, another job's end")
    assert found.reasons[1].change == "kubectl flyball why pcap cluster"


def test_a_job_that_waits_for_gpus_is_told_which_nodes_are_closed() -> None:
    job = with_condition(waiting_job(), condition("Admitted", False, "WaitingForGpus", "no 4 GPUs are free"))
    found = why_job(shown(jobs=[job, running_job()]), "team", "big")
    assert told(found) == [
        (STOPS, "no 4 GPUs are free"),
        (STOPS, "1 of 4 GPUs are in jobs: team/train (1)"),
        (STOPS, "2 GPUs on 1 node cannot be used now (node-b: it is cordoned: no job is placed there)"),
        STARTS,
    ]


def test_a_node_that_owes_an_acknowledgement_for_a_moment_is_not_closed() -> None:
    node = serving_node()
    node["spec"]["generation"] = 2
    job = with_condition(waiting_job(), condition("Admitted", False, "WaitingForGpus", "no 4 GPUs are free"))
    overview = shown(gpu_nodes=[node], nodes=nodes()[:1], jobs=[job])
    assert not why_node(overview, "node-a").well
    assert told(why_job(overview, "team", "big")) == [(STOPS, "no 4 GPUs are free"), STARTS]


def test_a_job_that_runs_well_has_notes_only() -> None:
    found = why_job(shown(), "team", "train")
    assert found.well
    assert found.headline == "Running: 1 GPU at 1395 MHz, 272 W, 25% done, ends in 25m (20m to 31m)"
    assert told(found) == [
        (NOTE, "of 1 to 8 GPUs: 1 GPU at 1410 MHz: a second GPU would pass the cap row-a"),
        (NOTE, "each GPU is limited to 300 W of 400 W"),
    ]


@pytest.mark.parametrize(
    ("explanation", "change"),
    [
        ("2 GPUs at 1410 MHz: its only size; the highest clock of its GPU.", ""),
        (
            "2 GPUs at 900 MHz: its only size; a higher clock would pass the going price of 2 kJ a second.",
            "objective: Time",
        ),
        (
            "2 GPUs at 900 MHz: its only size; no higher clock is within its maxMegahertz of 910.",
            "a higher spec.clocks",
        ),
        (
            "2 GPUs at 810 MHz: its only size; a higher clock would need more than the 150 W that its GPUs may have.",
            "a higher spec.powerLimit.maxWatts",
        ),
        (
            "2 GPUs at 900 MHz: cap row leaves 3 W of the 90 W that it takes; the clock of least energy.",
            "objective: Bal",
        ),
        ("2 GPUs at 900 MHz: its only size; cap row leaves 3 W.", "a higher cap"),
        (
            "1 GPU at 885 MHz: throttled to its smallest size, its energy budget is spent; the clock of least energy.",
            "",
        ),
    ],
)
def test_what_would_raise_a_power_limit_is_what_holds_the_clock(explanation: str, change: str) -> None:
    job = running_job()
    job["status"]["explanation"] = explanation
    (limited,) = [each for each in why_job(shown(jobs=[job]), "team", "train").reasons if "is limited to" in each.what]
    assert limited.change.startswith(change)
    assert bool(limited.change) is bool(change)


def test_the_words_of_a_clocks_reason_are_the_planners() -> None:
    source = inspect.getsource(clock_reasons)
    assert not [words for words, _ in CLOCK_CHANGE if words not in source]


def test_bounds_and_ends_that_cannot_be_kept_are_told_with_the_field_that_would_change_them() -> None:
    job = with_condition(
        running_job(),
        condition("DeadlineAtRisk", True, "NoAllocationMeetsIt", "the earliest possible is 20:00"),
        condition("BoundsKept", False, "OutOfRange", "powerLimit.maxWatts 1 is below 100 W"),
    )
    job["spec"] |= {"flexibleUntil": "2030-06-01T19:00:00Z", "deadline": "2030-06-01T20:00:00Z"}
    late, bounds = why_job(shown(jobs=[job]), "team", "train").reasons[:2]
    assert late.change.startswith("a later spec.flexibleUntil, a larger spec.gpus.max")
    assert (bounds.what, bounds.weight) == ("powerLimit.maxWatts 1 is below 100 W", LIMITS)
    job["spec"] |= {"flexibleUntil": "2030-06-01T21:00:00Z"}
    passed = with_condition(job, condition("DeadlineAtRisk", True, "DeadlinePassed", "it is past"))
    assert why_job(shown(jobs=[passed]), "team", "train").reasons[0].change == "a later spec.deadline, or none"


@pytest.mark.parametrize(("permille", "words"), [(149, ""), (152, "15% longer"), (-400, "40% less")])
def test_a_model_that_is_wrong_is_said(permille: int, words: str) -> None:
    job = running_job()
    job["status"]["prediction"] = {
        "microsecondsPerIteration": 500_000,
        "watts": 300,
        "timeErrorPermille": permille,
        "energyErrorPermille": 0,
    }
    said = [
        what for _, what in told(why_job(shown(jobs=[job]), "team", "train")) if "than the model of it says" in what
    ]
    assert said == ([f"an iteration takes {words} than the model of it says, by which it is planned"] if words else [])


def test_a_run_of_a_recurring_job_is_told_its_batch_size_and_what_it_may_cost() -> None:
    job = running_job()
    job["spec"]["recurrence"] = {"batchSizes": [64, 256], "targetMetric": "loss <= 2.1"}
    job["status"]["recurrence"] = {
        "decision": 4,
        "globalBatchSize": 64,
        "purpose": "Explore",
        "message": "64 is to be tried",
        "gpuModel": "NVIDIA A100-SXM4-40GB",
        "wattsPerGpu": 400,
        "costLimitJoules": 9000,
        "costJoules": 1200,
    }
    found = why_job(shown(jobs=[job]), "team", "train")
    assert (
        NOTE,
        "its batch size is 64: 64 is to be tried; it has cost 1200 J, and is stopped at 9000 J",
    ) in told(found)


def test_what_is_wrong_with_a_running_job_comes_before_why_it_has_its_size() -> None:
    job = with_condition(
        running_job(),
        condition("DeadlineAtRisk", True, "NoAllocationMeetsIt", "the earliest possible is 20:00"),
        condition("BudgetHealthy", False, "ProjectedOverBudget", "1200 kJ at the end of 1000 kJ allowed"),
    )
    job["status"]["restarts"] = 2
    job["status"]["progress"]["lastReportTime"] = "2030-06-01T11:40:00Z"
    found = why_job(shown(jobs=[job]), "team", "train")
    assert told(found)[:4] == [
        (LIMITS, "the earliest possible is 20:00"),
        (LIMITS, "1200 kJ at the end of 1000 kJ allowed"),
        (LIMITS, "it has failed and was started again 2 times of 3 times that it may"),
        (LIMITS, "the training last reported 20m ago"),
    ]
    assert "kubectl flyball logs train -n team --previous" in found.reasons[2].change


@pytest.mark.parametrize(
    ("step", "what", "change"),
    [
        ("Stopping", "checkpointing and leaving", "terminationGracePeriodSeconds"),
        ("Gated", "until the watts for them are reserved", "acknowledgements"),
        ("Starting", "not all of them are ready", "describe the pods"),
    ],
)
def test_a_job_on_its_way_is_told_its_step(step: str, what: str, change: str) -> None:
    job = with_condition(running_job(), condition("Placed", False, step))
    del job["status"]["applied"]
    first = why_job(shown(jobs=[job]), "team", "train").reasons[0]
    assert first.weight is STOPS
    assert what in first.what
    assert change in first.change


@pytest.mark.parametrize(
    ("kind", "reason", "words", "change"),
    [
        ("Placed", "QuotaExceeded", "exceeded quota: q", "a larger quota"),
        ("Placed", "RestartBackOff", "pod p ended with exit code 1", "mend what ends it"),
        ("PodsReady", "ImagePullFailed", "Back-off pulling image x", "imagePullSecrets"),
    ],
)
def test_what_keeps_a_job_from_running_is_told_in_its_words(kind: str, reason: str, words: str, change: str) -> None:
    job = with_condition(running_job(), condition(kind, False, reason, words))
    first = why_job(shown(jobs=[job]), "team", "train").reasons[0]
    assert (first.weight, first.what) == (STOPS, f"{reason}: {words}")
    assert change in first.change


def test_an_emergency_over_a_jobs_node_is_among_its_reasons() -> None:
    cap = with_condition(held_cap(), condition("Emergency", True, "Declared", "every GPU is held: smoke"))
    found = why_job(shown(caps=[cap]), "team", "train")
    assert told(found)[0] == (
        LIMITS,
        "an emergency is declared for the cap row-a: its GPUs are at their smallest limits",
    )


def test_a_finished_job_says_how_it_ended() -> None:
    assert told(why_job(shown(), "other", "done")) == [(NOTE, "it has succeeded; it used 700 kJ")]
    failed = with_condition(succeeded_job(), condition("Failed", True, "Failed", "exit code 3 on rank 1"))
    failed["status"]["conditions"] = [item for item in failed["status"]["conditions"] if item["type"] != "Succeeded"]
    found = why_job(shown(jobs=[failed]), "other", "done")
    assert told(found) == [(STOPS, "it failed for good: exit code 3 on rank 1; it used 700 kJ")]


def test_a_job_that_nobody_looked_at_yet() -> None:
    fresh = waiting_job()
    fresh["status"] = {}
    first = why_job(shown(jobs=[fresh], lease=None), "team", "big").reasons[0]
    assert (first.weight, "see that one leads" in first.change) == (LIMITS, True)


def test_without_an_operator_that_is_the_first_reason() -> None:
    old = lease(renewed="2030-06-01T11:30:00Z")
    first = why_job(shown(lease=old), "team", "big").reasons[0]
    assert first.what == (
        "no operator leads (operator-1 holds the operator's Lease, which was last renewed 30m ago): nothing is planned, "
        "started or moved; what runs goes on"
    )
    assert why_cap(shown(lease=old), "row-a").reasons[0].weight is STOPS
    assert not why_node(shown(lease=old), "node-a").well


# --- caps --------------------------------------------------------------------------------------------------------------


def test_a_cap_that_is_not_enforced_names_the_nodes_that_owe() -> None:
    found = why_cap(shown(), "cluster")
    assert found.headline == "not enforced: 600 W in force, 900 W committed, 440 W measured, 0 W to give"
    assert told(found)[:2] == [
        (STOPS, "the nodes may still draw 900 W, 300 W over the cap; 1 node has yet to acknowledge its grant"),
        (STOPS, "node-b: it is cordoned: no job is placed there"),
    ]


def test_a_cap_that_is_held_says_why_less_is_in_force_and_who_draws() -> None:
    found = why_cap(shown(), "row-a")
    assert told(found) == [
        (LIMITS, "1000 W are in force, not 1200 W: the schedule evening is in force"),
        (NOTE, "1 job runs under it: team/train (272 W, 1 GPU)"),
    ]


def test_an_infeasible_cap_and_a_breach() -> None:
    cap = with_condition(
        late_cap(),
        condition("Feasible", False, "FloorsExceedCap", "the nodes draw up to 900 W at the least"),
        condition("Enforced", False, "Infeasible", "the nodes may still draw 900 W"),
        condition("Breached", True, "MeasuredOverCap", "measured 700 W, cap 600 W"),
    )
    found = why_cap(shown(caps=[cap]), "cluster")
    assert [what for _, what in told(found)][:2] == [
        "the nodes draw up to 900 W at the least",
        "the nodes may still draw 900 W",
    ]
    breach = next(reason for reason in found.reasons if reason.what.startswith("measured 700 W"))
    assert "the GPUs report 388 W of it" in breach.change
    assert "emergency --cap cluster" in breach.change


def test_an_emergency_a_silent_meter_and_a_deletion() -> None:
    cap = with_condition(
        held_cap(),
        condition("Emergency", True, "Declared", "every GPU is held at its smallest limit: smoke"),
        condition("MeterSilent", True, "NoReading", "file row-a has no new reading"),
    )
    cap["metadata"]["deletionTimestamp"] = "2030-06-01T11:59:00Z"
    cap["status"]["meter"] = {"state": "Shaping", "allowedWatts": 900}
    found = why_cap(shown(caps=[cap]), "row-a")
    assert told(found)[0] == (STOPS, "every GPU is held at its smallest limit: smoke")
    changes = " ".join(reason.change for reason in found.reasons)
    assert "emergency --cap row-a --end" in changes
    assert "release pcap row-a" in changes
    assert any("limits are shaped because of the meter, to 900 W in all" in what for _, what in told(found))


def test_a_cap_with_nothing_left_names_who_waits() -> None:
    cap = held_cap()
    cap["status"]["headroomWatts"] = 10
    found = why_cap(shown(caps=[cap]), "row-a")
    assert (NOTE, "1 job waits for power: team/big") in told(found)


def test_many_nodes_in_trouble_are_counted() -> None:
    late = []
    for index in range(9):
        node = late_node()
        node["metadata"]["name"] = f"late-{index}"
        late.append(node)
    found = why_cap(shown(gpu_nodes=late, nodes=[]), "cluster")
    named = [what for _, what in told(found) if what.startswith("late-")]
    assert len(named) == 5
    assert any(what.startswith("4 more nodes in trouble: late-5, late-6") for _, what in told(found))


# --- nodes -------------------------------------------------------------------------------------------------------------


def test_a_node_that_serves_has_notes_only() -> None:
    found = why_node(shown(), "node-a")
    assert found.headline == "serves: 330 W of 400 W that its limits allow, 2 GPUs, 1 job"
    assert told(found) == [(NOTE, "it counts under cluster, row-a"), (NOTE, "it runs team/train")]


def test_a_node_in_trouble_the_gravest_first() -> None:
    found = why_node(shown(), "node-b")
    assert [weight for weight, _ in told(found)] == [STOPS, LIMITS, LIMITS, LIMITS, LIMITS, NOTE]
    assert told(found)[0] == (STOPS, "Unreachable: GPU-1: no answer")
    assert found.reasons[0].change == DEGRADED_CHANGE["GpuFailed"]
    assert any("it was granted 200 W, and counts with 500 W" in what for _, what in told(found))


def test_an_agent_that_fell_silent() -> None:
    sightings = Sightings()
    read_overview(NOW - timedelta(minutes=10), **{**cluster(), "lease": None}, sightings=sightings)
    late = read_overview(NOW, **cluster(), sightings=sightings, operator_namespace="power")
    first = why_node(late, "node-a").reasons[0]
    assert (first.weight, "has reported nothing" in first.what) == (STOPS, True)
    assert first.change.startswith("kubectl -n power get pods ")
    assert "spec.nodeName=node-a" in first.change


def test_a_node_that_is_gone_counts_until_somebody_releases_it() -> None:
    found = why_node(shown(nodes=[]), "node-a")
    assert "there is no Node of this name any more" in found.reasons[0].what
    assert "release gpunode node-a" in found.reasons[0].change


def test_where_nodes_may_not_be_read_nobody_says_that_they_are_gone() -> None:
    found = why_node(shown(nodes=[], missing={"nodes": "may not be listed"}), "node-a")
    assert found.well
    assert found.unknown == ("nodes: may not be listed",)


@pytest.mark.parametrize("mode", sorted({str(mode) for mode in Mode} - set(SERVING_MODES)))
def test_each_mode_in_which_a_node_does_not_serve_is_a_reason(mode: str) -> None:
    node = serving_node()
    node["status"]["mode"] = mode
    assert not why_node(shown(gpu_nodes=[node]), "node-a").well


def test_an_idle_node_at_its_smallest_limits_serves() -> None:
    node = serving_node()
    node["status"]["mode"] = "Floor"
    assert why_node(shown(gpu_nodes=[node]), "node-a").well


@pytest.mark.parametrize("reason", sorted(JOB_REASONS["Admitted"] - {"Admitted", "Succeeded", "Failed"}))
def test_every_reason_to_wait_says_what_would_change_it(reason: str) -> None:
    job = with_condition(waiting_job(), condition("Admitted", False, reason, "in the operator's words"))
    first = why_job(shown(jobs=[job]), "team", "big").reasons[0]
    assert (first.what, first.change) == ("in the operator's words", WAITING_CHANGE[reason])


@pytest.mark.parametrize(
    "reason", sorted(JOB_REASONS["Placed"] - {"PodsBound", "Waiting", "Running", "Complete", "Failed"})
)
def test_every_obstacle_to_placing_says_what_would_change_it(reason: str) -> None:
    job = with_condition(running_job(), condition("Placed", False, reason, "in their words"))
    first = why_job(shown(jobs=[job]), "team", "train").reasons[0]
    assert (first.weight, bool(first.change)) == (STOPS, True)


def test_of_a_volume_that_is_flyballs_own_the_template_is_not_blamed() -> None:
    said = 'violates PodSecurity "restricted:latest": restricted volume types (volume "flyball-socket" uses "hostPath")'
    job = with_condition(running_job(), condition("Placed", False, "PodSecurityViolated", said))
    first = why_job(shown(jobs=[job]), "team", "train").reasons[0]
    assert "agent.devicePluginsDir=/var/lib/kubelet/device-plugins" in first.change
    said = "violates PodSecurity: runAsNonRoot != true"
    job = with_condition(running_job(), condition("Placed", False, "PodSecurityViolated", said))
    assert "devicePluginsDir" not in why_job(shown(jobs=[job]), "team", "train").reasons[0].change


def test_what_nobody_has_told_of_the_draw_is_a_dash_and_not_zero() -> None:
    job = running_job()
    job["status"]["energy"]["watts"] = 0  # as earlier operators wrote of a training that reports nothing
    found = why_job(shown(jobs=[job]), "team", "train")
    assert found.headline == "Running: 1 GPU at 1395 MHz, 25% done, ends in 25m (20m to 31m)"


@pytest.mark.parametrize("reason", sorted(READY_OBSTACLES))
def test_every_obstacle_to_starting_says_what_would_change_it(reason: str) -> None:
    job = with_condition(running_job(), condition("PodsReady", False, reason, "the kubelet's words"))
    first = why_job(shown(jobs=[job]), "team", "train").reasons[0]
    assert (first.weight, first.what, bool(first.change)) == (STOPS, f"{reason}: the kubelet's words", True)


@pytest.mark.parametrize("reason", sorted(CAP_REASONS["Enforced"] - {"LimitsAcknowledged"}))
def test_every_reason_not_to_be_enforced_says_what_would_change_it(reason: str) -> None:
    cap = with_condition(held_cap(), condition("Enforced", None, reason, "in the operator's words"))
    found = why_cap(shown(caps=[cap]), "row-a")
    assert any(item.what == "in the operator's words" and item.change for item in found.reasons)


def test_every_trouble_of_an_agent_says_what_would_change_it() -> None:
    named = set(re.findall(r'return "([A-Z]\w+)", ', Path(agent_status.__file__).read_text())) - {"AsExpected"}
    assert len(named) >= 8
    assert named <= DEGRADED_CHANGE.keys()


def test_a_warning_counts_until_what_ends_it() -> None:
    overview = shown()
    raised = event("Node", "node-a", "NodeUnresponsive", "its agent has not acknowledged", 10)
    assert not why_node(overview, "node-a", [raised]).well
    cleared = event("Node", "node-a", "NodeAnswers", "its agent acknowledges again", 2)
    assert why_node(overview, "node-a", [raised, cleared]).well
    assert why_node(overview, "node-a", [event("Node", "node-a", "NodeUnresponsive", "long ago", 90)]).well
    assert why_node(overview, "node-a", [event("Node", "other", "NodeUnresponsive", "not of this one")]).well


def test_the_latest_events_come_along() -> None:
    said = [event("EnergyAwareJob", "train", "Resized", f"{minute}", minute, "team") for minute in range(9)]
    found = why_job(shown(), "team", "train", said)
    assert [item.note for item in found.events] == ["0", "1", "2", "3", "4", "5"]


def test_an_event_of_a_series_is_as_old_as_its_last() -> None:
    raw = {
        "metadata": {"creationTimestamp": "2030-06-01T11:00:00Z"},
        "regarding": {"kind": "PowerCap", "name": "row-a"},
        "reason": "Enforced",
        "note": "it fits",
        "type": "Normal",
        "eventTime": "2030-06-01T11:00:00.000000Z",
        "series": {"count": 4, "lastObservedTime": "2030-06-01T11:59:00.000000Z"},
    }
    found = read_event(raw)
    assert (found.count, found.time, found.warning) == (4, NOW - timedelta(minutes=1), False)


def test_what_does_not_exist_is_said() -> None:
    with pytest.raises(NoSuchObject, match="no EnergyAwareJob train in the namespace other"):
        why_job(shown(), "other", "train")
    with pytest.raises(NoSuchObject, match="no PowerCap nothing"):
        why_cap(shown(), "nothing")
    with pytest.raises(NoSuchObject, match="no GPU node nothing"):
        why_node(shown(), "nothing")


def raw_objects(kind: str) -> st.SearchStrategy[Json]:
    metadata = {"name": "subject", "namespace": "team", "generation": 2, "creationTimestamp": "2030-06-01T12:00:00Z"}
    spec, status = json_of(schema_of(kind, "spec")), json_of(schema_of(kind, "status"))
    return st.builds(lambda spec, status: {"metadata": dict(metadata), "spec": spec, "status": status}, spec, status)


@pytest.mark.slow
@settings(max_examples=examples(100), suppress_health_check=list(HealthCheck))
@given(raw_objects("PowerCap"), raw_objects("GPUNode"), raw_objects("EnergyAwareJob"))
def test_every_object_that_the_schemas_take_is_explained(cap: Json, gpu_node: Json, job: Json) -> None:
    found = read_overview(NOW, [cap], [gpu_node], [job])
    explanations = [why_cap(found, "subject")]
    explanations += [why_node(found, row.name) for row in found.nodes]
    explanations += [why_job(found, row.namespace, row.name) for row in found.jobs]
    for explanation in explanations:
        assert explanation.headline
        assert all(reason.what for reason in explanation.reasons)
