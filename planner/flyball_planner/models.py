"""The time and energy of one training iteration, by GPUs, nodes, batch and clock (PowerFlow section 4).

T_IO = a_IO + b_IO*bs*r, T_grad = a_g + (b_g + k_g/f)*bs, T_sync linear in n with one set of constants inside a node and
one across nodes, T_iter = [(T_IO^g1 + T_grad^g1)^(g2/g1) + T_sync^g2]^(1/g2) (equations 2 to 5, where the printed outer
exponent g2 is read as 1/g2: only that gives seconds and the stated limits). E_iter = (P_grad*T_grad + P_sync*T_sync +
P_static*T_iter)*n (equations 6 to 9), in the *physical* parameterisation: V(f) from the GPU model, P_static = idle*V,
P_grad = A*(ln(bs + th) + b)*V^2*f clipped to the board's limit, P_sync = S*V^2*f. Everything is continuous at the knee.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flyball_planner.gpu_models import GpuModel, catalogue, gpu_model_for

__all__ = [
    "PARAMETER_NAMES",
    "GpuModel",
    "IterationCurves",
    "JobModel",
    "catalogue",
    "evaluate",
    "gpu_model_for",
    "parameter_matrix",
]

Array = NDArray[np.float64]

MAX_OVERLAP = 10.0  # at g = 10 the shorter of two parts adds at most 7 %: as good as hidden


class IterationCurves(NamedTuple):
    """One iteration over a grid of rows (size, batch, job) and clocks: seconds, joules of all GPUs, watts of one GPU.

    `throttles`: the gradients would draw more than the board's limit, so that it could not hold this clock.
    """

    seconds: Array
    joules: Array
    gpu_watts: Array
    gpu_peak_watts: Array
    throttles: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class JobModel:
    """How one job trains on one GPU model: PowerFlow's parameters, in seconds, samples, MHz*s (megacycles) and watts.

    The names in the paper: io_seconds a_IO, io_seconds_per_sample b_IO; gradient_seconds a_g,
    gradient_seconds_per_sample b_g, gradient_megacycles_per_sample k_g; local_sync_* and node_sync_*: seconds th,
    megacycles a, seconds_per_gpu b, megacycles_per_gpu k; io_overlap g1, sync_overlap g2;
    gradient_watts_per_megahertz A, gradient_batch_shift th, gradient_batch_offset b; sync_watts_per_megahertz S.
    Raises ValueError for a parameter that is not finite or out of its range.
    """

    gpu_model: GpuModel
    gradient_seconds: float
    gradient_seconds_per_sample: float
    gradient_megacycles_per_sample: float
    gradient_watts_per_megahertz: float
    io_seconds: float = 0.0
    io_seconds_per_sample: float = 0.0
    local_sync_seconds: float = 0.0
    local_sync_megacycles: float = 0.0
    local_sync_seconds_per_gpu: float = 0.0
    local_sync_megacycles_per_gpu: float = 0.0
    node_sync_seconds: float = 0.0
    node_sync_megacycles: float = 0.0
    node_sync_seconds_per_gpu: float = 0.0
    node_sync_megacycles_per_gpu: float = 0.0
    io_overlap: float = 1.0
    sync_overlap: float = 1.0
    gradient_batch_shift: float = 1.0
    gradient_batch_offset: float = 20.0
    sync_watts_per_megahertz: float = 0.0

    def __post_init__(self) -> None:
        for name in PARAMETER_NAMES:
            value = getattr(self, name)
            low, high = (1.0, MAX_OVERLAP) if name in ("io_overlap", "sync_overlap") else (0.0, math.inf)
            if not (math.isfinite(value) and low <= value <= high):
                raise ValueError(f"job model: {name} is {value}, and must be finite and within {low} and {high}")
        if self.gradient_seconds + self.gradient_seconds_per_sample + self.gradient_megacycles_per_sample <= 0:
            raise ValueError("job model: an iteration takes no time, one of gradient_* must be above 0")

    def parameters(self) -> dict[str, float]:
        """The parameters as a flat dict of named real numbers; `from_parameters` is its inverse."""
        return {name: float(getattr(self, name)) for name in PARAMETER_NAMES}

    @classmethod
    def from_parameters(cls, gpu_model: GpuModel, parameters: Mapping[str, float]) -> JobModel:
        """The model of these parameters on this GPU model; raises ValueError for an unknown or missing name."""
        unknown = sorted(set(parameters) - set(PARAMETER_NAMES))
        missing = sorted(set(PARAMETER_NAMES) - set(parameters))
        if unknown or missing:
            raise ValueError(f"job model parameters: unknown {unknown}, missing {missing}")
        return cls(gpu_model=gpu_model, **{name: float(parameters[name]) for name in PARAMETER_NAMES})

    def curves(
        self,
        gpus: int | Array,
        nodes: int | Array,
        global_batch_size: float | Array,
        clocks_megahertz: Sequence[int] | Array | None = None,
    ) -> IterationCurves:
        """Seconds, joules and watts for each row of (gpus, nodes, batch) at each clock (default: every supported one).

        Shapes: scalars or (rows,) arrays in, (rows, clocks) arrays out.
        """
        clocks = self.gpu_model.clock_array() if clocks_megahertz is None else np.asarray(clocks_megahertz, dtype=float)
        rows = np.broadcast_arrays(np.atleast_1d(gpus), np.atleast_1d(nodes), np.atleast_1d(global_batch_size))
        gpu_column, node_column, batch_column = (np.asarray(row, dtype=np.float64)[:, None] for row in rows)
        return evaluate(
            parameter_matrix([self]), self.gpu_model, gpu_column, node_column, batch_column, clocks[None, :]
        )

    def iteration_seconds(self, gpus: int, nodes: int, clock_megahertz: float, global_batch_size: float) -> float:
        """T_iter in seconds (equation 5)."""
        return float(self._one(gpus, nodes, clock_megahertz, global_batch_size).seconds[0, 0])

    def iteration_joules(self, gpus: int, nodes: int, clock_megahertz: float, global_batch_size: float) -> float:
        """E_iter in joules, all GPUs together (equation 6)."""
        return float(self._one(gpus, nodes, clock_megahertz, global_batch_size).joules[0, 0])

    def gpu_watts(self, gpus: int, nodes: int, clock_megahertz: float, global_batch_size: float) -> float:
        """The average power of one GPU in watts: E_iter / (T_iter * n)."""
        return float(self._one(gpus, nodes, clock_megahertz, global_batch_size).gpu_watts[0, 0])

    def gpu_peak_watts(self, gpus: int, nodes: int, clock_megahertz: float, global_batch_size: float) -> float:
        """The most that one GPU draws within the iteration in watts: while it computes, or computes and synchronises."""
        return float(self._one(gpus, nodes, clock_megahertz, global_batch_size).gpu_peak_watts[0, 0])

    def _one(self, gpus: int, nodes: int, clock_megahertz: float, global_batch_size: float) -> IterationCurves:
        return self.curves(gpus, nodes, global_batch_size, np.array([clock_megahertz], dtype=np.float64))

    def on(self, gpu_model: GpuModel) -> JobModel:
        """This job carried to another GPU model, until it has been measured there.

        Computation scales with `relative_speed`, its share that follows the clock stays; communication and input keep
        their seconds; dynamic power keeps its share of what the board's limit leaves above its static power.
        """
        if gpu_model == self.gpu_model:
            return self
        if gpu_model.product == self.gpu_model.product:  # the same silicon behind other limits
            return replace(self, gpu_model=gpu_model)
        slower = self.gpu_model.relative_speed / gpu_model.relative_speed
        cycles = gpu_model.max_clock_megahertz / self.gpu_model.max_clock_megahertz
        watts = _dynamic_watts_per_megahertz(gpu_model) / _dynamic_watts_per_megahertz(self.gpu_model)
        return replace(
            self,
            gpu_model=gpu_model,
            gradient_seconds=self.gradient_seconds * slower,
            gradient_seconds_per_sample=self.gradient_seconds_per_sample * slower,
            gradient_megacycles_per_sample=self.gradient_megacycles_per_sample * slower * cycles,
            local_sync_megacycles=self.local_sync_megacycles * cycles,
            local_sync_megacycles_per_gpu=self.local_sync_megacycles_per_gpu * cycles,
            node_sync_megacycles=self.node_sync_megacycles * cycles,
            node_sync_megacycles_per_gpu=self.node_sync_megacycles_per_gpu * cycles,
            gradient_watts_per_megahertz=self.gradient_watts_per_megahertz * watts,
            sync_watts_per_megahertz=self.sync_watts_per_megahertz * watts,
        )


PARAMETER_NAMES: tuple[str, ...] = tuple(field.name for field in fields(JobModel) if field.name != "gpu_model")


def _dynamic_watts_per_megahertz(gpu_model: GpuModel) -> float:
    """W/MHz at which a board at its highest clock just meets its default limit: what dynamic power is scaled by."""
    top = float(gpu_model.max_clock_megahertz)
    voltage = float(gpu_model.voltage(np.array([top]))[0])
    left = max(gpu_model.default_power_limit_watts - gpu_model.idle_power_watts * voltage, 1.0)
    return left / (voltage * voltage * top)


def parameter_matrix(models: Sequence[JobModel]) -> Array:
    """The parameters of many models as one (parameters, models, 1) array, in the order of PARAMETER_NAMES."""
    return np.array([[getattr(model, name) for model in models] for name in PARAMETER_NAMES], dtype=np.float64)[
        :, :, None
    ]


def _overlapped(first: Array, second: Array, exponent: Array) -> Array:
    """(x^g + y^g)^(1/g) with the larger term factored out, so that neither overflow nor 0/0 can occur."""
    larger = np.maximum(first, second)
    ratio = np.minimum(first, second) / np.maximum(larger, np.finfo(np.float64).tiny)
    if np.all(exponent == 1.0):
        return np.asarray(first + second)
    return np.asarray(larger * (1.0 + ratio**exponent) ** (1.0 / exponent))


def evaluate(
    parameters: Array, gpu_model: GpuModel, gpus: Array, nodes: Array, global_batch_size: Array, clocks_megahertz: Array
) -> IterationCurves:
    """PowerFlow's equations 2 to 9 over a grid, every argument broadcast to (rows, clocks).

    `parameters` is (len(PARAMETER_NAMES), rows or 1, 1), the three integers (rows, 1), clocks (1 or rows, clocks) in MHz.
    """
    p = dict(zip(PARAMETER_NAMES, parameters, strict=True))
    local_batch = global_batch_size / gpus
    frequency = clocks_megahertz
    io = p["io_seconds"] + p["io_seconds_per_sample"] * local_batch * (gpus / nodes)
    per_sample = p["gradient_seconds_per_sample"] + p["gradient_megacycles_per_sample"] / frequency
    gradient = p["gradient_seconds"] + per_sample * local_batch
    across = nodes > 1
    more = gpus - 2.0
    sync_constant = np.where(
        across,
        p["node_sync_seconds"] + p["node_sync_seconds_per_gpu"] * more,
        p["local_sync_seconds"] + p["local_sync_seconds_per_gpu"] * more,
    )
    sync_cycles = np.where(
        across,
        p["node_sync_megacycles"] + p["node_sync_megacycles_per_gpu"] * more,
        p["local_sync_megacycles"] + p["local_sync_megacycles_per_gpu"] * more,
    )
    sync = np.where(gpus > 1, sync_constant + sync_cycles / frequency, 0.0)
    seconds = _overlapped(_overlapped(io, gradient, p["io_overlap"]), sync, p["sync_overlap"])

    voltage = gpu_model.voltage(frequency)
    cubic = voltage * voltage * frequency
    static_watts = gpu_model.idle_power_watts * voltage
    limit = np.maximum(gpu_model.max_power_limit_watts - static_watts, 0.0)
    activity = np.maximum(np.log(local_batch + p["gradient_batch_shift"]) + p["gradient_batch_offset"], 0.0)
    wanted_watts = p["gradient_watts_per_megahertz"] * activity * cubic
    gradient_watts = np.minimum(wanted_watts, limit)
    sync_watts = np.minimum(p["sync_watts_per_megahertz"] * cubic, limit)
    per_gpu_joules = gradient_watts * gradient + sync_watts * sync + static_watts * seconds
    together = np.where(p["sync_overlap"] > 1.0, gradient_watts + sync_watts, np.maximum(gradient_watts, sync_watts))
    peak = static_watts + np.where(gpus > 1, np.minimum(together, limit), gradient_watts)
    watts = per_gpu_joules / seconds
    return IterationCurves(seconds, per_gpu_joules * gpus, watts, np.maximum(peak, watts), wanted_watts > limit)
