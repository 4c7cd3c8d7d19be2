"""Job traces: who asked for how many GPUs, when, and for how long.

Files are CSV, plain or gzipped: our own columns `job_id,submission_time,duration,num_gpu` (those of
microsoft/elasticflow-traces) or a published log's (trace_formats.py). In a scheduler's log, a job without GPUs (a CPU job)
and one whose duration is 0 or empty (it never ran) is left out, counted and logged. In our own format both are errors.
"""

from __future__ import annotations

import csv
import gzip
import io
import logging
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from flyball_simulator.workloads.trace_formats import FLYBALL, TraceFormat, format_named, format_of_header

logger = logging.getLogger(__name__)

MAX_BYTES = 512 * 1024 * 1024  # unpacked; all of Helios has 343 MB
MAX_LINE_BYTES = 64 * 1024
MAX_JOBS = 3_000_000


class TraceError(ValueError):
    """A trace file that cannot be used; the message names the file, the line and the column."""


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job as traced: `submit_seconds` after the trace's first submission, `duration_seconds` on `gpus` GPUs."""

    job_id: str
    submit_seconds: float
    duration_seconds: float
    gpus: int


@dataclass(frozen=True, slots=True)
class LoadedTrace:
    """A trace file's jobs in order of submission.

    `origin_seconds` is when the first was submitted, in the file's own time (since 1970 where it has dates). `cpu_jobs` and
    `never_ran` count what was left out.
    """

    format: TraceFormat
    jobs: tuple[TraceJob, ...]
    origin_seconds: float
    cpu_jobs: int
    never_ran: int

    def window(self, start_seconds: float, length_seconds: float) -> list[TraceJob]:
        """The jobs submitted from `start_seconds` of the file's own time on, for so long, counted from then."""
        start = start_seconds - self.origin_seconds
        return [
            TraceJob(job.job_id, job.submit_seconds - start, job.duration_seconds, job.gpus)
            for job in self.jobs
            if start <= job.submit_seconds < start + length_seconds
        ]


def load_trace(path: Path, limit: int | None = None, trace_format: str | None = None) -> list[TraceJob]:
    """The jobs of `path` in order of submission, at most the first `limit` of them; raises as `read_trace` does."""
    return list(read_trace(path, trace_format).jobs[:limit])


def read_trace(path: Path, trace_format: str | None = None) -> LoadedTrace:
    """The trace in the file `path`, gzipped if it ends in .gz; its format is recognised by the header unless given.

    Columns may come in any order. Raises TraceError for a file that cannot be read or is too large, a header of no known
    format, a value that is no number or out of range, and an id used twice; ValueError for an unknown format.
    """
    given = None if trace_format is None else format_named(trace_format)
    try:
        with _opened(path) as stream:
            reading = _Reading(path, stream)
            return reading.trace(given)
    except FileNotFoundError as error:
        raise TraceError(f"{path}: there is no such file") from error
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read as a trace: {error}") from error


