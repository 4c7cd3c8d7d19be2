"""What the API server answers when it refuses, as one typed exception; and why it does not answer, in plain words."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from typing import Any


class ApiError(Exception):
    """The API server refused a request: its HTTP `status`, machine-readable `reason` and `message`.

    `request_id` is what its audit log calls the request (empty: not known).
    """

    def __init__(self, status: int, reason: str, message: str, request: str, request_id: str = "") -> None:
        super().__init__(f"{request}: {status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.request_id = request_id

    @classmethod
    def from_answer(cls, status: int, body: Any, request: str, request_id: str = "") -> ApiError:
        """Build it from an HTTP answer's status and body (a `Status` object, or anything that a proxy put there)."""
        if isinstance(body, dict):
            return cls(status, str(body.get("reason", "")), str(body.get("message", ""))[:2000], request, request_id)
        return cls(status, "", str(body)[:2000], request, request_id)

    @property
    def not_found(self) -> bool:
        return self.status == 404

    @property
    def conflict(self) -> bool:
        """Another writer was first (409), be it a newer resourceVersion or an object that exists already."""
        return self.status == 409

    @property
    def gone(self) -> bool:
        """The resourceVersion is compacted away (410): list again."""
        return self.status == 410

    @property
    def invalid(self) -> bool:
        """The object itself is refused (400, 413, 422): sending it again cannot help."""
        return self.status in (400, 413, 422)


class ApiUnreachable(Exception):
    """No answer came: connection refused, reset, timed out, or the answer broke off.

    `request_id` is what the API server's audit log calls the request, should it have arrived (empty: not known).
    """

    def __init__(self, message: str = "", request_id: str = "") -> None:
        super().__init__(message)
        self.request_id = request_id


def why_unanswered(error: BaseException) -> str:
    """Why a request got no answer, in words of this code, whichever library it failed in."""
    # aiohttp keeps what the system or TLS said of a connection beside its own words.
    cause = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({cause.verify_message})"
    if isinstance(cause, TimeoutError):
        return "no answer in time"
    if isinstance(cause, socket.gaierror):
        return "nobody knows that name"
    if isinstance(cause, OSError) and cause.errno is not None and cause.errno in errno.errorcode:
        return os.strerror(cause.errno).lower()
    if isinstance(error, (ConnectionError, EOFError)) or type(error).__name__ == "ServerDisconnectedError":
        return "the connection was closed"
    return f"{type(error).__name__}: {error}"
