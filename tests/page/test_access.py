"""Who may see what: tokens are reviewed by the API server, answers are kept for a while, and floods are bounded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from flyball_kube.errors import ApiUnreachable
from flyball_page.access import (
    ACCESS_REVIEWS,
    KEPT_SECONDS,
    MAX_KEPT,
    MAX_NAMESPACES,
    REVIEWS_BURST,
    TOKEN_REVIEWS,
    Forbidden,
    Reviews,
    TooManyReviews,
    Unauthenticated,
    Viewer,
    bearer_token,
)

Json = dict[str, Any]


class Reviewer:
    """The API server's two reviews; `may` names the resources that everybody may list."""

    def __init__(self, *may: str) -> None:
        self.may = set(may)
        self.asked: list[tuple[str, Json]] = []
        self.away = False
        self.slow: asyncio.Event | None = None

    async def create(self, path: str, body: Json) -> Json:
        self.asked.append((path, body["spec"]))
        if self.slow is not None:
            await self.slow.wait()
        if self.away:
            raise ApiUnreachable("POST: no answer")
        if path == TOKEN_REVIEWS:
            token = body["spec"]["token"]
            user = {"username": token, "uid": "7", "groups": ["people"], "extra": {"scopes": ["x"]}}
            return {"status": {"authenticated": not token.startswith("wrong"), "user": user}}
        assert path == ACCESS_REVIEWS
        return {"status": {"allowed": body["spec"]["resourceAttributes"]["resource"] in self.may}}

    @property
    def reviews(self) -> int:
        return sum(path == TOKEN_REVIEWS for path, _ in self.asked)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def reviews(reviewer: Reviewer, clock: Clock | None = None) -> Reviews:
    return Reviews(reviewer, monotonic=clock or Clock())  # type: ignore[arg-type]


async def test_an_account_is_asked_about_with_all_that_the_server_said_of_it() -> None:
    reviewer = Reviewer("powercaps", "gpunodes", "energyawarejobs")
    assert await reviews(reviewer).viewer("ann") == Viewer("ann", power=True, jobs=True)
    for spec in [spec for path, spec in reviewer.asked if path == ACCESS_REVIEWS]:
        assert (spec["user"], spec["uid"], spec["groups"], spec["extra"]) == ("ann", "7", ["people"], {"scopes": ["x"]})
        assert spec["resourceAttributes"]["verb"] == "list"


@pytest.mark.parametrize(
    ("may", "power", "jobs"),
    [
        ([], False, False),
        (["powercaps"], False, False),
        (["powercaps", "gpunodes"], True, False),
        (["energyawarejobs"], False, True),
    ],
)
async def test_one_sees_what_one_may_list(may: list[str], power: bool, jobs: bool) -> None:
    viewer = await reviews(Reviewer(*may)).viewer("ann")
    assert (viewer.power, viewer.jobs) == (power, jobs)
    if not power:
        with pytest.raises(Forbidden, match="ann may not list powercaps"):
            viewer.require_power()
    if not jobs:
        with pytest.raises(Forbidden, match="ann may not list energyawarejobs"):
            viewer.require_jobs()


async def test_who_may_list_the_jobs_of_some_namespaces_sees_those() -> None:
    class OfNamespaces(Reviewer):
        async def create(self, path: str, body: Json) -> Json:
            answer = await super().create(path, body)
            if path == ACCESS_REVIEWS:
                answer["status"]["allowed"] = body["spec"]["resourceAttributes"]["namespace"] in ("team", "other")
            return answer

    reviewer = OfNamespaces()
    there = ["team", "secret", *(f"n{number:03d}" for number in range(2 * MAX_NAMESPACES))]
    viewer = await Reviews(reviewer, lambda: there[:2], Clock()).viewer("ann")  # type: ignore[arg-type]
    assert (viewer.jobs, viewer.namespaces) == (False, {"team"})
    assert viewer.require_jobs() == viewer.require_jobs("team") == {"team"}
    with pytest.raises(Forbidden, match="in secret"):
        viewer.require_jobs("secret")
    reviewer.asked.clear()
    await Reviews(reviewer, lambda: there, Clock()).viewer("ann")  # type: ignore[arg-type]
    assert len(reviewer.asked) <= 2 * MAX_NAMESPACES + 5


