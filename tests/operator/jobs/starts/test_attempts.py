"""The starts of one job, cycle by cycle: what counts as its failure, the pauses after it, when it gives its GPUs back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from flyball_api.energy_aware_job import read_energy_aware_job
from flyball_api.gpu_node import GpuNode, read_gpu_node
from flyball_api.workloads import DEFAULT_GPU_RESOURCES, IncarnationView, NodeView, PodView
from flyball_operator.cluster.outcome import DONE, Outcome, WriteResult
from flyball_operator.cluster.state import ClusterState
from flyball_operator.jobs.controller import JobController
from flyball_operator.jobs.runs.lifecycle import Action, CreateIncarnation, CreateService, OpenGates, StopIncarnation
from flyball_operator.jobs.starts.attempts import RestartRules
from flyball_operator.jobs.starts.pauses import LONGEST_OF_FIRST
from flyball_operator.jobs.steps.step import JobsCycle, JobsStep
from flyball_operator.power.nodes.info import read_nodes
from flyball_planner.snapshot import Admission, JobDecision

from tests.support.one_job import Priors
from tests.support.operator_objects import (
    NOW,
    Json,
    as_stored,
    decision,
    grant,
    incarnation_view,
    node_view,
    pod_view,
    raw_gpu_node,
    raw_job,
)

UID = "uid-train"
A, B = ("a", 4), ("b", 4)
PAUSE, TIMEOUT = 10.0, 300.0
QUOTA = 'jobs.batch "train-1" is forbidden: exceeded quota: jobs, requested: count/jobs.batch=1, used: 0, limited: 0'
REFUSED = WriteResult(Outcome.REFUSED, message=QUOTA)


@dataclass
class Scene:
    """One job of two nodes that the plan wants, what stands of it, and the operator that looks at it."""

    raw: Json = field(default_factory=lambda: raw_job(gpus={"min": 8, "max": 8}))
    incarnations: Sequence[IncarnationView] = ()
    pods: Sequence[PodView] = ()
    services: Sequence[str] | None = None  # None: those of all incarnations
    words: dict[str, str] = field(default_factory=dict)  # of the Job controller, by the batch Job's uid
    decisions: dict[str, JobDecision] = field(default_factory=lambda: {UID: decision(UID, A, B)})
    seconds: float = 0.0
    gpu_nodes: dict[str, GpuNode] = field(default_factory=dict)
    nodes: list[NodeView] = field(default_factory=lambda: [node_view("a"), node_view("b")])
    step: JobsStep = field(default_factory=lambda: JobsStep({}, (), (), (), (), ()))

    def __post_init__(self) -> None:
        self.new_operator()

    def new_operator(self) -> None:
        rules = RestartRules(PAUSE, TIMEOUT)
        self.controller = JobController(5.0, Priors(), DEFAULT_GPU_RESOURCES, rules)

    def cycle(self, seconds: float = 0.0, *, statuses_wait: bool = False) -> list[Action]:
        """One step after so long, whose statuses are written; returns its actions, open gates among them."""
        self.seconds += seconds
        job = read_energy_aware_job(self.raw)
        services = [item.name for item in self.incarnations] if self.services is None else list(self.services)
        state = ClusterState(
            {UID: job},
            [],
            self.gpu_nodes,
            self.nodes,
            list(self.pods),
            {UID: list(self.incarnations)},
            {UID: list(self.pods)},
            {},
            (),
            0.0,
            services_of={UID: services},
            pods_refused=self.words,
        )
        nodes = read_nodes(state.nodes, self.gpu_nodes, state.pods, frozenset())
        now = NOW + timedelta(seconds=self.seconds)
        self.step = self.controller.step(
            JobsCycle(state, nodes, self.decisions, 1, now, 1000.0 + self.seconds, statuses_wait=statuses_wait)
        )
        for _, status in self.step.statuses:
            self.raw["status"] = as_stored(status)
        return [item.action for item in self.step.actions_of(lambda pod: True).get(UID, [])]

    def answer(self, result: WriteResult) -> None:
        """What became of every action of the last step."""
        for item in self.step.actions_of(lambda pod: True).get(UID, []):
            self.controller.answered(item, result, NOW + timedelta(seconds=self.seconds))

    def stand(self, number: int, *pods: PodView, failed: bool = False) -> None:
        self.incarnations = [incarnation_view(UID, number, A, B, condition="Failed" if failed else "")]
        self.pods = pods

    def condition(self, kind: str) -> tuple[str, str, str]:
        """Status, reason and message of a condition."""
        found = next(item for item in self.raw["status"]["conditions"] if item["type"] == kind)
        return found["status"], found["reason"], found["message"]

    @property
    def status(self) -> Json:
        return dict(self.raw["status"])


def pod(index: int, number: int = 1, **keywords: Any) -> PodView:
    keywords.setdefault("node", "ab"[index])
    return pod_view(f"p{number}-{index}", uid=UID, incarnation=number, index=index, gpus=4, **keywords)


def ended(index: int, exit_code: int | None, number: int = 1, **keywords: Any) -> PodView:
    return pod(index, number, phase="Failed", exit_code=exit_code, **keywords)


def ready(index: int, number: int = 1, **keywords: Any) -> PodView:
    return pod(index, number, phase="Running", ready=True, **keywords)


# --- what counts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pods", "restarts", "reason"),
    [
        ([ended(0, 1), ended(1, 143)], 1, "Error"),
        ([ended(0, 143), ended(1, 143)], 1, "Error"),
        ([ended(0, 137, disrupted=True), ended(1, 1)], 0, "EvictionByEvictionAPI"),
        ([ended(0, 1), ended(1, 137, disrupted=True)], 0, "EvictionByEvictionAPI"),
        ([ended(0, None), ended(1, 1)], 0, "NeverRan"),
        ([ended(0, 137, deleting=True), ended(1, 143, deleting=True)], 0, "Deleted"),
        ([], 0, "Deleted"),
    ],
)
def test_what_is_done_to_a_job_does_not_count(pods: list[PodView], restarts: int, reason: str) -> None:
    scene = Scene()
    scene.stand(1, *pods, failed=True)
    scene.cycle()
    assert scene.status["restarts"] == restarts
    (failure,) = scene.status["failures"]
    assert (failure["incarnation"], failure["counted"], failure["reason"]) == (1, bool(restarts), reason)


def test_a_rank_that_fails_after_another_was_deleted_does_not_count() -> None:
    scene = Scene()
    scene.stand(1, ready(0), ready(1))
    scene.cycle()
    scene.stand(1, ready(0, deleting=True), ready(1))
    scene.cycle()
    scene.stand(1, ended(1, 1), failed=True)  # it lost its peer, which is gone
    scene.cycle()
    assert scene.status["restarts"] == 0
    assert "was deleted" in scene.status["backOff"]["message"] if "backOff" in scene.status else True


def test_a_rank_that_crashed_counts_though_its_pod_is_gone_when_it_is_judged() -> None:
    scene = Scene()
    scene.stand(1, ended(0, 3), ready(1, deleting=True), failed=True)
    scene.cycle()
    scene.stand(1, failed=True)
    scene.cycle()
    assert scene.status["restarts"] == 1
    assert scene.status["failures"][0]["exitCode"] == 3


def test_twenty_evictions_are_no_failure_and_five_are_shown() -> None:
    scene = Scene()
    for number in range(1, 21):
        scene.stand(number, ended(0, 143, number, disrupted=True), failed=True)
        scene.cycle(3600)
    assert scene.status["restarts"] == 0
    assert [item["incarnation"] for item in scene.status["failures"]] == [20, 19, 18, 17, 16]


# --- pauses ----------------------------------------------------------------------------------------------------------


def pauses_of(scene: Scene, exit_code: int, starts: int, **keywords: Any) -> list[float]:
    """The seconds between the ends of so many incarnations and what follows them."""
    found: list[float] = []
    for number in range(1, starts + 1):
        scene.stand(number, ended(0, exit_code, number, **keywords), failed=True)
        scene.cycle()  # its end is written to the status
        waited = 0.0
        while not scene.cycle() and scene.status["state"] != "Failed":
            assert scene.step.next_seconds > 0
            waited += scene.step.next_seconds
            scene.cycle(scene.step.next_seconds)
        found.append(round(waited))
        if scene.status["state"] == "Failed":
            break
    return found


def test_a_loop_of_exits_143_ends_after_the_last_restart_with_growing_pauses() -> None:
    scene = Scene(raw_job(gpus={"min": 8, "max": 8}, failurePolicy={"maxRestarts": 3}))
    assert pauses_of(scene, 143, 10)[:3] == [10, 20, 40]
    assert (scene.status["state"], scene.status["restarts"]) == ("Failed", 3)
    assert scene.status["allocation"]["incarnation"] == 4
    assert "exit code 143; failurePolicy.maxRestarts 3 allows no further restart" in scene.status["explanation"]


def test_pauses_grow_to_ten_minutes() -> None:
    scene = Scene(raw_job(gpus={"min": 8, "max": 8}, failurePolicy={"maxRestarts": 1000}))
    assert pauses_of(scene, 1, 9) == [10, 20, 40, 80, 160, 320, 600, 600, 600]


def test_nobody_waits_after_the_first_disruption() -> None:
    assert pauses_of(Scene(), 143, 4, disrupted=True) == [0, 10, 20, 40]


def test_a_long_run_begins_anew() -> None:
    scene = Scene(raw_job(gpus={"min": 8, "max": 8}, failurePolicy={"maxRestarts": 1000}))
    pauses_of(scene, 1, 4)
    scene.stand(5, ready(0, 5), ready(1, 5))
    scene.cycle()
    scene.cycle(601)
    scene.stand(6, ended(0, 1, 6), failed=True)
    scene.cycle()
    assert scene.status["backOff"]["until"] == "2030-06-01T12:12:41Z", "ten seconds from now"


def test_a_pause_says_what_happened_and_when_it_goes_on() -> None:
    scene = Scene()
    scene.stand(1, ended(0, 3), failed=True)
    scene.cycle()
    for kind in ("Placed", "PodsReady"):
        assert scene.condition(kind) == (
            "False",
            "RestartBackOff",
            "incarnation 1: pod p1-0 on a ended with exit code 3; restart 1 of 3; "
            "the next start is at 2030-06-01T12:00:10Z",
        )
    assert scene.condition("Admitted")[0] == "True", "a short pause keeps the place"
    assert scene.status["state"] == "RestartBackOff"


def test_the_next_operator_keeps_the_pause() -> None:
    scene = Scene()
    scene.stand(1, ended(0, 3), failed=True)
    scene.cycle()
    scene.new_operator()
    assert scene.cycle(9) == []
    assert [type(action) for action in scene.cycle(2)] == [StopIncarnation]
    assert scene.status["restarts"] == 1
    assert "backOff" not in scene.status


def test_a_pause_by_a_clock_that_was_ahead_is_no_longer_than_the_longest() -> None:
    scene = Scene()
    scene.stand(1, ended(0, 3), failed=True)
    scene.cycle()
    scene.status["backOff"]["until"] = "2031-06-01T12:00:00Z"
    scene.new_operator()
    longest = LONGEST_OF_FIRST * PAUSE
    assert scene.cycle(0) == []
    assert [type(action) for action in scene.cycle(longest + 1)] == [StopIncarnation]


def test_a_suspended_job_does_not_wait_to_leave() -> None:
    scene = Scene()
    scene.stand(1, ended(0, 3), failed=True)
    scene.cycle()
    scene.raw["spec"]["suspend"] = True
    assert [type(action) for action in scene.cycle()] == [StopIncarnation]


# --- starts that come to nothing -------------------------------------------------------------------------------------

UNSCHEDULABLE = "0/4 nodes are available: 4 node(s) didn't match Pod's node affinity/selector."


def stuck(scene: Scene, number: int = 1) -> None:
    scene.stand(number, pod(0, number, node="", unscheduled=UNSCHEDULABLE), pod(1, number, node=""))


def test_what_the_scheduler_says_is_said_at_once() -> None:
    scene = Scene()
    stuck(scene)
    scene.cycle()
    assert scene.condition("Placed")[:2] == ("False", "Starting"), "what passes at once is not worth a word"
    assert scene.step.next_seconds <= 1.0
    scene.cycle(scene.step.next_seconds)
    assert scene.condition("Placed") == ("False", "Unschedulable", f"pod p1-0: {UNSCHEDULABLE}")
    assert scene.status["state"] == "Unschedulable"
    assert scene.status["explanation"].endswith(UNSCHEDULABLE)
    scene.stand(1, ready(0), ready(1))
    scene.cycle()
    assert scene.condition("Placed")[:2] == ("True", "PodsBound")


def test_what_the_kubelet_says_is_said_too() -> None:
    scene = Scene()
    scene.stand(1, ready(0), pod(1, waiting=("ImagePullBackOff", "Back-off pulling image x")))
    scene.cycle()
    scene.cycle(1)
    assert scene.condition("Placed")[:2] == ("True", "PodsBound")
    assert scene.condition("PodsReady") == (
        "False",
        "ImagePullFailed",
        "pod p1-1 on b: ImagePullBackOff: Back-off pulling image x",
    )


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ('pods "x" is forbidden: exceeded quota: q, requested: pods=1, used: pods=0, limited: pods=0', "QuotaExceeded"),
        ('pods "x" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot', "PodSecurityViolated"),
        (
            'pods "x" is forbidden: error looking up service account a/b: serviceaccount "b" not found',
            "ServiceAccountNotFound",
        ),
        ('Pod "x" is invalid: spec.nodeName: Forbidden: cannot be set with scheduling gates', "PodsRefused"),
    ],
)
def test_what_the_job_controller_says_is_said_too(words: str, reason: str) -> None:
    scene = Scene(words={f"batch-{UID}-1": words})
    scene.stand(1)
    scene.cycle()
    scene.cycle(1)
    assert scene.condition("Placed") == ("False", reason, words)


def test_a_start_that_takes_too_long_gives_its_gpus_back_and_is_tried_again() -> None:
    scene = Scene()
    for number, pause in enumerate((10, 20, 40), start=1):
        stuck(scene, number)
        scene.cycle()
        for _ in range(4):
            scene.cycle(TIMEOUT / 4)
        assert scene.status["startAttempts"] == number
        status, reason, message = scene.condition("Admitted")
        assert (status, reason) == ("False", "StartTimedOut")
        assert message.startswith(f"not running 300 s after its start: Unschedulable: pod p{number}-0: {UNSCHEDULABLE}")
        (stop,) = scene.cycle()
        assert isinstance(stop, StopIncarnation)
        assert scene.step.jobs[UID].memory.given_back
        scene.incarnations, scene.pods = (), ()
        scene.decisions = {}  # the plan leaves it out
        assert scene.cycle(pause - 1.0) == []
        assert scene.step.jobs[UID].memory.given_back
        scene.cycle(1.0)
        assert not scene.step.jobs[UID].memory.given_back
        scene.decisions = {UID: decision(UID, A, B)}
        assert scene.cycle() == [CreateIncarnation(UID, number + 1, (A, B))]
    scene.stand(4, ready(0, 4), ready(1, 4))
    scene.cycle()
    assert "startAttempts" not in scene.status


def test_the_job_says_how_long_a_start_may_take() -> None:
    scene = Scene(raw_job(gpus={"min": 8, "max": 8}, startupTimeoutSeconds=5))
    stuck(scene)
    scene.cycle()
    assert scene.step.next_seconds <= 5
    scene.cycle(5)
    scene.cycle(5)
    assert scene.status["startAttempts"] == 1


def test_waiting_for_watts_is_no_slow_start() -> None:
    scene = Scene()
    scene.stand(1, pod(0, gated=True, node=""), pod(1, gated=True, node=""))
    for _ in range(10):
        scene.cycle(TIMEOUT)
    assert "startAttempts" not in scene.status


def test_a_pod_that_falls_silent_after_it_ran_is_no_slow_start() -> None:
    scene = Scene()
    scene.stand(1, ready(0), ready(1))
    scene.cycle()
    scene.stand(1, ready(0), pod(1, phase="Running"))
    for _ in range(10):
        scene.cycle(TIMEOUT)
    assert "startAttempts" not in scene.status


# --- what the API server refuses -------------------------------------------------------------------------------------


def test_a_refused_job_is_said_in_the_api_servers_words_and_gives_its_gpus_back() -> None:
    scene = Scene()
    tries = 0
    for _ in range(int(TIMEOUT) + 5):
        if scene.cycle(1.0):
            tries += 1
            scene.answer(REFUSED)
            scene.cycle()
            assert scene.condition("Placed") == ("False", "QuotaExceeded", QUOTA)
        if "startAttempts" in scene.status:
            break
    assert scene.status["startAttempts"] == 1
    assert 5 <= tries <= 12


def test_a_changed_spec_is_tried_at_once() -> None:
    scene = Scene()
    for _ in range(8):
        while not scene.cycle():
            scene.cycle(scene.step.next_seconds)
        scene.answer(REFUSED)
    assert scene.cycle() == []
    scene.raw["metadata"]["generation"] = 2
    assert [type(action) for action in scene.cycle(1.0)] == [CreateIncarnation]


def test_a_changed_spec_is_not_held_back_by_the_last_ones_time_out() -> None:
    scene = Scene()
    stuck(scene)
    scene.cycle()
    scene.cycle(TIMEOUT)
    assert scene.condition("Admitted")[1] == "StartTimedOut"
    scene.new_operator()
    scene.cycle()
    assert scene.condition("Admitted")[1] == "StartTimedOut"
    scene.raw["metadata"]["generation"] = 2
    scene.cycle()
    assert scene.condition("Admitted")[:2] == ("True", "Admitted")


def test_gates_stay_closed_without_the_service_that_is_refused() -> None:
    scene = Scene(services=())
    scene.stand(1, pod(0, gated=True, node=""), pod(1, gated=True, node=""))
    scene.cycle()
    (create,) = scene.cycle()
    assert isinstance(create, CreateService)
    scene.answer(WriteResult(Outcome.REFUSED, message='services "train-1" is forbidden: exceeded quota: none'))
    scene.cycle()
    assert scene.condition("Placed")[:2] == ("False", "QuotaExceeded")
    scene.services = None
    scene.cycle(1.0)
    scene.answer(DONE)
    (gates,) = scene.cycle(1.0)
    assert isinstance(gates, OpenGates)


def test_gates_that_cannot_be_opened_are_not_tried_all_the_time() -> None:
    scene = Scene()
    scene.stand(1, pod(0, node="", gated=True), pod(1, node="", gated=True))
    scene.cycle()  # the number comes into the status
    (gates,) = scene.cycle()
    assert isinstance(gates, OpenGates)
    scene.answer(WriteResult(Outcome.REFUSED, message="denied by a policy"))
    assert scene.cycle() == []
    (again,) = scene.cycle(1.0)
    assert isinstance(again, OpenGates)


def test_where_jobs_are_only_observed_no_start_takes_too_long() -> None:
    """Nothing is started there; what the plan would give the job is said for as long as it waits."""
    scene = Scene()
    rules = RestartRules(PAUSE, TIMEOUT)
    scene.controller = JobController(5.0, Priors(), DEFAULT_GPU_RESOURCES, rules, observe=True)
    for _ in range(3):
        assert scene.cycle(TIMEOUT) == []
        assert not scene.step.jobs[UID].memory.given_back
    assert "startAttempts" not in scene.status


def test_a_stop_that_is_refused_is_not_tried_all_the_time() -> None:
    scene = Scene(decisions={UID: decision(UID)})
    scene.stand(1, ready(0), ready(1))
    tries = 0
    for _ in range(600):
        if scene.cycle(0.1):
            tries += 1
            scene.answer(WriteResult(Outcome.REFUSED, message="forbidden"))
    assert tries <= 8
    assert scene.condition("Placed")[2] in ("", "forbidden")


def test_a_name_that_somebody_else_has_taken_is_passed_over() -> None:
    scene = Scene()
    taken = WriteResult(Outcome.REFUSED, conflict=True, message='jobs.batch "train-1" already exists')
    seen = []
    for _ in range(4):
        while not (actions := scene.cycle()):
            scene.cycle(scene.step.next_seconds)
        seen += [action.incarnation for action in actions if isinstance(action, CreateIncarnation)]
        scene.answer(taken if seen[-1] == 1 else DONE)
        if seen[-1] > 1:
            break
    assert seen == [1, 1, 2]


def test_five_hundred_denied_jobs_ask_less_than_five_times_a_second() -> None:
    raws = [raw_job(f"j{number}") for number in range(500)]
    controller = JobController(5.0, Priors(), DEFAULT_GPU_RESOURCES, RestartRules(PAUSE, 600.0))
    decisions = {raw["metadata"]["uid"]: decision(raw["metadata"]["uid"], ("a", 1)) for raw in raws}
    jobs = {raw["metadata"]["uid"]: read_energy_aware_job(raw) for raw in raws}
    nodes = [node_view("a")]
    infos = read_nodes(nodes, {}, [], frozenset())
    asked = 0
    for half in range(60):
        now = NOW + timedelta(seconds=half / 2)
        state = ClusterState(jobs, [], {}, nodes, [], {}, {}, {}, (), 0.0)
        step = controller.step(JobsCycle(state, infos, decisions, 1, now, 1000.0 + half / 2, statuses_wait=True))
        for item in list(step.actions)[:16]:  # so many are made at once
            asked += 1
            controller.answered(item, REFUSED, now)
    assert 60 <= asked < 5 * 30


# --- templates -------------------------------------------------------------------------------------------------------


def test_the_api_server_is_asked_about_each_template_once() -> None:
    scene = Scene(raw_job(gpus={"min": 8, "max": 8}), decisions={})
    for answer in (WriteResult(Outcome.UNKNOWN), DONE):
        scene.cycle(5.0)
        (job,) = scene.step.checks
        scene.controller.checked(job, answer)
        scene.cycle()
        assert not scene.step.checks
    scene.raw["metadata"]["generation"] = 2
    scene.raw["spec"]["template"]["spec"]["containers"][0]["volumeMount"] = []
    scene.cycle()
    (job,) = scene.step.checks
    scene.controller.checked(job, WriteResult(Outcome.REFUSED, invalid='unknown field "volumeMount"'))
    scene.cycle()
    assert scene.condition("Admitted") == ("False", "InvalidSpec", 'unknown field "volumeMount"')
    scene.new_operator()
    scene.cycle()
    assert not scene.step.checks


def test_what_a_quota_says_of_a_template_is_no_word_on_the_template() -> None:
    scene = Scene(raw_job(gpus={"min": 8, "max": 8}, suspend=True), decisions={})
    scene.cycle()
    (job,) = scene.step.checks
    scene.controller.checked(job, REFUSED)
    scene.cycle()
    assert (scene.condition("Admitted")[1], list(scene.step.checks)) == ("Suspended", [])


def test_a_template_that_nobody_can_work_with_is_refused_and_asked_of_nobody() -> None:
    deep: Json = {}
    for _ in range(990):
        deep = {"a": deep}
    scene = Scene(raw_job(gpus={"min": 8, "max": 8}))
    scene.raw["spec"]["template"]["spec"]["deep"] = deep
    assert scene.cycle() == []
    assert not scene.step.checks
    status, reason, message = scene.condition("Admitted")
    assert (status, reason) == ("False", "InvalidSpec")
    assert message == "spec.template is nested more than 64 levels deep, which no pod's template is"


def test_a_job_that_is_made_at_once_is_not_asked_about_twice() -> None:
    scene = Scene()
    assert [type(action) for action in scene.cycle()] == [CreateIncarnation]
    assert not scene.step.checks


# --- jobs that are not begun ---------------------------------------------------------------------------------------


def test_of_a_job_that_another_controller_manages_not_a_word_is_written() -> None:
    scene = Scene(raw_job(gpus={"min": 8, "max": 8}, managedBy="someone.else/queue", ttlSecondsAfterFinished=0))
    assert scene.cycle() == []
    assert (scene.step.jobs, list(scene.step.statuses)) == ({}, [])
    scene.raw["status"] = {
        "conditions": [{"type": "Succeeded", "status": "True"}],
        "completionTime": "2030-06-01T12:00:00Z",
    }
    scene.cycle(3600)
    assert list(scene.step.expired) == []


def test_a_pipeline_without_a_plan_is_refused() -> None:
    scene = Scene(raw_job(gpus={"min": 8, "max": 8}, pipeline={"stages": 2}))
    assert scene.cycle() == []
    status, reason, message = scene.condition("Admitted")
    assert (status, reason) == ("False", "NotSupported")
    assert "spec.pipeline has no plan: name the ConfigMap" in message
    scene.raw["spec"]["pipeline"] = {"stages": 2, "microbatches": 4, "plan": {"configMap": "plan"}}
    scene.raw["metadata"]["generation"] = 2
    assert [type(action) for action in scene.cycle()] == [CreateIncarnation]


@pytest.mark.parametrize(("mode", "starts"), [("Suspend", False), ("Fail", False), ("Throttle", True)])
def test_a_job_that_cannot_end_within_its_budget_does_not_begin(mode: str, starts: bool) -> None:
    energy = {"budgetKilojoules": 1, "onExhausted": mode}
    scene = Scene(raw_job(gpus={"min": 8, "max": 8}, energy=energy))
    assert [type(action) for action in scene.cycle()] == [CreateIncarnation] * starts
    if starts:
        scene.answer(DONE)
        scene.cycle()
        assert scene.condition("BudgetHealthy")[:2] == ("False", "ProjectedOverBudget")
        return
    status, reason, message = scene.condition("Admitted")
    assert (status, reason) == ("False", "BudgetTooSmall")
    assert message.startswith("energy.budgetKilojoules is 1, and by its model the job takes ")
    scene.raw["spec"]["energy"]["budgetKilojoules"] = 10**9
    scene.raw["metadata"]["generation"] = 2
    assert [type(action) for action in scene.cycle()] == [CreateIncarnation]


def test_what_a_job_takes_at_the_least_is_not_worked_out_before_there_are_nodes() -> None:
    """On nodes of one GPU, as it is where none is known, it would take more than it may spend."""
    energy = {"budgetKilojoules": 118, "onExhausted": "Suspend"}
    scene = Scene(raw_job(gpus={"min": 8, "max": 8}, energy=energy))
    nodes, scene.nodes = scene.nodes, []
    scene.cycle()
    assert scene.step.jobs[UID].memory.refusal is None
    scene.nodes = nodes
    starts = scene.cycle()
    assert scene.step.jobs[UID].memory.refusal is None
    assert [type(action) for action in starts] == [CreateIncarnation]


def test_a_job_that_has_begun_spends_its_budget_as_ever() -> None:
    energy = {"budgetKilojoules": 1, "onExhausted": "Suspend"}
    scene = Scene(raw_job(gpus={"min": 8, "max": 8}, energy=energy))
    scene.stand(1, ready(0), ready(1))
    assert scene.cycle() == []
    assert scene.condition("Admitted")[:2] == ("True", "Admitted")


def test_a_deadline_that_is_past_is_said_once() -> None:
    scene = Scene(raw_job(gpus={"min": 8, "max": 8}, deadline="2020-01-01T00:00:00Z"))
    scene.stand(1, ready(0), ready(1))
    scene.cycle()
    assert scene.condition("DeadlineAtRisk") == (
        "True",
        "DeadlinePassed",
        "2020-01-01T00:00:00Z is past: the job goes on as one without a deadline",
    )
    assert scene.status["state"] == "Running"


@pytest.mark.parametrize("statuses_wait", [False, True])
def test_a_preempted_job_says_so_until_it_is_given_gpus_again(*, statuses_wait: bool) -> None:
    """Also where the plan that paused it is followed by another before statuses are written."""
    scene = Scene(decisions={UID: waiting(Admission.PREEMPTED, "Paused for team/hi, priority 10 over 0.")})
    scene.cycle(statuses_wait=statuses_wait)
    scene.decisions = {UID: waiting(Admission.WAITING_FOR_GPUS, "Needs 8 GPUs; 0 are free.")}
    for operator in (False, True):
        if operator:
            scene.new_operator()
        scene.cycle(5.0)
        assert scene.condition("Admitted") == (
            "False",
            "Preempted",
            "Paused for team/hi, priority 10 over 0. Now: Needs 8 GPUs; 0 are free.",
        )
    scene.decisions = {UID: decision(UID, A, B)}
    scene.cycle()
    scene.decisions = {UID: waiting(Admission.WAITING_FOR_GPUS, "Needs 8 GPUs; 0 are free.")}
    scene.cycle()
    assert scene.condition("Admitted")[:2] == ("False", "WaitingForGpus")


def waiting(admission: Admission, explanation: str) -> JobDecision:
    return JobDecision(UID, None, admission, explanation)


# --- a cap that goes up and down -------------------------------------------------------------------------------------

NO_POWER = JobDecision(UID, None, Admission.WAITING_FOR_POWER, "Cap hall leaves 0 W of the 800 W that it takes.")
BETWEEN = 450  # minSecondsBetweenResizes


def running_since(seconds: float) -> Scene:
    """A job that was started so long ago, and runs."""
    scene = Scene(raw_job(gpus={"min": 8, "max": 8}, elasticity={"minSecondsBetweenResizes": BETWEEN}))
    (create,) = scene.cycle()
    scene.answer(WriteResult(DONE.outcome))
    assert isinstance(create, CreateIncarnation)
    scene.stand(1, ready(0), ready(1))
    scene.cycle(seconds)
    assert scene.status["state"] == "Running"
    return scene


def cap_falls(scene: Scene) -> None:
    """The cap takes the job's watts, and its pods leave."""
    scene.decisions = {UID: NO_POWER}
    assert StopIncarnation in map(type, scene.cycle(1.0))
    scene.incarnations, scene.pods = (), ()
    scene.cycle()
    assert scene.status["allocation"]["gpus"] == 0


