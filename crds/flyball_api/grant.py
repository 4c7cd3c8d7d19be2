"""What the operator allows one node: the grant, which GPUNode.spec carries from the operator to the node's agent."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, NamedTuple, Self

import msgspec
from msgspec import Meta, Struct, ValidationError, convert
from msgspec.structs import replace

from flyball_api.reading import MAX_INTEGER, ApiStruct, Count, InvalidObject, JsonObject, Name, describe, without_nulls
from flyball_api.values.units import MilliwattsPerGpu, NodeMilliwatts, node_milliwatts, of_nodes

MAX_JOBS = 256
MAX_FOREIGN_PODS = 256
DIGEST_LENGTH = 32  # hexadecimal digits: 128 bits
MAX_DIGEST_LENGTH = 64
MAX_HOLD_SECONDS = 86_400
MAX_CAPS = 256
MILLIONTHS = 1_000_000

PerGpu = Annotated[MilliwattsPerGpu, Meta(ge=0, le=MAX_INTEGER)]
OfNode = Annotated[NodeMilliwatts, Meta(ge=0, le=MAX_INTEGER)]


class GrantVersion(NamedTuple):
    """The order of all grants of a node: by the leader that wrote them, then by number. (0, 0) comes before any."""

    epoch: int = 0
    generation: int = 0


class BrakeVersion(NamedTuple):
    """The order of all PowerBrakes of one cap: by the leader that wrote them, then by number. (0, 0) comes before any."""

    epoch: int = 0
    sequence: int = 0


class CapOverNode(Struct, frozen=True):
    """A PowerCap over a node, and the last of its PowerBrakes that the grant was made with: later ones lower it."""

    name: str
    brake: BrakeVersion


class PowerBound(Struct, frozen=True):
    """The most that GPUs may draw: by their limits, and as predicted under them. Both are sums over several GPUs."""

    limit_milliwatts: NodeMilliwatts = NodeMilliwatts(0)
    expected_milliwatts: NodeMilliwatts = NodeMilliwatts(0)

    def __add__(self, other: PowerBound) -> PowerBound:
        return PowerBound(
            self.limit_milliwatts + other.limit_milliwatts, self.expected_milliwatts + other.expected_milliwatts
        )

    def __or__(self, other: PowerBound) -> PowerBound:
        """The higher of two, each figure by itself."""
        return PowerBound(
            max(self.limit_milliwatts, other.limit_milliwatts), max(self.expected_milliwatts, other.expected_milliwatts)
        )

    def at_most(self, milliwatts: NodeMilliwatts) -> PowerBound:
        """This bound under limits that add up to `milliwatts`: no more than those can be drawn."""
        limit = max(NodeMilliwatts(0), min(self.limit_milliwatts, milliwatts))
        return PowerBound(limit, min(self.expected_milliwatts, limit))

    def covers(self, other: PowerBound) -> bool:
        """Whether `other` allows nothing that this bound does not."""
        return other.limit_milliwatts <= self.limit_milliwatts and other.expected_milliwatts <= self.expected_milliwatts


class JobGrant(Struct, frozen=True):
    """What each GPU of one pod may draw, and its range of SM clocks (minimum 0: the GPU's lowest, maximum 0: no lock)."""

    namespace: str
    name: str
    uid: str
    incarnation: int
    pod_name: str
    gpus: int
    power_limit_milliwatts: MilliwattsPerGpu
    clock_min_megahertz: int = 0
    clock_max_megahertz: int = 0
    pod_uid: str = ""  # "": not said by an operator of an earlier version

    @property
    def limit_milliwatts(self) -> NodeMilliwatts:
        """What the limits of the pod's GPUs add up to."""
        return node_milliwatts(self.power_limit_milliwatts, self.gpus)


class ForeignPodLimit(Struct, frozen=True):
    """What each GPU of one pod outside Flyball may draw, where that is another limit than such pods' GPUs have else."""

    namespace: str
    pod_name: str
    power_limit_milliwatts: MilliwattsPerGpu


class OtherGpuLimits(Struct, frozen=True):
    """What the GPUs without a Flyball pod may draw each, and how many of them pods outside Flyball hold.

    A limit of 0 stands for the GPU's own: the smallest for idle and failsafe, the default for foreign. `foreign_pods`, in
    the order of their names, are those with limits of their own; their GPUs are among `foreign_gpus`. For
    `failsafe_hold_seconds` after the end of the lease all limits are held as granted, before they fall to the failsafe.
    """

    idle_power_limit_milliwatts: MilliwattsPerGpu = MilliwattsPerGpu(0)
    foreign_power_limit_milliwatts: MilliwattsPerGpu = MilliwattsPerGpu(0)
    foreign_gpus: int = 0
    failsafe_power_limit_milliwatts: MilliwattsPerGpu = MilliwattsPerGpu(0)
    failsafe_hold_seconds: int = 0
    foreign_pods: tuple[ForeignPodLimit, ...] = ()

    def foreign_limit_of(self, namespace: str, pod_name: str) -> MilliwattsPerGpu:
        """What each GPU of a pod outside Flyball may draw; 0: the GPU's default."""
        for pod in self.foreign_pods:
            if (pod.namespace, pod.pod_name) == (namespace, pod_name):
                return pod.power_limit_milliwatts
        return self.foreign_power_limit_milliwatts


class Grant(Struct, frozen=True):
    """What the operator allows one node, as GPUNode.spec has it.

    `caps` are the caps whose PowerBrakes the node follows, `min_power_limit_milliwatts` the smallest limit of each of its
    GPUs, from which their shares are reckoned.
    `digest` tells grants apart that have the same version, as a GPUNode that is made anew begins anew: agents give it back
    with their acknowledgement, as it is (empty: by a writer that knows none). `bound` is the sum of this grant's own
    limits; `committed` also covers every earlier grant that was not yet acknowledged when this one was written, so that
    outstanding grants survive the operator that sent them.
    """

    epoch: int
    generation: int
    lease_seconds: int
    bound: PowerBound
    committed: PowerBound = PowerBound()
    other_gpus: OtherGpuLimits = OtherGpuLimits()
    jobs: tuple[JobGrant, ...] = ()
    caps: tuple[CapOverNode, ...] = ()
    min_power_limit_milliwatts: MilliwattsPerGpu = MilliwattsPerGpu(0)
    digest: str = ""

    def sealed(self) -> Self:
        """The same grant with a digest over all of its fields."""
        spec = grant_spec(replace(self, digest=""))
        if not self.other_gpus.foreign_pods:  # agents that do not know of them come to the same digest
            del spec["otherGpus"]["foreignPods"]
        encoded = msgspec.json.encode(spec, order="deterministic")
        return replace(self, digest=hashlib.sha256(encoded).hexdigest()[:DIGEST_LENGTH])

    @property
    def version(self) -> GrantVersion:
        return GrantVersion(self.epoch, self.generation)

    def entry_of(self, pod_name: str, job_uid: str) -> JobGrant | None:
        """The entry of a job's pod; None where it has none."""
        return next((job for job in self.jobs if (job.pod_name, job.uid) == (pod_name, job_uid)), None)

    def same_content(self, other: Self) -> bool:
        """Whether both ask the same of the agent, whatever their version and the brakes that they were made with."""
        return self._content() == other._content()

    def _content(self) -> tuple[object, ...]:
        names = tuple(cap.name for cap in self.caps)
        return self.bound, self.lease_seconds, self.other_gpus, self.jobs, names, self.min_power_limit_milliwatts

    def within(self, milliwatts: NodeMilliwatts) -> Self:
        """This grant with its jobs' limits lowered by one share, so that it comes to no more than that, if they can."""
        return self.lowered(self.kept_within(milliwatts))

    def kept_within(self, milliwatts: NodeMilliwatts) -> int:
        """Which share of what its jobs' limits have above the smallest one, in millionths, they may keep for that."""
        least = self.lowered(0).bound.limit_milliwatts
        above = self.bound.limit_milliwatts - least
        return MILLIONTHS if above <= 0 else max(0, min(MILLIONTHS, (milliwatts - least) * MILLIONTHS // above))

    def lowered(self, kept_millionths: int) -> Self:
        """This grant with each job's limit keeping that share of what it has above the smallest limit, and no more.

        Nothing in it is above what it was; what it grants beside its jobs stays.
        """
        smallest = self.min_power_limit_milliwatts
        jobs = tuple(
            replace(
                job,
                power_limit_milliwatts=MilliwattsPerGpu(
                    smallest + (job.power_limit_milliwatts - smallest) * kept_millionths // MILLIONTHS
                ),
            )
            if job.power_limit_milliwatts > smallest
            else job
            for job in self.jobs
        )
        freed = of_nodes(job.limit_milliwatts for job in self.jobs) - of_nodes(job.limit_milliwatts for job in jobs)
        return replace(self, jobs=jobs, bound=self.bound.at_most(self.bound.limit_milliwatts - freed))


class _Clocks(ApiStruct, frozen=True):
    min: Count = 0
    max: Count = 0


class _JobGrant(ApiStruct, frozen=True):
    namespace: Name
    name: Name
    uid: Name
    pod_name: Name
    power_limit_milliwatts: PerGpu
    gpus: Count = 0
    incarnation: Count = 0
    clock_megahertz: _Clocks = _Clocks()
    pod_uid: str = ""


class _ForeignPod(ApiStruct, frozen=True):
    namespace: Name
    pod_name: Name
    power_limit_milliwatts: PerGpu


class _OtherGpus(ApiStruct, frozen=True):
    idle_power_limit_milliwatts: PerGpu = MilliwattsPerGpu(0)
    foreign_power_limit_milliwatts: PerGpu = MilliwattsPerGpu(0)
    foreign_gpus: Count = 0
    failsafe_power_limit_milliwatts: PerGpu = MilliwattsPerGpu(0)
    failsafe_hold_seconds: Annotated[int, Meta(ge=0, le=MAX_HOLD_SECONDS)] = 0
    foreign_pods: Annotated[tuple[_ForeignPod, ...], Meta(max_length=MAX_FOREIGN_PODS)] = ()


class _Cap(ApiStruct, frozen=True):
    name: Name
    brake_epoch: Count
    brake_sequence: Count


class GrantSpec(ApiStruct, frozen=True):
    """GPUNode.spec with the fields of its JSON; `Grant` has the same as code uses it."""

    epoch: Count
    generation: Count
    lease_seconds: Count
    bound_milliwatts: OfNode
    expected_milliwatts: OfNode = NodeMilliwatts(0)
    committed_milliwatts: OfNode = NodeMilliwatts(0)
    committed_expected_milliwatts: OfNode = NodeMilliwatts(0)
    other_gpus: _OtherGpus = _OtherGpus()
    jobs: Annotated[tuple[_JobGrant, ...], Meta(max_length=MAX_JOBS)] = ()
    caps: Annotated[tuple[_Cap, ...], Meta(max_length=MAX_CAPS)] = ()
    min_power_limit_milliwatts: PerGpu = MilliwattsPerGpu(0)
    digest: Annotated[str, Meta(max_length=MAX_DIGEST_LENGTH)] = ""

    def grant(self) -> Grant:
        """What the spec says; its jobs in the order of their UIDs and pods, its caps in that of their names."""
        others = self.other_gpus
        return Grant(
            epoch=self.epoch,
            generation=self.generation,
            lease_seconds=self.lease_seconds,
            bound=PowerBound(self.bound_milliwatts, self.expected_milliwatts),
            committed=PowerBound(self.committed_milliwatts, self.committed_expected_milliwatts),
            other_gpus=OtherGpuLimits(
                others.idle_power_limit_milliwatts,
                others.foreign_power_limit_milliwatts,
                others.foreign_gpus,
                others.failsafe_power_limit_milliwatts,
                others.failsafe_hold_seconds,
                tuple(
                    ForeignPodLimit(pod.namespace, pod.pod_name, pod.power_limit_milliwatts)
                    for pod in others.foreign_pods
                ),
            ),
            jobs=tuple(
                JobGrant(
                    job.namespace,
                    job.name,
                    job.uid,
                    job.incarnation,
                    job.pod_name,
                    job.gpus,
                    job.power_limit_milliwatts,
                    job.clock_megahertz.min,
                    job.clock_megahertz.max,
                    job.pod_uid,
                )
                for job in sorted(self.jobs, key=lambda job: (job.uid, job.pod_name))
            ),
            caps=tuple(
                CapOverNode(cap.name, BrakeVersion(cap.brake_epoch, cap.brake_sequence))
                for cap in sorted(self.caps, key=lambda cap: cap.name)
            ),
            min_power_limit_milliwatts=self.min_power_limit_milliwatts,
            digest=self.digest,
        )


def read_grant(spec: Any) -> Grant:
    """The grant of a GPUNode.spec; raises InvalidObject, and nothing else, that names the field and what is wrong.

    Operator and agent read it by this alone, so that neither takes for a grant what the other refuses.
    """
    try:
        return convert(spec, GrantSpec).grant()
    except ValidationError:
        try:  # a null stands for a missing field, as it does for the API server
            return convert(without_nulls(spec), GrantSpec).grant()
        except (ValidationError, RecursionError) as error:
            raise InvalidObject(describe("spec", error)) from error


def grant_spec(grant: Grant) -> JsonObject:
    """A grant as GPUNode.spec has it; `read_grant` reads it back."""
    others = grant.other_gpus
    return {
        **({"digest": grant.digest} if grant.digest else {}),
        "epoch": grant.epoch,
        "generation": grant.generation,
        "leaseSeconds": grant.lease_seconds,
        "boundMilliwatts": grant.bound.limit_milliwatts,
        "expectedMilliwatts": grant.bound.expected_milliwatts,
        "committedMilliwatts": grant.committed.limit_milliwatts,
        "committedExpectedMilliwatts": grant.committed.expected_milliwatts,
        "otherGpus": {
            "idlePowerLimitMilliwatts": others.idle_power_limit_milliwatts,
            "foreignPowerLimitMilliwatts": others.foreign_power_limit_milliwatts,
            "foreignGpus": others.foreign_gpus,
            "failsafePowerLimitMilliwatts": others.failsafe_power_limit_milliwatts,
            "failsafeHoldSeconds": others.failsafe_hold_seconds,
            # Also where there are none: what a patch leaves out stays.
            "foreignPods": _foreign_pods_spec(others),
        },
        "jobs": [
            {
                "namespace": job.namespace,
                "name": job.name,
                "uid": job.uid,
                "incarnation": job.incarnation,
                "podName": job.pod_name,
                "podUid": job.pod_uid,
                "gpus": job.gpus,
                "powerLimitMilliwatts": job.power_limit_milliwatts,
                "clockMegahertz": {"min": job.clock_min_megahertz, "max": job.clock_max_megahertz},
            }
            for job in grant.jobs
        ],
        "minPowerLimitMilliwatts": grant.min_power_limit_milliwatts,
        "caps": [
            {"name": cap.name, "brakeEpoch": cap.brake.epoch, "brakeSequence": cap.brake.sequence} for cap in grant.caps
        ],
    }


def _foreign_pods_spec(others: OtherGpuLimits) -> list[JsonObject]:
    return [
        {
            "namespace": pod.namespace,
            "podName": pod.pod_name,
            "powerLimitMilliwatts": pod.power_limit_milliwatts,
        }
        for pod in others.foreign_pods
    ]
