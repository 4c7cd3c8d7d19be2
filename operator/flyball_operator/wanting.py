"""From the plan to what each node should be granted while pods come and go.

The plan says where the cluster should end; in between, a pod that is to leave still holds its GPUs and one that is to
come does not yet. A leaving pod is held at the smallest limit at once, and a coming one is given its watts only when the
GPUs it needs are free on every one of its nodes: so that the sum over a node never passes what the plan gives it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from flyball_planner.cluster import JobDecision

from flyball_operator.grants import WantedGrant
from flyball_operator.hold import DeviceGrant, Hold, JobGrant
from flyball_operator.incarnations import node_of
from flyball_operator.picture import MILLIWATTS, NodePicture
from flyball_operator.workloads import IncarnationView, PodView

# "No bound": above any clock that a GPU has; the agent clips it to what the device supports.
ANY_CLOCK_MEGAHERTZ = 10_000


@dataclass(frozen=True, slots=True)
class NodeRules:
    """What the caps over one node ask of its GPUs beside their watts."""

    limit_foreign_pods: bool = False
    failsafe_milliwatts: int = 0


def planned_limit_milliwatts(decision: JobDecision, floor_milliwatts: int) -> int:
    """The plan's power limit as it is sent: whole milliwatts, rounded down so that a sum never passes the plan's."""
    assert decision.allocation is not None  # noqa: S101 - asked only for placed jobs
    return max(floor_milliwatts, int(decision.allocation.power_limit_watts * MILLIWATTS + 1e-6))


def _coming(
    pictures: Mapping[str, NodePicture],
    decisions: Mapping[str, JobDecision],
    incarnations: Iterable[IncarnationView],
    pods_of: Mapping[str, Sequence[PodView]],
    free: dict[str, int],
) -> dict[str, list[PodView]]:
    """Gated pods, by node, of those incarnations that the plan wants and that find room on every node; takes the room.

    Nodes that cannot take pods now have no room: a rank that cannot start would hold the others' GPUs for nothing.
    """
    coming: dict[str, list[PodView]] = {}
    for incarnation in sorted(incarnations, key=lambda item: (item.job_uid, item.incarnation)):
        decision = decisions.get(incarnation.job_uid)
        if incarnation.deleting or decision is None or decision.allocation is None:
            continue
        if decision.allocation.nodes != incarnation.nodes:
            continue
        gated = [
            (pod, node)
            for pod in pods_of.get(incarnation.job_uid, ())
            if pod.incarnation == incarnation.incarnation
            and pod.gated
            and not pod.deleting
            and (node := node_of(incarnation, pod)) is not None
        ]
        if not gated or any(
            node not in pictures or not pictures[node].schedulable or free[node] < pod.gpus for pod, node in gated
        ):
            continue
        for pod, node in gated:
            free[node] -= pod.gpus
            coming.setdefault(node, []).append(pod)
    return coming


def _present(
    pods: Iterable[PodView], incarnations: Mapping[tuple[str, int], IncarnationView]
) -> dict[str, list[PodView]]:
    """Pods of jobs that hold GPUs, by node: bound ones, and those with an open gate that the scheduler is about to bind.

    Were the latter left out, their watts and GPUs would be free for as long as the scheduler takes.
    """
    present: dict[str, list[PodView]] = {}
    for pod in pods:
        node: str | None = pod.node
        if not node and not pod.gated and not pod.deleting:
            incarnation = incarnations.get((pod.job_uid, pod.incarnation))
            node = None if incarnation is None else node_of(incarnation, pod)
        if node:
            present.setdefault(node, []).append(pod)
    return present


def wanted_grants(
    pictures: Mapping[str, NodePicture],
    decisions: Mapping[str, JobDecision],
    incarnations: Sequence[IncarnationView],
    pods: Iterable[PodView],
    rules: Mapping[str, NodeRules],
    lease_seconds: int,
    guard_fraction: float,
) -> list[WantedGrant]:
    """What every node should be granted now, in the order of their names."""
    pods = [pod for pod in pods if pod.job_uid and not pod.finished]
    pods_of: dict[str, list[PodView]] = {}
    for pod in pods:
        pods_of.setdefault(pod.job_uid, []).append(pod)
    standing = {(item.job_uid, item.incarnation): item for item in incarnations if not item.deleting}
    bound = _present(pods, standing)
    free = {
        name: picture.gpus - picture.foreign_gpus - picture.lost_gpus - sum(pod.gpus for pod in bound.get(name, ()))
        for name, picture in pictures.items()
    }
    coming = _coming(pictures, decisions, incarnations, pods_of, free)

    def runs_as_planned(pod: PodView) -> bool:
        decision, incarnation = decisions.get(pod.job_uid), standing.get((pod.job_uid, pod.incarnation))
        return (
            decision is not None
            and decision.allocation is not None
            and not pod.deleting
            and incarnation is not None
            and incarnation.nodes == decision.allocation.nodes
        )

    wanted = []
    for name, picture in sorted(pictures.items()):
        floor = _smallest_limit_milliwatts(picture)
        entries: dict[str, tuple[JobGrant, Hold]] = {}
        for pod in sorted((*bound.get(name, ()), *coming.get(name, ())), key=lambda item: (item.gated, item.name)):
            if pod.job_uid in entries or pod.gpus == 0:
                continue  # a replaced pod waits, gated, until the one before it has left
            limit, expected, clock = floor, floor, ANY_CLOCK_MEGAHERTZ
            if picture.commandable and runs_as_planned(pod):
                decision = decisions[pod.job_uid]
                assert decision.allocation is not None  # noqa: S101 - runs_as_planned has looked
                limit = planned_limit_milliwatts(decision, floor)
                guarded = decision.predicted_gpu_watts * (1.0 + guard_fraction) * MILLIWATTS
                expected = min(limit, round(guarded))
                clock = decision.allocation.clock_megahertz
            entries[pod.job_uid] = (
                JobGrant(
                    namespace=pod.namespace,
                    name=pod.job_name,
                    uid=pod.job_uid,
                    incarnation=pod.incarnation,
                    pod_name=pod.name,
                    gpus=pod.gpus,
                    power_limit_milliwatts=limit,
                    clock_min_megahertz=0,
                    clock_max_megahertz=clock,
                ),
                Hold(limit * pod.gpus, expected * pod.gpus),
            )
        ordered = [entries[uid] for uid in sorted(entries)]
        wanted.append(_node_grant(picture, ordered, rules.get(name, NodeRules()), lease_seconds))
    return wanted


def _node_grant(
    picture: NodePicture, entries: list[tuple[JobGrant, Hold]], rules: NodeRules, lease_seconds: int
) -> WantedGrant:
    floor = picture.floor_milliwatts
    foreign_each = floor if rules.limit_foreign_pods else picture.default_milliwatts
    # A lost GPU comes back from its reset at its default limit, whatever it was told before.
    reserved = picture.foreign_gpus * foreign_each + picture.lost_gpus * picture.default_milliwatts
    idle = max(0, picture.gpus - picture.foreign_gpus - picture.lost_gpus - sum(job.gpus for job, _ in entries))
    idle_draw = floor if picture.gpu_model is None else round(picture.gpu_model.idle_power_watts * MILLIWATTS)
    return WantedGrant(
        node=picture.name,
        devices=DeviceGrant(
            idle_power_limit_milliwatts=0,
            foreign_power_limit_milliwatts=_smallest_limit_milliwatts(picture) if rules.limit_foreign_pods else 0,
            foreign_gpus=picture.foreign_gpus,
            failsafe_power_limit_milliwatts=rules.failsafe_milliwatts,
        ),
        lease_seconds=lease_seconds,
        jobs=tuple(job for job, _ in entries),
        job_holds=tuple(hold for _, hold in entries),
        rest=Hold(reserved + idle * floor, reserved + idle * min(floor, idle_draw)),
        floor_milliwatts=_smallest_limit_milliwatts(picture),
    )


def _smallest_limit_milliwatts(picture: NodePicture) -> int:
    """A pod's smallest limit; 1 where nobody knows it (0 would be no limit): the agent then sets the smallest there is."""
    return max(1, picture.floor_milliwatts)
