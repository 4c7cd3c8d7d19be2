"""The job controller over several cycles and operators: nothing is counted twice, lost, or written again unchanged."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from flyball_api.energy_aware_job import (
    EnergyAwareJobStatus,
    IncarnationEnergy,
    RecurringRun,
    read_energy_aware_job,
)
from flyball_api.gpu_node import GpuNode, read_gpu_node
from flyball_api.workloads import DEFAULT_GPU_RESOURCES
from flyball_operator.cluster.outcome import DONE, Outcome, WriteResult
from flyball_operator.jobs.controller import JobController
from flyball_operator.jobs.runs.lifecycle import (
    CreateIncarnation,
    OpenGates,
    StopIncarnation,
)
from flyball_operator.jobs.status.updates import POWER_SETTLES_SECONDS
from flyball_operator.jobs.steps.statuses import PLANNING_SECONDS

from tests.support.one_job import INTERVAL, MODEL, PAUSE, UID, A, Cluster, Priors, RecordingWrites
from tests.support.operator_objects import (
    FLOOR,
    Json,
    as_stored,
    decision,
    grant,
    incarnation_view,
    job_grant,
    node_view,
    pod_view,
    raw_device,
    raw_gpu_node,
    raw_job,
    raw_report,
)

# --- failures ----------------------------------------------------------------------------------------------------


def test_a_failed_incarnation_is_removed_once_its_failure_is_in_the_status() -> None:
    cluster = Cluster()
    cluster.fail(1)
    assert cluster.cycle() == []
    assert (cluster.status["restarts"], cluster.status["lastFailedIncarnation"]) == (1, 1)
    assert cluster.cycle() == [], "its pods stay for their logs until the next start is due"
    (stop,) = cluster.cycle(PAUSE)
    assert isinstance(stop, StopIncarnation)
    assert cluster.status["restarts"] == 1


def test_a_failed_incarnation_stays_until_its_failure_is_in_the_status_however_long_that_takes() -> None:
    """Else an operator that comes meanwhile would neither count it nor know why the job began anew."""
    cluster = Cluster()
    cluster.fail(1)
    assert cluster.cycle(statuses_wait=True) == []
    assert cluster.cycle(PAUSE, statuses_wait=True) == []
    assert cluster.cycle() == []
    (stop,) = cluster.cycle()
    assert isinstance(stop, StopIncarnation)


@pytest.mark.parametrize("dies", ["before the write", "after the write", "after the stop"])
def test_a_failure_is_neither_lost_nor_counted_twice_by_the_next_operator(dies: str) -> None:
    cluster = Cluster()
    cluster.fail(1)
    cluster.cycle(statuses_wait=dies == "before the write")
    if dies != "before the write":
        cluster.cycle()
    cluster.new_operator()
    if dies == "after the stop":
        cluster.incarnations, cluster.pods = (), ()
    for _ in range(3):
        cluster.cycle()
    assert cluster.status["restarts"] == 1
    cluster.fail(2)
    cluster.cycle()
    assert (cluster.status["restarts"], cluster.status["lastFailedIncarnation"]) == (2, 2)


def test_an_exit_code_of_143_that_nobody_asked_for_counts() -> None:
    cluster = Cluster()
    cluster.fail(1, exit_code=143)
    assert cluster.cycle() == []
    assert cluster.status["restarts"] == 1


def test_after_the_last_restart_the_job_fails_and_keeps_its_pods() -> None:
    cluster = Cluster(raw_job(failurePolicy={"maxRestarts": 1}))
    for number in (1, 2):
        cluster.fail(number)
        cluster.cycle()
        actions = cluster.cycle(PAUSE)
        assert [type(action) for action in actions] == ([StopIncarnation] if number == 1 else [])
    assert (cluster.status["state"], cluster.status["restarts"]) == ("Failed", 1)
    assert "exit code 1; failurePolicy.maxRestarts 1 allows no further restart" in cluster.status["explanation"]
    assert cluster.step.jobs == {}  # it has ended


def test_a_complete_incarnation_ends_the_job() -> None:
    cluster = Cluster(incarnations=[incarnation_view(UID, 1, A, condition="Complete")])
    assert cluster.cycle() == []
    assert cluster.status["state"] == "Succeeded"


def test_a_budget_that_is_spent_ends_the_job_once_its_pods_have_left() -> None:
    raw = raw_job(
        energy={"budgetKilojoules": 1, "onExhausted": "Fail"}, status={"energy": {"settledMillijoules": 10**6}}
    )
    cluster = Cluster(raw)
    cluster.run_on(1)
    (stop,) = cluster.cycle()
    assert isinstance(stop, StopIncarnation)
    assert cluster.status["state"] == "Stopping"
    cluster.incarnations, cluster.pods = (), ()
    cluster.cycle()
    assert cluster.status["state"] == "Failed"


# --- starting ----------------------------------------------------------------------------------------------------


def test_a_new_leader_starts_nothing_before_its_first_plan() -> None:
    cluster = Cluster(raw_job(status={"allocation": {"nodes": [{"name": "a", "gpus": 4}], "gpus": 4}}), decisions={})
    assert cluster.cycle() == []
    cluster.decisions = {UID: decision(UID, A)}
    assert cluster.cycle() == [CreateIncarnation(UID, 1, (A,))]


def test_a_new_leader_leaves_alone_what_runs_as_recorded() -> None:
    cluster = Cluster(
        raw_job(status={"allocation": {"nodes": [{"name": "a", "gpus": 4}], "incarnation": 1}}), decisions={}
    )
    cluster.run_on(1)
    assert cluster.cycle() == []


def test_a_stop_is_explained_by_the_plan_that_it_follows_from() -> None:
    cluster = Cluster(decisions={UID: replace(decision(UID, ("b", 4)), explanation="node b is free of others")})
    cluster.run_on(1)
    (stop,) = cluster.cycle()
    assert isinstance(stop, StopIncarnation)
    assert stop.reason == "node b is free of others"
    # Suspended, it is in no plan any more; the last one still says why it had to go.
    cluster.raw["spec"]["suspend"] = True
    cluster.decisions = {}
    (stop,) = cluster.cycle()
    assert isinstance(stop, StopIncarnation)
    assert stop.reason == "node b is free of others"


def test_gates_open_for_all_pods_of_a_job_or_for_none() -> None:
    pods = [pod_view(f"p{index}", uid=UID, gpus=4, index=index, gated=True) for index in (0, 1)]
    cluster = Cluster(
        incarnations=[incarnation_view(UID, 1, A, ("b", 4))],
        pods=pods,
        decisions={UID: decision(UID, A, ("b", 4))},
    )
    assert cluster.cycle() == []
    assert cluster.step.gates == [], "nothing runs under a number that the status does not have"
    cluster.cycle()
    for reserved, opens in (("", False), (("p0",), False), (("p0", "p1"), True)):
        actions = cluster.step.actions_of(lambda pod, names=reserved: pod.name in names)  # type: ignore[misc]
        assert [type(item.action) for item in actions.get(UID, ())] == [OpenGates] * opens


def test_an_older_incarnation_is_stopped_before_the_gates_of_the_newest_open() -> None:
    cluster = Cluster(
        incarnations=[incarnation_view(UID, 1, A), incarnation_view(UID, 2, A)],
        pods=[pod_view("p2", uid=UID, incarnation=2, gpus=4, gated=True)],
    )
    cluster.cycle()
    cluster.cycle()  # with the number in the status
    (actions,) = cluster.step.actions_of(lambda pod: True).values()
    assert [type(item.action) for item in actions] == [StopIncarnation, OpenGates]
    assert cluster.step.stopping == {(UID, 1)}
    assert cluster.step.actions_of(lambda pod: True, {(UID, 1)}) == {}  # both would run at once
    ((item, _),) = cluster.step.actions_of(lambda pod: True, {("uid-other", 1)}).values()
    assert isinstance(item.action, StopIncarnation)


def test_what_the_api_server_refuses_is_said_and_not_tried_again_by_any_operator() -> None:
    cluster = Cluster()
    cluster.cycle()
    writes = RecordingWrites("spec.containers[0].name: Invalid value")
    cluster.take(writes)
    assert writes.taken == ["create 1"]
    for _ in range(2):
        assert cluster.cycle(INTERVAL) == []
        assert cluster.step.jobs[UID].memory.refusal is not None
        assert (cluster.status["state"], cluster.status["explanation"]) == (
            "InvalidSpec",
            "spec.containers[0].name: Invalid value",
        )
        cluster.new_operator()
    # A new spec is tried.
    cluster.raw["metadata"]["generation"] = 2
    assert cluster.cycle() == [CreateIncarnation(UID, 1, (A,))]
    assert cluster.step.jobs[UID].memory.refusal is None


def test_a_refusal_of_an_older_spec_says_nothing_of_the_present_one() -> None:
    cluster = Cluster()
    cluster.cycle()
    (item,) = cluster.step.actions
    cluster.raw["metadata"]["generation"] = 2  # while the Job of the first is under way
    cluster.cycle()
    cluster.controller.answered(item, WriteResult(Outcome.REFUSED, invalid="no image"), cluster.now)
    assert cluster.cycle() == [CreateIncarnation(UID, 1, (A,))]


@pytest.mark.parametrize("result", [WriteResult(Outcome.REFUSED), WriteResult(Outcome.UNKNOWN)])
def test_a_start_that_failed_for_another_reason_is_tried_again_at_growing_intervals(result: WriteResult) -> None:
    cluster = Cluster()
    for pause in (0.0, 0.5, 1.0, 2.0, 4.0):
        assert cluster.cycle(0.9 * pause) == [] or not pause
        assert cluster.cycle(0.1 * pause) == [CreateIncarnation(UID, 1, (A,))]
        cluster.controller.answered(cluster.step.actions[0], result, cluster.now)
        assert cluster.cycle() == [], "whatever wakes the loop meanwhile"
    assert "lastResizeTime" not in cluster.status


def test_an_answer_for_a_job_that_is_gone_changes_nothing() -> None:
    cluster = Cluster()
    cluster.cycle()
    (item,) = cluster.step.actions
    cluster.raw["metadata"]["deletionTimestamp"] = "2030-06-01T11:59:00Z"
    assert cluster.cycle() == []
    cluster.controller.answered(item, DONE, cluster.now)
    assert cluster.step.jobs == {}


def test_a_resize_is_remembered() -> None:
    cluster = Cluster()
    cluster.cycle()
    cluster.take(RecordingWrites())
    cluster.cycle()
    assert cluster.status["lastResizeTime"] == "2030-06-01T12:00:00Z"
    cluster.new_operator()
    cluster.cycle(60)
    assert cluster.status["lastResizeTime"] == "2030-06-01T12:00:00Z"


# --- statuses ----------------------------------------------------------------------------------------------------


def test_nothing_is_written_unless_something_is_new() -> None:
    cluster = Cluster(raw_job(suspend=True), decisions={})
    assert len(cluster.statuses()) == 1
    for _ in range(3):
        assert cluster.statuses(20 * INTERVAL) == []
    cluster.new_operator()
    assert cluster.statuses() == []


def test_a_new_leader_says_nothing_before_its_first_plan_and_little_after_it() -> None:
    cluster = Cluster()
    cluster.run_on(1)
    (before,) = cluster.statuses()
    decisions, cluster.decisions = cluster.decisions, {}
    cluster.new_operator()
    for _ in range(3):
        assert cluster.statuses(INTERVAL) == []
    assert cluster.status["allocation"] == before["allocation"]
    cluster.decisions = decisions
    cluster.cycle(1.0)
    cluster.epoch = 2
    assert cluster.statuses(1.0) == []  # that another leads now is no reason for a write


def test_a_job_that_was_resumed_is_told_to_be_planned() -> None:
    cluster = Cluster(raw_job(suspend=True), decisions={})
    assert cluster.statuses()[0]["state"] == "Suspended"
    cluster.raw["spec"]["suspend"] = False
    cluster.raw["metadata"]["generation"] = 2
    assert cluster.statuses(PLANNING_SECONDS)[0]["state"] == "Planning"


def test_what_happened_is_written_at_once_and_new_figures_at_the_interval() -> None:
    cluster = Cluster()
    cluster.run_on(1)
    assert len(cluster.statuses()) == 1
    assert cluster.statuses(1.0) == []  # only figures have moved
    assert len(cluster.statuses(INTERVAL)) == 1
    cluster.decisions = {UID: decision(UID, A, clock=900)}
    assert cluster.statuses() == []  # its grant and its acknowledgement go into the same status
    assert cluster.step.next_seconds <= POWER_SETTLES_SECONDS
    (status,) = cluster.statuses(POWER_SETTLES_SECONDS)
    assert status["allocation"]["clockMegahertz"] == 900


def test_statuses_wait_while_a_cap_is_brought_down_and_for_their_own_last_write() -> None:
    cluster = Cluster()
    cluster.run_on(1)
    for waiting in ({"statuses_wait": True}, {"status_writes": {UID}}):
        cluster.cycle(INTERVAL, **waiting)
        assert cluster.step.statuses == []
    assert len(cluster.statuses()) == 1


def test_what_happened_to_a_job_waits_for_no_longer_than_a_cut_may_last() -> None:
    cluster = Cluster()
    cluster.run_on(1)
    assert len(cluster.statuses()) == 1
    cluster.decisions = {UID: decision(UID, A, clock=900)}
    for _ in range(2):
        cluster.cycle(INTERVAL, figures_wait=True)
        assert cluster.step.statuses == [], "figures and a new clock"
    cluster.raw["spec"]["suspend"] = True
    cluster.cycle(figures_wait=True)
    (written,) = cluster.step.statuses
    assert written[1].state == "Stopping"


def test_a_new_job_is_not_told_that_it_will_be_planned_while_its_plan_may_be_near() -> None:
    cluster = Cluster(decisions={})
    assert cluster.statuses() == []
    assert cluster.statuses(0.9 * PLANNING_SECONDS) == []
    (status,) = cluster.statuses(0.2 * PLANNING_SECONDS)
    assert status["state"] == "Planning"
    cluster.decisions = {UID: decision(UID, A)}
    assert [status["state"] for status in cluster.statuses()] == ["Starting"]


@pytest.mark.parametrize("answer", [DONE, WriteResult(Outcome.UNKNOWN)], ids=["taken", "no answer"])
def test_a_new_job_is_told_to_be_admitted_once_its_template_was_answered(answer: WriteResult) -> None:
    """A plan may be quicker than the API server's word on the template, which may refuse it."""
    cluster = Cluster(decisions={})
    cluster.cycle()
    (job,) = cluster.step.checks
    cluster.decisions = {UID: decision(UID, A)}
    assert cluster.statuses() == []
    assert cluster.statuses(0.1) == []
    cluster.controller.checked(job, answer)
    assert [status["state"] for status in cluster.statuses()] == ["Starting"]


