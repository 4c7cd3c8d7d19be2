"""A cap with a meter on the real control plane: what a user sees in its status, and what the hardware's limits do."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.site_bench import Bench, condition, reason

METER = {"file": "feeder", "intervalSeconds": 1, "settleSeconds": 2, "breachSeconds": 2, "silentSeconds": 5}


class Exporter:
    """Keeps a meter's reading in a file, renewed several times a second, until it dies."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.watts = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        time = 0
        while not self._ended.is_set():
            time += 1
            new = self.folder / ".new"
            new.write_text(json.dumps({"watts": self.watts, "time": time}))
            new.replace(self.folder / "feeder")
            self._ended.wait(0.2)

    def die(self) -> None:
        self._ended.set()
        self._thread.join()


def test_a_user_sees_what_the_meter_says_and_what_is_done_about_it(bench: Bench, meters: Path) -> None:
    watts = int(bench.site.plan.max_watts * 0.9)
    exporter = Exporter(meters)
    exporter.watts = watts / 2

    def until(holds: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        bench.wait(lambda: holds(bench.cap("site") or {}), lambda: f"{what}: {(bench.cap('site') or {}).get('status')}")
        return bench.cap("site") or {}

    def of_meter(cap: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = (cap.get("status") or {}).get("meter") or {}
        return found

    try:
        bench.set_cap("site", watts, meter=METER)
        for index in range(bench.site.plan.nodes):
            bench.submit(f"load-{index}", gpus=(1, 16), iterations=100_000, batch=1024, objective="Time")
            bench.wait_running(f"load-{index}")
        cap = until(lambda cap: condition(cap, "MeterSilent") == "False", "the meter is read")
        assert reason(cap, "MeterSilent") == "Reading"
        cap = until(lambda cap: cap["status"].get("measured", {}).get("source") == "file feeder", "its watts are shown")
        assert cap["status"]["measuredWatts"] == int(watts / 2)
        assert cap["status"]["measured"]["time"]
        until(lambda cap: of_meter(cap) == {"state": "Within"}, "the meter is within the cap")
        bench.wait(lambda: bench.limits_watts() > watts * 0.6, lambda: f"limits as granted: {bench.limits_watts()}")
        before = bench.limits_watts()

        exporter.watts = watts * 1.2
        cap = until(lambda cap: of_meter(cap).get("state") == "Cut", "the breach is cut")
        assert condition(cap, "Breached") == "True"
        bench.wait(lambda: bench.limits_watts() < before * 0.8, lambda: f"limits of a cut: {bench.limits_watts()}")

        exporter.watts = watts / 2
        until(lambda cap: condition(cap, "Breached") == "False", "the breach is over")
        exporter.die()
        cap = until(lambda cap: condition(cap, "MeterSilent") == "True", "the meter is silent")
        assert reason(cap, "MeterSilent") == "NoReading"
        assert condition(cap, "Breached") == "Unknown"
        until(lambda cap: of_meter(cap).get("allowedWatts", watts) <= watts * 0.9, "limits are lowered")

        def told() -> set[str]:
            events = bench.api.list_objects("/api/v1/namespaces/default/events")
            return {item["reason"] for item in events if item["involvedObject"]["name"] == bench.cap_name("site")}

        bench.wait(lambda: {"Breached", "MeterSilent"} <= told(), lambda: f"told so: {told()}")
    finally:
        exporter.die()
        (meters / "feeder").unlink()
