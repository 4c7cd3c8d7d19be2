"""`plan(snapshot)`: one decision for each job, from one frozen view of the cluster, and the same one every time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

from flyball_planner.decisions.explain import Explainer
from flyball_planner.decisions.result import result
from flyball_planner.ledger.clocks import assign_clocks
from flyball_planner.ledger.workspace import Workspace
from flyball_planner.placement.place import place
from flyball_planner.policies.explain import ChoiceExplainer
from flyball_planner.policies.on_nodes import queue_by_policy, realise
from flyball_planner.policies.registry import policy_named
from flyball_planner.policies.view import Policy
from flyball_planner.snapshot import ClusterSnapshot, Plan

DEFAULT_POLICY = "powerflow-strict"


@runtime_checkable
class SnapshotPolicy(Protocol):
    """A policy that weighs a snapshot's nodes and caps itself, instead of a view that knows little of them."""

    def plan(self, snapshot: ClusterSnapshot) -> Plan: ...


def plan(snapshot: ClusterSnapshot, policy: str = DEFAULT_POLICY) -> Plan:
    """Decide for every job of the snapshot: size, nodes, clock, power limit, and why.

    Pure and deterministic: the order of the snapshot's parts does not matter. What a feasible cap counts never exceeds its
    budget, whatever the policy. Under `powerflow-strict`, planning again after the plan is in force changes nothing. Raises
    ValueError for an unknown policy.
    """
    chosen = policy_named(policy)
    return chosen.plan(snapshot) if isinstance(chosen, SnapshotPolicy) else plan_by_choices(snapshot, chosen)


def plan_by_choices(snapshot: ClusterSnapshot, policy: Policy) -> Plan:
    """The plan of any policy: its sizes as far as there is room, its clocks as far as the caps bear them."""
    workspace = Workspace(snapshot)
    chosen = realise(workspace, policy)
    placed = place(workspace.state, workspace.candidates)
    governed = {
        candidate.index: chosen.top(candidate) for candidate in workspace.candidates if candidate.option is not None
    }
    tops = {
        candidate.index: candidate.option.top_index if candidate.job.observed else governed[candidate.index]
        for candidate in workspace.candidates
        if candidate.option is not None
    }
    clocks = assign_clocks(workspace.state, workspace.candidates, tops)

    def explanations(left_watts: Sequence[float]) -> ChoiceExplainer:
        return ChoiceExplainer(workspace.state, Explainer(workspace.state, workspace.stepper, left_watts), chosen)

    made = result(workspace, placed, clocks, explanations, governed)
    return replace(made, queue=queue_by_policy(workspace, chosen, policy.traits, clocks))
