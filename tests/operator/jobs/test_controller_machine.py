"""One job under the controller and anything that may happen to it: operators that come and go, lost answers and writes,
pods that fail, plans that change their mind. Its pods never hold GPUs twice, and no failure is lost or counted again."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import hypothesis.strategies as st
from flyball_api.energy_aware_job import read_energy_aware_job
from flyball_api.workloads import DEFAULT_GPU_RESOURCES, IncarnationView, PodView
from flyball_operator.cluster.outcome import DONE, UNKNOWN, Outcome, WriteResult
from flyball_operator.cluster.state import ClusterState
from flyball_operator.jobs.controller import JobController
from flyball_operator.jobs.runs.lifecycle import (
    CreateIncarnation,
    CreateService,
    OpenGates,
    RemovePods,
    StopIncarnation,
)
from flyball_operator.jobs.starts.attempts import RestartRules
from flyball_operator.jobs.steps.step import JobAction, JobsCycle
from flyball_operator.power.nodes.info import read_nodes
from flyball_planner.snapshot import JobDecision
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.examples import examples
from tests.support.one_job import Priors
from tests.support.operator_objects import (
    NOW,
    as_stored,
    decision,
    incarnation_view,
    node_view,
    pod_view,
    raw_job,
)

UID = "uid-train"
TERMINATED, CRASH = 143, 1
PLACES = {"nowhere": (), "a": (("a", 4),), "b": (("b", 4),), "both": (("a", 4), ("b", 4))}


@dataclass
class Incarnation:
    """What stands of one incarnation: its Job, and the state of each rank's pod."""

    nodes: tuple[tuple[str, int], ...]
    ranks: dict[int, str] = field(
        default_factory=dict
    )  # gated, starting, running, leaving, failed; a pod gone is left out
    deleting: bool = False  # its Job is gone, and its pods are leaving
    exit_code: int = 0
    failed: bool = False
    named: bool = False  # its Service is there
    disrupted: bool = False  # by whom it was ended: others, or its own program

    @property
    def holds_gpus(self) -> bool:
        return any(state in ("starting", "running", "leaving") for state in self.ranks.values())

    def view(self, number: int) -> IncarnationView:
        return incarnation_view(UID, number, *self.nodes, condition="Failed" if self.failed else "")

    def pods(self, number: int) -> list[PodView]:
        return [self._pod(number, index, state) for index, state in self.ranks.items()]

    def _pod(self, number: int, index: int, state: str) -> PodView:
        keywords: dict[str, Any] = {"uid": UID, "incarnation": number, "index": index, "gpus": self.nodes[index][1]}
        if state != "gated":
            keywords["node"] = self.nodes[index][0]
        if state == "failed":
            keywords |= {"phase": "Failed", "exit_code": self.exit_code, "disrupted": self.disrupted}
        elif state != "gated":
            keywords["phase"] = "Running"
        return pod_view(
            f"p{number}-{index}",
            gated=state == "gated",
            ready=state == "running",
            deleting=state == "leaving" or (self.deleting and state != "failed"),
            **keywords,
        )


