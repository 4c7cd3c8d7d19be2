"""The informer on the real API server, over a way that is cut, silent, slow and expired."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import aiohttp
import pytest
from flyball_kube import informer as informer_module
from flyball_kube import pages as pages_module
from flyball_kube.informer import Informer, object_key
from flyball_kube.resources import Resource
from flyball_kube.session import JsonObject
from flyball_testbed.controlplane.cluster import DevCluster
from flyball_testbed.controlplane.components import ETCD_SOCKET

from tests.support.waiting import PATIENCE_SECONDS, until
from tests.support.way import Watch, Way

# Long enough that nothing of a test depends on its end.
LONG_WATCH_SECONDS = 300


async def test_it_lists_follows_and_forgets(way: Way, watching: Watch) -> None:
    await way.put("a", "1")
    changes: list[str] = []
    informer = watching(way, on_change=changes.append)
    await informer.wait_synced()
    assert way.held(informer) == {"a": "1"}
    await way.put("b", "2")
    await way.put("a", "3")
    await until(lambda: way.held(informer) == {"a": "3", "b": "2"})
    await way.delete("a")
    await until(lambda: way.held(informer) == {"b": "2"})
    assert informer.relists == 1
    key = f"{way.namespace}/a"
    assert changes.count(key) == 3
    assert informer.get(key) is None
    assert informer.get(f"{way.namespace}/b") == "2"
    assert len(informer) == 1 + (informer.get(f"{way.namespace}/kube-root-ca.crt") is not None)


async def test_after_a_broken_watch_everything_is_listed(way: Way, watching: Watch) -> None:
    informer = watching(way, watch_seconds=LONG_WATCH_SECONDS)
    await informer.wait_synced()
    for count in range(1, 4):
        way.proxy.refusing = True
        way.proxy.cut()
        await way.put("a", str(count))
        await way.put(f"b{count}")
        if count > 1:
            await way.delete(f"b{count - 1}")  # while nobody watches
        way.proxy.refusing = False
        await way.in_step(informer)
        assert informer.broken_watches >= count
    assert informer.relists == 4


async def test_what_is_deleted_while_the_way_is_silent_is_swept(way: Way, watching: Watch) -> None:
    for name in ("a", "b", "c"):
        await way.put(name)
    informer = watching(way, watch_seconds=1, read_grace_seconds=0.5)
    await informer.wait_synced()
    way.proxy.silent = True
    await way.delete("a")
    await way.put("c", "2")
    assert "a" in way.held(informer)
    await until(lambda: informer.broken_watches > 0)
    way.proxy.silent = False
    await way.in_step(informer)
    assert "a" not in way.held(informer)


async def test_silence_is_noticed_within_its_bound_and_makes_the_copy_older(way: Way, watching: Watch) -> None:
    clock = Clock()
    informer = watching(way, watch_seconds=1, read_grace_seconds=0.5, monotonic=clock)
    assert informer.age_seconds() == float("inf")
    await informer.wait_synced()
    assert informer.age_seconds() == 0
    way.proxy.silent = True
    clock.now += 7
    loop = asyncio.get_running_loop()
    began = loop.time()
    await until(lambda: informer.broken_watches == 1)
    # The bound, 1.5 s, with room for a slow machine: far below what TCP itself would wait for a vanished peer.
    assert loop.time() - began < 20
    assert informer.age_seconds() == 7
    clock.now += 100
    assert informer.age_seconds() == 107
    way.proxy.silent = False
    await until(lambda: informer.age_seconds() == 0)


async def test_a_quiet_watch_stays_fresh(way: Way, watching: Watch) -> None:
    clock = Clock()
    informer = watching(way, watch_seconds=1, monotonic=clock)
    await informer.wait_synced()
    for _ in range(2):
        clock.now += 50
        await until(lambda: informer.age_seconds() == 0)
    assert informer.broken_watches == 0


async def test_a_slow_way_loses_nothing(way: Way, watching: Watch) -> None:
    way.proxy.delay_seconds = 0.05
    informer = watching(way, watch_seconds=LONG_WATCH_SECONDS)
    await informer.wait_synced()
    for count in range(20):
        await way.put(f"c{count % 7}", str(count))
    await way.in_step(informer)
    assert informer.broken_watches == 0


async def test_a_way_that_breaks_again_and_again_loses_nothing(way: Way, watching: Watch) -> None:
    informer = watching(way, watch_seconds=LONG_WATCH_SECONDS)
    await informer.wait_synced()
    for count in range(60):
        name = f"c{count % 11}"
        if count % 5 == 4 and name in await way.stored():
            await way.delete(name)
        else:
            await way.put(name, str(count))
        if count % 3 == 0:
            way.proxy.cut()
    await way.in_step(informer)
    assert informer.broken_watches > 0


async def test_objects_deleted_while_the_api_server_was_down_and_etcd_compacted_are_swept(
    fresh_way: Way, fresh_cluster: DevCluster, watching: Watch
) -> None:
    way, plane = fresh_way, fresh_cluster.control_plane
    for name in ("a", "b", "c"):
        await way.put(name)
    informer = watching(way, watch_seconds=LONG_WATCH_SECONDS)
    await informer.wait_synced()
    way.proxy.refusing = True
    way.proxy.cut()
    seen = (await way.direct.get(way.path()))["metadata"]["resourceVersion"]
    await way.delete("a")
    await way.put("b", "2")
    await compact_etcd(plane.directory)
    await asyncio.to_thread(plane.kill_component, "kube-apiserver")
    await asyncio.to_thread(plane.start_component, "kube-apiserver")
    params = {"resourceVersion": seen, "timeoutSeconds": "30"}
    events = [event async for event in way.direct.watch(way.path(), params=params, read_timeout_seconds=40)]
    assert [(event["type"], event["object"]["code"]) for event in events] == [("ERROR", 410)]
    way.proxy.refusing = False
    await way.in_step(informer)
    assert way.held(informer) == {"b": "2", "c": "1"}
    assert informer.relists >= 2


async def compact_etcd(directory: Path) -> None:
    """Drop etcd's whole history, by its HTTP gateway on the cluster's Unix socket."""
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(directory / ETCD_SOCKET))) as http:
        async with http.post("http://etcd/v3/kv/range", json={"key": "AA=="}) as answer:
            revision = (await answer.json())["header"]["revision"]
        body = {"revision": revision, "physical": True}
        async with http.post("http://etcd/v3/kv/compaction", json=body) as answer:
            assert answer.status == 200, await answer.text()


@pytest.mark.long
async def test_an_etcd_restored_from_a_backup_is_listed_anew(
    fresh_way: Way, fresh_cluster: DevCluster, watching: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its versions are lower than those the informer has seen; they count all the same."""
    monkeypatch.setattr(informer_module, "MAX_EMPTY_WATCHES", 2)
    way, plane = fresh_way, fresh_cluster.control_plane
    await way.put("a", "1")
    await way.put("b", "1")
    await asyncio.to_thread(plane.stop_component, "etcd")
    await asyncio.to_thread(shutil.copytree, plane.directory / "etcd", tmp_path / "backup")
    await asyncio.to_thread(plane.start_component, "etcd")

    async def writable() -> bool:
        try:
            await way.put("later")
        except Exception:
            return False
        return True

    await until(writable)
    await way.delete("b")
    for count in range(2, 300):
        await way.put("a", str(count))
    informer = watching(way, watch_seconds=2)
    await way.in_step(informer)

    await asyncio.to_thread(plane.stop_component, "kube-apiserver")
    await asyncio.to_thread(plane.stop_component, "etcd")
    await asyncio.to_thread(shutil.rmtree, plane.directory / "etcd")
    await asyncio.to_thread(shutil.copytree, tmp_path / "backup", plane.directory / "etcd")
    await asyncio.to_thread(plane.start_component, "etcd")
    await asyncio.to_thread(plane.start_component, "kube-apiserver")
    assert (await way.stored())["b"] == "1"
    await way.in_step(informer)
    assert way.held(informer)["a"] == "1"
    await way.put("a", "2")
    await way.in_step(informer)


