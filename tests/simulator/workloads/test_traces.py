"""The trace loader: what it gives, and what it says of files that it cannot use."""

from __future__ import annotations

import contextlib
import csv
import gzip
from pathlib import Path

import pytest
from flyball_simulator.workloads import traces
from flyball_simulator.workloads.trace_formats import FORMATS
from flyball_simulator.workloads.traces import TraceError, TraceJob, load_trace, read_trace
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[3]
SHIPPED = ROOT / "examples/traces/itp-hour.csv"
HEADER = "job_id,submission_time,duration,num_gpu\n"
PHILLY_HEADER = "timestamp,duration,num_gpus,gpu_time,cluster\n"
HELIOS_HEADER = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
SEREN_HEADER = (
    "job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time\n"
)
KALOS_HEADER = (
    "job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,shared_mem_per_pod,type,state,submit_time,start_time,end_time,"
    "fail_time,stop_time,duration,queue,gpu_time\n"
)


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
        ("job_id,job_id,submission_time,duration,num_gpu\na,b,0,1,1\n", "line 1: column job_id stands there twice"),
        (
            "arrival_time,length,cpus\n0,1,1\n",
            "line 1: the columns arrival_time,length,cpus do not say whether times are",
        ),
        (PHILLY_HEADER + "yesterday,1,1,1,a\n", "line 2: column timestamp: 'yesterday' is not a time (2017-10-06"),
        (PHILLY_HEADER + "2017-10-06 02:31:38,-1,1,1,a\n", "line 2: column duration: -1 must be above 0"),
        (PHILLY_HEADER + "2017-10-06 02:31:38,1,-1,1,a\n", "line 2: column num_gpus: '-1' is not a whole number"),
        (PHILLY_HEADER + "2017-10-06 02:31:38,1,0,1,a\n", "no job follows the header (left out: 1 jobs without GPUs"),
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
    with pytest.raises(TraceError, match=r"absent\.csv: there is no such file"):
        load_trace(tmp_path / "absent.csv")


def test_the_shipped_hour_loads_a_cluster_of_128_gpus_well() -> None:
    jobs = load_trace(SHIPPED)
    assert len(jobs) == 40
    assert jobs[-1].submit_seconds < 3600
    assert {job.gpus for job in jobs} == {1, 8, 32}
    assert sum(job.gpus >= 8 for job in jobs) == 20
    assert max(job.duration_seconds for job in jobs) <= 11_520
    assert sum(job.gpus * job.duration_seconds for job in jobs) / 128 == pytest.approx(3.73 * 3600, rel=0.01)


def test_the_shipped_hour_is_what_its_readme_says_of_the_source(measured_data: Path) -> None:
    with gzip.open(measured_data / "traces/itp/cluster04.csv.gz", "rt") as source:
        expected = [
            row
            for row in csv.DictReader(source)
            if 777_600 <= int(row["submission_time"]) < 781_200 and float(row["duration"]) <= 11_520
        ]
    with SHIPPED.open() as shipped:
        assert list(csv.DictReader(shipped)) == expected


def test_helios_leaves_out_cpu_jobs_and_those_that_never_ran_and_counts_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(
        tmp_path,
        HELIOS_HEADER
        + "7,u1,vc1,0,4,1,COMPLETED,2020-04-01 00:00:00,2020-04-01 00:00:00,2020-04-01 00:01:00,60,0\n"
        + "9,u1,vc1,16,64,2,FAILED,2020-04-01 00:02:00,2020-04-01 00:02:05,2020-04-01 01:02:05,3600,5\n"
        + "8,u1,vc1,8,32,1,CANCELLED,2020-04-01 00:01:00,,,0,0\n"
        + "10,u2,vc1,1,4,1,COMPLETED,2020-04-01 00:01:30,2020-04-01 00:01:30,2020-04-01 00:02:00,30,0\n",
    )
    with caplog.at_level("INFO"):
        trace = read_trace(path)
    assert trace.format is FORMATS["helios"]
    assert trace.jobs == (TraceJob("10", 0.0, 30.0, 1), TraceJob("9", 30.0, 3600.0, 16))
    assert (trace.cpu_jobs, trace.never_ran) == (1, 1)
    assert "1 jobs without GPUs, 1 that never ran" in caplog.text


