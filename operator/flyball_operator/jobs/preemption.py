"""Why a job was paused for another one, kept in its status until it has GPUs again.

Each later plan gives only the reason for which it waits now.
"""

from __future__ import annotations

from dataclasses import replace

from flyball_api.energy_aware_job import EnergyAwareJob
from flyball_planner.snapshot import Admission, JobDecision

# Between what a job was paused for and what it waits for now.
NOW_WORDS = " Now: "


def preempted_for(job: EnergyAwareJob) -> str:
    """For whom a job was paused, by its status; empty where it was not."""
    admitted = job.conditions.get("Admitted")
    if admitted is None or admitted.reason != Admission.PREEMPTED:
        return ""
    return admitted.message.split(NOW_WORDS)[0]


def still_preempted(before: str, decision: JobDecision) -> tuple[JobDecision, str]:
    """The plan's decision as the status has it, and for whom the job is paused now; `before`: for whom it was."""
    if decision.allocation is not None:
        return decision, ""
    if decision.admission == Admission.PREEMPTED:
        return decision, decision.explanation
    if before and decision.admission in (Admission.WAITING_FOR_GPUS, Admission.WAITING_FOR_POWER):
        words = f"{before}{NOW_WORDS}{decision.explanation}"
        return replace(decision, admission=Admission.PREEMPTED, explanation=words), before
    return decision, before
