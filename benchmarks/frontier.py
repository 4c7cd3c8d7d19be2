"""Time-energy frontiers of pipelines: how fast they are found, how good they are, beside the published solver.

    python benchmarks/frontier.py                    # all but scaling: about three minutes of one core
    python benchmarks/frontier.py speed peer         # only these parts
    python benchmarks/frontier.py scaling            # 8 x 1,024, 16 x 256 and 64 x 128
    python benchmarks/frontier.py scaling --shapes 16x256,64x1024    # only these
    python benchmarks/frontier.py ties               # repeated plans beside plans of every operation, 200 random pipelines
    python benchmarks/frontier.py peer --full        # the published solver on 8 x 96 at 1 ms too (12 minutes)

Seconds are CPU seconds of one core. The profiles are the published ones in ../shared/data/perseus-sosp24, or, where they
are absent, those in examples/profiles, of which the parts that need published results say so and are left out. Ends with
status 1 where a threshold is missed; thresholds are in `frontier_report.py`, with where they come from.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from flyball_frontiers.frontier import Frontier
from flyball_frontiers.pipeline import (
    ComputationGraph,
    PerseusPlanner,
    PipelinePlan,
    PipelineProfile,
    Reconfiguration,
    Schedule,
    StragglerTable,
    envpipe,
    pipeline_graph,
)
from flyball_frontiers.pipeline.evaluate import execute
from frontier_report import THRESHOLDS, Report
from published_perseus import A40, A100, EXAMPLES, PUBLISHED, Gpu, flat_out, golden, table6

PUBLISHED_LOWTIME_SECONDS = 705.0
"""lowtime 0.3.0 on 8 x 96 at 1 ms, 3,495 points, one core of the machine it was first measured on; --full measures it."""


def spent(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def shortfall(frontier: Frontier[PipelinePlan]) -> tuple[float, float]:
    """Mean and most of what realising costs, in percent: realised energy, waiting to the planned end, over planned."""
    over = [
        100 * (frontier.energy_within(point, point.time_seconds) / point.energy_joules - 1) for point in frontier.points
    ]
    return float(np.mean(over)), max(over)


def speed(report: Report, shapes: Sequence[tuple[int, int]] = ((4, 8), (8, 32), (8, 96), (8, 128), (8, 1024))) -> None:
    """A whole frontier of 200 exact points, from a profile in memory to realised clocks."""
    report.line("Whole frontiers: 200 exact points from T_min to T*, realised (CPU seconds)")
    report.line("  GPU   pipeline   operations  seconds   T_min      T*     realised above the bound: mean, most")
    for gpu in (A100, A40):
        for stages, microbatches in shapes:
            profile = PipelineProfile.from_rows(gpu.rows(stages))
            found: list[Frontier[PipelinePlan]] = []

            def solve(
                gpu: Gpu = gpu,
                profile: PipelineProfile = profile,
                microbatches: int = microbatches,
                found: list[Frontier[PipelinePlan]] = found,
            ) -> None:
                graph = pipeline_graph(profile, Schedule.ONE_F_ONE_B, microbatches)
                found.append(PerseusPlanner(graph, gpu.blocking_power_watts).frontier(200))

            seconds = spent(solve)
            frontier = found[0]
            mean, most = shortfall(frontier)
            operations = 2 * stages * microbatches
            report.line(
                f"  {gpu.name:4}  {stages:2} x {microbatches:4}  {operations:8}  {seconds:8.2f}  {frontier.t_min:7.3f}"
                f"  {frontier.t_star:7.3f}   {mean:6.3f} %  {most:6.3f} %"
            )
            report.figures[f"frontier {gpu.name} {stages} x {microbatches}"] = seconds
            name = f"seconds of {stages} x {microbatches}"
            if name in THRESHOLDS and gpu is A100:
                report.hold(name, seconds)
            if (stages, microbatches) == (8, 96) and gpu is A100:
                ratio = PUBLISHED_LOWTIME_SECONDS / seconds
                report.hold("speed-up over lowtime, 8 x 96 at 1 ms", ratio, at_least=True)
            if (stages, microbatches) == (8, 128) and gpu is A100:
                table = StragglerTable(frontier)
                table.deployment(0.0)
                degrees = np.linspace(1, 1.6, 1000)
                looked_up = spent(
                    lambda table=table, degrees=degrees: [table.set_straggler("a", 0, d) for d in degrees]
                )
                report.hold("milliseconds of a look-up", looked_up)  # of a thousand, so seconds are milliseconds of one


SCALING = ((8, 32), (8, 128), (8, 1024), (16, 128), (16, 256), (64, 128))


def scaling(report: Report, shapes: Sequence[tuple[int, int]] = SCALING) -> None:
    """Where the paper's pipelines end, and beyond."""
    report.line("Scaling (A100 profile, 200 points, CPU seconds)")
    for stages, microbatches in shapes:
        graph = A100.graph(stages, microbatches)
        found: list[Frontier[PipelinePlan]] = []
        seconds = spent(
            lambda graph=graph, found=found: found.append(
                PerseusPlanner(graph, A100.blocking_power_watts).frontier(200)
            )
        )
        mean, most = shortfall(found[0])
        report.line(
            f"  {stages:2} x {microbatches:4}: {len(graph.operations):6} operations, {seconds:8.1f} s,"
            f" realised {mean:.3f} % above the bound, at most {most:.3f} %"
        )
        report.figures[f"scaling {stages} x {microbatches}"] = seconds


