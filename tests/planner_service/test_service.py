"""The planner service: what it answers, what it refuses, and that nobody can fill it, hang it or read past its token."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from flyball_frontiers.pipeline import PipelineProfile, Reconfiguration, Schedule, pipeline_graph
from flyball_frontiers.pipeline.document import envpipe_document, perseus_document
from flyball_planner_service import app as service_app
from flyball_planner_service import main
from flyball_planner_service.app import MAX_BODY_BYTES, make_app
from flyball_planner_service.frontiers import ENTRY_BYTES, Frontiers, Plans
from flyball_planner_service.options import PlannerOptions
from flyball_planner_service.request import FrontierRequest, InvalidRequest, document_of, read_request, written
from flyball_planner_service.solver import Answer, GivenUp, Planned, Refused
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.shown_page import served as served_by
from tests.support.waiting import until

CSV = "stage,instruction,frequency,time,energy\n" + "".join(
    f"{stage},{instruction},{clock},{work / clock},{work * clock / 9e3}\n"
    for stage, work in ((0, 100.0), (1, 140.0))
    for instruction in ("forward", "backward")
    for clock in (1400, 1100, 800)
)
ROWS = [dict(zip(CSV.splitlines()[0].split(","), line.split(","), strict=True)) for line in CSV.splitlines()[1:]]
ASKED: dict[str, Any] = {"profile": CSV, "microbatches": 3, "blockingWatts": 20.0, "points": 8}


class Held:
    """Plans at once, or, where it is held, once it is let go; what it planned is in `solved`."""

    def __init__(self, answer: Callable[[FrontierRequest], Answer] | None = None) -> None:
        self.go = asyncio.Event()
        self.go.set()
        self.solved: list[FrontierRequest] = []
        self._answer = answer or (lambda request: Planned(written(document_of(request))))
        self.closed = False

    async def solve(self, request: FrontierRequest) -> Answer:
        self.solved.append(request)
        await self.go.wait()
        return self._answer(request)

    def close(self) -> None:
        self.closed = True


@asynccontextmanager
async def served(
    *solvers: Plans, max_waiting: int = 4, kept_bytes: int = 10_000_000, **keywords: Any
) -> AsyncIterator[httpx.AsyncClient]:
    frontiers = Frontiers(solvers, max_waiting=max_waiting, kept_bytes=kept_bytes)
    app = make_app(frontiers, **keywords)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://planner") as client,
    ):
        yield client


async def test_a_profile_becomes_what_the_command_writes() -> None:
    solver = Held()
    async with served(solver) as client:
        answer = await client.post("/v1/frontiers", json=ASKED)
        graph = pipeline_graph(PipelineProfile.from_csv(CSV), Schedule.ONE_F_ONE_B, 3)
        assert answer.status_code == 200
        assert answer.json() == json.loads(json.dumps(perseus_document(graph, 20.0, 8)))
        envpipe = await client.post("/v1/frontiers", json=ASKED | {"planner": "envpipe-greedy"})
        wanted = envpipe_document(PipelineProfile.from_csv(CSV), 3, 20.0, Reconfiguration.GREEDY)
        assert envpipe.json() == json.loads(json.dumps(wanted))
        assert envpipe.headers["location"] != answer.headers["location"]
        rows = await client.post("/v1/frontiers", json=ASKED | {"profile": ROWS})
        assert rows.json() == answer.json()
    assert solver.closed


async def test_what_was_asked_before_is_answered_at_once() -> None:
    solver = Held()
    async with served(solver) as client:
        first = await client.post("/v1/frontiers", json=ASKED)
        backwards = dict(reversed(ASKED.items()))
        second = await client.post("/v1/frontiers", json=backwards)
        assert (second.content, len(solver.solved)) == (first.content, 1)
        again = await client.get(first.headers["location"])
        assert (again.status_code, again.content) == (200, first.content)
        other = await client.post("/v1/frontiers", json=ASKED | {"blockingWatts": 21.0})
        assert (other.status_code, len(solver.solved)) == (200, 2)


async def test_whoever_does_not_want_to_wait_comes_again() -> None:
    solver = Held()
    solver.go.clear()
    async with served(solver) as client:
        first = await client.post("/v1/frontiers?wait=0", json=ASKED)
        assert first.status_code == 202
        await until(lambda: len(solver.solved) == 1, "under way")
        where = first.headers["location"]
        state = await client.get(where)
        assert (state.status_code, state.json()["state"]) == (202, "planning")
        assert (await client.get(f"{where}/at?seconds=1")).status_code == 202
        both = asyncio.gather(client.get(f"{where}?wait=60"), client.post("/v1/frontiers?wait=60", json=ASKED))
        solver.go.set()
        assert [answer.status_code for answer in await both] == [200, 200]
        assert len(solver.solved) == 1, "two that ask for the same are one"


async def test_a_point_is_looked_up() -> None:
    async with served(Held()) as client:
        whole = await client.post("/v1/frontiers", json=ASKED)
        where, points = whole.headers["location"], whole.json()["points"]
        for point in (points[0], points[-1]):
            found = (await client.get(f"{where}/at", params={"seconds": point["realised_time"] * 1.0001})).json()
            assert found["clocks"].keys() == {"0", "1"}
            assert found == {name: point[name] for name in found}
        slow = await client.get(f"{where}/at?seconds=1e6")
        assert slow.json()["time"] == points[-1]["time"]
        fast = await client.get(f"{where}/at?seconds=1e-6")
        assert fast.status_code == 422
        assert "the fastest takes" in fast.json()["reason"]
        for wrong in ("0", "-1", "nan", "inf", "soon"):
            answer = await client.get(f"{where}/at?seconds={wrong}")
            assert (answer.status_code, "seconds" in answer.json()["reason"]) == (422, True), wrong


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"profile": CSV.replace("0,forward,1100,", "0,forward,fast,")}, "row 2 (line 3: 0,forward,fast"),
        ({"profile": [*ROWS, ROWS[0] | {"time": "-1"}]}, "row 13 ("),
        ({"profile": [ROWS[0] | {"stage": 1e15}]}, "stage 0 is missing"),
        ({"profile": "stage,time\n"}, "the header has no column instruction, frequency, energy"),
        ({"profile": []}, "no rows"),
        ({"profile": 5}, "$.profile"),
        ({"microbatches": 0}, "$.microbatches"),
        ({"points": 1}, "$.points"),
        ({"points": 10_000}, "$.points"),
        ({"blockingWatts": -1}, "$.blockingWatts"),
        ({"schedule": "1f2b"}, "$.schedule"),
        ({"planner": "lowtime"}, "$.planner"),
        ({"blocking_power": 1}, "unknown field `blocking_power`"),
        ({"schedule": "gpipe", "microbatches": 65536}, "too many to plan"),
        ({"schedule": "gpipe", "microbatches": 9000}, "this service takes what needs 100 s at the most"),
    ],
)
async def test_what_nobody_can_plan_is_refused_before_it_waits(change: dict[str, Any], words: str) -> None:
    solver = Held()
    async with served(solver, max_estimated_seconds=100.0) as client:
        answer = await client.post("/v1/frontiers", json=ASKED | change)
        assert answer.status_code == 422
        assert words in answer.json()["reason"]
    assert solver.solved == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
FIELDS = st.sampled_from(["stage", "instruction", "frequency", "time", "energy"])


@given(
    body=st.one_of(
        st.binary(max_size=64),
        JSON.map(lambda value: json.dumps(value).encode()),
        st.lists(st.dictionaries(FIELDS, JSON, max_size=5), max_size=4).map(
            lambda rows: json.dumps(ASKED | {"profile": rows}).encode()
        ),
    )
)
@settings(max_examples=examples(300))
def test_whatever_is_sent_is_a_request_or_refused(body: bytes) -> None:
    try:
        read_request(body, 100.0)
    except InvalidRequest as refusal:
        said = str(refusal)
    else:
        return
    assert 0 < len(said) <= 1000


async def test_what_only_planning_shows_is_refused_and_not_planned_again() -> None:
    without = "\n".join(line for line in CSV.splitlines() if not line.startswith("1,backward"))

    def answer(request: FrontierRequest) -> Answer:
        try:
            return Planned(written(document_of(request)))
        except ValueError as error:
            return Refused(str(error))

    solver = Held(answer)
    async with served(solver) as client:
        for _ in range(2):
            refused = await client.post("/v1/frontiers", json=ASKED | {"profile": without})
            assert refused.status_code == 422
            assert "stage 1 has no backward rows" in refused.json()["reason"]
        assert len(solver.solved) == 1


async def test_what_was_given_up_is_tried_again_when_asked_for_again() -> None:
    answers: Iterator[Answer] = iter([GivenUp("it took longer than 900 s"), Planned(b"{}")])
    async with served(Held(lambda _request: next(answers))) as client:
        first = await client.post("/v1/frontiers", json=ASKED)
        assert (first.status_code, first.json()["reason"]) == (503, "it took longer than 900 s")
        assert (await client.post("/v1/frontiers", json=ASKED)).status_code == 200


async def test_a_solver_that_fails_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_request: FrontierRequest) -> Answer:
        raise RuntimeError("no memory")

    async with served(Held(fail)) as client:
        for watts in (1.0, 2.0):
            answer = await client.post("/v1/frontiers", json=ASKED | {"blockingWatts": watts})
            assert (answer.status_code, "its log says why" in answer.json()["reason"]) == (503, True)


async def test_more_than_may_wait_are_sent_away_and_those_that_wait_are_planned_in_order() -> None:
    solver = Held()
    solver.go.clear()
    async with served(solver, max_waiting=2) as client:

        async def ask(watts: float) -> httpx.Response:
            return await client.post("/v1/frontiers?wait=0", json=ASKED | {"blockingWatts": watts})

        assert (await ask(0.0)).status_code == 202
        await until(lambda: len(solver.solved) == 1, "under way")
        accepted = [await ask(watts) for watts in (1.0, 2.0)]
        assert [answer.status_code for answer in accepted] == [202, 202]
        full = await ask(3.0)
        assert (full.status_code, full.headers["retry-after"]) == (429, "2")
        assert "2 frontiers wait" in full.json()["reason"]
        assert (await ask(1.0)).status_code == 202, "what waits already takes no more room"
        assert (await client.get("/healthz")).json() == {"state": "serving", "waiting": 2}
        solver.go.set()
        last = await client.get(f"{accepted[-1].headers['location']}?wait=60")
        assert last.status_code == 200
        assert [request.blocking_watts for request in solver.solved] == [0.0, 1.0, 2.0]


async def test_what_is_kept_is_bounded_and_what_was_asked_for_last_stays() -> None:
    size = ENTRY_BYTES + len(b"{}")
    async with served(Held(lambda _request: Planned(b"{}")), kept_bytes=2 * size) as client:

        async def ask(watts: float) -> str:
            answer = await client.post("/v1/frontiers", json=ASKED | {"blockingWatts": watts})
            return str(answer.headers["location"])

        first, second = await ask(1.0), await ask(2.0)
        assert (await client.get(first)).status_code == 200
        third = await ask(3.0)
        assert [(await client.get(where)).status_code for where in (first, second, third)] == [200, 404, 200]


async def test_only_who_has_the_token_is_answered() -> None:
    async with served(Held(), token="a-token-of-some-length") as client:
        for headers in ({}, {"Authorization": "Bearer another"}, {"Authorization": "Basic a-token-of-some-length"}):
            for answer in (
                await client.post("/v1/frontiers", json=ASKED, headers=headers),
                await client.get(f"/v1/frontiers/{'0' * 32}", headers=headers),
                await client.get(f"/v1/frontiers/{'0' * 32}/at?seconds=1", headers=headers),
            ):
                assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        own = {"Authorization": "Bearer a-token-of-some-length"}
        assert (await client.post("/v1/frontiers", json=ASKED, headers=own)).status_code == 200
        assert (await client.get("/healthz")).status_code == 200, "for probes, which have none"


async def test_a_body_is_bounded_in_length_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_app, "BODY_SECONDS", 0.05)

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b" " * 100_000

    async def never() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    async with served(Held()) as client:
        long = await client.post("/v1/frontiers", content=b" " * (MAX_BODY_BYTES + 1))
        assert (await client.post("/v1/frontiers", content=endless())).status_code == 413
        assert (long.status_code, "bytes at the most" in long.json()["reason"]) == (413, True)
        assert (await client.post("/v1/frontiers", content=never())).status_code == 408


async def test_what_is_not_there_is_said_so() -> None:
    async with served(Held()) as client:
        gone = await client.get(f"/v1/frontiers/{'0' * 32}")
        assert (gone.status_code, "ask for it anew" in gone.json()["reason"]) == (404, True)
        assert (await client.get("/v1/frontiers/..%2Fetc")).status_code in (404, 422)
        for wrong in ("7", "0" * 33, "\u0660" * 32, "x" * 5000):
            for path in (wrong, f"{wrong}/at?seconds=1"):
                answer = await client.get(f"/v1/frontiers/{path}")
                assert answer.status_code == 422
                assert answer.json()["reason"] == (
                    f"{wrong[:40]!r} is the id of no frontier: one has 32 digits and letters from a to f, and stands in "
                    "the Location that POST /v1/frontiers answers with"
                )


def test_nobody_serves_others_without_a_token(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="lets other machines in: --token-file"):
        PlannerOptions(address="0.0.0.0")  # noqa: S104 - what is refused
    token = tmp_path / "token"
    token.write_text("0123456789abcdef\n")
    assert PlannerOptions(address="0.0.0.0", token_file=token).token == "0123456789abcdef"  # noqa: S104
    for text in ("short", "two words of some length", ""):
        token.write_text(text)
        with pytest.raises(ValueError, match="wanted one line of 16 characters or more"):
            PlannerOptions(token_file=token)
    with pytest.raises(ValueError, match=r"token file .*missing: No such file or directory$"):
        PlannerOptions(token_file=tmp_path / "missing")


# --- web pages -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:8095"}, 200),
        ({"Host": "[::1]:8095"}, 200),
        ({"Host": "127.0.0.1:8095", "Origin": "http://127.0.0.1:8095"}, 200),
        ({"Host": "evil.example"}, 421),
        ({"Host": "localhost.evil.example:8095"}, 421),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:3000"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://[::1"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
    ],
)
async def test_on_this_machine_alone_no_web_page_has_it_plan(headers: dict[str, str], status: int) -> None:
    """What a page may send to any address without asking: a text, of which it may then not read the answer."""
    solver = Held()
    async with served(solver, hosts=PlannerOptions().hosts) as client:
        sent = {"Host": "127.0.0.1:8095", "Content-Type": "text/plain", **headers}
        answer = await client.post("/v1/frontiers", content=json.dumps(ASKED), headers=sent)
        assert answer.status_code == status
        assert len(solver.solved) == (status == 200)
        if status != 200:
            assert set(answer.json()) == {"reason"}


def test_where_others_may_ask_it_is_called_by_any_name(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123")
    assert PlannerOptions(address="10.0.0.7", token_file=token).hosts == frozenset()
    assert "localhost" in PlannerOptions(token_file=token).hosts


@pytest.mark.parametrize("sent", [b"", b"POST /v1/fron", b"GET /healthz HTTP/1.1\r\nHost: planner\r\nX: "])
async def test_who_asks_half_a_request_is_not_waited_for(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is room for so many connections, and none of them has to have a token before it has asked."""
    made: list[uvicorn.Config] = []

    class Server:
        def __init__(self, config: uvicorn.Config) -> None:
            made.append(config)

        def run(self) -> None:
            pass

    monkeypatch.setattr(main, "Server", Server)
    main.run(PlannerOptions())
    (config,) = made
    assert config.http is main.PlannerConnection
    assert isinstance(config.app, FastAPI)
    monkeypatch.setattr(main.PlannerConnection, "request_seconds", 0.2)
    with served_by(config.app, main.PlannerConnection) as address:
        url = httpx.URL(address)
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(sent)
        assert await reader.read() == b""
        writer.close()
        monkeypatch.setattr(main.PlannerConnection, "request_seconds", 60.0)
        async with httpx.AsyncClient(base_url=address) as client:
            assert (await client.get("/healthz")).status_code == 200
