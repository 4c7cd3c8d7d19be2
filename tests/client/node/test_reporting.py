"""Reports to agents that answer, hang, lie, refuse and die: training never notices."""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from flyball.environment import Environment
from flyball.job import Job
from flyball.node.agent import MAX_ANSWER_BYTES, Agent, AgentError
from flyball.node.reporting import Reporter

from tests.support.answering_agent import GRANTED, Answering, http
from tests.support.waiting import wait_until


def dribble(connection: socket.socket) -> None:
    """A byte now and then, for longer than anybody has patience."""
    for byte in http(json.dumps(GRANTED).encode()):
        connection.sendall(bytes([byte]))
        time.sleep(0.02)


def silent(connection: socket.socket) -> None:
    connection.recv(1)


BAD: dict[str, bytes | Callable[[socket.socket], None]] = {
    "silent": silent,
    "dribbling": dribble,
    "hangs up": b"",
    "no HTTP": b"SSH-2.0-OpenSSH\r\n",
    "no status": b"HTTP/1.1\r\n\r\n{}",
    "no JSON": http(b"{"),
    "deep JSON": http(b"[" * 60000),
    "a list": http(b"[1]"),
    "bad bytes": http(b"\xff\xfe"),
    "refuses": http(b'{"error": {"reason": "NotGoverned", "message": "no"}}', b"409 Conflict"),
    "without end": http(b" " * (MAX_ANSWER_BYTES + 100)),
}


@pytest.fixture
def path() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="fc", dir="/tmp"))  # short: a Unix socket's path has 107 bytes
    yield folder / "flyball.sock"
    shutil.rmtree(folder)


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_answer_is_one_error_and_soon(path: Path, kind: str) -> None:
    agent = Answering(path, BAD[kind])
    try:
        with pytest.raises(AgentError, match=r"flyball\.sock"):
            Agent(str(path), timeout_seconds=0.3).call("POST", "/v1/steps", {"iterations": 1})
    finally:
        agent.close()


