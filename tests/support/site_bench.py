"""What the cluster tests do to a running site: submit, wait for a state, count what is left, ask the referee."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flyball_api.names import ANNOTATION_CONFIRM_WATTS, ANNOTATION_RELEASE
from flyball_testbed.controlplane.api import ApiClient, Json
from flyball_testbed.referee.hardware import HardwareReader
from flyball_testbed.site import Site
from flyball_testbed.workload.pods import simulated_trainer

from tests.support.waiting import PATIENCE_SECONDS, wait_until

GROUP = "/apis/flyball.dev/v1alpha1"
CAPS = f"{GROUP}/powercaps"
GPU_NODES = f"{GROUP}/gpunodes"


def job_manifest(
    name: str,
    namespace: str,
    *,
    gpus: tuple[int, int],
    iterations: int,
    model_class: str = "resnet50",
    batch: int = 256,
    seconds_between_resizes: int = 0,
    resource_name: str = "nvidia.com/gpu",
    **spec: Any,
) -> Json:
    """An EnergyAwareJob whose pods train in the workload host."""
    trainer = simulated_trainer(model_class, batch, iterations)
    return {
        "apiVersion": "flyball.dev/v1alpha1",
        "kind": "EnergyAwareJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "gpus": {"min": gpus[0], "max": gpus[1], "resourceName": resource_name},
            "training": {"globalBatchSize": batch, "iterations": iterations, "modelClass": model_class},
            "elasticity": {"mode": "CheckpointRestart", "minSecondsBetweenResizes": seconds_between_resizes},
            "template": {"spec": {"terminationGracePeriodSeconds": 20, "containers": [trainer]}},
            **spec,
        },
    }


def condition(raw: Json | None, kind: str) -> str:
    """The status of a condition of an object: "True", "False", "Unknown", or "" where there is none."""
    listed = ((raw or {}).get("status") or {}).get("conditions") or ()
    return next((str(item["status"]) for item in listed if item["type"] == kind), "")


def reason(raw: Json | None, kind: str) -> str:
    """The reason of a condition of an object, or ""."""
    listed = ((raw or {}).get("status") or {}).get("conditions") or ()
    return next((str(item["reason"]) for item in listed if item["type"] == kind), "")


def message(raw: Json | None, kind: str) -> str:
    """The message of a condition of an object, or ""."""
    listed = ((raw or {}).get("status") or {}).get("conditions") or ()
    return next((str(item.get("message", "")) for item in listed if item["type"] == kind), "")


def is_enforced_at(cap: Json | None, watts: int) -> bool:
    """Whether a PowerCap's status calls it enforced at these watts."""
    return ((cap or {}).get("status") or {}).get("effectiveWatts") == watts and condition(cap, "Enforced") == "True"


def applied_gpus(raw: Json | None) -> int:
    return int((((raw or {}).get("status") or {}).get("applied") or {}).get("gpus") or 0)


