"""The enforcer: reads every GPU, decides by `decisions`, sets limits and reads them back, and acknowledges the grant.

`accept`, `renew_lease` and `set_pods` go in, `state` comes out; it knows GPUs, a journal, a clock and pods by name,
nothing of Kubernetes, and so can run in a container that has the privilege and no credential. One `step` is one round of
the control loop; who calls it, how often, and what wakes it is the caller's. All state is touched from one thread.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from flyball_api.gpu_node import Acknowledgement
from flyball_api.grant import Grant
from flyball_api.reading import InvalidObject
from flyball_kube.process.logs import get_logger

from flyball_agent.clock import NANOSECONDS, boottime_ns
from flyball_agent.enforce import decisions
from flyball_agent.enforce.acknowledger import Acknowledger
from flyball_agent.enforce.adoption import find_gpus, found_anew
from flyball_agent.enforce.brakes import (
    Followed,
    Seen,
    braked,
    everything_lowered,
    lowest_targets,
    under_new_grant,
    with_acknowledged,
    with_seen,
)
from flyball_agent.enforce.clock_wishes import ClockWishes
from flyball_agent.enforce.decisions import Mode, Target
from flyball_agent.enforce.driver_access import DriverAccess
from flyball_agent.enforce.first_cut import FirstCut
from flyball_agent.enforce.gpu_state import ClockLock, GpuState, Holders, PodName
from flyball_agent.enforce.grant import ANOTHER, accepted_grant, refusal_of
from flyball_agent.enforce.journal import Journal, JournalError
from flyball_agent.enforce.reader import GpuReader
from flyball_agent.enforce.records import Accepted, BrakesFollowed, DriverSeen, Forgotten, FoundGpu, GrantLease
from flyball_agent.enforce.setter import GpuSetter
from flyball_agent.enforce.state import state_at_start
from flyball_agent.gpu.calls import DriverCalls
from flyball_agent.gpu.gpu import GpuDriver, GpuError

# A limit that settles later than this, or a setter that lied this long, is reported instead of waited for.
SETTLE_SECONDS = 2.0


class Enforcer:
    """Holds one node's GPUs to the operator's grant.

    `clock_ns` is CLOCK_BOOTTIME, or a simulation's clock. Nothing is set before the first `step` that has a grant; one that
    only observes (`observe`) takes none, and goes by none that its journal remembers.
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
        observe: bool = False,
    ) -> None:
        self._observe = observe
        self._wishes = ClockWishes()
        self._asked: set[str] = set()  # the GPUs whose clock was asked for since it was set last
        self._log = get_logger(__name__, node=node)
        self._journal = journal
        self._clock_ns = clock_ns
        self._access = DriverAccess(driver, journal, calls)
        gpus = find_gpus(
            self._access.gpus.values(),
            journal.state,
            resumed=self._access.session.resumed,
            asked_at_ns=clock_ns() if self._access.session.may_be_resumed else None,
            unopened=driver.unopened,
        )
        self.state = state_at_start(journal, self._access.session.session, gpus, observe=observe)
        if journal.unreadable_records:
            self._log.warning(
                "journal could not be read whole", path=str(journal.path), lines=journal.unreadable_records
            )
        self._reader = GpuReader(self.state, self._access, journal, clock_ns, node)
        self._setter = GpuSetter(
            self.state,
            self._access,
            journal,
            self._reader,
            still_decided=self._still_decided,
            clock_ns=clock_ns,
            node=node,
        )
        self._first_cut = FirstCut(
            self.state, self._reader, self._setter, targets=self._limit_targets, still_decided=self._still_decided
        )
        self._acknowledger = Acknowledger(
            self.state,
            journal,
            still_decided=self._still_decided,
            clock_ns=clock_ns,
            wall_seconds=wall_seconds,
            settle_seconds=settle_seconds,
            node=node,
        )
        self._note_driver()

    # ---- what comes in -------------------------------------------------------------------------------------------

    def accept(
        self, spec: object, *, seen_ns: int | None = None, acknowledged: Sequence[Acknowledgement] | None = ()
    ) -> bool:
        """Take in a GPUNode.spec, if it is sound and newer than the last one; True where limits may have to change.

        The version is written now and synced before anything is set or acknowledged by it; where the disk fails, the
        grant still holds for everything that lowers power. Its lease runs from `seen_ns`, when it was seen at the API
        server (None: now). `acknowledged` is what had been acknowledged for the node when this agent began, by the API
        server: of the same grant limits come to no more than that. None: nobody knows yet, and nothing is raised nor
        acknowledged.
        """
        if self._observe:
            return False
        state = self.state
        try:
            grant = accepted_grant(spec)
        except InvalidObject as error:
            if state.invalid_grant != str(error):
                self._log.error("grant refused", reason="Invalid", error=str(error))
            state.invalid_grant = str(error)
            return False
        state.invalid_grant = state.stale_grant = None
        refusal = refusal_of(grant, state.grant)
        if refusal is not None:
            # Another one of that version: the GPUNode was made anew, and its versions began anew. The next one will do.
            state.confirmed = state.confirmed and refusal.reason != ANOTHER
            state.counts.refused_grants += 1
            state.stale_grant = refusal.words
            self._log.warning("grant refused", reason=refusal.reason, detail=refusal.words)
            return False
        known, newer = acknowledged is not None, state.grant is None or grant.version > state.grant.version
        newly_confirmed, state.confirmed = known and not state.confirmed, known or state.confirmed
        self._reader.note_gaps(acknowledged)
        followed = state.brakes
        if newer:
            state.grant, state.lease = grant, self._lease_from(seen_ns, grant)
            with contextlib.suppress(JournalError):
                self._journal.note(Accepted.of(grant, state.lease))
            followed = under_new_grant(followed, grant, state.brakes_seen)
            version, bound = grant.version, grant.bound.limit_milliwatts
            self._log.info("grant accepted", **version._asdict(), bound_milliwatts=bound, jobs=len(grant.jobs))
        held = with_acknowledged(followed, grant, acknowledged or ())
        if held != followed:
            self._log.warning("held to what was acknowledged under brakes that are forgotten")
        if newer or held != followed:
            self._follow(grant, held)
            return True
        return newly_confirmed

    def take_brakes(self, seen: Seen) -> bool:
        """Take in every PowerBrake as it is now; True where limits may have to change. No grant is raised by any."""
        state = self.state
        first, state.brakes_seen = state.brakes_seen is None, seen
        if state.grant is None:
            return False
        followed = with_seen(state.brakes, state.grant, seen)
        if followed == state.brakes:
            return first  # what had to wait until they were seen may be raised now
        self._follow(state.grant, followed)
        for brake in followed.values():
            self._log.info(
                "brake",
                cap=brake.cap,
                epoch=brake.epoch,
                sequence=brake.sequence,
                kept_millionths=brake.kept_millionths,
                emergency=brake.everything,
            )
        return True

    def _follow(self, grant: Grant, followed: Followed) -> None:
        """Hold to the grant as these brakes leave it. They are written now, and synced before they are acknowledged."""
        state = self.state
        if followed != state.brakes:
            with contextlib.suppress(JournalError):
                self._journal.note(BrakesFollowed(tuple(followed.values())))
        state.brakes, state.in_force = followed, braked(grant, followed)
        for gpu in state.gpus.values():
            if gpu.above_since_ns is not None:
                state.put(gpu.changed(above_since_ns=None, stays_above=False))

    def renew_lease(self, epoch: int, *, seen_ns: int | None = None) -> bool:
        """The operator that leads under `epoch` was seen alive, at `seen_ns` or now; True where that brings the grant back.

        Only grants of that epoch are renewed: a new leader may hold other caps than the one that wrote an older grant,
        and its being alive says nothing for what it has not granted itself.
        """
        state = self.state
        if state.grant is None or state.grant.epoch != epoch:
            return False
        lease = self._lease_from(seen_ns, state.grant)
        if state.lease is not None and state.lease.boot_id == lease.boot_id:
            lease = max(
                state.lease, lease, key=lambda one: one.deadline_ns
            )  # a sight that comes late takes nothing away
        state.lease = lease
        state.counts.lease_renewals += 1
        # Not synced: the deadline is void after a reboot, and a mere crash of this process loses nothing written.
        with contextlib.suppress(JournalError):
            self._journal.note(state.lease)
        return state.mode.lapsed

    def _lease_from(self, seen_ns: int | None, grant: Grant) -> GrantLease:
        """A lease that runs from what was seen, never from later than now."""
        now_ns = self._clock_ns()
        start_ns = now_ns if seen_ns is None else min(seen_ns, now_ns)
        return GrantLease(self._access.driver.boot_id, start_ns + grant.lease_seconds * NANOSECONDS)

    def set_pods(self, pods_of: Mapping[str, tuple[PodName, ...]], *, all_resolved: bool = True) -> bool:
        """Take in which pods hold which GPUs (by UUID); True where that changed.

        Where not `all_resolved`, some pod holds a GPU and it is not known which: perhaps any that no pod is known to hold.
        """
        changed = False
        for uuid, gpu in self.state.gpus.items():
            pods = pods_of.get(uuid, ())
            holders = Holders.KNOWN if pods or all_resolved else Holders.UNRESOLVED
            if (pods, holders) != (gpu.pods, gpu.holders):
                self.state.put(gpu.changed(pods=pods, holders=holders))
                changed = True
        return changed

    def take_reported(self, gpus: Sequence[FoundGpu]) -> None:
        """Take in, once, which GPUs the node's status had as this agent began: there are as many, whatever is listed."""
        self._reader.take_reported(gpus)

    def ask_clock(self, pod: PodName, max_megahertz: int | None, seconds: float, gpu: str = "") -> None:
        """A pod wants its GPUs, or the one of this UUID, no faster than this for so long; None takes its wish back.

        The next round sets it, or `set_asked_clocks` before that. What is not the pod's own GPU is passed over.
        """
        if gpu and (gpu not in self.state.gpus or pod not in self.state.gpus[gpu].pods):
            return
        now_ns = self._clock_ns()
        self._wishes.ask((pod, gpu), max_megahertz, now_ns + round(seconds * 1e9), now_ns)
        self._asked.update({gpu} if gpu else {uuid for uuid, held in self.state.gpus.items() if pod in held.pods})

    def set_asked_clocks(self) -> Coroutine[Any, Any, None]:
        """Begin to set the clocks that were asked for, at once, for computations wait for them; no limit changes."""
        return self._set_clocks_after(self._setter.set_locks(self._take_asked()))

    def _take_asked(self) -> Mapping[str, ClockLock | None]:
        asked, self._asked = self._asked, set()
        if (grant := self.state.in_force) is None:
            return {}
        own = [gpu for uuid in asked if (gpu := self.state.gpus.get(uuid)) is not None]
        return decisions.locks_of_jobs(grant, own, self._wishes.current(self._clock_ns()))

    async def _set_clocks_after(self, begun: Coroutine[Any, Any, None]) -> None:
        await begun
        while self._asked:
            await self._setter.set_locks(self._take_asked())

    def _targets(self, grant: Grant, gpus: Sequence[GpuState]) -> dict[str, Target]:
        return decisions.targets_of(grant, gpus, self.state.mode, self._wishes.current(self._clock_ns()))

    # ---- what is known -------------------------------------------------------------------------------------------

    @property
    def driver_error(self) -> GpuError | None:
        """Why there is no driver; None where there is one."""
        return self._access.error

    def close_driver(self) -> None:
        """Release the driver; limits and locks stay as they are."""
        self._access.driver.close()

    def driver_record(self) -> DriverSeen:
        """The driver's session and the GPUs' energy counters in it, for the journal."""
        return self._access.session.record()

    def swap_driver(self, driver: GpuDriver) -> GpuDriver:
        """Go on with another driver, or none (`AbsentDriver`), in a new driver session; between two rounds only.

        What the GPUs hold is not known until they are read again: they count at their largest limits. Gives the driver
        of before, which is still to be closed.
        """
        state = self.state
        self._reader.remember_new_gpus(unread_too=True)
        before = self._access.swap(driver)
        state.session = self._access.session.session
        gpus = found_anew(driver, self._journal.state, state.gpus, self._clock_ns())
        state.gpus.clear()
        state.gpus.update(gpus)
        self._note_driver()
        return before

    def _note_driver(self) -> None:
        error = self._access.error
        self.state.driver_version = self._access.driver.version
        self.state.driver_error = None if error is None else str(error)
        self.state.driver_absent_reason = "" if error is None else error.reason
        self.state.driver_broken = None
        for gpu in self._gpus():
            if error is not None:
                gpu = gpu.failed(error)
                self.state.put(gpu)
            if gpu.failure is not None:
                self._log.error("GPU not governed", uuid=gpu.uuid, index=gpu.index, error=gpu.failure.message)
        self._reader.remember_new_gpus()

    def _gpus(self) -> list[GpuState]:
        return list(self.state.gpus.values())

    # ---- one round -----------------------------------------------------------------------------------------------

    async def step(self) -> None:
        """One round: cut by what is new; read, decide, cut, lock, raise within the grant, judge; each set is read back."""
        state = self.state
        self._set_mode()
        refused = await self._first_cut.make()
        await self._reader.read()
        grant = state.in_force
        self._set_mode()
        if not self._observe:  # what somebody else sets is theirs to set
            self._reader.find_drift()
        targets: dict[str, Target] = {}
        if grant is not None:
            targets = self._limit_targets(grant)
            self._set_purposes(targets.values())
            cuts = [change for change in decisions.limit_cuts(self._gpus(), targets) if change not in refused]
            await self._setter.set_limits(grant, cuts, "lower")
            # Of the wishes as they are now: what was asked for since is set already.
            newest = self._targets(grant, self._gpus())
            await self._setter.set_locks({uuid: target.lock for uuid, target in newest.items()})
            await self._setter.set_persistence()
            await self._journal.tidy()
            if self._still_decided(grant) and state.may_raise_at(self._clock_ns()) and not state.mode.lapsed:
                raises = decisions.limit_raises(self._gpus(), targets, grant.bound.limit_milliwatts)
                await self._setter.set_limits(grant, raises, "raise")
        else:
            await self._journal.tidy()
        if state.in_force is grant:
            await self._acknowledger.judge(targets)
        state.journal_error = self._journal.degraded

    def _limit_targets(self, grant: Grant) -> dict[str, Target]:
        targets = self._targets(grant, self._gpus())
        return lowest_targets(targets, self._gpus()) if everything_lowered(self.state.brakes) else targets

    def _still_decided(self, grant: Grant) -> bool:
        """Whether the round still goes by this: a newer grant, a brake or the lease's end may come while it waits."""
        return self.state.in_force is grant and self._mode_now() is self.state.mode

    def _mode_now(self) -> Mode:
        return Mode.OBSERVING if self._observe else self.state.mode_at(self._access.driver.boot_id, self._clock_ns())

    def _set_mode(self) -> None:
        was, self.state.mode = self.state.mode, self._mode_now()
        if self.state.mode is not was:
            if self.state.mode.lapsed and not was.lapsed:
                self.state.counts.lease_expiries += 1
            self._log.info("mode", mode=str(self.state.mode), was=str(was))

    def _set_purposes(self, targets: Iterable[Target]) -> None:
        for target in targets:
            gpu = self.state.gpus[target.uuid]
            if gpu.purpose is not target.purpose:
                self.state.put(gpu.changed(purpose=target.purpose))

    def forget(self, uuids: Iterable[str]) -> None:
        """Stop counting GPUs that were taken out; one that the driver still lists is kept, also where it does not open."""
        gone = [uuid for uuid in uuids if (gpu := self.state.gpus.get(uuid)) is not None and gpu.index < 0]
        for uuid in gone:
            del self.state.gpus[uuid]
            self._log.warning("GPU forgotten", uuid=uuid)
        if gone:
            with contextlib.suppress(JournalError):
                self._journal.note(Forgotten(tuple(gone)))

    def close(self) -> None:
        """Stop; every limit and lock stays as it is."""
        self._journal.close()
