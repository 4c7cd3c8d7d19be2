"""Measures a partition of a computation, a communication and the kernels that it may run beside, under the schedules that a
search asks for (Kareus, OSDI '26, sections 4.3 and 5).

Files in a folder carry it, for the search needs libraries that a training image has not: `asked.json` has the schedules
of a batch, `measured.json` what each of them took. A schedule runs for a while before it counts, for the clock and the
temperature to settle, and then for so long that the GPU's counter tells the joules of one run.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from typing import Any, Callable, NamedTuple

from flyball.node.measuring import Measurement
from flyball.pipelines.plan import Kernels
from flyball.shared_values import SharedValues

logger = logging.getLogger("flyball")

ASKED, MEASURED = "asked.json", "measured.json"
# A board's counter moves ten times a second, and its first watts are those of the schedule before.
SETTLE_SECONDS, WINDOW_SECONDS = 3.0, 5.0
TRIED_RUNS = 3
LOOKS = 3
POLL_SECONDS = 0.2
# One that has not come by then is not on its way: a process is gone.
ANSWER_SECONDS = 120.0
SETTLED_MEGAHERTZ = 30

Run = Callable[[Kernels], object]
"""Runs the partition once by a schedule, and returns when it is computed."""


class _Asked(NamedTuple):
    """One batch: at which clock (megahertz) and how the kernels are to run, each. None left: the search is over."""

    batch: int
    schedules: list[tuple[int, Kernels]]


class PartitionMeter:
    """Measures in all processes that the partition runs in, each of which calls the same.

    `ask_clock` has this process' GPU run at a clock, `megahertz` says what it runs at (None: not known), and `measure`
    begins a measurement of the pod's GPUs, in one process of each pod (None elsewhere). `search` is its number in this run:
    what the processes told each other in an earlier one is no word of this.
    """

    def __init__(
        self,
        run: Run,
        *,
        ask_clock: Callable[[int], None],
        megahertz: Callable[[], int | None],
        measure: Callable[[], Measurement] | None,
        rank: int = 0,
        world_size: int = 1,
        search: int = 1,
        values: SharedValues | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run = run
        self._ask_clock = ask_clock
        self._megahertz = megahertz
        self._measure = measure
        self._rank = rank
        self._world_size = world_size
        self._values = values if world_size > 1 else None
        self._search = search
        self._monotonic = monotonic
        self._number = 0

    def measured(self, clock_megahertz: int, kernels: Kernels) -> tuple[float, float]:
        """Seconds of one run, and joules of all GPUs that take part. Raises RuntimeError where that cannot be known."""
        self._number += 1
        began = self._runs(TRIED_RUNS, clock_megahertz, kernels)
        each = max(1e-6, (self._monotonic() - began) / TRIED_RUNS)
        settle, counted = (
            int(word)
            for word in self._shared("runs", 0, f"{_runs_of(SETTLE_SECONDS, each)} {_runs_of(WINDOW_SECONDS, each)}")
        )
        self._runs(settle, clock_megahertz, kernels)
        if self._measure is None:
            fastest = self._look_beside_runs(counted, clock_megahertz, kernels)
            seconds, joules = 0.0, 0.0
        else:
            taken = self._measure()
            with taken:
                fastest = self._look_beside_runs(counted, clock_megahertz, kernels)
            seconds, joules = taken.seconds or 0.0, math.nan if taken.joules is None else taken.joules
        if 0 < fastest < clock_megahertz - SETTLED_MEGAHERTZ:
            joules = math.inf
        both = [self._shared("took", rank, f"{seconds:.9f} {joules:.6f}") for rank in range(self._world_size)]
        if any(word[1] == "inf" for word in both):
            raise RuntimeError(
                f"a GPU does not run at {clock_megahertz} MHz: search clocks that it is granted, and reaches"
            )
        if any(word[1] == "nan" for word in both):
            raise RuntimeError("the agent at FLYBALL_SOCKET does not say what the GPUs use")
        return max(float(word[0]) for word in both) / counted, sum(float(word[1]) for word in both) / counted

    def _look_beside_runs(self, count: int, clock_megahertz: int, kernels: Kernels) -> int:
        """Run it so often; at which clock the GPU was seen to run then, 0 where nobody knows."""
        fastest = 0
        for part in range(LOOKS):
            self._runs(count * (part + 1) // LOOKS - count * part // LOOKS, clock_megahertz, kernels)
            # What was read last, within the second: a board that waits may rest at a low clock.
            fastest = max(fastest, self._megahertz() or 0)
        return fastest

    def _runs(self, count: int, clock_megahertz: int, kernels: Kernels) -> float:
        """Run it so often; when that began."""
        began = self._monotonic()
        for _ in range(count):
            self._ask_clock(clock_megahertz)  # which is forgotten where it is not asked again and again
            self._run(kernels)
        return began

    def _shared(self, name: str, rank: int, own: str) -> list[str]:
        """What the process `rank` gives the others, word by word: it writes `own`, and all read it.

        Raises RuntimeError where it does not come.
        """
        if self._values is None:
            return own.split()
        key = f"partition-{self._search}-{name}-{rank}"
        if rank == self._rank:
            self._values.put(key, f"{self._number:09d} {own:40}")
        until = self._monotonic() + ANSWER_SECONDS
        while True:
            words = (self._values.get(key) or "").split()
            if words and int(words[0]) == self._number:
                return words[1:]
            if self._monotonic() > until:
                raise RuntimeError(f"process {rank} does not say what it measures")
            self._values.pause()


def _runs_of(seconds: float, each: float) -> int:
    return max(TRIED_RUNS, math.ceil(seconds / each))


def measure_all(
    meter: PartitionMeter, folder: str, *, leads: bool, pause: Callable[[float], object] = time.sleep
) -> int:
    """Measure what is asked for in the folder, batch after batch, until the search is over; how many schedules that were.

    The process that `leads` writes the answers. Raises RuntimeError as the meter does, ValueError where what is asked
    cannot be read, and OSError where the answers cannot be written.
    """
    done, batch = 0, -1
    while True:
        asked = _read(os.path.join(folder, ASKED))
        if asked is None or asked.batch <= batch:
            pause(POLL_SECONDS)
            continue
        if not asked.schedules:
            return done
        measured = [meter.measured(clock, kernels) for clock, kernels in asked.schedules]
        done, batch = done + len(measured), asked.batch
        logger.info("measured %d schedules of batch %d", len(measured), batch)
        if leads:
            answer = {
                "batch": batch,
                "measured": [{"seconds": seconds, "joules": joules} for seconds, joules in measured],
            }
            path = os.path.join(folder, MEASURED)
            with open(f"{path}.part", "w", encoding="utf-8") as file:
                json.dump(answer, file)
            os.replace(f"{path}.part", path)


def _read(path: str) -> _Asked | None:
    """What is asked for; None where nothing is yet. Raises ValueError."""
    try:
        with open(path, encoding="utf-8") as file:
            raw: Any = json.load(file)
        schedules = [
            (
                int(each["clock_megahertz"]),
                Kernels(
                    int(each["communication_sms"]),
                    int(each["launch_kernel"]),
                    None if each["last_kernel"] is None else int(each["last_kernel"]),
                    int(each["threads_per_block"]),
                ),
            )
            for each in raw["schedules"]
        ]
        return _Asked(int(raw["batch"]), schedules)
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not what `flyball kareus search` writes: {error!r}") from error
