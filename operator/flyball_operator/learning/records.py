"""What is remembered of each profile at work: its fit, and how its EnergyProfile object stands to what was observed."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from flyball_api.energy.frontier import FrontierBounds
from flyball_api.energy.profile import EnergyProfileStatus
from flyball_kube.session import JsonObject
from flyball_planner.fitting.fit import FittedModel
from flyball_planner.fitting.uncertainty import Covariance, Place, Ratios
from flyball_planner.models.gpu import GpuModel
from flyball_planner.models.job import JobModel

from flyball_operator.learning.drift import ProfileDrift
from flyball_operator.learning.profiles import FittedParameters, Point, Profile, Summary, moved

# Between which shares of what is expected an iteration takes with nine chances in ten each.
PaceBand = tuple[float, float]
# A mean that moves by less is the same.
SIGNIFICANT_SHARE = 0.02
# So many kinds of bounds that jobs of one profile have are remembered, the latest; the API allows twice as many.
MAX_BOUNDS = 8


class Origin(Enum):
    """Where a fit comes from: STORED by another process, which may have known the GPU as something else, or OWN: made
    here, or found here to predict as it did when it was made."""

    STORED = "stored"
    OWN = "own"


class ObjectState(Enum):
    """How the EnergyProfile object stands to what is known: not there, possibly behind, or up to date."""

    MISSING = "missing"
    BEHIND = "behind"
    CURRENT = "current"


@dataclass(slots=True)
class FitState:
    """The fit of one profile: `due` where observations have changed since it was last looked at, `points` and `at` what
    the newest fit was made of and when, `last` that fit and its prior: where the next one begins its search."""

    origin: Origin = Origin.OWN
    due: bool = False
    points: Mapping[Point, Summary] = field(default_factory=dict)
    at: float = -math.inf
    last: tuple[JobModel, FittedModel] | None = None

    def covariance(self, learned: FittedParameters) -> Covariance | None:
        """What the fit in force leaves uncertain; None where another process has made it, for profiles do not keep it."""
        if self.last is not None and self.last[1].model.parameters() == learned.parameters:
            return self.last[1].covariance
        return None

    def redo(self) -> None:
        """Have the profile fitted again, whether or not anything new is observed."""
        self.points, self.due = {}, True


@dataclass(slots=True)
class ObjectRecord:
    """The EnergyProfile object of one profile: what it holds, and when a write of it was last attempted."""

    state: ObjectState = ObjectState.MISSING
    profile: Profile | None = None
    status: EnergyProfileStatus = EnergyProfileStatus()  # noqa: RUF009 - frozen
    attempted_at: float = -math.inf

    def outdated(self) -> None:
        """Note that the profile has changed since the object was last compared with it."""
        if self.state is ObjectState.CURRENT:
            self.state = ObjectState.BEHIND

    def lacks_runs(self, profile: Profile) -> bool:
        """Whether the object lacks a run of a recurring job."""
        stored = {} if self.profile is None else self.profile.runs
        return stored != profile.runs

    def lacks(self, profile: Profile) -> bool:
        """Whether the object lacks something of `profile` that matters."""
        if self.lacks_runs(profile):
            return True
        if self.profile is None:
            return profile.fit is not None
        return self.profile.fit != profile.fit or moved(self.profile.points, profile.points, SIGNIFICANT_SHARE)

    def lacks_frontiers(self, bounds: Collection[FrontierBounds]) -> bool:
        """Whether the object lacks what time costs jobs with one of these bounds."""
        return not {frontier.bounds for frontier in self.status.frontiers or ()}.issuperset(bounds)


class AskedPace(NamedTuple):
    """Where the pace of a job is asked about."""

    gpu_model: GpuModel
    gpus: int
    nodes: int
    global_batch_size: int
    clock_megahertz: int


@dataclass(slots=True)
class ProfileEntry:
    """One profile at work, with its fit's models by GPU model, and how uncertain they leave the paces asked about.

    `bounds` has those of the jobs that were measured, the latest last. It goes with its `owner`, the job of its key's name,
    unless it is `shared`.
    """

    profile: Profile
    prior: JobModel | None = None
    owner: dict[str, str] | None = None
    shared: bool = False  # jobs have been measured that name its key
    may_be_owned: bool = True  # its object may have an owner that it was made with
    models: dict[GpuModel, JobModel] = field(default_factory=dict)
    bands: dict[AskedPace, PaceBand | None] = field(default_factory=dict)
    ratios: dict[tuple[Place, Place, int], Ratios | None] = field(default_factory=dict)
    bounds: tuple[FrontierBounds, ...] = ()
    fit: FitState = field(default_factory=FitState)
    stored: ObjectRecord = field(default_factory=ObjectRecord)
    drift: ProfileDrift = field(default_factory=ProfileDrift)

    def note_bounds(self, bounds: FrontierBounds) -> None:
        """Note that a job with these has been measured."""
        if bounds not in self.bounds[-1:]:
            self.bounds = (*(known for known in self.bounds if known != bounds), bounds)[-MAX_BOUNDS:]

    def forget_models(self) -> None:
        """The fit has changed: what followed from it does no longer."""
        self.models.clear()
        self.bands.clear()
        self.ratios.clear()


@dataclass(frozen=True, slots=True)
class ProfileWrite:
    """One EnergyProfile to be written: made first unless it `exists`, or taken from its owner (`disowned`); then given its
    status."""

    profile: Profile
    object: JsonObject
    status: EnergyProfileStatus
    exists: bool
    disowned: bool = False
