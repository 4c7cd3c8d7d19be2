"""A job's state on disk: rank 0 saves it as training goes on, and every process begins with what rank 0 could load.

What fails of a save costs a warning and another try; what would train from another state than the others is an error.
"""

from __future__ import annotations

import logging
import os
import pickle
import time
from typing import Any, Callable, NamedTuple

from flyball.environment import Environment
from flyball.sampling import Position
from flyball.shared_values import SharedValues
from flyball.state.checkpoints import Checkpoint, Checkpoints, Disk, Superseded
from flyball.stopping import EXIT_STATUS

logger = logging.getLogger("flyball")

STATE_FILE = "state"
RETRY_SECONDS = 60.0
RESTORE_SECONDS = 600.0
_NOTHING = "nothing"


def write_pickle(path: str, state: Any) -> None:
    """Write a state's file, as `register` does by default."""
    with open(path, "wb") as file:
        pickle.dump(state, file, protocol=4)


def read_pickle(path: str) -> Any:
    """Read back what `write_pickle` has written; from the job's own volume, as the script's code is."""
    with open(path, "rb") as file:
        return pickle.load(file)  # noqa: S301


class Restored(NamedTuple):
    """What a checkpoint says beside the state: how far training was, on a dataset of which size, in which order."""

    position: Position
    dataset_size: int | None
    seed: int


def facts_of(position: Position, dataset_size: int | None, seed: int, environment: Environment) -> dict[str, Any]:
    """The description of a checkpoint, which `restored_from` reads."""
    return {
        "epoch": position.epoch,
        "samples": position.samples,
        "datasetSize": dataset_size,
        "seed": seed,
        "worldSize": environment.world_size,
    }


def restored_from(found: Checkpoint) -> Restored:
    """The description of a checkpoint, read back."""
    facts = found.facts
    position = Position(found.iteration, int(facts["epoch"]), int(facts["samples"]))
    return Restored(position, facts["datasetSize"], int(facts["seed"]))


def claimed(directory: str, environment: Environment, kept: int, disk: Disk | None = None) -> Checkpoints:
    """The checkpoints of a folder, taken for this incarnation by rank 0; where that fails training goes on."""
    checkpoints = Checkpoints(directory, environment.incarnation, kept, disk)
    if environment.rank == 0:
        try:
            checkpoints.claim()
        except OSError as error:
            logger.warning("no checkpoints are written, training goes on: %s", error)
    return checkpoints


def none_loaded(directory: str, why: object) -> RuntimeError:
    """The error where there are checkpoints of which none can be loaded."""
    return RuntimeError(f"none of the checkpoints in {directory} can be loaded; to begin anew, take them away: {why}")


class SavedState:
    """What `register` was given: how the state is taken, written and read, and how often.

    A folder that cannot be written costs a warning, and there are no checkpoints.
    """

    def __init__(
        self,
        directory: str,
        environment: Environment,
        values: SharedValues | None,
        state_dict: Callable[[], Any],
        *,
        every_seconds: float,
        kept: int,
        write: Callable[[str, Any], None] = write_pickle,
        read: Callable[[str], Any] = read_pickle,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._environment = environment
        self._values = values
        self._state_dict = state_dict
        self._every_seconds = every_seconds
        self._write = write
        self._read = read
        self._monotonic = monotonic
        self._save_at = float("inf")
        self.iteration = 0
        """Of the checkpoint that was written or loaded last."""
        self._checkpoints = claimed(directory, environment, kept)

    @property
    def writes(self) -> bool:
        """Whether this process writes checkpoints: only rank 0 does."""
        return self._environment.rank == 0

    def due(self, iteration: int) -> bool:
        """Whether the time for the next checkpoint has come, that many steps being done."""
        return self._monotonic() >= self._save_at

    def restore(self, load_state_dict: Callable[[Any], object]) -> Restored | None:
        """Load the newest checkpoint that can be, the same in every process; None where there is none.

        Raises RuntimeError where there are some and none can be loaded, or where this process does not see the one that
        rank 0 has loaded; and what `load_state_dict` raises where rank 0 could load it.
        """
        restored = self._newest(load_state_dict) if self._chooses else self._same_as_rank_0(load_state_dict)
        if restored is not None:
            self.iteration = restored.position.iteration
        if self._environment.rank == 0:
            self._save_at = self._monotonic() + self._every_seconds
        return restored

    @property
    def _chooses(self) -> bool:
        return self._environment.rank == 0 or self._values is None

    def _newest(self, load_state_dict: Callable[[Any], object]) -> Restored | None:
        failure: Exception | None = None
        for found in self._checkpoints.newest_first():
            try:
                restored = self._load(found, load_state_dict)
            except Exception as error:
                logger.warning("%s cannot be loaded, an older one is tried: %s", found.folder, error)
                failure = error
                continue
            self._log_restored(os.path.basename(found.folder))
            return restored
        if failure is not None:
            raise none_loaded(self._directory, failure) from failure
        self._log_restored(_NOTHING)
        return None

    def _log_restored(self, name: str) -> None:
        if self._values is not None and self._environment.rank == 0:
            self._values.put("restored", name)

    def _same_as_rank_0(self, load_state_dict: Callable[[Any], object]) -> Restored | None:
        name = None if self._values is None else self._values.wait("restored", RESTORE_SECONDS)
        if name == _NOTHING:
            return None
        chosen = None if name is None else self._checkpoints.named(name)
        if chosen is None:
            rank = self._environment.rank
            raise RuntimeError(
                f"rank 0 has loaded checkpoint {name}, which rank {rank} does not see in {self._directory}"
            )
        return self._load(chosen, load_state_dict)

    def _load(self, found: Checkpoint, load_state_dict: Callable[[Any], object]) -> Restored:
        load_state_dict(self._read(os.path.join(found.folder, STATE_FILE)))
        return restored_from(found)

    def save(self, position: Position, dataset_size: int | None, seed: int) -> bool:
        """Write a checkpoint of this position; whether that was done. For rank 0.

        Raises SystemExit where a later incarnation of the job has taken the folder.
        """
        state = self._state_dict()
        facts = facts_of(position, dataset_size, seed, self._environment)
        try:
            self._checkpoints.save(
                position.iteration, facts, lambda folder: self._write(os.path.join(folder, STATE_FILE), state)
            )
        except Superseded as error:
            logger.error("%s", error)
            raise SystemExit(EXIT_STATUS) from error
        except Exception as error:
            logger.warning("no checkpoint of step %d, training goes on: %s", position.iteration, error)
            self._save_at = self._monotonic() + min(RETRY_SECONDS, self._every_seconds)
            return False
        self.iteration = position.iteration
        self._save_at = self._monotonic() + self._every_seconds
        return True
