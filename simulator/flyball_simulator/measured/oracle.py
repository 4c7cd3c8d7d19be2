"""The truth of a simulation: what an iteration of each kind of job takes, in seconds and joules, at each size and clock.

Kept apart from what policies know (knowledge.py), and of another form than the models that are fitted to it: measured
tables instead of PowerFlow's sums, so that a fit is never exact.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from flyball_planner.models.gpu import GpuModel
from flyball_planner.policies.view import Performance
from numpy.typing import NDArray

from flyball_simulator.measured.iterations import WAITING_ACTIVITY, iteration_parts
from flyball_simulator.measured.throughputs import model_class as class_named


class Oracle:
    """One GPU model at the given clocks (MHz), jobs packed on as few nodes as hold them.

    A GPU draws idle*V + activity*A*V^2*f watts (docs/simulated-gpu.md), where activity 1 at the highest clock is the
    board's default power limit. Boards other than the A100 that was measured compute `relative_speed` times as fast, and
    wait as long. Raises ValueError for clocks that do not ascend within the board's range, or no GPUs on a node.
    """

    def __init__(self, gpu: GpuModel, clocks_megahertz: Sequence[int], gpus_per_node: int) -> None:
        clocks = np.array(clocks_megahertz, dtype=np.float64)
        if not len(clocks) or (np.diff(clocks) <= 0).any():
            raise ValueError(f"clocks {list(clocks_megahertz)} must ascend, at least one")
        if clocks[0] <= 0 or clocks[-1] > gpu.max_clock_megahertz:
            raise ValueError(f"clocks {list(clocks_megahertz)} are not within 0 and {gpu.max_clock_megahertz} MHz")
        if gpus_per_node < 1:
            raise ValueError(f"a node of {gpus_per_node} GPUs holds no job")
        self.gpu = gpu
        self.gpus_per_node = gpus_per_node
        top = np.array([gpu.max_clock_megahertz], dtype=np.float64)
        self._slowdown = top / clocks
        self._clocks = clocks
        at_top = float(gpu.voltage(top)[0])
        self._watts_per_megahertz = (gpu.default_power_limit_watts - gpu.idle_power_watts * at_top) / (
            at_top * at_top * float(top[0])
        )
        self._waiting_watts = self.gpu_watts(WAITING_ACTIVITY)
        self._known: dict[tuple[str, int, int], Performance] = {}

    def gpu_watts(self, activity: float) -> NDArray[np.float64]:
        """What one GPU draws at each clock."""
        voltage = self.gpu.voltage(self._clocks)
        dynamic = activity * self._watts_per_megahertz * voltage * voltage * self._clocks
        return np.asarray(self.gpu.idle_power_watts * voltage + dynamic, dtype=np.float64)

    def performance(self, model_class: str, global_batch_size: int, max_gpus: int) -> Performance:
        """Seconds and joules (of all GPUs of the job) of an iteration, (sizes, clocks), at sizes 1, 2, 4, ...

        No size is larger than `max_gpus` or the batch. Raises ValueError for an unknown model class, or sizes below one.
        """
        largest = min(max_gpus, global_batch_size)
        if largest < 1:
            raise ValueError(f"{model_class}: {max_gpus} GPUs with batch {global_batch_size} is no size of a job")
        largest = 1 << (largest.bit_length() - 1)
        known = self._known.get((model_class, global_batch_size, largest))
        if known is None:
            known = self._performance(model_class, global_batch_size, largest)
            self._known[model_class, global_batch_size, largest] = known
        return known

    def _performance(self, name: str, batch: int, largest: int) -> Performance:
        model = class_named(name)
        sizes = [1 << power for power in range(largest.bit_length())]
        stretch = model.clock_share * self._slowdown + 1.0 - model.clock_share
        seconds = np.empty((len(sizes), len(self._clocks)))
        joules = np.empty_like(seconds)
        for row, gpus in enumerate(sizes):
            parts = iteration_parts(model, gpus, -(-gpus // self.gpus_per_node), batch)
            computing = parts.computing_seconds / self.gpu.relative_speed * stretch
            seconds[row] = computing + parts.waiting_seconds
            watts = self.gpu_watts(parts.computing_activity)
            joules[row] = gpus * (computing * watts + parts.waiting_seconds * self._waiting_watts)
        return Performance(sizes, seconds, joules)
