"""EnergyAwareJobs and PowerCaps as the operator reads them: what users and SREs ask for, and what was reported so far.

The API server has validated and defaulted these objects by the CRDs' schema before anyone reads them, so that reading is
a matter of picking fields. What an older or newer version of a CRD lets through raises ValueError here, and the informer
leaves that one object out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

JsonObject = dict[str, Any]


def parse_time(text: str | None) -> datetime | None:
    """An API server's RFC 3339 time; None for none. Raises ValueError where it is no time."""
    if not text:
        return None
    return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(UTC)


def format_time(instant: datetime) -> str:
    return instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True)
class JobView:
    """One EnergyAwareJob; `status` is the raw status, `conditions` maps each condition's type to the condition."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    generation: int
    created: datetime
    deleting: bool
    gpus_min: int
    gpus_max: int
    resource_name: str
    global_batch_size: int
    iterations: int | None
    max_local_batch_size: int | None
    model_class: str
    template: JsonObject
    objective: str
    energy_budget_kilojoules: int | None
    on_exhausted: str
    deadline: datetime | None
    clock_min_megahertz: int | None
    clock_max_megahertz: int | None
    power_limit_max_watts: int | None
    elastic: bool
    min_seconds_between_resizes: int
    profile_key: str
    priority: int
    suspend: bool
    managed_by: str
    max_restarts: int
    ttl_seconds_after_finished: int | None
    unused_sections: tuple[str, ...]
    status: JsonObject
    conditions: Mapping[str, JsonObject]

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    def has(self, condition: str) -> bool:
        return (self.conditions.get(condition) or {}).get("status") == "True"

    @property
    def finished(self) -> bool:
        return self.has("Succeeded") or self.has("Failed")

    @property
    def refusal(self) -> str:
        """Why the API server refuses the pods of the very spec that stands, in the status' words; empty: it does not."""
        admitted = self.conditions.get("Admitted") or {}
        if admitted.get("reason") != "InvalidSpec" or admitted.get("observedGeneration") != self.generation:
            return ""
        return str(admitted.get("message") or "its pods are refused")

    @property
    def last_incarnation(self) -> int:
        return int((self.status.get("allocation") or {}).get("incarnation") or 0)


MANAGED_BY_FLYBALL = "flyball.dev/operator"
OBJECTIVES = ("Time", "Energy", "Balanced")


def read_job(raw: JsonObject) -> JobView:
    """An EnergyAwareJob as a JobView; raises ValueError where a required field is missing or a time is no time."""
    metadata, spec, status = raw["metadata"], raw["spec"], raw.get("status") or {}
    try:
        gpus, training, objective = spec["gpus"], spec["training"], spec.get("objective", "Balanced")
        if not 1 <= gpus["min"] <= gpus["max"]:
            raise ValueError(f"gpus.min {gpus['min']} and gpus.max {gpus['max']} must be 1 <= min <= max")
        if training["globalBatchSize"] < 1:
            raise ValueError(f"training.globalBatchSize {training['globalBatchSize']} must be at least 1")
        if objective not in OBJECTIVES:
            raise ValueError(f"objective {objective} is none of {', '.join(OBJECTIVES)}")
        energy, elasticity = spec.get("energy") or {}, spec.get("elasticity") or {}
        clocks = spec.get("clocks") or {}
        created = parse_time(metadata["creationTimestamp"])
        assert created is not None  # noqa: S101 - the API server sets it on every object
        return JobView(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            resource_version=metadata["resourceVersion"],
            generation=metadata.get("generation", 0),
            created=created,
            deleting="deletionTimestamp" in metadata,
            gpus_min=gpus["min"],
            gpus_max=gpus["max"],
            resource_name=gpus.get("resourceName", "nvidia.com/gpu"),
            global_batch_size=training["globalBatchSize"],
            iterations=training.get("iterations"),
            max_local_batch_size=training.get("maxLocalBatchSize"),
            model_class=training.get("modelClass", ""),
            template=spec["template"],
            objective=objective,
            energy_budget_kilojoules=energy.get("budgetKilojoules"),
            on_exhausted=energy.get("onExhausted", "Throttle"),
            deadline=parse_time(spec.get("deadline")),
            clock_min_megahertz=clocks.get("minMegahertz"),
            clock_max_megahertz=clocks.get("maxMegahertz"),
            power_limit_max_watts=(spec.get("powerLimit") or {}).get("maxWatts"),
            elastic=elasticity.get("mode", "CheckpointRestart") == "CheckpointRestart",
            min_seconds_between_resizes=elasticity.get("minSecondsBetweenResizes", 600),
            profile_key=spec.get("profileKey") or metadata["name"],
            priority=spec.get("priority", 0),
            suspend=spec.get("suspend", False),
            managed_by=spec.get("managedBy") or MANAGED_BY_FLYBALL,
            max_restarts=(spec.get("failurePolicy") or {}).get("maxRestarts", 3),
            ttl_seconds_after_finished=spec.get("ttlSecondsAfterFinished"),
            unused_sections=tuple(name for name in ("pipeline", "recurrence") if name in spec),
            status=status,
            conditions={condition["type"]: condition for condition in status.get("conditions") or ()},
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(
            f"EnergyAwareJob {metadata.get('namespace')}/{metadata['name']}: not as the CRD has it: {error!r}"
        ) from error


@dataclass(frozen=True, slots=True)
class CapView:
    """One PowerCap, its spec and status raw but for what every reader needs."""

    name: str
    uid: str
    generation: int
    deleting: bool
    spec: JsonObject
    status: JsonObject
    conditions: Mapping[str, JsonObject]

    @property
    def expected(self) -> bool:
        return bool(self.spec.get("enforcement", "Hard") == "Expected")

    @property
    def static_overhead_watts(self) -> int:
        return int(self.spec.get("staticOverheadWatts") or 0)

    @property
    def published_watts(self) -> int | None:
        """The effective cap that the status tells the world now."""
        watts = self.status.get("effectiveWatts")
        return None if watts is None else int(watts)


def read_cap(raw: JsonObject) -> CapView:
    """A PowerCap as a CapView."""
    metadata, status = raw["metadata"], raw.get("status") or {}
    return CapView(
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 0),
        deleting="deletionTimestamp" in metadata,
        spec=raw.get("spec") or {},
        status=status,
        conditions={condition["type"]: condition for condition in status.get("conditions") or ()},
    )
