"""What a real board has answered, read by the code that reads real boards: `answers_of_an_h200.json` was taken from one.

To take another: call each function by nvidia-ml-py, and leave out what names the board.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from flyball_agent.gpu.gpu import ThrottleReason
from flyball_agent.gpu.nvml import NvmlGpu

from tests.support.milliwatts import limit_reading

RECORDED = json.loads(Path(__file__).with_name("answers_of_an_h200.json").read_text())
ANSWERS = RECORDED["answers"]
UUID = "GPU-00000000-1111-2222-3333-444444444444"


def answered(name: str) -> Any:
    answer = ANSWERS[name]
    if "code" in answer:
        raise pynvml.NVMLError(answer["code"])
    return SimpleNamespace(**answer["value"]) if isinstance(answer["value"], dict) else answer["value"]


def graphics_clocks() -> list[int]:
    clocks = ANSWERS["SupportedGraphicsClocks"]
    return list(range(clocks["highest"], clocks["lowest"] - 1, -clocks["step"]))


def field_values(fields: Sequence[int]) -> list[Any]:
    found = (RECORDED["fields"][f"{field}/0"] for field in fields)
    return [
        SimpleNamespace(nvmlReturn=each.get("code", 0), value=SimpleNamespace(uiVal=each.get("value", 0) & 0xFFFFFFFF))
        for each in found
    ]


@pytest.fixture
def h200(monkeypatch: pytest.MonkeyPatch) -> NvmlGpu:
    for name in ANSWERS:
        monkeypatch.setattr(pynvml, f"nvmlDeviceGet{name}", lambda *arguments, name=name: answered(name))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetSupportedGraphicsClocks", lambda handle, memory: graphics_clocks())
    monkeypatch.setattr(pynvml, "nvmlDeviceGetFieldValues", lambda handle, fields: field_values(fields))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: object())
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUUID", lambda handle: UUID)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lambda handle: RECORDED["board"])
    return NvmlGpu(0)


def test_a_real_h200_is_read_whole(h200: NvmlGpu) -> None:
    assert (h200.model, h200.uuid) == ("NVIDIA-H200", UUID)
    limits = h200.limits
    assert (limits.min_milliwatts, limits.default_milliwatts, limits.max_milliwatts) == (200_000, 700_000, 700_000)
    assert (limits.clocks_megahertz[0], limits.clocks_megahertz[-1], len(limits.clocks_megahertz)) == (345, 1980, 110)
    assert limits.clock_step_megahertz == 15
    reading = h200.read()
    assert reading.failed == ()
    assert reading.limit == limit_reading(700_000)
    assert (reading.average_power_milliwatts, reading.instant_power_milliwatts) == (79_211, 79_104)
    assert (reading.energy_millijoules, reading.sm_clock_megahertz) == (3_002_637, 345)
    assert (reading.utilization_percent, reading.temperature_celsius) == (0, 40)
    assert reading.throttle_reasons == ThrottleReason.GPU_IDLE
    assert reading.persistence_mode is True
    assert reading.handed_out_as == ("gpu.nvidia.com/gpu-0",)


def test_of_everything_that_is_read_it_is_known_what_a_real_board_answers() -> None:
    source = Path(sys.modules["flyball_agent.gpu.nvml"].__file__ or "").read_text()
    asked = set(re.findall(r"pynvml\.nvmlDeviceGet([A-Z]\w+)", source))
    # How a board is found and called, and what only one that is partitioned is asked for.
    named = {"Count", "HandleByIndex", "UUID", "Name", "FieldValues", "MigDeviceHandleByIndex"}
    assert asked - named <= ANSWERS.keys()


def test_xid_errors_can_be_waited_for_on_a_real_board() -> None:
    assert ANSWERS["SupportedEventTypes"]["value"] & pynvml.nvmlEventTypeXidCriticalError
