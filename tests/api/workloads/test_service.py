"""Whether a Service still gives each rank of its incarnation an address."""

from __future__ import annotations

from typing import Any

import pytest
from flyball_api.workloads import read_service

LABELS = {"flyball.dev/job-name": "train", "flyball.dev/job-uid": "u", "flyball.dev/incarnation": "2"}
OTHER = {**LABELS, "flyball.dev/incarnation": "1"}


def raw_service(metadata: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    made = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": LABELS,
        "ports": [{"name": "rendezvous", "port": 29400, "protocol": "TCP", "targetPort": 29400}],
    }
    return {
        "kind": "Service",
        "metadata": {"name": "train-2", "namespace": "team", "labels": LABELS, **(metadata or {})},
        "spec": {**made, **spec},
    }


def test_what_others_add_to_its_metadata_leaves_it_whole() -> None:
    view = read_service(raw_service({"labels": {**LABELS, "team": "x"}}, type="ClusterIP", clusterIPs=["None"]))
    assert (view.name, view.job_uid, view.deleting, view.whole) == ("train-2", "u", False, True)


@pytest.mark.parametrize(
    "raw",
    [
        raw_service(selector={"app": "other"}),
        raw_service(selector={**LABELS, "app": "other"}),
        raw_service(selector=None),
        raw_service(publishNotReadyAddresses=False),
        raw_service(clusterIP="10.0.0.7"),
        raw_service(clusterIP="", type="ExternalName"),
        raw_service(ports=[{"port": 80}]),
        raw_service(ports=None),
        raw_service({"labels": {"flyball.dev/job-uid": "u"}}),
        raw_service({"labels": OTHER}, selector=OTHER),
    ],
)
def test_one_by_which_ranks_do_not_find_each_other_is_not(raw: dict[str, Any]) -> None:
    assert not read_service(raw).whole
