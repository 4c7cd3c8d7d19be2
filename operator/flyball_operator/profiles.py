"""What was measured of one kind of job on one GPU model, and what was fitted to it: the content of an EnergyProfile.

Measurements are kept as running means, one for each size, local batch size and clock, so that a profile stays small
however long its jobs run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from flyball_planner.gpu_models import GpuModel
from flyball_planner.models import PARAMETER_NAMES, JobModel

from flyball_operator.conditions import Condition, merge_conditions
from flyball_operator.names import FLYBALL_API_VERSION
from flyball_operator.requests import format_time, parse_time

JsonObject = dict[str, Any]

# A quarter of what the API allows: an object of about 40 kB.
MAX_POINTS = 128
# A mean follows at least this share of a new window, so that a job that changed is learned again.
MIN_WEIGHT = 1 / 50
PARAMETERISATION = "Physical"


class Point(NamedTuple):
    """Where something was measured: GPUs and nodes of the job, samples per GPU and iteration, and the SM clock."""

    gpus: int
    nodes: int
    local_batch_size: int
    clock_megahertz: int


@dataclass(frozen=True, slots=True)
class Summary:
    """What was measured at one point: means and variances over `samples` windows; joules of all GPUs together."""

    samples: int
    seconds: float
    seconds_variance: float
    joules: float
    joules_variance: float
    last: datetime

    def with_window(self, seconds: float, joules: float, at: datetime) -> Summary:
        """With one window more; the oldest fade once there are many."""
        share = max(MIN_WEIGHT, 1 / (self.samples + 1))
        seconds_off, joules_off = seconds - self.seconds, joules - self.joules
        return Summary(
            self.samples + 1,
            self.seconds + share * seconds_off,
            (1 - share) * (self.seconds_variance + share * seconds_off**2),
            self.joules + share * joules_off,
            (1 - share) * (self.joules_variance + share * joules_off**2),
            at,
        )


@dataclass(frozen=True, slots=True)
class ProfileKey:
    """Jobs of one namespace with one key share what was learned on one GPU product."""

    namespace: str
    profile_key: str
    product: str

    @property
    def object_name(self) -> str:
        """The EnergyProfile's name: the key, and the product in the letters that a name may have."""
        return f"{self.profile_key}.{re.sub(r'[^a-z0-9]+', '-', self.product.lower()).strip('-') or 'gpu'}"


@dataclass(frozen=True, slots=True)
class Fit:
    """Parameters that were fitted, with their standard errors where known, and the mean relative errors of the fit."""

    parameters: Mapping[str, float]
    standard_errors: Mapping[str, float]
    time_error: float
    energy_error: float
    observations: int
    at: datetime

    def model(self, gpu_model: GpuModel) -> JobModel:
        return JobModel.from_parameters(gpu_model, self.parameters)


@dataclass(frozen=True, slots=True)
class Profile:
    """One EnergyProfile's content; `points` in the order of their last window."""

    key: ProfileKey
    points: Mapping[Point, Summary] = field(default_factory=dict)
    fit: Fit | None = None

    @property
    def samples(self) -> int:
        return sum(summary.samples for summary in self.points.values())

    def with_window(self, point: Point, seconds: float, joules: float, at: datetime) -> Profile:
        """With one window more; beyond MAX_POINTS, the point that was measured longest ago goes."""
        points = dict(self.points)
        known = points.pop(point, None)
        points[point] = (
            Summary(1, seconds, 0.0, joules, 0.0, at) if known is None else known.with_window(seconds, joules, at)
        )
        while len(points) > MAX_POINTS:
            del points[next(iter(points))]
        return replace(self, points=points)

    def merged(self, other: Profile) -> Profile:
        """The better known summary of each point, and the later fit: what two leaders have learned one after the other."""
        points = dict(self.points)
        for point, summary in other.points.items():
            if point not in points or points[point].samples < summary.samples:
                points[point] = summary
        newest = sorted(points.items(), key=lambda item: item[1].last)[-MAX_POINTS:]
        fits = [fit for fit in (self.fit, other.fit) if fit is not None]
        return Profile(self.key, dict(newest), max(fits, key=lambda fit: fit.at, default=None))


def moved(before: Mapping[Point, Summary], after: Mapping[Point, Summary], share: float) -> bool:
    """Whether `after` says something new: another point, half as many windows again, or a mean that moved by `share`."""
    if before.keys() != after.keys():
        return True
    return any(
        new.samples >= 1.5 * before[point].samples
        or abs(new.seconds - before[point].seconds) > share * before[point].seconds
        or abs(new.joules - before[point].joules) > share * before[point].joules
        for point, new in after.items()
    )


def decimal_string(number: float) -> str:
    """A real number as the API has it, every digit kept; raises ValueError for one beyond 1e99 or not finite."""
    if not math.isfinite(number) or abs(number) >= 1e99:
        raise ValueError(f"{number} cannot be written as a decimal string")
    return "0.0" if abs(number) < 1e-99 else repr(float(number))


