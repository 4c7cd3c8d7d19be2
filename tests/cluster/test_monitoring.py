"""A real Prometheus scrapes a running site: every panel's query and every metric of an alert has data there."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from flyball_testbed.controlplane.programs.binaries import Binaries
from flyball_testbed.monitoring.dashboards import DASHBOARDS
from flyball_testbed.monitoring.prometheus import Prometheus, SeriesValue
from flyball_testbed.parts import AGENTS, OPERATOR
from prometheus_client.parser import text_string_to_metric_families

from tests.support.chart import CHART
from tests.support.metrics_document import described, documented
from tests.support.monitoring import promtool
from tests.support.site_bench import Bench

RATE_INTERVAL, SPAN = "30s", "5m"
# Scrapes that come late on a busy machine leave holes, and a rate needs two that did not.
LONGEST_SECONDS = 180.0
RULES = CHART / "rules" / "alerts.yaml"


@pytest.fixture
def prometheus(bench: Bench, monitoring_tools: Binaries, tmp_path: Path) -> Iterator[Prometheus]:
    """Prometheus on the shared site, with the chart's rules."""
    with Prometheus.start(monitoring_tools, bench.site.metrics_addresses(), tmp_path, rules=(RULES,)) as started:
        yield started


def known(samples: list[SeriesValue]) -> bool:
    """Whether a query has an answer: a series whose value is a number."""
    return any(not math.isnan(sample.value) for sample in samples)


def batch_job(bench: Bench, name: str, *, gpus: int, by_power: bool = False) -> None:
    """A Job outside Flyball, of one pod; one `by_power` waits to be let run."""
    container = {"name": "main", "image": "somebodys", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    labels = {"flyball.dev/admission": "by-power"} if by_power else {}
    spec = {"suspend": by_power, "template": {"spec": {"restartPolicy": "Never", "containers": [container]}}}
    jobs = f"/apis/batch/v1/namespaces/{bench.namespace}/jobs"
    bench.api.create(jobs, {"metadata": {"name": name, "labels": labels}, "spec": spec})


@pytest.fixture
def without_batch_jobs(bench: Bench) -> Iterator[None]:
    """Takes the Jobs away that the test has made beside the site's own."""
    yield
    for name in ("outside", "waits"):
        bench.api.delete(f"/apis/batch/v1/namespaces/{bench.namespace}/jobs/{name}", propagation="Background")


@pytest.mark.usefixtures("without_batch_jobs")
def test_every_panel_and_every_alert_has_data(bench: Bench, prometheus: Prometheus, monitoring_tools: Binaries) -> None:
    bench.set_cap("site", 8000)
    # Of an exporter that is not there: the cap is metered, and its meter silent.
    bench.set_cap("metered", 20_000, meter={"file": "nobody-writes-it", "silentSeconds": 5})
    dated = {"energy": {"budgetKilojoules": 100_000}, "deadline": "2099-01-01T00:00:00Z"}
    # A tenant with a quota; pods that are nobody's job; a batch Job that waits for more GPUs than there are.
    bench.set_energy_quota(gpus=64, energyBudget={"kilojoules": 10_000_000, "periodSeconds": 86400})
    batch_job(bench, "outside", gpus=1)
    batch_job(bench, "waits", gpus=64, by_power=True)
    bench.submit("dated", gpus=(2, 4), iterations=1_000_000, **dated)
    bench.submit("plain", gpus=(16, 16), iterations=1_000_000)
    bench.wait_running("dated")
    bench.wait_running("plain")
    # It fits once another has ended, and the queue says when that will be.
    bench.submit("queued", gpus=(16, 16), iterations=1000)

    panels = {
        f"{made.title}: {panel.title}: {query.legend}": made.bound(query.expr, rate_interval=RATE_INTERVAL, span=SPAN)
        for made in DASHBOARDS
        for panel in made.panels()
        for query in panel.queries
    }
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    # An alert is silent where all is well, but what it looks at is there.
    of_alerts = {f"{rule['alert']}: {name}": name for rule in rules for name in metrics_of(rule["expr"])}
    waiting = panels | of_alerts

    caps = itertools.cycle((6000, 8000))

    def all_answered() -> bool:
        # A rate, a quantile or a comparison with a model needs something to happen: a cap that moves makes it happen.
        watts = next(caps)
        bench.set_cap("site", watts)
        bench.wait_enforced("site", watts)
        for title in [title for title, expr in waiting.items() if known(prometheus.query(expr))]:
            del waiting[title]
        return not waiting

    bench.wait(all_answered, lambda: f"data for {sorted(waiting.items())}", LONGEST_SECONDS)

    health = prometheus.rules()
    assert set(health) == {rule["alert"] for rule in rules}
    bench.wait(
        lambda: all(found.evaluated for found in prometheus.rules().values()), lambda: f"all evaluated: {health}"
    )
    assert {name: found.error for name, found in prometheus.rules().items() if found.error} == {}
    bench.wait(
        lambda: prometheus.rules()["FlyballMeterSilent"].state == "firing",
        lambda: f"the alert of a silent meter: {prometheus.rules()}",
    )

    for part, heading in ((OPERATOR, "The operator"), (AGENTS, "The agents")):
        text = prometheus.scrape(part)
        # Names, units and help texts as Prometheus' own linter wants them; and nothing that the document does not have.
        promtool(monitoring_tools, "check", "metrics", text=text)
        served = described(family for family in text_string_to_metric_families(text) if family.samples)
        assert {name: what for name, what in documented(heading).items() if name in served} == served


def metrics_of(expr: str) -> set[str]:
    return set(re.findall(r"\bflyball_[a-z_]+", expr))
