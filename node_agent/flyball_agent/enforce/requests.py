"""What a node's administrator asks of its agent, by files beside its journal: no network is needed."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from msgspec import Struct, field, json

from flyball_agent.clock import NANOSECONDS, boottime_ns
from flyball_agent.enforce.journal import journal_path
from flyball_agent.enforce.records import Forgotten, FoundGpus, JournalState, decode

FORGET_SUFFIX = ".forget"
RELEASE_SUFFIX = ".release"
RELEASED_SUFFIX = ".released"
BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


class Release(Struct, frozen=True):
    """Let go of the GPUs until a time of CLOCK_BOOTTIME, in this boot only."""

    boot_id: str = field(name="boot")
    until_ns: int = field(name="until")


def request_forget(folder: str | os.PathLike[str], node: str, uuid: str) -> None:
    """Ask the node's agent, running now or later, to forget a GPU that is gone for good.

    Raises FileNotFoundError where the node has no journal there, and ValueError for a GPU that it does not remember.
    """
    path = journal_path(folder, node)
    state = JournalState()
    for line in path.read_bytes().split(b"\n"):
        record = decode(line)
        if isinstance(record, FoundGpus | Forgotten):
            state.apply(record)
    if uuid not in state.gpus:
        known = ", ".join(sorted(state.gpus)) or "none"
        raise ValueError(f"{path}: GPU {uuid} is not remembered (remembered: {known})")
    with path.with_suffix(FORGET_SUFFIX).open("a") as requests:
        requests.write(f"{uuid}\n")


def request_release(folder: str | os.PathLike[str], node: str, seconds: float) -> None:
    """Ask the node's agent to let go of the GPUs, for so long at most. Raises OSError.

    What it said of an earlier release, which may end just now, is no answer: it may be opening the driver by now.
    """
    release = Release(BOOT_ID_FILE.read_text().strip(), boottime_ns() + round(seconds * NANOSECONDS))
    _write(journal_path(folder, node).with_suffix(RELEASE_SUFFIX), json.encode(release))
    journal_path(folder, node).with_suffix(RELEASED_SUFFIX).unlink(missing_ok=True)


def end_release(folder: str | os.PathLike[str], node: str) -> bool:
    """Ask the node's agent to take the GPUs back; False where it was not asked to let go of them. Raises OSError."""
    path = journal_path(folder, node).with_suffix(RELEASE_SUFFIX)
    asked = path.exists()
    path.unlink(missing_ok=True)
    return asked


def is_released(folder: str | os.PathLike[str], node: str) -> bool:
    """Whether the node's agent has let go of the GPUs, as the file that it leaves for that shows."""
    return journal_path(folder, node).with_suffix(RELEASED_SUFFIX).exists()


def _write(path: Path, content: bytes) -> None:
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_bytes(content)
    fresh.replace(path)


class Requests:
    """The requests beside one node's journal, as its agent takes them."""

    def __init__(self, folder: str | os.PathLike[str], node: str) -> None:
        path = journal_path(folder, node)
        self._forget = path.with_suffix(FORGET_SUFFIX)
        self._release = path.with_suffix(RELEASE_SUFFIX)
        self._released = path.with_suffix(RELEASED_SUFFIX)

    def take_forgotten(self) -> list[str]:
        """The UUIDs of GPUs that `request_forget` named since the last call."""
        if not os.path.exists(self._forget):  # asked in every round, where an open that fails is ten times as long
            return []
        try:
            uuids = self._forget.read_text().split()
            self._forget.unlink()
        except (OSError, ValueError):
            return []
        return uuids

    def released_until(self, now_ns: int) -> int | None:
        """For how many seconds more the GPUs are to be let go of; None where they are not."""
        if not os.path.exists(self._release):
            return None
        try:
            release = json.decode(self._release.read_bytes(), type=Release)
            if release.boot_id == BOOT_ID_FILE.read_text().strip() and now_ns < release.until_ns:
                return (release.until_ns - now_ns) // NANOSECONDS
        except (OSError, ValueError):
            return None
        with contextlib.suppress(OSError):
            self._release.unlink()
        return None

    def note_released(self) -> None:
        """Leave the file that shows, to those that wait for the GPUs, that the driver is closed."""
        with contextlib.suppress(OSError):
            self._released.touch()

    def note_taken_back(self) -> None:
        with contextlib.suppress(OSError):
            self._released.unlink(missing_ok=True)
