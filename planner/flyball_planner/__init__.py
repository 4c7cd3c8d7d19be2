"""The planner: from a snapshot of a cluster to each job's GPUs, nodes, clock and power limit, and why.

`plan` is the door: a `ClusterSnapshot` of `NodeState`s, `JobState`s and `CapConstraint`s in, a `Plan` out, as a `Policy`
decides. Pure: no clock, no network, no state, and no files but the catalogues that come with the package.
"""

from flyball_planner.planner import plan
from flyball_planner.policies.view import Policy
from flyball_planner.snapshot import CapConstraint, ClusterSnapshot, JobState, NodeState, Plan

__all__ = ["CapConstraint", "ClusterSnapshot", "JobState", "NodeState", "Plan", "Policy", "plan"]
