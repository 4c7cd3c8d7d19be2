"""Learning what each kind of job does on each GPU model: windows out of the agents' reports, fits out of the windows.

What is learned lives in EnergyProfile objects; losing one costs the time to learn it again, nothing else, so
that no failure in here may reach the loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from flyball_kube.errors import ApiError, ApiUnreachable
from flyball_kube.resources import ENERGY_PROFILES
from flyball_kube.session import ApiSession, JsonObject
from flyball_planner.fitting import FittedModel, errors_of, fit
from flyball_planner.gpu_models import GpuModel, gpu_model_for
from flyball_planner.model_classes import REFERENCE_PRODUCT, model_class_prior
from flyball_planner.models import JobModel

from flyball_operator.execute import Executor
from flyball_operator.gpu_nodes import PodReport
from flyball_operator.picture import NodePicture
from flyball_operator.profiles import (
    Fit,
    Point,
    Profile,
    ProfileKey,
    Summary,
    moved,
    profile_object,
    profile_status,
    read_profile,
)
from flyball_operator.requests import JobView
from flyball_operator.windows import Track, observations, read_window
from flyball_operator.workloads import IncarnationView
from flyball_operator.world import World

logger = logging.getLogger(__name__)

MIN_WINDOWS_TO_FIT = 2
REFIT_SECONDS = 10.0
# A mean that moves by less says nothing new.
SIGNIFICANT_SHARE = 0.02
# A stored fit whose errors are not what it says of itself by more than this was made of something else.
SAME_ERROR = 0.01
WRITE_SECONDS = 60.0
MAX_WRITES = 10
MAX_PROFILES = 5000
PAGE_SIZE = 500


@dataclass(slots=True)
class _Entry:
    """One profile at work; `check_fit` and `check_write` are set when it has changed since that was last looked at.

    `last` is the last fit of this process, to `last_prior`: where the next one begins its search.
    """

    profile: Profile
    check_fit: bool = False
    check_write: bool = False
    exists: bool = False
    owner: dict[str, str] | None = None
    prior: JobModel | None = None
    fitted_points: Mapping[Point, Summary] = field(default_factory=dict)
    fitted_at: float = -math.inf
    last: FittedModel | None = None
    last_prior: JobModel | None = None
    check_loaded: bool = False  # the fit is another process's, which may have known the GPU as something else
    models: dict[GpuModel, JobModel] = field(default_factory=dict)
    written: Profile | None = None
    written_status: JsonObject = field(default_factory=dict)
    written_at: float = -math.inf

    def unwritten(self) -> bool:
        """Whether the object lacks something that matters."""
        if self.written is None:
            return self.profile.fit is not None
        return self.written.fit != self.profile.fit or moved(
            self.written.points, self.profile.points, SIGNIFICANT_SHARE
        )


class Learner:
    """Observes, fits and remembers; `on_change` is called when a model has changed.

    Fits (tens of milliseconds each) are made in a thread, one at a time.
    """

    def __init__(
        self,
        session: ApiSession,
        *,
        on_change: Callable[[], None] = lambda: None,
        wall_clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._session = session
        self._on_change = on_change
        self._wall_clock = wall_clock
        self._clock = clock or (lambda: asyncio.get_running_loop().time())
        self._entries: dict[ProfileKey, _Entry] = {}
        self._tracks: dict[str, Track] = {}
        self._fitting: asyncio.Task[None] | None = None
        self._cluster_of: Mapping[str, NodePicture] | None = None
        self._cluster: tuple[GpuModel, ...] = ()

    def __len__(self) -> int:
        return len(self._entries)

    def profile(self, key: ProfileKey) -> Profile | None:
        """What is known under a key."""
        entry = self._entries.get(key)
        return None if entry is None else entry.profile

    async def load(self) -> None:
        """Take in the EnergyProfiles that there are, beside what is known already. Never raises."""
        params = {"limit": str(PAGE_SIZE)}
        try:
            while True:
                page = await self._session.get(ENERGY_PROFILES.path(), **params)
                for raw in page.get("items") or ():
                    self._load_one(raw)
                if not page["metadata"].get("continue"):
                    return
                params["continue"] = page["metadata"]["continue"]
        except (ApiError, ApiUnreachable) as error:
            logger.warning("what was learned before cannot be read, and is learned again: %s", error)

    def _load_one(self, raw: JsonObject) -> None:
        try:
            loaded = read_profile(raw)
        except ValueError as error:
            logger.warning("left out: %s", error)
            return
        if raw["metadata"]["name"] != loaded.key.object_name or raw["metadata"].get("deletionTimestamp"):
            return
        entry = self._entry(loaded.key)
        entry.profile = entry.profile.merged(loaded)
        entry.exists, entry.written, entry.written_status = True, loaded, raw.get("status") or {}
        entry.models.clear()
        entry.check_loaded = loaded.fit is not None and entry.profile.fit is loaded.fit
        if entry.profile.fit is not None and not entry.fitted_points:
            entry.fitted_points = loaded.points

    def _entry(self, key: ProfileKey) -> _Entry:
        """The entry of a key, made if need be; beyond MAX_PROFILES, the one that was used longest ago is forgotten."""
        entry = self._entries.pop(key) if key in self._entries else _Entry(Profile(key))
        self._entries[key] = entry
        if len(self._entries) > MAX_PROFILES:
            del self._entries[next(iter(self._entries))]
        return entry

    def observe(self, world: World, pictures: Mapping[str, NodePicture]) -> None:
        """Take in what the agents have reported since the last call, and have the next profile fitted that needs it."""
        for uid, reports in world.reports_of.items():
            job, incarnations = world.jobs.get(uid), world.incarnations.get(uid)
            if job is not None and incarnations:
                newest = max(incarnations, key=lambda item: item.incarnation)
                self._observe_job(job, newest, reports, pictures)
        for uid in self._tracks.keys() - world.reports_of.keys():
            del self._tracks[uid]
        self._fit_next()

    def _observe_job(
        self,
        job: JobView,
        incarnation: IncarnationView,
        reports: Iterable[tuple[str, PodReport]],
        pictures: Mapping[str, NodePicture],
    ) -> None:
        track = self._tracks.get(job.uid)
        if track is None or track.incarnation != incarnation.incarnation:
            track = self._tracks[job.uid] = Track(incarnation.incarnation)
        own = {node: report for node, report in reports if report.incarnation == incarnation.incarnation}
        reported = {node: report.last_report for node, report in own.items()}
        if len(own) < len(incarnation.nodes) or any(
            last is None or last == track.reported.get(node) for node, last in reported.items()
        ):
            return  # the window is not whole yet
        track.reported = reported
        window = read_window(own, incarnation, pictures)
        if window is None or not track.takes(window):
            return
        entry = self._entry(ProfileKey(job.namespace, job.profile_key, window.gpu_model.product))
        last = max(at for at in reported.values() if at is not None)
        entry.profile = entry.profile.with_window(window.point, window.seconds, window.joules, last)
        entry.check_fit = entry.check_write = True
        entry.prior = model_class_prior(job.model_class, window.gpu_model)
        # A job that shares its key with nobody takes its profile with it when it is deleted.
        entry.owner = {"name": job.name, "uid": job.uid} if job.profile_key == job.name else None

    def _fit_next(self) -> None:
        if self._fitting is not None and not self._fitting.done():
            return
        now = self._clock()
        for entry in self._entries.values():
            if not entry.check_fit or entry.prior is None or now - entry.fitted_at < REFIT_SECONDS:
                continue
            entry.check_fit = False
            if entry.profile.samples >= MIN_WINDOWS_TO_FIT and moved(
                entry.fitted_points, entry.profile.points, SIGNIFICANT_SHARE
            ):
                entry.fitted_at, entry.fitted_points = now, entry.profile.points
                self._fitting = asyncio.create_task(self._fit(entry, entry.prior, entry.profile))
                return

    async def _fit(self, entry: _Entry, prior: JobModel, profile: Profile) -> None:
        last = entry.last if entry.last_prior == prior else None  # under one key, another class or other boards
        try:
            fitted = await asyncio.to_thread(fit, prior, observations(profile.points), last=last)
        except Exception:
            logger.exception("profile %s cannot be fitted; its old model stands", profile.key)
            entry.last = None  # if it was that which led astray, the next fit begins anew
            return
        entry.last, entry.last_prior, entry.check_loaded = fitted, prior, False
        entry.profile = replace(entry.profile, fit=_as_fit(fitted, profile.samples, self._wall_clock()))
        entry.models.clear()
        entry.check_write = True
        self._on_change()

    def models_for(self, job: JobView, pictures: Mapping[str, NodePicture]) -> tuple[JobModel, ...]:
        """The job's models, one for each GPU model of the cluster that it was fitted on, the best known first.

        Without any, the prior of its class on the cluster's most common GPU model. Never empty.
        """
        found = []
        for gpu_model in self._gpu_models(pictures):
            entry = self._entries.get(ProfileKey(job.namespace, job.profile_key, gpu_model.product))
            model = None if entry is None else self._fitted(entry, gpu_model, job.model_class)
            if entry is not None and model is not None:
                found.append((entry.profile.samples, model))
        if found:
            return tuple(model for _, model in sorted(found, key=lambda item: -item[0]))
        common = next(iter(self._gpu_models(pictures)), None) or gpu_model_for(REFERENCE_PRODUCT)
        assert common is not None  # noqa: S101 - the catalogue has its own reference
        return (model_class_prior(job.model_class, common),)

    def model_for(self, job: JobView, pictures: Mapping[str, NodePicture]) -> JobModel:
        """The job's best known model."""
        return self.models_for(job, pictures)[0]

    @staticmethod
    def _fitted(entry: _Entry, gpu_model: GpuModel, model_class: str) -> JobModel | None:
        known, learned = entry.models.get(gpu_model), entry.profile.fit
        if known is not None or learned is None:
            return known
        try:
            model = learned.model(gpu_model)
        except ValueError as error:
            logger.warning("profile %s: %s; the prior of the job's class is used", entry.profile.key, error)
            entry.profile, entry.fitted_points, entry.check_fit = replace(entry.profile, fit=None), {}, True
            return None
        entry.models[gpu_model] = model
        if entry.check_loaded:
            entry.check_loaded = False
            if _is_of_another_board(model, learned, entry.profile):
                entry.prior = entry.prior or model_class_prior(model_class, gpu_model)
                entry.fitted_points, entry.check_fit = {}, True
        return model

    def _gpu_models(self, pictures: Mapping[str, NodePicture]) -> tuple[GpuModel, ...]:
        """The cluster's GPU models, the most common first, one for each product; worked out once per cycle."""
        if self._cluster_of is not pictures:
            gpus: Counter[GpuModel] = Counter()
            for picture in pictures.values():
                if picture.gpu_model is not None:
                    gpus[picture.gpu_model] += picture.gpus
            by_product: dict[str, GpuModel] = {}
            for gpu_model, _ in sorted(gpus.items(), key=lambda item: (-item[1], item[0].product)):
                by_product.setdefault(gpu_model.product, gpu_model)
            self._cluster_of, self._cluster = pictures, tuple(by_product.values())
        return self._cluster

    async def write(self, executor: Executor, monotonic: float) -> None:
        """Write the profiles that say something new, each at most once a minute and a few at a time."""
        due = []
        for entry in self._entries.values():
            if entry.check_write and monotonic - entry.written_at >= WRITE_SECONDS:
                entry.check_write = entry.unwritten()
                if entry.check_write:
                    due.append(entry)
        due.sort(key=lambda entry: entry.written_at)
        await executor.all([self._write(executor, entry, monotonic) for entry in due[:MAX_WRITES]])

    async def _write(self, executor: Executor, entry: _Entry, monotonic: float) -> bool:
        profile, key = entry.profile, entry.profile.key
        entry.written_at = monotonic
        gone = False

        def note_gone() -> None:
            nonlocal gone
            gone = True

        status = profile_status(profile, entry.written_status, self._wall_clock())
        done = await executor.write_profile(
            profile_object(key, entry.owner), status, exists=entry.exists, gone=note_gone
        )
        if done:
            entry.exists, entry.written, entry.written_status = True, profile, status
            entry.check_write = entry.profile is not profile
        elif gone and entry.exists:
            logger.info(
                "EnergyProfile %s/%s was deleted: what it held is learned again", key.namespace, key.object_name
            )
            self._entries.pop(key, None)
        return done


