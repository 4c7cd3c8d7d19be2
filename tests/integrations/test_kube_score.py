"""The chart under the eyes of the real kube-score: what it calls critical is mended, or stands here with a reason."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
import yaml
from flyball_testbed.controlplane.programs.integrations import KUBE_SCORE, find_integration

from tests.support.chart import EVERYTHING, Chart
from tests.support.own_targets import integrations

Json = dict[str, Any]

pytestmark = [*integrations, pytest.mark.timeout(1800)]

# Its grades: 1 is critical, 10 is well.
CRITICAL = 1
AGENT = "DaemonSet/flyball-agent"
# By the object ("" is every one) and the check: why it stays.
ACCEPTED = {
    ("", "container-image-pull-policy"): "a tag is a version, which names one image for ever; there is `image.pullPolicy`",
    ("", "container-resources"): "a limit of CPU would hold up a cut of the cap when it is needed most; memory is limited",
    ("", "container-ephemeral-storage-request-and-limit"): "roots are read-only, and each emptyDir has its size",
    (AGENT, "pod-probes-identical"): "who makes no rounds is neither ready nor mends by waiting",
    (AGENT, "container-security-context-user-group-id"): "the driver's limits and the kubelet's socket are root's",
    (AGENT, "container-security-context-privileged"): "every GPU's device files, in the half without a credential",
    ("Pod/flyball-test", "pod-networkpolicy"): "nothing listens in it",
}  # fmt: skip
# Its own kinds it cannot judge.
OURS = "flyball.dev/"


def critical(objects: list[Json]) -> dict[tuple[str, str], str]:
    """What kube-score calls critical: by the object's kind and name, and the check, what it says."""
    program = str(find_integration(KUBE_SCORE))
    answer = subprocess.run(
        [program, "score", "--output-format", "json", "--kubernetes-version", "v1.35", "-"],
        input=yaml.safe_dump_all(objects), capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert answer.stdout.startswith("["), answer.stderr
    return {
        (f"{found['type_meta']['kind']}/{found['object_meta']['name']}", check["check"]["id"]): "; ".join(
            f"{comment.get('path')}: {comment['summary']}" for comment in check["comments"] or ()
        )
        for found in json.loads(answer.stdout)
        for check in found["checks"] or ()
        if check["grade"] == CRITICAL and not check["skipped"]
    }


@pytest.mark.parametrize("settings", [(), EVERYTHING], ids=["default", "everything"])
def test_nothing_critical_is_left_without_a_reason(chart: Chart, settings: tuple[str, ...]) -> None:
    found = critical([each for each in chart.render(*settings) if not each["apiVersion"].startswith(OURS)])
    left = {key: said for key, said in found.items() if not {key, ("", key[1])} & set(ACCEPTED)}
    assert left == {}
    if settings == ():  # what is mended needs no reason any more
        assert {key for key in ACCEPTED if not any(key in (each, ("", each[1])) for each in found)} == set()


def test_it_would_notice_a_pod_that_may_everything(chart: Chart) -> None:
    operator = chart.one("Deployment", "flyball-operator")
    operator["spec"]["template"]["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    assert ("Deployment/flyball-operator", "container-security-context-privileged") in critical([operator])
