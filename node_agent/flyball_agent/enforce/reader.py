"""Reads the GPUs: each round's reading, what failed, whether the driver was loaded anew, and who else set something."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence

from flyball_api.gpu_node import Acknowledgement
from flyball_api.grant import GrantVersion
from flyball_kube.process.logs import get_logger

from flyball_agent.clock import NANOSECONDS
from flyball_agent.enforce import decisions
from flyball_agent.enforce.adoption import in_a_status, may_be_larger, newly_found, not_listed
from flyball_agent.enforce.driver_access import DriverAccess
from flyball_agent.enforce.gpu_state import GpuState
from flyball_agent.enforce.journal import Journal, JournalError
from flyball_agent.enforce.records import FoundGpu, Gaps, Record, VersionBefore
from flyball_agent.enforce.state import EnforcerState, LimitDrift
from flyball_agent.gpu.gpu import XID_MEANINGS, CallTimedOut, GpuError, GpuReading
from flyball_agent.gpu.operations import Read, ReadPowerLimit

# After so many rounds in which every GPU failed the way a restart may mend, the driver is opened anew.
ROUNDS_BEFORE_EXIT = 10


class GpuReader:
    """Reads every GPU into the enforcer's state, once a round."""

    def __init__(
        self, state: EnforcerState, access: DriverAccess, journal: Journal, clock_ns: Callable[[], int], node: str
    ) -> None:
        self._log = get_logger(__name__, node=node)
        self._state = state
        self._access = access
        self._journal = journal
        self._clock_ns = clock_ns
        self._read_ns = 0
        self._failed_rounds = 0
        self._reported: Sequence[FoundGpu] | None = None  # by an agent before this one; None: not known yet
        grant = journal.state.grant
        # Of the last grant that the journal had of an agent before this one; None once that was compared.
        self._version_before: GrantVersion | None = journal.state.version_before or (
            GrantVersion() if grant is None else grant.version
        )

    async def unchanged(self, uuids: Sequence[str]) -> frozenset[str]:
        """Of these GPUs the ones whose limits are still those that are known: nobody else has done anything since."""
        if self._access.session.shows_new_load:
            return frozenset()
        before = {uuid: self._state.gpus[uuid].limit for uuid in uuids}
        results = await self._access.calls.each(
            "read power limit", [(self._access.gpus[uuid], ReadPowerLimit()) for uuid in uuids]
        )
        return frozenset(uuid for uuid, result in zip(uuids, results, strict=True) if result == before[uuid])

    async def read(self) -> None:
        began_ns = self._clock_ns()
        results = await self._access.calls.each("read", [(gpu, Read()) for gpu in self._access.gpus.values()])
        if self._access.session.reloaded():
            was, now = self._state.session.driver_load, self._access.session.session.driver_load
            self._log.warning("driver reloaded", was=was, now=now)
            for gpu in list(self._state.gpus.values()):
                self._state.put(gpu.forgotten_by_driver())
        now_ns = self._clock_ns()
        before_ns, self._read_ns = self._read_ns, now_ns
        elapsed_seconds = (now_ns - before_ns) / NANOSECONDS if before_ns else 0.0
        restart_may_help = bool(results)
        last_failure = ""
        for uuid, result in zip(self._access.gpus, results, strict=True):
            gpu = self._state.gpus[uuid]
            if isinstance(result, GpuError):
                self.note_failure(gpu, result)
                gpu = gpu.hanging(now_ns, before_ns) if isinstance(result, CallTimedOut) else gpu
                self._state.put(gpu.failed(result))
                restart_may_help = restart_may_help and result.restart_may_help
                last_failure = str(result)
                continue
            restart_may_help = False
            for error in result.failed:
                self._state.counts.errors[(error.operation, error.code)] += 1
            if gpu.failure is not None:
                self._log.info("GPU is back", uuid=uuid)
            self._state.put(self._with_counter(gpu.read(result, now_ns, elapsed_seconds), result))
        self._note_xid_errors()
        self._note_session()
        self._failed_rounds = self._failed_rounds + 1 if restart_may_help else 0
        if self._failed_rounds == 0:
            self._state.driver_broken = None
        elif self._failed_rounds >= ROUNDS_BEFORE_EXIT:
            self._state.driver_broken = f"every GPU failed in {self._failed_rounds} rounds, last: {last_failure}"
        self.remember_new_gpus()
        self._close_gaps()
        self._state.looked_ns = began_ns

    def _note_session(self) -> None:
        """In a new session of the driver a GPU that cannot be read does not hold what it held: a load has put back its
        default, and of a counter that began anew nobody knows whether one has."""
        if self._state.session == self._access.session.session:
            return
        self._state.session = self._access.session.session
        for gpu in list(self._state.gpus.values()):
            if not gpu.usable:
                self._state.put(gpu.changed(held_milliwatts=max(gpu.held_milliwatts, gpu.limits.max_milliwatts)))

    def _note_xid_errors(self) -> None:
        """Note what the driver has reported by itself; a lost GPU says why by that alone."""
        for error in self._access.driver.take_xid_errors():
            gpu = self._state.gpus.get(error.uuid)
            if gpu is None:
                continue
            if gpu.last_xid != error.number:
                meaning = XID_MEANINGS.get(error.number, "")
                self._log.error("Xid error", uuid=error.uuid, xid=error.number, meaning=meaning)
            self._state.put(gpu.reported(error.number))

    def _with_counter(self, gpu: GpuState, reading: GpuReading) -> GpuState:
        counter = reading.energy_millijoules
        if counter is None or not self._access.session.note_counter(gpu.uuid, counter):
            return gpu
        self._state.counts.counter_resets += 1
        self._log.warning("energy counter fell back", uuid=gpu.uuid)
        # A counter may begin anew without a load of the driver: what that was asked for may come all the same.
        return gpu.forgotten_by_driver().changed(coming=gpu.coming, forgotten_ns=gpu.forgotten_ns)

    def note_failure(self, gpu: GpuState, error: GpuError) -> None:
        self._state.counts.errors[(error.operation, error.code)] += 1
        if gpu.failure is None or gpu.failure.reason != error.reason:
            self._log.error("GPU failed", uuid=gpu.uuid, error=str(error))

    def find_drift(self) -> None:
        """Note what somebody else has changed: limits, and locks that do not hold any more; both are set anew."""
        now_ns, counts = self._clock_ns(), self._state.counts
        for gpu in list(self._state.gpus.values()):
            if gpu.ours_milliwatts is not None and gpu.requested_milliwatts not in (None, gpu.ours_milliwatts):
                message = decisions.drift_of(gpu)
                if message is not None:
                    counts.drift_corrections += 1
                    self._note_drift(gpu, LimitDrift(now_ns, message))
                    gpu = gpu.changed(before_drift_milliwatts=gpu.ours_milliwatts)
                gpu = gpu.changed(ours_milliwatts=None)
            message = decisions.lock_drift_of(gpu, now_ns)
            if message is not None and decisions.lock_worth_setting(gpu, now_ns):
                counts.lock_drift_corrections += 1
                self._note_drift(gpu, LimitDrift(now_ns, message, "ClocksChanged"))
                gpu = gpu.changed(lock=None, lock_drifts=gpu.lock_drifts + 1)
            elif message is None and gpu.lock_drifts and now_ns - gpu.lock_set_ns >= decisions.LOCK_SETTLE_NS:
                gpu = gpu.changed(lock_drifts=0)
            self._state.put(gpu)

    def _note_drift(self, gpu: GpuState, drift: LimitDrift) -> None:
        last = self._state.last_drift
        if last is None or last.found_ns != drift.found_ns:  # of several in one round, the first is shown
            self._state.last_drift = drift
        self._log.warning("drift", uuid=gpu.uuid, detail=drift.message)

    def take_reported(self, gpus: Sequence[FoundGpu]) -> None:
        """Take in which GPUs were reported before; what comes later is this agent's own."""
        if self._reported is None:
            self._reported = [gpu for gpu in gpus if in_a_status(gpu)]
            self.remember_new_gpus()
            self._state.knows_reported = True

    def note_gaps(self, acknowledged: Iterable[Acknowledgement] | None) -> None:
        """Compare the journal, once, with what was acknowledged before (None: not known yet). Where that was in this boot
        and under a later grant, the journal is not that agent's, or came back as it was once: what was asked for since is
        not known."""
        version, boot_id = self._version_before, self._state.session.boot_id
        if version is None:
            return
        noted = self._journal.state.version_before is not None
        if acknowledged is None:
            if not noted:  # the next agent's journal has the grant that comes now
                self._note(VersionBefore(version))
            return
        self._version_before = None
        older = any(each.boot_id == boot_id and each.version > version for each in acknowledged)
        self._note(*([Gaps(there=True)] if older else ()), *([VersionBefore(None)] if noted else ()))
        if not older:
            return
        self._log.warning("the journal is older than what was acknowledged")
        for gpu in list(self._state.gpus.values()):
            self._state.put(gpu.forgotten(self._clock_ns()))

    def remember_new_gpus(self, *, unread_too: bool = False) -> None:
        """Save how each GPU was found, once, before anything is set. Once there is a driver, no fewer count than were
        reported before."""
        if self._access.error is None:
            forgotten = self._journal.state.forgotten  # by somebody who was told of it, a status perhaps not yet
            reported = [gpu for gpu in self._reported or () if gpu.uuid not in forgotten]
            for gpu in not_listed(self._state.gpus, reported):
                self._log.error("GPU not listed", uuid=gpu.uuid)
                self._state.put(gpu.forgotten(self._clock_ns()) if self._journal.state.gaps else gpu)
            for gpu in may_be_larger(self._state.gpus, reported):
                self._state.put(gpu)
        new = newly_found(self._state.gpus, self._journal.state.gpus, unread_too=unread_too)
        self._note(*new)

    def _close_gaps(self) -> None:
        """Once nothing may come any more of what the journal does not know, the next agent need not wait for it."""
        now_ns, gpus = self._clock_ns(), self._state.gpus.values()
        if self._journal.state.gaps and self._access.gpus and all(gpu.gap_is_over(now_ns) for gpu in gpus):
            self._note(Gaps(there=False))

    def _note(self, *records: Record) -> None:
        if not records:
            return
        with contextlib.suppress(JournalError):
            self._journal.note(*records)
