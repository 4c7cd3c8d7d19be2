"""Tests beside other people's programs stand behind `make test-integrations`: those take half an hour to build, once."""

from __future__ import annotations

import os

import pytest

ASKED_FOR = "FLYBALL_INTEGRATIONS"

asked_for = pytest.mark.skipif(
    not os.environ.get(ASKED_FOR), reason=f"{ASKED_FOR} is not set: `make test-integrations` does"
)
