"""One node's agent: the enforcer, the ledger and the observations under one control loop.

It needs a driver, a journal, and someone who knows which pod holds what; it knows nothing of Kubernetes. A process may
run many (the devcluster's agent host runs one for each simulated node): there is one task and no thread per agent, but
for drivers whose calls block.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from flyball_agent.attribution import Attribution, Sample
from flyball_agent.calls import DriverCalls
from flyball_agent.clock import boottime_ns
from flyball_agent.core import PodName
from flyball_agent.gpu import GpuDriver
from flyball_agent.journal import Journal, JournalError, energy_record
from flyball_agent.loop import NANOSECONDS, Enforcer
from flyball_agent.observations import Observations, PodHold, StepReport
from flyball_agent.pod_resources import PodDevices, PodResources, PodResourcesError
from flyball_agent.socket import TrainingSockets
from flyball_agent.status import StatusBuilder

logger = logging.getLogger(__name__)

TICK_SECONDS = 1.0
SETTLING_TICK_SECONDS = 0.05
JOURNAL_ENERGY_SECONDS = 10.0
ROUNDS_BETWEEN_REAPS = 5


class AgentFailed(Exception):
    """The agent cannot do its work in this process; a fresh one may."""


@dataclass(slots=True)
class LoopTally:
    """Counts of the control loop since this process started."""

    rounds: int = 0
    late_rounds: int = 0
    failed_rounds: int = 0
    reports: int = 0


class NodeAgent:
    """Governs one node's boards.

    `accept_spec`, `spec_gone` and `operator_seen` are how the operator's word comes in; `status` is how the agent's goes
    out, and `changed` is set whenever anything but a measurement is new. `pod_uid(namespace, name)` gives the UID of a
    pod that the source of pods names without one.
    """

    def __init__(
        self,
        node: str,
        driver: GpuDriver,
        journal: Journal,
        pod_resources: PodResources,
        *,
        tick_seconds: float = TICK_SECONDS,
        clock_ns: Callable[[], int] = boottime_ns,
        wall_seconds: Callable[[], float] = time.time,
        calls: DriverCalls | None = None,
        pod_uid: Callable[[str, str], str | None] = lambda namespace, name: None,
        socket_folder: str | os.PathLike[str] | None = None,
        version: str = "0",
    ) -> None:
        self.node = node
        self.driver = driver
        self.journal = journal
        self.pod_resources = pod_resources
        self.tick_seconds = tick_seconds
        self.clock_ns = clock_ns
        self.wall_seconds = wall_seconds
        self.pod_uid = pod_uid
        self.version = version
        self.enforcer = Enforcer(node, driver, journal, clock_ns=clock_ns, wall_seconds=wall_seconds, calls=calls)
        energy = journal.state.energy
        self.attribution = Attribution(energy, driver.boot_id)
        self.observations = Observations(energy.get("jobs", ()))
        self.pods: dict[PodName, PodHold] = {}
        self.pod_uids: dict[PodName, str] = {}
        self.pods_error: str | None = None
        self.round_error: str | None = None
        self.tally = LoopTally()
        self.sockets = None if socket_folder is None else TrainingSockets(self, socket_folder)
        self.changed = asyncio.Event()
        self._wake = asyncio.Event()
        self._operator_may_renew = False
        self._seen_pods: Sequence[PodDevices] = ()
        self._absent = bool(energy)
        self._journalled_ns = 0
        self._status = StatusBuilder(self)
        self._facts: object = None

    # ---- what comes in -------------------------------------------------------------------------------------------

    def accept_spec(self, raw_spec: object) -> None:
        """The node's GPUNode was seen with this spec."""
        self._operator_may_renew = True
        if self.enforcer.accept(raw_spec):
            self._wake.set()

    def spec_gone(self) -> None:
        """The GPUNode was deleted: the last spec holds until its lease runs out, which is renewed no more."""
        if self._operator_may_renew:
            logger.warning("GPUNode deleted", extra={"node": self.node})
        self._operator_may_renew = False

    def operator_seen(self) -> None:
        """The operator's Lease was just renewed."""
        if self._operator_may_renew and self.enforcer.renew_lease():
            self._wake.set()

    def report_steps(self, pod: PodName, report: StepReport) -> bool:
        """A training process reported; False where its pod is no job's of this node."""
        hold = self.pods.get(pod)
        if hold is None:
            return False
        self.tally.reports += 1
        return self.observations.report(pod, hold, report, self.clock_ns(), self.wall_seconds())

    # ---- the loop ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run rounds until cancelled, one a tick and at once on news. Raises AgentFailed where this process cannot."""
        due = time.monotonic()
        while True:
            started = time.monotonic()
            if started - due > self.tick_seconds:
                self.tally.late_rounds += 1
            try:
                await self.tick()
                self.round_error = None
            except Exception as error:
                # Whatever is wrong with one round, the next one must come: limits are held by it.
                self.tally.failed_rounds += 1
                self.round_error = f"{type(error).__name__}: {error}"
                logger.exception("round failed", extra={"node": self.node})
            if self.enforcer.must_exit is not None:
                raise AgentFailed(f"{self.node}: {self.enforcer.must_exit}")
            due = started + self._pause_seconds()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, due - time.monotonic())):
                    await self._wake.wait()
                    due = time.monotonic()
            self._wake.clear()

    def _pause_seconds(self) -> float:
        if self.enforcer.settling:
            return min(SETTLING_TICK_SECONDS, self.tick_seconds)
        remaining = self.enforcer.lease_remaining_seconds()
        return min(self.tick_seconds, remaining) if remaining > 0 else self.tick_seconds

    async def tick(self) -> None:
        """One round: who holds what, enforce, account, observe, remember, tell."""
        if await self._find_pods() and self.sockets is not None:
            await self.sockets.sync({self.pod_uids[pod]: pod for pod in self.pods if pod in self.pod_uids})
        await self.enforcer.step()
        now_ns = self.clock_ns()
        handed_over = self._account(now_ns)
        for pod, hold in self.pods.items():
            hold.window.add(now_ns, self.attribution.pod_millijoules(hold.energy_key), self._clock(pod))
        changed = self.observations.sync(self.enforcer.spec, self.pods, now_ns)
        if handed_over or changed or now_ns - self._journalled_ns >= JOURNAL_ENERGY_SECONDS * NANOSECONDS:
            self.remember(now_ns)
        self.tally.rounds += 1
        if self.sockets is not None and self.tally.rounds % ROUNDS_BETWEEN_REAPS == 0:
            self.sockets.reap()
        facts = self._status.facts()
        if facts != self._facts:
            self._facts = facts
            self.changed.set()

    def status(self) -> dict[str, object]:
        """GPUNode.status as of the last round."""
        return self._status.build()

    @property
    def facts(self) -> object:
        """Everything of the status but measurements, as one value to compare."""
        return self._facts

    async def _find_pods(self) -> bool:
        """Ask who holds what; True where the answer is not the last one again."""
        try:
            pods = await self.pod_resources.list()
            self.pods_error = None
        except PodResourcesError as error:
            if self.pods_error is None:
                logger.error("pods unknown", extra={"node": self.node, "detail": str(error)})
            self.pods_error = str(error)
            return False
        if pods is self._seen_pods:
            return False
        holders: dict[str, tuple[PodName, ...]] = {}
        holds: dict[PodName, PodHold] = {}
        for pod in pods:
            name = PodName(pod.namespace, pod.name)
            for board in pod.boards:
                holders[board] = (*holders.get(board, ()), name)
            holds[name] = self._hold(name, pod)
        self.pods = holds
        self.pod_uids = {pod: uid for pod, uid in self.pod_uids.items() if pod in holds}
        self.enforcer.set_pods(holders)
        # Only a list that names every UID need not be looked at again.
        self._seen_pods = pods if all(pod.uid for pod in pods) else ()
        return True

    def _hold(self, name: PodName, pod: PodDevices) -> PodHold:
        uid = pod.uid or self.pod_uid(pod.namespace, pod.name)
        known = self.pods.get(name)
        same = known is not None and (uid is None or self.pod_uids.get(name, uid) == uid)
        if uid is not None:
            self.pod_uids[name] = uid
        if same and known is not None:
            known.gpus = len(pod.boards)
            return known
        return PodHold(uid or self._key_of(name), len(pod.boards))

    def _key_of(self, name: PodName) -> str:
        """A restart must go on with the key that it began with, UID or not."""
        for job in self.observations:
            if (job.namespace, job.pod_name) == (name.namespace, name.name) and not job.ended:
                return job.energy_key
        return f"{name.namespace}/{name.name}"

    def _account(self, now_ns: int) -> bool:
        samples = []
        holders: dict[str, tuple[str, ...]] = {}
        for board in self.enforcer.boards.values():
            reading = board.reading
            counter = None if reading is None else reading.energy_millijoules
            samples.append(Sample(board.uuid, counter, board.limits.max_milliwatts))
            if board.pods:
                holders[board.uuid] = tuple(self.pods[pod].energy_key for pod in board.pods if pod in self.pods)
        self.attribution.boot_id = self.driver.boot_id  # a simulated node's reboot does not end its agent
        handed_over = self.attribution.update(now_ns, samples, holders, after_absence=self._absent)
        self._absent = False
        return handed_over

    def _clock(self, pod: PodName) -> int | None:
        clocks = [
            board.reading.sm_clock_megahertz
            for board in self.enforcer.boards.values()
            if pod in board.pods and board.reading is not None and board.reading.sm_clock_megahertz is not None
        ]
        return round(sum(clocks) / len(clocks)) if clocks else None

    def remember(self, now_ns: int) -> None:
        """Put the ledger and the counters into the journal (not synced: a kill of this process loses nothing)."""
        self._journalled_ns = now_ns
        energy = {**self.attribution.to_json(), "jobs": self.observations.to_json()}
        with contextlib.suppress(JournalError):
            self.journal.commit(energy_record(energy), self.enforcer.incarnation.record(), durable=False)

    def granted(self, pod: PodName) -> Mapping[str, int] | None:
        """What a pod's boards are set to now, the least of them; None where it holds none."""
        boards = [board for board in self.enforcer.boards.values() if pod in board.pods]
        if not boards:
            return None
        limits = [board.limit.requested_milliwatts for board in boards if board.limit is not None]
        locks = [board.lock[1] for board in boards if board.lock is not None and board.lock[1]]
        tops = [board.limits.clocks_megahertz[-1] for board in boards if board.limits.clocks_megahertz]
        return {
            "clockMegahertz": min(locks or tops or [0]),
            "powerLimitMilliwatts": min(limits, default=0),
        }

    def power_milliwatts(self, pod: PodName) -> int:
        """What a pod's boards draw now."""
        return sum(
            board.reading.average_power_milliwatts or 0
            for board in self.enforcer.boards.values()
            if pod in board.pods and board.reading is not None
        )

    def energy(self, pod: PodName) -> Mapping[str, int] | None:
        """What a pod has used since its start and draws now; None where it holds nothing."""
        hold = self.pods.get(pod)
        if hold is None:
            return None
        return {
            "energyMillijoules": self.attribution.pod_millijoules(hold.energy_key),
            "powerMilliwatts": self.power_milliwatts(pod),
        }

    async def close(self) -> None:
        """Write the ledger down and let everything go; every limit and lock stays as it is."""
        self.remember(self.clock_ns())
        if self.sockets is not None:
            await self.sockets.close()
        self.enforcer.close()
        await self.pod_resources.close()
        self.driver.close()
