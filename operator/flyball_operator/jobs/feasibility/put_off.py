"""Whether a job that can wait is put off to when the grid's signal is lower while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from flyball_api.energy_aware_job import EnergyAwareJob
from flyball_api.values.times import format_time
from flyball_planner.shifting import Signal, best_start

from flyball_operator.jobs.runs.memory import Refusal
from flyball_operator.jobs.status.updates import ModelSource
from flyball_operator.power.nodes.info import NodeInfo


class PutOff(NamedTuple):
    """Until when a job is put off, and the words for that."""

    start: datetime
    refusal: Refusal


def put_off(
    job: EnergyAwareJob,
    iterations_done: float,
    nodes: Mapping[str, NodeInfo],
    models: ModelSource,
    gpus_per_node: int,
    signal: Signal | None,
    now: datetime,
    start_seconds: float = 0.0,
) -> PutOff | None:
    """Until when a job that has not begun does not start yet; None where it may.

    How long it takes is what its model says of its smallest size at the highest clock; `gpus_per_node` are the largest
    node's. Its pods take `start_seconds` to train, so much sooner it is to be done.
    """
    until, iterations = job.spec.flexible_until, job.spec.training.iterations
    if signal is None or until is None or iterations is None or not nodes:
        return None
    gpus = job.spec.gpus.min
    ranks = max(1, gpus // gpus_per_node)
    curves = models.model_for(job, nodes).curves(gpus, ranks, job.spec.training.global_batch_size)
    seconds = max(0.0, iterations - iterations_done) * float(curves.seconds[0, -1])
    due = job.due or until
    start = best_start(signal, now.timestamp(), due.timestamp() - start_seconds, seconds)
    if start is None:
        return None
    begins = datetime.fromtimestamp(start.second, UTC)
    words = (
        f"it starts at {format_time(begins)}: while it runs the signal is then "
        f"{start.mean:.0f}{signal.unit} on average, and {start.mean_now:.0f}{signal.unit} if it started now"
    )
    return PutOff(begins, Refusal("WaitingForSignal", words, begins))
