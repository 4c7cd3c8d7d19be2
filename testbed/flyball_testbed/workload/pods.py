"""What the workload host needs to know of a pod that holds GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from flyball_api.names import LABEL_INCARNATION, LABEL_JOB_NAME, LABEL_JOB_UID

from flyball_testbed.controlplane.stages import (
    ANNOTATION_PREFIX,
    GPU_RESOURCE_SUFFIX,
    MIG_RESOURCE,
    OUTCOME_ANNOTATION,
    STOPPED_ANNOTATION,
)

# The environment from which a simulated trainer reads its task; it stands in the pod template of the submitted job.
MODEL_CLASS_VARIABLE = "DEVCLUSTER_MODEL_CLASS"
ITERATIONS_VARIABLE = "DEVCLUSTER_ITERATIONS"
GLOBAL_BATCH_VARIABLE = "DEVCLUSTER_GLOBAL_BATCH"
WORLD_SIZE_VARIABLE = "FLYBALL_WORLD_SIZE"
# How busy a pod that is no simulated training keeps its GPUs (0..1).
ACTIVITY_ANNOTATION = f"{ANNOTATION_PREFIX}/activity"

IncarnationKey = tuple[str, int]
_ANNOTATION = re.compile(r"metadata\.annotations\['(.+)'\]")


def simulated_trainer(model_class: str, global_batch_size: int, iterations: int) -> dict[str, Any]:
    """A pod's container that trains as the workload host simulates it."""
    environment = {
        MODEL_CLASS_VARIABLE: model_class,
        GLOBAL_BATCH_VARIABLE: str(global_batch_size),
        ITERATIONS_VARIABLE: str(iterations),
    }
    return {
        "name": "trainer",
        "image": "flyball.dev/simulated-trainer",
        "env": [{"name": name, "value": value} for name, value in environment.items()],
    }


@dataclass(frozen=True, slots=True)
class MountedConfigMap:
    """A ConfigMap in a container: where it is mounted, and its keys by the paths that they have there.

    `annotations` of the pod's own are files beside them, by their paths too. An `optional` one may be missing.
    """

    name: str
    mount: str
    keys: Mapping[str, str]
    annotations: Mapping[str, str] = field(default_factory=dict)
    optional: bool = False


@dataclass(frozen=True, slots=True)
class GpuPod:
    """One pod with GPUs, or parts of some, as the API has it now."""

    namespace: str
    name: str
    uid: str
    node: str | None
    gpus: int
    phase: str
    deleting: bool
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    # Of the environment, what the pod's own fields give: the field's path by the variable's name.
    field_references: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()  # of the first container
    config_maps: tuple[MountedConfigMap, ...] = ()  # of the first container, those whose keys it names
    grace_seconds: float = 30.0

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> GpuPod:
        """From a Pod object. Raises ValueError for a GPU count that is no whole number."""
        metadata, spec = raw["metadata"], raw["spec"]
        gpus = 0
        environment: dict[str, str] = {}
        references: dict[str, str] = {}
        for container in spec.get("containers") or []:
            limits = (container.get("resources") or {}).get("limits") or {}
            gpus += sum(
                int(count)
                for name, count in limits.items()
                if name.endswith(GPU_RESOURCE_SUFFIX) or name == MIG_RESOURCE
            )
            environment |= {
                variable["name"]: variable["value"] for variable in container.get("env") or [] if "value" in variable
            }
            references |= {
                variable["name"]: variable["valueFrom"]["fieldRef"]["fieldPath"]
                for variable in container.get("env") or []
                if "fieldRef" in variable.get("valueFrom", {})
            }
        trainer = (spec.get("containers") or [{}])[0]
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            node=spec.get("nodeName"),
            gpus=gpus,
            phase=(raw.get("status") or {}).get("phase", "Pending"),
            deleting="deletionTimestamp" in metadata,
            labels=metadata.get("labels") or {},
            annotations=metadata.get("annotations") or {},
            environment=environment,
            field_references=references,
            command=(*(trainer.get("command") or ()), *(trainer.get("args") or ())),
            config_maps=tuple(_mounted_config_maps(spec, trainer)),
            grace_seconds=float(spec.get("terminationGracePeriodSeconds", 30)),
        )

    @property
    def key(self) -> str:
        """`<namespace>/<name>`, by which informers know it."""
        return f"{self.namespace}/{self.name}"

    @property
    def job_name(self) -> str:
        """The job that it belongs to; its own name where it belongs to none."""
        return self.labels.get(LABEL_JOB_NAME, self.name)

    @property
    def ended(self) -> bool:
        return self.phase in ("Succeeded", "Failed")

    @property
    def incarnation(self) -> IncarnationKey | None:
        """(job uid, number) of the Flyball incarnation that the pod belongs to; None for any other pod."""
        uid, number = self.labels.get(LABEL_JOB_UID), self.labels.get(LABEL_INCARNATION, "")
        return (uid, int(number)) if uid and number.isdigit() else None

    @property
    def stopped(self) -> bool:
        """Whether its annotations have it already that its processes have left."""
        return self.annotations.get(STOPPED_ANNOTATION) == "true" or OUTCOME_ANNOTATION in self.annotations


def _mounted_config_maps(spec: Mapping[str, Any], container: Mapping[str, Any]) -> Iterator[MountedConfigMap]:
    volumes = {volume["name"]: volume for volume in spec.get("volumes") or ()}
    for mount in container.get("volumeMounts") or ():
        volume = volumes.get(mount["name"]) or {}
        sources = (volume.get("projected") or {}).get("sources") or [volume]
        annotations = {
            item["path"]: found[1]
            for source in sources
            for item in (source.get("downwardAPI") or {}).get("items") or ()
            if (found := _ANNOTATION.fullmatch((item.get("fieldRef") or {}).get("fieldPath", ""))) is not None
        }
        for config_map in (source["configMap"] for source in sources if "configMap" in source):
            if config_map.get("items"):
                keys = {item["path"]: item["key"] for item in config_map["items"]}
                optional = bool(config_map.get("optional"))
                yield MountedConfigMap(config_map["name"], mount["mountPath"], keys, annotations, optional)
