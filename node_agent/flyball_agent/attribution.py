"""Who used the energy: exact integer millijoules, of which none is lost and none is counted twice.

Each board's counter is read; what it rose by since the last reading goes to the pods that held the board since then
(shared boards: by weight), to `idle` where none did, or to `unattributed` where nobody knows. At any time

    pods + ended + idle + unattributed + discarded == sum over boards of what their counters rose by

A counter that fell back has started again at zero: what it shows is what it rose by. A rise above what the board can
draw in that time is cut there, and the rest is `discarded` (drivers have jumped).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

NANOSECONDS_PER_SECOND = 1_000_000_000
# A counter may run this far ahead of the largest limit: it is updated in steps, and draw overshoots for milliseconds.
BOUND_FACTOR_PERCENT = 110
BOUND_SLACK_NS = 500_000_000
# Pods that ended are kept by name this long a list; older ones are kept as a sum.
MAX_ENDED_PODS = 128

PodKey = str  # the pod's UID where it is known, else namespace/name


@dataclass(frozen=True, slots=True)
class Sample:
    """One board's counter at a time of CLOCK_BOOTTIME; None where it cannot be read now."""

    uuid: str
    counter_millijoules: int | None
    max_milliwatts: int


@dataclass(slots=True)
class _Board:
    counter_millijoules: int
    time_ns: int
    holders: tuple[PodKey, ...]


@dataclass(slots=True)
class Ledger:
    """The totals since the journal began, millijoules."""

    pods: dict[PodKey, int] = field(default_factory=dict)
    ended: dict[PodKey, int] = field(default_factory=dict)  # newest last
    ended_before: int = 0
    idle: int = 0
    unattributed: int = 0
    discarded: int = 0
    boards: dict[str, int] = field(default_factory=dict)  # what each board's counter rose by

    def total(self) -> int:
        """Everything that was given to somebody or something."""
        return (
            sum(self.pods.values())
            + sum(self.ended.values())
            + self.ended_before
            + self.idle
            + self.unattributed
            + self.discarded
        )


