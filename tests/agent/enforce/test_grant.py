"""The grant in GPUNode.spec: what is sound comes through whole, what is not is refused with a sentence."""

from __future__ import annotations

import json
from typing import Any

import pytest
from flyball_agent.enforce.grant import ANOTHER, STALE, accepted_grant, refusal_of
from flyball_api.grant import Grant, JobGrant, OtherGpuLimits, PowerBound, grant_spec
from flyball_api.reading import InvalidObject
from flyball_api.values.units import MilliwattsPerGpu, NodeMilliwatts
from hypothesis import given
from hypothesis import strategies as st

JOB = {
    "namespace": "research",
    "name": "gpt2",
    "uid": "u-1",
    "incarnation": 2,
    "podName": "gpt2-2-0",
    "gpus": 4,
    "powerLimitMilliwatts": 250_000,
    "clockMegahertz": {"min": 900, "max": 1005},
}
FOREIGN = {"namespace": "research", "podName": "gpt2-2-0", "powerLimitMilliwatts": 100_000}
SPEC = {
    "epoch": 3,
    "generation": 7,
    "leaseSeconds": 30,
    "boundMilliwatts": 1_400_000,
    "expectedMilliwatts": 1_200_000,
    "committedMilliwatts": 1_400_000,
    "committedExpectedMilliwatts": 1_200_000,
    "otherGpus": {"idlePowerLimitMilliwatts": 0, "foreignPowerLimitMilliwatts": 300_000, "foreignGpus": 1},
    "jobs": [JOB],
}


def test_a_spec_of_the_api_comes_through_whole() -> None:
    bound = PowerBound(NodeMilliwatts(1_400_000), NodeMilliwatts(1_200_000))
    grant = accepted_grant(SPEC)
    assert grant == Grant(
        epoch=3,
        generation=7,
        lease_seconds=30,
        bound=bound,
        committed=bound,
        other_gpus=OtherGpuLimits(foreign_power_limit_milliwatts=MilliwattsPerGpu(300_000), foreign_gpus=1),
        jobs=(JobGrant("research", "gpt2", "u-1", 2, "gpt2-2-0", 4, MilliwattsPerGpu(250_000), 900, 1005),),
    )
    assert grant.version == (3, 7)
    assert accepted_grant(json.loads(json.dumps(grant_spec(grant)))) == grant


def test_optional_parts_may_be_missing() -> None:
    grant = accepted_grant({"epoch": 0, "generation": 1, "leaseSeconds": 10, "boundMilliwatts": 5})
    assert grant == Grant(0, 1, 10, PowerBound(NodeMilliwatts(5)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epoch": -1}, "spec.epoch: Expected `int` >= 0"),
        ({"generation": 1.5}, "spec.generation: Expected `int`"),
        ({"generation": float("nan")}, "spec.generation: Expected `int`"),
        ({"boundMilliwatts": 1e308}, "spec.boundMilliwatts"),
        ({"boundMilliwatts": 2**63}, "spec.boundMilliwatts"),
        ({"leaseSeconds": True}, "spec.leaseSeconds: Expected `int`, got `bool`"),
        ({"otherGpus": [1]}, "spec.otherGpus"),
        ({"jobs": {}, "otherGpus": {"foreignGpus": "2"}}, "spec.otherGpus.foreignGpus|spec.jobs"),
        ({"jobs": [JOB] * 300}, "spec.jobs: .*256"),
        ({"jobs": ["x"]}, r"spec.jobs\[0\]: Expected `object`, got `str`"),
        ({"jobs": [{**JOB, "podName": ""}]}, r"spec.jobs\[0\].podName"),
        ({"jobs": [{**JOB, "podName": "x" * 10_000}]}, r"spec.jobs\[0\].podName"),
        ({"jobs": [{**JOB, "powerLimitMilliwatts": None}]}, r"spec.jobs\[0\]: .* missing .*`powerLimitMilliwatts`"),
        (
            {"jobs": [{**JOB, "clockMegahertz": {"min": 2, "max": 1}}]},
            "spec.jobs: pod research/gpt2-2-0: clockMegahertz: min 2 is above max 1",
        ),
        ({"jobs": [JOB, {**JOB, "uid": "u-2"}]}, "pod research/gpt2-2-0 is named twice"),
        ({"jobs": [JOB], "otherGpus": {"foreignPods": [FOREIGN]}}, "pod research/gpt2-2-0 is named twice"),
    ],
)
def test_what_is_not_sound_is_refused_with_a_sentence(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidObject, match=message):
        accepted_grant({**SPEC, **change})


def of_version(epoch: int, generation: int, digest: str = "") -> Grant:
    return Grant(epoch, generation, 10, PowerBound(NodeMilliwatts(5)), digest=digest)


@pytest.mark.parametrize(
    ("new", "accepted", "reason"),
    [
        (of_version(0, 0), None, None),
        (of_version(2, 1), of_version(1, 9), None),
        (of_version(1, 9), of_version(1, 9), None),
        (of_version(1, 8), of_version(1, 9), STALE),
        (of_version(1, 99), of_version(2, 1), STALE),
        (of_version(1, 9, "a"), of_version(1, 9, "a"), None),
        (of_version(1, 9, "b"), of_version(1, 9, "a"), ANOTHER),
        (of_version(1, 9), of_version(1, 9, "a"), None),
        (of_version(1, 9, "b"), of_version(1, 9), None),
        (of_version(1, 8, "b"), of_version(1, 9, "a"), STALE),
        (of_version(2, 0, "b"), of_version(1, 9, "a"), None),
    ],
)
def test_what_is_below_the_last_grant_or_another_of_its_version_is_refused(
    new: Grant, accepted: Grant | None, reason: str | None
) -> None:
    """It is another one only where both say so: an older agent's and an older operator's have no digest."""
    refusal = refusal_of(new, accepted)
    assert (None if refusal is None else refusal.reason) == reason
    assert refusal is None or f"grant {tuple(new.version)}" in refusal.words


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=8), children, max_size=4),
    max_leaves=12,
)
FIELDS = st.sampled_from([*SPEC, "otherGpus", "jobs"])


@given(st.dictionaries(FIELDS, JSON), JSON)
def test_nothing_but_a_refusal_comes_of_any_garbage(changes: dict[str, Any], anything: object) -> None:
    for raw in ({**SPEC, **changes}, anything):
        refusal = ""
        try:
            grant = accepted_grant(raw)
        except InvalidObject as error:
            refusal = str(error)
        else:
            assert accepted_grant(grant_spec(grant)) == grant
        assert len(refusal) < 500
