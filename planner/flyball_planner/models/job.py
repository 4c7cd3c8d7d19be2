"""The time and energy of one training iteration, by GPUs, nodes, batch and clock (PowerFlow section 4).

T_IO = a_IO + b_IO*bs*r, T_grad = a_g + (b_g + k_g/f)*bs, T_sync linear in n with one set of constants inside a node and
one across nodes, T_iter = [(T_IO^g1 + T_grad^g1)^(g2/g1) + T_sync^g2]^(1/g2) (equations 2 to 5, where the printed outer
exponent g2 is read as 1/g2: only that gives seconds and the stated limits). E_iter = (P_grad*T_grad + P_sync*T_sync +
P_static*T_iter)*n (equations 6 to 9). The three powers are the *physical* parameterisation's or the *paper*'s
(models/power.py), clipped to the GPU's limit. Everything is continuous over the clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flyball_planner.models.gpu import GpuModel, catalogue, gpu_model_for
from flyball_planner.models.power import (
    PAPER_PARAMETER_NAMES,
    GpuPowers,
    PaperPower,
    Parameterisation,
    paper_power_of,
    paper_powers,
    physical_powers,
)

__all__ = [
    "PAPER_PARAMETER_NAMES",
    "PARAMETER_NAMES",
    "TIME_PARAMETER_NAMES",
    "GpuModel",
    "IterationCurves",
    "JobModel",
    "PaperPower",
    "Parameterisation",
    "catalogue",
    "evaluate",
    "evaluate_seconds",
    "evaluate_seconds_and_joules",
    "gpu_model_for",
    "parameter_matrix",
]

Array = NDArray[np.float64]

MAX_OVERLAP = 10.0  # at g = 10 the shorter of two parts adds at most 7 %: as good as hidden


class IterationCurves(NamedTuple):
    """One iteration over a grid of rows (size, batch, job) and clocks: seconds, joules of all GPUs, watts of one GPU.

    `throttles`: the gradients would draw more than the GPU's limit, so that it could not hold this clock.
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
    Where `paper` is given the powers are its own, and the last four are only what `as_physical` goes back to.
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
    paper: PaperPower | None = None

    def __post_init__(self) -> None:
        for name in PARAMETER_NAMES:
            value = getattr(self, name)
            low, high = (1.0, MAX_OVERLAP) if name in ("io_overlap", "sync_overlap") else (0.0, math.inf)
            if not (math.isfinite(value) and low <= value <= high):
                raise ValueError(f"job model: {name} is {value}, and must be finite and within {low} and {high}")
        if self.gradient_seconds + self.gradient_seconds_per_sample + self.gradient_megacycles_per_sample <= 0:
            raise ValueError("job model: an iteration takes no time, one of gradient_* must be above 0")

    @property
    def parameterisation(self) -> Parameterisation:
        return Parameterisation.PHYSICAL if self.paper is None else Parameterisation.PAPER

    def parameters(self) -> dict[str, float]:
        """The parameters as a flat dict of named real numbers, `paper_*` only where there is one."""
        own = {name: float(getattr(self, name)) for name in PARAMETER_NAMES}
        return own if self.paper is None else own | self.paper.parameters()

    @classmethod
    def from_parameters(cls, gpu_model: GpuModel, parameters: Mapping[str, float]) -> JobModel:
        """The model of these parameters on this GPU model, physical or, with all of `paper_*`, the paper's.

        Raises ValueError for an unknown or missing name.
        """
        wanted = set(PARAMETER_NAMES)
        if not wanted.issuperset(parameters) and not set(PAPER_PARAMETER_NAMES).isdisjoint(parameters):
            wanted |= set(PAPER_PARAMETER_NAMES)
        unknown, missing = sorted(set(parameters) - wanted), sorted(wanted - set(parameters))
        if unknown or missing:
            raise ValueError(f"job model parameters: unknown {unknown}, missing {missing}")
        return cls(
            gpu_model=gpu_model,
            paper=PaperPower.from_parameters(parameters) if len(wanted) > len(PARAMETER_NAMES) else None,
            **{name: float(parameters[name]) for name in PARAMETER_NAMES},
        )

    def as_paper(self) -> JobModel:
        """In the paper's parameterisation: the same powers, exactly so where the paper's f0 is the knee of the voltage."""
        if self.paper is not None:
            return self
        paper = paper_power_of(
            self.gpu_model,
            self.gradient_watts_per_megahertz,
            self.gradient_batch_shift,
            self.gradient_batch_offset,
            self.sync_watts_per_megahertz,
        )
        return replace(self, paper=paper)

    def as_physical(self) -> JobModel:
        """In the physical parameterisation: its own four power parameters, which a paper model keeps."""
        return self if self.paper is None else replace(self, paper=None)

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
        their seconds; dynamic power keeps its share of what the GPU's limit leaves above its static power.
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
            paper=None if self.paper is None else self.paper.on(gpu_model, watts * _peak(gpu_model, self.gpu_model)),
        )


