"""What all of Kubernetes' own objects have: their metadata with owners, and conditions."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import field

from flyball_api.reading import ApiStruct

# What a batch Job's pods say of what made the Job, the highest first: a TrainJob makes a JobSet, which makes Jobs.
_ABOVE_JOBS = {"trainer.kubeflow.org/trainjob-name": "TrainJob", "jobset.sigs.k8s.io/jobset-name": "JobSet"}


class Owner(ApiStruct, frozen=True):
    """An entry of metadata.ownerReferences; at most one of an object's is its controller."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class Metadata(ApiStruct, frozen=True):
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    owner_references: tuple[Owner, ...] = ()

    def controller_uid(self, group: str, kind: str) -> str:
        """The UID of the object's controller where that is of this API group and kind; else an empty string."""
        for owner in self.owner_references:
            if owner.controller and owner.kind == kind and owner.api_version.startswith(f"{group}/"):
                return owner.uid
        return ""

    @property
    def owner(self) -> str:
        """Kind and name of what the object belongs to in the end; empty where nothing controls it.

        That is its controller, or what made that one, as pods of Deployments, JobSets, TrainJobs and RayJobs say by their
        labels.
        """
        for owner in self.owner_references:
            if owner.controller:
                return self._above(owner) or f"{owner.kind}/{owner.name}"
        return ""

    def _above(self, owner: Owner) -> str:
        labels = self.labels
        match owner.kind:
            case "ReplicaSet":
                suffix = f"-{labels.get('pod-template-hash', '')}"
                deployment = len(suffix) > 1 and owner.name.endswith(suffix)
                return f"Deployment/{owner.name.removesuffix(suffix)}" if deployment else ""
            case "Job":
                above = (f"{kind}/{labels[label]}" for label, kind in _ABOVE_JOBS.items() if labels.get(label))
                return next(above, "")
            case "RayCluster":
                name, kind = (labels.get(f"ray.io/originated-from-{word}", "") for word in ("cr-name", "crd"))
                return f"{kind}/{name}" if kind and name else ""
        return ""


class ObjectCondition(ApiStruct, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""  # read where it is needed: most conditions are of pods, and nobody asks them for it


def holds(conditions: Iterable[ObjectCondition], kind: str) -> bool:
    for condition in conditions:
        if condition.type == kind:
            return condition.status == "True"
    return False
