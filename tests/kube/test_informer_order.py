"""In which order a copy takes what comes: from the list, the watch, and its own writes, which can be ahead of both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import pytest
from flyball_kube.informer import MAX_EMPTY_WATCHES, Informer
from flyball_kube.resources import NODES
from flyball_kube.session import JsonObject

from tests.support.schedules.virtual_time import VirtualLoop
from tests.support.waiting import until

ODD = "cannot be read"


def node(name: str, version: int, says: str = "") -> JsonObject:
    return {"metadata": {"name": name, "resourceVersion": str(version), "labels": {"says": says}}}


def event(kind: str, raw: JsonObject) -> JsonObject:
    return {"type": kind, "object": raw}


def bookmark(version: int) -> JsonObject:
    return event("BOOKMARK", {"metadata": {"resourceVersion": str(version)}})


class Told:
    """An API server that answers lists with `lists` in turn, the last one for good, and whose watch brings `events`.

    Watches end at once where `short` is set.
    """

    def __init__(self, *lists: tuple[int, list[JsonObject]], short: bool = False) -> None:
        self._lists = list(lists)
        self._short = short
        self.events: asyncio.Queue[JsonObject] = asyncio.Queue()
        self.asked = self.watches = 0

    async def get(self, path: str, **params: str) -> JsonObject:
        self.asked += 1
        version, items = self._lists.pop(0) if len(self._lists) > 1 else self._lists[0]
        return {"metadata": {"resourceVersion": str(version)}, "items": [dict(item) for item in items]}

    async def page(self, path: str, params: Mapping[str, str], max_bytes: int) -> JsonObject:
        return await self.get(path, **params)

    async def watch(self, path: str, **options: Any) -> AsyncIterator[JsonObject]:
        self.watches += 1
        while not self._short:
            yield await self.events.get()


class Bench:
    """A copy of one server's nodes, by what they say; `tell` returns once the copy has taken in what it is told."""

    def __init__(self, server: Told) -> None:
        session: Any = server
        self.server = server
        self.known_when_rewound: list[dict[str, str]] = []
        self.informer: Informer[str] = Informer(
            session, NODES, self._says, on_rewound=lambda: self.known_when_rewound.append(self.known)
        )

    @staticmethod
    def _says(raw: JsonObject) -> str:
        said = str(raw["metadata"]["labels"]["says"])
        if said == ODD:
            raise ValueError(ODD)
        return said

    async def tell(self, *events: JsonObject) -> None:
        for each in events:
            self.server.events.put_nowait(each)
        await asyncio.sleep(1.0)

    @property
    def known(self) -> dict[str, str]:
        return dict(self.informer.items())


def play(server: Callable[[], Told], test: Callable[[Bench], Awaitable[None]]) -> None:
    """Run a test of a copy that has been listed once."""

    async def run() -> None:
        bench = Bench(server())
        running = asyncio.create_task(bench.informer.run())
        await bench.informer.wait_synced()
        await test(bench)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    loop = VirtualLoop()
    loop.run_until_complete(run())
    loop.close()


def test_an_answer_that_the_list_has_passed_brings_nothing_back() -> None:
    """The object may have been deleted since."""

    async def test(bench: Bench) -> None:
        bench.informer.absorb(node("a", 9, "old"))
        bench.informer.absorb(node("b", 8, "gone"))
        assert bench.known == {"a": "listed"}

    play(lambda: Told((10, [node("a", 9, "listed")])), test)


def test_an_answer_before_the_first_list_counts_for_nothing() -> None:
    bench = Bench(Told((10, [])))
    bench.informer.absorb(node("a", 12))
    assert bench.known == {}


def test_what_the_watch_brings_late_is_no_newer_than_a_write_of_ours() -> None:
    async def test(bench: Bench) -> None:
        bench.informer.absorb(node("a", 12, "ours"))
        await bench.tell(event("MODIFIED", node("a", 11, "theirs")))
        assert bench.known == {"a": "ours"}
        await bench.tell(event("MODIFIED", node("a", 13, "theirs")))
        assert bench.known == {"a": "theirs"}

    play(lambda: Told((10, [node("a", 9, "listed")])), test)


