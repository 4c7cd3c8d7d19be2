"""Which objects a label selector takes: Kubernetes' label selectors as pure values.

Semantics: k8s.io/apimachinery `metav1.LabelSelectorAsSelector` and `labels.Requirement.Matches`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from msgspec import field

from flyball_api.reading import ApiStruct


class SelectorOperator(StrEnum):
    """How a requirement relates a label's key to its values."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


class Requirement(ApiStruct, frozen=True):
    """One requirement on an object's labels; raises ValueError where operator and values do not go together."""

    key: str
    operator: SelectorOperator
    values: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if (self.operator in (SelectorOperator.IN, SelectorOperator.NOT_IN)) != bool(self.values):
            wanted = "no values" if self.values else "at least one value"
            raise ValueError(f"requirement on label {self.key!r}: operator {self.operator} needs {wanted}")

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether `labels` meet it; an absent label is not in any set of values, and so meets NotIn."""
        match self.operator:
            case SelectorOperator.IN:
                return labels.get(self.key) in self.values
            case SelectorOperator.NOT_IN:
                return labels.get(self.key) not in self.values
            case SelectorOperator.EXISTS:
                return self.key in labels
            case SelectorOperator.DOES_NOT_EXIST:
                return self.key not in labels


class LabelSelector(ApiStruct, frozen=True):
    """All of its labels and requirements must be met; without any, everything is selected."""

    match_labels: dict[str, str] = field(default_factory=dict)
    match_expressions: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        for key, value in self.match_labels.items():
            if labels.get(key) != value:
                return False
        expressions = self.match_expressions
        return not expressions or all(requirement.matches(labels) for requirement in expressions)

    def select(self, objects: Iterable[tuple[str, Mapping[str, str]]]) -> frozenset[str]:
        """The names of the (name, labels) pairs that match."""
        return frozenset(name for name, labels in objects if self.matches(labels))
