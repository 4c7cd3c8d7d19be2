"""The grant on its way through GPUNode.spec: it comes back as it was written, and what is none is refused with its path."""

from __future__ import annotations

import contextlib
import hashlib
import json
from typing import Any

import pytest
from flyball_api.grant import (
    DIGEST_LENGTH,
    ForeignPodLimit,
    Grant,
    GrantVersion,
    JobGrant,
    OtherGpuLimits,
    PowerBound,
    grant_spec,
    read_grant,
)
from flyball_api.reading import InvalidObject
from flyball_api.values.units import MilliwattsPerGpu, NodeMilliwatts
from hypothesis import given
from hypothesis import strategies as st

from tests.support.schedules.memory_api import merged

COUNTS = st.integers(0, 10**9)
NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=63)
BOUNDS = st.builds(PowerBound, COUNTS, COUNTS)
JOBS = st.builds(JobGrant, NAMES, NAMES, NAMES, COUNTS, NAMES, COUNTS, COUNTS, COUNTS, COUNTS)
GRANTS = st.builds(
    Grant,
    epoch=COUNTS,
    generation=COUNTS,
    lease_seconds=COUNTS,
    bound=BOUNDS,
    committed=BOUNDS,
    other_gpus=st.builds(
        OtherGpuLimits,
        COUNTS,
        COUNTS,
        COUNTS,
        COUNTS,
        st.integers(0, 86_400),
        st.dictionaries(st.tuples(NAMES, NAMES), COUNTS, max_size=2).map(
            lambda pods: tuple(ForeignPodLimit(*pod, MilliwattsPerGpu(limit)) for pod, limit in sorted(pods.items()))
        ),
    ),
    jobs=st.lists(JOBS, max_size=3).map(lambda jobs: tuple(sorted(jobs, key=lambda job: (job.uid, job.pod_name)))),
)


def bound(limit: int, expected: int) -> PowerBound:
    return PowerBound(NodeMilliwatts(limit), NodeMilliwatts(expected))


def job(**fields: Any) -> dict[str, Any]:
    return {
        "namespace": "team",
        "name": "gpt2",
        "uid": "5c1f",
        "podName": "gpt2-0",
        "powerLimitMilliwatts": 1,
        **fields,
    }


def spec(**fields: Any) -> dict[str, Any]:
    return {"epoch": 1, "generation": 2, "leaseSeconds": 60, "boundMilliwatts": 400_000, **fields}


@given(GRANTS)
def test_a_grant_survives_the_way_to_json_and_back(grant: Grant) -> None:
    assert read_grant(grant_spec(grant)) == grant


@given(GRANTS, GRANTS)
def test_a_grant_written_over_another_by_a_merge_patch_is_read_as_itself(former: Grant, grant: Grant) -> None:
    """What a patch leaves out stays, so that a grant says also what there is none of, up to its digest."""
    assert read_grant(merged(grant_spec(former.sealed()), grant_spec(grant.sealed()))) == grant.sealed()


def test_a_digest_does_not_depend_on_lists_that_older_agents_do_not_know() -> None:
    grant = read_grant(spec(jobs=[job()]))
    known = grant_spec(grant)
    del known["otherGpus"]["foreignPods"]
    said = json.dumps(known, sort_keys=True, separators=(",", ":")).encode()
    assert grant.sealed().digest == hashlib.sha256(said).hexdigest()[:DIGEST_LENGTH]


def test_fields_that_an_older_writer_leaves_out_have_their_defaults() -> None:
    grant = read_grant(spec(jobs=[job()]))
    assert grant.version == GrantVersion(1, 2) == (1, 2)
    assert grant.other_gpus == OtherGpuLimits()
    assert (grant.jobs[0].gpus, grant.jobs[0].clock_max_megahertz) == (0, 0)


def test_fields_of_a_newer_version_are_passed_over() -> None:
    assert read_grant(spec(novelty={"deep": [1]}, jobs=[job(novelty=1)])) == read_grant(spec(jobs=[job()]))


