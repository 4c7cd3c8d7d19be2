"""The grid's signal from a file: what it has, what is wrong in it, and that it is followed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from flyball_operator.meters import grid_signal
from flyball_operator.meters.grid_signal import (
    LOOK_SECONDS,
    MAX_STEPS,
    SignalFile,
    emitted_grams_per_kilowatt_hour,
    read_signal,
)

from tests.support.waiting import wait_until

GOOD = "time,gCO2/kWh\n2030-06-01T00:00:00Z,412\n2030-06-01T03:00:00+02:00,388.5\n\n"


def test_a_signal_with_its_unit() -> None:
    signal = read_signal(GOOD)
    assert signal.values == (412.0, 388.5)
    assert signal.times[1] - signal.times[0] == 3600
    assert (signal.end - signal.times[1], signal.unit) == (3600, " gCO2/kWh")


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "line 1"),
        ("when,what\n", "line 1 is 'when,what'"),
        ("time,g\n", "no line with a time"),
        ("time,g\n2030-06-01T00:00:00,1\n", "a time needs its zone"),
        ("time,g\n2030-06-01T00:00:00Z,much\n", "line 2 is '2030-06-01T00:00:00Z,much'"),
        ("time,g\n2030-06-01T00:00:00Z\n", "line 2"),
        ("time,g\n2030-06-01T00:00:00Z,nan\n", "finite"),
        ("time,g\n2030-06-01T01:00:00Z,1\n2030-06-01T00:00:00Z,1\n", "ascend"),
        ("time,g\n2030-06-01T00:00:00Z,1e300\n", "within 1e.09 of zero"),
        ('time,g\n2030-06-01T00:00:00Z,"4\n' + "2030-06-01T01:00:00Z,1\n" * 8000, "no CSV file"),
        ("time,g\n" + "2030-06-01T00:00:00Z,1\n" * (MAX_STEPS + 1), "more than 8192 lines"),
    ],
)
def test_what_is_wrong_is_said(text: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        read_signal(text)


def at_once(look: Callable[[], None]) -> None:
    look()


def test_a_file_is_followed_and_what_was_read_last_stands(tmp_path: Path) -> None:
    path = tmp_path / "signal.csv"
    file = SignalFile(path, begin=at_once)
    assert file.read(0.0) is None
    path.write_text(GOOD)
    assert file.read(LOOK_SECONDS / 2) is None
    first = file.read(LOOK_SECONDS)
    assert first is not None
    assert file.read(2 * LOOK_SECONDS) is first
    path.write_text(GOOD.replace("412", "41"))
    os.utime(path, ns=(1, 1))
    second = file.read(3 * LOOK_SECONDS)
    assert second is not None
    assert second.values[0] == 41.0
    for torn in ("nonsense", GOOD[:40] + '"' + "4" * 200_000):
        path.write_text(torn)
        assert file.read(4 * LOOK_SECONDS) is second
    path.write_text(GOOD + " " * (1 << 20))
    assert file.read(5 * LOOK_SECONDS) is second
    assert SignalFile(None).read(0.0) is None


def test_what_the_grid_emits_is_known_by_a_signal_of_it_alone() -> None:
    begin = datetime(2030, 6, 1, tzinfo=UTC)
    for unit, grams in (("gCO2/kWh", 412.0), ("gCO2eq/kWh", 412.0), ("EUR/MWh", None)):
        signal = read_signal(f"time,{unit}\n2030-06-01T00:00:00Z,412\n")
        assert emitted_grams_per_kilowatt_hour(signal, begin) == grams
        assert emitted_grams_per_kilowatt_hour(signal, begin + timedelta(hours=1)) is None  # it does not reach so far
    assert emitted_grams_per_kilowatt_hour(None, begin) is None


def test_what_never_ends_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe that nobody writes, and a disk that hangs: in the loop that asks, caps are cut."""
    path, well = tmp_path / "pipe", threading.Event()
    os.mkfifo(path)
    assert SignalFile(path).read(0.0) is None

    def hangs(path: Path, most: int) -> bytes:
        well.wait(60.0)
        return GOOD.encode()

    monkeypatch.setattr(grid_signal, "file_contents", hangs)
    file = SignalFile(path)
    begun = time.monotonic()
    assert [file.read(second * LOOK_SECONDS) for second in range(5)] == [None] * 5
    assert time.monotonic() - begun < 30.0
    well.set()
    wait_until(lambda: file.read(100.0) is not None, "it is read in the end")


def test_a_leaders_first_look_has_the_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would start what can wait before it knows."""
    monkeypatch.setattr(grid_signal, "FIRST_LOOK_SECONDS", 60.0)
    path = tmp_path / "signal.csv"
    path.write_text(GOOD)
    assert SignalFile(path).read(0.0) is not None
