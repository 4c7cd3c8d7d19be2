"""What a pod's GPUs can be asked for, as its node's agent says: their clocks, the grant, and how soon a clock is set."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable

from flyball.node.agent import AgentError, Caller

# How often a training looks at how long clocks take to be set; an agent that does not answer is asked ever less often.
LOOK_SECONDS, LONGEST_PAUSE_SECONDS = 15.0, 240.0
# What is concluded from: so many calls, of which the last was not too long ago. Where no clock is changed none is measured,
# and what kept a training from it may be over.
LEAST_SETS, OLDEST_SECONDS = 8, 600.0


@dataclass(frozen=True)
class SetLatency:
    """Of the last `sets` clocks that the agent has set on a GPU, half were set within the median, 99 of 100 within the p99;
    the last one was `age_seconds` ago when the agent was asked."""

    median_seconds: float
    p99_seconds: float
    sets: int
    age_seconds: float


@dataclass(frozen=True)
class GpuCapabilities:
    """What one GPU can do; None is what the agent does not know.

    `clocks_lockable`: whether its clock can be set for this pod (None: nobody has tried yet), and `why_not`. No clock above
    `granted_megahertz` is to be had.
    """

    clocks_lockable: bool | None = None
    why_not: str = ""
    lowest_megahertz: int | None = None
    highest_megahertz: int | None = None
    step_megahertz: int | None = None
    granted_megahertz: int | None = None
    power_limit_milliwatts: int | None = None
    set_latency: SetLatency | None = None


def capabilities_of(agent: Caller) -> Mapping[str, GpuCapabilities]:
    """Of each GPU of the pod, by UUID. Raises AgentError, also where the agent is of a version that does not say."""
    reported = agent.call("GET", "/v1/capabilities").get("gpus")
    if not isinstance(reported, dict):
        raise AgentError("the agent names no GPUs that could do anything")
    return {str(uuid): _gpu(gpu) for uuid, gpu in reported.items() if isinstance(gpu, dict)}


def _gpu(reported: Mapping[str, Any]) -> GpuCapabilities:
    lockable, why_not = reported.get("clocksLockable"), reported.get("whyNot")

    def number(name: str) -> int | None:
        return _count(reported.get(name))

    return GpuCapabilities(
        lockable if isinstance(lockable, bool) else None,
        why_not if isinstance(why_not, str) else "",
        number("lowestMegahertz"),
        number("highestMegahertz"),
        number("stepMegahertz"),
        number("grantedMegahertz"),
        number("powerLimitMilliwatts"),
        _latency(reported.get("setLatency")),
    )


def _latency(reported: object) -> SetLatency | None:
    if not isinstance(reported, dict):
        return None
    median, p99, sets, age = (
        _count(reported.get(name)) for name in ("medianMicroseconds", "p99Microseconds", "sets", "ageMilliseconds")
    )
    if median is None or p99 is None or not sets or age is None:
        return None
    return SetLatency(median / 1e6, p99 / 1e6, sets, age / 1e3)


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


class KnownSetLatency:
    """How long the clock of one GPU takes to be set, as far as it is known; `look` asks the agent, beside the training.

    `gpu` is its UUID, or `*` where the pod has one.
    """

    def __init__(self, agent: Caller, gpu: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._agent = agent
        self._gpu = gpu
        self._monotonic = monotonic
        self._look_at = float("-inf")
        self._pause_seconds = LOOK_SECONDS
        self._known: tuple[float, float] | None = None  # the median, and when the last of the calls was

    def look(self) -> None:
        """Ask again, where it is time; raises nothing."""
        now = self._monotonic()
        if now < self._look_at:
            return
        try:
            gpus = capabilities_of(self._agent)
        except AgentError:  # away, or of an earlier version: the plan is followed, as before there was this to know
            self._pause_seconds = min(LONGEST_PAUSE_SECONDS, 2 * self._pause_seconds)
        else:
            self._pause_seconds = LOOK_SECONDS
            gpu = gpus.get(self._gpu) or (next(iter(gpus.values())) if self._gpu == "*" and len(gpus) == 1 else None)
            latency = None if gpu is None else gpu.set_latency
            enough = latency is not None and latency.sets >= LEAST_SETS
            self._known = (
                (latency.median_seconds, now - latency.age_seconds) if latency is not None and enough else None
            )
        self._look_at = self._monotonic() + self._pause_seconds

    def seconds(self) -> float | None:
        """The median of the last calls; None where it is not known, or from too long ago."""
        known = self._known
        if known is None or self._monotonic() - known[1] > OLDEST_SECONDS:
            return None
        return known[0]
