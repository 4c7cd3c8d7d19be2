"""An installation of the packaged chart in real pods: helm, what its pods say, and a referee that reads the hardware."""

from __future__ import annotations

import csv
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flyball_testbed.controlplane.api import ApiClient, Json
from flyball_testbed.images.archive import name_image
from flyball_testbed.realnode.cluster import RealCluster
from flyball_testbed.referee.hardware import HardwareReader
from prometheus_client.parser import text_string_to_metric_families

from tests.support.chart import CHART, NAMESPACE, Chart
from tests.support.site_bench import CAPS, GPU_NODES, is_enforced_at
from tests.support.waiting import wait_until

NODE = "real-1"
RELEASE = "flyball"
EARLIER_VERSION = "0.0.9"
# What `--wait` waits for: containers that start on two busy cores.
HELM_SECONDS = 240
METRICS_PORTS = {"operator": 9400, "agent": 9101}
# Kinds whose objects come and go by themselves, or belong to the cluster's own working.
PASSING = {
    "events",
    "events.events.k8s.io",
    "endpointslices.discovery.k8s.io",
    "endpoints",
    "ipaddresses.networking.k8s.io",
}


def earlier_chart(directory: Path) -> Path:
    """The chart under an earlier version's number, which asks for images of that number."""
    earlier = directory / "earlier"
    shutil.copytree(CHART, earlier, ignore=shutil.ignore_patterns("flyball_api"))
    lines = (earlier / "Chart.yaml").read_text().splitlines()
    numbered = [
        f"{line.partition(':')[0]}: {EARLIER_VERSION}" if line.startswith(("version:", "appVersion:")) else line
        for line in lines
    ]
    assert numbered != lines
    (earlier / "Chart.yaml").write_text("\n".join(numbered) + "\n")
    return earlier


def earlier_images(images: dict[str, Path], directory: Path) -> list[Path]:
    """The images under an earlier version's number."""
    made = []
    for component, archive in images.items():
        target = directory / f"{component}-{EARLIER_VERSION}.tar"
        name_image(archive, target, f"localhost/flyball-{component}:{EARLIER_VERSION}")
        made.append(target)
    return made


@dataclass(frozen=True)
class Verdict:
    """What a referee has found while it watched."""

    summary: dict[str, Any]
    limits_watts: Sequence[float]

    def overshoot_watts(self, cap: str) -> float:
        """The most that limits or true draw were above the cap while it was reported as enforced."""
        tally = self.summary["caps"][cap]
        return max(float(tally["max_limits_over_watts"]), float(tally["max_true_over_watts"]))

    def judged_seconds(self, cap: str) -> float:
        """For how long it could judge the cap: no overshoot of nothing proves nothing."""
        return float(self.summary["caps"][cap]["judged_seconds"])


