"""The operator's loop: while this process leads, the whole cluster is read and decided on anew in each cycle.

A cycle runs whenever something changed, and at intervals; what a cycle does is in `leader`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from datetime import UTC, datetime

from flyball_kube.logs import fields_for_all, get_logger
from flyball_kube.session import ApiSession

from flyball_operator.jobs.controller import JobController
from flyball_operator.jobs.starts.attempts import RestartRules
from flyball_operator.leader import LeaderTerm
from flyball_operator.learning.learner import Learner
from flyball_operator.learning.recurrences import Recurrences
from flyball_operator.meters.meters import Meters
from flyball_operator.planning.plans import Plans
from flyball_operator.planning.worker import PlanWorker
from flyball_operator.power.controller import PowerController, PowerSettings
from flyball_operator.power.observing import ObservingController
from flyball_operator.report.energy_reports import EnergyReports
from flyball_operator.report.events import EventRecorder
from flyball_operator.report.metrics import OperatorMetrics
from flyball_operator.report.reporter import Reporter
from flyball_operator.settings import OBSERVE, Settings
from flyball_operator.watches import Watches
from flyball_operator.writes.background import Background
from flyball_operator.writes.executor import Executor
from flyball_operator.writes.lease import LeaderLease, LeadershipLost

logger = get_logger(__name__)

# Cycles take at most this share of a core, however fast the changes come: what answers them needs the rest.
MAX_CYCLE_SHARE = 0.2
# But no more rest than this, and after long cycles twice what they took, at most the second: over ten thousand jobs a cycle
# takes half a second, and where the next one followed soon, what was decided did not get written. A cap that somebody
# changes is followed at once all the same. The agents' answers while limits are being lowered, what a cap changes by at its
# time, and a node that may draw more than was known wait for no more than the first: a claim that it makes untrue is to be
# withdrawn within two seconds.
LONGEST_REST_SECONDS, LONGEST_REST_OF_LONG_CYCLES_SECONDS = 0.25, 1.0
RETRY_SECONDS = 1.0
# A backup from which the API server is restored is at most so many changes of leaders old.
MAX_EPOCHS_LOST = 1000


class Operator:
    """Runs cycles while its lease is held; `run` returns only when cancelled."""

    def __init__(
        self,
        session: ApiSession,
        lease: LeaderLease,
        settings: Settings,
        metrics: OperatorMetrics,
        *,
        learner: Learner | None = None,
        events: EventRecorder | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        work_seconds: Callable[[], float] = time.thread_time,
    ) -> None:
        self._session = session
        self._lease = lease
        self._settings = settings
        self._metrics = metrics
        self._events = events
        self._monotonic = monotonic
        self._wall_clock = wall_clock
        self._work_seconds = work_seconds
        self._meter_endpoints = settings.meter_endpoints  # read once: a later change of the file waits for a restart
        self._wake = asyncio.Event()
        self._wake_at_once, self._wake_soon = asyncio.Event(), asyncio.Event()
        self._watches = Watches(
            session,
            self._wake.set,
            settings.gpu_resources,
            observe_jobs=settings.observe_jobs,
            wake_at_once=self.wake_at_once,
            wake_soon=self.wake_soon,
        )
        self._worker = PlanWorker(settings.plan_deadline_seconds)
        self._learner = learner or Learner(session, on_change=self._wake.set)
        self.cycles = 0
        self._cycle_began_at: float | None = None  # the last one in which power was decided on
        self._failing = False

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
        self._wake.set()

    def wake_at_once(self) -> None:
        """Ask for one that comes before the rest is over that a long one owes: a cap may have fallen."""
        self.wake_soon()
        self._wake_at_once.set()

    def wake_soon(self) -> None:
        """Ask for one that comes before the longer rest is over: a node may draw more than was known."""
        self._wake.set()
        self._wake_soon.set()

    def highest_epoch(self) -> int:
        """The highest epoch under which any node was ever commanded, as far as the local copy knows.

        After the API server's store was restored from a backup only the agents know of the epochs since. What they report
        counts within reason: epochs are 32-bit numbers in the Lease, and no single node may use them up.
        """
        gpu_nodes = list(self._watches.gpu_nodes)
        granted = max((item.grant.epoch for item in gpu_nodes if item.grant is not None), default=0)
        acknowledged = (item.acknowledged.epoch for item in gpu_nodes if item.acknowledged is not None)
        braked = max((item.spec.epoch for item in self._watches.brakes), default=0)
        return max(granted, braked, *(epoch for epoch in acknowledged if epoch <= granted + MAX_EPOCHS_LOST), 0)

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
        await self._learner.load()  # at each accession: another leader may have learned since
        term = self._term(epoch)
        try:
            while True:
                if self.highest_epoch() > epoch:
                    self._lease.give_up("a node was commanded under a higher epoch, and would refuse ours")
                self._lease.check(epoch)
                self._wake.clear()
                self._wake_at_once.clear()
                self._wake_soon.clear()
                began_at = self._monotonic()
                if self._cycle_began_at is None:
                    self._cycle_began_at = began_at
                started = self._work_seconds()
                try:
                    with fields_for_all(cycle=self.cycles):  # on the lines of its writes too, which go on after it
                        pause = term.cycle(self._wall_clock(), began_at)
                    self._cycle_began_at, self._failing = began_at, False
                except LeadershipLost:
                    raise
                except Exception:
                    # One bad object must not end the loop that holds the cap; what was granted stands meanwhile.
                    logger.exception("a cycle failed")
                    self._metrics.count_cycle_failure()
                    pause = RETRY_SECONDS
                    # Another leader would meet the same jobs, and hold the caps no better.
                    self._failing = not term.power_decided
                    if term.power_decided:
                        self._cycle_began_at = began_at
                    elif began_at - self._cycle_began_at > self._settings.leader_lease_seconds:
                        self._lease.give_up("its cycles fail", 2.0 * self._settings.leader_lease_seconds)
                self.cycles += 1
                # Work, not waiting: an answer that came late is no reason to be late with the next cycle.
                work = self._work_seconds() - started
                self._metrics.observe_cycle(work)
                await self._rest(pause, rest_seconds(work, term.soonest_change_seconds))
        finally:
            await term.close()

    async def _read_anew(self, epoch: int) -> None:
        """Have every copy that power depends on listed anew: a standby's watches may have been behind for a minute."""
        listed = asyncio.ensure_future(self._watches.refresh())
        try:
            while not listed.done():
                self._lease.check(epoch)
                await asyncio.wait([listed], timeout=RETRY_SECONDS)
        finally:
            listed.cancel()

    def _term(self, epoch: int) -> LeaderTerm:
        """A new leader term; nothing of an earlier one goes into it."""
        settings = self._settings

        def check() -> None:
            self._lease.check(epoch)

        executor = Executor(
            self._session.guarded(check),  # a request can wait for its turn for longer than the epoch lasts
            check,
            self._watches.absorb,
            self._metrics.count_action,
            settings.training_socket_directory,
            training_socket_resource=settings.training_socket_resource,
            gpu_resources=settings.gpu_resources,
            observe_write=self._metrics.observe_write,
            wall_clock=self._wall_clock,
        )
        observe = settings.mode == OBSERVE
        power = (ObservingController if observe else PowerController)(
            epoch,
            PowerSettings(
                grant_lease_seconds=settings.grant_lease_seconds,
                guard_fraction=settings.guard_fraction,
                stale_after_seconds=settings.stale_after_seconds,
                acknowledge_timeout_seconds=settings.acknowledge_timeout_seconds,
                report_timeout_seconds=settings.report_timeout_seconds,
                status_interval_seconds=settings.status_interval_seconds,
                gpu_models=settings.gpu_models,
                brakes=settings.brakes,
            ),
        )
        return LeaderTerm(
            epoch,
            settings,
            self._watches,
            power=power,
            jobs=JobController(
                settings.status_interval_seconds,
                self._learner,
                settings.gpu_resources,
                RestartRules(settings.first_pause_seconds, settings.startup_timeout_seconds),
                observe=observe,
            ),
            plans=Plans(self._worker, settings.policy, settings.replan_seconds, epoch, self._wake.set, self._metrics),
            learner=self._learner,
            recurrences=Recurrences(self._learner),
            executor=executor,
            reporter=Reporter(executor, self._events),
            metrics=self._metrics,
            background=Background(self._wake.set),
            meters=Meters(
                self._meter_endpoints,
                settings.meter_directory,
                self.wake_at_once,
                self._wall_clock,
                self._monotonic,
            ),
            wall_clock=self._wall_clock,
            energy_reports=EnergyReports(
                self._session, settings.energy_rates, settings.report_seconds, settings.report_days
            ),
        )

    async def _rest(self, longest: float, shortest: float) -> None:
        """Sleep until woken, `longest` at most, `shortest` at least; after the waking what comes in bursts is gathered."""
        loop = asyncio.get_running_loop()
        ends = ((self._wake_at_once, min(shortest, LONGEST_REST_SECONDS)), (self._wake_soon, shortest))
        began_at = loop.time() - self._settings.coalesce_seconds
        try:
            # Not `wait_for`, which before Python 3.12 forgets a cancellation that comes together with the waking.
            async with asyncio.timeout(max(shortest, longest)):
                await self._wake.wait()
        except TimeoutError:
            return
        # What has been idle for long enough owes no more rest.
        for end, rest in ends:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, began_at + rest - loop.time())):
                    await end.wait()
        await asyncio.sleep(self._settings.coalesce_seconds)


def rest_seconds(work: float, soonest_change_seconds: float) -> float:
    """For how long what answers comes before the next cycle, after one of so much work.

    `soonest_change_seconds`: when power is to be decided on again at the latest, 0 while limits are lowered.
    """
    most = min(LONGEST_REST_OF_LONG_CYCLES_SECONDS, 2 * work, soonest_change_seconds)
    return min(work * (1 / MAX_CYCLE_SHARE - 1), max(LONGEST_REST_SECONDS, most))
