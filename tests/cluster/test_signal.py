"""Work that waits for the grid: put off while the signal is high, started when it falls."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from flyball_testbed.parts import OPERATOR

from tests.support.site_bench import Bench


def write_signal(path: Path, now: datetime, *values: int) -> None:
    """The signal of the hours from now on."""
    lines = [f"{(now + timedelta(hours=index)).isoformat()},{value}" for index, value in enumerate(values)]
    path.write_text("\n".join(["time,gCO2/kWh", *lines]) + "\n")


def wait_read(bench: Bench, grams: int) -> None:
    """Wait until the operator goes by a signal that is so high now."""
    line = f'flyball_grid_signal{{unit="gCO2/kWh"}} {grams}.0\n'
    bench.wait(lambda: line in bench.site.metrics(OPERATOR), lambda: f"the operator goes by {grams} gCO2/kWh")


@pytest.fixture
def signal(grid_signal: Path) -> Iterator[Path]:
    """The file of the site's signal; what it says is put back after the test, before any other job that can wait."""
    before = grid_signal.read_text()
    yield grid_signal
    grid_signal.write_text(before)


def test_a_job_that_can_wait_starts_when_the_signal_is_low(bench: Bench, signal: Path) -> None:
    began = datetime.now(UTC) - timedelta(minutes=1)
    write_signal(signal, began, 500, 500, 100, 100, 100, 100)
    wait_read(bench, 500)
    until = (began + timedelta(hours=6)).replace(microsecond=0)
    bench.submit("flexible", gpus=(1, 1), iterations=1000, flexibleUntil=until.isoformat())
    bench.submit("urgent", gpus=(1, 1), iterations=1_000_000)
    bench.wait_running("urgent")
    starts = (began + timedelta(hours=2)).isoformat(timespec="seconds").replace("+00:00", "Z")
    words = f"it starts at {starts}: while it runs the signal is then 100 gCO2/kWh on average"
    bench.wait_said("flexible", "Admitted", "WaitingForSignal", words)
    assert not [pod for pod in bench.objects("pods") if pod["metadata"]["name"].startswith("flexible")]
    write_signal(signal, began, 100, 500, 500, 500, 500, 500)
    bench.wait_running("flexible")
