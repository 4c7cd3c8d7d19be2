"""What the agent writes of its node: never an old state for a new one, and nothing of an object that is gone."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest
from flyball_agent.cluster.brake_watch import BrakeWatch
from flyball_agent.cluster.gpu_node_channel import STATUS_AFTER_BRAKE_SECONDS, GpuNodeChannel
from flyball_agent.enforce.records import FoundGpu
from flyball_api.brake_acknowledgement import brake_acknowledgement_object
from flyball_api.gpu_node import Acknowledgement, GpuNodeStatus, GpuReport, PodReference, PowerLimits
from flyball_api.power_brake import PowerBrake, PowerBrakeSpec, power_brake_object
from flyball_api.reading import read_status
from flyball_api.values.units import MilliwattsPerGpu, NodeMilliwatts
from flyball_api.writing import to_json, to_patch
from flyball_kube.errors import ApiUnreachable
from flyball_kube.session import ApiSession
from msgspec.structs import replace

from tests.support.schedules.memory_api import Json, MemoryApi
from tests.support.schedules.network import Link, MemorySession, Network
from tests.support.schedules.virtual_time import VirtualLoop

STATUS = "/apis/flyball.dev/v1alpha1/gpunodes/a/status"


class Agent:
    """An agent whose news is what a test says it is."""

    node = "a"

    def __init__(self) -> None:
        self.fresh = True
        self.changed, self.round_made = asyncio.Event(), asyncio.Event()
        self.significant: tuple[str, ...] = ("first",)
        enforced = SimpleNamespace(acknowledged=None, driver_error="none yet", knows_reported=True)
        self.state: Any = SimpleNamespace(counts=SimpleNamespace(rounds=1), enforced=enforced, node="a", version="1")
        self.gpus: tuple[GpuReport, ...] = ()
        self.specs: list[object] = []
        self.acknowledged: Sequence[Acknowledgement] | None = ()
        self.reported: list[list[str]] = []
        self.published: list[int] = []

    def say(self, news: str) -> None:
        self.significant = (news,)
        self.changed.set()

    def make_round(self) -> None:
        self.fresh = True
        self.round_made.set()

    def status(self, previous: GpuNodeStatus) -> GpuNodeStatus:
        acknowledged = self.state.enforced.acknowledged
        return GpuNodeStatus(mode=self.significant[0], devices=self.gpus, acknowledged=acknowledged)

    def status_published(self, round_number: int) -> None:
        self.published.append(round_number)

    def accept_spec(self, spec: object, acknowledged: Sequence[Acknowledgement] | None = ()) -> None:
        self.specs.append(spec)
        self.acknowledged = acknowledged

    def take_reported(self, gpus: Sequence[FoundGpu]) -> None:
        self.reported.append([gpu.uuid for gpu in gpus])

    def spec_gone(self) -> None:
        self.specs.append(None)


class Server(MemorySession):
    """A way to an API server in memory that remembers the patches; where `loses`, the answer to one of them is lost."""

    def __init__(self, api: MemoryApi) -> None:
        super().__init__(Link(Network(api), random.Random(1)), 10.0)
        self.api = api
        self.patches: list[Json] = []
        self.patched_at: list[float] = []
        self.requests: list[str] = []
        self.loses = self.hides_brakes = False
        self.brakes_wait: asyncio.Event | None = None  # until when nobody is told of brakes' acknowledgements
        self.writes_wait: asyncio.Event | None = None  # until when patches are on their way
        self.on_patch: Callable[[], None] = lambda: None  # called while a patch is under way

    async def get(self, path: str, **params: str) -> Json:
        if self.hides_brakes and "brakeacknowledgements" in path:
            raise ApiUnreachable("the test lets nobody ask for that")
        if self.brakes_wait is not None and "brakeacknowledgements" in path:
            await self.brakes_wait.wait()
        return await super().get(path, **params)

    async def create(self, path: str, body: Json, **params: str) -> Json:
        self.requests.append("create")
        return await super().create(path, body, **params)

    async def patch(self, path: str, body: Any, content_type: str = "", **params: str) -> Json:
        self.patches.append(body)
        self.patched_at.append(asyncio.get_running_loop().time())
        self.requests.append("patch")
        if self.writes_wait is not None:
            await self.writes_wait.wait()
        answer = await super().patch(path, body, content_type, **params)
        self.on_patch()
        self.on_patch = lambda: None
        if self.loses:
            self.loses = False
            raise ApiUnreachable("the test has lost the answer")
        return answer

    def make_node(self, name: str = "a", **spec: object) -> None:
        self.api.put("gpunodes", {"kind": "GPUNode", "metadata": {"name": name}, "spec": spec})

    def stands(self) -> str | None:
        """The mode in the node's status; None where there is no status."""
        item = self.api.get("gpunodes", "a")
        return None if item is None or "status" not in item else str(item["status"]["mode"])


