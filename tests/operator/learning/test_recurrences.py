"""The runs of a recurring job: what each is given, what is made of its end, and what outlives operator and profile."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from flyball_api.energy.profile import EndedRun, EnergyProfileStatus, read_energy_profile
from flyball_api.energy_aware_job import EnergyAwareJob, RecurringRun, read_energy_aware_job
from flyball_api.writing import to_patch
from flyball_operator.cluster.outcome import DONE
from flyball_operator.learning.learner import Learner
from flyball_operator.learning.profiles import (
    MAX_EXPLORED,
    MAX_RECENT,
    Profile,
    ProfileKey,
    kept_runs,
    profile_object,
    profile_of,
    profile_status,
)
from flyball_operator.learning.recurrences import CHOICES_AT_ONCE, Recurrences, search_of, seed_of
from flyball_operator.power.nodes.info import NodeInfo
from flyball_planner.models.gpu import GpuModel, gpu_model_for
from flyball_studies.zeus.replay import ReplayedCluster
from flyball_studies.zeus.trace import WorkloadName, read_workload
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.excerpts import EXCERPT_WORKLOADS
from tests.support.operator_objects import NOW, Json, raw_job, ready_node

A100 = gpu_model_for("NVIDIA-A100-SXM4-40GB")
H100 = gpu_model_for("NVIDIA-H100-80GB-HBM3")
assert A100 is not None
assert H100 is not None
SIZES = (64, 128, 256, 512)
COSTS = {64: 900, 128: 400, 256: 500, 512: 1500}
ROOT = Path(__file__).parents[3]


def most_batch_sizes() -> int:
    """How many a job may have, by the API's schema."""
    schema = yaml.safe_load((ROOT / "crds/energyawarejobs.yaml").read_text())["spec"]["versions"][0]["schema"]
    spec = schema["openAPIV3Schema"]["properties"]["spec"]["properties"]
    return int(spec["recurrence"]["properties"]["batchSizes"]["maxItems"])


def nodes_of(*models: GpuModel | None, gpus: int = 8) -> dict[str, NodeInfo]:
    return {
        f"n{place}": msgspec.structs.replace(ready_node(f"n{place}", gpus=gpus), gpu_model=model)
        for place, model in enumerate(models)
    }


class NoServer:
    async def get(self, path: str, **params: str) -> Json:
        raise AssertionError("nothing is read here")


@dataclass
class Stream:
    """A job that is submitted again and again, and the operator that gives each run its batch size."""

    sizes: tuple[int, ...] = SIZES
    default: int = 256
    nodes: dict[str, NodeInfo] = field(default_factory=lambda: nodes_of(A100))
    spec: Json = field(default_factory=dict)
    jobs: dict[str, Json] = field(default_factory=dict)
    submitted: int = 0

    def __post_init__(self) -> None:
        self.new_operator()

    def new_operator(self, *, profiles: bool = False) -> None:
        """Another operator leads; what the last one has written into EnergyProfiles it finds, or nothing."""
        before, self.learner = getattr(self, "learner", None), Learner(NoServer())
        if profiles and before is not None:
            for model in {A100, H100}:
                key = ProfileKey("team", "nightly", model.product)
                if before.profile(key) is not None:
                    self.learner.note_runs(key, stored(before.profile(key)).runs)
        self.recurrences = Recurrences(self.learner)

    def views(self) -> dict[str, EnergyAwareJob]:
        return {uid: read_energy_aware_job(raw) for uid, raw in self.jobs.items()}

    def submit(self, **spec: Any) -> str:
        self.submitted += 1
        raw = raw_job(
            f"run-{self.submitted:03d}",
            training={"globalBatchSize": self.default, "iterations": 1000},
            profileKey="nightly",
            recurrence={"batchSizes": list(self.sizes), "targetMetric": "loss <= 2.1"},
            **{**self.spec, **spec},
        )
        self.jobs[raw["metadata"]["uid"]] = raw
        return str(raw["metadata"]["uid"])

    def cycle(self) -> None:
        """One cycle, whose statuses are written."""
        for uid, run in self.recurrences.step(self.views(), self.nodes).items():
            self.jobs[uid].setdefault("status", {})["recurrence"] = to_patch(run)

    def begin(self, **spec: Any) -> tuple[str, RecurringRun]:
        uid = self.submit(**spec)
        self.cycle()
        run = self.views()[uid].run
        assert run is not None
        return uid, run

    def end(self, uid: str, cost: int, *, reached: bool) -> None:
        raw = self.jobs[uid]
        raw["metadata"]["resourceVersion"] = f"{uid}-ended"
        raw["status"]["recurrence"]["costJoules"] = cost
        raw["status"]["progress"] = {"iterations": self.views()[uid].spec.training.iterations}
        raw["status"]["conditions"] = [{"type": "Succeeded" if reached else "Failed", "status": "True"}]
        self.cycle()

    def run(self, costs: dict[int, int] = COSTS) -> RecurringRun:
        """One run from its submission to its end, stopped where it costs too much."""
        uid, run = self.begin()
        limit, cost = run.cost_limit_joules, costs[run.global_batch_size]
        stopped = limit is not None and cost > limit
        self.end(uid, min(cost, limit) if limit is not None else cost, reached=not stopped)
        return run


