"""What jobs may have by nodes and quotas, whatever one node says of its GPUs."""

from __future__ import annotations

from typing import Any

import pytest
from flyball_api.energy.quota import read_energy_quota
from flyball_operator.cluster.state import ClusterState
from flyball_operator.jobs.feasibility.allowances import Allowances
from flyball_operator.jobs.feasibility.fitting import Fit
from flyball_operator.power.nodes.info import NodeInfo

from tests.support.operator_objects import A100, NOW, job_view, raw_device, ready_node


def fit(*nodes: NodeInfo, watts: int) -> Fit:
    """What a job of eight GPUs may have in a namespace that has so many watts."""
    job = job_view("train", gpus={"min": 8, "max": 8})
    metadata = {"name": "team", "namespace": "team", "uid": "uid-quota"}
    quota = read_energy_quota({"metadata": metadata, "spec": {"watts": watts}})
    cluster = ClusterState({job.uid: job}, [], {}, [], [], {}, {}, {}, (), 0.0, energy_quotas=[quota])
    by_name = {info.name: info for info in nodes}
    return Allowances(["nvidia.com/gpu"]).fits(cluster, by_name, [job], lambda job: None, {}, NOW)[job.uid]


def odd_node(gpus: int = 8, product: str = A100, **limits: Any) -> NodeInfo:
    """A node whose agent reports other limits of its GPUs than those of the same product have elsewhere, or other GPUs."""
    devices: list[dict[str, Any]] = [raw_device(index, **limits) for index in range(gpus)]
    return ready_node("odd", devices=devices, product=product)


@pytest.mark.parametrize("milliwatts", [390_000, 10_000_000])
def test_what_one_node_reports_takes_no_watts_of_a_quota(milliwatts: int) -> None:
    """It would stop what runs in each namespace that has one."""
    odd = odd_node(minMilliwatts=milliwatts, defaultMilliwatts=milliwatts, maxMilliwatts=milliwatts)
    alone = fit(ready_node("a"), ready_node("b"), watts=800)
    assert alone.refusal is None
    assert fit(ready_node("a"), ready_node("b"), odd, watts=800) == alone


def test_no_product_that_one_node_alone_reports_takes_all_watts_of_a_quota() -> None:
    """No GPU that is sold has a smallest limit above 200 W."""
    highest = {f"{kind}Milliwatts": 10_000_000 for kind in ("min", "default", "max")}
    others = [ready_node("a"), ready_node("b")]
    alone = fit(*others, watts=1600)
    assert alone.refusal is None
    assert fit(*others, odd_node(product="NVIDIA-Odd", **highest), watts=1600).refusal is None
    assert fit(*others, odd_node(product="NVIDIA-L40S", **highest), watts=800).refusal is None, "known to need 100 W"


def test_a_product_that_few_nodes_have_counts_with_what_its_gpus_need() -> None:
    h100 = {"minMilliwatts": 200_000, "defaultMilliwatts": 700_000, "maxMilliwatts": 700_000}
    others = [ready_node("a"), ready_node("b")]
    odd = odd_node(product="NVIDIA-H100-80GB-HBM3", **h100)
    refusal = fit(*others, odd, watts=800).refusal
    assert refusal is not None
    assert "only the 4 GPUs that the 800 W of EnergyQuota team carry" in refusal.message
    assert fit(*others, odd, watts=1600).refusal is None


def test_a_node_that_reports_many_gpus_is_one_node() -> None:
    odd = odd_node(64, minMilliwatts=390_000)
    assert fit(ready_node("a"), ready_node("b"), odd, watts=800).refusal is None


def test_where_most_gpus_need_more_a_quota_carries_fewer() -> None:
    odd = odd_node(minMilliwatts=200_000)
    refusal = fit(odd, watts=800).refusal
    assert refusal is not None
    assert "only the 4 GPUs that the 800 W of EnergyQuota team carry" in refusal.message
    assert fit(odd, watts=1600).refusal is None
