"""Checks what the agent takes for granted of a GPU and its driver, on the GPU itself: `flyball agent check-gpu`.

`readings` only reads. `changes` sets power limits of one GPU, and puts back what was found: at its end, at any exception,
and after a kill by `restore`, for what was found is on the disk before the first set. It resets no GPU, and touches no
clock, MIG, ECC or compute mode: a clock lock that stood before cannot be read, and so not be put back.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from flyball_api.values.units import MILLIWATTS_PER_WATT, MilliwattsPerGpu, in_whole_watts

from flyball_agent.gpu.gpu import Gpu, GpuDriver, GpuError, GpuReading, InvalidArgument

READS = 50
# An agent's round reads every GPU once a second, and gives up on a call after two.
LONGEST_READ_MILLISECONDS = 500.0
# What an agent waits for a limit to come down before it reports it (SETTLE_SECONDS of the enforcer).
SETTLES_WITHIN_SECONDS = 2.0
# By how much the energy counter and the power sensor, which looks at 25 of every 100 ms on some GPUs, may differ.
ENERGY_TOLERANCE = 0.25
# How often the counter moves at least, as windows of energy and profiles of stages take it; an H200's does just so.
COUNTER_MOVES_MILLISECONDS = 100.0
_COUNTER_WATCH_SECONDS = 1.0
_POLL_SECONDS = 0.002


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: whether the assumption holds (None: nothing to judge), in words, and what was found."""

    check: str
    holds: bool | None
    found: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps({"check": self.check, "holds": self.holds, **self.found})


class NotRestored(Exception):
    """A GPU has not the limit that it had before the check."""


def driver_findings(driver: GpuDriver) -> Iterator[Finding]:
    """What holds for the node's GPUs together."""
    gpus = driver.gpus()
    uuids = [gpu.uuid for gpu in gpus]
    yield Finding(
        "every GPU can be governed, and has a UUID of its own",
        not driver.unopened and bool(gpus) and len(set(uuids)) == len(uuids),
        {
            "driver": driver.version,
            "boot": driver.boot_id,
            "gpus": uuids,
            "unopened": [str(gpu.error) for gpu in driver.unopened],
        },
    )


def readings(gpu: Gpu, watch_seconds: float = 5.0) -> Iterator[Finding]:
    """What can be read of one GPU without setting anything, its power and energy over `watch_seconds`."""
    limits = gpu.limits
    found: dict[str, Any] = {
        "uuid": gpu.uuid,
        "model": gpu.model,
        "min_milliwatts": limits.min_milliwatts,
        "default_milliwatts": limits.default_milliwatts,
        "max_milliwatts": limits.max_milliwatts,
    }
    whole_watts = all(value == in_whole_watts(value) for value in (limits.min_milliwatts, limits.max_milliwatts))
    yield Finding("the limits are in order, in whole watts", whole_watts, found)
    limit = gpu.read_power_limit()
    within = limits.min_milliwatts <= limit.requested_milliwatts <= limits.max_milliwatts
    yield Finding(
        "the requested limit is one that can be set, and no higher one is enforced",
        within and limit.enforced_milliwatts <= limit.requested_milliwatts,
        {"requested_milliwatts": limit.requested_milliwatts, "enforced_milliwatts": limit.enforced_milliwatts},
    )
    clocks = limits.clocks_megahertz
    yield Finding(
        "SM clocks can be chosen",
        len(clocks) > 1,
        {"lowest": clocks[0] if clocks else None, "highest": clocks[-1] if clocks else None, "clocks": len(clocks)},
    )
    reading = gpu.read()
    yield Finding("everything that the agent reads is there", not (missing := _missing(reading)), {"missing": missing})
    yield Finding("persistence mode is on, so that limits outlive the agent", reading.persistence_mode is True)
    yield _read_times(gpu)
    yield _counter_moves(gpu)
    yield _energy_against_power(gpu, watch_seconds)


