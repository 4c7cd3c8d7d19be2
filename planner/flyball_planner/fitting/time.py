"""The fit of the iteration time: PowerFlow's throughput model from log errors, held to the prior by weak springs."""

from __future__ import annotations

import math

import numpy as np

from flyball_planner.fitting.windows import Array, Windows, parameter_column
from flyball_planner.models.job import MAX_OVERLAP, PARAMETER_NAMES, JobModel

# Synchronisation across nodes against inside one, at least, where no nodes were spanned and the prior says no less.
NODE_OVER_LOCAL = 1.1
# A prior that meets what was seen to within BELIEVED_ERROR (log error, rms, at the worst size) holds its coordinates the
# more firmly the nearer it is: few windows, each with a few per cent of noise, should not bend what it says of other sizes.
BELIEVED_ERROR = 0.15
STIFFEST = 5.0
LEAST_SHARE = 0.05
SPLIT_BY_CLOCKS = 0.3  # of its scale elsewhere, for the constant gradient time where only clocks tell it from the rest
CLOCK_SPREAD = 0.02  # of the highest clock: less than this between the clocks seen is one clock

# The coordinates of the time fit. A time at the highest clock and the share of it that follows the clock stand for the
# paper's two constants, because data at one clock fix the first and leave the second free.
_COORDINATES = (
    "io_seconds",
    "io_seconds_per_sample",
    "gradient_seconds",
    "gradient_seconds_per_sample",
    "gradient_megacycles_per_sample",
    "local_sync_seconds",
    "local_sync_seconds_per_gpu",
    "local_sync_megacycles",
    "node_sync_seconds",
    "node_sync_seconds_per_gpu",
    "node_sync_megacycles",
    "io_overlap",
    "sync_overlap",
)
(
    _IO,
    _IO_SAMPLE,
    _GRADIENT,
    _SAMPLE,
    _SHARE,
    _LOCAL,
    _LOCAL_GPU,
    _LOCAL_SHARE,
    _NODE,
    _NODE_GPU,
    _NODE_SHARE,
    _IO_OVERLAP,
    _SYNC_OVERLAP,
) = range(len(_COORDINATES))
_SHARES = [_SHARE, _LOCAL_SHARE, _NODE_SHARE]
_OVERLAPS = [_IO_OVERLAP, _SYNC_OVERLAP]
_ROW = {name: PARAMETER_NAMES.index(name) for name in PARAMETER_NAMES}
_ROWS = [_ROW[name] for name in _COORDINATES]
# What is split into seconds and megacycles: the row of the whole, which becomes the seconds', the cycles' row, the share.
_SPLIT = {
    "gradient_seconds_per_sample": ("gradient_megacycles_per_sample", _SHARE),
    "local_sync_seconds": ("local_sync_megacycles", _LOCAL_SHARE),
    "local_sync_seconds_per_gpu": ("local_sync_megacycles_per_gpu", _LOCAL_SHARE),
    "node_sync_seconds": ("node_sync_megacycles", _NODE_SHARE),
    "node_sync_seconds_per_gpu": ("node_sync_megacycles_per_gpu", _NODE_SHARE),
}
_SPLIT_ROWS = [_ROW[name] for name in _SPLIT]
_SPLIT_CYCLES = [_ROW[name] for name, _ in _SPLIT.values()]
_SPLIT_SHARES = [share for _, share in _SPLIT.values()]


