"""Checkpoints: whatever breaks off at whatever call, the newest whole one is there, and nothing older replaces it."""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from flyball.state.checkpoints import MANIFEST, Checkpoints, Disk, Superseded

from tests.support.waiting import wait_until

CLIENT = Path(__file__).parents[3] / "client"


class PowerLost(BaseException):
    """The machine is gone: nothing after it happens, no handler runs."""


class FailingDisk(Disk):
    """Counts the calls and breaks one of them off; knows what would outlive a loss of power, by inode.

    What was not synced may be lost in whole or in part (`lose`): contents of a file, a name in a folder, a rename.
    """

    def __init__(self, breaks_at: int | None = None, error: Callable[[], BaseException] = PowerLost) -> None:
        self.calls = 0
        self._breaks_at = breaks_at
        self._error = error
        self._synced_sizes: dict[int, int] = {}
        self._synced_names: dict[int, set[str]] = {}
        self._renamed: dict[int, str] = {}
        self.is_dead = False

    def _call(self, undone: Callable[[], object] = lambda: None) -> None:
        if self.is_dead:
            raise PowerLost
        self.calls += 1
        if self.calls - 1 == self._breaks_at:
            undone()
            error = self._error()
            self.is_dead = isinstance(error, PowerLost)
            raise error

    def make(self, folder: str) -> None:
        self._call()
        super().make(folder)

    def write(self, path: str, data: bytes) -> None:
        self._call(lambda: Path(path).write_bytes(data[: len(data) // 2]))
        super().write(path, data)

    def sync(self, path: str) -> None:
        """Only noted: what really is on this machine's disk no test can tell."""
        self._call()
        found = os.stat(path)
        if os.path.isdir(path):
            self._synced_names[found.st_ino] = set(os.listdir(path))
            for name in os.listdir(path):
                self._renamed.pop(os.stat(os.path.join(path, name)).st_ino, None)
        else:
            self._synced_sizes[found.st_ino] = found.st_size

    def rename(self, source: str, target: str) -> None:
        self._call()
        self._renamed[os.stat(source).st_ino] = source
        super().rename(source, target)

    def remove(self, folder: str) -> None:
        first = sorted(Path(folder).glob("*"))[:1]
        self._call(lambda: None if not first else first[0].unlink())
        super().remove(folder)

    def lose(self, folder: Path, chance: random.Random) -> None:
        """What a loss of power may leave of a folder."""
        durable = self._synced_names.get(folder.stat().st_ino, set())
        for path in list(folder.iterdir()):
            inode = path.stat().st_ino
            if inode in self._renamed and chance.random() < 0.5:
                path = path.rename(self._renamed[inode])
            elif path.name not in durable and inode not in self._renamed and chance.random() < 0.5:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
                continue
            if path.is_dir():
                self.lose(path, chance)
            elif self._synced_sizes.get(inode) != path.stat().st_size:
                os.truncate(path, chance.randint(0, path.stat().st_size))


def payload(iteration: int) -> bytes:
    return f"state after {iteration};".encode() * 50


def write(iteration: int) -> Callable[[str], None]:
    def writer(folder: str) -> None:
        Path(folder, "state").write_bytes(payload(iteration))
        Path(folder, "more").mkdir()
        Path(folder, "more", "shard").write_bytes(payload(iteration)[:100])

    return writer


def facts(iteration: int) -> dict[str, int]:
    return {"samples": 10 * iteration}


def newest(directory: Path, incarnation: int = 9) -> int:
    """The iteration of the newest checkpoint, after a look into it; 0 where there is none."""
    for found in Checkpoints(str(directory), incarnation).newest_first():
        assert Path(found.folder, "state").read_bytes() == payload(found.iteration)
        assert Path(found.folder, "more", "shard").read_bytes() == payload(found.iteration)[:100]
        assert found.facts == facts(found.iteration)
        return found.iteration
    return 0


def train(directory: Path, disk: Disk, iterations: tuple[int, ...], incarnation: int = 1) -> int:
    """Save each, going on over what fails; the last iteration that was said to be saved."""
    saved = 0
    checkpoints = Checkpoints(str(directory), incarnation, kept=2, disk=disk)
    try:
        checkpoints.claim()
        for iteration in iterations:
            try:
                checkpoints.save(iteration, facts(iteration), write(iteration))
                saved = iteration
            except OSError:
                continue
    except PowerLost:
        pass
    except OSError:
        assert saved == 0, "only the claim may fail so"
    return saved


ITERATIONS = (5, 10, 15, 20)


def calls_of_a_whole_run(directory: Path) -> int:
    disk = FailingDisk()
    assert train(directory, disk, ITERATIONS) == 20
    return disk.calls


def test_a_loss_of_power_at_any_call_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    calls = calls_of_a_whole_run(tmp_path / "whole")
    assert calls > 40
    for breaks_at, seed in itertools.product(range(calls), range(4)):
        directory = tmp_path / f"{breaks_at}-{seed}"
        disk = FailingDisk(breaks_at)
        saved = train(directory, disk, ITERATIONS)
        disk.lose(directory, random.Random(seed))
        found = newest(directory)
        assert saved <= found <= saved + 5, (breaks_at, seed)
        # The next incarnation goes on from there, and clears up.
        assert train(directory, FailingDisk(), (found + 1, found + 2, found + 3), incarnation=2) == found + 3
        assert newest(directory) == found + 3
        left = sorted(path.name for path in directory.iterdir() if not path.name.startswith("incarnation"))
        assert left == [f"checkpoint-000002-{iteration:012d}" for iteration in (found + 2, found + 3)]
        shutil.rmtree(directory)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_an_error_at_any_call_costs_that_checkpoint_only(tmp_path: Path, code: int) -> None:
    for breaks_at in range(calls_of_a_whole_run(tmp_path / "whole")):
        directory = tmp_path / str(breaks_at)
        saved = train(directory, FailingDisk(breaks_at, lambda: OSError(code, os.strerror(code))), ITERATIONS)
        assert newest(directory) == saved or (saved, newest(directory)) in itertools.pairwise((0, *ITERATIONS)), (
            breaks_at
        )
        assert saved in (0, 15, 20)
        shutil.rmtree(directory)


def test_a_writer_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path), 1)
    checkpoints.claim()
    checkpoints.save(5, facts(5), write(5))

    def failing(folder: str) -> None:
        write(6)(folder)
        raise MemoryError("no more")

    with pytest.raises(MemoryError, match="no more"):
        checkpoints.save(6, facts(6), failing)
    assert sorted(os.listdir(tmp_path)) == ["checkpoint-000001-000000000005", "incarnation-000001"]


def test_what_another_process_still_wrote_of_one_that_failed_goes_with_the_next(tmp_path: Path) -> None:
    """A shard is written on while rank 0 gives its checkpoint up: one folder each time, and on a full disk no room more."""
    checkpoints = Checkpoints(str(tmp_path), 1)
    checkpoints.claim()
    later = tmp_path / ".unfinished-checkpoint-000002-000000000007"
    for step in (5, 6):
        left = tmp_path / f".unfinished-checkpoint-000001-{step:012d}" / "shards"
        left.mkdir(parents=True)
        (left / "shard-1").write_bytes(b"half")
    later.mkdir()
    checkpoints.save(7, facts(7), write(7))
    assert sorted(os.listdir(tmp_path)) == [later.name, "checkpoint-000001-000000000007", "incarnation-000001"]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: (folder / "state").unlink(),
        lambda folder: (folder / "state").write_bytes(b"short"),
        lambda folder: (folder / "more" / "shard").unlink(),
        lambda folder: (folder / MANIFEST).unlink(),
        lambda folder: (folder / MANIFEST).write_text("{"),
        lambda folder: (folder / MANIFEST).write_text("[]"),
        lambda folder: (folder / MANIFEST).write_text(json.dumps({"files": 3, "facts": {}})),
        lambda folder: (folder / MANIFEST).write_text(json.dumps({"facts": {}})),
        shutil.rmtree,
    ],
)
def test_one_that_is_not_whole_is_passed_over(tmp_path: Path, spoil: Callable[[Path], object]) -> None:
    train(tmp_path, FailingDisk(), (5, 10))
    (tmp_path / "checkpoint-what").mkdir()
    (tmp_path / "other files of the user").write_text("stay")
    spoil(tmp_path / "checkpoint-000001-000000000010")
    assert newest(tmp_path) == 5
    assert (tmp_path / "other files of the user").read_text() == "stay"


