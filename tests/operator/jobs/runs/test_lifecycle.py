"""Every step of a job's way to its allocation, state by state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from flyball_api.workloads import IncarnationView, PodView
from flyball_api.workloads.pod import Obstacle
from flyball_operator.jobs.runs.lifecycle import (
    NODE_GONE,
    Action,
    CreateIncarnation,
    CreateService,
    JobPhase,
    JobStep,
    RemovePods,
    StopIncarnation,
    next_step,
)
from msgspec.structs import replace

from tests.support.operator_objects import incarnation_view, pod_view, running_pod

UID = "uid-train"
A, B = ("a", 4), ("b", 4)


def incarnation(number: int = 1, *nodes: tuple[str, int], **keywords: object) -> IncarnationView:
    return incarnation_view(UID, number, *(nodes or (A, B)), **keywords)  # type: ignore[arg-type]


def gated(index: int, number: int = 1, *, deleting: bool = False, name: str = "") -> PodView:
    return pod_view(
        name or f"p{index}", uid=UID, incarnation=number, index=index, gpus=4, gated=True, deleting=deleting
    )


def running(index: int, number: int = 1, *, ready: bool = True, deleting: bool = False) -> PodView:
    node = "ab"[index]
    return pod_view(
        f"p{index}",
        uid=UID,
        incarnation=number,
        index=index,
        gpus=4,
        node=node,
        phase="Running",
        ready=ready,
        deleting=deleting,
    )


def ended(index: int, phase: str, exit_code: int | None = None, number: int = 1) -> PodView:
    return pod_view(
        f"p{index}",
        uid=UID,
        incarnation=number,
        index=index,
        gpus=4,
        node="ab"[index],
        phase=phase,
        exit_code=exit_code,
    )


def left_behind(index: int, *, deleting: bool = False) -> PodView:
    return running_pod(
        f"p{index}", "ab"[index], uid=UID, incarnation=1, index=index, gpus=4, controlled=False, deleting=deleting
    )


@dataclass(frozen=True)
class State:
    """What stands, and what should follow."""

    what: str
    phase: JobPhase
    actions: tuple[type[Action], ...] = ()
    desired: tuple[tuple[str, int], ...] | None = (A, B)
    incarnations: Sequence[IncarnationView] = ()
    pods: Sequence[PodView] = ()
    gates: frozenset[str] = frozenset()  # the pods whose gates may be opened together
    last: int = 0
    counts_as_failure: bool = False
    services: tuple[str, ...] = ("train-1", "train-2")


ALL = frozenset(["p0", "p1"])
FAILED = incarnation(condition="Failed", message="Job has reached the specified backoff limit")

STATES = [
    # Nothing stands.
    State("no GPUs for it", JobPhase.WAITING, desired=None),
    State("its first start", JobPhase.CREATING, (CreateIncarnation,)),
    State("a restart", JobPhase.CREATING, (CreateIncarnation,), last=4),
    State("old pods still hold GPUs", JobPhase.STOPPING, pods=[running(0, deleting=True)]),
    State("and nothing is planned", JobPhase.STOPPING, desired=None, pods=[running(0, deleting=True)]),
    State("the old Job is on its way out", JobPhase.STOPPING, incarnations=[incarnation(deleting=True)]),
    State("finished pods hold nothing", JobPhase.CREATING, (CreateIncarnation,), pods=[ended(0, "Succeeded")]),
    State(
        "a deletion of its Job has left its pods behind",
        JobPhase.STOPPING,
        (RemovePods,),
        pods=[left_behind(0), running(1, deleting=True)],
    ),
    State("and they have ended, and nothing is planned", JobPhase.STOPPING, (RemovePods,), None, pods=[left_behind(0)]),
    State("and they leave", JobPhase.STOPPING, pods=[left_behind(0, deleting=True)]),
    # On its way up.
    State("no pods yet", JobPhase.CREATING, incarnations=[incarnation()]),
    State("one pod of two", JobPhase.CREATING, incarnations=[incarnation()], pods=[gated(0)]),
    State(
        "all pods wait for their watts",
        JobPhase.GATED,
        incarnations=[incarnation()],
        pods=[gated(0), gated(1)],
        gates=ALL,
        last=1,
    ),
    State("its number is not recorded", JobPhase.GATED, incarnations=[incarnation()], pods=[gated(0), gated(1)]),
    State(
        "one gate was opened before a crash",
        JobPhase.GATED,
        incarnations=[incarnation()],
        pods=[running(0), gated(1)],
        gates=frozenset(["p1"]),
        last=1,
    ),
    State(
        "a rank outside the incarnation never starts",
        JobPhase.GATED,
        incarnations=[incarnation()],
        pods=[gated(0), gated(5)],
        last=1,
    ),
    State("gates open", JobPhase.STARTING, incarnations=[incarnation()], pods=[running(0), running(1, ready=False)]),
    State("all ready", JobPhase.RUNNING, incarnations=[incarnation()], pods=[running(0), running(1)]),
    State("one rank is done", JobPhase.RUNNING, incarnations=[incarnation()], pods=[ended(0, "Succeeded"), running(1)]),
    # A pod replaced by the Job's controller.
    State(
        "a pod is leaving, its successor has yet to come",
        JobPhase.CREATING,
        incarnations=[incarnation()],
        pods=[running(0), running(1, deleting=True)],
    ),
    State(
        "its successor waits for the watts",
        JobPhase.GATED,
        incarnations=[incarnation()],
        pods=[running(0), running(1, deleting=True), gated(1, name="p1-again")],
        gates=frozenset(["p1-again"]),
        last=1,
    ),
    # Elsewhere, or nowhere.
    State(
        "it is to move",
        JobPhase.STOPPING,
        (StopIncarnation,),
        desired=(B, ("c", 4)),
        incarnations=[incarnation()],
        pods=[running(0), running(1)],
    ),
    State(
        "the ranks are to change places",
        JobPhase.STOPPING,
        (StopIncarnation,),
        desired=(B, A),
        incarnations=[incarnation()],
        pods=[running(0), running(1)],
    ),
    State(
        "it is to pause",
        JobPhase.STOPPING,
        (StopIncarnation,),
        desired=None,
        incarnations=[incarnation()],
        pods=[running(0), running(1)],
    ),
    State(
        "it is to move before it has started",
        JobPhase.STOPPING,
        (StopIncarnation,),
        desired=(B,),
        incarnations=[incarnation()],
        pods=[gated(0), gated(1)],
    ),
    # The end.
    State("complete", JobPhase.COMPLETE, incarnations=[incarnation(condition="Complete")]),
    State(
        "complete, and paused",
        JobPhase.COMPLETE,
        desired=None,
        incarnations=[incarnation(condition="SuccessCriteriaMet")],
    ),
    State(
        "a crash",
        JobPhase.FAILED,
        (StopIncarnation,),
        incarnations=[FAILED],
        pods=[ended(0, "Failed", 1), ended(1, "Failed", 143)],
        counts_as_failure=True,
    ),
    State(
        "out of memory",
        JobPhase.FAILED,
        (StopIncarnation,),
        incarnations=[FAILED],
        pods=[ended(0, "Failed", 137)],
        counts_as_failure=True,
    ),
    State(
        "a pod that could not even start",
        JobPhase.FAILED,
        (StopIncarnation,),
        incarnations=[FAILED],
        pods=[ended(0, "Failed", None)],
    ),
    State(
        "a program that ends as if it had been told to",
        JobPhase.FAILED,
        (StopIncarnation,),
        incarnations=[FAILED],
        pods=[ended(0, "Failed", 143), ended(1, "Failed", 143)],
        counts_as_failure=True,
    ),
    State(
        "its Service is not there yet",
        JobPhase.GATED,
        (CreateService,),
        incarnations=[incarnation()],
        pods=[gated(0), gated(1)],
        last=1,
        services=(),
    ),
    State(
        "somebody deleted its Service",
        JobPhase.RUNNING,
        (CreateService,),
        incarnations=[incarnation()],
        pods=[running(0), running(1)],
        services=("train-2",),
    ),
    State("what has failed needs no Service", JobPhase.FAILED, (StopIncarnation,), incarnations=[FAILED], services=()),
    State("somebody deleted its pods", JobPhase.FAILED, (StopIncarnation,), incarnations=[FAILED]),
    State(
        "one rank failed, the others are being ended",
        JobPhase.STOPPING,
        incarnations=[incarnation(condition="FailureTarget")],
        pods=[ended(0, "Failed", 1), running(1, deleting=True)],
    ),
    State(
        "a drained pod has yet to say how it ended",
        JobPhase.STOPPING,
        incarnations=[incarnation(condition="FailureTarget")],
        pods=[running(0, deleting=True), running(1, deleting=True)],
    ),
    State(
        "failed and not wanted any more",
        JobPhase.FAILED,
        (StopIncarnation,),
        desired=None,
        incarnations=[FAILED],
        pods=[ended(0, "Failed", 2)],
        counts_as_failure=True,
    ),
    State(
        "a pod was drained and has ended, and the job is planned elsewhere before its Job has failed",
        JobPhase.STOPPING,
        desired=(("c", 4),),
        incarnations=[incarnation()],
        pods=[ended(0, "Failed", 143)],
    ),
    State(
        "the node of a pod is gone, and the job is planned elsewhere",
        JobPhase.STOPPING,
        (StopIncarnation,),
        desired=(("c", 4),),
        incarnations=[incarnation()],
        pods=[replace(ended(0, "Failed"), disruption=Obstacle(NODE_GONE, "PodGC: node no longer exists"))],
    ),
    State(
        "a pod was drained, and nothing is planned",
        JobPhase.STOPPING,
        (StopIncarnation,),
        desired=None,
        incarnations=[incarnation()],
        pods=[ended(0, "Failed", 143)],
    ),
    # Several incarnations.
    State(
        "an older incarnation still stands",
        JobPhase.RUNNING,
        (StopIncarnation,),
        incarnations=[incarnation(2), incarnation(1)],
        pods=[running(0, 2), running(1, 2)],
    ),
    State(
        "the newest is complete",
        JobPhase.COMPLETE,
        (StopIncarnation,),
        incarnations=[incarnation(1), incarnation(2, condition="Complete")],
    ),
    State(
        "the newest is on its way out, the one before still stands",
        JobPhase.RUNNING,
        incarnations=[incarnation(1), incarnation(2, deleting=True)],
        pods=[running(0), running(1)],
    ),
    State(
        "an older one's failure is not the newest one's",
        JobPhase.RUNNING,
        (StopIncarnation,),
        incarnations=[FAILED, incarnation(2)],
        pods=[ended(0, "Failed", 1), running(0, 2), running(1, 2)],
    ),
]


def step_of(state: State) -> JobStep:
    return next_step(
        job_uid=UID,
        desired=state.desired,
        last_incarnation=state.last,
        incarnations=state.incarnations,
        pods=state.pods,
        stop_reason="the plan says so",
        services=state.services,
    )


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.what)
def test_step(state: State) -> None:
    step = step_of(state)
    assert step.phase == state.phase
    assert tuple(type(action) for action in step.actions) == state.actions
    assert frozenset(pod.name for pod, _ in (step.gates.pods if step.gates else ())) == state.gates
    assert step.counts_as_failure == state.counts_as_failure
    # Nothing starts while anything of a former start may still hold a GPU.
    if any(isinstance(action, CreateIncarnation) for action in step.actions):
        assert not any(not pod.finished for pod in state.pods)
    assert step_of(state) == step


def test_the_order_in_which_objects_are_listed_does_not_matter() -> None:
    for state in STATES:
        turned = State(
            state.what,
            state.phase,
            state.actions,
            state.desired,
            list(reversed(state.incarnations)),
            list(reversed(state.pods)),
            state.gates,
            state.last,
        )
        first, second = step_of(state), step_of(turned)
        assert (first.phase, first.current, first.ending) == (second.phase, second.current, second.ending)


@pytest.mark.parametrize(
    ("last", "incarnations", "pods", "number"),
    [
        (0, [], [], 1),
        (3, [], [], 4),
        (1, [], [ended(0, "Succeeded", number=2)], 3),  # the status was never written, but its pods are there
    ],
)
def test_no_number_is_used_twice(
    last: int, incarnations: list[IncarnationView], pods: list[PodView], number: int
) -> None:
    step = step_of(State("", JobPhase.CREATING, last=last, incarnations=incarnations, pods=pods))
    assert step.actions == (CreateIncarnation(UID, number, (A, B)),)


def test_gates_are_opened_towards_the_ranks_nodes() -> None:
    gates = step_of(State("", JobPhase.GATED, incarnations=[incarnation()], pods=[gated(1), gated(0)], last=1)).gates
    assert gates is not None
    assert {pod.name: node for pod, node in gates.pods} == {"p0": "a", "p1": "b"}


def test_stops_say_why() -> None:
    moving = step_of(State("", JobPhase.STOPPING, desired=(B,), incarnations=[incarnation(1), incarnation(2)]))
    assert [action.reason for action in moving.actions if isinstance(action, StopIncarnation)] == [
        "superseded by a newer incarnation",
        "the plan says so",
    ]


@pytest.mark.parametrize(
    ("pods", "words"),
    [
        ([ended(0, "Failed", 1), ended(1, "Failed", 137)], "pod p0 on a ended with exit code 1"),
        ([ended(0, "Failed", 143), ended(1, "Failed", 2)], "pod p1 on b ended with exit code 2"),
        ([ended(0, "Failed", None)], "pod p0 on a was disrupted (NeverRan): none of its containers ever ran"),
        ([], "its pods were deleted"),
    ],
)
def test_an_end_is_told_by_the_rank_that_decided(pods: list[PodView], words: str) -> None:
    ending = step_of(State("", JobPhase.FAILED, incarnations=[FAILED], pods=pods)).ending
    assert ending is not None
    assert ending.words == words


def test_gates_stay_closed_under_a_number_that_only_this_operator_knows() -> None:
    step = next_step(
        job_uid=UID,
        desired=(A, B),
        last_incarnation=1,
        recorded_incarnation=0,
        incarnations=[incarnation()],
        pods=[gated(0), gated(1)],
        stop_reason="",
        services=["train-1"],
    )
    assert (step.phase, step.gates) == (JobPhase.GATED, None)


def test_pods_are_bound_once_each_has_its_node() -> None:
    waiting = pod_view("p1", uid=UID, index=1, gpus=4)
    for pods, bound in (([running(0, ready=False), waiting], False), ([running(0), running(1, ready=False)], True)):
        step = step_of(State("", JobPhase.STARTING, incarnations=[incarnation()], pods=pods))
        assert (step.phase, step.bound) == (JobPhase.STARTING, bound)


def test_ranks_have_their_nodes() -> None:
    view = incarnation()
    assert [view.node_of(gated(index)) for index in (0, 1)] == ["a", "b"]
    assert view.node_of(gated(2)) is None
    assert view.node_of(running_pod("x", "a", uid=UID, index=-1)) is None
