"""The plan of `powerflow-strict`: PowerFlow's greedy, with consolidation where that is asked for."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from flyball_planner.decisions.explain import Explainer
from flyball_planner.decisions.result import NoExplanation, result
from flyball_planner.ledger.clocks import assign_clocks
from flyball_planner.ledger.workspace import Workspace
from flyball_planner.placement.place import place
from flyball_planner.powerflow.empty_nodes import consolidated
from flyball_planner.powerflow.greedy import allocate
from flyball_planner.powerflow.queue import queue_of
from flyball_planner.snapshot import ClusterSnapshot, Plan


def plan_strictly(snapshot: ClusterSnapshot, *, explained: bool = True) -> Plan:
    """Every step is weighed with its nodes, its caps and its restart; planning again changes nothing.

    Without being `explained` the plan is the same, its explanations are empty, and a waiting job has no reason and no place
    in the queue.
    """
    return consolidated(snapshot, partial(_allocated, explained=explained))


def _allocated(snapshot: ClusterSnapshot, explained: bool) -> Plan:
    workspace = Workspace(snapshot)
    allocate(workspace.state, workspace.candidates, workspace.stepper)
    placed = place(workspace.state, workspace.candidates)
    clocks = assign_clocks(workspace.state, workspace.candidates)
    if not explained:
        return result(workspace, placed, clocks, NoExplanation)
    made = result(workspace, placed, clocks, partial(Explainer, workspace.state, workspace.stepper))
    return replace(made, queue=queue_of(workspace, clocks))
