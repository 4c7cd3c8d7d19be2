"""The words that a job's conditions can have for reasons: closed lists, which docs/api.md has, too."""

from __future__ import annotations

from flyball_planner.snapshot import Admission

from flyball_operator.jobs.runs.lifecycle import JobPhase
from flyball_operator.jobs.starts.obstacles import PLACED_OBSTACLES, READY_OBSTACLES
from flyball_operator.jobs.starts.pauses import BACK_OFF_REASONS

_STEPS = frozenset(str(phase) for phase in JobPhase)
# The states of a job all of whose ranks run.
RUNNING_STATES = ("Running", "DeadlineAtRisk")
# The reasons of Admitted under which a job waits for its turn, with nothing for anybody to mend.
WAITS = frozenset(
    {
        str(Admission.WAITING_FOR_GPUS),
        str(Admission.WAITING_FOR_POWER),
        str(Admission.PREEMPTED),
        "WaitingForSignal",
    }
)
# The reasons that each condition can have; docs/api.md lists the same.
REASONS: dict[str, frozenset[str]] = {
    "Admitted": frozenset(
        {
            *(str(admission) for admission in Admission),
            "Planning",
            "Observing",
            "Suspended",
            "InvalidSpec",
            "UnknownGpuResource",
            "NotSupported",
            "BudgetTooSmall",
            "ChoosingBatchSize",
            "CostLimitReached",
            "WaitingForSignal",
            "NoNodeFits",
            "ExceedsCluster",
            "QuotaExceeded",
            "Succeeded",
            "Failed",
            *BACK_OFF_REASONS,
        }
    ),
    "Placed": _STEPS | {"PodsBound"} | PLACED_OBSTACLES | BACK_OFF_REASONS,
    "PodsReady": _STEPS | {"AllRanksReady"} | READY_OBSTACLES | BACK_OFF_REASONS,
    "Resizing": _STEPS,
    "PowerLimitsEnforced": frozenset({"LimitsAcknowledged", "WaitingForAcknowledgements", "NotPlaced"}),
    "BudgetHealthy": frozenset({"NoBudget", "WithinBudget", "ProjectedOverBudget", "Exhausted"}),
    "DeadlineAtRisk": frozenset({"NoAllocationMeetsIt", "DeadlinePassed", "OnTime", "NoDeadline"}),
    "BoundsKept": frozenset({"NoBounds", "WithinRange", "OutOfRange"}),
    "Succeeded": frozenset({"Succeeded"}),
    "Failed": frozenset({"Failed"}),
}
# The condition Ready sums the others up: its reason is the state.
REASONS["Ready"] = frozenset(
    {
        *(REASONS["Admitted"] - {"Admitted"}),
        *PLACED_OBSTACLES,
        *READY_OBSTACLES,
        *BACK_OFF_REASONS,
        *RUNNING_STATES,
        "Starting",
        "Stopping",
        "Resizing",
    }
)