def play(course: Callable[[Server, Agent, GpuNodeChannel], Awaitable[None]], interval_seconds: float = 3600.0) -> None:
    loop = VirtualLoop()
    try:
        loop.run_until_complete(_play(course, interval_seconds))
    finally:
        loop.close()


async def _play(course: Callable[[Server, Agent, GpuNodeChannel], Awaitable[None]], interval_seconds: float) -> None:
    server, agent = Server(MemoryApi(lambda change: None)), Agent()
    channel = GpuNodeChannel(cast(ApiSession, server), cast(Any, agent), status_interval_seconds=interval_seconds)
    running = asyncio.create_task(channel.run())
    await asyncio.sleep(1.0)
    try:
        await course(server, agent, channel)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def test_measurements_of_nodes_that_had_the_same_news_do_not_come_together() -> None:
    interval, nodes = 10.0, 40
    written: list[list[float]] = []

    async def course(server: Server, agent: Agent, channel: GpuNodeChannel) -> None:
        server.make_node()
        await asyncio.sleep(5.5 * interval)
        written.append(server.patched_at)

    for _ in range(nodes):
        play(course, interval)
    for turn in range(1, 5):
        times = [of_node[turn] for of_node in written]
        assert max(times) - min(times) > 0.25 * interval, f"turn {turn}"
    for of_node in written:
        gaps = [later - earlier for earlier, later in pairwise(of_node)]
        assert gaps[0] < 1.01 * interval
        assert gaps[1:] == pytest.approx([interval] * len(gaps[1:]), rel=0.01)  # and nobody writes more for it


def test_a_governor_hears_what_was_acknowledged_and_reported_before_it_as_soon_as_the_api_server_says_it() -> None:
    """By the small object, too, which is ahead of the status; what is acknowledged later is its own."""
    in_status, of_brake = (Acknowledgement(1, 2, NodeMilliwatts(bound)) for bound in (500, 300))

    async def course(server: Server, agent: Agent, channel: GpuNodeChannel) -> None:
        server.make_node(epoch=1)
        await asyncio.sleep(1.0)
        assert (agent.acknowledged, agent.reported) == ((), [[]])
        server.api.put("brakeacknowledgements", brake_acknowledgement_object("a", "uid", of_brake))
        channel.governor_is_new()
        server.make_node(epoch=2)
        await server.patch(STATUS, {"status": {"acknowledged": to_patch(in_status), "devices": [{"uuid": "GPU-1"}]}})
        await asyncio.sleep(1.0)
        assert agent.specs[-1] == {"epoch": 2}
        assert agent.acknowledged is None, "nobody has read it"
        reading = asyncio.create_task(channel.reread())
        await asyncio.sleep(1.0)
        assert (agent.acknowledged, agent.reported) == ((in_status, of_brake), [[], ["GPU-1"]])
        await reading

    play(course)


def test_of_a_governor_that_comes_while_a_report_waits_nothing_is_written_before_that_is_known() -> None:
    async def course(server: Server, agent: Agent, channel: GpuNodeChannel) -> None:
        server.make_node(epoch=1)
        await asyncio.sleep(1.0)
        agent.fresh = False
        agent.say("second")
        await asyncio.sleep(1.0)
        channel.governor_is_new()
        agent.make_round()
        await asyncio.sleep(60.0)
        assert server.stands() == "first"
        await channel.reread()
        await asyncio.sleep(1.0)
        assert server.stands() == "second"

    play(course)