def test_a_template_that_is_refused_after_the_plan_was_never_told_to_be_admitted() -> None:
    cluster = Cluster(decisions={})
    cluster.cycle()
    (job,) = cluster.step.checks
    cluster.decisions = {UID: decision(UID, A)}
    assert cluster.statuses() == []
    cluster.controller.checked(job, WriteResult(Outcome.REFUSED, invalid='unknown field "volumeMount"'))
    assert [status["state"] for status in cluster.statuses()] == ["InvalidSpec"]


def test_a_template_that_is_long_not_answered_keeps_no_status() -> None:
    cluster = Cluster(decisions={})
    cluster.cycle()
    cluster.decisions = {UID: decision(UID, A)}
    assert cluster.statuses(0.9 * PLANNING_SECONDS) == []
    assert [status["state"] for status in cluster.statuses(0.2 * PLANNING_SECONDS)] == ["Starting"]


def test_what_is_wrong_with_a_new_job_waits_for_no_plan() -> None:
    cluster = Cluster(raw_job(gpus={"min": 1, "max": 1, "resourceName": "example.com/gpu"}), decisions={})
    assert [status["state"] for status in cluster.statuses()] == ["UnknownGpuResource"]


def with_draw(millijoules_per_iteration: int = 0, **draw: int) -> dict[str, GpuNode]:
    """Node a, whose first four GPUs the job's pod holds and draws so much with; its script says what an iteration takes."""
    devices = [{**raw_device(index, pod=("team", "p1") if index < 4 else None), **draw} for index in range(8)]
    fields: Json = {}
    if millijoules_per_iteration:
        fields = {
            "millijoulesPerIteration": millijoules_per_iteration,
            "microsecondsPerIteration": 1_000_000,
            "lastReportTime": "2030-06-01T12:00:00Z",
        }
    report = raw_report(UID, 1, 1000, podName="p1", **fields)
    return {"a": read_gpu_node(raw_gpu_node("a", grant(8 * FLOOR), devices=devices, reports=[report]))}


