"""Random pipelines whose stages are very unequal: what ties in the steady state are tried on.

A stage's seconds differ by factors, its energies bend differently, measurements are noisy, and some stages have one
clock only: plans in which stages drift apart over the iteration are among them.
"""

from __future__ import annotations

import numpy as np
from flyball_frontiers.pipeline import ComputationGraph, PipelineProfile, Schedule, pipeline_graph


def unequal_pipeline(seed: int, most_stages: int = 6) -> tuple[ComputationGraph, float]:
    """A graph of 2 to `most_stages` stages, long enough to repeat itself, and its blocking power (W)."""
    draw = np.random.default_rng(seed)
    stages = int(draw.integers(2, most_stages + 1))
    rows: list[dict[str, object]] = []
    for stage in range(stages):
        for instruction in ("forward", "backward"):
            seconds, watts = np.exp(draw.normal(0, 0.8)), np.exp(draw.normal(4, 0.5))
            bend, slowing = draw.uniform(1.3, 4), draw.uniform(0.5, 1.2)
            for clock in range(1400, 1400 - 90 * int(draw.integers(1, 9)), -90):
                share = clock / 1400
                joules = watts * seconds * (0.3 + share**bend) * draw.uniform(0.97, 1.03)
                rows.append(
                    {
                        "stage": stage,
                        "instruction": instruction,
                        "frequency": clock,
                        "time": float(seconds * share**-slowing),
                        "energy": float(joules),
                    }
                )
    schedule = Schedule.ONE_F_ONE_B if draw.random() < 0.7 else Schedule.EARLY_RECOMPUTE
    microbatches = int(6 * stages + draw.integers(0, 60))
    return pipeline_graph(PipelineProfile.from_rows(rows), schedule, microbatches), float(draw.uniform(0, 40))
