"""The planner loop: one level-triggered cycle over the whole cluster, run whenever something changed.

Everything a cycle decides follows from what the API server says (and from a few timers), so a cycle that fails, an
operator that dies and one that takes over all lead to the same end. Nothing is remembered that could not be lost.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from flyball_kube.logs import decision as log_decision
from flyball_kube.session import ApiSession

from flyball_operator.acknowledgements import Acknowledgements
from flyball_operator.background import Background
from flyball_operator.cap_ledger import CapLedger, CapReading, node_rules
from flyball_operator.events import EventRecorder
from flyball_operator.execute import Executor
from flyball_operator.grants import CapBudget, NodePower, admit, squeeze
from flyball_operator.hold import Grant
from flyball_operator.incarnations import Action
from flyball_operator.job_keeper import JobKeeper, KeptJob
from flyball_operator.learning import Learner
from flyball_operator.lease import LeaderLease, LeadershipLost
from flyball_operator.metrics import OperatorMetrics
from flyball_operator.picture import NodePicture, picture_nodes
from flyball_operator.planning import PlanFailed, PlanWorker
from flyball_operator.reign import Reign
from flyball_operator.reporting import Reporter
from flyball_operator.settings import Settings
from flyball_operator.snapshot import build_snapshot, planning_key
from flyball_operator.wanting import NodeRules, wanted_grants
from flyball_operator.world import Watches, World, flatten

logger = logging.getLogger(__name__)

# Cycles take at most this share of a core, however fast the changes come: what answers them needs the rest.
MAX_CYCLE_SHARE = 0.2
LONGEST_REST_SECONDS = 0.25
# A plan that fits a cap which just fell is worth waiting for this long: two waves of grants take longer than one.
PLAN_GRACE_SECONDS = 0.3
# For how long statuses of jobs wait while a cap is brought down.
CUT_YIELD_SECONDS = 3.0
# Grants under way at a time; a new leader adopts a thousand nodes over several cycles.
MAX_GRANTS_AT_ONCE = 200


def _most_urgent(grants: Mapping[str, Grant], power: Mapping[str, NodePower], room: int) -> dict[str, Grant]:
    """At most `room` of the grants, the deepest cuts first."""

    def rise(node: str) -> int:
        before = power[node].grant
        return grants[node].hold.limit_milliwatts - (0 if before is None else before.hold.limit_milliwatts)

    return {node: grants[node] for node in sorted(grants, key=lambda node: (rise(node), node))[:room]}


def _keep() -> None:
    """Leave a grant of unknown fate as it is."""


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
    ) -> None:
        self._session = session
        self._lease = lease
        self._settings = settings
        self._metrics = metrics
        self._events = events
        self._monotonic = monotonic
        self._wall_clock = wall_clock
        self._wake = asyncio.Event()
        self._watches = Watches(session, self._wake.set)
        self._worker = PlanWorker(settings.plan_deadline_seconds)
        self._learner = learner or Learner(session, on_change=self._wake.set)
        self.cycles = 0
        self._cycle_began_at: float | None = None

    def seconds_since_cycle(self) -> float | None:
        """Seconds since the last cycle began; None while another operator leads."""
        return None if self._cycle_began_at is None else self._monotonic() - self._cycle_began_at

    def wake(self) -> None:
        """Ask for a cycle; any number of calls before the next one make one."""
        self._wake.set()

    def highest_epoch(self) -> int:
        """The highest epoch under which any node was ever commanded, as far as the local copy knows."""
        return max((view.grant.epoch for view in self._watches.gpu_nodes if view.grant is not None), default=0)

    async def wait_synced(self) -> None:
        await self._watches.wait_synced()

    async def run(self) -> None:
        """Watch, and lead whenever the lease is held, until cancelled."""
        self._worker.start()
        tasks = [asyncio.create_task(watch) for watch in self._watches.runs()]
        try:
            await self._watches.wait_synced()
            logger.info("synced: %s", {name: round(age, 3) for name, age in self._watches.ages().items()})
            while True:
                epoch = await self._lease.wait_leading()
                self._metrics.set_leader(True)
                try:
                    await self._reign(epoch)
                except LeadershipLost as error:
                    logger.warning("standing down: %s", error)
                finally:
                    self._metrics.set_leader(False)
                    self._cycle_began_at = None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._worker.stop()

    async def _reign(self, epoch: int) -> None:
        settings = self._settings
        executor = Executor(
            self._session,
            lambda: self._lease.check(epoch),
            self._watches.absorb,
            self._metrics.count_action,
            settings.training_socket_directory,
        )
        ledger = CapLedger()
        reporter = Reporter(executor, ledger, settings.status_interval_seconds, self._events)
        owed = Acknowledgements(settings.acknowledge_timeout_seconds)
        reign = Reign(epoch, executor, ledger, reporter, owed, Background(self._wake.set))
        keeper = JobKeeper(self._settings, self._learner)
        await self._learner.load()  # at each accession: another leader may have learned since
        try:
            while True:
                self._lease.check(epoch)
                self._wake.clear()
                self._cycle_began_at = self._monotonic()
                started = time.thread_time()
                try:
                    pause = await self._cycle(reign, keeper)
                except LeadershipLost:
                    raise
                except Exception:
                    # One bad object must not end the loop that holds the cap; what was granted stands meanwhile.
                    logger.exception("a cycle failed")
                    pause = 1.0
                self.cycles += 1
                # Work, not waiting: an answer that came late is no reason to be late with the next cycle.
                rest = (time.thread_time() - started) * (1 / MAX_CYCLE_SHARE - 1)
                await self._rest(pause, max(self._settings.coalesce_seconds, min(rest, LONGEST_REST_SECONDS)))
        finally:
            if reign.planning is not None:
                reign.planning.cancel()
            await reign.background.stop()

    async def _rest(self, longest: float, shortest: float) -> None:
        """Sleep until woken, `longest` at most, `shortest` at least (which also gathers what comes in bursts)."""
        try:
            await asyncio.wait_for(self._wake.wait(), timeout=max(shortest, longest))
        except TimeoutError:
            return
        await asyncio.sleep(shortest)

    async def _cycle(self, reign: Reign, keeper: JobKeeper) -> float:
        """One cycle; returns the seconds after which the next is due even if nothing changes."""
        settings = self._settings
        now, monotonic = self._wall_clock(), self._monotonic()
        # 1. Look: what stands, and what every node may draw at worst.
        world = self._watches.world()
        # A finished plan is taken before anything is derived from the one in force: the next snapshot must start from it.
        self._take_plan(reign, keeper, world)
        pictures = self._pictures(reign, world, monotonic)
        readings, problems = reign.ledger.read(world.caps, pictures, now, monotonic)
        rules = node_rules(readings)
        # A cap that cannot be read must not count as no cap, nor a node's grant as none: until then, nothing is raised.
        all_read = not problems and not world.unread
        self._learner.observe(world, pictures)
        jobs = keeper.keep(world, pictures, reign.decisions, now, monotonic)
        # 2. Tell the world of a higher cap before using it, and of a lower one before anything else.
        outcomes = reign.cap_outcomes
        await reign.reporter.publish_caps(readings, problems, outcomes, now, monotonic, moved_only=True)
        # 3. Plan, in another process, if what plans depend on has changed.
        if all_read:
            self._start_plan(reign, jobs, pictures, rules, [item.planning_budget() for item in readings], now)
        # 4. Power: what each node should be granted, squeezed under every cap, and what of it may be sent now.
        waiting = self._send_grants(
            reign, world, pictures, rules, [item.budget() for item in readings], raises_allowed=all_read
        )
        # 5. Pods: one safe step for each job.
        self._start_job_actions(reign, keeper, jobs, pictures)
        # 6. Say how it stands.
        await reign.reporter.publish_caps(readings, problems, outcomes, now, monotonic, waiting=waiting)
        if not self._yields_to_a_cut(reign, readings, monotonic):
            self._start_statuses(reign, keeper, world, jobs, now, monotonic)
            await self._learner.write(reign.executor, monotonic)
        reign.reporter.announce_nodes(pictures)
        self._observe(reign, pictures, jobs, readings)
        changes = [reading.effective.next_change_seconds for reading in readings]
        pauses = [settings.replan_seconds, settings.status_interval_seconds, *changes]
        if reign.planning is not None:
            pauses.append(PLAN_GRACE_SECONDS)
        return max(0.05, min(pauses))

    def _yields_to_a_cut(self, reign: Reign, readings: list[CapReading], monotonic: float) -> bool:
        """Whether a cap is on its way down, so that the API server's time belongs to the agents' acknowledgements.

        Job statuses and profiles wait for that, though not for longer than a moment: a cap may stay unmet.
        """
        if all(reading.enforced or reading.floor_watts > reading.effective.watts for reading in readings):
            reign.cutting_since = None
        elif reign.cutting_since is None:
            reign.cutting_since = monotonic
        yields = reign.cutting_since is not None and monotonic - reign.cutting_since < CUT_YIELD_SECONDS
        (reign.calm.clear if yields else reign.calm.set)()
        return yields

    def _pictures(self, reign: Reign, world: World, monotonic: float) -> dict[str, NodePicture]:
        """Every node's picture; one that has owed an acknowledgement for too long counts as unresponsive."""
        silent = reign.acknowledgements.silent(world.gpu_nodes, monotonic)
        pictures = picture_nodes(world.nodes, world.gpu_nodes, world.pods, silent, self._settings.gpu_models)
        for name, (replaced, hold) in list(reign.attempted.items()):
            seen = world.gpu_nodes.get(name)
            if seen is None or seen.resource_version != replaced:
                del reign.attempted[name]
            else:
                picture = pictures[name]
                power = replace(picture.power, worst=picture.power.worst | hold, unsettled=True)
                pictures[name] = replace(picture, power=power)
        return pictures

    def _start_plan(
        self,
        reign: Reign,
        jobs: Mapping[str, KeptJob],
        pictures: Mapping[str, NodePicture],
        rules: Mapping[str, NodeRules],
        budgets: list[CapBudget],
        now: datetime,
    ) -> None:
        if reign.planning is not None:
            return
        snapshot = build_snapshot(
            pictures=pictures,
            rules=rules,
            budgets=budgets,
            jobs=[(kept.view, kept.memory) for kept in jobs.values()],
            models_of=lambda job: self._learner.models_for(job, pictures),
            now=now,
            restart_seconds=self._settings.restart_seconds,
            guard_fraction=self._settings.guard_fraction,
            consolidation=self._settings.consolidation,
        )
        key = planning_key(snapshot)
        due = self._monotonic() - reign.planned_at >= self._settings.replan_seconds
        if key == reign.planned_key and not due:
            return
        reign.planning_for = key
        reign.planning_since = self._monotonic()
        reign.planning = asyncio.create_task(self._worker.plan(snapshot, self._settings.policy))
        reign.planning.add_done_callback(lambda task: self._wake.set())

    def _take_plan(self, reign: Reign, keeper: JobKeeper, world: World) -> None:
        """Take over a plan that has become ready; a failed one leaves the old plan standing."""
        task = reign.planning
        if task is None or not task.done():
            return
        reign.planning = None
        reign.planned_at = self._monotonic()
        reign.planned_key = reign.planning_for
        try:
            plan = task.result()
        except PlanFailed as error:
            self._metrics.count_action("plan-failed")
            logger.error("no new plan: %s", error)
            return
        took = self._monotonic() - reign.planning_since
        self._metrics.observe_plan(took)
        if not reign.decisions:
            log_decision(
                logger,
                "first plan",
                epoch=reign.epoch,
                jobs=len(plan.decisions),
                nodes=len(world.gpu_nodes),
                seconds=round(took, 3),
            )
        before = reign.decisions
        reign.decisions = {decision.uid: decision for decision in plan.decisions if decision.uid in world.jobs}
        reign.cap_outcomes = {outcome.name: outcome for outcome in plan.caps}
        for uid, decision in reign.decisions.items():
            old = before.get(uid)
            if old is None or old.allocation != decision.allocation or old.admission != decision.admission:
                allocation = decision.allocation
                log_decision(
                    logger,
                    "plan",
                    job=world.jobs[uid].key,
                    epoch=reign.epoch,
                    gpus=0 if allocation is None else allocation.gpus,
                    nodes=[] if allocation is None else [name for name, _ in allocation.nodes],
                    clock_megahertz=None if allocation is None else allocation.clock_megahertz,
                    power_limit_watts=None if allocation is None else round(allocation.power_limit_watts),
                    reason=str(decision.admission),
                    why=decision.explanation,
                )
        keeper.plan_taken(reign.decisions)

    def _send_grants(
        self,
        reign: Reign,
        world: World,
        pictures: Mapping[str, NodePicture],
        rules: Mapping[str, NodeRules],
        budgets: list[CapBudget],
        raises_allowed: bool,
    ) -> int:
        """Send what may be sent; returns how many nodes owe an acknowledgement or wait for a raise."""
        wanted = wanted_grants(
            pictures,
            reign.decisions,
            flatten(world.incarnations),
            world.pods,
            rules,
            self._settings.grant_lease_seconds,
            self._settings.guard_fraction,
        )
        power = {name: picture.power for name, picture in pictures.items()}
        fixed = frozenset(name for name, picture in pictures.items() if not picture.commandable)
        planned, wanted = wanted, squeeze(wanted, power, budgets, fixed)
        # Counted from when the plan in force did not fit any more, not from each new plan's start: while a cap rises, or
        # measurements come in, a plan is always near.
        if wanted == planned:
            reign.squeezing_since = None
        elif reign.squeezing_since is None:
            reign.squeezing_since = self._monotonic()
        squeezed_for = 0.0 if reign.squeezing_since is None else self._monotonic() - reign.squeezing_since
        if wanted != planned and reign.planning is not None and squeezed_for < PLAN_GRACE_SECONDS:
            return len(reign.acknowledgements.owing)
        reign.wanted = {(job.pod_name, job.uid): job for item in wanted for job in item.jobs}
        # A leader before us could still write where its epoch stands: nothing is raised until ours stands everywhere.
        adopted = all(item.grant is None or item.grant.epoch == reign.epoch for item in world.gpu_nodes.values())
        fresh = world.age_seconds <= self._settings.stale_after_seconds
        admission = admit(wanted, power, budgets, reign.epoch, raises_allowed and adopted and fresh)
        # The end of each write wakes the loop: what is under way or finds no room now is decided on again then.
        free = {node: grant for node, grant in admission.grants.items() if not reign.background.busy(("grant", node))}
        # Only grants count: a thousand statuses in their queue must not keep a cut.
        under_way = sum(reign.background.busy(("grant", node)) for node in pictures)
        sending = _most_urgent(free, power, max(0, MAX_GRANTS_AT_ONCE - under_way))
        for node, grant in sending.items():
            log_decision(
                logger,
                "grant",
                node=node,
                epoch=grant.epoch,
                generation=grant.generation,
                grant_watts=grant.hold.limit_milliwatts / 1000,
                worst_hold_watts=grant.worst.limit_milliwatts / 1000,
                reason="waiting for freed watts" if node in admission.waiting else "as planned",
            )
        # That the server says no to a grant tells nothing of one before it that was sent and never answered.
        settled = {node for node in sending if node not in reign.attempted}
        for node, grant in sending.items():
            view = pictures[node].gpu_node
            if view is not None:
                reign.attempted[node] = (view.resource_version, grant.worst)
            refused = partial(reign.attempted.pop, node, None) if node in settled else _keep
            reign.background.start(("grant", node), reign.executor.write_grant(pictures[node], grant, refused))
        for name, picture in pictures.items():
            if picture.node is None or not picture.node.startup_taint or not picture.acknowledged:
                continue
            if not reign.background.busy(("taint", name)):
                reign.background.start(("taint", name), reign.executor.remove_startup_taint(picture))
        return len(reign.acknowledgements.owing | admission.grants.keys() | set(admission.waiting))

    def _start_job_actions(
        self, reign: Reign, keeper: JobKeeper, jobs: Mapping[str, KeptJob], pictures: Mapping[str, NodePicture]
    ) -> None:
        hostnames = {name: picture.node.hostname for name, picture in pictures.items() if picture.node is not None}
        granted = {
            (job.pod_name, job.uid, job.power_limit_milliwatts)
            for view in self._watches.gpu_nodes
            if view.grant is not None
            for job in view.grant.jobs
        }
        actions = keeper.actions(jobs, reign.decisions, reign.wanted, granted)
        of_job: dict[str, list[tuple[KeptJob, Action]]] = {}
        for kept, action in actions:
            of_job.setdefault(kept.view.uid, []).append((kept, action))

        async def take(steps: list[tuple[KeptJob, Action]]) -> bool:
            results = [await keeper.act(reign.executor, kept, action, hostnames) for kept, action in steps]
            return all(results)

        for uid, steps in of_job.items():
            if not reign.background.busy(("job", uid)):
                reign.background.start(("job", uid), take(steps))

    def _start_statuses(
        self,
        reign: Reign,
        keeper: JobKeeper,
        world: World,
        jobs: Mapping[str, KeptJob],
        now: datetime,
        monotonic: float,
    ) -> None:
        async def in_turn(write: Coroutine[Any, Any, bool]) -> bool:
            try:
                async with reign.status_slots:
                    await reign.calm.wait()  # those that queued up before a cap fell wait for it too
                    return await write
            finally:
                write.close()

        background = reign.background
        idle = {uid: kept for uid, kept in jobs.items() if not background.busy(("status", uid))}
        for kept, status in keeper.statuses(idle, reign.decisions, reign.epoch, now, monotonic):
            background.start(("status", kept.view.uid), in_turn(reign.reporter.write_job(kept, status)))
        for job, status in keeper.late_energy(world):
            if not background.busy(("status", job.uid)):
                background.start(("status", job.uid), in_turn(reign.executor.write_job_status(job, status)))
        for job in keeper.expired(self._watches.jobs, now):
            if not background.busy(("expiry", job.uid)):
                background.start(("expiry", job.uid), in_turn(reign.executor.delete_job(job)))

    def _observe(
        self,
        reign: Reign,
        pictures: Mapping[str, NodePicture],
        jobs: Mapping[str, KeptJob],
        readings: list[CapReading],
    ) -> None:
        self._metrics.observe_convergence(len(reign.acknowledgements.owing))
        self._metrics.observe_caps(readings, reign.cap_outcomes)
        self._metrics.observe_jobs(jobs.values())
        self._metrics.observe_nodes(pictures.values())
        self._metrics.observe_ages(self._watches.ages())