def cap_rises(scene: Scene, seconds: float = 1.0) -> list[Action]:
    """There are watts again: the plan gives the job its GPUs, unless it is out of the plan."""
    scene.decisions = {UID: decision(UID, A, B)} if not scene.step.jobs[UID].memory.given_back else {}
    scene.cycle(seconds)
    if not scene.step.jobs[UID].memory.given_back:
        scene.decisions = {UID: decision(UID, A, B)}
    return scene.cycle()


def test_a_job_that_a_cap_stops_soon_after_its_start_waits_until_it_may_be_resized() -> None:
    scene = running_since(60.0)
    cap_falls(scene)
    assert scene.condition("Admitted")[:2] == ("False", "PowerBackOff")
    assert "Cap hall leaves 0 W" in scene.condition("Admitted")[2]
    assert scene.status["state"] == "PowerBackOff"
    assert cap_rises(scene) == []
    scene.new_operator()
    assert cap_rises(scene) == []
    assert scene.condition("Admitted")[1] == "PowerBackOff"
    assert [type(action) for action in cap_rises(scene, BETWEEN - 62.0)] == [CreateIncarnation]


def test_a_start_whose_watts_are_taken_before_a_gate_is_open_has_lost_nothing_and_waits_for_watts_only() -> None:
    scene = Scene()
    scene.cycle()
    scene.answer(WriteResult(DONE.outcome))
    scene.stand(1, pod(0, gated=True, node=""), pod(1, gated=True, node=""))
    scene.cycle(1.0)
    cap_falls(scene)
    assert scene.condition("Admitted")[1] == "WaitingForPower"
    assert [type(action) for action in cap_rises(scene)] == [CreateIncarnation]


