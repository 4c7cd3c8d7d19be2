"""The training socket: what it answers, and that no pod can hurt anybody by it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from flyball_agent.energy.observations import (
    COMPUTATION_SECONDS,
    MAX_ASKED_SECONDS,
    ClockAsked,
    InvalidReport,
    StepReport,
)
from flyball_agent.energy.stage_profiles import MAX_BODY_BYTES as MAX_PROFILE_BYTES
from flyball_agent.energy.stage_profiles import StageProfile
from flyball_agent.enforce.gpu_state import PodName
from flyball_agent.training.sockets import (
    BODY_SECONDS,
    CLOCKS_BURST,
    CLOCKS_NAME,
    CLOCKS_PER_SECOND,
    CONNECTION_BURST,
    CONNECTIONS_PER_SECOND,
    FRESH_BURST,
    FRESH_PER_SECOND,
    IDLE_SECONDS,
    MAX_BODY_BYTES,
    MAX_CONNECTIONS,
    MAX_DATAGRAM_BYTES,
    REQUEST_BURST,
    SOCKET_NAME,
    TrainingSockets,
)

from tests.support.descriptors import KERNEL_REFUSES, send_with_descriptor
from tests.support.waiting import until

POD, OTHER = PodName("research", "gpt2-1-0"), PodName("research", "bert-1-0")
REPORT = {"iterations": 100, "windowIterations": 10, "windowSeconds": 2.5, "localBatchSize": 32}
STAGE = {"stage": 1, "waitingMilliwatts": 55_000, "rows": "forward,1410,0.15,27.5\nbackward,1410,0.31,52\n"}


class Backend:
    """Remembers what it was told; knows one pod."""

    def __init__(self) -> None:
        self.reports: list[tuple[PodName, StepReport]] = []
        self.asked: list[tuple[PodName, ClockAsked]] = []
        self.stages: list[tuple[PodName, StageProfile]] = []
        self.full = False
        self.readings = 0
        self.known = {POD, OTHER}

    def report_steps(self, pod: PodName, report: StepReport) -> bool:
        if pod not in self.known:
            return False
        self.reports.append((pod, report))
        return True

    def ask_clock(self, pod: PodName, asked: ClockAsked) -> bool:
        if pod not in self.known:
            return False
        self.asked.append((pod, asked))
        return True

    def report_stage(self, pod: PodName, profile: StageProfile) -> bool:
        if self.full:
            raise InvalidReport("stage: one more than a pod can have")
        if pod not in self.known:
            return False
        self.stages.append((pod, profile))
        return True

    def asked_by(self, pod: PodName) -> list[ClockAsked]:
        return [asked for asker, asked in self.asked if asker == pod]

    def granted(self, pod: PodName) -> dict[str, int]:
        return {"clockMegahertz": 1005, "powerLimitMilliwatts": 250_000}

    def energy(self, pod: PodName) -> dict[str, int] | None:
        return {"energyMillijoules": 42, "powerMilliwatts": 7} if pod in self.known else None

    def capabilities(self, pod: PodName) -> dict[str, object] | None:
        return {"gpus": {"GPU-1": {"clocksLockable": True}}} if pod in self.known else None

    async def read_afresh(self) -> None:
        self.readings += 1


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


Served = tuple[Backend, TrainingSockets, Path, Clock]


@pytest.fixture
async def served(short_folder: Path) -> AsyncIterator[Served]:
    """Two pods' sockets, with a clock that the test moves: (backend, sockets, folder, clock)."""
    backend, clock = Backend(), Clock()
    sockets = TrainingSockets(backend, short_folder, monotonic=clock)
    await sockets.sync({"uid-1": POD, "uid-2": OTHER})
    yield backend, sockets, short_folder, clock
    await sockets.close()


def client(folder: Path, uid: str = "uid-1") -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        "http://flyball", connector=aiohttp.UnixConnector(str(folder / uid / SOCKET_NAME)), raise_for_status=False
    )


