"""Reading GPUNode.spec: what is sound comes through whole, what is not is refused with a sentence."""

from __future__ import annotations

import json

import pytest
from flyball_agent.desired import DesiredSpec, InvalidSpec, JobGrant, parse_spec
from flyball_crds.models import GPUNodeSpec
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
SPEC = {
    "epoch": 3,
    "generation": 7,
    "leaseSeconds": 30,
    "grantMilliwatts": 1_400_000,
    "expectedMilliwatts": 1_200_000,
    "worstHoldMilliwatts": 1_400_000,
    "worstExpectedMilliwatts": 1_200_000,
    "devices": {"idlePowerLimitMilliwatts": 0, "foreignPowerLimitMilliwatts": 300_000, "foreignGpus": 1},
    "jobs": [JOB],
}


def test_a_spec_of_the_api_comes_through_whole():
    GPUNodeSpec.model_validate(SPEC)  # what the test takes for a spec is one by the API's own model
    spec = parse_spec(SPEC)
    assert spec == DesiredSpec(
        epoch=3,
        generation=7,
        lease_seconds=30,
        grant_milliwatts=1_400_000,
        foreign_limit_milliwatts=300_000,
        foreign_gpus=1,
        jobs=(JobGrant("research", "gpt2", "u-1", 2, "gpt2-2-0", 4, 250_000, 900, 1005),),
    )
    assert spec.pair == (3, 7)
    assert parse_spec(json.loads(json.dumps(spec.to_json()))) == spec


def test_optional_parts_may_be_missing():
    spec = parse_spec({"epoch": 0, "generation": 1, "leaseSeconds": 10, "grantMilliwatts": 5, "jobs": None})
    assert spec == DesiredSpec(0, 1, 10, 5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epoch": -1}, r"spec.epoch: -1 is not an integer within 0\.\."),
        ({"generation": 1.5}, "spec.generation: 1.5"),
        ({"generation": float("nan")}, "spec.generation: nan"),
        ({"grantMilliwatts": 1e308}, "spec.grantMilliwatts"),
        ({"grantMilliwatts": 2**63}, "spec.grantMilliwatts"),
        ({"leaseSeconds": True}, "spec.leaseSeconds: True"),
        ({"devices": [1]}, "spec.devices"),
        ({"jobs": {}, "devices": {"foreignGpus": "2"}}, "spec.devices.foreignGpus|spec.jobs"),
        ({"jobs": [JOB] * 300}, "at most 256"),
        ({"jobs": ["x"]}, r"spec.jobs\[0\]: 'x' is not an object"),
        ({"jobs": [{**JOB, "podName": ""}]}, r"spec.jobs\[0\].podName"),
        ({"jobs": [{**JOB, "podName": "x" * 10_000}]}, r"spec.jobs\[0\].podName"),
        ({"jobs": [{**JOB, "powerLimitMilliwatts": None}]}, r"spec.jobs\[0\].powerLimitMilliwatts"),
        ({"jobs": [{**JOB, "clockMegahertz": {"min": 2, "max": 1}}]}, "min 2 is above max 1"),
        ({"jobs": [JOB, {**JOB, "uid": "u-2"}]}, "pod research/gpt2-2-0 is named twice"),
    ],
)
def test_what_is_not_sound_is_refused_with_a_sentence(change, message):
    with pytest.raises(InvalidSpec, match=message):
        parse_spec({**SPEC, **change})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=8), children, max_size=4),
    max_leaves=12,
)
FIELDS = st.sampled_from([*SPEC, "devices", "jobs"])


@given(st.dictionaries(FIELDS, JSON), JSON)
def test_nothing_but_a_refusal_comes_of_any_garbage(changes, anything):
    for raw in ({**SPEC, **changes}, anything):
        spec = refusal = None
        try:
            spec = parse_spec(raw)
        except InvalidSpec as error:
            refusal = str(error)
        if spec is None:
            assert len(refusal) < 500
        else:
            assert parse_spec(spec.to_json()) == spec
