"""`flyball` as its users type it, in this process."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from unittest.mock import patch

import typer.testing
from flyball_cli.main import build_app
from typer.main import get_command
from typer.testing import CliRunner, Result

# What all its commands and options are made of takes fifty times as long as most tests' commands: it is made once.
_APP = build_app()
whole_command = functools.cache(lambda: get_command(_APP))


def flyball(*arguments: object, env: Mapping[str, str] | None = None, answer: str = "") -> Result:
    """What comes of `flyball ARGUMENTS`, with these variables and this answer to what it asks."""
    with patch.object(typer.testing, "_get_command", lambda _app: whole_command()):
        return CliRunner().invoke(_APP, [str(each) for each in arguments], input=answer, env=env, prog_name="flyball")
