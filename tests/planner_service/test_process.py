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
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event, Thread
from typing import Any

import msgspec
import pytest
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
        assert refused.stderr.startswith(f"{address} refused with 422 Unprocessable")
        assert '{"reason":"' in refused.stderr
        assert refused.stderr.count("\n") == 1
    for arguments in ((), (str(PROFILE), "four", "70.38"), ("missing.csv", "4", "70.38")):
        wrong = ask(tmp_path, {}, *arguments)
        assert (wrong.returncode, wrong.stderr.count("\n")) == (1, 1), wrong.stderr
        assert "wanted" in wrong.stderr
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plan["gpus"] == 4
    assert len(plan["points"]) > 10


def test_the_command_refuses_to_serve_everybody(tmp_path: Path) -> None:
    program = str(Path(sysconfig.get_path("scripts")) / "flyball")
    answer = subprocess.run(
        [program, "planner", "serve", "--address", "0.0.0.0"],  # noqa: S104 - what is refused
        capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    assert answer.returncode == 2
    assert "lets other machines in" in answer.stderr
