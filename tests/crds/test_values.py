"""Defaults, and what never gets past the API server: malformed, absurd and huge values."""

from __future__ import annotations

import math
from typing import Any

import pytest
from flyball_api.energy.profile import decimal_string
from hypothesis import given
from hypothesis import strategies as st

from tests.support.crd_schema import assert_valid

EAJ, CAP, NODE, PROFILE = "EnergyAwareJob", "PowerCap", "GPUNode", "EnergyProfile"
UUID = "GPU-5b0c1f9e-3a64-4c1e-9a55-0d7f6f1f2a3b"
NOW = "2026-12-01T08:00:00Z"


def test_an_energy_aware_job_is_completed_with_defaults(kinds: Any) -> None:
    spec = kinds.try_create(
        kinds.object(
            EAJ,
            {
                "energy": {"budgetKilojoules": 10},
                "pipeline": {"stages": 2, "microbatches": 8, "plan": {"configMap": "gpt3"}},
                "gpus": {"min": 2},
                "profileKey": "k",
                "recurrence": {"batchSizes": [256], "targetMetric": "accuracy>=0.75"},
            },
        )
    )["spec"]
    assert spec["gpus"]["resourceName"] == "nvidia.com/gpu"
    assert spec["objective"] == "Balanced"
    assert spec["energy"]["onExhausted"] == "Throttle"
    assert spec["elasticity"] == {"mode": "CheckpointRestart", "minSecondsBetweenResizes": 600}
    assert spec["pipeline"] == {
        "stages": 2,
        "microbatches": 8,
        "plan": {"configMap": "gpt3", "key": "plan.json"},
    }
    assert spec["recurrence"]["energyWeightPermille"] == 500
    assert spec["failurePolicy"] == {"maxRestarts": 3}
    assert (spec["priority"], spec["suspend"]) == (0, False)


def test_the_template_is_kept_as_it_is(kinds: Any) -> None:
    template = {
        "metadata": {"annotations": {"a": "b"}},
        "spec": {"containers": [{"name": "t", "novelty": {"x": [1, None, 1.5]}}]},
    }
    assert kinds.try_create(kinds.object(EAJ, {"template": template}))["spec"]["template"] == template


def test_a_power_cap_is_completed_with_defaults(kinds: Any) -> None:
    spec = kinds.try_create(kinds.object(CAP))["spec"]
    assert spec == {
        "watts": 40_000,
        "enforcement": "Hard",
        "onInfeasible": "Pause",
        "staticOverheadWatts": 0,
        "foreignPods": "Limit",
        "releaseSeconds": 600,
        "reserveNodes": 0,
    }


def test_a_meter_is_completed_with_defaults(kinds: Any) -> None:
    assert kinds.try_create(kinds.object(CAP, {"meter": {"file": "row-a.json"}}))["spec"]["meter"] == {
        "file": "row-a.json",
        "intervalSeconds": 2,
        "settleSeconds": 10,
        "targetPermille": 950,
        "releasePermille": 900,
        "breachSeconds": 5,
        "silentSeconds": 30,
        "silentPermille": 900,
        "releaseSeconds": 60,
    }


def test_a_gpu_node_is_completed_with_defaults(kinds: Any) -> None:
    zeros = {
        "idlePowerLimitMilliwatts": 0,
        "foreignPowerLimitMilliwatts": 0,
        "foreignGpus": 0,
        "failsafePowerLimitMilliwatts": 0,
        "failsafeHoldSeconds": 0,
    }
    assert kinds.try_create(kinds.object(NODE))["spec"]["otherGpus"] == zeros


def test_a_status_in_a_create_and_a_spec_in_a_status_update_are_left_out(kinds: Any) -> None:
    node = kinds.api.create(kinds.path(NODE), kinds.object(NODE) | {"status": {"mode": "Granted"}})
    try:
        assert "status" not in node
        changed = kinds.api.patch(
            kinds.path(NODE, "subject") + "/status", {"status": {"mode": "Floor"}, "spec": {"boundMilliwatts": 0}}
        )
        assert changed["status"] == {"mode": "Floor"}
        assert changed["spec"] == node["spec"]
    finally:
        kinds.api.delete(kinds.path(NODE, "subject"))
        kinds.api.wait_gone(kinds.path(NODE, "subject"))


