"""Sections of the model study against public measurements: ElasticFlow's tables, Perseus' profiles, Zeus' power tables."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from flyball_planner.fitting.fit import Observation, fit
from flyball_planner.models.calibration import calibrate
from flyball_planner.models.gpu import GpuModel, gpu_model_for
from flyball_planner.models.job import Parameterisation
from flyball_planner.models.measurements import read_measurements
from flyball_planner.models.priors import model_class_prior
from numpy.typing import NDArray

Array = NDArray[np.float64]

GPUS = (1, 2, 4, 8, 16, 32, 64)
TABLES = ("bert", "deepspeech2", "gpt2", "inception3", "resnet50", "resnet50_cifar10", "vgg16")
REFERENCE_GPU = "NVIDIA-A100-SXM4-40GB"
TOP = 1410


def reference_gpu() -> GpuModel:
    found = gpu_model_for(REFERENCE_GPU)
    if found is None:
        raise LookupError(f"the catalogue lacks {REFERENCE_GPU}")
    return found


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|---" + "|--:" * (len(header) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def throughputs(data: Path, name: str) -> list[Observation]:
    """One ElasticFlow table as observations at the highest clock; zeros and blanks were not measured."""
    found = []
    with (data / "elasticflow" / f"{name}.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            batch = int(row["global_batch_size"])
            for gpus in GPUS:
                rate = float(row[str(gpus)] or 0)
                if rate > 0:
                    found.append(Observation(gpus, max(1, gpus // 8), batch / gpus, TOP, 1 / rate))
    return found


def leave_one_out(data: Path, images: Path) -> str:
    """Each point predicted by the fit to all the others, from the generic prior."""
    del images
    prior = model_class_prior("", reference_gpu())
    rows = []
    for name in TABLES:
        windows = throughputs(data, name)
        errors = []
        for index, left_out in enumerate(windows):
            model = fit(prior, windows[:index] + windows[index + 1 :]).model
            batch = left_out.local_batch_size * left_out.gpus
            seconds = model.iteration_seconds(left_out.gpus, left_out.nodes, TOP, batch)
            errors.append(abs(seconds / left_out.iteration_seconds - 1))
        worst = windows[int(np.argmax(errors))]
        rows.append(
            [
                name,
                str(len(windows)),
                percent(float(np.mean(errors))),
                f"{percent(max(errors))} ({worst.gpus} GPUs, batch {worst.local_batch_size * worst.gpus:.0f})",
                percent(fit(prior, windows).errors.time_mape),
            ]
        )
    return markdown(["table", "points", "leave-one-out", "worst point", "fit to all"], rows)


def stage_profiles(data: Path, images: Path) -> str:
    """Perseus' GPT-3 stages over the clocks: each parameterisation fitted to every other clock, tested on the rest."""
    del images
    rows = []
    for file, product, limit in (("a100_sxm", REFERENCE_GPU, 500.0), ("a40", "NVIDIA-A40", 300.0)):
        path = data / "perseus-sosp24" / "stage_profile" / f"gpt3-175b+{file}_bf16.csv"
        text = path.read_text(encoding="utf-8")
        catalogued = gpu_model_for(product)
        if catalogued is None:
            raise LookupError(f"the catalogue lacks {product}")
        board = replace(catalogued, max_power_limit_watts=limit, default_power_limit_watts=limit)
        found = calibrate(read_measurements(text), board.max_clock_megahertz, board.max_power_limit_watts)
        fitted = replace(
            board,
            idle_power_watts=found.idle.value,
            knee_megahertz=found.knee.value,
            voltage_slope=found.slope.value,
        )
        for source, gpu in (("catalogue", board), ("calibrated", fitted)):
            for parameterisation in Parameterisation:
                time_error, energy_error = _held_out(text, gpu, parameterisation)
                rows.append([product, source, parameterisation.value, percent(time_error), percent(energy_error)])
    return markdown(["GPU", "its constants", "parameterisation", "time", "energy"], rows)


def _held_out(text: str, gpu: GpuModel, parameterisation: Parameterisation) -> tuple[float, float]:
    """Mean errors at the clocks that were not fitted, below the power limit, over the four computations measured."""
    series: dict[tuple[str, str], list[Observation]] = defaultdict(list)
    for row in csv.DictReader(text.splitlines()):
        if row["stage"] in ("0", "7"):
            seconds, joules = float(row["time"]), float(row["energy"])
            if joules / seconds < 0.95 * gpu.max_power_limit_watts:
                window = Observation(1, 1, 1, float(row["frequency"]), seconds, joules)
                series[row["stage"], row["instruction"]].append(window)
    times, energies = [], []
    for windows in series.values():
        windows.sort(key=lambda window: window.clock_megahertz)
        model = fit(model_class_prior("gpt2", gpu), windows[::2], parameterisation=parameterisation).model
        for window in windows[1::2]:
            curves = model.curves(1, 1, 1, [int(window.clock_megahertz)])
            times.append(abs(float(curves.seconds[0, 0]) / window.iteration_seconds - 1))
            energies.append(abs(float(curves.joules[0, 0]) / (window.iteration_joules or math.nan) - 1))
    return float(np.mean(times)), float(np.mean(energies))


def batch_law(data: Path, images: Path) -> str:
    """Zeus' V100 and P100 at their largest power limit: power against the batch, by al*ln(bs + th) + be."""
    del images
    rows = []
    for gpu, limit in (("v100", 250), ("p100", 250)):
        points: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        with (data / "zeus-nsdi23" / f"summary_power_{gpu}.csv").open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if float(row["power_limit"]) == limit:
                    points[row["network"]][int(row["batch_size"])].append(float(row["average_power"]))
        for network, by_batch in sorted(points.items()):
            if len(by_batch) < 4:
                continue
            batches = np.array(sorted(by_batch), dtype=np.float64)
            watts = np.array([np.mean(by_batch[int(batch)]) for batch in batches])
            fitted, held_out = _log_law_errors(batches, watts)
            rows.append(
                [
                    f"{gpu.upper()}, {network}",
                    f"{batches[0]:.0f} to {batches[-1]:.0f}",
                    f"{watts.min():.0f} to {watts.max():.0f}",
                    percent(fitted),
                    percent(held_out),
                ]
            )
    return markdown(["GPU, network", "batch", "watts", "fitted", "leave-one-out"], rows)


def _log_law_errors(batches: Array, watts: Array) -> tuple[float, float]:
    """Mean errors of al*ln(bs + 1) + be, by relative least squares: to all points, and leaving each out."""

    def line(keep: NDArray[np.bool_]) -> Array:
        design = np.stack([np.log(batches + 1), np.ones(len(batches))], axis=1)
        solution = np.linalg.lstsq(design[keep] / watts[keep, None], np.ones(int(keep.sum())), rcond=None)[0]
        return np.asarray(design @ solution)

    everything = np.ones(len(batches), dtype=bool)
    fitted = float(np.mean(np.abs(line(everything) / watts - 1)))
    left_out = []
    for index in range(len(batches)):
        keep = everything.copy()
        keep[index] = False
        left_out.append(abs(line(keep)[index] / watts[index] - 1))
    return fitted, float(np.mean(left_out))
