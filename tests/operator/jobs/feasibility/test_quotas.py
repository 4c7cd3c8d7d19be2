"""What quotas leave each job: never more than they have, and to whom first."""

from __future__ import annotations

from typing import Any

from flyball_api.energy.quota import EnergyQuota, read_energy_quota
from flyball_api.energy_aware_job import EnergyAwareJob
from flyball_operator.jobs.feasibility.quotas import GpuWatts, QuotaBound, energy_quota_bounds, handed_out
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.operator_objects import job_view

A100 = GpuWatts(100, 400)


def quota(**spec: Any) -> EnergyQuota:
    metadata = {"name": "team", "namespace": "team", "uid": "uid-quota"}
    return read_energy_quota({"metadata": metadata, "spec": spec})


def job(name: str, least: int = 1, most: int = 8, **spec: Any) -> EnergyAwareJob:
    return job_view(name, gpus={"min": least, "max": most}, **spec)


def bounds(
    jobs: list[EnergyAwareJob], *quotas: EnergyQuota, held: dict[str, int] | None = None, **keywords: Any
) -> dict[str, QuotaBound]:
    fixed, watts, spent = keywords.get("fixed", {}), keywords.get("watts", A100), keywords.get("spent", {})
    found = energy_quota_bounds(jobs, quotas, held or {}, fixed, watts, spent)
    return {job.name: found[job.uid] for job in jobs if job.uid in found}


def words(bound: QuotaBound) -> str:
    assert bound.refusal is not None
    assert bound.refusal.reason == "QuotaExceeded"
    return bound.refusal.message


def test_a_namespaces_gpus_go_to_the_highest_priority_and_then_to_the_oldest() -> None:
    found = bounds([job("late"), job("high", 4, 4, priority=1), job("whole", 4, 4)], quota(gpus=8))
    assert found["high"] == QuotaBound(4)
    assert found["late"] == QuotaBound(4)
    assert words(found["whole"]) == "needs 4 GPUs, and of the 8 GPUs of EnergyQuota team 3 are left"


def test_what_runs_comes_before_what_waits_at_the_same_priority_only() -> None:
    jobs = [job("a", 4, 4), job("b", 4, 4)]
    assert bounds(jobs, quota(gpus=4), held={"uid-b": 4})["b"] == QuotaBound(4)
    jobs[0] = job("a", 4, 4, priority=1)
    assert bounds(jobs, quota(gpus=4), held={"uid-b": 4})["a"] == QuotaBound(4)


def test_a_size_that_cannot_change_now_counts_whole() -> None:
    found = bounds([job("fixed"), job("new", 2, 8)], quota(gpus=8), held={"uid-fixed": 8}, fixed={"uid-fixed": 8})
    assert found["fixed"] == QuotaBound(8)
    assert found["new"].refusal is not None


def test_a_job_gets_as_many_as_its_batch_needs_or_none() -> None:
    """With fewer it could not run, and where it runs already it would go on beside what others get of the same quota."""
    jobs = [job("large", 2, 16, training={"globalBatchSize": 256, "maxLocalBatchSize": 40}), job("new")]
    found = bounds(jobs, quota(gpus=8), held={"uid-large": 8})
    assert found["large"] == QuotaBound(8)
    assert words(found["new"]) == "needs 1 GPU, and of the 8 GPUs of EnergyQuota team 0 are left"
    found = bounds([jobs[0], job("new", priority=1)], quota(gpus=8), held={"uid-large": 8})
    assert words(found["large"]) == "needs 8 GPUs, and of the 8 GPUs of EnergyQuota team 7 are left"
    assert found["new"] == QuotaBound(8)


def test_a_job_that_never_fits_is_told_so() -> None:
    found = bounds([job("large", 8, 8)], quota(gpus=4))
    assert words(found["large"]) == "needs 8 GPUs, and there are only the 4 GPUs of EnergyQuota team"


def test_other_namespaces_are_no_business_of_a_quotas() -> None:
    assert bounds([job_view("train", gpus={"min": 1, "max": 1})], quota(gpus=0))
    elsewhere = read_energy_quota({"metadata": {"name": "q", "namespace": "other", "uid": "u"}, "spec": {"gpus": 0}})
    assert bounds([job("train")], elsewhere) == {}