def split(amount: int, weights: Sequence[int]) -> list[int]:
    """Share an amount by weight in whole units that add up to it exactly (largest remainders first, then in order).

    Weights that are all 0 count as equal. Raises ValueError for no weights or a negative one.
    """
    if not weights or min(weights) < 0:
        raise ValueError(f"cannot split by weights {list(weights)}")
    if not any(weights):
        weights = [1] * len(weights)
    whole = sum(weights)
    shares = [amount * weight // whole for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda index: -(amount * weights[index] % whole))
    for index in by_remainder[: amount - sum(shares)]:
        shares[index] += 1
    return shares


class Attribution:
    """Keeps the ledger of one node. Feed it every reading; journal `to_json` now and then and at each change of pods."""

    def __init__(self, state: Mapping[str, Any] | None = None, boot_id: str = "") -> None:
        """`state` is what `to_json` gave; its counters are void where the boot is another one.

        `boot_id` may be set later: the boot that the readings are of.
        """
        self.ledger = Ledger()
        self._boards: dict[str, _Board] = {}
        self.boot_id = boot_id
        if state:
            self._restore(state)

    def _restore(self, state: Mapping[str, Any]) -> None:
        ledger = self.ledger
        ledger.pods = {str(pod): int(energy) for pod, energy in state.get("pods", {}).items()}
        ledger.ended = {str(pod): int(energy) for pod, energy in state.get("ended", {}).items()}
        ledger.ended_before = int(state.get("endedBefore", 0))
        ledger.idle = int(state.get("idle", 0))
        ledger.unattributed = int(state.get("unattributed", 0))
        ledger.discarded = int(state.get("discarded", 0))
        ledger.boards = {str(uuid): int(energy) for uuid, energy in state.get("boards", {}).items()}
        if state.get("boot") == self.boot_id:
            for uuid, (counter, time_ns, holders) in state.get("last", {}).items():
                self._boards[str(uuid)] = _Board(int(counter), int(time_ns), tuple(str(pod) for pod in holders))
        else:
            # Counters started again with the boot; what the boards used before the first reading belongs to nobody.
            for uuid in state.get("last", {}):
                self._boards[str(uuid)] = _Board(0, 0, ("",))

    def to_json(self) -> dict[str, Any]:
        """Everything, for the journal."""
        ledger = self.ledger
        return {
            "boot": self.boot_id,
            "pods": ledger.pods,
            "ended": ledger.ended,
            "endedBefore": ledger.ended_before,
            "idle": ledger.idle,
            "unattributed": ledger.unattributed,
            "discarded": ledger.discarded,
            "boards": ledger.boards,
            "last": {
                uuid: [board.counter_millijoules, board.time_ns, list(board.holders)]
                for uuid, board in self._boards.items()
            },
        }

    def update(
        self,
        now_ns: int,
        samples: Iterable[Sample],
        holders: Mapping[str, tuple[PodKey, ...]],
        weights: Mapping[PodKey, int] | None = None,
        *,
        after_absence: bool = False,
    ) -> bool:
        """Account for the time up to now; True where a board changed hands (journal it then).

        What a board used since its last reading belongs to who held it then, `holders` (pods by board) from now on.
        `after_absence`: nobody watched in between; where the holders changed meanwhile, it belongs to nobody known.
        """
        changed = False
        for sample in samples:
            held_by = holders.get(sample.uuid, ())
            board = self._boards.get(sample.uuid)
            if sample.counter_millijoules is None:
                if board is not None and board.holders != held_by:
                    # Not readable while it changes hands: the split between old and new holder is unknown.
                    board.holders = ("",)
                    changed = True
                continue
            if board is None:
                self._boards[sample.uuid] = _Board(sample.counter_millijoules, now_ns, held_by)
                changed = True
                continue
            owners = ("",) if after_absence and board.holders != held_by else board.holders
            self._account(sample, board, now_ns, owners, weights or {})
            changed = changed or board.holders != held_by
            board.counter_millijoules, board.time_ns, board.holders = sample.counter_millijoules, now_ns, held_by
        self._end_pods({pod for pods in holders.values() for pod in pods})
        return changed

    def _account(
        self, sample: Sample, board: _Board, now_ns: int, owners: tuple[PodKey, ...], weights: Mapping[PodKey, int]
    ) -> None:
        counter = sample.counter_millijoules or 0
        risen = counter - board.counter_millijoules if counter >= board.counter_millijoules else counter
        elapsed_ns = max(now_ns - board.time_ns, 0) + BOUND_SLACK_NS
        bound = sample.max_milliwatts * elapsed_ns * BOUND_FACTOR_PERCENT // (100 * NANOSECONDS_PER_SECOND)
        accepted = min(risen, bound)
        ledger = self.ledger
        ledger.boards[sample.uuid] = ledger.boards.get(sample.uuid, 0) + risen
        ledger.discarded += risen - accepted
        if not owners:
            ledger.idle += accepted
        elif owners == ("",):
            ledger.unattributed += accepted
        else:
            shares = split(accepted, [weights.get(pod, 0) for pod in owners])
            for pod, share in zip(owners, shares, strict=True):
                if pod:
                    ledger.pods[pod] = ledger.pods.get(pod, 0) + share
                else:
                    ledger.unattributed += share

    def _end_pods(self, alive: set[PodKey]) -> None:
        ledger = self.ledger
        for pod in alive:
            if pod and pod not in ledger.pods:
                ledger.pods[pod] = ledger.ended.pop(pod, 0)
        held = {pod for board in self._boards.values() for pod in board.holders}
        for pod in [pod for pod in ledger.pods if pod not in alive and pod not in held]:
            ledger.ended[pod] = ledger.pods.pop(pod)
        while len(ledger.ended) > MAX_ENDED_PODS:
            ledger.ended_before += ledger.ended.pop(next(iter(ledger.ended)))

    def pod_millijoules(self, pod: PodKey) -> int:
        """What a pod has used, whether it still runs or ended lately (0 for one that is not known)."""
        return self.ledger.pods.get(pod, self.ledger.ended.get(pod, 0))
