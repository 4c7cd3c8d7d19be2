"""Two models of what a GPU draws while it trains: a physical one, and that of the PowerFlow paper.

Both give three powers of one GPU at a clock f: of gradients, of synchronisation, and the static one (PowerFlow section
4.2, equations 6 to 15).

*Physical*: the GPU model's voltage V(f) does it all. P_static = idle*V, P_grad = A*(ln(bs + th) + b)*V^2*f,
P_sync = S*V^2*f.

*Paper*: the shapes over the clock are the job's own. P_grad = kappa(f)*(al*ln(bs + th) + be) with kappa(f_max) = 1;
kappa and P_sync are linear below f0 and cubic above, P_static is constant below and linear above. The readings of the
printed equations: equation 12's parenthesis closes after theta; one al, be, th serves on both sides of f0, and each shape
is continuous there, or a step over f0 would look like a gain; equation 15 gets an intercept above f0, because a line
through the origin that is also continuous would leave nothing to be fitted. A cubic is held by its value at f0 and at f_max
and by how the rise between them is shared among x, x^2 and x^3, x = (f - f0)/(f_max - f0): no share is negative, so that
power never falls as the clock rises. V^2*f is such a cubic: with f0 at the knee the paper's form contains the physical one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flyball_planner.models.gpu import GpuModel

Array = NDArray[np.float64]


class Parameterisation(StrEnum):
    """Which of the two power laws a model has."""

    PHYSICAL = "physical"
    PAPER = "paper"


class GpuPowers(NamedTuple):
    """Watts of one GPU over (rows, clocks): gradients and synchronisation above the static power, before any limit."""

    gradient: Array
    sync: Array
    static: Array


@dataclass(frozen=True, slots=True)
class PaperPower:
    """PowerFlow's printed power model of one job on one GPU model (equations 12 to 15).

    Watts are those at the highest clock. `gradient_watts` is be, `gradient_watts_per_log_sample` al, `gradient_batch_shift`
    th. The `*_at_break` and `*_at_zero` are the shape at f0 and its line's value at clock 0, as shares of 1 at f_max;
    `*_square` and `*_cube` the shares of x^2 and x^3 in the rise above f0, x has the rest. `static_watts` is P_static below
    f0, `static_rise` by what share of it it has risen at f_max. Raises ValueError for a parameter out of its range.
    """

    break_megahertz: float
    gradient_watts: float
    gradient_watts_per_log_sample: float
    gradient_batch_shift: float
    gradient_at_zero: float
    gradient_at_break: float
    gradient_square: float
    gradient_cube: float
    sync_watts: float
    sync_at_zero: float
    sync_at_break: float
    sync_square: float
    sync_cube: float
    static_watts: float
    static_rise: float

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"paper power: {name} is {value}, and must be finite and at least 0")
        if self.break_megahertz <= 0:
            raise ValueError("paper power: break_megahertz must be above 0")
        for part in ("gradient", "sync"):
            zero, middle = getattr(self, f"{part}_at_zero"), getattr(self, f"{part}_at_break")
            if not zero <= middle <= 1:
                raise ValueError(f"paper power: {part}_at_zero {zero} <= {part}_at_break {middle} <= 1 does not hold")
            shares = getattr(self, f"{part}_square") + getattr(self, f"{part}_cube")
            if shares > 1 + 1e-9:
                raise ValueError(f"paper power: {part}_square + {part}_cube is {shares}, and must be at most 1")

    def parameters(self) -> dict[str, float]:
        """The parameters as a flat dict, each name with `paper_` before it."""
        return {PREFIX + name: float(getattr(self, name)) for name in _FIELDS}

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, float]) -> PaperPower:
        """The inverse of `parameters`; raises KeyError for a missing name."""
        return cls(**{name: float(parameters[PREFIX + name]) for name in _FIELDS})

    def on(self, gpu_model: GpuModel, watts: float) -> PaperPower:
        """Carried to another GPU model: the shapes stay between its own f0 and highest clock, dynamic watts are scaled."""
        break_megahertz = break_of(gpu_model)
        return PaperPower(
            **{
                **{name: getattr(self, name) for name in _FIELDS},
                "break_megahertz": break_megahertz,
                "gradient_watts": self.gradient_watts * watts,
                "gradient_watts_per_log_sample": self.gradient_watts_per_log_sample * watts,
                "sync_watts": self.sync_watts * watts,
                "static_watts": gpu_model.idle_power_watts,
                "static_rise": _static_rise(gpu_model),
            }
        )


PREFIX = "paper_"
_FIELDS: tuple[str, ...] = tuple(field.name for field in fields(PaperPower))
PAPER_PARAMETER_NAMES: tuple[str, ...] = tuple(PREFIX + name for name in _FIELDS)


def break_of(gpu_model: GpuModel) -> float:
    """The paper's f0 of a GPU model: where it is known, else the knee of its voltage."""
    return gpu_model.break_megahertz or gpu_model.knee_megahertz


