"""Views for tests of policies: tables from a few numbers, jobs and clusters with everything else at its default."""

from __future__ import annotations

from typing import Any

import numpy as np
from flyball_planner.policies.view import ClusterView, JobView, Performance

CLOCKS = (900, 1200, 1500)


def table(seconds: list[float], watts: float = 200.0, clocks: tuple[int, ...] = CLOCKS) -> Performance:
    """Sizes 1, 2, 4, ...; `seconds` at the highest clock, wholly bound by it; a GPU's watts go with the clock cubed."""
    scale = np.array([clocks[-1] / clock for clock in clocks])
    times = np.array(seconds)[:, None] * scale[None, :]
    sizes = [1 << row for row in range(len(seconds))]
    power = 50.0 + (watts - 50.0) * (1.0 / scale) ** 3
    return Performance(sizes, times, times * power[None, :] * np.array(sizes)[:, None])


def job(uid: str, performance: Performance, iterations: float = 1000.0, requested: int = 1, **fields: Any) -> JobView:
    return JobView(uid, fields.pop("submit", 0.0), requested, performance, iterations, **fields)


def cluster(jobs: list[JobView], gpus: int = 8, **fields: Any) -> ClusterView:
    return ClusterView(
        now_seconds=fields.pop("now", 0.0),
        gpus=gpus,
        gpus_per_node=fields.pop("gpus_per_node", min(gpus, 8)),
        clocks_megahertz=CLOCKS,
        jobs=jobs,
        max_gpu_watts=300.0,
        **fields,
    )