async def test_one_bad_object_hides_no_other(way: Way, watching: Watch) -> None:
    await way.put("good")
    await way.put("bad", "none")
    informer = watching(way)
    await informer.wait_synced()
    assert way.held(informer) == {"good": "1"}
    bad = f"{way.namespace}/bad"
    assert list(informer.invalid) == [bad]
    assert "invalid literal for int()" in informer.invalid[bad]

    await way.put("good", "nonsense")  # what was good is not kept under a name that now says something else
    await until(lambda: way.held(informer) == {})
    await way.put("bad", "7")
    await until(lambda: way.held(informer) == {"bad": "7"})
    assert list(informer.invalid) == [f"{way.namespace}/good"]
    await way.delete("good")
    await until(lambda: not informer.invalid)


async def test_a_parser_with_a_mistake_ends_nothing(way: Way, watching: Watch) -> None:
    def mistaken(raw: JsonObject) -> str:
        return str(raw["spec"]["nonsense"]) if raw["metadata"]["name"] == "odd" else "fine"

    await way.put("odd")
    informer = watching(way, parse=mistaken)
    await informer.wait_synced()
    assert informer.invalid == {f"{way.namespace}/odd": "KeyError: 'spec'"}
    await way.put("even")
    await until(lambda: way.held(informer) == {"even": "fine"})


