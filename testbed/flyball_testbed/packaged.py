"""The packaged chart, with the images of this checkout, on a cluster with real nodes."""

from __future__ import annotations

import subprocess
from pathlib import Path

from flyball_api.names import DEFAULT_NAMESPACE

from flyball_testbed.controlplane.install import REPOSITORY
from flyball_testbed.controlplane.programs.binaries import Report
from flyball_testbed.controlplane.programs.chart_tools import HELM, find_chart_tools
from flyball_testbed.images.build import find_images
from flyball_testbed.realnode.cluster import RealCluster

CHART = REPOSITORY / "deploy" / "helm" / "flyball"
RELEASE = "flyball"
PAGE_PATH = f"/api/v1/namespaces/{DEFAULT_NAMESPACE}/services/http:flyball-page:http/proxy/"
"""Where the API server, and so `kubectl proxy`, has the status page."""
WAIT_SECONDS = 300


class ChartError(Exception):
    """Helm did not install the chart; the message is what it said."""


def install_packaged(cluster: RealCluster, report: Report = lambda _line: None) -> Path:
    """Give every node the images, install the chart with its page, and wait until its pods are ready; gives helm's path.

    Raises ImagesUnavailableError and ImageBuildError, BinariesUnavailableError without helm, and ChartError.
    """
    images = find_images(report)
    helm = find_chart_tools(report)[HELM]
    for image in images.values():
        cluster.load_image(image)
    report(f"helm install {RELEASE} {CHART.relative_to(REPOSITORY)} --namespace {DEFAULT_NAMESPACE}")
    answer = subprocess.run(
        [str(helm), "upgrade", RELEASE, str(CHART), "--install", "--namespace", DEFAULT_NAMESPACE, "--create-namespace",
         "--kubeconfig", str(cluster.kubeconfig), "--set", "page.enabled=true", "--wait", "--timeout", f"{WAIT_SECONDS}s"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if answer.returncode != 0:
        raise ChartError(answer.stderr.strip() or answer.stdout.strip())
    return helm
