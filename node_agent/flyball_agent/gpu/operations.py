"""What is asked of one GPU, as values: to be made on one here, or sent to the process that has it."""

from __future__ import annotations

from typing import Protocol, TypeVar

from flyball_api.values.units import MilliwattsPerGpu
from msgspec import Struct

from flyball_agent.gpu.gpu import Gpu, GpuReading, PowerLimitReading

T_co = TypeVar("T_co", covariant=True)


class GpuCall(Protocol[T_co]):
    """One call on one GPU. Raises GpuError."""

    def on(self, gpu: Gpu) -> T_co: ...


class Read(Struct, frozen=True, tag=True):
    def on(self, gpu: Gpu) -> GpuReading:
        return gpu.read()


class ReadPowerLimit(Struct, frozen=True, tag=True):
    def on(self, gpu: Gpu) -> PowerLimitReading:
        return gpu.read_power_limit()


class SetPowerLimit(Struct, frozen=True, tag=True):
    limit_milliwatts: MilliwattsPerGpu

    def on(self, gpu: Gpu) -> None:
        gpu.set_power_limit_milliwatts(self.limit_milliwatts)


class LockClocks(Struct, frozen=True, tag=True):
    min_megahertz: int
    max_megahertz: int

    def on(self, gpu: Gpu) -> None:
        gpu.set_locked_clocks_megahertz(self.min_megahertz, self.max_megahertz)


class UnlockClocks(Struct, frozen=True, tag=True):
    def on(self, gpu: Gpu) -> None:
        gpu.reset_locked_clocks()


class EnablePersistence(Struct, frozen=True, tag=True):
    def on(self, gpu: Gpu) -> None:
        gpu.enable_persistence_mode()


AnyGpuCall = Read | ReadPowerLimit | SetPowerLimit | LockClocks | UnlockClocks | EnablePersistence
