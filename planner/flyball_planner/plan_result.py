"""From the state of a finished ledger to the plan: allocations, what each cap comes to, and a sentence for each job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from flyball_planner.allocation_ledger import Claim
from flyball_planner.cluster import Admission, Allocation, CapOutcome, JobDecision, Plan
from flyball_planner.explain import late
from flyball_planner.placement import Cells
from flyball_planner.plan_claims import Workspace
from flyball_planner.power import WATT_TOLERANCE, committed_watts


class Sentences(Protocol):
    """Says why a job has what it has, or nothing."""

    def placed(self, claim: Claim, clock_index: int, nodes: int) -> str: ...
    def waiting(self, claim: Claim) -> tuple[Admission, str]: ...


class Silent:
    """Says nothing: for whoever asks for thousands of plans, and reads no sentence."""

    def __init__(self, left_watts: Sequence[float]) -> None:
        """As an explainer is made; `left_watts` is what each cap has left."""

    def placed(self, claim: Claim, clock_index: int, nodes: int) -> str:
        return ""

    def waiting(self, claim: Claim) -> tuple[Admission, str]:
        return Admission.WAITING_FOR_GPUS, ""


def result(
    workspace: Workspace,
    placed: Mapping[int, Cells],
    clocks: Mapping[int, int],
    sentences: Callable[[Sequence[float]], Sentences],
) -> Plan:
    """The plan that the workspace's claims stand for, with the nodes and clock positions given by the claims' indices.

    `sentences` makes the explainer from the watts that each cap has left under the plan.
    """
    allocations: dict[int, Allocation] = {}
    counted = []
    for claim in workspace.claims:
        option = claim.option
        if option is None:
            continue
        position = clocks[claim.index]
        current = claim.job.current
        cells = current.nodes if claim.staying and current is not None else placed[claim.index]
        limit = float(option.curves.limit_watts[option.row, position])
        allocations[claim.index] = Allocation(cells, option.curves.clocks_megahertz[position], limit)
        counted.append((cells, limit, float(option.curves.draw_watts[option.row, position])))
    outcomes = {}
    left = []
    for account in workspace.accounts:
        cap = account.constraint
        committed = committed_watts(cap, workspace.nodes, counted)
        held = account.feasible and committed <= cap.budget_watts + WATT_TOLERANCE
        outcomes[cap.name] = CapOutcome(cap.name, committed, held, account.floor_watts)
        left.append(cap.budget_watts - committed)
    explainer = sentences(left)
    decisions = {
        claim.job.uid: _decision(workspace, explainer, claim, allocations.get(claim.index), clocks.get(claim.index))
        for claim in workspace.claims
    }
    snapshot = workspace.snapshot
    return Plan(
        decisions=tuple(decisions[job.uid] for job in snapshot.jobs),
        caps=tuple(outcomes[cap.name] for cap in snapshot.caps),
        migrations=tuple(
            sorted(claim.job.uid for claim in workspace.claims if _migrates(claim, allocations.get(claim.index)))
        ),
    )


def _migrates(claim: Claim, allocation: Allocation | None) -> bool:
    current = claim.job.current
    if current is None or allocation is None or claim.displaced:
        return False
    return allocation.gpus == current.gpus and allocation.nodes != current.nodes


def _decision(
    workspace: Workspace, explainer: Sentences, claim: Claim, allocation: Allocation | None, position: int | None
) -> JobDecision:
    job, option = claim.job, claim.option
    if allocation is None or option is None or position is None:
        admission, sentence = explainer.waiting(claim)
        nearest = _nearest_end(workspace, claim)
        risk = nearest is not None and job.seconds_to_deadline is not None and nearest > job.seconds_to_deadline
        if risk and nearest is not None and job.seconds_to_deadline is not None:
            sentence += late(nearest, job.seconds_to_deadline)
        return JobDecision(
            job.uid,
            None,
            admission,
            sentence,
            deadline_at_risk=risk,
            nearest_deadline_seconds=nearest if risk else None,
        )
    seconds = float(option.curves.seconds[option.row, position])
    sentence = explainer.placed(claim, position, len(allocation.nodes))
    risk, nearest = False, None
    if claim.dated and job.seconds_to_deadline is not None:
        unmoved = job.current is not None and job.current.nodes == allocation.nodes
        end = claim.remaining * seconds + (0.0 if unmoved else workspace.snapshot.restart_seconds)
        risk = end > job.seconds_to_deadline
        if risk:
            nearest = min(end, _nearest_end(workspace, claim) or end)
            sentence += late(nearest, job.seconds_to_deadline)
    return JobDecision(
        uid=job.uid,
        allocation=allocation,
        admission=Admission.ADMITTED,
        explanation=sentence,
        predicted_iteration_seconds=seconds,
        predicted_gpu_watts=float(option.curves.gpu_watts[option.row, position]),
        deadline_at_risk=risk,
        nearest_deadline_seconds=nearest,
    )


def _nearest_end(workspace: Workspace, claim: Claim) -> float | None:
    """Seconds until the job could be done at best: its fastest size and clock, after a restart; None if nobody knows."""
    if not claim.dated or not claim.pools:
        return None
    kinds = {workspace.book.kind_of(pool): pool for pool in claim.pools}
    options = [workspace.book.at(claim.index, pool, gpus) for pool in kinds.values() for gpus in claim.ladder]
    best = min((option.best_seconds for option in options if option is not None), default=None)
    return None if best is None else claim.remaining * best + workspace.snapshot.restart_seconds