@pytest.mark.parametrize(
    ("gpu_nodes", "watts", "power"),
    [
        (with_draw(900_000, powerMilliwatts=200_000), 900, "900 W"),
        (with_draw(powerMilliwatts=200_000), 800, "800 W"),
        ({}, None, ""),
    ],
    ids=["by its script", "by its agent", "by nobody"],
)
def test_the_draw_is_what_is_said_of_it_and_unknown_where_nobody_says(
    gpu_nodes: dict[str, GpuNode], watts: int | None, power: str
) -> None:
    cluster = Cluster(gpu_nodes=gpu_nodes)
    cluster.run_on(1)
    (status,) = cluster.statuses()
    assert (status["energy"].get("watts"), status["summary"].get("power", "")) == (watts, power)


def test_figures_are_written_when_they_have_been_reported_and_not_by_the_clock() -> None:
    """What only follows from the time that has gone by, such as its end, is worth no write a job."""
    cluster = Cluster(gpu_nodes=with_draw(900_000))
    cluster.run_on(1)
    assert len(cluster.statuses()) == 1
    for _ in range(4):
        assert cluster.statuses(INTERVAL) == []
    cluster.gpu_nodes = with_draw(800_000)
    (status,) = cluster.statuses(0.1)
    assert status["energy"]["watts"] == 800
    cluster.gpu_nodes = with_draw(700_000)
    assert cluster.statuses(0.5 * INTERVAL) == [], "at the interval at most"
    (status,) = cluster.statuses(0.5 * INTERVAL)
    assert status["energy"]["watts"] == 700


