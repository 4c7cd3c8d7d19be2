"""What one node's GPUs are: what is reported of them counts, as far as such GPUs can have it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from flyball_operator.power.nodes.gpu_facts import MOST_CLOCKS, GpuFacts, gpu_facts
from flyball_planner.models.gpu import catalogue

from tests.support.operator_objects import A100, DEFAULT, FLOOR, gpu_node_view, grant, raw_device

NOBODY_KNOWS = "Unheard-Of"
NO_CLOCKS = {"clocksMegahertz": {"min": 0, "max": 0, "step": 0}}


def facts_of(*devices: Any, product: str = A100) -> GpuFacts:
    reports = gpu_node_view("a", grant(len(devices) * FLOOR), devices=list(devices)).gpus
    return gpu_facts(product, len(devices), reports, catalogue())


@pytest.mark.parametrize(("reported", "believed"), [(480_000, 480_000), (10_000_000, 500_000)])
def test_power_of_a_gpu_that_leaves_its_largest_limit_out_is_bounded_all_the_same(reported: int, believed: int) -> None:
    """Else an agent would have but to leave it out, to call every cap over the node breached."""
    device = raw_device(0, maxMilliwatts=0) | {"powerMilliwatts": reported}
    assert facts_of(device).measured_milliwatts == believed


@pytest.mark.parametrize(("reported", "believed"), [(480_000, 480_000), (10_000_000, 1_750_000)])
def test_power_of_a_gpu_that_nobody_knows_the_largest_limit_of_is_bounded_by_the_largest_of_any(
    reported: int, believed: int
) -> None:
    device = raw_device(0, maxMilliwatts=0) | {"powerMilliwatts": reported}
    assert facts_of(device, product=NOBODY_KNOWS).measured_milliwatts == believed


@pytest.mark.parametrize("product", [A100, NOBODY_KNOWS])
def test_power_is_bounded_by_a_smaller_largest_limit_that_is_reported(product: str) -> None:
    device = raw_device(0, maxMilliwatts=300_000) | {"powerMilliwatts": 10_000_000}
    assert facts_of(device, product=product).measured_milliwatts == 375_000


def test_limits_of_gpus_of_no_known_model_are_those_reported() -> None:
    """Without clocks nothing can be planned with them, but what their limits are is said."""
    device = raw_device(0, minMilliwatts=150_000, defaultMilliwatts=300_000, maxMilliwatts=350_000)
    facts = facts_of(device | NO_CLOCKS, product=NOBODY_KNOWS)
    assert facts.model is None
    assert (facts.min_limit_milliwatts, facts.default_limit_milliwatts) == (150_000, 300_000)
    assert (facts.max_limits_milliwatts, facts.largest_milliwatts) == (350_000, 350_000)


@pytest.mark.parametrize(("lowest", "highest", "step"), [(1, 10_000, 1), (210, 1980, 1), (1, 10_000, 39)])
def test_a_gpu_is_planned_with_by_no_more_clocks_than_any_has(lowest: int, highest: int, step: int) -> None:
    """Each clock is memory of a plan for every job that may go there: one node's report must not cost everybody theirs."""
    clocks = {"clocksMegahertz": {"min": lowest, "max": highest, "step": step}}
    model = facts_of(raw_device(0) | clocks).model
    assert model is not None
    assert 100 < len(model.clocks_megahertz) <= MOST_CLOCKS
    assert set(model.clocks_megahertz) <= set(range(lowest, highest + 1, step))
    assert model.clocks_megahertz[0] == lowest
    assert highest - model.clocks_megahertz[-1] < (highest - lowest) / 100


def test_a_gpu_without_clocks_is_planned_with_by_those_of_the_others() -> None:
    facts = facts_of(raw_device(0) | NO_CLOCKS, raw_device(1), product=NOBODY_KNOWS)
    assert facts.model is not None
    assert facts.model.max_clock_megahertz == 1410


def test_limits_that_are_just_what_such_gpus_have_are_no_cause_for_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    product = "With-Limits-That-No-Other-Test-Reports"  # each report is warned of once
    models = {product: replace(catalogue()[A100], product=product)}
    reports = gpu_node_view("a", grant(FLOOR), devices=[raw_device(0, minMilliwatts=DEFAULT)]).gpus
    facts = gpu_facts(product, 1, reports, models)
    assert (facts.min_limit_milliwatts, facts.max_limits_milliwatts) == (DEFAULT, DEFAULT)
    assert "above what such GPUs have" not in caplog.text
