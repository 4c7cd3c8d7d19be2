"""Each GPU node as one picture: what Kubernetes says of it, what its agent says, and what it may draw at worst."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from flyball_planner.gpu_models import LARGEST_DEFAULT_LIMIT_WATTS, GpuModel, catalogue, gpu_model_for

from flyball_operator.gpu_nodes import DeviceView, GpuNodeView
from flyball_operator.grants import NodePower
from flyball_operator.hold import worst_hold
from flyball_operator.workloads import NodeView, PodView

logger = logging.getLogger(__name__)

MILLIWATTS = 1000


@dataclass(frozen=True, slots=True)
class NodePicture:
    """One GPU node; `node` is None where only its GPUNode is left, `gpu_node` where it has none yet.

    `gpu_model` is None where nobody knows what its GPUs are: such a node is reserved at the largest default limit known
    and never used. `lost_gpus` are those that its agent calls unhealthy or does not see at all. `responsive`: False while a
    grant sent to it has gone unacknowledged for too long.
    """

    name: str
    labels: Mapping[str, str]
    node: NodeView | None
    gpu_node: GpuNodeView | None
    gpu_model: GpuModel | None
    gpus: int
    foreign_gpus: int
    lost_gpus: int
    power: NodePower
    responsive: bool

    @property
    def acknowledged(self) -> bool:
        """The agent has ever acknowledged a grant since the node's last boot, so that its limits are known."""
        view = self.gpu_node
        return (
            view is not None
            and view.acknowledged is not None
            and (view.acknowledged.boot_id, view.acknowledged.driver_incarnation) == view.incarnation
        )

    @property
    def commandable(self) -> bool:
        """Grants sent there take effect: it may be planned with."""
        return self.acknowledged and self.responsive and self.gpu_model is not None

    @property
    def schedulable(self) -> bool:
        """Pods may be placed there."""
        return self.commandable and self.node is not None and self.node.ready and not self.node.cordoned

    @property
    def floor_milliwatts(self) -> int:
        """The smallest limit that every GPU of the node accepts; 0 where nobody knows."""
        known = 0 if self.gpu_model is None else round(self.gpu_model.min_power_limit_watts * MILLIWATTS)
        return max((device.min_milliwatts for device in self._devices), default=0) or known

    @property
    def default_milliwatts(self) -> int:
        """The largest default limit of one of its GPUs."""
        watts = LARGEST_DEFAULT_LIMIT_WATTS if self.gpu_model is None else self.gpu_model.default_power_limit_watts
        return max((device.default_milliwatts for device in self._devices), default=0) or round(watts * MILLIWATTS)

    @property
    def max_milliwatts(self) -> int:
        """The sum of the largest limits of its GPUs: its share of a cap given as permille of the maximum."""
        watts = LARGEST_DEFAULT_LIMIT_WATTS if self.gpu_model is None else self.gpu_model.max_power_limit_watts
        known = [device.max_milliwatts for device in self._devices if device.max_milliwatts]
        return sum(known) + (self.gpus - len(known)) * round(watts * MILLIWATTS)

    @property
    def _devices(self) -> tuple[DeviceView, ...]:
        return () if self.gpu_node is None else self.gpu_node.devices

    @property
    def measured_milliwatts(self) -> int:
        return sum(device.power_milliwatts for device in self._devices)


def _model_of(
    node: NodeView | None, gpu_node: GpuNodeView | None, gpu_models: Mapping[str, GpuModel]
) -> GpuModel | None:
    """The planner's model of a node's GPUs: by their product name, with the limits and clocks that the devices report.

    Devices that report nonsense (a lost GPU has no limits any more) must not end the cycle for everybody else: the
    others speak for them, or else the catalogue.
    """
    devices = () if gpu_node is None else gpu_node.devices
    product = (node.product if node is not None else "") or (devices[0].model if devices else "")
    telling = [device for device in devices if device.tells_limits and device.clock_step_megahertz > 0]
    if telling:
        device = telling[0]
        model = _reported_model(
            product,
            gpu_model_for(product, gpu_models),
            max(item.min_milliwatts for item in telling),
            min(item.max_milliwatts for item in telling),
            max(item.default_milliwatts for item in telling),
            (device.clock_min_megahertz, device.clock_max_megahertz, device.clock_step_megahertz),
        )
        if model is not None:
            return model
    return gpu_model_for(product, gpu_models)


