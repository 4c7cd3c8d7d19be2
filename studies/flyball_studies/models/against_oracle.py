"""Sections of the model study against the simulator's truth, which has another form than the models that are fitted."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flyball_planner.fitting.fit import FittedModel, Observation, fit
from flyball_planner.fitting.uncertainty import upper_quantiles
from flyball_planner.models.job import JobModel, Parameterisation
from flyball_planner.models.priors import model_class_prior
from flyball_simulator.measured.noise import noise_factor
from flyball_simulator.measured.oracle import Oracle
from flyball_simulator.measured.throughputs import model_class

from flyball_studies.models.measured import markdown, percent, reference_gpu
from flyball_studies.picture_files import saved, without_display

CLOCKS = (705, 855, 1005, 1155, 1290, 1410)
GPUS_PER_NODE = 8
NOISE = 0.03
SEEDS = 10
# PowerFlow's table 2: throughput, energy. The oracle has ResNet-50 where the paper has ResNet-18.
PAPER = {
    "resnet50": (0.061, 0.069),
    "vgg16": (0.038, 0.060),
    "inception3": (0.026, 0.045),
    "gpt2": (0.021, 0.068),
    "deepspeech2": (0.045, 0.035),
    "bert": None,
}


@dataclass(frozen=True, slots=True)
class Measured:
    """One configuration: what a window of it showed, and what is true."""

    window: Observation
    seconds: float
    joules: float


def grid(name: str, seed: int, max_gpus: int = 64, noise: float = NOISE) -> list[Measured]:
    """Every size, measured batch and clock of a class, with the noise of one seed."""
    oracle = Oracle(reference_gpu(), CLOCKS, GPUS_PER_NODE)
    found = []
    for batch in model_class(name).batch_sizes:
        table = oracle.performance(name, batch, max_gpus)
        for row, gpus in enumerate(table.sizes):
            for column, clock in enumerate(CLOCKS):
                seconds, joules = float(table.seconds[row, column]), float(table.joules[row, column])
                key = f"{name}/{batch}/{gpus}/{clock}/{seed}"
                window = Observation(
                    gpus,
                    -(-gpus // GPUS_PER_NODE),
                    batch / gpus,
                    clock,
                    seconds * noise_factor(f"{key}/seconds", noise),
                    joules * noise_factor(f"{key}/joules", noise),
                )
                found.append(Measured(window, seconds, joules))
    return found


def shuffled(points: list[Measured], seed: int) -> list[Measured]:
    """In a random order, the same for the same seed."""
    return [points[index] for index in np.random.default_rng(seed).permutation(len(points))]


def _predicted(model: JobModel, point: Measured) -> tuple[float, float]:
    window = point.window
    where = (window.gpus, window.nodes, window.clock_megahertz, window.local_batch_size * window.gpus)
    return model.iteration_seconds(*where), model.iteration_joules(*where)


def errors_of(model: JobModel, points: list[Measured], *, of_windows: bool) -> tuple[float, float]:
    """Mean errors of throughput and energy, against what the windows showed or against the truth."""
    found = []
    for point in points:
        seconds, joules = _predicted(model, point)
        true_seconds = point.window.iteration_seconds if of_windows else point.seconds
        true_joules = (point.window.iteration_joules or 0.0) if of_windows else point.joules
        found.append((abs(true_seconds / seconds - 1), abs(joules / true_joules - 1)))
    mean = np.mean(found, axis=0)
    return float(mean[0]), float(mean[1])


def table_2(data: Path, images: Path) -> str:
    """PowerFlow's section 6.3: 90 % of the configurations fitted, the errors at the other 10 %, ten seeds."""
    del data, images
    rows = []
    for name, paper in PAPER.items():
        row = [name, "" if paper is None else f"{percent(paper[0])}, {percent(paper[1])}"]
        for max_gpus in (8, 64):
            for parameterisation in Parameterisation:
                of_windows, of_truth = [], []
                for seed in range(SEEDS):
                    points = shuffled(grid(name, seed, max_gpus), seed)
                    split = round(0.9 * len(points))
                    windows = [point.window for point in points[:split]]
                    prior = model_class_prior("", reference_gpu())
                    model = fit(prior, windows, parameterisation=parameterisation).model
                    of_windows.append(errors_of(model, points[split:], of_windows=True))
                    of_truth.append(errors_of(model, points[split:], of_windows=False))
                time_error, energy_error = np.mean(of_windows, axis=0)
                true_time, true_energy = np.mean(of_truth, axis=0)
                row.append(
                    f"{percent(time_error)}, {percent(energy_error)} ({percent(true_time)}, {percent(true_energy)})"
                )
        rows.append(row)
    header = ["class", "the paper (V100)"]
    header += [f"{kind}, 1 to {gpus} GPUs" for gpus in (8, 64) for kind in ("physical", "paper's form")]
    return markdown(header, rows)