SCHEDULE = {"name": "peak", "cron": "0 8 * * *", "durationSeconds": 60, "watts": 1}
REFUSED_SPECS = [
    (EAJ, {"gpus": {"min": 0}}, "spec.gpus.min"),
    (EAJ, {"gpus": {"max": -8}}, "spec.gpus.max"),
    (EAJ, {"gpus": {"max": 131_072}}, "spec.gpus.max"),
    (EAJ, {"gpus": {"max": 1.5}}, "spec.gpus.max"),
    (EAJ, {"gpus": {"max": "NaN"}}, "spec.gpus.max"),
    (EAJ, {"gpus": {"max": None}}, "spec.gpus.max"),
    (EAJ, {"gpus": {"resourceName": "gpu"}}, 'resourceName "gpu" should be an extended resource'),
    (EAJ, {"training": {"globalBatchSize": 1e308}}, "spec.training.globalBatchSize"),
    (EAJ, {"training": {"iterations": -1}}, "spec.training.iterations"),
    (EAJ, {"training": {"modelClass": "ViT-L/16 é"}}, 'modelClass "ViT-L/16 é" should be letters, digits'),
    (EAJ, {"managedBy": "me"}, 'managedBy "me" should be a controller, DOMAIN/NAME'),
    (EAJ, {"template": None}, "spec.template"),
    (EAJ, {"template": "a string"}, "spec.template"),
    (EAJ, {"objective": "Speed"}, 'supported values: "Time", "Energy", "Balanced"'),
    (EAJ, {"energy": {"onExhausted": "Suspend"}}, "spec.energy.budgetKilojoules"),
    (EAJ, {"energy": {"budgetKilojoules": 0}}, "spec.energy.budgetKilojoules"),
    (EAJ, {"deadline": "next Monday"}, "date-time"),
    (EAJ, {"deadline": "2026-13-01T00:00:00Z"}, "date-time"),
    (EAJ, {"clocks": {}}, "spec.clocks"),
    (EAJ, {"powerLimit": {"maxWatts": 0}}, "spec.powerLimit.maxWatts"),
    (EAJ, {"elasticity": {"mode": "Sometimes"}}, "spec.elasticity.mode"),
    (EAJ, {"profileKey": "Not A Key"}, 'profileKey "Not A Key" should be a-z, 0-9 and -'),
    (EAJ, {"profileKey": "k", "recurrence": {"batchSizes": [256, 256], "targetMetric": "a >= 1"}}, "Duplicate value"),
    (
        EAJ,
        {"profileKey": "k", "recurrence": {"batchSizes": [256], "targetMetric": "as good as it gets"}},
        'targetMetric "as good as it gets" should be a name, >= or <=, and a number, such as accuracy >= 0.75',
    ),
    (
        EAJ,
        {"profileKey": "k", "recurrence": {"batchSizes": list(range(256, 400)), "targetMetric": "a >= 1"}},
        "batchSizes",
    ),
    (EAJ, {"failurePolicy": {"maxRestarts": -1}}, "spec.failurePolicy.maxRestarts"),
    (CAP, {"watts": 0}, "spec.watts"),
    (CAP, {"watts": -5}, "spec.watts"),
    (CAP, {"watts": "40kW"}, "spec.watts"),
    (CAP, {"watts": None, "permilleOfMax": 1001}, "spec.permilleOfMax"),
    (CAP, {"schedule": [SCHEDULE, SCHEDULE]}, "Duplicate value"),
    (CAP, {"schedule": [SCHEDULE | {"cron": "every morning"}]}, 'cron "every morning" is not five fields'),
    (CAP, {"schedule": [SCHEDULE | {"cron": "0 8 * *"}]}, 'cron "0 8 * *" is not five fields'),
    (CAP, {"schedule": [SCHEDULE | {"durationSeconds": 0}]}, "spec.schedule[0].durationSeconds"),
    (CAP, {"schedule": [SCHEDULE | {"name": f"w{i}"} for i in range(65)]}, "spec.schedule"),
    (
        CAP,
        {"schedule": [SCHEDULE | {"timeZone": "Europe / Berlin"}]},
        'timeZone "Europe / Berlin" is no name of a time zone, such as',
    ),
    (CAP, {"onInfeasible": "Stop"}, 'supported values: "Pause", "FloorOnly"'),
    (CAP, {"energyBudget": {"kilojoules": 5}}, "spec.energyBudget.periodSeconds"),
    (CAP, {"failsafeWattsPerGpu": 0}, "spec.failsafeWattsPerGpu"),
    (CAP, {"meter": {}}, "exactly one of prometheus and file"),
    (
        CAP,
        {"meter": {"file": "a", "prometheus": {"endpoint": "b", "query": "c"}}},
        "exactly one of prometheus and file",
    ),
    (CAP, {"meter": {"file": "../../etc/passwd"}}, "spec.meter.file"),
    (CAP, {"meter": {"prometheus": {"endpoint": "http://a", "query": "c"}}}, "spec.meter.prometheus.endpoint"),
    (CAP, {"meter": {"file": "a", "releasePermille": 950}}, "releasePermille 950 must be below targetPermille 950"),
    (CAP, {"meter": {"file": "a", "intervalSeconds": 20}}, "one lost reading would be silence"),
    (CAP, {"failsafe": "Limit"}, "failsafe Limit needs failsafeWattsPerGpu"),
    (CAP, {"failsafe": "Minimum", "failsafeWattsPerGpu": 200}, "failsafe Minimum takes no failsafeWattsPerGpu"),
    (CAP, {"failsafe": "Limit", "failsafeWattsPerGpu": 9, "failsafeHoldSeconds": 9}, "goes with failsafe Hold only"),
    (CAP, {"failsafe": "Hold", "enforcement": "Expected"}, "failsafe Hold needs enforcement Hard"),
    (CAP, {"failsafe": "Hold", "failsafeHoldSeconds": 86_401}, "spec.failsafeHoldSeconds"),
    (CAP, {"nodeSelector": {"matchExpressions": [{"key": "rack", "operator": "Like"}]}}, "operator"),
    (NODE, {"epoch": -1}, "spec.epoch"),
    (NODE, {"generation": None}, "spec.generation"),
    (NODE, {"leaseSeconds": 0}, "spec.leaseSeconds"),
    (NODE, {"boundMilliwatts": 10**15, "committedMilliwatts": 10**15}, "spec.boundMilliwatts"),
    (NODE, {"boundMilliwatts": 1e308}, "spec.boundMilliwatts"),
    (NODE, {"otherGpus": {"idlePowerLimitMilliwatts": -1}}, "spec.otherGpus.idlePowerLimitMilliwatts"),
    (PROFILE, {"gpuModel": ""}, "spec.gpuModel"),
]


