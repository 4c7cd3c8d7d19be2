"""A batch Job that is nobody's training job, and waits, suspended, until it is let run by the watts of the caps."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from msgspec import field

from flyball_api.names import ADMISSION_BY_POWER, ANNOTATION_WATTS_PER_GPU, LABEL_ADMISSION, LABEL_KUEUE_QUEUE
from flyball_api.reading import ApiStruct, read_object
from flyball_api.values.templates import problem_of_template
from flyball_api.workloads.metadata import Metadata, ObjectCondition, holds
from flyball_api.workloads.pod import Labels, gpus_of_template, labels_of_template, power_permille_of_template
from flyball_api.workloads.resources import DEFAULT_GPU_RESOURCES

LONGEST_WATTS = len("99999")
SHOWN_LENGTH = 40  # of a value that cannot be read
KUBERNETES_JOB_CONTROLLER = "kubernetes.io/job-controller"


class _Spec(ApiStruct, frozen=True):
    parallelism: int = 1
    completions: int | None = None
    suspend: bool = False
    managed_by: str = KUBERNETES_JOB_CONTROLLER
    template: dict[str, Any] = field(default_factory=dict)


class _Status(ApiStruct, frozen=True):
    conditions: tuple[ObjectCondition, ...] = ()
    succeeded: int = 0


class _Metadata(Metadata, frozen=True):
    creation_timestamp: str = ""


class _Job(ApiStruct, frozen=True):
    metadata: _Metadata
    spec: _Spec = _Spec()
    status: _Status = _Status()


class PlainJob(ApiStruct, frozen=True):
    """A batch Job with the label `flyball.dev/admission`: `pods` at once that want `gpus_per_pod` GPUs each.

    `created` is in the API's format, which sorts. `watts_per_gpu` is the least that each of its GPUs should get (0: the
    smallest limit will do), `permille` what its pods ask for of their share; `labels` are its pods'. `left_to` names who
    else decides when it runs (empty: nobody).
    """

    namespace: str
    name: str
    uid: str
    resource_version: str
    created: str
    suspended: bool
    ended: bool
    pods: int
    gpu_resource: str
    gpus_per_pod: int
    template: dict[str, Any]
    watts_per_gpu: int
    permille: int
    labels: Labels
    left_to: str
    problem: str = ""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def waits(self) -> bool:
        """It is Flyball's to let run."""
        return self.suspended and not self.ended and not self.left_to

    @property
    def runs(self) -> bool:
        """It was let run, and has not ended."""
        return not self.suspended and not self.ended and not self.left_to

    @property
    def gpus(self) -> int:
        """What its pods want together."""
        return self.pods * self.gpus_per_pod


def read_plain_job(raw: Mapping[str, Any], gpu_resources: Collection[str] = DEFAULT_GPU_RESOURCES) -> PlainJob:
    """A `batch/v1.Job` that waits by the label; raises InvalidObject where it is no Job."""
    job = read_object("Job", raw, _Job)
    metadata, spec = job.metadata, job.spec
    wanted = {name: gpus_of_template(spec.template, [name]) for name in gpu_resources}
    resource = max(wanted, key=lambda name: wanted[name])
    left = spec.parallelism if spec.completions is None else max(0, spec.completions - job.status.succeeded)
    text = metadata.annotations.get(ANNOTATION_WATTS_PER_GPU, "0")
    readable = text.isascii() and text.isdigit() and len(text) <= LONGEST_WATTS
    unusable = problem_of_template(spec.template)
    ended = holds(job.status.conditions, "Complete") or holds(job.status.conditions, "Failed")
    return PlainJob(
        namespace=metadata.namespace,
        name=metadata.name,
        uid=metadata.uid,
        resource_version=metadata.resource_version,
        created=metadata.creation_timestamp,
        suspended=spec.suspend,
        ended=ended or metadata.deletion_timestamp is not None,
        pods=min(spec.parallelism, left),
        gpu_resource=resource,
        gpus_per_pod=wanted[resource],
        template={} if unusable else spec.template,
        watts_per_gpu=int(text) if readable else 0,
        permille=power_permille_of_template(spec.template),
        labels=labels_of_template(spec.template),
        left_to=_left_to(metadata, spec),
        problem=unusable if readable else _unreadable(text),
    )


def _unreadable(text: str) -> str:
    shown = text if len(text) <= SHOWN_LENGTH else f"{text[:SHOWN_LENGTH]}..."
    return f"its annotation {ANNOTATION_WATTS_PER_GPU} is {shown!r}; it should be whole watts, 0 to 99999, such as 300"


def _left_to(metadata: Metadata, spec: _Spec) -> str:
    """Who else decides when the Job runs: its owner, Kueue, another Job controller; empty: nobody but Flyball."""
    if metadata.labels.get(LABEL_ADMISSION) != ADMISSION_BY_POWER:
        return "its owner"
    if metadata.owner_references:
        owner = metadata.owner_references[0]
        return metadata.owner or f"{owner.kind}/{owner.name}"
    if LABEL_KUEUE_QUEUE in metadata.labels:
        return "Kueue"
    return "" if spec.managed_by == KUBERNETES_JOB_CONTROLLER else spec.managed_by
