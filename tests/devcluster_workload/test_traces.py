"""The trace loader: what it gives, and what it says of files that it cannot use."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import pytest
from flyball_devcluster.traces import TraceError, TraceJob, load_trace

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "examples/traces/itp-hour.csv"
SOURCE = ROOT.parent / "shared/data/traces/itp/cluster04.csv.gz"
HEADER = "job_id,submission_time,duration,num_gpu\n"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    return path


def test_jobs_come_in_order_of_submission_counted_from_the_first(tmp_path: Path) -> None:
    path = write(tmp_path, "num_gpu,extra,job_id,duration,submission_time\n8,x,late,60.5,1010\n\n1,y,early,30,1000\n")
    assert load_trace(path) == [TraceJob("early", 0.0, 30.0, 1), TraceJob("late", 10.0, 60.5, 8)]
    assert load_trace(path, limit=1) == [TraceJob("early", 0.0, 30.0, 1)]


def test_a_compressed_trace_loads(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress((HEADER + "a,0,1,1\n").encode()))
    assert load_trace(path) == [TraceJob("a", 0.0, 1.0, 1)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: empty"),
        (HEADER, "line 2: no job"),
        ("job_id,submission_time,num_gpu\na,0,1\n", "line 1: column duration is missing"),
        (HEADER + "a,0,10,1\nb,0,ten,1\n", "line 3: column duration: 'ten' is not a number"),
        (HEADER + "a,0,0,1\n", "line 2: column duration: 0 must be above 0"),
        (HEADER + "a,nan,10,1\n", "line 2: column submission_time: 'nan' is not a number"),
        (HEADER + "a,0,1e999,1\n", "line 2: column duration: '1e999' is not a number"),
        (HEADER + "a,0,10,1.5\n", "line 2: column num_gpu: '1.5' is not a whole number"),
        (HEADER + "a,0,10,0\n", "line 2: column num_gpu: '0' is not a whole number of GPUs, 1 or more"),
        (HEADER + "a,0,10\n", "line 2: 3 values where the header names 4 columns"),
        (HEADER + "a,0,10,1\n\na,5,10,1\n", "line 4: column job_id: 'a' stands already on line 2"),
        (HEADER + ",0,10,1\n", "line 2: column job_id is empty"),
        (HEADER + 'a,0,"10,1\n', "not valid CSV"),
    ],
)
def test_a_bad_trace_is_named_by_file_line_and_column(tmp_path: Path, text: str, said: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(TraceError) as caught:
        load_trace(path)
    assert str(path) in str(caught.value)
    assert said in str(caught.value)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(TraceError, match="cannot be read"):
        load_trace(path)
    with pytest.raises(TraceError, match="cannot be read"):
        load_trace(tmp_path / "absent.csv")


def test_the_shipped_hour_loads_a_cluster_of_128_gpus_well() -> None:
    jobs = load_trace(SHIPPED)
    assert len(jobs) == 40
    assert jobs[-1].submission_seconds < 3600
    assert {job.gpus for job in jobs} == {1, 8, 32}
    assert sum(job.gpus >= 8 for job in jobs) == 20
    assert max(job.duration_seconds for job in jobs) <= 11_520
    assert sum(job.gpus * job.duration_seconds for job in jobs) / 128 == pytest.approx(3.73 * 3600, rel=0.01)


def test_the_shipped_hour_is_what_its_readme_says_of_the_source() -> None:
    if not SOURCE.exists():
        pytest.skip(f"{SOURCE} is absent")
    with gzip.open(SOURCE, "rt") as source:
        expected = [
            row
            for row in csv.DictReader(source)
            if 777_600 <= int(row["submission_time"]) < 781_200 and float(row["duration"]) <= 11_520
        ]
    with SHIPPED.open() as shipped:
        assert list(csv.DictReader(shipped)) == expected
