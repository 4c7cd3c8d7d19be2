"""How many GPUs the quotas of a namespace leave its pods together."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from msgspec import field

from flyball_api.reading import ApiStruct, read_object
from flyball_api.workloads.metadata import Metadata
from flyball_api.workloads.resources import DEFAULT_GPU_RESOURCES, Quantities, count


class _QuotaSpec(ApiStruct, frozen=True):
    hard: Quantities = field(default_factory=dict)
    scopes: tuple[str, ...] = ()
    scope_selector: dict[str, Any] | None = None


class _ResourceQuota(ApiStruct, frozen=True):
    metadata: Metadata
    spec: _QuotaSpec = _QuotaSpec()


class GpuQuota(ApiStruct, frozen=True):
    """How many GPUs of one resource the pods of a namespace may have together."""

    namespace: str
    name: str
    resource_name: str
    hard: int


def read_gpu_quotas(
    raw: Mapping[str, Any], gpu_resources: Collection[str] = DEFAULT_GPU_RESOURCES
) -> tuple[GpuQuota, ...]:
    """What a `v1.ResourceQuota` says of GPUs, nothing where it is for some pods only; InvalidObject where it is none."""
    quota = read_object("ResourceQuota", raw, _ResourceQuota)
    if quota.spec.scopes or quota.spec.scope_selector:
        return ()
    hard = quota.spec.hard
    return tuple(
        GpuQuota(quota.metadata.namespace, quota.metadata.name, name, count(hard[f"requests.{name}"]))
        for name in gpu_resources
        if f"requests.{name}" in hard
    )
