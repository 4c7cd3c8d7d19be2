"""Job traces: who asked for how many GPUs, when, and for how long.

One CSV format with the columns of microsoft/elasticflow-traces: `job_id,submission_time,duration,num_gpu`.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
from dataclasses import dataclass
from pathlib import Path

COLUMNS = ("job_id", "submission_time", "duration", "num_gpu")


class TraceError(ValueError):
    """A trace file that cannot be used; the message names the file, the line and the column."""


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job as traced: `submission_seconds` after the trace's first submission, `duration_seconds` on `gpus` GPUs."""

    job_id: str
    submission_seconds: float
    duration_seconds: float
    gpus: int


def load_trace(path: Path, limit: int | None = None) -> list[TraceJob]:
    """The jobs of `path` (.csv or .csv.gz) in order of submission, at most the first `limit` of them.

    Columns may come in any order and others may stand beside them; times are seconds from any origin. Raises TraceError
    for a file that cannot be read, a missing column, a value that is no number or out of range, and an id used twice.
    """
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read as a trace: {error}") from error
    reader = csv.reader(io.StringIO(text), strict=True)
    rows: list[tuple[str, float, float, int]] = []
    first_seen: dict[str, int] = {}
    try:
        header = next(reader, None)
        if header is None:
            raise TraceError(f"{path}: line 1: empty; expected the header {','.join(COLUMNS)}")
        positions = _positions(path, header)
        for cells in reader:
            if not cells:
                continue
            line = reader.line_num
            if len(cells) != len(header):
                raise TraceError(
                    f"{path}: line {line}: {len(cells)} values where the header names {len(header)} columns"
                )
            row = {column: cells[position].strip() for column, position in positions.items()}
            job_id = row["job_id"]
            if not job_id:
                raise TraceError(f"{path}: line {line}: column job_id is empty")
            if job_id in first_seen:
                raise TraceError(
                    f"{path}: line {line}: column job_id: {job_id!r} stands already on line {first_seen[job_id]}"
                )
            first_seen[job_id] = line
            submission = _number(path, line, "submission_time", row)
            duration = _number(path, line, "duration", row)
            if duration <= 0:
                raise TraceError(f"{path}: line {line}: column duration: {row['duration']} must be above 0 seconds")
            rows.append((job_id, submission, duration, _gpus(path, line, row["num_gpu"])))
    except csv.Error as error:
        raise TraceError(f"{path}: line {reader.line_num}: not valid CSV: {error}") from error
    if not rows:
        raise TraceError(f"{path}: line 2: no job follows the header")
    rows.sort(key=lambda row: (row[1], row[0]))
    origin = rows[0][1]
    jobs = [TraceJob(job_id, submission - origin, duration, gpus) for job_id, submission, duration, gpus in rows]
    return jobs if limit is None else jobs[:limit]


def _positions(path: Path, header: list[str]) -> dict[str, int]:
    names = [name.strip() for name in header]
    missing = [column for column in COLUMNS if column not in names]
    if missing:
        raise TraceError(
            f"{path}: line 1: column {missing[0]} is missing; the header is {','.join(names)!r}, expected "
            f"{','.join(COLUMNS)}"
        )
    return {column: names.index(column) for column in COLUMNS}


def _number(path: Path, line: int, column: str, row: dict[str, str]) -> float:
    try:
        value = float(row[column])
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise TraceError(f"{path}: line {line}: column {column}: {row[column]!r} is not a number of seconds")
    return value


def _gpus(path: Path, line: int, cell: str) -> int:
    try:
        gpus = int(cell)
    except ValueError:
        gpus = 0
    if gpus < 1:
        raise TraceError(f"{path}: line {line}: column num_gpu: {cell!r} is not a whole number of GPUs, 1 or more")
    return gpus
