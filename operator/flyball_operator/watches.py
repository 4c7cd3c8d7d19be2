"""Everything the operator watches, as informers over one session, and one consistent view of it per cycle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import msgspec
from flyball_api.brake_acknowledgement import BrakeAcknowledgement, read_brake_acknowledgement
from flyball_api.energy_aware_job import EnergyAwareJob, read_energy_aware_job
from flyball_api.energy_quota import EnergyQuota, read_energy_quota
from flyball_api.gpu_node import GpuNode, PodReport, read_gpu_node
from flyball_api.names import LABEL_ADMISSION, LABEL_JOB_UID, LABEL_MODE, MODE_OBSERVE
from flyball_api.power_brake import PowerBrake, read_power_brake
from flyball_api.power_cap import PowerCap, read_power_cap
from flyball_api.workloads import (
    NO_NEEDS,
    PODS_REFUSED_SELECTOR,
    GpuQuota,
    IncarnationView,
    Needs,
    NodeView,
    PlainJob,
    PodsRefused,
    PodView,
    read_gpu_quotas,
    read_incarnation,
    read_node,
    read_plain_job,
    read_pod,
    read_pods_refused,
    read_service,
)
from flyball_kube.informer import Informer
from flyball_kube.logs import get_logger
from flyball_kube.resources import (
    BRAKE_ACKNOWLEDGEMENTS,
    CORE_EVENTS,
    ENERGY_AWARE_JOBS,
    ENERGY_QUOTAS,
    GPU_NODES,
    JOBS,
    NAMESPACES,
    NODES,
    PODS,
    POWER_BRAKES,
    POWER_CAPS,
    RESOURCE_QUOTAS,
    SERVICES,
    Resource,
)
from flyball_kube.session import ApiSession, JsonObject

from flyball_operator.ownership import PodOwners, highest_incarnation, is_of_living_job, nodes_of_job

logger = get_logger(__name__)

T = TypeVar("T", EnergyAwareJob, EnergyQuota, PowerCap, GpuNode)
Watched = TypeVar("Watched")


def logging_problems(read: Callable[[Mapping[str, Any]], T]) -> Callable[[Mapping[str, Any]], T]:
    """`read`, with a log line for what of an object's status cannot be read, once for as long as it is the same."""
    logged: dict[str, tuple[str, ...]] = {}

    def reading(raw: Mapping[str, Any]) -> T:
        found = read(raw)
        key, problems = found.metadata.key, found.problems
        if problems != logged.get(key, ()):
            for problem in problems:
                logger.warning("part of an object left out", kind=raw.get("kind"), object=key, error=problem)
            logged.pop(key, None)
            if problems:
                logged[key] = problems
        return found

    return reading


@dataclass(frozen=True, slots=True)
class ClusterState:
    """What the API server has, as of one cycle; `unread` names the caps, brakes and GPUNodes that cannot be read.

    `age_seconds` is how long ago the oldest of the copies of caps, brakes, Nodes and GPUNodes was last proven fresh.
    """

    jobs: dict[str, EnergyAwareJob]  # by uid
    caps: list[PowerCap]
    gpu_nodes: dict[str, GpuNode]
    nodes: list[NodeView]
    pods: list[PodView]  # those that hold or want GPUs
    incarnations: dict[str, list[IncarnationView]]  # by the job's uid
    pods_of: dict[str, list[PodView]]  # by the job's uid
    reports_of: dict[
        str, list[tuple[str, PodReport]]
    ]  # by a living job's uid, with the node, which is one of the job's
    unread: tuple[str, ...]
    age_seconds: float
    brakes: Mapping[str, PowerBrake] = field(default_factory=dict)  # by the cap's name
    services_of: Mapping[str, Collection[str]] = field(default_factory=dict)  # their names, by the job's uid
    used: Mapping[str, Needs] = field(default_factory=dict)  # by pods that are not Flyball's, by the node's name
    gpu_quotas: Sequence[GpuQuota] = ()
    energy_quotas: Sequence[EnergyQuota] = ()
    pods_refused: Mapping[str, str] = field(default_factory=dict)  # the Job controller's words, by the batch Job's uid
    plain_jobs: Sequence[PlainJob] = ()  # batch Jobs that are let run by watts

    @property
    def wanted_gpus(self) -> int:
        """The most that all jobs together ask for."""
        return sum(job.spec.gpus.max for job in self.jobs.values() if job.wants_gpus)


