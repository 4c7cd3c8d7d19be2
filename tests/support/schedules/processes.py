"""The processes of the cluster in memory: the operator and the agents as they are, without what decides nothing of power.

Of the operator the planner, the job controller, the learner and the metrics are left out; the loop, the leader's term, its
Lease, the informers, the executor, the reporter and the power controller are the operator's own. Of an agent nothing is
left out but the kubelet and the sockets: rounds, enforcer, journal on a disk that can fail, status channel, lease watch.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast

from flyball_agent.cluster.brake_watch import BrakeWatch
from flyball_agent.cluster.gpu_node_channel import GpuNodeChannel
from flyball_agent.cluster.lease_watch import LeaseWatch
from flyball_agent.enforce.driver_access import AbsentDriver
from flyball_agent.enforce.journal import Disk, Journal
from flyball_agent.govern.governor import AgentFailed
from flyball_agent.gpu.gpu import GpuDriver, GpuError
from flyball_agent.pods.resources import PodDevices
from flyball_agent.process.single import SingleProcessAgent
from flyball_api.names import DEFAULT_NAMESPACE, LEADER_LEASE
from flyball_api.workloads import IncarnationView, PodView
from flyball_kube.resources import (
    CORE_EVENTS,
    ENERGY_AWARE_JOBS,
    ENERGY_QUOTAS,
    JOBS,
    PODS,
    RESOURCE_QUOTAS,
    SERVICES,
)
from flyball_kube.resources import NAMESPACES as ALL_NAMESPACES
from flyball_kube.session import ApiSession
from flyball_operator.cluster.state import ClusterState
from flyball_operator.cluster.watches import Watches
from flyball_operator.jobs.controller import JobController
from flyball_operator.jobs.runs.queue import NO_QUEUE, JobQueue
from flyball_operator.jobs.steps.step import JobsStep
from flyball_operator.learning.learner import Learner
from flyball_operator.loop import Operator
from flyball_operator.planning.plans import Plans
from flyball_operator.planning.worker import PlanWorker
from flyball_operator.power.cycle import PlanInForce
from flyball_operator.report.metrics import OperatorMetrics
from flyball_operator.settings import Settings
from flyball_operator.term.leader_term import LeaderTerm
from flyball_operator.term.parts import Lasting, new_term
from flyball_operator.writes.lease import LeaderLease
from flyball_planner.models.gpu import GpuModel
from flyball_planner.snapshot import JobDecision
from flyball_simulated_gpu.virtual import VirtualNode

from tests.support.agent_doubles import Pods
from tests.support.operator_objects import A100, NOW
from tests.support.power_cluster import NAMESPACES, gpu_model
from tests.support.schedules.network import Link


# Every time constant about a tenth of its default: twenty seconds of a schedule have what production has in three minutes.
class _Settings(Settings):
    """With what is known of the GPUs that there are."""

    @property
    def gpu_models(self) -> Mapping[str, GpuModel]:
        return {A100: gpu_model()}


SETTINGS = _Settings(
    grant_lease_seconds=6,
    leader_lease_seconds=3,
    leader_renew_seconds=1.0,
    acknowledge_timeout_seconds=1.5,
    report_timeout_seconds=6.0,
    stale_after_seconds=8.0,
    status_interval_seconds=1.0,
    replan_seconds=3.0,
    coalesce_seconds=0.02,
)
# An acknowledgement comes after the status that is on its way. Where agents that are late have measurements due sooner than
# the last ones arrive, more grants are sent before an answer than the tests of lateness allow.
AGENT_STATUS_SECONDS = 3.5
DISK_SECONDS, RETRY_SECONDS = 0.001, 0.25
TICK_SECONDS = 1.0


# --- the operator ------------------------------------------------------------------------------------------------------


@dataclass
class Intended:
    """What the plan wants, and the pods that there are: the cluster's users and its planner, as one."""

    decisions: dict[str, JobDecision]
    pods: list[PodView]
    incarnations: dict[str, list[IncarnationView]]


class _PowerWatches(Watches):
    """The watches that power depends on; who runs what is as `intended` says."""

    def __init__(
        self, session: ApiSession, wake: Callable[[], None], intended: Intended, on_rewound: Callable[[], None]
    ) -> None:
        super().__init__(session, wake, ("nvidia.com/gpu",), on_rewound=on_rewound)
        self._intended = intended
        for nobody in (
            ENERGY_AWARE_JOBS,
            PODS,
            JOBS,
            SERVICES,
            CORE_EVENTS,
            RESOURCE_QUOTAS,
            ENERGY_QUOTAS,
            ALL_NAMESPACES,
        ):
            del self._of[nobody]

    def cluster(self) -> ClusterState:
        intended = self._intended
        return replace(super().cluster(), pods=list(intended.pods), incarnations=dict(intended.incarnations))


