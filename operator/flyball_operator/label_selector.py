"""Which nodes a cap takes: Kubernetes' label selectors as pure values.

Semantics: k8s.io/apimachinery `metav1.LabelSelectorAsSelector` and `labels.Requirement.Matches`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Operator(StrEnum):
    """How a requirement relates a label's key to its values."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


@dataclass(frozen=True, slots=True)
class Requirement:
    """One requirement on an object's labels; raises ValueError where operator and values do not go together."""

    key: str
    operator: Operator
    values: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if (self.operator in (Operator.IN, Operator.NOT_IN)) != bool(self.values):
            wanted = "no values" if self.values else "at least one value"
            raise ValueError(f"requirement on label {self.key!r}: operator {self.operator} needs {wanted}")

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether `labels` meet it; an absent label is not in any set of values, and so meets NotIn."""
        match self.operator:
            case Operator.IN:
                return labels.get(self.key) in self.values
            case Operator.NOT_IN:
                return labels.get(self.key) not in self.values
            case Operator.EXISTS:
                return self.key in labels
            case Operator.DOES_NOT_EXIST:
                return self.key not in labels


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """All of `requirements` must hold; without any, everything is selected."""

    requirements: tuple[Requirement, ...] = ()

    @classmethod
    def of(cls, raw: Mapping[str, Any] | None) -> LabelSelector:
        """A selector from its JSON form (`matchLabels`, `matchExpressions`); a missing one selects everything.

        Raises ValueError that names the expression where it is not a selector's.
        """
        raw = raw or {}
        requirements = [
            Requirement(key, Operator.IN, frozenset([value])) for key, value in (raw.get("matchLabels") or {}).items()
        ]
        for index, expression in enumerate(raw.get("matchExpressions") or ()):
            try:
                operator = Operator(expression["operator"])
                requirements.append(Requirement(expression["key"], operator, frozenset(expression.get("values") or ())))
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"matchExpressions[{index}] {expression!r}: {error}") from error
        return cls(tuple(requirements))

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(requirement.matches(labels) for requirement in self.requirements)

    def select(self, nodes: Iterable[tuple[str, Mapping[str, str]]]) -> frozenset[str]:
        """The names of the (name, labels) pairs that match."""
        return frozenset(name for name, labels in nodes if self.matches(labels))
