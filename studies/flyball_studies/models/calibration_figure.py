"""A GPU model's calibration as a picture: measured and fitted power, and how well the knee is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no display is needed, nor looked for

import matplotlib.pyplot as plt
import numpy as np
from flyball_planner.models.calibration import AT_THE_LIMIT, Calibration
from flyball_planner.models.gpu import GpuModel
from flyball_planner.models.measurements import Series

from flyball_studies.picture_files import png


def calibration_png(series: Sequence[Series], board: GpuModel, result: Calibration) -> bytes:
    """A PNG: measured and fitted power by workload, the error at each point, and the error of the fit over the knee."""
    figure = plt.figure(figsize=(11, 5.2), layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=[1.7, 1])
    power, errors, profile = (figure.add_subplot(grid[where]) for where in (np.s_[:, 0], np.s_[0, 1], np.s_[1, 1]))
    colours = plt.get_cmap("tab10")
    top = board.max_clock_megahertz

    def predicted(name: str, clocks: Any) -> Any:
        voltage = 1 + result.slope.value * np.maximum(0, clocks - result.knee.value) / top
        return result.idle.value * voltage + result.activities[name] * voltage**2 * clocks

    shown = [each for each in series if each.name in result.activities]
    for index, each in enumerate(shown):
        colour = colours(index % 10)
        span = np.linspace(each.clocks_megahertz.min(), each.clocks_megahertz.max(), 200)
        used = each.watts < (AT_THE_LIMIT * board.max_power_limit_watts if result.limited_points else np.inf)
        power.scatter(each.clocks_megahertz[used], each.watts[used], s=14, color=colour, alpha=0.7, linewidths=0)
        power.scatter(
            each.clocks_megahertz[~used], each.watts[~used], s=14, facecolors="none", edgecolors=colour, lw=0.6
        )
        power.plot(span, predicted(each.name, span), color=colour, lw=1.3, label=each.name)
        off = 100 * (predicted(each.name, each.clocks_megahertz) / each.watts - 1)
        errors.plot(each.clocks_megahertz[used], off[used], ".", ms=4, color=colour)
    limit = board.max_power_limit_watts
    if result.limited_points:
        power.axhline(limit, color="#999999", lw=1, ls="--", label=f"power limit {limit:g} W")
    for axis in (power, errors):
        axis.axvspan(result.knee.low, result.knee.high, color="#fdd0a2", alpha=0.5, lw=0)
        axis.axvline(result.knee.value, color="#d94801", lw=1)
    hollow = "; hollow: left out" if result.limited_points else ""
    power.set_title(f"{board.product}: measured and fitted (orange: knee, 95 %{hollow})", fontsize=10)
    power.set_ylabel("watts of one GPU")
    power.set_xlabel("SM clock (MHz)")
    power.set_ylim(0)
    power.legend(fontsize=8, frameon=False, ncols=2 if len(shown) > 6 else 1)
    errors.axhline(0, color="black", lw=0.8)
    errors.set_title("fitted over measured (%)", fontsize=10)
    knees, squares = zip(*result.profile, strict=True)
    profile.axvspan(result.knee.low, result.knee.high, color="#fdd0a2", alpha=0.5, lw=0)
    profile.plot(knees, [100 * value for value in squares], color="#d94801", lw=1.4)
    profile.set_title("error of the best fit with this knee (% rms)", fontsize=10)
    profile.set_xlabel("knee (MHz)")
    profile.set_ylim(0)
    for axis in (power, errors, profile):
        axis.grid(alpha=0.3)
        axis.set_axisbelow(True)
    return png(figure, dpi=120)