def _asked_of_cap(cap: PowerCap) -> object:
    """What somebody wants of a cap; not what the operator says of it."""
    return cap.uid, cap.spec, cap.metadata.deletion_timestamp


def _asked_of_brake(brake: PowerBrake) -> object:
    """What a brake, or an emergency, asks of agents."""
    return brake.metadata.uid, brake.spec


def _drawn_by_node(node: NodeView) -> object:
    """What says of a Node that its GPUs may stand at other limits than was known, or under another cap."""
    return node.uid, node.boot_id, node.ready, node.gpus, node.hidden_gpus, node.labels


def _drawn_by_gpus(gpu_node: GpuNode) -> object:
    """What says of a GPUNode that its GPUs may stand at more than was acknowledged."""
    healthy = sum(gpu.healthy for gpu in gpu_node.gpus)
    return gpu_node.metadata.uid, gpu_node.session, gpu_node.read_back_since_milliwatts, len(gpu_node.gpus), healthy


class Watches:
    """The informers; `wake` is called at each change.

    `wake_at_once` is called instead where somebody wants another cap or brake, and `wake_soon` where a node may draw more
    than was known (None: `wake`).

    `gpu_resources` names the extended resources whose units are GPUs.

    Words for people and the bounds of namespaces are not required: no cap waits for them.
    """

    def __init__(
        self,
        session: ApiSession,
        wake: Callable[[], None],
        gpu_resources: Collection[str],
        *,
        observe_jobs: bool = False,
        wake_at_once: Callable[[], None] | None = None,
        wake_soon: Callable[[], None] | None = None,
    ) -> None:
        def on_change(key: str) -> None:
            wake()

        def on_change_of(
            what: Callable[[Watched], object],
            known: Callable[[str], Watched | None],
            other_wake: Callable[[], None] | None,
        ) -> Callable[[str], None]:
            """Wakes by `other_wake` where `what` an object says has changed, else as any change does."""
            before: dict[str, object] = {}

            def on_change(key: str) -> None:
                item = known(key)
                said = None if item is None else what(item)
                changed = said != before.pop(key, None)
                if said is not None:
                    before[key] = said
                (other_wake if changed and other_wake is not None else wake)()

            return on_change

        on_cap = on_change_of(_asked_of_cap, lambda key: self.caps.get(key), wake_at_once)
        on_brake = on_change_of(_asked_of_brake, lambda key: self.brakes.get(key), wake_at_once)
        on_node = on_change_of(_drawn_by_node, lambda key: self.nodes.get(key), wake_soon)
        on_gpu_node = on_change_of(_drawn_by_gpus, lambda key: self.gpu_nodes.get(key), wake_soon)
        self.jobs = Informer(session, ENERGY_AWARE_JOBS, logging_problems(read_energy_aware_job), on_change=on_change)
        self.caps = Informer(session, POWER_CAPS, logging_problems(read_power_cap), on_change=on_cap)
        self.brakes = Informer(session, POWER_BRAKES, read_power_brake, on_change=on_brake)
        self.brake_acknowledgements = Informer(
            session, BRAKE_ACKNOWLEDGEMENTS, read_brake_acknowledgement, on_change=on_change
        )
        self.gpu_nodes = Informer(session, GPU_NODES, logging_problems(read_gpu_node), on_change=on_gpu_node)
        self.nodes = Informer(session, NODES, partial(read_node, gpu_resources=gpu_resources), on_change=on_node)
        self.pods = Informer(session, PODS, partial(read_pod, gpu_resources=gpu_resources), on_change=on_change)
        self.incarnations = Informer(
            session, JOBS, read_incarnation, on_change=on_change, params={"labelSelector": LABEL_JOB_UID}
        )
        self.services = Informer(
            session, SERVICES, read_service, on_change=on_change, params={"labelSelector": LABEL_JOB_UID}
        )
        self.pods_refused = Informer(
            session,
            CORE_EVENTS,
            read_pods_refused,
            on_change=on_change,
            params={"fieldSelector": PODS_REFUSED_SELECTOR},
            required=False,
        )
        self.quotas = Informer(
            session,
            RESOURCE_QUOTAS,
            partial(read_gpu_quotas, gpu_resources=gpu_resources),
            on_change=on_change,
            required=False,
        )
        self.plain_jobs = Informer(
            session,
            JOBS,
            partial(read_plain_job, gpu_resources=gpu_resources),
            on_change=on_change,
            params={"labelSelector": LABEL_ADMISSION},
            required=False,
        )
        self.energy_quotas = Informer(
            session, ENERGY_QUOTAS, logging_problems(read_energy_quota), on_change=on_change, required=False
        )
        self.observed_namespaces = Informer(
            session,
            NAMESPACES,
            lambda raw: str(raw["metadata"]["name"]),
            on_change=on_change,
            params={"labelSelector": f"{LABEL_MODE}={MODE_OBSERVE}"},
            required=False,
        )
        self._of: dict[Resource, Informer[Any]] = {
            ENERGY_AWARE_JOBS: self.jobs,
            POWER_CAPS: self.caps,
            POWER_BRAKES: self.brakes,
            BRAKE_ACKNOWLEDGEMENTS: self.brake_acknowledgements,
            GPU_NODES: self.gpu_nodes,
            NODES: self.nodes,
            PODS: self.pods,
            JOBS: self.incarnations,
            SERVICES: self.services,
            CORE_EVENTS: self.pods_refused,
            RESOURCE_QUOTAS: self.quotas,
            ENERGY_QUOTAS: self.energy_quotas,
            NAMESPACES: self.observed_namespaces,
        }
        self._owners = PodOwners()
        self._observe_jobs = observe_jobs
        self._observed: dict[str, tuple[EnergyAwareJob, EnergyAwareJob]] = {}  # as read, and as observed, by uid
        self._merged: dict[str, tuple[GpuNode, BrakeAcknowledgement, GpuNode]] = {}

    def runs(self) -> list[Coroutine[Any, Any, None]]:
        """One coroutine per informer, to be run as tasks."""
        return [informer.run() for informer in (*self._of.values(), self.plain_jobs)]

    async def wait_synced(self) -> None:
        await asyncio.gather(*(informer.wait_synced() for informer in self._of.values()))

    async def refresh(self) -> None:
        """Return once everything that power depends on has been listed anew, as of a moment after this call."""
        copies = (self.nodes, self.gpu_nodes, self.caps, self.brakes, self.brake_acknowledgements)
        await asyncio.gather(*(copy.refresh() for copy in copies))

    def absorb(self, resource: Resource, raw: JsonObject) -> None:
        """Take in what a write of ours returned."""
        informer = self._of.get(resource)
        if informer is not None:
            informer.absorb(raw)

    def ages(self) -> dict[str, float]:
        """Seconds since each informer was last proven fresh, by the resource's plural name."""
        return {resource.plural: informer.age_seconds() for resource, informer in self._of.items()}

    def _acknowledged(self, view: GpuNode) -> GpuNode:
        """A GPUNode with the later of its status' acknowledgement and that of a brake; the same object for the same two."""
        brake = self.brake_acknowledgements.get(view.name)
        if brake is None:
            self._merged.pop(view.name, None)
            return view
        known = self._merged.get(view.name)
        if known is None or known[0] is not view or known[1] is not brake:
            known = self._merged[view.name] = view, brake, view.with_acknowledgement(brake.acknowledged)
        return known[2]

    def _observed_in_observed(self, jobs: Iterable[EnergyAwareJob]) -> Iterator[EnergyAwareJob]:
        """The jobs, those of observed namespaces as jobs that are only observed; the same objects for the same ones."""
        namespaces, everywhere = frozenset(self.observed_namespaces), self._observe_jobs
        known, self._observed = self._observed, {}
        for job in jobs:
            if job.observed or not (everywhere or job.namespace in namespaces):
                yield job
                continue
            before = known.get(job.uid)
            observed = before[1] if before is not None and before[0] is job else replace(job, observed=True)
            self._observed[job.uid] = job, observed
            yield observed

    def cluster(self) -> ClusterState:
        """One view of all of them; nothing in it changes afterwards."""
        energy_quotas = sorted(self.energy_quotas, key=lambda quota: quota.metadata.key)
        as_allowed = within_priorities(self.jobs, energy_quotas)
        jobs = {job.uid: job for job in self._observed_in_observed(as_allowed)}
        by_uid = {item.uid: item for item in self.incarnations if is_of_living_job(item, jobs)}
        incarnations: dict[str, list[IncarnationView]] = {}
        for incarnation in by_uid.values():
            incarnations.setdefault(incarnation.job_uid, []).append(incarnation)
        pods = self._owners.attributed((pod for pod in self.pods if pod.gpus or pod.job_uid), jobs, by_uid)
        pods_of: dict[str, list[PodView]] = {}
        for pod in pods:
            if pod.job_uid:
                pods_of.setdefault(pod.job_uid, []).append(pod)
        services_of: dict[str, set[str]] = {}
        for service in self.services:
            job = jobs.get(service.job_uid)
            if job is not None and job.namespace == service.namespace and not service.deleting:
                services_of.setdefault(job.uid, set()).add(service.name)
        reports_of: dict[str, list[tuple[str, PodReport]]] = {}
        gpu_nodes = {view.name: self._acknowledged(view) for view in self.gpu_nodes}
        nodes_of: dict[str, frozenset[str]] = {}
        highest: dict[str, int] = {}  # incarnation that there has been
        for name in sorted(gpu_nodes):
            for report in gpu_nodes[name].status.jobs:
                uid, job = report.uid, jobs.get(report.uid)
                if job is not None and uid not in nodes_of:
                    nodes_of[uid] = nodes_of_job(job, incarnations.get(uid, ()), pods_of.get(uid, ()))
                    highest[uid] = highest_incarnation(job, incarnations.get(uid, ()), pods_of.get(uid, ()))
                # An agent speaks for what runs, or ran, on its own node: one that is to come would count for ever.
                if name in nodes_of.get(uid, ()) and report.incarnation <= highest[uid]:
                    reports_of.setdefault(uid, []).append((name, report))
        return ClusterState(
            jobs=jobs,
            caps=list(self.caps),
            gpu_nodes=gpu_nodes,
            nodes=list(self.nodes),
            pods=pods,
            incarnations=incarnations,
            pods_of=pods_of,
            reports_of=reports_of,
            unread=tuple(sorted([*self.caps.invalid, *self.brakes.invalid, *self.gpu_nodes.invalid])),
            age_seconds=max(copy.age_seconds() for copy in (self.gpu_nodes, self.caps, self.brakes, self.nodes)),
            brakes=dict(self.brakes.items()),
            services_of=services_of,
            used=_used_by_others(self.pods, pods),
            gpu_quotas=[quota for quotas in self.quotas for quota in quotas],
            energy_quotas=energy_quotas,
            pods_refused={uid: item.message for uid, item in _latest(self.pods_refused, by_uid).items()},
            plain_jobs=list(self.plain_jobs),
        )


