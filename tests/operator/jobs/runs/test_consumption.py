"""What every job has used, whatever has become of it: live, ended, deleted while its last pods go on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
from flyball_api.energy_aware_job import EnergyAwareJob
from flyball_operator.cluster.state import ClusterState
from flyball_operator.jobs.runs.consumption import DEPARTED_SECONDS, Consumptions
from flyball_operator.jobs.runs.energy_history import EnergyHistories
from flyball_operator.jobs.runs.progress import JobProgress
from flyball_operator.power.nodes.info import read_nodes

from tests.support.operator_objects import gpu_node_view, grant, job_view, node_view, raw_report


def world(*jobs: EnergyAwareJob, millijoules: int | None = None, incarnation: int = 1) -> ClusterState:
    """A cluster with one node, whose agent reports so much of the job `train`."""
    reports = [] if millijoules is None else [raw_report("uid-train", incarnation, millijoules)]
    node = gpu_node_view("a", grant(800_000), reports=reports)
    return ClusterState({job.uid: job for job in jobs}, [], {"a": node}, [], [], {}, {}, {}, (), 0.0)


def used(found: list[Any]) -> dict[str, int]:
    return {item.name: item.millijoules for item in found}


def progress(millijoules: int) -> JobProgress:
    return JobProgress(open_millijoules={"1/a": millijoules})


def test_a_deleted_jobs_last_pods_go_on_to_count_for_a_while() -> None:
    consumptions, job = Consumptions(EnergyHistories()), job_view()
    nodes = read_nodes([node_view("a")], {}, [], frozenset())
    assert used(consumptions.observe(world(job), {job.uid: progress(5000)}, nodes, 0.0)) == {"train": 5000}
    assert used(consumptions.observe(world(millijoules=7000), {}, nodes, 10.0)) == {"train": 7000}
    assert used(consumptions.observe(world(), {}, nodes, 20.0)) == {"train": 7000}
    assert list(consumptions.departed) == ["uid-train"]
    assert consumptions.observe(world(), {}, nodes, 11.0 + DEPARTED_SECONDS) == []


def test_no_agents_word_counts_for_more_than_gpus_can_use() -> None:
    consumptions, job = Consumptions(EnergyHistories()), job_view()
    nodes = read_nodes([node_view("a")], {"a": world(millijoules=0).gpu_nodes["a"]}, [], frozenset())
    consumptions.observe(world(job), {job.uid: progress(5000)}, nodes, 0.0)
    (found,) = consumptions.observe(world(millijoules=10**15), {}, nodes, 10.0)
    assert 5000 <= found.millijoules < 10**12


def test_what_an_ended_job_used_is_in_its_status() -> None:
    status = {
        "conditions": [{"type": "Succeeded", "status": "True"}],
        "completionTime": "2030-06-01T13:00:00Z",
        "energy": {"settledMillijoules": 9000},
    }
    ended = job_view(status=status)
    (found,) = Consumptions(EnergyHistories()).observe(world(ended), {}, {}, 0.0)
    assert found.millijoules == 9000
    assert found.ended_at == ended.status.completion_time


def test_a_status_that_is_behind_takes_nothing_back() -> None:
    consumptions, job = Consumptions(EnergyHistories()), job_view()
    consumptions.observe(world(job), {job.uid: progress(5000)}, {}, 0.0)
    ended = job_view(status={"conditions": [{"type": "Failed", "status": "True"}]})
    newer = replace(ended, metadata=msgspec.structs.replace(ended.metadata, resource_version="99"))
    assert used(consumptions.observe(world(newer), {}, {}, 1.0)) == {"train": 5000}


def test_jobs_that_are_nobodys_here_are_not_counted() -> None:
    other = job_view(managedBy="example.com/other")
    assert Consumptions(EnergyHistories()).observe(world(other), {}, {}, 0.0) == []