def stored(profile: Profile) -> Profile:
    """A profile after it was written into its object and read back."""
    raw = profile_object(profile.key)
    raw["status"] = to_patch(profile_status(profile, EnergyProfileStatus(), NOW))
    return profile_of(read_energy_profile(raw))


def test_the_first_run_has_the_jobs_own_batch_size_and_the_next_ones_explore_from_there() -> None:
    stream = Stream()
    runs = [stream.run() for _ in range(4)]
    assert [run.global_batch_size for run in runs] == [256, 128, 64, 512]
    assert [run.decision for run in runs] == [0, 1, 2, 3]
    assert {run.purpose for run in runs} == {"Explore"}
    assert runs[0].cost_limit_joules is None
    assert [run.cost_limit_joules for run in runs[1:]] == [1000, 800, 800]
    assert runs[1].message == (
        "128 is to be tried: 1 of 4 batch sizes were, in round 1; the cheapest so far had 256 and cost 500 J"
    )
    assert (runs[0].gpu_model, runs[0].watts_per_gpu) == (A100.product, round(A100.max_power_limit_watts))


def test_after_one_try_of_each_nearly_all_runs_have_the_cheapest_size() -> None:
    stream = Stream()
    runs = [stream.run() for _ in range(24)]
    chosen = [run for run in runs if run.purpose == "Sample"]
    assert len(chosen) == 24 - 4
    assert [run.global_batch_size for run in chosen].count(128) >= 17
    assert "128 is believed the cheapest" in chosen[-1].message


def test_a_job_gets_its_iterations_for_as_many_samples() -> None:
    stream = Stream()
    stream.run()
    uid, run = stream.begin()
    view = stream.views()[uid]
    assert (run.global_batch_size, view.default_batch_size) == (128, 256)
    assert (view.spec.training.global_batch_size, view.spec.training.iterations) == (128, 2000)


def test_runs_at_a_time_leave_the_exploring_to_one() -> None:
    stream = Stream()
    first, _ = stream.begin()
    _, beside = stream.begin()
    assert (beside.decision, beside.purpose, beside.global_batch_size) == (1, "BestKnown", 256)
    stream.end(first, 500, reached=True)
    _, third = stream.begin()
    assert (third.decision, third.purpose, third.global_batch_size) == (2, "Explore", 128)
    uids = [stream.submit(), stream.submit()]
    stream.cycle()  # both in one cycle
    runs = [view.run for uid, view in stream.views().items() if uid in uids]
    assert [run.decision for run in runs if run is not None] == [3, 4]


def test_a_run_of_more_samples_than_can_be_said_is_kept_with_as_many_as_can() -> None:
    stream = Stream(sizes=(2**31 - 1,), default=2**31 - 1)
    uid, _ = stream.begin()
    stream.jobs[uid]["spec"]["training"]["iterations"] = 2**53  # as many as a training process may report
    stream.end(uid, 500, reached=True)
    profile = stream.learner.profile(ProfileKey("team", "nightly", A100.product))
    assert profile is not None
    assert [run.samples for run in profile.runs.values()] == [2**63 - 1]


def test_a_run_that_is_deleted_is_tried_again() -> None:
    stream = Stream()
    stream.run()
    uid, lost = stream.begin()
    del stream.jobs[uid]
    again = stream.run()
    assert lost.global_batch_size == again.global_batch_size == 128


def test_a_run_that_cost_nothing_says_nothing() -> None:
    stream = Stream()
    uid, _ = stream.begin()
    stream.end(uid, 0, reached=False)
    assert stream.run().global_batch_size == 256


