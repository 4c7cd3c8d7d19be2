"""What a node's administrator asks of its agent, by files beside its journal: no network is needed."""

from __future__ import annotations

import os

from flyball_agent.enforce.journal import journal_path
from flyball_agent.enforce.records import Forgotten, FoundGpus, JournalState, decode

FORGET_SUFFIX = ".forget"


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


class Requests:
    """The requests beside one node's journal, as its agent takes them."""

    def __init__(self, folder: str | os.PathLike[str], node: str) -> None:
        self._path = journal_path(folder, node)

    def take_forgotten(self) -> list[str]:
        """The UUIDs of GPUs that `request_forget` named since the last call."""
        path = self._path.with_suffix(FORGET_SUFFIX)
        try:
            uuids = path.read_text().split()
            path.unlink()
        except (OSError, ValueError):
            return []
        return uuids
