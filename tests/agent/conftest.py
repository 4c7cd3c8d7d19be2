"""Benches that every driver is tested on, and the C library that stands in for NVIDIA's, built once a version."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from flyball_agent.drivers.catalogue import CATALOGUE
from flyball_agent.drivers.simulated import SimulatedNode, create_node_file
from flyball_agent.drivers.simulated_gpu import SimulatedDriver
from flyball_agent.drivers.virtual import VirtualNode

A100 = CATALOGUE["NVIDIA-A100-SXM4-40GB"]
SECOND = 1_000_000_000
NVML_SOURCE = Path(__file__).parents[2] / "node_agent" / "simulated_nvml"


class VirtualClock:
    """A clock in nanoseconds that stands still until a test moves it."""

    def __init__(self, now_ns: int = 1000 * SECOND) -> None:
        self.now_ns = now_ns

    def __call__(self) -> int:
        return self.now_ns

    def advance(self, seconds: float) -> None:
        self.now_ns += round(seconds * SECOND)


def build_nvml_library() -> Path:
    """Path of libnvidia-ml.so.1 over simulated GPUs, built by cc where this version of its source was not yet."""
    digest = hashlib.sha256((NVML_SOURCE / "nvml.c").read_bytes() + (NVML_SOURCE / "Makefile").read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "flyball" / "simulated_nvml"
    folder = cache / digest.hexdigest()[:16]
    library = folder / "libnvidia-ml.so.1"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as build:
            subprocess.run(["make", "-C", NVML_SOURCE, f"DESTINATION={build}"], check=True, capture_output=True)
            (Path(build) / library.name).rename(library)
    return library


@pytest.fixture(scope="session")
def nvml_library() -> Path:
    if shutil.which("cc") is None or shutil.which("make") is None:
        pytest.skip("no C compiler (cc, make) to build the simulated libnvidia-ml.so.1 with")
    return build_nvml_library()


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Poll until the condition holds; fails after a generous bound."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.002)


@pytest.fixture(params=["virtual", "file", "nvml"])
def bench(request, tmp_path, monkeypatch):
    """A node of two A100s: `.driver` as the agent has it, `.node` as the hardware is, `.wait(condition)`."""
    if request.param == "virtual":
        clock = VirtualClock()
        node = VirtualNode("node-0", [A100] * 2, clock)

        def wait(condition):
            for _ in range(100):
                if condition():
                    return
                clock.advance(0.1)
            raise AssertionError("the condition did not come true")

        yield SimpleNamespace(kind="virtual", driver=SimulatedDriver(node), node=node, wait=wait)
        return
    path = tmp_path / "node-0.gpus"
    create_node_file(path, [A100] * 2)
    with SimulatedNode.open(path) as node:
        if request.param == "file":
            driver = SimulatedDriver.open(path)
        else:
            from flyball_agent.drivers.nvml import NvmlDriver

            library = request.getfixturevalue("nvml_library")
            monkeypatch.setenv("FLYBALL_SIMULATED_GPUS", str(path))
            monkeypatch.setenv("FLYBALL_SIMULATED_PRIVILEGED", "1")
            driver = NvmlDriver(library)
        yield SimpleNamespace(kind=request.param, driver=driver, node=node, wait=wait_until)
        driver.close()
