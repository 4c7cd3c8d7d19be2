"""A planner service of a test's own, as a process."""

from __future__ import annotations

import re
import signal
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.waiting import PATIENCE_SECONDS, wait_until


@contextmanager
def service(folder: Path, *arguments: str) -> Iterator[str]:
    """The address of a service of the command's; ended by SIGTERM, in order."""
    log = folder / "log"
    program = str(Path(sysconfig.get_path("scripts")) / "flyball")
    with log.open("wb") as file:
        process = subprocess.Popen([program, "planner", "serve", "--port", "0", *arguments], stderr=file, stdout=file)
    try:

        def address() -> str:
            found = re.search(r'"?address"?[=:] ?"?([\d.]+).*"?port"?[=:] ?(\d+)', log.read_text())
            return f"http://{found[1]}:{found[2]}" if found else ""

        wait_until(lambda: bool(address()) or process.poll() is not None, lambda: log.read_text())
        assert process.poll() is None, log.read_text()
        yield address()
        process.terminate()
        assert process.wait(PATIENCE_SECONDS) in (0, -signal.SIGTERM), log.read_text()
    finally:
        process.kill()
        process.wait()
