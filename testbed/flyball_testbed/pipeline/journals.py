"""What the stages of a pipeline did, read from the journals that their processes wrote."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean


@dataclass(frozen=True, slots=True)
class Computation:
    """One computation, and the clock that its board had while most of it ran.

    `degree` is how much longer than this replica others were then taken to need, `ran` what it is in the profile: with its
    kernels, where the plan says how they run.
    """

    stage: int
    instruction: str
    microbatch: int
    start: float
    end: float
    clock_megahertz: int
    degree: float
    ran: str = ""


@dataclass(frozen=True, slots=True)
class Iteration:
    """One iteration of one replica: all its stages' computations and joules, and what its plan had predicted.

    `computed` is when the last of its stages had nothing left to compute; from there to `ended` it waited for others.
    """

    replica: int
    number: int
    began: float
    computed: float
    ended: float
    joules: float
    planned_seconds: float | None
    planned_joules: float | None
    degree: float
    late_seconds: float
    computations: tuple[Computation, ...]

    @property
    def seconds(self) -> float:
        return self.ended - self.began


def read_iterations(folder: Path) -> list[Iteration]:
    """Every iteration that all stages of its replica have ended, in the order of replicas and numbers."""
    computations: dict[tuple[int, int], list[Computation]] = defaultdict(list)
    ends: dict[tuple[int, int], list[Mapping[str, float]]] = defaultdict(list)
    stages: dict[int, int] = defaultdict(int)
    for path in sorted(folder.glob("*.jsonl")):
        # A process that writes meanwhile may have got as far as a part of a line, or to none.
        head, *lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] or [None]
        if head is None:
            continue
        replica, stage = int(head["replica"]), int(head["stage"])
        stages[replica] += 1
        for line in lines:
            key = replica, int(line["iteration"])
            if "instruction" in line:
                computations[key].append(
                    Computation(
                        stage,
                        line["instruction"],
                        line["microbatch"],
                        line["start"],
                        line["end"],
                        line["megahertz"],
                        line["degree"],
                        line["ran"],
                    )
                )
            else:
                ends[key].append(line)
    return [
        _iteration(key, ended, computations[key]) for key, ended in sorted(ends.items()) if len(ended) == stages[key[0]]
    ]


def _iteration(
    key: tuple[int, int], ended: Sequence[Mapping[str, float]], computations: Iterable[Computation]
) -> Iteration:
    first = ended[0]
    return Iteration(
        *key,
        began=first["began"],
        computed=max(line["computed"] for line in ended),
        ended=first["ended"],
        joules=sum(line["joules"] for line in ended),
        planned_seconds=first["planned_seconds"],
        planned_joules=first["planned_joules"],
        degree=first["degree"],
        late_seconds=max(line["late"] for line in ended),
        computations=tuple(computations),
    )


@dataclass(frozen=True, slots=True)
class Mean:
    """Seconds and joules of an iteration, on average."""

    seconds: float
    joules: float

    @classmethod
    def of(cls, iterations: Sequence[Iteration]) -> Mean:
        return cls(fmean(item.seconds for item in iterations), fmean(item.joules for item in iterations))
