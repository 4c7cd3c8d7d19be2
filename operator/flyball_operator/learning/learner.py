"""Learns how long an iteration of each kind of job takes on each GPU model, and its energy, from the agents' reports.

Reports are joined to windows, and models are fitted to the windows. What is learned is stored in EnergyProfile objects;
losing one costs the time to learn it again, so no failure in here may reach the loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from flyball_api.energy.frontier import IterationFrontier
from flyball_api.energy.profile import EnergyProfile
from flyball_api.energy_aware_job import EnergyAwareJob
from flyball_api.gpu_node import PodReport
from flyball_api.workloads import IncarnationView
from flyball_kube.process.logs import get_logger
from flyball_planner.fitting.fit import fit
from flyball_planner.fitting.uncertainty import Place, Ratios
from flyball_planner.models.gpu import GpuModel, gpu_model_for
from flyball_planner.models.job import JobModel
from flyball_planner.models.priors import REFERENCE_PRODUCT, model_class_prior

from flyball_operator.cluster.outcome import WriteResult
from flyball_operator.cluster.state import ClusterState
from flyball_operator.learning.confidence import PaceBands, job_ratios
from flyball_operator.learning.drift import Measured, measured_anew
from flyball_operator.learning.fitted_models import as_fit, fitted_model
from flyball_operator.learning.frontiers import iteration_choices
from flyball_operator.learning.profiles import (
    FittedParameters,
    Profile,
    ProfileKey,
    Runs,
    moved,
    profile_object,
    profile_of,
    profile_status,
)
from flyball_operator.learning.records import (
    SIGNIFICANT_SHARE,
    AskedPace,
    FitState,
    ObjectState,
    Origin,
    PaceBand,
    ProfileEntry,
    ProfileWrite,
)
from flyball_operator.learning.stored_profiles import ProfileReader, stored_profiles
from flyball_operator.learning.windows import Track, Window, observations, read_window
from flyball_operator.power.nodes.info import NodeInfo

logger = get_logger(__name__)

MIN_WINDOWS_TO_FIT = 2
REFIT_SECONDS = 10.0
WRITE_SECONDS, RUN_WRITE_SECONDS = 60.0, 5.0
MAX_WRITES = 10
MAX_PROFILES = 5000
NO_RUNS: Runs = {}
CLOCK_STEP_MEGAHERTZ = 100


class Learner:
    """Observes, fits and remembers; `on_change` is called when a model has changed.

    Fits (tens of milliseconds each) are made in a thread, one at a time.
    """

    def __init__(
        self,
        session: ProfileReader,
        *,
        on_change: Callable[[], None] = lambda: None,
        wall_clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._session = session
        self._on_change = on_change
        self._wall_clock = wall_clock
        self._clock = clock or (lambda: asyncio.get_running_loop().time())
        self._entries: dict[ProfileKey, ProfileEntry] = {}
        self._tracks: dict[str, Track] = {}
        self._fitting: asyncio.Task[None] | None = None
        self._cluster_of: Mapping[str, NodeInfo] | None = None
        self._cluster: tuple[GpuModel, ...] = ()
        self._gpus_per_node = 1
        self._bands = PaceBands()
        self.loading = False

    def __len__(self) -> int:
        return len(self._entries)

    def runs(self, key: ProfileKey) -> Runs:
        """The runs of a recurring job that have ended, as far as they are kept."""
        entry = self._entries.get(key)
        return NO_RUNS if entry is None else entry.profile.runs

    def stored_runs(self, key: ProfileKey) -> Runs:
        """Those of them that the EnergyProfile object has."""
        entry = self._entries.get(key)
        return NO_RUNS if entry is None or entry.stored.profile is None else entry.stored.profile.runs

    def keys_beside(self, key: ProfileKey) -> list[ProfileKey]:
        """The keys of the same jobs on other GPU models on which runs have ended, the one with most runs first."""
        beside = (other for other in self._entries if replace(other, product=key.product) == key != other)
        return sorted(filter(self.runs, beside), key=lambda other: (-len(self.runs(other)), other.product))

    def model_of(self, key: ProfileKey, gpu_model: GpuModel, model_class: str) -> JobModel | None:
        """The model that was fitted under a key, on these GPUs; None without one."""
        entry = self._entries.get(key)
        return None if entry is None else fitted_model(entry, gpu_model, model_class)

    def note_runs(self, key: ProfileKey, runs: Runs) -> None:
        """Keep these runs of a recurring job."""
        entry = self._entry(key)
        entry.profile = replace(entry.profile, runs=runs)
        entry.stored.outdated()

    def profile(self, key: ProfileKey) -> Profile | None:
        """What is known under a key."""
        entry = self._entries.get(key)
        return None if entry is None else entry.profile

    def window(self, uid: str) -> tuple[int, Window | None]:
        """How many windows a job's newest incarnation has reported, and the last one if it measures anything."""
        track = self._tracks.get(uid)
        return (0, None) if track is None else (track.windows, track.last)

    async def load(self) -> None:
        """Take in the EnergyProfiles that there are, beside what is known already; `loading` meanwhile. Never raises."""
        self.loading = True
        try:
            async for stored in stored_profiles(self._session):
                self._take(stored)
        except Exception:
            logger.exception("EnergyProfiles are left as far as they were read: what the others hold is learned again")
        finally:
            self.loading = False

    def _take(self, stored: EnergyProfile) -> None:
        loaded = profile_of(stored)
        if stored.metadata.name != loaded.key.object_name or stored.metadata.deleting:
            return
        entry = self._entry(loaded.key)
        entry.profile = entry.profile.merged(loaded)
        entry.stored.profile, entry.stored.status = loaded, stored.status
        for frontier in stored.status.frontiers or ():
            entry.note_bounds(frontier.bounds)
        entry.stored.state = ObjectState.BEHIND  # what this process learned itself may not be in it
        entry.forget_models()
        taken = loaded.fit is not None and entry.profile.fit is loaded.fit
        entry.fit.origin = Origin.STORED if taken else Origin.OWN
        if entry.profile.fit is not None and not entry.fit.points:
            entry.fit.points = loaded.points

    def _entry(self, key: ProfileKey) -> ProfileEntry:
        """The entry of a key, made if need be; beyond MAX_PROFILES, the one that was used longest ago is forgotten."""
        entry = self._entries.pop(key) if key in self._entries else ProfileEntry(Profile(key))
        self._entries[key] = entry
        if len(self._entries) > MAX_PROFILES:
            del self._entries[next(iter(self._entries))]
        return entry

    def observe(self, cluster: ClusterState, nodes: Mapping[str, NodeInfo]) -> None:
        """Take in what the agents have reported since the last call, and have the next profile fitted that needs it."""
        self._gpu_models(nodes)
        for uid, reports in cluster.reports_of.items():
            job, incarnations = cluster.jobs.get(uid), cluster.incarnations.get(uid)
            if job is not None and incarnations:
                newest = max(incarnations, key=lambda item: item.incarnation)
                self._observe_job(job, newest, reports, nodes)
        for uid in self._tracks.keys() - cluster.reports_of.keys():
            del self._tracks[uid]
        self._fit_next()

    def _observe_job(
        self,
        job: EnergyAwareJob,
        incarnation: IncarnationView,
        reports: Iterable[tuple[str, PodReport]],
        nodes: Mapping[str, NodeInfo],
    ) -> None:
        track = self._tracks.get(job.uid)
        if track is None or track.incarnation != incarnation.incarnation:
            track = self._tracks[job.uid] = Track(incarnation.incarnation)
        own = {node: report for node, report in reports if report.incarnation == incarnation.incarnation}
        reported = {node: report.last_report_time for node, report in own.items()}
        if len(own) < len(incarnation.nodes) or any(
            last is None or last == track.reported.get(node) for node, last in reported.items()
        ):
            return  # the window is not whole yet
        track.reported = reported
        window = read_window(own, incarnation, nodes)
        if window is None or not track.take_in(window):
            return
        entry = self._entry(ProfileKey(job.namespace, job.profile_key, window.gpu_model.product))
        last = max(at for at in reported.values() if at is not None)
        measured = Measured(window.point, window.seconds, window.joules, last)
        anew = entry.drift.take_in(entry.profile, measured)
        entry.profile = measured_anew(entry.profile, anew) if anew else entry.profile.with_window(*measured)
        if anew:
            logger.info("measured anew: it has become another job", profile=entry.profile.key.path, windows=len(anew))
            entry.fit = FitState()
            entry.forget_models()
        entry.fit.due = True
        entry.note_bounds(job.frontier_bounds)
        entry.stored.outdated()
        entry.prior = model_class_prior(job.spec.training.model_class, window.gpu_model)
        # A job that shares its key with nobody, nor with its own next run, takes its profile with it when it is deleted.
        entry.shared = entry.shared or job.profile_key != job.name or job.spec.recurrence is not None
        entry.owner = None if entry.shared else {"name": job.name, "uid": job.uid}

    def _fit_next(self) -> None:
        if self._fitting is not None and not self._fitting.done():
            return
        now = self._clock()
        for entry in self._entries.values():
            if not entry.fit.due or entry.prior is None or now - entry.fit.at < REFIT_SECONDS:
                continue
            entry.fit.due = False
            if entry.profile.samples >= MIN_WINDOWS_TO_FIT and moved(
                entry.fit.points, entry.profile.points, SIGNIFICANT_SHARE
            ):
                entry.fit.at, entry.fit.points = now, entry.profile.points
                self._fitting = asyncio.create_task(self._fit(entry, entry.prior, entry.profile))
                return

    async def _fit(self, entry: ProfileEntry, prior: JobModel, profile: Profile) -> None:
        of, last = entry.fit.last or (None, None)
        if of != prior:
            last = None  # under one key, another class or other GPUs
        try:
            fitted = await asyncio.to_thread(fit, prior, observations(profile.points), last=last)
        except Exception:
            logger.exception("profile cannot be fitted; its old model stands", profile=profile.key.path)
            entry.fit.last = None  # if it was that which led astray, the next fit begins anew
            return
        entry.fit.last, entry.fit.origin = (prior, fitted), Origin.OWN
        entry.profile = replace(entry.profile, fit=as_fit(fitted, profile.samples, self._wall_clock()))
        entry.forget_models()
        entry.stored.outdated()
        self._on_change()

    def models_for(self, job: EnergyAwareJob, nodes: Mapping[str, NodeInfo]) -> tuple[JobModel, ...]:
        """The job's models, one for each GPU model of the cluster that it was fitted on, the best known first.

        Without any, the prior of its class on the cluster's most common GPU model. Never empty.
        """
        found = []
        for gpu_model in self._gpu_models(nodes):
            key = ProfileKey(job.namespace, job.profile_key, gpu_model.product)
            model = self.model_of(key, gpu_model, job.spec.training.model_class)
            if model is not None:
                found.append((self._entries[key].profile.samples, model))
        if found:
            return tuple(model for _, model in sorted(found, key=lambda item: -item[0]))
        common = next(iter(self._gpu_models(nodes)), None) or gpu_model_for(REFERENCE_PRODUCT)
        assert common is not None  # noqa: S101 - the catalogue has its own reference
        return (model_class_prior(job.spec.training.model_class, common),)

    def model_for(self, job: EnergyAwareJob, nodes: Mapping[str, NodeInfo]) -> JobModel:
        """The job's best known model."""
        return self.models_for(job, nodes)[0]

    def pace_band(
        self, job: EnergyAwareJob, gpu_model: GpuModel, gpus: int, nodes: int, clock_megahertz: int
    ) -> PaceBand | None:
        """Within which shares of what the job's model predicts an iteration takes there in nine cases of ten.

        None where the model has no answer. Worked out once for each fit and place.
        """
        training = job.spec.training
        # It hardly depends on the clock: near ones share what was found.
        clock = max(CLOCK_STEP_MEGAHERTZ, round(clock_megahertz / CLOCK_STEP_MEGAHERTZ) * CLOCK_STEP_MEGAHERTZ)
        pace = AskedPace(gpu_model, gpus, nodes, training.global_batch_size, clock)
        found = self._fitted(job, gpu_model)
        if found is None:
            return self._bands.of_class(training.model_class, pace)
        return self._bands.of_fit(*found, training.model_class, pace)

    def ratios(self, job: EnergyAwareJob, gpu_model: GpuModel, ran: Place, instead: Place) -> Ratios | None:
        """What the job's iterations would take at another place over what they take where it `ran`.

        None while nothing was measured of it. Worked out once for each fit, batch and pair of places.
        """
        found = self._fitted(job, gpu_model)
        if found is None:
            return None
        entry, fit, model = found
        covariance = entry.fit.covariance(fit)
        if covariance is None:
            entry.fit.redo()  # another process has made it, and profiles do not keep how sure it is
            return None
        key = (ran, instead, job.spec.training.global_batch_size)
        if key not in entry.ratios:
            entry.ratios[key] = job_ratios(model, covariance, fit, *key)
        return entry.ratios[key]

    def _fitted(
        self, job: EnergyAwareJob, gpu_model: GpuModel
    ) -> tuple[ProfileEntry, FittedParameters, JobModel] | None:
        """What a job's fit on these GPUs is kept with, the fit, and its model; None where nothing was measured."""
        key = ProfileKey(job.namespace, job.profile_key, gpu_model.product)
        model, entry = self.model_of(key, gpu_model, job.spec.training.model_class), self._entries.get(key)
        if model is None or entry is None or entry.profile.fit is None:
            return None
        return entry, entry.profile.fit, model

    def gpus_per_node(self, nodes: Mapping[str, NodeInfo]) -> int:
        """The most GPUs that one of the cluster's nodes has, at least 1; worked out once per cycle."""
        self._gpu_models(nodes)
        return self._gpus_per_node

    def _gpu_models(self, nodes: Mapping[str, NodeInfo]) -> tuple[GpuModel, ...]:
        """The cluster's GPU models, the most common first, one for each product; worked out once per cycle."""
        if self._cluster_of is not nodes:
            gpus: Counter[GpuModel] = Counter()
            for info in nodes.values():
                if info.gpu_model is not None:
                    gpus[info.gpu_model] += info.gpus
            by_product: dict[str, GpuModel] = {}
            for gpu_model, _ in sorted(gpus.items(), key=lambda item: (-item[1], item[0].product)):
                by_product.setdefault(gpu_model.product, gpu_model)
            self._cluster_of, self._cluster = nodes, tuple(by_product.values())
            self._gpus_per_node = max([1, *(info.gpus for info in nodes.values())])
        return self._cluster

    def due_writes(self, monotonic: float) -> list[ProfileWrite]:
        """The profiles with something new to be stored, each at most once a minute and a few at a time.

        The runs of recurring jobs, of which each is one of few, are not kept waiting for so long.
        """
        due = []
        for entry in self._entries.values():
            stored = entry.stored
            pause = RUN_WRITE_SECONDS if stored.lacks_runs(entry.profile) else WRITE_SECONDS
            if stored.state is ObjectState.CURRENT or monotonic - stored.attempted_at < pause:
                continue
            if stored.lacks(entry.profile) or self._lacks_frontiers(entry):
                due.append(entry)
            elif stored.state is ObjectState.BEHIND:
                stored.state = ObjectState.CURRENT
        due.sort(key=lambda entry: entry.stored.attempted_at)
        return [self._write(entry, monotonic) for entry in due[:MAX_WRITES]]

    def _write(self, entry: ProfileEntry, monotonic: float) -> ProfileWrite:
        entry.stored.attempted_at = monotonic
        status = profile_status(entry.profile, entry.stored.status, self._wall_clock(), self._frontiers(entry))
        exists = entry.stored.state is not ObjectState.MISSING
        disowned = exists and entry.shared and entry.may_be_owned
        return ProfileWrite(entry.profile, profile_object(entry.profile.key, entry.owner), status, exists, disowned)

    def _lacks_frontiers(self, entry: ProfileEntry) -> bool:
        """Whether its object lacks what time costs one of its jobs, and that is known."""
        return entry.stored.lacks_frontiers(entry.bounds) and self._fitted_here(entry) is not None

    def _frontiers(self, entry: ProfileEntry) -> tuple[IterationFrontier, ...] | None:
        """What time costs the jobs of a profile; as it was where the cluster has its GPUs no more."""
        model = self._fitted_here(entry)
        if model is None:
            return entry.stored.status.frontiers
        return tuple(
            IterationFrontier(bounds, iteration_choices(bounds, model, self._gpus_per_node)) for bounds in entry.bounds
        )

    def _fitted_here(self, entry: ProfileEntry) -> JobModel | None:
        product, learned = entry.profile.key.product, entry.profile.fit
        gpu_model = next((known for known in self._cluster if known.product == product), None)
        if gpu_model is None or learned is None:
            return None
        try:
            return entry.models.get(gpu_model) or learned.model(gpu_model)
        except ValueError:
            return None  # as `fitted_model` says

    def answered(self, write: ProfileWrite, result: WriteResult) -> None:
        """Take in what became of a write: stored, or learned again where the object was deleted meanwhile."""
        key = write.profile.key
        entry = self._entries.get(key)
        if entry is None:
            return
        if result.done:
            entry.may_be_owned = entry.may_be_owned and not write.disowned
            entry.stored.profile, entry.stored.status = write.profile, write.status
            same = entry.profile is write.profile
            entry.stored.state = ObjectState.CURRENT if same else ObjectState.BEHIND
        elif result.not_found and write.exists:
            logger.info("EnergyProfile deleted: what it held is learned again", profile=key.path)
            del self._entries[key]
