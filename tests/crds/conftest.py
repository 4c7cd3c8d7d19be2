"""What the tests of the API share: the real API server, a namespace, and the smallest object of each kind."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from flyball_kube.errors import ApiError
from flyball_testbed.controlplane.api import ApiClient, Json
from flyball_testbed.controlplane.cluster import DevCluster

GROUP = "/apis/flyball.dev/v1alpha1"
PLURALS = {
    "EnergyAwareJob": "energyawarejobs",
    "PowerCap": "powercaps",
    "GPUNode": "gpunodes",
    "PowerBrake": "powerbrakes",
    "BrakeAcknowledgement": "brakeacknowledgements",
    "EnergyProfile": "energyprofiles",
    "EnergyQuota": "energyquotas",
    "EnergyReport": "energyreports",
}
CLUSTER_SCOPED = {"PowerCap", "GPUNode", "PowerBrake", "BrakeAcknowledgement", "EnergyReport"}
SMALLEST_SPECS: dict[str, Json] = {
    "EnergyAwareJob": {
        "gpus": {"min": 1, "max": 16},
        "training": {"globalBatchSize": 256},
        "template": {"spec": {"containers": [{"name": "trainer", "image": "trainer"}]}},
    },
    "PowerCap": {"watts": 40_000},
    "GPUNode": {
        "epoch": 3,
        "generation": 10,
        "leaseSeconds": 30,
        "boundMilliwatts": 1_000_000,
        "expectedMilliwatts": 800_000,
        "committedMilliwatts": 1_000_000,
        "committedExpectedMilliwatts": 800_000,
    },
    "PowerBrake": {"epoch": 3, "sequence": 10, "keptMillionths": 400_000},
    "BrakeAcknowledgement": {
        "epoch": 3,
        "generation": 10,
        "limitsMilliwatts": 800_000,
        "bootID": "boot",
        "driverSession": "driver",
    },
    "EnergyProfile": {"profileKey": "gpt2", "gpuModel": "NVIDIA A100-SXM4-40GB"},
    "EnergyQuota": {"gpus": 8},
    "EnergyReport": {
        "day": "2030-06-01",
        "countedSince": "2030-05-01T00:00:00Z",
        "chargedUntil": "2030-06-01T12:00:00Z",
    },
}


def merged(base: Any, changes: Any) -> Any:
    """`base` with `changes` laid over it; None takes a field away."""
    if not isinstance(base, dict) or not isinstance(changes, dict):
        return changes
    result = copy.deepcopy(base)
    for key, value in changes.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


@dataclass(frozen=True)
class Kinds:
    """Creates and changes objects of Flyball's kinds in one namespace of a real API server."""

    api: ApiClient
    namespace: str

    def path(self, kind: str, name: str | None = None) -> str:
        scope = GROUP if kind in CLUSTER_SCOPED else f"{GROUP}/namespaces/{self.namespace}"
        return f"{scope}/{PLURALS[kind]}" + (f"/{name}" if name else "")

    def object(self, kind: str, spec_changes: Json | None = None, name: str = "subject") -> Json:
        """The smallest object of a kind, with changes to its spec."""
        metadata: Json = {"name": name}
        if kind not in CLUSTER_SCOPED:
            metadata["namespace"] = self.namespace
        spec = merged(SMALLEST_SPECS[kind], spec_changes or {})
        return {"apiVersion": "flyball.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}

    def try_create(self, manifest: Json, api: ApiClient | None = None) -> Json:
        """What the API server would store, without storing it; ApiError where it refuses."""
        answer: Json = (api or self.api).request("POST", self.path(manifest["kind"]), manifest, query={"dryRun": "All"})
        return answer

    def try_update(self, stored: Json, spec_changes: Json) -> Json:
        """What an update of a stored object would give, without storing it; ApiError where it is refused."""
        manifest = {**stored, "spec": merged(stored["spec"], spec_changes)}
        path = self.path(stored["kind"], stored["metadata"]["name"])
        answer: Json = self.api.request("PUT", path, manifest, query={"dryRun": "All"})
        return answer

    def refusal(self, call: Any, *arguments: Any) -> ApiError:
        """The API server's refusal of a call that must not succeed."""
        with pytest.raises(ApiError) as caught:
            call(*arguments)
        return caught.value


@pytest.fixture(scope="module")
def kinds(control_plane: DevCluster) -> Iterator[Kinds]:
    """A namespace for the tests of one module; afterwards its objects and all cluster-scoped ones are gone."""
    api = control_plane.api
    namespace = f"crds-{uuid.uuid4().hex[:8]}"
    api.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    api.wait_for(f"/api/v1/namespaces/{namespace}/serviceaccounts/default", lambda account: account is not None)
    yield Kinds(api, namespace)
    for kind in CLUSTER_SCOPED:
        api.delete_collection(f"{GROUP}/{PLURALS[kind]}")
    api.delete(f"/api/v1/namespaces/{namespace}")
