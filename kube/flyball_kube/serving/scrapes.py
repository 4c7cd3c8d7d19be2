"""Answers scrapes of metrics: each is made anew, but one that comes too soon gets the last one again."""

from __future__ import annotations

import zlib
from collections.abc import Callable

from flyball_kube.serving.http_server import HttpRequest, Response
from flyball_kube.serving.token_bucket import TokenBucket

MAX_KEPT_SCRAPES = 8
GZIP_WINDOW = 31  # zlib's word for gzip with the largest window


class Scrapes:
    """Makes one process' answers to scrapes: anew while `bucket` has a token, else the last one again."""

    def __init__(self, bucket: TokenBucket) -> None:
        self._bucket = bucket
        self._kept: dict[tuple[str, bool], Response] = {}  # the last scrape of each format, packed or not

    def answer(self, request: HttpRequest, content_type: str, make: Callable[[], bytes]) -> Response:
        """What `make` makes in this format, packed where the request accepts that."""
        packs = "gzip" in request.headers.get("accept-encoding", "")
        kept = self._kept.get((content_type, packs))
        if not self._bucket.take() and kept is not None:
            return kept
        response = Response(200, make(), content_type)
        if packs:
            packer = zlib.compressobj(wbits=GZIP_WINDOW)
            packed = packer.compress(response.body) + packer.flush()
            response = Response(200, packed, content_type, headers=(("Content-Encoding", "gzip"),))
        if len(self._kept) >= MAX_KEPT_SCRAPES:
            self._kept.clear()
        self._kept[content_type, packs] = response
        return response
