"""One authenticated connection pool to the API server that speaks raw JSON objects.

The objects stay plain dicts: the official client's generated models take several times as long to build as the JSON takes
to parse (benchmarks/parsing.py), and a relist of 10,000 objects would block the loop that holds the cap.
"""

from __future__ import annotations

import asyncio
import copy
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self

import orjson

from flyball_kube.credentials import Configuration, CredentialsError, load_configuration, ssl_context
from flyball_kube.errors import ApiError, ApiUnreachable, why_unanswered
from flyball_kube.http import json_depth
from flyball_kube.http.transport import Transport, whole
from flyball_kube.server_clock import ServerClock

JsonObject = dict[str, Any]

MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

# A watch line is one object; etcd refuses objects above 1.5 MiB, so that a longer line is no Kubernetes answer.
MAX_WATCH_LINE_BYTES = 8 * 1024 * 1024
MAX_TEXT_LINE_BYTES = 64 * 1024
# A page of a list has 500 objects: pods of 20 kB and more in most clusters. Who is lean reads few objects, and has a memory
# of 256 MiB at the most.
MAX_ANSWER_BYTES = 256 * 1024 * 1024
MAX_LEAN_ANSWER_BYTES = 16 * 1024 * 1024
# By which the API server lets a client name its request in the audit log: also one that is never answered is found there.
REQUEST_ID_HEADER = "Audit-ID"


def new_request_id() -> str:
    """A name for one request that no other one has."""
    return str(uuid.uuid4())