def test_a_job_without_gpus_draws_nothing() -> None:
    (status,) = Cluster(raw_job(suspend=True), decisions={}).statuses()
    assert status["energy"]["watts"] == 0


def with_limits(*, acknowledged: bool) -> dict[str, GpuNode]:
    """Node a, its first four GPUs held by the job's pod, at limits between 250 and 280 W."""
    devices = [
        raw_device(index, pod=("team", "p1") if index < 4 else None, enforcedMilliwatts=250_000 + 10_000 * index)
        for index in range(8)
    ]
    given = grant(8 * FLOOR, jobs=(job_grant(UID, 280_000, 4, pod="p1"),))
    raw = raw_gpu_node("a", given, devices=devices, limits=8 * FLOOR, acknowledged=(1, 1 if acknowledged else 0))
    return {"a": read_gpu_node(raw)}


@pytest.mark.parametrize("ready", [True, False])
@pytest.mark.parametrize("acknowledged", [True, False])
def test_the_applied_limit_is_the_one_read_back(acknowledged: bool, ready: bool) -> None:
    cluster = Cluster(gpu_nodes=with_limits(acknowledged=acknowledged))
    cluster.run_on(1)
    if not ready:  # a pod that is pulling its image has its limits, too
        cluster.pods = [msgspec.structs.replace(pod, ready=False) for pod in cluster.pods]
    (status,) = cluster.statuses()
    assert status.get("applied", {}).get("powerLimitWatts") == (280 if ready else None)
    enforced = next(item for item in status["conditions"] if item["type"] == "PowerLimitsEnforced")
    assert enforced["status"] == str(acknowledged)


