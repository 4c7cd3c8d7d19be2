"""State that is sharded over a job's processes: each writes its shard, and the checkpoint is there once all of them are.

`write(folder)` and `read(folder)` are called by every process at the same step, so that they may be collectives, as those
of `torch.distributed.checkpoint` and Orbax are. Rank 0 makes the folder, of which nobody knows yet, waits for all shards,
and gives it its name; a process that fails or dies costs that checkpoint and no other. What was written by N processes is
read by M: which part of it is whose is the reader's to know.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from typing import Callable

from flyball.environment import Environment
from flyball.sampling import Position
from flyball.shared_values import SharedValues
from flyball.state.checkpoints import Checkpoint, Disk, Superseded
from flyball.state.save_turns import SaveTurns
from flyball.state.saved import (
    RESTORE_SECONDS,
    RETRY_SECONDS,
    Restored,
    claimed,
    facts_of,
    none_loaded,
    restored_from,
)
from flyball.state.together import Together
from flyball.stopping import EXIT_STATUS

logger = logging.getLogger("flyball")

# Nobody writes before all are at the same step, and then all shards have to be there: a process that is gone leaves the
# others waiting for so long.
HERE_SECONDS, SHARDS_SECONDS = 60.0, 600.0
STATE_FOLDER = "shards"
_NOTHING, _LOADED, _NONE_LOADED = "nothing", "loaded", "none can be loaded"
_SAVED, _FAILED, _SUPERSEDED = "saved", "failed", "superseded"


class NotWhole(Exception):
    """Some shard is missing, so there is no checkpoint of this step."""


class ShardedState:
    """What `register_sharded` was given. Every process calls each method at the same step as all others."""

    def __init__(
        self,
        directory: str,
        environment: Environment,
        values: SharedValues | None,
        write: Callable[[str], object],
        read: Callable[[str], object],
        *,
        every_seconds: float,
        kept: int,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._environment = environment
        self._values = values
        self._write = write
        self._read = read
        self._every_seconds = every_seconds
        self._monotonic = monotonic
        self._save_at = float("inf")
        self._last = (-1, 0)  # the step that was to be saved last, and how often it was tried
        self._warned = False
        self.iteration = 0
        """Of the checkpoint that was written or loaded last."""
        self._disk = Disk()
        self._checkpoints = claimed(directory, environment, kept, self._disk)
        rank, world_size = environment.rank, environment.world_size
        self._restores = Together("restore", rank, world_size, values, monotonic)
        self._saves = Together("save", rank, world_size, values, monotonic)
        self._turns = SaveTurns(rank, world_size, values, monotonic)

    # --- to begin with ---------------------------------------------------------------------------------------------

    def restore(self) -> Restored | None:
        """Load the newest checkpoint that every process can, and the same in all; None where there is none.

        Raises RuntimeError where there are some and none can be loaded, or where rank 0 does not say.
        """
        restored = self._newest() if self._environment.rank == 0 else self._value_of_rank_0()
        if restored is not None:
            self.iteration = restored.position.iteration
        self._save_at = self._monotonic() + self._every_seconds
        return restored

    def _newest(self) -> Restored | None:
        number, why = 0, ""
        for number, found in enumerate(self._checkpoints.newest_first(), 1):
            name = os.path.basename(found.folder)
            self._restores.begin(number, name)
            own = self._load(found)
            others = self._restores.all_done(number, RESTORE_SECONDS)  # nobody is left behind at this one
            why = own or others
            if not why:
                self._restores.end(number, _LOADED)
                return restored_from(found)
            logger.warning("%s cannot be loaded, an older one is tried: %s", name, why)
            self._restores.end(number, _FAILED)
        self._restores.begin(number + 1, _NONE_LOADED if why else _NOTHING)
        if why:
            raise none_loaded(self._directory, why)
        return None

    def _value_of_rank_0(self) -> Restored | None:
        number = 0
        while True:
            number += 1
            name = self._restores.begun(number, RESTORE_SECONDS)
            if name == _NOTHING:
                return None
            if name is None or name == _NONE_LOADED:
                why = name or f"rank 0 does not say which, within {RESTORE_SECONDS:g} s"
                raise none_loaded(self._directory, why)
            found = self._checkpoints.named(name)
            why = f"it is not in {self._directory}" if found is None else self._load(found)
            if why:
                logger.warning("%s cannot be loaded: %s", name, why)
            self._restores.done(number, well=not why)
            if self._restores.ended(number, RESTORE_SECONDS) == _LOADED and found is not None:
                return restored_from(found)

    def _load(self, found: Checkpoint) -> str:
        """Why this process cannot load that; empty where it has."""
        try:
            self._read(os.path.join(found.folder, STATE_FOLDER))
        except Exception as error:
            return str(error) or repr(error)
        return ""

    # --- as training goes on ------------------------------------------------------------------------------------------

    writes = True
    """Every process does."""

    def look(self) -> None:
        """Hear, beside the training, whether the others are about to save."""
        self._turns.look()

    def due(self, iteration: int) -> bool:
        """Whether all processes save now, that many steps being done."""
        try:
            if self._environment.rank == 0 and self._monotonic() >= self._save_at and not self._turns.is_asked:
                self._turns.ask()
            after = self._turns.due(iteration)
            if after is not None and after != iteration:
                self._saves.done(_number(after, 0), well=False)
            return after == iteration
        except (OSError, ValueError) as error:
            if not self._warned:
                logger.warning("no checkpoints are written, training goes on: %s", error)
            self._warned = True
            return False

    def save(self, position: Position, dataset_size: int | None, seed: int) -> bool:
        """Write this process' shard of a checkpoint of this position; whether all have, and it is there.

        Raises SystemExit where a later incarnation of the job has taken the folder.
        """
        step, tried = position.iteration, self._last[1] + 1 if self._last[0] == position.iteration else 0
        self._last = step, tried
        words: str | None = _FAILED
        try:
            if self._environment.rank == 0:
                words = self._save(_number(step, tried), position, dataset_size, seed)
            else:
                words = self._write_shard(_number(step, tried))
        except OSError as error:
            logger.warning("no checkpoint of step %d, training goes on: %s", position.iteration, error)
        if words == _SUPERSEDED:
            raise SystemExit(EXIT_STATUS)
        saved = words == _SAVED
        pause = self._every_seconds if saved else min(RETRY_SECONDS, self._every_seconds)
        self._save_at = self._monotonic() + pause
        if saved:
            self.iteration = position.iteration
        return saved

    def _save(self, number: int, position: Position, dataset_size: int | None, seed: int) -> str:
        facts = facts_of(position, dataset_size, seed, self._environment)

        def write(folder: str) -> None:
            shards = os.path.join(folder, STATE_FOLDER)
            self._disk.make(shards)
            self._saves.begin(number, os.path.relpath(shards, self._directory))
            self._write(shards)
            missing = self._saves.all_done(number + 1, SHARDS_SECONDS)
            if missing:
                raise NotWhole(missing)

        words = _SAVED
        try:
            why = self._saves.all_done(number, HERE_SECONDS)
            if why:
                raise NotWhole(why)
            self._checkpoints.save(position.iteration, facts, write)
        except Superseded as error:
            logger.error("%s", error)
            words = _SUPERSEDED
        except Exception as error:
            logger.warning("no checkpoint of step %d, training goes on: %s", position.iteration, error)
            words = _FAILED
        begun = self._saves.newest("begun")
        if begun is None or begun[0] < number:
            self._saves.begin(number, words)  # it failed before anybody was told of a folder
        self._saves.end(number + 1, words)
        return words

    def _write_shard(self, number: int) -> str | None:
        self._saves.done(number, well=True)
        name = self._saves.begun(number, 2 * HERE_SECONDS)
        if name in (None, _FAILED, _SUPERSEDED):
            return name
        folder = os.path.join(self._directory, name or "")
        try:
            self._write(folder)
            self._sync(folder)
            well = True
        except Exception as error:
            rank = self._environment.rank
            logger.warning("the shard of rank %d cannot be written, training goes on: %s", rank, error)
            well = False
        self._saves.done(number + 1, well=well)
        return self._saves.ended(number + 1, SHARDS_SECONDS)

    def _sync(self, folder: str) -> None:
        """Put what this process has written onto the disk: on a network file system no other one can. What is another's
        may be renamed meanwhile."""
        for place, _, names in os.walk(folder):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    self._disk.sync(os.path.join(place, name))


def _number(step: int, tried: int) -> int:
    """Under which a save is agreed: that all are at this step. The next one is for the shards."""
    return 200 * step + 2 * min(tried, 99)