def within_priorities(jobs: Iterable[EnergyAwareJob], quotas: Iterable[EnergyQuota]) -> Iterator[EnergyAwareJob]:
    """The jobs, none with a higher priority than the quotas of its namespace allow, however it came by it."""
    highest: dict[str, int] = {}
    for quota in quotas:
        bound = quota.spec.highest_priority
        if bound is not None:
            highest[quota.namespace] = min(bound, highest.get(quota.namespace, bound))
    for job in jobs:
        most = highest.get(job.namespace)
        if most is None or job.spec.priority <= most:
            yield job
        else:
            yield replace(job, spec=msgspec.structs.replace(job.spec, priority=most))


def _used_by_others(all_pods: Iterable[PodView], attributed: Iterable[PodView]) -> dict[str, Needs]:
    """What pods that are not Flyball's have of each node beside GPUs; `attributed` are those with GPUs or of jobs."""
    foreign = [pod for pod in attributed if not pod.job_uid]
    foreign += [pod for pod in all_pods if not pod.gpus and not pod.job_uid]
    used: dict[str, Needs] = {}
    for pod in foreign:
        if pod.node and not pod.finished and pod.needs is not NO_NEEDS:
            used[pod.node] = used.get(pod.node, NO_NEEDS) + pod.needs
    return used


def _latest(words: Iterable[PodsRefused], batch_uids: Collection[str]) -> dict[str, PodsRefused]:
    """The Job controller's last word on each batch Job of `batch_uids`."""
    latest: dict[str, PodsRefused] = {}
    for item in words:
        known = latest.get(item.batch_uid)
        if item.batch_uid in batch_uids and (known is None or item.time >= known.time):
            latest[item.batch_uid] = item
    return latest
