"""Which pod used the energy: exact integer millijoules, of which none is lost and none is counted twice.

Each GPU's counter is read; what it rose by since the last reading goes to the pods that held the GPU since then
(shared GPUs: by weight), to `idle` where none did, or to `unattributed` where that is not known. At any time

    pods + ended + idle + unattributed + discarded == sum over GPUs of what their counters rose by

A counter that fell back has started again at zero: what it shows is what it rose by. A rise above what the GPU can
draw in that time is cut there, and the rest is `discarded` (drivers have jumped).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from flyball_api.values.units import MilliwattsPerGpu

from flyball_agent.energy.record import EnergyRecord, JobObservation

NANOSECONDS_PER_SECOND = 1_000_000_000
# A counter may run this far ahead of the largest limit: it is updated in steps, and draw overshoots for milliseconds.
BOUND_FACTOR_PERCENT = 110
BOUND_SLACK_NS = 500_000_000
# This many pods that ended are kept by name; older ones are kept as a sum.
MAX_ENDED_PODS = 128

PodKey = str  # the pod's UID where it is known, else namespace/name
NOT_KNOWN = ("",)  # the holders of a GPU while nobody knows who they are


@dataclass(frozen=True, slots=True)
class Sample:
    """One GPU's energy counter as read now; None where it cannot be read. `max_milliwatts` is its largest limit."""

    uuid: str
    counter_millijoules: int | None
    max_milliwatts: MilliwattsPerGpu


@dataclass(slots=True)
class _LastReading:
    counter_millijoules: int
    time_ns: int
    holders: tuple[PodKey, ...]


@dataclass(slots=True)
class EnergyAccounts:
    """The totals since the journal began, millijoules."""

    pods: dict[PodKey, int] = field(default_factory=dict)
    ended: dict[PodKey, int] = field(default_factory=dict)  # newest last
    ended_before: int = 0
    idle: int = 0
    unattributed: int = 0
    discarded: int = 0
    gpus: dict[str, int] = field(default_factory=dict)  # what each GPU's counter rose by

    def pod_millijoules(self, pod: PodKey) -> int:
        """What a pod has used, whether it still runs or ended lately (0 for one that is not known)."""
        return self.pods.get(pod, self.ended.get(pod, 0))

    def total(self) -> int:
        """Everything that was accounted for."""
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
    """Keeps the energy accounts of one node.

    It needs every reading; its `record` belongs into the journal now and then, and whenever a GPU changes hands.
    """

    def __init__(self, record: EnergyRecord | None = None, boot_id: str = "") -> None:
        """Goes on from a `record`, whose counters are void where the boot is another one.

        `boot_id` may be set later: the boot that the readings are of.
        """
        self.accounts = EnergyAccounts()
        self._last: dict[str, _LastReading] = {}
        self.boot_id = boot_id
        if record is not None:
            self._restore(record)

    def _restore(self, record: EnergyRecord) -> None:
        self.accounts = EnergyAccounts(
            pods=dict(record.pods),
            ended=dict(record.ended),
            ended_before=record.ended_before,
            idle=record.idle,
            unattributed=record.unattributed,
            discarded=record.discarded,
            gpus=dict(record.gpus),
        )
        for uuid, (counter, time_ns, holders) in record.last.items():
            if record.boot_id == self.boot_id:
                self._last[uuid] = _LastReading(counter, time_ns, holders)
            else:
                # Counters started again with the boot; what the GPUs used before the first reading is nobody's.
                self._last[uuid] = _LastReading(0, 0, NOT_KNOWN)

    def record(self, jobs: Iterable[JobObservation] = ()) -> EnergyRecord:
        """Everything, for the journal, with what was observed of the jobs."""
        accounts = self.accounts
        return EnergyRecord(
            boot_id=self.boot_id,
            pods=accounts.pods,
            ended=accounts.ended,
            ended_before=accounts.ended_before,
            idle=accounts.idle,
            unattributed=accounts.unattributed,
            discarded=accounts.discarded,
            gpus=accounts.gpus,
            last={uuid: (last.counter_millijoules, last.time_ns, last.holders) for uuid, last in self._last.items()},
            jobs=tuple(jobs),
        )

    def update(
        self,
        now_ns: int,
        samples: Iterable[Sample],
        holders: Mapping[str, tuple[PodKey, ...]],
        weights: Mapping[PodKey, int] | None = None,
        *,
        after_absence: bool = False,
    ) -> bool:
        """Account for the time up to now; True where a GPU changed hands (journal it then).

        What a GPU used since its last reading belongs to the pods that held it then; `holders` (pods by GPU) hold it
        from now on. `after_absence`: nobody watched in between; where the holders changed meanwhile, it is unattributed.
        """
        changed = False
        for sample in samples:
            held_by = holders.get(sample.uuid, ())
            last = self._last.get(sample.uuid)
            if sample.counter_millijoules is None:
                if last is not None and last.holders != held_by:
                    # Not readable while it changes hands: the split between old and new holder is unknown.
                    last.holders = NOT_KNOWN
                    changed = True
                continue
            if last is None:
                self._last[sample.uuid] = _LastReading(sample.counter_millijoules, now_ns, held_by)
                changed = True
                continue
            owners = NOT_KNOWN if after_absence and last.holders != held_by else last.holders
            self._account(sample, last, now_ns, owners, weights or {})
            changed = changed or last.holders != held_by
            last.counter_millijoules, last.time_ns, last.holders = sample.counter_millijoules, now_ns, held_by
        self._end_pods({pod for pods in holders.values() for pod in pods})
        return changed

    def _account(
        self, sample: Sample, last: _LastReading, now_ns: int, owners: tuple[PodKey, ...], weights: Mapping[PodKey, int]
    ) -> None:
        counter = sample.counter_millijoules or 0
        risen = counter - last.counter_millijoules if counter >= last.counter_millijoules else counter
        elapsed_ns = max(now_ns - last.time_ns, 0) + BOUND_SLACK_NS
        bound = sample.max_milliwatts * elapsed_ns * BOUND_FACTOR_PERCENT // (100 * NANOSECONDS_PER_SECOND)
        accepted = min(risen, bound)
        accounts = self.accounts
        accounts.gpus[sample.uuid] = accounts.gpus.get(sample.uuid, 0) + risen
        accounts.discarded += risen - accepted
        if not owners:
            accounts.idle += accepted
        elif owners == NOT_KNOWN:
            accounts.unattributed += accepted
        else:
            shares = split(accepted, [weights.get(pod, 0) for pod in owners])
            for pod, share in zip(owners, shares, strict=True):
                if pod:
                    accounts.pods[pod] = accounts.pods.get(pod, 0) + share
                else:
                    accounts.unattributed += share

    def _end_pods(self, alive: set[PodKey]) -> None:
        accounts = self.accounts
        for pod in alive:
            if pod and pod not in accounts.pods:
                accounts.pods[pod] = accounts.ended.pop(pod, 0)
        held = {pod for last in self._last.values() for pod in last.holders}
        for pod in [pod for pod in accounts.pods if pod not in alive and pod not in held]:
            accounts.ended[pod] = accounts.pods.pop(pod)
        while len(accounts.ended) > MAX_ENDED_PODS:
            accounts.ended_before += accounts.ended.pop(next(iter(accounts.ended)))