def test_a_job_that_has_run_for_long_goes_on_as_soon_as_there_are_watts() -> None:
    scene = running_since(BETWEEN + 1.0)
    cap_falls(scene)
    assert scene.condition("Admitted")[1] == "WaitingForPower"
    assert [type(action) for action in cap_rises(scene)] == [CreateIncarnation]


def test_whoever_lets_a_job_be_resized_at_any_time_lets_it_be_started_again_at_once() -> None:
    scene = running_since(60.0)
    cap_falls(scene)
    scene.raw["spec"]["elasticity"] = {"minSecondsBetweenResizes": 0}
    scene.raw["metadata"]["generation"] = 2
    assert [type(action) for action in cap_rises(scene)] == [CreateIncarnation]


def test_a_clock_that_was_ahead_keeps_a_paused_job_for_no_longer_than_it_would_have_been() -> None:
    scene = running_since(60.0)
    cap_falls(scene)
    scene.raw["status"]["backOff"]["until"] = "2040-01-01T00:00:00Z"
    scene.new_operator()
    assert cap_rises(scene) == []
    assert [type(action) for action in cap_rises(scene, BETWEEN + 1.0)] == [CreateIncarnation]


# --- how long a failure counts ---------------------------------------------------------------------------------------


def test_failures_count_no_more_after_a_time_without_one() -> None:
    scene = Scene(raw_job(gpus={"min": 8, "max": 8}, failurePolicy={"maxRestarts": 1, "restartsWindowSeconds": 600}))
    scene.stand(1, ended(0, 1), ended(1, 143), failed=True)
    scene.cycle()
    assert scene.status["restarts"] == 1
    scene.stand(2, ready(0, 2), ready(1, 2))
    scene.cycle(PAUSE + 1.0)
    for _ in range(59):
        scene.cycle(10.0)
    assert scene.status["restarts"] == 1
    scene.cycle(10.0)
    assert scene.status["restarts"] == 0
    scene.stand(2, ended(0, 1, 2), ended(1, 143, 2), failed=True)
    scene.cycle()
    assert scene.status["restarts"] == 1
    assert scene.status["state"] == "RestartBackOff", "it may fail once again"