def changes(open_driver: Callable[[], GpuDriver], index: int, kept: Path) -> Generator[Finding, None, None]:
    """What one GPU does when its limit is set, by drivers of its own; `kept` takes what was found.

    Close it, so that what was found is put back though not all findings are asked for. Raises FileExistsError where `kept`
    has what an earlier check found, ValueError for a GPU that is not there, GpuError, and NotRestored.
    """
    driver = open_driver()
    try:
        gpu = _gpu(driver, index)
        found = gpu.read_power_limit().requested_milliwatts
        _keep(kept, gpu.uuid, found)
        try:
            limits = gpu.limits
            for outside in (limits.min_milliwatts - MILLIWATTS_PER_WATT, limits.max_milliwatts + MILLIWATTS_PER_WATT):
                yield _refused(gpu, MilliwattsPerGpu(outside), found)
            middle = in_whole_watts(MilliwattsPerGpu((limits.min_milliwatts + limits.max_milliwatts) // 2))
            for wanted in (middle, limits.min_milliwatts, limits.max_milliwatts):
                yield _set_and_read_back(gpu, wanted)
            yield _granularity(gpu, limits.min_milliwatts)
            gpu.set_power_limit_milliwatts(middle)
            driver.close()
            driver = open_driver()
            gpu = _gpu(driver, index)
            after = gpu.read_power_limit().requested_milliwatts
            milliwatts = {"set_milliwatts": middle, "found_milliwatts": after}
            yield Finding("a limit outlives the client that set it", after == middle, milliwatts)
        finally:
            _put_back(gpu, found, kept)
    finally:
        driver.close()


def _gpu(driver: GpuDriver, index: int) -> Gpu:
    gpus = driver.gpus()
    if index >= len(gpus):
        raise ValueError(f"there is no GPU {index}: the driver shows {len(gpus)}")
    return gpus[index]


def restore(gpus: Sequence[Gpu], kept: Path) -> str:
    """Put back what a check that was killed had found; returns the GPU's UUID.

    Raises OSError, ValueError where the file does not say it of one of these GPUs, and NotRestored.
    """
    state = json.loads(kept.read_text())
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    if not isinstance(state, dict) or state.get("uuid") not in by_uuid or not isinstance(state.get("milliwatts"), int):
        raise ValueError(f"{kept}: {state} is no limit of a GPU of this node ({', '.join(by_uuid) or 'none'})")
    _put_back(by_uuid[state["uuid"]], MilliwattsPerGpu(state["milliwatts"]), kept)
    return str(state["uuid"])


def _keep(kept: Path, uuid: str, milliwatts: MilliwattsPerGpu) -> None:
    with kept.open("x") as file:  # never over what an earlier check has yet to put back
        json.dump({"uuid": uuid, "milliwatts": milliwatts}, file)
        file.flush()
        os.fsync(file.fileno())


def _put_back(gpu: Gpu, milliwatts: MilliwattsPerGpu, kept: Path) -> None:
    error = ""
    try:
        gpu.set_power_limit_milliwatts(milliwatts)
        after = gpu.read_power_limit().requested_milliwatts
    except GpuError as failure:
        after, error = None, f" ({failure})"
    if after != milliwatts:
        raise NotRestored(f"{gpu.uuid}: the limit was {milliwatts} mW and is {after} now{error}; it is kept in {kept}")
    kept.unlink()


def _missing(reading: GpuReading) -> list[str]:
    measured = {
        "sm_clock": reading.sm_clock_megahertz,
        "power": reading.average_power_milliwatts,
        "energy": reading.energy_millijoules,
        "utilization": reading.utilization_percent,
        "temperature": reading.temperature_celsius,
        "persistence_mode": reading.persistence_mode,
    }
    return [name for name, value in measured.items() if value is None]


def _read_times(gpu: Gpu) -> Finding:
    took = []
    for _ in range(READS):
        began_at = time.perf_counter()
        gpu.read()
        took.append((time.perf_counter() - began_at) * 1e3)
    return Finding(
        "a reading is quick enough for a round a second",
        max(took) < LONGEST_READ_MILLISECONDS,
        {"median_milliseconds": round(statistics.median(took), 3), "longest_milliseconds": round(max(took), 3)},
    )


def _counter_moves(gpu: Gpu) -> Finding:
    """How long the counter stands still: what is used in that time falls outside a stretch that ends then, or into it."""
    moved_at: list[float] = []
    shown, began_at = gpu.read().energy_millijoules, time.perf_counter()
    while time.perf_counter() - began_at < _COUNTER_WATCH_SECONDS:
        if (now := gpu.read().energy_millijoules) != shown:
            shown = now
            moved_at.append(time.perf_counter())
    check = "the energy counter moves ten times a second, or more often"
    if len(moved_at) < 2:
        return Finding(check, None if shown is None else False)
    median = statistics.median(after - before for before, after in pairwise(moved_at)) * 1e3
    return Finding(check, median < 1.5 * COUNTER_MOVES_MILLISECONDS, {"median_milliseconds": round(median, 2)})


def _energy_against_power(gpu: Gpu, seconds: float) -> Finding:
    """The counter is what the agent accounts by; the sensor is the only other witness."""
    check = "the energy counter rises as the power sensor says"
    first, began_at = gpu.read().energy_millijoules, time.perf_counter()
    powers = []
    while time.perf_counter() - began_at < seconds:
        if (power := gpu.read().average_power_milliwatts) is not None:
            powers.append(power)
        time.sleep(seconds / READS)
    last, took = gpu.read().energy_millijoules, time.perf_counter() - began_at
    if first is None or last is None or not powers:
        return Finding(check, None)
    by_counter, by_sensor = (last - first) / took, statistics.mean(powers)
    return Finding(
        check,
        last >= first and abs(by_counter - by_sensor) <= ENERGY_TOLERANCE * by_sensor,
        {"counter_milliwatts": round(by_counter), "sensor_milliwatts": round(by_sensor)},
    )


def _refused(gpu: Gpu, milliwatts: MilliwattsPerGpu, found: MilliwattsPerGpu) -> Finding:
    try:
        gpu.set_power_limit_milliwatts(milliwatts)
        refused = False
    except InvalidArgument:
        refused = True
    unchanged = gpu.read_power_limit().requested_milliwatts == found
    return Finding(
        "a limit out of range is refused and changes nothing", refused and unchanged, {"milliwatts": milliwatts}
    )


def _set_and_read_back(gpu: Gpu, milliwatts: MilliwattsPerGpu) -> Finding:
    began_at = time.perf_counter()
    gpu.set_power_limit_milliwatts(milliwatts)
    took = time.perf_counter() - began_at
    requested = gpu.read_power_limit().requested_milliwatts
    settled: float | None = None
    while (waited := time.perf_counter() - began_at) < 2 * SETTLES_WITHIN_SECONDS:
        if gpu.read_power_limit().enforced_milliwatts <= milliwatts:
            settled = waited
            break
        time.sleep(_POLL_SECONDS)
    return Finding(
        "a limit is read back as requested at once, and enforced before the agent reports it",
        requested == milliwatts and settled is not None and settled < SETTLES_WITHIN_SECONDS,
        {
            "milliwatts": milliwatts,
            "requested_milliwatts": requested,
            "set_milliseconds": round(took * 1e3, 1),
            "enforced_after_milliseconds": None if settled is None else round(settled * 1e3, 1),
        },
    )


def _granularity(gpu: Gpu, least: MilliwattsPerGpu) -> Finding:
    """Limits are granted in milliwatts: a driver that rounds must not round above what was granted."""
    asked, error = MilliwattsPerGpu(least + 500), None
    try:
        gpu.set_power_limit_milliwatts(asked)
    except GpuError as refusal:
        error = str(refusal)
    read_back = gpu.read_power_limit().requested_milliwatts
    return Finding(
        "a limit between two watts is never rounded up",
        read_back <= asked,
        {"asked_milliwatts": asked, "read_back_milliwatts": read_back, "error": error},
    )