def test_how_far_the_watch_is_behind_is_shown_by_a_write_of_ours() -> None:
    async def test(bench: Bench) -> None:
        assert bench.informer.behind_seconds() == 0.0
        bench.informer.absorb(node("a", 9, "of before the list"))
        bench.informer.absorb(node("a", 12, "ours"))
        await bench.tell(event("MODIFIED", node("b", 11, "theirs")))
        await asyncio.sleep(4.0)
        assert bench.informer.behind_seconds() == pytest.approx(5.0), "it has yet to come back"
        bench.server.events.put_nowait(event("MODIFIED", node("a", 12, "ours")))
        await asyncio.sleep(0.25)
        assert bench.informer.behind_seconds() == pytest.approx(4.75), "it came back after five, a quarter ago"

    play(lambda: Told((10, [node("a", 9, "listed")])), test)


def test_a_list_that_is_asked_for_anew_shows_it_too() -> None:
    async def test(bench: Bench) -> None:
        bench.informer.absorb(node("a", 12, "ours"))
        await asyncio.sleep(3.0)
        await bench.informer.refresh()
        assert bench.informer.behind_seconds() == pytest.approx(3.0)
        await asyncio.sleep(10.0)
        assert bench.informer.behind_seconds() == 0.0

    play(lambda: Told((10, [node("a", 9, "listed")]), (12, [node("a", 12, "ours")])), test)


def test_of_a_store_that_was_put_back_no_write_is_waited_for() -> None:
    async def test(bench: Bench) -> None:
        bench.informer.absorb(node("a", 12, "ours"))
        await bench.tell(bookmark(4))
        assert bench.informer.behind_seconds() == 0.0

    play(lambda: Told((10, [node("a", 9, "listed")]), (4, [node("a", 3, "restored")])), test)


def test_a_deletion_that_comes_late_takes_away_nothing_that_was_made_anew() -> None:
    async def test(bench: Bench) -> None:
        bench.informer.absorb(node("a", 15, "made anew"))
        await bench.tell(event("DELETED", node("a", 14, "listed")))
        assert bench.known == {"a": "made anew"}
        await bench.tell(event("DELETED", node("a", 16, "made anew")))
        assert bench.known == {}

    play(lambda: Told((10, [node("a", 9, "listed")])), test)


def test_what_cannot_be_read_any_more_is_not_known_as_it_was() -> None:
    async def test(bench: Bench) -> None:
        await bench.tell(event("MODIFIED", node("a", 11, ODD)))
        assert bench.known == {"b": "listed"}
        assert list(bench.informer.invalid) == ["a"]
        await bench.tell(event("MODIFIED", node("a", 12, "readable")))
        assert bench.known == {"a": "readable", "b": "listed"}
        assert bench.informer.invalid == {}

    play(lambda: Told((10, [node("a", 9, "listed"), node("b", 9, "listed")])), test)


def test_versions_that_go_back_have_everything_listed_anew() -> None:
    """As after a restore of the server's store: what was known of its future is no more."""

    async def test(bench: Bench) -> None:
        await bench.tell(bookmark(4))
        assert bench.server.asked == 2
        assert bench.known == {"a": "restored"}
        assert bench.known_when_rewound == [{"a": "listed"}]  # told before anything of that past was taken in

    play(lambda: Told((10, [node("a", 9, "listed")]), (4, [node("a", 3, "restored")])), test)


@pytest.mark.parametrize("listed", [5, 12])
def test_who_lists_anew_is_told_of_versions_that_went_back_whether_they_have_passed_its_own_or_not(listed: int) -> None:
    async def test(bench: Bench) -> None:
        bench.informer.absorb(node("a", 11, "ours"))
        await bench.informer.refresh()
        assert bench.known == {"a": "restored"}
        assert bench.known_when_rewound == [{"a": "ours"}]

    play(lambda: Told((5, [node("a", 4, "listed")]), (listed, [node("a", 3, "restored")])), test)


def test_a_list_as_new_as_what_is_known_is_of_no_past() -> None:
    async def test(bench: Bench) -> None:
        bench.informer.absorb(node("a", 11, "ours"))
        await bench.informer.refresh()
        assert bench.known_when_rewound == []

    play(lambda: Told((5, [node("a", 4, "listed")]), (11, [node("a", 11, "ours")])), test)


def test_after_watches_that_bring_nothing_everything_is_listed_anew() -> None:
    """A version of a future that is no more gets no event and no error."""

    async def test(bench: Bench) -> None:
        await until(lambda: bench.server.watches > MAX_EMPTY_WATCHES)
        assert bench.server.asked == 2

    play(lambda: Told((10, [node("a", 9, "listed")]), short=True), test)
