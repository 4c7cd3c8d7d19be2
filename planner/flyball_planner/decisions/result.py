"""From the finished state to the plan: allocations, what each cap comes to, and a sentence for each job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from flyball_planner.decisions.explain import late
from flyball_planner.ledger.caps import WATT_TOLERANCE, committed_watts
from flyball_planner.ledger.state import Candidate
from flyball_planner.ledger.workspace import Workspace
from flyball_planner.placement.place import Cells
from flyball_planner.snapshot import Admission, Allocation, CapOutcome, JobDecision, Plan


class Explanations(Protocol):
    """Gives the sentences that say why a job has what it has, or has nothing."""

    def placed(self, candidate: Candidate, clock_index: int, nodes: int) -> str: ...
    def waiting(self, candidate: Candidate) -> tuple[Admission, str]: ...


class NoExplanation:
    """Empty sentences, for callers that make thousands of plans and read no explanation."""

    def __init__(self, left_watts: Sequence[float]) -> None:
        """As an explainer is made; `left_watts` is what each cap has left."""

    def placed(self, candidate: Candidate, clock_index: int, nodes: int) -> str:
        return ""

    def waiting(self, candidate: Candidate) -> tuple[Admission, str]:
        return Admission.WAITING_FOR_GPUS, ""


def result(
    workspace: Workspace,
    placed: Mapping[int, Cells],
    clocks: Mapping[int, int],
    explanations: Callable[[Sequence[float]], Explanations],
    governed: Mapping[int, int] | None = None,
) -> Plan:
    """The plan that the workspace's candidates stand for; nodes and clock positions are given by the candidates' indices.

    `explanations` makes the explainer from the watts that each cap has left under the plan. `governed`: where the climb of
    those that are only observed would end otherwise; None: where their objectives say.
    """
    allocations: dict[int, Allocation] = {}
    counted = []
    for candidate in workspace.candidates:
        option = candidate.option
        if option is None:
            continue
        position = clocks[candidate.index]
        current = candidate.job.current
        cells = current.nodes if candidate.staying and current is not None else placed[candidate.index]
        limit = float(option.curves.limit_watts[option.row, position])
        allocations[candidate.index] = Allocation(cells, option.curves.clocks_megahertz[position], limit)
        counted.append((cells, limit, float(option.curves.draw_watts[option.row, position])))
    outcomes = {}
    left = []
    for account in workspace.accounts:
        cap = account.constraint
        committed = committed_watts(cap, workspace.nodes, counted)
        held = account.feasible and committed <= cap.budget_watts + WATT_TOLERANCE
        outcomes[cap.name] = CapOutcome(cap.name, committed, held, account.committed_at_min_watts)
        left.append(cap.budget_watts - committed)
    explainer = explanations(left)
    decisions = {
        candidate.job.uid: _decision(
            workspace,
            explainer,
            candidate,
            allocations.get(candidate.index),
            clocks.get(candidate.index),
            None if governed is None else governed.get(candidate.index),
        )
        for candidate in workspace.candidates
    }
    snapshot = workspace.snapshot
    return Plan(
        decisions=tuple(decisions[job.uid] for job in snapshot.jobs),
        caps=tuple(outcomes[cap.name] for cap in snapshot.caps),
        migrations=tuple(
            sorted(
                candidate.job.uid
                for candidate in workspace.candidates
                if _migrates(candidate, allocations.get(candidate.index))
            )
        ),
    )


def _migrates(candidate: Candidate, allocation: Allocation | None) -> bool:
    current = candidate.job.current
    if current is None or allocation is None or candidate.displaced:
        return False
    return allocation.nodes != current.nodes and allocation.gpus == current.gpus


def _decision(
    workspace: Workspace,
    explainer: Explanations,
    candidate: Candidate,
    allocation: Allocation | None,
    position: int | None,
    governed: int | None,
) -> JobDecision:
    job, option = candidate.job, candidate.option
    if allocation is None or option is None or position is None:
        admission, sentence = explainer.waiting(candidate)
        nearest = _nearest_end(workspace, candidate)
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
    sentence = explainer.placed(candidate, position, len(allocation.nodes))
    risk, nearest = False, None
    if candidate.dated and job.seconds_to_deadline is not None:
        unmoved = job.current is not None and job.current.nodes == allocation.nodes
        end = candidate.remaining * seconds + (0.0 if unmoved else workspace.snapshot.restart_seconds)
        risk = end > job.seconds_to_deadline
        if risk:
            nearest = min(end, _nearest_end(workspace, candidate) or end)
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
        # A cap that holds it lower than that would hold it at least there.
        governed_clock_megahertz=option.curves.clocks_megahertz[
            min(position, option.governed_index if governed is None else governed)
        ]
        if job.observed
        else None,
    )


def _nearest_end(workspace: Workspace, candidate: Candidate) -> float | None:
    """Seconds until the job could be done at best: its fastest size and clock, after a restart; None if nobody knows."""
    if not candidate.dated or not candidate.pools:
        return None
    kinds = {workspace.book.kind_of(pool): pool for pool in candidate.pools}
    options = [workspace.book.at(candidate.index, pool, gpus) for pool in kinds.values() for gpus in candidate.ladder]
    best = min((option.best_seconds for option in options if option is not None), default=None)
    return None if best is None else candidate.remaining * best + workspace.snapshot.restart_seconds
