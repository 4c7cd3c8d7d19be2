"""A JobSet of the real controller and an EnergyAwareJob side by side, under one cap.

The controller is a process on a site: its webhooks are called by address, with a certificate of the test's own. What runs
in the JobSet's pods is simulated as for any pod that Flyball does not know.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml
from flyball_kube.errors import ApiError, ApiUnreachable
from flyball_testbed.controlplane.ports import LOOPBACK, free_port
from flyball_testbed.controlplane.processes import Process
from flyball_testbed.controlplane.programs.binaries import Binaries
from flyball_testbed.controlplane.programs.integrations import JOBSET, find_integration, integration_source
from flyball_testbed.controlplane.stages import OUTCOME_ANNOTATION, SUCCEEDED
from flyball_testbed.parts import AGENTS
from flyball_testbed.site import Site, SitePlan
from prometheus_client.parser import text_string_to_metric_families

from tests.support.chart import Chart
from tests.support.own_targets import integrations
from tests.support.site_bench import GROUP, Bench, bench_on
from tests.support.waiting import wait_until

Json = dict[str, Any]

pytestmark = [*integrations, pytest.mark.timeout(1800)]

JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2"
NAME, GPUS_EACH, PODS = "evaluation", 2, 2
PATIENCE_SECONDS = 240.0
NODES, GPUS_PER_NODE = 2, 4
SMALLEST_WATTS = 100


def controller_configuration(metrics: int, probes: int, webhooks: int) -> Json:
    return {
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "internalCertManagement": {"enable": False},
        "leaderElection": {"leaderElect": False},
        "metrics": {"bindAddress": f"{LOOPBACK}:{metrics}"},
        "health": {"healthProbeBindAddress": f"{LOOPBACK}:{probes}"},
        "webhook": {"host": LOOPBACK, "port": webhooks},
        "clientConnection": {"qps": 50, "burst": 100},
    }


@dataclass(frozen=True)
class WithJobSets:
    """A site on which the JobSet controller runs."""

    bench: Bench
    controller: Process

    @property
    def path(self) -> str:
        return f"{JOBSETS}/namespaces/{self.bench.namespace}/jobsets"

    def jobs(self) -> list[Json]:
        """The JobSet's batch Jobs."""
        return self.bench.api.list_objects(
            f"/apis/batch/v1/namespaces/{self.bench.namespace}/jobs",
            labelSelector=f"jobset.sigs.k8s.io/jobset-name={NAME}",
        )

    def booked_millijoules(self) -> int:
        """What the books of energy have of the JobSet as the owner of its pods."""
        return sum(
            int(entry["millijoules"])
            for book in self.bench.api.list_objects(f"{GROUP}/energyreports")
            for entry in book["spec"].get("owners", ())
            if (entry["namespace"], entry["owner"]) == (self.bench.namespace, f"JobSet/{NAME}")
        )

    def pods(self) -> list[Json]:
        """The pods of the JobSet that have not ended."""
        found = self.bench.api.list_objects(
            f"/api/v1/namespaces/{self.bench.namespace}/pods", labelSelector=f"jobset.sigs.k8s.io/jobset-name={NAME}"
        )
        return [pod for pod in found if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")]

    def running(self) -> set[str]:
        return {pod["metadata"]["name"] for pod in self.pods() if pod["status"].get("phase") == "Running"}

    def limits_watts(self) -> list[float]:
        """What the agents report of the limits of the JobSet's GPUs, by the pods that they know to hold them."""
        return [
            device["limits"]["enforcedMilliwatts"] / 1000
            for node in self.bench.gpu_nodes()
            for device in (node.get("status") or {}).get("devices") or ()
            if (device.get("pod") or {}).get("name") in self.running()
        ]

    def joules(self) -> dict[str, float]:
        """What the agents' metrics say that each of the JobSet's pods has used; and of which job of Flyball's it is."""
        return {
            sample.labels["pod"]: sample.value
            for family in text_string_to_metric_families(self.bench.site.metrics(AGENTS))
            for sample in family.samples
            if sample.name == "flyball_pod_gpu_energy_joules_total"
            and sample.labels["pod"] in self.running()
            and sample.labels["job_name"] == ""
        }


@pytest.fixture
def with_job_sets(control_plane_programs: Binaries, chart: Chart, tmp_path: Path) -> Iterator[WithJobSets]:
    """Two nodes of four GPUs, Flyball on them, and the JobSet controller with its definitions and webhooks."""
    program, source = find_integration(JOBSET), integration_source(JOBSET)
    plan = SitePlan(
        nodes=NODES, gpus_per_node=GPUS_PER_NODE, operator_arguments=("--replan-seconds", "2", "--report-seconds", "2")
    )
    with Site.start(plan, tmp_path / "site") as site:
        bench = bench_on(site)
        api = site.cluster.api
        for path in sorted((source / "config/components/crd/bases").glob("*.yaml")):
            api.apply(yaml.safe_load(path.read_text()))

        authority = trustme.CA()
        keys = tmp_path / "k8s-webhook-server" / "serving-certs"
        keys.mkdir(parents=True)
        issued = authority.issue_cert(LOOPBACK)
        issued.private_key_pem.write_to_path(keys / "tls.key")
        issued.cert_chain_pems[0].write_to_path(keys / "tls.crt")
        webhooks = free_port()
        configuration = tmp_path / "jobset.yaml"
        configuration.write_text(yaml.safe_dump(controller_configuration(free_port(), free_port(), webhooks)))
        controller = Process.spawn(
            JOBSET,
            [str(program), f"--config={configuration}"],
            log_path=tmp_path / "jobset.log",
            # It looks for its certificate under the folder for temporary files.
            environment={"KUBECONFIG": str(site.cluster.kubeconfig), "TMPDIR": str(tmp_path)},
        )
        rendered = chart.helm("template", "jobset", str(source / "charts/jobset"), "--namespace", "jobset-system")
        for found in yaml.safe_load_all(rendered):
            if not found or not found["kind"].endswith("WebhookConfiguration"):
                continue
            for webhook in found["webhooks"]:
                path = webhook["clientConfig"]["service"].get("path", "/")
                webhook["clientConfig"] = {
                    "url": f"https://{LOOPBACK}:{webhooks}{path}",
                    "caBundle": base64.b64encode(authority.cert_pem.bytes()).decode(),
                }
            api.apply(found)
        yield WithJobSets(bench, controller)
        controller.stop(10)
        print(controller.log_tail(20))


def job_set(bench: Bench) -> Json:
    container = {
        "name": "main",
        "image": "evaluation",
        "resources": {"limits": {"nvidia.com/gpu": str(GPUS_EACH)}},
    }
    pod = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    # The label is for Jobs that nothing controls: these are the JobSet's to let run.
    labels = {"flyball.dev/admission": "by-power"}
    spec = {"parallelism": 1, "completions": 1, "template": pod}
    job = {"template": {"metadata": {"labels": labels}, "spec": spec}}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": NAME, "namespace": bench.namespace},
        "spec": {"suspend": True, "replicatedJobs": [{"name": "w", "replicas": PODS, **job}]},
    }