def observations(data: Path, images: Path) -> str:
    """Errors over the whole grid of a class after so many random windows of it, from two priors."""
    del data
    counts = (0, 1, 2, 4, 8, 16, 32, 64)
    curves: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for label, own in (("the class's prior", True), ("the generic prior", False)):
        for parameterisation in Parameterisation:
            found = []
            for count in counts:
                errors = []
                for name in PAPER:
                    prior = model_class_prior(name if own else "", reference_gpu())
                    for seed in range(5):
                        points = shuffled(grid(name, seed), seed)
                        windows = [point.window for point in points[:count]]
                        model = fit(prior, windows, parameterisation=parameterisation).model
                        errors.append(errors_of(model, points, of_windows=False))
                mean = np.mean(errors, axis=0)
                found.append((float(mean[0]), float(mean[1])))
            curves[label, parameterisation.value] = found
    _draw_observations(counts, curves, images / "models-observations.png")
    rows = [
        [str(count)] + [f"{percent(found[index][0])}, {percent(found[index][1])}" for found in curves.values()]
        for index, count in enumerate(counts)
    ]
    return markdown(["windows", *(f"{label}, {kind}" for label, kind in curves)], rows)


def _draw_observations(
    counts: tuple[int, ...], curves: dict[tuple[str, str], list[tuple[float, float]]], path: Path
) -> None:
    import matplotlib.pyplot as plt

    without_display()

    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained", sharey=True)
    places = list(range(len(counts)))
    styles: dict[str, dict[str, Any]] = {
        "the class's prior": {"color": "#08519c"},
        "the generic prior": {"color": "#d94801"},
    }
    for axis, part, title in ((axes[0], 0, "throughput"), (axes[1], 1, "energy")):
        for (label, kind), found in curves.items():
            line = "-" if kind == "physical" else "--"
            values = [100 * each[part] for each in found]
            axis.plot(places, values, line, marker="o", ms=4, lw=1.4, label=f"{label}, {kind}", **styles[label])
        axis.set_xticks(places, [str(count) for count in counts])
        axis.set_xlabel("windows observed (random size, batch, clock)")
        axis.set_title(f"{title}: mean error over all sizes, batches and clocks", fontsize=10)
        axis.grid(alpha=0.3)
        axis.set_axisbelow(True)
    axes[0].set_ylabel("mean error (%)")
    axes[0].set_ylim(0)
    axes[0].legend(fontsize=8, frameon=False)
    saved(figure, path, dpi=110)


def quantiles(data: Path, images: Path) -> str:
    """How often the truth lies below the upper quantiles of a fit to 24 windows, over the whole grid of each class."""
    del data, images
    rows = []
    for name in PAPER:
        hits = []
        for seed in range(SEEDS):
            points = shuffled(grid(name, seed), seed)
            windows = [point.window for point in points[:24]]
            fitted = fit(model_class_prior(name, reference_gpu()), windows)
            hits.append([_covered(fitted, points, probability) for probability in (0.5, 0.9, 0.99)])
        seconds, joules = np.moveaxis(np.mean(hits, axis=0), 1, 0)
        rows.append([name, *(percent(value) for value in seconds), *(percent(value) for value in joules)])
    header = [f"{part}, {share}" for part in ("seconds", "joules") for share in ("50 %", "90 %", "99 %")]
    return markdown(["class", *header], rows)


def _covered(fitted: FittedModel, points: list[Measured], probability: float) -> tuple[float, float]:
    windows = [point.window for point in points]
    upper = upper_quantiles(
        fitted.model,
        fitted.covariance,
        np.array([window.gpus for window in windows]),
        np.array([window.nodes for window in windows]),
        np.array([window.local_batch_size * window.gpus for window in windows]),
        CLOCKS,
        probability=probability,
    )
    columns = [CLOCKS.index(int(window.clock_megahertz)) for window in windows]
    rows = range(len(windows))
    return (
        float(np.mean(upper.seconds[rows, columns] >= [point.seconds for point in points])),
        float(np.mean(upper.joules[rows, columns] >= [point.joules for point in points])),
    )


