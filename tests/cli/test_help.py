"""Every `--help` says all that was written, and enough to begin with."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest
from flyball_planner.policies.registry import policy_names
from flyball_simulator.workloads.trace_library import TRACE_NAMES
from flyball_testbed.demo.command import FIRST_CAP, HIGH_CAP, LOW_CAP
from rich.text import Text

from tests.support.command_line import flyball, whole_command


def commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Each command and each group of them, by its whole name."""
    yield name, command
    for word, below in getattr(command, "commands", {}).items():
        yield from commands(below, f"{name} {word}")


COMMANDS = dict(commands(whole_command(), "flyball"))


@functools.cache
def help_of(name: str) -> str:
    """What a command's `--help` shows at eighty columns."""
    return flyball(*name.split()[1:], "--help", env={"COLUMNS": "80"}).output


@pytest.mark.parametrize("name", COMMANDS)
def test_no_word_is_taken_for_markup(name: str) -> None:
    command = COMMANDS[name]
    texts = [command.help, *(getattr(parameter, "help", None) for parameter in command.params)]
    written = [text.replace("\b", "") for text in texts if text]
    assert [text for text in written if Text.from_markup(text).plain != text] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_what_a_command_is_for_is_said_beyond_its_first_sentence(name: str) -> None:
    """A command with more than five parameters needs more than a line: what it does, or an example."""
    command = COMMANDS[name]
    if len(command.params) > 5:
        assert len(re.split(r"\n\s*\n", (command.help or "").strip())) > 1


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_whole_at_eighty_columns(name: str) -> None:
    """No line is longer, no option's name is cut short, and what is indented in its text is shown as it is written."""
    command, shown = COMMANDS[name], help_of(name)
    assert [line for line in shown.splitlines() if len(line) > 80] == []
    names = [opt for each in command.params for opt in each.opts if opt.startswith("-")]
    assert [opt for opt in names if not re.search(rf"{opt}(?![\w-])", shown)] == []
    text = inspect.cleandoc(command.help or "").replace("\b", "")
    indented = [line for line in text.splitlines() if line.startswith(" ")]
    assert [line for line in indented if f"\n  {line}\n" not in shown] == []
    for below in getattr(command, "commands", {}).values():
        first = " ".join(inspect.cleandoc(below.help or "").partition("\n\n")[0].split())
        assert first in " ".join(shown.split()), "of its commands, too, all of the first paragraph"


@pytest.mark.parametrize("name", COMMANDS)
def test_values_are_named_as_people_name_them(name: str) -> None:
    """An option that may be given several times is not a `list[Path]` to who types it."""
    assert [line for line in help_of(name).splitlines() if line.startswith("  -") and "list[" in line] == []


def test_what_kubectl_is_given_stands_in_its_usage() -> None:
    shown = flyball("devcluster", "kubectl", "--help").output
    assert shown.startswith("Usage: flyball devcluster kubectl [OPTIONS] -- ARGS...\n")


def test_every_command_stands_under_a_heading() -> None:
    first = {name: command for name, command in COMMANDS.items() if name.count(" ") == 1}
    assert len(first) > 20
    assert [name for name, command in first.items() if not isinstance(command.rich_help_panel, str)] == []


def test_the_demos_help_names_its_caps() -> None:
    text = COMMANDS["flyball demo"].help or ""
    assert re.findall(r"(\d+) %", text) == [f"{100 * cap:.0f}" for cap in (FIRST_CAP, LOW_CAP, HIGH_CAP)]


def test_simulate_names_every_policy() -> None:
    """The names are written there once more: to import the policies would have help load the planner."""
    (policy,) = (each for each in COMMANDS["flyball simulate"].params if each.name == "policy")
    named = re.split(r",\s*", policy.help.partition(", or ")[0])
    assert named == list(policy_names()), "name it in the help of --policy, cli/flyball_cli/research/simulate.py"


def test_simulate_and_compare_name_every_trace_of_the_library() -> None:
    """Written once more for the same reason, but for both commands once."""
    for command in ("simulate", "compare"):
        (trace,) = (each for each in COMMANDS[f"flyball {command}"].params if each.name == "trace")
        named = re.split(r",\s*", trace.help.partition(", or ")[0])
        assert named == list(TRACE_NAMES), "name it in TraceOption, cli/flyball_cli/research/simulation_options.py"
