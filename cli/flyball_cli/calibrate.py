"""`flyball calibrate`: a GPU model for the planner from measurements of power over the clocks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flyball_planner.gpu_models import GpuModel
    from flyball_planner.gpu_models_calibration import Calibration
    from flyball_planner.gpu_models_measurements import Series


def register(root: typer.Typer) -> None:
    root.command("calibrate")(calibrate)


def calibrate(
    measurements: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="CSV, as described above.")],
    output: Annotated[Path, typer.Option(help="Where the YAML goes.")],
    product: Annotated[
        str, typer.Option(help="The GPU's product name, as the node label nvidia.com/gpu.product has it.")
    ] = "",
    plot: Annotated[Path | None, typer.Option(help="Draw the fit against the points into this PNG.")] = None,
    idle_watts: Annotated[
        float | None, typer.Option(min=0.1, help="Power of the idle GPU at a low clock, if it is known.")
    ] = None,
    limits: Annotated[
        str | None, typer.Option(help="Power limits MIN,MAX,DEFAULT in watts; else those of the known product.")
    ] = None,
    clocks: Annotated[
        str | None,
        typer.Option(help="SM clocks LOWEST,HIGHEST,SPACING in MHz; else the known product's, else the CSV's."),
    ] = None,
    speed: Annotated[
        float | None, typer.Option(min=0.001, help="Training speed against an A100-SXM4-40GB; else a guess by watts.")
    ] = None,
) -> None:
    """Fit a GPU model (idle power, knee, voltage slope) to measured power over the clocks, and write it for the planner.

    One row of the CSV is one workload at one locked SM clock: the clock in MHz (column clock_megahertz, clock or
    frequency) and what was drawn, either power_watts (power) or seconds and joules (time, energy) of an iteration.
    Optional: gpus (power and joules are then of all of them), and model, workload, batch, stage, instruction, which tell
    workloads apart. A workload called idle is the idle GPU at that clock: it pins the idle power down.

        clock_megahertz,workload,power_watts
        1410,bert,395.2
        1125,bert,262.0
        210,idle,57.9

    How to measure: lock a clock (nvidia-smi --lock-gpu-clocks=1125), run the workload for some seconds, note its mean
    power, and go on with the next, from the highest to about half of it, 50 MHz apart or closer, with two workloads or
    more. Points at the power limit are left out, because there the board does not hold the clock.

    The knee is often weakly identified: knees far apart then fit nearly alike. The 95 % interval is printed and written;
    the plot shows the error over the knee.

        flyball calibrate sweep.csv --product NVIDIA-L40S --limits 100,350,350 --output l40s.yaml --plot l40s.png
        flyball operator run --gpu-model l40s.yaml
    """
    from flyball_planner.gpu_models import gpu_model_for
    from flyball_planner.gpu_models_calibration import calibrate as fitted
    from flyball_planner.gpu_models_measurements import read_measurements

    known = gpu_model_for(product) if product else None
    try:
        series = read_measurements(measurements.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        _refuse(f"{measurements}: {error}")
    try:
        board = _board(product or measurements.stem, known, limits, clocks, speed, series)
        result = fitted(
            series, board.max_clock_megahertz, board.max_power_limit_watts, idle_watts, progress=_progress_to_terminal()
        )
        document = _document(board, result, measurements.name)
        output.write_text(document, encoding="utf-8")
    except (ValueError, OSError) as error:
        _refuse(str(error))
    typer.echo(summary(result, board))
    typer.echo(f"wrote {output}")
    if not product:
        typer.echo(
            f"it is called {board.product!r} after the CSV: the operator finds a GPU's model by the node's label "
            "nvidia.com/gpu.product, which --product gives it"
        )
    if plot is not None:
        plot.write_bytes(drawn(series, board, result))
        typer.echo(f"wrote {plot}")


def _refuse(message: str) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(2)


def _progress_to_terminal() -> Any:
    """A line that is overwritten, where somebody looks."""
    import sys

    if not sys.stderr.isatty():
        return None

    def show(done: int, of: int) -> None:
        end = "\n" if done == of else ""
        sys.stderr.write(f"\rknee {done} of {of}{end}")
        sys.stderr.flush()

    return show


def _three(text: str, option: str, wanted: str) -> tuple[float, float, float]:
    try:
        first, second, third = (float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{option} {text!r}: wanted three numbers, {wanted}") from None
    return first, second, third


def _board(
    product: str,
    known: GpuModel | None,
    limits: str | None,
    clocks: str | None,
    speed: float | None,
    series: Sequence[Series],
) -> GpuModel:
    """What is known of the board before the fit: limits, clocks and speed, by option, catalogue, or the CSV."""
    from flyball_planner.gpu_models import GpuModel

    if limits is not None:
        minimum, maximum, default = _three(limits, "--limits", "MIN,MAX,DEFAULT in watts")
    elif known is not None:
        minimum, maximum = known.min_power_limit_watts, known.max_power_limit_watts
        default = known.default_power_limit_watts
    else:
        raise ValueError(
            f"the power limits of {product!r} are not in the catalogue: give --limits MIN,MAX,DEFAULT "
            "(nvidia-smi -q -d POWER shows them), or a --product that is known"
        )
    if clocks is not None:
        lowest, highest, spacing = _three(clocks, "--clocks", "LOWEST,HIGHEST,SPACING in MHz")
        if not (0 < lowest <= highest and spacing > 0):
            raise ValueError(f"--clocks {clocks!r}: wanted 0 < LOWEST <= HIGHEST and SPACING above 0")
        steps = int((highest - lowest) / spacing + 1e-9)
        supported = tuple(sorted({int(highest - step * spacing) for step in range(steps + 1)}))
    elif known is not None:
        supported = known.clocks_megahertz
    else:
        supported = tuple(sorted({int(clock) for each in series for clock in each.clocks_megahertz}))
    return GpuModel(
        product=product,
        min_power_limit_watts=minimum,
        max_power_limit_watts=maximum,
        default_power_limit_watts=default,
        idle_power_watts=0.0,
        clocks_megahertz=supported,
        knee_megahertz=float(supported[-1]),
        voltage_slope=0.0,
        relative_speed=speed or (known.relative_speed if known else default / 400.0),
    )


def _document(board: GpuModel, result: Calibration, measured: str) -> str:
    """The YAML: the catalogue's keys, and how well each fitted number is known."""
    from itertools import pairwise

    clocks = board.clocks_megahertz
    spacing = float(min((high - low for low, high in pairwise(clocks)), default=1))
    mean = (clocks[-1] - clocks[0]) / max(len(clocks) - 1, 1)
    if 0 < mean - spacing < 1:
        spacing = mean  # 7.5 MHz apart, say, and reported in whole ones
    source = "given" if result.idle_was_given else f"fitted to {measured}"
    return (
        f"# A GPU model, by flyball calibrate from {measured}. The planner reads it (docs/models.md).\n"
        f"product: {board.product}\n"
        f"limits: [{board.min_power_limit_watts:g}, {board.max_power_limit_watts:g}, "
        f"{board.default_power_limit_watts:g}]  # watts: min, max, default\n"
        f"idle: {result.idle.value:.1f}  # watts at low clocks\n"
        f"clocks: [{clocks[0]}, {clocks[-1]}, {spacing:g}]  # MHz: lowest, highest, spacing\n"
        f"knee: {result.knee.value:.0f}  # MHz from which the voltage rises\n"
        f"slope: {result.slope.value:.3f}  # V(f) = 1 + slope * max(0, f - knee) / highest clock\n"
        f"speed: {board.relative_speed:g}  # training speed against an A100-SXM4-40GB\n"
        "source:\n"
        f"  idle: {source}\n"
        f"  knee: fitted to {measured}\n"
        f"  slope: fitted to {measured}\n"
        "fit:\n"
        f"  points: {result.used_points}\n"
        f"  points_at_the_power_limit: {result.limited_points}\n"
        f"  mean_error_percent: {100 * result.mean_error:.2f}\n"
        f"  idle_interval: [{result.idle.low:.1f}, {result.idle.high:.1f}]  # 95 %\n"
        f"  knee_interval: [{result.knee.low:.0f}, {result.knee.high:.0f}]\n"
        f"  slope_interval: [{result.slope.low:.3f}, {result.slope.high:.3f}]\n"
        f"  knee_is_weakly_identified: {str(result.knee_is_weak).lower()}\n"
    )


