"""What is published of Perseus: profiles of GPT-3 175B, frontiers row by row, and Table 6, each beside ours."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from flyball_frontiers.pipeline import (
    ComputationGraph,
    OperatingPoint,
    PerseusPlanner,
    PipelineProfile,
    Schedule,
    pipeline_graph,
)
from flyball_frontiers.pipeline.evaluate import execute
from flyball_frontiers.pipeline.solver.relaxation import TimeCostProgram
from frontier_report import Report

ROOT = Path(__file__).parents[1]
PUBLISHED = ROOT.parent / "shared" / "data" / "perseus-sosp24"
EXAMPLES = ROOT / "examples" / "profiles"

TABLE_6 = {
    "A100": {12: 15.20, 24: 14.19, 48: 13.62, 96: 13.32},
    "A40": {12: 11.81, 24: 10.22, 48: 9.34, 96: 8.88},
}


@dataclass(frozen=True)
class Gpu:
    """A GPU that GPT-3 175B was profiled on, its blocking power, and the unit of time of the published frontiers."""

    name: str
    file: str
    example: str
    blocking_power_watts: float
    unit_seconds: float

    def rows(self, stages: int = 8) -> list[dict[str, object]]:
        """The profile's rows; of its first stages and its last one where fewer stages are wanted, of the first again
        and again where more are."""
        path = PUBLISHED / "stage_profile" / f"gpt3-175b+{self.file}_bf16.csv"
        with (path if path.exists() else EXAMPLES / self.example).open() as file:
            measured = list(csv.DictReader(file))
        sources = [*(min(stage, 6) for stage in range(stages - 1)), 7]
        return [
            {**row, "stage": stage}
            for stage, source in enumerate(sources)
            for row in measured
            if row["stage"] == str(source)
        ]

    def graph(self, stages: int, microbatches: int) -> ComputationGraph:
        return pipeline_graph(PipelineProfile.from_rows(self.rows(stages)), Schedule.ONE_F_ONE_B, microbatches)


A100 = Gpu("A100", "a100_sxm", "gpt3-a100-8-stages.csv", 83.64, 0.001)
A40 = Gpu("A40", "a40", "gpt3-a40-8-stages.csv", 70.38, 0.0001)


def flat_out(graph: ComputationGraph, gpu: Gpu) -> tuple[float, float]:
    """Seconds and joules at the highest clocks."""
    points = [max(o.points, key=lambda point: point.clock_megahertz or 0) for o in graph.operations]
    execution = execute(graph, points, gpu.blocking_power_watts)
    return execution.time_seconds, execution.energy_joules


def floored(rows: Sequence[dict[str, object]], unit: float) -> PipelineProfile:
    return PipelineProfile.from_rows({**row, "time": float(str(row["time"])) // unit * unit} for row in rows)


def golden(report: Report) -> None:
    """The published frontiers, row by row, with our durations floored to their unit as theirs are."""
    report.line("Published frontiers (8 stages): their energy above ours in percent, over all their rows")
    report.line("  GPU   microbatches   rows   planned: mean, least   realised (a look-up): mean, least")
    for gpu, counts in ((A100, (12, 24, 48, 96)), (A40, (12,))):
        for microbatches in counts:
            path = PUBLISHED / "golden_frontier" / gpu.file / f"gpt3-175b_bf16_mb{microbatches}.csv"
            if not path.exists():
                report.line(f"  {path} is absent: left out")
                continue
            with path.open() as file:
                rows = [(float(row["time"]), float(row["energy"])) for row in csv.DictReader(file)]
            graph = pipeline_graph(floored(gpu.rows(), gpu.unit_seconds), Schedule.ONE_F_ONE_B, microbatches)
            frontier = PerseusPlanner(graph, gpu.blocking_power_watts).frontier(400)
            planned, realised = [], []
            for seconds, joules in rows:
                within = max(seconds, frontier.t_min)
                planned.append(100 * (joules / frontier.interpolate(within) - 1))
                realised.append(100 * (joules / frontier.energy_within(frontier.at(within), within) - 1))
            report.line(
                f"  {gpu.name:4}  {microbatches:12}  {len(rows):5}   {np.mean(planned):6.3f} %  {min(planned):6.3f} %"
                f"   {np.mean(realised):17.3f} %  {min(realised):6.3f} %"
            )
            report.figures[f"golden {gpu.name} {microbatches}"] = {"planned": min(planned), "realised": min(realised)}
            if min(planned) < 0 or min(realised) < 0:
                report.missed.append(f"published frontier not dominated: {gpu.name} {microbatches}")


def table6(report: Report) -> None:
    """Table 6 on the paper's own relaxation (fitted exponentials, floored durations), and on the measurements."""
    from lowtime_peer import fit, fitted_options

    report.line("Table 6, GPT-3: percent saved without slowdown against the highest clocks")
    report.line("  GPU   microbatches   paper   its relaxation, solved exactly   ours: planned  realised")
    for gpu in (A100, A40):
        rows, unit, power = gpu.rows(), gpu.unit_seconds, gpu.blocking_power_watts
        real, in_units = PipelineProfile.from_rows(rows), floored(rows, unit)
        fits: dict[tuple[OperatingPoint, ...], tuple[OperatingPoint, ...]] = {}
        for points in real.points.values():
            if points not in fits:
                options = fitted_options(points, unit, power)
                model = fit(options)
                counts = [option.quant_time for option in options.options]
                fits[points] = tuple(
                    OperatingPoint(count * unit, float(model(count)) + power * count * unit, 9999 - count)
                    for count in range(min(counts), max(counts) + 1)
                )
        relaxed = PipelineProfile({key: fits[points] for key, points in real.points.items()})
        for microbatches, percent in TABLE_6[gpu.name].items():
            graph = pipeline_graph(real, Schedule.ONE_F_ONE_B, microbatches)
            seconds, joules = flat_out(graph, gpu)
            counted = TimeCostProgram(pipeline_graph(in_units, Schedule.ONE_F_ONE_B, microbatches), power)
            end = counted.makespan(counted.shortest)
            reference = joules - power * graph.gpus * (seconds - end)
            program = TimeCostProgram(pipeline_graph(relaxed, Schedule.ONE_F_ONE_B, microbatches), power)
            plan = program.solve(program.makespan(program.shortest))
            theirs = 100 * (1 - (plan.cost_joules + power * graph.gpus * plan.time_seconds) / reference)
            planner = PerseusPlanner(graph, power)
            point = planner.plan(planner.t_min)
            planned, realised = (100 * (1 - e / joules) for e in (point.energy_joules, point.realised_energy_joules))
            report.line(
                f"  {gpu.name:4}  {microbatches:12}   {percent:5.2f}   {theirs:30.2f}   {planned:13.2f}  {realised:8.2f}"
            )
            report.figures[f"table 6 {gpu.name} {microbatches}"] = [percent, theirs, planned, realised]
