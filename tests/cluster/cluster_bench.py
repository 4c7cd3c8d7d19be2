"""What the cluster tests do to a running site: submit, wait for a state, count what is left, ask the referee."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from flyball_devcluster.api import ApiClient, Json
from flyball_devcluster.demo.site import Site
from flyball_devcluster.referee.hardware import HardwareReader

GROUP = "/apis/flyball.dev/v1alpha1"
CAPS = f"{GROUP}/powercaps"
GPU_NODES = f"{GROUP}/gpunodes"
# Long enough for two loaded cores; a test that waits this long has failed.
PATIENCE_SECONDS = 60.0
POLL_SECONDS = 0.05


def job_manifest(
    name: str,
    namespace: str,
    *,
    gpus: tuple[int, int],
    iterations: int,
    model_class: str = "resnet50",
    batch: int = 256,
    seconds_between_resizes: int = 0,
    **spec: Any,
) -> Json:
    """An EnergyAwareJob whose pods train in the workload host."""
    environment = {
        "DEVCLUSTER_MODEL_CLASS": model_class,
        "DEVCLUSTER_GLOBAL_BATCH": str(batch),
        "DEVCLUSTER_ITERATIONS": str(iterations),
    }
    trainer = {
        "name": "trainer",
        "image": "flyball.dev/simulated-trainer",
        "env": [{"name": key, "value": value} for key, value in environment.items()],
    }
    return {
        "apiVersion": "flyball.dev/v1alpha1",
        "kind": "EnergyAwareJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "gpus": {"min": gpus[0], "max": gpus[1]},
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


def applied_gpus(raw: Json | None) -> int:
    return int((((raw or {}).get("status") or {}).get("applied") or {}).get("gpus") or 0)


@dataclass
class Bench:
    """A running site and a namespace of the test's own in it."""

    site: Site
    namespace: str
    caps: list[str] = field(default_factory=list)

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

    def wait_job(self, name: str, holds: Callable[[Json | None], bool], what: str, seconds: float = 0.0) -> Json:
        """The job once `holds` is true of it; fails with its status otherwise."""
        seen: list[Json | None] = [None]

        def look() -> bool:
            seen[0] = self.job(name)
            return holds(seen[0])

        self.wait(look, lambda: f"{name}: {what}; its status: {(seen[0] or {}).get('status')}", seconds)
        return seen[0] or {}

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

    # --- power -----------------------------------------------------------------------------------------------------

    def set_cap(self, name: str, watts: int, **spec: Any) -> None:
        """Create or change a cap over the whole site."""
        if name not in self.caps:
            self.caps.append(name)
        self.api.apply(
            {
                "apiVersion": "flyball.dev/v1alpha1",
                "kind": "PowerCap",
                "metadata": {"name": name},
                "spec": {"watts": watts, **spec},
            }
        )

    def cap(self, name: str) -> Json | None:
        return self.api.get_or_none(f"{CAPS}/{name}")

    def wait_enforced(self, name: str, watts: int, seconds: float = 0.0) -> Json:
        """The cap once its status says that these watts are enforced."""
        seen: list[Json | None] = [None]

        def look() -> bool:
            seen[0] = self.cap(name)
            status = (seen[0] or {}).get("status") or {}
            return status.get("effectiveWatts") == watts and condition(seen[0], "Enforced") == "True"

        self.wait(look, lambda: f"{name} enforced at {watts} W; its status: {(seen[0] or {}).get('status')}", seconds)
        return seen[0] or {}

    def gpu_nodes(self) -> list[Json]:
        return self.api.list_objects(GPU_NODES)

    def limits_watts(self) -> float:
        """The sum of all limits as the hardware has them at this moment, read as the referee reads it."""
        sample = HardwareReader(self.site.hardware).read()
        assert sample is not None, "the site has hardware"
        return float(sample.limits.sum()) / 1000

    def floor_watts(self) -> float:
        return self.site.plan.gpus * self.site.plan.constants.min_limit_milliwatts / 1000

    def wait_at_floor(self) -> None:
        """Wait until no limit of the site stands above the smallest."""
        self.wait(lambda: self.limits_watts() <= self.floor_watts(), lambda: f"limits at {self.limits_watts()} W")

    def overshoot_watts(self, cap: str) -> float:
        """The most that limits or true draw were above the cap while it was reported as enforced."""
        tally = self.site.referee_books()["caps"][cap]
        return max(float(tally["max_limits_over_watts"]), float(tally["max_true_over_watts"]))

    def judged_seconds(self, cap: str) -> float:
        """For how long the referee could judge the cap: a zero overshoot of nothing proves nothing."""
        return float((self.site.referee_books().get("caps") or {}).get(cap, {}).get("judged_seconds", 0.0))

    # --- waiting ---------------------------------------------------------------------------------------------------

    def wait(self, holds: Callable[[], bool], what: Callable[[], str], seconds: float = 0.0) -> None:
        """Wait until `holds`; fails, with `what()`, after `seconds` (PATIENCE_SECONDS by default)."""
        ends = time.monotonic() + (seconds or PATIENCE_SECONDS)
        while not holds():
            if time.monotonic() > ends:
                raise AssertionError(f"waited in vain for {what()}")
            time.sleep(POLL_SECONDS)

    def clean(self) -> None:
        """Delete the test's jobs and caps, and wait until nothing of them is left."""
        for raw in self.objects("energyawarejobs", GROUP):
            self.api.delete(self.path(raw["metadata"]["name"]))
        for name in self.caps:
            self.api.delete(f"{CAPS}/{name}")
        self.wait(
            lambda: not self.objects("pods") and not self.objects("jobs", "/apis/batch/v1"),
            lambda: f"no pods and no Jobs in {self.namespace}",
        )
