"""Events on the real API server: written, counted, bounded, and never in the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest_asyncio
from flyball_kube.credentials import load_configuration
from flyball_kube.errors import ApiUnreachable
from flyball_kube.resources import EVENTS
from flyball_kube.session import ApiSession, JsonObject
from flyball_operator.report import events
from flyball_operator.report.events import EventRecorder, Regarding

from tests.support.waiting import until


class Recording:
    """A recorder at work against a namespace, with a clock that the test moves."""

    def __init__(self, session: FlakySession, namespace: str) -> None:
        self.session, self.namespace = session, namespace
        self.now = 1000.0
        self.recorder = EventRecorder(session, "pod-1-abcd", monotonic=lambda: self.now)
        self.job = Regarding("flyball.dev/v1alpha1", "EnergyAwareJob", "gpt2", "uid-1", namespace)

    def say(self, note: str = "8 GPUs on n1", regarding: Regarding | None = None, warning: bool = False) -> None:
        self.recorder.record(regarding or self.job, "Resized", note, action="Resize", warning=warning)

    async def stored(self, namespace: str | None = None) -> list[JsonObject]:
        items: list[JsonObject] = (await self.session.get(EVENTS.path(namespace or self.namespace)))["items"]
        return [item for item in items if item["reportingController"] == "flyball.dev/operator"]

    async def until(self, condition: Callable[[list[JsonObject]], bool], namespace: str | None = None) -> Any:
        found: list[JsonObject] = []

        async def holds() -> bool:
            found[:] = await self.stored(namespace)
            return condition(found)

        await until(holds, lambda: f"the last events: {found}")
        return found

    async def until_written(self, writes: int) -> None:
        """Until so many answers have come: what others can read already may not have been answered yet."""
        await until(lambda: self.session.writes >= writes, lambda: f"{writes} writes, not {self.session.writes}")


class FlakySession(ApiSession):
    """A session that can be cut off, or lose the answers to what it creates."""

    down = False
    lose_answers = 0
    writes = 0
    refused = 0

    async def request(self, method: str, path: str, **rest: Any) -> JsonObject:
        if self.down:
            self.refused += 1
            raise ApiUnreachable("cut off by the test")
        answer = await super().request(method, path, **rest)
        if method != "GET":
            self.writes += 1
            if self.lose_answers:
                self.lose_answers -= 1
                raise ApiUnreachable("the answer was lost")
        return answer


@pytest_asyncio.fixture
async def recording(cluster: Any) -> AsyncIterator[Recording]:
    configuration = load_configuration(cluster.devcluster.control_plane.kubeconfig())
    async with FlakySession(configuration) as session:
        recording = Recording(session, cluster.namespace)
        task = asyncio.create_task(recording.recorder.run())
        yield recording
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_an_event_says_what_was_done_to_which_object_and_why(recording: Recording) -> None:
    recording.say(warning=True)
    (event,) = await recording.until(lambda found: len(found) == 1)
    assert event["type"] == "Warning"
    assert (event["reason"], event["action"], event["note"]) == ("Resized", "Resize", "8 GPUs on n1")
    assert event["reportingInstance"] == "pod-1-abcd"
    assert event["regarding"] == {
        "apiVersion": "flyball.dev/v1alpha1",
        "kind": "EnergyAwareJob",
        "namespace": recording.namespace,
        "name": "gpt2",
        "uid": "uid-1",
    }
    assert "series" not in event


async def test_an_event_about_a_cluster_wide_object_is_where_the_api_server_wants_it(recording: Recording) -> None:
    name = f"cap-{recording.namespace}"
    recording.say(regarding=Regarding("flyball.dev/v1alpha1", "PowerCap", name, "uid-2"))

    def named(found: list[JsonObject]) -> list[JsonObject]:
        return [item for item in found if item["regarding"]["name"] == name]

    found = await recording.until(lambda found: bool(named(found)), "default")
    assert "namespace" not in named(found)[0]["regarding"]


async def test_the_same_event_counts_up_instead_of_coming_again(recording: Recording) -> None:
    recording.say()
    await recording.until_written(1)
    for _ in range(4):
        recording.say()
    recording.say("another sentence")  # another event: once it is there, the recorder has been through its work
    await recording.until(lambda found: len(found) == 2)
    await recording.until_written(2)
    assert recording.session.writes == 2  # the count waits
    recording.now += events.SERIES_WRITE_SECONDS
    recording.say("a third")
    found = await recording.until(lambda found: any("series" in item for item in found))
    (counted,) = [item for item in found if "series" in item]
    assert counted["note"] == "8 GPUs on n1"
    assert counted["series"]["count"] == 5
    assert counted["series"]["lastObservedTime"] > counted["eventTime"]


async def test_after_a_long_silence_a_new_series_begins(recording: Recording) -> None:
    recording.say()
    await recording.until(lambda found: len(found) == 1)
    recording.now += events.SERIES_SECONDS + 1
    recording.say()
    found = await recording.until(lambda found: len(found) == 2)
    assert not any("series" in item for item in found)


async def test_an_event_that_the_api_server_has_dropped_is_told_again(recording: Recording) -> None:
    recording.say()
    (event,) = await recording.until(lambda found: len(found) == 1)
    await recording.session.delete(EVENTS.path(recording.namespace, event["metadata"]["name"]))
    recording.now += events.SERIES_WRITE_SECONDS
    recording.say()
    (again,) = await recording.until(lambda found: len(found) == 1)
    assert again["series"]["count"] == 2


async def test_one_object_cannot_flood_the_api_server(recording: Recording) -> None:
    for number in range(200):
        recording.say(f"sentence {number}")
    burst = int(events.OBJECT_BURST)
    assert recording.recorder.dropped == 200 - burst
    other = Regarding("flyball.dev/v1alpha1", "EnergyAwareJob", "bert", "uid-3", recording.namespace)
    recording.say("about another object", other)
    await recording.until(lambda found: len(found) == burst + 1)
    recording.now += events.OBJECT_SECONDS_PER_EVENT
    recording.say("a new token")
    recording.say("none left")
    await recording.until(lambda found: len(found) == burst + 2)
    assert recording.recorder.dropped == 200 - burst + 1


async def test_all_objects_together_cannot_flood_it_either(recording: Recording) -> None:
    recording.session.down = True
    for number in range(3000):
        recording.say(regarding=Regarding("v1", "Node", f"n{number}", f"uid-{number}"))
    assert recording.recorder.dropped == 3000 - int(events.PROCESS_BURST)


async def test_what_was_recorded_in_an_outage_is_written_after_it(recording: Recording) -> None:
    recording.session.down = True
    recording.say()
    recording.say()
    await until(lambda: recording.session.refused > 0)
    recording.session.down = False
    (event,) = await recording.until(lambda found: len(found) == 1)
    assert event["series"]["count"] == 2


async def test_a_lost_answer_makes_no_second_event(recording: Recording) -> None:
    recording.session.lose_answers = 1
    recording.say()
    await recording.until(lambda found: len(found) == 1)
    recording.say("later")
    assert len(await recording.until(lambda found: len(found) >= 2)) == 2
    assert recording.session.lose_answers == 0
    assert recording.recorder.dropped == 0


async def test_what_the_api_server_refuses_is_dropped_and_the_rest_goes_on(recording: Recording) -> None:
    recording.say(regarding=Regarding("v1", "Pod", "p", "u", "no-such-namespace"))
    recording.say("long " * 1000)
    (event,) = await recording.until(lambda found: len(found) == 1)
    assert len(event["note"]) == events.MAX_NOTE_BYTES
    await until(lambda: recording.recorder.dropped > 0)
    assert recording.recorder.dropped == 1


async def test_a_note_is_cut_between_characters(recording: Recording) -> None:
    recording.say("x" + "é" * 1000)
    (event,) = await recording.until(lambda found: len(found) == 1)
    assert event["note"] == "x" + "é" * 511


async def test_names_as_long_as_kubernetes_allows_are_cut_to_fit(recording: Recording) -> None:
    long = Regarding("v1", "Pod", "a" * 236 + ".-" + "b" * 15, "u", recording.namespace)
    recording.say(regarding=long)
    (event,) = await recording.until(lambda found: len(found) == 1)
    assert len(event["metadata"]["name"]) <= events.MAX_NAME_LENGTH
    assert event["regarding"]["name"] == long.name
