"""What a cap's meter means to the limits under it: the closed loop, pure.

Limits prove what the GPUs may draw; a meter sees what is drawn, hosts, fans and losses included. Three bands of the cap
keep the loop from hunting (Dynamo, ISCA 2016: a threshold to cap at, a target, a threshold to uncap at), and two
thresholds tell what is pressing from what is not (Thunderbolt, OSDI 2020: load shaping):

- above `targetPermille`, limits are shaped down evenly, a step at a time, each after the last one could be seen;
- above the cap for `breachSeconds`, jobs are cut to their smallest limits, the lowest priority first, and then all;
- below `releasePermille` for `releaseSeconds`, limits rise, a step at a time; in between nothing changes;
- a meter that is silent lowers limits by itself: what cannot be seen is not trusted (Thunderbolt's proactive capping).

What comes out is a number of watts that all limits under the cap, and its static overhead, may add up to. It is one more
budget beside the cap's own, never a higher one: whatever a meter says, no limit exceeds what the cap had committed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from flyball_api.power_cap import CapMeter, PowerCapStatus
from flyball_api.values.units import allowed_watts

# Two readings in a row: one may be noise.
READINGS_ABOVE_TARGET = 2
# A lowering that did not suffice is doubled the next time, up to so many times.
MOST_DOUBLINGS = 5
# A breach is answered with more than it takes, so that the next look need not cut again.
BREACH_FACTOR = 2.0
# A rise is half the way to the middle of the band, within these shares of the cap.
SMALLEST_RISE, LARGEST_RISE = 0.005, 0.05
# Rises that had to be taken back make the next one wait longer, up to 2**4 times.
MOST_BACKOFF = 4
# A meter of all under the cap reads at least what the GPUs say that they draw; reports are up to 30 s old.
PLAUSIBLE_SHARE = 0.8
IMPLAUSIBLE_SECONDS = 90.0


class MeterPhase(StrEnum):
    """What limits are held to because of the meter (`PowerCap.status.meter.state`)."""

    WITHIN = "Within"
    SHAPING = "Shaping"
    CUT = "Cut"
    SILENT = "Silent"


class Silence(StrEnum):
    """Why a meter is not believed (the reasons of the condition MeterSilent)."""

    NO_READING = "NoReading"
    IMPLAUSIBLE = "Implausible"


@dataclass(frozen=True, slots=True)
class MeterReading:
    """The last reading of a meter: watts, and when they were first seen, by the operator's monotonic and its wall clock.

    Without `watts` there has been none. `error` says why the last try brought no new one (empty: it did).
    """

    watts: float | None = None
    seen_at: float = -math.inf
    time: datetime | None = None
    error: str = "it has not been read yet"


NEVER_READ = MeterReading()


@dataclass(frozen=True, slots=True)
class MeteredLoad:
    """What stands under a cap now, in watts, all but `gpu_watts` with the static overhead.

    `limits_watts` is what all limits may add up to (whatever the cap counts), `least_watts` what they come to at the
    smallest and `most_watts` at the largest limits of the GPUs; `gpu_watts` is what the agents report to be drawn.
    """

    cap_watts: float
    limits_watts: float
    least_watts: float
    most_watts: float
    gpu_watts: float = 0.0
    ramp_watts_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class MeterState:
    """What is made of a meter, and what the next decision needs of this one; times are monotonic seconds.

    `allowed_watts` is what all limits and the static overhead may add up to (None: the meter bounds nothing), `silence` why
    the meter is not believed (None: it is).
    """

    phase: MeterPhase
    watched_since: float
    allowed_watts: float | None = None
    silence: Silence | None = None
    read_at: float = -math.inf
    changed_at: float = -math.inf
    cap_watts: float = math.inf
    cap_fell_at: float = -math.inf
    above_target: int = 0
    above_cap_since: float | None = None
    below_since: float | None = None
    implausible_since: float | None = None
    lowered: int = 0
    rose: bool = False
    backoff: int = 0

    @property
    def waits(self) -> bool:
        """Whether time alone may bring the next decision soon: a breach lasts."""
        return self.above_cap_since is not None

    @property
    def by_priority(self) -> bool:
        """Whether jobs of low priority pay first."""
        return self.phase is MeterPhase.CUT


def first_state(status: PowerCapStatus, monotonic: float) -> MeterState:
    """Where a leader goes on: from what the cap's status says of the one before it."""
    known = status.meter
    if known is None or known.allowed_watts is None:
        return MeterState(MeterPhase.WITHIN, monotonic)
    phase = MeterPhase.CUT if known.state == MeterPhase.CUT.value else MeterPhase.SHAPING
    return MeterState(phase, monotonic, float(known.allowed_watts), changed_at=monotonic)