def test_where_no_batch_size_has_reached_the_target_exploring_begins_anew() -> None:
    stream = Stream(sizes=(128, 256))
    for expected in (256, 256, 256):  # 256 fails at once, so that none below or above it is tried
        uid, run = stream.begin()
        assert (run.global_batch_size, run.purpose) == (expected, "Explore")
        stream.end(uid, 1000, reached=False)
    assert [stream.run().global_batch_size for _ in range(2)] == [256, 128]


def test_however_many_runs_have_failed_the_next_has_a_status_that_the_api_server_takes() -> None:
    """Each that fails doubles what the next may cost."""
    stream = Stream()
    for _ in range(len(SIZES)):
        stream.run({size: cost * 10**5 for size, cost in COSTS.items()})
    limits = []
    for _ in range(45):
        uid, run = stream.begin()
        stream.end(uid, 1000, reached=False)
        limits.append(run.cost_limit_joules or 0)
    assert limits[0] == 2 * 400 * 10**5
    assert max(limits) == limits[-1] == 2**63 - 1
    assert limits == sorted(limits)


def test_batch_sizes_that_fit_into_no_gpu_are_not_tried() -> None:
    training = {"globalBatchSize": 256, "iterations": 1000, "maxLocalBatchSize": 40}
    stream = Stream(spec={"gpus": {"min": 1, "max": 8}})
    uid = stream.submit()
    stream.jobs[uid]["spec"]["training"] = training
    view = stream.views()[uid]
    assert view.spec.recurrence is not None
    assert search_of(view, view.spec.recurrence, 1, {}, ()).batch_sizes == (64, 128, 256)


def test_another_list_of_batch_sizes_keeps_what_is_known_of_those_in_both() -> None:
    stream = Stream()
    for _ in range(8):
        stream.run()
    stream.sizes = (96, 128, 256)
    runs = [stream.run({**COSTS, 96: 390}) for _ in range(12)]
    assert 96 in {run.global_batch_size for run in runs}
    assert not {64, 512} & {run.global_batch_size for run in runs}


def test_a_suspended_job_is_given_its_batch_size_when_it_wants_gpus() -> None:
    stream = Stream()
    uid = stream.submit(suspend=True)
    stream.cycle()
    assert stream.views()[uid].run is None
    stream.jobs[uid]["spec"]["suspend"] = False
    stream.cycle()
    assert stream.views()[uid].run is not None


def test_nothing_is_chosen_before_a_gpu_model_is_known() -> None:
    stream = Stream(nodes=nodes_of(None))
    uid = stream.submit()
    stream.cycle()
    assert stream.views()[uid].run is None
    stream.nodes = nodes_of(None, A100)
    stream.cycle()
    assert stream.views()[uid].run is not None


def test_runs_stay_on_the_gpu_model_of_those_before() -> None:
    stream = Stream(nodes=nodes_of(A100, H100, H100))
    assert stream.run().gpu_model == H100.product, "the most common"
    stream.nodes = nodes_of(A100, A100, H100)
    second = stream.run()
    assert (second.gpu_model, second.global_batch_size) == (H100.product, 128)
    stream.spec = {"gpus": {"min": 16, "max": 16}}
    elsewhere = stream.run()
    assert (elsewhere.gpu_model, elsewhere.decision) == (A100.product, 0)


# --- on another GPU model --------------------------------------------------------------------------------------------


def ended_on_a100s(runs: int = 8, **fields: Any) -> Stream:
    """A stream whose jobs ran on A100s, and whose cluster has H100s alone now."""
    stream = Stream(**fields)
    for _ in range(runs):
        stream.run()
    stream.nodes = nodes_of(H100)
    return stream


def test_what_runs_on_other_gpus_have_cost_is_what_a_new_gpu_model_begins_with() -> None:
    stream = ended_on_a100s()
    uid, first = stream.begin()
    assert (first.gpu_model, first.decision, first.purpose) == (H100.product, 0, "Sample")
    assert first.global_batch_size == 128, "the cheapest there; tried first here, and nothing is explored again"
    assert first.message.startswith("128 is chosen by what 6 runs have cost")
    assert first.message.endswith(f"128 is believed the cheapest, by runs on {A100.product}")
    assert first.cost_limit_joules is None, "no run is stopped for what models say"
    stream.end(uid, 300, reached=True)
    second = stream.run()
    assert second.cost_limit_joules == 600, "what was measured here counts"
    dear = ended_on_a100s()
    uid, _ = dear.begin()
    dear.end(uid, 4000, reached=True)
    assert dear.begin()[1].cost_limit_joules == 8000, "and nothing else"
    sizes = [stream.run({**COSTS, 128: 300}).global_batch_size for _ in range(12)]
    assert sizes.count(128) >= 10