def paper_power_of(
    gpu_model: GpuModel, watts_per_megahertz: float, shift: float, offset: float, sync_watts_per_megahertz: float
) -> PaperPower:
    """The paper's form of a physical model: the same powers, exactly so where f0 is the knee of the voltage."""
    top = float(gpu_model.max_clock_megahertz)
    f0 = min(break_of(gpu_model), top)
    low, high = (float(value) for value in gpu_model.voltage(np.array([f0, top])))
    peak = high * high * top
    middle = low * low * f0 / peak
    # V^2*f above f0, in x: (low + u*x)^2 * (f0 + d*x)
    u, d = high - low, top - f0
    parts = np.array([2 * low * u * f0 + low * low * d, u * u * f0 + 2 * low * u * d, u * u * d])
    shares = parts / max(parts.sum(), 1e-12) if d > 0 else np.zeros(3)
    gradient = watts_per_megahertz * peak
    return PaperPower(
        break_megahertz=f0,
        gradient_watts=gradient * offset,
        gradient_watts_per_log_sample=gradient,
        gradient_batch_shift=shift,
        gradient_at_zero=0.0,
        gradient_at_break=middle,
        gradient_square=float(shares[1]),
        gradient_cube=float(shares[2]),
        sync_watts=sync_watts_per_megahertz * peak,
        sync_at_zero=0.0,
        sync_at_break=middle,
        sync_square=float(shares[1]),
        sync_cube=float(shares[2]),
        static_watts=gpu_model.idle_power_watts,
        static_rise=_static_rise(gpu_model),
    )


def _static_rise(gpu_model: GpuModel) -> float:
    return float(gpu_model.voltage(np.array([float(gpu_model.max_clock_megahertz)]))[0]) - 1.0


def physical_powers(
    p: Mapping[str, Array], gpu_model: GpuModel, local_batch: Array, clocks_megahertz: Array
) -> GpuPowers:
    """P_static = idle*V, P_grad = A*(ln(bs + th) + b)*V^2*f, P_sync = S*V^2*f, over (rows, clocks)."""
    voltage = gpu_model.voltage(clocks_megahertz)
    cubic = voltage * voltage * clocks_megahertz
    activity = np.maximum(np.log(local_batch + p["gradient_batch_shift"]) + p["gradient_batch_offset"], 0.0)
    return GpuPowers(
        p["gradient_watts_per_megahertz"] * activity * cubic,
        p["sync_watts_per_megahertz"] * cubic,
        gpu_model.idle_power_watts * voltage,
    )


def paper_powers(p: Mapping[str, Array], gpu_model: GpuModel, local_batch: Array, clocks_megahertz: Array) -> GpuPowers:
    """Equations 12 to 15 as read above, over (rows, clocks); rows without a paper model (f0 of 0) get zeros."""
    f0 = np.maximum(p["paper_break_megahertz"], 1.0)
    width = np.maximum(gpu_model.max_clock_megahertz - f0, 1e-9)
    x = (clocks_megahertz - f0) / width
    above = np.maximum(x, 0.0)
    below = np.minimum(clocks_megahertz / f0, 1.0)

    def shape(part: str) -> Array:
        zero, middle = p[f"paper_{part}_at_zero"], p[f"paper_{part}_at_break"]
        square, cube = p[f"paper_{part}_square"], p[f"paper_{part}_cube"]
        rise = above * ((1.0 - square - cube) + above * (square + above * cube))
        return np.asarray(zero + (middle - zero) * below + (1.0 - middle) * rise)

    batch = p["paper_gradient_watts"] + p["paper_gradient_watts_per_log_sample"] * np.log(
        np.maximum(local_batch + p["paper_gradient_batch_shift"], 1e-9)
    )
    return GpuPowers(
        np.maximum(batch, 0.0) * shape("gradient"),
        p["paper_sync_watts"] * shape("sync"),
        p["paper_static_watts"] * (1.0 + p["paper_static_rise"] * above),
    )
