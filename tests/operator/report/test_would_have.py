"""What observed jobs would have used: a simulated day is observed, the same day governed, and the two are compared."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from flyball_api.energy.report import EnergyRates, EnergyReportSpec, ObservedUse, read_energy_report
from flyball_api.energy_aware_job import EnergyAwareJob
from flyball_api.gpu_node import PodReport
from flyball_api.workloads import IncarnationView
from flyball_api.writing import to_json
from flyball_operator.cluster.state import ClusterState
from flyball_operator.jobs.runs.consumption import Consumption
from flyball_operator.jobs.runs.lifecycle import JobPhase, JobStep
from flyball_operator.jobs.runs.marks import Mark, Use
from flyball_operator.jobs.runs.memory import JobMemory
from flyball_operator.jobs.runs.progress import JobProgress
from flyball_operator.jobs.steps.step import LiveJob
from flyball_operator.learning.confidence import job_ratios
from flyball_operator.learning.learner import REFIT_SECONDS, Learner
from flyball_operator.learning.profiles import FittedParameters
from flyball_operator.planning.snapshot import build_snapshot
from flyball_operator.power.nodes.info import NodeInfo
from flyball_operator.report.energy_books import EnergyBooks, Seen
from flyball_operator.report.would_have import Comparison, comparisons, observed_use
from flyball_planner.fitting.uncertainty import Band, Place, Ratios, prior_covariance
from flyball_planner.models.gpu import GpuModel, gpu_model_for
from flyball_planner.models.job import JobModel
from flyball_planner.models.priors import model_class_prior
from flyball_planner.planner import plan
from flyball_planner.snapshot import Allocation, JobDecision
from flyball_views.report import By
from flyball_views.would_have import would_have_report

from tests.support.crd_schema import assert_valid
from tests.support.operator_objects import decision, incarnation_view, job_view, ready_node
from tests.support.waiting import until

MIDNIGHT = datetime(2030, 6, 1, tzinfo=UTC)
STEP_SECONDS, STEPS = 900.0, 95
BATCH = 256
NOISE = 0.03


def a100() -> GpuModel:
    model = gpu_model_for("NVIDIA-A100-SXM4-40GB")
    assert model is not None
    return model


NODES: dict[str, NodeInfo] = {
    name: msgspec.structs.replace(ready_node(name, gpus=8), gpu_model=a100()) for name in ("n0", "n1")
}


class NoProfiles:
    async def get(self, path: str, **params: str) -> dict[str, Any]:
        return {"items": [], "metadata": {}}


@dataclass
class Trained:
    """A job of which the test knows how it really trains."""

    view: EnergyAwareJob
    truth: JobModel
    clock: int = 0
    gpus: int = 0
    iterations: float = 0.0
    joules: float = 0.0
    gpu_seconds: float = 0.0

    @property
    def place(self) -> Place:
        return Place(self.gpus, 1, self.clock)

    @property
    def joules_per_iteration(self) -> float:
        return self.joules / self.iterations


def really(prior: JobModel, generator: random.Random) -> JobModel:
    """A job of a class, as one may turn out to be: each of its parameters off by some 20 %."""
    names = [name for name, value in prior.parameters().items() if value > 0 and not name.endswith("overlap")]
    return replace(prior, **{name: getattr(prior, name) * generator.lognormvariate(0, 0.2) for name in names})


class Day:
    """A day of the same jobs, learned of, planned and kept books of by the operator's own parts."""

    def __init__(self, seed: int, *, observed: bool) -> None:
        generator = random.Random(seed)
        kinds = (("gpt2", "Energy"), ("resnet50", "Energy"), ("bert", "Balanced"), ("vgg16", "Balanced"))
        self.jobs = []
        for index, (model_class, objective) in enumerate(kinds):
            view = job_view(
                f"{model_class}-{index}",
                gpus={"min": 4, "max": 4},
                objective=objective,
                training={"globalBatchSize": BATCH, "iterations": 100_000_000, "modelClass": model_class},
            )
            truth = really(model_class_prior(model_class, a100()), generator)
            self.jobs.append(Trained(replace(view, observed=observed), truth))
        self.noise = random.Random(seed + 1000)
        self.seconds = 0.0
        self.learner = Learner(NoProfiles(), clock=lambda: self.seconds)
        self.books = EnergyBooks(None, EnergyRates(), MIDNIGHT)
        self.decisions: Mapping[str, JobDecision] = {}
        self.books.observe(Seen({}, {}, self._used(), {}), MIDNIGHT)

    def now(self) -> datetime:
        return MIDNIGHT + timedelta(seconds=self.seconds)

    async def run(self) -> EnergyReportSpec:
        for _ in range(STEPS):
            await self.step()
        return self.books.spec()

    async def step(self) -> None:
        self._plan()
        self.seconds += STEP_SECONDS
        reports: dict[str, tuple[IncarnationView, PodReport]] = {}
        for job in self.jobs:
            allocation = self._allocation(job)
            job.clock, job.gpus = allocation.clock_megahertz, allocation.gpus
            seconds, joules = (
                exact(job.gpus, 1, job.clock, BATCH)
                for exact in (job.truth.iteration_seconds, job.truth.iteration_joules)
            )
            job.iterations += STEP_SECONDS / seconds
            job.joules += STEP_SECONDS / seconds * joules
            job.gpu_seconds += STEP_SECONDS * job.gpus
            reports[job.view.uid] = (
                incarnation_view(job.view.uid, 1, *allocation.nodes),
                PodReport(
                    namespace=job.view.namespace,
                    name=job.view.name,
                    uid=job.view.uid,
                    incarnation=1,
                    pod_name="p",
                    gpus=job.gpus,
                    iterations=round(job.iterations),
                    microseconds_per_iteration=round(seconds * 1e6 * self.noise.lognormvariate(0, NOISE)),
                    millijoules_per_iteration=round(joules * 1e3 * self.noise.lognormvariate(0, NOISE)),
                    clock_megahertz=job.clock,
                    local_batch_size=BATCH // job.gpus,
                    energy_millijoules=round(job.joules * 1e3),
                    last_report_time=self.now(),
                ),
            )
        self._account(reports)
        self._learn(reports)
        await until(lambda: self.learner._fitting is None or self.learner._fitting.done())

    def _plan(self) -> None:
        snapshot = build_snapshot(
            nodes=NODES,
            rules={},
            budgets=(),
            jobs=[(job.view, self._memory(job)) for job in self.jobs],
            models_of=lambda view: self.learner.models_for(view, NODES),
            now=self.now(),
            restart_seconds=30.0,
            guard_fraction=0.05,
        )
        self.decisions = {item.uid: item for item in plan(snapshot).decisions}

    def _allocation(self, job: Trained) -> Allocation:
        allocation = self.decisions[job.view.uid].allocation
        assert allocation is not None
        return allocation

    def _memory(self, job: Trained) -> JobMemory:
        progress = JobProgress(iterations=job.iterations, clock_megahertz=job.clock)
        current = self._allocation(job) if job.gpus else None
        return JobMemory(progress, current, running=bool(job.gpus), holds_gpus=bool(job.gpus))

    def _account(self, reports: Mapping[str, tuple[IncarnationView, PodReport]]) -> None:
        live = [
            LiveJob(job.view, self._memory(job), JobStep(JobPhase.RUNNING, reports[job.view.uid][0]), ())
            for job in self.jobs
        ]
        observed = comparisons(live, self.decisions, NODES, self.learner, everything=False)
        self.books.observe(Seen({}, {}, self._used(), {}, observed=observed), self.now())

    def _used(self) -> list[Consumption]:
        return [
            Consumption(
                job.view.namespace, job.view.name, job.view.uid, MIDNIGHT, round(job.joules * 1e3), job.gpu_seconds
            )
            for job in self.jobs
        ]

    def _learn(self, reports: Mapping[str, tuple[IncarnationView, PodReport]]) -> None:
        cluster = ClusterState(
            jobs={job.view.uid: job.view for job in self.jobs},
            caps=[],
            gpu_nodes={},
            nodes=[],
            pods=[],
            incarnations={uid: [incarnation] for uid, (incarnation, _) in reports.items()},
            pods_of={},
            reports_of={uid: [(incarnation.nodes[0][0], found)] for uid, (incarnation, found) in reports.items()},
            unread=(),
            age_seconds=0.0,
        )
        self.learner.observe(cluster, NODES)