async def refusal(answer: aiohttp.ClientResponse) -> tuple[int, str]:
    body = await answer.json()
    assert set(body) == {"error"}
    assert body["error"]["message"]
    return answer.status, body["error"]["reason"]


async def test_steps_are_taken_for_the_pod_whose_folder_it_is(served: Served) -> None:
    backend, _, folder, _ = served
    async with client(folder) as one, client(folder, "uid-2") as two:
        for session in (one, two):
            async with session.post("/v1/steps", json=REPORT) as answer:
                assert answer.status == 200
                assert await answer.json() == {"clockMegahertz": 1005, "powerLimitMilliwatts": 250_000}
        async with one.get("/v1/energy") as answer:
            assert await answer.json() == {"energyMillijoules": 42, "powerMilliwatts": 7}
    assert backend.reports == [(POD, StepReport(100, 10, 2.5, 32)), (OTHER, StepReport(100, 10, 2.5, 32))]


async def test_a_clock_is_asked_for_the_pod_whose_folder_it_is(served: Served) -> None:
    backend, _, folder, _ = served
    async with client(folder) as one, client(folder, "uid-2") as two:
        async with one.put("/v1/clocks", json={"maxMegahertz": 900, "seconds": 5}) as answer:
            assert await answer.json() == {"clockMegahertz": 1005, "powerLimitMilliwatts": 250_000}
        async with two.put("/v1/clocks", json={"maxMegahertz": None}) as answer:
            assert answer.status == 200
        backend.known.clear()
        async with one.put("/v1/clocks", json={"maxMegahertz": 900}) as answer:
            assert await refusal(answer) == (409, "NotGoverned")
    assert backend.asked == [(POD, ClockAsked(900, 5.0)), (OTHER, ClockAsked(None, MAX_ASKED_SECONDS))]


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("POST", "/v1/steps", b"{", (400, "NotJson")),
        ("POST", "/v1/steps", b"\xff\xfe", (400, "NotJson")),
        ("POST", "/v1/steps", b"[1]", (422, "Invalid")),
        ("POST", "/v1/steps", json.dumps({**REPORT, "iterations": -1}).encode(), (422, "Invalid")),
        ("POST", "/v1/steps", b'{"iterations": 1e400}', (400, "NotJson")),
        ("POST", "/v1/steps", b"[" * 4000, (400, "NotJson")),
        ("POST", "/v1/steps", b"x" * (MAX_BODY_BYTES + 1), (413, "TooLarge")),
        ("PUT", "/v1/clocks", b"{}", (422, "Invalid")),
        ("PUT", "/v1/clocks", b"[]", (422, "Invalid")),
        ("PUT", "/v1/clocks", b'{"maxMegahertz": true}', (422, "Invalid")),
        ("PUT", "/v1/clocks", b'{"maxMegahertz": 0}', (422, "Invalid")),
        ("PUT", "/v1/clocks", b'{"maxMegahertz": 9.5}', (422, "Invalid")),
        ("PUT", "/v1/clocks", b'{"maxMegahertz": 900, "gpu": 1}', (422, "Invalid")),
        ("PUT", "/v1/clocks", b'{"maxMegahertz": 900, "seconds": 31}', (422, "Invalid")),
        ("PUT", "/v1/clocks", b'{"maxMegahertz": 900, "seconds": 0}', (422, "Invalid")),
        ("PUT", "/v1/clocks", b'{"maxMegahertz": 900, "seconds": "NaN"}', (422, "Invalid")),
        ("GET", "/v1/steps", None, (405, "MethodNotAllowed")),
        ("PUT", "/v1/energy", b"{}", (405, "MethodNotAllowed")),
        ("GET", "/../../etc/passwd", None, (404, "NotFound")),
        ("POST", "/v1/clocks", b"{}", (405, "MethodNotAllowed")),
        ("POST", "/v1/schedule", b"{}", (404, "NotFound")),
        ("GET", "/v1/profile", None, (405, "MethodNotAllowed")),
        ("POST", "/v1/profile", b"[]", (422, "Invalid")),
        *[
            ("POST", "/v1/profile", json.dumps({**STAGE, **wrong}).encode(), (422, "Invalid"))
            for wrong in (
                {"stage": -1},
                {"stage": 64},
                {"stage": True},
                {"waitingMilliwatts": 1e3},
                {"waitingMilliwatts": 10**9},
                {"rows": ""},
                {"rows": 5},
                {"rows": "forward,1410,0.15"},
                {"rows": "forward,1410,nan,27.5"},
                {"rows": "forward,1410,1e400,27.5"},
                {"rows": "forward,1410,0.15,-27.5"},
                {"rows": "0,forward,1410,0.15,27.5"},
                {"rows": "forward,1410,0.15,27.5\n\nforward,1350,0.16,27.0"},
                {"rows": "forward,\u0661\u0664,0.15,27.5"},
                {"rows": "f,1,1,1\n" * 257},
                {"rows": "f" * 8193},
            )
        ],
        ("POST", "/v1/profile", b"x" * (MAX_PROFILE_BYTES + 1), (413, "TooLarge")),
    ],
)
async def test_what_cannot_be_is_refused_in_words(
    served: Served, method: str, path: str, body: bytes | None, expected: tuple[int, str]
) -> None:
    backend, _, folder, _ = served
    async with client(folder) as session, session.request(method, path, data=body) as answer:
        assert await refusal(answer) == expected
    assert (backend.reports, backend.stages) == ([], [])


