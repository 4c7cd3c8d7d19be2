"""One start of a training job as Flyball sees it: its batch Job, and the place that the plan gave each rank."""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from flyball_api.names import ANNOTATION_ALLOCATION, GROUP, LABEL_INCARNATION, LABEL_JOB_NAME, LABEL_JOB_UID
from flyball_api.reading import ApiStruct, read_object
from flyball_api.workloads.metadata import Metadata, ObjectCondition
from flyball_api.workloads.pod import PodView
from flyball_api.workloads.resources import count


class _JobStatus(ApiStruct, frozen=True):
    conditions: tuple[ObjectCondition, ...] = ()


class _Job(ApiStruct, frozen=True):
    metadata: Metadata
    status: _JobStatus = _JobStatus()


# As many as a job may have (crds/energyawarejobs.yaml). Of fewer than one GPU no grant could be made: the API server would
# refuse all that its node is sent, cuts among them; and too many make no plan.
MAX_GPUS = 65_536
Gpus = Annotated[int, Meta(ge=1, le=MAX_GPUS)]
Placement = tuple[tuple[str, Gpus], ...]  # node and GPUs of each rank


class _Placement(ApiStruct, frozen=True):
    nodes: Placement = ()
    packed: str = ""


# The API server takes 256 KiB of annotations; longer ones are packed. Operators of before read none that are.
MAX_PLAIN_BYTES = 192 * 2**10
# What a packed one may hold: who may damage it may also make it one that fills the memory.
MAX_UNPACKED_BYTES = 4 * 2**20


class IncarnationView(ApiStruct, frozen=True):
    """One start of a training job: the batch Job made for it, with the `(node, gpus)` of each rank.

    `controller_uid` is the UID of the EnergyAwareJob that controls the batch Job (empty: none); the other fields about its
    job are by its labels, which anybody may set.
    """

    namespace: str
    name: str
    uid: str
    job_name: str
    job_uid: str
    incarnation: int
    nodes: tuple[tuple[str, int], ...]
    deleting: bool
    complete: bool
    failed: bool
    failure: str
    controller_uid: str = ""

    @property
    def gpus(self) -> int:
        return sum(gpus for _, gpus in self.nodes)

    def node_of(self, pod: PodView) -> str | None:
        """The node that the plan gave to a pod's rank; None for an index outside the incarnation."""
        return self.nodes[pod.index][0] if 0 <= pod.index < len(self.nodes) else None

    def as_own(self, pod: PodView) -> PodView:
        """The same pod as one of this incarnation, whatever its labels say."""
        return msgspec.structs.replace(pod, job_name=self.job_name, job_uid=self.job_uid, incarnation=self.incarnation)


def read_incarnation(raw: Mapping[str, Any]) -> IncarnationView:
    """A `batch/v1.Job` that Flyball made; raises InvalidObject where it is none.

    Somebody may have damaged its allocation annotation: then it has no `nodes`, and so is not what the plan wants.
    """
    job = read_object("Job", raw, _Job)
    metadata = job.metadata
    nodes = _placement(metadata.annotations.get(ANNOTATION_ALLOCATION, ""))
    conditions = {condition.type: condition for condition in job.status.conditions if condition.status == "True"}
    failure = conditions.get("Failed") or conditions.get("FailureTarget")
    return IncarnationView(
        namespace=metadata.namespace,
        name=metadata.name,
        uid=metadata.uid,
        job_name=metadata.labels.get(LABEL_JOB_NAME, ""),
        job_uid=metadata.labels.get(LABEL_JOB_UID, ""),
        incarnation=count(metadata.labels.get(LABEL_INCARNATION, 0)),
        nodes=nodes,
        deleting=metadata.deletion_timestamp is not None,
        complete="Complete" in conditions or "SuccessCriteriaMet" in conditions,
        failed=failure is not None,
        failure="" if failure is None else failure.message,
        controller_uid=metadata.controller_uid(GROUP, "EnergyAwareJob"),
    )


def placement_annotation(nodes: Iterable[tuple[str, int]]) -> str:
    """The `(node, gpus)` of each rank as the allocation annotation has them; `read_incarnation` reads them back."""
    listed = list(nodes)
    plain = msgspec.json.encode({"nodes": listed})
    if len(plain) <= MAX_PLAIN_BYTES:
        return plain.decode()
    return msgspec.json.encode({"packed": b64encode(zlib.compress(msgspec.json.encode(listed), 9)).decode()}).decode()


def _placement(annotation: str) -> Placement:
    """The nodes that `placement_annotation` wrote down; none of what it did not write."""
    try:
        found = msgspec.json.decode(annotation, type=_Placement)
        if not found.packed:
            return found.nodes
        unpacked = zlib.decompressobj().decompress(b64decode(found.packed, validate=True), MAX_UNPACKED_BYTES)
        return msgspec.json.decode(unpacked, type=Placement)
    except (ValueError, RecursionError, zlib.error):  # msgspec's errors are ValueErrors
        return ()
