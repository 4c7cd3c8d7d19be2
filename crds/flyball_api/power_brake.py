"""PowerBrake: one write that lowers every node under the PowerCap of the same name, and the lever for emergencies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta

from flyball_api.grant import MILLIONTHS, BrakeVersion
from flyball_api.names import FLYBALL_API_VERSION
from flyball_api.reading import ApiStruct, Count, JsonObject, ObjectMeta, read_metadata, read_spec

KIND = "PowerBrake"
EmergencyState = Literal["Active", "Ended"]
MAX_REASON_LENGTH = 256

Share = Annotated[int, Meta(ge=0, le=MILLIONTHS)]


class PowerBrakeSpec(ApiStruct, frozen=True):
    """PowerBrake.spec."""

    epoch: Count
    sequence: Count
    kept_millionths: Share
    emergency: EmergencyState | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class PowerBrake:
    """One PowerBrake."""

    metadata: ObjectMeta
    spec: PowerBrakeSpec

    @property
    def cap(self) -> str:
        """The name of the cap under which it lowers limits."""
        return self.metadata.name

    @property
    def version(self) -> BrakeVersion:
        return BrakeVersion(self.spec.epoch, self.spec.sequence)

    @property
    def active(self) -> bool:
        """It is an emergency that has not been ended: no grant lifts it."""
        return self.spec.emergency == "Active"

    @property
    def everything(self) -> bool:
        """It is for every GPU, whoever holds it, not for those of jobs alone."""
        return self.spec.emergency is not None


def read_power_brake(raw: Mapping[str, Any]) -> PowerBrake:
    """A PowerBrake from its JSON; raises InvalidObject where it is not as the CRD has it."""
    metadata = read_metadata(KIND, raw)
    return PowerBrake(metadata, read_spec(KIND, metadata, raw, PowerBrakeSpec))


def power_brake_object(cap: str, spec: PowerBrakeSpec, resource_version: str = "") -> JsonObject:
    """A PowerBrake as it is written; `resource_version` of the one that it replaces."""
    written: JsonObject = {"epoch": spec.epoch, "sequence": spec.sequence, "keptMillionths": spec.kept_millionths}
    if spec.emergency is not None:
        written["emergency"] = spec.emergency
    if spec.reason:
        written["reason"] = spec.reason
    metadata: JsonObject = {"name": cap}
    if resource_version:
        metadata["resourceVersion"] = resource_version
    return {"apiVersion": FLYBALL_API_VERSION, "kind": KIND, "metadata": metadata, "spec": written}
