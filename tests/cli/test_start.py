"""The command line answers at once: what a command drives is imported when it runs."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from flyball_cli.main import build_app
build_app()
print(*sorted({"aiohttp", "asyncio", "msgspec", "numpy", "ssl", "textual", "yaml"} & sys.modules.keys()))
"""


def test_help_and_version_load_no_library_but_their_own() -> None:
    answer = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == []


def test_an_operator_starts_without_the_solver_of_its_fits() -> None:
    """It is as long to import as all the rest: a new leader is the sooner there without."""
    program = "import sys; import flyball_operator.main; print('scipy.optimize' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"
