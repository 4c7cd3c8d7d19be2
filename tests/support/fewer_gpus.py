"""A driver that does not find every GPU of its node."""

from __future__ import annotations

from collections.abc import Sequence

from flyball_agent.gpu.gpu import Gpu, GpuDriver, UnopenedGpu
from flyball_agent.gpu.simulated import SimulatedDriver
from flyball_simulated_gpu.virtual import VirtualNode


class FewerGpus(GpuDriver):
    """The driver of a node that finds all GPUs but one, and cannot open these."""

    name = "simulated"

    def __init__(self, node: VirtualNode, missing_uuid: str, unopened: Sequence[UnopenedGpu] = ()) -> None:
        self._driver, self._missing_uuid, self._unopened = SimulatedDriver(node), missing_uuid, unopened

    @property
    def boot_id(self) -> str:
        return self._driver.boot_id

    @property
    def driver_load(self) -> str:
        return self._driver.driver_load

    @property
    def version(self) -> str:
        return self._driver.version

    @property
    def unopened(self) -> Sequence[UnopenedGpu]:
        return self._unopened

    def gpus(self) -> Sequence[Gpu]:
        return [gpu for gpu in self._driver.gpus() if gpu.uuid != self._missing_uuid]

    def close(self) -> None:
        self._driver.close()
