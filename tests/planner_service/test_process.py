"""The service as a process, its workers, and the short client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import sysconfig
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event, Thread
from typing import Any

import msgspec
import pytest
from flyball.planner import ask_planner
from flyball_planner_service.request import FrontierRequest, document_of, written
from flyball_planner_service.solver import Answer, GivenUp, Planned, Refused, Solver, serve

from tests.support.planner_service import service
from tests.support.waiting import PATIENCE_SECONDS, until, wait_until

ROOT = Path(__file__).parents[2]
PROFILE = ROOT / "examples/profiles/gpt3-a40-unbalanced.csv"
REQUEST = FrontierRequest(PROFILE.read_text(encoding="utf-8"), 4, 70.38, 5)


async def test_a_worker_plans_refuses_and_begins_anew_where_it_is_killed() -> None:
    solver = Solver(deadline_seconds=PATIENCE_SECONDS)
    try:
        assert await solver.solve(REQUEST) == Planned(written(document_of(REQUEST)))
        refused = await solver.solve(FrontierRequest("stage,instruction,frequency,time,energy\n0,forward,1,1,1\n", 1))
        assert isinstance(refused, Refused)
        assert "stage 0 has no backward rows" in refused.reason
        assert solver._process is not None
        os.kill(solver._process.pid, signal.SIGKILL)
        wait_until(lambda: solver._process is None or not solver._process.alive, "killed")
        assert isinstance(await solver.solve(REQUEST), Planned)
    finally:
        solver.close()


async def test_a_worker_lives_on_where_planning_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_request: FrontierRequest) -> dict[str, Any]:
        raise RuntimeError("HiGHS says Unknown")

    monkeypatch.setattr("flyball_planner_service.solver.document_of", fail)
    ours, theirs = Pipe()
    worker = Thread(target=_serve_until_the_end, args=(theirs,))
    worker.start()
    for _ in range(2):
        ours.send_bytes(msgspec.msgpack.encode(REQUEST))
        assert ours.recv_bytes() == b"git could not be planned: HiGHS says Unknown"
    ours.close()
    worker.join()


def _serve_until_the_end(pipe: Connection) -> None:
    with contextlib.suppress(EOFError):
        serve(pipe)


async def test_workers_that_plan_take_no_threads_from_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    go, under_way = Event(), []

    def hang(_solver: Solver, _request: bytes) -> Answer:
        under_way.append(1)
        go.wait(PATIENCE_SECONDS)
        return Refused("no")

    monkeypatch.setattr(Solver, "_solve", hang)
    count = 64  # more than an event loop has threads
    planning = asyncio.gather(*(Solver(PATIENCE_SECONDS).solve(REQUEST) for _ in range(count)))
    try:
        await until(lambda: len(under_way) == count, "all are under way")
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await asyncio.to_thread(lambda: "read") == "read"
    finally:
        go.set()
    assert await planning == [Refused("no")] * count


async def test_what_takes_too_long_is_given_up() -> None:
    solver = Solver(deadline_seconds=0.0)
    answer = await solver.solve(REQUEST)
    assert answer == GivenUp("it took longer than 0 s")
    assert solver._process is None, "the process plans no longer"


def ask(tmp_path: Path, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """The short client, with a service's address in its environment."""
    return subprocess.run(
        [sys.executable, str(ROOT / "examples/python/ask_the_planner.py"), *arguments],
        env={**os.environ, **environment},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def test_the_short_client_gets_a_plan_or_says_what_is_wrong(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-of-some-length")
    with service(tmp_path, "--token-file", str(token)) as address:
        environment = {"FLYBALL_PLANNER": address, "FLYBALL_PLANNER_TOKEN": token.read_text()}
        answer = ask(tmp_path, environment, str(PROFILE), "4", "70.38")
        assert answer.returncode == 0, answer.stderr
        refused = ask(tmp_path, environment, str(PROFILE), "0", "70.38")
        assert refused.returncode == 1
        assert refused.stderr.startswith(f"the planner at {address} refuses with 422 Unprocessable")
        assert "microbatches" in refused.stderr
        assert refused.stderr.count("\n") == 1
    for arguments in ((), (str(PROFILE), "four", "70.38"), ("missing.csv", "4", "70.38")):
        wrong = ask(tmp_path, {}, *arguments)
        assert (wrong.returncode, wrong.stderr.count("\n")) == (1, 1), wrong.stderr
        assert "ask_the_planner.py stages.csv MICROBATCHES BLOCKING_WATTS" in wrong.stderr
    away = ask(tmp_path, {"FLYBALL_PLANNER": address}, str(PROFILE), "4", "70.38")
    assert away.stderr.startswith(f"no planner answers at {address}: ")
    code = (ROOT / "examples/python/ask_the_planner.py").read_text().split('"""')[2]
    assert len([line for line in code.splitlines() if line]) == 10, "a client in ten lines"
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plan["gpus"] == 4
    assert len(plan["points"]) > 10


def test_the_client_waits_as_long_as_it_is_planned_and_tells_what_may_pass_from_what_may_not() -> None:
    """Answers that a service gives in its course: still planned, then the frontier; as many wait as may; no frontier."""
    answers: list[tuple[int, bytes]] = []
    seen: list[tuple[str, str | None, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            seen.append((self.path, self.headers["Authorization"], json.loads(body)))
            status, text = answers.pop(0)
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        address = f"http://127.0.0.1:{server.server_port}"
        answers += [(202, b'{"state": "waiting"}'), (202, b'{"state": "planning"}'), (200, b'{"points": [1]}')]
        assert ask_planner("stage,...", 4, 70.0, address=address, token="secret", points=9) == {"points": [1]}
        asked = {"profile": "stage,...", "microbatches": 4, "blockingWatts": 70.0, "points": 9}
        assert seen == [("/v1/frontiers?wait=60", "Bearer secret", asked)] * 3
        answers += [(429, b'{"reason": "8 frontiers wait"}'), (503, b"away"), (422, b'{"reason": "row 3"}')]
        with pytest.raises(OSError, match=r"refuses with 429 Too Many Requests: 8 frontiers wait"):
            ask_planner("", 4, 70.0, address=address)
        with pytest.raises(OSError, match="503 Service Unavailable: away"):
            ask_planner("", 4, 70.0, address=address)
        with pytest.raises(ValueError, match=r"422 Unprocessable .*: row 3"):
            ask_planner("", 4, 70.0, address=address)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_command_refuses_to_serve_everybody(tmp_path: Path) -> None:
    program = str(Path(sysconfig.get_path("scripts")) / "flyball")
    answer = subprocess.run(
        [program, "planner", "serve", "--address", "0.0.0.0"],  # noqa: S104 - what is refused
        capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    assert answer.returncode == 2
    assert "lets other machines in" in answer.stderr
