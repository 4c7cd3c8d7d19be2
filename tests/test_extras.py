"""Each component works with its own extra alone: every module imports, and its commands answer."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.images.requirements import requirements
from tests.support.components import COMMANDS, COMPONENTS, IMPORT_ALL

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# Refuses the libraries of argv[2], imports every module of argv[1], and then runs each command of argv[3], and says of each
# its status, its output and its errors.
PROGRAM = f"""
import contextlib, io, json, sys
class Refuse:
    refused = set(json.loads(sys.argv[2]))
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.refused:
            raise ModuleNotFoundError(f"{{name}} is not among the extra's libraries", name=name)
sys.meta_path.insert(0, Refuse())
{IMPORT_ALL}
from flyball_cli.main import main
answers = []
for arguments in json.loads(sys.argv[3]):
    sys.argv = ["flyball", *arguments]
    with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            main()
            status = 0
        except SystemExit as end:
            status = end.code
    answers.append((status, output.getvalue(), errors.getvalue()))
print(json.dumps(answers))
"""
Answer = tuple[int, str, str]


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


def run_with(extra: str, packages: Sequence[str], *commands: Sequence[str]) -> list[Answer]:
    """Status, output and errors of each command, in a process that has the extra's libraries alone."""
    refused = json.dumps(refused_modules(libraries(extra)))
    command = [sys.executable, "-c", PROGRAM, json.dumps(packages), refused, json.dumps(commands)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    return [tuple(answer) for answer in json.loads(ended.stdout)]


@pytest.mark.slow
@pytest.mark.parametrize("extra", COMPONENTS)
def test_a_component_needs_its_extra_alone(extra: str) -> None:
    ((status, output, errors),) = run_with(extra, COMPONENTS[extra], [*COMMANDS[extra], "--help"])
    assert status == 0, errors
    assert re.search(r"Usage: .*flyball", output), output


@pytest.mark.slow
def test_the_terminal_view_needs_its_extra_alone() -> None:
    packages = ["flyball_api", "flyball_views", "flyball_cli.cluster.live_cluster", "flyball_cli.cluster.terminal_view"]
    commands = (["top"], ["why", "train"], ["doctor"], ["report"], ["logs", "job"], ["emergency", "--cap", "hall"])
    benches = (["demo"], ["devcluster", "up"], ["devcluster", "status"])
    planning = ["whatif", "pcap", "hall", "--watts", "5"]
    asked = [[*command, "--kubeconfig", "/nonexistent"] for command in (*commands, planning)]
    *answers, (status, _, errors), demo, up, inspected = run_with("view", packages, *asked, *benches)
    assert len(answers) == len(commands)
    for answer in answers:
        assert (answer[0], answer[2].count("\n")) == (1, 1), answer
        assert "/nonexistent: No such file" in answer[2]
    assert status == 1
    assert "install flyball[operator]" in errors
    for answer in (demo, up, inspected):
        assert (answer[0], answer[2].count("\n")) == (2, 1), answer
        assert "install flyball[testbed]" in answer[2]


@pytest.mark.parametrize("extra", COMPONENTS)
def test_no_component_brings_what_it_does_not_use(extra: str) -> None:
    solver = set() if extra == "service" else {"highspy", "pylmcf"}  # which frontiers are found by
    assert not libraries(extra) & {
        *solver,
        "matplotlib",
        "pillow",
        "xgboost-cpu",
        "scikit-learn",
        "jinja2",
        "kubernetes",
    }


def test_the_agent_plans_nothing() -> None:
    assert not libraries("agent") & {"numpy", "scipy", "kopf"}


@pytest.mark.slow
def test_what_is_missing_is_named_with_its_extra() -> None:
    ((status, _, errors),) = run_with("agent", COMPONENTS["agent"], ["operator", "run"])
    assert status == 2, errors
    assert re.search(r"this needs (kopf|numpy): install flyball\[(operator|planner)]", errors), errors


def test_the_refusal_of_this_test_works() -> None:
    refused = refused_modules(libraries("agent"))
    assert {"numpy", "kopf", "matplotlib"} <= set(refused)
    assert not {"aiohttp", "grpc", "typer", "yaml"} & set(refused)


def test_an_extra_that_does_not_exist() -> None:
    with pytest.raises(KeyError, match="nothing"):
        requirements(PROJECT, ["nothing"])