def uses(spec: EnergyReportSpec) -> dict[str, ObservedUse]:
    return {job.uid: job.observed for job in spec.jobs if job.observed is not None}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
async def test_what_a_governed_day_really_saves_lies_in_the_band_of_the_observed_one(seed: int) -> None:
    observed, governed = Day(seed, observed=True), Day(seed, observed=False)
    spec = await observed.run()
    assert uses(await governed.run()) == {}
    found = uses(spec)
    assert_valid("EnergyReport", "spec", to_json(spec))
    inside, least, really_used, most, known = 0, 0.0, 0.0, 0.0, 0.0
    for ran, other in zip(observed.jobs, governed.jobs, strict=True):
        use = found[ran.view.uid]
        assert ran.clock == max(a100().clocks_megahertz)
        assert use.millijoules + use.unknown_millijoules == pytest.approx(ran.joules * 1e3, abs=2)
        # A few windows are needed before anything is known of a job.
        assert 0 < use.unknown_millijoules < 0.2 * ran.joules * 1e3
        # The same work as that of which it is known, on the governed day.
        real = use.millijoules * other.joules_per_iteration / ran.joules_per_iteration
        inside += use.least_millijoules <= real <= use.most_millijoules
        least, most = least + use.least_millijoules, most + use.most_millijoules
        really_used, known = really_used + real, known + use.millijoules
    assert least <= really_used <= most
    assert inside >= 3
    # It is a saving, and the band says more than that it might be anything.
    assert really_used < 0.97 * known
    assert most - least < 0.5 * known
    report = would_have_report([spec], observed.now(), By.NAMESPACE)
    assert report.total.saved_share is not None
    assert report.total.saved_share.least <= 1 - really_used / known <= report.total.saved_share.most