async def test_a_pod_has_a_few_readings_made_and_gets_the_last_one_beyond_that(served: Served) -> None:
    backend, _, folder, clock = served
    async with client(folder) as one, client(folder, "uid-2") as two:

        async def asks(session: aiohttp.ClientSession, path: str = "/v1/energy?fresh") -> int:
            async with session.get(path) as answer:
                assert (await answer.json())["energyMillijoules"] == 42
                return backend.readings

        assert await asks(one, "/v1/energy") == 0
        assert [await asks(one) for _ in range(int(FRESH_BURST) + 3)] == [1, 2, 3, 4, 4, 4, 4]
        assert await asks(two) == 5, "each pod has its own"
        clock.now += 1.0 / FRESH_PER_SECOND
        assert await asks(one) == 6
        backend.known.discard(POD)
        clock.now += 10.0
        async with one.get("/v1/energy?fresh") as answer:
            assert await refusal(answer) == (409, "NotGoverned")
    assert backend.readings == 6, "nothing is read for who holds nothing"


async def test_a_stage_that_was_measured_is_taken_for_the_pod_whose_folder_it_is(served: Served) -> None:
    backend, _, folder, _ = served
    most = "\n".join(["forward,1410,0.150000000,27.000000"] * 230)
    async with client(folder, "uid-2") as session:
        for rows in (STAGE["rows"], most):
            async with session.post("/v1/profile", json={**STAGE, "rows": rows}) as answer:
                assert (answer.status, await answer.json()) == (200, {})
        backend.known.clear()
        async with session.post("/v1/profile", json=STAGE) as answer:
            assert await refusal(answer) == (409, "NotGoverned")
        backend.known.add(OTHER)
        backend.full = True
        async with session.post("/v1/profile", json=STAGE) as answer:
            assert await refusal(answer) == (422, "Invalid")
    assert backend.stages == [(OTHER, StageProfile(1, 55_000, rows)) for rows in (str(STAGE["rows"]), most)]


