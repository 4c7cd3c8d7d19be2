"""The grid's signal ahead (EUR/MWh, gCO2/kWh) from a file: a mounted ConfigMap that something keeps up to date.

    time,gCO2/kWh
    2030-06-01T00:00:00Z,412
    2030-06-01T01:00:00Z,388

Each value holds until the next time, the last one as long as the one before it.
"""

from __future__ import annotations

import csv
import io
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

from flyball_kube.process.logs import get_logger
from flyball_planner.shifting import Signal

from flyball_operator.meters.readers import MeterError, file_contents

logger = get_logger(__name__)

MAX_BYTES = 1 << 20  # as large as a ConfigMap can be
MAX_STEPS = 8192  # four weeks in steps of five minutes
LOOK_SECONDS = 10.0
EMISSION_UNITS = ("gco2/kwh", "gco2eq/kwh")
FIRST_LOOK_SECONDS = 0.5


def read_signal(text: str) -> Signal:
    """The signal that a file has; raises ValueError with the line that is wrong."""
    try:
        return _signal(csv.reader(io.StringIO(text)))
    except csv.Error as error:  # which is no ValueError: a field without an end, as of a file that is torn
        raise ValueError(f"it is no CSV file: {error}") from error


def _signal(rows: Iterator[list[str]]) -> Signal:
    header = next(rows, [])
    if len(header) != 2 or header[0].strip() != "time" or not header[1].strip():
        raise ValueError(f"line 1 is {','.join(header)!r:.80}; it should be time and the unit, as in time,gCO2/kWh")
    steps = []
    for number, row in enumerate(rows, start=2):
        if not any(cell.strip() for cell in row):
            continue
        try:
            time, value = row
            at = datetime.fromisoformat(time.strip())
            if at.tzinfo is None:
                raise ValueError("a time needs its zone")
            steps.append((at.timestamp(), float(value)))
        except ValueError as error:
            raise ValueError(
                f"line {number} is {','.join(row)!r:.80}; it should be like 2030-06-01T00:00:00Z,412 ({error})"
            ) from error
        if len(steps) > MAX_STEPS:
            raise ValueError(f"it has more than {MAX_STEPS} lines with a time")
    if not steps:
        raise ValueError("it has no line with a time and a value")
    return Signal.of(steps, f" {header[1].strip()}")


def emitted_grams_per_kilowatt_hour(signal: Signal | None, now: datetime) -> float | None:
    """What the grid emits now by a signal in gCO2/kWh; None where it is of something else, or does not reach so far."""
    if signal is None or signal.unit.strip().lower() not in EMISSION_UNITS:
        return None
    return signal.at(now.timestamp())


def _in_thread(look: Callable[[], None]) -> None:
    threading.Thread(target=look, name="signal", daemon=True).start()


class SignalFile:
    """A file that is read anew when it has changed; where it cannot be, what was read last goes on to count.

    It is read beside the loop that asks for it, which a disk that hangs must not hold up; `begin` calls a function so.
    """

    def __init__(self, path: Path | None, begin: Callable[[Callable[[], None]], None] = _in_thread) -> None:
        self._path = path
        self._begin = begin
        self._signal: Signal | None = None
        self._looked_at = float("-inf")
        self._looking = False
        self._looked = threading.Event()
        self._seen: tuple[int, int] | None = None
        self._problem = ""

    def read(self, monotonic: float) -> Signal | None:
        """The signal as far as it is known; None where there is none. The first call waits for it, but not for long."""
        if self._path is None or self._looking or monotonic - self._looked_at < LOOK_SECONDS:
            return self._signal
        first, self._looked_at, self._looking = self._looked_at < 0, monotonic, True
        path = self._path
        self._begin(lambda: self._look(path))
        if first:  # else jobs would begin before it is known that they can wait
            self._looked.wait(FIRST_LOOK_SECONDS)
        return self._signal

    def _look(self, path: Path) -> None:
        try:
            stat = path.stat()
            if (stat.st_mtime_ns, stat.st_size) != self._seen:
                self._signal = read_signal(file_contents(path, MAX_BYTES).decode("utf-8"))
                self._seen, self._problem = (stat.st_mtime_ns, stat.st_size), ""
                logger.info("signal", path=str(path), steps=len(self._signal.times))
        except (OSError, ValueError, MeterError) as error:
            if str(error) != self._problem:
                logger.warning("the grid's signal cannot be read", path=str(path), error=str(error))
            self._problem = str(error)
        finally:
            self._looking = False
            self._looked.set()
