"""Which pods and batch Jobs belong to Flyball's jobs: by what controls them, as labels are anybody's to set.

A pod is controlled by its batch Job, and that by its EnergyAwareJob; owner references name UIDs, and what refers to an
object that does not exist is removed by the garbage collector.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flyball_api.energy_aware_job import EnergyAwareJob
from flyball_api.workloads import IncarnationView, PodView

# What a grant's entry can carry (crds/gpunodes.yaml).
MAX_INCARNATION = 2**31 - 1


def is_of_living_job(incarnation: IncarnationView, jobs: Mapping[str, EnergyAwareJob]) -> bool:
    """Whether an EnergyAwareJob of `jobs` (by UID), in the same namespace, controls the batch Job, whose labels agree."""
    job = jobs.get(incarnation.controller_uid)
    return (
        job is not None
        and (job.namespace, job.name, job.uid) == (incarnation.namespace, incarnation.job_name, incarnation.job_uid)
        and incarnation.incarnation <= MAX_INCARNATION
    )


def nodes_of_job(
    job: EnergyAwareJob, incarnations: Iterable[IncarnationView], pods: Iterable[PodView]
) -> frozenset[str]:
    """The nodes that may report of a job: where pods of its are or were placed, as far as anybody but their agents says.

    Its incarnations and pods go before the last report of them comes: what its status has of an allocation, and of energy
    that was reported from there while they were known, stays.
    """
    allocation, energy = job.status.allocation, job.status.energy
    placed = {node for incarnation in incarnations for node, _ in incarnation.nodes}
    bound = {pod.node for pod in pods if pod.node}
    last = set() if allocation is None else {node.name for node in allocation.nodes}
    known = set() if energy is None else {entry.key.partition("/")[2] for entry in energy.incarnations}
    return frozenset(placed | bound | last | known)


def highest_incarnation(job: EnergyAwareJob, incarnations: Iterable[IncarnationView], pods: Iterable[PodView]) -> int:
    """The number of a job's last incarnation by its Jobs, pods and status; agents' reports count once they are in that."""
    energy = job.status.energy
    known = () if energy is None else (entry.key.partition("/")[0] for entry in energy.incarnations)
    return max(
        [
            job.last_incarnation,
            *(item.incarnation for item in incarnations),
            *(pod.incarnation for pod in pods),
            *(int(number) for number in known if number.isdecimal()),
        ]
    )


class PodOwners:
    """Remembers which job each pod was proven to belong to: what it leaves behind is still its own.

    A deleted Job is gone from the API server long before its pods have left their GPUs.
    """

    def __init__(self) -> None:
        self._proven: dict[str, tuple[str, str, int]] = {}  # by the pod's UID: the job's name, its UID, the incarnation

    def attribute(
        self,
        pods: Iterable[PodView],
        jobs: Mapping[str, EnergyAwareJob],
        incarnations: Mapping[str, IncarnationView],
    ) -> list[PodView]:
        """The pods, each with the job that it belongs to or as a foreign one; `incarnations` are living jobs', by UID."""
        proven: dict[str, tuple[str, str, int]] = {}
        attributed = []
        for pod in pods:
            incarnation = incarnations.get(pod.controller_uid)
            if incarnation is not None and incarnation.namespace == pod.namespace:
                pod = incarnation.as_own(pod)
            elif self._proven.get(pod.uid) != (pod.job_name, pod.job_uid, pod.incarnation) and not _leaves(pod, jobs):
                attributed.append(pod.of_nobody())
                continue
            proven[pod.uid] = (pod.job_name, pod.job_uid, pod.incarnation)
            attributed.append(pod)
        self._proven = proven
        return attributed


def _leaves(pod: PodView, jobs: Mapping[str, EnergyAwareJob]) -> bool:
    """Whether this is a pod that leaves after its batch Job, of a living job in its own namespace.

    An operator that has just started must not take its GPUs for free, nor start the job anew beside it. Labels suffice: a
    leaving pod gets the smallest limits only.
    """
    job = jobs.get(pod.job_uid)
    return (
        pod.deleting
        and pod.controller_uid != ""
        and pod.incarnation <= MAX_INCARNATION
        and job is not None
        and (job.namespace, job.name) == (pod.namespace, pod.job_name)
    )