async def test_a_pod_that_is_governed_by_nobody_is_told(served: Served) -> None:
    backend, _, folder, _ = served
    backend.known = set()
    async with client(folder) as session:
        async with session.post("/v1/steps", json=REPORT) as answer:
            assert await refusal(answer) == (409, "NotGoverned")
        for path in ("/v1/energy", "/v1/capabilities"):
            async with session.get(path) as answer:
                assert await refusal(answer) == (409, "NotGoverned")
    backend.known = {POD}
    async with client(folder) as session, session.get("/v1/capabilities") as answer:
        assert (answer.status, await answer.json()) == (200, {"gpus": {"GPU-1": {"clocksLockable": True}}})


async def test_one_pods_flood_is_cut_and_leaves_the_other_alone(served: Served) -> None:
    backend, _, folder, clock = served
    statuses = []
    async with client(folder) as flooder, client(folder, "uid-2") as other:
        for _ in range(int(REQUEST_BURST) + 5):
            async with flooder.post("/v1/steps", json=REPORT) as answer:
                statuses.append(answer.status)
        assert statuses == [200] * int(REQUEST_BURST) + [429] * 5
        async with other.post("/v1/steps", json=REPORT) as answer:
            assert answer.status == 200
        clock.now += 1.0
        async with flooder.post("/v1/steps", json=REPORT) as answer:
            assert answer.status == 200
    assert len(backend.reports) == REQUEST_BURST + 2


async def test_who_asks_too_often_waits_for_the_refusal(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand refusals a second would else be all that the agent does, and the grants come through it."""
    _, _, folder, _ = served
    monkeypatch.setattr("flyball_agent.training.sockets.REFUSAL_SECONDS", 3600.0)
    reader, writer = await asyncio.open_unix_connection(folder / "uid-1" / SOCKET_NAME)
    writer.write(b"GET /v1/energy HTTP/1.1\r\nHost: flyball\r\n\r\n" * 400)
    answered = 0
    while answered < REQUEST_BURST:
        answered += (await reader.readuntil(b"\r\n\r\n")).count(b" 200 ")
        await reader.readuntil(b"}")
    refused = asyncio.create_task(reader.readline())
    async with client(folder, "uid-2") as other, other.get("/v1/energy") as answer:
        assert answer.status == 200
    assert not refused.done()
    writer.close()
    assert await refused == b""


async def test_who_connects_and_goes_again_is_taken_no_more_often_than_who_asks(served: Served) -> None:
    """Each connection costs a turn of the loop that the grants come through, also one on which nothing is said."""
    _, sockets, folder, clock = served
    taken = 0
    connected = sockets._sockets["uid-1"]._http.connected

    def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal taken
        taken += 1
        connected(reader, writer)

    listener = sockets._sockets["uid-1"]._listener
    assert listener is not None
    listener._connected = count

    async def flood(until_taken: int) -> None:
        """Connect and go, for as long as that is taken, and then until the kernel's queue is full."""
        full = 0
        while full < 20:
            with socket.socket(socket.AF_UNIX) as one:
                one.setblocking(False)
                try:
                    one.connect(str(folder / "uid-1" / SOCKET_NAME))
                except BlockingIOError:
                    full += taken >= until_taken
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0)

    await flood(int(CONNECTION_BURST))
    assert taken == CONNECTION_BURST
    async with client(folder, "uid-2") as other, other.get("/v1/energy") as answer:
        assert answer.status == 200
    clock.now += 1.0
    await flood(int(CONNECTION_BURST + CONNECTIONS_PER_SECOND))
    assert taken == CONNECTION_BURST + CONNECTIONS_PER_SECOND
    served_again = 0
    while not served_again:  # of those that have gone some are in the queue still, and take the places of connections
        clock.now += 1.0
        with contextlib.suppress(aiohttp.ClientError):
            async with client(folder) as flooder, flooder.get("/v1/energy") as answer:
                served_again = answer.status
    assert served_again == 200


async def test_a_body_without_a_declared_length_is_cut_at_the_bound(served: Served) -> None:
    backend, _, folder, _ = served

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b" " * 1000

    async with client(folder) as session:
        try:
            async with session.post("/v1/steps", data=endless()) as answer:
                assert await refusal(answer) == (413, "TooLarge")
        except aiohttp.ClientError:
            pass  # the server may close while the client still writes: refused all the same
    assert backend.reports == []


