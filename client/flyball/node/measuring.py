"""What a stretch of a training takes: seconds, and joules of this pod's GPUs as the node's agent counts them."""

from __future__ import annotations

import logging
import time
from types import TracebackType
from typing import Callable

from flyball.node.agent import AgentError, Caller

logger = logging.getLogger("flyball")

# An agent that does not answer is not asked again for so long: each time may cost the training seconds.
PAUSE_SECONDS = 60.0
# A reading that is older says nothing of what has been drawn since.
OLDEST_MILLISECONDS = 10_000


class EnergyMeter:
    """The joules that a pod has used by now; without an agent, or while it does not answer, nobody knows."""

    def __init__(self, agent: Caller | None, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._agent = agent
        self._monotonic = monotonic
        self._not_before = float("-inf")
        self._warned = False

    def read(self) -> tuple[float, float | None]:
        """When this is (by the meter's clock), and the joules by then: of the last reading, and its watts since."""
        now = self._monotonic()
        if self._agent is None or now < self._not_before:
            return now, None
        try:
            reading = self._agent.call("GET", "/v1/energy?fresh")
            now = self._monotonic()
            age = float(reading["ageMilliseconds"])
            if not 0 <= age <= OLDEST_MILLISECONDS:
                raise AgentError(f"its last reading of the GPUs is {age:g} ms old")
            return now, float(reading["energyMillijoules"]) / 1e3 + float(reading["powerMilliwatts"]) / 1e3 * age / 1e3
        except (AgentError, KeyError, TypeError, ValueError) as error:
            self._not_before = self._monotonic() + PAUSE_SECONDS
            if not self._warned:
                self._warned = True
                logger.warning("the energy of this pod is not known, training goes on: %r", error)
            return self._monotonic(), None


def gpu_counter(
    agent: Caller, gpu: str, monotonic: Callable[[], float] = time.monotonic
) -> tuple[float, float, int | None] | None:
    """When the counter of one GPU was read last, the joules that it has risen by, and its SM clock then (None: not known).

    None where nobody says.

    `gpu` is its UUID, or `*` where the pod has one.
    """
    try:
        reading = agent.call("GET", "/v1/energy")
        now, gpus, age = monotonic(), reading["gpus"], float(reading["ageMilliseconds"])
        if not 0 <= age <= OLDEST_MILLISECONDS or (gpu == "*" and len(gpus) != 1):
            return None
        found = next(iter(gpus.values())) if gpu == "*" else gpus[gpu]
        clock = found.get("clockMegahertz")
        age = float(found.get("ageMilliseconds", age))  # that of this counter, to less than a millisecond
        return now - age / 1e3, float(found["energyMillijoules"]) / 1e3, None if clock is None else int(clock)
    except (AgentError, AttributeError, KeyError, TypeError, ValueError):
        return None


class Measurement:
    """`with job.measure("validation") as taken:`; `taken.seconds` and `taken.joules` are there once it is over.

    `joules` are of all GPUs of the pod, None where they are not known. Measurements may lie within each other.
    `wait_for_device` returns once the GPU has computed what it was given so far.
    """

    __slots__ = ("_began", "_from", "_meter", "_monotonic", "_wait_for_device", "joules", "name", "seconds")

    def __init__(
        self,
        name: str,
        meter: EnergyMeter,
        monotonic: Callable[[], float],
        wait_for_device: Callable[[], object] = lambda: None,
    ) -> None:
        self.name = name
        self.seconds: float | None = None
        self.joules: float | None = None
        self._meter = meter
        self._monotonic = monotonic
        self._wait_for_device = wait_for_device
        self._from: tuple[float, float | None] = (0.0, None)
        self._began = 0.0

    @property
    def watts(self) -> float | None:
        """What the pod's GPUs drew on average; None where that is not known."""
        return None if self.joules is None or not self.seconds else self.joules / self.seconds

    def __enter__(self) -> Measurement:
        self._wait_for_device()
        self._from = self._meter.read()
        self._began = self._monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:  # after an error the device may have one of its own to tell, which would hide it
            self._wait_for_device()
        self.seconds = self._monotonic() - self._began
        (since, before), (until, after) = self._from, self._meter.read()
        if before is not None and after is not None and until > since:
            # The readings lie a little outside.
            self.joules = max(0.0, after - before) * min(1.0, self.seconds / (until - since))

    def __repr__(self) -> str:
        seconds = "not over" if self.seconds is None else f"{self.seconds:.3f} s"
        return f"<{self.name}: {seconds}, {'? J' if self.joules is None else f'{self.joules:.1f} J'}>"
