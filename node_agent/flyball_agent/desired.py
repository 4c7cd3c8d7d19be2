"""What the operator asks of one node, `GPUNode.spec`, read defensively.

The API server has checked the object against its schema, but an agent outlives schemas: whatever is not exactly what
it should be refuses the whole spec, with a sentence, and the spec before it stays in force.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_INTEGER = 2**63 - 1
MAX_JOBS = 256
MAX_NAME_LENGTH = 253


class InvalidSpec(ValueError):
    """A spec that cannot be followed; the message names the field, its value, and what would be right."""


@dataclass(frozen=True, slots=True)
class JobGrant:
    """What one job's pod on this node is granted: a power limit for each of its GPUs, and an SM clock range.

    `clock_max_megahertz` 0: no lock.
    """

    namespace: str
    name: str
    uid: str
    incarnation: int
    pod_name: str
    gpus: int
    power_limit_milliwatts: int
    clock_min_megahertz: int = 0
    clock_max_megahertz: int = 0


@dataclass(frozen=True, slots=True)
class DesiredSpec:
    """One generation of a node's grant. Limits of 0 mean: the board's own (see each)."""

    epoch: int
    generation: int
    lease_seconds: int
    grant_milliwatts: int
    idle_limit_milliwatts: int = 0  # 0: the board's smallest
    foreign_limit_milliwatts: int = 0  # 0: the board's default
    foreign_gpus: int = 0
    failsafe_limit_milliwatts: int = 0  # 0: the board's smallest
    jobs: tuple[JobGrant, ...] = ()

    @property
    def pair(self) -> tuple[int, int]:
        """(epoch, generation): the order of all specs of a node."""
        return self.epoch, self.generation

    def to_json(self) -> dict[str, Any]:
        """The same spec as `GPUNode.spec` spells it; `parse_spec` reads it back."""
        return {
            "epoch": self.epoch,
            "generation": self.generation,
            "leaseSeconds": self.lease_seconds,
            "grantMilliwatts": self.grant_milliwatts,
            "devices": {
                "idlePowerLimitMilliwatts": self.idle_limit_milliwatts,
                "foreignPowerLimitMilliwatts": self.foreign_limit_milliwatts,
                "foreignGpus": self.foreign_gpus,
                "failsafePowerLimitMilliwatts": self.failsafe_limit_milliwatts,
            },
            "jobs": [
                {
                    "namespace": job.namespace,
                    "name": job.name,
                    "uid": job.uid,
                    "incarnation": job.incarnation,
                    "podName": job.pod_name,
                    "gpus": job.gpus,
                    "powerLimitMilliwatts": job.power_limit_milliwatts,
                    "clockMegahertz": {"min": job.clock_min_megahertz, "max": job.clock_max_megahertz},
                }
                for job in self.jobs
            ],
        }


def _integer(raw: Mapping[str, Any], field: str, where: str, default: int | None = None) -> int:
    value = raw.get(field, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_INTEGER:
        raise InvalidSpec(f"{where}{field}: {value!r} is not an integer within 0..{MAX_INTEGER}")
    return value


def _text(raw: Mapping[str, Any], field: str, where: str) -> str:
    value = raw.get(field)
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME_LENGTH:
        raise InvalidSpec(f"{where}{field}: {value!r:.80} is not a name of 1 to {MAX_NAME_LENGTH} characters")
    return value


def _mapping(raw: Mapping[str, Any], field: str, where: str) -> Mapping[str, Any]:
    value = raw.get(field)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidSpec(f"{where}{field}: {value!r:.80} is not an object")
    return value


def _job(raw: object, index: int) -> JobGrant:
    where = f"spec.jobs[{index}]."
    if not isinstance(raw, Mapping):
        raise InvalidSpec(f"spec.jobs[{index}]: {raw!r:.80} is not an object")
    clocks = _mapping(raw, "clockMegahertz", where)
    low = _integer(clocks, "min", where + "clockMegahertz.", 0)
    high = _integer(clocks, "max", where + "clockMegahertz.", 0)
    if low > high:
        raise InvalidSpec(f"{where}clockMegahertz: min {low} is above max {high}")
    return JobGrant(
        namespace=_text(raw, "namespace", where),
        name=_text(raw, "name", where),
        uid=_text(raw, "uid", where),
        incarnation=_integer(raw, "incarnation", where, 0),
        pod_name=_text(raw, "podName", where),
        gpus=_integer(raw, "gpus", where, 0),
        power_limit_milliwatts=_integer(raw, "powerLimitMilliwatts", where),
        clock_min_megahertz=low,
        clock_max_megahertz=high,
    )


def parse_spec(raw: object) -> DesiredSpec:
    """Read `GPUNode.spec`. Raises InvalidSpec, and nothing else, for anything that is not one."""
    if not isinstance(raw, Mapping):
        raise InvalidSpec(f"spec: {raw!r:.80} is not an object")
    devices = _mapping(raw, "devices", "spec.")
    jobs = raw.get("jobs") or []
    if not isinstance(jobs, list) or len(jobs) > MAX_JOBS:
        raise InvalidSpec(f"spec.jobs: not a list of at most {MAX_JOBS}")
    grants = tuple(_job(job, index) for index, job in enumerate(jobs))
    pods = [(job.namespace, job.pod_name) for job in grants]
    if len(set(pods)) != len(pods):
        twice = next(pod for pod in pods if pods.count(pod) > 1)
        raise InvalidSpec(f"spec.jobs: pod {twice[0]}/{twice[1]} is named twice")
    return DesiredSpec(
        epoch=_integer(raw, "epoch", "spec."),
        generation=_integer(raw, "generation", "spec."),
        lease_seconds=_integer(raw, "leaseSeconds", "spec."),
        grant_milliwatts=_integer(raw, "grantMilliwatts", "spec."),
        idle_limit_milliwatts=_integer(devices, "idlePowerLimitMilliwatts", "spec.devices.", 0),
        foreign_limit_milliwatts=_integer(devices, "foreignPowerLimitMilliwatts", "spec.devices.", 0),
        foreign_gpus=_integer(devices, "foreignGpus", "spec.devices.", 0),
        failsafe_limit_milliwatts=_integer(devices, "failsafePowerLimitMilliwatts", "spec.devices.", 0),
        jobs=grants,
    )
