"""From typed structs to the API's JSON: whole objects, and what of a spec or status is written."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from msgspec import NODEFAULT, Struct, to_builtins
from msgspec.structs import FieldInfo, fields

from flyball_api.names import FLYBALL_API_VERSION
from flyball_api.reading import ApiStruct, JsonObject, without_nulls

_LISTS = (list, tuple)


def api_object(kind: str, name: str, spec: ApiStruct, *, namespace: str = "") -> JsonObject:
    """An object of one of our kinds as people write it: what of its spec has its default is left to the API server."""
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": FLYBALL_API_VERSION, "kind": kind, "metadata": metadata, "spec": _without_defaults(spec)}


def spec_patch(of: type[ApiStruct], **changed: Any) -> JsonObject:
    """A merge patch of some fields of a spec, by the names that `of` gives them; None removes one.

    Of a field that is a struct, what has its default stays as it is. Raises KeyError for a field that is not in the spec.
    """
    names = {field.name: field.encode_name for field in fields(of)}
    return {"spec": {names[name]: _without_defaults(value) for name, value in changed.items()}}


def to_patch(status: Struct, *, unchanged: Collection[str] = ()) -> JsonObject:
    """A status as a merge patch sends it: a field that is None as null, which removes it; the `unchanged` ones stay.

    A patch replaces lists whole, and null is no value of an entry's field: there, what is None is left out.
    """
    written = to_builtins(status)
    if unchanged:
        left = {field.encode_name for field in fields(status) if field.name in unchanged}
        written = {key: value for key, value in written.items() if key not in left}
    return _with_whole_lists(written)


def to_json(spec: Struct) -> JsonObject:
    """A spec as an object has it: what is None is left out."""
    written: JsonObject = without_nulls(to_builtins(spec))
    return written


def _with_whole_lists(value: JsonObject) -> JsonObject:
    return {
        key: _with_whole_lists(item)
        if isinstance(item, dict)
        else without_nulls(item)
        if isinstance(item, _LISTS)
        else item
        for key, item in value.items()
    }


def _without_defaults(value: Any) -> Any:
    if isinstance(value, Struct):
        given = ((field, getattr(value, field.name)) for field in fields(value))
        return {field.encode_name: _without_defaults(found) for field, found in given if found != _default(field)}
    if isinstance(value, _LISTS):
        return [_without_defaults(item) for item in value]
    return to_builtins(value)


def _default(field: FieldInfo) -> Any:
    return field.default if field.default_factory is NODEFAULT else field.default_factory()