def test_a_governor_is_not_told_that_what_the_one_before_it_knew_is_published() -> None:
    """It counts its rounds from one, and would let go of GPUs though nobody has seen that in its status."""

    async def course(server: Server, agent: Agent, channel: GpuNodeChannel) -> None:
        server.make_node(epoch=1)
        await asyncio.sleep(1.0)
        assert agent.published == [1]
        agent.state.counts.rounds = 5000
        server.on_patch = channel.governor_is_new
        agent.say("second")
        await asyncio.sleep(1.0)
        assert server.stands() == "second"
        assert agent.published == [1]
        agent.state.counts.rounds = 3
        await channel.reread()
        agent.say("third")
        await asyncio.sleep(1.0)
        assert agent.published == [1, 3]

    play(course)


def test_of_a_governor_that_comes_while_a_brakes_acknowledgement_fails_nothing_is_written_before_that_is_known() -> (
    None
):
    """What is at hand is of the one before it, which perhaps knew more GPUs, and another session of the driver."""

    async def course(server: Server, agent: Agent, channel: GpuNodeChannel) -> None:
        server.make_node()
        await asyncio.sleep(1.0)
        channel._acknowledged = LAST
        agent.state.enforced.acknowledged = replace(LAST, bound_milliwatts=NodeMilliwatts(700))
        server.on_patch, server.loses = channel.governor_is_new, True
        channel._has_small_object = True
        server.api.put("brakeacknowledgements", brake_acknowledgement_object("a", "uid", LAST))
        agent.say("second")
        await asyncio.sleep(60.0)
        assert server.stands() == "first"
        await channel.reread()
        await asyncio.sleep(60.0)
        assert server.stands() == "second"

    play(course)


def test_a_governor_is_told_nothing_of_what_was_read_before_it_began() -> None:
    """Another answer may have come first, and the one before it have acknowledged more since."""
    later = Acknowledgement(1, 2, NodeMilliwatts(500))

    async def course(server: Server, agent: Agent, channel: GpuNodeChannel) -> None:
        server.make_node()
        channel.governor_is_new()
        server.brakes_wait = asyncio.Event()
        reading = asyncio.create_task(channel.reread())
        await asyncio.sleep(1.0)
        waits, server.brakes_wait = server.brakes_wait, None
        await server.patch(STATUS, {"status": {"acknowledged": to_patch(later), "devices": [{"uuid": "GPU-1"}]}})
        channel.governor_is_new()
        heard = len(agent.reported)
        waits.set()
        await reading
        assert (agent.acknowledged, agent.reported[heard:]) == ((later,), [["GPU-1"]])

    play(course)


@pytest.mark.parametrize("small", [False, True], ids=["in the status", "by the small object"])
def test_a_governor_is_told_what_the_one_before_it_has_acknowledged_though_that_is_on_its_way(small: bool) -> None:
    """Watts may be granted by it once it has come, and a journal that is lost or put back knows nothing of it."""
    braked = replace(LAST, bound_milliwatts=NodeMilliwatts(700), bound_by="1")

    async def course(server: Server, agent: Agent, channel: GpuNodeChannel) -> None:
        server.make_node()
        agent.state.enforced.acknowledged = LAST
        await asyncio.sleep(1.0)
        server.api.put("brakeacknowledgements", brake_acknowledgement_object("a", "uid", LAST))
        channel._has_small_object = True
        agent.state.enforced.acknowledged = braked if small else replace(braked, generation=LAST.generation + 1)
        server.writes_wait = asyncio.Event()
        agent.say("second")
        await asyncio.sleep(1.0)
        channel.governor_is_new()
        await channel.reread()
        assert agent.acknowledged is not None
        assert (LAST.generation + (not small), 700) in {
            (each.generation, each.bound_milliwatts) for each in agent.acknowledged
        }
        server.writes_wait.set()

    play(course)


