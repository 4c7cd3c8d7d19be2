"""Starts of training jobs out of raw batch Jobs."""

from __future__ import annotations

import base64
import json
import zlib

import pytest
from flyball_api.workloads import read_incarnation

from tests.support.operator_objects import raw_batch_job


@pytest.mark.parametrize(
    ("condition", "complete", "failed"),
    [
        ("", False, False),
        ("Complete", True, False),
        ("SuccessCriteriaMet", True, False),
        ("Failed", False, True),
        ("FailureTarget", False, True),
        ("Suspended", False, False),
    ],
)
def test_a_jobs_end(condition: str, complete: bool, failed: bool) -> None:
    view = read_incarnation(raw_batch_job("uid-train", 2, (("a", 4), ("b", 4)), condition=condition, message="why"))
    assert (view.complete, view.failed) == (complete, failed)
    assert view.failure == ("why" if failed else "")
    assert (view.job_uid, view.incarnation, view.gpus) == ("uid-train", 2, 8)


def test_a_condition_that_does_not_hold_says_nothing() -> None:
    raw = raw_batch_job("uid-train", 1, (("a", 4),), condition="Failed")
    raw["status"]["conditions"][0]["status"] = "False"
    assert not read_incarnation(raw).failed


def packed(content: bytes) -> str:
    return json.dumps({"packed": base64.b64encode(zlib.compress(content)).decode()})


DEEP = "[" * 100_000
PACKED = ('{"packed": "nonsense"}', '{"packed": 5}', *map(packed, (b"{", b"[5]", b'[["a",-5]]', b" " * 2**27)))


@pytest.mark.parametrize(
    "annotation",
    [
        None,
        "",
        "[]",
        "{}",
        '{"nodes": 5}',
        '{"nodes": [["a"]]}',
        '{"nodes": [["a", "x"]]}',
        '{"nodes": [["a", 8], ["b", -5]]}',
        '{"nodes": [["a", 0]]}',
        '{"nodes": [["a", 65537]]}',
        pytest.param(f'{{"nodes": [["a", {10**400}]]}}', id="huge"),
        pytest.param(f'{{"x": {DEEP}', id="deep"),
        *PACKED,
    ],
)
def test_a_damaged_allocation_is_one_without_nodes(annotation: str | None) -> None:
    raw = raw_batch_job("uid-train", 1, ())
    if annotation is None:
        del raw["metadata"]["annotations"]
    else:
        raw["metadata"]["annotations"] = {"flyball.dev/allocation": annotation}
    view = read_incarnation(raw)
    assert (view.name, view.incarnation, view.nodes) == ("train-1", 1, ())
