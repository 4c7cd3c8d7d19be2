"""What runs on one GPU model say of another."""

from __future__ import annotations

import pytest
from flyball_operator.learning.carried_runs import RunShape, carried
from flyball_planner.models.gpu import gpu_model_for
from flyball_planner.models.job import JobModel
from flyball_planner.models.priors import model_class_prior
from flyball_planner.recurrences.recurring import RecurringJob
from hypothesis import given
from hypothesis import strategies as st

A100, H100 = (gpu_model_for(product) for product in ("NVIDIA-A100-SXM4-40GB", "NVIDIA-H100-80GB-HBM3"))
assert A100 is not None
assert H100 is not None
SIZES = (64, 128, 256)
SAMPLES = {64: 9e5, 128: 1e6, 256: 1.6e6}  # to the target


def search_after(costs: dict[int, float]) -> RecurringJob:
    """A search after one run of each batch size, all of which reached the target at these costs."""
    search = RecurringJob(SIZES, 128, seed=1)
    for _ in SIZES:
        search, decision = search.decide()
        search = search.finish(
            decision.number, costs[decision.batch_size], reached=True, epochs=SAMPLES[decision.batch_size]
        )
    return search


def costs_on(model: JobModel, shape: RunShape, error: float = 1.0) -> dict[int, float]:
    """What runs cost where `model` is right but for a factor."""
    each = shape.joules_per_sample(model, SIZES)
    return {size: error * each[size] * SAMPLES[size] for size in SIZES}


@given(
    gpus=st.sampled_from([1, 4, 16]),
    weight=st.sampled_from([0.0, 0.5, 1.0]),
    error=st.floats(0.2, 5.0),
    name=st.sampled_from(["bert", "vgg16", ""]),
)
def test_where_the_model_is_wrong_about_both_gpus_alike_nothing_is_wrong(
    gpus: int, weight: float, error: float, name: str
) -> None:
    there = model_class_prior(name, A100)
    here, shape = there.on(H100), RunShape(gpus, -(-gpus // 8), weight)
    begun = carried(search_after(costs_on(there, shape, error)), SIZES, there, here, shape, seed=2)
    assert begun is not None
    expected = costs_on(here, shape, error)
    for size in SIZES:
        assert begun.costs(size) == pytest.approx([expected[size]])
    assert begun.best_batch_size == min(expected, key=lambda size: expected[size])


def test_a_joule_weighs_as_much_as_the_job_says() -> None:
    """An H100 is faster and draws more: by joules alone it gains less than by seconds alone."""
    there = model_class_prior("bert", A100)
    here = there.on(H100)
    joules, seconds = (RunShape(8, 1, weight) for weight in (1.0, 0.0))

    def gain(shape: RunShape) -> float:
        return shape.joules_per_sample(here, (128,))[128] / shape.joules_per_sample(there, (128,))[128]

    assert gain(joules) != pytest.approx(gain(seconds), rel=0.05)


def test_a_search_in_which_no_run_has_reached_the_target_says_nothing() -> None:
    search, decision = RecurringJob(SIZES, 128, seed=1).decide()
    search = search.finish(decision.number, 10.0, reached=False, epochs=5.0)
    model = model_class_prior("", A100)
    assert carried(search, SIZES, model, model.on(H100), RunShape(8, 1, 0.5), seed=2) is None
