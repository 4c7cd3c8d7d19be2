"""What a process of its own reads through the NVML library that its loader finds, and what holds of it on every board."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

READ_ONLY = """
import json, time
import msgspec
from flyball_agent.gpu.nvml import NvmlDriver
driver = NvmlDriver()
def look(gpu):
    reading = gpu.read()
    return dict(msgspec.to_builtins(reading), held=reading.limit.held_milliwatts)
gpus = []
for gpu in driver.gpus():
    first = look(gpu)
    end = time.monotonic() + 5
    while (second := look(gpu))["energy_millijoules"] == first["energy_millijoules"] and time.monotonic() < end:
        time.sleep(0.05)
    gpus.append({"uuid": gpu.uuid, "model": gpu.model, "limits": msgspec.to_builtins(gpu.limits),
                 "first": first, "second": second})
print(json.dumps({"version": driver.version, "unopened": len(driver.unopened), "gpus": gpus}))
"""


def read_only(environment: dict[str, str]) -> dict[str, Any]:
    """What a process of its own sees through the library that its loader finds."""
    done = subprocess.run([sys.executable, "-c", READ_ONLY], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


def assert_conforms(seen: dict[str, Any]) -> None:
    assert seen["version"]
    assert seen["gpus"]
    for gpu in seen["gpus"]:
        assert gpu["uuid"].startswith("GPU-")
        assert " " not in gpu["model"]
        limits, first, second = gpu["limits"], gpu["first"], gpu["second"]
        assert limits["clocks_megahertz"] == sorted(limits["clocks_megahertz"])
        assert first["held"] <= limits["max_milliwatts"]
        assert second["energy_millijoules"] > first["energy_millijoules"]
        assert 0 < first["average_power_milliwatts"] < 2 * limits["max_milliwatts"]
