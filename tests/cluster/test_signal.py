"""Work that waits for the grid: put off while the signal is high, started when it falls."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.support.site_bench import Bench


def write_signal(path: Path, now: datetime, *values: int) -> None:
    """The signal of the hours from now on."""
    lines = [f"{(now + timedelta(hours=index)).isoformat()},{value}" for index, value in enumerate(values)]
    path.write_text("\n".join(["time,gCO2/kWh", *lines]) + "\n")


def test_a_job_that_can_wait_starts_when_the_signal_is_low(make_site: Callable[..., Bench], tmp_path: Path) -> None:
    signal, began = tmp_path / "signal.csv", datetime.now(UTC) - timedelta(minutes=1)
    write_signal(signal, began, 500, 500, 100, 100, 100, 100)
    bench = make_site(nodes=1, operator_arguments=("--signal-file", str(signal)))
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
