"""Each component works with its own extra alone: every module imports, and its commands answer."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.images.requirements import requirements

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SHARED = ("flyball_api", "flyball_kube")
# What each process is made of; of the command line only what starts it.
COMPONENTS = {
    "operator": (*SHARED, "flyball_operator", "flyball_planner", "flyball_processes", "flyball_cli.main"),
    "agent": (*SHARED, "flyball_agent", "flyball_simulated_gpu", "flyball_cli.main"),
}

# Run in a process of its own: refuses the libraries of argv[1], then imports every module of argv[2], then runs --help.
PROGRAM = """
import importlib, json, pkgutil, sys
refused = set(json.loads(sys.argv[1]))
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in refused:
            raise ModuleNotFoundError(f"{name} is not among the extra's libraries", name=name)
sys.meta_path.insert(0, Refuse())
for name in json.loads(sys.argv[2]):
    module = importlib.import_module(name)
    for found in pkgutil.walk_packages(getattr(module, "__path__", []), name + "."):
        importlib.import_module(found.name)
from flyball_cli.main import main
sys.argv = ["flyball", *sys.argv[3:]]
main()
"""


def libraries(extra: str) -> set[str]:
    """The distributions that `pip install flyball[extra]` brings, theirs included, by their canonical names."""
    found: set[str] = set()
    waiting = [Requirement(line) for line in requirements(PROJECT, [extra])]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in found or (requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        try:
            waiting += [Requirement(line) for line in requires(name) or []]
        except PackageNotFoundError:
            continue  # of another platform or version
    return found


def refused_modules(allowed: set[str]) -> list[str]:
    """The top-level modules of installed distributions that none of `allowed` has."""
    return [
        module
        for module, distributions in packages_distributions().items()
        if not module.startswith("flyball_") and not allowed & {canonicalize_name(each) for each in distributions}
    ]


def run_with(extra: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    refused, components = json.dumps(refused_modules(libraries(extra))), json.dumps(COMPONENTS[extra])
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, refused, components, *arguments],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip


@pytest.mark.parametrize("extra", COMPONENTS)
def test_a_component_needs_its_extra_alone(extra: str) -> None:
    answer = run_with(extra, extra, "run", "--help")
    assert answer.returncode == 0, answer.stderr
    assert re.search(r"Usage: .*flyball", answer.stdout), answer.stdout


@pytest.mark.parametrize("extra", COMPONENTS)
def test_no_extra_of_a_component_brings_what_draws(extra: str) -> None:
    assert not libraries(extra) & {"matplotlib", "pillow", "highspy", "xgboost-cpu", "scikit-learn", "jinja2"}


def test_the_agent_plans_nothing() -> None:
    assert not libraries("agent") & {"numpy", "scipy", "kopf"}


def test_what_is_missing_is_named_with_its_extra() -> None:
    answer = run_with("agent", "operator", "run")
    assert answer.returncode == 2, answer.stderr
    assert re.search(r"this needs (kopf|numpy): install flyball\[(operator|planner)]", answer.stderr), answer.stderr


def test_the_refusal_of_this_test_works() -> None:
    refused = refused_modules(libraries("agent"))
    assert {"numpy", "kopf", "matplotlib"} <= set(refused)
    assert not {"aiohttp", "grpc", "typer", "yaml"} & set(refused)


def test_an_extra_that_does_not_exist() -> None:
    with pytest.raises(KeyError, match="nothing"):
        requirements(PROJECT, ["nothing"])
