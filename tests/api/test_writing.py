"""Objects that our own code writes are those that people write: short, valid, and read again as they were meant."""

from __future__ import annotations

from typing import Any

import pytest
from flyball_api import energy_aware_job, power_cap
from flyball_api.energy import quota
from flyball_api.energy.quota import EnergyQuotaSpec, read_energy_quota
from flyball_api.energy_aware_job import Elasticity, EnergyAwareJobSpec, GpuRange, Training, read_energy_aware_job
from flyball_api.power_cap import CapSchedule, EnergyBudget, PowerCapSpec, read_power_cap
from flyball_api.reading import ApiStruct
from flyball_api.values.label_selector import LabelSelector, Requirement, SelectorOperator
from flyball_api.writing import api_object, spec_patch

from tests.support.crd_schema import assert_valid

JOB = EnergyAwareJobSpec(
    gpus=GpuRange(1, 4),
    training=Training(64, model_class="gpt2"),
    template={"spec": {"containers": [{"name": "trainer", "env": []}]}},
    elasticity=Elasticity(min_seconds_between_resizes=0),
)
CAP = PowerCapSpec(
    watts=4000,
    node_selector=LabelSelector({"row": "a"}, (Requirement("zone", SelectorOperator.IN, frozenset({"b"})),)),
    schedule=(CapSchedule("night", 3000, cron="0 22 * * *", duration_seconds=60),),
)
QUOTA = EnergyQuotaSpec(gpus=32, energy_budget=EnergyBudget(1900, 86400))


def test_what_has_its_default_is_left_to_the_api_server() -> None:
    assert api_object("EnergyAwareJob", "gpt2", JOB, namespace="team") == {
        "apiVersion": "flyball.dev/v1alpha1",
        "kind": "EnergyAwareJob",
        "metadata": {"name": "gpt2", "namespace": "team"},
        "spec": {
            "gpus": {"min": 1, "max": 4},
            "training": {"globalBatchSize": 64, "modelClass": "gpt2"},
            "template": {"spec": {"containers": [{"name": "trainer", "env": []}]}},
            "elasticity": {"minSecondsBetweenResizes": 0},
        },
    }
    assert api_object("PowerCap", "row-a", CAP)["spec"] == {
        "watts": 4000,
        "nodeSelector": {
            "matchLabels": {"row": "a"},
            "matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}],
        },
        "schedule": [{"name": "night", "watts": 3000, "cron": "0 22 * * *", "durationSeconds": 60}],
    }


@pytest.mark.parametrize(
    ("kind", "spec", "read"),
    [
        (energy_aware_job.KIND, JOB, read_energy_aware_job),
        (power_cap.KIND, CAP, read_power_cap),
        (quota.KIND, QUOTA, read_energy_quota),
    ],
)
def test_what_is_written_is_valid_and_read_again_as_it_was(kind: str, spec: ApiStruct, read: Any) -> None:
    written = api_object(kind, "it", spec)
    assert_valid(kind, "spec", written["spec"])
    stored = {**written["metadata"], "uid": "u", "creationTimestamp": "2030-06-01T12:00:00Z"}
    assert read({**written, "metadata": stored}).spec == spec


def test_some_fields_of_a_spec_are_patched_by_their_names() -> None:
    assert spec_patch(EnergyAwareJobSpec, suspend=True, gpus=GpuRange(2, 4), flexible_until=None) == {
        "spec": {"suspend": True, "gpus": {"min": 2, "max": 4}, "flexibleUntil": None}
    }
    assert spec_patch(PowerCapSpec, watts=4000) == {"spec": {"watts": 4000}}
    with pytest.raises(KeyError, match="wats"):
        spec_patch(PowerCapSpec, wats=4000)