# --- nodes that are lost ----------------------------------------------------------------------------------------------


def test_a_pod_on_a_node_that_is_gone_is_not_known_to_run() -> None:
    scene = running_since(60.0)
    scene.gpu_nodes = {name: read_gpu_node(raw_gpu_node(name, grant(0))) for name in ("a", "b")}
    scene.nodes = [node_view("a")]
    scene.cycle()
    scene.cycle(1.0)
    words = "pod p1-1 is on node b, which is gone; Kubernetes deletes the pods of such a node within a minute or so"
    assert scene.condition("PodsReady") == ("False", "NodeLost", words)
    assert scene.status["state"] == "NodeLost"


@pytest.mark.parametrize("seen", [pod(1, phase="Running"), ready(1)], ids=["marked", "as its kubelet said last"])
def test_a_pod_that_cannot_end_on_a_lost_node_says_what_lets_it_go(seen: PodView) -> None:
    scene = running_since(60.0)
    scene.nodes = [node_view("a"), node_view("b", ready=False)]
    scene.pods = (ready(0), seen)
    scene.cycle()
    scene.cycle(1.0)
    assert scene.condition("PodsReady") == (
        "False", "NodeLost", "pod p1-1 is on node b, which is not ready; the job leaves it after a while",
    )  # fmt: skip
    assert scene.status["state"] == "NodeLost"
    scene.decisions = {UID: decision(UID, ("a", 8))}
    assert StopIncarnation in map(type, scene.cycle(1.0))
    scene.incarnations, scene.pods = (), (pod(1, phase="Running", deleting=True),)
    scene.cycle()
    scene.cycle(5.0)
    status, reason, message = scene.condition("PodsReady")
    assert (status, reason, scene.status["state"]) == ("False", "NodeLost", "NodeLost")
    assert message.endswith("kubectl taint nodes b node.kubernetes.io/out-of-service=nodeshutdown:NoExecute")
    scene.pods = ()
    assert [type(action) for action in scene.cycle()] == [CreateIncarnation]