@pytest.mark.parametrize("what", ["absent", "a file", "nobody listens", "too long a path"])
def test_no_agent_is_one_error_too(path: Path, what: str) -> None:
    where = str(path)
    if what == "a file":
        path.write_text("")
    elif what == "nobody listens":
        left = socket.socket(socket.AF_UNIX)
        left.bind(where)
        left.close()
    elif what == "too long a path":
        where += "x" * 200
    with pytest.raises(AgentError):
        Agent(where).call("GET", "/v1/energy")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Said:
    """An agent without a socket."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, float]] = []
        self.answer: dict[str, object] | AgentError = dict(GRANTED)

    def call(self, method: str, path: str, body: dict[str, float] | None = None) -> dict[str, object]:
        self.bodies.append(body)  # type: ignore[arg-type]
        if isinstance(self.answer, AgentError):
            raise self.answer
        return self.answer


def step(reporter: Reporter, clock: Clock, iteration: int, seconds: float = 1.0) -> None:
    clock.now += seconds
    reporter.step_done(iteration, 8)


def test_windows_lie_between_the_ends_of_steps_and_miss_none() -> None:
    agent, clock = Said(), Clock()
    reporter = Reporter(agent, clock)  # type: ignore[arg-type]
    for iteration in range(101, 106):
        step(reporter, clock, iteration)
    reporter.report()
    step(reporter, clock, 106, 2.0)
    step(reporter, clock, 107, 3.0)
    reporter.report()
    reporter.report()
    assert agent.bodies == [
        {"iterations": 105, "windowIterations": 4, "windowSeconds": 4.0, "localBatchSize": 8},
        {"iterations": 107, "windowIterations": 2, "windowSeconds": 5.0, "localBatchSize": 8},
    ]
    assert (reporter.clock_megahertz, reporter.power_limit_milliwatts) == (1005, 250_000)


def test_what_was_no_step_is_in_no_window() -> None:
    agent, clock = Said(), Clock()
    reporter = Reporter(agent, clock)  # type: ignore[arg-type]
    step(reporter, clock, 1)
    step(reporter, clock, 2)
    reporter.report()
    step(reporter, clock, 3)
    reporter.interrupted()
    clock.now += 500.0  # a checkpoint
    reporter.report()
    step(reporter, clock, 4)
    step(reporter, clock, 5)
    reporter.report()
    assert [(body["iterations"], body["windowSeconds"]) for body in agent.bodies] == [(2, 1.0), (5, 1.0)]


def test_what_was_not_taken_is_in_the_next_report_and_asked_ever_less_often(caplog: pytest.LogCaptureFixture) -> None:
    agent, clock = Said(), Clock()
    reporter = Reporter(agent, clock)  # type: ignore[arg-type]
    agent.answer = AgentError("away")
    step(reporter, clock, 1)
    for iteration in range(2, 602):
        step(reporter, clock, iteration)
        reporter.report_if_due()
    assert 8 < len(agent.bodies) < 20
    assert caplog.text.count("does not hear this training") == 1
    agent.answer = dict(GRANTED)
    clock.now += 60.0
    reporter.report_if_due()
    assert agent.bodies[-1]["iterations"] == 601
    assert agent.bodies[-1]["windowIterations"] == 600


def test_a_clock_is_asked_for_again_as_long_as_it_is_wanted(caplog: pytest.LogCaptureFixture) -> None:
    agent, clock = Said(), Clock()
    reporter = Reporter(agent, clock)  # type: ignore[arg-type]
    reporter.report_if_due()
    assert agent.bodies == []
    reporter.wish_clock(900)
    for _ in range(20):
        reporter.report_if_due()
        clock.now += 1.0
    assert agent.bodies == [{"maxMegahertz": 900, "seconds": 15.0}] * 4
    reporter.wish_clock(None)
    for _ in range(20):
        reporter.report_if_due()
        clock.now += 1.0
    assert agent.bodies[4:] == [{"maxMegahertz": None, "seconds": 15.0}]
    agent.answer = AgentError("away")
    reporter.wish_clock(750)
    for _ in range(20):
        reporter.report_if_due()
        clock.now += 1.0
    assert len(agent.bodies) == 9, "an agent that comes back is told"
    assert caplog.text.count("does not hear this training") == 1


@pytest.mark.parametrize("said", [{}, {"clockMegahertz": "fast"}, {"clockMegahertz": True}, {"clockMegahertz": -1}])
def test_an_answer_that_says_nothing_leaves_the_clock_unknown(said: dict[str, object]) -> None:
    agent, clock = Said(), Clock()
    agent.answer = said
    reporter = Reporter(agent, clock)  # type: ignore[arg-type]
    step(reporter, clock, 1)
    step(reporter, clock, 2)
    reporter.report()
    assert reporter.clock_megahertz is None


def trained(path: Path | None, steps: int) -> Job:
    """A job of one process that has made so many steps."""
    job = Job(Environment(socket=None if path is None else str(path), incarnation=1))
    job.start()
    for _ in job.epochs(1):
        for _ in job.loader(range(steps), 1):
            with job.step():
                pass
    return job


@pytest.mark.parametrize("kind", [*BAD, "absent"])
def test_training_ends_as_without_an_agent(path: Path, kind: str) -> None:
    agent = None if kind == "absent" else Answering(path, BAD[kind])
    try:
        assert trained(path, 500).position == trained(None, 500).position
    finally:
        if agent is not None:
            agent.close()


def test_a_training_reports_itself_to_its_end(path: Path) -> None:
    agent = Answering(path, http(json.dumps(GRANTED).encode()))
    try:
        job = trained(path, 300)
        wait_until(lambda: bool(agent.bodies) and agent.bodies[-1]["iterations"] == 300, "the last step is reported")
        assert job.clock_megahertz == 1005
    finally:
        agent.close()


def test_a_job_can_limit_its_clock_and_without_an_agent_nothing_happens(path: Path) -> None:
    trained(None, 3).limit_clock(1005)
    agent = Answering(path, http(json.dumps(GRANTED).encode()))
    job = Job(Environment(socket=str(path), incarnation=1))
    job.start()
    try:
        job.limit_clock(1005)
        wait_until(lambda: {"maxMegahertz": 1005, "seconds": 15.0} in agent.bodies, "the agent is asked for it")
    finally:
        for _ in job.epochs(0):
            pass
        agent.close()


def test_a_progress_bar_shows_what_the_agent_said_last_and_nothing_where_nobody_says(path: Path) -> None:
    assert trained(None, 3).progress() == {}
    agent = Answering(path, http(json.dumps({**GRANTED, "energyMillijoules": 12_345_678}).encode()))
    job = Job(Environment(socket=str(path), incarnation=1))
    job.start()
    try:
        assert job.progress() == {}, "before anybody was asked"
        for _ in job.epochs(1):
            for _ in job.loader(range(2), 1):
                with job.step():
                    pass
            wait_until(lambda: job.progress() == {"kJ": "12.3", "MHz": "1005", "W": "250"}, lambda: str(job.progress()))
    finally:
        agent.close()


def test_joules_are_asked_for_only_where_they_are_shown_and_missing_ones_cost_no_report() -> None:
    agent, clock = Said(), Clock()
    reporter = Reporter(agent, clock)  # type: ignore[arg-type]
    step(reporter, clock, 1)
    step(reporter, clock, 2)
    reporter.report()
    assert len(agent.bodies) == 1
    reporter.shows_energy = True
    step(reporter, clock, 3)
    reporter.report()
    assert (reporter.clock_megahertz, reporter.energy_millijoules) == (1005, None)
    assert [body is None for body in agent.bodies] == [False, False, True]


def test_only_one_process_of_a_pod_reports(path: Path) -> None:
    agent = Answering(path, http(json.dumps(GRANTED).encode()))
    try:
        for local_rank in (1, 0):
            job = Job(
                Environment(rank=local_rank, world_size=2, local_rank=local_rank, socket=str(path), incarnation=1)
            )
            for _ in job.epochs(1):
                for _ in job.loader(range(10), 2):
                    with job.step():
                        pass
            assert (agent.calls > 0) is (local_rank == 0)
    finally:
        agent.close()


def test_no_thread_without_anybody_to_speak_to() -> None:
    before = set(threading.enumerate())
    trained(None, 3)
    assert set(threading.enumerate()) <= before
