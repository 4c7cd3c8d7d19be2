"""The fit of the iteration time: PowerFlow's throughput model from log errors, held to the prior by weak springs."""

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
from flyball_planner.models import MAX_OVERLAP, PARAMETER_NAMES, JobModel

NODE_OVER_LOCAL = 1.1  # synchronisation across nodes against inside one, where it was never seen
CLOCK_SPREAD = 0.02  # of the highest clock: less than this between the clocks seen is one clock

# The coordinates of the time fit. The per-sample gradient time at the highest clock and the share of it that follows the
# clock stand for b_g and k_g, because data at one clock fix the first and leave the second free.
_IO, _IO_SAMPLE, _GRADIENT, _SAMPLE, _SHARE, _LOCAL, _LOCAL_GPU, _NODE, _NODE_GPU, _IO_OVERLAP, _SYNC_OVERLAP = range(
    11
)
_NAMES = (
    "io_seconds",
    "io_seconds_per_sample",
    "gradient_seconds",
    "gradient_seconds_per_sample",
    "gradient_megacycles_per_sample",
    "local_sync_seconds",
    "local_sync_seconds_per_gpu",
    "node_sync_seconds",
    "node_sync_seconds_per_gpu",
    "io_overlap",
    "sync_overlap",
)


class TimeFit:
    """The fit of T_iter: coordinates, their scales and bounds, and which of them the data can move."""

    def __init__(self, prior: JobModel, windows: Windows) -> None:
        self._prior = prior
        self._windows = windows
        self._top = float(prior.gpu_model.max_clock_megahertz)
        per_sample = prior.gradient_seconds_per_sample + prior.gradient_megacycles_per_sample / self._top
        share = prior.gradient_megacycles_per_sample / self._top / per_sample if per_sample > 0 else 0.5
        start = np.array(
            [
                prior.io_seconds,
                prior.io_seconds_per_sample,
                prior.gradient_seconds,
                per_sample,
                share,
                prior.local_sync_seconds,
                prior.local_sync_seconds_per_gpu,
                prior.node_sync_seconds,
                prior.node_sync_seconds_per_gpu,
                prior.io_overlap,
                prior.sync_overlap,
            ]
        )
        # A job like its class, only faster or slower: scale what one GPU does before anything else is asked of the data.
        fewest = windows.gpus == windows.gpus.min()
        predicted, _ = windows.predict(self._parameters(start[None, :]), prior)
        pace = math.exp(float(np.median(np.log(windows.seconds[fewest] / predicted[0][fewest]))))
        start[[_IO, _IO_SAMPLE, _GRADIENT, _SAMPLE]] *= pace
        self._start = start
        self._free = self._free_coordinates()
        if len(np.unique(windows.local_batch)) == 1:
            gradient = start[_GRADIENT] + start[_SAMPLE] * windows.local_batch[0]
            start[_GRADIENT] = gradient / 2
            start[_SAMPLE] = gradient / 2 / windows.local_batch[0]
        typical = float(np.median(windows.seconds))
        batch = float(np.median(windows.local_batch))
        least = np.array([0.2, 0.2 / batch, 0.2, 0.2 / batch, 0.0, 0.1, 0.02, 0.1, 0.005, 0.0, 0.0]) * typical
        self._scale = np.maximum(start, least)
        self._scale[_SHARE], self._scale[_IO_OVERLAP], self._scale[_SYNC_OVERLAP] = 0.3, 3.0, 1.0

    def _free_coordinates(self) -> list[int]:
        windows = self._windows
        free = [_IO, _IO_SAMPLE, _SAMPLE, _IO_OVERLAP]
        if len(np.unique(windows.local_batch)) > 1:
            free.append(_GRADIENT)
        if np.ptp(windows.clock) > CLOCK_SPREAD * self._top:
            free.append(_SHARE)
        local = windows.gpus[(windows.nodes == 1) & (windows.gpus > 1)]
        across = windows.gpus[windows.nodes > 1]
        if len(local):
            free.append(_LOCAL)
        if len(np.unique(local)) > 1:
            free.append(_LOCAL_GPU)
        if len(across):
            free.append(_NODE)
        if len(np.unique(across)) > 1:
            free.append(_NODE_GPU)
        if len(local) or len(across):
            free.append(_SYNC_OVERLAP)
        return sorted(free)

    def solve(self) -> tuple[dict[str, float], dict[str, float]]:
        """The fitted parameters of the whole model, and the standard errors of those that the data moved."""
        free = np.array(self._free)
        low = np.zeros(len(self._start))
        low[[_IO_OVERLAP, _SYNC_OVERLAP]] = 1.0
        high = np.full(len(self._start), np.inf)
        high[[_IO_OVERLAP, _SYNC_OVERLAP]] = MAX_OVERLAP
        high[_SHARE] = 1.0
        inside = np.clip(self._start, low, high)
        solution = least_squares(
            lambda scaled: self._residuals(scaled[None, :])[0],
            inside[free] / self._scale[free],
            jac=lambda scaled: differences(self._residuals, scaled),
            bounds=(low[free] / self._scale[free], high[free] / self._scale[free]),
            loss="soft_l1",
            f_scale=ROBUST_SCALE,
            x_scale=1.0,
            max_nfev=60,
            xtol=1e-8,
            ftol=1e-8,
        )
        point = self._point(solution.x[None, :])[0]
        if not (self._windows.nodes > 1).any():
            point[_NODE] = max(point[_NODE], NODE_OVER_LOCAL * point[_LOCAL])
            point[_NODE_GPU] = max(point[_NODE_GPU], NODE_OVER_LOCAL * point[_LOCAL_GPU])
        column = self._parameters(point[None, :])[:, 0]
        spread = standard_errors(solution.jac, solution.fun) * self._scale[free]
        return dict(zip(PARAMETER_NAMES, column.tolist(), strict=True)), {
            _NAMES[coordinate]: float(error) for coordinate, error in zip(self._free, spread, strict=True)
        }

    def _point(self, scaled: Array) -> Array:
        """All coordinates, (copies, 11), from the free ones in units of their scale, (copies, free)."""
        points = np.repeat(self._start[None, :], len(scaled), axis=0)
        points[:, self._free] = scaled * self._scale[self._free]
        return points

    def _parameters(self, points: Array) -> Array:
        """PowerFlow's parameters, (parameters, copies), of coordinates (copies, 11)."""
        columns = np.repeat(parameter_column(self._prior)[:, None], len(points), axis=1)
        for coordinate, name in enumerate(_NAMES):
            columns[PARAMETER_NAMES.index(name)] = points[:, coordinate]
        follows = points[:, _SAMPLE] * points[:, _SHARE]
        columns[PARAMETER_NAMES.index("gradient_seconds_per_sample")] = points[:, _SAMPLE] - follows
        columns[PARAMETER_NAMES.index("gradient_megacycles_per_sample")] = follows * self._top
        return columns

    def _residuals(self, scaled: Array) -> Array:
        """Log errors and the springs' pulls, (copies, observations + free), at (copies, free)."""
        windows = self._windows
        seconds, _ = windows.predict(self._parameters(self._point(scaled)), self._prior)
        errors = np.log(seconds / windows.seconds) * np.sqrt(windows.weight)
        pulls = SPRING * (scaled - self._start[self._free] / self._scale[self._free])
        return np.concatenate([errors, pulls], axis=1)