class TimeFit:
    """The fit of T_iter: coordinates, their scales and bounds, and which of them the data can move."""

    def __init__(self, prior: JobModel, windows: Windows) -> None:
        self._column = parameter_column(prior)[:, None]
        self._windows = windows
        self._top = float(prior.gpu_model.max_clock_megahertz)
        self._across = bool((windows.nodes > 1).any())
        # The slope is the prior's where it has one: measured jobs lose less by each GPU across nodes than inside one.
        no_slope = prior.node_sync_seconds_per_gpu == 0 and prior.node_sync_megacycles_per_gpu == 0
        start = self.coordinates(prior)
        has_both = start[_LOCAL] > 0 and max(start[_NODE], start[_NODE_GPU]) > 0
        over_local = min(start[_NODE] / start[_LOCAL], NODE_OVER_LOCAL) if has_both else NODE_OVER_LOCAL
        self._unknown_nodes = [
            (_NODE, _LOCAL, over_local),
            *([(_NODE_GPU, _LOCAL_GPU, NODE_OVER_LOCAL)] if no_slope else []),
        ]
        # A job like its class, only faster or slower: scale what one GPU does before anything else is asked of the data.
        fewest = windows.gpus == windows.gpus.min()
        predicted = windows.predict_seconds(self.parameters(start[None, :]))
        errors = np.log(windows.seconds / predicted[0])
        pace = math.exp(float(np.median(errors[fewest])))
        start[[_IO, _IO_SAMPLE, _GRADIENT, _SAMPLE]] *= pace
        one_batch = len(np.unique(windows.local_batch)) == 1
        if one_batch and not (start[_GRADIENT] > 0 and start[_SAMPLE] > 0):
            gradient = start[_GRADIENT] + start[_SAMPLE] * windows.local_batch[0]
            start[_GRADIENT] = gradient / 2
            start[_SAMPLE] = gradient / 2 / windows.local_batch[0]
        self.start = start
        self.free = np.array(self._free_coordinates())
        typical = float(np.median(windows.seconds))
        batch = float(np.median(windows.local_batch))
        least = np.zeros(len(start))
        least[[_IO, _GRADIENT]], least[[_IO_SAMPLE, _SAMPLE]] = 0.2 * typical, 0.2 * typical / batch
        least[[_LOCAL, _NODE]], least[_LOCAL_GPU], least[_NODE_GPU] = 0.1 * typical, 0.02 * typical, 0.005 * typical
        if (
            one_batch and start[_IO] + start[_IO_SAMPLE] > 0
        ):  # the split of the input's time is the prior's word as well
            share = start[_IO] / (start[_IO] + start[_IO_SAMPLE] * batch)
            least[_IO] *= max(share, LEAST_SHARE)
        self.scale = np.maximum(start, least)
        if one_batch:  # what clocks say of the split, the share that follows them says as well
            self.scale[_GRADIENT] *= SPLIT_BY_CLOCKS
        self.scale[_SHARES] = 0.3
        self.scale[_IO_OVERLAP], self.scale[_SYNC_OVERLAP] = 3.0, 1.0
        self.stiffness = np.full(len(start), self._stiffness(errors - math.log(pace)))
        self.low, self.high = np.zeros(len(start)), np.full(len(start), np.inf)
        self.low[_OVERLAPS], self.high[_OVERLAPS] = 1.0, MAX_OVERLAP
        self.high[_SHARES] = 1.0

    def _stiffness(self, errors: Array) -> float:
        """How firmly the prior holds: up to STIFFEST where it is right about every size seen, the less the more of them.

        1 where it is wrong about one. One size says nothing of how an iteration's parts grow; several do.
        """
        windows = self._windows
        worst = 0.0
        sizes = np.unique(windows.gpus)
        for size in sizes:
            seen = windows.gpus == size
            worst = max(worst, math.sqrt(float(np.average(errors[seen] ** 2, weights=windows.weight[seen]))))
        return max(min(BELIEVED_ERROR / max(worst, 1e-9), STIFFEST) / math.sqrt(len(sizes)), 1.0)

    def _free_coordinates(self) -> list[int]:
        windows = self._windows
        free = [_IO, _IO_SAMPLE, _SAMPLE, _IO_OVERLAP]
        clocks = np.ptp(windows.clock) > CLOCK_SPREAD * self._top
        if clocks:
            free.append(_SHARE)
        if clocks or len(np.unique(windows.local_batch)) > 1:  # the constant part does not follow the clock either
            free.append(_GRADIENT)
        local = (windows.nodes == 1) & (windows.gpus > 1)
        across = windows.nodes > 1
        for seen, constant, slope, share in (
            (local, _LOCAL, _LOCAL_GPU, _LOCAL_SHARE),
            (across, _NODE, _NODE_GPU, _NODE_SHARE),
        ):
            if seen.any():
                free.append(constant)
                if len(np.unique(windows.gpus[seen])) > 1:
                    free.append(slope)
                if np.ptp(windows.clock[seen]) > CLOCK_SPREAD * self._top:
                    free.append(share)
        if local.any() or across.any():
            free.append(_SYNC_OVERLAP)
        return sorted(free)

    @property
    def fitted_names(self) -> list[str]:
        """The parameters that the data can move."""
        return [_COORDINATES[coordinate] for coordinate in self.free]

    @property
    def groups(self) -> tuple[int, ...]:
        """How many residuals share one noise."""
        return (len(self._windows.seconds),)

    def computing(self, point: Array) -> Array:
        """The same iteration with next to no input: gradients are what takes its time."""
        other = point.copy()
        other[[_IO, _IO_SAMPLE]] *= 0.2
        other[_SAMPLE] *= 1.5
        return other

    def coordinates(self, model: JobModel) -> Array:
        """A model's coordinates, (13,)."""
        point = np.array([getattr(model, name) for name in _COORDINATES], dtype=np.float64)
        for seconds, cycles in ((_SAMPLE, _SHARE), (_LOCAL, _LOCAL_SHARE), (_NODE, _NODE_SHARE)):
            follows = point[cycles] / self._top
            whole = point[seconds] + follows
            point[seconds], point[cycles] = whole, follows / whole if whole > 0 else 0.0
        point[_LOCAL_GPU] += model.local_sync_megacycles_per_gpu / self._top
        point[_NODE_GPU] += model.node_sync_megacycles_per_gpu / self._top
        return point

    def parameters(self, points: Array) -> Array:
        """PowerFlow's parameters, (parameters, copies), of coordinates (copies, 13)."""
        columns = np.repeat(self._column, len(points), axis=1)
        columns[_ROWS] = points.T
        if not self._across:
            for node, local, over_local in self._unknown_nodes:
                columns[_ROW[_COORDINATES[node]]] = np.maximum(points[:, node], over_local * points[:, local])
        whole, share = columns[_SPLIT_ROWS], points.T[_SPLIT_SHARES]
        columns[_SPLIT_CYCLES] = whole * share * self._top
        columns[_SPLIT_ROWS] = whole * (1.0 - share)
        return columns

    def residuals(self, points: Array) -> Array:
        """Log errors times the square root of their weight, (copies, observations)."""
        windows = self._windows
        seconds = windows.predict_seconds(self.parameters(points))
        return np.asarray(np.log(seconds / windows.seconds) * windows.root_weight)
