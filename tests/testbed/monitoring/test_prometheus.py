"""A Prometheus of our own: it scrapes what it is told, answers queries, says why not, and leaves nothing running."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from flyball_testbed.controlplane.programs.binaries import Binaries
from flyball_testbed.monitoring.prometheus import Prometheus, PrometheusError

from tests.support.waiting import wait_until

SERVED = b'# TYPE answer gauge\nanswer{job="its-own"} 42\n'
RULES = """
groups:
  - name: g
    rules:
      - {alert: Answered, expr: answer > 41}
      - {alert: Broken, expr: 'answer * on () group_left () {__name__=~".+"}'}
"""


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.end_headers()
            self.wfile.write(SERVED)

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_it_scrapes_answers_and_ends(monitoring_tools: Binaries, target: str, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    with Prometheus.start(monitoring_tools, {"one": target}, tmp_path / "p", rules=(rules,)) as prometheus:
        wait_until(lambda: bool(prometheus.query("answer")), lambda: "the first scrape")
        (sample,) = prometheus.query("answer")
        # The target's own labels stay, as with the chart's PodMonitors.
        assert (sample.labels["job"], sample.value) == ("its-own", 42)
        assert prometheus.query("1 + 1")[0].value == 2
        assert prometheus.query("absent_metric") == []
        assert prometheus.query("answer", at=1.0) == []
        assert prometheus.scrape("one").encode() == SERVED
        wait_until(lambda: prometheus.rules()["Answered"].state == "firing", lambda: str(prometheus.rules()))
        wait_until(lambda: prometheus.rules()["Broken"].error != "", lambda: str(prometheus.rules()))
        (at,) = prometheus.query("timestamp(answer)")
        (series,) = prometheus.query_range("answer", at.value, at.value + 1, 1)
        assert series.values[0] == 42
        with pytest.raises(PrometheusError, match=r"sum\(: .*parse error"):
            prometheus.query("sum(")
    with pytest.raises(PrometheusError, match="does not answer"):
        prometheus.query("answer")


def test_what_keeps_it_from_starting_is_said(monitoring_tools: Binaries, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("groups: 7")
    with pytest.raises(PrometheusError, match=r"rules\.yaml"):
        Prometheus.start(monitoring_tools, {}, tmp_path / "p", rules=(rules,))