def test_what_was_acknowledged_is_not_known_while_the_api_server_cannot_say_it() -> None:
    async def course(server: Server, agent: Agent, channel: GpuNodeChannel) -> None:
        server.hides_brakes = True
        channel.governor_is_new()
        reading = asyncio.create_task(channel.reread())
        server.make_node(epoch=1)
        await asyncio.sleep(60.0)
        assert agent.specs[-1] == {"epoch": 1}
        assert agent.acknowledged is None
        assert server.stands() is None, "it would take the place of what is to be read"
        server.hides_brakes = False
        await reading
        assert agent.acknowledged == ()

    play(course)


def gpus_that_stand(server: Server) -> tuple[GpuReport, ...]:
    item = server.api.get("gpunodes", "a")
    assert item is not None
    return read_status(item, GpuNodeStatus)[0].devices


def test_gpus_that_another_agent_has_reported_stand_until_this_one_has_a_driver() -> None:
    """Without one it sees none but its journal's; they are there, and what was read of them is past."""
    most = MilliwattsPerGpu(450_000)
    static = GpuReport("GPU-1", 0, "A100", PowerLimits(max_milliwatts=most))
    limits = replace(static.limits, requested_milliwatts=most, enforced_milliwatts=most)
    as_read = replace(static, limits=limits, pod=PodReference("team", "x"), energy_millijoules=5, power_milliwatts=most)

    async def course(server: Server, agent: Agent, channel: GpuNodeChannel) -> None:
        server.make_node()
        await asyncio.sleep(1.0)
        await server.patch(STATUS, {"status": {"devices": [to_json(as_read)]}})
        agent.say("second")
        await asyncio.sleep(1.0)
        assert gpus_that_stand(server) == (static,)
        agent.gpus = (GpuReport("GPU-2"),)
        agent.say("its journal knows of another one")
        await asyncio.sleep(1.0)
        assert gpus_that_stand(server) == (*agent.gpus, static), "which never opened, and is in no journal"
        agent.state.enforced.driver_error = None
        agent.say("its driver has come")
        await asyncio.sleep(1.0)
        assert gpus_that_stand(server) == agent.gpus
        agent.state.enforced.driver_error = "let go of"
        agent.gpus = ()
        agent.say("it was told to forget it")
        await asyncio.sleep(1.0)
        assert gpus_that_stand(server) == ()

    play(course)


def test_gpus_that_were_reported_stand_until_the_governor_has_heard_of_them() -> None:
    """In its own process it hears of them a round after its agent has: one that is lost, which a new journal does not know,
    would be on no list meanwhile, and on none ever after where the governor ends by then."""

    async def course(server: Server, agent: Agent, channel: GpuNodeChannel) -> None:
        server.make_node()
        await asyncio.sleep(1.0)
        await server.patch(STATUS, {"status": {"devices": [{"uuid": "GPU-1"}, {"uuid": "GPU-lost"}]}})
        channel.governor_is_new()
        await channel.reread()
        agent.state.enforced.driver_error, agent.state.enforced.knows_reported = None, False
        agent.gpus = (GpuReport("GPU-1"),)
        agent.say("second")
        await asyncio.sleep(1.0)
        assert gpus_that_stand(server) == (*agent.gpus, GpuReport("GPU-lost"))
        agent.state.enforced.knows_reported = True
        agent.say("third")
        await asyncio.sleep(1.0)
        assert gpus_that_stand(server) == agent.gpus

    play(course)


@pytest.mark.parametrize("new", [True, False])
def test_another_governor_may_know_less_than_the_one_before_it(new: bool) -> None:
    async def course(server: Server, agent: Agent, channel: GpuNodeChannel) -> None:
        server.make_node()
        agent.gpus = (GpuReport("GPU-1"),)
        agent.state.enforced.driver_error = None
        await asyncio.sleep(1.0)
        agent.state.enforced.driver_error = "gone"
        if new:
            channel.governor_is_new()
            await channel.reread()
        agent.gpus = ()
        agent.say("second")
        await asyncio.sleep(1.0)
        assert len(gpus_that_stand(server)) == new

    play(course)


