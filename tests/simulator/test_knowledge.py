"""What policies are told: the truth, the truth disturbed, or fits to what was measured."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from flyball_planner.models.gpu import gpu_model_for
from flyball_simulator.knowledge import Predictor, decision_clocks
from flyball_simulator.measured.oracle import Oracle
from flyball_simulator.measured.throughputs import MODEL_CLASSES
from flyball_simulator.settings import REFERENCE_GPU, Knowledge

GPU = gpu_model_for(REFERENCE_GPU)
assert GPU is not None
CLOCKS = decision_clocks(GPU)
ORACLE = Oracle(GPU, CLOCKS, 8)
TRUTH = ORACLE.performance("vgg16", 64, 64)


def predictor(knowledge: Knowledge, **fields: object) -> Predictor:
    defaults: dict[str, object] = {"seed": 0, "noise": 0.03, "model_error": 0.1, "prior_error": 0.0, "clock": None}
    return Predictor(knowledge, GPU, CLOCKS, 8, **{**defaults, "needs_model": False, **fields})  # type: ignore[arg-type]


def error(told: object, rows: slice = slice(None)) -> float:
    return float(np.abs(told.seconds[rows] / TRUTH.seconds[rows] - 1.0).mean())  # type: ignore[attr-defined]


def test_the_ideal_is_the_truth() -> None:
    assert predictor(Knowledge.IDEAL).predict("vgg16", 64, TRUTH, frozenset()) is TRUTH


def test_the_disturbed_truth_is_off_by_its_error_and_the_same_every_time() -> None:
    noisy = predictor(Knowledge.NOISY)
    told = noisy.predict("vgg16", 64, TRUTH, frozenset())
    assert 0.0 < error(told) < 0.4
    assert predictor(Knowledge.NOISY).predict("vgg16", 64, TRUTH, frozenset({1})).seconds_rows == told.seconds_rows
    exact = predictor(Knowledge.NOISY, model_error=0.0).predict("vgg16", 64, TRUTH, frozenset())
    np.testing.assert_allclose(exact.seconds, TRUTH.seconds)


@pytest.mark.slow
def test_measuring_teaches() -> None:
    fitted = predictor(Knowledge.FITTED, prior_error=0.5)
    prior = fitted.predict("vgg16", 64, TRUTH, frozenset())
    once = fitted.predict("vgg16", 64, TRUTH, frozenset({2}))
    thrice = fitted.predict("vgg16", 64, TRUTH, frozenset({1, 2, 4}))
    row = slice(TRUTH.position[2], TRUTH.position[2] + 1)
    assert error(once, row) < error(prior, row)
    assert error(once, row) < 0.08
    assert error(thrice, slice(0, 3)) < 0.08
    assert once.model is not None


@pytest.mark.slow
def test_what_one_size_tells_does_not_spoil_a_good_prior_of_the_others() -> None:
    known = predictor(Knowledge.FITTED)
    of_prior: list[float] = []
    of_one: list[float] = []
    of_two: list[float] = []
    for name, model in MODEL_CLASSES.items():
        for batch in model.pool:
            truth = ORACLE.performance(name, batch, 16)
            for errors, measured in ((of_prior, ()), (of_one, (1,)), (of_two, (1, 2))):
                told = known.predict(name, batch, truth, frozenset(measured))
                errors.append(float(np.abs(told.seconds / truth.seconds - 1.0).mean()))
    assert np.mean(of_prior) < 0.06
    assert np.mean(of_one) < 0.11
    assert np.mean(of_two) < 0.06


def test_what_is_predicted_does_not_depend_on_the_order_of_measuring() -> None:
    first, second = predictor(Knowledge.FITTED), predictor(Knowledge.FITTED)
    for sizes in ({1}, {1, 2}, {1, 2, 4}):
        one = first.predict("vgg16", 64, TRUTH, frozenset(sizes))
    for sizes in ({4}, {2, 4}, {1, 2, 4}):
        other = second.predict("vgg16", 64, TRUTH, frozenset(sizes))
    assert one.seconds_rows == other.seconds_rows


def test_a_policy_of_models_gets_the_model_behind_the_tables() -> None:
    told = predictor(Knowledge.IDEAL, needs_model=True).predict("vgg16", 64, TRUTH, frozenset())
    assert told.model is not None
    assert told.batch_size == 64
    assert error(told) < 0.07


def test_clocks_worth_deciding_between_end_at_the_highest() -> None:
    assert CLOCKS[-1] == GPU.max_clock_megahertz
    assert CLOCKS[0] >= 0.4 * GPU.max_clock_megahertz
    assert all(later - earlier >= 30 for earlier, later in pairwise(CLOCKS))
