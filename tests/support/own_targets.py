"""Tests that `make test` leaves to a target of their own, for what they need takes long to get once, or is a GPU."""

from __future__ import annotations

import os

import pytest


def _only_by(target: str, variable: str) -> list[pytest.MarkDecorator]:
    unasked = not os.environ.get(variable)
    return [
        pytest.mark.own_target,
        pytest.mark.skipif(unasked, reason=f"{variable} is not set: `make {target}` does"),
    ]


integrations = _only_by("test-integrations", "FLYBALL_INTEGRATIONS")
training = _only_by("test-training", "FLYBALL_TRAINING")
gpu_check = _only_by("gpu-check", "FLYBALL_GPU_CHECK")
