"""The whole cluster at one moment: caps, nodes and jobs as rows, who leads, and sums over them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from flyball_api.energy_aware_job import EnergyAwareJob, read_energy_aware_job
from flyball_api.gpu_node import GpuNode, read_gpu_node
from flyball_api.lease import Leader, read_leader
from flyball_api.names import DEFAULT_NAMESPACE
from flyball_api.power_cap import PowerCap, read_power_cap
from flyball_api.reading import InvalidObject
from flyball_api.workloads import NodeView, read_node
from msgspec import field

from flyball_views.caps import CapRow, cap_row
from flyball_views.jobs import JobRow, job_row
from flyball_views.nodes import ROW_LABELS, NodeRow, node_row
from flyball_views.row import Row
from flyball_views.sightings import Sighting, Sightings

T = TypeVar("T")
Raw = Mapping[str, Any]


class Totals(Row, frozen=True):
    """Sums over the rows, in watts; `measured_watts` and `limit_watts` of the nodes that say (`unread_nodes` do not)."""

    nodes: int = 0
    ready_nodes: int = 0
    unread_nodes: int = 0
    gpus: int = 0
    gpus_in_jobs: int = 0
    measured_watts: float | None = None
    limit_watts: float | None = None
    jobs: dict[str, int] = field(default_factory=dict)


class Overview(Row, frozen=True):
    """What was seen at `time`, by the clock of whoever looked; `problems` names objects that cannot be read.

    Figures of caps and jobs are as the operator last wrote them: `leader` says who that is and when it last gave a sign
    (None: nobody could ask), and `operator_namespace` where it was looked for. `missing` names the kinds that could not be
    read at all, and why.
    """

    time: datetime
    caps: tuple[CapRow, ...] = ()
    nodes: tuple[NodeRow, ...] = ()
    jobs: tuple[JobRow, ...] = ()
    leader: Leader | None = None
    totals: Totals = Totals()
    problems: tuple[str, ...] = ()
    missing: dict[str, str] = field(default_factory=dict)
    operator_namespace: str = DEFAULT_NAMESPACE


def overview(
    now: datetime,
    caps: Iterable[PowerCap] = (),
    gpu_nodes: Iterable[GpuNode] = (),
    jobs: Iterable[EnergyAwareJob] = (),
    nodes: Iterable[NodeView] = (),
    *,
    leader: Leader | None = None,
    sightings: Mapping[str, Sighting] | None = None,
    row_labels: Sequence[str] = ROW_LABELS,
    problems: Iterable[str] = (),
    missing: Mapping[str, str] | None = None,
    operator_namespace: str = DEFAULT_NAMESPACE,
) -> Overview:
    """The cluster as these objects say at `now`; rows in the order of their names, jobs in that of their namespaces too.

    Of `nodes` those count that have GPUs or may have some, or a GPUNode. `sightings` comes from `Sightings.look`.
    """
    gpu_nodes, sightings = list(gpu_nodes), sightings or {}
    gpu_node_of = {item.name: item for item in gpu_nodes}
    node_of = {item.name: item for item in nodes if item.gpus or item.hidden_gpus or item.name in gpu_node_of}
    cap_rows = tuple(cap_row(cap, gpu_nodes) for cap in sorted(caps, key=lambda cap: cap.name))
    caps_of: dict[str, list[str]] = {}
    for cap in cap_rows:
        for name in cap.nodes:
            caps_of.setdefault(name, []).append(cap.name)
    node_rows = tuple(
        node_row(
            name,
            gpu_node_of.get(name),
            node_of.get(name),
            caps_of.get(name, ()),
            *sightings.get(name, Sighting()),
            row_labels=row_labels,
        )
        for name in sorted(gpu_node_of.keys() | node_of.keys())
    )
    job_rows = tuple(job_row(job) for job in sorted(jobs, key=lambda job: (job.namespace, job.name)))
    return Overview(
        now,
        cap_rows,
        node_rows,
        job_rows,
        leader,
        _totals(node_rows, job_rows),
        tuple(problems),
        dict(missing or {}),
        operator_namespace,
    )


def read_overview(
    now: datetime,
    caps: Iterable[Raw] = (),
    gpu_nodes: Iterable[Raw] = (),
    jobs: Iterable[Raw] = (),
    nodes: Iterable[Raw] = (),
    lease: Raw | None = None,
    *,
    sightings: Sightings | None = None,
    row_labels: Sequence[str] = ROW_LABELS,
    missing: Mapping[str, str] | None = None,
    operator_namespace: str = DEFAULT_NAMESPACE,
) -> Overview:
    """The same from the objects' JSON; one that cannot be read is left out and named among the problems."""
    problems: list[str] = []

    def read(items: Iterable[Raw], one: Callable[[Raw], T]) -> list[T]:
        found = []
        for raw in items:
            try:
                found.append(one(raw))
            except InvalidObject as error:
                problems.append(str(error))
        return found

    read_gpu_nodes = read(gpu_nodes, read_gpu_node)
    leaders = read([] if lease is None else [lease], read_leader)
    return overview(
        now,
        read(caps, read_power_cap),
        read_gpu_nodes,
        read(jobs, read_energy_aware_job),
        read(nodes, read_node),
        leader=leaders[0] if leaders else None,
        sightings=None if sightings is None else sightings.look(read_gpu_nodes, now),
        row_labels=row_labels,
        problems=problems,
        missing=missing,
        operator_namespace=operator_namespace,
    )


def _totals(nodes: Sequence[NodeRow], jobs: Sequence[JobRow]) -> Totals:
    measured = [node.measured_watts for node in nodes if node.measured_watts is not None]
    limits = [node.limit_watts for node in nodes if node.limit_watts is not None]
    return Totals(
        nodes=len(nodes),
        ready_nodes=sum(node.ready.status is True for node in nodes),
        unread_nodes=sum(node.measured_watts is None or node.unread_gpus > 0 for node in nodes),
        gpus=sum(node.gpus or 0 for node in nodes),
        gpus_in_jobs=sum(job.gpus for job in jobs),
        measured_watts=sum(measured) if measured else None,
        limit_watts=sum(limits) if limits else None,
        jobs=dict(sorted(Counter(job.state or "Unknown" for job in jobs).items())),
    )
