"""Checkpoints that a crash at any moment leaves whole: each is a folder that appears by one rename, all of it on the disk.

`checkpoint-<incarnation>-<iteration>` holds what the state's writer put there, and `manifest.json`: the file that says that
it is whole, with the size of every other. The newest is the one of the newest incarnation, and in it of the last iteration:
a process of an earlier incarnation that still runs somewhere can overwrite nothing, and what it adds is passed over.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Callable

logger = logging.getLogger("flyball")

MANIFEST = "manifest.json"
_NAME = re.compile(r"checkpoint-(\d{6,})-(\d{12,})")
_CLAIM = re.compile(r"incarnation-(\d{6,})")
_UNFINISHED = ".unfinished-"
_REPLACED = ".replaced-"
_OWNER = "job-"


def folder_in(volume: str | None, job_uid: str, *, takes: bool) -> str | None:
    """Where in a volume a job has its checkpoints, None without a volume; whoever `takes` it says so there.

    What another job has left there, as the one that had its name before or last night's run, stays where it is: that one
    has counted incarnations of its own. Then this job's folder is beside it.
    """
    folder = None if volume is None else os.path.join(volume, "flyball")
    if folder is None or not job_uid:
        return folder
    own = f"{_OWNER}{job_uid}"
    with contextlib.suppress(OSError):  # who writes there next says what is wrong
        owners = [name for name in os.listdir(folder) if name.startswith(_OWNER)] if os.path.exists(folder) else []
        if owners and own not in owners:
            if takes:
                logger.warning("the checkpoints in %s are another job's, this one's are beside it", folder)
            return f"{folder}-{job_uid}"
        if takes and not owners:
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(folder, own), "a"):
                pass
    return folder


class Superseded(Exception):
    """A newer incarnation of the job has started; this one must write no more."""


@dataclass(frozen=True, order=True)
class Checkpoint:
    """A whole checkpoint: its files are in `folder`, its description in `facts`."""

    incarnation: int
    iteration: int
    folder: str = field(compare=False)
    facts: Mapping[str, Any] = field(compare=False)


class Disk:
    """What is asked of the file system, so that tests can let it fail at each of these."""

    def make(self, folder: str) -> None:
        os.mkdir(folder)

    def write(self, path: str, data: bytes) -> None:
        with open(path, "wb") as file:
            file.write(data)

    def sync(self, path: str) -> None:
        """Put a file, or the names in a folder, onto the disk."""
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def remove(self, folder: str) -> None:
        shutil.rmtree(folder, ignore_errors=True)


class Checkpoints:
    """A job's checkpoints in one folder, as one incarnation of it sees them. At most `kept` of them stay."""

    def __init__(self, directory: str, incarnation: int, kept: int = 2, disk: Disk | None = None) -> None:
        if kept < 1:
            raise ValueError(f"kept={kept}: at least one checkpoint has to stay")
        self._directory = directory
        self._incarnation = incarnation
        self._kept = kept
        self._disk = disk or Disk()

    def claim(self) -> None:
        """Say that this incarnation has started, and clear away what earlier ones left unfinished. Raises OSError."""
        os.makedirs(self._directory, exist_ok=True)
        self._disk.write(os.path.join(self._directory, f"incarnation-{self._incarnation:06d}"), b"")
        self._disk.sync(self._directory)
        for name in os.listdir(self._directory):
            claim = _CLAIM.fullmatch(name)
            if name.startswith((_UNFINISHED, _REPLACED)):
                self._disk.remove(os.path.join(self._directory, name))
            elif claim is not None and int(claim[1]) < self._incarnation:
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(self._directory, name))

    def newest_first(self) -> Iterator[Checkpoint]:
        """Every whole checkpoint; one that is not whole is passed over. Raises OSError for a folder that cannot be read:
        to begin anew would be worse."""
        yield from sorted(filter(None, map(self.named, self._names())), reverse=True)

    def named(self, name: str) -> Checkpoint | None:
        """The checkpoint in the folder of that name; None where there is no whole one."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        folder = os.path.join(self._directory, name)
        try:
            with open(os.path.join(folder, MANIFEST), "rb") as file:
                manifest = json.loads(file.read())
            sizes = {file: os.path.getsize(os.path.join(folder, file)) for file in manifest["files"]}
            if sizes != manifest["files"]:
                return None
            return Checkpoint(int(match[1]), int(match[2]), folder, dict(manifest["facts"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def save(self, iteration: int, facts: Mapping[str, Any], write: Callable[[str], None]) -> Checkpoint:
        """Make a checkpoint: `write(folder)` puts the state's files into a folder that nobody looks at yet.

        Raises Superseded, and OSError or what `write` raises; the checkpoints that were there are there still.
        """
        self._refuse_if_superseded()
        name = f"checkpoint-{self._incarnation:06d}-{iteration:012d}"
        target = os.path.join(self._directory, name)
        unfinished = os.path.join(self._directory, f"{_UNFINISHED}{name}")
        self._clear_failed()
        self._disk.remove(unfinished)  # a network file system may list it late
        self._disk.make(unfinished)
        try:
            write(unfinished)
            files = {file: os.path.getsize(os.path.join(unfinished, file)) for file in self._written(unfinished)}
            manifest = json.dumps({"facts": dict(facts), "files": files}, indent=1).encode()
            self._disk.write(os.path.join(unfinished, MANIFEST), manifest)
            self._disk.sync(os.path.join(unfinished, MANIFEST))
            self._disk.sync(unfinished)
            self._refuse_if_superseded()
            if os.path.exists(target):  # the same step again, after an older checkpoint was gone back to
                replaced = os.path.join(self._directory, f"{_REPLACED}{name}")
                self._disk.remove(replaced)
                self._disk.rename(target, replaced)
            self._disk.rename(unfinished, target)
            self._disk.sync(self._directory)
        except Exception:
            self._disk.remove(unfinished)
            raise
        self._prune()
        return Checkpoint(self._incarnation, iteration, target, dict(facts))

    def _clear_failed(self) -> None:
        """Clear away what is left of this incarnation's earlier ones: of a shard that another process went on writing while
        its checkpoint was given up, the folder stays."""
        for name in self._names():
            if name.startswith(f"{_UNFINISHED}checkpoint-{self._incarnation:06d}-"):
                self._disk.remove(os.path.join(self._directory, name))

    def _written(self, folder: str) -> list[str]:
        """The files below a folder, by their paths in it; all of them on the disk."""
        found = []
        for place, _, names in os.walk(folder):
            for name in names:
                path = os.path.join(place, name)
                self._disk.sync(path)
                found.append(os.path.relpath(path, folder))
            if place != folder:
                self._disk.sync(place)
        return sorted(found)

    def _refuse_if_superseded(self) -> None:
        claims = [int(match[1]) for match in map(_CLAIM.fullmatch, self._names()) if match is not None]
        if max(claims, default=0) > self._incarnation:
            raise Superseded(
                f"incarnation {max(claims)} has started, this is {self._incarnation}: no checkpoint is written"
            )

    def _prune(self) -> None:
        oldest = list(self.newest_first())[: self._kept][-1]
        for name in self._names():
            match = _NAME.fullmatch(name)
            # Older ones go, also one that is not whole: its removal was broken off.
            is_old = match is not None and (int(match[1]), int(match[2])) < (oldest.incarnation, oldest.iteration)
            if is_old or name.startswith(_REPLACED):
                self._disk.remove(os.path.join(self._directory, name))

    def _names(self) -> list[str]:
        try:
            return os.listdir(self._directory)
        except (FileNotFoundError, NotADirectoryError):
            return []