def follow_meter(
    meter: CapMeter, before: MeterState, reading: MeterReading, load: MeteredLoad, now: float
) -> MeterState:
    """The state at monotonic time `now`, from the one before and what was read last.

    Lowers at once where it must; rises only on a new reading, so that no old one can raise anything.
    """
    new = reading.watts is not None and reading.seen_at > before.read_at
    state = _noted(meter, before, reading, load, now, new)
    aim = load.cap_watts * (meter.target_permille + meter.release_permille) / 2000
    watts = reading.watts
    if watts is not None and _breach_lasts(meter, state, watts, load, now):
        state = _cut(meter, state, watts, aim, load, now)
    elif state.silence is not None:
        state = _lowered_to(state, MeterPhase.SILENT, load.cap_watts * meter.silent_permille / 1000, load, now)
    elif watts is not None and new and now - max(state.changed_at, state.cap_fell_at) >= meter.settle_seconds:
        if state.above_target >= READINGS_ABOVE_TARGET:
            state = _shaped(state, watts, aim, load, now)
        elif _may_rise(meter, state, now):
            state = _raised(meter, state, watts, aim, load, now)
    if state.phase is MeterPhase.SILENT and state.silence is None:
        state = replace(state, phase=MeterPhase.SHAPING)
    return state


def _noted(
    meter: CapMeter, before: MeterState, reading: MeterReading, load: MeteredLoad, now: float, new: bool
) -> MeterState:
    """What follows from the reading for all that is counted and timed, before anything is decided."""
    fell_at = now if load.cap_watts < before.cap_watts and math.isfinite(before.cap_watts) else before.cap_fell_at
    state = replace(before, cap_watts=load.cap_watts, cap_fell_at=fell_at)
    if load.cap_watts < before.cap_watts:
        state = replace(state, rose=False)  # it is for the cap, and not for the rise, that limits are lowered again
    watts = reading.watts
    if watts is not None:
        target, release = (load.cap_watts * it / 1000 for it in (meter.target_permille, meter.release_permille))
        above_cap_since = state.above_cap_since
        if watts > load.cap_watts:
            above_cap_since = now if above_cap_since is None else above_cap_since
        elif watts <= target:
            above_cap_since = None
        implausible = watts < load.gpu_watts * PLAUSIBLE_SHARE
        state = replace(
            state,
            above_cap_since=above_cap_since,
            below_since=None if watts > release else now if state.below_since is None else state.below_since,
            implausible_since=None
            if not implausible
            else now
            if state.implausible_since is None
            else state.implausible_since,
            lowered=state.lowered if watts > target else 0,
        )
        if new:
            above = state.above_target + 1 if watts > target else 0
            state = replace(state, read_at=reading.seen_at, above_target=above)
    if state.phase is MeterPhase.WITHIN and now - state.changed_at > meter.release_seconds * 2**MOST_BACKOFF:
        state = replace(state, backoff=0)
    silence = _silence(meter, state, now)
    return replace(state, silence=silence, below_since=state.below_since if silence is None else None)


def _silence(meter: CapMeter, state: MeterState, now: float) -> Silence | None:
    if now - max(state.read_at, state.watched_since) >= meter.silent_seconds:
        return Silence.NO_READING
    if state.implausible_since is not None and now - state.implausible_since >= IMPLAUSIBLE_SECONDS:
        return Silence.IMPLAUSIBLE
    return None