class _NoJobs:
    def step(self, *_: object, **__: object) -> JobsStep:
        return JobsStep({}, (), (), (), (), ())

    def answered(self, *_: object) -> None:
        raise AssertionError("no job has an action")


class _NoLearner:
    loading = False

    async def load(self) -> None:
        pass

    def observe(self, *_: object) -> None:
        pass

    def due_writes(self, monotonic: float) -> Sequence[object]:
        return ()


# Until what is known of jobs has been read, and the first plan of a term is made.
FIRST_PLAN_SECONDS = 0.3


class _IntendedPlans:
    """The plan that is given; as any leader's, the first one of a term takes a moment."""

    def __init__(self, intended: Intended) -> None:
        self._intended = intended
        self._loop = asyncio.get_running_loop()
        self._first = self._loop.time() + FIRST_PLAN_SECONDS

    @property
    def in_force(self) -> PlanInForce:
        if self._loop.time() < self._first:
            return PlanInForce(made=False)
        return PlanInForce(dict(self._intended.decisions))

    @property
    def queue(self) -> JobQueue:
        return NO_QUEUE

    def start(self, *_: object) -> None:
        pass

    def take(self, *_: object) -> None:
        pass

    def next_seconds(self, *_: object) -> float:
        left = self._first - self._loop.time()
        return left if left > 0.0 else float("inf")

    def cancel(self) -> None:
        pass


class _NoWorker:
    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass


class _NoMetrics:
    def __getattr__(self, name: str) -> Callable[..., None]:
        return _uncounted


def _uncounted(*_: object, **__: object) -> None:
    pass


class PowerOperator(Operator):
    """The operator, deciding on power alone, by a plan that is given."""

    def __init__(
        self,
        session: ApiSession,
        lease: LeaderLease,
        intended: Intended,
        monotonic: Callable[[], float],
        wall_clock: Callable[[], datetime],
        settings: Settings = SETTINGS,
    ) -> None:
        super().__init__(
            session,
            lease,
            settings,
            cast(OperatorMetrics, _NoMetrics()),
            learner=cast(Learner, _NoLearner()),
            worker=cast(PlanWorker, _NoWorker()),
            make_watches=lambda session, wake, *_, on_rewound, **__: _PowerWatches(session, wake, intended, on_rewound),
            make_term=partial(_power_term, intended),
            monotonic=monotonic,
            wall_clock=wall_clock,
            work_seconds=lambda: 0.0,
        )


def _power_term(intended: Intended, epoch: int, lasting: Lasting, check: Callable[[], None]) -> LeaderTerm:
    term = new_term(epoch, lasting, check)
    term._jobs = cast(JobController, _NoJobs())
    term._plans = cast(Plans, _IntendedPlans(intended))
    return term


class OperatorProcess:
    """One operator process, from its start to its end."""

    def __init__(
        self,
        number: int,
        link: Link,
        intended: Intended,
        wall_offset: Callable[[], float],
        clock_rate: float = 1.0,
        settings: Settings = SETTINGS,
    ) -> None:
        self.link = link
        self.settings = settings
        loop = asyncio.get_running_loop()

        def since_boot() -> float:
            return loop.time() * clock_rate

        def wall_clock() -> datetime:
            return NOW + timedelta(seconds=loop.time() + wall_offset())

        session = cast(ApiSession, link.session(wall_clock=wall_clock))

        async def least_epoch() -> int:
            await self.operator.wait_synced()
            return self.operator.take_in_epochs()

        self.lease = LeaderLease(
            session,
            f"operator-{number}",
            DEFAULT_NAMESPACE,
            LEADER_LEASE,
            settings.leader_lease_seconds,
            settings.leader_renew_seconds,
            least_epoch=least_epoch,
            on_change=lambda epoch: self.operator.wake(),
            clock=since_boot,
            wall_clock=wall_clock,
        )
        self.operator = self.made(session, intended, since_boot, wall_clock)
        self._tasks = [asyncio.create_task(self.lease.run()), asyncio.create_task(self.operator.run())]

    def made(
        self,
        session: ApiSession,
        intended: Intended,
        monotonic: Callable[[], float],
        wall_clock: Callable[[], datetime],
    ) -> Operator:
        return PowerOperator(session, self.lease, intended, monotonic, wall_clock, self.settings)

    @property
    def leads(self) -> bool:
        return self.lease.epoch is not None

    async def kill(self) -> None:
        """SIGKILL; what it has sent is on its way."""
        await end(self._tasks)
        self.link.close()

    async def terminate(self) -> None:
        """SIGTERM: it hands its Lease over."""
        await end(self._tasks)
        await self.lease.release()
        self.link.close()


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel the tasks and wait until they have ended."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# --- an agent ------------------------------------------------------------------------------------------------------


