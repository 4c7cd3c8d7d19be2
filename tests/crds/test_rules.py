"""Every cross-field rule of the CRDs, on the real API server: one object that passes, one that is refused and told why.

`test_every_rule_has_a_case` fails for a rule whose message no case below expects.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from flyball_api.manifests import manifests

Changes = dict[str, Any]
ANY_POD = {"key": "rack", "operator": "Exists"}
JOB_GRANT = {
    "namespace": "research", "name": "gpt2", "uid": "a-uid", "incarnation": 1, "podName": "gpt2-1-0-abcde",
    "gpus": 4, "powerLimitMilliwatts": 250_000, "clockMegahertz": {"min": 0, "max": 1200},
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """Changes to the smallest object of a kind; where `before` is given, to an object stored with those changes."""

    kind: str
    passing: Changes
    refused: Changes
    message: str
    before: Changes | None = field(default=None)


EAJ, CAP, NODE, PROFILE, BRAKE = "EnergyAwareJob", "PowerCap", "GPUNode", "EnergyProfile", "PowerBrake"
REPORT = "EnergyReport"
LOCKED = "cannot change while the job may be running; set suspend to true first"
NEW_TRAINING = {"training": {"globalBatchSize": 512}}
TIER = {"matchLabels": {"tier": "batch"}}
DIP = {"name": "dip", "watts": 9_000}
ONE_DAY = {"start": "2026-12-05T22:00:00+01:00", "end": "2026-12-06T04:00:00+01:00"}
PIPELINE = {"stages": 2, "microbatches": 8, "plan": {"configMap": "gpt3"}}
RECURRING = {"profileKey": "k", "recurrence": {"batchSizes": [128, 256], "targetMetric": "accuracy >= 0.75"}}


def measured(**measure: int) -> dict[str, Any]:
    """A pipeline whose job makes its plan by measuring at these clocks."""
    return PIPELINE | {"plan": {"configMap": "gpt3", "measure": measure}}


CREATION = [
    Case(
        EAJ,
        {"gpus": {"max": 8}},
        {"gpus": {"max": 12}},
        "gpus.max 12 is not gpus.min 1 doubled some times (8 or 16): a job grows by doubling",
    ),
    Case(
        EAJ,
        {"gpus": {"min": 3, "max": 24}},
        {"gpus": {"min": 3, "max": 16}},
        "gpus.max 16 is not gpus.min 3 doubled some times (12 or 24): a job grows by doubling",
    ),
    Case(
        EAJ,
        {"gpus": {"min": 6, "max": 6}},
        {"gpus": {"min": 5, "max": 10}},
        "gpus.min 5 is neither a power of two nor three times one (4 or 6)",
    ),
    Case(
        EAJ,
        {"gpus": {"min": 12, "max": 48}},
        {"gpus": {"min": 49153, "max": 49153}},
        "gpus.min 49153 is neither a power of two nor three times one (49152 or 65536)",
    ),
    Case(EAJ, {"gpus": {"min": 16}}, {"gpus": {"min": 32}}, "gpus.min 32 is above gpus.max 16 (at most 16)"),
    Case(
        EAJ,
        {"training": {"globalBatchSize": 16}},
        {"training": {"globalBatchSize": 12}},
        "gpus.max 16 is above training.globalBatchSize 12: each GPU needs at least one sample (gpus.max at most 8)",
    ),
    Case(
        EAJ,
        {"gpus": {"min": 3, "max": 24}, "training": {"globalBatchSize": 24}},
        {"gpus": {"min": 3, "max": 24}, "training": {"globalBatchSize": 23}},
        "gpus.max 24 is above training.globalBatchSize 23: each GPU needs at least one sample (gpus.max at most 12)",
    ),
    Case(
        EAJ,
        {"training": {"maxLocalBatchSize": 16}},
        {"training": {"maxLocalBatchSize": 15}},
        "training.globalBatchSize 256 does not fit on gpus.max 16 with training.maxLocalBatchSize 15 samples on each GPU "
        "(at most 240)",
    ),
    Case(
        EAJ,
        {"flexibleUntil": "2030-06-01T00:00:00Z", "training": {"iterations": 10}},
        {"flexibleUntil": "2030-06-01T00:00:00Z"},
        "flexibleUntil needs training.iterations: without them nobody knows how long the job takes",
    ),
    Case(
        EAJ,
        {"energy": {"budgetKilojoules": 1, "onExhausted": "Throttle"}, "elasticity": {"mode": "Never"}},
        {"energy": {"budgetKilojoules": 1, "onExhausted": "Suspend"}, "elasticity": {"mode": "Never"}},
        "energy.onExhausted Suspend needs elasticity.mode CheckpointRestart, since a job that may not be stopped cannot be "
        "suspended: use Throttle or Fail, or let the job restart from its checkpoints",
    ),
    Case(
        EAJ,
        {"energy": {"budgetKilojoules": 1, "maxOverrunPermille": 100}},
        {"energy": {"budgetKilojoules": 1, "maxOverrunPermille": 100, "onExhausted": "Fail"}},
        "energy.maxOverrunPermille goes with onExhausted Throttle and elasticity.mode CheckpointRestart: a throttled job "
        "that has gone so far is suspended",
    ),
    Case(
        EAJ,
        {"pipeline": PIPELINE | {"stages": 4}, "gpus": {"min": 4}},
        {"pipeline": PIPELINE | {"stages": 4}, "gpus": {"min": 2}},
        "gpus.min 2 is not a multiple of pipeline.stages 4: every size of the job must hold whole pipelines (gpus.min 4, "
        "say)",
    ),
    Case(
        EAJ,
        {"pipeline": PIPELINE | {"stages": 6}, "gpus": {"min": 6, "max": 12}},
        {"pipeline": PIPELINE | {"stages": 5}, "gpus": {"min": 6, "max": 12}},
        "gpus.min 6 is not a multiple of pipeline.stages 5: every size of the job must hold whole pipelines (no size of a "
        "job is one: stages are a power of two, or three times one)",
    ),
    Case(
        EAJ,
        {"pipeline": measured(highestMegahertz=1410, lowestMegahertz=1410), "gpus": {"min": 2}},
        {"pipeline": measured(highestMegahertz=1410, lowestMegahertz=1411), "gpus": {"min": 2}},
        "measure.lowestMegahertz 1411 is above measure.highestMegahertz 1410",
    ),
    Case(
        EAJ,
        {"pipeline": measured(highestMegahertz=1000, lowestMegahertz=370, stepMegahertz=10), "gpus": {"min": 2}},
        {"pipeline": measured(highestMegahertz=1000, lowestMegahertz=360, stepMegahertz=10), "gpus": {"min": 2}},
        "these are more than the 64 clocks that a stage is measured at (take larger steps)",
    ),
    Case(
        EAJ,
        RECURRING,
        RECURRING | {"profileKey": None},
        "recurrence needs profileKey: what one run learns about batch sizes is kept for the next under that key",
    ),
    Case(
        EAJ,
        RECURRING,
        {**RECURRING, "recurrence": {"batchSizes": [128], "targetMetric": "loss <= 2.1"}},
        "training.globalBatchSize 256 is where the search starts and must be one of recurrence.batchSizes",
    ),
    Case(
        EAJ,
        {**RECURRING, "gpus": {"min": 2}, "recurrence": {"batchSizes": [2, 256], "targetMetric": "loss <= 2.1"}},
        {**RECURRING, "gpus": {"min": 2}, "recurrence": {"batchSizes": [1, 256], "targetMetric": "loss <= 2.1"}},
        "recurrence.batchSizes has 1, below gpus.min 2: each GPU needs at least one sample",
    ),
    Case(
        EAJ,
        {"clocks": {"minMegahertz": 1410, "maxMegahertz": 1410}},
        {"clocks": {"minMegahertz": 1410, "maxMegahertz": 900}},
        "clocks.minMegahertz 1410 is above clocks.maxMegahertz 900 (at most 900)",
    ),
    Case(CAP, {}, {"watts": None}, "neither watts nor permilleOfMax is set; a cap has exactly one of them"),
    Case(
        EAJ,
        {"gpus": {"resourceName": "example.com/gpu.large"}},
        {"gpus": {"resourceName": "gpu"}},
        'resourceName "gpu" should be an extended resource, DOMAIN/NAME, such as nvidia.com/gpu',
    ),
    Case(
        EAJ,
        {"training": {"modelClass": "GPT-2_xl.v1"}},
        {"training": {"modelClass": "gpt2-"}},
        'modelClass "gpt2-" should be letters, digits, -, _ and ., with a letter or a digit at either end, such as '
        "resnet50",
    ),
    Case(
        EAJ,
        {"profileKey": "gpt2-wiki"},
        {"profileKey": "GPT2"},
        'profileKey "GPT2" should be a-z, 0-9 and -, with no - at either end, such as gpt2-wiki',
    ),
    Case(
        EAJ,
        RECURRING,
        {**RECURRING, "recurrence": {"batchSizes": [256], "targetMetric": "accuracy = 1"}},
        'targetMetric "accuracy = 1" should be a name, >= or <=, and a number, such as accuracy >= 0.75',
    ),
    Case(
        EAJ,
        {"managedBy": "example.com/other"},
        {"managedBy": "other"},
        'managedBy "other" should be a controller, DOMAIN/NAME, such as flyball.dev/operator',
    ),
    Case(
        CAP,
        {"schedule": [DIP | {"cron": "*/5 8-17 * * mon-fri", "durationSeconds": 60}]},
        {"schedule": [DIP | {"cron": "0 8 * *", "durationSeconds": 60}]},
        'cron "0 8 * *" is not five fields with one space between them (minute, hour, day of month, month, day of week), '
        "such as 0 16 * * 1-5",
    ),
    Case(
        CAP,
        {"schedule": [DIP | {"cron": "0 8 * * *", "durationSeconds": 60, "timeZone": "Etc/GMT+1"}]},
        {"schedule": [DIP | {"cron": "0 8 * * *", "durationSeconds": 60, "timeZone": "Europe / Berlin"}]},
        'timeZone "Europe / Berlin" is no name of a time zone, such as Europe/Berlin or Etc/GMT-1',
    ),
    Case(
        CAP,
        {"watts": None, "permilleOfMax": 600},
        {"permilleOfMax": 600},
        "both watts 40000 and permilleOfMax 600 are set; a cap has exactly one of them",
    ),
    Case(
        CAP,
        {"staticOverheadWatts": 39_999},
        {"staticOverheadWatts": 40_000},
        "staticOverheadWatts 40000 leaves nothing of watts 40000 for GPUs (at most 39999)",
    ),
    Case(
        CAP,
        {
            "staticOverheadWatts": 5_000,
            "schedule": [{"name": "a", "cron": "0 8 * * *", "durationSeconds": 60, "watts": 9_000}],
        },
        {
            "staticOverheadWatts": 9_000,
            "schedule": [{"name": "a", "cron": "0 8 * * *", "durationSeconds": 60, "watts": 9_000}],
        },
        "staticOverheadWatts 9000 leaves nothing of schedule a for GPUs (at most 8999)",
    ),
    Case(
        CAP,
        {"foreignWeights": [{"namespace": "batch", "permille": 500}]},
        {"foreignWeights": [{"namespace": "batch", "permille": 500}], "foreignPods": "Reserve"},
        "foreignWeights divide what foreignPods Limit leaves; with Reserve each GPU has its default limit",
    ),
    Case(
        CAP,
        {"foreignWeights": [{"namespace": "batch", "permille": 500, "pods": [{"selector": TIER, "permille": 500}]}]},
        {"foreignWeights": [{"namespace": "batch", "permille": 500, "pods": [{"selector": TIER, "permille": 501}]}]},
        "pods: 501 is more than the 500 of their namespace; labels are what the owners of pods make them, and get these no "
        "more than that",
    ),
    Case(
        CAP,
        {"foreignWeights": [{"namespace": "batch", "permille": 500, "pods": [{"selector": TIER, "permille": 1}]}]},
        {"foreignWeights": [{"namespace": "batch", "permille": 500, "pods": [{"selector": {}, "permille": 1}]}]},
        "selector: takes every pod of the namespace; name a label, or give the namespace that weight",
    ),
    *(
        Case(
            CAP,
            {"foreignWeights": [{"namespace": "batch", "permille": 500, "pods": [{"selector": TIER, "permille": 1}]}]},
            {
                "foreignWeights": [
                    {"namespace": "batch", "permille": 500, "pods": [{"selector": no_label, "permille": 1}]}
                ]
            },
            words,
        )
        for no_label, words in (
            ({"matchLabels": {"ti er": "batch"}}, "selector.matchLabels: has a key that no pod's label can have"),
            ({"matchLabels": {"tier": "ba tch"}}, "selector.matchLabels.tier in body should match"),
            ({"matchExpressions": [{"key": "tier!", "operator": "Exists"}]}, "key in body should match"),
            (
                {"matchExpressions": [{"key": "tier", "operator": "In", "values": ["-a"]}]},
                "values[0] in body should match",
            ),
        )
    ),
    Case(
        CAP,
        {"failsafe": "Limit", "failsafeWattsPerGpu": 200},
        {"failsafe": "Limit"},
        "failsafe Limit needs failsafeWattsPerGpu, the limit",
    ),
    Case(
        CAP,
        {"failsafe": "Minimum"},
        {"failsafe": "Minimum", "failsafeWattsPerGpu": 200},
        "failsafe Minimum takes no failsafeWattsPerGpu (leave it out, or set failsafe to Limit)",
    ),
    Case(
        CAP,
        {"failsafe": "Hold", "failsafeHoldSeconds": 60, "failsafeWattsPerGpu": 200},
        {"failsafeHoldSeconds": 60},
        "failsafeHoldSeconds goes with failsafe Hold only",
    ),
    Case(
        CAP,
        {"failsafe": "Hold"},
        {"failsafe": "Hold", "enforcement": "Expected"},
        "failsafe Hold needs enforcement Hard: with Expected the limits may add up to more than the cap, and nobody is "
        "there to cut them",
    ),
    Case(
        CAP,
        {"meter": {"file": "row-a"}},
        {"meter": {"file": "row-a", "prometheus": {"endpoint": "main", "query": "x"}}},
        "a meter is read from exactly one of prometheus and file",
    ),
    Case(
        CAP,
        {"meter": {"file": "row-a", "releasePermille": 949}},
        {"meter": {"file": "row-a", "releasePermille": 950}},
        "releasePermille 950 must be below targetPermille 950: between them nothing changes",
    ),
    Case(
        CAP,
        {"meter": {"file": "row-a", "intervalSeconds": 15}},
        {"meter": {"file": "row-a", "intervalSeconds": 16}},
        "silentSeconds 30 is less than two intervals of 16 s: one lost reading would be silence",
    ),
    Case(
        CAP,
        {"schedule": [{**DIP, "cron": "0 8 * * *", "durationSeconds": 60, "timeZone": "Europe/Berlin"}]},
        {"schedule": [{**DIP, "cron": "0 8 * * *", "durationSeconds": 60, **ONE_DAY}]},
        "schedule dip has both cron and start: a time begins again and again by cron, or once at start",
    ),
    Case(
        CAP,
        {"schedule": [{**DIP, **ONE_DAY}]},
        {"schedule": [{**DIP, **ONE_DAY, "durationSeconds": 60}]},
        "schedule dip: durationSeconds goes with cron, each needs the other (one with start ends at end)",
    ),
    Case(
        CAP,
        {"schedule": [{**DIP, **ONE_DAY, "end": "2026-12-05T22:00:01+01:00"}]},
        {"schedule": [{**DIP, **ONE_DAY, "end": "2026-12-05T20:59:59Z"}]},
        "schedule dip: start needs a later end, and end a start",
    ),
    Case(
        CAP,
        {"schedule": [{**DIP, **ONE_DAY}]},
        {"schedule": [{**DIP, **ONE_DAY, "timeZone": "Europe/Berlin"}]},
        "schedule dip: timeZone goes with cron; start and end have an offset of their own",
    ),
    Case(
        CAP,
        {"schedule": [{"name": "dip", "cron": "0 8 * * 1-5", "durationSeconds": 60, "watts": 40_000}]},
        {"schedule": [{"name": "dip", "cron": "0 8 * * 1-5", "durationSeconds": 60, "watts": 50_000}]},
        "schedule dip has watts 50000, above the cap of 40000: a schedule only lowers the cap (set watts to the highest, "
        "and schedule the hours that are lower)",
    ),
    Case(
        CAP,
        {"nodeSelector": {"matchExpressions": [ANY_POD, {"key": "rack", "operator": "In", "values": ["a"]}]}},
        {"nodeSelector": {"matchExpressions": [{"key": "rack", "operator": "In"}]}},
        "operator In needs values",
    ),
    Case(
        CAP,
        {"nodeSelector": {"matchExpressions": [ANY_POD]}},
        {"nodeSelector": {"matchExpressions": [ANY_POD | {"values": ["a"]}]}},
        "operator Exists takes no values",
    ),
    Case(
        NODE,
        {"committedMilliwatts": 3_200_000},
        {"committedMilliwatts": 999_999},
        "committedMilliwatts 999999 is below boundMilliwatts 1000000 that it bounds (at least 1000000)",
    ),
    Case(
        NODE,
        {"committedExpectedMilliwatts": 800_001},
        {"committedExpectedMilliwatts": 799_999},
        "committedExpectedMilliwatts 799999 is below expectedMilliwatts 800000 that it bounds (at least 800000)",
    ),
    Case(
        NODE,
        {"jobs": [JOB_GRANT]},
        {"jobs": [JOB_GRANT, JOB_GRANT | {"uid": "another", "gpus": 1}]},
        "the limits of the GPUs of the jobs add up to 1250000 mW, above boundMilliwatts 1000000 (lower the limits, or "
        "grant that much)",
    ),
    Case(
        NODE,
        {"jobs": [JOB_GRANT | {"clockMegahertz": {"min": 1200, "max": 1200}}]},
        {"jobs": [JOB_GRANT | {"clockMegahertz": {"min": 1215, "max": 1200}}]},
        "clockMegahertz.min 1215 is above clockMegahertz.max 1200 (at most 1200)",
    ),
    Case(
        BRAKE,
        {"keptMillionths": 0, "emergency": "Active"},
        {"emergency": "Active"},
        "an emergency keeps nothing above the smallest limits: keptMillionths 400000 must be 0",
    ),
]

CHANGE = [
    Case(
        NODE,
        {"generation": 11, "committedMilliwatts": 3_200_001},
        {"generation": 11, "committedMilliwatts": 3_199_999},
        "spec.committedMilliwatts and spec.committedExpectedMilliwatts must not fall below 3200000 and 800000 while "
        "(epoch, generation) (3, 10) is not acknowledged",
        {"committedMilliwatts": 3_200_000},
    ),
    Case(EAJ, {"gpus": {"max": 8}, "suspend": True}, {"gpus": {"max": 8}}, f"gpus {LOCKED}", {}),
    Case(EAJ, NEW_TRAINING | {"suspend": True}, NEW_TRAINING, f"training {LOCKED}", {}),
    Case(EAJ, {"profileKey": "k", "suspend": True}, {"profileKey": "k"}, f"profileKey {LOCKED}", {}),
    Case(EAJ, {"profileKey": "k"}, {"profileKey": "j"}, f"profileKey {LOCKED}", {"profileKey": "k"}),
    Case(EAJ, {"profileKey": "k"}, {"profileKey": None}, f"profileKey {LOCKED}", {"profileKey": "k"}),
    Case(
        EAJ,
        {"pipeline": PIPELINE, "gpus": {"min": 2}, "suspend": True},
        {"pipeline": PIPELINE, "gpus": {"min": 2}},
        f"pipeline {LOCKED}",
        {},
    ),
    Case(EAJ, RECURRING | {"suspend": True}, RECURRING, f"recurrence {LOCKED}", {}),
    Case(
        EAJ,
        {"elasticity": {"mode": "Never"}, "suspend": True},
        {"elasticity": {"mode": "Never"}},
        f"elasticity.mode {LOCKED}",
        {},
    ),
    Case(
        EAJ,
        NEW_TRAINING | {"suspend": False},
        {"managedBy": "example.com/queue"},
        "managedBy cannot change; delete the job and create it again",
        {"suspend": True},
    ),
    Case(
        NODE,
        {"generation": 11, "boundMilliwatts": 900_000},
        {"generation": 9},
        "(epoch, generation) (3, 9) is below (3, 10) of the object; it never goes down (read the object again, and write "
        "(3, 11) or above)",
        {},
    ),
    Case(
        NODE,
        {"epoch": 4, "generation": 1},
        {"epoch": 2, "generation": 99},
        "(epoch, generation) (2, 99) is below (3, 10) of the object; it never goes down (read the object again, and write "
        "(3, 11) or above)",
        {},
    ),
    Case(
        NODE,
        {},
        {"boundMilliwatts": 999_999},
        "spec changed but (epoch, generation) is still (3, 10); every change takes a new generation (11 or above)",
        {},
    ),
    Case(
        BRAKE,
        {"sequence": 11, "keptMillionths": 300_000},
        {"sequence": 9},
        "(epoch, sequence) (3, 9) is below (3, 10) of the brake; it never goes down (read the brake again, and write "
        "(3, 11) or above)",
        {},
    ),
    Case(
        BRAKE,
        {"epoch": 4, "sequence": 1},
        {"keptMillionths": 300_000},
        "the brake changed but (epoch, sequence) is still (3, 10); every change takes a new sequence (11 or above)",
        {},
    ),
    Case(
        BRAKE,
        {"sequence": 11, "emergency": "Ended"},
        {"sequence": 11, "emergency": None},
        "an emergency that is Active is Ended before anything else is written",
        {"keptMillionths": 0, "emergency": "Active"},
    ),
    Case(
        PROFILE,
        {},
        {"gpuModel": "NVIDIA H100 80GB HBM3"},
        "profileKey and gpuModel cannot change; delete the profile, and what it held is learned again",
        {},
    ),
    Case(REPORT, {"gpusMillijoules": 5}, {"day": "2030-06-02"}, "the day of a report cannot change", {}),
]


def _title(case: Case) -> str:
    return f"{case.kind}: {case.message[:60]}"


@pytest.mark.parametrize("case", CREATION, ids=_title)
def test_creation(kinds: Any, case: Case) -> None:
    kinds.try_create(kinds.object(case.kind, case.passing))
    refusal = kinds.refusal(kinds.try_create, kinds.object(case.kind, case.refused))
    assert refusal.status == 422
    assert case.message in refusal.message


@pytest.mark.parametrize("case", CHANGE, ids=_title)
def test_change(kinds: Any, case: Case) -> None:
    stored = kinds.api.create(kinds.path(case.kind), kinds.object(case.kind, case.before))
    try:
        kinds.try_update(stored, case.passing)
        refusal = kinds.refusal(kinds.try_update, stored, case.refused)
        assert refusal.status == 422
        assert case.message in refusal.message
    finally:
        path = kinds.path(case.kind, "subject")
        kinds.api.delete(path)
        kinds.api.wait_gone(path)


@pytest.mark.parametrize(
    ("kind", "changes", "field"),
    [
        (EAJ, {"gpus": {"min": 0}}, "spec.gpus.min"),
        (EAJ, {"gpus": {"min": -4, "max": 0}}, "spec.gpus.max"),
        (EAJ, {"gpus": {"max": 70_000}, "training": {"globalBatchSize": 80_000}}, "spec.gpus.max"),
        (EAJ, {"gpus": {"min": 70_000, "max": 70_000}}, "spec.gpus.min"),
        (EAJ, {"training": {"globalBatchSize": 0}}, "spec.training.globalBatchSize"),
        (EAJ, {"pipeline": PIPELINE | {"stages": 0}}, "spec.pipeline.stages"),
        (EAJ, RECURRING | {"recurrence": {"batchSizes": []}}, "spec.recurrence.batchSizes"),
        (CAP, {"watts": 0}, "spec.watts"),
        (CAP, {"watts": -1, "schedule": [DIP | {"cron": "0 22 * * *", "durationSeconds": 0}]}, "spec.watts"),
    ],
)
def test_a_figure_out_of_all_bounds_is_refused_in_words_and_not_by_a_rule_that_fails(
    kinds: Any, kind: str, changes: Changes, field: str
) -> None:
    refusal = kinds.refusal(kinds.try_create, kinds.object(kind, changes))
    assert refusal.status == 422
    assert field in refusal.message
    of_library = ("failed rule", "evaluation error", "modulus", "division", "[1, 2", "rule compile")
    assert [words for words in of_library if words in refusal.message] == []


@pytest.mark.parametrize(
    "change",
    [
        {"objective": "Time"},
        {"energy": {"budgetKilojoules": 5}},
        {"deadline": "2030-01-01T00:00:00Z"},
        {"clocks": {"maxMegahertz": 1200}},
        {"powerLimit": {"maxWatts": 200}},
        {"elasticity": {"minSecondsBetweenResizes": 0}},
        {"priority": 5},
        {"suspend": True},
        {"failurePolicy": {"maxRestarts": 0}},
        {"ttlSecondsAfterFinished": 60},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_a_user_may_change_while_the_job_runs(kinds: Any, change: Changes) -> None:
    stored = kinds.api.create(kinds.path(EAJ), kinds.object(EAJ))
    try:
        kinds.try_update(stored, change)
    finally:
        kinds.api.delete(kinds.path(EAJ, "subject"))
        kinds.api.wait_gone(kinds.path(EAJ, "subject"))


BAD_NAME = (
    "metadata.name {} cannot name the Service that the workers meet at: use lower-case letters, digits and dashes, and "
    "begin with a letter"
)
LONG_NAME = "metadata.name has 53 characters, at most 52 fit: its Jobs and pods add their incarnation and index to it"
NAMES = [
    ("a" * 52, "a" * 53, LONG_NAME),
    ("gpt-2", "2-gpt", BAD_NAME.format("2-gpt")),
    ("gpt-2", "gpt.2", BAD_NAME.format("gpt.2")),
]


@pytest.mark.parametrize(("passing", "refused", "message"), NAMES)
def test_names_leave_room_for_what_is_made_of_them(kinds: Any, passing: str, refused: str, message: str) -> None:
    kinds.try_create(kinds.object(EAJ, name=passing))
    refusal = kinds.refusal(kinds.try_create, kinds.object(EAJ, name=refused))
    assert message in refusal.message


def _rules(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for rule in schema.get("x-kubernetes-validations", ()):
        yield path, rule
    for name, child in schema.get("properties", {}).items():
        yield from _rules(child, f"{path}.{name}")
    if "items" in schema:
        yield from _rules(schema["items"], f"{path}[]")


def _says(rule: dict[str, Any]) -> str:
    """A regular expression of what a rule says when it is broken."""
    if "message" in rule:
        return re.escape(rule["message"])
    literal = re.match(r"'([^']*)'\.format\(", rule["messageExpression"])
    assert literal is not None, f"not a literal and its arguments: {rule['messageExpression']}"
    return re.sub("%[ds]", ".+", re.escape(literal[1]))


def test_every_rule_has_a_case() -> None:
    rules = [
        (path, rule)
        for crd in manifests()
        for path, rule in _rules(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"], crd["spec"]["names"]["kind"])
    ]
    assert len(rules) > 25, "the walk found no rules"
    told = [case.message for case in (*CREATION, *CHANGE)] + [message for *_, message in NAMES]
    untold = [(path, rule["rule"]) for path, rule in rules if not any(re.fullmatch(_says(rule), text) for text in told)]
    assert untold == []
