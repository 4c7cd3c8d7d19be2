"""How a command ends that cannot do what was asked: with one line that says why, behind the command's name.

What is wrong with the options themselves is said as typer says it, behind the command's usage.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import typer

PLUGIN = "kubectl-flyball"


def invocation() -> str:
    """How this program is called: a plugin's usage says `kubectl flyball`."""
    return "kubectl flyball" if Path(sys.argv[0]).name.startswith(PLUGIN) else "flyball"


class Ended(typer.Exit):
    """A command has ended with `line`, which is printed behind the command's name."""

    def __init__(self, line: str, status: int) -> None:
        super().__init__(status)
        self.line = line


def fail(message: object) -> NoReturn:
    """End the command that runs, which could not do what was asked, with one line and status 1."""
    raise Ended(_one_line(message), 1)


def refuse(message: object, cause: Exception | None = None) -> NoReturn:
    """End the command that runs, which was asked for something wrong, with one line and status 2."""
    raise Ended(_one_line(message), 2) from cause


def _one_line(message: object) -> str:
    return " ".join(str(message).split())
