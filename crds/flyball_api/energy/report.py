"""EnergyReport: what was used on one day, by job, namespace and cap, from the GPUs' counters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flyball_api.names import FLYBALL_API_VERSION
from flyball_api.reading import ApiStruct, Count, JsonObject, ObjectMeta, Time, read_metadata, read_spec
from flyball_api.writing import to_json

KIND = "EnergyReport"
MAX_JOBS = 1024
MAX_NAMESPACES = 1024
MAX_OWNERS = 512
MAX_CAPS = 256
MAX_COUNTED_NODES = 8192
MAX_COUNTED_JOBS = 16384


class NamespaceEnergy(ApiStruct, frozen=True):
    """What the jobs of one namespace have used, and its other pods with GPUs."""

    name: str
    jobs_millijoules: Count = 0
    pods_millijoules: Count = 0
    gpu_seconds: Count = 0


class ObservedUse(ApiStruct, frozen=True):
    """What a job that was only observed has used, and what it would have used, had it been governed.

    Of the `unknown_millijoules` that cannot be said; of the `millijoules` it can: within `least_millijoules` and
    `most_millijoules` with nine chances in ten, and so for the time in which it trained.
    """

    unknown_millijoules: Count = 0
    millijoules: Count = 0
    governed_millijoules: Count = 0
    least_millijoules: Count = 0
    most_millijoules: Count = 0
    milliseconds: Count = 0
    governed_milliseconds: Count = 0
    least_milliseconds: Count = 0
    most_milliseconds: Count = 0

    def __add__(self, other: ObservedUse) -> ObservedUse:
        """Both together; the bounds as if both were off by the same, and so rather too wide."""
        return ObservedUse(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})


class ReportedJob(ApiStruct, frozen=True):
    """What one EnergyAwareJob has used; `observed` of one that was only observed, or in part."""

    namespace: str
    name: str
    uid: str
    millijoules: Count = 0
    gpu_seconds: Count = 0
    observed: ObservedUse | None = None


class OwnerEnergy(ApiStruct, frozen=True):
    """What other pods with GPUs have used, by what they belong to: kind and name, such as Deployment/web.

    Of that `idle_millijoules` while a GPU that they held drew no more than it does without computing.
    """

    namespace: str
    owner: str
    millijoules: Count = 0
    idle_millijoules: Count = 0


class CapEnergy(ApiStruct, frozen=True):
    """What all GPUs under one cap have used."""

    name: str
    millijoules: Count = 0


class EnergyRates(ApiStruct, frozen=True):
    """What a kilowatt-hour cost and emitted, by the operator's settings and the grid's signal."""

    cost_micros_per_kilowatt_hour: Count | None = None
    emitted_milligrams_per_kilowatt_hour: Count | None = None


class CountedNode(ApiStruct, frozen=True):
    """Up to where one node's counters are in the books: their sum, of which GPUs, since which load of the driver."""

    name: str
    session: str
    gpus: str
    millijoules: Count


class ReportedMark(ApiStruct, frozen=True):
    """Up to where one job's totals are in the books."""

    uid: str
    millijoules: Count
    gpu_seconds: Count = 0


class Marks(ApiStruct, frozen=True):
    """Up to where everything is counted; only the latest report has them."""

    nodes: tuple[CountedNode, ...] = ()
    jobs: tuple[ReportedMark, ...] = ()


class EnergyReportSpec(ApiStruct, frozen=True):
    """EnergyReport.spec, which the operator writes: the books of one day (UTC)."""

    day: str
    counted_since: Time
    charged_until: Time
    gpus_millijoules: Count = 0
    jobs_millijoules: Count = 0
    pods_millijoules: Count = 0
    namespaces: tuple[NamespaceEnergy, ...] = ()
    jobs: tuple[ReportedJob, ...] = ()
    owners: tuple[OwnerEnergy, ...] = ()
    caps: tuple[CapEnergy, ...] = ()
    rates: EnergyRates = EnergyRates()
    marks: Marks | None = None

    @property
    def idle_millijoules(self) -> int:
        """What GPUs have used while no pod held them, or while nobody knew which."""
        return max(0, self.gpus_millijoules - self.jobs_millijoules - self.pods_millijoules)


@dataclass(frozen=True, slots=True)
class EnergyReport:
    """One EnergyReport, named by its day."""

    metadata: ObjectMeta
    spec: EnergyReportSpec


def read_energy_report(raw: Mapping[str, Any]) -> EnergyReport:
    """An EnergyReport from its JSON; raises InvalidObject where its metadata or spec is not as the CRD has it."""
    metadata = read_metadata(KIND, raw)
    return EnergyReport(metadata, read_spec(KIND, metadata, raw, EnergyReportSpec))


def energy_report_object(spec: EnergyReportSpec, resource_version: str = "") -> JsonObject:
    """The object of a day; with a resource version, in the place of the one of that version."""
    metadata = {"name": spec.day, **({"resourceVersion": resource_version} if resource_version else {})}
    return {"apiVersion": FLYBALL_API_VERSION, "kind": KIND, "metadata": metadata, "spec": to_json(spec)}
