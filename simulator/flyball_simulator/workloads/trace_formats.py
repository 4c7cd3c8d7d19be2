"""The trace formats that can be read: which columns each has, and what they say.

A format is recognised by the header. Two are never guessed, because nothing in their files says whether times are hours or
seconds: the PAI simulator's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime


def seconds(cell: str) -> float:
    """A finite number of seconds. Raises ValueError."""
    value = float(cell)
    if not math.isfinite(value):
        raise ValueError(cell)
    return value


def hours(cell: str) -> float:
    """The seconds of a finite number of hours. Raises ValueError."""
    return 3600.0 * seconds(cell)


def timestamp(cell: str) -> float:
    """The seconds since 1970 of `2017-10-06 02:31:38`, with an offset (`+08:00`) or in the log's own time.

    Raises ValueError.
    """
    moment = datetime.fromisoformat(cell)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """How to read one kind of file.

    `headers` are the sets of columns that it is published with. `job_id` is None where jobs have no id: then the line is
    it. `raw_log`: whether it is a scheduler's log, in which jobs without GPUs and jobs that never ran are no error.
    """

    name: str
    headers: tuple[frozenset[str], ...]
    submission: str
    duration: str
    gpus: str
    job_id: str | None = None
    submission_of: Callable[[str], float] = seconds
    duration_of: Callable[[str], float] = seconds
    time_description: str = "number of seconds"
    raw_log: bool = False
    guessed: bool = True

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the trace from which jobs are made, in the order id, submission, duration, GPUs."""
        return tuple(name for name in (self.job_id, self.submission, self.duration, self.gpus) if name is not None)


_HELIOS = "job_id,user,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue"
_ACME = "job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue"


def _columns(names: str) -> frozenset[str]:
    return frozenset(names.split(","))


FLYBALL = TraceFormat(
    "flyball",  # microsoft/elasticflow-traces has the same columns
    (_columns("job_id,submission_time,duration,num_gpu"),),
    submission="submission_time",
    duration="duration",
    gpus="num_gpu",
    job_id="job_id",
)
PHILLY = TraceFormat(
    "philly",
    (_columns("timestamp,duration,num_gpus,gpu_time,cluster"),),
    submission="timestamp",
    duration="duration",
    gpus="num_gpus",
    submission_of=timestamp,
    time_description="time (2017-10-06 02:31:38)",
    raw_log=True,
)
_PAI = (_columns("arrival_time,length,cpus"),)
PAI_HOURS = TraceFormat(
    "pai-hours",
    _PAI,
    submission="arrival_time",
    duration="length",
    gpus="cpus",
    submission_of=hours,
    duration_of=hours,
    time_description="number of hours",
    raw_log=True,
    guessed=False,
)
PAI_SECONDS = TraceFormat(
    "pai-seconds",
    _PAI,
    submission="arrival_time",
    duration="length",
    gpus="cpus",
    raw_log=True,
    guessed=False,
)
HELIOS = TraceFormat(
    "helios",
    (_columns(_HELIOS), _columns(_HELIOS + ",vc")),
    submission="submit_time",
    duration="duration",
    gpus="gpu_num",
    job_id="job_id",
    submission_of=timestamp,
    time_description="time (2020-04-01 02:31:38)",
    raw_log=True,
)
ACME = TraceFormat(
    "acme",
    (
        _columns(_ACME),
        _columns(_ACME + ",gpu_time"),  # Seren
        _columns(_ACME + ",gpu_time,mem_per_pod_GB,shared_mem_per_pod,fail_time,stop_time"),  # Kalos
    ),
    submission="submit_time",
    duration="duration",
    gpus="gpu_num",
    job_id="job_id",
    submission_of=timestamp,
    time_description="time (2023-03-01 00:18:22+08:00)",
    raw_log=True,
)

FORMATS = {known.name: known for known in (FLYBALL, PHILLY, PAI_HOURS, PAI_SECONDS, HELIOS, ACME)}


def format_named(name: str) -> TraceFormat:
    """The format of that name. Raises ValueError, naming those that there are."""
    try:
        return FORMATS[name]
    except KeyError:
        raise ValueError(f"trace format {name!r} is unknown; there are {', '.join(FORMATS)}") from None


def format_of_header(header: Sequence[str]) -> TraceFormat:
    """The format whose columns these are; other columns may stand beside ours, a published log has exactly its own.

    Raises ValueError, with what was expected.
    """
    names = frozenset(header)
    for known in FORMATS.values():
        if names in known.headers:
            if known.guessed:
                return known
            raise ValueError(
                f"the columns {','.join(header)} do not say whether times are hours or seconds: "
                "name the format, pai-hours or pai-seconds"
            )
    if FLYBALL.headers[0] <= names:
        return FLYBALL
    missing = [column for column in FLYBALL.columns if column not in names]
    raise ValueError(
        f"column {missing[0]} is missing; the header is {','.join(header)!r}, expected {','.join(FLYBALL.columns)} or the "
        f"columns of one of {', '.join(list(FORMATS)[1:])}"
    )
