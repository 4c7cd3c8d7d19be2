"""Everything the operator watches, as informers over one session, and one consistent view of it per cycle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

from flyball_api.brake_acknowledgement import BrakeAcknowledgement, read_brake_acknowledgement
from flyball_api.energy.quota import EnergyQuota, read_energy_quota
from flyball_api.energy_aware_job import EnergyAwareJob, read_energy_aware_job
from flyball_api.gpu_node import GpuNode, PodReport, read_gpu_node
from flyball_api.names import LABEL_ADMISSION, LABEL_JOB_UID, LABEL_MODE, MODE_OBSERVE
from flyball_api.power_brake import PowerBrake, read_power_brake
from flyball_api.power_cap import PowerCap, read_power_cap
from flyball_api.workloads import (
    PODS_REFUSED_SELECTOR,
    IncarnationView,
    NodeView,
    PodView,
    read_gpu_quotas,
    read_incarnation,
    read_node,
    read_plain_job,
    read_pods_refused,
    read_service,
)
from flyball_kube.informer import Informer, Patience
from flyball_kube.process.logs import get_logger
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

from flyball_operator.cluster.node_use import NodeUse, NodeUses
from flyball_operator.cluster.ownership import PodOwners, highest_incarnation, is_of_living_job, nodes_of_job
from flyball_operator.cluster.state import ClusterState, latest_refusals, within_priorities

logger = get_logger(__name__)

# Within two seconds of a sign that it is untrue a claim is withdrawn: once the API server answers again, it is asked within
# a second for what claims rest on, also where a request or its answer was lost.
PATIENCE_FOR_CLAIMS = Patience(last_pause_seconds=1.0, answer_seconds=1.0)

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


def _asked_of_cap(cap: PowerCap) -> object:
    """What people want of a cap: all that the operator does not write."""
    return cap.uid, cap.spec, cap.metadata.deletion_timestamp


def _asked_of_brake(brake: PowerBrake) -> object:
    """What a brake, or an emergency, asks of agents."""
    return brake.metadata.uid, brake.spec


def _drawn_by_node(node: NodeView) -> object:
    """What of a Node, when it changes, may put its GPUs to other limits than were known, or under another cap."""
    return node.uid, node.boot_id, node.ready, node.gpus, node.hidden_gpus, node.labels


def _drawn_by_gpus(gpu_node: GpuNode) -> object:
    """What of a GPUNode, when it changes, may show that its GPUs have higher limits than were acknowledged."""
    healthy = sum(gpu.healthy for gpu in gpu_node.gpus)
    return gpu_node.metadata.uid, gpu_node.session, gpu_node.read_back_since_milliwatts, len(gpu_node.gpus), healthy


class _WakeByContent(Generic[Watched]):
    """Called with the key of an object that has changed: wakes by `wake_for_content` where what `content_of` gives of it is
    another than before, and else, as any change does, by `wake`."""

    def __init__(
        self,
        content_of: Callable[[Watched], object],
        known: Callable[[str], Watched | None],
        wake_for_content: Callable[[], None],
        wake: Callable[[], None],
    ) -> None:
        self._content_of = content_of
        self._known = known
        self._wake_for_content = wake_for_content
        self._wake = wake
        self._before: dict[str, object] = {}

    def __call__(self, key: str) -> None:
        item = self._known(key)
        content = None if item is None else self._content_of(item)
        changed = content != self._before.pop(key, None)
        if content is not None:
            self._before[key] = content
        (self._wake_for_content if changed else self._wake)()


def _name(raw: JsonObject) -> str:
    return str(raw["metadata"]["name"])


class _Copies:
    """Makes the local copies, each by what it is needed for; any change of one wakes, unless it has its own `on_change`."""

    def __init__(self, session: ApiSession, wake: Callable[[], None], on_rewound: Callable[[], None]) -> None:
        self._session = session
        self._wake = wake
        self._on_rewound = on_rewound

    def _on_any_change(self, key: str) -> None:
        self._wake()

    def of_claims(
        self,
        resource: Resource,
        read: Callable[[JsonObject], Watched],
        on_change: Callable[[str], None] | None = None,
    ) -> Informer[Watched]:
        """A copy that claims rest on."""
        return Informer(
            self._session,
            resource,
            read,
            on_change=on_change or self._on_any_change,
            on_rewound=self._on_rewound,
            patience=PATIENCE_FOR_CLAIMS,
        )

    def required(
        self,
        resource: Resource,
        read: Callable[[JsonObject], Watched],
        on_change: Callable[[str], None] | None = None,
        **selectors: str,
    ) -> Informer[Watched]:
        """A copy without which no cycle begins."""
        return Informer(self._session, resource, read, on_change=on_change or self._on_any_change, params=selectors)

    def optional(
        self, resource: Resource, read: Callable[[JsonObject], Watched], **selectors: str
    ) -> Informer[Watched]:
        """A copy that a cycle can do without."""
        return Informer(self._session, resource, read, on_change=self._on_any_change, params=selectors, required=False)


class Watches:
    """The informers; `wake` is called at each change.

    `wake_at_once` is called instead where somebody wants another cap or brake, and `wake_soon` where a node may draw more
    than was known (None: `wake`). `on_rewound` is called where a copy that claims rest on shows that the API server's store
    was put back to a backup.

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
        on_rewound: Callable[[], None] = lambda: None,
    ) -> None:
        self._server_clock = session.server_clock

        copies = _Copies(session, wake, on_rewound)
        on_cap = _WakeByContent(_asked_of_cap, lambda key: self.caps.get(key), wake_at_once or wake, wake)
        on_brake = _WakeByContent(_asked_of_brake, lambda key: self.brakes.get(key), wake_at_once or wake, wake)
        on_node = _WakeByContent(_drawn_by_node, lambda key: self.nodes.get(key), wake_soon or wake, wake)
        on_gpu_node = _WakeByContent(_drawn_by_gpus, lambda key: self.gpu_nodes.get(key), wake_soon or wake, wake)
        self.jobs = copies.required(ENERGY_AWARE_JOBS, logging_problems(read_energy_aware_job))
        self.caps = copies.of_claims(POWER_CAPS, logging_problems(read_power_cap), on_cap)
        self.brakes = copies.of_claims(POWER_BRAKES, read_power_brake, on_brake)
        self.brake_acknowledgements = copies.of_claims(BRAKE_ACKNOWLEDGEMENTS, read_brake_acknowledgement)
        self.gpu_nodes = copies.of_claims(GPU_NODES, logging_problems(read_gpu_node), on_gpu_node)
        self.nodes = copies.of_claims(NODES, partial(read_node, gpu_resources=gpu_resources), on_node)
        self._node_uses = NodeUses(gpu_resources)
        self._followed: dict[str, PodView | NodeUse] = {}  # the pods that a cycle goes by, as it was asked for last
        self.pods: Informer[PodView | NodeUse] = copies.required(PODS, self._node_uses.read, self._on_pod)
        self.incarnations = copies.required(JOBS, read_incarnation, labelSelector=LABEL_JOB_UID)
        self.services = copies.required(SERVICES, read_service, labelSelector=LABEL_JOB_UID)
        self.pods_refused = copies.optional(CORE_EVENTS, read_pods_refused, fieldSelector=PODS_REFUSED_SELECTOR)
        self.quotas = copies.optional(RESOURCE_QUOTAS, partial(read_gpu_quotas, gpu_resources=gpu_resources))
        read_waiting = partial(read_plain_job, gpu_resources=gpu_resources)
        self.plain_jobs = copies.optional(JOBS, read_waiting, labelSelector=LABEL_ADMISSION)
        self.energy_quotas = copies.optional(ENERGY_QUOTAS, logging_problems(read_energy_quota))
        self.observed_namespaces = copies.optional(NAMESPACES, _name, labelSelector=f"{LABEL_MODE}={MODE_OBSERVE}")
        self._wake = wake
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

    def _on_pod(self, key: str) -> None:
        """Wakes at each change of a pod with GPUs or of a job; of another where it takes something of a node with GPUs."""
        item, before = self.pods.get(key), self._followed.pop(key, None)
        if isinstance(item, NodeUse):
            node = self.nodes.get(item.node)
            if node is None or not node.gpus:
                item = None
        if item is not None:
            self._followed[key] = item
        if item is not before:
            self._wake()

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

    def written_epoch(self) -> int:
        """The highest epoch that stands in a grant or a brake."""
        granted = (item.grant.epoch for item in self.gpu_nodes if item.grant is not None)
        braked = (item.spec.epoch for item in self.brakes)
        return max((*granted, *braked), default=0)

    def acknowledged_epochs(self) -> dict[str, int]:
        """By the node's name, the epoch of the grant that its agent has acknowledged last."""
        return {item.name: item.acknowledged.epoch for item in self.gpu_nodes if item.acknowledged is not None}

    def cluster(self) -> ClusterState:
        """One view of all of them; nothing in it changes afterwards."""
        energy_quotas = sorted(self.energy_quotas, key=lambda quota: quota.metadata.key)
        as_allowed = within_priorities(self.jobs, energy_quotas)
        jobs = {job.uid: job for job in self._observed_in_observed(as_allowed)}
        by_uid = {item.uid: item for item in self.incarnations if is_of_living_job(item, jobs)}
        incarnations: dict[str, list[IncarnationView]] = {}
        for incarnation in by_uid.values():
            incarnations.setdefault(incarnation.job_uid, []).append(incarnation)
        whole: list[PodView] = []
        uses: list[NodeUse] = []
        for pod_or_use in self.pods:
            (uses if isinstance(pod_or_use, NodeUse) else whole).append(pod_or_use)  # type: ignore[arg-type]
        pods = self._owners.attribute(whole, jobs, by_uid)
        pods_of: dict[str, list[PodView]] = {}
        for pod in pods:
            if pod.job_uid:
                pods_of.setdefault(pod.job_uid, []).append(pod)
        services_of: dict[str, set[str]] = {}
        for service in self.services:
            job = jobs.get(service.job_uid)
            if job is not None and job.namespace == service.namespace and service.whole and not service.deleting:
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
            used=self._node_uses.used(uses, (pod for pod in pods if not pod.job_uid)),
            gpu_quotas=[quota for quotas in self.quotas for quota in quotas],
            energy_quotas=energy_quotas,
            pods_refused={uid: item.message for uid, item in latest_refusals(self.pods_refused, by_uid).items()},
            plain_jobs=list(self.plain_jobs),
            reports_behind_seconds=self.gpu_nodes.behind_seconds(),
            clock_ahead_seconds=self._server_clock.ahead_seconds,
        )
