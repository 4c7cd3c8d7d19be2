"""EnergyQuota: what the EnergyAwareJobs of one namespace may have together, and what they have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flyball_api.power_cap import EnergyBudget
from flyball_api.reading import ApiStruct, Count, ObjectMeta, Time, read_metadata, read_spec, read_status
from flyball_api.values.conditions import StoredCondition

KIND = "EnergyQuota"


class EnergyQuotaSpec(ApiStruct, frozen=True):
    """EnergyQuota.spec, which administrators write; what is None bounds nothing."""

    gpus: Count | None = None
    watts: Count | None = None
    energy_budget: EnergyBudget | None = None
    highest_priority: int | None = None


class QuotaAllocation(ApiStruct, frozen=True):
    """What the plan gives the jobs of a namespace."""

    gpus: Count = 0
    watts: Count = 0
    jobs: Count = 0


class CountedJob(ApiStruct, frozen=True):
    """Up to where one job's energy has been counted."""

    uid: str
    millijoules: Count


class QuotaPeriod(ApiStruct, frozen=True):
    """A period of an energy budget: what was used in it, until when, and up to where each job's energy is in that."""

    start: Time
    counted_since: Time | None = None
    charged_until: Time | None = None
    consumed_kilojoules: Count = 0
    consumed_millijoules: Count = 0
    jobs: tuple[CountedJob, ...] = ()


class EnergyQuotaStatus(ApiStruct, frozen=True):
    """EnergyQuota.status, which the operator writes."""

    observed_generation: Count | None = None
    conditions: tuple[StoredCondition, ...] = ()
    allocated: QuotaAllocation | None = None
    energy_period: QuotaPeriod | None = None


@dataclass(frozen=True, slots=True)
class EnergyQuota:
    """One EnergyQuota; `problems` names the parts of the status that cannot be read."""

    metadata: ObjectMeta
    spec: EnergyQuotaSpec
    status: EnergyQuotaStatus
    problems: tuple[str, ...] = ()

    @property
    def namespace(self) -> str:
        return self.metadata.namespace

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def uid(self) -> str:
        return self.metadata.uid


def read_energy_quota(raw: Mapping[str, Any]) -> EnergyQuota:
    """An EnergyQuota from its JSON; raises InvalidObject where its metadata or spec is not as the CRD has it."""
    metadata = read_metadata(KIND, raw)
    spec = read_spec(KIND, metadata, raw, EnergyQuotaSpec)
    status, problems = read_status(raw, EnergyQuotaStatus)
    return EnergyQuota(metadata, spec, status, problems)
