"""The CRDs' own schemas: what of an object they refuse, and any JSON that they take."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import jsonschema
from flyball_api.manifests import manifests
from hypothesis import strategies as st

Json = dict[str, Any]

KINDS_WITH_STATUS = ("EnergyAwareJob", "PowerCap", "GPUNode", "EnergyProfile", "EnergyQuota")
KINDS = (*KINDS_WITH_STATUS, "PowerBrake", "BrakeAcknowledgement", "EnergyReport")
INT64 = (-(2**63), 2**63 - 1)


@cache
def _schemas() -> dict[str, Json]:
    return {
        crd["spec"]["names"]["kind"]: crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] for crd in manifests()
    }


def schema_of(kind: str, part: str) -> Json:
    """The schema of a part of a kind: "spec", "status", or one below such as "status.conditions"."""
    schema = _schemas()[kind]
    for name in part.split("."):
        schema = schema["properties"][name]
    return schema


def _closed(schema: Json) -> Json:
    """The schema with what the API server does by itself.

    A field that it does not name would be dropped unseen; a whole number of more than 64 bits would refuse the object.
    """
    closed = dict(schema)
    if schema.get("type") == "integer":
        lowest, highest = INT64
        closed["minimum"] = max(lowest, schema.get("minimum", lowest))
        closed["maximum"] = min(highest, schema.get("maximum", highest))
    if "properties" in schema:
        closed["properties"] = {name: _closed(child) for name, child in schema["properties"].items()}
        closed["additionalProperties"] = False
    if "items" in schema:
        closed["items"] = _closed(schema["items"])
    return closed


@cache
def _validator(kind: str, part: str) -> jsonschema.Draft202012Validator:
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    return jsonschema.Draft202012Validator(_closed(schema_of(kind, part)), format_checker=checker)


def assert_valid(kind: str, part: str, value: Any) -> None:
    """`value` may stand in `part` of a `kind`: the CRD refuses nothing of it and drops nothing from it."""
    errors = _validator(kind, part).iter_errors(json.loads(json.dumps(value)))
    assert not (wrong := [f"{kind} {part}{error.json_path[1:]}: {error.message}" for error in errors]), wrong


# --- any JSON that the CRD takes -------------------------------------------------------------------------------------

# What the API server takes for a date-time (k8s.io/kube-openapi/pkg/validation/strfmt): any character before the
# fraction, offsets of any size, and the year 0.
_ZONES = st.sampled_from(["Z", "z", "+00:00", "-23:59", "+14:00"]) | st.from_regex(
    r"[+-][0-9]{2}:[0-9]{2}", fullmatch=True
)
_FRACTIONS = st.sampled_from(["", ".5", ".123456789123"]) | st.from_regex(r"[.,x][0-9]{1,12}", fullmatch=True)
DATE_TIMES = st.builds(
    "{:04d}-{:02d}-{:02d}{}{:02d}:{:02d}:{:02d}{}{}".format,
    st.sampled_from([0, 1, 1970, 2030, 9999]),
    st.integers(1, 12),
    st.integers(1, 28),
    st.sampled_from("Tt"),
    st.integers(0, 23),
    st.integers(0, 59),
    st.integers(0, 59),
    _FRACTIONS,
    _ZONES,
)
ANY_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(*INT64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def json_of(schema: Json) -> st.SearchStrategy[Any]:
    """Values that a schema takes, its rules (CEL) left aside."""
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return st.dictionaries(st.text(max_size=5), ANY_JSON, max_size=3)
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema["type"]:
        case "object" if "additionalProperties" in schema:
            return st.dictionaries(st.text(max_size=9), json_of(schema["additionalProperties"]), max_size=2)
        case "object":
            fields = {name: json_of(child) for name, child in schema.get("properties", {}).items()}
            required = {name: fields.pop(name) for name in schema.get("required", ())}
            return st.fixed_dictionaries(required, optional=fields)
        case "array":
            least = schema.get("minItems", 0)
            return st.lists(json_of(schema["items"]), min_size=least, max_size=max(least, 3))
        case "integer":
            lowest, highest = schema.get("minimum", INT64[0]), schema.get("maximum", INT64[1])
            return st.integers(lowest, highest) | st.sampled_from([lowest, highest])
        case "boolean":
            return st.booleans()
        case "string" if schema.get("format") == "date-time":
            return DATE_TIMES
        case "string" if pattern := _pattern(schema):
            return st.from_regex(pattern)
        case "string":
            return st.text(min_size=schema.get("minLength", 0), max_size=max(9, schema.get("minLength", 0)))
    raise ValueError(f"a schema of an unknown type: {schema}")


def _pattern(schema: Json) -> str | None:
    """What a string has to match, by the schema or by a rule that says so in words of its own."""
    rules = (rule["rule"] for rule in schema.get("x-kubernetes-validations", ()))
    found = (re.fullmatch(r"self\.matches\(r'(.*)'\)", rule) for rule in rules)
    return schema.get("pattern") or next((match[1] for match in found if match), None)