@lru_cache(maxsize=256)  # asked for every node in every cycle, and the same for most of them
def _reported_model(
    product: str,
    known: GpuModel | None,
    min_milliwatts: int,
    max_milliwatts: int,
    default_milliwatts: int,
    clocks: tuple[int, int, int],
) -> GpuModel | None:
    lowest, highest, step = clocks
    try:
        return GpuModel.from_device(
            product,
            min_power_limit_watts=min_milliwatts / MILLIWATTS,
            max_power_limit_watts=max_milliwatts / MILLIWATTS,
            default_power_limit_watts=default_milliwatts / MILLIWATTS,
            clocks_megahertz=tuple(range(lowest, highest + 1, step)),
            models={} if known is None else {known.product: known},
        )
    except ValueError as error:
        logger.warning("a node's GPUs report what cannot be: %s", error)
        return None


def picture_nodes(
    nodes: Iterable[NodeView],
    gpu_nodes: Mapping[str, GpuNodeView],
    pods: Iterable[PodView],
    unresponsive: frozenset[str],
    gpu_models: Mapping[str, GpuModel] | None = None,
) -> dict[str, NodePicture]:
    """One picture per GPU node, keyed and ordered by name: every Node with GPUs, and every GPUNode whose Node is gone.

    A node that vanished keeps its hold until someone deletes its GPUNode: an API object that is gone proves nothing about
    the hardware. `gpu_models` is what is known of GPUs beside what they report; None: the catalogue.
    """
    gpu_models = catalogue() if gpu_models is None else gpu_models
    by_name = {node.name: node for node in nodes if node.gpus > 0}
    foreign: dict[str, int] = {}
    for pod in pods:
        if not pod.job_uid and pod.gpus and pod.node and not pod.finished:
            foreign[pod.node] = foreign.get(pod.node, 0) + pod.gpus
    pictures = {}
    for name in sorted(by_name.keys() | gpu_nodes.keys()):
        node, gpu_node = by_name.get(name), gpu_nodes.get(name)
        model = _model_of(node, gpu_node, gpu_models)
        reported = len(gpu_node.devices) if gpu_node is not None else 0
        gpus = max(reported, node.gpus if node is not None else 0)
        default_watts = LARGEST_DEFAULT_LIMIT_WATTS if model is None else model.default_power_limit_watts
        default_milliwatts = round(default_watts * MILLIWATTS)
        # GPUs that the agent does not see (lost at boot) are still on the bus, and at their defaults.
        unseen = gpus - reported
        known_milliwatts = 0 if gpu_node is None else gpu_node.defaults_milliwatts(default_milliwatts)
        worst = worst_hold(
            None if gpu_node is None else gpu_node.grant,
            None if gpu_node is None else gpu_node.acknowledged,
            ("", "") if gpu_node is None else gpu_node.incarnation,
            known_milliwatts + unseen * default_milliwatts,
            unseen * default_milliwatts,
        )
        acknowledged = None if gpu_node is None else gpu_node.acknowledged
        pictures[name] = NodePicture(
            name=name,
            labels=node.labels if node is not None else gpu_node.labels if gpu_node is not None else {},
            node=node,
            gpu_node=gpu_node,
            gpu_model=model,
            gpus=gpus,
            foreign_gpus=min(foreign.get(name, 0), gpus),
            lost_gpus=0
            if gpu_node is None or not reported
            else unseen + sum(not device.healthy for device in gpu_node.devices),
            power=NodePower(
                grant=None if gpu_node is None else gpu_node.grant,
                worst=worst,
                accepted=(0, 0) if acknowledged is None else acknowledged.version,
            ),
            responsive=name not in unresponsive,
        )
    return pictures


@dataclass(frozen=True, slots=True)
class PodLimit:
    """The highest limit read back from a pod's GPUs (0: none), and whether the grant that names it is acknowledged."""

    highest_milliwatts: int = 0
    acknowledged: bool = False


def pod_limits(pictures: Iterable[NodePicture]) -> dict[tuple[str, str], PodLimit]:
    """What is known of the limits of each pod, by its namespace and name."""
    limits: dict[tuple[str, str], PodLimit] = {}
    for picture in pictures:
        view = picture.gpu_node
        if view is None:
            continue
        if view.acknowledged_current and view.grant is not None:
            limits |= {(job.namespace, job.pod_name): PodLimit(acknowledged=True) for job in view.grant.jobs}
        for device in view.devices:
            if device.pod is not None:
                before = limits.get(device.pod, PodLimit())
                highest = max(before.highest_milliwatts, device.enforced_milliwatts)
                limits[device.pod] = PodLimit(highest, before.acknowledged)
    return limits
