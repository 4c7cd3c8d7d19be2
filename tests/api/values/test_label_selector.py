"""Label selectors against Kubernetes' own semantics (the table of apimachinery's `TestLabelSelectorAsSelector`)."""

from __future__ import annotations

import pytest
from flyball_api.values.label_selector import LabelSelector
from msgspec import ValidationError, convert

RACK_A = {"rack": "a", "gpu": "a100"}


@pytest.mark.parametrize(
    ("selector", "labels", "expected"),
    [
        ({}, {}, True),
        ({"matchLabels": {"rack": "a"}}, RACK_A, True),
        ({"matchLabels": {"rack": "b"}}, RACK_A, False),
        ({"matchLabels": {"rack": ""}}, RACK_A, False),
        ({"matchLabels": {"rack": ""}}, {}, False),
        ({"matchLabels": {"rack": ""}}, {"rack": ""}, True),
        ({"matchLabels": {"rack": "a", "gpu": "h100"}}, RACK_A, False),
        ({"matchExpressions": [{"key": "rack", "operator": "In", "values": ["b", "a"]}]}, RACK_A, True),
        ({"matchExpressions": [{"key": "rack", "operator": "In", "values": ["b"]}]}, RACK_A, False),
        ({"matchExpressions": [{"key": "row", "operator": "In", "values": ["1"]}]}, RACK_A, False),
        ({"matchExpressions": [{"key": "rack", "operator": "NotIn", "values": ["b"]}]}, RACK_A, True),
        ({"matchExpressions": [{"key": "rack", "operator": "NotIn", "values": ["a", "b"]}]}, RACK_A, False),
        # An object without the label is not in the set: selected, as Kubernetes has it.
        ({"matchExpressions": [{"key": "row", "operator": "NotIn", "values": ["1"]}]}, RACK_A, True),
        ({"matchExpressions": [{"key": "rack", "operator": "Exists"}]}, RACK_A, True),
        ({"matchExpressions": [{"key": "row", "operator": "Exists"}]}, RACK_A, False),
        ({"matchExpressions": [{"key": "rack", "operator": "Exists"}]}, {"rack": ""}, True),
        ({"matchExpressions": [{"key": "row", "operator": "DoesNotExist", "values": []}]}, RACK_A, True),
        ({"matchExpressions": [{"key": "rack", "operator": "DoesNotExist"}]}, RACK_A, False),
        (
            {"matchLabels": {"rack": "a"}, "matchExpressions": [{"key": "gpu", "operator": "In", "values": ["h100"]}]},
            RACK_A,
            False,
        ),
    ],
)
def test_selector(selector: dict[str, object], labels: dict[str, str], expected: bool) -> None:
    assert convert(selector, LabelSelector).matches(labels) is expected


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ({"key": "rack", "operator": "Gt", "values": ["1"]}, "Invalid enum value 'Gt'"),
        ({"key": "rack", "operator": "In"}, "operator In needs at least one value"),
        ({"key": "rack", "operator": "Exists", "values": ["a"]}, "operator Exists needs no values"),
        ({"operator": "Exists"}, "missing required field `key`"),
    ],
)
def test_a_wrong_expression_is_named(expression: dict[str, object], message: str) -> None:
    good = {"key": "gpu", "operator": "Exists"}
    with pytest.raises(ValidationError, match=message):
        convert({"matchExpressions": [good, expression]}, LabelSelector)


def test_select_names_the_matching_nodes() -> None:
    nodes = [("n1", {"rack": "a"}), ("n2", {"rack": "b"}), ("n3", {})]
    selector = convert({"matchExpressions": [{"key": "rack", "operator": "NotIn", "values": ["b"]}]}, LabelSelector)
    assert selector.select(nodes) == {"n1", "n3"}
