"""What a simulation is given to run: traced jobs with a kind of model, a batch size, and a number of iterations."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """One job: `gpus` is its traced size (a power of two), `iterations` what it has to do, whatever it is given.

    `deadline_seconds` (since the start of the trace) and `energy_budget_joules` are constraints that a policy may honour.
    """

    job_id: str
    submit_seconds: float
    gpus: int
    model_class: str
    global_batch_size: int
    iterations: float
    deadline_seconds: float | None = None
    energy_budget_joules: float | None = None
