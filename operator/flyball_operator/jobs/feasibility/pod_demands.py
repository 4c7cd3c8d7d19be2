"""What a job's pods demand of a node, by their template, and what of it a node lacks: as the scheduler will judge it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flyball_api.energy_aware_job import EnergyAwareJob
from flyball_api.names import STARTUP_TAINT
from flyball_api.reading import ApiStruct, InvalidObject, read_object
from flyball_api.workloads import NO_NEEDS, Needs, NodeView, Taint, needs_of_template
from msgspec import field

# Of a node that is away for now; whether it is there the plan knows by itself.
_PASSING_TAINTS = frozenset(
    {
        STARTUP_TAINT,
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
        "node.kubernetes.io/unschedulable",
        "node.kubernetes.io/network-unavailable",
        "node.cloudprovider.kubernetes.io/uninitialized",
    }
)
_THOUSANDTHS, _GIBI = 1000, 1024**3
# Each is compared with each node in each cycle, and a cut that comes meanwhile waits: nobody needs more, and who asks for
# more is left to the scheduler. A list of values may have the name of every node.
MOST_TOLERATIONS = 100
MOST_REQUIREMENTS = 100
MOST_VALUES = 2000
# So many of them take a node as long as all the rest.
CHECKED_AT_ONCE = 5
# No label of a node is longer. Templates of our own kind may ask for what is, which no API server has looked at.
LONGEST_KEY, LONGEST_VALUE = 317, 63


class Requirement(ApiStruct, frozen=True):
    """One requirement of a node selector term."""

    key: str = ""
    operator: str = ""
    values: frozenset[str] = frozenset()

    def met_by(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels meets it; an operator that is not known is left to the scheduler."""
        value = labels.get(self.key)
        judge = _OPERATORS.get(self.operator)
        return judge is None or judge(value, self.values)


def _compared(value: str | None, values: frozenset[str], sign: int) -> bool:
    """Whether a label is above or below the one number that it may be compared with: by any other, pods are refused."""
    if value is None or len(values) != 1:
        return False
    (number,) = values
    try:
        return len(number) <= LONGEST_VALUE and sign * (int(value) - int(number)) > 0
    except ValueError:
        return False


_OPERATORS: dict[str, Callable[[str | None, frozenset[str]], bool]] = {
    "In": lambda value, values: value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, values: value is not None,
    "DoesNotExist": lambda value, values: value is None,
    "Gt": lambda value, values: _compared(value, values, 1),
    "Lt": lambda value, values: _compared(value, values, -1),
}


class Term(ApiStruct, frozen=True):
    """One term of a node selector: all of its requirements; fields are the name of the node alone."""

    match_expressions: tuple[Requirement, ...] = ()
    match_fields: tuple[Requirement, ...] = ()

    def met_by(self, node: NodeView) -> bool:
        labels = node.labels
        for item in self.match_expressions:
            if not item.met_by(labels):
                return False
        return not self.match_fields or self._names(node.name)

    def _names(self, name: str) -> bool:
        fields = {"metadata.name": name}
        return all(item.met_by(fields) for item in self.match_fields)


