"""What every test runs under."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator

import pytest

# Numerical libraries start a thread a core each; beside as many workers those only wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

pytest_plugins = [
    "tests.support.last_words",
    "tests.support.control_plane",
    "tests.support.real_nodes",
    "tests.support.workers",
    "tests.support.chart",
    "tests.support.images",
    "tests.support.monitoring",
    "tests.support.examples",
    "tests.support.measured_data",
]


def pytest_configure() -> None:
    """Let Ctrl-C work in the tests and in what they start, also where pytest was started in the background.

    A shell without job control starts background commands with SIGINT ignored, and every child would inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage among what is imported and collected, now or later: all of it is there to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
