"""By which names an HTTP server may be called, so that a web page from elsewhere can neither read it nor have it work.

A browser takes a name that was made to point at this machine for the page's own server (DNS rebinding): such requests have
that name as their host. And it sends what any page asks of any address, whatever it then lets the page read of the answer:
such requests have the page as their origin.
"""

from __future__ import annotations

from collections.abc import Iterable

LOOPBACK_ADDRESSES = ("127.0.0.1", "::1", "localhost")
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})

Headers = Iterable[tuple[bytes, bytes]]


def host_name(headers: Headers) -> str:
    """The name that a request calls its server by, without its port; empty where it has none."""
    given = _header(headers, b"host").lower()
    return given.partition("]")[0] + "]" if given.startswith("[") else given.partition(":")[0]


def is_from_elsewhere(headers: Headers) -> bool:
    """Whether a web page of another origin than this server has made the request; programs name none."""
    headers = list(headers)
    origin = _header(headers, b"origin").lower()
    if origin:
        _, _, authority = origin.partition("://")
        return not authority or authority != _header(headers, b"host").lower()
    # Browsers that send no origin with what only reads say at least whether it is another site's.
    return _header(headers, b"sec-fetch-site").lower() in ("cross-site", "same-site")


def _header(headers: Headers, wanted: bytes) -> str:
    return next((value for name, value in headers if name == wanted), b"").decode("latin-1").strip()