@dataclass(frozen=True, slots=True)
class Beyond:
    """Of configurations beyond those that were fitted: the share whose truth lies in the band, and in the mean how far the
    prediction is off, as a share, and the factor between its middle and either end."""

    seconds_inside: float
    joules_inside: float
    error: float
    factor: float


def beyond(name: str, prior: JobModel, seeds: int, probability: float) -> Beyond:
    """Jobs of each batch of a class, measured on 1 to 8 GPUs at all clocks: what is said of them on 16 to 64.

    The band is between the two quantiles that leave out as much on either side.
    """
    found: list[tuple[float, ...]] = []
    for seed in range(seeds):
        points = grid(name, seed)
        for batch in model_class(name).batch_sizes:
            of_job = [point for point in points if round(point.window.local_batch_size * point.window.gpus) == batch]
            near = [point.window for point in of_job if point.window.gpus <= GPUS_PER_NODE]
            far = [point for point in of_job if point.window.gpus > GPUS_PER_NODE]
            if near and far:
                found += _beside_band(fit(prior, near), far, probability)
    return Beyond(*np.mean(found, axis=0).tolist())


def _beside_band(fitted: FittedModel, points: list[Measured], probability: float) -> list[tuple[float, ...]]:
    """For each point: seconds inside, joules inside, error of the seconds, and the factor from their middle to an end."""
    sizes = sorted({point.window.gpus for point in points})
    nodes = [-(-gpus // GPUS_PER_NODE) for gpus in sizes]
    batch = points[0].window.local_batch_size * points[0].window.gpus
    least, middle, most = (
        upper_quantiles(
            fitted.model,
            fitted.covariance,
            np.array(sizes),
            np.array(nodes),
            np.full(len(sizes), batch),
            CLOCKS,
            probability=share,
        )
        for share in (0.5 - probability / 2, 0.5, 0.5 + probability / 2)
    )
    found: list[tuple[float, ...]] = []
    for point in points:
        at = sizes.index(point.window.gpus), CLOCKS.index(int(point.window.clock_megahertz))
        found.append(
            (
                float(least.seconds[at] <= point.seconds <= most.seconds[at]),
                float(least.joules[at] <= point.joules <= most.joules[at]),
                float(abs(point.seconds / middle.seconds[at] - 1.0)),
                float((most.seconds[at] / least.seconds[at]) ** 0.5),
            )
        )
    return found


def extrapolation(data: Path, images: Path) -> str:
    """How often the truth on 16 to 64 GPUs is in the band of a job that was measured on 1 to 8, by two priors."""
    del data, images
    rows = []
    for name in PAPER:
        cells = [name]
        for prior in (name, ""):
            far = beyond(name, model_class_prior(prior, reference_gpu()), seeds=3, probability=0.9)
            cells += [percent(each) for each in (far.seconds_inside, far.joules_inside, far.error)] + [
                f"{far.factor:.1f}"
            ]
        rows.append(cells)
    parts = ("seconds in the band", "joules in the band", "seconds are off by", "their band is times or divided by")
    return markdown(["class", *(f"{kind}: {part}" for kind in ("own prior", "generic") for part in parts)], rows)


def refits(data: Path, images: Path) -> str:
    """CPU time and errors of fits to 40 windows, from scratch and from the fit to the first 30 of them."""
    del data, images
    rows = []
    for parameterisation in Parameterisation:
        spent = {"from scratch": 0.0, "from the last fit": 0.0}
        errors: dict[str, list[tuple[float, float]]] = {kind: [] for kind in spent}
        count = 0
        for name in PAPER:
            prior = model_class_prior("", reference_gpu())
            for seed in range(5):
                points = shuffled(grid(name, seed), seed)
                windows = [point.window for point in points[:40]]
                last = fit(prior, windows[:30], parameterisation=parameterisation)
                count += 1
                for kind, start in (("from scratch", None), ("from the last fit", last)):
                    before = time.process_time()
                    fitted = fit(prior, windows, parameterisation=parameterisation, last=start)
                    spent[kind] += time.process_time() - before
                    errors[kind].append(errors_of(fitted.model, points, of_windows=False))
        for kind, seconds in spent.items():
            time_error, energy_error = np.mean(errors[kind], axis=0)
            rows.append(
                [
                    f"{parameterisation.value}, {kind}",
                    f"{1000 * seconds / count:.0f} ms",
                    percent(time_error),
                    percent(energy_error),
                ]
            )
    return markdown(["fit to 40 windows", "CPU time", "throughput error", "energy error"], rows)