@pytest.mark.parametrize(
    ("rights", "sees"),
    [
        ({}, set()),
        ({"energyawarejobs": {""}}, set()),
        ({"energyawarejobs": {""}, "energyprofiles": {""}}, {"team", "other"}),
        ({"energyawarejobs": {""}, "energyprofiles": {"other"}}, {"other"}),
        ({"energyawarejobs": {"team"}}, set()),
        ({"energyawarejobs": {"team"}, "energyprofiles": {"team", "other"}}, {"team"}),
    ],
)
async def test_what_was_learned_of_jobs_is_a_right_of_its_own(rights: dict[str, set[str]], sees: set[str]) -> None:
    class WithRights(Reviewer):
        async def create(self, path: str, body: Json) -> Json:
            answer = await super().create(path, body)
            if path == ACCESS_REVIEWS:
                asked = body["spec"]["resourceAttributes"]
                answer["status"]["allowed"] = asked["namespace"] in rights.get(asked["resource"], ())
            return answer

    viewer = await Reviews(WithRights(), lambda: ["team", "other"], Clock()).viewer("ann")  # type: ignore[arg-type]
    assert {namespace for namespace in ("team", "other") if viewer.may_see_profiles(namespace)} == sees
    assert viewer.may_see_profiles("third") is ("" in rights.get("energyprofiles", ()))


async def test_a_token_is_reviewed_once_a_minute_however_often_it_comes() -> None:
    reviewer, clock = Reviewer(), Clock()
    kept = reviews(reviewer, clock)
    for _ in range(50):
        await kept.viewer("ann")
    assert reviewer.reviews == 1
    clock.now += KEPT_SECONDS + 1
    reviewer.may.add("energyawarejobs")
    assert (await kept.viewer("ann")).jobs
    assert reviewer.reviews == 2


async def test_who_asks_at_the_same_moment_shares_one_review_even_where_one_goes_away() -> None:
    reviewer = Reviewer()
    reviewer.slow = asyncio.Event()
    kept = reviews(reviewer)
    waiting = [asyncio.create_task(kept.viewer("ann")) for _ in range(10)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    reviewer.slow.set()
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert answers[1:] == [Viewer("ann", power=False, jobs=False)] * 9
    assert reviewer.reviews == 1


async def test_a_flood_of_made_up_tokens_reaches_the_api_server_at_a_bounded_rate_and_fills_no_memory() -> None:
    reviewer, clock = Reviewer(), Clock()
    kept = reviews(reviewer, clock)
    assert (await kept.viewer("ann")).name == "ann"
    outcomes = []
    for number in range(1000):
        try:
            await kept.viewer(f"wrong-{number}")
        except (Unauthenticated, TooManyReviews) as error:
            outcomes.append(type(error))
    assert outcomes.count(Unauthenticated) == REVIEWS_BURST - 1
    assert reviewer.reviews == REVIEWS_BURST
    # Who was let in goes on unharmed.
    assert (await kept.viewer("ann")).name == "ann"
    for number in range(2 * MAX_KEPT):
        clock.now += 0.05 + number % 2
        try:
            await kept.viewer(f"wrong-{number}")
        except (Unauthenticated, TooManyReviews):
            continue
    assert len(kept._kept) <= MAX_KEPT


async def test_no_answer_lets_nobody_in_and_is_not_remembered() -> None:
    reviewer = Reviewer("powercaps", "gpunodes")
    reviewer.away = True
    kept = reviews(reviewer)
    with pytest.raises(ApiUnreachable):
        await kept.viewer("ann")
    reviewer.away = False
    assert (await kept.viewer("ann")).power


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Basic YTpi", "token", "Bearer " + "x" * 20_000, "Bearer a\x01b", "Bearer ä"]
)
def test_what_is_no_bearer_token(header: str) -> None:
    with pytest.raises(Unauthenticated):
        bearer_token(header)


@pytest.mark.parametrize("header", ["Bearer abc", "bearer abc", " BEARER  abc "])
def test_what_is_one(header: str) -> None:
    assert bearer_token(header) == "abc"
