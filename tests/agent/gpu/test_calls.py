"""Driver calls in place: an error is its GPU's own."""

from __future__ import annotations

import pytest
from flyball_agent.gpu.calls import DirectCalls
from flyball_agent.gpu.gpu import Gpu, GpuLost, PowerLimitReading
from flyball_agent.gpu.operations import GpuCall, ReadPowerLimit

from tests.agent.conftest import DriverBench


async def test_each_result_is_its_own_and_in_order_and_who_returned_is_told(bench: DriverBench) -> None:
    first, second = bench.driver.gpus()
    told: list[str] = []
    calls: list[tuple[Gpu, GpuCall[PowerLimitReading]]] = [(first, ReadPowerLimit()), (second, _Fails())]
    results = await DirectCalls().each("read power limit", calls, told.append)
    default = bench.node.devices[0].constants.default_limit_milliwatts
    assert results[0] == PowerLimitReading(default, default)
    assert isinstance(results[1], GpuLost)
    assert told == [first.uuid]
    assert await DirectCalls().each("read", []) == []


async def test_a_defect_of_ours_is_not_a_gpus_error(bench: DriverBench) -> None:
    with pytest.raises(ZeroDivisionError):
        await DirectCalls().each("read", [(bench.driver.gpus()[0], _Defect())])


class _Fails:
    def on(self, gpu: Gpu) -> PowerLimitReading:
        raise GpuLost("read", "b", 15)


class _Defect:
    def on(self, gpu: Gpu) -> int:
        return 1 // 0
