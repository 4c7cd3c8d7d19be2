"""GPU models: what a board's power limits, clocks and power curve are, before anything has been measured on it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

LARGEST_DEFAULT_LIMIT_WATTS = (
    1400.0  # a B300 in a GB300 board, the highest of any GPU sold: what an unknown GPU may draw
)
GENERIC_KNEE_FRACTION = 0.8  # of f_max: the A100's 1125 of 1410 MHz
GENERIC_VOLTAGE_SLOPE = 1.0  # the A100's
GENERIC_IDLE_FRACTION = 0.145  # of the default power limit: the A100's 58 of 400 W


@dataclass(frozen=True, slots=True)
class GpuModel:
    """One model of GPU: watts, megahertz, and the curve that ties them.

    The voltage, relative to its low plateau, is V(f) = 1 + s*max(0, f - f_b)/f_max with the knee f_b and slope s; static
    power is idle*V, dynamic power grows as V^2*f (PowerFlow section 4.2, equations 10 and 11, in the physical
    parameterisation). `clocks_megahertz` ascends. `relative_speed` is training throughput against the A100-SXM4-40GB.
    Raises ValueError where the figures contradict each other.
    """

    product: str
    min_power_limit_watts: float
    max_power_limit_watts: float
    default_power_limit_watts: float
    idle_power_watts: float
    clocks_megahertz: tuple[int, ...]
    knee_megahertz: float
    voltage_slope: float
    relative_speed: float = 1.0
    break_megahertz: float = 0.0

    def __post_init__(self) -> None:
        limits = (self.min_power_limit_watts, self.default_power_limit_watts, self.max_power_limit_watts)
        if not (0 < limits[0] <= limits[1] <= limits[2] < math.inf):
            raise ValueError(f"GPU model {self.product}: power limits {limits} W are not 0 < min <= default <= max")
        if not 0 <= self.idle_power_watts <= limits[2]:
            raise ValueError(
                f"GPU model {self.product}: idle {self.idle_power_watts} W is not within 0 and {limits[2]} W"
            )
        clocks = self.clocks_megahertz
        if not clocks or clocks[0] <= 0 or any(low >= high for low, high in pairwise(clocks)):
            raise ValueError(f"GPU model {self.product}: clocks must be positive and ascend, at least one")
        if self.voltage_slope < 0 or self.knee_megahertz <= 0 or self.relative_speed <= 0:
            raise ValueError(f"GPU model {self.product}: slope must be >= 0, knee and relative speed > 0")

    @property
    def min_clock_megahertz(self) -> int:
        return self.clocks_megahertz[0]

    @property
    def max_clock_megahertz(self) -> int:
        return self.clocks_megahertz[-1]

    def voltage(self, clocks_megahertz: NDArray[np.float64]) -> NDArray[np.float64]:
        """The voltage at each clock, relative to the plateau below the knee (dimensionless, >= 1)."""
        rise = np.maximum(0.0, clocks_megahertz - self.knee_megahertz) / self.max_clock_megahertz
        return np.asarray(1.0 + self.voltage_slope * rise, dtype=np.float64)

    def clock_array(self) -> NDArray[np.float64]:
        """The supported clocks as an ascending array, MHz."""
        return _clock_array(self.clocks_megahertz)

    @classmethod
    def from_device(
        cls,
        product: str,
        min_power_limit_watts: float,
        max_power_limit_watts: float,
        default_power_limit_watts: float,
        clocks_megahertz: Sequence[int],
    ) -> GpuModel:
        """The model that a device reports of itself: its limits and clocks, the rest from the catalogue.

        A product that the catalogue lacks gets the A100's power curve, scaled to the device's limit and clock. Raises
        ValueError where the reported figures contradict each other.
        """
        clocks = tuple(sorted(set(clocks_megahertz)))
        known = gpu_model_for(product)
        if not clocks and known is not None:
            clocks = known.clocks_megahertz
        if not clocks:
            raise ValueError(f"GPU model {product}: reports no clocks, and the catalogue does not know it")
        speed = default_power_limit_watts / 400.0  # the A100's watts bought the A100's speed: nothing better is known
        return cls(
            product=product,
            min_power_limit_watts=min_power_limit_watts,
            max_power_limit_watts=max_power_limit_watts,
            default_power_limit_watts=default_power_limit_watts,
            idle_power_watts=min(known.idle_power_watts, max_power_limit_watts)
            if known
            else GENERIC_IDLE_FRACTION * default_power_limit_watts,
            clocks_megahertz=clocks,
            knee_megahertz=known.knee_megahertz if known else GENERIC_KNEE_FRACTION * clocks[-1],
            voltage_slope=known.voltage_slope if known else GENERIC_VOLTAGE_SLOPE,
            relative_speed=known.relative_speed if known else speed,
        )


@cache
def _clock_array(clocks: tuple[int, ...]) -> NDArray[np.float64]:
    array = np.array(clocks, dtype=np.float64)
    array.flags.writeable = False
    return array


def _spaced_clocks(lowest: float, highest: float, spacing: float) -> tuple[int, ...]:
    """The clocks from highest down in steps of `spacing`, truncated to whole MHz as the driver reports them."""
    count = math.floor((highest - lowest) / spacing + 1e-9)
    return tuple(sorted({int(highest - step * spacing) for step in range(count + 1)}))


@cache
def catalogue() -> dict[str, GpuModel]:
    """Every GPU model of the catalogue (gpu_models_catalogue.json), by product label."""
    text = resources.files(__package__).joinpath("gpu_models_catalogue.json").read_text(encoding="utf-8")
    models: dict[str, GpuModel] = {}
    for entry in json.loads(text)["models"]:
        minimum, maximum, default = entry["limits"]
        models[entry["product"]] = GpuModel(
            product=entry["product"],
            min_power_limit_watts=float(minimum),
            max_power_limit_watts=float(maximum),
            default_power_limit_watts=float(default),
            idle_power_watts=float(entry["idle"]),
            clocks_megahertz=_spaced_clocks(*entry["clocks"]),
            knee_megahertz=float(entry["knee"]),
            voltage_slope=float(entry["slope"]),
            relative_speed=float(entry["speed"]),
        )
    return models


def gpu_model_for(product: str) -> GpuModel | None:
    """The catalogue's model for the node label `nvidia.com/gpu.product`, or None where it is unknown.

    GPU feature discovery writes the product's name with dashes for spaces and `-SHARED` where GPUs are time-sliced;
    a MIG slice (`-MIG-1g.5gb`) is not a whole GPU, and has no power limit of its own: None.
    """
    label = product.strip().replace(" ", "-").removesuffix("-SHARED")
    return catalogue().get(label)