def test_acme_loads_from_both_clusters_and_minds_the_offset(tmp_path: Path) -> None:
    seren = write(
        tmp_path,
        SEREN_HEADER
        + "2,u,1,8,128,Other,FAILED,2023-03-01 00:18:22+08:00,2023-03-01 00:18:54+08:00,,117,32,936.0\n"
        + "1,u,1,8,128,Other,FAILED,2023-02-28 16:18:20+00:00,2023-03-01 00:18:54+08:00,,11,32,88.0\n",
    )
    assert load_trace(seren) == [TraceJob("1", 0.0, 11.0, 8), TraceJob("2", 2.0, 117.0, 8)]
    kalos = write(
        tmp_path,
        KALOS_HEADER + "dlc,uf,8,64,960,1000,100.0,Other,FAILED,2023-05-17 11:00:58+00:00,,,,,18,10.0,1152.0\n",
    )
    assert read_trace(kalos).format is FORMATS["acme"]
    assert load_trace(kalos) == [TraceJob("dlc", 0.0, 18.0, 64)]


def test_pai_is_read_in_the_unit_that_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, "arrival_time,length,cpus\n1.0,0.5,3\n0.5,2,1\n")
    assert load_trace(path, trace_format="pai-hours") == [
        TraceJob("line-3", 0.0, 7200.0, 1),
        TraceJob("line-2", 1800.0, 1800.0, 3),
    ]
    assert load_trace(path, trace_format="pai-seconds")[1] == TraceJob("line-2", 0.5, 0.5, 3)
    with pytest.raises(ValueError, match=r"'weeks' is unknown.*pai-hours"):
        load_trace(path, trace_format="weeks")
    with pytest.raises(TraceError, match="line 1: column timestamp is missing"):
        load_trace(path, trace_format="philly")


def test_a_window_counts_from_its_start(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, HEADER + "a,90,1,1\nb,100,1,1\nc,109.5,1,1\nd,110,1,1\n"))
    assert [(job.job_id, job.submit_seconds) for job in trace.window(99, 11)] == [("b", 1.0), ("c", 10.5)]


def test_what_a_file_may_unpack_to_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.csv.gz"
    monkeypatch.setattr(traces, "MAX_BYTES", 100_000)
    path.write_bytes(gzip.compress((HEADER + "".join(f"{index},0,1,1\n" for index in range(40_000))).encode()))
    with pytest.raises(TraceError, match="more than 100000 characters unpacked: too large"):
        load_trace(path)
    path.write_bytes(gzip.compress(b"a" * 10_000_000))
    with pytest.raises(TraceError, match="line 1: longer than"):
        load_trace(path)
    monkeypatch.setattr(traces, "MAX_JOBS", 2)
    with pytest.raises(TraceError, match="line 4: more than 2 jobs"):
        load_trace(write(tmp_path, HEADER + "a,0,1,1\nb,0,1,1\nc,0,1,1\n"))


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    whole = gzip.compress((HEADER + "".join(f"{index},0,1,1\n" for index in range(1000))).encode())
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TraceError, match="cannot be read"):
        load_trace(path)
    path.write_bytes(b"no gzip at all")
    with pytest.raises(TraceError, match="cannot be read"):
        load_trace(path)


@given(
    rows=st.lists(st.tuples(st.integers(0, 10**7), st.floats(0.001, 1e6), st.integers(1, 512)), min_size=1, max_size=30)
)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, float, int]]) -> None:
    path = tmp_path_factory.mktemp("traces") / "trace.csv"
    path.write_text(HEADER + "".join(f"{i},{at},{d!r},{gpus}\n" for i, (at, d, gpus) in enumerate(rows)))
    trace = read_trace(path)
    read = {
        (job.job_id, trace.origin_seconds + job.submit_seconds, job.duration_seconds, job.gpus) for job in trace.jobs
    }
    assert read == {(str(i), float(at), d, gpus) for i, (at, d, gpus) in enumerate(rows)}
    assert [job.submit_seconds for job in trace.jobs] == sorted(job.submit_seconds for job in trace.jobs)
    assert trace.jobs[0].submit_seconds == 0.0


@given(data=st.binary(max_size=400))
def test_any_bytes_give_sound_jobs_or_a_trace_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("traces") / "trace.csv"
    path.write_bytes(HEADER.encode() + data)
    jobs: list[TraceJob] = []
    with contextlib.suppress(TraceError):
        jobs = load_trace(path)
    assert all(job.gpus >= 1 and job.duration_seconds > 0 for job in jobs)
