"""What a run leaves behind: `result.json`, `jobs.csv` and `timeline.csv`, each written in one stroke."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from flyball_simulator.settings import SimulationResult
from flyball_simulator.workloads.workload import SimulatedJob


def result_document(result: SimulationResult) -> dict[str, Any]:
    """The run as `result.json` holds it: seconds, joules and watts; JCT is from submission to completion.

    Raises ValueError for a result without jobs.
    """
    seconds = np.fromiter(result.completion_seconds.values(), dtype=float)
    if not len(seconds):
        raise ValueError(f"the run of {result.settings.policy} has no jobs")
    settings = result.settings
    joules = {where: result.joules.get(where, 0.0) for where in ("gpu", "idle", "node")}
    return {
        "policy": settings.policy,
        "trace": result.trace,
        "gpus": settings.gpus,
        "jobs": len(seconds),
        "mean_jct_seconds": float(seconds.mean()),
        "p50_jct_seconds": float(np.percentile(seconds, 50)),
        "p99_jct_seconds": float(np.percentile(seconds, 99)),
        "makespan_seconds": result.makespan_seconds,
        "energy_joules": {**joules, "total": sum(joules.values())},
        "max_watts": result.max_watts,
        "cap_watts": result.cap_watts,
        "cap_violation_seconds": result.cap_violation_seconds,
        "restarts": result.restarts,
        "profiling_joules": result.profiling_joules,
        "wall_seconds": result.wall_seconds,
        "seed": settings.seed,
        "node_failures": result.node_failures,
        "evictions": result.evictions,
        "lost_gpu_seconds": result.lost_gpu_seconds,
        "migrations": result.migrations,
        "plans": result.plans,
        "carbon_grams": result.carbon_grams,
        "settings": settings_document(settings),
    }


def settings_document(settings: Any) -> dict[str, Any]:
    """Settings as JSON has them; long step lists stay whole, so that a run can be repeated from its result."""
    document: dict[str, Any] = json.loads(json.dumps(asdict(settings)))
    return document


def jobs_csv(result: SimulationResult, jobs: Sequence[SimulatedJob]) -> str:
    """One line a job, in the order of submission."""
    return _csv(
        ("job_id", "submission_time", "num_gpu", "model", "batch_size", "iterations", "jct_seconds"),
        (
            (
                job.job_id,
                f"{job.submit_seconds:.3f}",
                job.gpus,
                job.model_class,
                job.global_batch_size,
                f"{job.iterations:.1f}",
                f"{result.completion_seconds[job.job_id]:.3f}",
            )
            for job in sorted(jobs, key=lambda job: (job.submit_seconds, job.job_id))
        ),
    )


def timeline_csv(result: SimulationResult) -> str:
    """One line a decision: the cluster from then on."""
    return _csv(
        ("seconds", "watts", "cap_watts", "busy_gpus", "powered_nodes", "running_jobs", "waiting_jobs"),
        (
            (
                f"{sample.seconds:.3f}",
                f"{sample.watts:.1f}",
                "" if sample.cap_watts is None else f"{sample.cap_watts:.1f}",
                sample.busy_gpus,
                sample.powered_nodes,
                sample.running_jobs,
                sample.waiting_jobs,
            )
            for sample in result.samples
        ),
    )


def write_result(result: SimulationResult, jobs: Sequence[SimulatedJob], folder: Path) -> list[Path]:
    """Write the three files into `folder`, which is made if need be, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    return [
        write_whole(folder / "result.json", json.dumps(result_document(result), indent=2) + "\n"),
        write_whole(folder / "jobs.csv", jobs_csv(result, jobs)),
        write_whole(folder / "timeline.csv", timeline_csv(result)),
    ]


def write_whole(path: Path, content: str | bytes) -> Path:
    """Write a file so that whoever looks sees the old one or the new one, and never a part."""
    data = content.encode() if isinstance(content, str) else content
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_bytes(data)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def table_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows of the same keys as CSV with a heading."""
    columns = tuple(rows[0]) if rows else ()
    return _csv(columns, (tuple("" if row[c] is None else row[c] for c in columns) for row in rows))


def _csv(heading: Sequence[str], rows: Any) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(heading)
    writer.writerows(rows)
    return text.getvalue()
