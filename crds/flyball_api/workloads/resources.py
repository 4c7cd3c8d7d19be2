"""What Kubernetes' lists of resources say: GPUs as whole units, CPUs, memory and storage in thousandths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flyball_api.names import GPU_RESOURCE
from flyball_api.reading import ApiStruct
from flyball_api.values.quantities import thousandths

Quantities = dict[str, Any]

# The extended resources whose units are GPUs, unless the operator is set otherwise.
DEFAULT_GPU_RESOURCES = (GPU_RESOURCE,)
MIG_RESOURCE = "nvidia.com/mig-"  # what the names of MIG instances begin with
# Extended resources that are served from GPUs, whatever a unit of theirs is: time slices, MIG instances.
SERVED_FROM_GPUS = ("nvidia.com/gpu", MIG_RESOURCE)


def count(value: Any) -> int:
    """An extended resource's quantity: always a whole number by Kubernetes' own validation."""
    try:
        return int(value)
    except (TypeError, ValueError):
        return 0


class Needs(ApiStruct, frozen=True):
    """What a pod asks of a Node beside GPUs, or a Node has of it, in thousandths: CPUs, and bytes of memory and storage."""

    cpu: int = 0
    memory: int = 0
    storage: int = 0

    def __add__(self, other: Needs) -> Needs:
        return Needs(self.cpu + other.cpu, self.memory + other.memory, self.storage + other.storage)

    def __sub__(self, other: Needs) -> Needs:
        return Needs(self.cpu - other.cpu, self.memory - other.memory, self.storage - other.storage)

    def __mul__(self, times: int) -> Needs:
        return Needs(self.cpu * times, self.memory * times, self.storage * times)

    def largest(self, other: Needs) -> Needs:
        """The larger of each."""
        return Needs(max(self.cpu, other.cpu), max(self.memory, other.memory), max(self.storage, other.storage))


NO_NEEDS = Needs()


def read_needs(quantities: Mapping[str, Any]) -> Needs:
    """The needs in a list of resources."""
    return Needs(
        thousandths(quantities.get("cpu", 0)),
        thousandths(quantities.get("memory", 0)),
        thousandths(quantities.get("ephemeral-storage", 0)),
    )
