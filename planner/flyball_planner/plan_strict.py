"""The plan of `powerflow-strict`: PowerFlow's greedy on the ledger itself, with consolidation where that is asked for."""

from __future__ import annotations

from functools import partial

from flyball_planner.allocation import allocate
from flyball_planner.allocation_clocks import choose_clocks
from flyball_planner.cluster import ClusterSnapshot, Plan
from flyball_planner.explain import Explainer
from flyball_planner.placement import place
from flyball_planner.plan_claims import Workspace
from flyball_planner.plan_consolidation import consolidated
from flyball_planner.plan_result import Silent, result


def plan_strictly(snapshot: ClusterSnapshot, *, explained: bool = True) -> Plan:
    """Every step is weighed with its nodes, its caps and its restart; planning again changes nothing.

    Without being `explained` the plan is the same, its sentences are empty, and who waits is not told for what.
    """
    return consolidated(snapshot, partial(_allocated, explained=explained))


def _allocated(snapshot: ClusterSnapshot, explained: bool) -> Plan:
    workspace = Workspace(snapshot)
    allocate(workspace.ledger, workspace.claims, workspace.stepper)
    placed = place(workspace.ledger, workspace.claims)
    clocks = choose_clocks(workspace.ledger, workspace.claims)
    sentences = partial(Explainer, workspace.ledger, workspace.stepper) if explained else Silent
    return result(workspace, placed, clocks, sentences)
