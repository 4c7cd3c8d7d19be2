"""Learning: what counts as a window, what is kept of it, what is fitted, and what outlives the process."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio
from flyball_api.energy.frontier import FrontierBounds, IterationChoice, IterationFrontier
from flyball_api.energy.profile import EnergyProfileStatus, FitQuality, FittedParameter, read_energy_profile
from flyball_api.energy_aware_job import EnergyAwareJob, read_energy_aware_job
from flyball_api.workloads import DEFAULT_GPU_RESOURCES
from flyball_api.writing import to_patch
from flyball_kube.credentials import Configuration, load_configuration
from flyball_kube.resources import ENERGY_AWARE_JOBS, ENERGY_PROFILES
from flyball_kube.session import ApiSession, JsonObject
from flyball_operator.cluster.outcome import DONE
from flyball_operator.learning import learner as learner_module
from flyball_operator.learning.drift import DRIFT_WINDOWS
from flyball_operator.learning.frontiers import MAX_CHOICES, iteration_choices
from flyball_operator.learning.learner import Learner
from flyball_operator.learning.profiles import (
    MAX_POINTS,
    FittedParameters,
    Point,
    Profile,
    ProfileKey,
    Summary,
    moved,
    profile_object,
    profile_of,
    profile_status,
)
from flyball_operator.learning.records import MAX_BOUNDS
from flyball_operator.learning.windows import Window, nearest_clock, observations, read_window
from flyball_operator.writes.executor import Executor
from flyball_operator.writes.lease import LeadershipLost
from flyball_operator.writes.profiles import write_profiles
from flyball_planner.fitting.fit import FittedModel, errors_of, fit
from flyball_planner.models.job import JobModel
from flyball_planner.models.priors import model_class_prior
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tests.support.learned_jobs import (
    A100,
    H100,
    NODES,
    NOW,
    Cluster,
    StoredProfiles,
    gpu,
    incarnation,
    info,
    job,
    learner,
    report,
    world,
)
from tests.support.waiting import until

# --- windows ------------------------------------------------------------------------------------------------------

TWO_NODES = {"n1": 8, "n2": 8}


def window_of(**second: Any) -> Window | None:
    """The window of two nodes of which the second reports `second`."""
    view = job()
    reports = {"n1": report(view, 8, NOW), "n2": structs.replace(report(view, 8, NOW), **second)}
    return read_window(reports, incarnation(view, TWO_NODES), NODES)


def test_the_slowest_node_sets_the_time_and_all_nodes_the_energy() -> None:
    window = window_of(microseconds_per_iteration=600_000, millijoules_per_iteration=900_000, clock_megahertz=1260)
    assert window is not None
    assert window.point == Point(16, 2, 16, 1230)
    assert (window.seconds, window.joules, window.gpu_model) == (0.6, 800.0 + 900.0, A100)


@pytest.mark.parametrize(
    "absurd",
    [
        {"local_batch_size": 8},
        {"local_batch_size": 0},
        {"gpus": 4},
        {"last_report_time": None},
        {"ended": True},
        {"clock_megahertz": 0},
        {"microseconds_per_iteration": 4_000_000_000},
        {"millijoules_per_iteration": 10**12},
    ],
)
def test_a_window_that_is_not_whole_or_not_possible_is_none(absurd: dict[str, Any]) -> None:
    assert window_of() is not None
    assert window_of(**absurd) is None


def test_a_window_without_time_or_energy_is_none() -> None:
    view = job()
    for fields in ({"microseconds_per_iteration": 0}, {"millijoules_per_iteration": 0}):
        reports = {"n1": report(view, 8, NOW, **fields)}
        assert read_window(reports, incarnation(view, {"n1": 8}), NODES) is None


def test_a_window_over_different_or_unknown_gpus_is_none() -> None:
    view = job()
    reports = {"n1": report(view, 8, NOW), "n2": report(view, 8, NOW)}
    whole = incarnation(view, TWO_NODES)
    assert read_window(reports, whole, {**NODES, "n2": info("n2", H100)}) is None
    assert read_window(reports, whole, {"n1": info("n1", None), "n2": info("n2", None)}) is None
    assert read_window(reports, whole, {"n1": NODES["n1"]}) is None
    assert read_window({"n1": reports["n1"]}, whole, NODES) is None


@given(st.floats(1, 5000))
def test_a_clock_is_taken_at_the_nearest_supported_one(megahertz: float) -> None:
    nearest = nearest_clock(A100.clocks_megahertz, megahertz)
    assert abs(nearest - megahertz) == min(abs(clock - megahertz) for clock in A100.clocks_megahertz)


# --- summaries ----------------------------------------------------------------------------------------------------

values = st.lists(st.tuples(st.floats(0.1, 10), st.floats(1, 1e4)), min_size=1, max_size=40)


@given(values)
def test_a_summary_is_the_mean_and_variance_of_its_windows(windows: list[tuple[float, float]]) -> None:
    profile = Profile(ProfileKey("ns", "k", "p"))
    for seconds, joules in windows:
        profile = profile.with_window(Point(1, 1, 1, 900), seconds, joules, NOW)
    (summary,) = profile.points.values()
    assert summary.samples == profile.samples == len(windows)
    for column, mean, variance in (
        (0, summary.seconds, summary.seconds_variance),
        (1, summary.joules, summary.joules_variance),
    ):
        data = [window[column] for window in windows]
        wanted = math.fsum(data) / len(data)
        assert mean == pytest.approx(wanted)
        assert variance == pytest.approx(math.fsum((x - wanted) ** 2 for x in data) / len(data), rel=1e-6, abs=1e-6)


def test_a_mean_forgets_so_that_a_job_that_changed_is_learned_again() -> None:
    summary = Summary(1, 1.0, 0.0, 1.0, 0.0, NOW)
    for _ in range(10_000):
        summary = summary.with_window(1.0, 1.0, NOW)
    for _ in range(200):
        summary = summary.with_window(2.0, 1.0, NOW)
    assert summary.seconds > 1.95


def test_a_profile_stays_small_and_loses_the_oldest_point() -> None:
    profile = Profile(ProfileKey("ns", "k", "p"))
    for clock in range(1, MAX_POINTS + 11):
        profile = profile.with_window(Point(1, 1, 1, clock), 1.0, 1.0, NOW)
        profile = profile.with_window(Point(1, 1, 1, 1), 1.0, 1.0, NOW)  # always the last one measured
    clocks = [point.clock_megahertz for point in profile.points]
    assert len(clocks) == MAX_POINTS
    assert 1 in clocks
    assert min(clock for clock in clocks if clock > 1) == 12


def test_what_two_leaders_learned_comes_together() -> None:
    point, other = Point(1, 1, 1, 900), Point(2, 1, 1, 900)
    few, many = Summary(3, 1.0, 0, 1.0, 0, NOW), Summary(30, 2.0, 0, 2.0, 0, NOW)
    early = FittedParameters({}, {}, 0, 0, 3, NOW)
    late = replace(early, at=NOW + timedelta(seconds=1))
    key = ProfileKey("ns", "k", "p")
    mine, theirs = Profile(key, {point: few}, late), Profile(key, {point: many, other: few}, early)
    for merged in (mine.merged(theirs), theirs.merged(mine)):
        assert dict(merged.points) == {point: many, other: few}
        assert merged.fit == late
    assert mine.merged(Profile(key)) == mine


@pytest.mark.parametrize(
    ("samples", "seconds", "joules", "expected"),
    [
        (10, 1.0, 1.0, False),
        (14, 1.01, 0.99, False),
        (15, 1.0, 1.0, True),
        (10, 1.03, 1.0, True),
        (10, 1.0, 0.97, True),
    ],
)
def test_only_what_says_something_new_is_worth_a_fit(
    samples: int, seconds: float, joules: float, expected: bool
) -> None:
    point = Point(1, 1, 1, 900)
    before = {point: Summary(10, 1.0, 0, 1.0, 0, NOW)}
    assert moved(before, {point: Summary(samples, seconds, 0, joules, 0, NOW)}, 0.02) is expected
    assert moved(before, {**before, Point(2, 1, 1, 900): before[point]}, 0.02)


# --- a learner at work --------------------------------------------------------------------------------------------


async def learner_of(*profiles: JsonObject) -> Learner:
    """A learner that has loaded these EnergyProfiles."""
    loaded = Learner(StoredProfiles(*profiles), clock=lambda: 0.0)
    await loaded.load()
    return loaded


TRUTH = model_class_prior("bert", A100)


async def test_the_warm_up_and_changes_of_clocks_measure_nothing() -> None:
    cluster = Cluster(learner(), TRUTH, job())
    cluster.run({"n1": 8}, 1200, 2, distortion=7.0)  # the warm-up
    assert cluster.points() == {}
    cluster.run({"n1": 8}, 1200, 3)
    assert [(point.clock_megahertz, summary.samples) for point, summary in cluster.points().items()] == [(1200, 3)]
    cluster.run({"n1": 8}, 900, 1, distortion=1.5)  # partly at the old clock
    cluster.run({"n1": 8}, 900, 2)
    summaries = cluster.points()
    assert {point.clock_megahertz: summary.samples for point, summary in summaries.items()} == {1200: 3, 900: 2}
    assert all(summary.seconds_variance < 1e-9 for summary in summaries.values())
    cluster.run({"n1": 4, "n2": 4}, 900, 2, number=2, distortion=5.0)  # a new incarnation warms up again
    assert len(cluster.points()) == 2
    cluster.run({"n1": 4, "n2": 4}, 900, 1, number=2)
    assert Point(8, 2, 16, 900) in cluster.points()


async def test_reports_of_old_incarnations_and_unknown_jobs_measure_nothing() -> None:
    cluster = Cluster(learner(), TRUTH, job())
    view = cluster.view
    for count in range(6):
        at = NOW + timedelta(seconds=count)
        reports = {"n1": report(view, 8, at, number=1)}
        cluster.learner.observe(world((view, incarnation(view, {"n1": 8}, 2), reports)), NODES)
        stranger = world((view, incarnation(view, {"n1": 8}, 1), reports))
        stranger.jobs.clear()
        cluster.learner.observe(stranger, NODES)
    assert len(cluster.learner) == 0


def worst_error(model: JobModel, clocks: tuple[int, ...] = (600, 810, 1005, 1200, 1410)) -> float:
    errors = []
    for gpus, nodes in ((1, 1), (4, 1), (8, 1), (16, 2)):
        for clock in clocks:
            for local in (8, 16, 32):
                arguments = (gpus, nodes, clock, local * gpus)
                errors += [
                    abs(model.iteration_seconds(*arguments) / TRUTH.iteration_seconds(*arguments) - 1),
                    abs(model.iteration_joules(*arguments) / TRUTH.iteration_joules(*arguments) - 1),
                ]
    return max(errors)


async def test_a_model_is_learned_from_what_runs_and_replaces_the_prior(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = 0
    begun_at: list[Any] = []

    def changed() -> None:
        nonlocal changes
        changes += 1

    def noted(*arguments: Any, last: Any) -> Any:
        begun_at.append(last)
        return fit(*arguments, last=last)

    monkeypatch.setattr(learner_module, "fit", noted)
    clock = 0.0
    cluster = Cluster(learner(on_change=changed, clock=lambda: clock), TRUTH, job())
    view, before = cluster.view, cluster.learner.model_for(cluster.view, NODES)
    assert before == model_class_prior("gpt2", A100)
    number = 0
    for nodes in ({"n1": 1}, {"n1": 4}, {"n1": 8}, {"n1": 8, "n2": 8}):
        number += 1
        for megahertz in (750, 1050, 1410):
            for local in (8, 32):
                cluster.run(nodes, megahertz, 5, number=number, local_batch=local)
    clock += learner_module.REFIT_SECONDS
    await until(lambda: changes >= 1)
    clock += learner_module.REFIT_SECONDS
    cluster.run({"n1": 8, "n2": 8}, 1410, 1, number=number, local_batch=32)
    await until(lambda: changes >= 2)
    (after,) = cluster.learner.models_for(view, NODES)
    assert after.gpu_model == A100
    assert worst_error(after) < 0.2
    assert worst_error(after) < worst_error(before) / 3
    assert cluster.learner.model_for(view, NODES) is after  # no new object, no new plan
    assert begun_at[0] is None
    assert begun_at[1] is not None, "where the first fit ended, a second one begins its search"

    clock += 100 * learner_module.REFIT_SECONDS
    cluster.run({"n1": 8, "n2": 8}, 1410, 1, number=number, local_batch=32)
    assert cluster.learner._fitting is None or cluster.learner._fitting.done()  # it said nothing new


async def test_the_band_of_a_pace_narrows_with_what_is_measured_and_outlives_the_operator() -> None:
    view = job()
    cluster = Cluster(learner(clock=lambda: 0.0), TRUTH, view)

    def share(of: Learner, gpus: int = 8) -> float:
        band = of.pace_band(view, A100, gpus, 1, 1200)
        assert band is not None
        least, most = band
        assert least == pytest.approx(1 / most)
        assert least <= 1.0 <= most
        return most

    of_class = share(cluster.learner)
    assert 1.1 < of_class < 2.0, "nothing is known but the class"
    cluster.run({"n1": 8}, 1200, 5, local_batch=32)  # its global batch of 256
    await until(lambda: cluster.learner.model_for(view, NODES) != model_class_prior("gpt2", A100))
    assert share(cluster.learner) < 1 + (of_class - 1) / 5
    assert share(cluster.learner, 2) > share(cluster.learner), "nobody has seen it there"
    profile = cluster.learner.profile(cluster.key)
    assert profile is not None
    raw = {
        **profile_object(cluster.key),
        "status": to_patch(profile_status(profile, EnergyProfileStatus(), NOW)),
    }
    later = await learner_of(raw)
    assert share(later) < 1 + (of_class - 1) / 5, "measured there"
    assert share(later, 2) > 1.1, "and not there: as of its class"


async def test_a_profile_says_what_time_costs_each_kind_of_its_jobs() -> None:
    shared = learner(clock=lambda: 0.0)
    wide, narrow = job("a", profileKey="k"), job("b", profileKey="k", gpus={"min": 4, "max": 8})
    first, second = Cluster(shared, TRUTH, wide), Cluster(shared, TRUTH, narrow)
    first.run({"n1": 8}, 1200, 5)
    await until(lambda: shared.model_for(wide, NODES) != model_class_prior("gpt2", A100))

    def stored(now: float) -> EnergyProfileStatus | None:
        writes = shared.due_writes(now)
        for write in writes:
            shared.answered(write, DONE)
        return writes[0].status if writes else None

    status = stored(0.0)
    assert status is not None
    assert [frontier.bounds for frontier in status.frontiers or ()] == [wide.frontier_bounds]
    (frontier,) = status.frontiers or ()
    assert frontier.choices == iteration_choices(wide.frontier_bounds, shared.model_for(wide, NODES), 8)
    assert stored(100.0) is None, "nothing is new"
    second.run({"n2": 8}, 1200, 3)
    status = stored(200.0)
    assert status is not None, "a job with other bounds is measured"
    assert [frontier.bounds for frontier in status.frontiers or ()] == [wide.frontier_bounds, narrow.frontier_bounds]

    # The next leader keeps them, though it has measured nothing yet; and drops the oldest kinds when there are many.
    raw = {**profile_object(first.key), "status": to_patch(status)}
    later = await learner_of(raw)
    again = Cluster(later, TRUTH, narrow)
    for limit in range(1400, 1400 - MAX_BOUNDS, -1):
        again.view = job("b", profileKey="k", clocks={"maxMegahertz": limit})
        again.run({"n1": 8}, 1200, 3)
    (write,) = later.due_writes(0.0)
    kept = [frontier.bounds for frontier in write.status.frontiers or ()]
    assert len(kept) == MAX_BOUNDS
    assert [bounds.max_megahertz for bounds in kept] == list(range(1400, 1400 - MAX_BOUNDS, -1))


async def test_jobs_share_by_key_within_a_namespace_only() -> None:
    shared = learner(clock=lambda: 0.0)
    first = Cluster(shared, TRUTH, job("a", profileKey="k"))
    first.run({"n1": 8}, 1200, 5)
    await until(lambda: shared.model_for(first.view, NODES) != model_class_prior("gpt2", A100))
    learned = shared.model_for(first.view, NODES)
    assert shared.model_for(job("b", profileKey="k"), NODES) == learned
    for other in (job("a"), job("a", "elsewhere", profileKey="k")):
        assert shared.model_for(other, NODES) == model_class_prior("gpt2", A100)


async def test_the_best_known_model_comes_first_and_others_follow() -> None:
    view = job()
    profiles = []
    for product, samples in ((A100.product, 3), (H100.product, 9)):
        key = ProfileKey(view.namespace, view.profile_key, product)
        fitted = FittedParameters(model_class_prior("bert", gpu(product)).parameters(), {}, 0.01, 0.02, samples, NOW)
        points = {Point(8, 1, 16, 1200): Summary(samples, 1.0, 0.0, 100.0, 0.0, NOW)}
        raw = {
            **profile_object(key),
            "status": to_patch(profile_status(Profile(key, points, fitted), EnergyProfileStatus(), NOW)),
        }
        profiles.append(raw)
    known = await learner_of(*profiles)
    mixed = {"n1": info("n1", A100), "n2": info("n2", H100, gpus=4)}
    assert [model.gpu_model for model in known.models_for(view, mixed)] == [H100, A100]
    assert [model.gpu_model for model in known.models_for(view, NODES)] == [A100]
    unknown = job("unknown")
    assert known.models_for(unknown, mixed) == (model_class_prior("gpt2", A100),)
    assert known.models_for(unknown, {"n2": mixed["n2"]}) == (model_class_prior("gpt2", H100),)
    assert known.models_for(unknown, {"n1": info("n1", None)})[0].gpu_model.product == A100.product


async def test_a_fit_that_fails_leaves_the_old_model(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = 0

    def broken(*_: Any, **__: Any) -> Any:
        nonlocal attempts
        attempts += 1
        raise RuntimeError("singular")

    monkeypatch.setattr(learner_module, "fit", broken)
    cluster = Cluster(learner(clock=lambda: 0.0), TRUTH, job())
    cluster.run({"n1": 8}, 1200, 6)
    await until(lambda: attempts > 0)
    assert cluster.learner.model_for(cluster.view, NODES) == model_class_prior("gpt2", A100)


async def test_a_refit_that_fails_leaves_the_last_model_and_the_next_begins_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun_at: list[FittedModel | None] = []
    attempts = 0

    def second_is_broken(*arguments: Any, last: FittedModel | None) -> FittedModel:
        nonlocal attempts
        begun_at.append(last)
        attempts += 1
        if attempts == 2:
            raise RuntimeError("singular")
        return fit(*arguments, last=last)

    monkeypatch.setattr(learner_module, "fit", second_is_broken)
    clock = 0.0
    cluster = Cluster(learner(clock=lambda: clock), TRUTH, job())
    cluster.run({"n1": 8}, 1200, 6)
    await until(lambda: cluster.learner.model_for(cluster.view, NODES) != model_class_prior("gpt2", A100))
    kept = cluster.learner.model_for(cluster.view, NODES)
    clock += learner_module.REFIT_SECONDS
    cluster.run({"n1": 8}, 900, 6)
    await until(lambda: attempts == 2 and cluster.learner._fitting is not None and cluster.learner._fitting.done())
    assert cluster.learner.model_for(cluster.view, NODES) is kept
    clock += learner_module.REFIT_SECONDS
    cluster.run({"n1": 8}, 600, 6)
    await until(lambda: cluster.learner.model_for(cluster.view, NODES) is not kept)
    assert begun_at[0] is None
    assert begun_at[1] is not None
    assert begun_at[2] is None


@pytest.mark.slow
async def test_a_refit_gives_the_model_that_one_from_scratch_would(monkeypatch: pytest.MonkeyPatch) -> None:
    """And only what was fitted to the same prior is a start: jobs of two classes may share a key."""
    begun_at: list[FittedModel | None] = []

    def noted(*arguments: Any, last: FittedModel | None) -> FittedModel:
        begun_at.append(last)
        return fit(*arguments, last=last)

    monkeypatch.setattr(learner_module, "fit", noted)
    clock, changes = 0.0, 0

    def changed() -> None:
        nonlocal changes
        changes += 1

    cluster = Cluster(learner(on_change=changed, clock=lambda: clock), TRUTH, job(profileKey="k"))
    for number, nodes in enumerate(({"n1": 2}, {"n1": 8}, {"n1": 8, "n2": 8}), start=1):
        for megahertz in (750, 1050, 1410):
            for local in (8, 32):
                clock += learner_module.REFIT_SECONDS
                before = changes
                cluster.run(nodes, megahertz, 5, number=number, local_batch=local)
                await until(lambda before=before: changes > before)  # type: ignore[misc]
    assert [last is None for last in begun_at] == [True] + [False] * (len(begun_at) - 1)
    refitted = cluster.learner.model_for(cluster.view, NODES)
    clock += learner_module.REFIT_SECONDS  # the last window of all has come after the last fit began
    cluster.learner.observe(world(), NODES)
    await until(lambda: cluster.learner._fitting is None or cluster.learner._fitting.done())
    scratch = fit(model_class_prior("gpt2", A100), observations(cluster.points())).model
    for gpus, nodes_of in ((1, 1), (2, 1), (8, 1), (16, 2)):
        for clock_megahertz in (600, 900, 1200, 1410):
            arguments = (gpus, nodes_of, clock_megahertz, 16 * gpus)
            for one, other in (
                (refitted.iteration_seconds(*arguments), scratch.iteration_seconds(*arguments)),
                (refitted.iteration_joules(*arguments), scratch.iteration_joules(*arguments)),
            ):
                assert one == pytest.approx(other, rel=0.05), arguments

    clock, begun = clock + learner_module.REFIT_SECONDS, len(begun_at)
    of_another_class = Cluster(
        cluster.learner, TRUTH, job("other", profileKey="k", training={"globalBatchSize": 256, "modelClass": "vgg16"})
    )
    of_another_class.run({"n3": 4}, 900, 5)
    await until(lambda: len(begun_at) > begun)
    assert begun_at[-1] is None


def stored(
    points: dict[Point, Summary], model: JobModel, energy_error: float, time_error: float = 0.0
) -> dict[str, Any]:
    """The EnergyProfile of job gpt2 on the A100, as another operator left it."""
    view = job()
    key = ProfileKey(view.namespace, view.profile_key, A100.product)
    left = Profile(
        key, points, FittedParameters(model.parameters(), {}, time_error, energy_error, 10 * len(points), NOW)
    )
    return {**profile_object(key), "status": to_patch(profile_status(left, EnergyProfileStatus(), NOW))}


def measured(model: JobModel) -> dict[Point, Summary]:
    points = [Point(8, 1, local, clock) for local in (8, 32) for clock in (600, 900, 1200, 1305, 1410)]
    return {
        point: Summary(
            10,
            model.iteration_seconds(8, 1, point.clock_megahertz, 8 * point.local_batch_size),
            0.0,
            model.iteration_joules(8, 1, point.clock_megahertz, 8 * point.local_batch_size),
            0.0,
            NOW,
        )
        for point in points
    }


@pytest.mark.slow
async def test_a_stored_fit_is_made_again_where_the_board_has_become_known_as_another() -> None:
    """Watts are fitted over the voltage curve of the GPU model: with another one they mean something else."""
    calibrated = replace(A100, knee_megahertz=900.0, voltage_slope=1.6, idle_power_watts=40.0)
    nodes = {"n1": info("n1", calibrated)}
    points = measured(model_class_prior("bert", calibrated))
    before = fit(model_class_prior("gpt2", A100), observations(points))
    known = await learner_of(stored(points, before.model, before.errors.energy_mape, before.errors.time_mape))
    (found,) = known.models_for(job(), nodes)
    assert found.gpu_model == calibrated
    off = errors_of(found, observations(points)).energy_mape
    known.observe(world(), nodes)
    await until(lambda: known.model_for(job(), nodes) is not found)
    after = errors_of(known.model_for(job(), nodes), observations(points)).energy_mape
    assert after < before.errors.energy_mape < off
    assert after < off / 3

    same = await learner_of(stored(measured(TRUTH), TRUTH, 0.005))
    assert same.model_for(job(), NODES) == JobModel.from_parameters(A100, TRUTH.parameters())
    same.observe(world(), NODES)
    assert same._fitting is None


async def test_observations_that_cannot_be_do_not_reach_the_loop() -> None:
    known = await learner_of(stored({Point(1, 2, 8, 900): Summary(10, 1.0, 0.0, 100.0, 0.0, NOW)}, TRUTH, 0.01))
    assert known.model_for(job(), NODES) == JobModel.from_parameters(A100, TRUTH.parameters())


async def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner_module, "MAX_PROFILES", 3)
    bounded = learner(clock=lambda: 0.0)
    for name in ("a", "b", "c", "d"):
        Cluster(bounded, TRUTH, job(name)).run({"n1": 8}, 1200, 3)
    assert len(bounded) == 3
    assert bounded.profile(ProfileKey("research", "a", A100.product)) is None
    assert len(bounded._tracks) == 1


# --- objects ------------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def session(cluster: Any) -> AsyncIterator[ApiSession]:
    async with ApiSession(load_configuration(cluster.devcluster.control_plane.kubeconfig())) as session:
        yield session


def executor(session: ApiSession, check: Callable[[], None] = lambda: None) -> Executor:
    return Executor(session, check, lambda resource, raw: None, gpu_resources=DEFAULT_GPU_RESOURCES)


async def test_what_is_learned_outlives_the_process(session: ApiSession, cluster: Any) -> None:
    clock = 0.0
    first = Cluster(Learner(session, clock=lambda: clock), TRUTH, job(namespace=cluster.namespace, profileKey="k"))
    await first.learner.load()
    for megahertz in (900, 1410):
        first.run({"n1": 8, "n2": 8}, megahertz, 4)
    clock += learner_module.REFIT_SECONDS
    prior = model_class_prior("gpt2", A100)
    await until(lambda: first.learner.model_for(first.view, NODES) != prior)
    await write_profiles(executor(session), first.learner, first.learner.due_writes(0.0))

    raw = await session.get(ENERGY_PROFILES.path(cluster.namespace, "k.nvidia-a100-sxm4-40gb"))
    assert raw["spec"] == {"profileKey": "k", "gpuModel": A100.product}
    assert "ownerReferences" not in raw["metadata"]
    (condition,) = raw["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("Fitted", "True")
    assert profile_of(read_energy_profile(raw)).points.keys() == first.points().keys()

    second = Learner(session, clock=lambda: clock)
    await second.load()
    assert second.model_for(first.view, NODES) == first.learner.model_for(first.view, NODES)
    continued = Cluster(second, TRUTH, first.view)
    continued.now = first.now
    continued.run({"n1": 8, "n2": 8}, 1410, 4)
    assert sum(s.samples for s in continued.points().values()) == sum(s.samples for s in first.points().values()) + 2


async def create_job(session: ApiSession, namespace: str, name: str) -> EnergyAwareJob:
    """A real EnergyAwareJob: the garbage collector takes a profile whose owner it does not find."""
    spec = {
        "gpus": {"min": 1, "max": 16},
        "training": {"globalBatchSize": 256, "modelClass": "gpt2"},
        "template": {"spec": {"containers": [{"name": "trainer", "image": "trainer"}]}},
    }
    body = {
        "apiVersion": ENERGY_AWARE_JOBS.api_version,
        "kind": ENERGY_AWARE_JOBS.kind,
        "metadata": {"name": name},
        "spec": spec,
    }
    return read_energy_aware_job(await session.create(ENERGY_AWARE_JOBS.path(namespace), body))


async def test_a_profile_that_others_share_does_not_go_with_the_job_of_its_name(
    session: ApiSession, cluster: Any
) -> None:
    namesake = await create_job(session, cluster.namespace, "gpt2")
    learner = Learner(session, clock=lambda: 0.0)
    own = Cluster(learner, TRUTH, namesake)
    own.run({"n1": 8}, 1200, 6)
    await until(lambda: learner.model_for(namesake, NODES) != model_class_prior("gpt2", A100))
    await write_profiles(executor(session), learner, learner.due_writes(0.0))
    path = ENERGY_PROFILES.path(cluster.namespace, "gpt2.nvidia-a100-sxm4-40gb")
    assert (await session.get(path))["metadata"]["ownerReferences"][0]["uid"] == namesake.uid
    other = Cluster(learner, TRUTH, job(name="other", namespace=cluster.namespace, profileKey="gpt2"))
    other.now = own.now
    other.run({"n1": 8}, 900, 6)
    await write_profiles(executor(session), learner, learner.due_writes(60.0))
    assert "ownerReferences" not in (await session.get(path))["metadata"]
    # Nor does it again, once the namesake is measured.
    own.now = other.now
    own.run({"n1": 8}, 600, 6)
    (write,) = learner.due_writes(120.0)
    assert (write.disowned, "ownerReferences" in write.object["metadata"]) == (False, False)


async def test_writes_are_few_fenced_and_only_of_what_is_new(session: ApiSession, cluster: Any) -> None:
    view = await create_job(session, cluster.namespace, "gpt2")
    learned = Cluster(Learner(session, clock=lambda: 0.0), TRUTH, view)
    learned.run({"n1": 8}, 1200, 6)
    await until(lambda: learned.learner.model_for(view, NODES) != model_class_prior("gpt2", A100))

    def lost() -> None:
        raise LeadershipLost("not any more")

    path = ENERGY_PROFILES.path(cluster.namespace)
    with pytest.raises(LeadershipLost):
        await write_profiles(executor(session, lost), learned.learner, learned.learner.due_writes(0.0))
    assert (await session.get(path))["items"] == []

    writes: list[str] = []
    counting = Executor(
        session, lambda: None, lambda resource, raw: None, writes.append, gpu_resources=DEFAULT_GPU_RESOURCES
    )
    await write_profiles(counting, learned.learner, learned.learner.due_writes(60.0))
    assert writes == ["create-profile", "profile-status"]
    (raw,) = (await session.get(path))["items"]
    assert raw["metadata"]["ownerReferences"][0]["uid"] == view.uid
    await write_profiles(counting, learned.learner, learned.learner.due_writes(1000.0))  # nothing new
    learned.run({"n1": 8}, 900, 3)
    await write_profiles(counting, learned.learner, learned.learner.due_writes(1010.0))
    await write_profiles(counting, learned.learner, learned.learner.due_writes(1020.0))  # new, but too soon
    learned.run({"n1": 8}, 600, 3)
    await write_profiles(counting, learned.learner, learned.learner.due_writes(1030.0))
    assert writes == ["create-profile", "profile-status", "profile-status"]
    learned.run({"n1": 8}, 600, 30)
    await write_profiles(counting, learned.learner, learned.learner.due_writes(1070.0))
    assert writes[3:] == ["profile-status"]

    # Nobody else has its key: it goes with its job.
    await session.delete(ENERGY_AWARE_JOBS.path(cluster.namespace, view.name))

    async def collected() -> bool:
        return not (await session.get(path))["items"]

    await until(collected, "the garbage collector has taken the profile")


async def test_a_profile_that_somebody_deleted_is_learned_again(session: ApiSession, cluster: Any) -> None:
    clock = 0.0
    view = job(namespace=cluster.namespace, profileKey="k")
    learned = Cluster(Learner(session, clock=lambda: clock), TRUTH, view)
    prior = model_class_prior("gpt2", A100)
    learned.run({"n1": 8}, 1200, 6)
    await until(lambda: learned.learner.model_for(view, NODES) != prior)
    await write_profiles(executor(session), learned.learner, learned.learner.due_writes(0.0))
    await session.delete(ENERGY_PROFILES.path(cluster.namespace, learned.key.object_name))
    learned.run({"n1": 8}, 900, 3)
    await write_profiles(executor(session), learned.learner, learned.learner.due_writes(100.0))
    assert learned.learner.model_for(view, NODES) == prior
    assert (await session.get(ENERGY_PROFILES.path(cluster.namespace)))["items"] == []
    learned.run({"n1": 8}, 900, 3)
    await until(lambda: learned.learner.model_for(view, NODES) != prior)
    await write_profiles(executor(session), learned.learner, learned.learner.due_writes(200.0))
    (raw,) = (await session.get(ENERGY_PROFILES.path(cluster.namespace)))["items"]
    assert [item["clockMegahertz"] for item in raw["status"]["observations"]] == [900]


async def test_a_profile_as_large_as_it_gets_is_accepted_and_read_back(session: ApiSession, cluster: Any) -> None:
    key = ProfileKey(cluster.namespace, "k" * 63, "NVIDIA Something (Very) Special--" + "9" * 90)
    profile = Profile(key)
    for number in range(MAX_POINTS):
        at = NOW + timedelta(seconds=number)
        profile = profile.with_window(Point(2**16, 8192, 2**31 - 1, number + 1), 1234.567891, 1e9, at)
    parameters = {name: value * 1.2345678901234567e-7 + 1.0 for name, value in TRUTH.parameters().items()}
    errors = {"gradient_seconds": math.nan, "io_seconds": 1.2345678901234567e-50}
    fitted = FittedParameters(parameters, errors, 12.5, 0.001, 10**6, NOW)
    profile = replace(profile, fit=fitted)
    choices = tuple(IterationChoice(2**16, 10_000, 10**12 + number, 10**12 - number) for number in range(MAX_CHOICES))
    frontiers = tuple(
        IterationFrontier(FrontierBounds(2**31 - 1, 1, 2**16, number + 1, 10_000), choices)
        for number in range(MAX_BOUNDS)
    )
    await executor(session).write_profile(
        profile_object(key), profile_status(profile, EnergyProfileStatus(), NOW, frontiers), exists=False
    )
    raw = await session.get(ENERGY_PROFILES.path(cluster.namespace, key.object_name))
    assert read_energy_profile(raw).status.frontiers == frontiers
    assert profile_of(read_energy_profile(raw)) == replace(
        profile, fit=replace(fitted, standard_errors={"io_seconds": errors["io_seconds"]})
    )


async def test_loading_without_an_api_server_does_not_raise() -> None:
    configuration = Configuration("http://127.0.0.1:9")  # discard: nobody listens
    async with ApiSession(configuration) as session:
        known = Learner(session)
        await known.load()
        assert len(known) == 0


async def test_whatever_happens_while_profiles_are_read_it_comes_to_an_end(caplog: pytest.LogCaptureFixture) -> None:
    """A leader decides on no job until then."""

    class Odd:
        async def get(self, path: str, **params: str) -> JsonObject:
            assert known.loading
            return {"items": []}

    known = Learner(Odd(), clock=lambda: 0.0)
    await known.load()
    assert not known.loading
    assert "as far as they were read" in caplog.text


async def test_objects_and_parts_that_cannot_be_read_are_left_out_and_hide_no_other() -> None:
    key = ProfileKey("ns", "k", A100.product)
    good = {**profile_object(key), "status": {}}
    wrong = (
        {**good, "spec": {"profileKey": "k"}},
        {**good, "metadata": {**good["metadata"], "name": "of-another-name"}},
    )
    assert len(await learner_of(*wrong)) == 0
    point = {"gpus": 1, "nodes": 1, "localBatchSize": 1, "clockMegahertz": 900}
    measured = {**point, "samples": 3, "microsecondsPerIteration": 5}
    nonsense = [{"name": "x", "value": "y"}]
    known = await learner_of(*wrong, {**good, "status": {"observations": [point, measured], "parameters": nonsense}})
    learned = known.profile(key)
    assert learned is not None
    assert (learned.samples, learned.fit) == (3, None)
    stale = {
        "parameterisation": "Physical",
        "parameters": [{"name": "gone", "value": "1"}],
        "fit": {"time": "2026-01-01T00:00:00Z"},
    }
    known = await learner_of(*wrong, {**good, "status": stale})
    profile = known.profile(key)
    assert profile is not None
    assert profile.fit is None


def test_object_names_fit_kubernetes() -> None:
    assert ProfileKey("ns", "gpt2", "NVIDIA A100-SXM4-40GB").object_name == "gpt2.nvidia-a100-sxm4-40gb"
    assert ProfileKey("ns", "gpt2", "***").object_name == "gpt2.gpu"


async def test_a_job_that_has_become_another_is_measured_anew() -> None:
    """A script that was changed, under the same key: what it was before says nothing of any size any more."""
    cluster = Cluster(learner(), TRUTH, job())
    for clock in (1410, 1200, 990):
        cluster.run({"n1": 8}, clock, 6)
    cluster.run({"n1": 8, "n2": 8}, 1200, 6, number=2)
    assert len(cluster.points()) == 4
    cluster.run({"n1": 8, "n2": 8}, 1200, DRIFT_WINDOWS - 1, number=2, distortion=1.5)
    assert len(cluster.points()) == 4, "nine in a row may be somebody else's doing"
    cluster.run({"n1": 8, "n2": 8}, 1200, 1, number=2, distortion=1.5)
    ((point, summary),) = cluster.points().items()
    assert (point.gpus, summary.samples) == (16, DRIFT_WINDOWS)
    assert summary.seconds == pytest.approx(1.5 * TRUTH.iteration_seconds(16, 2, 1200, 256), rel=1e-4)
    profile = cluster.learner.profile(cluster.key)
    assert profile is not None
    status = profile_status(profile, EnergyProfileStatus(fit=FitQuality(observations=9)), NOW)
    assert "measured anew since" in status.conditions[0].message


async def test_what_was_measured_otherwise_now_and_then_stays() -> None:
    cluster = Cluster(learner(), TRUTH, job())
    cluster.run({"n1": 8}, 1200, 6)
    for _ in range(6):
        cluster.run({"n1": 8}, 1200, DRIFT_WINDOWS - 1, distortion=1.16)
        cluster.run({"n1": 8}, 1200, 1)
    ((_, summary),) = cluster.points().items()
    assert summary.samples > 40


async def test_a_stored_fit_that_no_longer_holds_is_taken_away() -> None:
    known = Profile(ProfileKey("team", "key", A100.product), drifted_at=NOW)
    stored = EnergyProfileStatus(
        parameterisation="Physical", parameters=(FittedParameter("a", "1.0"),), fit=FitQuality(time=NOW)
    )
    status = profile_status(known, stored, NOW)
    assert (status.parameterisation, status.parameters, status.fit) == (None, None, None)
    assert to_patch(status)["fit"] is None