def summary(result: Calibration, board: GpuModel) -> str:
    """What was found, how well it is known, and what to do where it is not."""
    lines = [
        f"{result.used_points} points of {len(result.activities)} workloads, fitted to {result.mean_error:.1%} mean error",
        f"idle   {result.idle.value:7.1f} W    95 % interval {result.idle.low:.1f} to {result.idle.high:.1f}"
        + (" (given)" if result.idle_was_given else ""),
        f"knee   {result.knee.value:7.0f} MHz  95 % interval {result.knee.low:.0f} to {result.knee.high:.0f}",
        f"slope  {result.slope.value:7.3f}      95 % interval {result.slope.low:.3f} to {result.slope.high:.3f}",
    ]
    if result.limited_points:
        lines.append(
            f"{result.limited_points} points at the power limit were left out: the board lowers its clock there"
        )
    if result.passed(board.max_power_limit_watts):
        lines.append(
            f"up to {result.most_watts:.0f} W were drawn, and the largest limit is {board.max_power_limit_watts:g} W: the "
            "measured board had another one, and all points were used"
        )
    if result.knee_is_weak:
        lines.append(
            "the knee is weakly identified: knees within the interval fit about as well. More clocks on both sides of it, "
            "an idle sweep, or --idle-watts would narrow it; predictions between the measured clocks are good all the same"
        )
    return "\n".join(lines)


def drawn(series: Sequence[Series], board: GpuModel, result: Calibration) -> bytes:
    """A PNG: measured and fitted power by workload, the error at each point, and the error of the fit over the knee."""
    import io

    import matplotlib

    matplotlib.use("Agg")  # no display is needed, nor looked for
    import matplotlib.pyplot as plt
    import numpy as np
    from flyball_planner.gpu_models_calibration import AT_THE_LIMIT

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
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=120, format="png")
    plt.close(figure)
    return buffer.getvalue()
