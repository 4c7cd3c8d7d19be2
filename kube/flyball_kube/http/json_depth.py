"""Reads JSON of any depth: what lies deeper than anybody here looks is null.

Whoever may create an object with free fields (a pod template) can nest it a thousand levels deep, which the API server
takes. One such object must not make the list that it stands in unreadable.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

# Nothing that is read here is a tenth as deep.
DEEPEST = 256

# A string as a whole, so that brackets in it are none; and what opens or closes a level.
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)


def loads(raw: bytes) -> Any:
    """The value of some JSON; raises orjson.JSONDecodeError where it is none."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        if "depth limit" not in str(error):
            raise
        return orjson.loads(without_deeper(raw, DEEPEST))


def without_deeper(raw: bytes, levels: int) -> bytes:
    """The JSON with null for every list and object that lies more than so many levels deep."""
    parts, depth, kept_from = [], 0, 0
    for token in _TOKEN.finditer(raw):
        first = token[0]
        if first in (b"[", b"{"):
            depth += 1
            if depth == levels + 1:
                parts += [raw[kept_from : token.start()], b"null"]
        elif first in (b"]", b"}"):
            if depth == levels + 1:
                kept_from = token.end()
            depth -= 1
    return b"".join([*parts, raw[kept_from:] if depth <= levels else b""])
