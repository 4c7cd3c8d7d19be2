"""Draws one run of a cap with a meter: what is drawn and read, what limits are allowed, and which state the loop is in.

    python -m benchmarks.metered_cap --output docs/images

The loop is the operator's own (flyball_operator/power/caps/meter.py); GPUs, load and meter are simulated
(tests/support/metered_plant.py). Nothing is random but the meter's noise, whose seed is fixed.
"""

from __future__ import annotations

import argparse
from itertools import groupby
from pathlib import Path

from flyball_api.power_cap import CapMeter
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tests.support.metered_plant import Plant, Sample

SECONDS = 1500
CAP_WATTS, LOWER_WATTS = 1000.0, 800.0
METER = CapMeter(file="row")
COLOURS = {"Within": "#ffffff", "Shaping": "#fff3c4", "Cut": "#f9d0cb", "Silent": "#d9d9d9"}
HAPPENS = [
    (60, "jobs\nstart"),
    (200, "150 W that\nnobody told"),
    (500, "they are\ngone"),
    (760, "the meter\ndies"),
    (900, "it is\nback"),
    (1150, "the cap\nfalls"),
    (1300, "and is\nback"),
]


def run() -> list[Sample]:
    plant = Plant(
        METER,
        cap=lambda at: LOWER_WATTS if 1150 <= at < 1300 else CAP_WATTS,
        wanted=lambda at: 400.0 if at < 60 else 980.0,
        hidden=lambda at: 150.0 if 200 <= at < 500 else 0.0,
        meter_fault=lambda at, watts: None if 760 <= at < 900 else watts,
        noise_share=0.005,
        lag_seconds=4.0,
    )
    return plant.run(SECONDS)


def draw(samples: list[Sample], path: Path) -> None:
    """The picture of a run, as PNG."""
    figure = Figure(figsize=(11, 5), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    seconds = [item.seconds for item in samples]
    for phase, run_of in groupby(samples, key=lambda item: str(item.phase)):
        items = list(run_of)
        axes.axvspan(items[0].seconds, items[-1].seconds + 1, color=COLOURS[phase], lw=0)
    axes.step(seconds, [item.cap for item in samples], "k-", lw=1.6, label="cap")
    axes.step(seconds, [item.cap * METER.target_permille / 1000 for item in samples], "k--", lw=0.8, label="target")
    axes.step(seconds, [item.cap * METER.release_permille / 1000 for item in samples], "k:", lw=0.8, label="release")
    axes.step(seconds, [item.limits for item in samples], color="#1f77b4", lw=1.6, label="committed (limits)")
    axes.plot(seconds, [item.drawn for item in samples], color="#d62728", lw=1.0, label="drawn, whoever draws it")
    read = [(item.seconds, item.read) for item in samples if item.read is not None and not 760 <= item.seconds < 900]
    axes.plot(*zip(*read, strict=True), ".", ms=1.5, color="#7f3f98", label="read")
    for at, text in HAPPENS:
        axes.annotate(text, (at, 1185), fontsize=8, ha="left", va="top")
        axes.axvline(at, color="#888888", lw=0.5)
    handles, labels = axes.get_legend_handles_labels()
    for phase, colour in COLOURS.items():
        if phase != "Within":
            handles.append(axes.axvspan(0, 0, color=colour))
            labels.append(f"state {phase}")
    axes.legend(handles, labels, loc="lower right", fontsize=8, ncols=3)
    axes.set(xlim=(0, SECONDS), ylim=(250, 1200), xlabel="seconds", ylabel="watts")
    figure.savefig(path)


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    arguments.add_argument("--output", type=Path, required=True, help="The folder for metered-cap.png.")
    folder = arguments.parse_args().output
    samples = run()
    draw(samples, folder / "metered-cap.png")
    over = [item for item in samples if item.drawn > item.cap and item.seconds > 60]
    print(f"above the cap: {len(over)} of {SECONDS} s, {sum(item.drawn - item.cap for item in over):.0f} J")
    for phase, items in groupby(samples, key=lambda item: str(item.phase)):
        first = next(items)
        print(f"{first.seconds:6.0f} s  {phase:8} allowed {first.allowed:6.0f} W  drawn {first.drawn:6.0f} W")


if __name__ == "__main__":
    main()
