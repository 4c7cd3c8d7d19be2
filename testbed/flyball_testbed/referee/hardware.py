"""The simulated hardware as the referee reads it: by the definition of the file, with no code of those it judges."""

from __future__ import annotations

import mmap
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

HEADER_BYTES, RECORD_BYTES = 256, 512
STATE_OFFSET, STATE_BYTES, UNDO_OFFSET = 168, 80, 384
RECORD = np.dtype(
    {
        "names": [
            "requested", "enforced", "power", "updated_ns", "energy_mj", "pending_at_ns", "pending_enforced",
            "pending_power",
        ],
        "formats": ["<u4", "<u4", "<u4", "<u8", "<f8", "<u8", "<u4", "<u4"],
        "offsets": [168, 172, 196, 200, 208, 216, 232, 240],
        "itemsize": RECORD_BYTES,
    }
)  # fmt: skip
TRIES_BEFORE_UNDO = 1000
RESCAN_SECONDS = 1.0


def boottime_ns() -> int:
    """Nanoseconds since boot, time asleep included: the time base of the hardware files."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Sample:
    """Every node between `start_ns` and `end_ns` (CLOCK_BOOTTIME): one value per node, in mW and mJ.

    `limits` sums, over the node's GPUs, the larger of the requested and the enforced limit: what they may draw once a
    limit that is settling has settled. `energy` is the GPUs' own count, from any origin.
    """

    start_ns: int
    end_ns: int
    nodes: tuple[str, ...]
    requested: npt.NDArray[np.int64]
    enforced: npt.NDArray[np.int64]
    limits: npt.NDArray[np.int64]
    power: npt.NDArray[np.int64]
    energy: npt.NDArray[np.float64]

    @property
    def limits_watts(self) -> float:
        """What the limits of all nodes add up to."""
        return float(self.limits.sum()) / 1000


class HardwareReader:
    """Reads all the hardware files of a directory, and finds new ones by itself.

    `read` raises ValueError for a file that is no simulated node's hardware.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._records: dict[str, npt.NDArray[np.uint8]] = {}
        self._scanned_at: float | None = None
        self._buffer = np.empty((0, RECORD_BYTES), np.uint8)
        self._starts: list[int] = []

    def read(self) -> Sample | None:
        """All nodes as they are now; None while there is no hardware file."""
        now = time.monotonic()
        if self._scanned_at is None or now - self._scanned_at >= RESCAN_SECONDS:
            self._scan()
            self._scanned_at = now
        if not self._records:
            return None
        start_ns = boottime_ns()
        now_ns = np.empty(len(self._buffer), np.int64)
        for start, memory in zip(self._starts, self._records.values(), strict=True):
            end = start + len(memory)
            now_ns[start:end] = boottime_ns()
            _copy(memory, self._buffer[start:end])
        end_ns = boottime_ns()
        return self._evaluate(start_ns, end_ns, now_ns)

    def _evaluate(self, start_ns: int, end_ns: int, now_ns: npt.NDArray[np.int64]) -> Sample:
        records = self._buffer.view(RECORD).reshape(-1)
        pending_at_ns = records["pending_at_ns"].astype(np.int64)
        due = (pending_at_ns != 0) & (pending_at_ns <= now_ns)
        requested = records["requested"].astype(np.int64)
        enforced = np.where(due, records["pending_enforced"], records["enforced"]).astype(np.int64)
        power = np.where(due, records["pending_power"], records["power"]).astype(np.int64)
        turn_ns = np.where(due, pending_at_ns, now_ns)
        before_turn_ns = np.maximum(turn_ns - records["updated_ns"].astype(np.int64), 0)
        energy = records["energy_mj"] + (records["power"] * before_turn_ns + power * (now_ns - turn_ns)) / 1e9

        def by_node(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return np.add.reduceat(values, self._starts)

        return Sample(
            start_ns,
            end_ns,
            tuple(self._records),
            by_node(requested),
            by_node(enforced),
            by_node(np.maximum(requested, enforced)),
            by_node(power),
            by_node(energy),
        )

    def _scan(self) -> None:
        known = len(self._records)
        for path in sorted(self._directory.glob("*.gpus")):
            if path.stem in self._records:
                continue
            with path.open("rb") as file:
                memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            count = int.from_bytes(memory[12:16], "little")
            if memory[:8] != b"FLYGPU01" or len(memory) < HEADER_BYTES + count * RECORD_BYTES:
                raise ValueError(f"{path}: not the hardware file of a simulated node (it begins {memory[:8]!r})")
            content = np.frombuffer(memory, np.uint8, count * RECORD_BYTES, HEADER_BYTES)
            self._records[path.stem] = content.reshape(count, RECORD_BYTES)
        if len(self._records) != known:
            counts = [len(records) for records in self._records.values()]
            self._starts = [sum(counts[:index]) for index in range(len(counts))]
            self._buffer = np.empty((sum(counts), RECORD_BYTES), np.uint8)


def _copy(memory: npt.NDArray[np.uint8], into: npt.NDArray[np.uint8]) -> None:
    """A consistent copy of each record by its seqlock; of one whose writer died inside its write, the undo copy."""
    for _ in range(TRIES_BEFORE_UNDO):
        sequence = memory[:, :4].copy()
        into[:] = memory
        torn = (sequence[:, 0] & 1).astype(bool) | (sequence != memory[:, :4]).any(axis=1)
        if not torn.any():
            return
    undo = memory[:, UNDO_OFFSET : UNDO_OFFSET + STATE_BYTES]
    into[torn, STATE_OFFSET : STATE_OFFSET + STATE_BYTES] = undo[torn]
