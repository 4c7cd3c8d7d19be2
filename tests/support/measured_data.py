"""The public measurements that tests read: excerpts in tests/data, and the whole where it lies beside the repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.excerpts import EXCERPTS, WHOLE

NO_WHOLE = f"the whole measurements are not in {WHOLE}; the same test runs on the excerpt"


@pytest.fixture
def whole_data() -> Path:
    """The folder of the whole measurements; skips where they are not."""
    if not WHOLE.is_dir():
        pytest.skip(NO_WHOLE)
    return WHOLE


EXCERPT = pytest.param("excerpt", id="excerpt")
ENTIRE = pytest.param("whole", id="whole", marks=pytest.mark.whole_data)


@pytest.fixture(params=[EXCERPT, ENTIRE])
def measured_data(request: pytest.FixtureRequest) -> Path:
    """The folder of the measurements, once of the excerpts and once of the whole."""
    if request.param == "excerpt":
        return EXCERPTS
    whole: Path = request.getfixturevalue("whole_data")
    return whole