def test_nothing_is_reported_of_a_governor_that_makes_no_rounds() -> None:
    """The operator goes by the age of the last report: an old state must not be taken for a proof."""

    async def course(server: Server, agent: Agent, channel: GpuNodeChannel) -> None:
        agent.fresh = False
        server.make_node()
        await asyncio.sleep(60.0)
        assert server.stands() is None
        agent.make_round()
        await asyncio.sleep(1.0)
        assert server.stands() == "first"

    play(course)


def test_what_was_to_be_said_of_an_object_that_is_gone_is_said_of_the_next_one() -> None:
    async def course(server: Server, agent: Agent, channel: GpuNodeChannel) -> None:
        server.make_node()
        await asyncio.sleep(1.0)
        agent.fresh = False
        agent.say("second")
        await asyncio.sleep(1.0)
        server.api.force_away("gpunodes", "a")
        await asyncio.sleep(1.0)
        agent.make_round()
        await asyncio.sleep(60.0)
        assert (channel.failed, len(server.patches)) == (0, 1)
        server.make_node()
        await asyncio.sleep(1.0)
        assert server.stands() == "second"

    play(course)


def test_after_a_lost_answer_it_is_written_again_also_where_all_is_as_it_was_before() -> None:
    async def course(server: Server, agent: Agent, channel: GpuNodeChannel) -> None:
        server.make_node()
        await asyncio.sleep(1.0)
        server.loses = True
        agent.say("second")
        await asyncio.sleep(0.05)  # it has been written, and whoever wrote it does not know
        agent.say("first")
        await asyncio.sleep(10.0)
        assert channel.failed == 1
        assert server.stands() == "first"

    play(course)


def test_a_report_is_written_over_the_version_that_was_seen() -> None:
    async def course(server: Server, agent: Agent, channel: GpuNodeChannel) -> None:
        server.make_node()
        seen = server.api.get("gpunodes", "a")
        await asyncio.sleep(1.0)
        assert seen is not None
        assert [patch["metadata"] for patch in server.patches] == [
            {"resourceVersion": seen["metadata"]["resourceVersion"]}
        ]

    play(course)


LAST = Acknowledgement(1, 7, NodeMilliwatts(800), "boot", "load", bound_milliwatts=NodeMilliwatts(900), digest="d")


@pytest.mark.parametrize(
    ("change", "by_brake"),
    [
        ({"bound_milliwatts": 700, "limits_milliwatts": 600}, True),
        ({"bound_milliwatts": 700}, True),
        ({"limits_milliwatts": 600}, False),
        ({"bound_milliwatts": 700, "limits_milliwatts": 801}, False),
        ({"bound_milliwatts": 700, "generation": 8}, False),
        ({"bound_milliwatts": 700, "digest": "e"}, False),
        ({"bound_milliwatts": 700, "driver_load": "another"}, False),
        ({"bound_milliwatts": 700, "boot_id": "another"}, False),
    ],
)
def test_only_what_a_brake_has_lowered_is_said_by_the_small_object(change: Mapping[str, Any], by_brake: bool) -> None:
    """It says nothing of the driver's session, of GPUs, or of a limit that is above what was acknowledged."""

    async def course(server: Server, agent: Agent, channel: GpuNodeChannel) -> None:
        channel._acknowledged = LAST
        agent.state.enforced.acknowledged = replace(LAST, **change)
        assert channel._lowered_by_brake() is by_brake

    play(course)