def ties(report: Report) -> None:
    """What planning a steady state once costs and saves: the same pipelines with every operation planned by itself."""
    from unequal_pipelines import unequal_pipeline

    report.line(
        "Steady states planned once, beside every operation by itself (CPU seconds, 200 points; energy at 12 times)"
    )
    report.line("  GPU   pipeline    once  by itself   energy above: most   realised above the bound: once, by itself")
    for gpu in (A100, A40):
        for stages, microbatches in ((8, 96), (8, 128)):
            graph, power = gpu.graph(stages, microbatches), gpu.blocking_power_watts
            found: list[Frontier[PipelinePlan]] = []
            seconds = [
                spent(
                    lambda graph=graph, power=power, repeat=repeat, found=found: found.append(
                        PerseusPlanner(graph, power, repeat=repeat).frontier(200)
                    )
                )
                for repeat in (True, False)
            ]
            most = most_above(graph, power)
            over = [shortfall(frontier)[0] for frontier in found]
            report.line(
                f"  {gpu.name:4}  {stages:2} x {microbatches:4}  {seconds[0]:6.2f}  {seconds[1]:9.2f}   {most:18.1e}"
                f"   {over[0]:6.3f} %  {over[1]:6.3f} %"
            )
            report.figures[f"ties {gpu.name} {stages} x {microbatches}"] = [*seconds, most]
    above = [most_above(*unequal_pipeline(seed)) for seed in range(200)]
    report.line(f"  200 random, very unequal pipelines of 2 to 6 stages: energy above, most: {max(above):.1e}")
    report.figures["energy of repeated plans above"] = max(above)
    report.hold("energy of repeated plans above", max(above))


def proofs(report: Report, seeds: range = range(2500)) -> None:
    """How often ties are not proven to lose nothing, and are loosened: random, very unequal pipelines at ten times."""
    from unequal_pipelines import unequal_pipeline

    tied, drifting, loosened = 0, 0, []
    for seed in seeds:
        planner = PerseusPlanner(*unequal_pipeline(seed))
        if planner.repeats:
            tied += 1
            for share in np.linspace(0, 0.9, 10) ** 2:
                planner.relaxed(planner.t_min + float(share) * (planner.t_star - planner.t_min))
            drifting += planner.drifts
            if planner.repeats != 1:
                loosened.append(seed)
    report.line(
        f"{len(seeds)} random pipelines of 2 to 6 stages: {tied} long enough to be tied, {drifting} whose stages drift"
        f" apart, planned one by one for longer: {loosened}"
    )
    report.figures["ties loosened"], report.figures["pipelines that drift"] = loosened, drifting


def most_above(graph: ComputationGraph, power: float) -> float:
    """The most that plans which repeat their steady state need more, as a share, over T_min to T*."""
    planners = [PerseusPlanner(graph, power, repeat=repeat) for repeat in (True, False)]
    fastest, slowest = planners[1].t_min, planners[1].t_star
    shares = np.linspace(0, 1, 12) ** 2
    energies = [
        [planner.relaxed(fastest + share * (slowest - fastest)).energy_joules for share in shares[::-1]]
        for planner in planners
    ]
    return max(once / alone - 1 for once, alone in zip(*energies, strict=True))


