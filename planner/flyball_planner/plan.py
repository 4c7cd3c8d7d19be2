"""`plan(snapshot)`: one decision for each job, from one frozen picture of the cluster, and the same one every time."""

from __future__ import annotations

from collections.abc import Sequence

from flyball_planner.allocation_clocks import choose_clocks
from flyball_planner.cluster import ClusterSnapshot, Plan
from flyball_planner.explain import Explainer
from flyball_planner.explain_choices import ChoiceExplainer
from flyball_planner.placement import place
from flyball_planner.plan_choices import realise
from flyball_planner.plan_claims import Workspace
from flyball_planner.plan_result import result
from flyball_planner.plan_strict import plan_strictly
from flyball_planner.policies.registry import policy_named
from flyball_planner.policies.view import Policy

STRICT_POWERFLOW = "powerflow-strict"


def plan(snapshot: ClusterSnapshot, policy: str = STRICT_POWERFLOW) -> Plan:
    """Decide for every job of the snapshot: size, nodes, clock, power limit, and why.

    Pure and deterministic: the order of the snapshot's parts does not matter. What a feasible cap counts never exceeds its
    budget, whatever the policy. Under `powerflow-strict`, planning again after the plan is in force changes nothing. Raises
    ValueError for an unknown policy.
    """
    if policy == STRICT_POWERFLOW:
        return plan_strictly(snapshot)
    return plan_by_choices(snapshot, policy_named(policy))


def check_policy(name: str) -> None:
    """Raise ValueError, listing the names that there are, where no plan can be made by a policy of this name."""
    if name != STRICT_POWERFLOW:
        policy_named(name)


def plan_by_choices(snapshot: ClusterSnapshot, policy: Policy) -> Plan:
    """The plan of any policy: its sizes as far as there is room, its clocks as far as the caps bear them."""
    workspace = Workspace(snapshot)
    chosen = realise(workspace, policy)
    placed = place(workspace.ledger, workspace.claims)
    tops = {claim.index: chosen.top(claim) for claim in workspace.claims if claim.option is not None}
    clocks = choose_clocks(workspace.ledger, workspace.claims, tops)

    def sentences(left_watts: Sequence[float]) -> ChoiceExplainer:
        return ChoiceExplainer(workspace.ledger, Explainer(workspace.ledger, workspace.stepper, left_watts), chosen)

    return result(workspace, placed, clocks, sentences)
