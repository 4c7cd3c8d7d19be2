"""A few small values that the processes of one start tell each other through files of the volume that they share.

Used when a start begins and when it ends, and by replicas of a pipeline once an iteration. A file is made before anybody
looks for it and only its contents change, since network file systems remember for a while that a file was not there.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Callable

POLL_SECONDS = 0.02


class SharedValues:
    """Values by name in one folder; raises OSError where that cannot be read or written."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        os.makedirs(folder, exist_ok=True)

    def declare(self, name: str) -> None:
        """Make the value's file, without a value."""
        with open(os.path.join(self._folder, name), "a"):
            pass

    def put(self, name: str, value: str) -> None:
        """Give a value; it is seen whole or not at all."""
        file = os.open(os.path.join(self._folder, name), os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            os.write(file, f"{value}\n".encode())
        finally:
            os.close(file)

    def get(self, name: str) -> str | None:
        """The value; None while there is none."""
        with contextlib.suppress(FileNotFoundError), open(os.path.join(self._folder, name)) as file:
            text = file.read(4096)
            return text[:-1] if text.endswith("\n") else None
        return None

    def wait(self, name: str, seconds: float, monotonic: Callable[[], float] = time.monotonic) -> str | None:
        """The value as soon as there is one; None where that takes longer."""
        until = monotonic() + seconds
        self.declare(name)
        while True:
            value = self.get(name)
            if value is not None or monotonic() >= until:
                return value
            self.pause()

    def pause(self) -> None:
        """Until a value may have changed."""
        time.sleep(POLL_SECONDS)