def peer(report: Report, full: bool) -> None:
    """lowtime on the same graphs in the same process: time, and energy when its clocks are run on what was measured."""
    from lowtime_peer import lowtime_frontier

    report.line("Beside lowtime 0.3.0, in this process (CPU seconds; its frontier ends at the least raw energy)")
    report.line("  GPU   pipeline  unit    lowtime: points  seconds   ours: 200 points  all its times  speed-up"
                "   energy in the same time: mean, least, most saved")  # fmt: skip
    cases = [(A100, 4, 8, 0.001), (A100, 8, 12, 0.001), (A40, 8, 12, 0.001), (A100, 8, 32, 0.001), (A40, 8, 32, 0.004)]
    if full:
        cases.append((A100, 8, 96, 0.001))
    for gpu, stages, microbatches, unit in cases:
        graph, power = gpu.graph(stages, microbatches), gpu.blocking_power_watts
        points, clock = lowtime_frontier(graph, power, unit)
        theirs = [execute(graph, chosen, power) for chosen in points]
        times = [execution.time_seconds for execution in theirs]
        found: list[Frontier[PipelinePlan]] = []
        seconds = spent(
            lambda graph=graph, power=power, times=times, found=found: found.append(
                PerseusPlanner(graph, power).frontier_at(times)
            )
        )
        ours = found[0]
        whole = spent(lambda graph=graph, power=power: PerseusPlanner(graph, power).frontier(200))
        saved = [
            100 * (1 - ours.energy_within(ours.at(t), t) / execution.energy_joules)
            for t, execution in zip(times, theirs, strict=True)
        ]
        report.line(
            f"  {gpu.name:4}  {stages} x {microbatches:3}  {1000 * unit:3.0f} ms  {len(theirs):14}  {clock[0]:8.1f}"
            f"  {whole:16.2f}  {seconds:13.2f}  {clock[0] / whole:7.0f} x"
            f"   {np.mean(saved):.2f} %, {min(saved):.2f} %, {max(saved):.2f} %"
        )
        report.figures[f"lowtime {gpu.name} {stages} x {microbatches} at {1000 * unit:g} ms"] = {
            "lowtime_seconds": clock[0],
            "our_seconds": whole,
            "our_seconds_at_all_its_times": seconds,
            "points": len(theirs),
            "least_saved_percent": min(saved),
        }
        if min(saved) < 0:
            report.missed.append(f"realised energy above lowtime's: {gpu.name} {stages} x {microbatches}")


def stragglers(report: Report) -> None:
    """Section 6.3: what a pipeline saves in an iteration that lasts T', against the highest clocks and waiting."""
    degrees = (1.0, 1.05, 1.1, 1.2, 1.3, 1.4, 1.5)
    report.line("Stragglers, GPT-3, 8 stages: percent saved by T'/T (realised, looked up; * T*/T of the pipeline)")
    report.line("  GPU   microbatches  " + "".join(f"{degree:7.2f}" for degree in degrees) + "    T*/T")
    for gpu in (A100, A40):
        for microbatches in (12, 24, 48, 96):
            graph = gpu.graph(8, microbatches)
            frontier = PerseusPlanner(graph, gpu.blocking_power_watts).frontier(200)
            seconds, joules = flat_out(graph, gpu)
            table = StragglerTable(frontier)
            saved = []
            for degree in degrees:
                deployment = table.set_straggler("another pipeline", 0.0, degree)
                waiting = joules + frontier.waiting_power_watts * (deployment.iteration_seconds - seconds)
                energy = frontier.energy_within(deployment.point, deployment.iteration_seconds)
                saved.append(100 * (1 - energy / waiting))
            report.line(
                f"  {gpu.name:4}  {microbatches:12}  "
                + "".join(f"{each:7.2f}" for each in saved)
                + f"    {frontier.t_star / frontier.t_min:.2f}"
            )
            report.figures[f"stragglers {gpu.name} {microbatches}"] = dict(zip(map(str, degrees), saved, strict=True))