def test_the_books_go_on_after_a_restart() -> None:
    """What an operator has written of observed jobs, the next one adds to."""
    ratios = Ratios(Band(1.0, 1.1, 1.2), Band(0.7, 0.8, 0.9))

    def seen(millijoules: int, seconds: float) -> Seen:
        used = Consumption("team", "a", "uid-a", MIDNIGHT, millijoules, seconds)
        return Seen({}, {}, [used], {}, observed={"uid-a": Comparison(4, ratios)})

    books = EnergyBooks(None, EnergyRates(), MIDNIGHT)
    books.observe(seen(0, 0.0), MIDNIGHT)
    books.observe(seen(10_000, 40.0), MIDNIGHT + timedelta(seconds=10))
    stored = {
        "metadata": {"name": "2030-06-01"},
        "spec": msgspec.json.decode(msgspec.json.encode(to_json(books.spec()))),
    }
    later = EnergyBooks(read_energy_report(stored).spec, EnergyRates(), MIDNIGHT)
    later.observe(seen(30_000, 120.0), MIDNIGHT + timedelta(seconds=30))
    assert uses(later.spec()) == {
        "uid-a": ObservedUse(
            unknown_millijoules=0,
            millijoules=30_000,
            governed_millijoules=24_000,
            least_millijoules=21_000,
            most_millijoules=27_000,
            milliseconds=30_000,
            governed_milliseconds=33_000,
            least_milliseconds=30_000,
            most_milliseconds=36_000,
        )
    }


# --- what is compared with what -----------------------------------------------------------------------------------------

RATIOS = Ratios(Band(1.0, 1.0, 1.0), Band(0.5, 0.6, 0.7))


class Asked:
    """Models that have an answer, and note the question."""

    def __init__(self, answer: Ratios | None = RATIOS) -> None:
        self.answer = answer
        self.places: list[tuple[Place, Place]] = []

    def ratios(self, job: EnergyAwareJob, gpu_model: GpuModel, ran: Place, instead: Place) -> Ratios | None:
        assert gpu_model == a100()
        self.places.append((ran, instead))
        return self.answer


def live(view: EnergyAwareJob, *nodes: tuple[str, int], clock: int = 1400, running: bool = True) -> LiveJob:
    memory = JobMemory(JobProgress(clock_megahertz=clock), None, running=running)
    return LiveJob(view, memory, JobStep(JobPhase.RUNNING, incarnation_view(view.uid, 1, *nodes)), ())


OBSERVED = replace(job_view(), observed=True)
HERE = decision("uid-train", ("n0", 4), clock=1410, governed_clock_megahertz=1005)


def compared(
    job: LiveJob, found: JobDecision | None, *, everything: bool = False, models: Asked | None = None
) -> tuple[dict[str, Comparison | None], list[tuple[Place, Place]]]:
    models = models or Asked()
    decisions = {} if found is None else {job.view.uid: found}
    return comparisons([job], decisions, NODES, models, everything=everything), models.places


