"""Pods of other training controllers under a cap: PyTorchJob's, TrainJob's and Ray's, made as those make them.

None of the controllers runs here. Their objects are of minimal definitions, and own what the controllers would have made:
with the owners and labels by which Flyball knows whose a pod is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
from flyball_testbed.controlplane.api import Json
from flyball_testbed.controlplane.install import CRDS, apply_crds
from flyball_testbed.parts import AGENTS, OPERATOR
from prometheus_client.parser import text_string_to_metric_families

from tests.support.command_line import flyball
from tests.support.site_bench import GROUP, Bench

DEFAULT_WATTS, SMALLEST_WATTS = 400, 100
GPUS_EACH = 2
KINDS = {
    "PyTorchJob": "kubeflow.org/v1",
    "TrainJob": "trainer.kubeflow.org/v1alpha1",
    "JobSet": "jobset.x-k8s.io/v1alpha2",
    "RayJob": "ray.io/v1",
    "RayCluster": "ray.io/v1",
}
# Whose each pod is in the end, by how its name begins.
OWNERS = {
    "net-": "PyTorchJob/net",
    "tune-": "TrainJob/tune",
    "sweep-": "RayJob/sweep",
    "lab-": "RayCluster/lab",
    "set-": "JobSet/set",
}


def definition(kind: str) -> Json:
    """A CustomResourceDefinition of that kind in which everything may stand."""
    group, _, version = KINDS[kind].partition("/")
    plural = f"{kind.lower()}s"
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "versions": [{"name": version, "served": True, "storage": True, "schema": schema}],
        },
    }


def template(labels: Json) -> Json:
    container = {"name": "main", "image": "somebodys", "resources": {"limits": {"nvidia.com/gpu": str(GPUS_EACH)}}}
    return {"metadata": {"labels": labels}, "spec": {"restartPolicy": "Never", "containers": [container]}}


@dataclass
class Controllers:
    """What the controllers of other kinds make, in the test's namespace."""

    bench: Bench
    made: list[str] = field(default_factory=list)

    def custom(self, kind: str, name: str, owner: Json | None = None, **metadata: Any) -> Json:
        """An object of one of the kinds; returns it as the owner of others."""
        path = f"/apis/{KINDS[kind]}/namespaces/{self.bench.namespace}/{kind.lower()}s"
        return self._create(path, KINDS[kind], kind, name, owner, {}, metadata)

    def job(self, name: str, pods: int, labels: Json, owner: Json) -> None:
        """A batch Job of so many pods, which Kubernetes' own controller makes."""
        spec = {"parallelism": pods, "completions": pods, "template": template(labels)}
        path = f"/apis/batch/v1/namespaces/{self.bench.namespace}/jobs"
        self._create(path, "batch/v1", "Job", name, owner, {"spec": spec}, {"labels": labels})

    def pod(self, name: str, labels: Json, owner: Json) -> None:
        path = f"/api/v1/namespaces/{self.bench.namespace}/pods"
        self._create(path, "v1", "Pod", name, owner, {"spec": template(labels)["spec"]}, {"labels": labels})

    def _create(
        self, path: str, version: str, kind: str, name: str, owner: Json | None, body: Json, metadata: Json
    ) -> Json:
        owners = [] if owner is None else [owner]
        metadata = {"name": name, "namespace": self.bench.namespace, "ownerReferences": owners, **metadata}
        made = self.bench.api.create(path, {"apiVersion": version, "kind": kind, "metadata": metadata, **body})
        self.made.append(f"{path}/{name}")
        return {"apiVersion": version, "kind": kind, "name": name, "uid": made["metadata"]["uid"], "controller": True}


@pytest.fixture
def controllers(bench: Bench) -> Iterator[Controllers]:
    """Minimal definitions of the kinds; they, and all that was made of them, are gone afterwards."""
    definitions = [definition(kind) for kind in KINDS]
    apply_crds(bench.api, definitions)
    made = Controllers(bench)
    yield made
    for path in made.made:  # each by itself: the garbage collector looks for new kinds twice a minute only
        bench.api.delete(path, propagation="Background")
    bench.wait(lambda: not bench.objects("pods"), lambda: f"no pods are left: {pod_names(bench)}")
    for each in definitions:
        bench.api.delete(f"{CRDS}/{each['metadata']['name']}")


def pod_names(bench: Bench) -> set[str]:
    return {pod["metadata"]["name"] for pod in bench.objects("pods")}


def limits_of(bench: Bench) -> dict[str, set[float]]:
    """The limits in watts that agents report of the GPUs that the test's pods hold, by the pods' owners."""
    found: dict[str, set[float]] = {}
    for node in bench.gpu_nodes():
        for device in (node.get("status") or {}).get("devices") or ():
            pod = device.get("pod") or {}
            if pod.get("namespace") == bench.namespace:
                (owner,) = (of for begin, of in OWNERS.items() if pod["name"].startswith(begin))
                found.setdefault(owner, set()).add(device["limits"]["enforcedMilliwatts"] / 1000)
    return found