@pytest.mark.parametrize(("kind", "changes", "said"), REFUSED_SPECS)
def test_a_malformed_spec_is_refused(kinds: Any, kind: str, changes: dict[str, Any], said: str) -> None:
    refusal = kinds.refusal(kinds.try_create, kinds.object(kind, changes))
    assert refusal.status in (400, 422)
    assert said in refusal.message


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (EAJ, {"gpus": {"max": 0}}),
        (EAJ, {"training": {"globalBatchSize": -1}}),
        (EAJ, {"training": {"maxLocalBatchSize": 0}}),
        (CAP, {"watts": 0}),
        (CAP, {"schedule": [SCHEDULE | {"watts": 0}]}),
    ],
)
def test_of_a_figure_that_cannot_be_nothing_else_is_said(kinds: Any, kind: str, changes: dict[str, Any]) -> None:
    refusal = kinds.refusal(kinds.try_create, kinds.object(kind, changes))
    assert "should be greater than or equal to 1" in refusal.message
    assert refusal.message.count("Invalid value") == 1, refusal.message


DEVICE = {"uuid": UUID, "index": 0, "energyMillijoules": 2**62, "powerMilliwatts": 400_000}
CONDITION = {"type": "Ready", "status": "True", "reason": "Serving", "message": "", "lastTransitionTime": NOW}
OBSERVATION = {"namespace": "a", "name": "b", "uid": "c", "incarnation": 1, "podName": "b-1-0-x"}
RUN = {"decision": 0, "batchSize": 32, "purpose": "Explore", "costJoules": 9, "reached": True, "samples": 5}
REST = {"gpus": 1, "clockMegahertz": 1, "seconds": 1, "kilojoules": 1}
TRADEOFF = {"gpuModel": "NVIDIA A100-SXM4-40GB", "choices": 2, "fastest": REST, "thriftiest": REST}
CHOICE = {"gpus": 1, "clockMegahertz": 1, "microsecondsPerIteration": 1, "millijoulesPerIteration": 1}
FRONTIER = {"bounds": {"globalBatchSize": 1, "minGpus": 1, "maxGpus": 1}, "choices": [CHOICE]}
PARAMETER = {"name": "k", "value": "1.25e-07", "standardError": "0.5"}
ACCEPTED_STATUSES = [
    (NODE, {"devices": [DEVICE], "jobs": [OBSERVATION, OBSERVATION | {"uid": "d"}], "conditions": [CONDITION]}),
    (
        PROFILE,
        {"parameters": [PARAMETER], "batchSizeSearch": {"runs": [RUN, RUN | {"decision": 1, "reached": False}]}},
    ),
    (CAP, {"headroomWatts": -100, "conditions": [CONDITION | {"type": "Feasible"}]}),
    (EAJ, {"energy": {"incarnations": [{"key": "1/node-1", "millijoules": 2**62}]}, "allocation": {"gpus": 0}}),
]
REFUSED_STATUSES = [
    (PROFILE, {"batchSizeSearch": {"runs": [RUN, RUN]}}, "Duplicate value"),
    (PROFILE, {"batchSizeSearch": {"runs": [RUN | {"costJoules": 0}]}}, "batchSizeSearch.runs[0].costJoules"),
    (NODE, {"devices": [DEVICE | {"uuid": "nvidia0"}]}, "status.devices[0].uuid"),
    (NODE, {"devices": [DEVICE, DEVICE]}, "Duplicate value"),
    (NODE, {"devices": [DEVICE | {"powerMilliwatts": -1}]}, "status.devices[0].powerMilliwatts"),
    (NODE, {"devices": [DEVICE | {"powerMilliwatts": 3_700_000_000}]}, "status.devices[0].powerMilliwatts"),
    (NODE, {"devices": [DEVICE | {"powerMilliwatts": 1e308}]}, "status.devices[0].powerMilliwatts"),
    (NODE, {"devices": [DEVICE | {"powerMilliwatts": "NaN"}]}, "status.devices[0].powerMilliwatts"),
    (NODE, {"devices": [DEVICE | {"energyMillijoules": 0.5}]}, "status.devices[0].energyMillijoules"),
    (NODE, {"devices": [DEVICE | {"uuid": f"{UUID[:-3]}{i:03}"} for i in range(65)]}, "status.devices"),
    (NODE, {"acknowledged": {"epoch": 1, "generation": 1}}, "status.acknowledged.limitsMilliwatts"),
    (NODE, {"mode": "Asleep"}, "status.mode"),
    (NODE, {"jobs": [OBSERVATION, OBSERVATION]}, "Duplicate value"),
    (NODE, {"conditions": [CONDITION, CONDITION]}, "Duplicate value"),
    (NODE, {"conditions": [CONDITION | {"reason": "in some words"}]}, "status.conditions[0].reason"),
    (NODE, {"conditions": [CONDITION | {"status": "Maybe"}]}, "status.conditions[0].status"),
    (PROFILE, {"parameters": [PARAMETER | {"value": 0.5}]}, "status.parameters[0].value"),
    (PROFILE, {"parameters": [PARAMETER | {"value": "NaN"}]}, "status.parameters[0].value"),
    (PROFILE, {"parameters": [PARAMETER | {"value": "inf"}]}, "status.parameters[0].value"),
    (PROFILE, {"parameters": [PARAMETER | {"value": "1e308"}]}, "status.parameters[0].value"),
    (PROFILE, {"parameters": [PARAMETER | {"standardError": "-0.5"}]}, "status.parameters[0].standardError"),
    (EAJ, {"tradeoff": TRADEOFF | {"choices": 33}}, "status.tradeoff.choices"),
    (EAJ, {"tradeoff": TRADEOFF | {"fastest": REST | {"gpus": 0}}}, "status.tradeoff.fastest.gpus"),
    (EAJ, {"tradeoff": TRADEOFF | {"thriftiest": REST | {"kilojoules": -1}}}, "status.tradeoff.thriftiest.kilojoules"),
    (PROFILE, {"frontiers": [FRONTIER] * 17}, "status.frontiers"),
    (PROFILE, {"frontiers": [FRONTIER | {"choices": [CHOICE] * 33}]}, "status.frontiers[0].choices"),
    (PROFILE, {"frontiers": [FRONTIER | {"choices": [CHOICE | {"millijoulesPerIteration": 0}]}]}, "millijoules"),
    (
        PROFILE,
        {"frontiers": [FRONTIER | {"bounds": {"globalBatchSize": 0, "minGpus": 1, "maxGpus": 1}}]},
        "globalBatch",
    ),
    (EAJ, {"energy": {"settledMillijoules": -1}}, "status.energy.settledMillijoules"),
]