def test_watts_carry_gpus_at_their_default_limits_and_smallest_sizes_at_less() -> None:
    assert bounds([job("train")], quota(watts=1600)) == {"train": QuotaBound(4, 400)}
    found = bounds([job("a", 8, 8), job("b", 4, 4)], quota(watts=1600))
    assert found == {"a": QuotaBound(8, 133), "b": QuotaBound(4, 133)}
    found = bounds([job("a", 16, 16), job("b", 1, 1)], quota(watts=1600))
    assert found["a"] == QuotaBound(16, 100)
    assert "1 GPU, and of the 16 GPUs that the 1600 W of EnergyQuota team carry" in words(found["b"])


def test_nothing_starts_under_watts_while_nobody_knows_what_a_gpu_draws() -> None:
    assert bounds([job("train")], quota(watts=1600), watts=None)["train"].refusal is not None


def test_every_quota_of_a_namespace_counts() -> None:
    assert bounds([job("train")], quota(gpus=8, watts=1600), quota(gpus=2)) == {"train": QuotaBound(2, 400)}


def test_a_budget_that_is_used_up_leaves_nobody_anything() -> None:
    found = bounds([job("train")], quota(gpus=8), spent={"uid-quota": "all of it is used up"}, held={"uid-train": 8})
    assert words(found["train"]) == "all of it is used up"


SIZES = st.sampled_from([1, 2, 4, 8, 16])


@settings(max_examples=examples(300))
@given(
    shapes=st.lists(st.tuples(SIZES, SIZES, st.integers(0, 2), st.booleans()), max_size=8),
    gpus=st.none() | st.integers(0, 40),
    watts=st.none() | st.integers(1, 9000),
)
def test_whatever_the_plan_makes_of_it_fits(
    shapes: list[tuple[int, int, int, bool]], gpus: int | None, watts: int | None
) -> None:
    jobs = [
        job(f"job-{index}", least, least * more, priority=priority)
        for index, (least, more, priority, _) in enumerate(shapes)
    ]
    held = {job.uid: job.spec.gpus.min for job, shape in zip(jobs, shapes, strict=True) if shape[3]}
    bound = quota(
        **{key: value for key, value in (("gpus", gpus), ("watts", watts)) if value is not None} or {"gpus": 0}
    )
    found = bounds(jobs, bound, held=held)
    served = {name: item for name, item in found.items() if item.refusal is None}
    assert len(found) == len(jobs)
    for item in jobs:
        if item.name in served:
            assert item.spec.gpus.min <= (served[item.name].gpus_max or 0) <= item.spec.gpus.max
    most = sum(item.gpus_max or 0 for item in served.values())
    if bound.spec.gpus is not None:
        assert most <= bound.spec.gpus
    if watts is not None:
        assert sum((item.gpus_max or 0) * (item.watts_per_gpu or 0) for item in served.values()) <= watts
        assert all((item.watts_per_gpu or 0) >= A100.smallest for item in served.values())
    # Nobody waits for what nobody has: who gets nothing would not have fitted beside the smallest sizes of the others.
    least = sum(item.spec.gpus.min for item in jobs if item.name in served)
    room = min(40 if bound.spec.gpus is None else bound.spec.gpus, 10**6 if watts is None else watts // A100.smallest)
    for item in jobs:
        if item.name not in served and bound.spec.gpus is not None and watts is None:
            assert least + item.spec.gpus.min > room


@settings(max_examples=examples(200))
@given(sizes=st.lists(st.tuples(SIZES, SIZES), max_size=6), gpus=st.integers(0, 64))
def test_what_is_handed_out_is_what_there_is(sizes: list[tuple[int, int]], gpus: int) -> None:
    jobs = [job(f"job-{index}", least, least * more) for index, (least, more) in enumerate(sizes)]
    given = handed_out(jobs, gpus)
    assert sum(given.values()) <= gpus
    for item in jobs:
        size = given.get(item.uid)
        assert size is None or size in {item.spec.gpus.min * 2**power for power in range(6)}