def profile_spec(key: ProfileKey) -> JsonObject:
    return {"profileKey": key.profile_key, "gpuModel": key.product}


def profile_object(key: ProfileKey, owner: Mapping[str, str] | None = None) -> JsonObject:
    """A new EnergyProfile without status; `owner` (name, uid) is the EnergyAwareJob that it goes away with."""
    metadata: JsonObject = {"namespace": key.namespace, "name": key.object_name}
    if owner is not None:
        metadata["ownerReferences"] = [{"apiVersion": FLYBALL_API_VERSION, "kind": "EnergyAwareJob", **owner}]
    return {
        "apiVersion": FLYBALL_API_VERSION,
        "kind": "EnergyProfile",
        "metadata": metadata,
        "spec": profile_spec(key),
    }


def profile_status(profile: Profile, before: JsonObject, now: datetime) -> JsonObject:
    """EnergyProfile.status; `before` is the status that stands, from which the condition's transition time is taken."""
    fit = profile.fit
    conditions = {item["type"]: item for item in before.get("conditions") or ()}
    said = (
        Condition("Fitted", False, "TooFewObservations", f"{profile.samples} windows were measured so far")
        if fit is None
        else Condition(
            "Fitted",
            True,
            "FittedToObservations",
            f"off by {fit.time_error:.1%} in time and {fit.energy_error:.1%} in energy over {fit.observations} windows",
        )
    )
    status: JsonObject = {
        "conditions": merge_conditions(conditions, [said], 1, now),
        "observations": [
            {
                **dict(zip(("gpus", "nodes", "localBatchSize", "clockMegahertz"), point, strict=True)),
                "samples": summary.samples,
                "microsecondsPerIteration": max(1, round(summary.seconds * 1e6)),
                "microsecondsDeviation": round(math.sqrt(summary.seconds_variance) * 1e6),
                "millijoulesPerIteration": round(summary.joules * 1e3),
                "millijoulesDeviation": round(math.sqrt(summary.joules_variance) * 1e3),
                "lastTime": format_time(summary.last),
            }
            for point, summary in profile.points.items()
        ],
    }
    if fit is not None:
        status["parameterisation"] = PARAMETERISATION
        status["parameters"] = [_parameter(name, value, fit) for name, value in sorted(fit.parameters.items())]
        status["fit"] = {
            "time": format_time(fit.at),
            "observations": fit.observations,
            "timeErrorPermille": round(fit.time_error * 1000),
            "energyErrorPermille": round(fit.energy_error * 1000),
        }
    return status


def _parameter(name: str, value: float, fit: Fit) -> JsonObject:
    error = fit.standard_errors.get(name)
    known = error is not None and math.isfinite(error) and 0 <= error < 1e99
    shown = {"standardError": decimal_string(error)} if known and error is not None else {}
    return {"name": name, "value": decimal_string(value), **shown}


def read_profile(raw: JsonObject) -> Profile:
    """An EnergyProfile's content; raises ValueError where it is not as the CRD has it.

    Parameters that are not this version's make no fit: they are fitted again to the observations.
    """
    metadata, status = raw["metadata"], raw.get("status") or {}
    try:
        key = ProfileKey(metadata["namespace"], raw["spec"]["profileKey"], raw["spec"]["gpuModel"])
        summaries = []
        for item in status.get("observations") or ():
            point = Point(item["gpus"], item["nodes"], item["localBatchSize"], item["clockMegahertz"])
            summaries.append(
                (
                    point,
                    Summary(
                        item["samples"],
                        item["microsecondsPerIteration"] / 1e6,
                        (item.get("microsecondsDeviation", 0) / 1e6) ** 2,
                        item.get("millijoulesPerIteration", 0) / 1e3,
                        (item.get("millijoulesDeviation", 0) / 1e3) ** 2,
                        parse_time(item.get("lastTime")) or datetime.fromtimestamp(0, UTC),
                    ),
                )
            )
        newest = sorted(summaries, key=lambda item: item[1].last)[-MAX_POINTS:]
        return Profile(key, dict(newest), _read_fit(status))
    except (KeyError, TypeError, AttributeError) as error:
        name = f"{metadata.get('namespace')}/{metadata['name']}"
        raise ValueError(f"EnergyProfile {name}: not as the CRD has it: {error!r}") from error


def _read_fit(status: JsonObject) -> Fit | None:
    parameters = {item["name"]: float(item["value"]) for item in status.get("parameters") or ()}
    told = status.get("fit") or {}
    at = parse_time(told.get("time"))
    if status.get("parameterisation") != PARAMETERISATION or parameters.keys() != set(PARAMETER_NAMES) or at is None:
        return None
    errors = {item["name"]: float(item["standardError"]) for item in status["parameters"] if "standardError" in item}
    return Fit(
        parameters,
        errors,
        told.get("timeErrorPermille", 0) / 1000,
        told.get("energyErrorPermille", 0) / 1000,
        told.get("observations", 0),
        at,
    )
