"""The traces that have a name: windows of public ones, a seeded draw from one, and one that needs no file.

- `itp`: cluster04 of microsoft/elasticflow-traces (MIT), its busiest 24 hours, 1,116 jobs.
- `itp-months`: all of cluster04, 59 days, 15,802 jobs.
- `itp-02`: cluster02 of the same traces, its busiest 24 hours, 524 jobs: a small cluster, on which no policy was tuned.
- `philly`: msr-fiddle/philly-traces (CC-BY-4.0), all clusters, the 24 hours from 2017-10-06 02:31:38, 1,901 jobs.
- `pai`: 1,901 jobs drawn by the seed from umassos/GAIA's resampled Alibaba PAI trace (MIT), 100,000 jobs in a year; what
  was submitted over the year is spread over 24 hours. A job's demand (`cpus`) becomes the next power of two, at most 8.
- `synthetic`: 1,901 jobs in 24 hours, drawn by the seed.
- `itp/17`, `itp-02/17`, `philly/17`, `pai/17`: the eighteenth day of these traces as submitted, counted from 0, by
  24 hours from the trace's first submission. No job of it is drawn; `pai`'s sizes are rounded as above.
"""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path

import numpy as np

from flyball_simulator.workloads.trace_formats import timestamp
from flyball_simulator.workloads.traces import TraceError, TraceJob, read_trace

DAY_SECONDS = 86_400.0
YEAR_SECONDS = 365 * DAY_SECONDS
DAY_JOBS = 1_901  # PowerFlow section 6.1: jobs submitted in its 24 hours
PAI_LARGEST_GPUS = 8

ITP_FILE = Path("traces/itp/cluster04.csv.gz")
ITP_BUSIEST_SECONDS = 4_051_373.0
ITP_SMALL_FILE = Path("traces/itp/cluster02.csv.gz")
ITP_SMALL_BUSIEST_SECONDS = 3_218_403.0
PHILLY_FILE = Path("traces/philly/philly.csv.gz")
PHILLY_START = "2017-10-06 02:31:38"
PAI_FILE = Path("traces/pai/pai-100k.csv.gz")

# What the synthetic trace is drawn from; figures of the whole Philly trace (82,247 jobs) unless said otherwise.
SYNTHETIC_MEDIAN_SECONDS = 1_100.0  # Philly: 1,144
SYNTHETIC_LOG_DEVIATION = 1.9  # Philly: 2.16, with a tail of weeks
SYNTHETIC_SECONDS = (30.0, 2 * DAY_SECONDS)  # drawn again outside: 2.4 % and 1.7 % of Philly
SYNTHETIC_SIZES = {1: 0.932, 2: 0.022, 4: 0.023, 8: 0.020, 16: 0.002, 32: 0.001}
SYNTHETIC_DAY_SWING = (
    0.45  # arrivals per hour of the day lie that far around their mean (Philly: 2,185 to 7,159, mean 3,427)
)
SYNTHETIC_PEAK_SECONDS = 7 * 3600.0  # Philly's busiest hour of the day


DAY_FILES = {"itp": ITP_FILE, "itp-02": ITP_SMALL_FILE, "philly": PHILLY_FILE, "pai": PAI_FILE}


def named_trace(name: str, seed: int = 0, data: Path | None = None) -> list[TraceJob]:
    """The jobs of the trace of that name, in order of submission. Only `pai` and `synthetic` depend on the seed.

    `data` is the folder of the public traces; None: the first of ./shared/data, ../shared/data, and the one beside the
    repository. Raises TraceError where its file is not there, ValueError for an unknown name.
    """
    if name == "synthetic":
        return synthetic_trace(seed)
    if name == "itp":
        return read_trace(_file(name, ITP_FILE, data)).window(ITP_BUSIEST_SECONDS, DAY_SECONDS)
    if name == "itp-months":
        return list(read_trace(_file(name, ITP_FILE, data)).jobs)
    if name == "itp-02":
        return read_trace(_file(name, ITP_SMALL_FILE, data)).window(ITP_SMALL_BUSIEST_SECONDS, DAY_SECONDS)
    if name == "philly":
        return read_trace(_file(name, PHILLY_FILE, data)).window(timestamp(PHILLY_START), DAY_SECONDS)
    if name == "pai":
        return _pai_draw(_file(name, PAI_FILE, data), seed)
    if is_named(name):
        of, day = name.split("/")
        return days_of(of, data).get(int(day), [])
    raise ValueError(
        f"trace {name!r} is unknown; there are {', '.join(TRACE_NAMES)}, a day of {', '.join(DAY_FILES)} such as itp/17, "
        "or a file"
    )


