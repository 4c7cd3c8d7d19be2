"""Which API resources Flyball uses, and their paths on the API server."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote

from flyball_api.names import GROUP, VERSION


@dataclass(frozen=True, slots=True)
class Resource:
    """One API resource; `group` is empty for the core group."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """URL path of the collection, of one object (`name`), or of its `subresource`.

        Raises ValueError where a name is asked for without the namespace that it needs.
        """
        return _path(self, namespace, name, subresource)


@lru_cache(maxsize=4096)  # the same few, in every request
def _path(resource: Resource, namespace: str | None, name: str | None, subresource: str | None) -> str:
    if name is not None and resource.namespaced and not namespace:
        raise ValueError(f"{resource.kind} {name}: a namespaced object needs its namespace")
    parts = ["apis", resource.group, resource.version] if resource.group else ["api", resource.version]
    if resource.namespaced and namespace:
        parts += ["namespaces", namespace]
    parts.append(resource.plural)
    parts += [part for part in (name, subresource) if part]
    return "/" + "/".join(quote(part, safe="") for part in parts)


ENERGY_AWARE_JOBS = Resource(GROUP, VERSION, "energyawarejobs", "EnergyAwareJob")
POWER_CAPS = Resource(GROUP, VERSION, "powercaps", "PowerCap", namespaced=False)
POWER_BRAKES = Resource(GROUP, VERSION, "powerbrakes", "PowerBrake", namespaced=False)
BRAKE_ACKNOWLEDGEMENTS = Resource(GROUP, VERSION, "brakeacknowledgements", "BrakeAcknowledgement", namespaced=False)
GPU_NODES = Resource(GROUP, VERSION, "gpunodes", "GPUNode", namespaced=False)
ENERGY_QUOTAS = Resource(GROUP, VERSION, "energyquotas", "EnergyQuota")
ENERGY_REPORTS = Resource(GROUP, VERSION, "energyreports", "EnergyReport", namespaced=False)
ENERGY_PROFILES = Resource(GROUP, VERSION, "energyprofiles", "EnergyProfile")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
PODS = Resource("", "v1", "pods", "Pod")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
SERVICES = Resource("", "v1", "services", "Service")
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
JOBS = Resource("batch", "v1", "jobs", "Job")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False)
EVENTS = Resource("events.k8s.io", "v1", "events", "Event")
CORE_EVENTS = Resource("", "v1", "events", "Event")
RESOURCE_QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