def test_an_observed_job_is_compared_with_its_own_clock_where_it_runs() -> None:
    found, places = compared(live(OBSERVED, ("n0", 4)), HERE)
    assert found == {"uid-train": Comparison(4, RATIOS)}
    assert places == [(Place(4, 1, 1400), Place(4, 1, 1005))]


def test_a_job_that_a_cap_holds_lower_than_it_would_go_would_save_nothing() -> None:
    _, places = compared(live(OBSERVED, ("n0", 4), clock=900), HERE)
    assert places == [(Place(4, 1, 900), Place(4, 1, 900))]


def test_of_an_installation_that_only_observes_the_whole_plan_counts() -> None:
    governed = decision("uid-train", ("n0", 8), ("n1", 8), clock=1110)
    found, places = compared(live(job_view(), ("n0", 4)), governed, everything=True)
    assert found == {"uid-train": Comparison(4, RATIOS)}
    assert places == [(Place(4, 1, 1400), Place(16, 2, 1110))]


def test_a_job_that_is_governed_is_not_in_it() -> None:
    assert compared(live(job_view(), ("n0", 4)), decision("uid-train", ("n0", 4))) == ({}, [])


UNKNOWN: dict[str, tuple[LiveJob, JobDecision | None]] = {
    "it has not begun to run": (live(OBSERVED, ("n0", 4), running=False), HERE),
    "its clock is not measured": (live(OBSERVED, ("n0", 4), clock=0), HERE),
    "there is no plan yet": (live(OBSERVED, ("n0", 4)), None),
    "the plan has nothing for it": (live(OBSERVED, ("n0", 4)), decision("uid-train")),
    "its node's GPUs are not known": (live(OBSERVED, ("n7", 4)), HERE),
    "its pipeline has a plan of its own": (
        live(
            replace(job_view(pipeline={"stages": 2, "plan": {"configMap": "plan"}}), observed=True),
            ("n0", 4),
        ),
        HERE,
    ),
}


@pytest.mark.parametrize("why", UNKNOWN)
def test_of_what_nobody_knows_nothing_is_said(why: str) -> None:
    found, places = compared(*UNKNOWN[why])
    assert (found, places) == ({"uid-train": None}, [])
    assert observed_use(USE, found["uid-train"]) == ObservedUse(unknown_millijoules=900)


def test_a_job_of_which_nothing_was_learned_is_unknown() -> None:
    found, _ = compared(live(OBSERVED, ("n0", 4)), HERE, models=Asked(None))
    assert found == {"uid-train": None}


USE = Use(Consumption("team", "train", "uid-train", MIDNIGHT, 900), 900, 4, Mark(900, 4))


def test_what_used_nothing_would_have_used_nothing() -> None:
    assert observed_use(replace(USE, millijoules=0, gpu_seconds=0), Comparison(4, RATIOS)) is None


@pytest.mark.parametrize("error", [20.0, 60.0, 1000.0])
def test_a_band_that_says_nothing_is_no_figure_that_no_report_could_hold(error: float) -> None:
    """A script that says anything of its time has a fit that is off by any factor; the book of the day is everybody's."""
    prior = model_class_prior("generic", a100())
    learned = FittedParameters(prior.parameters(), {}, error, 0.1, 9, MIDNIGHT)
    ran, instead = Place(4, 1, 1410), Place(4, 1, 1110)
    assert job_ratios(prior, prior_covariance(prior), learned, ran, instead, BATCH) is None
    usual = replace(learned, time_error=0.1)
    assert job_ratios(prior, prior_covariance(prior), usual, ran, instead, BATCH) is not None


async def test_a_profile_that_another_process_fitted_is_fitted_again_before_anything_is_said() -> None:
    day = Day(1, observed=True)
    for _ in range(12):
        await day.step()
    known = {name: entry for name, entry in day.learner._entries.items() if entry.profile.fit is not None}
    assert len(known) == 4
    for entry in known.values():
        entry.fit.last = None  # as after the profiles were loaded
        entry.forget_models()
    before = uses(day.books.spec())
    day.seconds += REFIT_SECONDS
    await day.step()
    assert all(uses(day.books.spec())[uid].unknown_millijoules > use.unknown_millijoules for uid, use in before.items())
    for _ in range(6):  # one profile at a time
        await day.step()
    between = uses(day.books.spec())
    await day.step()
    assert all(uses(day.books.spec())[uid].millijoules > use.millijoules for uid, use in between.items())