def beside_envpipe(report: Report) -> None:
    """EnvPipe and Perseus in the same time, on 1F1B and on EnvPipe's own order where there is memory for it."""
    report.line("EnvPipe: percent saved without slowdown; Perseus on the same order in the same time, realised")
    report.line("  profile          microbatches  order             balanced  greedy  Perseus   published EnvPipe (J)")
    published: dict[tuple[str, int], float] = {}
    path = PUBLISHED / "envpipe_emulation_gpt3.csv"
    if path.exists():
        with path.open() as file:
            published = {(r["device"], int(r["num_microbatches"])): float(r["energy"]) for r in csv.DictReader(file)}
    unbalanced = PipelineProfile.from_csv((EXAMPLES / "gpt3-a100-unbalanced.csv").read_text())
    profiles = [(gpu.name, gpu, PipelineProfile.from_rows(gpu.rows())) for gpu in (A100, A40)]
    for name, gpu, profile in [*profiles, ("A100 unbalanced", A100, unbalanced)]:
        for microbatches in (12, 24, 48, 96):
            for slots in (None, [2 * profile.stages] * profile.stages):
                results = [
                    envpipe(
                        profile, microbatches, gpu.blocking_power_watts, reconfiguration=each, activation_slots=slots
                    )
                    for each in (Reconfiguration.BALANCED, Reconfiguration.GREEDY)
                ]
                best = PerseusPlanner(results[0].graph, gpu.blocking_power_watts).plan(
                    min(result.frontier.t_min for result in results)
                )
                reference = results[0].baseline.energy_joules
                energies = [result.frontier.fastest.energy_joules for result in results]
                saved = [100 * (1 - each / reference) for each in (*energies, best.realised_energy_joules)]
                note = ""
                if slots is None and profile is not unbalanced and (gpu.file, microbatches) in published:
                    theirs = published[gpu.file, microbatches] / 80  # 10 times the layers, 8 GPUs a stage
                    note = f"{theirs:10.1f}, ours {energies[0]:.1f} ({100 * (energies[0] / theirs - 1):+.3f} %)"
                order = "1F1B" if slots is None else f"up to {slots[0]} held"
                report.line(
                    f"  {name:16} {microbatches:12}  {order:16}  {saved[0]:8.2f}  {saved[1]:6.2f}  {saved[2]:7.2f}   {note}"
                )
                report.figures[f"envpipe {name} {microbatches} {order}"] = saved
                if saved[2] < max(saved[:2]):
                    report.missed.append(f"EnvPipe better than Perseus: {name} {microbatches} {order}")


def exactness(report: Report) -> None:
    """How far straight lines between 200 points are from the exact curve, at the middle of each."""
    report.line("Between the points of a frontier of 200: interpolated above exact energy, in percent")
    for gpu in (A100, A40):
        planner = PerseusPlanner(gpu.graph(8, 32), gpu.blocking_power_watts)
        frontier = planner.frontier(200)
        times = [p.time_seconds for p in frontier.points]
        middles = [(left + right) / 2 for left, right in pairwise(times)]
        exact = planner.frontier_at(middles)
        over = [100 * (frontier.interpolate(p.time_seconds) / p.energy_joules - 1) for p in exact.points]
        report.line(f"  {gpu.name:4}  8 x 32: mean {np.mean(over):.5f} %, most {max(over):.5f} %")
        report.figures[f"interpolation {gpu.name}"] = max(over)


PARTS: dict[str, Callable[[Report], None]] = {
    "speed": speed,
    "exactness": exactness,
    "golden": golden,
    "table6": table6,
    "stragglers": stragglers,
    "envpipe": beside_envpipe,
}


def shapes_of(text: str) -> list[tuple[int, int]]:
    """Stages and microbatches, written as 8x128,16x256."""
    try:
        return [
            (int(stages), int(microbatches)) for stages, microbatches in (each.split("x") for each in text.split(","))
        ]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not STAGESxMICROBATCHES,..., as in 8x128,16x256") from None


def chosen_parts(
    names: Sequence[str], full: bool, shapes: Sequence[tuple[int, int]]
) -> Iterator[Callable[[Report], None]]:
    parts = {
        **PARTS,
        "peer": lambda report: peer(report, full),
        "scaling": lambda report: scaling(report, shapes),
        "ties": ties,
        "proofs": proofs,
    }
    for name in names or [*PARTS, "peer"]:
        yield parts[name]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "parts",
        nargs="*",
        metavar="PART",
        choices=[*PARTS, "peer", "scaling", "ties", "proofs", []],  # argparse checks the empty list of none, too
        help=f"{', '.join(PARTS)}, peer, scaling, ties or proofs; all but the last three, if none",
    )
    parser.add_argument("--full", action="store_true", help="lowtime on 8 x 96 at 1 ms too (12 minutes)")
    parser.add_argument("--shapes", type=shapes_of, default=SCALING, help="of scaling: as in 8x128,16x256")
    parser.add_argument("--output", type=Path, help="write the figures as JSON")
    arguments = parser.parse_args()
    report = Report()
    for part in chosen_parts(arguments.parts, arguments.full, arguments.shapes):
        part(report)
        report.line()
    if arguments.output:
        arguments.output.write_text(json.dumps(report.figures, indent=1) + "\n")
    for missed in report.missed:
        report.line(f"MISSED: {missed}")
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
