"""The referee's process: `python -m flyball_testbed.referee --hardware DIR --csv FILE --summary FILE`.

SIGTERM ends it in order: one more answer is fetched, so that every sample is judged.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flyball_testbed.referee.claims import NODES, POWER_CAPS, Answer, CapClaim, PlainApi
from flyball_testbed.referee.hardware import HardwareReader, boottime_ns
from flyball_testbed.referee.judge import Judge

SUMMARY_SECONDS = 0.25
LABEL_SECONDS = 10.0

Objects = list[dict[str, Any]]


class CapWatch(threading.Thread):
    """Asks for the PowerCaps again and again until stopped, and once more after that.

    A request that fails leaves no answer: samples wait for the next one. `labels` are the nodes', read only while a cap
    has a selector.
    """

    def __init__(
        self, read_caps: Callable[[], Objects], read_nodes: Callable[[], Objects], period_seconds: float
    ) -> None:
        super().__init__(name="cap-watch", daemon=True)
        self._read_caps, self._read_nodes, self._period = read_caps, read_nodes, period_seconds
        self._stopping = threading.Event()
        self.answers: deque[Answer] = deque()
        self.labels: dict[str, dict[str, str]] = {}
        self.failures = 0

    def run(self) -> None:
        labels_at = -LABEL_SECONDS
        while True:
            last = self._stopping.is_set()
            try:
                sent_ns = boottime_ns()
                claims = {claim.name: claim for claim in map(CapClaim.read, self._read_caps())}
                received_ns = boottime_ns()
                if any(claim.selector for claim in claims.values()) and time.monotonic() - labels_at > LABEL_SECONDS:
                    nodes = self._read_nodes()
                    self.labels = {node["metadata"]["name"]: node["metadata"].get("labels") or {} for node in nodes}
                    labels_at = time.monotonic()
                self.answers.append(Answer(sent_ns, received_ns, claims))
            except (OSError, http.client.HTTPException, ValueError, KeyError):
                self.failures += 1
            if last:
                return
            self._stopping.wait(self._period)

    def stop(self) -> None:
        """Fetch one more answer and end."""
        self._stopping.set()
        self.join()


def caps_of_file(path: Path) -> Callable[[], Objects]:
    """PowerCaps out of a JSON file with a list of them, for runs without an API server."""

    def read() -> Objects:
        caps: Objects = json.loads(path.read_text())
        return caps

    return read


def write_summary(path: Path, summary: dict[str, Any]) -> None:
    """Replace the summary file at once, so that no reader sees half of one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(summary, indent=1))
    temporary.rename(path)


def main() -> None:
    parser = argparse.ArgumentParser(prog="referee", description="Judge a simulated cluster's power against its caps.")
    parser.add_argument("--hardware", type=Path, required=True, help="directory of the <node>.gpus files")
    parser.add_argument("--csv", type=Path, required=True, help="one row a sample")
    parser.add_argument("--summary", type=Path, required=True, help="JSON, replaced four times a second and at the end")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--kubeconfig", type=Path, help="read the PowerCaps from this API server")
    source.add_argument("--caps", type=Path, help="read the PowerCaps from this JSON file (a list) instead")
    parser.add_argument("--hertz", type=float, default=20.0, help="samples a second")
    parser.add_argument("--cap-hertz", type=float, default=10.0, help="readings of the PowerCaps a second")
    arguments = parser.parse_args()

    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    if arguments.kubeconfig is not None:
        caps_api, nodes_api = PlainApi(arguments.kubeconfig), PlainApi(arguments.kubeconfig)
        watch = CapWatch(lambda: caps_api.list(POWER_CAPS), lambda: nodes_api.list(NODES), 1 / arguments.cap_hertz)
    else:
        watch = CapWatch(caps_of_file(arguments.caps), list, 1 / arguments.cap_hertz)
    judge = Judge(arguments.csv, boottime_ns())
    reader = HardwareReader(arguments.hardware)
    watch.start()
    next_sample = next_summary = time.monotonic()
    while not stopping.wait(max(0.0, next_sample - time.monotonic())):
        # A late sample is not made up for: the next one is due a whole period after this one at the earliest.
        next_sample = max(next_sample, time.monotonic() - 1 / arguments.hertz) + 1 / arguments.hertz
        sample = reader.read()
        if sample is not None:
            judge.sample(sample)
        judge.labels = watch.labels
        while watch.answers:
            judge.answer(watch.answers.popleft())
        if time.monotonic() >= next_summary:
            next_summary = time.monotonic() + SUMMARY_SECONDS
            judge.flush()
            write_summary(arguments.summary, judge.summary())
    watch.stop()
    while watch.answers:
        judge.answer(watch.answers.popleft())
    write_summary(arguments.summary, judge.summary())
    judge.close()


if __name__ == "__main__":
    main()
