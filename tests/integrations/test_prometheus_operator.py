"""The real prometheus-operator takes the chart's PodMonitors and rules, and makes of them what is meant.

Behind `make test-integrations`, because its build takes ten minutes once; skipped otherwise.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import yaml
from flyball_kube.errors import ApiError
from flyball_testbed.controlplane.cluster import DevCluster
from flyball_testbed.controlplane.ports import LOOPBACK, free_port
from flyball_testbed.controlplane.processes import Process
from flyball_testbed.controlplane.programs.binaries import Binaries
from flyball_testbed.controlplane.programs.integrations import (
    PROMETHEUS_OPERATOR,
    find_integration,
    integration_source,
)

from tests.support.chart import NAMESPACE, Chart
from tests.support.own_targets import integrations
from tests.support.waiting import wait_until

Json = dict[str, Any]

GROUP = f"/apis/monitoring.coreos.com/v1/namespaces/{NAMESPACE}"
LABELS = {"release": "test"}

pytestmark = [*integrations, pytest.mark.timeout(1800)]


class Definitions(yaml.CSafeLoader):
    """Takes `=`, an operator of a matcher, for what it is: YAML 1.1 has a type of its own for it."""


Definitions.add_constructor("tag:yaml.org,2002:value", lambda loader, node: node.value)


@pytest.fixture
def watched(control_plane_programs: Binaries, tmp_path: Path) -> Iterator[DevCluster]:
    """A control plane with the prometheus-operator and its definitions."""
    program = find_integration(PROMETHEUS_OPERATOR)
    definitions = sorted((integration_source(PROMETHEUS_OPERATOR) / "example/prometheus-operator-crd").glob("*.yaml"))
    with DevCluster.start(0, binaries=control_plane_programs) as cluster:
        for path in definitions:
            cluster.api.apply(yaml.load(path.read_text(), Definitions))  # noqa: S506 - a safe loader
        for kind in ("podmonitors", "prometheusrules", "prometheuses"):
            wait_until(lambda kind=kind: serves(cluster, kind), f"{kind} are served")
        keys = cluster.directory / "pki"
        kubeconfig = yaml.safe_load(cluster.kubeconfig.read_text())
        operator = Process.spawn(
            PROMETHEUS_OPERATOR,
            [
                str(program),
                f"--apiserver={kubeconfig['clusters'][0]['cluster']['server']}",
                f"--ca-file={keys / 'ca.crt'}",
                f"--cert-file={keys / 'admin.crt'}",
                f"--key-file={keys / 'admin.key'}",
                f"--web.listen-address={LOOPBACK}:{free_port()}",
            ],
            log_path=tmp_path / "prometheus-operator.log",
            environment={"KUBECONFIG": ""},
        )
        yield cluster
        operator.stop(10)
        print(operator.log_tail(20))


def test_it_makes_scrapes_and_alerts_of_what_the_chart_ships(watched: DevCluster, chart: Chart) -> None:
    api = watched.api
    settings = (
        "monitoring.podMonitors=true",
        "monitoring.rules=true",
        "monitoring.labels.release=test",
        "monitoring.runbooks=https://docs.example.com/",
    )
    shipped = [found for found in chart.render(*settings) if found["apiVersion"].startswith("monitoring.coreos.com")]
    assert sorted(found["kind"] for found in shipped) == ["PodMonitor", "PodMonitor", "PrometheusRule"]
    for manifest in shipped:
        # Strictly: a field that its definition does not have is refused, not dropped.
        api.request("POST", f"{GROUP}/{manifest['kind'].lower()}s", manifest, query={"fieldValidation": "Strict"})
    selector = {"matchLabels": LABELS}
    api.create(
        f"{GROUP}/prometheuses",
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "Prometheus",
            "metadata": {"name": "test", "namespace": NAMESPACE},
            "spec": {"replicas": 1, "version": "v3.5.0", "podMonitorSelector": selector, "ruleSelector": selector},
        },
    )
    secret = f"/api/v1/namespaces/{NAMESPACE}/secrets/prometheus-test"
    wait_until(lambda: "scrape_configs" in (configuration(api.get_or_none(secret)) or {}), "a configuration")
    wait_until(lambda: len(configuration(api.get_or_none(secret))["scrape_configs"]) == 2, "both PodMonitors")
    scrapes = {scrape["job_name"]: scrape for scrape in configuration(api.get_or_none(secret))["scrape_configs"]}
    assert set(scrapes) == {f"podMonitor/{NAMESPACE}/flyball-{part}/0" for part in ("operator", "agent")}
    for part in ("operator", "agent"):
        scrape = scrapes[f"podMonitor/{NAMESPACE}/flyball-{part}/0"]
        assert scrape["honor_labels"] is True
        kept = [rule for rule in scrape["relabel_configs"] if rule.get("action") == "keep"]
        # What the configuration keeps are the chart's own pods, at the port that they name.
        (workload,) = (
            found
            for found in chart.render()
            if found["kind"] in ("Deployment", "DaemonSet") and found["metadata"]["name"] == f"flyball-{part}"
        )
        labels = workload["spec"]["template"]["metadata"]["labels"]
        ports = [
            port["name"]
            for container in workload["spec"]["template"]["spec"]["containers"]
            for port in container.get("ports", ())
        ]
        assert "metrics" in ports
        assert any("container_port_name" in str(rule["source_labels"]) and rule["regex"] == "metrics" for rule in kept)
        for name in ("app_kubernetes_io_name", "app_kubernetes_io_component"):
            (rule,) = (one for one in kept if f"__meta_kubernetes_pod_label_{name}" in one["source_labels"])
            assert labels[name.replace("app_kubernetes_io_", "app.kubernetes.io/")] in rule["regex"]

    rules = f"/api/v1/namespaces/{NAMESPACE}/configmaps/prometheus-test-rulefiles-0"
    wait_until(lambda: bool((api.get_or_none(rules) or {}).get("data")), "the rules' file")
    (text,) = api.get(rules)["data"].values()
    (rule,) = (found for found in shipped if found["kind"] == "PrometheusRule")
    wanted = {one["alert"]: one for group in rule["spec"]["groups"] for one in group["rules"]}
    made = {one["alert"]: one for group in yaml.safe_load(text)["groups"] for one in group["rules"]}
    assert set(made) == set(wanted)
    for name, alert in wanted.items():
        assert made[name]["annotations"] == alert["annotations"]
        assert made[name]["expr"].strip() == alert["expr"].strip()


def serves(cluster: DevCluster, kind: str) -> bool:
    """Whether a kind that was just defined can be asked for: at first its storage is still being made."""
    try:
        return cluster.api.get_or_none(f"{GROUP}/{kind}") is not None
    except ApiError as error:
        if error.status == HTTPStatus.TOO_MANY_REQUESTS:
            return False
        raise


def configuration(secret: Json | None) -> Json:
    """The configuration that the controller wrote for Prometheus; empty while there is none."""
    packed = ((secret or {}).get("data") or {}).get("prometheus.yaml.gz")
    found: Json = {} if packed is None else yaml.safe_load(gzip.decompress(base64.b64decode(packed)))
    return found
