"""What the API server notes of who has set which field of a status: one word for all of it.

Where each field is noted by itself, a status costs the API server half as much again (docs/decisions.md).
"""

from __future__ import annotations

from typing import Any

import pytest

NOW = "2026-12-01T08:00:00Z"
STATUSES: dict[str, dict[str, Any]] = {
    "EnergyAwareJob": {
        "conditions": [
            {"type": "Ready", "status": "True", "reason": "Running", "message": "", "lastTransitionTime": NOW}
        ],
        "energy": {"incarnations": [{"key": "1/node", "millijoules": 5}]},
        "summary": {"power": "1 W"},
    },
    "PowerCap": {"effectiveWatts": 5, "nodes": 1},
    "EnergyQuota": {"observedGeneration": 3},
    "EnergyProfile": {"conditions": []},
}


def put_status(kinds: Any, stored: dict[str, Any], status: dict[str, Any]) -> dict[str, Any]:
    """As the operator does."""
    names = ("name", "namespace", "uid", "resourceVersion")
    metadata = {key: stored["metadata"][key] for key in names if key in stored["metadata"]}
    path = f"{kinds.path(stored['kind'], metadata['name'])}/status"
    body = {key: stored[key] for key in ("apiVersion", "kind")} | {"metadata": metadata, "status": status}
    answer: dict[str, Any] = kinds.api.replace(path, body)
    return answer


@pytest.mark.parametrize("kind", STATUSES)
def test_a_status_is_tracked_as_a_whole_and_leaves_the_spec_as_it_is(kinds: Any, kind: str) -> None:
    stored = kinds.api.create(kinds.path(kind), kinds.object(kind, name="tracked"))
    after = put_status(kinds, stored, STATUSES[kind])
    assert after["status"] == STATUSES[kind]
    assert after["spec"] == stored["spec"]
    assert after["metadata"]["generation"] == stored["metadata"]["generation"]
    noted = [item["fieldsV1"] for item in after["metadata"]["managedFields"] if item.get("subresource") == "status"]
    assert noted == [{"f:status": {}}]
    # What was not in the later status is gone.
    assert put_status(kinds, after, {})["status"] == {}


def test_a_status_of_another_version_or_of_one_made_anew_is_refused(kinds: Any) -> None:
    first = kinds.api.create(kinds.path("EnergyAwareJob"), kinds.object("EnergyAwareJob", name="anew"))
    put_status(kinds, first, {"state": "Running"})
    assert kinds.refusal(put_status, kinds, first, {"state": "Late"}).conflict
    kinds.api.delete(kinds.path("EnergyAwareJob", "anew"))
    gone = kinds.refusal(put_status, kinds, first, {"state": "Late"})
    assert gone.conflict or gone.not_found
    second = kinds.api.create(kinds.path("EnergyAwareJob"), kinds.object("EnergyAwareJob", name="anew"))
    stale = {**first, "metadata": {**first["metadata"], "resourceVersion": second["metadata"]["resourceVersion"]}}
    assert kinds.refusal(put_status, kinds, stale, {"state": "Late"}).conflict
    assert "status" not in kinds.api.get(kinds.path("EnergyAwareJob", "anew"))


def test_a_status_is_validated_as_before(kinds: Any) -> None:
    stored = kinds.api.create(kinds.path("EnergyAwareJob"), kinds.object("EnergyAwareJob", name="validated"))
    twice = {"key": "1/node", "millijoules": 5}
    for wrong, said in (
        ({"energy": {"incarnations": [twice, twice]}}, "Duplicate value"),
        ({"energy": {"watts": -1}}, "status.energy.watts"),
        ({"state": "x" * 65}, "status.state"),
    ):
        refused = kinds.refusal(put_status, kinds, stored, wrong)
        assert refused.invalid
        assert said in refused.message
