"""What an agent must not forget when it dies: a small write-ahead journal, one checksummed line a record.

- the last accepted grant, whole: a restart under an API outage goes on where it was, and an older grant stays refused;
- the PowerBrakes that lower it, until a grant comes that was made with them;
- the lease's deadline with the boot it belongs to: a restart does not extend it;
- each set of a limit before it is made {uuid, old, new, what is to come of those before, epoch, generation};
- the limits that the GPUs had when Flyball first saw them;
- the energy totals;
- the node's name: limits and energy of one node mean nothing on another.

A torn tail, or any line that does not check or is no record, is skipped and counted; later lines still hold. The last line
of each kind that only another version knows is kept for it: a rollback takes nothing from the version that comes after it.
Where the file outgrows its bound it is written anew beside and renamed over. Where the disk fails, or hangs, the state is
kept in memory, `degraded` says why, and the next write that succeeds writes it whole. Only appending happens on the event
loop, which no kill of the process loses; whatever waits for the disk does so in a thread with a deadline.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from flyball_api.reading import InvalidObject

from flyball_agent import off_loop
from flyball_agent.enforce.records import MAX_UNKNOWN_KINDS, Gaps, JournalState, Record, decode, encode, unknown_kind

DEFAULT_MAX_BYTES = 256 * 1024
# A disk that takes longer to sync a few lines does not take them at all, for all that a raise can wait for.
DISK_SECONDS = 2.0

T = TypeVar("T")


class JournalError(Exception):
    """The journal could not be written: nothing that needs it first may be done (no limit may be raised)."""


class JournalHeld(Exception):
    """Another agent of this node has the journal open."""


class JournalOfAnotherNode(Exception):
    """The journal was written on another node."""


def journal_path(folder: str | os.PathLike[str], node: str) -> Path:
    return Path(folder) / f"{node}.journal"


class Disk:
    """The system calls that the journal makes; tests put a failing disk in its place."""

    def open(self, path: Path, flags: int) -> int:
        return os.open(path, flags | os.O_CLOEXEC, 0o600)

    def write(self, descriptor: int, data: bytes) -> int:
        return os.write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        os.fdatasync(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        source.replace(target)

    def sync_folder(self, path: Path) -> None:
        """See a new name onto the disk."""
        folder = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class Journal:
    """The journal of one node's agent: `<folder>/<node>.journal`. One agent at a time; one event loop owns it.

    `note` adds records and waits for no disk, `sync` sees all of them onto it, `tidy` once a round bounds the file and
    heals it. Opening it reads and writes in place. Raises JournalHeld where another agent has it, and JournalOfAnotherNode
    for a file that was brought here from another node, which it leaves as it is; a disk that cannot even be read or made
    leaves an empty, degraded journal. One that is not all that agents before this one have written has `gaps`; where there
    is not even a lock, there was none.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        node: str,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        disk: Disk | None = None,
        disk_seconds: float = DISK_SECONDS,
    ) -> None:
        self.path = journal_path(folder, node)
        self._lock_path = self.path.with_suffix(".lock")
        self.state = JournalState()
        self.degraded: str | None = None
        self.unreadable_records = 0
        self._torn = 0  # of those: the last line, of which nothing had been done yet
        self._max_bytes = max_bytes
        self._disk = disk or Disk()
        self._disk_seconds = disk_seconds
        self._descriptor = -1
        self._lock = -1
        self._closed = False
        self._size = 0
        self._unsynced = False
        self._fresh = self.path.with_suffix(".new")
        self._late: Future[Any] | None = None
        self._since_snapshot: list[bytes] | None = None  # what was noted while the file is written anew
        first = False
        try:
            untouched = not (self._lock_path.exists() or self.path.exists())
            self._hold()
            first = untouched
        except OSError as error:
            self._degrade("open", error)
        try:
            self._read()
        except OSError as error:
            self._degrade("read", error)
        whole = self.state.driver is not None and self.unreadable_records == self._torn
        if not whole and not first:
            self.state.apply(Gaps(there=True))
        if self.state.node not in ("", node):
            self.close()
            raise JournalOfAnotherNode(
                f"{self.path} was written on node {self.state.node}, and this is node {node}: its grant, limits and energy "
                "are another node's. Move it away (the agent then begins a journal of its own), or put the right one there."
            )
        self.state.node = node
        # Always a fresh file: it repairs a torn tail, and shows at once whether the disk takes writes.
        try:
            self._swap_in(self._write_held(self._snapshot()))
            self._see_onto_disk(self._descriptor)
        except OSError as error:
            self._degrade("rewrite", error)

    def note(self, *records: Record) -> None:
        """Add the records without waiting for the disk: a kill of this process does not lose them, `sync` makes sure.

        The state has them in any case. Raises JournalError where they could not be written.
        """
        for record in records:
            self.state.apply(record)
        data = b"".join(encode(record) for record in records)
        if self._since_snapshot is not None:
            self._since_snapshot.append(data)
        if self.degraded is not None:
            raise JournalError(self.degraded)
        if self._size + len(data) > 2 * self._max_bytes:  # nobody has tidied: it is written anew before it takes more
            self.degraded = f"{self.path}: more than {self._max_bytes} bytes came at once"
            raise JournalError(self.degraded)
        try:
            self._write(self._descriptor, data)
        except OSError as error:
            raise self._degrade("write", error) from error
        self._size += len(data)
        self._unsynced = True

    async def sync(self) -> None:
        """Put everything noted so far onto the disk. Raises JournalError where that fails or takes too long."""
        if self.degraded is not None or self._size > self._max_bytes:
            await self._rewrite()
        elif self._unsynced:
            self._unsynced = False
            descriptor = self._descriptor
            await self._off_loop("sync", lambda: self._disk.sync(descriptor))

    async def tidy(self) -> bool:
        """Write the file anew where it has outgrown its bound or its disk had failed; True where the journal is sound."""
        if self.degraded is not None or self._size > self._max_bytes:
            with contextlib.suppress(JournalError):
                await self._rewrite()
        return self.degraded is None

    def close(self) -> None:
        """Let go of the journal, for good: what still waits for a disk does not take its lock any more."""
        self._closed = True
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._unlock()

    def _unlock(self) -> None:
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def _hold(self) -> None:
        """See to it that no other agent of this node writes the journal. Raises OSError, or JournalHeld."""
        if self._lock >= 0:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            raise JournalHeld(f"{self.path}: another agent of this node has the journal open") from error
        self._lock = lock
        if self._closed:
            self._unlock()
            raise OSError(errno.EBADF, "the journal was closed meanwhile")

    def _read(self) -> None:
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return
        *lines, tail = content.split(b"\n")
        for line in (*lines, tail):
            if not line:
                continue
            record = decode(line)
            kind = unknown_kind(line) if record is None else None
            unknown = self.state.unknown
            if kind is not None and (kind in unknown or len(unknown) < MAX_UNKNOWN_KINDS):
                unknown[kind] = line + b"\n"
                continue
            try:
                if record is None:
                    raise InvalidObject("no record")
                self.state.apply(record)
            except InvalidObject:
                self.unreadable_records += 1
                self._torn += line is tail

    def _write(self, descriptor: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._disk.write(descriptor, bytes(view)) :]

    def _snapshot(self) -> bytes:
        # What other versions have written comes first: whatever this one knows holds, also for them.
        return b"".join((*self.state.unknown.values(), *(encode(record) for record in self.state.records())))

    async def _rewrite(self) -> None:
        """Write the state whole, beside the old file, and rename it over: a crash leaves the one or the other."""
        data, self._since_snapshot = self._snapshot(), []
        try:
            descriptor = await self._off_loop("rewrite", lambda: self._write_held(data), os.close)
            self._swap_in(descriptor)
        except OSError as error:
            raise self._degrade("rewrite", error) from error
        finally:
            self._since_snapshot = None
        await self._off_loop("rewrite", lambda: self._see_onto_disk(descriptor))

    def _write_held(self, data: bytes) -> int:
        """As `_write_fresh`, once the journal is held, which may have been impossible so far. Raises OSError."""
        try:
            self._hold()
        except JournalHeld as error:
            raise OSError(errno.EBUSY, "another agent of this node has the journal open") from error
        return self._write_fresh(data)

    def _write_fresh(self, data: bytes) -> int:
        """A new file beside the journal with this in it; its descriptor."""
        descriptor = self._disk.open(self._fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        try:
            self._write(descriptor, data)
            self._disk.sync(descriptor)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def _swap_in(self, descriptor: int) -> None:
        """Put the new file, with what was noted since it was begun, in the old one's place."""
        try:
            self._write(descriptor, b"".join(self._since_snapshot or ()))
            self._disk.rename(self._fresh, self.path)
        except OSError:
            os.close(descriptor)
            raise
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._size = descriptor, os.fstat(descriptor).st_size
        self._unsynced = False
        self.degraded = None

    def _see_onto_disk(self, descriptor: int) -> None:
        self._disk.sync(descriptor)
        self._disk.sync_folder(self.path.parent)

    async def _off_loop(self, doing: str, call: Callable[[], T], discard: Callable[[T], None] | None = None) -> T:
        """What the call returns. Raises JournalError; a late one goes on, and until it has returned there is no other."""
        if self._late is not None:
            if not self._late.done():
                raise JournalError(self.degraded)
            self._late = None
        future = off_loop.begin(call, "journal")
        try:
            if await off_loop.done_within(future, self._disk_seconds):
                return future.result()
        except OSError as error:
            raise self._degrade(doing, error) from error
        self._late = future
        if discard is not None:
            future.add_done_callback(lambda late: None if late.exception() else discard(late.result()))
        self.degraded = f"{self.path}: {doing}: the disk has not answered within {self._disk_seconds:g} s"
        raise JournalError(self.degraded)

    def _degrade(self, doing: str, error: OSError) -> JournalError:
        self.degraded = f"{self.path}: {doing}: {error.strerror or error}"
        return JournalError(self.degraded)
