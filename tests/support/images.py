"""The images of this checkout for tests that run them, built before the first such test; a plugin of pytest.

A test that asks for `images`, itself or through its fixtures, is skipped, with the reason, where they cannot be built.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from flyball_testbed.images.build import (
    ImageBuildError,
    ImagesUnavailableError,
    built_images,
    find_images,
    why_unavailable,
)

IMAGES_FIXTURE = "images"
UNAVAILABLE = pytest.StashKey[str]()
"""Why the images could not be had: tried once, before the first test."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Have the images before the first test: building them takes longer than a test may."""
    wanted = any(IMAGES_FIXTURE in getattr(item, "fixturenames", ()) for item in session.items)
    if session.config.option.collectonly or not wanted or built_images() is not None:
        return
    reason = why_unavailable()
    if reason is None:
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        try:
            find_images(reporter.write_line if reporter is not None else print)
        except (ImagesUnavailableError, ImageBuildError) as error:
            reason = str(error)
    if reason is not None:
        session.config.stash[UNAVAILABLE] = reason


@pytest.fixture(scope="session")
def images(pytestconfig: pytest.Config) -> dict[str, Path]:
    """The OCI archive of each image of this checkout, by the component's name."""
    found = built_images()
    if found is None:
        pytest.skip(f"no images of this version of the sources: {pytestconfig.stash.get(UNAVAILABLE, 'not built')}")
    return found