PARAMETER_NAMES: tuple[str, ...] = tuple(
    field.name for field in fields(JobModel) if field.name not in ("gpu_model", "paper")
)


_PHYSICAL_POWER = (
    "gradient_watts_per_megahertz",
    "gradient_batch_shift",
    "gradient_batch_offset",
    "sync_watts_per_megahertz",
)
TIME_PARAMETER_NAMES: tuple[str, ...] = tuple(name for name in PARAMETER_NAMES if name not in _PHYSICAL_POWER)
_ALL_NAMES = PARAMETER_NAMES + PAPER_PARAMETER_NAMES


def _dynamic_watts_per_megahertz(gpu_model: GpuModel) -> float:
    """W/MHz at which a GPU at its highest clock just meets its default limit: what dynamic power is scaled by."""
    top = float(gpu_model.max_clock_megahertz)
    voltage = float(gpu_model.voltage(np.array([top]))[0])
    left = max(gpu_model.default_power_limit_watts - gpu_model.idle_power_watts * voltage, 1.0)
    return left / (voltage * voltage * top)


def _peak(gpu_model: GpuModel, other: GpuModel) -> float:
    """V^2*f at one GPU's highest clock over the other's: watts at the top, per watts for each MHz."""
    peaks = []
    for gpu in (gpu_model, other):
        top = float(gpu.max_clock_megahertz)
        peaks.append(float(gpu.voltage(np.array([top]))[0]) ** 2 * top)
    return peaks[0] / peaks[1]


def parameter_matrix(models: Sequence[JobModel]) -> Array:
    """The parameters of many models as one (parameters, models, 1) array, in the order of PARAMETER_NAMES.

    If any of them is the paper's, the rows of PAPER_PARAMETER_NAMES follow, zeros for the physical ones.
    """
    rows = [[getattr(model, name) for model in models] for name in PARAMETER_NAMES]
    if any(model.paper is not None for model in models):
        given = [{} if model.paper is None else model.paper.parameters() for model in models]
        rows += [[parameters.get(name, 0.0) for parameters in given] for name in PAPER_PARAMETER_NAMES]
    return np.array(rows, dtype=np.float64)[:, :, None]


_TINY = np.finfo(np.float64).tiny


def _overlapped(first: Array, second: Array, exponent: Array) -> Array:
    """(x^g + y^g)^(1/g) with the larger term factored out, so that neither overflow nor 0/0 can occur."""
    if not np.count_nonzero(exponent != 1.0):
        return np.asarray(first + second)
    larger = np.maximum(first, second)
    ratio = np.minimum(first, second) / np.maximum(larger, _TINY)
    return np.asarray(larger * (1.0 + ratio**exponent) ** (1.0 / exponent))


class _Parts(NamedTuple):
    """Seconds of gradients and of synchronisation, and of the whole iteration, over (rows, clocks)."""

    gradient: Array
    sync: Array
    whole: Array


def _parts(p: Mapping[str, Array], gpus: Array, nodes: Array, global_batch_size: Array, frequency: Array) -> _Parts:
    """PowerFlow's equations 2 to 5."""
    local_batch = global_batch_size / gpus
    io = p["io_seconds"] + p["io_seconds_per_sample"] * local_batch * (gpus / nodes)
    per_sample = p["gradient_seconds_per_sample"] + p["gradient_megacycles_per_sample"] / frequency
    gradient = p["gradient_seconds"] + per_sample * local_batch
    across = nodes > 1
    if not np.count_nonzero(across):
        sync_seconds = _sync_seconds(p, "local", gpus, frequency)
    else:
        sync_seconds = np.where(
            across, _sync_seconds(p, "node", gpus, frequency), _sync_seconds(p, "local", gpus, frequency)
        )
    sync = np.where(gpus > 1, sync_seconds, 0.0)
    whole = _overlapped(_overlapped(io, gradient, p["io_overlap"]), sync, p["sync_overlap"])
    return _Parts(gradient, sync, whole)


