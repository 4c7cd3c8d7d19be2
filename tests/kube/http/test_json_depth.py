"""One object that is nested a thousand levels deep hides none of the others in its list."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from flyball_kube.http.json_depth import DEEPEST, loads, without_deeper
from hypothesis import given
from hypothesis import strategies as st

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text('[]{}"\\,: a', max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('[]{}"\\ a', max_size=3), inner, max_size=3),
    max_leaves=12,
)


def cut(value: Any, levels: int) -> Any:
    if not isinstance(value, (list, dict)):
        return value
    if levels == 0:
        return None
    if isinstance(value, list):
        return [cut(item, levels - 1) for item in value]
    return {key: cut(item, levels - 1) for key, item in value.items()}


@given(VALUES, st.integers(0, 4), st.booleans())
def test_what_is_deeper_is_null_and_all_else_stays(value: Any, levels: int, spaced: bool) -> None:
    raw = json.dumps(value, indent=1 if spaced else None).encode()
    assert json.loads(without_deeper(raw, levels)) == cut(value, levels)


@pytest.mark.parametrize("depth", [10, 1000, 1100, 9000])
@pytest.mark.parametrize("brackets", [("[", "]"), ('{"a":', "}")])
def test_a_deep_object_hides_no_other(depth: int, brackets: tuple[str, str]) -> None:
    left, right = brackets
    deep = left * depth + "1" + right * depth
    raw = f'{{"items": [{{"name": "first"}}, {{"name": "deep", "spec": {deep}}}, {{"name": "last"}}]}}'.encode()
    first, of_deep, last = loads(raw)["items"]
    assert (first, of_deep["name"], last) == ({"name": "first"}, "deep", {"name": "last"})


@pytest.mark.parametrize("raw", [b"", b"<html>", b'{"a"', b"[" * 2000, b"[" * 2000 + b"x" + b"}" * 2000 + b"]"])
def test_what_is_no_json_is_refused(raw: bytes) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        loads(raw)


def test_what_is_not_too_deep_for_the_parser_stays_whole() -> None:
    raw = b"[" * (DEEPEST + 10) + b"]" * (DEEPEST + 10)
    assert loads(raw) == json.loads(raw)
