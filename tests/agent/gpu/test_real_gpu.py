"""The real driver of this machine, read as the agent reads it; `make gpu-check` runs it, where there are GPUs."""

from __future__ import annotations

import os

from tests.support.nvml_conformance import assert_conforms, read_only
from tests.support.own_targets import gpu_check

pytestmark = gpu_check


def test_real_hardware_conforms() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FLYBALL_SIMULATED")}
    assert_conforms(read_only(environment))
