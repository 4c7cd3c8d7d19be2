"""Which queues of the API server the operator and the agents wait in: what a cut waits for in none with all else."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from flyball_api.names import DEFAULT_NAMESPACE
from flyball_kube.errors import ApiError
from flyball_testbed.controlplane import install
from flyball_testbed.controlplane.api import ApiClient
from flyball_testbed.controlplane.cluster import DevCluster

from tests.support.waiting import wait_until

GROUP = "/apis/flyball.dev/v1alpha1"
FLOWS = "/apis/flowcontrol.apiserver.k8s.io/v1"


def taken_up(api: ApiClient, flow_schema: str, level: str) -> float:
    """How many requests the API server has taken up so far by this schema on this priority level."""
    metrics: str = api.request("GET", "/metrics")
    found = re.findall(r"^apiserver_flowcontrol_dispatched_requests_total\{(.*)\} (\S+)$", metrics, re.MULTILINE)
    wanted = f'flow_schema="{flow_schema}",priority_level="{level}"'
    return sum(float(count) for labels, count in found if labels == wanted)


@pytest.mark.parametrize(
    ("account", "request_of", "flow_schema", "level"),
    [
        (install.OPERATOR, lambda api: api.get(f"{GROUP}/gpunodes"), "flyball-operator", "flyball-power"),
        (install.AGENT, lambda api: api.get(f"{GROUP}/gpunodes"), "flyball-agents", "flyball-agents"),
        (install.AGENT, lambda api: api.get(f"{GROUP}/powerbrakes"), "flyball-acknowledgements", "flyball-power"),
        (
            install.AGENT,
            lambda api: api.patch(f"{GROUP}/brakeacknowledgements/nobody", {"spec": {}}),
            "flyball-acknowledgements",
            "flyball-power",
        ),
    ],
)
def test_requests_wait_in_the_queue_that_is_meant_for_them(
    control_plane: DevCluster, account: str, request_of: Callable[[ApiClient], Any], flow_schema: str, level: str
) -> None:
    plane = control_plane.control_plane
    client = plane.api_with_token(plane.token(DEFAULT_NAMESPACE, account))
    before = taken_up(control_plane.api, flow_schema, level)

    def is_taken_up() -> bool:
        with suppress(ApiError):  # whether it may or not, it has waited for its turn
            request_of(client)
        return taken_up(control_plane.api, flow_schema, level) > before

    try:
        wait_until(is_taken_up, seconds=30)  # a schema is in force a moment after it was created
    finally:
        client.close()


def test_no_acknowledgement_of_five_thousand_agents_is_turned_away(control_plane: DevCluster) -> None:
    schema = control_plane.api.get(f"{FLOWS}/flowschemas/flyball-acknowledgements")
    level = schema["spec"]["priorityLevelConfiguration"]["name"]
    queuing = control_plane.api.get(f"{FLOWS}/prioritylevelconfigurations/{level}")["spec"]["limited"]["limitResponse"]
    assert queuing["queuing"]["queueLengthLimit"] >= 5000
    assert [each["status"] for each in schema["status"]["conditions"] if each["type"] == "Dangling"] == ["False"]