def _opened(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def _lines(path: Path, stream: BinaryIO) -> Iterator[str]:
    """Lines of bounded length, of a bounded sum: a small .gz can unpack to anything."""
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
    characters = 0
    number = 0
    while line := text.readline(MAX_LINE_BYTES):
        number += 1
        characters += len(line)
        if len(line) == MAX_LINE_BYTES:
            raise TraceError(f"{path}: line {number}: longer than {MAX_LINE_BYTES} characters: this is no trace")
        if characters > MAX_BYTES:
            raise TraceError(f"{path}: line {number}: more than {MAX_BYTES} characters unpacked: too large a trace")
        yield line


class _Reading:
    """One pass over one file."""

    def __init__(self, path: Path, stream: BinaryIO) -> None:
        self._path = path
        self._reader = csv.reader(_lines(path, stream), strict=True)
        self._rows: list[tuple[float, str, float, int]] = []
        self._cpu_jobs = 0
        self._never_ran = 0

    def trace(self, given: TraceFormat | None) -> LoadedTrace:
        try:
            header = self._header()
            found = self._format(header, given)
            self._read_rows(header, found)
        except csv.Error as error:
            raise TraceError(f"{self._path}: line {self._reader.line_num}: not valid CSV: {error}") from error
        left_out = ""
        if self._cpu_jobs or self._never_ran:
            left_out = f" (left out: {self._cpu_jobs} jobs without GPUs, {self._never_ran} that never ran)"
            logger.info("%s: %d jobs%s", self._path, len(self._rows), left_out)
        if not self._rows:
            raise TraceError(f"{self._path}: line 2: no job follows the header{left_out}")
        self._rows.sort()
        origin = self._rows[0][0]
        jobs = tuple(TraceJob(name, at - origin, duration, gpus) for at, name, duration, gpus in self._rows)
        return LoadedTrace(found, jobs, origin, self._cpu_jobs, self._never_ran)

    def _header(self) -> list[str]:
        header = next(self._reader, None)
        if header is None:
            raise TraceError(f"{self._path}: line 1: empty; expected the header {','.join(FLYBALL.columns)}")
        names = [name.strip() for name in header]
        for name in names:
            if names.count(name) > 1:
                raise TraceError(f"{self._path}: line 1: column {name} stands there twice")
        return names

    def _format(self, header: Sequence[str], given: TraceFormat | None) -> TraceFormat:
        if given is None:
            try:
                return format_of_header(header)
            except ValueError as error:
                raise TraceError(f"{self._path}: line 1: {error}") from None
        for column in given.columns:
            if column not in header:
                raise TraceError(
                    f"{self._path}: line 1: column {column} is missing; the header is {','.join(header)!r}, format "
                    f"{given.name} has {','.join(given.columns)}"
                )
        return given

    def _read_rows(self, header: Sequence[str], found: TraceFormat) -> None:
        id_at = None if found.job_id is None else header.index(found.job_id)
        submission_at, duration_at, gpus_at = (
            header.index(name) for name in (found.submission, found.duration, found.gpus)
        )
        first_seen: dict[str, int] = {}
        for cells in self._reader:
            if not cells:
                continue
            line = self._reader.line_num
            if len(cells) != len(header):
                raise TraceError(
                    f"{self._path}: line {line}: {len(cells)} values where the header names {len(header)} columns"
                )
            if len(self._rows) >= MAX_JOBS:
                raise TraceError(f"{self._path}: line {line}: more than {MAX_JOBS} jobs: too large a trace")
            name = f"line-{line}" if id_at is None else cells[id_at].strip()
            if not name:
                raise TraceError(f"{self._path}: line {line}: column {found.job_id} is empty")
            if first_seen.setdefault(name, line) != line:
                raise TraceError(
                    f"{self._path}: line {line}: column {found.job_id}: {name!r} stands already on line {first_seen[name]}"
                )
            gpus = self._gpus(found, line, cells[gpus_at].strip())
            duration = self._duration(found, line, cells[duration_at].strip())
            submission = self._submission(found, line, cells[submission_at].strip())
            if not gpus:
                self._cpu_jobs += 1
            elif not duration:
                self._never_ran += 1
            else:
                self._rows.append((submission, name, duration, gpus))

    def _submission(self, found: TraceFormat, line: int, cell: str) -> float:
        try:
            return found.submission_of(cell)
        except (ValueError, OverflowError):
            where = f"{self._path}: line {line}: column {found.submission}"
            raise TraceError(f"{where}: {cell!r} is not a {found.time_description}") from None

    def _duration(self, found: TraceFormat, line: int, cell: str) -> float:
        where = f"{self._path}: line {line}: column {found.duration}"
        if not cell and found.raw_log:
            return 0.0
        try:
            duration = found.duration_of(cell)
        except ValueError:
            unit = "number of hours" if found.duration_of is not FLYBALL.duration_of else "number of seconds"
            raise TraceError(f"{where}: {cell!r} is not a {unit}") from None
        if duration < 0 or (duration == 0 and not found.raw_log):
            raise TraceError(f"{where}: {cell} must be above 0")
        return duration

    def _gpus(self, found: TraceFormat, line: int, cell: str) -> int:
        least = 0 if found.raw_log else 1
        try:
            gpus = int(cell)
        except ValueError:
            gpus = -1
        if gpus < least:
            where = f"{self._path}: line {line}: column {found.gpus}"
            raise TraceError(f"{where}: {cell!r} is not a whole number of GPUs, {least} or more")
        return gpus