class FailingDisk(Disk):
    """A disk that takes no writes while `sick`, and forgets at a power loss what was not synced."""

    def __init__(self) -> None:
        self.sick = False
        self._paths: dict[int, Path] = {}
        self._synced: dict[Path, bytes] = {}

    def open(self, path: Path, flags: int) -> int:
        self._fail()
        descriptor = super().open(path, flags)
        self._paths[descriptor] = path
        return descriptor

    def write(self, descriptor: int, data: bytes) -> int:
        self._fail()
        return super().write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        self._fail()
        path = self._paths[descriptor]
        self._synced[path] = path.read_bytes()

    def sync_folder(self, path: Path) -> None:
        self._fail()

    def rename(self, source: Path, target: Path) -> None:
        self._fail()
        source.replace(target)
        for descriptor, path in self._paths.items():
            if path == source:
                self._paths[descriptor] = target
        self._synced[target] = self._synced.pop(source, b"")

    def lose_power(self) -> None:
        """What the disk had not been told to keep is gone."""
        for path, content in self._synced.items():
            if path.exists():
                path.write_bytes(content)

    def forget(self) -> None:
        """Another disk is in its place."""
        self._synced.clear()

    def _fail(self) -> None:
        if self.sick:
            raise OSError(28, os.strerror(28))


class Disks:
    """Waits for disks, and for drivers to open, as `flyball_agent.off_loop.begin` does, without threads: while `hung`,
    nothing returns."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.hung = False
        self._loop = loop

    def begin(self, call: Callable[[], Any], name: str) -> Future[Any]:
        future: Future[Any] = Future()
        self._loop.call_later(DISK_SECONDS, self._work, call, future)
        return future

    def _work(self, call: Callable[[], Any], future: Future[Any]) -> None:
        if self.hung:
            self._loop.call_later(RETRY_SECONDS, self._work, call, future)
            return
        try:
            future.set_result(call())
        except (OSError, GpuError) as error:
            future.set_exception(error)


class AgentProcess:
    """One agent process, from its start to its end; `failed` is set where it ends by itself."""

    def __init__(
        self,
        node: VirtualNode,
        open_driver: Callable[[], GpuDriver],
        folder: Path,
        disk: FailingDisk,
        pods: Pods,
        link: Link,
        clock_ns: Callable[[], int],
        wall_seconds: Callable[[], float],
        on_failure: Callable[[], None],
    ) -> None:
        self.link = link
        session = cast(ApiSession, link.session())
        self._journal = Journal(folder, node.name, disk=disk)
        try:
            driver = open_driver()
        except GpuError as error:
            driver = AbsentDriver(error, node.boot_id)
        self.agent = SingleProcessAgent(
            node.name,
            driver,
            self._journal,
            pods,
            open_driver=open_driver,
            tick_seconds=TICK_SECONDS,
            clock_ns=clock_ns,
            wall_seconds=wall_seconds,
        )
        lease_watch = LeaseWatch(session, clock_ns=clock_ns)
        lease_watch.listen(self.agent.operator_seen)
        brake_watch = BrakeWatch(session)
        brake_watch.listen(self.agent.take_brakes)
        channel = GpuNodeChannel(session, self.agent, status_interval_seconds=AGENT_STATUS_SECONDS)

        async def rounds() -> None:
            try:
                await self.agent.run()
            except AgentFailed:
                on_failure()

        self._tasks = [
            asyncio.create_task(rounds()),
            asyncio.create_task(lease_watch.run()),
            asyncio.create_task(brake_watch.run()),
            asyncio.create_task(channel.run()),
        ]

    async def kill(self) -> None:
        """SIGKILL: nothing is written any more; the kernel lets go of the journal's lock."""
        await end(self._tasks)
        self._journal.close()
        self.link.close()


def pods_on(node: VirtualNode, held: Mapping[int, str]) -> list[PodDevices]:
    """What the kubelet says: which pod, by its name, holds which GPU, by its index."""
    return [
        PodDevices(NAMESPACES.get(name, "team"), name, f"pod-{name}", (node.devices[index].uuid,))
        for index, name in sorted(held.items())
    ]
