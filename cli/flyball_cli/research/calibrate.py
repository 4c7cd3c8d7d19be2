"""`flyball calibrate`: a GPU model for the planner from measurements of power over the clocks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flyball_cli.terminal.endings import refuse
from flyball_cli.terminal.files import check_output_file, check_picture

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flyball_planner.models.calibration import Calibration
    from flyball_planner.models.gpu import GpuModel
    from flyball_planner.models.measurements import Series

LARGE_MEAN_ERROR = 0.2  # a fit that is good errs by a few per cent


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

    \b
      clock_megahertz,workload,power_watts
      1410,bert,61.3
      1125,bert,44.8
      210,idle,16.9

    How to measure: lock a clock (nvidia-smi --lock-gpu-clocks=1125), run the workload for some seconds, note its mean
    power, and go on with the next, from the highest to about half of it, 50 MHz apart or closer, with two workloads or
    more. Points at the power limit are left out, because there the GPU does not hold the clock.

    The knee is often weakly identified: knees far apart then fit nearly alike. The 95 % interval is printed and written;
    the plot shows the error over the knee.

    \b
      flyball calibrate sweep.csv --product NVIDIA-L4 --limits 40,72,72 \\
        --output l4.yaml --plot l4.png
      flyball operator run --gpu-model l4.yaml
    """
    from flyball_planner.models.calibration import calibrate as fitted
    from flyball_planner.models.gpu import gpu_model_for
    from flyball_planner.models.measurements import read_measurements

    known = gpu_model_for(product) if product else None
    try:
        # Before the fit, which takes seconds: a folder that cannot be made is said at once.
        for path in (output, plot):
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        refuse(str(error))
    check_output_file("--output", output)
    check_picture("--plot", plot)
    try:
        series = read_measurements(measurements.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        refuse(f"{measurements}: {error}")
    try:
        board = _board(product or measurements.stem, known, limits, clocks, speed, series)
        if idle_watts is not None:
            _check_idle(board, idle_watts)
        result = fitted(
            series, board.max_clock_megahertz, board.max_power_limit_watts, idle_watts, progress=_progress_to_terminal()
        )
        document = _document(board, result, measurements.name)
        output.write_text(document, encoding="utf-8")
    except (ValueError, OSError) as error:
        refuse(str(error))
    typer.echo(summary(result, board))
    typer.echo(f"wrote {output}")
    if not product:
        typer.echo(
            f"it is called {board.product!r} after the CSV: the operator finds a GPU's model by the node's label "
            "nvidia.com/gpu.product, which --product gives it"
        )
    if plot is not None:
        from flyball_studies.models.calibration_figure import calibration_png

        plot.write_bytes(calibration_png(series, board, result))
        typer.echo(f"wrote {plot}")


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
    from flyball_planner.models.gpu import GpuModel

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


def _check_idle(board: GpuModel, idle_watts: float) -> None:
    """Raises ValueError for an idle power that no reader of the file would take."""
    try:
        replace(board, idle_power_watts=idle_watts)
    except ValueError as error:
        raise ValueError(f"--idle-watts: {error}") from error


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
        lines.append(f"{result.limited_points} points at the power limit were left out: the GPU lowers its clock there")
    if result.passed(board.max_power_limit_watts):
        lines.append(
            f"up to {result.most_watts:.0f} W were drawn, and the largest limit is {board.max_power_limit_watts:g} W: the "
            "measured GPU had another one, and all points were used"
        )
    misfit = result.mean_error > LARGE_MEAN_ERROR
    if misfit:
        lines.append(
            f"warning: the fit misses the points by {result.mean_error:.1%} in the mean, and a good one by a few per cent: "
            "do not plan with it before the CSV's units, --limits and --idle-watts are right"
        )
    if result.knee_is_weak:
        lines.append(
            "the knee is weakly identified: knees within the interval fit about as well. More clocks on both sides of it, "
            "an idle sweep, or --idle-watts would narrow it"
            + ("" if misfit else "; predictions between the measured clocks are good all the same")
        )
    return "\n".join(lines)
