"""The enforcer: reads every GPU, decides by `decisions`, sets limits and reads them back, and acknowledges the grant.

`accept`, `renew_lease` and `set_pods` go in, `state` comes out; it knows GPUs, a journal, a clock and pods by name,
nothing of Kubernetes, and so can run in a container that has the privilege and no credential. One `step` is one round of
the control loop; who calls it, how often, and what wakes it is the caller's. All state is touched from one task.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial

from flyball_api.gpu_node import Acknowledgement
from flyball_api.grant import Grant
from flyball_api.reading import InvalidObject
from flyball_api.times import whole_second
from flyball_kube.logs import get_logger

from flyball_agent.clock import boottime_ns
from flyball_agent.enforce import decisions
from flyball_agent.enforce.adoption import find_gpus
from flyball_agent.enforce.decisions import Mode, SetLimit, Target
from flyball_agent.enforce.driver_session import DriverSessionTracker
from flyball_agent.enforce.gpu_state import GpuState, Holders, PodName
from flyball_agent.enforce.grant import accepted_grant, supersedes
from flyball_agent.enforce.journal import Journal, JournalError
from flyball_agent.enforce.records import (
    Accepted,
    DriverSeen,
    Forgotten,
    FoundGpu,
    GrantLease,
    Intent,
    Intents,
    found_gpus,
)
from flyball_agent.enforce.state import Drift, EnforcerState
from flyball_agent.gpu.calls import DriverCalls, calls_for
from flyball_agent.gpu.gpu import Gpu, GpuDriver, GpuError, GpuReading, NotSupported

NANOSECONDS = 1_000_000_000
# A limit that settles later than this, or a setter that lied this long, is reported instead of waited for.
SETTLE_SECONDS = 2.0
# After so many rounds in which every GPU failed the way a restart may mend, the process should end.
ROUNDS_BEFORE_EXIT = 10


class Enforcer:
    """Holds one node's GPUs to the operator's grant.

    `clock_ns` is CLOCK_BOOTTIME, or a simulation's clock. Nothing is set before the first `step` that has a grant.
    """

    def __init__(
        self,
        node: str,
        driver: GpuDriver,
        journal: Journal,
        *,
        clock_ns: Callable[[], int] = boottime_ns,
        wall_seconds: Callable[[], float] = time.time,
        calls: DriverCalls | None = None,
        settle_seconds: float = SETTLE_SECONDS,
    ) -> None:
        self._log = get_logger(__name__, node=node)
        self._driver = driver
        self._journal = journal
        self._clock_ns = clock_ns
        self._wall_seconds = wall_seconds
        self._calls = calls or calls_for(driver)
        self._settle_ns = round(settle_seconds * NANOSECONDS)
        self._read_ns = 0
        self._failed_rounds = 0
        self._asked_to_persist: set[str] = set()
        self._forbidden: str | None = None
        self._forbidden_rounds = 0
        self._session = DriverSessionTracker(driver, journal)
        self._drivers: dict[str, Gpu] = {gpu.uuid: gpu for gpu in driver.gpus()}
        self.state = EnforcerState(
            session=self._session.session,
            gpus=find_gpus(
                self._drivers.values(),
                journal.state,
                session_resumed=self._session.resumed,
                unopened=driver.unopened,
            ),
            grant=journal.state.grant,
            lease=journal.state.lease,
            journal_error=journal.degraded,
        )
        for gpu in self.state.gpus.values():
            if gpu.failure is not None:
                self._log.error("GPU not governed", uuid=gpu.uuid, index=gpu.index, error=gpu.failure.message)

    # ---- what comes in -------------------------------------------------------------------------------------------

    def accept(self, spec: object) -> bool:
        """Take in a GPUNode.spec, if it is sound and newer than the last one; True where limits may have to change.

        The version is written now and synced before anything is set or acknowledged by it; where the disk fails, the
        grant still holds for everything that lowers power.
        """
        state = self.state
        try:
            grant = accepted_grant(spec)
        except InvalidObject as error:
            if state.invalid_grant != str(error):
                self._log.error("grant refused", reason="Invalid", error=str(error))
            state.invalid_grant = str(error)
            return False
        state.invalid_grant = state.stale_grant = None
        accepted = None if state.grant is None else state.grant.version
        if grant.version == accepted:
            newly_confirmed, state.confirmed = not state.confirmed, True
            return newly_confirmed
        if not supersedes(grant.version, accepted):
            state.counts.refused_grants += 1
            new, old = tuple(grant.version), tuple(accepted or ())
            state.stale_grant = f"grant {new} is below {old}, which was accepted before"
            self._log.warning("grant refused", reason="Stale", version=new, accepted=old)
            return False
        state.grant, state.confirmed = grant, True
        state.lease = GrantLease(self._driver.boot_id, self._clock_ns() + grant.lease_seconds * NANOSECONDS)
        with contextlib.suppress(JournalError):
            self._journal.note(Accepted.of(grant, state.lease))
        for gpu in state.gpus.values():
            if gpu.above_since_ns is not None:
                self._put(gpu.changed(above_since_ns=None, stays_above=False))
        self._log.info(
            "grant accepted",
            epoch=grant.epoch,
            generation=grant.generation,
            bound_milliwatts=grant.bound.limit_milliwatts,
            jobs=len(grant.jobs),
        )
        return True

    def renew_lease(self, epoch: int) -> bool:
        """The operator that leads under `epoch` was just seen alive; True where that brings the grant back.

        Only grants of that epoch are renewed: a new leader may hold other caps than the one that wrote an older grant,
        and its being alive says nothing for what it has not granted itself.
        """
        state = self.state
        if state.grant is None or state.grant.epoch != epoch:
            return False
        state.lease = GrantLease(self._driver.boot_id, self._clock_ns() + state.grant.lease_seconds * NANOSECONDS)
        state.counts.lease_renewals += 1
        # Not synced: the deadline is void after a reboot, and a mere crash of this process loses nothing written.
        with contextlib.suppress(JournalError):
            self._journal.note(state.lease)
        return state.mode is Mode.FAILSAFE

    def set_pods(self, pods_of: Mapping[str, tuple[PodName, ...]], *, all_resolved: bool = True) -> bool:
        """Take in which pods hold which GPUs (by UUID); True where that changed.

        Where not `all_resolved`, some pod holds a GPU and it is not known which: perhaps any that no pod is known to hold.
        """
        changed = False
        for uuid, gpu in self.state.gpus.items():
            pods = pods_of.get(uuid, ())
            holders = Holders.KNOWN if pods or all_resolved else Holders.UNRESOLVED
            if (pods, holders) != (gpu.pods, gpu.holders):
                self._put(gpu.changed(pods=pods, holders=holders))
                changed = True
        return changed

    # ---- what is known -------------------------------------------------------------------------------------------

    def lease_remaining_seconds(self) -> float:
        """0 where there is no lease or it has run out."""
        lease = self.state.lease
        if lease is None or lease.boot_id != self._driver.boot_id:
            return 0.0
        return max(0.0, (lease.deadline_ns - self._clock_ns()) / NANOSECONDS)

    def driver_record(self) -> DriverSeen:
        """The driver's session and the GPUs' energy counters in it, for the journal."""
        return self._session.record()

    def _gpus(self) -> list[GpuState]:
        return list(self.state.gpus.values())

    def _put(self, gpu: GpuState) -> None:
        """What is known of a GPU now. Take it from `state` anew after each await: its pods may have changed meanwhile."""
        self.state.gpus[gpu.uuid] = gpu

    # ---- one round -----------------------------------------------------------------------------------------------

    async def step(self) -> None:
        """One round: read, decide, cut and read back, lock, raise within the grant and read back, judge."""
        state = self.state
        await self._read_gpus()
        grant = state.grant
        self._set_mode()
        self._find_drift()
        targets: dict[str, Target] = {}
        if grant is not None:
            targets = decisions.targets_of(grant, self._gpus(), state.mode)
            self._set_purposes(targets.values())
            await self._set_limits(grant, decisions.limit_cuts(self._gpus(), targets), "lower")
            await self._set_locks(targets)
            await self._set_persistence()
            await self._journal.tidy()
            if self._still_decided(grant) and state.confirmed and state.mode is not Mode.FAILSAFE:
                raises = decisions.limit_raises(self._gpus(), targets, grant.bound.limit_milliwatts)
                await self._set_limits(grant, raises, "raise")
        else:
            await self._journal.tidy()
        if state.grant is grant:
            await self._judge(targets)
        state.journal_error = self._journal.degraded

    def _still_decided(self, grant: Grant) -> bool:
        """Whether the round still goes by this: a newer grant or the lease's end may come while driver or disk are busy."""
        return self.state.grant is grant and self._mode_now() is self.state.mode

    def _mode_now(self) -> Mode:
        lease = self.state.lease
        valid = lease is not None and lease.valid(self._driver.boot_id, self._clock_ns())
        return decisions.mode_of(self.state.grant, self.state.gpus.values(), valid)

    def _set_mode(self) -> None:
        was, self.state.mode = self.state.mode, self._mode_now()
        if self.state.mode is not was:
            if self.state.mode is Mode.FAILSAFE:
                self.state.counts.lease_expiries += 1
            self._log.info("mode", mode=str(self.state.mode), was=str(was))

    def _set_purposes(self, targets: Iterable[Target]) -> None:
        for target in targets:
            gpu = self.state.gpus[target.uuid]
            if gpu.purpose is not target.purpose:
                self._put(gpu.changed(purpose=target.purpose))

    async def _read_gpus(self) -> None:
        results = await self._calls.each("read", [(uuid, driver.read) for uuid, driver in self._drivers.items()])
        if self._session.reloaded():
            was, now = self.state.session.driver_load, self._session.session.driver_load
            self._log.warning("driver reloaded", was=was, now=now)
            for gpu in self._gpus():
                self._put(gpu.forgotten_by_driver())
        now_ns = self._clock_ns()
        elapsed_seconds = (now_ns - self._read_ns) / NANOSECONDS if self._read_ns else 0.0
        self._read_ns = now_ns
        restart_may_help = bool(results)
        last_failure = ""
        for uuid, result in zip(self._drivers, results, strict=True):
            gpu = self.state.gpus[uuid]
            if isinstance(result, GpuError):
                self._note_failure(gpu, result)
                self._put(gpu.failed(result))
                restart_may_help = restart_may_help and result.restart_may_help
                last_failure = str(result)
                continue
            restart_may_help = False
            for error in result.failed:
                self.state.counts.errors[(error.operation, error.code)] += 1
            if gpu.failure is not None:
                self._log.info("GPU is back", uuid=uuid)
            self._put(self._with_counter(gpu.read(result, elapsed_seconds), result))
        self.state.session = self._session.session
        self._failed_rounds = self._failed_rounds + 1 if restart_may_help else 0
        if self._failed_rounds >= ROUNDS_BEFORE_EXIT:
            self.state.must_exit = f"every GPU failed in {self._failed_rounds} rounds, last: {last_failure}"
        self._remember_new_gpus()

    def _with_counter(self, gpu: GpuState, reading: GpuReading) -> GpuState:
        counter = reading.energy_millijoules
        if counter is None or not self._session.fell_back(gpu.uuid, counter):
            return gpu
        self.state.counts.counter_resets += 1
        self._log.warning("energy counter fell back", uuid=gpu.uuid)
        return gpu.forgotten_by_driver()

    def _note_failure(self, gpu: GpuState, error: GpuError) -> None:
        self.state.counts.errors[(error.operation, error.code)] += 1
        if gpu.failure is None or gpu.failure.reason != error.reason:
            self._log.error("GPU failed", uuid=gpu.uuid, error=str(error))

    def _find_drift(self) -> None:
        now_ns = self._clock_ns()
        for gpu in self._gpus():
            if gpu.ours_milliwatts is None or gpu.requested_milliwatts in (None, gpu.ours_milliwatts):
                continue
            message = decisions.drift_of(gpu)
            if message is not None:
                last = self.state.last_drift
                if last is None or last.found_ns != now_ns:  # of several in one round, the first is shown
                    self.state.last_drift = Drift(now_ns, message)
                self.state.counts.drift_corrections += 1
                self._log.warning("drift", uuid=gpu.uuid, detail=message)
            self._put(gpu.changed(ours_milliwatts=None))

    async def _set_limits(self, grant: Grant, wanted: Sequence[SetLimit], kind: str) -> None:
        if not wanted:
            return
        sets = decisions.worth_asking(wanted, self.state.gpus, self._clock_ns())
        if not sets:
            self._note_forbidden(self._forbidden)  # none was asked again: it is still so
            return
        intents = tuple(Intent(change.uuid, change.old_milliwatts, change.new_milliwatts) for change in sets)
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
        drivers = [self._drivers[change.uuid] for change in sets]
        done = await self._calls.each(
            f"set power limit ({kind})",
            [
                (driver.uuid, partial(driver.set_power_limit_milliwatts, change.new_milliwatts))
                for driver, change in zip(drivers, sets, strict=True)
            ],
        )
        back = await self._calls.each(
            "read power limit", [(driver.uuid, driver.read_power_limit) for driver in drivers]
        )
        counts = self.state.counts
        for change, outcome, read_back in zip(sets, done, back, strict=True):
            gpu = self.state.gpus[change.uuid]
            if outcome is not None:
                counts.errors[(outcome.operation, outcome.code)] += 1
            if isinstance(read_back, GpuError):
                self._note_failure(gpu, read_back)
            gpu = gpu.after_set(change.new_milliwatts, outcome, read_back, self._clock_ns())
            self._put(gpu)
            if gpu.limit is not None and (gpu.refusal is None or gpu.refusal.times == 1):
                self._log_limit(grant, change, gpu, kind)
        counts.applied[kind] += len(sets)
        counts.applied_seconds[kind] += (self._clock_ns() - started_ns) / NANOSECONDS
        forbidden = all(outcome is not None and outcome.fatal for outcome in done)
        self._note_forbidden(str(done[0]) if forbidden else None)

    def _note_forbidden(self, error: str | None) -> None:
        """Note whether every GPU that was to be set lately refused for lack of permission, and with which error."""
        self._forbidden = error
        self._forbidden_rounds = 0 if error is None else self._forbidden_rounds + 1
        if self._forbidden_rounds >= ROUNDS_BEFORE_EXIT:
            self.state.must_exit = f"no GPU may be set: {error}"

    def _log_limit(self, grant: Grant, change: SetLimit, gpu: GpuState, kind: str) -> None:
        self._log.info(
            "limit",
            uuid=gpu.uuid,
            change=kind,
            old_milliwatts=change.old_milliwatts,
            new_milliwatts=change.new_milliwatts,
            read_back_milliwatts=gpu.requested_milliwatts,
            epoch=grant.epoch,
            generation=grant.generation,
            reason="failsafe" if self.state.mode is Mode.FAILSAFE else str(gpu.purpose),
        )

    async def _set_persistence(self) -> None:
        """Ask once in this process that the driver keep limits when its last client, perhaps this agent, ends."""
        off = [
            self._drivers[gpu.uuid]
            for gpu in self._gpus()
            if gpu.reading is not None and gpu.reading.persistence_mode is False
        ]
        drivers = [driver for driver in off if driver.uuid not in self._asked_to_persist]
        if not drivers:
            return
        self._asked_to_persist.update(driver.uuid for driver in drivers)
        calls = [(driver.uuid, driver.enable_persistence_mode) for driver in drivers]
        for driver, error in zip(drivers, await self._calls.each("enable persistence mode", calls), strict=True):
            if error is not None:
                self.state.counts.errors[(error.operation, error.code)] += 1
            self._log.info("persistence mode", uuid=driver.uuid, error=None if error is None else str(error))

    async def _set_locks(self, targets: Mapping[str, Target]) -> None:
        sets = decisions.clock_locks(self._gpus(), targets)
        calls: list[tuple[str, Callable[[], None]]] = []
        for change in sets:
            driver, lock = self._drivers[change.uuid], change.lock
            if lock.is_range:
                calls.append(
                    (change.uuid, partial(driver.set_locked_clocks_megahertz, lock.min_megahertz, lock.max_megahertz))
                )
            else:
                calls.append((change.uuid, driver.reset_locked_clocks))
        for change, error in zip(sets, await self._calls.each("lock clocks", calls), strict=True):
            gpu = self.state.gpus[change.uuid]
            if error is None:
                self._put(gpu.changed(lock=change.lock, lock_refused=None))
                continue
            self.state.counts.errors[(error.operation, error.code)] += 1
            # A GPU that cannot be locked is asked once, never again for this range.
            lock_now = change.lock if isinstance(error, NotSupported) else gpu.lock
            self._put(gpu.changed(lock=lock_now, lock_refused=str(error)))

    async def _judge(self, targets: Mapping[str, Target]) -> None:
        """Acknowledge what holds; keep looking soon while a limit settles."""
        state = self.state
        judgement = decisions.judge(self._gpus(), targets, self._clock_ns(), self._settle_ns)
        for gpu in judgement.gpus:
            self._put(gpu)
        state.settling = judgement.settling
        grant = state.grant
        if grant is None or not any(gpu.usable for gpu in judgement.gpus):
            return
        version, session, last = grant.version, state.session, state.acknowledged
        total = state.held_milliwatts
        if not decisions.acknowledgement_due(last, version, session, total, judgement.may_acknowledge):
            return
        if last is None or (last.version, last.session) != (version, session):
            try:
                await self._journal.sync()
            except JournalError:
                return  # a restart would not know what is promised here
            if not self._still_decided(grant):
                return
        state.acknowledged = Acknowledgement(
            epoch=version.epoch,
            generation=version.generation,
            limits_milliwatts=total,
            boot_id=session.boot_id,
            driver_load=session.driver_load,
            time=whole_second(datetime.fromtimestamp(self._wall_seconds(), UTC)),
        )
        self._log.info(
            "acknowledged",
            epoch=version.epoch,
            generation=version.generation,
            limits_milliwatts=total,
            mode=str(state.mode),
        )

    def _remember_new_gpus(self) -> None:
        """Save how each GPU was found, once, before anything is set."""
        new = [
            FoundGpu(
                gpu.uuid,
                gpu.model,
                gpu.limits.min_milliwatts,
                gpu.limits.max_milliwatts,
                gpu.limits.default_milliwatts,
                gpu.limit.requested_milliwatts,
            )
            for gpu in self.state.gpus.values()
            if gpu.limit is not None and gpu.uuid not in self._journal.state.gpus
        ]
        if new:
            with contextlib.suppress(JournalError):
                self._journal.note(found_gpus(new))

    def forget(self, uuids: Iterable[str]) -> None:
        """Count GPUs no more that were here once and are gone for good; one that the driver shows is not forgotten."""
        gone = [uuid for uuid in uuids if uuid in self.state.gpus and uuid not in self._drivers]
        for uuid in gone:
            del self.state.gpus[uuid]
            self._log.warning("GPU forgotten", uuid=uuid)
        if gone:
            with contextlib.suppress(JournalError):
                self._journal.note(Forgotten(tuple(gone)))

    def close(self) -> bool:
        """Stop; every limit and lock stays as it is. True where no driver call is under way any more."""
        idle = self._calls.close()
        self._journal.close()
        return idle