class OneJob(RuleBasedStateMachine):
    """The API server's objects of one job, and an operator that may be another in every cycle."""

    def __init__(self) -> None:
        super().__init__()
        self.raw = raw_job(failurePolicy={"maxRestarts": 10**6}, gpus={"min": 4, "max": 8})
        self.incarnations: dict[int, Incarnation] = {}
        self.created: list[int] = []
        self.ran: set[int] = set()
        self.failures = 0
        self.hidden = 0  # those of which the batch Job was deleted, perhaps before the operator saw it
        self.place = "nowhere"
        self.seconds = 0.0
        self.new_operator()

    def state(self) -> ClusterState:
        job = read_energy_aware_job(self.raw)
        nodes = [node_view("a"), node_view("b")]
        pods = [pod for number, item in self.incarnations.items() for pod in item.pods(number)]
        views = [item.view(number) for number, item in self.incarnations.items() if not item.deleting]
        services = {UID: {f"train-{number}" for number, item in self.incarnations.items() if item.named}}
        return ClusterState(
            {UID: job}, [], {}, nodes, pods, {UID: views}, {UID: pods}, {}, (), 0.0, services_of=services
        )

    @rule()
    def new_operator(self) -> None:
        rules = RestartRules(first_pause_seconds=0.1, startup_timeout_seconds=10**6)
        self.controller = JobController(5.0, Priors(), DEFAULT_GPU_RESOURCES, rules)
        self.decisions: dict[str, JobDecision] = {}
        self.made: set[int] = set()  # as this operator was told

    @rule(place=st.sampled_from(sorted(PLACES)))
    def plan(self, place: str) -> None:
        self.place = place
        self.decisions = {UID: decision(UID, *PLACES[place])}

    @rule(
        status=st.booleans(), outcome=st.sampled_from(["done", "lost answer", "lost request"]), reserved=st.booleans()
    )
    def cycle(self, status: bool, outcome: str, reserved: bool) -> None:
        """One step; its status may be lost, and so may each action or the answer to it."""
        self.seconds += 10.0
        state = self.state()
        nodes = read_nodes(state.nodes, state.gpu_nodes, state.pods, frozenset())
        now = NOW + timedelta(seconds=self.seconds)
        step = self.controller.step(
            JobsCycle(state, nodes, self.decisions, 1, now, self.seconds, statuses_wait=not status)
        )
        for _, made in step.statuses:
            self.raw["status"] = as_stored(made)
        for item in step.actions_of(lambda pod: reserved).get(UID, ()):
            self._check(item)
            answer = UNKNOWN if outcome == "lost request" else self._take(item)
            if outcome == "done" and answer.done and isinstance(item.action, CreateIncarnation):
                self.made.add(item.action.incarnation)
            self.controller.answered(item, UNKNOWN if outcome == "lost answer" else answer, now)

    def _check(self, item: JobAction) -> None:
        match item.action:
            case CreateIncarnation(_, number, _):
                assert self.decisions, "a new leader starts nothing before its first plan"
                assert number not in self.ran, "no number is used twice"
                assert number not in self.made, "and none is given twice by one operator"
                assert not any(item.holds_gpus for item in self.incarnations.values())
            case StopIncarnation(incarnation, _):
                current = self.incarnations[incarnation.incarnation]
                wanted = not self.raw["spec"].get("suspend")
                if wanted and not self.decisions and not current.failed and self.created[-1] == incarnation.incarnation:
                    nodes = ((self.raw.get("status") or {}).get("allocation") or {}).get("nodes") or []
                    recorded = tuple((node["name"], node["gpus"]) for node in nodes)
                    assert recorded not in ((), current.nodes), "a new leader leaves alone what runs as recorded"
            case OpenGates(pods):
                standing = self.incarnations[pods[0][0].incarnation]
                gated = [index for index, state in standing.ranks.items() if state == "gated"]
                assert sorted(pod.index for pod, _ in pods) == sorted(gated), "all gates open, or none"
                assert len(standing.ranks) == len(standing.nodes)
                assert standing.named, "ranks find each other before they run"
            case CreateService():
                pass
            case RemovePods():
                raise AssertionError("no Job of the test is deleted by others")

    def _take(self, item: JobAction) -> WriteResult:
        match item.action:
            case CreateIncarnation(_, number, nodes):
                if number in self.incarnations and not self.incarnations[number].deleting:
                    return WriteResult(Outcome.REFUSED)
                self.created.append(number)
                self.incarnations[number] = Incarnation(nodes)
            case CreateService(incarnation):
                if not self.incarnations[incarnation.incarnation].deleting:
                    self.incarnations[incarnation.incarnation].named = True
            case StopIncarnation(incarnation, _):
                self.incarnations[incarnation.incarnation].deleting = True
            case OpenGates(pods):
                for pod, _ in pods:
                    self.ran.add(pod.incarnation)
                    self.incarnations[pod.incarnation].ranks[pod.index] = "starting"
        return DONE

    @rule(index=st.integers(0, 1))
    def a_pod_moves_on(self, index: int) -> None:
        """The Job's controller makes a missing pod, or a pod takes its next step; one that is to leave is gone."""
        for number, item in list(self.incarnations.items()):
            state = item.ranks.get(index)
            if item.deleting:
                item.ranks.pop(index, None)
                if not item.ranks:
                    del self.incarnations[number]
            elif state is None and index < len(item.nodes) and not item.failed:
                item.ranks[index] = "gated"
            elif state == "starting":
                item.ranks[index] = "running"
            elif state == "leaving":
                item.ranks.pop(index)

    @precondition(lambda self: any("running" in item.ranks.values() for item in self.incarnations.values()))
    @rule(exit_code=st.sampled_from([CRASH, TERMINATED]), disrupted=st.booleans())
    def a_rank_ends(self, exit_code: int, disrupted: bool) -> None:
        """One rank ends, by itself or by an eviction; the Job fails, and its controller ends the other ranks."""
        for item in self.incarnations.values():
            running = [index for index, state in item.ranks.items() if state == "running"]
            if running and not item.failed and not item.deleting:
                item.failed, item.exit_code, item.disrupted = True, exit_code, disrupted
                item.ranks = {
                    index: "failed" if index == running[0] else "leaving"
                    for index, state in item.ranks.items()
                    if state != "gated"
                }
                self.failures += not disrupted
                return  # the others end the same way another time

    @rule(suspend=st.booleans())
    def suspend_or_resume(self, suspend: bool) -> None:
        self.raw["spec"]["suspend"] = suspend

    @rule()
    def somebody_deletes_a_service(self) -> None:
        for item in self.incarnations.values():
            item.named = False

    @rule()
    def somebody_deletes_the_batch_job(self) -> None:
        for item in self.incarnations.values():
            if not item.deleting:
                self.hidden += item.failed and not item.disrupted
                item.deleting = True

    @invariant()
    def gpus_are_held_once(self) -> None:
        assert sum(item.holds_gpus for item in self.incarnations.values()) <= 1

    @rule(outcome=st.sampled_from(["done", "lost answer", "lost request"]))
    def operator_dies_after_a_step(self, outcome: str) -> None:
        """What it has decided on may be under way; no status has been written, and the next one knows only those."""
        self.cycle(status=False, outcome=outcome, reserved=True)
        self.new_operator()

    @rule(cycles=st.integers(1, 8))
    def some_time_passes_in_peace(self, cycles: int) -> None:
        for _ in range(cycles):
            self.cycle(status=True, outcome="done", reserved=True)
            for index in (0, 1):
                self.a_pod_moves_on(index)

    def teardown(self) -> None:
        """Left alone, with a plan and nothing lost, the job comes to rest where the plan has it, its failures counted."""
        self.raw["spec"]["suspend"] = False
        self.plan("both")
        self.some_time_passes_in_peace(20)
        (last,) = self.incarnations.values()
        assert (last.nodes, set(last.ranks.values())) == (PLACES["both"], {"running"})
        assert self.failures - self.hidden <= (self.raw["status"].get("restarts") or 0) <= self.failures
        assert self.raw["status"]["state"] == "Running"


TestOneJob = OneJob.TestCase
TestOneJob.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)
