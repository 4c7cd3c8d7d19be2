"""Tests that `make test` leaves to a target of their own, for what they need takes long to fetch or to build, once."""

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
