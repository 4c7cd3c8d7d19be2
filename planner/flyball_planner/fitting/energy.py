"""The fit of a job's energy for each iteration, in the physical model of a GPU's power or in the paper's.

Physical: A, b and S; the voltage curve and the idle power are the GPU model's, which at a few clocks cannot be told from
A and S. Paper: the shapes over the clock too, as far as the clocks that were seen tell them; f0 is the GPU model's.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from flyball_planner.fitting.time import CLOCK_SPREAD
from flyball_planner.fitting.windows import Array, Windows, parameter_column
from flyball_planner.models.job import PAPER_PARAMETER_NAMES, PARAMETER_NAMES, TIME_PARAMETER_NAMES, JobModel

PRIOR_POWER = 0.3  # a class's gradients draw what its prior says, give or take this share: GPUs are alike in this
BATCH_SPREAD = 1.5  # local batches closer together than this factor say nothing of how power follows the batch

_NAMES = PARAMETER_NAMES + PAPER_PARAMETER_NAMES
_ROW = {name: row for row, name in enumerate(_NAMES)}
_TIME_ROWS = [_ROW[name] for name in TIME_PARAMETER_NAMES]
_FLAT = 1e3  # be over al from which power does not follow the batch at all


class EnergyFit(ABC):
    """What both parameterisations share: the middle batch, and joules that are compared with the measured ones.

    A*(ln(bs + th) + b) with b free would move every power when only its slope over the batch is meant; with the power at
    the middle batch as a coordinate the two are nearly independent. `prior` is what the springs pull to.
    """

    start: Array
    scale: Array
    stiffness: Array
    low: Array
    high: Array
    free: NDArray[np.int64]

    def __init__(self, prior: JobModel, windows: Windows, batch_shift: float) -> None:
        self._windows = windows
        self._gpu_model = prior.gpu_model
        self._column = parameter_column(prior)
        middle = math.exp(float(np.mean(np.log(windows.local_batch))))
        self._middle = math.log(max(middle + batch_shift, 1.0 + 1e-9))

    @abstractmethod
    def coordinates(self, model: JobModel) -> Array:
        """A model's coordinates."""

    @abstractmethod
    def parameters(self, points: Array, timed: Array | None = None) -> Array:
        """PowerFlow's parameters, (parameters, copies), of coordinates (copies, coordinates).

        `timed`, (parameters, copies), gives other parameters of the time than those of the prior.
        """

    @property
    @abstractmethod
    def fitted_names(self) -> list[str]:
        """The parameters that the data can move."""

    @property
    def groups(self) -> tuple[int, ...]:
        """How many residuals share one noise."""
        return (len(self._windows.seconds),)

    def _columns(self, points: Array, timed: Array | None) -> Array:
        columns = np.repeat(self._column[:, None], len(points), axis=1)
        if timed is not None:
            columns[_TIME_ROWS] = timed[_TIME_ROWS]
        return columns

    def _batches_differ(self) -> bool:
        return bool(np.ptp(np.log(self._windows.local_batch)) > math.log(BATCH_SPREAD))

    def residuals(self, points: Array, timed: Array | None = None) -> Array:
        """Log errors times the square root of their weight, (copies, observations)."""
        return self.both_residuals(points, timed)[1]

    def both_residuals(self, points: Array, timed: Array | None = None) -> tuple[Array, Array]:
        """The same of the seconds, and of the joules, from one evaluation."""
        windows = self._windows
        seconds, joules = windows.predict(self.parameters(points, timed), self._gpu_model)
        of_seconds, of_joules = np.log(seconds / windows.seconds), np.log(joules / windows.joules)
        return of_seconds * windows.root_weight, of_joules * windows.root_weight


class PhysicalEnergyFit(EnergyFit):
    """Coordinates: the gradient's W/MHz at the middle batch, the batch offset b, and the synchronisation's W/MHz."""

    def __init__(self, prior: JobModel, windows: Windows) -> None:
        super().__init__(prior, windows, prior.gradient_batch_shift)
        self.start = self.coordinates(prior)
        gpu_model = prior.gpu_model
        typical = 0.1 * gpu_model.default_power_limit_watts / gpu_model.max_clock_megahertz
        self.scale = np.maximum(self.start * [PRIOR_POWER, 1.0, 1.0], [typical, 1.0, typical])
        self.stiffness = np.ones(3)
        self.low, self.high = np.zeros(3), np.full(3, np.inf)
        free = [0]
        if self._batches_differ():
            free.append(1)
        if (windows.gpus > 1).any():
            free.append(2)
        self.free = np.array(free)

    @property
    def fitted_names(self) -> list[str]:
        names = ("gradient_watts_per_megahertz", "gradient_batch_offset", "sync_watts_per_megahertz")
        return [names[coordinate] for coordinate in self.free]

    def coordinates(self, model: JobModel) -> Array:
        watts = model.gradient_watts_per_megahertz * max(self._middle + model.gradient_batch_offset, 0.0)
        return np.array([watts, model.gradient_batch_offset, model.sync_watts_per_megahertz])

    def parameters(self, points: Array, timed: Array | None = None) -> Array:
        columns = self._columns(points, timed)
        watts, offset, sync = points.T
        columns[_ROW["gradient_watts_per_megahertz"]] = watts / np.maximum(self._middle + offset, 1e-9)
        columns[_ROW["gradient_batch_offset"]] = offset
        columns[_ROW["sync_watts_per_megahertz"]] = sync
        return columns


