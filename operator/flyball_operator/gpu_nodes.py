"""GPUNodes as the operator reads and writes them: the grant that stands, what the agent acknowledged, what it reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from flyball_operator.hold import Acknowledgement, DeviceGrant, Grant, Hold, JobGrant
from flyball_operator.names import FLYBALL_API_VERSION
from flyball_operator.requests import parse_time

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DeviceView:
    """One GPU as its agent reports it; limits in milliwatts, clocks in megahertz."""

    uuid: str
    model: str
    min_milliwatts: int
    max_milliwatts: int
    default_milliwatts: int
    enforced_milliwatts: int
    clock_min_megahertz: int
    clock_max_megahertz: int
    clock_step_megahertz: int
    power_milliwatts: int
    energy_millijoules: int
    healthy: bool
    pod: tuple[str, str] | None = None  # namespace and name of the one that holds it

    @property
    def tells_limits(self) -> bool:
        """Its limits are such as a GPU can have; one that was lost before it was ever read has none."""
        return 0 < self.min_milliwatts <= self.default_milliwatts <= self.max_milliwatts


@dataclass(frozen=True, slots=True)
class PodReport:
    """What the agent saw of one pod of a job: progress as the trainer tells it, energy as the boards count it."""

    uid: str
    incarnation: int
    pod_name: str
    gpus: int
    iterations: int
    microseconds_per_iteration: int
    millijoules_per_iteration: int
    clock_megahertz: int
    local_batch_size: int
    energy_millijoules: int
    last_report: datetime | None
    ended: bool


@dataclass(frozen=True, slots=True)
class GpuNodeView:
    """One GPUNode; `labels` are copies of its Node's, by which caps select it even when the Node is gone."""

    name: str
    uid: str
    resource_version: str
    labels: Mapping[str, str]
    deleting: bool
    grant: Grant | None
    acknowledged: Acknowledgement | None
    incarnation: tuple[str, str]
    devices: tuple[DeviceView, ...]
    reports: tuple[PodReport, ...]
    mode: str

    @property
    def acknowledged_current(self) -> bool:
        """The agent has applied, read back and acknowledged the very grant that stands, since its last boot."""
        return (
            self.grant is not None
            and self.acknowledged is not None
            and self.acknowledged.version == self.grant.version
            and (self.acknowledged.boot_id, self.acknowledged.driver_incarnation) == self.incarnation
        )

    def defaults_milliwatts(self, unknown_milliwatts: int) -> int:
        """The sum of the default limits of the devices that the agent has reported; `unknown` for one without any."""
        return sum(device.default_milliwatts or unknown_milliwatts for device in self.devices)


def _read_grant(spec: JsonObject) -> Grant | None:
    if "generation" not in spec:
        return None
    devices = spec.get("devices") or {}
    return Grant(
        epoch=spec["epoch"],
        generation=spec["generation"],
        lease_seconds=spec.get("leaseSeconds", 0),
        hold=Hold(spec.get("grantMilliwatts", 0), spec.get("expectedMilliwatts", 0)),
        worst=Hold(spec.get("worstHoldMilliwatts", 0), spec.get("worstExpectedMilliwatts", 0)),
        devices=DeviceGrant(
            idle_power_limit_milliwatts=devices.get("idlePowerLimitMilliwatts", 0),
            foreign_power_limit_milliwatts=devices.get("foreignPowerLimitMilliwatts", 0),
            foreign_gpus=devices.get("foreignGpus", 0),
            failsafe_power_limit_milliwatts=devices.get("failsafePowerLimitMilliwatts", 0),
        ),
        jobs=tuple(
            sorted(
                (
                    JobGrant(
                        namespace=job["namespace"],
                        name=job["name"],
                        uid=job["uid"],
                        incarnation=job["incarnation"],
                        pod_name=job["podName"],
                        gpus=job["gpus"],
                        power_limit_milliwatts=job["powerLimitMilliwatts"],
                        clock_min_megahertz=job["clockMegahertz"]["min"],
                        clock_max_megahertz=job["clockMegahertz"]["max"],
                    )
                    for job in spec.get("jobs") or ()
                ),
                key=lambda job: (job.uid, job.pod_name),
            )
        ),
    )


