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
from flyball_planner.plan_result import result


def plan_strictly(snapshot: ClusterSnapshot) -> Plan:
    """Every step is weighed with its nodes, its caps and its restart; planning again changes nothing."""
    return consolidated(snapshot, _allocated)


def _allocated(snapshot: ClusterSnapshot) -> Plan:
    workspace = Workspace(snapshot)
    allocate(workspace.ledger, workspace.claims, workspace.stepper)
    placed = place(workspace.ledger, workspace.claims)
    clocks = choose_clocks(workspace.ledger, workspace.claims)
    return result(workspace, placed, clocks, partial(Explainer, workspace.ledger, workspace.stepper))
