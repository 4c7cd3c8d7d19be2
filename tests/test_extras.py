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
from tests.support.components import COMPONENTS, IMPORT_ALL

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# Refuses the libraries of argv[2], imports every module of argv[1], and then runs the command of the other arguments.
PROGRAM = f"""
import json, sys
class Refuse:
    refused = set(json.loads(sys.argv[2]))
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.refused:
            raise ModuleNotFoundError(f"{{name}} is not among the extra's libraries", name=name)
sys.meta_path.insert(0, Refuse())
{IMPORT_ALL}
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
        [sys.executable, "-c", PROGRAM, components, refused, *arguments],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("extra", COMPONENTS)
def test_a_component_needs_its_extra_alone(extra: str) -> None:
    answer = run_with(extra, extra, "run", "--help")
    assert answer.returncode == 0, answer.stderr
    assert re.search(r"Usage: .*flyball", answer.stdout), answer.stdout


@pytest.mark.slow
def test_the_terminal_view_needs_its_extra_alone() -> None:
    refused = json.dumps(refused_modules(libraries("view")))
    packages = json.dumps(["flyball_api", "flyball_views", "flyball_cli.live_cluster", "flyball_cli.terminal_view"])

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", PROGRAM, packages, refused, *arguments, "--kubeconfig", "/nonexistent"]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)

    for command in (["top"], ["why", "job"], ["doctor"], ["report"], ["logs", "job"], ["emergency", "--cap", "hall"]):
        answer = run(*command)
        assert (answer.returncode, answer.stderr.count("\n")) == (1, 1), answer.stderr
        assert "/nonexistent: No such file" in answer.stderr
    answer = run("whatif", "pcap", "hall", "--watts", "5")
    assert answer.returncode == 1
    assert "install flyball[operator]" in answer.stderr


@pytest.mark.parametrize("extra", COMPONENTS)
def test_no_component_brings_what_it_does_not_use(extra: str) -> None:
    assert not libraries(extra) & {
        "matplotlib",
        "pillow",
        "highspy",
        "xgboost-cpu",
        "scikit-learn",
        "jinja2",
        "kubernetes",
    }


def test_the_agent_plans_nothing() -> None:
    assert not libraries("agent") & {"numpy", "scipy", "kopf"}


@pytest.mark.slow
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
