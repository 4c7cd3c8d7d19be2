"""A Prometheus of our own on loopback, which scrapes the parts of a site, and the questions that are put to it."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from flyball_testbed.controlplane.ports import LOOPBACK, free_port
from flyball_testbed.controlplane.processes import Process, wait_until
from flyball_testbed.controlplane.programs.binaries import Binaries
from flyball_testbed.controlplane.programs.monitoring_tools import PROMETHEUS
from flyball_testbed.scraping import prometheus_command

READY_SECONDS = 60.0
STOP_SECONDS = 10.0
ANSWER_SECONDS = 30.0
# Whatever proxy the environment names is not on the way to loopback.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class PrometheusError(Exception):
    """It did not start, or refused a query; the message says why."""


@dataclass(frozen=True, slots=True)
class SeriesValue:
    """One series' value now."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Series:
    """One series over time: seconds since 1970, and values (NaN where there is none)."""

    labels: Mapping[str, str]
    times: Sequence[float]
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class RuleHealth:
    """An alert as it stands: whether it has been evaluated, its state (inactive, pending, firing), the last error."""

    evaluated: bool
    state: str
    error: str


class Prometheus:
    """A running Prometheus; a context manager."""

    def __init__(self, process: Process, port: int, targets: Mapping[str, str]) -> None:
        self._process = process
        self._base = f"http://{LOOPBACK}:{port}"
        self._targets = targets

    @classmethod
    def start(
        cls,
        tools: Binaries,
        targets: Mapping[str, str],
        directory: Path,
        *,
        rules: Sequence[Path] = (),
        interval_seconds: int = 1,
    ) -> Self:
        """Scrape `targets` (`host:port` by name), with its data and its log in `directory`.

        Raises PrometheusError where it does not become ready.
        """
        port = free_port()
        command = prometheus_command(
            tools[PROMETHEUS], targets, directory, port, rules=rules, interval_seconds=interval_seconds
        )
        process = Process.spawn(PROMETHEUS, command, log_path=directory / "prometheus.log")
        return cls(process, port, targets)._once_ready()

    def _once_ready(self) -> Self:
        process = self._process
        if not wait_until(lambda: self._ready() or not process.is_running(), READY_SECONDS) or not self._ready():
            process.stop(STOP_SECONDS)
            raise PrometheusError(f"{process.name} does not become ready; it says:\n{self._complaints()}")
        return self

    def _complaints(self) -> str:
        """What the log calls errors, which the end of a process that stops has long left behind; else the log's end."""
        tail = self._process.log_tail(60)
        errors = [line for line in tail.splitlines() if "level=error" in line]
        return "\n".join(errors[-15:] or tail.splitlines()[-15:])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.stop(STOP_SECONDS)

    def query(self, expr: str, at: float | None = None) -> list[SeriesValue]:
        """What a query answers now, or `at` these seconds since 1970. Raises PrometheusError where it is refused."""
        when = {} if at is None else {"time": f"{at:.3f}"}
        answer = self._ask("query", {"query": expr, **when})
        if answer["resultType"] == "scalar":
            return [SeriesValue({}, float(answer["result"][1]))]
        return [SeriesValue(series["metric"], float(series["value"][1])) for series in answer["result"]]

    def query_range(self, expr: str, start: float, end: float, step_seconds: float) -> list[Series]:
        """What a query answers from `start` to `end`. Raises PrometheusError where it is refused."""
        given = {"query": expr, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step_seconds:g}"}
        return [
            Series(series["metric"], [float(at) for at, _ in series["values"]], [float(v) for _, v in series["values"]])
            for series in self._ask("query_range", given)["result"]
        ]

    def rules(self) -> dict[str, RuleHealth]:
        """Every alert by its name."""
        return {
            rule["name"]: RuleHealth(
                evaluated=rule["health"] != "unknown", state=rule["state"], error=rule.get("lastError", "")
            )
            for group in self._ask("rules", {})["groups"]
            for rule in group["rules"]
        }

    def scrape(self, target: str) -> str:
        """What a target serves, as text."""
        return _read(f"http://{self._targets[target]}/metrics").decode()

    def _ready(self) -> bool:
        try:
            _read(f"{self._base}/-/ready")
        except OSError:
            return False
        return True

    def _ask(self, what: str, given: Mapping[str, str]) -> Any:
        try:
            answer = _read(f"{self._base}/api/v1/{what}?{urllib.parse.urlencode(given)}")
        except urllib.error.HTTPError as error:
            refusal = json.loads(error.read() or b"{}").get("error", str(error))
            raise PrometheusError(f"{given.get('query', what)}: {refusal}") from error
        except OSError as error:
            raise PrometheusError(f"Prometheus does not answer: {error}\n{self._process.log_tail(15)}") from error
        return json.loads(answer)["data"]


def _read(url: str) -> bytes:
    with _OPENER.open(url, timeout=ANSWER_SECONDS) as answer:
        content: bytes = answer.read()
    return content
