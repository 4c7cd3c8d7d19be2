"""BrakeAcknowledgement: how an agent acknowledges a brake at once, in a small object of its node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flyball_api.gpu_node import Acknowledgement
from flyball_api.names import FLYBALL_API_VERSION
from flyball_api.reading import JsonObject, ObjectMeta, read_metadata, read_spec
from flyball_api.writing import to_patch

KIND = "BrakeAcknowledgement"


@dataclass(frozen=True, slots=True)
class BrakeAcknowledgement:
    """One node's last acknowledgement of a brake."""

    metadata: ObjectMeta
    acknowledged: Acknowledgement

    @property
    def node(self) -> str:
        return self.metadata.name


def read_brake_acknowledgement(raw: Mapping[str, Any]) -> BrakeAcknowledgement:
    """A BrakeAcknowledgement from its JSON; raises InvalidObject where it is not as the CRD has it."""
    metadata = read_metadata(KIND, raw)
    return BrakeAcknowledgement(metadata, read_spec(KIND, metadata, raw, Acknowledgement))


def brake_acknowledgement_patch(acknowledged: Acknowledgement) -> JsonObject:
    """The acknowledgement as a merge patch of the node's object."""
    return {"spec": to_patch(acknowledged)}


def brake_acknowledgement_object(node: str, gpu_node_uid: str, acknowledged: Acknowledgement) -> JsonObject:
    """A node's first BrakeAcknowledgement; it goes with the node's GPUNode."""
    owner = {"apiVersion": FLYBALL_API_VERSION, "kind": "GPUNode", "name": node, "uid": gpu_node_uid}
    spec = {key: value for key, value in to_patch(acknowledged).items() if value is not None}
    metadata = {"name": node, "ownerReferences": [owner]}
    return {"apiVersion": FLYBALL_API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}
