"""GPU models: the power limits, clocks and power curve of each product, before anything is measured on one."""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

LARGEST_DEFAULT_LIMIT_WATTS = (
    1400.0  # a B300 in a GB300 board, the highest of any GPU sold: what an unknown GPU may draw
)
GENERIC_KNEE_FRACTION = 0.8  # of f_max: the A100's 1125 of 1410 MHz
GENERIC_VOLTAGE_SLOPE = 1.0  # the A100's
GENERIC_IDLE_FRACTION = 0.145  # of the default power limit: the A100's 58 of 400 W
MAX_FILE_BYTES = 1 << 18  # the catalogue is 9 kB, with all its sources
MAX_CLOCKS = 4096  # an H100 has 237; a spacing that was mistyped must not become an array of gigabytes


@dataclass(frozen=True, slots=True)
class GpuModel:
    """One model of GPU: watts, megahertz, and the curve that ties them.

    The voltage, relative to its low plateau, is V(f) = 1 + s*max(0, f - f_b)/f_max with the knee f_b and slope s; static
    power is idle*V, dynamic power grows as V^2*f (PowerFlow section 4.2, equations 10 and 11, in the physical
    parameterisation). `clocks_megahertz` ascends. `relative_speed` is training throughput against the A100-SXM4-40GB.
    `break_megahertz` is f0 of the paper's parameterisation (equations 12 to 15), 0 where it is taken to be the knee.
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
            raise ValueError(
                f"GPU model {self.product}: slope {self.voltage_slope} must be >= 0, knee {self.knee_megahertz} MHz and "
                f"relative speed {self.relative_speed} must be > 0"
            )
        if not 0 <= self.break_megahertz < clocks[-1]:
            raise ValueError(
                f"GPU model {self.product}: break {self.break_megahertz} MHz is not within 0 and {clocks[-1]}"
            )

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
        models: Mapping[str, GpuModel] | None = None,
    ) -> GpuModel:
        """The model that a device reports of itself: its limits and clocks, the rest from `models` (the catalogue).

        A product that they lack gets the A100's power curve, scaled to the device's limit and clock. Raises ValueError
        where the reported figures contradict each other.
        """
        clocks = tuple(sorted(set(clocks_megahertz)))
        known = gpu_model_for(product, models)
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
            # Per highest clock: the same silicon under a lower highest clock has the same volts at every clock.
            voltage_slope=known.voltage_slope * (clocks[-1] / known.max_clock_megahertz)
            if known
            else GENERIC_VOLTAGE_SLOPE,
            relative_speed=known.relative_speed if known else speed,
            break_megahertz=known.break_megahertz if known and known.break_megahertz < clocks[-1] else 0.0,
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
def catalogue(*files: Path) -> Mapping[str, GpuModel]:
    """Every GPU model of the catalogue (gpu_catalogue.json), by product label, and those of `files` over them.

    Files are as `flyball calibrate` writes them (`gpu_models_from_file`), read once. Raises OSError and ValueError as that.
    """
    text = resources.files(__package__).joinpath("gpu_catalogue.json").read_text(encoding="utf-8")
    found = [_model_of(entry, "the catalogue") for entry in json.loads(text)["models"]]
    for path in files:
        found += gpu_models_from_file(path)
    return MappingProxyType({model.product: model for model in found})


def gpu_models_from_file(path: Path | str) -> list[GpuModel]:
    """The models in a YAML or JSON file: one model, or several under `models`, with the catalogue's keys.

    Raises OSError if it cannot be read and ValueError, naming the file and the key, if it is not as it should be.
    """
    import yaml  # only who has such a file needs it

    with Path(path).open("rb") as file:
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(f"{path}: larger than {MAX_FILE_BYTES} bytes, which no list of GPU models is")
    try:
        document = yaml.safe_load(content.decode("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:  # ValueError: a date that does not exist, say
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        where = str(error) if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: {problem}"
        raise ValueError(f"{path}: not YAML: {where}") from error
    except RecursionError:
        raise ValueError(f"{path}: nested too deeply, which no list of GPU models is") from None
    entries = document.get("models", [document]) if isinstance(document, dict) else None
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"{path}: wanted one GPU model, or a list of them under `models`")
    found = [_model_of(entry, str(path)) for entry in entries]
    for index, model in enumerate(found):
        if model.product in {earlier.product for earlier in found[:index]}:
            raise ValueError(f"{path}: {model.product} is there twice, and must be once")
    return found


def gpu_model_from_file(path: Path | str) -> GpuModel:
    """The one model of a file; raises ValueError if it holds several, and as `gpu_models_from_file`."""
    found = gpu_models_from_file(path)
    if len(found) != 1:
        raise ValueError(f"{path}: holds {len(found)} GPU models, and one is wanted")
    return found[0]


# What a file may say beside the numbers: where they come from, and how well they are known.
_NUMBERS = {"limits": 3, "idle": 1, "clocks": 3, "knee": 1, "slope": 1, "speed": 1, "break": 1}
_OPTIONAL = {"speed", "break"}
_LARGEST = 1e9  # no watt, megahertz or ratio of a GPU comes near
_REMARKS = {"product", "source", "fit"}


def _model_of(entry: dict[str, Any], where: str) -> GpuModel:
    product = entry.get("product")
    product = _label(product) if isinstance(product, str) else ""
    if not product:
        raise ValueError(f"{where}: a GPU model lacks `product`, the node label nvidia.com/gpu.product")
    unknown = sorted(str(key) for key in set(entry) - set(_NUMBERS) - _REMARKS)
    missing = sorted(set(_NUMBERS) - set(entry) - _OPTIONAL)
    if unknown or missing:
        needed, allowed = sorted(set(_NUMBERS) - _OPTIONAL), sorted(_OPTIONAL | _REMARKS - {"product"})
        raise ValueError(
            f"{where}: {product}: unknown keys {reprlib.repr(unknown)}, missing {missing}; a GPU model has product, "
            f"{', '.join(needed)}, and may have {', '.join(allowed)}"
        )
    for key, length in _NUMBERS.items():
        values = entry.get(key, 0) if length == 1 else entry[key]
        listed = [values] if length == 1 else values
        if (
            not isinstance(listed, list)
            or len(listed) != length
            or any(isinstance(value, bool) or not isinstance(value, int | float) for value in listed)
            or not all(abs(value) < _LARGEST for value in listed)  # nor NaN, nor infinite
        ):
            raise ValueError(
                f"{where}: {product}: `{key}` is {reprlib.repr(values)}, and must be {_wanted(key, length)}"
            )
    lowest, highest, spacing = (float(value) for value in entry["clocks"])
    if not (0 < lowest <= highest and spacing > 0):
        raise ValueError(
            f"{where}: {product}: `clocks` is {entry['clocks']}, and must be lowest <= highest, spacing > 0"
        )
    if highest - lowest >= MAX_CLOCKS * spacing:
        raise ValueError(
            f"{where}: {product}: `clocks` is {entry['clocks']}, which makes more than {MAX_CLOCKS} clocks; it must be "
            "[lowest, highest, spacing] in MHz"
        )
    minimum, maximum, default = (float(value) for value in entry["limits"])
    try:
        return GpuModel(
            product=product,
            min_power_limit_watts=minimum,
            max_power_limit_watts=maximum,
            default_power_limit_watts=default,
            idle_power_watts=float(entry["idle"]),
            clocks_megahertz=_spaced_clocks(lowest, highest, spacing),
            knee_megahertz=float(entry["knee"]),
            voltage_slope=float(entry["slope"]),
            relative_speed=float(entry.get("speed", default / 400.0)),
            break_megahertz=float(entry.get("break", 0.0)),
        )
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _wanted(key: str, length: int) -> str:
    if length == 1:
        return f"a number below {_LARGEST:.0e}"
    return "[min, max, default] in watts" if key == "limits" else "[lowest, highest, spacing] in MHz"


def gpu_model_for(product: str, models: Mapping[str, GpuModel] | None = None) -> GpuModel | None:
    """The model for the node label `nvidia.com/gpu.product` out of `models` (the catalogue), or None where it is unknown.

    GPU feature discovery writes the product's name with dashes for spaces and `-SHARED` where GPUs are time-sliced;
    a MIG slice (`-MIG-1g.5gb`) is not a whole GPU, and has no power limit of its own: None.
    """
    return (catalogue() if models is None else models).get(_label(product))


def _label(product: str) -> str:
    return product.strip().replace(" ", "-").removesuffix("-SHARED")
