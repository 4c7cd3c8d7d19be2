"""Speaks with the node's agent over the pod's Unix socket: JSON over HTTP, with the patience that a training can spare."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from typing import Any, Protocol

TIMEOUT_SECONDS = 2.0
MAX_ANSWER_BYTES = 65536


class AgentError(Exception):
    """The agent is away, late, refuses, or says what cannot be read."""


class Caller(Protocol):
    """What answers as the node's agent does."""

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The answer to one request. Raises AgentError."""
        ...


class Agent:
    """The agent behind one socket. Each call is a connection of its own and takes at most `timeout_seconds`."""

    def __init__(self, path: str, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._path = path
        self._timeout_seconds = timeout_seconds

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The agent's answer. Raises AgentError."""
        content = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: flyball\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        try:
            answer = self._exchange(head.encode() + content)
        except (OSError, ValueError) as error:
            raise AgentError(f"{self._path}: {error}") from error
        first, _, rest = answer.partition(b"\r\n")
        _, _, text = rest.partition(b"\r\n\r\n")
        status = first.split(b" ")[1:2]
        if not first.startswith(b"HTTP/1.") or not status:
            raise AgentError(f"{self._path}: the answer is no HTTP: {answer[:40]!r}")
        try:
            decoded = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise AgentError(f"{self._path}: the answer to {method} {path} is no JSON: {text[:40]!r}") from error
        if status[0] != b"200" or not isinstance(decoded, dict):
            raise AgentError(
                f"{self._path}: {method} {path} was answered {status[0].decode(errors='replace')}: {text[:200]!r}"
            )
        return decoded

    def _exchange(self, request: bytes) -> bytes:
        until = time.monotonic() + self._timeout_seconds
        answer = b""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(self._timeout_seconds)
            connection.connect(self._path)
            connection.sendall(request)
            while len(answer) <= MAX_ANSWER_BYTES:
                left = until - time.monotonic()
                if left <= 0:
                    raise OSError(f"no whole answer within {self._timeout_seconds:g} s")
                connection.settimeout(left)
                chunk = connection.recv(16384)
                if not chunk:
                    return answer
                answer += chunk
        raise OSError(f"the answer is longer than {MAX_ANSWER_BYTES} bytes")
