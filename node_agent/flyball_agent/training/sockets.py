"""The socket for training processes: JSON over HTTP on one Unix socket a pod.

`<folder>/<pod uid>/flyball.sock`: the pod is known by the folder that is mounted into it (whose name is not the pod's
UID where a device plugin has made it, `socket_plugin`). `POST /v1/steps` reports progress and answers with the clock and
limit in force, `GET /v1/energy` gives what the pod has used, `GET /v1/capabilities` what its GPUs can be asked for and how
soon a clock is set, `PUT /v1/clocks` lowers its clocks for a while, `POST /v1/profile` leaves what was measured of a
pipeline's stage. `clocks.sock` beside it takes datagrams that ask for clocks in a few bytes, for those who change them from
one computation to the next. A pod can report, ask and change what is its own only, and no more often than the bounds below
allow.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket as sockets
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import orjson
from flyball_kube.process.logs import get_logger
from flyball_kube.serving.http_server import BodyTooLarge, HttpRequest, HttpServer, Response
from flyball_kube.serving.token_bucket import TokenBucket

from flyball_agent.energy.observations import (
    ClockAsked,
    InvalidReport,
    StepReport,
    parse_clock,
    parse_clock_datagram,
    parse_steps,
)
from flyball_agent.energy.stage_profiles import MAX_BODY_BYTES as MAX_PROFILE_BYTES
from flyball_agent.energy.stage_profiles import StageProfile, parse_stage_profile
from flyball_agent.enforce.gpu_state import PodName
from flyball_agent.wire.descriptors import refuse_descriptors
from flyball_agent.wire.paced_listener import PacedListener

logger = get_logger(__name__)

T = TypeVar("T")

SOCKET_NAME = "flyball.sock"
MAX_BODY_BYTES = 4096
BODY_SECONDS = 2.0
IDLE_SECONDS = 15.0
MAX_CONNECTIONS = 8
REQUESTS_PER_SECOND = 20.0
REQUEST_BURST = 40.0
# A trainer keeps its connection, or makes one for each request.
CONNECTIONS_PER_SECOND = REQUESTS_PER_SECOND
CONNECTION_BURST = REQUEST_BURST
BACKLOG = 8
# Who asks more often waits so long for each refusal, and takes no more of the agent's time than others.
REFUSAL_SECONDS = 0.05
CLOCKS_NAME = "clocks.sock"
# Of all pods of a node: half of what an enforcer's line takes.
CLOCKS_PER_SECOND = 200.0
CLOCKS_BURST = 200.0
CLOCKS_PAUSE_SECONDS = 0.05
MAX_DATAGRAM_BYTES = 128
# Readings that are made for a pod's requests: who wants more of them gets the last one, with its age.
FRESH_PER_SECOND = 2.0
FRESH_BURST = 4.0
PATHS = ("/v1/steps", "/v1/energy", "/v1/capabilities", "/v1/clocks", "/v1/profile")
ROUTES = "POST /v1/steps, GET /v1/energy, GET /v1/capabilities, PUT /v1/clocks and POST /v1/profile"
# sockaddr_un.sun_path, its terminating zero included
MAX_PATH_BYTES = 108


class TrainingBackend(Protocol):
    """What the socket serves: the agent."""

    def report_steps(self, pod: PodName, report: StepReport) -> bool: ...

    def ask_clock(self, pod: PodName, asked: ClockAsked) -> bool: ...

    def report_stage(self, pod: PodName, profile: StageProfile) -> bool: ...

    def granted(self, pod: PodName) -> Mapping[str, int] | None: ...

    def energy(self, pod: PodName) -> Mapping[str, object] | None: ...

    def capabilities(self, pod: PodName) -> Mapping[str, object] | None: ...

    async def read_afresh(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Refusal(Exception):
    status: int
    reason: str
    message: str


class _Turns:
    """Which pod's datagram is read next, while more of them come to a node than are taken: one of each, in turn.

    Whose turn has not come is not read, so that a flood fills the pod's own queue and takes nobody's time.
    """

    def __init__(self, bucket: TokenBucket) -> None:
        self._bucket = bucket
        self._waiting: deque[_ClockSocket] = deque()
        self._again: asyncio.TimerHandle | None = None

    def take(self, socket: _ClockSocket) -> None:
        """Something has come to the socket: have it read, now or when its turn has come."""
        if not self._waiting and self._bucket.take():
            socket.read()
            return
        socket.rest()
        self._waiting.append(socket)
        self._serve_later()

    def forget(self, socket: _ClockSocket) -> None:
        with contextlib.suppress(ValueError):
            self._waiting.remove(socket)

    def _serve_later(self) -> None:
        if self._waiting and self._again is None:
            self._again = asyncio.get_running_loop().call_later(CLOCKS_PAUSE_SECONDS, self._serve)

    def _serve(self) -> None:
        self._again = None
        while self._waiting and self._bucket.take():
            socket = self._waiting.popleft()
            socket.read()
            socket.listen()
        self._serve_later()


class _ClockSocket:
    """One pod's datagrams, each a clock for one of its GPUs. What cannot be read is dropped: nobody waits for an answer."""

    def __init__(self, backend: TrainingBackend, pod: PodName, path: Path, turns: _Turns) -> None:
        self._backend = backend
        self._pod = pod
        self._path = path
        self._turns = turns
        self._socket: sockets.socket | None = None

    def start(self) -> None:
        self._path.unlink(missing_ok=True)
        self._socket = sockets.socket(sockets.AF_UNIX, sockets.SOCK_DGRAM | sockets.SOCK_NONBLOCK)
        refuse_descriptors(self._socket)
        self._socket.bind(str(self._path))
        self._path.chmod(0o666)
        self.listen()

    def listen(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().add_reader(self._socket, self._turns.take, self)

    def rest(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)

    def read(self) -> None:
        """Take one datagram, if there is one."""
        assert self._socket is not None  # noqa: S101 - for the type checker
        with contextlib.suppress(OSError, InvalidReport):
            datagram = self._socket.recv(MAX_DATAGRAM_BYTES + 1)
            if len(datagram) <= MAX_DATAGRAM_BYTES:  # of a longer one the kernel has cut the end off
                self._backend.ask_clock(self._pod, parse_clock_datagram(datagram))

    def stop(self) -> None:
        self._turns.forget(self)
        self.rest()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        with contextlib.suppress(OSError):
            self._path.unlink()


class _PodSocket:
    """One pod's server."""

    def __init__(
        self,
        backend: TrainingBackend,
        pod: PodName,
        path: Path,
        clock_turns: _Turns,
        monotonic: Callable[[], float],
        *,
        stays: bool,
    ) -> None:
        self._backend = backend
        self.pod = pod
        self.stays = stays
        self.path = path
        self._bucket = TokenBucket(REQUESTS_PER_SECOND, REQUEST_BURST, monotonic)
        self._fresh = TokenBucket(FRESH_PER_SECOND, FRESH_BURST, monotonic)
        self._clock_socket = _ClockSocket(backend, pod, path.with_name(CLOCKS_NAME), clock_turns)
        self._http = HttpServer(self._answer, max_connections=MAX_CONNECTIONS, monotonic=monotonic)
        self._connections = TokenBucket(CONNECTIONS_PER_SECOND, CONNECTION_BURST, monotonic)
        self._listener: PacedListener | None = None

    def start(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.unlink(missing_ok=True)  # an agent's that was killed
        listening = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
        try:
            refuse_descriptors(listening)
            listening.bind(str(self.path))
            listening.listen(BACKLOG)
            # Whatever user the pod's processes run as; the folder is mounted into this pod alone.
            self.path.chmod(0o666)
            self._clock_socket.start()
        except OSError:
            listening.close()  # it is tried again and again
            raise
        self._listener = PacedListener(listening, self._http.connected, self._connections)

    def reap(self) -> None:
        """Close the connections that have been idle for too long."""
        self._http.reap(IDLE_SECONDS)

    async def stop(self) -> None:
        """Serve no more. The folder stays: it is mounted into the pod, which would never see one made anew."""
        if self._listener is not None:
            self._listener.close()
            self._http.close()
        self._clock_socket.stop()
        with contextlib.suppress(OSError):
            self.path.unlink()

    async def remove(self) -> None:
        """Serve no more, and remove the folder of a pod that is gone."""
        await self.stop()
        with contextlib.suppress(OSError):
            self.path.parent.rmdir()  # only where nobody else keeps something in it

    async def _answer(self, request: HttpRequest) -> Response:
        try:
            status, body = 200, await self._serve(request)
        except _Refusal as refusal:
            status, body = refusal.status, {"error": {"reason": refusal.reason, "message": refusal.message}}
        return Response(status, orjson.dumps(body), ends=status in (408, 413))  # the rest of what was sent is not read

    async def _serve(self, request: HttpRequest) -> Mapping[str, object]:
        if not self._bucket.take():
            await asyncio.sleep(REFUSAL_SECONDS)
            raise _Refusal(
                429, "TooManyRequests", f"more than {REQUESTS_PER_SECOND:g} requests a second; wait and retry"
            )
        route = (request.method, request.path)
        if route == ("POST", "/v1/steps"):
            return await self._steps(request)
        if route == ("PUT", "/v1/clocks"):
            return await self._clocks(request)
        if route == ("POST", "/v1/profile"):
            return await self._profile(request)
        if route == ("GET", "/v1/energy"):
            if request.query == "fresh" and self._fresh.take() and self._backend.energy(self.pod) is not None:
                await self._backend.read_afresh()
            energy = self._backend.energy(self.pod)
            if energy is None:
                raise self._unknown()
            return energy
        if route == ("GET", "/v1/capabilities"):
            capabilities = self._backend.capabilities(self.pod)
            if capabilities is None:
                raise self._unknown()
            return capabilities
        if request.path in PATHS:
            raise _Refusal(405, "MethodNotAllowed", ROUTES)
        raise _Refusal(404, "NotFound", f"{request.path[:80]}: there is {ROUTES}")

    async def _steps(self, request: HttpRequest) -> Mapping[str, object]:
        if not self._backend.report_steps(self.pod, await self._parsed(request, parse_steps)):
            raise self._unknown()
        return self._backend.granted(self.pod) or {}

    async def _clocks(self, request: HttpRequest) -> Mapping[str, object]:
        if not self._backend.ask_clock(self.pod, await self._parsed(request, parse_clock)):
            raise self._unknown()
        return self._backend.granted(self.pod) or {}

    async def _profile(self, request: HttpRequest) -> Mapping[str, object]:
        profile = await self._parsed(request, parse_stage_profile, MAX_PROFILE_BYTES)
        try:
            taken = self._backend.report_stage(self.pod, profile)
        except InvalidReport as error:
            raise _Refusal(422, "Invalid", str(error)) from error
        if not taken:
            raise self._unknown()
        return {}

    async def _parsed(self, request: HttpRequest, parse: Callable[[object], T], most_bytes: int = MAX_BODY_BYTES) -> T:
        body = await self._body(request, most_bytes)
        try:
            return parse(orjson.loads(body))
        except orjson.JSONDecodeError as error:
            raise _Refusal(400, "NotJson", f"the body is not JSON: {error}") from error
        except InvalidReport as error:
            raise _Refusal(422, "Invalid", str(error)) from error

    def _unknown(self) -> _Refusal:
        where = f"{self.pod.namespace}/{self.pod.name}"
        return _Refusal(409, "NotGoverned", f"pod {where} holds no GPU that a job of this node's spec governs (yet)")

    async def _body(self, request: HttpRequest, most_bytes: int) -> bytes:
        try:
            async with asyncio.timeout(BODY_SECONDS):
                return await request.body(most_bytes)
        except BodyTooLarge as error:
            raise _Refusal(413, "TooLarge", f"the body is larger than {most_bytes} bytes") from error
        except TimeoutError as error:
            raise _Refusal(408, "TooSlow", f"the body did not come within {BODY_SECONDS:g} s") from error


class TrainingSockets:
    """The sockets of one node's pods. `sync` as pods come and go, `reap` now and then, `close` at the end."""

    def __init__(
        self,
        backend: TrainingBackend,
        folder: str | os.PathLike[str],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backend = backend
        self._folder = Path(folder)
        self._monotonic = monotonic
        self._sockets: dict[str, _PodSocket] = {}
        self._clock_turns = _Turns(TokenBucket(CLOCKS_PER_SECOND, CLOCKS_BURST, monotonic))
        self.failed: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._sockets)

    async def sync(self, pods: Mapping[str, PodName], allocated: Mapping[str, PodName] | None = None) -> None:
        """Serve these pods (by UID), and no others. One that cannot be served is named in `failed` and tried again.

        `allocated` are pods by the folders that a plugin has made for them: those stay when their pods go, for whoever made
        them to remove.
        """
        made = allocated or {}
        pods = {**pods, **made}
        for uid in [uid for uid, socket in self._sockets.items() if pods.get(uid) != socket.pod]:
            gone = self._sockets.pop(uid)
            await (gone.stop() if gone.stays else gone.remove())
        self.failed = {uid: why for uid, why in self.failed.items() if uid in pods}
        for uid, pod in pods.items():
            if uid in self._sockets:
                continue
            path = self._folder / uid / SOCKET_NAME
            socket = _PodSocket(self._backend, pod, path, self._clock_turns, self._monotonic, stays=uid in made)
            try:
                if len(os.fsencode(path)) >= MAX_PATH_BYTES:
                    raise OSError(f"{path}: longer than the {MAX_PATH_BYTES - 1} bytes of a Unix socket's path")
                if Path(uid).name != uid:
                    raise OSError(f"{uid!r} is no pod's UID")
                socket.start()
            except OSError as error:
                if self.failed.get(uid) != str(error):
                    logger.error("training socket", pod=f"{pod.namespace}/{pod.name}", error=str(error))
                self.failed[uid] = str(error)
                continue
            self.failed.pop(uid, None)
            self._sockets[uid] = socket

    def reap(self) -> None:
        """Close connections that are idle for too long."""
        for socket in self._sockets.values():
            socket.reap()

    async def close(self) -> None:
        """Serve no more; the folders stay for the next agent, which serves the same pods in them."""
        for uid in list(self._sockets):
            await self._sockets.pop(uid).stop()