def _breach_lasts(meter: CapMeter, state: MeterState, watts: float, load: MeteredLoad, now: float) -> bool:
    """Whether more than the cap has been drawn for long enough.

    Of a cap that has just fallen, the meter cannot show it yet. The last reading counts however old it is: a meter that
    dies above the cap is no better than one that stays there.
    """
    if state.above_cap_since is None or watts <= load.cap_watts:
        return False
    since = max(state.above_cap_since, state.cap_fell_at + meter.settle_seconds)
    return now - since >= meter.breach_seconds


def _cut(meter: CapMeter, state: MeterState, watts: float, aim: float, load: MeteredLoad, now: float) -> MeterState:
    """By priority, as much as should do; where it did not once it could be seen, everything to the smallest limits."""
    if state.phase is MeterPhase.CUT:
        if now - state.changed_at < meter.settle_seconds:
            return state
        return replace(_lowered_to(state, MeterPhase.CUT, load.least_watts, load, now), changed_at=now)
    base = _base(state, load)
    return _lowered_to(state, MeterPhase.CUT, min(base, watts) - BREACH_FACTOR * (watts - aim), load, now)


def _shaped(state: MeterState, watts: float, aim: float, load: MeteredLoad, now: float) -> MeterState:
    """One step down: what is drawn too much, doubled each time that it did not suffice.

    Jobs may draw less than their limits, so that a lower limit need not lower the draw. No step goes further than to where
    the limits themselves keep the draw at the aim.
    """
    excess = watts - aim
    base = _base(state, load)
    step = excess * 2 ** min(state.lowered, MOST_DOUBLINGS)
    shaped = _lowered_to(state, MeterPhase.SHAPING, max(base - step, min(base, watts) - excess), load, now)
    return replace(shaped, lowered=state.lowered + 1)


def _base(state: MeterState, load: MeteredLoad) -> float:
    """What limits may add up to now, by what stands and by what was decided last."""
    return load.limits_watts if state.allowed_watts is None else min(load.limits_watts, state.allowed_watts)


def _lowered_to(state: MeterState, phase: MeterPhase, watts: float, load: MeteredLoad, now: float) -> MeterState:
    """`state` with no more than `watts` allowed; one that allows less already stays so."""
    watts = float(allowed_watts(max(watts, min(load.least_watts, load.cap_watts))))
    phase = MeterPhase.CUT if state.phase is MeterPhase.CUT else phase
    if state.allowed_watts is not None and state.allowed_watts <= watts:
        return replace(state, phase=phase)
    backoff = min(state.backoff + 1, MOST_BACKOFF) if state.rose else state.backoff
    return replace(
        state, phase=phase, allowed_watts=watts, changed_at=now, rose=False, backoff=backoff, below_since=None
    )


def _may_rise(meter: CapMeter, state: MeterState, now: float) -> bool:
    if state.allowed_watts is None or state.below_since is None:
        return False
    return now - state.below_since >= (1 if state.rose else meter.release_seconds * 2**state.backoff)


def _raised(meter: CapMeter, state: MeterState, watts: float, aim: float, load: MeteredLoad, now: float) -> MeterState:
    """One step up; the last one leaves limits to the cap alone."""
    cap = load.cap_watts
    rise = min(max((aim - watts) / 2, SMALLEST_RISE * cap), LARGEST_RISE * cap)
    if load.ramp_watts_per_second is not None:
        rise = min(rise, load.ramp_watts_per_second * meter.settle_seconds)
    allowed = max(rise, 1.0) + (load.limits_watts if state.allowed_watts is None else state.allowed_watts)
    if allowed >= load.most_watts:
        return replace(state, phase=MeterPhase.WITHIN, allowed_watts=None, changed_at=now, rose=True)
    phase = MeterPhase.SHAPING if allowed >= cap * meter.release_permille / 1000 else state.phase
    return replace(state, phase=phase, allowed_watts=float(allowed_watts(allowed)), changed_at=now, rose=True)
