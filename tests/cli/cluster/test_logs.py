"""What the ranks of a job say, from an API server that answers as the real one does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from flyball_cli.cluster.access import CommandError
from flyball_cli.cluster.logs import Wanted, show
from flyball_kube.credentials import Configuration
from flyball_kube.errors import ApiError
from flyball_kube.session import MAX_TEXT_LINE_BYTES, ApiSession

from tests.support.operator_objects import raw_job, raw_pod

UID = "uid-train"


class FakeServer:
    """Serves one job, its pods, and their logs."""

    def __init__(self) -> None:
        self.pods: list[dict[str, Any]] = []
        self.logs: dict[str, bytes | int] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.incarnation = 2
        self.url = ""

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/apis/flyball.dev/v1alpha1/namespaces/team/energyawarejobs/{name}", self._job)
        app.router.add_get("/api/v1/namespaces/team/pods", self._pods)
        app.router.add_get("/api/v1/namespaces/team/pods/{name}/log", self._log)
        return app

    async def _job(self, request: web.Request) -> web.Response:
        if request.match_info["name"] != "train":
            body = {"reason": "NotFound", "message": 'energyawarejobs.flyball.dev "x" not found'}
            return web.json_response(body, status=404)
        return web.json_response(raw_job("train", status={"allocation": {"incarnation": self.incarnation}}))

    async def _pods(self, request: web.Request) -> web.Response:
        assert request.query["labelSelector"] == f"flyball.dev/job-uid={UID}"
        return web.json_response({"metadata": {}, "items": self.pods})

    async def _log(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        self.asked.append((name, dict(request.query)))
        said = self.logs[name]
        if isinstance(said, int):
            return web.json_response({"reason": "BadRequest", "message": "container is waiting to start"}, status=said)
        answer = web.StreamResponse()
        await answer.prepare(request)
        for start in range(0, len(said), 7):  # in pieces that no line fits into
            await answer.write(said[start : start + 7])
        return answer

    def add(self, incarnation: int, rank: int, said: bytes | int, restarts: int = 0) -> str:
        name = f"train-{incarnation}-{rank}"
        pod = raw_pod(name, uid=UID, incarnation=incarnation, index=rank, phase="Running")
        pod["status"]["containerStatuses"] = [{"name": "trainer", "restartCount": restarts, "state": {}}]
        self.pods.append(pod)
        self.logs[name] = said
        return name


@pytest_asyncio.fixture
async def server() -> AsyncIterator[FakeServer]:
    fake = FakeServer()
    runner = web.AppRunner(fake.app())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield fake
    await runner.cleanup()


async def said(server: FakeServer, wanted: Wanted | None = None, job: str = "train") -> tuple[list[str], list[str]]:
    lines: list[str] = []
    notices: list[str] = []
    async with ApiSession(Configuration(server.url)) as session:
        await show(session, "team", job, wanted or Wanted(), lines.append, notices.append)
    return lines, notices


async def test_all_ranks_of_the_present_incarnation_in_order(server: FakeServer) -> None:
    server.add(2, 10, b"ten\n")
    server.add(2, 1, "eins\nzwei und dreißig".encode())
    server.add(1, 0, b"of before\n")
    assert await said(server) == (["[2/1] eins", "[2/1] zwei und dreißig", "[2/10] ten"], [])


async def test_the_options_go_to_the_api_server(server: FakeServer) -> None:
    server.add(2, 0, b"one\n")
    await said(server, Wanted(follow=True, tail=5, timestamps=True))
    assert server.asked == [
        ("train-2-0", {"container": "trainer", "follow": "true", "tailLines": "5", "timestamps": "true"})
    ]


async def test_previous_is_what_came_before(server: FakeServer) -> None:
    server.incarnation = 4
    server.add(3, 0, b"left behind\n")
    server.add(4, 0, b"crashed\n", restarts=1)
    server.add(4, 1, b"fine\n")
    lines, notices = await said(server, Wanted(previous=True))
    assert lines == ["[3/0] left behind", "[4/0] crashed"]
    assert notices == ["# the pods of incarnation 1-2 are gone, and their logs with them"]
    assert [params.get("previous") for _, params in server.asked] == [None, "true"]


async def test_a_rank_that_has_none_yet_does_not_hide_the_others(server: FakeServer) -> None:
    server.add(2, 0, 400)
    server.add(2, 1, b"here\n")
    lines, notices = await said(server)
    assert lines == ["[2/1] here"]
    assert notices == ["# [2/0] train-2-0 (Running): container is waiting to start"]


@pytest.mark.parametrize("follow", [False, True])
async def test_it_fails_where_no_log_at_all_could_be_read(server: FakeServer, follow: bool) -> None:
    server.add(2, 0, 400)
    server.add(2, 1, 500)
    notices: list[str] = []
    async with ApiSession(Configuration(server.url)) as session:
        with pytest.raises(CommandError, match="no rank's log of train could be read"):
            await show(session, "team", "train", Wanted(follow=follow), pytest.fail, notices.append)
    assert len(notices) == 2, "each rank's own reason is said before"


async def test_a_log_that_is_empty_yet_was_read(server: FakeServer) -> None:
    server.add(2, 0, b"")
    assert await said(server) == ([], [])


async def test_a_missing_right_ends_it(server: FakeServer) -> None:
    server.add(2, 0, 403)
    with pytest.raises(ApiError):
        await said(server)


async def test_one_rank(server: FakeServer) -> None:
    for rank in range(3):
        server.add(2, rank, f"rank {rank}\n".encode())
    assert (await said(server, Wanted(ranks=frozenset({1}))))[0] == ["[2/1] rank 1"]
    with pytest.raises(CommandError, match="train has the ranks 0-2"):
        await said(server, Wanted(ranks=frozenset({7})))


async def test_nothing_to_say_is_said(server: FakeServer) -> None:
    with pytest.raises(CommandError, match="no pods of train are there now: flyball why train"):
        await said(server)
    with pytest.raises(CommandError, match="no pod of an earlier incarnation"):
        await said(server, Wanted(previous=True))
    with pytest.raises(CommandError, match="there is no EnergyAwareJob other in the namespace team"):
        await said(server, job="other")
    server.incarnation = 0
    with pytest.raises(CommandError, match="has not been started yet"):
        await said(server)


async def test_a_line_without_end_is_cut_and_bytes_that_are_no_text_are_shown(server: FakeServer) -> None:
    server.add(2, 0, b"x" * (3 * MAX_TEXT_LINE_BYTES))
    server.add(2, 1, b"\xff\xfe ok\n")
    lines, _ = await said(server)
    assert len(lines[0]) == len("[2/0] ") + MAX_TEXT_LINE_BYTES
    assert lines[1].endswith(" ok")


async def test_no_trainer_drives_the_terminal_of_who_reads_its_log(server: FakeServer) -> None:
    server.add(2, 0, b"\x1b[32mgood\x1b[0m\x1b]0;title\x07\x1b[2J\xc2\x9b31m\r\n10%\r20%\r[2/1] I am another rank\n")
    server.add(2, 1, 400)
    lines, _ = await said(server)
    assert lines == [
        r"[2/0] good\x1b]0;title\x07\x1b[2J\x9b31m",
        "[2/0] 10%",
        "[2/0] 20%",
        "[2/0] [2/1] I am another rank",
    ]


async def test_many_ranks_are_bounded(server: FakeServer) -> None:
    for rank in range(70):
        server.add(2, rank, b"line\n")
    async with asyncio.timeout(60):
        lines, notices = await said(server, Wanted(follow=True))
    assert len(lines) == 64
    assert notices == ["# the first 64 of 70 ranks; --rank N chooses others"]
