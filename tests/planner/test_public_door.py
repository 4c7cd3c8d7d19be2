"""What a caller needs of the planner is imported in one line, and is enough to make a plan."""

from __future__ import annotations

import flyball_planner
from flyball_planner import CapConstraint, ClusterSnapshot, JobState, NodeState, Plan, Policy, plan
from flyball_planner.models.gpu import gpu_model_for
from flyball_planner.models.priors import model_class_prior
from flyball_planner.policies.registry import policy_named


def test_one_line_is_enough_to_plan() -> None:
    a100 = gpu_model_for("NVIDIA-A100-SXM4-40GB")
    assert a100 is not None
    node = NodeState("node", a100, gpus=8)
    job = JobState("uid", "ns/job", 1, 8, 256, model_class_prior("gpt2", a100), submit_time_seconds=0.0)
    cap = CapConstraint("row", frozenset({"node"}), budget_watts=2000.0)
    made = plan(ClusterSnapshot((node,), (job,), (cap,)))
    assert isinstance(made, Plan)
    assert made.decisions[0].allocation is not None
    assert made.caps[0].committed_watts <= 2000.0


def test_every_policy_of_the_registry_is_one() -> None:
    policy: Policy = policy_named("afs")
    assert policy.name == "afs"


def test_every_name_of_the_door_is_there() -> None:
    assert all(hasattr(flyball_planner, name) for name in flyball_planner.__all__)
    assert {"plan", "ClusterSnapshot", "NodeState", "JobState", "CapConstraint", "Plan", "Policy"} <= set(
        flyball_planner.__all__
    )
