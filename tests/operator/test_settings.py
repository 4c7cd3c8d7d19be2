"""Settings that cannot be are refused before anything starts."""

from __future__ import annotations

import pytest
from flyball_operator.settings import Settings
from flyball_planner.cluster import Consolidation
from flyball_planner.policies.registry import policy_names


@pytest.mark.parametrize("policy", sorted({"powerflow-strict", "tiresias+zeus", *policy_names()}))
def test_every_policy_can_be_chosen(policy: str) -> None:
    assert Settings(policy=policy).policy == policy


def test_an_unknown_policy_is_refused_with_the_names_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"policy 'fair-share' is unknown; there is .*fifo"):
        Settings(policy="fair-share")
    with pytest.raises(ValueError, match="Zeus cannot"):
        Settings(policy="price+zeus")


def test_nodes_are_emptied_only_where_that_is_asked_for() -> None:
    assert Settings().consolidation is None
    assert Settings(empty_node_hold_seconds=600.0, empty_node_watts=350.0).consolidation == Consolidation(350.0, 600.0)
    with pytest.raises(ValueError, match=r"hold_seconds is -1\.0"):
        Settings(empty_node_hold_seconds=-1.0)
    with pytest.raises(ValueError, match="powerflow-strict only, and the policy is fifo"):
        Settings(policy="fifo", empty_node_hold_seconds=600.0)
