"""What stands in for NVIDIA's container runtime: which containers get the driver, and that runc is called as it was."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from flyball_testbed.realnode import nvidia_runtime

HARDWARE, LIBRARY = "/node/node.gpus", "/node/libnvidia-ml.so.1"


def container(*variables: str, capabilities: tuple[str, ...] = ()) -> dict[str, Any]:
    process: dict[str, Any] = {"env": ["PATH=/bin", *variables], "capabilities": {"effective": list(capabilities)}}
    return {"process": process, "mounts": [{"destination": "/proc"}]}


def variables(of: dict[str, Any]) -> dict[str, str]:
    return dict(variable.split("=", 1) for variable in of["process"]["env"])


def test_a_container_that_asks_for_gpus_gets_the_driver() -> None:
    asking = container("NVIDIA_VISIBLE_DEVICES=GPU-1,GPU-2", "LD_LIBRARY_PATH=/its/own")
    assert nvidia_runtime.furnish(asking, HARDWARE, LIBRARY)
    given = variables(asking)
    mounted = {mount["destination"]: mount for mount in asking["mounts"]}
    assert mounted[given["FLYBALL_SIMULATED_GPUS"]]["source"] == HARDWARE
    directory, _, rest = given["LD_LIBRARY_PATH"].partition(":")
    library = mounted[f"{directory}/libnvidia-ml.so.1"]
    assert (library["source"], "ro" in library["options"], rest) == (LIBRARY, True, "/its/own")
    assert "/proc" in mounted
    assert given["PATH"] == "/bin"
    assert "FLYBALL_SIMULATED_PRIVILEGED" not in given, "a training pod may not set limits"


def test_setting_limits_needs_the_capability_that_hardware_asks_for() -> None:
    agent = container("NVIDIA_VISIBLE_DEVICES=all", capabilities=("CAP_KILL", "CAP_SYS_ADMIN"))
    nvidia_runtime.furnish(agent, HARDWARE, LIBRARY)
    assert variables(agent)["FLYBALL_SIMULATED_PRIVILEGED"] == "1"
    pretender = container("NVIDIA_VISIBLE_DEVICES=all", "FLYBALL_SIMULATED_GPUS=/its/own")
    nvidia_runtime.furnish(pretender, HARDWARE, LIBRARY)
    assert variables(pretender)["FLYBALL_SIMULATED_GPUS"] == nvidia_runtime.HARDWARE


@pytest.mark.parametrize("asks", [(), ("NVIDIA_VISIBLE_DEVICES=",), ("NVIDIA_VISIBLE_DEVICES=void",)])
def test_any_other_container_is_left_as_it_is(asks: tuple[str, ...]) -> None:
    plain = container(*asks)
    assert not nvidia_runtime.furnish(plain, HARDWARE, LIBRARY)
    assert plain == container(*asks)


def test_the_runtime_is_called_with_what_it_was_called_with(tmp_path: Path) -> None:
    runtime = tmp_path / "runc"
    runtime.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/called\n')
    runtime.chmod(0o755)
    wrapper = tmp_path / "wrapper"
    wrapper.write_text(nvidia_runtime.wrapper(sys.executable, str(runtime), HARDWARE, LIBRARY))
    wrapper.chmod(0o755)
    (tmp_path / "bundle").mkdir()
    configuration = tmp_path / "bundle" / "config.json"
    for command, furnished in (("create", True), ("delete", False)):
        configuration.write_text(json.dumps(container("NVIDIA_VISIBLE_DEVICES=all")))
        arguments = ["--root", "/a folder", command, "--bundle", str(tmp_path / "bundle"), "--pid-file", "p", "name"]
        subprocess.run([wrapper, *arguments], check=True, timeout=60)
        assert (tmp_path / "called").read_text().splitlines() == arguments
        assert (len(json.loads(configuration.read_text())["mounts"]) > 1) is furnished
