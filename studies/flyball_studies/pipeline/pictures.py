"""The pictures of docs/frontiers.md, from the profiles in examples/profiles.

python -m flyball_studies.pipeline.pictures --output docs/images
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no display is needed, nor looked for

import matplotlib.pyplot as plt
from flyball_frontiers.pipeline import (
    PerseusPlanner,
    PipelineProfile,
    Reconfiguration,
    Schedule,
    StragglerTable,
    pipeline_graph,
)
from flyball_frontiers.pipeline.document import envpipe_document, perseus_document
from flyball_frontiers.pipeline.evaluate import execute

from flyball_studies.picture_files import png
from flyball_studies.pipeline.frontier_figure import draw_frontier
from flyball_studies.pipeline.schedule_figure import schedule_png, titled_panel

PROFILES = Path(__file__).parents[3] / "examples" / "profiles"
A100_WATTS, A40_WATTS = 83.64, 70.38


def profile_of(name: str) -> PipelineProfile:
    return PipelineProfile.from_csv((PROFILES / f"{name}.csv").read_text())


def perseus_frontier() -> bytes:
    """Two GPUs' frontiers with EnvPipe's points beside them."""
    figure, axes = plt.subplots(1, 2, figsize=(12.5, 4.6), layout="constrained")
    for axis, (name, title, watts) in zip(
        axes, (("gpt3-a100-8-stages", "A100", A100_WATTS), ("gpt3-a40-8-stages", "A40", A40_WATTS)), strict=True
    ):
        profile = profile_of(name)
        graph = pipeline_graph(profile, Schedule.ONE_F_ONE_B, 24)
        draw_frontier(axis, perseus_document(graph, watts, 120))
        unit = 1e3 if "kJ" in axis.get_ylabel() else 1.0
        for kind, marker in ((Reconfiguration.BALANCED, "D"), (Reconfiguration.GREEDY, "s")):
            point = envpipe_document(profile, 24, watts, kind)["at"]
            axis.scatter(
                point["time"],
                point["energy"] / unit,
                marker=marker,
                s=34,
                color="#762a83",
                label=f"envpipe-{kind}",
            )
        axis.set_title(f"GPT-3 175B, {title}, 8 stages, 24 microbatches, 1F1B", fontsize=10)
        axis.legend(fontsize=8, frameon=False, loc="upper right")
    return png(figure, dpi=110)


def perseus_schedule() -> bytes:
    """Four unequal stages: at the highest clocks, without slowdown, and behind a straggler."""
    graph = pipeline_graph(profile_of("gpt3-a100-unbalanced"), Schedule.ONE_F_ONE_B, 8)
    fastest = perseus_document(graph, A100_WATTS, 60)
    slower = perseus_document(graph, A100_WATTS, 60, at=1.1 * fastest["t_min"])
    return schedule_png(
        [
            titled_panel("highest clocks", fastest["flat_out"], None),
            titled_panel("Perseus, no straggler", fastest, fastest["flat_out"]),
            titled_panel("Perseus behind a straggler of degree 1.1", slower, fastest["flat_out"]),
        ]
    )


def envpipe_schedule() -> bytes:
    """EnvPipe on 1F1B, EnvPipe where there is memory to move forwards ahead, and Perseus on 1F1B."""
    profile = profile_of("gpt3-a100-unbalanced")
    perseus = perseus_document(pipeline_graph(profile, Schedule.ONE_F_ONE_B, 8), A100_WATTS, 60)
    plain = envpipe_document(profile, 8, A100_WATTS, Reconfiguration.BALANCED)
    ahead = envpipe_document(profile, 8, A100_WATTS, Reconfiguration.BALANCED, [6, 6, 6, 6])
    reference = perseus["flat_out"]
    return schedule_png(
        [
            titled_panel("EnvPipe, 1F1B", plain, reference),
            titled_panel("EnvPipe, memory for six microbatches a stage", ahead, reference),
            titled_panel("Perseus, 1F1B", perseus, reference),
        ]
    )


def stragglers() -> bytes:
    """What a pipeline saves behind a straggler, against the highest clocks and waiting."""
    figure, axes = plt.subplots(1, 2, figsize=(12.5, 4.2), layout="constrained", sharey=True)
    degrees = [1 + step / 100 for step in range(61)]
    for axis, (name, title, watts) in zip(
        axes, (("gpt3-a100-8-stages", "A100", A100_WATTS), ("gpt3-a40-8-stages", "A40", A40_WATTS)), strict=True
    ):
        for microbatches, colour in ((12, "#a6bddb"), (24, "#67a9cf"), (48, "#1c9099"), (96, "#016450")):
            graph = pipeline_graph(profile_of(name), Schedule.ONE_F_ONE_B, microbatches)
            frontier = PerseusPlanner(graph, watts).frontier(120)
            highest = [max(o.points, key=lambda point: point.clock_megahertz or 0) for o in graph.operations]
            flat_out = execute(graph, highest, watts)
            table, saved = StragglerTable(frontier), []
            for degree in degrees:
                deployment = table.set_straggler("another pipeline", 0.0, degree)
                waiting = frontier.waiting_power_watts * (deployment.iteration_seconds - flat_out.time_seconds)
                energy = frontier.energy_within(deployment.point, deployment.iteration_seconds)
                saved.append(100 * (1 - energy / (flat_out.energy_joules + waiting)))
            axis.plot(degrees, saved, color=colour, label=f"{microbatches} microbatches")
            best = frontier.t_star / frontier.t_min
            if best <= degrees[-1]:
                at = min(range(len(degrees)), key=lambda place: abs(degrees[place] - best))
                axis.scatter(best, saved[at], marker="*", s=90, color=colour, zorder=3)
        axis.set_title(f"GPT-3 175B, {title}, 8 stages (star: T*/T)", fontsize=10)
        axis.set_xlabel("straggler's iteration time over one's own, T'/T")
        axis.grid(alpha=0.3)
        axis.set_axisbelow(True)
    axes[0].set_ylabel("energy saved (%)")
    axes[0].set_ylim(0)
    axes[0].legend(fontsize=9, frameon=False, loc="lower right")
    return png(figure, dpi=110)


PICTURES: dict[str, Callable[[], bytes]] = {
    "perseus-frontier": perseus_frontier,
    "perseus-schedule": perseus_schedule,
    "envpipe-schedule": envpipe_schedule,
    "stragglers": stragglers,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("docs/images"), help="the folder for the PNGs")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        path = arguments.output / f"{name}.png"
        path.write_bytes(draw())
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