async def test_a_body_that_does_not_come_is_given_up(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flyball_agent.training.sockets.BODY_SECONDS", 0.05)
    assert BODY_SECONDS > 1
    _, _, folder, _ = served
    reader, writer = await asyncio.open_unix_connection(folder / "uid-1" / SOCKET_NAME)
    writer.write(b"POST /v1/steps HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
    answer = await asyncio.wait_for(reader.read(), 20)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"TooSlow" in answer
    writer.close()


async def test_a_head_without_end_is_refused(served: Served) -> None:
    _, _, folder, _ = served
    reader, writer = await asyncio.open_unix_connection(folder / "uid-1" / SOCKET_NAME)
    writer.write(b"GET /v1/energy HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n")
    answer = await asyncio.wait_for(reader.read(), 20)
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400"))
    writer.close()


async def test_connections_are_bounded_and_silent_ones_are_closed(served: Served) -> None:
    _, sockets, folder, clock = served
    path = folder / "uid-1" / SOCKET_NAME
    silent = [await asyncio.open_unix_connection(path) for _ in range(MAX_CONNECTIONS)]
    for reader, writer in silent[:1]:
        writer.write(b"GET /v1/energy HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    surplus, _ = await asyncio.open_unix_connection(path)
    assert await asyncio.wait_for(surplus.read(), 20) == b""
    async with client(folder, "uid-2") as other, other.get("/v1/energy") as answer:
        assert answer.status == 200  # another pod's socket is its own
    sockets.reap()
    clock.now += IDLE_SECONDS + 1
    sockets.reap()
    for reader, _ in silent:
        await asyncio.wait_for(reader.read(), 20)  # ends: closed by the server
    async with client(folder) as session, session.get("/v1/energy") as answer:
        assert answer.status == 200


async def test_sockets_come_and_go_with_their_pods(served: Served) -> None:
    _, sockets, folder, _ = served
    assert oct((folder / "uid-1" / SOCKET_NAME).stat().st_mode & 0o777) == "0o666"
    (folder / "uid-2" / "kept").write_text("somebody else's")
    await sockets.sync({"uid-3": POD})
    assert sorted(os.listdir(folder)) == ["uid-2", "uid-3"]
    assert os.listdir(folder / "uid-2") == ["kept"]
    assert len(sockets) == 1


async def test_a_socket_left_by_a_killed_agent_is_taken_over(short_folder: Path) -> None:
    left = await asyncio.start_unix_server(lambda reader, writer: None, make(short_folder / "uid-1" / SOCKET_NAME))
    sockets = TrainingSockets(Backend(), short_folder)
    await sockets.sync({"uid-1": POD})
    assert sockets.failed == {}
    async with client(short_folder) as session, session.get("/v1/energy") as answer:
        assert answer.status == 200
    await sockets.close()
    left.close()


async def test_a_pod_reaches_the_next_agent_through_the_folder_that_it_mounted(short_folder: Path) -> None:
    sockets = TrainingSockets(Backend(), short_folder)
    await sockets.sync({"uid-1": POD})
    mounted = os.open(
        short_folder / "uid-1", os.O_PATH | os.O_DIRECTORY
    )  # as a bind mount holds the folder, not its name
    await sockets.close()
    sockets = TrainingSockets(Backend(), short_folder)
    await sockets.sync({"uid-1": POD})
    connector = aiohttp.UnixConnector(f"/proc/self/fd/{mounted}/{SOCKET_NAME}")
    async with aiohttp.ClientSession("http://pod", connector=connector) as session, session.get("/v1/energy") as answer:
        assert answer.status == 200
    os.close(mounted)
    await sockets.sync({})
    assert os.listdir(short_folder) == []  # the pod is gone
    await sockets.close()


async def test_a_folder_that_a_plugin_has_made_outlives_an_answer_without_its_pod(short_folder: Path) -> None:
    """The kubelet may forget a pod for a moment, and a folder made anew is none that the pod has mounted."""
    (short_folder / "socket-1.a").mkdir()
    mounted = os.open(short_folder / "socket-1.a", os.O_PATH | os.O_DIRECTORY)
    sockets = TrainingSockets(Backend(), short_folder)
    await sockets.sync({}, {"socket-1.a": POD})
    await sockets.sync({}, {})
    assert len(sockets) == 0
    await sockets.sync({}, {"socket-1.a": POD})
    connector = aiohttp.UnixConnector(f"/proc/self/fd/{mounted}/{SOCKET_NAME}")
    async with aiohttp.ClientSession("http://pod", connector=connector) as session, session.get("/v1/energy") as answer:
        assert answer.status == 200
    os.close(mounted)
    await sockets.close()


async def test_a_folder_that_another_pod_holds_speaks_for_that_one(short_folder: Path) -> None:
    backend = Backend()
    sockets = TrainingSockets(backend, short_folder)
    await sockets.sync({}, {"socket-1.a": POD})
    await sockets.sync({}, {"socket-1.a": OTHER})
    async with client(short_folder, "socket-1.a") as session, session.post("/v1/steps", json=REPORT) as answer:
        assert answer.status == 200
    assert [pod for pod, _ in backend.reports] == [OTHER]
    await sockets.close()


def make(path: Path) -> Path:
    path.parent.mkdir()
    return path


async def test_a_socket_that_cannot_be_made_is_named_and_tried_again(short_folder: Path) -> None:
    sockets = TrainingSockets(Backend(), short_folder)
    long = "x" * 150
    (short_folder / "uid-1").write_text("a file where the folder should be")
    await sockets.sync({long: POD, "uid-1": OTHER, "../up": POD, "uid-2": OTHER})
    assert len(sockets) == 1
    assert "longer than the 107 bytes" in sockets.failed[long]
    assert "is no pod's UID" in sockets.failed["../up"]
    assert "uid-1" in sockets.failed
    (short_folder / "uid-1").unlink()
    (short_folder / "uid-1" / CLOCKS_NAME).mkdir(parents=True)
    await sockets.sync({"uid-1": OTHER})
    assert CLOCKS_NAME in sockets.failed["uid-1"]
    with socket.socket(socket.AF_UNIX) as one, pytest.raises(ConnectionRefusedError):  # none is kept for each try
        one.connect(str(short_folder / "uid-1" / SOCKET_NAME))
    (short_folder / "uid-1" / CLOCKS_NAME).rmdir()
    await sockets.sync({"uid-1": OTHER})
    assert sockets.failed == {}
    assert len(sockets) == 1
    await sockets.close()


async def test_a_datagram_asks_a_clock_of_one_gpu_of_its_own_pod(served: Served) -> None:
    backend, _, folder, _ = served
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(str(folder / "uid-2" / CLOCKS_NAME))
        for datagram in (
            b"",
            b"GPU-1",
            b"GPU-1 -5",
            b"GPU-1 0",
            b"GPU-1 1e3",
            b"GPU-1 100001",
            b"GPU-1  900",
            b"GPU-%s 900" % (b"1" * 61),
            b"\xff\xfe 900",
            b"x" * 500,
            b"GPU-1 900",
        ):
            sender.send(datagram)
            await asyncio.sleep(0)  # the kernel keeps ten that nobody has read
        sender.send(b"* 1005")
        await until(lambda: ClockAsked(1005, COMPUTATION_SECONDS) in backend.asked_by(OTHER))
    named = [asked for asked in backend.asked_by(OTHER) if asked.gpu.startswith("GPU-")]
    assert named == [ClockAsked(900, COMPUTATION_SECONDS, "GPU-1")]
    assert backend.asked_by(POD) == []


@pytest.mark.parametrize(("name", "kind"), [(SOCKET_NAME, socket.SOCK_STREAM), (CLOCKS_NAME, socket.SOCK_DGRAM)])
async def test_no_pod_has_the_agent_close_its_open_files(served: Served, name: str, kind: socket.SocketKind) -> None:
    """To close a connection takes as long as the pod that has opened it likes."""
    folder = served[2]
    with socket.socket(socket.AF_UNIX, kind) as sender:
        sender.connect(str(folder / "uid-1" / name))
        assert send_with_descriptor(sender) is not KERNEL_REFUSES


async def test_a_flood_of_datagrams_is_bounded_and_the_last_ones_come_through(served: Served) -> None:
    backend, _, folder, clock = served
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        sender.connect(str(folder / "uid-1" / CLOCKS_NAME))
        for _ in range(20):
            for _ in range(100):
                with contextlib.suppress(BlockingIOError):
                    sender.send(b"GPU-1 900")
            await asyncio.sleep(0.002)
        assert len(backend.asked) <= CLOCKS_BURST
        clock.now += 10.0
        await until(lambda: _sent(sender, b"GPU-1 1200"))
        await until(lambda: backend.asked_by(POD)[-1].max_megahertz == 1200)
        async with client(folder) as session, session.get("/v1/energy") as answer:
            assert answer.status == 200


def _sent(sender: socket.socket, datagram: bytes) -> bool:
    """Whether there was room for it."""
    try:
        sender.send(datagram)
    except BlockingIOError:
        return False
    return True


async def test_a_flood_of_datagrams_leaves_every_other_pod_its_turn(served: Served) -> None:
    """Also where what may be taken comes one at a time, and the flood always waits for it."""
    backend, _, folder, clock = served
    flooder, other = (socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2))
    with flooder, other:
        flooder.setblocking(False)
        flooder.connect(str(folder / "uid-1" / CLOCKS_NAME))
        other.connect(str(folder / "uid-2" / CLOCKS_NAME))

        def taken(count: int) -> bool:
            while _sent(flooder, b"* 900"):
                pass
            return len(backend.asked) == count

        await until(lambda: taken(int(CLOCKS_BURST)))
        for asked in range(8):
            other.send(b"* 1005")
            before = len(backend.asked_by(OTHER))
            for token in (1, 2):
                clock.now += 1 / CLOCKS_PER_SECOND + 1e-6
                await until(lambda count=CLOCKS_BURST + 2 * asked + token: taken(int(count)))  # type: ignore[misc]
            assert len(backend.asked_by(OTHER)) == before + 1


async def test_a_datagram_that_is_too_long_says_nothing(served: Served) -> None:
    backend, _, folder, _ = served
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(str(folder / "uid-1" / CLOCKS_NAME))
        sender.send(b"* 1410".rjust(MAX_DATAGRAM_BYTES + 2))  # cut off where it may be long: 14 MHz
        sender.send(b"* 1005".rjust(MAX_DATAGRAM_BYTES))
        await until(lambda: [asked.max_megahertz for asked in backend.asked_by(POD)] == [1005])


async def test_clock_sockets_go_with_their_pods_and_come_again_for_the_next_agent(served: Served) -> None:
    backend, sockets, folder, clock = served
    await sockets.close()
    assert not (folder / "uid-1" / CLOCKS_NAME).exists()
    (folder / "uid-1" / CLOCKS_NAME).touch()  # of an agent that was killed
    again = TrainingSockets(backend, folder, monotonic=clock)
    await again.sync({"uid-1": POD})
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(str(folder / "uid-1" / CLOCKS_NAME))
        sender.send(b"* 900")
        await until(lambda: backend.asked_by(POD) == [ClockAsked(900, COMPUTATION_SECONDS)])
    await again.sync({})
    assert not (folder / "uid-1").exists()
    await again.close()