def test_a_limit_that_nobody_has_read_back_is_not_claimed() -> None:
    cluster = Cluster()
    cluster.run_on(1)
    (status,) = cluster.statuses()
    assert "powerLimitWatts" not in status["applied"]


def test_energy_reported_after_the_end_is_still_counted() -> None:
    cluster = Cluster(incarnations=[incarnation_view(UID, 1, A, condition="Complete")])

    def report(millijoules: int) -> None:
        raw = raw_gpu_node("a", grant(8 * FLOOR), reports=[raw_report(UID, 1, millijoules)])
        cluster.gpu_nodes = {"a": read_gpu_node(raw)}

    report(5)
    cluster.cycle()
    assert cluster.status["state"] == "Succeeded"
    report(9)
    cluster.cycle(status_writes={UID})
    assert cluster.step.late_energy == []  # its last status is still being written
    cluster.cycle()
    ((_, late),) = cluster.step.late_energy
    assert late.energy is not None
    assert late.energy.incarnations == (IncarnationEnergy("1/a", 9),)
    cluster.raw["status"] = as_stored(late)
    cluster.cycle()
    assert cluster.step.late_energy == []


def test_an_agent_s_word_alone_spends_no_energy_budget() -> None:
    cluster = Cluster(raw_job(energy={"budgetKilojoules": 100_000}))
    cluster.cycle()
    cluster.run_on(1)
    for millijoules in (1_000_000, 10**15):
        raw = raw_gpu_node("a", grant(8 * FLOOR), reports=[raw_report(UID, 1, millijoules)])
        cluster.gpu_nodes = {"a": read_gpu_node(raw)}
        assert cluster.cycle(INTERVAL) == []
        ((_, known),) = cluster.step.jobs.items()
        assert millijoules // 10**9 <= known.memory.progress.consumed_millijoules < 8 * 400_000 * 1.3 * 100
    cluster.new_operator()
    for _ in range(2):
        assert cluster.cycle(INTERVAL) == []
    assert cluster.step.jobs[UID].memory.progress.consumed_millijoules < 8 * 400_000 * 1.3 * 4000


