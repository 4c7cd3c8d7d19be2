"""Whether a job can end within its energy budget at all, by its model, before it begins to spend it."""

from __future__ import annotations

from collections.abc import Mapping

from flyball_api.energy_aware_job import EnergyAwareJob

from flyball_operator.jobs.frontier import tradeoff
from flyball_operator.jobs.runs.memory import Refusal
from flyball_operator.jobs.status.updates import ModelSource
from flyball_operator.power.nodes.info import NodeInfo


def budget_too_small(
    job: EnergyAwareJob,
    iterations_done: float,
    nodes: Mapping[str, NodeInfo],
    models: ModelSource,
    gpus_per_node: int,
) -> Refusal | None:
    """Why a job cannot end within its energy budget, whatever it is given; None where it may.

    `gpus_per_node` are the largest node's. Under `onExhausted: Throttle` it may go beyond, and is only told.
    """
    energy = job.spec.energy
    budget_kilojoules = energy.budget_kilojoules
    if budget_kilojoules is None or energy.on_exhausted == "Throttle":
        return None
    found = tradeoff(job, models.model_for(job, nodes), iterations_done, gpus_per_node)
    least = 0 if found is None else found.thriftiest.kilojoules
    if least <= budget_kilojoules:
        return None
    words = f"energy.budgetKilojoules is {budget_kilojoules}, and by its model the job takes {least} kJ at the least: "
    return Refusal("BudgetTooSmall", words + "raise the budget, or let energy.onExhausted be Throttle")
