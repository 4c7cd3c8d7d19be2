"""What keeps a planned job from running: one word out of a closed list, and the sentence of the component that says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType

from flyball_api.workloads import Obstacle, PodView

from flyball_operator.jobs.runs.lifecycle import (
    Action,
    CreateIncarnation,
    CreateService,
    JobPhase,
    JobStep,
    OpenGates,
    RemovePods,
    StopIncarnation,
)
from flyball_operator.power.nodes.info import NodeInfo

# Reasons of the condition Placed and of PodsReady; docs/api.md lists the same.
PLACED_OBSTACLES = frozenset(
    {
        "QuotaExceeded",
        "PodSecurityViolated",
        "ServiceAccountNotFound",
        "PodsRefused",
        "JobRefused",
        "ServiceRefused",
        "GatesRefused",
        "StopRefused",
        "Unschedulable",
        "SchedulingGated",
    }
)
READY_OBSTACLES = frozenset({"ImagePullFailed", "ContainerRefused", "NodeLost"})

_IMAGE_REASONS = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
_REFUSED_ACTIONS: Mapping[type[Action], str] = {
    CreateIncarnation: "JobRefused",
    CreateService: "ServiceRefused",
    OpenGates: "GatesRefused",
    StopIncarnation: "StopRefused",
    RemovePods: "StopRefused",
}


class NodeLoss(Enum):
    """Why it cannot be known what runs on a node."""

    NOT_READY = auto()
    GONE = auto()  # its Node object was deleted


NO_NODES: Mapping[str, NodeLoss] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class StartObstacle:
    """Why a job's pods are not placed (`before_placement`) or, on their nodes, are not ready."""

    reason: str
    message: str

    @property
    def node_lost(self) -> bool:
        """The pod's node does not report: whether the pod still runs is not known."""
        return self.reason == "NodeLost"

    @property
    def before_placement(self) -> bool:
        return self.reason in PLACED_OBSTACLES


def lost_nodes_of(pods: Sequence[PodView], nodes: Mapping[str, NodeInfo]) -> dict[str, NodeLoss]:
    """The nodes of these pods whose kubelets no longer report, by name; nodes without GPUs are not among them."""
    lost = {}
    for pod in pods:
        info = nodes.get(pod.node) if pod.node else None
        if info is not None and (info.node is None or not info.node.ready):
            lost[info.name] = NodeLoss.GONE if info.node is None else NodeLoss.NOT_READY
    return lost


def refused_action(action: type[Action], message: str) -> StartObstacle:
    """The API server has refused an action with these words."""
    return StartObstacle(_reason(message, _REFUSED_ACTIONS[action]), message)


def start_obstacle(
    step: JobStep, pods: Sequence[PodView], pods_refused: str, lost_nodes: Mapping[str, NodeLoss] = NO_NODES
) -> StartObstacle | None:
    """What keeps the current incarnation from running, or the one before from leaving; None where nothing is known to.

    `pods` are the job's, `pods_refused` the Job controller's last word on pods that it could not make (empty: none), and
    `lost_nodes` the nodes from whose kubelets nobody hears.
    """
    if step.phase in (JobPhase.STOPPING, JobPhase.STARTING, JobPhase.RUNNING):
        # Ready as its kubelet said last: nobody knows whether such a pod runs.
        lost = [pod for pod in pods if pod.node in lost_nodes and not pod.finished]
        if lost:
            first = min(lost, key=lambda pod: (not pod.deleting, pod.index))
            return _on_lost_node(first, len(lost) - 1, lost_nodes[first.node])
    if step.current is None:
        return None
    if step.phase == JobPhase.CREATING:
        return StartObstacle(_reason(pods_refused, "PodsRefused"), pods_refused) if pods_refused else None
    if step.phase != JobPhase.STARTING:
        return None
    own = [
        pod
        for pod in pods
        if pod.incarnation == step.current.incarnation and not pod.ready and not pod.finished and not pod.deleting
    ]
    stuck = [(pod, pod.unscheduled) for pod in own if not pod.node and pod.unscheduled is not None]
    if stuck:
        reason = "SchedulingGated" if stuck[0][1].reason == "SchedulingGated" else "Unschedulable"
        return StartObstacle(reason, _message_of(stuck))
    waiting = [(pod, pod.waiting) for pod in own if pod.node and pod.waiting is not None]
    if waiting:
        reason = "ImagePullFailed" if waiting[0][1].reason in _IMAGE_REASONS else "ContainerRefused"
        return StartObstacle(reason, _message_of(waiting))
    return None


def _on_lost_node(pod: PodView, others: int, loss: NodeLoss) -> StartObstacle:
    more = f" (and {others} more pods)" if others else ""
    words = f"pod {pod.name}{more} is on node {pod.node}, which is not ready; the job leaves it after a while"
    if loss is NodeLoss.GONE:
        words = (
            f"pod {pod.name}{more} is on node {pod.node}, which is gone; Kubernetes deletes the pods of such a node "
        )
        words += "within a minute or so"
    elif pod.deleting:
        words = (
            f"pod {pod.name}{more} cannot end: its node {pod.node} is not ready. Once that machine is off for certain: "
            f"kubectl taint nodes {pod.node} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
        )
    return StartObstacle("NodeLost", words)


def _message_of(stuck: Sequence[tuple[PodView, Obstacle]]) -> str:
    pod, obstacle = min(stuck, key=lambda item: item[0].index)
    where = f" on {pod.node}" if pod.node else ""
    others = f" (and {len(stuck) - 1} more pods)" if len(stuck) > 1 else ""
    named = "" if obstacle.reason in ("Unschedulable", "SchedulingGated") else f"{obstacle.reason}: "
    return f"pod {pod.name}{where}: {named}{obstacle.message}{others}"


def _reason(message: str, otherwise: str) -> str:
    """The reason by the API server's words, which are all that an Event or a refused request has."""
    if "exceeded quota" in message or "failed quota" in message:
        return "QuotaExceeded"
    if "violates PodSecurity" in message:
        return "PodSecurityViolated"
    if "service account" in message and "not found" in message:
        return "ServiceAccountNotFound"
    return otherwise
