"""Which process of which job this is: read from the environment that Flyball, torchrun and JAX set."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Callable

# Who says which process of how many this is, in the order in which they are believed: torchrun, then Flyball for JAX.
_RANKS = (("RANK", "WORLD_SIZE"), ("JAX_PROCESS_ID", "JAX_NUM_PROCESSES"))


_TARGET = re.compile(r"^(?P<metric>[A-Za-z][A-Za-z0-9_./-]*) ?(?P<sign>>=|<=) ?(?P<value>-?[0-9]+(\.[0-9]+)?)$")
_UID = re.compile(r"^[A-Za-z0-9-]{1,63}\Z")


class InvalidEnvironment(ValueError):
    """A variable that this process cannot train by; the message names it."""


@dataclass(frozen=True)
class Target:
    """What a recurring job trains to: its metric is to rise to `value`, or to fall to it."""

    metric: str
    rising: bool
    value: float

    @classmethod
    def read(cls, text: str) -> Target | None:
        """From `accuracy >= 0.75`; None of an empty text. Raises InvalidEnvironment."""
        if not text:
            return None
        found = _TARGET.match(text)
        if found is None:
            raise InvalidEnvironment(
                f"environment variable FLYBALL_TARGET_METRIC={text!r} is not like accuracy >= 0.75"
            )
        return cls(found["metric"], found["sign"] == ">=", float(found["value"]))

    def reached_by(self, value: float) -> bool:
        return value >= self.value if self.rising else value <= self.value


@dataclass(frozen=True)
class PipelineSection:
    """The job's pipelines: the file of their plan, what it has to be of, and which of its points is wanted.

    `iteration_seconds` is how long an iteration may take for the job's deadline to be met; None without one. Both it and
    `objective` are those of the start: the `point_file` has what is wanted now. At the clocks `measure` (megahertz) the
    stages are measured as long as there is no plan.
    """

    plan: str
    stages: int | None = None
    microbatches: int | None = None
    objective: str = "Time"
    iteration_seconds: float | None = None
    point_file: str | None = None
    measure: tuple[int, ...] = ()


@dataclass(frozen=True)
class BudgetSection:
    """What the whole job may use (kilojoules; None: as much as it needs), what it had used when it was started, when it is
    due, and in how many pods it trains. What nobody says is None."""

    kilojoules: int | None = None
    used_kilojoules: int | None = None
    due: datetime | None = None
    pods: int = 1


OBJECTIVES = ("Time", "Energy", "Balanced")


@dataclass(frozen=True)
class Environment:
    """One training process: `rank` of `world_size`, in the job's start number `incarnation` (0: no start of Flyball's).

    `run` is the same in every process of one start and differs from every other start's. Outside Flyball nobody counts
    starts: then it is the same in the processes of one parent, as those of one torchrun are, until `begun_as` knows better.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int | None = None
    incarnation: int = 0
    run: str = ""
    job: str = ""
    job_uid: str = ""
    checkpoint_directory: str | None = None
    socket: str | None = None
    journal_directory: str | None = None
    global_batch_size: int | None = None
    max_local_batch_size: int | None = None
    iterations: int | None = None
    base_batch_size: int | None = None
    target: Target | None = None
    pipeline: PipelineSection | None = None
    budget: BudgetSection = BudgetSection()

    @classmethod
    def read(cls, variables: Mapping[str, str], parent_process: int) -> Environment:
        """From `os.environ` and `os.getppid()`. Raises InvalidEnvironment."""

        def number(name: str, default: int | None, least: int) -> int | None:
            text = variables.get(name, "")
            if not text:
                return default
            if not text.isdecimal() or int(text) < least:
                raise InvalidEnvironment(
                    f"environment variable {name}={text!r} is not a whole number of {least} or more"
                )
            return int(text)

        rank, world_size = 0, 1
        for rank_name, size_name in _RANKS:
            if variables.get(rank_name) and variables.get(size_name):
                rank, world_size = number(rank_name, 0, 0) or 0, number(size_name, 1, 1) or 1
                if rank >= world_size:
                    raise InvalidEnvironment(f"{rank_name}={rank} is not below {size_name}={world_size}")
                break
        incarnation = number("FLYBALL_INCARNATION", 0, 0) or 0
        # torchrun may start its processes again within one start of the pods. Outside Flyball its own process tells
        # one start from another.
        start = f"{incarnation:06d}" if incarnation else f"local{parent_process}"
        return cls(
            rank=rank,
            world_size=world_size,
            local_rank=number("LOCAL_RANK", 0, 0) or 0,
            local_world_size=number("LOCAL_WORLD_SIZE", None, 1),
            incarnation=incarnation,
            run=f"{start}.{number('TORCHELASTIC_RESTART_COUNT', 0, 0)}",
            job=variables.get("FLYBALL_JOB", ""),
            job_uid=_uid(variables.get("FLYBALL_JOB_UID", "")),
            checkpoint_directory=variables.get("FLYBALL_CHECKPOINT_DIR") or None,
            socket=variables.get("FLYBALL_SOCKET") or None,
            journal_directory=variables.get("FLYBALL_STEP_JOURNAL") or None,
            global_batch_size=number("FLYBALL_GLOBAL_BATCH_SIZE", None, 1),
            max_local_batch_size=number("FLYBALL_MAX_LOCAL_BATCH_SIZE", None, 1),
            iterations=number("FLYBALL_ITERATIONS", None, 1),
            base_batch_size=number("FLYBALL_BASE_BATCH_SIZE", None, 1),
            target=Target.read(variables.get("FLYBALL_TARGET_METRIC", "")),
            pipeline=_pipeline(variables, number) if variables.get("FLYBALL_PIPELINE_PLAN") else None,
            budget=_budget(variables, number),
        )

    def begun_as(self, token: str) -> Environment:
        """This process of a start that all its processes know by the token of rank 0 (`start_token`); under Flyball they
        have the incarnation for it."""
        return self if self.incarnation else replace(self, run=f"local{token}")


