"""What the energy accounts and the jobs' observations leave in the journal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, ValidationError, convert, field, to_builtins

# What the record says of each GPU's counter: millijoules, when it was read, and the pods that held the GPU from then on.
LastReading = tuple[int, int, tuple[str, ...]]


class JobObservation(Struct):
    """One job's pod on this node. `energy_key` is its name in the accounts; times are CLOCK_BOOTTIME but `last_report`."""

    namespace: str
    name: str
    uid: str
    incarnation: int
    pod_name: str
    energy_key: str
    gpus: int = 0
    iterations: int = 0
    microseconds_per_iteration: int = 0
    millijoules_per_iteration: int = 0
    clock_megahertz: int = 0
    local_batch_size: int = 0
    last_report: float = 0.0  # Unix seconds, for people; 0: never
    ended: bool = False
    ended_ns: int = 0


class EnergyRecord(Struct, frozen=True):
    """The totals in millijoules, and what goes on from the last readings in the boot of `boot_id`.

    The fields' names on the disk are part of the journal's format.
    """

    boot_id: str = field(name="boot", default="")
    pods: dict[str, int] = {}
    ended: dict[str, int] = {}
    ended_before: int = field(name="endedBefore", default=0)
    idle: int = 0
    unattributed: int = 0
    discarded: int = 0
    gpus: dict[str, int] = field(name="boards", default_factory=dict)
    last: dict[str, LastReading] = {}
    jobs: tuple[JobObservation, ...] = ()

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> EnergyRecord | None:
        """What `to_json` gave; None where there is none, or one that another version wrote in a way of its own."""
        try:
            return convert(raw, cls) if raw else None
        except ValidationError:
            return None

    def to_json(self) -> dict[str, Any]:
        raw: dict[str, Any] = to_builtins(self)
        return raw
