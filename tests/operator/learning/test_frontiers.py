"""What time costs in an iteration: choices that nothing beats, within a job's bounds."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from flyball_api.energy.frontier import FrontierBounds, for_iterations
from flyball_operator.learning.frontiers import MAX_CHOICES, iteration_choices
from flyball_planner.models.gpu import gpu_model_for
from flyball_planner.models.priors import model_class_prior
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples

MODEL = gpu_model_for("NVIDIA-A100-SXM4-40GB")
assert MODEL is not None
PRIOR = model_class_prior("resnet50", MODEL)


@given(
    low=st.sampled_from([1, 2, 4]),
    doublings=st.integers(0, 5),
    iterations=st.floats(0.0, 1e7),
    clocks=st.none() | st.tuples(st.integers(200, 1500), st.integers(200, 1500)),
)
@settings(max_examples=examples(60))
def test_no_choice_beats_another_in_an_iteration_nor_in_many(
    low: int, doublings: int, iterations: float, clocks: tuple[int, int] | None
) -> None:
    bounds = FrontierBounds(1024, low, low * 2**doublings, *(clocks or ()))
    choices = iteration_choices(bounds, PRIOR, 8)
    assert len(choices) <= MAX_CHOICES
    for faster, slower in pairwise(choices):
        assert faster.microseconds_per_iteration < slower.microseconds_per_iteration
        assert faster.millijoules_per_iteration > slower.millijoules_per_iteration
    for choice in choices:
        assert low <= choice.gpus <= bounds.max_gpus
        assert clocks is None or clocks[0] <= choice.clock_megahertz <= clocks[1]
        # Nothing within the bounds is better: no clock of its size takes less of both.
        curves = PRIOR.curves(choice.gpus, -(-choice.gpus // 8), 1024, MODEL.clocks_megahertz)
        allowed = [
            (seconds, joules)
            for clock, seconds, joules in zip(MODEL.clocks_megahertz, curves.seconds[0], curves.joules[0], strict=True)
            if clocks is None or clocks[0] <= clock <= clocks[1]
        ]
        time, energy = choice.microseconds_per_iteration + 1, choice.millijoules_per_iteration + 1
        assert not any(seconds * 1e6 < time - 2 and joules * 1e3 < energy - 2 for seconds, joules in allowed)
    assert choices or clocks is not None
    rest = for_iterations(choices, iterations)
    for faster_rest, slower_rest in pairwise(rest):
        assert faster_rest.seconds < slower_rest.seconds
        assert faster_rest.kilojoules > slower_rest.kilojoules
    assert bool(rest) is bool(choices)


@pytest.mark.parametrize("product", ["Tesla-T4", "Tesla-V100-SXM2-32GB"])
@pytest.mark.parametrize("seconds_per_sample", [None, 3600.0, 1e90])
def test_whatever_a_job_asks_for_its_status_says_what_the_api_server_takes(
    product: str, seconds_per_sample: float | None
) -> None:
    model = gpu_model_for(product)
    assert model is not None
    slow = model_class_prior("resnet50", model)
    if seconds_per_sample is not None:
        slow = replace(slow, gradient_seconds_per_sample=seconds_per_sample, io_seconds_per_sample=seconds_per_sample)
    choices = iteration_choices(FrontierBounds(2**31 - 1, 1, 1), slow, 8)
    rest = for_iterations(choices, 1e12)  # the largest batch, and the most iterations, of the API
    assert rest
    assert max(max(one.microseconds_per_iteration, one.millijoules_per_iteration) for one in choices) < 2**63
    assert max(max(point.seconds, point.kilojoules) for point in rest) < 2**63
