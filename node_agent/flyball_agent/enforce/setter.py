"""Sets power limits (journaled before, read back after), clock locks and persistence mode."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from flyball_api.gpu_node import DriverSession
from flyball_api.grant import Grant
from flyball_kube.process.logs import get_logger

from flyball_agent.clock import NANOSECONDS
from flyball_agent.enforce import decisions
from flyball_agent.enforce.decisions import Mode, SetClockLock, SetLimit
from flyball_agent.enforce.driver_access import DriverAccess
from flyball_agent.enforce.gpu_state import ClockLock, GpuState
from flyball_agent.enforce.journal import Journal, JournalError
from flyball_agent.enforce.reader import ROUNDS_BEFORE_EXIT, GpuReader
from flyball_agent.enforce.records import Intent, Intents
from flyball_agent.enforce.set_latencies import CallTimes, SetLatencies
from flyball_agent.enforce.state import EnforcerState
from flyball_agent.gpu.gpu import GpuError, NotSupported
from flyball_agent.gpu.operations import (
    EnablePersistence,
    GpuCall,
    LockClocks,
    ReadPowerLimit,
    SetPowerLimit,
    UnlockClocks,
)


def _call_for(lock: ClockLock) -> GpuCall[None]:
    return LockClocks(lock.min_megahertz, lock.max_megahertz) if lock.is_range else UnlockClocks()


class GpuSetter:
    """Sets the limits and clocks that were decided on, and puts what is read back into the enforcer's state.

    `still_decided` says whether the round still goes by a grant: a newer one, or the lease's end, may come meanwhile.
    """

    def __init__(
        self,
        state: EnforcerState,
        access: DriverAccess,
        journal: Journal,
        reader: GpuReader,
        *,
        still_decided: Callable[[Grant], bool],
        clock_ns: Callable[[], int],
        node: str,
    ) -> None:
        self._log = get_logger(__name__, node=node)
        self._state = state
        self._access = access
        self._journal = journal
        self._reader = reader
        self._still_decided = still_decided
        self._clock_ns = clock_ns
        self._latencies = SetLatencies(clock_ns)
        self._begun_locks: dict[str, SetClockLock] = {}  # the last of each GPU
        self._asked_to_persist: set[tuple[DriverSession, str]] = set()
        self._forbidden: str | None = None
        self._forbidden_rounds = 0

    async def set_limits(self, grant: Grant, wanted: Sequence[SetLimit], kind: str) -> None:
        if not wanted:
            return
        sets = decisions.worth_asking(wanted, self._state.gpus, self._clock_ns())
        if not sets:
            self._note_forbidden(self._forbidden)  # none was asked again: it is still so
            return
        now_ns = self._clock_ns()
        intents = tuple(
            Intent(
                change.uuid,
                change.old_milliwatts,
                change.new_milliwatts,
                self._state.gpus[change.uuid].coming_milliwatts(now_ns),
            )
            for change in sets
        )
        try:
            self._journal.note(Intents(*grant.version, intents))
            if kind == "raise":  # no cut waits for a disk; what is written here is synced before it is acknowledged
                await self._journal.sync()
        except JournalError as error:
            self._log.error("journal", error=str(error))
        if kind == "raise" and self._journal.degraded is not None:
            return  # what cannot be remembered may not be given
        if kind == "raise" and not self._still_decided(grant):
            return  # a newer grant, or the lease's end, came while the disk was busy
        started_ns = self._clock_ns()
        drivers = [self._access.gpus[change.uuid] for change in sets]
        done = await self._access.calls.each(
            f"set power limit ({kind})",
            [(driver, SetPowerLimit(change.new_milliwatts)) for driver, change in zip(drivers, sets, strict=True)],
        )
        back = await self._access.calls.each("read power limit", [(driver, ReadPowerLimit()) for driver in drivers])
        counts, to_log = self._state.counts, []
        for change, outcome, read_back in zip(sets, done, back, strict=True):
            gpu = self._state.gpus[change.uuid]
            if outcome is not None:
                counts.errors[(outcome.operation, outcome.code)] += 1
            if isinstance(read_back, GpuError):
                self._reader.note_failure(gpu, read_back)
            gpu = gpu.after_set(change.new_milliwatts, outcome, read_back, self._clock_ns())
            self._state.put(gpu)
            if gpu.limit is not None and (gpu.refusal is None or gpu.refusal.times == 1):
                to_log.append((change, gpu))
        self._log_limits(grant, to_log, kind)
        counts.applied[kind] += len(sets)
        counts.applied_seconds[kind] += (self._clock_ns() - started_ns) / NANOSECONDS
        forbidden = all(outcome is not None and outcome.fatal for outcome in done)
        self._note_forbidden(str(done[0]) if forbidden else None)

    def _note_forbidden(self, error: str | None) -> None:
        """Note whether every GPU that was to be set lately refused for lack of permission, and with which error."""
        self._forbidden = error
        self._forbidden_rounds = 0 if error is None else self._forbidden_rounds + 1
        if self._forbidden_rounds >= ROUNDS_BEFORE_EXIT:
            self._state.must_exit = f"no GPU may be set: {error}"

    def _log_limits(self, grant: Grant, changes: Iterable[tuple[SetLimit, GpuState]], kind: str) -> None:
        """One line for all GPUs whose limits went the same way: mostly those of a pod, or of the node."""
        alike: dict[tuple[int | None, int, int | None, str], list[str]] = {}
        for change, gpu in changes:
            reason = "failsafe" if self._state.mode is Mode.FAILSAFE else str(gpu.purpose)
            way = (change.old_milliwatts, change.new_milliwatts, gpu.requested_milliwatts, reason)
            alike.setdefault(way, []).append(gpu.uuid)
        for (old, new, read_back, reason), uuids in alike.items():
            self._log.info(
                "limits",
                uuids=uuids,
                change=kind,
                old_milliwatts=old,
                new_milliwatts=new,
                read_back_milliwatts=read_back,
                epoch=grant.epoch,
                generation=grant.generation,
                reason=reason,
            )

    async def set_persistence(self) -> None:
        """Ask once in each session of the driver, whose load forgets it, that limits be kept when its last client, perhaps
        this agent, ends."""
        session = self._state.session
        self._asked_to_persist = {asked for asked in self._asked_to_persist if asked[0] == session}
        off = [
            self._access.gpus[gpu.uuid]
            for gpu in list(self._state.gpus.values())
            if gpu.reading is not None and gpu.reading.persistence_mode is False
        ]
        drivers = [driver for driver in off if (session, driver.uuid) not in self._asked_to_persist]
        if not drivers:
            return
        self._asked_to_persist.update((session, driver.uuid) for driver in drivers)
        calls = [(driver, EnablePersistence()) for driver in drivers]
        for driver, error in zip(drivers, await self._access.calls.each("enable persistence mode", calls), strict=True):
            if error is not None:
                self._state.counts.errors[(error.operation, error.code)] += 1
            self._log.info("persistence mode", uuid=driver.uuid, error=None if error is None else str(error))

    def set_locks(self, locks: Mapping[str, ClockLock | None]) -> Coroutine[Any, Any, None]:
        """Have clocks locked as said of each GPU (None: as it is): begun at once, and noted once they are done."""
        gpus = [gpu for uuid in locks if (gpu := self._state.gpus.get(uuid)) is not None]
        sets = decisions.clock_locks(gpus, locks)
        calls = [(self._access.gpus[change.uuid], _call_for(change.lock)) for change in sets]
        session, took = self._state.session, CallTimes(self._clock_ns)
        outcomes = self._access.calls.each("lock clocks", calls, took.returned)
        for change in sets:
            self._begun_locks[change.uuid] = change
            self._state.put(self._state.gpus[change.uuid].changed(lock_coming=change.lock))
        return self._note_locks(sets, outcomes, session, took)

    async def _note_locks(
        self,
        sets: Sequence[SetClockLock],
        begun: Coroutine[Any, Any, list[GpuError | None]],
        session: DriverSession,
        took: CallTimes,
    ) -> None:
        try:
            outcomes = await begun
        except BaseException:
            for change in sets:
                self._forget_lock(change)
            raise
        for change, outcome in zip(sets, outcomes, strict=True):
            if isinstance(outcome, GpuError):
                self._state.counts.errors[(outcome.operation, outcome.code)] += 1
            if self._state.session != session:  # another driver by now, or the same loaded anew, which knows of no lock
                self._forget_lock(change)
            elif isinstance(outcome, GpuError):
                self._note_refused_lock(change, outcome)
            else:
                self._note_lock(change, session, took)

    def _is_last(self, change: SetClockLock) -> bool:
        """Of several calls on one GPU the last that was begun says what its clock is locked to, whichever is noted last."""
        return self._begun_locks[change.uuid] is change

    def _forget_lock(self, change: SetClockLock) -> None:
        gpu = self._state.gpus.get(change.uuid)
        if gpu is not None and self._is_last(change):
            self._state.put(gpu.changed(lock=None, lock_coming=None))

    def _note_refused_lock(self, change: SetClockLock, error: GpuError) -> None:
        """A GPU that cannot be locked is asked once, never again for this range. Any other may have been locked."""
        if self._is_last(change):
            lock_now = change.lock if isinstance(error, NotSupported) else None
            gpu = self._state.gpus[change.uuid]
            self._state.put(gpu.changed(lock=lock_now, lock_coming=None, lock_refused=str(error)))

    def _note_lock(self, change: SetClockLock, session: DriverSession, took: CallTimes) -> None:
        gpu = self._state.gpus[change.uuid]
        if change.lock.is_range:  # to remove a lock is another call, and none that a computation waits for
            latency = self._latencies.take(change.uuid, session, took.nanoseconds(change.uuid))
            gpu = gpu.changed(set_latency=latency)
        if self._is_last(change):
            gpu = gpu.changed(lock=change.lock, lock_coming=None, lock_refused=None, lock_set_ns=self._clock_ns())
        self._state.put(gpu)
