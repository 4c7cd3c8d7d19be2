"""What jobs may have by nodes and quotas, whatever one node says of its GPUs."""

from __future__ import annotations

from typing import Any

import pytest
from flyball_api.energy.quota import read_energy_quota
from flyball_operator.cluster.state import ClusterState
from flyball_operator.jobs.feasibility.allowances import Allowances
from flyball_operator.jobs.feasibility.fitting import Fit
from flyball_operator.power.nodes.info import NodeInfo

from tests.support.operator_objects import NOW, job_view, raw_device, ready_node


def fit(*nodes: NodeInfo, watts: int) -> Fit:
    """What a job of eight GPUs may have in a namespace that has so many watts."""
    job = job_view("train", gpus={"min": 8, "max": 8})
    metadata = {"name": "team", "namespace": "team", "uid": "uid-quota"}
    quota = read_energy_quota({"metadata": metadata, "spec": {"watts": watts}})
    cluster = ClusterState({job.uid: job}, [], {}, [], [], {}, {}, {}, (), 0.0, energy_quotas=[quota])
    by_name = {info.name: info for info in nodes}
    return Allowances(["nvidia.com/gpu"]).fits(cluster, by_name, [job], lambda job: None, {}, NOW)[job.uid]


def odd_node(**limits: Any) -> NodeInfo:
    """A node whose agent reports other limits of its GPUs than those of the same product have elsewhere."""
    devices: list[dict[str, Any]] = [raw_device(index, **limits) for index in range(8)]
    return ready_node("odd", devices=devices)


@pytest.mark.parametrize("milliwatts", [390_000, 10_000_000])
def test_what_one_node_reports_takes_no_watts_of_a_quota(milliwatts: int) -> None:
    """It would stop what runs in each namespace that has one."""
    odd = odd_node(minMilliwatts=milliwatts, defaultMilliwatts=milliwatts, maxMilliwatts=milliwatts)
    alone = fit(ready_node("a"), ready_node("b"), watts=800)
    assert alone.refusal is None
    assert fit(ready_node("a"), ready_node("b"), odd, watts=800) == alone


def test_where_most_gpus_need_more_a_quota_carries_fewer() -> None:
    odd = odd_node(minMilliwatts=200_000)
    refusal = fit(odd, watts=800).refusal
    assert refusal is not None
    assert "only the 4 GPUs that the 800 W of EnergyQuota team carry" in refusal.message
    assert fit(odd, watts=1600).refusal is None
