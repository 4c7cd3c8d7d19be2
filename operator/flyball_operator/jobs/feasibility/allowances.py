"""What every job that wants GPUs may have at most: by the nodes that can take its pods, and by its namespace's quotas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime

from flyball_api.energy_aware_job import EnergyAwareJob
from flyball_api.values.units import held_watts
from flyball_api.workloads import PodView
from flyball_planner.models.gpu import GpuModel, catalogue, gpu_model_for

from flyball_operator.cluster.state import ClusterState
from flyball_operator.jobs.feasibility.fitting import Fit, Fitting, held_gpus
from flyball_operator.jobs.feasibility.quotas import GpuWatts, energy_quota_bounds, resource_quota_bounds
from flyball_operator.power.nodes.info import NodeInfo

# Until those have their turn whose demands no node has been looked at for yet.
NEXT_TURN_SECONDS = 0.5
# Of all nodes: what no more of them report is a few nodes' word.
FEW_SHARE = 1 / 3


class Allowances:
    """Works it out in each cycle; `gpu_resources` names the extended resources by which GPUs are counted."""

    def __init__(self, gpu_resources: Collection[str]) -> None:
        self._gpu_resources = gpu_resources
        self._fitting = Fitting()

    @property
    def next_seconds(self) -> float:
        """After how long there is more to find out, by time alone."""
        return NEXT_TURN_SECONDS if self._fitting.outstanding else float("inf")

    def fits(
        self,
        cluster: ClusterState,
        nodes: Mapping[str, NodeInfo],
        wanting: Sequence[EnergyAwareJob],
        resized: Callable[[EnergyAwareJob], datetime | None],
        spent: Mapping[str, str],
        now: datetime,
    ) -> dict[str, Fit]:
        """What each of `wanting` may have, by uid.

        `resized` is when a job last got another size, `spent` has the words for quotas whose energy is used up.
        """
        foreign_gpus: dict[tuple[str, str], int] = {}
        if cluster.gpu_quotas:
            # A pod is counted under the one resource that there is, or else under each: a quota is then met too early.
            for pod in cluster.pods:
                if not pod.job_uid and not pod.finished:
                    for name in self._gpu_resources:
                        foreign_gpus[pod.namespace, name] = foreign_gpus.get((pod.namespace, name), 0) + pod.gpus
        energy_bounds = {}
        if cluster.energy_quotas:
            pods_of = {
                job.uid: [pod for pod in cluster.pods_of.get(job.uid, ()) if not pod.finished] for job in wanting
            }
            energy_bounds = energy_quota_bounds(
                wanting,
                cluster.energy_quotas,
                {uid: sum(pod.gpus for pod in pods) for uid, pods in pods_of.items()},
                _fixed(wanting, pods_of, resized, now),
                _gpu_watts(nodes.values()),
                spent,
            )
        resource_bounds = resource_quota_bounds(wanting, cluster.gpu_quotas, foreign_gpus)
        return self._fitting.fits(wanting, nodes, cluster.pods_of, cluster.used, resource_bounds, energy_bounds)


def _fixed(
    jobs: Iterable[EnergyAwareJob],
    pods_of: Mapping[str, Sequence[PodView]],
    resized: Callable[[EnergyAwareJob], datetime | None],
    now: datetime,
) -> dict[str, int]:
    """The sizes of the jobs that cannot change theirs now, by uid: the plan leaves them as they are."""
    found = {}
    for job in jobs:
        last, pause = resized(job), job.spec.elasticity.min_seconds_between_resizes
        settled = last is None or (now - last).total_seconds() >= pause
        size = held_gpus(pods_of[job.uid])
        if size and not (job.elastic and settled and all(pod.ready for pod in pods_of[job.uid])):
            found[job.uid] = size
    return found


def _gpu_watts(nodes: Iterable[NodeInfo]) -> GpuWatts | None:
    """One GPU's smallest and default power limit, whichever it is; None where no GPU is known.

    Of each product those that most nodes report, and of one that few nodes have no more than what is known of such GPUs, or
    of any: jobs are stopped by quotas, and one node's report must not stop those of all.
    """
    of_products: dict[str, Counter[GpuWatts]] = {}
    for info in nodes:
        if info.gpu_model is not None:
            of_products.setdefault(info.gpu_model.product, Counter())[_watts_of(info.gpu_model)] += 1
    if not of_products:
        return None
    few = FEW_SHARE * sum(reports.total() for reports in of_products.values())
    usual = []
    for product, reports in of_products.items():
        most = max((number, watts) for watts, number in reports.items())[1]
        usual.append(most if reports.total() > few else _believable(most, product))
    return GpuWatts(max(watts.smallest for watts in usual), max(watts.default for watts in usual))


def _watts_of(model: GpuModel) -> GpuWatts:
    return GpuWatts(held_watts(model.min_power_limit_watts), held_watts(model.default_power_limit_watts))


def _believable(watts: GpuWatts, product: str) -> GpuWatts:
    """The watts, at most those that GPUs of that product are known to have, or any where nothing is known of them."""
    model = gpu_model_for(product)
    known = [_watts_of(each) for each in (catalogue().values() if model is None else (model,))]
    return GpuWatts(
        min(watts.smallest, max(each.smallest for each in known)),
        min(watts.default, max(each.default for each in known)),
    )
