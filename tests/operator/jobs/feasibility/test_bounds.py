"""Bounds that no GPU of the cluster can take."""

from __future__ import annotations

from typing import Any

import pytest
from flyball_operator.jobs.feasibility.bounds import bounds_beyond, gpu_ranges

from tests.support.operator_objects import job_view, ready_node


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, ""),
        ({"clocks": {"minMegahertz": 900, "maxMegahertz": 1410}, "powerLimit": {"maxWatts": 100}}, ""),
        (
            {"clocks": {"minMegahertz": 9999}},
            "clocks.minMegahertz 9999 is above 1410 MHz, the highest there is: that is used instead",
        ),
        (
            {"clocks": {"maxMegahertz": 1}, "powerLimit": {"maxWatts": 1}},
            "clocks.maxMegahertz 1 is below 210 MHz, the lowest there is; "
            "powerLimit.maxWatts 1 is below 100 W, the smallest there is: that is used instead",
        ),
    ],
)
def test_what_is_said_of_bounds(spec: dict[str, Any], words: str) -> None:
    assert bounds_beyond(job_view(**spec), gpu_ranges([ready_node("a")])) == words


def test_nothing_is_said_before_gpus_are_known() -> None:
    assert gpu_ranges([]) is None
    assert bounds_beyond(job_view(clocks={"minMegahertz": 9999}), None) == ""