class ApiSession:
    """Raw JSON calls to one API server as one user; use it as an async context manager or call `close`.

    Every call raises `ApiError` where the server refuses and `ApiUnreachable` where no whole answer comes within
    `timeout_seconds`, or one that is too large; neither is retried here, because only the caller knows whether trying again
    is still right.
    `lean`: by less code than aiohttp's, where memory counts more than the time of a call, and no proxy is in the way.
    """

    def __init__(
        self,
        configuration: Configuration,
        timeout_seconds: float = 10.0,
        connections: int = 32,
        *,
        lean: bool = False,
    ) -> None:
        self._configuration = configuration
        self._timeout_seconds = timeout_seconds
        self._http = _transport(configuration, lean=lean)
        self._whole = partial(whole, max_bytes=MAX_LEAN_ANSWER_BYTES if lean else MAX_ANSWER_BYTES)
        self._failures: tuple[type[Exception], ...] = (
            *self._http.errors,
            CredentialsError,
            TimeoutError,
            OSError,
        )
        self._slots = asyncio.Semaphore(connections)
        self.server_clock = ServerClock()
        self._before_sending: Callable[[], None] = lambda: None

    def guarded(self, before_sending: Callable[[], None]) -> Self:
        """This session with a check that is made once a request has its slot, right before it is sent; it may raise."""
        session = copy.copy(self)
        session._before_sending = before_sending
        return session

    def with_turns_of_its_own(self, connections: int) -> Self:
        """This session with so many more requests at a time, which wait for none of its others to have their answers."""
        session = copy.copy(self)
        session._slots = asyncio.Semaphore(connections)
        return session

    @classmethod
    async def connect(
        cls,
        kubeconfig: Path | str | None = None,
        context: str | None = None,
        timeout_seconds: float = 10.0,
        connections: int = 32,
        *,
        lean: bool = False,
    ) -> Self:
        """Open a session with the credentials of `load_configuration`; raises CredentialsError."""
        configuration = await asyncio.to_thread(load_configuration, kubeconfig, context)
        return cls(configuration, timeout_seconds=timeout_seconds, connections=connections, lean=lean)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.close()

    async def _headers(self, content_type: str | None) -> dict[str, str]:
        headers = {"Accept": "application/json"}
        # Asked for at each call: a pod's token is rotated on disk.
        token = await self._configuration.tokens.token()
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if content_type is not None:
            headers["Content-Type"] = content_type
        return headers

    def _refused(self, status: int) -> None:
        if status == HTTPStatus.UNAUTHORIZED:
            self._configuration.tokens.refused()

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        timeout_seconds: float | None = None,
        max_bytes: int | None = None,
    ) -> JsonObject:
        """Send one request and return the answer's JSON object; one of more than `max_bytes` is too large (None: of more
        than any that makes sense)."""
        described = f"{method} {path}"
        status, raw, request_id = await self._exchange(
            method, path, params, body, content_type, timeout_seconds, max_bytes
        )
        parsed = _parse(raw, described, status)
        if status >= 400:
            self._refused(status)
            raise ApiError.from_answer(status, parsed, described, request_id)
        if not isinstance(parsed, dict):
            raise ApiUnreachable(f"{described}: the answer is not a JSON object")
        return parsed

    async def text(self, path: str, **params: str) -> str:
        """What is no JSON: a container's log. Ask for a bounded part of it (`limitBytes`)."""
        status, raw, request_id = await self._exchange("GET", path, params or None, None, "", None)
        if status >= 400:
            self._refused(status)
            described = f"GET {path}"
            raise ApiError.from_answer(status, _parse(raw, described, status), described, request_id)
        return raw.decode(errors="replace")

    async def _exchange(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        body: Any,
        content_type: str,
        timeout_seconds: float | None,
        max_bytes: int | None = None,
    ) -> tuple[int, bytes, str]:
        """Send one request; the status and the body of its answer, and what the server's audit log calls it."""
        data = None if body is None else orjson.dumps(body)
        described = f"{method} {path}"
        request_id = new_request_id()
        try:
            async with (
                asyncio.timeout(self._timeout_seconds if timeout_seconds is None else timeout_seconds),
                self._slots,
            ):
                headers = await self._headers(content_type if data is not None else None)
                headers[REQUEST_ID_HEADER] = request_id
                self._before_sending()
                sent = time.time()
                async with self._http.request(method, path, params, headers, data) as answer:
                    if self.server_clock.due(sent):
                        self.server_clock.answered(answer.headers.get("date", ""), sent, time.time())
                    body = await (self._whole(answer) if max_bytes is None else whole(answer, max_bytes))
                    return answer.status, body, answer.headers.get(REQUEST_ID_HEADER.lower(), "")
        except self._failures as error:
            raise ApiUnreachable(f"{described}: {why_unanswered(error)}", request_id) from error

    async def get(self, path: str, **params: str) -> JsonObject:
        return await self.request("GET", path, params=params or None)

    async def page(self, path: str, params: Mapping[str, str], max_bytes: int) -> JsonObject:
        """One page of a list; where it has more than so many bytes, AnswerTooLarge is the cause of ApiUnreachable."""
        return await self.request("GET", path, params=params, max_bytes=max_bytes)

    async def create(self, path: str, body: JsonObject, **params: str) -> JsonObject:
        return await self.request("POST", path, body=body, params=params or None)

    async def replace(self, path: str, body: JsonObject) -> JsonObject:
        """PUT: the body's `metadata.resourceVersion`, where given, must still be the object's."""
        return await self.request("PUT", path, body=body)

    async def patch(self, path: str, body: Any, content_type: str = MERGE_PATCH, **params: str) -> JsonObject:
        return await self.request("PATCH", path, body=body, content_type=content_type, params=params or None)

    async def apply(self, path: str, body: JsonObject, field_manager: str, force: bool = True) -> JsonObject:
        """Server-side apply as `field_manager`: creates the object, or sets just the fields named."""
        params = {"fieldManager": field_manager, "force": "true" if force else "false"}
        return await self.request("PATCH", path, body=body, content_type=APPLY_PATCH, params=params)

    async def delete(self, path: str, options: JsonObject | None = None) -> JsonObject:
        """DELETE with `DeleteOptions` (`propagationPolicy`, `preconditions`, `gracePeriodSeconds`)."""
        return await self.request("DELETE", path, body=options)

    async def text_lines(
        self, path: str, params: Mapping[str, str], *, read_timeout_seconds: float | None = None
    ) -> AsyncIterator[str]:
        """Yield the lines of an answer that is text, such as a container's log, as they come; the last may lack its end.

        A line is cut at `MAX_TEXT_LINE_BYTES`. None for `read_timeout_seconds` waits for the next one for ever.
        """
        described = f"GET {path}"
        headers = {**await self._headers(None), "Accept": "*/*"}
        try:
            async with self._http.request(
                "GET", path, params, headers, None, read_seconds=read_timeout_seconds
            ) as answer:
                if answer.status >= 400:
                    self._refused(answer.status)
                    raise ApiError.from_answer(
                        answer.status, _parse(await self._whole(answer), described, answer.status), described
                    )
                rest = bytearray()
                async for chunk in answer.chunks():
                    rest += chunk
                    *lines, last = bytes(rest).split(b"\n")
                    for line in lines:
                        yield line[:MAX_TEXT_LINE_BYTES].decode(errors="replace")
                    rest = bytearray(last[:MAX_TEXT_LINE_BYTES])
                if rest:
                    yield rest.decode(errors="replace")
        except self._failures as error:
            raise ApiUnreachable(f"{described}: {why_unanswered(error)}") from error

    async def watch(
        self, path: str, *, params: Mapping[str, str], read_timeout_seconds: float
    ) -> AsyncIterator[JsonObject]:
        """Yield the events of one watch request until the server ends it.

        A connection that stays silent for `read_timeout_seconds` counts as broken: a peer that vanished without closing
        it would otherwise hold a watcher on old data for ever.
        """
        described = f"WATCH {path}"
        try:
            async with self._http.request(
                "GET",
                path,
                {**params, "watch": "true"},
                await self._headers(None),
                None,
                read_seconds=read_timeout_seconds,
            ) as answer:
                if answer.status >= 400:
                    self._refused(answer.status)
                    raw = await self._whole(answer)
                    raise ApiError.from_answer(answer.status, _parse(raw, described, answer.status), described)
                buffer = bytearray()
                async for chunk in answer.chunks():
                    buffer += chunk
                    if b"\n" not in chunk:
                        if len(buffer) > MAX_WATCH_LINE_BYTES:
                            raise ApiUnreachable(f"{described}: a line of over {MAX_WATCH_LINE_BYTES} bytes")
                        continue
                    *lines, rest = bytes(buffer).split(b"\n")
                    buffer = bytearray(rest)
                    for line in lines:
                        if line:
                            event = _parse(line, described, 200)
                            if not isinstance(event, dict):
                                raise ApiUnreachable(f"{described}: an event is not a JSON object")
                            yield event
        except self._failures as error:
            raise ApiUnreachable(f"{described}: {why_unanswered(error)}") from error


async def get_or_none(session: ApiSession, path: str) -> JsonObject | None:
    """The object at `path`; None where there is none. Raises as `ApiSession.get` does for all else."""
    try:
        return await session.get(path)
    except ApiError as error:
        if error.not_found:
            return None
        raise


def _transport(configuration: Configuration, *, lean: bool) -> Transport:
    base, tls = configuration.host.rstrip("/"), ssl_context(configuration)
    if lean and configuration.proxy is None:
        from flyball_kube.http.lean import LeanHttp

        return LeanHttp(base, tls, configuration.server_name)
    from flyball_kube.http.pooled import PooledHttp

    return PooledHttp(base, tls, configuration.server_name, configuration.proxy)


def _parse(raw: bytes, described: str, status: int) -> Any:
    try:
        return json_depth.loads(raw)
    except orjson.JSONDecodeError as error:
        if status >= 400:
            return raw.decode(errors="replace")
        raise ApiUnreachable(f"{described}: the answer is not JSON: {error}") from error