async def test_a_callback_with_a_mistake_ends_nothing(way: Way, watching: Watch) -> None:
    mistakes = 3

    def mistaken(key: str) -> None:
        nonlocal mistakes
        if mistakes:
            mistakes -= 1
            raise RuntimeError("a mistake")

    informer = watching(way, on_change=mistaken)
    for name in "abcd":
        await way.put(name)
    await way.in_step(informer)
    assert mistakes == 0


async def test_more_objects_than_a_page_are_all_there(way: Way, watching: Watch) -> None:
    count = pages_module.PAGE_SIZE + 37
    slots = asyncio.Semaphore(20)

    async def put(number: int) -> None:
        async with slots:
            await way.put(f"c{number:04}", str(number))

    await asyncio.gather(*(put(number) for number in range(count)))
    informer = watching(way)
    await informer.wait_synced()
    assert way.held(informer) == {f"c{number:04}": str(number) for number in range(count)}
    assert informer.relists == 1


async def test_objects_that_are_larger_than_a_page_may_be_are_listed_few_at_a_time(
    way: Way, watching: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever makes them could else keep the whole list from being read, and with it an operator from starting."""
    monkeypatch.setattr(pages_module, "MAX_PAGE_BYTES", 12_000)
    large = {f"c{number}": f"{number}" * 4_000 for number in range(1, 8)}
    for name, content in large.items():
        await way.put(name, content)
    informer = watching(way)
    await informer.wait_synced()
    assert way.held(informer) == large
    assert (informer.relists, informer.broken_watches) == (1, 0)


async def test_a_selector_lets_go_of_what_it_does_not_select_any_more(way: Way, watching: Watch) -> None:
    await way.put("a")
    await way.direct.patch(way.path("a"), {"metadata": {"labels": {"mine": "yes"}}})
    await way.put("b")
    informer = watching(way, params={"labelSelector": "mine"})
    await informer.wait_synced()
    assert way.held(informer) == {"a": "1"}
    await way.direct.patch(way.path("a"), {"metadata": {"labels": {"mine": None}}})
    await until(lambda: way.held(informer) == {})


async def test_a_write_of_ours_is_there_before_the_watch_tells(way: Way, watching: Watch) -> None:
    informer = watching(way, watch_seconds=LONG_WATCH_SECONDS)
    await informer.wait_synced()
    way.proxy.hold_answers = True  # the watch lags behind
    first = await way.put("a", "1")
    second = await way.put("a", "2")
    informer.absorb(second)
    informer.absorb(first)  # an older answer that comes later
    assert way.held(informer) == {"a": "2"}
    await way.delete("a")
    third = await way.put("a", "3")
    informer.absorb(third)
    assert way.held(informer) == {"a": "3"}
    seen: list[str | None] = []
    key = f"{way.namespace}/a"
    informer._on_change = lambda changed: seen.append(informer.get(key)) if changed == key else None
    way.proxy.hold_answers = False
    await way.put("b")
    await until(lambda: "b" in way.held(informer))
    # Neither the old versions nor the deletion before the last write have come up again.
    assert seen == []
    assert way.held(informer)["a"] == "3"
    await way.delete("a")
    await until(lambda: "a" not in way.held(informer))
    informer.absorb(third)  # its deletion is known
    assert "a" not in way.held(informer)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_a_kind_whose_definition_is_not_applied_keeps_nobody_waiting(way: Way) -> None:
    """The definitions of the last version stand while the next version's operator starts."""
    unheard_of = Resource("flyball.dev", "v1alpha1", "unheardofs", "UnheardOf")
    informer: Informer[JsonObject] = Informer(way.session, unheard_of, lambda raw: raw, required=False)
    task = asyncio.create_task(informer.run())
    await asyncio.wait_for(informer.wait_synced(), PATIENCE_SECONDS)
    assert len(informer) == 0
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_keys() -> None:
    assert object_key({"metadata": {"name": "n"}}) == "n"
    assert object_key({"metadata": {"name": "n", "namespace": "ns"}}) == "ns/n"
