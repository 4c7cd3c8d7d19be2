"""`flyball` as its users type it, in this process."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

import typer.testing
from flyball_cli.main import build_app
from flyball_cli.terminal.endings import invocation
from typer.main import get_command
from typer.testing import CliRunner, Result

_APP = build_app()


@functools.cache
def whole_command() -> Any:
    """The command with all that are below it, made once: that takes fifty times as long as most of them run in a test."""
    return get_command(_APP)


def flyball(*arguments: object, env: Mapping[str, str] | None = None, answer: str = "") -> Result:
    """What comes of `flyball ARGUMENTS`, with these variables and this answer to what it asks."""
    with patch.object(typer.testing, "_get_command", lambda _app: whole_command()):
        words = [str(each) for each in arguments]
        return CliRunner().invoke(_APP, words, input=answer, env=env, prog_name=invocation())