def test_an_older_incarnation_overwrites_nothing_and_is_not_gone_on_from(tmp_path: Path) -> None:
    old, new = Checkpoints(str(tmp_path), 1), Checkpoints(str(tmp_path), 2)
    old.claim()
    old.save(10, facts(10), write(10))

    def overtaken(folder: str) -> None:
        """The new one starts from 10 while the old one writes what it believes to be 20."""
        write(20)(folder)
        new.claim()
        new.save(11, facts(11), write(11))

    with pytest.raises((Superseded, OSError)):
        old.save(20, facts(20), overtaken)
    with pytest.raises(Superseded, match="incarnation 2 has started"):
        old.save(30, facts(30), write(30))
    assert newest(tmp_path) == 11


def test_what_an_older_incarnation_added_in_the_last_moment_is_passed_over(tmp_path: Path) -> None:
    """Between its last look and its rename no file system stops it; the newer one's checkpoints count all the same."""
    old, new = Checkpoints(str(tmp_path), 1), Checkpoints(str(tmp_path), 2)
    new.save(11, facts(11), write(11))
    old.save(99, facts(99), write(99))
    assert newest(tmp_path) == 11


def test_the_same_step_again_replaces_its_checkpoint(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path), 0)
    for _ in range(3):
        checkpoints.save(7, facts(7), write(7))
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-000000-000000000007"]
    assert newest(tmp_path) == 7


def test_at_least_one_is_kept(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="kept=0"):
        Checkpoints(str(tmp_path), 1, kept=0)


PROGRAM = """
import sys
from pathlib import Path
from flyball.state.checkpoints import Checkpoints

directory, incarnation, begin = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
checkpoints = Checkpoints(directory, incarnation)
checkpoints.claim()
for iteration in range(begin + 1, 10**6):
    def write(folder):
        Path(folder, "state").write_bytes(f"state after {iteration};".encode() * 50)
        Path(folder, "more").mkdir()
        Path(folder, "more", "shard").write_bytes((f"state after {iteration};".encode() * 50)[:100])
    checkpoints.save(iteration, {"samples": 10 * iteration}, write)
    print(iteration, flush=True)
"""


def test_processes_that_are_killed_at_any_moment_lose_nothing_that_they_said_was_saved(tmp_path: Path) -> None:
    directory, said = tmp_path / "checkpoints", tmp_path / "said"
    chance, begin = random.Random(3), 0
    for incarnation in range(1, 7):
        with said.open("w") as out:
            process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(directory), str(incarnation), str(begin)],
                stdout=out,
                env={**os.environ, "PYTHONPATH": str(CLIENT)},
            )
            try:
                enough = chance.randint(1, 12)
                wait_until(lambda: said.read_text().count("\n") >= enough, "checkpoints are saved")  # noqa: B023
            finally:
                process.send_signal(signal.SIGKILL)
                process.wait()
        last = int(said.read_text().split()[-1])
        found = newest(directory)
        assert found in (last, last + 1)
        begin = found