# The paper's coordinates. Each share is of what the one before it leaves, so that bounds of 0 and 1 keep every shape
# rising: the line's value at clock 0 is a share of the one at f0, the square's of what the cube leaves of the rise.
_WATTS, _OFFSET, _BREAK, _ZERO, _CUBE, _SQUARE = range(6)
_SYNC, _SYNC_BREAK, _SYNC_ZERO, _SYNC_CUBE, _SYNC_SQUARE, _STATIC, _RISE = range(6, 13)
_SHAPES = {"gradient": (_BREAK, _ZERO, _CUBE, _SQUARE), "sync": (_SYNC_BREAK, _SYNC_ZERO, _SYNC_CUBE, _SYNC_SQUARE)}
_PAPER_NAMES = (
    "paper_gradient_watts",
    "paper_gradient_watts_per_log_sample",
    "paper_gradient_at_break",
    "paper_gradient_at_zero",
    "paper_gradient_cube",
    "paper_gradient_square",
    "paper_sync_watts",
    "paper_sync_at_break",
    "paper_sync_at_zero",
    "paper_sync_cube",
    "paper_sync_square",
    "paper_static_watts",
    "paper_static_rise",
)


class PaperEnergyFit(EnergyFit):
    """Coordinates: the gradient's watts at the middle batch and highest clock, be over al, its shape (four numbers), the
    synchronisation's watts and shape, and the static power and its rise. f0 and theta stay as they are.
    """

    def __init__(self, prior: JobModel, windows: Windows) -> None:
        if prior.paper is None:
            raise ValueError("a fit of the paper's power model starts from a model that has one")
        super().__init__(prior, windows, prior.paper.gradient_batch_shift)
        self.start = self.coordinates(prior)
        gpu_model = prior.gpu_model
        typical = 0.1 * gpu_model.default_power_limit_watts
        self.scale = np.full(len(self.start), 0.2)
        self.scale[[_WATTS, _SYNC]] = np.maximum(self.start[[_WATTS, _SYNC]] * [PRIOR_POWER, 1.0], typical)
        self.scale[_OFFSET] = max(self.start[_OFFSET], 1.0)
        self.scale[_STATIC] = max(0.2 * gpu_model.idle_power_watts, 1.0)
        self.stiffness = np.ones(len(self.start))
        self.low, self.high = np.zeros(len(self.start)), np.ones(len(self.start))
        self.high[[_WATTS, _OFFSET, _SYNC, _STATIC, _RISE]] = np.inf
        self.free = np.array(self._free_coordinates(prior.paper.break_megahertz))

    def _free_coordinates(self, break_megahertz: float) -> list[int]:
        windows = self._windows
        free = [_WATTS, *([_OFFSET] if self._batches_differ() else [])]
        shared = windows.gpus > 1
        free += self._free_of_shape("gradient", windows.clock, break_megahertz)
        if shared.any():
            free += [_SYNC, *self._free_of_shape("sync", windows.clock[shared], break_megahertz)]
        if len(np.unique(windows.clock)) >= 3:
            free += [_STATIC, *([_RISE] if (windows.clock > break_megahertz).any() else [])]
        return sorted(free)

    def _free_of_shape(self, part: str, clocks: Array, break_megahertz: float) -> list[int]:
        middle, zero, cube, square = _SHAPES[part]
        if np.ptp(clocks) <= CLOCK_SPREAD * self._gpu_model.max_clock_megahertz:
            return []
        free = [middle]
        if len(np.unique(clocks[clocks < break_megahertz])) >= 2:
            free.append(zero)
        if len(np.unique(clocks[clocks > break_megahertz])) >= 3:
            free += [cube, square]
        return free

    @property
    def fitted_names(self) -> list[str]:
        return [_PAPER_NAMES[coordinate] for coordinate in self.free]

    def coordinates(self, model: JobModel) -> Array:
        paper = model.as_paper().paper
        assert paper is not None  # noqa: S101 - as_paper has just made it
        point = np.zeros(13)
        slope = paper.gradient_watts_per_log_sample
        point[_WATTS] = paper.gradient_watts + slope * self._middle
        point[_OFFSET] = min(paper.gradient_watts / slope if slope > 0 else _FLAT, _FLAT)
        point[_SYNC], point[_STATIC], point[_RISE] = paper.sync_watts, paper.static_watts, paper.static_rise
        for part, (middle, zero, cube, square) in _SHAPES.items():
            at_break, rest = getattr(paper, f"{part}_at_break"), 1.0 - getattr(paper, f"{part}_cube")
            point[middle], point[cube] = at_break, 1.0 - rest
            point[zero] = getattr(paper, f"{part}_at_zero") / at_break if at_break > 0 else 0.0
            point[square] = min(getattr(paper, f"{part}_square") / rest, 1.0) if rest > 0 else 0.0
        return point

    def parameters(self, points: Array, timed: Array | None = None) -> Array:
        columns = self._columns(points, timed)
        slope = points[:, _WATTS] / (self._middle + points[:, _OFFSET])
        columns[_ROW["paper_gradient_watts_per_log_sample"]] = slope
        columns[_ROW["paper_gradient_watts"]] = slope * points[:, _OFFSET]
        for part, (middle, zero, cube, square) in _SHAPES.items():
            columns[_ROW[f"paper_{part}_at_break"]] = points[:, middle]
            columns[_ROW[f"paper_{part}_at_zero"]] = points[:, middle] * points[:, zero]
            columns[_ROW[f"paper_{part}_cube"]] = points[:, cube]
            columns[_ROW[f"paper_{part}_square"]] = (1.0 - points[:, cube]) * points[:, square]
        columns[_ROW["paper_sync_watts"]] = points[:, _SYNC]
        columns[_ROW["paper_static_watts"]] = points[:, _STATIC]
        columns[_ROW["paper_static_rise"]] = points[:, _RISE]
        return columns