@pytest.fixture(scope="module")
def stored(kinds: Any) -> None:
    for kind in (EAJ, CAP, NODE, PROFILE):
        kinds.api.create(kinds.path(kind), kinds.object(kind, name="stored"))


def _try_status(kinds: Any, kind: str, status: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = kinds.api.patch(kinds.path(kind, "stored") + "/status", {"status": status}, dryRun="All")
    return answer


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize(("kind", "status"), ACCEPTED_STATUSES)
def test_a_sound_status_is_taken_as_it_is(kinds: Any, kind: str, status: dict[str, Any]) -> None:
    taken = _try_status(kinds, kind, status)["status"]
    assert taken == status


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize(("kind", "status", "said"), REFUSED_STATUSES)
def test_a_malformed_status_is_refused(kinds: Any, kind: str, status: dict[str, Any], said: str) -> None:
    refusal = kinds.refusal(_try_status, kinds, kind, status)
    assert refusal.status == 422
    assert said in refusal.message


def test_not_a_number_arrives_as_nothing_and_is_refused(kinds: Any) -> None:
    refusal = kinds.refusal(kinds.try_create, kinds.object(CAP) | {"spec": {"watts": math.nan}})
    assert "neither watts nor permilleOfMax" in refusal.message


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (EAJ, {"template": {"spec": {"containers": [{"name": "t", "args": ["x" * 1_600_000]}]}}}),
        (EAJ, {"profileKey": "k" * 1_600_000}),
        (CAP, {"nodeSelector": {"matchLabels": {"rack": "r" * 1_600_000}}}),
        (NODE, {"jobs": [{"podName": "p" * 1_600_000}]}),
    ],
    ids=["template", "profileKey", "matchLabels", "podName"],
)
def test_a_huge_object_is_refused(kinds: Any, kind: str, changes: dict[str, Any]) -> None:
    """1.5 MB is etcd's limit for any object; what Flyball describes itself is refused long before."""
    refusal = kinds.refusal(kinds.api.create, kinds.path(kind), kinds.object(kind, changes, name="huge"))
    assert refusal.status in (413, 422, 500)
    assert any(word in refusal.message for word in ("too large", "Too long", "at most", "larger than max"))
    assert kinds.api.get_or_none(kinds.path(kind, "huge")) is None


def test_what_the_schema_describes_is_small_even_when_full(kinds: Any) -> None:
    """A label selector, the largest thing that an SRE can give a PowerCap, cannot be made huge out of many small parts."""
    many = [{"key": f"k{i}", "operator": "Exists"} for i in range(65)]
    refusal = kinds.refusal(kinds.try_create, kinds.object(CAP, {"nodeSelector": {"matchExpressions": many}}))
    assert "spec.nodeSelector.matchExpressions" in refusal.message
    labels = {f"k{i}": "v" for i in range(65)}
    refusal = kinds.refusal(kinds.try_create, kinds.object(CAP, {"nodeSelector": {"matchLabels": labels}}))
    assert "spec.nodeSelector.matchLabels" in refusal.message


MAGNITUDES = st.floats(min_value=1e-99, max_value=1e99, exclude_max=True)


@given(MAGNITUDES | st.just(0.0) | MAGNITUDES.map(lambda magnitude: -magnitude))
def test_python_writes_real_numbers_as_the_schema_wants_them(value: float) -> None:
    written = decimal_string(value)
    assert_valid(PROFILE, "status", {"parameters": [{"name": "k", "value": written}]})
    assert float(written) == value