def test_a_script_that_reports_nothing_advances_by_the_plans_rate() -> None:
    cluster = Cluster(decisions={UID: decision(UID, A, predicted_iteration_seconds=0.5)})
    cluster.run_on(1)
    cluster.cycle()
    cluster.cycle(10.0)
    progress = cluster.step.jobs[UID].memory.progress
    assert (progress.iterations, progress.estimated, progress.attained_gpu_seconds) == (20.0, True, 40.0)


def test_a_job_that_cannot_be_understood_does_not_end_the_cycle(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    world = cluster.world()
    nonsense = EnergyAwareJobStatus(energy=5)  # type: ignore[arg-type]
    broken = replace(read_energy_aware_job(raw_job("broken")), status=nonsense)
    cluster.cycle(world=replace(world, jobs={**world.jobs, broken.uid: broken}))
    assert list(cluster.step.jobs) == [UID]
    assert "team/broken" in caplog.text


# --- the end -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "ttl", "expired"), [(59, 60, False), (60, 60, True), (10**6, None, False), (0, 0, True)]
)
def test_ended_jobs_are_removed_after_their_time(seconds: int, ttl: int | None, expired: bool) -> None:
    spec: Json = {} if ttl is None else {"ttlSecondsAfterFinished": ttl}
    status: Json = {
        "conditions": [{"type": "Succeeded", "status": "True"}],
        "completionTime": "2030-06-01T12:00:00Z",
    }
    cluster = Cluster(raw_job(status=status, **spec))
    cluster.cycle(seconds)
    assert [job.uid for job in cluster.step.expired] == [UID] * expired


def test_expired_jobs_are_looked_for_once_per_interval() -> None:
    status: Json = {
        "conditions": [{"type": "Failed", "status": "True"}],
        "completionTime": "2030-06-01T12:00:00Z",
    }
    cluster = Cluster(raw_job(status=status, ttlSecondsAfterFinished=0))
    found = []
    for _ in range(4):
        cluster.cycle(INTERVAL / 2)
        found.append(len(cluster.step.expired))
    assert found == [1, 0, 1, 0]


def test_jobs_that_have_not_ended_do_not_expire() -> None:
    cluster = Cluster(raw_job(ttlSecondsAfterFinished=0))
    cluster.cycle()
    assert cluster.step.expired == []


# --- an operator that observes ------------------------------------------------------------------------------------------


def observing() -> JobController:
    return JobController(INTERVAL, Priors(), DEFAULT_GPU_RESOURCES, observe=True)


def test_who_observes_starts_nothing_and_says_what_it_would_do() -> None:
    cluster = Cluster(controller=observing())
    assert cluster.cycle() == []
    admitted = next(item for item in cluster.status["conditions"] if item["type"] == "Admitted")
    assert (admitted["status"], admitted["reason"]) == ("False", "Observing")
    assert "starts nothing; governed, it would run on 4 GPUs: because the test says so" in admitted["message"]
    assert cluster.status["state"] == "Observing"
    assert cluster.status["allocation"]["gpus"] == 4
    cluster.decisions = {UID: decision(UID)}
    assert cluster.cycle(INTERVAL) == []
    admitted = next(item for item in cluster.status["conditions"] if item["type"] == "Admitted")
    assert "governed, it would wait: because" in admitted["message"]


