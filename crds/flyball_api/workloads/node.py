"""A Kubernetes Node as Flyball sees it: how many GPUs it has, how many it may have besides, and what else pods may have."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec
from msgspec import field

from flyball_api.names import (
    LABEL_GPU_COUNT,
    LABEL_GPU_PRESENT,
    LABEL_GPU_PRODUCT,
    LABEL_GPU_REPLICAS,
    LABEL_HOSTNAME,
    STARTUP_TAINT,
)
from flyball_api.reading import ApiStruct, read_object
from flyball_api.workloads.metadata import Metadata, ObjectCondition, holds
from flyball_api.workloads.resources import (
    DEFAULT_GPU_RESOURCES,
    MIG_RESOURCE,
    SERVED_FROM_GPUS,
    Needs,
    Quantities,
    count,
    read_needs,
)

# In the product label of a node all of whose GPUs are partitioned alike: NVIDIA-A100-SXM4-40GB-MIG-1g.5gb.
_MIG_PRODUCT = "-MIG-"
MOST_INSTANCES_A_GPU = 7
# Node feature discovery: a PCI device of NVIDIA (10de), of any class, or a display (0300) or 3D controller (0302).
_GPU_ON_THE_BUS = re.compile(r"feature\.node\.kubernetes\.io/pci-(030[02]_)?10de(_[0-9a-f_]+)?\.present")
# GPUs of a Node of which nobody says how many it has: as many as the servers that are sold most.
ASSUMED_GPUS = 8
# As many as a GPUNode can have (crds/gpunodes.yaml). What offers more are slices of which no label says so, or a lie: no
# grant could name so many, and of numbers without end no status of a cap could be stored.
MOST_GPUS = 64


class Taint(ApiStruct, frozen=True):
    """What keeps pods from a Node that do not tolerate it."""

    key: str = ""
    value: str = ""
    effect: str = ""


class _NodeSpec(ApiStruct, frozen=True):
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class _NodeInfo(ApiStruct, frozen=True):
    boot_id: str = field(default="", name="bootID")


class _NodeStatus(ApiStruct, frozen=True):
    capacity: Quantities = field(default_factory=dict)
    allocatable: Quantities | None = None
    conditions: tuple[ObjectCondition, ...] = ()
    node_info: _NodeInfo = _NodeInfo()


class _Node(ApiStruct, frozen=True):
    metadata: Metadata
    spec: _NodeSpec = _NodeSpec()
    status: _NodeStatus = _NodeStatus()


class NodeView(ApiStruct, frozen=True):
    """A Kubernetes Node; `gpus` by its capacity, and `gpu_resources` the extended resources that it offers them under. No
    number of its GPUs is above `MOST_GPUS`.

    `hidden_gpus` is how many it may have besides, though it offers none: its device plugin is not up yet, they are offered
    as MIG instances, time slices or by dynamic resource allocation. They draw power like any other.

    `ready` is False also where its kubelet has ceased to say (the condition is Unknown then), and `not_ready_since` is when
    that began (None: it is ready, or nobody says). `boot_id` is that of the
    boot in which its kubelet reported last; empty where it reports none.

    `allocatable_gpus` are those that pods may have, fewer than `gpus` while its device plugin withholds some, and
    `allocatable` what else they may have (None: its kubelet does not say).
    """

    name: str
    uid: str
    hostname: str
    labels: dict[str, str]
    gpus: int
    product: str
    ready: bool
    cordoned: bool
    startup_taint: bool
    gpu_resources: frozenset[str] = frozenset()
    boot_id: str = ""
    hidden_gpus: int = 0
    allocatable_gpus: int = 0
    allocatable: Needs | None = None
    taints: tuple[Taint, ...] = ()
    not_ready_since: datetime | None = None


def _hidden_gpus(labels: Mapping[str, str], capacity: Quantities) -> int:
    """GPUs that a Node has by its labels or by what is served from them; 0 where nothing speaks of any."""
    if (
        labels.get(LABEL_GPU_PRESENT) == "true"
        or labels.get(LABEL_GPU_PRODUCT)
        or count(labels.get(LABEL_GPU_COUNT))
        or any(name.startswith(SERVED_FROM_GPUS) and count(units) for name, units in capacity.items())
        or any(value == "true" and _GPU_ON_THE_BUS.fullmatch(label) for label, value in labels.items())
    ):
        return max(0, count(labels.get(LABEL_GPU_COUNT))) or ASSUMED_GPUS
    return 0


def read_node(raw: Mapping[str, Any], gpu_resources: Collection[str] = DEFAULT_GPU_RESOURCES) -> NodeView:
    """A `v1.Node` as a NodeView; raises InvalidObject where it is none.

    `gpu_resources` names the extended resources whose units are GPUs, here and for pods.
    """
    node = read_object("Node", raw, _Node)
    labels, capacity = node.metadata.labels, node.status.capacity
    allocatable = capacity if node.status.allocatable is None else node.status.allocatable
    gpus = sum(count(capacity.get(name)) for name in gpu_resources)
    hidden_gpus = 0 if gpus else _hidden_gpus(labels, capacity)
    replicas = count(labels.get(LABEL_GPU_REPLICAS))
    if replicas > 1:  # what it offers are time slices (or MPS'), of which no pod has a GPU to itself
        gpus, hidden_gpus = 0, max(hidden_gpus, -(-gpus // replicas))
    instances = sum(count(units) for name, units in capacity.items() if name.startswith(MIG_RESOURCE))
    if _MIG_PRODUCT in labels.get(LABEL_GPU_PRODUCT, ""):  # the strategy "single": instances go by the name of GPUs
        gpus, hidden_gpus, instances = 0, 0, max(instances + gpus, 1)
    if instances:  # how many boards they are on nobody says; others may be whole
        hidden_gpus = max(hidden_gpus, ASSUMED_GPUS, gpus + -(-instances // MOST_INSTANCES_A_GPU))
    gpus, hidden_gpus = min(gpus, MOST_GPUS), min(hidden_gpus, MOST_GPUS)
    return NodeView(
        name=node.metadata.name,
        uid=node.metadata.uid,
        hostname=labels.get(LABEL_HOSTNAME, node.metadata.name),
        labels=labels,
        gpus=gpus,
        product=labels.get(LABEL_GPU_PRODUCT, ""),
        ready=holds(node.status.conditions, "Ready"),
        cordoned=node.spec.unschedulable,
        startup_taint=any(taint.key == STARTUP_TAINT for taint in node.spec.taints),
        gpu_resources=frozenset(name for name in gpu_resources if name in capacity),
        boot_id=node.status.node_info.boot_id,
        hidden_gpus=hidden_gpus,
        allocatable_gpus=min(gpus, sum(count(allocatable.get(name)) for name in gpu_resources)),
        allocatable=None if node.status.allocatable is None else read_needs(allocatable),
        taints=node.spec.taints,
        not_ready_since=_not_ready_since(node.status.conditions),
    )


def _not_ready_since(conditions: Iterable[ObjectCondition]) -> datetime | None:
    for condition in conditions:
        if condition.type == "Ready" and condition.status != "True":
            try:
                return msgspec.convert(condition.last_transition_time, datetime)
            except msgspec.ValidationError:
                return None
    return None
