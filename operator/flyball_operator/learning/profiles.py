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
from typing import NamedTuple

import msgspec
from flyball_api.energy.frontier import IterationFrontier
from flyball_api.energy.profile import (
    BatchSizeSearch,
    EndedRun,
    EnergyProfile,
    EnergyProfileSpec,
    EnergyProfileStatus,
    FitQuality,
    FittedParameter,
    Observation,
    decimal_string,
    energy_profile_object,
)
from flyball_api.reading import JsonObject
from flyball_api.values.conditions import Condition, merge_conditions
from flyball_api.values.times import format_time, whole_second
from flyball_planner.models.gpu import GpuModel
from flyball_planner.models.job import PARAMETER_NAMES, JobModel

# A quarter of what the API allows: an object of about 40 kB.
MAX_POINTS = 128
# A mean follows at least this share of a new window, so that a job that changed is learned again.
MIN_WEIGHT = 1 / 50
PARAMETERISATION = "Physical"
# Of the runs of a recurring job are kept: those that explored (64 batch sizes; earlier operators tried each twice), and the
# last of all, beside the last of each batch size.
MAX_EXPLORED, MAX_RECENT = 128, 50

Runs = Mapping[int, EndedRun]
"""Runs of a recurring job that have ended, by the number of the choice that they were made by."""


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

    @property
    def path(self) -> str:
        """`namespace/name` of the EnergyProfile."""
        return f"{self.namespace}/{self.object_name}"


@dataclass(frozen=True, slots=True)
class FittedParameters:
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
    """One EnergyProfile's content; `points` in the order of their last window, `runs` those of a recurring job.

    `drifted_at` is when all that had been measured before was dropped, as it held no more.
    """

    key: ProfileKey
    points: Mapping[Point, Summary] = field(default_factory=dict)
    fit: FittedParameters | None = None
    runs: Runs = field(default_factory=dict)
    drifted_at: datetime | None = None

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
        newest_fit = max(fits, key=lambda fit: fit.at, default=None)
        return Profile(self.key, dict(newest), newest_fit, kept_runs({**other.runs, **self.runs}), self.drifted_at)


def kept_runs(runs: Runs) -> Runs:
    """What is kept of the runs of a recurring job, in their order."""
    ordered = sorted(runs.values(), key=lambda run: run.decision)
    explored = [run for run in ordered if run.purpose == "Explore"][-MAX_EXPLORED:]
    last = {run.batch_size: run for run in ordered}.values()
    kept = {run.decision for run in (*explored, *ordered[-MAX_RECENT:], *last)}
    return {run.decision: run for run in ordered if run.decision in kept}


def moved(before: Mapping[Point, Summary], after: Mapping[Point, Summary], share: float) -> bool:
    """Whether `after` is worth noting: another point, half as many windows again, or a mean that moved by `share`."""
    if before.keys() != after.keys():
        return True
    return any(
        new.samples >= 1.5 * before[point].samples
        or abs(new.seconds - before[point].seconds) > share * before[point].seconds
        or abs(new.joules - before[point].joules) > share * before[point].joules
        for point, new in after.items()
    )


def profile_object(key: ProfileKey, owner: Mapping[str, str] | None = None) -> JsonObject:
    """A new EnergyProfile without status; `owner` (name, uid) is the EnergyAwareJob that it goes away with."""
    spec = EnergyProfileSpec(key.profile_key, key.product)
    return energy_profile_object(key.namespace, key.object_name, spec, owner)