class Toleration(ApiStruct, frozen=True):
    """A toleration of a pod; without a key it tolerates all taints, without an effect all of a taint's effects."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        if self.operator == "Exists":
            return True
        return bool(self.key) and self.value == taint.value


class _NodeSelector(ApiStruct, frozen=True):
    node_selector_terms: tuple[Term, ...] = ()


class _NodeAffinity(ApiStruct, frozen=True):
    required: _NodeSelector | None = field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")


class _Affinity(ApiStruct, frozen=True):
    node_affinity: _NodeAffinity = _NodeAffinity()


class _PodSpec(ApiStruct, frozen=True):
    node_selector: dict[str, str] = field(default_factory=dict)
    affinity: _Affinity = _Affinity()
    tolerations: tuple[Toleration, ...] = ()


class _Template(ApiStruct, frozen=True):
    spec: _PodSpec = _PodSpec()


class PodDemands(ApiStruct, frozen=True):
    """What each pod of a job demands of its node; `gpus` is what the job needs over all nodes."""

    resource_name: str
    gpus: int
    labels: tuple[tuple[str, str], ...] = ()
    terms: tuple[Term, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()
    needs: Needs = NO_NEEDS

    @property
    def effort(self) -> int:
        """What it takes to compare this with one node, beside what it takes without labels, affinity and tolerations."""
        terms = self.terms or ()
        requirements = sum(len(term.match_expressions) + len(term.match_fields) for term in terms)
        return 1 + (len(self.labels) + max(len(terms), requirements) + len(self.tolerations)) // CHECKED_AT_ONCE

    def lacking(self, node: NodeView, free: Needs | None) -> str:
        """What the node lacks, as what follows "has" or "have"; empty where the pods fit.

        `free` is what nobody else has of the node beside GPUs; None: not known.
        """
        if self.resource_name not in node.gpu_resources:
            return f"no {self.resource_name}"
        for key, value in self.labels:
            if node.labels.get(key) != value:
                return f"no label {key}={value}"
        if self.terms is not None and not any(term.met_by(node) for term in self.terms):
            return "labels outside the required node affinity"
        for taint in node.taints:
            lasting = taint.effect in ("NoSchedule", "NoExecute") and taint.key not in _PASSING_TAINTS
            if lasting and not any(item.tolerates(taint) for item in self.tolerations):
                return f"taint {taint.key}={taint.value}" if taint.value else f"taint {taint.key}"
        if node.allocatable_gpus < min(self.gpus, node.gpus):
            return f"{node.allocatable_gpus} of {node.gpus} GPUs"
        return "" if free is None else self._short_of(free)

    def _short_of(self, free: Needs) -> str:
        needs = self.needs
        if needs.cpu > free.cpu:
            return f"fewer than {needs.cpu / _THOUSANDTHS:g} CPUs free"
        for what, asked, left in (
            ("memory", needs.memory, free.memory),
            ("ephemeral storage", needs.storage, free.storage),
        ):
            if asked > left:
                return f"less than {asked / _THOUSANDTHS / _GIBI:.4g} GiB of {what} free"
        return ""


def pod_demands(job: EnergyAwareJob) -> PodDemands:
    """The demands of a job's template; of one that cannot be read, which the API server will refuse, its GPUs alone."""
    return template_demands(job.spec.template, plain_demands(job))


def plain_demands(job: EnergyAwareJob) -> PodDemands:
    """A job's GPUs alone."""
    return PodDemands(job.spec.gpus.resource_name, job.spec.gpus.min)


def template_demands(whole: Mapping[str, Any], plain: PodDemands) -> PodDemands:
    """What the pods of a template demand besides the GPUs of `plain`, which is all where it cannot be read."""
    template: Mapping[str, Any] = {key: whole[key] for key in ("spec",) if key in whole}
    try:
        spec = read_object("PodTemplate", template, _Template).spec
        needs = needs_of_template(template)
    except InvalidObject:
        return plain
    required = spec.affinity.node_affinity.required
    return PodDemands(
        plain.resource_name,
        plain.gpus,
        # Of what is too long to be a node's so much is kept that it is none's: it would be written out for each node.
        tuple(
            sorted((key[: LONGEST_KEY + 1], value[: LONGEST_VALUE + 1]) for key, value in spec.node_selector.items())
        ),
        None if required is None or _is_long(required.node_selector_terms) else required.node_selector_terms,
        spec.tolerations if len(spec.tolerations) <= MOST_TOLERATIONS else (Toleration(operator="Exists"),),
        needs,
    )


def _is_long(terms: Sequence[Term]) -> bool:
    """Whether terms ask for more than is worth comparing."""
    requirements = [item for term in terms for item in (*term.match_expressions, *term.match_fields)]
    values = sum(len(item.values) for item in requirements)
    return max(len(terms), len(requirements)) > MOST_REQUIREMENTS or values > MOST_VALUES