@dataclass(frozen=True)
class Installation:
    """A cluster with one real node and its GPUs, and helm on it."""

    cluster: RealCluster
    chart: Chart
    earlier: Path

    @property
    def api(self) -> ApiClient:
        """The API as the administrator."""
        return self.cluster.api

    # --- helm ------------------------------------------------------------------------------------------------------

    def helm(self, *arguments: str) -> str:
        """Run helm on the cluster; its output. Raises HelmRefused."""
        where = ("--namespace", NAMESPACE, "--kubeconfig", str(self.cluster.kubeconfig))
        return self.chart.helm(*arguments, *where, timeout_seconds=HELM_SECONDS + 30)

    def install(self, chart: Path = CHART, *settings: str) -> None:
        """Install the chart, or upgrade to it, with these values, and wait until its pods are ready."""
        values = [word for setting in settings for word in ("--set", setting)]
        wait = ("--wait", "--timeout", f"{HELM_SECONDS}s")
        self.helm("upgrade", RELEASE, str(chart), "--install", "--create-namespace", *values, *wait)

    def rollback(self, revision: int) -> None:
        """Go back to a revision, and wait until its pods are ready."""
        self.helm("rollback", RELEASE, str(revision), "--wait", "--timeout", f"{HELM_SECONDS}s")

    def uninstall(self) -> None:
        """Remove the release, and wait until its pods are gone."""
        self.helm("uninstall", RELEASE, "--wait", "--timeout", f"{HELM_SECONDS}s")
        pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
        self.api.wait_for(
            pods, lambda found: not (found or {}).get("items"), timeout_seconds=HELM_SECONDS, what="no pods"
        )

    def revisions(self) -> list[Json]:
        """The history of the release, its oldest revision first; empty where there is none."""
        listed: list[Json] = json.loads(self.helm("list", "--output", "json"))
        if not listed:
            return []
        history: list[Json] = json.loads(self.helm("history", RELEASE, "--output", "json"))
        return history

    def mode(self) -> str:
        """What the release was last told to do: govern, or observe."""
        values: Json = json.loads(self.helm("get", "values", RELEASE, "--all", "--output", "json"))
        return str(values["mode"])

    # --- pods ------------------------------------------------------------------------------------------------------

    def pods(self, component: str) -> list[Json]:
        """The pods of a component that are not on their way out."""
        found = self.api.list_objects(
            f"/api/v1/namespaces/{NAMESPACE}/pods", labelSelector=f"app.kubernetes.io/component={component}"
        )
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def image_tags(self, component: str) -> set[str]:
        """The tags of the images that a component's pods run."""
        containers = [each for pod in self.pods(component) for each in pod["spec"]["containers"]]
        return {each["image"].rpartition(":")[2] for each in containers}

    def metrics(self, component: str) -> list[dict[str, float]]:
        """What each pod of a component shows on its metrics' port: sums over the labels of each series, by name."""
        port = METRICS_PORTS[component]
        found = []
        for pod in self.pods(component):
            path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}:{port}/proxy/metrics"
            sums: dict[str, float] = {}
            for family in text_string_to_metric_families(self.api.request("GET", path)):
                for sample in family.samples:
                    sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
            found.append(sums)
        return found

    # --- power -----------------------------------------------------------------------------------------------------

    def limits_watts(self) -> float:
        """The sum of all limits as the hardware has them at this moment, read as the referee reads it."""
        sample = HardwareReader(self.cluster.hardware(NODE).parent).read()
        assert sample is not None
        return sample.limits_watts

    def events(self, namespace: str) -> str:
        """What the API server has been told of a namespace's objects, the oldest first: for a failure's words."""
        found = self.api.list_objects(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")
        lines = sorted(
            (item["metadata"]["creationTimestamp"], item["regarding"]["name"], item["reason"], item.get("note", ""))
            for item in found
        )
        return "\n".join(" ".join(line) for line in lines)

    def set_cap(self, name: str, watts: int, **spec: Any) -> None:
        """Create or change a cap."""
        cap = {"apiVersion": "flyball.dev/v1alpha1", "kind": "PowerCap", "metadata": {"name": name}}
        self.api.apply({**cap, "spec": {"watts": watts, **spec}})

    def wait_enforced(self, cap: str, watts: int) -> Json:
        """The cap, once its status says that so many watts are enforced."""
        return self.api.wait_for(
            f"{CAPS}/{cap}",
            lambda found: is_enforced_at(found, watts),
            timeout_seconds=HELM_SECONDS,
            what=f"enforced at {watts} W",
        )

    def wait_acknowledged(self) -> Json:
        """The node's GPUNode, once its agent has acknowledged a grant of the present leader."""
        return self.api.wait_for(
            f"{GPU_NODES}/{NODE}",
            lambda node: (
                node is not None
                and (node.get("status", {}).get("acknowledged") or {}).get("epoch") == node["spec"]["epoch"]
            ),
            timeout_seconds=HELM_SECONDS,
            what="acknowledged",
        )

    @contextmanager
    def referee(self) -> Iterator[list[Verdict]]:
        """A referee that reads hardware and caps all the while; its verdict is in the list at the end."""
        verdicts: list[Verdict] = []
        with tempfile.TemporaryDirectory() as scratch:
            table, summary = Path(scratch) / "referee.csv", Path(scratch) / "referee.json"
            hardware = self.cluster.hardware(NODE).parent
            process = subprocess.Popen(
                [sys.executable, "-m", "flyball_testbed.referee", "--hardware", str(hardware), "--csv", str(table),
                 "--summary", str(summary), "--kubeconfig", str(self.cluster.kubeconfig)]
            )  # fmt: skip
            try:
                wait_until(
                    lambda: summary.exists() and bool(json.loads(summary.read_text())["caps"]),
                    "the referee sees the cap",
                )
                yield verdicts
            finally:
                process.send_signal(signal.SIGTERM)
                status = process.wait(timeout=60)
            assert status == 0
            with table.open() as file:
                limits = [float(row["limits_watts"]) for row in csv.DictReader(file)]
            verdicts.append(Verdict(json.loads(summary.read_text()), limits))

    # --- everything ------------------------------------------------------------------------------------------------

    def objects(self) -> set[tuple[str, str, str]]:
        """Every object that the API server has: its resource, namespace and name; without those that come and go."""
        found = set()
        groups = self.api.get("/apis")["groups"]
        paths = {group["name"]: f"/apis/{group['preferredVersion']['groupVersion']}" for group in groups}
        for group, path in {"": "/api/v1", **paths}.items():
            for resource in self.api.get(path)["resources"]:
                kind = ".".join(filter(None, (resource["name"], group)))
                if "/" in resource["name"] or "list" not in resource["verbs"] or kind in PASSING:
                    continue
                for item in self.api.list_objects(f"{path}/{resource['name']}"):
                    found.add((kind, item["metadata"].get("namespace", ""), item["metadata"]["name"]))
        return found