def grant_spec(grant: Grant) -> JsonObject:
    """A grant as GPUNode.spec has it."""
    return {
        "epoch": grant.epoch,
        "generation": grant.generation,
        "leaseSeconds": grant.lease_seconds,
        "grantMilliwatts": grant.hold.limit_milliwatts,
        "expectedMilliwatts": grant.hold.expected_milliwatts,
        "worstHoldMilliwatts": grant.worst.limit_milliwatts,
        "worstExpectedMilliwatts": grant.worst.expected_milliwatts,
        "devices": {
            "idlePowerLimitMilliwatts": grant.devices.idle_power_limit_milliwatts,
            "foreignPowerLimitMilliwatts": grant.devices.foreign_power_limit_milliwatts,
            "foreignGpus": grant.devices.foreign_gpus,
            "failsafePowerLimitMilliwatts": grant.devices.failsafe_power_limit_milliwatts,
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
            for job in grant.jobs
        ],
    }


def gpu_node_object(name: str, labels: Mapping[str, str], grant: Grant) -> JsonObject:
    """A new GPUNode with its first grant."""
    return {
        "apiVersion": FLYBALL_API_VERSION,
        "kind": "GPUNode",
        "metadata": {"name": name, "labels": dict(labels)},
        "spec": grant_spec(grant),
    }


def _read_device(raw: JsonObject) -> DeviceView:
    limits, clocks, pod = raw.get("limits") or {}, raw.get("clocksMegahertz") or {}, raw.get("pod")
    return DeviceView(
        uuid=raw["uuid"],
        model=raw.get("model", ""),
        min_milliwatts=limits.get("minMilliwatts", 0),
        max_milliwatts=limits.get("maxMilliwatts", 0),
        default_milliwatts=limits.get("defaultMilliwatts", 0),
        enforced_milliwatts=limits.get("enforcedMilliwatts", 0),
        clock_min_megahertz=clocks.get("min", 0),
        clock_max_megahertz=clocks.get("max", 0),
        clock_step_megahertz=clocks.get("step", 0),
        power_milliwatts=raw.get("powerMilliwatts", 0),
        energy_millijoules=raw.get("energyMillijoules", 0),
        healthy=not any(
            condition.get("type") == "Healthy" and condition.get("status") == "False"
            for condition in raw.get("conditions") or ()
        ),
        pod=None if not pod else (pod["namespace"], pod["name"]),
    )


def _read_report(raw: JsonObject) -> PodReport:
    return PodReport(
        uid=raw.get("uid", ""),
        incarnation=raw.get("incarnation", 0),
        pod_name=raw["podName"],
        gpus=raw.get("gpus", 0),
        iterations=raw.get("iterations", 0),
        microseconds_per_iteration=raw.get("microsecondsPerIteration", 0),
        millijoules_per_iteration=raw.get("millijoulesPerIteration", 0),
        clock_megahertz=raw.get("clockMegahertz", 0),
        local_batch_size=raw.get("localBatchSize", 0),
        energy_millijoules=raw.get("energyMillijoules", 0),
        last_report=parse_time(raw.get("lastReportTime")),
        ended=raw.get("ended", False),
    )


def read_gpu_node(raw: JsonObject) -> GpuNodeView:
    """A GPUNode as a GpuNodeView; raises ValueError where it is not as the CRD has it."""
    metadata, status = raw["metadata"], raw.get("status") or {}
    incarnation = (status.get("bootID", ""), status.get("driverIncarnation", ""))
    acknowledged = status.get("acknowledged")
    try:
        return GpuNodeView(
            name=metadata["name"],
            uid=metadata["uid"],
            resource_version=metadata["resourceVersion"],
            labels=metadata.get("labels") or {},
            deleting="deletionTimestamp" in metadata,
            grant=_read_grant(raw.get("spec") or {}),
            acknowledged=None
            if not acknowledged
            else Acknowledgement(
                epoch=acknowledged["epoch"],
                generation=acknowledged["generation"],
                limits_milliwatts=acknowledged["limitsMilliwatts"],
                boot_id=acknowledged.get("bootID", ""),
                driver_incarnation=acknowledged.get("driverIncarnation", ""),
            ),
            incarnation=incarnation,
            devices=tuple(_read_device(device) for device in status.get("devices") or ()),
            reports=tuple(_read_report(report) for report in status.get("jobs") or ()),
            mode=status.get("mode", ""),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"GPUNode {metadata['name']}: not as the CRD has it: {error!r}") from error