def test_what_is_measured_on_the_new_gpus_stands_for_what_was_carried_to_them() -> None:
    """There 256 is the cheapest by far, which no model knew."""
    stream = ended_on_a100s()
    here = {64: 900, 128: 2000, 256: 200, 512: 1500}
    runs = [stream.run(here) for _ in range(12)]
    assert runs[0].global_batch_size == 128
    assert [run.global_batch_size for run in runs[-6:]].count(256) >= 5
    assert {run.purpose for run in runs} == {"Sample"}


def test_batch_sizes_that_never_reached_the_target_elsewhere_are_not_tried_again() -> None:
    stream = Stream(sizes=(128, 256, 512))
    for _ in range(4):
        uid, run = stream.begin()
        stream.end(uid, 400, reached=run.global_batch_size != 512)
    stream.nodes = nodes_of(H100)
    assert 512 not in {stream.run().global_batch_size for _ in range(10)}


def test_a_batch_size_that_only_the_new_list_has_is_tried_on_the_new_gpus() -> None:
    stream = ended_on_a100s()
    stream.sizes = (*SIZES, 192)
    assert 192 in {stream.run({**COSTS, 192: 350}).global_batch_size for _ in range(4)}


def test_with_gpus_that_nobody_knows_and_with_runs_that_counted_no_samples_exploring_begins_anew() -> None:
    unknown = replace(A100, product="NVIDIA-Unheard-Of")
    stream = ended_on_a100s(nodes=nodes_of(unknown))
    assert (stream.run().purpose, stream.run().global_batch_size) == ("Explore", 128)
    blind = Stream()
    for _ in range(4):
        uid, _ = blind.begin()
        blind.end(uid, 400, reached=True)
        blind.jobs[uid]["status"]["progress"] = {"iterations": 0}
        blind.jobs[uid]["metadata"]["resourceVersion"] = "late"
        blind.cycle()
    blind.nodes = nodes_of(H100)
    assert (blind.run().purpose, blind.run().global_batch_size) == ("Explore", 128)


def test_who_has_explored_on_the_new_gpus_already_goes_on_by_that() -> None:
    stream = Stream(nodes=nodes_of(H100))
    stream.run()
    stream.nodes = nodes_of(A100, A100)
    stream.spec = {"gpus": {"min": 16, "max": 16}}
    for _ in range(6):
        stream.run()
    stream.nodes, stream.spec = nodes_of(H100), {}
    run = stream.run()
    assert (run.gpu_model, run.purpose, run.global_batch_size) == (H100.product, "Explore", 128)


def test_a_choice_stands_until_its_status_is_written() -> None:
    stream = Stream()
    uid = stream.submit()
    first = stream.recurrences.step(stream.views(), stream.nodes)[uid]
    stream.submit()
    assert stream.recurrences.step(stream.views(), stream.nodes)[uid] is first


def test_of_many_jobs_that_come_at_once_some_are_chosen_for_in_each_cycle() -> None:
    stream = Stream()
    for _ in range(CHOICES_AT_ONCE + 3):
        stream.submit()
    stream.cycle()
    assert sum(view.run is not None for view in stream.views().values()) == CHOICES_AT_ONCE
    stream.cycle()
    runs = [view.run for view in stream.views().values()]
    assert sorted(run.decision for run in runs if run is not None) == list(range(CHOICES_AT_ONCE + 3))


def test_energy_that_is_reported_late_is_booked_too() -> None:
    stream = Stream()
    uid, run = stream.begin()
    stream.end(uid, 500, reached=True)
    stream.jobs[uid]["metadata"]["resourceVersion"] = "late"
    stream.jobs[uid]["status"]["recurrence"]["costJoules"] = 520
    stream.cycle()
    assert stream.learner.runs(ProfileKey("team", "nightly", A100.product))[run.decision].cost_joules == 520


def test_a_job_is_kept_until_its_run_is_in_the_profile() -> None:
    stream = Stream()
    uid, _ = stream.begin()
    stream.end(uid, 500, reached=True)
    view, key = stream.views()[uid], ProfileKey("team", "nightly", A100.product)
    assert not stream.recurrences.is_kept(view)
    (write,) = stream.learner.due_writes(0.0)
    assert write.profile.key == key
    assert write.status.batch_size_search is not None
    stream.learner.answered(write, DONE)
    assert stream.recurrences.is_kept(view)


