"""A JSON document as it is sent: encoded and compressed once, however many browsers ask for it."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from typing import Any

import msgspec

# Smaller ones fit into one packet anyway.
LEAST_COMPRESSED_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Published:
    """A document's bytes, plain and (where that is worth it) compressed, and the tag that names this very version."""

    plain: bytes
    compressed: bytes | None
    tag: str

    @classmethod
    def of(cls, document: Any) -> Published:
        plain = msgspec.json.encode(document)
        tag = '"' + hashlib.sha256(plain).hexdigest()[:20] + '"'
        compressed = gzip.compress(plain, compresslevel=5, mtime=0) if len(plain) >= LEAST_COMPRESSED_BYTES else None
        return cls(plain, compressed, tag)


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether an Accept-Encoding header allows gzip."""
    for item in accept_encoding.lower().split(","):
        coding, _, quality = item.partition(";")
        if coding.strip() in ("gzip", "*"):
            return quality.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def names_version(if_none_match: str, tag: str) -> bool:
    """Whether an If-None-Match header names this version: the browser has it already."""
    return any(each.strip().removeprefix("W/") in (tag, "*") for each in if_none_match.split(","))