def test_measurements_that_are_due_while_statuses_wait_for_a_brake_are_written_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An agent that only looked at the clock until the wait is over would take all of a processor."""
    interval = 3.0  # shorter than statuses wait after a brake
    # The first measurements are due late, so that the wait is long, and those after the next news early.
    chosen = iter([max, max, min])
    monkeypatch.setattr(random, "uniform", lambda low, high: next(chosen, max)(low, high))

    async def course(server: Server, agent: Agent, channel: GpuNodeChannel) -> None:
        looks, is_of_brake = 0, channel._is_of_brake

        def counted() -> bool:
            nonlocal looks
            looks += 1
            assert looks < 100
            return is_of_brake()

        channel._is_of_brake = counted  # type: ignore[method-assign]
        server.make_node()
        agent.state.enforced.acknowledged = LAST
        agent.say("granted")
        await asyncio.sleep(0.1)
        agent.state.enforced.acknowledged = braked = replace(LAST, bound_milliwatts=NodeMilliwatts(700), bound_by="1")
        agent.say("braked")
        await asyncio.sleep(0.1)
        assert server.stands() == "granted"
        agent.state.enforced.acknowledged = replace(braked, generation=LAST.generation + 1, boottime_nanoseconds=2)
        agent.say("granted anew")
        await asyncio.sleep(0.1)
        assert server.stands() == "granted anew"
        written = channel.published
        await asyncio.sleep(1.01 * interval)
        assert channel.published > written

    play(course, interval)


def test_news_that_waits_for_a_brake_is_told_when_the_wait_is_over() -> None:
    """Though a grant that followed the brake was acknowledged meanwhile, and measurements are due much later."""

    async def course(server: Server, agent: Agent, channel: GpuNodeChannel) -> None:
        server.make_node()
        agent.state.enforced.acknowledged = LAST
        agent.say("granted")
        await asyncio.sleep(0.1)
        agent.state.enforced.acknowledged = braked = replace(LAST, bound_milliwatts=NodeMilliwatts(700), bound_by="1")
        agent.say("braked")
        await asyncio.sleep(0.1)
        agent.state.enforced.acknowledged = replace(braked, generation=LAST.generation + 1, boottime_nanoseconds=2)
        agent.say("granted anew")
        await asyncio.sleep(0.1)
        agent.say("a GPU is lost")
        await asyncio.sleep(STATUS_AFTER_BRAKE_SECONDS[1])
        assert server.stands() == "a GPU is lost"

    play(course)


@pytest.mark.parametrize(
    ("at_start", "at_the_brake", "requests"),
    [
        (
            False,
            False,
            ["create"],
        ),  # one request each, or at the first brake a thousand agents hold up each other's cuts
        (True, True, ["patch"]),
        (True, False, ["patch", "create"]),  # somebody has deleted it
        (False, True, ["create", "patch"]),  # somebody has made it
    ],
)
def test_the_small_object_is_made_or_changed_by_one_request_where_nobody_else_touches_it(
    at_start: bool, at_the_brake: bool, requests: list[str]
) -> None:
    async def course(server: Server, agent: Agent, channel: GpuNodeChannel) -> None:
        def put(stands: bool) -> None:
            if stands:
                server.api.put("brakeacknowledgements", brake_acknowledgement_object("a", "uid", LAST))
            elif server.api.get("brakeacknowledgements", "a") is not None:
                server.api.remove("brakeacknowledgements", "a")

        put(at_start)
        channel.governor_is_new()
        server.make_node()
        await channel.reread()
        await asyncio.sleep(1.0)
        put(at_the_brake)
        channel._acknowledged = LAST
        agent.state.enforced.acknowledged = replace(LAST, bound_milliwatts=NodeMilliwatts(700))
        server.requests.clear()
        agent.say("second")
        await asyncio.sleep(1.0)
        assert server.requests == requests
        item = server.api.get("brakeacknowledgements", "a")
        assert item is not None
        assert item["spec"]["boundMilliwatts"] == 700

    play(course)


def test_listeners_never_get_half_of_the_brakes() -> None:
    """An agent would forget those that the rest of the list has."""

    async def course(server: Server, agent: Agent, channel: GpuNodeChannel) -> None:
        for cap in ("hall", "row"):
            server.api.put("powerbrakes", power_brake_object(cap, PowerBrakeSpec(1, 1, 500_000)))
        seen: list[set[str]] = []

        def saw(brakes: Mapping[str, PowerBrake]) -> None:
            seen.append(set(brakes))

        watch = BrakeWatch(cast(ApiSession, server))
        watch.listen(saw)
        watching = asyncio.create_task(watch.run())
        await asyncio.sleep(1.0)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        assert seen
        assert all(caps == {"hall", "row"} for caps in seen)

    play(course)
