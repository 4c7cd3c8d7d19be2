"""Which moments become Events: each once, told by two statuses."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from flyball_api.energy_aware_job import (
    BackOff,
    EnergyAwareJob,
    EnergyAwareJobStatus,
    IncarnationFailure,
    RecurringRun,
    read_energy_aware_job,
)
from flyball_api.power_cap import PowerCapStatus
from flyball_api.values.conditions import StoredCondition
from flyball_operator.jobs.plain_jobs import REASONS
from flyball_operator.jobs.runs.lifecycle import JobPhase, JobStep
from flyball_operator.jobs.runs.memory import Refusal
from flyball_operator.jobs.runs.progress import JobProgress
from flyball_operator.jobs.runs.queue import PlanPlace
from flyball_operator.jobs.starts.obstacles import PLACED_OBSTACLES, READY_OBSTACLES, StartObstacle
from flyball_operator.jobs.status import JobFacts, job_status
from flyball_operator.power.caps.memberships import LabelSync
from flyball_operator.power.holds import HoldAction, HoldChange
from flyball_operator.power.nodes.info import read_nodes
from flyball_operator.report import announcements
from flyball_operator.report.announcements.announcement import (
    Announcement,
    regarding_cap,
    regarding_job,
    regarding_node,
)
from flyball_operator.report.announcements.caps import cap_announcements
from flyball_operator.report.announcements.jobs import REFUSALS, job_announcements
from flyball_operator.report.announcements.nodes import (
    deletion_announcement,
    hold_announcement,
    labels_announcement,
    node_announcement,
    node_readiness,
)
from flyball_operator.report.events import Regarding
from flyball_planner.snapshot import Admission, JobDecision
from msgspec.structs import replace as replace_struct

from tests.support.operator_objects import (
    FLOOR,
    NOW,
    as_stored,
    cap_view,
    decision,
    gpu_node_view,
    grant,
    incarnation_view,
    job_view,
    node_view,
    raw_job,
    ready_node,
)

A, B = ("a", 4), ("b", 4)
SOURCE = "\n".join(path.read_text(encoding="utf-8") for path in sorted(Path(announcements.__path__[0]).glob("*.py")))
PLAN = decision("uid-train", A)
RUNNING = JobStep(JobPhase.RUNNING, incarnation_view("uid-train", 1, A), bound=True)


class Life:
    """A job whose statuses are written one after the other."""

    def __init__(self, **spec: Any) -> None:
        self.spec = spec
        self.status = EnergyAwareJobStatus()

    @property
    def job(self) -> EnergyAwareJob:
        return replace(job_view(**self.spec), status=self.status)

    def write(self, **facts: Any) -> list[Announcement]:
        base = JobFacts(JobProgress(), RUNNING, PLAN, 1, True, 0, NOW)
        status = job_status(self.job, replace(base, **facts))
        said = job_announcements(self.job, status)
        self.status = read_energy_aware_job(raw_job(status=as_stored(status))).status
        # The same status once more is no news.
        assert job_announcements(self.job, self.status) == []
        return said


def reasons(said: list[Announcement]) -> list[str]:
    return [item.reason for item in said]


def test_an_ordinary_life() -> None:
    life = Life()
    waiting = JobDecision("uid-train", None, Admission.WAITING_FOR_GPUS, "all are taken.")
    assert life.write(decision=None, step=JobStep(JobPhase.WAITING)) == []
    assert life.write(decision=waiting, step=JobStep(JobPhase.WAITING)) == []
    (admitted,) = life.write(step=JobStep(JobPhase.CREATING))
    assert admitted == Announcement("Admitted", "4 GPUs on a: because the test says so", "Plan")
    assert life.write() == []
    (resized,) = life.write(decision=decision("uid-train", A, B))
    assert resized.reason == "Resized"
    assert resized.note == "from 4 GPUs on a to 8 GPUs on a, b: because the test says so"
    assert life.write(decision=decision("uid-train", A, B, clock=900)) == []  # a clock is no resize
    assert reasons(life.write(decision=decision("uid-train", B))) == ["Resized"]  # a move is
    (done,) = life.write(step=JobStep(JobPhase.COMPLETE, RUNNING.current), outcome="Succeeded", outcome_message="all 0")
    assert done == Announcement("Succeeded", "all 0", "Finish")


def test_failures_and_restarts() -> None:
    life = Life(failurePolicy={"maxRestarts": 1})
    life.write()
    first = IncarnationFailure(1, NOW, True, "OOMKilled", "out of memory", "train-1-0-x", "a", 137)
    (restarting,) = life.write(restarts=1, last_failed=1, failures=(first,))
    assert restarting.warning
    assert restarting.note == (
        "incarnation 1 failed: pod train-1-0-x on a: OOMKilled, exit code 137: out of memory; restart 1 of 1"
    )
    evicted = IncarnationFailure(2, NOW, False, "EvictionByEvictionAPI", "", "train-2-0-x", "a")
    (disrupted,) = life.write(restarts=1, last_failed=1, failures=(evicted, first))
    assert disrupted == Announcement(
        "Disrupted",
        "incarnation 2 was ended by others, which does not count: pod train-2-0-x on a: EvictionByEvictionAPI",
        "Restart",
        warning=True,
    )
    (failed,) = life.write(restarts=1, last_failed=3, outcome="Failed", outcome_message="no further restart")
    assert failed == Announcement("Failed", "no further restart", "Finish", warning=True)


def test_what_keeps_a_job_from_running_is_told_once() -> None:
    life = Life()
    life.write(step=JobStep(JobPhase.STARTING))
    stuck = {"step": JobStep(JobPhase.STARTING), "obstacle": StartObstacle("Unschedulable", "0/4 nodes are available")}
    (said,) = life.write(**stuck)
    assert said == Announcement("Unschedulable", "0/4 nodes are available", "Start", warning=True)
    pulling = StartObstacle("ImagePullFailed", "no such image")
    assert reasons(life.write(step=replace(RUNNING, phase=JobPhase.STARTING), obstacle=pulling)) == ["ImagePullFailed"]
    back_off = BackOff(NOW, "StartTimedOut", "not running 600 s after its start", 1)
    (given_back,) = life.write(step=JobStep(JobPhase.STOPPING), decision=None, back_off=back_off, gives_back=True)
    assert (given_back.reason, given_back.warning) == ("StartTimedOut", True)
    assert given_back.note.endswith("the next start is at 2030-06-01T12:00:00Z")


def test_one_gpu_is_one_gpu() -> None:
    (admitted,) = Life().write(decision=decision("uid-train", ("a", 1)))
    assert admitted.note == "1 GPU on a: because the test says so"


def test_preempted_and_admitted_again() -> None:
    life = Life()
    life.write()
    gone = JobDecision("uid-train", None, Admission.PREEMPTED, "urgent came first")
    assert life.write(decision=gone, step=JobStep(JobPhase.STOPPING)) == [
        Announcement("Preempted", "urgent came first", "Plan")
    ]
    assert reasons(life.write()) == ["Resumed"]


def test_a_job_that_is_stopped_for_watts_or_by_its_owner_says_so_once() -> None:
    life = Life()
    life.write()
    gone = JobDecision("uid-train", None, Admission.WAITING_FOR_POWER, "Cap hall leaves 0 W.")
    (paused,) = life.write(decision=gone, step=JobStep(JobPhase.STOPPING))
    assert paused == Announcement("Paused", "its 4 GPUs on a are given back: Cap hall leaves 0 W.", "Stop")
    assert life.write(decision=gone, step=JobStep(JobPhase.WAITING)) == []
    assert life.write() == [Announcement("Resumed", "4 GPUs on a: because the test says so", "Plan")]
    lost = JobDecision("uid-train", None, Admission.WAITING_FOR_GPUS, "Needs 4 GPUs; 0 are free.")
    assert reasons(life.write(decision=lost, step=JobStep(JobPhase.STOPPING))) == ["Paused"], "its node may be gone"
    assert reasons(life.write()) == ["Resumed"]
    back_off = BackOff(NOW, "PowerBackOff", "so soon after its start", 1)
    soon = life.write(step=JobStep(JobPhase.STOPPING), decision=None, back_off=back_off, gives_back=True)
    assert reasons(soon) == ["Paused"]


def test_a_wait_is_told_once_when_it_has_lasted_a_minute() -> None:
    life = Life()
    waiting = JobDecision("uid-train", None, Admission.WAITING_FOR_GPUS, "all are taken")
    place = PlanPlace(2, 3, None, "nobody knows", NOW)

    def after(seconds: float, decided: JobDecision = waiting) -> list[Announcement]:
        now = NOW + timedelta(seconds=seconds)
        return life.write(decision=decided, step=JobStep(JobPhase.WAITING), queue=place, now=now)

    assert after(0) == after(55) == []
    note = "for more than a minute: all are taken; it is number 2 of 3 that wait"
    assert after(61) == [Announcement("Waiting", note, "Plan")]
    assert after(120) == after(700) == []
    assert after(701, replace(waiting, admission=Admission.WAITING_FOR_POWER)) == [], "it is the same wait"
    assert reasons(life.write(now=NOW + timedelta(seconds=800))) == ["Admitted"]
    assert after(900, replace(waiting, admission=Admission.WAITING_FOR_POWER))[0].reason == "Paused"
    assert reasons(after(970)) == ["Waiting"], "and this is another one"


def test_suspended_whether_it_ran_or_waited() -> None:
    ran, waited = Life(suspend=True), Life(suspend=True)
    waited.status = EnergyAwareJobStatus()
    assert reasons(waited.write(decision=None, step=JobStep(JobPhase.WAITING))) == ["Suspended"]
    ran.spec = {}
    ran.write()
    ran.spec = {"suspend": True}
    (suspended,) = ran.write(decision=None, step=JobStep(JobPhase.STOPPING))
    assert suspended == Announcement("Suspended", "its 4 GPUs on a are given back: spec.suspend is true", "Stop")
    ran.spec = {}
    assert reasons(ran.write()) == ["Resumed"]


def test_iterations_that_have_to_be_done_again_are_told_each_time() -> None:
    life = Life()
    life.write(progress=JobProgress(iterations=100.0, reported_by=1))
    (lost,) = life.write(progress=JobProgress(iterations=60.0, reported_by=2, iterations_lost=44))
    assert (lost.reason, lost.warning) == ("IterationsLost", True)
    assert lost.note == (
        "44 iterations have to be done again: incarnation 2 goes on from 60 at the most, an older checkpoint or none"
    )
    assert life.write(progress=JobProgress(iterations=90.0, reported_by=2, iterations_lost=44)) == []


def test_a_deadline_at_risk_and_a_spent_budget() -> None:
    life = Life(deadline="2030-06-01T12:30:00Z", energy={"budgetKilojoules": 5, "onExhausted": "Throttle"})
    life.write()
    (late,) = life.write(decision=replace(PLAN, deadline_at_risk=True))
    assert (late.reason, late.warning) == ("DeadlineAtRisk", True)
    assert "2030-06-01T12:30:00Z" in late.note
    (spent,) = life.write(
        progress=JobProgress(settled_millijoules=5_000_000), decision=replace(PLAN, deadline_at_risk=True)
    )
    assert (spent.reason, spent.action, spent.warning) == ("BudgetExhausted", "Throttle", True)
    assert "energy.onExhausted is Throttle" in spent.note


def test_an_invalid_spec() -> None:
    life = Life()
    (refused,) = life.write(
        refusal=Refusal("InvalidSpec", "spec.containers[0].image: Required value"), step=JobStep(JobPhase.WAITING)
    )
    assert refused == Announcement(
        "InvalidSpec", "spec.containers[0].image: Required value", "CreatePods", warning=True
    )


def test_an_unknown_gpu_resource() -> None:
    refusal = Refusal("UnknownGpuResource", "spec.gpus.resourceName x/gpu is none of ...")
    (refused,) = Life().write(refusal=refusal, decision=None, step=JobStep(JobPhase.WAITING))
    assert refused == Announcement("UnknownGpuResource", refusal.message, "Plan", warning=True)


def test_an_unknown_model_class_is_told_once_for_each_spec_with_the_nearest_known() -> None:
    life = Life(training={"globalBatchSize": 256, "modelClass": "Resnet-51"})
    said = life.write()
    assert reasons(said) == ["UnknownModelClass", "Admitted"]
    assert said[0].warning
    assert "near it: resnet" in said[0].note
    assert reasons(life.write(restarts=0)) == []
    assert reasons(Life(training={"globalBatchSize": 256, "modelClass": "ResNet50"}).write()) == ["Admitted"]


def cap_status(
    watts: int, *, feasible: str = "True", enforced: str = "True", breached: str = "False", silent: str = "False"
) -> PowerCapStatus:
    def item(kind: str, status: str) -> StoredCondition:
        return StoredCondition(kind, status, "X", f"{kind} is {status}")

    said = {"Feasible": feasible, "Enforced": enforced, "Breached": breached, "MeterSilent": silent}
    conditions = tuple(item(kind, status) for kind, status in said.items())
    return PowerCapStatus(effective_watts=watts, conditions=conditions)


@pytest.mark.parametrize(
    ("before", "after", "told", "warnings"),
    [
        (PowerCapStatus(), cap_status(100), [], 0),
        (cap_status(100), cap_status(100), [], 0),
        (cap_status(100), cap_status(200), [], 0),  # a higher cap is enforced from the start
        (cap_status(100), cap_status(50, enforced="False"), ["Lowering"], 0),
        (cap_status(50, enforced="False"), cap_status(50), ["Enforced"], 0),
        (cap_status(100), cap_status(100, enforced="False"), ["NotEnforced"], 1),
        (PowerCapStatus(), cap_status(100, enforced="False"), [], 0),
        (PowerCapStatus(), cap_status(10, feasible="False", enforced="False"), ["Infeasible"], 1),
        (
            cap_status(100),
            cap_status(10, feasible="False", enforced="False"),
            ["Infeasible", "Lowering"],
            1,
        ),
        (
            cap_status(10, feasible="False", enforced="False"),
            cap_status(100),
            ["Feasible", "Enforced"],
            0,
        ),
        (cap_status(100), cap_status(100, breached="True"), ["Breached"], 1),
        (cap_status(100, breached="True"), cap_status(100), [], 0),
        (cap_status(100), cap_status(100, breached="Unknown", silent="True"), ["MeterSilent"], 1),
        (cap_status(100, breached="Unknown", silent="True"), cap_status(100), ["MeterReads"], 0),
        (PowerCapStatus(), cap_status(100, silent="True"), ["MeterSilent"], 1),
    ],
)
def test_what_is_told_of_a_cap(before: PowerCapStatus, after: PowerCapStatus, told: list[str], warnings: int) -> None:
    said = cap_announcements(before, after)
    assert reasons(said) == told
    assert sum(item.warning for item in said) == warnings
    assert all(item.note for item in said)


def test_a_cap_that_cannot_be_read() -> None:
    unread = PowerCapStatus(
        conditions=tuple(
            StoredCondition(kind, "Unknown", "Unreadable", "why") for kind in ("Feasible", "Enforced", "Breached")
        )
    )
    assert cap_announcements(cap_status(100), unread) == [Announcement("Unreadable", "why", "Read", warning=True)]
    assert cap_announcements(unread, unread) == []
    assert cap_announcements(unread, cap_status(100)) == []


def test_a_proof_that_becomes_stale_and_is_renewed() -> None:
    stale = PowerCapStatus(
        conditions=(StoredCondition("Enforced", "Unknown", "ProofStale", "a: its Node is not ready"),)
    )
    before = cap_status(100)
    assert [item.reason for item in cap_announcements(before, stale)] == ["ProofStale"]
    assert cap_announcements(stale, stale) == []
    assert "Enforced" in [item.reason for item in cap_announcements(stale, before)]


# --- nodes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("new", "new", None),
        ("new", "ready", "NodeArrived"),
        ("ready", "ready", None),
        ("ready", "unresponsive", "NodeUnresponsive"),
        ("unresponsive", "unresponsive", None),
        ("unresponsive", "ready", "NodeAnswers"),
        ("ready", "doubted", "NodeProofStale"),
        ("doubted", "doubted", None),
        ("doubted", "ready", "NodeAnswers"),
        ("ready", "new", None),  # it has rebooted; that it is back will be told
    ],
)
def test_what_is_told_of_a_node(before: str, after: str, reason: str | None) -> None:
    said = node_announcement(before, after, 3200.0)
    assert (said.reason if said else None) == reason
    assert (said is not None and said.warning) is (reason in ("NodeUnresponsive", "NodeProofStale"))


def test_states_of_nodes() -> None:
    new = read_nodes([node_view("a")], {}, [], frozenset())["a"]
    view = gpu_node_view("a", grant(8 * FLOOR), limits=8 * FLOOR)
    unresponsive = read_nodes([node_view("a")], {"a": view}, [], frozenset(["a"]))["a"]
    states = [node_readiness(info) for info in (new, unresponsive, ready_node("a"), ready_node("a", ready=False))]
    assert states == ["new", "unresponsive", "ready", "doubted"]


def test_the_reference_lists_every_reason_and_which_are_warnings() -> None:
    section = (Path(__file__).parents[3] / "docs" / "api.md").read_text().split("## Events")[1].split("\n## ")[0]
    listed = {reason: bool(star) for star, reason in re.findall(r"(\*?)`([A-Z][A-Za-z]+)`", section)}
    calls = re.findall(r'Announcement\(\s*"([A-Z][A-Za-z]+)"[^\n]*', SOURCE)
    tables = {*REFUSALS, *PLACED_OBSTACLES, *READY_OBSTACLES}
    assert set(listed) == {*calls, *tables, *REASONS}
    warned = re.findall(r'Announcement\("([A-Z][A-Za-z]+)"[^\n]*warning=True\)', SOURCE)
    assert {reason for reason, warning in listed.items() if warning} == {
        *warned,
        *tables,
        *(reason for reason, warning in REASONS.items() if warning),
    }


def test_the_batch_size_of_a_run_is_told_once() -> None:
    run = RecurringRun(3, 64, "Explore", "A100", 400, "64 is to be tried")
    after = EnergyAwareJobStatus(recurrence=run)
    (told,) = job_announcements(job_view(), after)
    assert (told.reason, told.note) == ("BatchSizeChosen", "decision 3: 64 is to be tried")
    written = job_view(status=as_stored(after))
    assert job_announcements(written, EnergyAwareJobStatus(recurrence=replace_struct(run, cost_joules=7))) == []


def test_whom_events_speak_of() -> None:
    assert regarding_job(job_view()) == Regarding(
        "flyball.dev/v1alpha1", "EnergyAwareJob", "train", "uid-train", "team"
    )
    assert regarding_cap(cap_view(watts=1)) == Regarding("flyball.dev/v1alpha1", "PowerCap", "row", "uid-row")
    assert regarding_node(node_view("a")) == Regarding("v1", "Node", "a", "uid-of-a")


def test_a_node_that_leaves_its_caps_by_its_labels_is_told_before_and_after() -> None:
    info = ready_node("a")
    assert labels_announcement(LabelSync(info)) is None
    going = labels_announcement(LabelSync(info, former_labels=({"row": "a"},)))
    assert going is not None
    assert (going.reason, going.warning) == ("LeavesCap", True)
    gone = labels_announcement(LabelSync(info, left=("row",), by_annotation=True))
    assert gone is not None
    assert (gone.reason, gone.warning) == ("LeftCap", False)
    assert "under row no more" in gone.note


def test_a_deletion_is_told_when_it_is_seen_and_when_it_takes_effect() -> None:
    cap = cap_view(watts=1)
    assert "600 s more" in deletion_announcement(cap).note
    assert "s more" not in deletion_announcement(gpu_node_view("a", grant(8 * FLOOR))).note
    assert hold_announcement(HoldChange(cap, HoldAction.HOLD)) is None
    released = hold_announcement(HoldChange(cap, HoldAction.RELEASE_UNLESS_KIND_GOES))
    assert released is not None
    assert "releaseSeconds are over" in released.note
