"""Every setting of operator and agent can be given on the command line and by the environment, and stands in --help."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import typer
from flyball_agent.process.options import AgentOptions
from flyball_cli.components.options import takes
from flyball_kube.process.log_settings import LogSettings
from flyball_kube.process.options import OptionText, option, options
from flyball_operator.settings import Settings
from flyball_planner.planner import DEFAULT_POLICY
from typer.testing import CliRunner

from tests.support.command_line import flyball

WIDE = {"COLUMNS": "240", "TERM": "dumb"}


COMMANDS: dict[str, tuple[type[Any], ...]] = {
    "operator": (Settings, LogSettings),
    "agent": (AgentOptions, LogSettings),
}
# What makes every other value of a field valid: simulated GPUs need a folder.
BESIDE: dict[type[Any], dict[str, str]] = {AgentOptions: {"hardware_dir": "hw", "socket_dir": "s"}}


def every_field() -> list[tuple[type[Any], dataclasses.Field[Any], OptionText]]:
    kinds = dict.fromkeys(kind for kinds in COMMANDS.values() for kind in kinds)
    return [(kind, one, options(kind)[one.name]) for kind in kinds for one in dataclasses.fields(kind)]


def run(kind: type[Any], arguments: list[str], environment: Mapping[str, str] | None = None) -> Any:
    """The settings that a command of `kind` is given; AssertionError with its output where it refuses."""
    made: list[Any] = []
    app = typer.Typer()
    app.command()(takes(kind)(lambda settings: made.append(settings)))
    result = CliRunner().invoke(app, arguments, env=dict(environment or {}))
    assert result.exit_code == 0, result.output
    return made[0]


def required(kind: type[Any], but: str = "") -> list[str]:
    """Arguments for the fields without a default and for what others need, other than `but`."""
    missing = {one.name: "x" for one in dataclasses.fields(kind) if one.default is dataclasses.MISSING}
    given = {**missing, **BESIDE.get(kind, {})}
    return [word for name, value in given.items() if name != but for word in (options(kind)[name].flag, value)]


def another_value(kind: type[Any], one: dataclasses.Field[Any], folder: Path) -> tuple[str, Any]:
    """A value that is valid and not the field's default, as text and as it is in the settings."""
    annotation = typing.get_type_hints(kind)[one.name]
    special = {
        "policy": "fifo", "log_format": "text", "log_level": "ERROR", "driver": "simulated", "pods": "kubelet",
        "mode": "observe", "planner_url": "http://planner",
    }  # fmt: skip
    if one.name in special:
        return special[one.name], special[one.name]
    if one.name == "gpu_model_files":
        path = folder / "board.yaml"
        path.write_text(
            "product: X\nlimits: [100, 300, 250]\nidle: 33\nclocks: [300, 1500, 15]\nknee: 1200\nslope: 0.7\n"
        )
        return str(path), (path,)
    if one.name == "meter_endpoints_file":
        path = folder / "endpoints.yaml"
        path.write_text("endpoints: []\n")
        return str(path), path
    if one.name == "gpu_resources":
        return "example.com/gpu", ("example.com/gpu",)
    if annotation in (int, float):
        default: Any = one.default
        value = annotation(default / 2 + 1 if annotation is int else (default or 1.0) / 1.25)
        return str(value), value
    if annotation is bool:
        return str(not one.default).lower(), not one.default
    text = str(folder / "somewhere")
    return text, Path(text) if annotation in (Path, Path | None) else text


@pytest.mark.parametrize(("kind", "one", "given"), every_field(), ids=lambda value: getattr(value, "name", None))
def test_every_setting_is_given_by_option_and_by_environment(
    kind: type[Any], one: dataclasses.Field[Any], given: OptionText, tmp_path: Path
) -> None:
    text, value = another_value(kind, one, tmp_path)
    assert value != one.default
    words = (
        {True: [given.flag], False: [f"--no-{given.flag[2:]}"]}[value]
        if isinstance(value, bool)
        else [given.flag, text]
    )
    rest = required(kind, one.name)
    assert getattr(run(kind, [*rest, *words]), one.name) == value
    for variable in given.variables:
        assert getattr(run(kind, rest, {variable: text}), one.name) == value
    assert given.variables[0].startswith("FLYBALL_") or given.variables == ("NODE_NAME",)


def entries(command: str) -> dict[str, str]:
    """What `flyball COMMAND run --help` says of each option, by its flag."""
    shown = flyball(command, "run", "--help", env=WIDE).output
    found: dict[str, str] = {}
    flag = ""
    for line in shown.splitlines():
        words = line.split()
        if words and words[0].startswith("--"):
            flag = words[0]
        found[flag] = " ".join([found.get(flag, ""), *words])
    return found


@pytest.mark.parametrize(("command", "kinds"), COMMANDS.items(), ids=COMMANDS)
def test_help_names_every_setting_with_its_unit_and_default(command: str, kinds: tuple[type[Any], ...]) -> None:
    shown = entries(command)
    for kind in kinds:
        for one in dataclasses.fields(kind):
            given = options(kind)[one.name]
            entry = shown[given.flag]
            assert " ".join(given.help.split()) in entry
            if given.unit:
                assert f"<{given.unit}>" in entry
            if isinstance(one.default, bool) or one.default in (None, "", (), dataclasses.MISSING):
                continue
            default = ", ".join(one.default) if isinstance(one.default, tuple) else one.default
            # Lines break behind hyphens, and limits may follow.
            assert re.search(rf"default: {re.escape(str(default))}[];]", entry.replace("- ", "-"))
            assert given.unit or not isinstance(one.default, int | float), f"{given.flag}: what does it count?"


def test_a_setting_that_cannot_be_ends_with_its_message_and_status_2() -> None:
    app = typer.Typer()
    app.command()(takes(LogSettings)(lambda settings: None))
    result = CliRunner().invoke(app, ["--log-format", "xml"], env=WIDE)
    assert result.exit_code == 2
    assert "log format 'xml' is unknown (json or text)" in result.output


def test_a_limit_counts_for_the_environment_too() -> None:
    app = typer.Typer()
    app.command()(takes(Settings)(lambda settings: None))
    for arguments, environment in ((["--guard-fraction", "2"], {}), ([], {"FLYBALL_GUARD_FRACTION": "2"})):
        result = CliRunner().invoke(app, arguments, env={**WIDE, **environment})
        assert result.exit_code == 2
        assert "Invalid value for '--guard-fraction'" in result.output


def test_the_command_line_goes_before_the_environment() -> None:
    given = run(LogSettings, ["--log-level", "ERROR"], {"FLYBALL_LOG_LEVEL": "DEBUG"})
    assert given.log_level == "ERROR"


def test_a_field_without_an_option_is_an_error() -> None:
    @dataclass(frozen=True)
    class Half:
        named: int = field(default=1, metadata=option("named"))
        forgotten: int = 2

    with pytest.raises(TypeError, match=r"Half\.forgotten says nothing of its option"):
        options(Half)


def test_the_default_policy_is_the_planners() -> None:
    """Written out in the settings, so that --help does not wait for the planner."""
    assert Settings().policy == DEFAULT_POLICY
