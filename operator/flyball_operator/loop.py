"""The operator's loop: while this process leads, the whole cluster is read and decided on anew in each cycle.

A cycle runs whenever something changed, and at intervals; what a cycle does is in `term.leader_term`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime

from flyball_kube.process.logs import fields_for_all, get_logger
from flyball_kube.session import ApiSession

from flyball_operator.cluster.epochs import Epochs
from flyball_operator.cluster.watches import Watches
from flyball_operator.learning.learner import Learner
from flyball_operator.planning.worker import PlanWorker
from flyball_operator.report.events import EventRecorder
from flyball_operator.report.metrics import OperatorMetrics
from flyball_operator.settings import Settings
from flyball_operator.term.leader_term import LeaderTerm
from flyball_operator.term.pace import CyclePace, rest_seconds
from flyball_operator.term.parts import Lasting, new_term
from flyball_operator.writes.lease import STORE_PUT_BACK, LeaderLease, LeadershipLost

logger = get_logger(__name__)

RETRY_SECONDS = 1.0
# As a rule what is known of jobs is read in less; caps are held within two seconds of whatever has happened.
LOADING_SECONDS = 1.0


class Operator:
    """Runs cycles while its lease is held; `run` returns only when cancelled.

    What it is made of can be given: the watches and the leader terms as functions that make them, the planner's process.
    """

    def __init__(
        self,
        session: ApiSession,
        lease: LeaderLease,
        settings: Settings,
        metrics: OperatorMetrics,
        *,
        learner: Learner | None = None,
        events: EventRecorder | None = None,
        worker: PlanWorker | None = None,
        make_watches: Callable[..., Watches] = Watches,
        make_term: Callable[[int, Lasting, Callable[[], None]], LeaderTerm] = new_term,
        monotonic: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        work_seconds: Callable[[], float] = time.thread_time,
    ) -> None:
        self._lease = lease
        self._settings = settings
        self._metrics = metrics
        self._monotonic = monotonic
        self._wall_clock = wall_clock
        self._work_seconds = work_seconds
        self._epochs = Epochs(monotonic)
        self._pace = pace = CyclePace(settings.coalesce_seconds)
        self._watches = make_watches(
            session,
            pace.wake,
            settings.gpu_resources,
            observe_jobs=settings.observe_jobs,
            wake_at_once=pace.wake_at_once,
            wake_soon=pace.wake_soon,
            on_rewound=self._begin_anew,
        )
        self._worker = worker or PlanWorker(settings.plan_deadline_seconds)
        self._learner = learner or Learner(session, on_change=pace.wake)
        self._make_term = make_term
        self._lasting = Lasting(
            session,
            settings,
            self._watches,
            self._worker,
            self._learner,
            pace,
            metrics,
            events,
            settings.meter_endpoints,  # read once: a later change of the file waits for a restart
            monotonic,
            wall_clock,
        )
        self.cycles = 0
        self._cycle_began_at: float | None = None  # the last one in which power was decided on
        self._failing = False
        self._reads_anew = False

    def seconds_since_cycle(self) -> float | None:
        """Seconds since the last cycle in which power was decided on began, or since this process leads; None while another
        one leads.

        They go on where this operator gave its lease up because its cycles fail: then only a restart may help.
        """
        return None if self._cycle_began_at is None else self._monotonic() - self._cycle_began_at

    def copy_ages_seconds(self) -> dict[str, float]:
        """Seconds since each local copy was last proven fresh, by plural name; infinite before its first list."""
        return self._watches.ages()

    def wake(self) -> None:
        """Ask for a cycle; any number of calls before the next one make one."""
        self._pace.wake()

    def take_in_epochs(self) -> int:
        """The highest epoch under which any node was ever commanded, as far as the local copy knows.

        After the API server's store was restored from a backup only the agents know of the epochs since.
        """
        return self._epochs.take_in(self._watches.written_epoch(), self._watches.acknowledged_epochs())

    async def wait_synced(self) -> None:
        await self._watches.wait_synced()

    async def run(self) -> None:
        """Watch, and lead whenever the lease is held, until cancelled."""
        self._worker.start()
        tasks = [asyncio.create_task(watch) for watch in self._watches.runs()]
        try:
            await self._watches.wait_synced()
            logger.info("synced", age_seconds={name: round(age, 3) for name, age in self._watches.ages().items()})
            while True:
                epoch = await self._lease.wait_leading()
                self._metrics.set_leader(True)
                try:
                    await self._lead(epoch)
                except LeadershipLost as error:
                    logger.warning("standing down", reason=str(error))
                finally:
                    self._metrics.set_leader(False)
                    if not self._failing:
                        self._cycle_began_at = None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._worker.stop()

    async def _lead(self, epoch: int) -> None:
        """Run cycles under one epoch; raises LeadershipLost at its end."""
        await self._read_anew(epoch)
        # At each accession: another leader may have learned since. Caps wait for that no longer than they can.
        loading = asyncio.create_task(self._learner.load())
        loading.add_done_callback(lambda _: self._pace.wake())
        try:
            await asyncio.wait([loading], timeout=LOADING_SECONDS)
            await self._cycles(epoch)
        finally:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)

    async def _cycles(self, epoch: int) -> None:
        """One cycle after the other; raises LeadershipLost at the end of the epoch."""
        term = self._make_term(epoch, self._lasting, lambda: self._lease.check(epoch))
        try:
            while True:
                if self.take_in_epochs() > epoch:
                    self._lease.give_up("a node was commanded under a higher epoch, and would refuse ours")
                self._lease.check(epoch)
                self._pace.begin()
                started = self._work_seconds()
                pause = self._cycle(term)
                self.cycles += 1
                # Work, not waiting: an answer that came late is no reason to be late with the next cycle.
                work = self._work_seconds() - started
                self._metrics.observe_cycle(work)
                if term.only_braked:
                    await asyncio.sleep(self._settings.coalesce_seconds)
                else:
                    await self._pace.rest(pause, rest_seconds(work, term.soonest_change_seconds))
        finally:
            await term.close()

    def _begin_anew(self) -> None:
        """The API server's store was put back to a backup: what it says of agents can be of a past that they have left.

        No cap is called enforced by that: under the next epoch each agent has to acknowledge first what it holds to. The
        Lease would tell, too, but only when it is renewed. Who reads everything anew has decided nothing yet.
        """
        if not self._reads_anew:
            self._lease.give_up(STORE_PUT_BACK)

    async def _read_anew(self, epoch: int) -> None:
        """Have every copy that power depends on listed anew: a standby's watches may have been behind for a minute."""
        self._reads_anew = True
        listed = asyncio.ensure_future(self._watches.refresh())
        try:
            while not listed.done():
                self._lease.check(epoch)
                await asyncio.wait([listed], timeout=RETRY_SECONDS)
        finally:
            self._reads_anew = False
            listed.cancel()

    def _cycle(self, term: LeaderTerm) -> float:
        """One cycle; returns the seconds after which the next is due. Raises LeadershipLost; nothing else ends the loop."""
        began_at = self._monotonic()
        if self._cycle_began_at is None:
            self._cycle_began_at = began_at
        try:
            with fields_for_all(cycle=self.cycles):  # on the lines of its writes too, which go on after it
                pause = term.cycle(self._wall_clock(), began_at)
        except LeadershipLost:
            raise
        except Exception:
            # One bad object must not end the loop that holds the cap; what was granted stands meanwhile.
            logger.exception("a cycle failed")
            self._metrics.count_cycle_failure()
            # Another leader would meet the same jobs, and hold the caps no better.
            self._failing = not term.power_decided
            if term.power_decided:
                self._cycle_began_at = began_at
            elif began_at - self._cycle_began_at > self._settings.leader_lease_seconds:
                self._lease.give_up("its cycles fail", 2.0 * self._settings.leader_lease_seconds)
            return RETRY_SECONDS
        if not term.only_braked:  # or one that brakes after each failure would hide that they fail
            self._cycle_began_at, self._failing = began_at, False
        return pause
