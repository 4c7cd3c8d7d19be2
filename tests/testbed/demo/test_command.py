"""`flyball demo` as a user runs it: what it leaves, what it says of bad input, and that nothing of it stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.waiting import wait_until

FLYBALL = Path(sysconfig.get_path("scripts")) / "flyball"
HEADER = "job_id,submission_time,duration,num_gpu\n"
SECONDS = 240


class Demo:
    """One run; everything that it starts inherits TMPDIR, by which it can be found."""

    def __init__(self, directory: Path) -> None:
        # Short, because Unix sockets lie in it.
        self._temporary = tempfile.TemporaryDirectory(prefix="fb-")
        self.output = directory / "out"
        self.log = directory / "demo.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [FLYBALL, "demo", "--headless", "--output", self.output, *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "TMPDIR": self._temporary.name},
            )
        return self.process

    def said(self) -> str:
        return self.log.read_text()

    def living(self) -> list[str]:
        """The command lines of processes that the run started (itself included) and that still run."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                environment = (entry / "environ").read_bytes()
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if f"TMPDIR={self._temporary.name}".encode() in environment and command:
                found.append(command)
        return found

    def await_condition(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(condition, lambda: f"{what}; running: {self.living()}\n{self.said()}", SECONDS)

    def await_begun(self) -> None:
        """Until jobs are being submitted; a run that ends before that fails the test at once."""

        def begun() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, f"ended with status {self.process.returncode}:\n{self.said()}"
            return "simulated: draw" in self.said()

        self.await_condition(begun, "the run has begun")

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self._temporary.cleanup()


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    made = Demo(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "a,100,600,8\nb,160,600,4\nc,220,600,1\nd,280,600,16\n")
    return path


@pytest.fixture
def long_trace(tmp_path: Path) -> Path:
    """Jobs that outlast any test: what ends a run on them is not their end."""
    path = tmp_path / "long.csv"
    path.write_text(HEADER + "a,100,60000,8\nb,160,60000,4\n")
    return path


@pytest.mark.cluster
@pytest.mark.long
def test_a_small_run_keeps_its_promise(demo: Demo, trace: Path) -> None:
    process = demo.start("--nodes", "3", "--trace", str(trace), "--compression", "60")
    assert process.wait(SECONDS) == 0, demo.said()
    report = json.loads((demo.output / "report.json").read_text())
    assert report["jobs"] == {"submitted": 4, "succeeded": 4, "failed": 0}
    assert (report["nodes"], report["gpus"]) == (3, 24)
    assert report["max_limits_over_enforced_cap_watts"] == 0.0
    assert report["max_true_over_enforced_cap_watts"] == 0.0
    assert report["simulated_seconds"] == pytest.approx(report["wall_seconds"] * 60, abs=3.5)
    assert [step["watts"] for step in report["cap_steps"]] == [6720, 3168, 5760, 3600]
    for step in report["cap_steps"]:
        assert step["enforced_at"] - step["requested_at"] == pytest.approx(step["seconds"], abs=0.002)
    fell = report["cap_steps"][1]
    assert fell["limits_fell_watts"] is not None  # how far depends on what these few jobs were granted by then
    assert 0 <= fell["nodes_lowered"] <= 3
    boot = report["boot"]
    assert (boot["node"], boot["cap_watts"]) == ("node-002", 3600)
    assert boot["limits_watts"] > boot["cap_watts"]
    assert 0 < boot["withdrawn_seconds"] < boot["enforced_again_seconds"]
    assert report["mean_jct_seconds"] > 0
    # Every job computed on real watts: more than the idle GPUs', less than the highest cap.
    idle = 24 * 58 * report["simulated_seconds"] / 1000
    assert idle < report["energy_kilojoules"] < 6.72 * report["simulated_seconds"]
    assert report["baseline"]["max_true_watts"] > 4320
    books = json.loads((demo.output / "referee.json").read_text())
    assert sum(books["node_joules"].values()) == pytest.approx(books["counter_joules"], rel=0.02)
    for name in ("power.png", "referee.csv", "logs/operator.log", "logs/agent-host.log"):
        assert (demo.output / name).stat().st_size > 0
    assert "4 of 4 jobs succeeded" in demo.said()
    assert demo.living() == []


@pytest.mark.cluster
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_leaves_nothing(demo: Demo, long_trace: Path, number: signal.Signals, status: int) -> None:
    process = demo.start("--nodes", "2", "--trace", str(long_trace), "--compression", "60")
    demo.await_begun()
    assert len(demo.living()) > 8
    process.send_signal(number)
    assert process.wait(60) == status, demo.said()
    assert demo.living() == []
    assert not list(Path(demo._temporary.name).iterdir()), "its files are gone too"


@pytest.mark.cluster
def test_a_killed_run_leaves_no_process(demo: Demo, long_trace: Path) -> None:
    process = demo.start("--nodes", "2", "--trace", str(long_trace), "--compression", "60")
    demo.await_begun()
    process.kill()
    process.wait()
    demo.await_condition(lambda: demo.living() == [], "all parts have died with it")


@pytest.mark.slow
def test_a_bad_trace_is_named_before_anything_starts(demo: Demo, tmp_path: Path) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text(HEADER + "a,0,600,8\nb,60,soon,4\n")
    process = demo.start("--trace", str(bad))
    assert process.wait(SECONDS) == 2
    assert f"{bad}: line 3: column duration: 'soon' is not a number" in demo.said()
    bad.write_text(HEADER + "a,0,600,64\n")
    process = demo.start("--trace", str(bad), "--nodes", "4")
    assert process.wait(SECONDS) == 2
    assert "job a asks for 64 GPUs (column num_gpu), the cluster has 32" in demo.said()
    assert not demo.output.exists()