def test_who_observes_stops_nothing_and_opens_no_gate() -> None:
    cluster = Cluster(controller=observing(), incarnations=[incarnation_view(UID, 1, A)])
    cluster.pods = [pod_view("p", uid=UID, gpus=4, gated=True)]
    cluster.decisions = {UID: decision(UID, ("b", 4))}
    assert cluster.cycle() == []
    assert cluster.step.actions_of(lambda pod: True) == {}
    cluster.run_on(1)
    assert cluster.cycle(INTERVAL) == []
    assert cluster.status["state"] != "Observing", "what runs is said to run"


# --- runs of a recurring job -----------------------------------------------------------------------------------------

RECURRING: Json = {
    "profileKey": "nightly",
    "recurrence": {"batchSizes": [64, 256], "targetMetric": "loss <= 2.1", "energyWeightPermille": 1000},
}
RUN = RecurringRun(3, 64, "Explore", MODEL.product, 400, "64 is to be tried", cost_limit_joules=1000)


def reason_of(cluster: Cluster, kind: str) -> str:
    return next(str(item["reason"]) for item in cluster.status["conditions"] if item["type"] == kind)


def test_a_run_begins_once_its_batch_size_is_in_its_status() -> None:
    cluster = Cluster(raw_job(**RECURRING))
    assert cluster.cycle() == []
    assert reason_of(cluster, "Admitted") == "ChoosingBatchSize"
    assert cluster.cycle(runs={UID: RUN}) == []
    assert (cluster.status["recurrence"]["decision"], cluster.status["recurrence"]["globalBatchSize"]) == (3, 64)
    cluster.new_operator()
    assert [type(action) for action in cluster.cycle()] == [CreateIncarnation]
    training = cluster.step.jobs[UID].view.spec.training
    assert (training.global_batch_size, training.iterations) == (64, 4000)


def test_a_run_goes_to_the_gpus_that_it_is_compared_on() -> None:
    cluster = Cluster(raw_job(**RECURRING, status={"recurrence": as_stored(RUN)}))
    world = cluster.world()
    world.nodes[1] = node_view("b", product="NVIDIA-H100-80GB-HBM3")
    cluster.cycle(world=world)
    assert cluster.step.jobs[UID].memory.eligible_nodes == {"a"}
    world = cluster.world()
    world.nodes[:] = [node_view(name, product="NVIDIA-H100-80GB-HBM3") for name in ("a", "b")]
    cluster.cycle(world=world)
    assert cluster.step.jobs[UID].memory.eligible_nodes in (None, {"a", "b"}), "none are left: rather others than never"


def test_a_run_that_costs_too_much_is_stopped_and_has_failed() -> None:
    cluster = Cluster(raw_job(**RECURRING, status={"recurrence": as_stored(RUN)}))
    cluster.cycle()
    cluster.run_on(1)
    for millijoules, stopped in ((999_000, False), (1_000_000, True)):
        raw = raw_gpu_node("a", grant(8 * FLOOR), reports=[raw_report(UID, 1, millijoules)])
        cluster.gpu_nodes = {"a": read_gpu_node(raw)}
        cluster.cycle(INTERVAL)
        assert [type(action) for action in cluster.cycle(INTERVAL)] == [StopIncarnation] * stopped
        assert cluster.status["recurrence"]["costJoules"] == millijoules // 1000
    assert reason_of(cluster, "Admitted") == "CostLimitReached"
    cluster.incarnations, cluster.pods = (), ()
    cluster.cycle(INTERVAL)
    assert cluster.status["state"] == "Failed"
    message = next(item["message"] for item in cluster.status["conditions"] if item["type"] == "Failed")
    assert message.startswith("this run has cost 1000 J, and a run with batch size 64 may cost 1000 J")


def test_a_run_that_reaches_its_target_in_time_has_succeeded_whatever_it_cost() -> None:
    cluster = Cluster(raw_job(**RECURRING, status={"recurrence": as_stored(RUN)}))
    cluster.incarnations = [incarnation_view(UID, 1, A, condition="Complete")]
    raw = raw_gpu_node("a", grant(8 * FLOOR), reports=[raw_report(UID, 1, 5_000_000)])
    cluster.gpu_nodes = {"a": read_gpu_node(raw)}
    cluster.cycle()
    assert (cluster.status["state"], cluster.status["recurrence"]["costJoules"]) == ("Succeeded", 5000)