def _is_of_another_board(model: JobModel, learned: Fit, profile: Profile) -> bool:
    """Whether a stored fit predicts its own observations otherwise than it did when it was made.

    Watts are fitted over the GPU model's voltage, so that with another knee, slope or idle power the same parameters say
    something else. What was measured still stands.
    """
    try:
        found = errors_of(model, observations(profile.points))
    except ValueError as error:
        logger.warning("profile %s: its observations cannot be: %s", profile.key, error)
        return False
    stated = ((found.time_mape, learned.time_error), (found.energy_mape, learned.energy_error))
    if not any(abs(now - before) > SAME_ERROR for now, before in stated):  # what is NaN was not measured
        return False
    logger.info(
        "profile %s: fitted to %.1f %% in energy, and off by %.1f %% on the GPU as it is known now: fitted again",
        *(profile.key, 100 * learned.energy_error, 100 * found.energy_mape),
    )
    return True


def _as_fit(fitted: FittedModel, samples: int, now: datetime) -> Fit:
    def known(error: float) -> float:
        return error if math.isfinite(error) else 0.0

    return Fit(
        fitted.model.parameters(),
        fitted.standard_errors,
        known(fitted.errors.time_mape),
        known(fitted.errors.energy_mape),
        samples,
        now.replace(microsecond=0),
    )
