"""How long a connection may take: no browser needs half a minute for a request and its answer."""

from __future__ import annotations

from flyball_kube.timed_requests import TimedRequests
from uvicorn.protocols.http.h11_impl import H11Protocol


class BoundedConnection(TimedRequests, H11Protocol):
    """One to the page."""

    request_seconds = 30.0
