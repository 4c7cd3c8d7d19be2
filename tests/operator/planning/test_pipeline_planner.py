"""Plans of pipelines by a planner service that is slow, full, wrong or away: a plan that fits, or why there is none."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from flyball_api.energy_aware_job import PlanSource
from flyball_operator.jobs.pipeline_plans import PlanPipeline
from flyball_operator.planning.pipeline_planner import MAX_DOCUMENT_BYTES, NoPlan, PipelinePlanner

from tests.support.operator_objects import job_view

WANTED = PlanPipeline(job_view(), PlanSource("gpt3"), 16, "stage,...\n0,f,1410,0.1,30\n", 57.5, "digest")
DOCUMENT = {"gpus": 2, "points": [{"realised_time": 1.0}]}

Answer = Callable[[web.Request, Any], web.StreamResponse]


@dataclass
class Service:
    """Answers each request by the next of `answers`, the last one again and again."""

    url: str = ""
    answers: list[Answer] = field(default_factory=list)
    asked: list[tuple[str, str, str, Any]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else None
        self.asked.append((request.method, request.path, request.headers.get("Authorization", ""), body))
        return (self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])(request, body)


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    found = Service()
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", found.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    found.url = f"http://{host}:{port}"
    yield found
    await runner.cleanup()


def planned(_: web.Request, __: Any) -> web.Response:
    return web.json_response(DOCUMENT)


def planning(where: str = "/v1/frontiers/0123") -> Answer:
    return lambda _, __: web.json_response(
        {"state": "planning"}, status=202, headers={"Location": where} if where else {}
    )


def refusing(status: int, reason: str) -> Answer:
    return lambda _, __: web.json_response({"reason": reason}, status=status)


async def test_a_plan_is_waited_for_where_it_takes_long(service: Service, tmp_path: Path) -> None:
    service.answers = [planning(), planning(), planned]
    (tmp_path / "token").write_text("secret\n")
    document = await PipelinePlanner(service.url + "/", tmp_path / "token").plan(WANTED)
    assert json.loads(document) == DOCUMENT
    body = {"profile": WANTED.profile, "microbatches": 16, "blockingWatts": 57.5, "points": 60}
    again = ("GET", "/v1/frontiers/0123", "Bearer secret", None)
    assert service.asked == [("POST", "/v1/frontiers", "Bearer secret", body), again, again]


async def test_of_a_plan_that_no_config_map_holds_fewer_points_are_taken(service: Service) -> None:
    def by_points(_: web.Request, body: Any) -> web.Response:
        return web.json_response({**DOCUMENT, "clocks": "x" * (MAX_DOCUMENT_BYTES // 20 * body["points"])})

    service.answers = [by_points]
    document = await PipelinePlanner(service.url).plan(WANTED)
    assert [body["points"] for *_, body in service.asked] == [60, 30, 15]
    assert len(document) < MAX_DOCUMENT_BYTES
    service.answers = [lambda _, __: web.Response(body=b"x" * (MAX_DOCUMENT_BYTES + 1))]
    with pytest.raises(NoPlan, match="more than the 900,000 bytes") as refused:
        await PipelinePlanner(service.url).plan(WANTED)
    assert refused.value.final


@pytest.mark.parametrize(
    ("answer", "words", "final"),
    [
        (refusing(422, "row 3: no such clock"), r"says \(422\): row 3: no such clock", True),
        (refusing(429, "4 wait"), r"says \(429\): 4 wait", False),
        (refusing(503, "given up"), r"says \(503\): given up", False),
        (refusing(401, "a token is needed"), r"says \(401\)", False),
        (lambda _, __: web.Response(text="<html>", status=502), r"says \(502\): <html>", False),
        (lambda _, __: web.Response(status=307, headers={"Location": "http://elsewhere/"}), r"says \(307\)", False),
        (planning("http://elsewhere/v1/frontiers/1"), "does not say where its plan is", False),
        (planning("/v1/frontiers/1?wait=9"), "does not say where its plan is", False),
        (planning(""), "does not say where its plan is", False),
        (lambda _, __: web.json_response([1]), "answers with what is no plan", False),
        (lambda _, __: web.json_response({"points": []}), "answers with what is no plan", False),
        (lambda _, __: web.Response(text="nonsense"), "planner service at http", False),
        (lambda _, __: web.Response(text="[" * 200_000), "planner service at http", False),
        (lambda _, __: web.Response(text="[" * 4000, status=500), "planner service at http", False),
    ],
)
async def test_why_there_is_no_plan_is_said_and_whether_another_try_may_help(
    service: Service, answer: Answer, words: str, final: bool
) -> None:
    service.answers = [answer]
    with pytest.raises(NoPlan, match=words) as refused:
        await PipelinePlanner(service.url).plan(WANTED)
    assert refused.value.final is final


async def test_a_service_that_never_has_a_plan_is_given_up(service: Service) -> None:
    service.answers = [planning()]
    with pytest.raises(NoPlan, match=r"no plan within 0\.3 s"):
        await PipelinePlanner(service.url, deadline_seconds=0.3).plan(WANTED)
    assert len(service.asked) <= 2, "it answers at once, and is asked once a second"


async def test_nobody_who_plans_is_no_plan_either(service: Service, tmp_path: Path) -> None:
    with pytest.raises(NoPlan, match="started without --planner-url"):
        await PipelinePlanner("").plan(WANTED)
    with pytest.raises(NoPlan, match="No such file"):
        await PipelinePlanner(service.url, tmp_path / "missing").plan(WANTED)
    with pytest.raises(NoPlan, match=r"planner service at http://127\.0\.0\.1:1: "):
        await PipelinePlanner("http://127.0.0.1:1").plan(WANTED)
