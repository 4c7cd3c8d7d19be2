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