def test_a_null_stands_for_a_missing_field() -> None:
    nulls = spec(digest=None, committedMilliwatts=None, otherGpus=None, jobs=[job(podUid=None)], caps=None)
    assert read_grant(nulls) == read_grant(spec(jobs=[job()]))


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        (None, "spec: Expected `object`"),
        ([], "spec: Expected `object`"),
        ({}, "spec: Object missing required field `epoch`"),
        (spec(epoch=None), "spec: Object missing required field `epoch`"),
        (spec(epoch="7"), "spec.epoch: Expected `int`, got `str`"),
        (spec(epoch=True), "spec.epoch: Expected `int`, got `bool`"),
        (spec(epoch=1.5), "spec.epoch: Expected `int`, got `float`"),
        (spec(generation=-1), "spec.generation: Expected `int` >= 0"),
        (spec(boundMilliwatts=2**63), "spec.boundMilliwatts: Expected `int` <="),
        (spec(otherGpus=3), "spec.otherGpus: Expected `object`"),
        (spec(otherGpus={"foreignGpus": -1}), "spec.otherGpus.foreignGpus: Expected `int` >= 0"),
        (spec(jobs={}), "spec.jobs: Expected `array`"),
        (spec(jobs=[job()] * 257), "spec.jobs: Expected `array` of length <= 256"),
        (spec(jobs=[job(), 7]), "spec.jobs[1]: Expected `object`"),
        (spec(jobs=[job(), {"name": "x"}]), "spec.jobs[1]: Object missing required field `namespace`"),
        (spec(jobs=[job(), job(podName="")]), "spec.jobs[1].podName: Expected `str` of length >= 1"),
        (spec(jobs=[job(name="n" * 254)]), "spec.jobs[0].name: Expected `str` of length <= 253"),
        (spec(jobs=[job(clockMegahertz={"max": "x"})]), "spec.jobs[0].clockMegahertz.max: Expected `int`"),
    ],
)
def test_what_is_no_grant_is_refused_with_its_path(wrong: Any, where: str) -> None:
    with pytest.raises(InvalidObject) as refusal:
        read_grant(wrong)
    assert str(refusal.value).startswith(where)


FIELDS = st.sampled_from([*spec(), "jobs", "otherGpus"]) | st.text()
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(FIELDS, inner),
)


@given(ANY_JSON)
def test_nothing_but_a_refusal_comes_of_any_json(anything: Any) -> None:
    with contextlib.suppress(InvalidObject):
        read_grant(anything)


def test_what_is_nested_too_deeply_is_refused() -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidObject, match=r"^spec"):
        read_grant(spec(digest=None, novelty=deep))


def test_the_higher_of_two_bounds_takes_each_figure_by_itself() -> None:
    assert bound(5, 1) | bound(3, 2) == bound(5, 2)
    assert bound(5, 1) + bound(3, 2) == bound(8, 3)
    assert bound(5, 2).covers(bound(5, 2))
    assert not bound(5, 2).covers(bound(5, 3))
    assert not bound(5, 2).covers(bound(6, 0))


def share(number: int, limit: int, gpus: int) -> JobGrant:
    return JobGrant("team", f"j{number}", f"u{number}", 1, f"p{number}", gpus, MilliwattsPerGpu(limit))


def over_jobs(beside: int, *shares: tuple[int, int]) -> Grant:
    """Of jobs with so many milliwatts for each of so many GPUs, whose smallest limit is 100 W."""
    jobs = tuple(share(number, *of) for number, of in enumerate(shares))
    limits = sum(job.limit_milliwatts for job in jobs) + beside
    return Grant(1, 2, 60, bound(limits, limits), jobs=jobs, min_power_limit_milliwatts=MilliwattsPerGpu(100_000))


