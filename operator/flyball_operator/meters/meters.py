"""The meters of all caps, each read at its own interval by a task of its own; a cycle takes what was read last.

No cut waits for a meter: a reading that hangs is given up, and what it would have said is silence to those who decide.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from flyball_api.power_cap import CapMeter, PowerCap
from flyball_kube.process.logs import get_logger

from flyball_operator.meters.endpoints import Endpoint
from flyball_operator.meters.readers import MeterError, MeterReaders, MeterSample
from flyball_operator.power.caps.meter import NEVER_READ, MeterReading

logger = get_logger(__name__)

THREADS = 4
# Beyond any reader's own deadline.
LONGEST_READING_SECONDS = 35.0


class Meters:
    """Follows the meters of the caps that it was given last; `wake` is called where a reading is above its cap's target."""

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        directory: Path | None,
        wake: Callable[[], None],
        wall_clock: Callable[[], datetime],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="meter")
        self._readers = MeterReaders(endpoints, directory, self._executor)
        self._wake = wake
        self._wall_clock = wall_clock
        self._monotonic = monotonic
        self._tasks: dict[str, tuple[CapMeter, asyncio.Task[None]]] = {}
        self._target_watts: dict[str, float] = {}
        self._readings: dict[str, MeterReading] = {}
        self._measured_at: dict[str, float] = {}

    def follow(self, caps: Iterable[PowerCap]) -> None:
        """Read the meters of these caps, and of no others, from now on. A changed meter begins anew."""
        meters = {cap.uid: (cap, cap.spec.meter) for cap in caps if cap.spec is not None and cap.spec.meter is not None}
        for uid, (meter, task) in list(self._tasks.items()):
            if uid not in meters or meters[uid][1] != meter:
                task.cancel()
                del self._tasks[uid]
                self._readings.pop(uid, None)
                self._measured_at.pop(uid, None)
                self._target_watts.pop(uid, None)
        for uid, (cap, meter) in meters.items():
            effective = cap.status.effective_watts
            self._target_watts[uid] = 0.0 if effective is None else effective * meter.target_permille / 1000
            if uid not in self._tasks:
                self._tasks[uid] = meter, asyncio.create_task(self._watch(uid, cap.name, meter))

    def readings(self) -> Mapping[str, MeterReading]:
        """The last reading of each meter, by its cap's uid."""
        return dict(self._readings)

    async def close(self) -> None:
        """Stop reading. A thread that hangs is left to itself."""
        tasks = [task for _, task in self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()
        await self._readers.close()
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def _watch(self, uid: str, cap: str, meter: CapMeter) -> None:
        while True:
            began_at = self._monotonic()
            try:
                async with asyncio.timeout(LONGEST_READING_SECONDS):
                    self._take(uid, await self._readers.read(meter))
            except (MeterError, TimeoutError) as error:
                self._failed(uid, cap, str(error) or f"{meter.source}: no answer in time")
            except Exception as error:
                # Whatever an answer has in it, the meter is silent, and the others are read on.
                logger.exception("a meter's reading failed", cap=cap)
                self._failed(uid, cap, f"{meter.source}: {type(error).__name__}")
            await asyncio.sleep(max(0.0, meter.interval_seconds - (self._monotonic() - began_at)))

    def _take(self, uid: str, sample: MeterSample) -> None:
        before = self._readings.get(uid, NEVER_READ)
        last = self._measured_at.get(uid)
        if sample.measured_at is not None:
            if last is not None and sample.measured_at <= last:
                self._readings[uid] = replace(before, error="its last reading is not renewed")
                return
            self._measured_at[uid] = sample.measured_at
        self._readings[uid] = MeterReading(sample.watts, self._monotonic(), self._wall_clock(), "")
        if sample.watts > self._target_watts.get(uid, 0.0):
            self._wake()

    def _failed(self, uid: str, cap: str, error: str) -> None:
        before = self._readings.get(uid, NEVER_READ)
        if before.error != error:
            logger.warning("no reading of a meter", cap=cap, error=error)
        self._readings[uid] = replace(before, error=error)
