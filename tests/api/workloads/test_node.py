"""Nodes out of raw API objects."""

from __future__ import annotations

import pytest
from flyball_api.workloads import read_node
from flyball_api.workloads.node import MOST_GPUS

from tests.support.operator_objects import A100, raw_node


def test_a_node() -> None:
    raw = raw_node("a", 8, taints=[{"key": "flyball.dev/unacknowledged", "effect": "NoSchedule"}])
    view = read_node(raw)
    assert (view.name, view.hostname, view.gpus, view.product) == ("a", "a", 8, A100)
    assert (view.ready, view.cordoned, view.startup_taint) == (True, False, True)


def test_the_boot_in_which_a_kubelet_reported() -> None:
    raw = raw_node("a")
    assert read_node(raw).boot_id == ""
    raw["status"]["nodeInfo"] = {"bootID": "0c7e", "kernelVersion": "6.1"}
    assert read_node(raw).boot_id == "0c7e"


def test_a_node_that_is_away() -> None:
    view = read_node(raw_node("a", 0, ready=False, unschedulable=True))
    assert (view.gpus, view.ready, view.cordoned, view.startup_taint) == (0, False, True, False)


def test_a_node_that_says_nothing() -> None:
    view = read_node({"metadata": {"name": "a"}})
    assert (view.hostname, view.gpus, view.product, view.ready) == ("a", 0, "", False)


def test_gpus_are_counted_under_every_name_that_they_go_by() -> None:
    raw = raw_node("a", 8, resource="example.com/gpu")
    raw["status"]["capacity"]["nvidia.com/gpu"] = "2"
    assert (read_node(raw).gpus, read_node(raw).gpu_resources) == (2, {"nvidia.com/gpu"})
    both = read_node(raw, ["nvidia.com/gpu", "example.com/gpu"])
    assert (both.gpus, both.gpu_resources) == (10, {"nvidia.com/gpu", "example.com/gpu"})


@pytest.mark.parametrize("gpus", [MOST_GPUS + 1, 384, 2**63 - 1])
def test_no_node_has_more_gpus_than_a_gpu_node_can_say(gpus: int) -> None:
    """A kubelet states any number, and slices may be offered as GPUs without a label that says so."""
    view = read_node(raw_node("a", gpus))
    assert (view.gpus, view.allocatable_gpus, view.hidden_gpus) == (MOST_GPUS, MOST_GPUS, 0)
    assert read_node(raw_node("a", MOST_GPUS)).gpus == MOST_GPUS
    hidden = raw_node("a", 0)
    hidden["metadata"]["labels"]["nvidia.com/gpu.count"] = str(gpus)
    assert read_node(hidden).hidden_gpus == MOST_GPUS
    parts = raw_node("a", gpus, resource="nvidia.com/mig-1g.5gb")
    assert read_node(parts).hidden_gpus <= MOST_GPUS


def test_of_many_slices_the_gpus_are_counted() -> None:
    raw = raw_node("a", 384)
    raw["metadata"]["labels"]["nvidia.com/gpu.replicas"] = "48"
    assert (read_node(raw).gpus, read_node(raw).hidden_gpus) == (0, 8)
