"""What somebody is told before they say that a node need hold its watts no more."""

from __future__ import annotations

from flyball_api.gpu_node import read_gpu_node
from flyball_cli.cluster.release import what_a_node_holds

from tests.support import shown_cluster


def test_a_node_counts_with_what_it_was_granted_or_else_with_all_that_its_gpus_could_draw() -> None:
    raw = shown_cluster.serving_node()
    largest = sum(device["limits"]["maxMilliwatts"] for device in raw["status"]["devices"]) // 1000
    granted = raw["spec"]["committedMilliwatts"] // 1000
    assert largest > granted
    told = what_a_node_holds(read_gpu_node(raw))
    assert (
        told == f"not deleted; it counts with {granted} W, or with {largest} W where its limits are not proven any more"
    )


def test_what_nobody_knows_of_its_gpus_is_a_dash() -> None:
    raw = shown_cluster.serving_node()
    raw["status"]["devices"][0]["limits"] = {}
    assert "or with - where" in what_a_node_holds(read_gpu_node(raw))
