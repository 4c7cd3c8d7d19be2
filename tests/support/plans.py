"""What tests ask of plans and make of them."""

from __future__ import annotations

from dataclasses import replace

from flyball_planner.snapshot import ClusterSnapshot, Plan


def in_force(snapshot: ClusterSnapshot, made: Plan) -> ClusterSnapshot:
    """The snapshot once the plan has been carried out."""
    allocations = {decision.uid: decision.allocation for decision in made.decisions}
    return replace(snapshot, jobs=tuple(replace(job, current=allocations[job.uid]) for job in snapshot.jobs))
