"""What one node's GPUs are: what is reported of them counts, as far as such GPUs can have it."""

from __future__ import annotations

from typing import Any

import pytest
from flyball_operator.power.gpu_facts import GpuFacts, gpu_facts
from flyball_planner.models.gpu import catalogue

from tests.support.operator_objects import A100, FLOOR, gpu_node_view, grant, raw_device

NOBODY_KNOWS = "Unheard-Of"


def facts_of(*devices: Any, product: str = A100) -> GpuFacts:
    reports = gpu_node_view("a", grant(len(devices) * FLOOR), devices=list(devices)).gpus
    return gpu_facts(product, len(devices), reports, catalogue())


@pytest.mark.parametrize(("reported", "believed"), [(480_000, 480_000), (10_000_000, 500_000)])
def test_power_of_a_gpu_that_leaves_its_largest_limit_out_is_bounded_all_the_same(reported: int, believed: int) -> None:
    """Else an agent would have but to leave it out, to call every cap over the node breached."""
    device = raw_device(0, maxMilliwatts=0) | {"powerMilliwatts": reported}
    assert facts_of(device).measured_milliwatts == believed


def test_power_of_a_gpu_that_nobody_knows_the_largest_limit_of_is_taken_as_it_is_reported() -> None:
    device = raw_device(0, maxMilliwatts=0) | {"powerMilliwatts": 480_000}
    assert facts_of(device, product=NOBODY_KNOWS).measured_milliwatts == 480_000
