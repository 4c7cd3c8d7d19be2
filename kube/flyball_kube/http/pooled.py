"""Requests by aiohttp, for processes that a cluster has few of, and through proxies."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp

from flyball_kube.http.transport import CONNECT_SECONDS, READ_BYTES, Answer, keep_alive

MAX_LINE_BYTES = 2**16


def _new_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    keep_alive(made)
    return made


class _PooledAnswer(Answer):
    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.status, self.headers = answer.status, answer.headers
        self._answer = answer

    def chunks(self) -> AsyncIterator[bytes]:
        return self._answer.content.iter_any()


class PooledHttp:
    """Requests to one server, at `base` (`https://host:port/prefix`), by `proxy` where there is one; `tls` is False for
    plain HTTP."""

    errors: tuple[type[Exception], ...] = (aiohttp.ClientError,)

    def __init__(self, base: str, tls: ssl.SSLContext | bool, server_name: str | None, proxy: str | None) -> None:
        self._base = base
        self._server_name = server_name
        self._proxy = proxy
        self._http = aiohttp.ClientSession(
            # Watches hold a connection each, for as long as they run: they must not use up the pool of the calls.
            connector=aiohttp.TCPConnector(ssl=tls, limit=0, socket_factory=_new_socket),
            read_bufsize=READ_BYTES,
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_LINE_BYTES,
        )

    async def close(self) -> None:
        await self._http.close()

    @asynccontextmanager
    async def request(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        headers: Mapping[str, str],
        body: bytes | None,
        *,
        read_seconds: float | None = None,
    ) -> AsyncIterator[Answer]:
        """Send a request, for as long as its answer is read; a pause of `read_seconds` in it raises TimeoutError."""
        async with self._http.request(
            method,
            self._base + path,
            params=params,
            data=body,
            headers=headers,
            # Whoever calls bounds the whole: the wait for a slot counts, too.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=read_seconds),
            proxy=self._proxy,
            server_hostname=self._server_name,
        ) as answer:
            yield _PooledAnswer(answer)
