"""What was observed of a job's iterations, as columns that the fits work on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from flyball_planner.models import PARAMETER_NAMES, JobModel, evaluate

Array = NDArray[np.float64]

ROBUST_SCALE = 0.1  # log error from which an observation counts as disturbed
SPRING = 0.02  # log error that moving a coordinate by its own scale is worth, for one observation of weight 1
DIFFERENCE_STEP = 1e-6  # of a coordinate's scale, for the Jacobian


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


@dataclass(frozen=True, slots=True)
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

    def predict(self, parameters: Array, model: JobModel) -> tuple[Array, Array]:
        """Seconds and joules, (copies, observations), under each of several parameter sets, (parameters, copies)."""
        copies = parameters.shape[1]
        curves = evaluate(
            np.repeat(parameters, len(self.seconds), axis=1)[:, :, None],
            model.gpu_model,
            np.tile(self.gpus, copies)[:, None],
            np.tile(self.nodes, copies)[:, None],
            np.tile(self.gpus * self.local_batch, copies)[:, None],
            np.tile(self.clock, copies)[:, None],
        )
        return curves.seconds.reshape(copies, -1), curves.joules.reshape(copies, -1)


def parameter_column(model: JobModel) -> Array:
    """A model's parameters as a vector, in the order of PARAMETER_NAMES."""
    return np.array([getattr(model, name) for name in PARAMETER_NAMES], dtype=np.float64)


def differences(residuals: Callable[[Array], Array], point: Array) -> Array:
    """The Jacobian of stacked residuals, (copies, residuals) for (copies, coordinates), in one evaluation of all steps."""
    steps = np.vstack([np.zeros(len(point)), np.eye(len(point)) * DIFFERENCE_STEP])
    found = residuals(point[None, :] + steps)
    return np.asarray(((found[1:] - found[0]) / DIFFERENCE_STEP).T)


def standard_errors(jacobian: Array, residuals: Array) -> Array:
    """Square roots of the diagonal of the covariance, from the Gauss-Newton Hessian (the springs keep it regular)."""
    freedom = max(1, len(residuals) - jacobian.shape[1])
    variance = float(residuals @ residuals) / freedom
    return np.asarray(np.sqrt(np.maximum(np.diag(np.linalg.pinv(jacobian.T @ jacobian)), 0.0) * variance))
