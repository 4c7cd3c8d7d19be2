"""What was observed of a job's iterations, as columns that the fits work on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flyball_planner.models.gpu import GpuModel
from flyball_planner.models.job import JobModel, evaluate_seconds, evaluate_seconds_and_joules, parameter_matrix

Array = NDArray[np.float64]

WARM_UP_WINDOWS = 2  # caches, allocators and boost clocks settle in a job's first windows
SETTLED_MEGAHERTZ = 30.0  # two windows whose clocks are further apart than this have a change of clocks between them


@dataclass(frozen=True, slots=True)
class Observation:
    """One measured window of a job: mean seconds and joules (all GPUs; None: not measured) of an iteration.

    `local_batch_size` is samples per GPU, `clock_megahertz` the mean SM clock, `weight` how many plain windows it stands
    for. Raises ValueError for figures that no window can have.
    """

    gpus: int
    nodes: int
    local_batch_size: float
    clock_megahertz: float
    iteration_seconds: float
    iteration_joules: float | None = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= self.gpus:
            raise ValueError(f"observation: {self.gpus} GPUs on {self.nodes} nodes; there must be 1 <= nodes <= gpus")
        for name in ("local_batch_size", "clock_megahertz", "iteration_seconds", "weight"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"observation: {name} is {value}, and must be finite and above 0")
        if self.iteration_joules is not None and not (
            math.isfinite(self.iteration_joules) and self.iteration_joules > 0
        ):
            raise ValueError(
                f"observation: iteration_joules is {self.iteration_joules}, and must be finite and above 0"
            )


@dataclass(frozen=True)
class Windows:
    """Observations as columns, one entry each; joules are NaN where they were not measured."""

    gpus: Array
    nodes: Array
    local_batch: Array
    clock: Array
    seconds: Array
    joules: Array
    weight: Array

    @classmethod
    def of(cls, observations: Sequence[Observation]) -> Windows:
        """In one order, whatever order they came in: sums of floats must not depend on it."""
        rows = sorted(
            (
                item.gpus,
                item.nodes,
                item.local_batch_size,
                item.clock_megahertz,
                item.iteration_seconds,
                math.inf if item.iteration_joules is None else item.iteration_joules,
                item.weight,
            )
            for item in observations
        )
        columns = np.array(rows, dtype=np.float64).T
        columns[5][np.isinf(columns[5])] = math.nan
        return cls(*columns)

    def with_energy(self) -> Windows:
        """Those whose joules were measured."""
        measured = ~np.isnan(self.joules)
        return Windows(*(getattr(self, column.name)[measured] for column in fields(self)))

    def predict(self, parameters: Array, gpu_model: GpuModel) -> tuple[Array, Array]:
        """Seconds and joules, (copies, observations), under each of several parameter sets, (parameters, copies)."""
        matrix, gpus, nodes, batch, clock = self._grid(parameters)
        return evaluate_seconds_and_joules(matrix, gpu_model, gpus, nodes, batch, clock)

    def predict_seconds(self, parameters: Array) -> Array:
        """The seconds alone, which cost half as much."""
        return evaluate_seconds(*self._grid(parameters))

    def _grid(self, parameters: Array) -> tuple[Array, Array, Array, Array, Array]:
        """Copies are the rows of an evaluation, and observations its columns."""
        return (parameters[:, :, None], *self._columns)

    @cached_property
    def _columns(self) -> tuple[Array, Array, Array, Array]:
        gpus, nodes, clock = self.gpus[None, :], self.nodes[None, :], self.clock[None, :]
        return gpus, nodes, gpus * self.local_batch, clock

    @cached_property
    def root_weight(self) -> Array:
        """By which a residual counts as so many plain windows."""
        return np.sqrt(self.weight)


def parameter_column(model: JobModel) -> Array:
    """A model's parameters as a vector, in the order of `parameter_matrix`."""
    return np.asarray(parameter_matrix([model])[:, 0, 0])


def without_warm_up(windows: Sequence[Observation]) -> list[Observation]:
    """The windows of one job, in the order of their time, that measure what the job does at their settings.

    A run is a stretch at one size, spread and batch. Its first WARM_UP_WINDOWS windows are dropped, and so is every later
    one whose clock is more than SETTLED_MEGAHERTZ from that of the window before: part of it ran at the other clock.
    """
    kept: list[Observation] = []
    run: tuple[float, ...] | None = None
    seen, clock = 0, 0.0
    for window in windows:
        settings = (window.gpus, window.nodes, window.local_batch_size)
        if settings != run:
            run, seen = settings, 0
        seen += 1
        if seen > WARM_UP_WINDOWS and abs(window.clock_megahertz - clock) <= SETTLED_MEGAHERTZ:
            kept.append(window)
        clock = window.clock_megahertz
    return kept