@pytest.mark.parametrize("lost", ["the operator", "the profile too", "every job that has ended too"])
def test_whatever_is_lost_the_next_run_on_other_gpus_is_the_same(lost: str) -> None:
    stream = ended_on_a100s()
    stream.run()
    uid = stream.submit()
    expected = stream.recurrences.step(stream.views(), stream.nodes)[uid]
    stream.new_operator(profiles=lost != "the profile too")
    if lost == "every job that has ended too":
        stream.jobs = {uid: stream.jobs[uid]}
    stream.cycle()
    assert stream.views()[uid].run == expected


@settings(max_examples=examples(60), deadline=None)
@given(
    ends=st.lists(
        st.tuples(st.sampled_from(["reached", "failed", "deleted"]), st.integers(1, 2000)), min_size=1, max_size=24
    ),
    lost=st.sampled_from(["the operator", "the profile too", "every job that has ended too"]),
)
def test_whatever_is_lost_the_next_run_is_the_same(ends: list[tuple[str, int]], lost: str) -> None:
    stream = Stream()
    for end, cost in ends:
        uid, run = stream.begin()
        assert run.global_batch_size in SIZES
        if end == "deleted":
            del stream.jobs[uid]
        else:
            stream.end(uid, cost, reached=end == "reached")
    uid = stream.submit()
    expected = stream.recurrences.step(stream.views(), stream.nodes)[uid]
    stream.new_operator(profiles=lost != "the profile too")
    if lost == "every job that has ended too":
        stream.jobs = {uid: stream.jobs[uid]}
    assert stream.recurrences.step(stream.views(), stream.nodes)[uid] == expected


def test_what_is_kept_of_runs_is_bounded_and_enough_to_go_on_from() -> None:
    runs = {
        number: EndedRun(number, 8 * (1 + number % 60), "Explore" if number < 200 else "Sample", 100 + number, True, 1)
        for number in range(2000)
    }
    kept = kept_runs(runs)
    most = MAX_EXPLORED + MAX_RECENT + most_batch_sizes()
    assert len(kept) <= most <= 256
    page = " ".join((ROOT / "docs/operator.md").read_text().split())
    which = f"the last {MAX_EXPLORED} that explored, the last {MAX_RECENT} of all and the last of each batch size"
    assert f"{which}: at most {most} of them, as a job has at most {most_batch_sizes()} sizes" in page
    assert kept_runs(kept) == kept
    assert list(kept)[-MAX_RECENT:] == list(range(1950, 2000))


def test_seeds_differ_by_key_and_gpu_model() -> None:
    keys = [ProfileKey("team", "a", "x"), ProfileKey("team", "b", "x"), ProfileKey("team", "a", "y")]
    assert len({seed_of(key) for key in keys}) == 3


@pytest.mark.parametrize("measured_data", ["excerpt"], indirect=True)
@pytest.mark.parametrize("name", EXCERPT_WORKLOADS, ids=lambda name: name.title)
def test_on_the_recorded_workloads_runs_come_to_the_cheapest_batch_size(
    measured_data: Path, name: WorkloadName
) -> None:
    """Zeus' own tables (V100): the cost limits are kept, and an operator dies after every fifth run."""
    tables = measured_data / "zeus-nsdi23"
    trace = read_workload(
        name,
        (tables / "summary_train.csv").read_text().splitlines(),
        (tables / "summary_power_v100.csv").read_text().splitlines(),
    )
    watts = trace.maximum_power_watts
    model = replace(
        A100, product="V100", min_power_limit_watts=100.0, default_power_limit_watts=watts, max_power_limit_watts=watts
    )
    limit = trace.optimum(0.5)[1]
    replayed = ReplayedCluster(trace, 0.5, seed=3)
    stream = Stream(trace.batch_sizes, trace.default_batch_size, nodes_of(model))
    for number in range(20):
        if number % 5 == 4:
            stream.new_operator()
        uid, run = stream.begin()
        ended = replayed.run(run.global_batch_size, limit, run.cost_limit_joules)
        stream.end(uid, round(ended.cost_joules), reached=ended.reached)
    uid = stream.submit()
    view, key = stream.views()[uid], ProfileKey("team", "nightly", model.product)
    assert view.spec.recurrence is not None
    search = search_of(view, view.spec.recurrence, seed_of(key), stream.learner.runs(key), ())
    best = trace.expected_cost(*trace.optimum(0.5), 0.5)
    assert trace.expected_cost(search.best_batch_size, limit, 0.5) <= 1.05 * best