def start_token() -> str:
    """What no other start is known by, always of one length; that of a later start sorts behind it."""
    return f"{time.time_ns():020d}"


def _uid(text: str) -> str:
    if text and not _UID.match(text):
        raise InvalidEnvironment(
            f"environment variable FLYBALL_JOB_UID={text[:80]!r} is no UID of letters, digits and -"
        )
    return text


def _budget(variables: Mapping[str, str], number: Callable[[str, int | None, int], int | None]) -> BudgetSection:
    gpus, of_this_pod = number("FLYBALL_WORLD_SIZE", 1, 1) or 1, number("FLYBALL_LOCAL_GPUS", 1, 1) or 1
    due = variables.get("FLYBALL_DUE", "")
    try:
        instant = datetime.strptime(due, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc) if due else None
    except ValueError:
        raise InvalidEnvironment(
            f"environment variable FLYBALL_DUE={due!r} is not a time like 2026-01-31T12:00:00Z"
        ) from None
    return BudgetSection(
        number("FLYBALL_BUDGET_KILOJOULES", None, 0),
        number("FLYBALL_USED_KILOJOULES", None, 0),
        instant,
        max(1, gpus // of_this_pod),
    )


def _pipeline(variables: Mapping[str, str], number: Callable[[str, int | None, int], int | None]) -> PipelineSection:
    objective = variables.get("FLYBALL_PIPELINE_OBJECTIVE") or "Time"
    if objective not in OBJECTIVES:
        raise InvalidEnvironment(
            f"environment variable FLYBALL_PIPELINE_OBJECTIVE={objective!r} is none of {', '.join(OBJECTIVES)}"
        )
    text = variables.get("FLYBALL_PIPELINE_SECONDS", "")
    try:
        seconds = float(text) if text else None
    except ValueError:
        seconds = math.nan
    if seconds is not None and not 0 < seconds < math.inf:
        raise InvalidEnvironment(f"environment variable FLYBALL_PIPELINE_SECONDS={text!r} is no time above 0")
    return PipelineSection(
        plan=variables["FLYBALL_PIPELINE_PLAN"],
        stages=number("FLYBALL_PIPELINE_STAGES", None, 1),
        microbatches=number("FLYBALL_PIPELINE_MICROBATCHES", None, 1),
        objective=objective,
        iteration_seconds=seconds,
        point_file=variables.get("FLYBALL_PIPELINE_POINT") or None,
        measure=_clocks(variables.get("FLYBALL_PIPELINE_MEASURE", "")),
    )


def _clocks(text: str) -> tuple[int, ...]:
    clocks = text.split(",") if text else []
    if not all(clock.isascii() and clock.isdecimal() and 0 < int(clock) < 100_000 for clock in clocks):
        raise InvalidEnvironment(
            f"environment variable FLYBALL_PIPELINE_MEASURE={text[:80]!r} is no list of clocks in megahertz, as 1410,1350"
        )
    return tuple(map(int, clocks))
