"""EnergyProfile: what was measured of one kind of job on one GPU model, and what was fitted to it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from flyball_api.energy.frontier import IterationFrontier
from flyball_api.names import FLYBALL_API_VERSION
from flyball_api.reading import ApiStruct, Count, JsonObject, ObjectMeta, Time, read_metadata, read_spec, read_status
from flyball_api.values.conditions import StoredCondition

KIND = "EnergyProfile"


class EnergyProfileSpec(ApiStruct, frozen=True):
    """EnergyProfile.spec: what the profile is about."""

    profile_key: str
    gpu_model: str


class FittedParameter(ApiStruct, frozen=True):
    """One fitted parameter, a decimal string in SI units."""

    name: str
    value: str
    standard_error: str | None = None


class FitQuality(ApiStruct, frozen=True):
    """How good a fit is."""

    time: Time | None = None
    observations: Count = 0
    time_error_permille: Count = 0
    energy_error_permille: Count = 0


class Observation(ApiStruct, frozen=True):
    """What was measured at one size, local batch size and clock: means and standard deviations over `samples` windows."""

    gpus: Count
    nodes: Count
    local_batch_size: Count
    clock_megahertz: Count
    samples: Count
    microseconds_per_iteration: Count
    microseconds_deviation: Count = 0
    millijoules_per_iteration: Count = 0
    millijoules_deviation: Count = 0
    last_time: Time | None = None


class EndedRun(ApiStruct, frozen=True):
    """One run of a recurring job that has ended: what it cost, and whether it reached its target."""

    decision: Count
    batch_size: Count
    purpose: Literal["Explore", "BestKnown", "Sample"]
    cost_joules: Count
    reached: bool = False
    samples: Count = 0


class BatchSizeSearch(ApiStruct, frozen=True):
    """The runs of a recurring job, from which the batch size of the next one follows."""

    runs: tuple[EndedRun, ...] = ()


class EnergyProfileStatus(ApiStruct, frozen=True):
    """EnergyProfile.status, which the operator writes."""

    conditions: tuple[StoredCondition, ...] = ()
    parameterisation: str | None = None
    parameters: tuple[FittedParameter, ...] | None = None
    fit: FitQuality | None = None
    observations: tuple[Observation, ...] = ()
    frontiers: tuple[IterationFrontier, ...] | None = None
    batch_size_search: BatchSizeSearch | None = None


@dataclass(frozen=True, slots=True)
class EnergyProfile:
    """One EnergyProfile; `problems` names the parts of the status that cannot be read."""

    metadata: ObjectMeta
    spec: EnergyProfileSpec
    status: EnergyProfileStatus
    problems: tuple[str, ...] = ()


def read_energy_profile(raw: Mapping[str, Any]) -> EnergyProfile:
    """An EnergyProfile from its JSON; raises InvalidObject where its metadata or spec is not as the CRD has it."""
    metadata = read_metadata(KIND, raw)
    spec = read_spec(KIND, metadata, raw, EnergyProfileSpec)
    status, problems = read_status(raw, EnergyProfileStatus)
    return EnergyProfile(metadata, spec, status, problems)


def energy_profile_object(
    namespace: str, name: str, spec: EnergyProfileSpec, owner: Mapping[str, str] | None = None
) -> JsonObject:
    """A new EnergyProfile without status; `owner` (name, uid) is the EnergyAwareJob that it goes away with."""
    metadata: JsonObject = {"namespace": namespace, "name": name}
    if owner is not None:
        metadata["ownerReferences"] = [{"apiVersion": FLYBALL_API_VERSION, "kind": "EnergyAwareJob", **owner}]
    return {
        "apiVersion": FLYBALL_API_VERSION,
        "kind": KIND,
        "metadata": metadata,
        "spec": {"profileKey": spec.profile_key, "gpuModel": spec.gpu_model},
    }


def decimal_string(number: float) -> str:
    """A real number as the API has it, every digit kept; raises ValueError for one beyond 1e99 or not finite."""
    if not math.isfinite(number) or abs(number) >= 1e99:
        raise ValueError(f"{number} cannot be written as a decimal string")
    return "0.0" if abs(number) < 1e-99 else repr(float(number))
