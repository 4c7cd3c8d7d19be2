"""Which caps' statuses are to be written now: each write brings another cycle, and is work for the API server."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from flyball_api.power_cap import PowerCap, PowerCapStatus
from msgspec.structs import replace

from flyball_operator.power.caps.state import CapStates, SentWatts
from flyball_operator.power.caps.status import GrantsUnderWay, cap_status, unreadable_status

# Watts that only rise are written after so much of the interval.
RISE_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class CapStatusWrite:
    """A cap's status that is to be written now."""

    cap: PowerCap
    status: PowerCapStatus


class CapStatuses:
    """Decides which caps' statuses to write: at once where the watts in force fell or their enforcement changed, where more
    is committed, and where another leader wrote the last one; figures that move by themselves at most once per
    `interval_seconds`, watts that rise `RISE_SHARE` of it after the last write.

    What was sent counts as said until a copy shows whether it was taken, or is still without it as of
    `stale_after_seconds` later: a status is written over the version of its cap that was read, or not at all."""

    def __init__(self, interval_seconds: float, epoch: int, stale_after_seconds: float) -> None:
        self._epoch = epoch
        self._interval_seconds = interval_seconds
        self._stale_after_seconds = stale_after_seconds
        self._written_at: dict[str, float] = {}  # by the cap's uid
        self._sent: dict[str, SentWatts] = {}  # by the cap's uid

    def update_sent(self, caps: Iterable[PowerCap], read_at: float) -> Mapping[str, SentWatts]:
        """Forget what the `caps` as they were at `read_at` show, or would; gives what else statuses may say, by uid."""
        self._sent = {
            cap.uid: sent
            for cap in caps
            if (sent := self._sent.get(cap.uid)) is not None
            and sent.over_version == cap.metadata.resource_version
            and read_at - sent.at <= self._stale_after_seconds
        }
        return self._sent

    def step(
        self,
        caps: CapStates,
        infeasible: Collection[str],
        grants: GrantsUnderWay,
        now: datetime,
        monotonic: float,
        under_way: Collection[str] = (),
    ) -> tuple[CapStatusWrite, ...]:
        """The statuses to write now; `infeasible` names the caps that the plan cannot hold, and of the caps whose uids are
        in `under_way` a status is being written.

        A status that does not arrive is due again, because the copy of the cap that the next call is given lacks it.
        """
        statuses = [(cap, unreadable_status(cap, now)) for cap in caps.unreadable]
        for state in caps.states:
            feasible = state.attainable and state.name not in infeasible
            statuses.append((state.cap, cap_status(state, caps.problems, grants, now, feasible=feasible)))
        writes = []
        for cap, unnumbered in statuses:
            if cap.uid in under_way:
                continue
            status = replace(unnumbered, epoch=self._epoch)
            if status != cap.status and self._is_due(cap, status, monotonic):
                writes.append(CapStatusWrite(cap, status))
                self._written_at[cap.uid] = monotonic
                self._sent[cap.uid] = SentWatts.of(cap, status, monotonic).or_less(self._sent.get(cap.uid))
        known = {cap.uid for cap, _ in statuses}
        self._written_at = {uid: at for uid, at in self._written_at.items() if uid in known}
        return tuple(writes)

    def _is_due(self, cap: PowerCap, status: PowerCapStatus, monotonic: float) -> bool:
        since = monotonic - self._written_at.get(cap.uid, float("-inf"))
        if not _urgent(cap.status, status):
            return since >= self._interval_seconds
        return since >= self._interval_seconds * RISE_SHARE or not _only_rises(cap.status, status)


def _urgent(before: PowerCapStatus, after: PowerCapStatus) -> bool:
    """Whether the status is of another spec, the cap's watts, or what is known of its enforcement, are not what it says,
    or more is committed."""
    return (
        (before.epoch, before.observed_generation) != (after.epoch, after.observed_generation)
        or before.effective_watts != after.effective_watts
        or _enforcement(before) != _enforcement(after)
        or before.meter != after.meter
        or (after.committed_watts or 0) > (before.committed_watts or 0)
    )


def _only_rises(before: PowerCapStatus, after: PowerCapStatus) -> bool:
    """Whether all that is urgent is that the cap's watts are higher, as where a budget leaves more.

    Each such write would bring the cycle that makes the next one.
    """
    rises = (after.effective_watts or 0) > (before.effective_watts or 0)
    return rises and not _urgent(replace(before, effective_watts=after.effective_watts), after)


def _enforcement(status: PowerCapStatus) -> Mapping[str, str]:
    """What must not be read as it was a moment ago: a meter that has gone silent, and a draw above the cap, too."""
    return {item.type: item.status for item in status.conditions if item.type != "Feasible"}