def _sync_seconds(p: Mapping[str, Array], where: str, gpus: Array, frequency: Array) -> Array:
    """Inside one node ("local") or across several ("node")."""
    more = gpus - 2.0
    constant = p[f"{where}_sync_seconds"] + p[f"{where}_sync_seconds_per_gpu"] * more
    cycles = p[f"{where}_sync_megacycles"] + p[f"{where}_sync_megacycles_per_gpu"] * more
    return constant + cycles / frequency


def evaluate_seconds(
    parameters: Array, gpus: Array, nodes: Array, global_batch_size: Array, clocks_megahertz: Array
) -> Array:
    """T_iter alone (PowerFlow's equations 2 to 5), arguments as for `evaluate`."""
    p = dict(zip(_ALL_NAMES[: len(parameters)], parameters, strict=True))
    return _parts(p, gpus, nodes, global_batch_size, clocks_megahertz).whole


def evaluate(
    parameters: Array, gpu_model: GpuModel, gpus: Array, nodes: Array, global_batch_size: Array, clocks_megahertz: Array
) -> IterationCurves:
    """PowerFlow's equations 2 to 9 over a grid, every argument broadcast to (rows, clocks).

    `parameters` is (parameters, rows or 1, 1) as `parameter_matrix` gives it, the three integers (rows, 1), clocks (1 or
    rows, clocks) in MHz.
    """
    p = dict(zip(_ALL_NAMES[: len(parameters)], parameters, strict=True))
    seconds, joules, drawn = _drawn(p, gpu_model, gpus, nodes, global_batch_size, clocks_megahertz)
    together = np.where(p["sync_overlap"] > 1.0, drawn.gradient + drawn.sync, np.maximum(drawn.gradient, drawn.sync))
    peak = drawn.static + np.where(gpus > 1, np.minimum(together, drawn.limit), drawn.gradient)
    watts = joules / seconds
    return IterationCurves(seconds, joules * gpus, watts, np.maximum(peak, watts), drawn.wanted > drawn.limit)


def evaluate_seconds_and_joules(
    parameters: Array, gpu_model: GpuModel, gpus: Array, nodes: Array, global_batch_size: Array, clocks_megahertz: Array
) -> tuple[Array, Array]:
    """T_iter and e_iter of all GPUs alone, arguments as for `evaluate`: what a fit asks for thousands of times."""
    p = dict(zip(_ALL_NAMES[: len(parameters)], parameters, strict=True))
    seconds, joules, _ = _drawn(p, gpu_model, gpus, nodes, global_batch_size, clocks_megahertz)
    return seconds, joules * gpus


class _Drawn(NamedTuple):
    """Watts of one GPU above static while it computes and while it synchronises, as its limit leaves them, over (rows,
    clocks); the static watts, the limit less these, and what the gradients would draw without it."""

    gradient: Array
    sync: Array
    static: Array
    limit: Array
    wanted: Array


def _drawn(
    p: Mapping[str, Array], gpu_model: GpuModel, gpus: Array, nodes: Array, global_batch_size: Array, frequency: Array
) -> tuple[Array, Array, _Drawn]:
    """Seconds of an iteration and joules of one GPU in it (equations 2 to 9), and the watts that these are made of."""
    gradient, sync, seconds = _parts(p, gpus, nodes, global_batch_size, frequency)
    powers = _powers(p, gpu_model, global_batch_size / gpus, frequency)
    static_watts = powers.static
    limit = np.maximum(gpu_model.max_power_limit_watts - static_watts, 0.0)
    gradient_watts = np.minimum(powers.gradient, limit)
    sync_watts = np.minimum(powers.sync, limit)
    joules = gradient_watts * gradient + sync_watts * sync + static_watts * seconds
    return seconds, joules, _Drawn(gradient_watts, sync_watts, static_watts, limit, powers.gradient)


def _powers(p: Mapping[str, Array], gpu_model: GpuModel, local_batch: Array, clocks_megahertz: Array) -> GpuPowers:
    """Each row by its own parameterisation."""
    if "paper_break_megahertz" not in p:
        return physical_powers(p, gpu_model, local_batch, clocks_megahertz)
    by_paper = paper_powers(p, gpu_model, local_batch, clocks_megahertz)
    has_paper = p["paper_break_megahertz"] > 0
    if has_paper.all():
        return by_paper
    physical = physical_powers(p, gpu_model, local_batch, clocks_megahertz)
    return GpuPowers(*(np.where(has_paper, *pair) for pair in zip(by_paper, physical, strict=True)))
