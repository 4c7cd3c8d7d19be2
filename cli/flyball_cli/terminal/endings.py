"""How a command ends that cannot do what was asked: with one line that says why."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import typer

PLUGIN = "kubectl-flyball"


def invocation() -> str:
    """How this program is called: a plugin's usage says `kubectl flyball`."""
    return "kubectl flyball" if Path(sys.argv[0]).name.startswith(PLUGIN) else "flyball"


def fail(command: str, message: object) -> NoReturn:
    """End a command with one line and status 1."""
    from flyball_cli.terminal.printing import in_one_line

    typer.echo(f"{invocation()} {command}: {in_one_line(' '.join(str(message).split()))}", err=True)
    raise typer.Exit(1)


def refuse(message: str, cause: Exception | None = None) -> NoReturn:
    """End a command that was asked for something wrong, with one line and status 2."""
    typer.echo(message, err=True)
    raise typer.Exit(2) from cause