def plain_job(bench: Bench) -> Json:
    """A Job that nothing controls, and that waits for watts by the same label."""
    container = {"name": "main", "image": "other", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    metadata = {"name": "alone", "namespace": bench.namespace, "labels": {"flyball.dev/admission": "by-power"}}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    return {"metadata": metadata, "spec": {"suspend": True, "template": template}}


def test_a_job_set_and_a_job_of_ours_share_a_cap(with_job_sets: WithJobSets) -> None:
    bench, api = with_job_sets.bench, with_job_sets.bench.api
    cap = 2400
    bench.set_cap("site", cap)
    bench.wait_enforced("site", cap, PATIENCE_SECONDS)
    bench.submit("ours", gpus=(2, 4), iterations=10_000_000)
    bench.wait_running("ours")

    def created() -> bool:
        assert with_job_sets.controller.is_running(), with_job_sets.controller.log_tail(30)
        try:
            api.create(with_job_sets.path, job_set(bench))
        except (ApiError, ApiUnreachable) as error:
            if "webhook" in str(error):  # it does not listen yet
                return False
            raise
        return True

    wait_until(created, lambda: f"the JobSet is admitted: {with_job_sets.controller.log_tail(10)}", PATIENCE_SECONDS)
    made = api.get(f"{with_job_sets.path}/{NAME}")
    assert made["spec"]["network"]["enableDNSHostnames"] is True, "its webhook has not defaulted it"

    # It waits until its own owner lets it run; a Job beside it that is nobody's is let run by the operator.
    jobs = f"/apis/batch/v1/namespaces/{bench.namespace}/jobs"
    wait_until(
        lambda: len(with_job_sets.jobs()) == PODS,
        lambda: f"its Jobs are there: {with_job_sets.jobs()}",
        PATIENCE_SECONDS,
    )
    api.create(jobs, plain_job(bench))
    wait_until(lambda: not api.get(f"{jobs}/alone")["spec"]["suspend"], "the other Job is let run", PATIENCE_SECONDS)
    assert all(job["spec"]["suspend"] for job in with_job_sets.jobs())
    api.delete(f"{jobs}/alone", propagation="Background")
    api.patch(f"{with_job_sets.path}/{NAME}", {"spec": {"suspend": False}})
    wait_until(
        lambda: len(with_job_sets.running()) == PODS, lambda: f"its pods run: {with_job_sets.pods()}", PATIENCE_SECONDS
    )

    # Every GPU of the JobSet is known by the kubelet's word, and what its pods draw is theirs and no job's of ours.
    wait_until(lambda: len(with_job_sets.limits_watts()) == PODS * GPUS_EACH, "its GPUs are known", PATIENCE_SECONDS)
    before = with_job_sets.joules()
    wait_until(
        lambda: (
            all(used > before.get(pod, 0.0) + 100 for pod, used in with_job_sets.joules().items())
            and len(with_job_sets.joules()) == PODS
        ),
        lambda: f"its joules are counted: {before}, {with_job_sets.joules()}",
        PATIENCE_SECONDS,
    )
    wait_until(
        lambda: min(with_job_sets.limits_watts(), default=0) > SMALLEST_WATTS,
        lambda: f"its GPUs have their share: {with_job_sets.limits_watts()} W",
        PATIENCE_SECONDS,
    )
    bench.wait_enforced("site", cap, PATIENCE_SECONDS)
    share = cap / (NODES * GPUS_PER_NODE)
    at_first = with_job_sets.limits_watts()
    assert max(at_first) <= share, f"each of its GPUs may draw what the cap comes to for each: {at_first} W"

    # The cap falls: the JobSet's GPUs fall with it, and both go on.
    lower = 1200
    bench.set_cap("site", lower)
    bench.wait_enforced("site", lower, PATIENCE_SECONDS)
    assert bench.limits_watts() <= lower
    wait_until(
        lambda: (
            bool(with_job_sets.limits_watts()) and max(with_job_sets.limits_watts()) <= lower / (NODES * GPUS_PER_NODE)
        ),
        lambda: f"the JobSet's limits fell: {with_job_sets.limits_watts()} W",
        PATIENCE_SECONDS,
    )
    assert len(with_job_sets.running()) == PODS
    # And further where its namespace weighs less: of 1,200 W four GPUs get two parts, our four get four.
    weights = [{"namespace": bench.namespace, "permille": 500}]
    bench.set_cap("site", lower, foreignWeights=weights)
    wait_until(
        lambda: set(with_job_sets.limits_watts()) == {float(SMALLEST_WATTS)},
        lambda: f"the JobSet's limits are half of the others': {with_job_sets.limits_watts()} W",
        PATIENCE_SECONDS,
    )
    bench.wait_running("ours")
    wait_until(
        lambda: with_job_sets.booked_millijoules() > 0, "the books have the JobSet by its name", PATIENCE_SECONDS
    )
    used = with_job_sets.joules()
    assert len(used) == PODS

    # It ends as its own controller has it, and its GPUs return to the smallest limit, or to our job.
    for pod in with_job_sets.pods():
        annotations = {"metadata": {"annotations": {OUTCOME_ANNOTATION: SUCCEEDED}}}
        api.patch(f"/api/v1/namespaces/{bench.namespace}/pods/{pod['metadata']['name']}", annotations)
    api.wait_for(
        f"{with_job_sets.path}/{NAME}",
        lambda found: any(
            each["type"] == "Completed" and each["status"] == "True"
            for each in ((found or {}).get("status") or {}).get("conditions") or ()
        ),
        timeout_seconds=PATIENCE_SECONDS,
        what="completed",
    )
    wait_until(lambda: not with_job_sets.limits_watts(), "none of its pods holds a GPU", PATIENCE_SECONDS)
    assert bench.judged_seconds("site") > 1
    assert bench.overshoot_watts("site") == 0
    print(f"limits of the JobSet's GPUs at {cap} W: {at_first} W; joules of its pods: {used}")
