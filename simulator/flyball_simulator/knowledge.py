"""What policies know of a job: never the truth itself, unless that is what is studied.

`fitted`: the prior of the job's model class, then a model fitted to what was measured in this run. Jobs of one model class
and batch size are runs of one program: what was learnt of one serves the next (as the operator keeps it in an
EnergyProfile), and what is measured of the program at one number of GPUs carries the same noise every time. So each kind is
measured once at each size, by the job that has it first, which pays for it; or each job, as PowerFlow has it, where
`measure_every_job` says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from flyball_planner.fitting.fit import FittedModel, Observation, fit
from flyball_planner.models.gpu import GpuModel
from flyball_planner.models.job import JobModel
from flyball_planner.models.priors import model_class_prior
from flyball_planner.policies.view import Performance

from flyball_simulator.measured.noise import noise_factor
from flyball_simulator.settings import Knowledge

MEASURED_CLOCKS = 6  # of the clocks that a measurement runs through, as many windows as the fit is given
Sizes = frozenset[int]


class Predictor:
    """Tells what is known of a kind of job after it has been measured at some sizes.

    `needs_model`: whether the tables have to have a model behind them; what is fitted always has.
    `clock`: the position of the only clock that is ever seen; None: measurements run through all of them.
    """

    def __init__(
        self,
        knowledge: Knowledge,
        gpu: GpuModel,
        clocks_megahertz: tuple[int, ...],
        gpus_per_node: int,
        *,
        seed: int,
        noise: float,
        model_error: float,
        prior_error: float,
        clock: int | None,
        needs_model: bool,
    ) -> None:
        self._knowledge = knowledge
        self._gpu = gpu
        self._clocks = clocks_megahertz
        self._gpus_per_node = gpus_per_node
        self._seed = seed
        self._noise = noise
        self._model_error = model_error
        self._prior_error = prior_error
        self._clock = clock
        self._needs_model = needs_model
        self._predicted: dict[tuple[str, int, Sizes], Performance] = {}

    @property
    def learns(self) -> bool:
        """Whether measuring a job changes what is predicted of it."""
        return self._knowledge is Knowledge.FITTED

    def predict(self, model_class: str, global_batch_size: int, truth: Performance, measured: Sizes) -> Performance:
        """The tables of a kind of job that was measured at these sizes."""
        if self._knowledge is Knowledge.IDEAL:
            return self._modelled(model_class, global_batch_size, truth)
        key = (model_class, global_batch_size, measured if self.learns else frozenset())
        found = self._predicted.get(key)
        if found is None:
            found = (
                self._fitted(model_class, global_batch_size, truth, measured)
                if self.learns
                else self._disturbed(model_class, global_batch_size, truth)
            )
            self._predicted[key] = found
        return found

    def _disturbed(self, model_class: str, batch: int, truth: Performance) -> Performance:
        """The truth with an error of the kind, and another one of each size, in time and in power."""

        def factor(what: str) -> float:
            return noise_factor(f"{self._seed}/{what}/{model_class}/{batch}", self._model_error / math.sqrt(2.0))

        pace = np.array([[factor("time") * factor(f"time/{gpus}")] for gpus in truth.sizes])
        draw = np.array([[factor("power") * factor(f"power/{gpus}")] for gpus in truth.sizes])
        disturbed = Performance(truth.sizes, truth.seconds * pace, truth.joules * pace * draw)
        return self._modelled(model_class, batch, disturbed)

    def _modelled(self, model_class: str, batch: int, table: Performance) -> Performance:
        """For a policy that works on models: the tables of the model that comes nearest to these."""
        if not self._needs_model:
            return table
        key = (model_class, batch, frozenset(table.sizes))
        if key not in self._predicted:
            windows = tuple(tuple(self._exact(table, batch, row)) for row in range(len(table.sizes)))
            self._predicted[key] = self._tables(_fit(self._prior(model_class), windows).model, batch, table.sizes)
        return self._predicted[key]

    def _tables(self, model: JobModel, batch: int, sizes: tuple[int, ...]) -> Performance:
        nodes = np.array([self._nodes(gpus) for gpus in sizes], dtype=np.float64)
        clocks = np.array(self._clocks, dtype=np.float64)
        curves = model.curves(np.array(sizes, dtype=np.float64), nodes, float(batch), clocks)
        return Performance(sizes, curves.seconds, curves.joules, model, batch)

    def _exact(self, table: Performance, batch: int, row: int) -> list[Observation]:
        gpus = table.sizes[row]
        return [
            Observation(
                gpus=gpus,
                nodes=self._nodes(gpus),
                local_batch_size=batch / gpus,
                clock_megahertz=float(self._clocks[clock]),
                iteration_seconds=table.seconds_rows[row][clock],
                iteration_joules=table.joules_rows[row][clock],
            )
            for clock in _spread(len(self._clocks))
        ]

    def _fitted(self, model_class: str, batch: int, truth: Performance, measured: Sizes) -> Performance:
        prior = self._prior(model_class)
        windows = tuple(tuple(self._windows(model_class, batch, truth, gpus)) for gpus in sorted(measured))
        model = _fit(prior, windows).model if windows else prior
        return self._tables(model, batch, truth.sizes)

    def _prior(self, model_class: str) -> JobModel:
        prior = model_class_prior(model_class, self._gpu)
        if not self._prior_error:
            return prior
        pace = noise_factor(f"{self._seed}/prior time/{model_class}", self._prior_error)
        draw = noise_factor(f"{self._seed}/prior power/{model_class}", self._prior_error)
        parameters = prior.parameters()
        for name in parameters:
            if "overlap" not in name and ("seconds" in name or "megacycles" in name):
                parameters[name] *= pace
            elif "watts" in name:
                parameters[name] *= draw
        return JobModel.from_parameters(self._gpu, parameters)

    def _windows(self, model_class: str, batch: int, truth: Performance, gpus: int) -> list[Observation]:
        row = truth.position[gpus]
        seen = _spread(len(self._clocks)) if self._clock is None else [self._clock]
        windows = []
        for clock in seen:
            key = f"{self._seed}/{model_class}/{batch}/{gpus}/{clock}"
            seconds = truth.seconds_rows[row][clock] * noise_factor(f"{key}/time", self._noise)
            watts = truth.watts_rows[row][clock] * noise_factor(f"{key}/power", self._noise)
            windows.append(
                Observation(
                    gpus=gpus,
                    nodes=self._nodes(gpus),
                    local_batch_size=batch / gpus,
                    clock_megahertz=float(self._clocks[clock]),
                    iteration_seconds=seconds,
                    iteration_joules=seconds * watts,
                )
            )
        return windows

    def _nodes(self, gpus: int) -> int:
        return -(-gpus // self._gpus_per_node)


def _spread(clocks: int) -> list[int]:
    """Positions from the lowest clock to the highest, evenly."""
    return sorted({round((clocks - 1) * step / (MEASURED_CLOCKS - 1)) for step in range(MEASURED_CLOCKS)})


@lru_cache(maxsize=20_000)
def _fit(prior: JobModel, windows: tuple[tuple[Observation, ...], ...]) -> FittedModel:
    """The fit to what was measured at some sizes, from the fit without the largest of them on.

    Kept: the runs of a sweep over one seed measure the same. That it starts from the smaller sizes, not from what was
    measured before, makes it a function of what was measured alone.
    """
    last = _fit(prior, windows[:-1]) if len(windows) > 1 else None
    return fit(prior, [window for of_size in windows for window in of_size], last=last)


def decision_clocks(gpu: GpuModel, spacing_megahertz: int = 30, lowest_fraction: float = 0.4) -> tuple[int, ...]:
    """The clocks that are worth deciding between, ascending: below two fifths of the highest no board saves energy."""
    top = gpu.max_clock_megahertz
    chosen: list[int] = []
    for clock in reversed(gpu.clocks_megahertz):
        if clock < lowest_fraction * top:
            break
        if not chosen or chosen[-1] - clock >= spacing_megahertz:
            chosen.append(clock)
    return tuple(reversed(chosen))


def nearest_clock(clocks: Sequence[int], wanted_megahertz: int | None) -> int:
    """The position of the clock nearest to the wanted one; of the highest where none is wanted.

    Raises ValueError for one outside their range: a run at another clock than it is labelled with would mislead.
    """
    if wanted_megahertz is None:
        return len(clocks) - 1
    if not clocks[0] <= wanted_megahertz <= clocks[-1]:
        raise ValueError(f"clock {wanted_megahertz} MHz is outside {clocks[0]} to {clocks[-1]} MHz, which jobs run at")
    return min(range(len(clocks)), key=lambda index: (abs(clocks[index] - wanted_megahertz), index))
