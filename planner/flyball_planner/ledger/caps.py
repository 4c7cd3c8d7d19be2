"""What a cap counts: the watts of nodes that cannot be commanded, of idle GPUs, and of jobs at their sizes and clocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from flyball_planner.ledger.pools import idle_limit_watts
from flyball_planner.snapshot import CapConstraint, Enforcement, NodeState

WATT_TOLERANCE = 1e-6  # sums of a few thousand whole watts are exact; predicted draws are not


class Accounting(Enum):
    """What the planner sums for a cap: limits, predicted draw, or predicted draw with every limit at its smallest.

    The last is for a Hard cap below what its nodes hold at their smallest limits: no plan can make it true, so all limits
    go to the smallest, and jobs are paused until at least the predicted draw fits.
    """

    LIMITS = "limits"
    DRAW = "draw"
    DRAW_AT_MIN_LIMITS = "at_min_limits draw"


@dataclass(frozen=True, slots=True)
class CapAccount:
    """One cap as the planner holds it: what it sums, what is there with every job paused, and what that leaves."""

    constraint: CapConstraint
    accounting: Accounting
    feasible: bool
    committed_at_min_watts: float  # with every job paused, in the cap's own enforcement
    base_watts: float  # the same, in `accounting`

    @property
    def headroom_watts(self) -> float:
        """Watts that jobs may add above their GPUs' idle watts; negative where not even the idle nodes fit."""
        return self.constraint.budget_watts - self.base_watts


def node_base_watts(node: NodeState, *, limits: bool) -> float:
    """A node's watts with every job paused: by limits, or by predicted draw; a fixed hold stands for the whole node."""
    if node.fixed_bound_watts is not None:
        return node.fixed_bound_watts if limits or node.fixed_draw_watts is None else node.fixed_draw_watts
    idle = idle_limit_watts(node) if limits else node.gpu_model.idle_power_watts
    reserved = node.foreign_gpus * node.foreign_power_limit_watts + node.lost_gpus * node.lost_power_limit_watts
    return reserved + node.usable_gpus * idle


def cap_accounts(caps: Sequence[CapConstraint], nodes: Mapping[str, NodeState]) -> tuple[CapAccount, ...]:
    """How each cap is to be held: infeasible where not even its paused nodes fit.

    Names of nodes that the snapshot lacks count for nothing: their watts are the snapshot's maker's to subtract.
    """
    accounts = []
    for cap in caps:
        members = [nodes[name] for name in sorted(cap.node_names) if name in nodes]
        hard = cap.enforcement is Enforcement.HARD
        least = sum(node_base_watts(node, limits=hard) for node in members)
        feasible = least <= cap.budget_watts + WATT_TOLERANCE
        if hard and feasible:
            accounts.append(CapAccount(cap, Accounting.LIMITS, feasible, least, least))
        else:
            accounting = Accounting.DRAW_AT_MIN_LIMITS if hard else Accounting.DRAW
            base = sum(node_base_watts(node, limits=False) for node in members)
            accounts.append(CapAccount(cap, accounting, feasible, least, base))
    return tuple(accounts)


def committed_watts(
    cap: CapConstraint,
    nodes: Mapping[str, NodeState],
    placed: Iterable[tuple[Sequence[tuple[str, int]], float, float]],
) -> float:
    """What a cap comes to under a plan, summed anew from the plan itself.

    `placed` are (nodes and GPUs, power limit of one GPU, guarded draw of one GPU) of each job that runs.
    """
    hard = cap.enforcement is Enforcement.HARD
    total = sum(node_base_watts(nodes[name], limits=hard) for name in sorted(cap.node_names) if name in nodes)
    for cells, limit, draw in placed:
        for name, gpus in cells:
            node = nodes.get(name)
            if node is None or name not in cap.node_names or node.fixed_bound_watts is not None:
                continue
            total += gpus * (limit - idle_limit_watts(node) if hard else draw - node.gpu_model.idle_power_watts)
    return total
