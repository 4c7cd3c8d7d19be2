"""Benches that every driver is tested on, and the C library that stands in for NVIDIA's, built once a version."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flyball_agent.gpu.simulated import SimulatedDriver
from flyball_simulated_gpu.catalogue import CATALOGUE
from flyball_simulated_gpu.hardware_file import create_node_file
from flyball_simulated_gpu.shared import SimulatedNode
from flyball_simulated_gpu.virtual import VirtualNode

from tests.support.agent_doubles import DriverBench, VirtualClock
from tests.support.waiting import wait_until

A100 = CATALOGUE["NVIDIA-A100-SXM4-40GB"]
NVML_SOURCE = Path(__file__).parents[2] / "simulated_gpu" / "nvml"


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


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder for Unix sockets, whose paths have no more than 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="f", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def nvml_library() -> Path:
    if shutil.which("cc") is None or shutil.which("make") is None:
        pytest.skip("no C compiler (cc, make) to build the simulated libnvidia-ml.so.1 with")
    return build_nvml_library()


@pytest.fixture(params=["virtual", "file", "nvml", "worker"])
def bench(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DriverBench]:
    """A node of two A100s behind each of the drivers."""
    if request.param == "virtual":
        clock = VirtualClock()
        node = VirtualNode("node-0", [A100] * 2, clock)

        def wait(condition: Callable[[], bool]) -> None:
            for _ in range(100):
                if condition():
                    return
                clock.advance(0.1)
            raise AssertionError("the condition did not come true")

        yield DriverBench(kind="virtual", driver=SimulatedDriver(node), node=node, wait=wait)
        return
    path = tmp_path / "node-0.gpus"
    create_node_file(path, [A100] * 2)
    driver: Any
    with SimulatedNode.open(path) as opened:
        if request.param == "file":
            driver = SimulatedDriver.open(path)
        else:
            from flyball_agent.gpu.nvml import NvmlDriver
            from flyball_agent.gpu.worker_driver import WorkerDriver

            library = request.getfixturevalue("nvml_library")
            monkeypatch.setenv("FLYBALL_SIMULATED_GPUS", str(path))
            monkeypatch.setenv("FLYBALL_SIMULATED_PRIVILEGED", "1")
            driver = NvmlDriver(library) if request.param == "nvml" else WorkerDriver(library)
        yield DriverBench(kind=request.param, driver=driver, node=opened, wait=wait_until)
        driver.close()