def profile_status(
    profile: Profile,
    before: EnergyProfileStatus,
    now: datetime,
    frontiers: tuple[IterationFrontier, ...] | None = None,
) -> EnergyProfileStatus:
    """EnergyProfile.status; `before` is the status that stands, whose fit stays where the profile has none.

    `frontiers` are what time costs by the profile's fit; without one those of `before` stay.
    """
    fit, since = profile.fit, ""
    if profile.drifted_at is not None:
        since = f"; measured anew since {format_time(profile.drifted_at)}, when nothing from before held any more"
    fitted = (
        Condition("Fitted", False, "TooFewObservations", f"{profile.samples} windows were measured so far{since}")
        if fit is None
        else Condition(
            "Fitted",
            True,
            "FittedToObservations",
            f"off by {fit.time_error:.1%} in time and {fit.energy_error:.1%} in energy over {fit.observations} windows"
            f"{since}",
        )
    )
    status = msgspec.structs.replace(
        before,
        conditions=merge_conditions(before.conditions, [fitted], 1, now),
        observations=tuple(_observation(point, summary) for point, summary in profile.points.items()),
        batch_size_search=BatchSizeSearch(tuple(profile.runs.values())) if profile.runs else None,
    )
    if fit is None and profile.drifted_at is not None:
        return msgspec.structs.replace(status, parameterisation=None, parameters=None, fit=None, frontiers=None)
    if fit is None:
        return status
    return msgspec.structs.replace(
        status,
        parameterisation=PARAMETERISATION,
        frontiers=frontiers,
        parameters=tuple(_parameter(name, value, fit) for name, value in sorted(fit.parameters.items())),
        fit=FitQuality(
            time=whole_second(fit.at),
            observations=fit.observations,
            time_error_permille=round(fit.time_error * 1000),
            energy_error_permille=round(fit.energy_error * 1000),
        ),
    )


def _observation(point: Point, summary: Summary) -> Observation:
    return Observation(
        *point,
        samples=summary.samples,
        microseconds_per_iteration=max(1, round(summary.seconds * 1e6)),
        microseconds_deviation=round(math.sqrt(summary.seconds_variance) * 1e6),
        millijoules_per_iteration=round(summary.joules * 1e3),
        millijoules_deviation=round(math.sqrt(summary.joules_variance) * 1e3),
        last_time=whole_second(summary.last),
    )


def _parameter(name: str, value: float, fit: FittedParameters) -> FittedParameter:
    error = fit.standard_errors.get(name)
    known = error is not None and math.isfinite(error) and 0 <= error < 1e99
    return FittedParameter(name, decimal_string(value), decimal_string(error) if known and error is not None else None)


def profile_of(stored: EnergyProfile) -> Profile:
    """What an EnergyProfile holds.

    Parameters that are not this version's make no fit: they are fitted again to the observations.
    """
    summaries = [
        (
            Point(item.gpus, item.nodes, item.local_batch_size, item.clock_megahertz),
            Summary(
                item.samples,
                item.microseconds_per_iteration / 1e6,
                (item.microseconds_deviation / 1e6) ** 2,
                item.millijoules_per_iteration / 1e3,
                (item.millijoules_deviation / 1e3) ** 2,
                item.last_time or datetime.fromtimestamp(0, UTC),
            ),
        )
        for item in stored.status.observations
    ]
    newest = sorted(summaries, key=lambda item: item[1].last)[-MAX_POINTS:]
    key = ProfileKey(stored.metadata.namespace, stored.spec.profile_key, stored.spec.gpu_model)
    search = stored.status.batch_size_search or BatchSizeSearch()
    return Profile(key, dict(newest), _fit_of(stored.status), {run.decision: run for run in search.runs})


def _fit_of(status: EnergyProfileStatus) -> FittedParameters | None:
    quality, listed = status.fit or FitQuality(), status.parameters or ()
    try:
        parameters = {item.name: float(item.value) for item in listed}
        errors = {item.name: float(item.standard_error) for item in listed if item.standard_error is not None}
    except ValueError:
        return None
    if status.parameterisation != PARAMETERISATION or parameters.keys() != set(PARAMETER_NAMES) or quality.time is None:
        return None
    return FittedParameters(
        parameters,
        errors,
        quality.time_error_permille / 1000,
        quality.energy_error_permille / 1000,
        quality.observations,
        quality.time,
    )
