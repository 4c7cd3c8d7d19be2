"""The fit of the iteration energy, once the time is known: A, b and S of the physical parameterisation.

The voltage curve and the idle power are the GPU model's: at a few clocks they cannot be told from A and S.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import least_squares

from flyball_planner.fitting_windows import (
    ROBUST_SCALE,
    SPRING,
    Array,
    Windows,
    differences,
    parameter_column,
    standard_errors,
)
from flyball_planner.models import PARAMETER_NAMES, JobModel

BATCH_SPREAD = 1.5  # local batches closer together than this factor say nothing of how power follows the batch

_ROWS = {
    name: PARAMETER_NAMES.index(name)
    for name in ("gradient_watts_per_megahertz", "gradient_batch_offset", "sync_watts_per_megahertz")
}


class EnergyFit:
    """Coordinates: the gradient's W/MHz at the middle batch, the batch offset b, and the synchronisation's W/MHz.

    A*(ln(bs + th) + b) with b free would move every power when only its slope over the batch is meant; with the power at
    the middle batch as a coordinate the two are nearly independent.
    """

    def __init__(self, timed: JobModel, windows: Windows) -> None:
        self._timed = timed
        self._windows = windows
        middle = math.exp(float(np.mean(np.log(windows.local_batch))))
        self._middle = math.log(middle + timed.gradient_batch_shift)
        offset = timed.gradient_batch_offset
        self._start = np.array(
            [
                timed.gradient_watts_per_megahertz * max(self._middle + offset, 0.0),
                offset,
                timed.sync_watts_per_megahertz,
            ]
        )
        board = timed.gpu_model
        typical = board.default_power_limit_watts / board.max_clock_megahertz
        self._scale = np.array(
            [max(self._start[0], 0.1 * typical), max(offset, 1.0), max(self._start[2], 0.1 * typical)]
        )
        free = [0]
        if np.ptp(np.log(windows.local_batch)) > math.log(BATCH_SPREAD):
            free.append(1)
        if (windows.gpus > 1).any():
            free.append(2)
        self._free = np.array(free)

    def solve(self) -> tuple[dict[str, float], dict[str, float]]:
        """The whole model's parameters with the fitted ones in place, and the standard errors of the fitted ones."""
        free = self._free
        solution = least_squares(
            lambda scaled: self._residuals(scaled[None, :])[0],
            self._start[free] / self._scale[free],
            jac=lambda scaled: differences(self._residuals, scaled),
            bounds=(np.zeros(len(free)), np.full(len(free), np.inf)),
            loss="soft_l1",
            f_scale=ROBUST_SCALE,
            max_nfev=60,
            xtol=1e-8,
            ftol=1e-8,
        )
        column = self._parameters(solution.x[None, :])[:, 0]
        spread = standard_errors(solution.jac, solution.fun) * self._scale[free]
        names = list(_ROWS)
        errors = {names[coordinate]: float(error) for coordinate, error in zip(free, spread, strict=True)}
        errors["gradient_watts_per_megahertz"] /= max(self._middle + self._point(solution.x[None, :])[0, 1], 1e-9)
        return dict(zip(PARAMETER_NAMES, column.tolist(), strict=True)), errors

    def _point(self, scaled: Array) -> Array:
        points = np.repeat(self._start[None, :], len(scaled), axis=0)
        points[:, self._free] = scaled * self._scale[self._free]
        return points

    def _parameters(self, scaled: Array) -> Array:
        """PowerFlow's parameters, (parameters, copies), of free coordinates (copies, free)."""
        points = self._point(scaled)
        columns = np.repeat(parameter_column(self._timed)[:, None], len(points), axis=1)
        columns[_ROWS["gradient_watts_per_megahertz"]] = points[:, 0] / np.maximum(self._middle + points[:, 1], 1e-9)
        columns[_ROWS["gradient_batch_offset"]] = points[:, 1]
        columns[_ROWS["sync_watts_per_megahertz"]] = points[:, 2]
        return columns

    def _residuals(self, scaled: Array) -> Array:
        windows = self._windows
        _, joules = windows.predict(self._parameters(scaled), self._timed)
        errors = np.log(joules / windows.joules) * np.sqrt(windows.weight)
        pulls = SPRING * (scaled - self._start[self._free] / self._scale[self._free])
        return np.concatenate([errors, pulls], axis=1)