def samples(bench: Bench, part: str, name: str) -> list[tuple[dict[str, str], float]]:
    """The labels and values of a metric in the test's namespace."""
    return [
        (sample.labels, sample.value)
        for family in text_string_to_metric_families(bench.site.metrics(part))
        for sample in family.samples
        if sample.name == name and sample.labels.get("namespace") == bench.namespace
    ]


def joules_of_pods(bench: Bench) -> dict[str, float]:
    """What agents count for each pod that is none of an EnergyAwareJob's."""
    found = samples(bench, AGENTS, "flyball_pod_gpu_energy_joules_total")
    return {labels["pod"]: joules for labels, joules in found if labels["job_name"] == "" and joules > 0}


def joules_of_owners(bench: Bench) -> dict[str, float]:
    found = samples(bench, OPERATOR, "flyball_owner_energy_joules_total")
    return {labels["owner"]: joules for labels, joules in found if joules > 0}


def booked_owners(bench: Bench) -> set[str]:
    """Whose energy the day's book has."""
    return {
        entry["owner"]
        for book in bench.api.list_objects(f"{GROUP}/energyreports")
        for entry in book["spec"].get("owners", ())
        if entry["namespace"] == bench.namespace and int(entry["millijoules"]) > 0
    }


def reported(bench: Bench) -> set[str]:
    """Whose energy `flyball report` has of the test's namespace."""
    result = flyball("report", "-n", bench.namespace, "-o", "json", "--kubeconfig", bench.site.cluster.kubeconfig)
    assert result.exit_code == 0, result.output
    names = {line["name"] for line in orjson.loads(result.stdout)["lines"] if line["kilowattHours"] > 0}
    return {name.partition("/")[2] for name in names}


def test_pods_of_other_controllers_share_a_cap_and_are_booked_under_what_made_them(
    bench: Bench, controllers: Controllers
) -> None:
    bench.set_cap("row", 9000)
    bench.wait_enforced("row", 9000)
    # The training operator makes pods itself.
    net = controllers.custom("PyTorchJob", "net")
    for role in ("master", "worker"):
        labels = {"training.kubeflow.org/job-name": "net", "training.kubeflow.org/replica-type": role}
        controllers.pod(f"net-{role}-0", labels, net)
    # A TrainJob makes a JobSet of its name, which makes Jobs. So does a JobSet that is nobody's.
    job_set = {"jobset.sigs.k8s.io/jobset-name": "tune", "jobset.sigs.k8s.io/replicatedjob-name": "node"}
    tune = controllers.custom("JobSet", "tune", controllers.custom("TrainJob", "tune"))
    controllers.job("tune-node-0", 2, {**job_set, "trainer.kubeflow.org/trainjob-name": "tune"}, tune)
    alone = controllers.custom("JobSet", "set")
    controllers.job("set-w-0", 1, {"jobset.sigs.k8s.io/jobset-name": "set"}, alone)
    # A RayJob makes a RayCluster of another name, which makes pods; these tell of the RayJob where their template does.
    made_by = {"ray.io/originated-from-crd": "RayJob", "ray.io/originated-from-cr-name": "sweep"}
    sweep = controllers.custom("RayCluster", "sweep-x7k2p", controllers.custom("RayJob", "sweep"), labels=made_by)
    controllers.pod("sweep-x7k2p-worker-a", {"ray.io/cluster": "sweep-x7k2p", **made_by}, sweep)
    lab = controllers.custom("RayCluster", "lab")
    controllers.pod("lab-worker-a", {"ray.io/cluster": "lab"}, lab)
    pods, owners = 7, set(OWNERS.values())

    def limits_are(watts: int) -> None:
        wanted = {owner: {float(watts)} for owner in owners}
        bench.wait(lambda: limits_of(bench) == wanted, lambda: f"{watts} W for each of theirs: {limits_of(bench)}")

    limits_are(DEFAULT_WATTS)
    # 18 of 32 GPUs idle at 100 W: of 4,000 W 2,200 are left to 14.
    bench.set_cap("row", 4000)
    bench.wait_enforced("row", 4000)
    limits_are((4000 - (bench.site.plan.gpus - pods * GPUS_EACH) * SMALLEST_WATTS) // (pods * GPUS_EACH))
    assert bench.limits_watts() <= 4000

    bench.wait(lambda: joules_of_pods(bench).keys() == pod_names(bench), lambda: f"by pod: {joules_of_pods(bench)}")
    bench.wait(lambda: joules_of_owners(bench).keys() == owners, lambda: f"by owner: {joules_of_owners(bench)}")
    bench.wait(lambda: booked_owners(bench) == owners, lambda: f"booked: {booked_owners(bench)}")
    assert reported(bench) == owners
    assert not bench.objects("energyawarejobs", GROUP)
    assert bench.judged_seconds("row") > 1
    assert bench.overshoot_watts("row") == 0