TRACE_NAMES = ("itp", "itp-months", "itp-02", "philly", "pai", "synthetic")


def is_named(name: str) -> bool:
    """Whether a trace of the library has this name."""
    of, slash, day = name.partition("/")
    return name in TRACE_NAMES or (bool(slash) and of in DAY_FILES and day.isascii() and day.isdecimal())


def days_of(name: str, data: Path | None = None) -> dict[int, list[TraceJob]]:
    """The days of a trace of DAY_FILES on which anything was submitted, each counted from its own beginning.

    Raises TraceError where its file is not there.
    """
    found: dict[int, list[TraceJob]] = {}
    for job in _whole(_file(name, DAY_FILES[name], data), "pai-hours" if name == "pai" else None):
        day = int(job.submit_seconds // DAY_SECONDS)
        gpus = _pai_size(job.gpus) if name == "pai" else job.gpus
        since = job.submit_seconds - day * DAY_SECONDS
        found.setdefault(day, []).append(TraceJob(job.job_id, since, job.duration_seconds, gpus))
    return found


@lru_cache(maxsize=2)
def _whole(path: Path, trace_format: str | None) -> tuple[TraceJob, ...]:
    """Kept: a study takes many days of one file."""
    return read_trace(path, trace_format).jobs


def synthetic_trace(seed: int, jobs: int = DAY_JOBS) -> list[TraceJob]:
    """So many jobs in 24 hours: a Poisson process, given its count, whose rate swings over the day; log-normal durations;
    power-of-two sizes, independent of them. Raises ValueError for fewer than one job.
    """
    if jobs < 1:
        raise ValueError(f"a trace of {jobs} jobs is none")
    generator = np.random.default_rng([seed, jobs])
    arrivals: list[float] = []
    while len(arrivals) < jobs:  # thinning
        at = DAY_SECONDS * generator.random()
        rate = 1.0 + SYNTHETIC_DAY_SWING * math.cos(2.0 * math.pi * (at - SYNTHETIC_PEAK_SECONDS) / DAY_SECONDS)
        if generator.random() * (1.0 + SYNTHETIC_DAY_SWING) < rate:
            arrivals.append(round(at, 3))
    shortest, longest = SYNTHETIC_SECONDS
    durations: list[float] = []
    while len(durations) < jobs:
        duration = SYNTHETIC_MEDIAN_SECONDS * math.exp(SYNTHETIC_LOG_DEVIATION * generator.standard_normal())
        if shortest <= duration <= longest:
            durations.append(round(duration, 3))
    sizes = generator.choice(list(SYNTHETIC_SIZES), size=jobs, p=list(SYNTHETIC_SIZES.values()))
    arrivals.sort()
    return [
        TraceJob(f"synthetic-{number:05d}", at - arrivals[0], duration, int(gpus))
        for number, (at, duration, gpus) in enumerate(zip(arrivals, durations, sizes, strict=True))
    ]


def _pai_draw(path: Path, seed: int) -> list[TraceJob]:
    year = read_trace(path, "pai-hours").jobs
    if len(year) < DAY_JOBS:
        raise TraceError(f"{path}: {len(year)} jobs, of which {DAY_JOBS} are to be drawn")
    chosen = np.sort(np.random.default_rng(seed).choice(len(year), size=DAY_JOBS, replace=False))
    scale = DAY_SECONDS / YEAR_SECONDS
    first = year[chosen[0]].submit_seconds
    return [
        TraceJob(
            f"pai-{job.job_id}",
            scale * (job.submit_seconds - first),
            job.duration_seconds,
            _pai_size(job.gpus),
        )
        for job in (year[index] for index in chosen)
    ]


def _pai_size(demand: int) -> int:
    return min(1 << (demand - 1).bit_length(), PAI_LARGEST_GPUS)


def _file(name: str, relative: Path, data: Path | None) -> Path:
    repository = Path(__file__).resolve().parents[3]
    folders = [data] if data else [Path("shared/data"), Path("../shared/data"), repository.parent / "shared/data"]
    for folder in folders:
        if (folder / relative).is_file():
            return folder / relative
    raise TraceError(
        f"{folders[0] / relative}: no such file, which the trace {name!r} needs "
        f"(looked in {', '.join(str(folder) for folder in folders)}); the trace 'synthetic' needs none, and any CSV file "
        "with the columns job_id,submission_time,duration,num_gpu will do"
    )
