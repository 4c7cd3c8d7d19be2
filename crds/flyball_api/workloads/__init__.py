"""Nodes, pods and batch Jobs as Flyball sees them: the few facts it decides on, out of Kubernetes' own objects."""

from flyball_api.workloads.gpu_quota import GpuQuota, read_gpu_quotas
from flyball_api.workloads.incarnation import IncarnationView, placement_annotation, read_incarnation
from flyball_api.workloads.node import ASSUMED_GPUS, MOST_GPUS, NodeView, Taint, read_node
from flyball_api.workloads.plain_job import PlainJob, read_plain_job
from flyball_api.workloads.pod import PERMILLE, Labels, Obstacle, PodView, needs_of_template, read_pod
from flyball_api.workloads.pods_refused import PODS_REFUSED_SELECTOR, PodsRefused, read_pods_refused
from flyball_api.workloads.resources import DEFAULT_GPU_RESOURCES, NO_NEEDS, Needs, read_needs
from flyball_api.workloads.service import ServiceView, read_service

__all__ = [
    "ASSUMED_GPUS",
    "DEFAULT_GPU_RESOURCES",
    "MOST_GPUS",
    "NO_NEEDS",
    "PERMILLE",
    "PODS_REFUSED_SELECTOR",
    "GpuQuota",
    "IncarnationView",
    "Labels",
    "Needs",
    "NodeView",
    "Obstacle",
    "PlainJob",
    "PodView",
    "PodsRefused",
    "ServiceView",
    "Taint",
    "needs_of_template",
    "placement_annotation",
    "read_gpu_quotas",
    "read_incarnation",
    "read_needs",
    "read_node",
    "read_plain_job",
    "read_pod",
    "read_pods_refused",
    "read_service",
]