@pytest.mark.parametrize(
    ("milliwatts", "limits"),
    [
        (1_300_000, (300_000, 100_000)),  # as much as it comes to
        (2_000_000, (300_000, 100_000)),  # more raises nothing
        (1_100_000, (200_000, 100_000)),  # half of the 400 W above the smallest limits
        (1_000_000, (150_000, 100_000)),
        (900_000, (100_000, 100_000)),
        (0, (100_000, 100_000)),  # no GPU goes below its smallest
    ],
)
def test_a_grant_within_less_lowers_its_jobs_by_one_share_down_to_the_smallest_limits(
    milliwatts: int, limits: tuple[int, int]
) -> None:
    grant = over_jobs(600_000, (300_000, 2), (100_000, 1))
    within = grant.within(NodeMilliwatts(milliwatts))
    assert tuple(job.power_limit_milliwatts for job in within.jobs) == limits
    assert within.bound.limit_milliwatts == 600_000 + 2 * limits[0] + limits[1]


def test_a_grant_without_anything_above_the_smallest_limits_is_within_anything_as_it_is() -> None:
    for grant in (over_jobs(500_000), over_jobs(0, (100_000, 2)), over_jobs(0, (80_000, 1))):
        assert grant.within(NodeMilliwatts(0)) == grant


@given(
    shares=st.lists(st.tuples(st.integers(1, 700_000), st.integers(1, 8)), max_size=4),
    beside=st.integers(0, 10**6),
    milliwatts=st.integers(0, 10**7),
)
def test_what_can_come_within_a_bound_does_and_nothing_is_raised(
    shares: list[tuple[int, int]], beside: int, milliwatts: int
) -> None:
    grant = over_jobs(beside, *shares)
    within = grant.within(NodeMilliwatts(milliwatts))
    assert within.bound.limit_milliwatts <= max(milliwatts, grant.lowered(0).bound.limit_milliwatts)
    assert grant.bound.covers(within.bound)
    for was, now in zip(grant.jobs, within.jobs, strict=True):
        assert min(was.power_limit_milliwatts, 100_000) <= now.power_limit_milliwatts <= was.power_limit_milliwatts


def test_a_foreign_pod_has_its_own_limit_by_both_its_names_or_that_of_all() -> None:
    own = ForeignPodLimit("web", "server", MilliwattsPerGpu(250_000))
    others = OtherGpuLimits(foreign_power_limit_milliwatts=MilliwattsPerGpu(180_000), foreign_pods=(own,))
    assert others.foreign_limit_of("web", "server") == 250_000
    assert others.foreign_limit_of("web", "client") == others.foreign_limit_of("shop", "server") == 180_000


def test_grants_of_other_versions_can_ask_the_same() -> None:
    given = read_grant(spec(jobs=[job()]))
    later = read_grant(spec(epoch=9, committedMilliwatts=8, jobs=[job()]))
    assert given.same_content(later)
    assert not given.same_content(read_grant(spec(jobs=[job(powerLimitMilliwatts=2)])))


def test_a_pods_limits_add_up_over_its_gpus() -> None:
    granted = JobGrant("team", "gpt2", "5c1f", 1, "gpt2-0", 4, MilliwattsPerGpu(250_000))
    assert granted.limit_milliwatts == 1_000_000


def test_a_digest_tells_grants_of_the_same_version_apart_and_survives_the_way() -> None:
    given = read_grant(spec(jobs=[job()]))
    other = read_grant(spec(jobs=[job(powerLimitMilliwatts=2)]))
    assert given.digest == ""
    assert given.sealed().digest == given.sealed().sealed().digest != other.sealed().digest
    foreign = {"namespace": "web", "podName": "server", "powerLimitMilliwatts": 7}
    with_foreign = read_grant(spec(jobs=[job()], otherGpus={"foreignPods": [foreign]}))
    assert with_foreign.sealed().digest != given.sealed().digest
    assert read_grant(grant_spec(given.sealed())) == given.sealed()
    assert given.same_content(given.sealed())