@dataclass
class Bench:
    """A running site and a namespace of the test's own in it.

    Caps are the test's own, too: what the methods below call `site` is, in the API and for the referee, a cap with the
    namespace before its name.
    """

    site: Site
    namespace: str
    caps: set[str] = field(default_factory=set)
    labelled: set[tuple[str, str]] = field(default_factory=set)

    @property
    def api(self) -> ApiClient:
        return self.site.cluster.api

    # --- jobs ------------------------------------------------------------------------------------------------------

    def path(self, name: str) -> str:
        return f"{GROUP}/namespaces/{self.namespace}/energyawarejobs/{name}"

    def submit(self, name: str, **keywords: Any) -> Json:
        """Create a job; see `job_manifest`."""
        return self.api.create(
            f"{GROUP}/namespaces/{self.namespace}/energyawarejobs", job_manifest(name, self.namespace, **keywords)
        )

    def job(self, name: str) -> Json | None:
        return self.api.get_or_none(self.path(name))

    def change(self, name: str, **spec: Any) -> None:
        self.api.patch(self.path(name), {"spec": spec})

    def annotate(self, name: str, annotation: str, value: str | None) -> None:
        """Annotate a job; None takes the annotation away."""
        self.api.patch(self.path(name), {"metadata": {"annotations": {annotation: value}}})

    def wait_job(self, name: str, holds: Callable[[Json | None], bool], what: str, seconds: float = 0.0) -> Json:
        """The job once `holds` is true of it; fails with its status otherwise."""
        return self._wait_object(self.path(name), holds, f"{name}: {what}", seconds)

    def wait_running(self, name: str, gpus: int | None = None) -> Json:
        """The job once all its pods are ready, at `gpus` GPUs where given."""
        return self.wait_job(
            name,
            lambda raw: condition(raw, "PodsReady") == "True" and gpus in (None, applied_gpus(raw)),
            f"running on {gpus or 'some'} GPUs",
        )

    def wait_succeeded(self, name: str, seconds: float = 0.0) -> Json:
        return self.wait_job(name, lambda raw: condition(raw, "Succeeded") == "True", "succeeded", seconds)

    def objects(self, collection: str, group: str = "/api/v1") -> list[Json]:
        """Everything of one kind in the test's namespace."""
        return self.api.list_objects(f"{group}/namespaces/{self.namespace}/{collection}")

    def events(self, name: str) -> list[tuple[str, str, str]]:
        """Type, reason and note of each Event about one of the test's jobs."""
        found = self.objects("events", "/apis/events.k8s.io/v1")
        return [
            (item["type"], item["reason"], item.get("note", ""))
            for item in found
            if item["regarding"].get("name") == name and item["regarding"].get("kind") == "EnergyAwareJob"
        ]

    def wait_told(self, name: str, kind: str, reason_expected: str, *words: str) -> str:
        """The note of an Event about the job, of this type and reason, once there is one with all these words in it."""
        told: list[str] = []

        def look() -> bool:
            found = self.events(name)
            told[:] = [
                note
                for type_, why, note in found
                if (type_, why) == (kind, reason_expected) and all(word in note for word in words)
            ]
            return bool(told)

        self.wait(
            look, lambda: f"{name} is told {kind} {reason_expected} with {words}; its Events: {self.events(name)}"
        )
        return told[0]

    def wait_said(self, name: str, kind: str, reason_expected: str, words: str) -> Json:
        """The job once a condition of it is False for this reason, with these words in its message."""
        return self.wait_job(
            name,
            lambda raw: (
                (condition(raw, kind), reason(raw, kind)) == ("False", reason_expected) and words in message(raw, kind)
            ),
            f"{kind} False for {reason_expected}, saying {words!r}",
        )

    def set_quota(self, hard: Mapping[str, str] | None = None) -> None:
        """Bound the test's namespace by a ResourceQuota, in the place of the last one; none where nothing is given."""
        collection = f"/api/v1/namespaces/{self.namespace}/resourcequotas"
        if self.api.get_or_none(f"{collection}/bound") is not None:
            self.api.delete(f"{collection}/bound")
            self.api.wait_for(f"{collection}/bound", lambda quota: quota is None)
        if hard:
            self.api.create(collection, {"metadata": {"name": "bound"}, "spec": {"hard": dict(hard)}})
            self.api.wait_for(f"{collection}/bound", lambda quota: bool((quota or {}).get("status", {}).get("hard")))

    def set_energy_quota(self, **spec: Any) -> None:
        """Bound the test's namespace by an EnergyQuota, in the place of the last one; none where nothing is given."""
        path = f"{GROUP}/namespaces/{self.namespace}/energyquotas/bound"
        if spec:
            self.api.apply(
                {
                    "apiVersion": "flyball.dev/v1alpha1",
                    "kind": "EnergyQuota",
                    "metadata": {"name": "bound", "namespace": self.namespace},
                    "spec": spec,
                }
            )
        elif self.api.get_or_none(path) is not None:
            self.api.delete(path)

    def energy_quota(self) -> Json | None:
        return self.api.get_or_none(f"{GROUP}/namespaces/{self.namespace}/energyquotas/bound")

    # --- power -----------------------------------------------------------------------------------------------------

    def set_cap(self, name: str, watts: int, **spec: Any) -> None:
        """Create or change a cap; over the whole site unless `nodeSelector` says otherwise."""
        self.caps.add(name)
        self.api.apply(
            {
                "apiVersion": "flyball.dev/v1alpha1",
                "kind": "PowerCap",
                "metadata": {"name": self.cap_name(name), "annotations": {ANNOTATION_CONFIRM_WATTS: str(watts)}},
                "spec": {"watts": watts, **spec},
            }
        )

    def cap_name(self, name: str) -> str:
        """The name of one of the test's caps in the API."""
        return f"{self.namespace}-{name}"

    def cap_path(self, name: str) -> str:
        return f"{CAPS}/{self.cap_name(name)}"

    def cap(self, name: str) -> Json | None:
        return self.api.get_or_none(self.cap_path(name))

    def label_node(self, node: str, label: str, value: str) -> None:
        """Label a node for the time of the test."""
        self.labelled.add((node, label))
        self.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {label: value}}})

    def wait_enforced(self, name: str, watts: int, seconds: float = 0.0) -> Json:
        """The cap once its status says that these watts are enforced."""
        path, what = self.cap_path(name), f"{name} enforced at {watts} W"
        return self._wait_object(path, lambda cap: is_enforced_at(cap, watts), what, seconds)

    def gpu_nodes(self) -> list[Json]:
        return self.api.list_objects(GPU_NODES)

    def limits_watts(self) -> float:
        """The sum of all limits as the hardware has them at this moment, read as the referee reads it."""
        sample = HardwareReader(self.site.hardware).read()
        assert sample is not None, "the site has hardware"
        return sample.limits_watts

    def bounds_watts(self) -> float:
        """The sum of what the nodes are allowed by the grants that the API server holds at this moment."""
        return sum(float(node["spec"]["boundMilliwatts"]) for node in self.gpu_nodes()) / 1000

    def floor_watts(self) -> float:
        return self.site.plan.gpus * self.site.plan.constants.min_limit_milliwatts / 1000

    def wait_at_floor(self) -> None:
        """Wait until no limit of the site stands above the smallest."""
        self.wait(lambda: self.limits_watts() <= self.floor_watts(), lambda: f"limits at {self.limits_watts()} W")

    def overshoot_watts(self, cap: str) -> float:
        """The most that limits or true draw were above the cap while it was reported as enforced."""
        tally = self.site.referee_summary()["caps"][self.cap_name(cap)]
        return max(float(tally["max_limits_over_watts"]), float(tally["max_true_over_watts"]))

    def judged_seconds(self, cap: str) -> float:
        """For how long the referee could judge the cap: a zero overshoot of nothing proves nothing."""
        return float(
            (self.site.referee_summary().get("caps") or {}).get(self.cap_name(cap), {}).get("judged_seconds", 0.0)
        )

    # --- waiting ---------------------------------------------------------------------------------------------------

    def wait(self, holds: Callable[[], bool], what: Callable[[], str], seconds: float = 0.0) -> None:
        """Wait until `holds`; fails, with `what()`, after `seconds` (PATIENCE_SECONDS by default)."""
        wait_until(holds, what, seconds or PATIENCE_SECONDS)

    def _wait_object(self, path: str, holds: Callable[[Json | None], bool], what: str, seconds: float) -> Json:
        """The object once `holds` is true of it. Its changes are watched: asking again and again is work for the site."""
        try:
            return self.api.wait_for(path, holds, timeout_seconds=seconds or PATIENCE_SECONDS)
        except TimeoutError as error:
            raise AssertionError(f"{what}; {error}") from error

    def release(self, path: str) -> None:
        """Give an SRE's word that a cap, or the node of a GPUNode, is to be let go."""
        self.api.patch(path, {"metadata": {"annotations": {ANNOTATION_RELEASE: "true"}}})

    def clean(self) -> None:
        """Delete the test's jobs, caps and labels, and wait until nothing of them is left, in no grant either."""
        self.set_quota()
        self.set_energy_quota()
        jobs = self.objects("energyawarejobs", GROUP)
        self.api.for_each(lambda raw: self.api.delete(self.path(raw["metadata"]["name"])), jobs)
        for path in map(self.cap_path, self.caps):
            if self.api.get_or_none(path) is not None:  # without the word it would be held for ten minutes
                self.release(path)
                self.api.delete(path)
        for node, label in self.labelled:
            self.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {label: None}}})
        self.wait(lambda: not any(map(self.cap, self.caps)), lambda: f"no caps of {self.caps}")
        self.wait(
            lambda: not self.objects("pods") and not self.objects("jobs", "/apis/batch/v1"),
            lambda: f"no pods and no Jobs in {self.namespace}",
        )
        self.wait(
            lambda: not any(node["spec"].get("jobs") for node in self.gpu_nodes()),
            lambda: f"no grant for a job; GPUNodes: {[node['spec'] for node in self.gpu_nodes()]}",
        )


def bench_on(site: Site) -> Bench:
    """A bench with a fresh namespace."""
    namespace = f"test-{uuid.uuid4().hex[:8]}"
    api = site.cluster.api
    api.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    api.wait_for(f"/api/v1/namespaces/{namespace}/serviceaccounts/default", lambda account: account is not None)
    return Bench(site, namespace)
