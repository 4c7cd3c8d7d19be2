"""One package knows the JSON of our kinds: nowhere else is a field of them named as the API has it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from flyball_api.manifests import manifests

from tests.support.product import ROOT, product_folders

# Whose JSON is something else, though some of its fields have the same names.
OTHER_JSON = {
    "client/flyball": "what training processes and agents send each other",
    "node_agent/flyball_agent/energy/observations.py": "the same",
    "node_agent/flyball_agent/energy/stage_profiles.py": "the same",
    "node_agent/flyball_agent/node/agent.py": "the same",
    "node_agent/flyball_agent/node/capabilities.py": "the same",
    "testbed/flyball_testbed/workload/reports.py": "the same",
    "operator/flyball_operator/jobs/pipeline_points.py": "what a pipeline's pods read of the point that they run at",
    "page/flyball_page": "the page's own documents",
    "views/flyball_views/why/job_changes.py": "words of explanations, not fields",
}
# Which share no code with the rest, or measure what reading and writing costs.
ON_PURPOSE = {
    "crds/flyball_api": "the one package",
    "testbed/flyball_testbed/referee": "the referee judges by a reading of its own",
    "benchmarks/parsing.py": "bytes are read in several ways",
    "benchmarks/picked_by_hand.py": "one of these ways",
    "benchmarks/cluster_in_memory.py": "stands for agents in a process whose time is measured",
    "benchmarks/running_jobs.py": "the same",
    "benchmarks/write_costs.py": "measures what a request of so many bytes costs",
}
# Kubernetes' own objects have fields of these names, too.
KUBERNETES = frozenset(
    {
        "agentVersion", "apiVersion", "bootID", "completionTime", "configMap", "exitCode", "lastTransitionTime",
        "managedBy", "matchExpressions", "matchLabels", "nodeSelector", "observedGeneration", "periodSeconds", "podName",
        "resourceName", "startTime", "timeZone", "ttlSecondsAfterFinished",
    }
)  # fmt: skip


def field_names(schema: dict[str, Any]) -> Iterator[str]:
    for name, child in schema.get("properties", {}).items():
        yield name
        yield from field_names(child)
    for inner in (schema.get("items"), schema.get("additionalProperties")):
        if isinstance(inner, dict):
            yield from field_names(inner)


def our_fields() -> frozenset[str]:
    """The fields of our kinds that nobody takes for a word: those of several words."""
    schemas = [version["schema"]["openAPIV3Schema"] for crd in manifests() for version in crd["spec"]["versions"]]
    names = {name for schema in schemas for name in field_names(schema)}
    return frozenset(name for name in names if re.search("[a-z][A-Z]", name)) - KUBERNETES


def named_fields(source: str, fields: frozenset[str]) -> list[str]:
    texts = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    return [text for text in texts if isinstance(text, str) and text in fields]


@cache
def naming_modules() -> dict[str, list[str]]:
    """The modules of the product that name fields of our kinds, with the fields."""
    fields = our_fields()
    assert {"effectiveWatts", "globalBatchSize", "boundMilliwatts", "keptMillionths"} <= fields
    modules = sorted(path for folder in product_folders() for path in folder.rglob("*.py"))
    assert len(modules) > 500
    quoted = re.compile(rf"""["']({"|".join(sorted(fields))})["']""")
    texts = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in modules}
    named = {module: named_fields(text, fields) for module, text in texts.items() if quoted.search(text)}
    return {module: found for module, found in named.items() if found}


def test_no_other_code_names_a_field_of_our_kinds() -> None:
    excepted = tuple(OTHER_JSON | ON_PURPOSE)
    assert {module: found for module, found in naming_modules().items() if not module.startswith(excepted)} == {}


def test_every_exception_is_needed() -> None:
    named = naming_modules()
    unneeded = [name for name in OTHER_JSON | ON_PURPOSE if not any(module.startswith(name) for module in named)]
    assert unneeded == []
