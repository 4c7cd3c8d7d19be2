"""One node's agent: the enforcer, the energy accounts and the observations of jobs under one control loop.

It needs a driver, a journal, and a source of which pod holds which GPUs; it knows nothing of Kubernetes. A process may
run many (the testbed's agent host runs one for each simulated node): there is one task and no thread per agent, but
for drivers whose calls block.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from flyball_api.gpu_node import GpuNodeStatus
from flyball_kube.logs import get_logger

from flyball_agent.clock import NANOSECONDS, boottime_ns
from flyball_agent.energy.attribution import NOT_KNOWN, Attribution, Sample
from flyball_agent.energy.observations import Observations, StepReport
from flyball_agent.energy.pods import PodOnGpus
from flyball_agent.energy.record import EnergyRecord
from flyball_agent.enforce.brakes import Seen
from flyball_agent.enforce.enforcer import Enforcer
from flyball_agent.enforce.gpu_state import Holders, PodName
from flyball_agent.enforce.journal import Journal, JournalError
from flyball_agent.enforce.records import EnergyTotals
from flyball_agent.enforce.requests import Requests
from flyball_agent.gpu.calls import DriverCalls
from flyball_agent.gpu.gpu import GpuDriver
from flyball_agent.pod_resources import PodGpus, PodResources, PodResourcesError
from flyball_agent.state import AgentState, EndedPod
from flyball_agent.status import node_status, significant_fields
from flyball_agent.training_sockets import TrainingSockets

TICK_SECONDS = 1.0
SETTLING_TICK_SECONDS = 0.05
JOURNAL_ENERGY_SECONDS = 10.0
ROUNDS_BETWEEN_REAPS = 5
# How long the first round waits for the first list of pods; no cut can be under way at the start of a process.
FIRST_PODS_SECONDS = 0.5
# Three scrapes a minute apart: what a pod used at its end would else never reach Prometheus.
ENDED_PODS_SHOWN_NS = 180 * NANOSECONDS


class AgentFailed(Exception):
    """The agent cannot do its work in this process; a fresh one may."""


class NodeAgent:
    """Governs one node's GPUs.

    `run` makes rounds, and lists the pods beside them, so that a kubelet that is slow or silent delays no cut.
    `accept_spec`, `spec_gone`, `take_brakes` and `operator_seen` take in what the operator asks; `state` is everything that
    the agent knows, `status` how the operator sees it, and `changed` is set whenever anything but a measurement is new.
    `pod_uid(namespace, name)` gives the UID of a pod that the source of pods names without one.
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
        self._log = get_logger(__name__, node=node)
        self._driver = driver
        self._journal = journal
        self._requests = Requests(journal.path.parent, node)
        self._pod_resources = pod_resources
        self._tick_seconds = tick_seconds
        self._clock_ns = clock_ns
        self._wall_seconds = wall_seconds
        self._pod_uid = pod_uid
        self._wake = asyncio.Event()
        self._operator_may_renew = False
        self._look = asyncio.Event()
        self._looked = asyncio.Event()
        self._seen_pods: Sequence[PodGpus] | None = None
        self._journalled_ns = 0
        self._sockets = None if socket_folder is None else TrainingSockets(self, socket_folder)
        record = EnergyRecord.read(journal.state.energy)
        if record is None and journal.state.energy:
            self._log.error("the journal's energy accounts cannot be read and begin anew")
        self._absent = record is not None
        self._attribution = Attribution(record, driver.boot_id)
        self.enforcer = Enforcer(node, driver, journal, clock_ns=clock_ns, wall_seconds=wall_seconds, calls=calls)
        self.state = AgentState(
            node=node,
            version=version,
            driver_version=driver.version,
            enforced=self.enforcer.state,
            accounts=self._attribution.accounts,
            jobs=Observations(() if record is None else record.jobs),
        )
        self.changed = asyncio.Event()
        self.significant: tuple[object, ...] | None = None  # see `significant_fields`; None before the first round

    # ---- what comes in -------------------------------------------------------------------------------------------

    def accept_spec(self, spec: object) -> None:
        """The node's GPUNode was seen with this spec."""
        self._operator_may_renew = True
        if self.enforcer.accept(spec):
            self._look.set()
            self._wake.set()

    def spec_gone(self) -> None:
        """The GPUNode was deleted: the last grant holds until its lease runs out, which is renewed no more."""
        if self._operator_may_renew:
            self._log.warning("GPUNode deleted")
        self._operator_may_renew = False

    def take_brakes(self, seen: Seen) -> None:
        """The PowerBrakes are as `seen`, all of them."""
        if self.enforcer.take_brakes(seen):
            self._wake.set()

    def operator_seen(self, epoch: int) -> None:
        """The operator's Lease was just renewed by the leader of that epoch."""
        if self._operator_may_renew and self.enforcer.renew_lease(epoch):
            self._wake.set()

    def report_steps(self, pod: PodName, report: StepReport) -> bool:
        """A training process reported; False where its pod is no job's of this node."""
        holder = self.state.pods.get(pod)
        if holder is None:
            return False
        self.state.counts.reports += 1
        return self.state.jobs.report(pod, holder, report, self._clock_ns(), self._wall_seconds())

    # ---- the loop ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run rounds until cancelled, one a tick and at once on news. Raises AgentFailed where this process cannot."""
        finding = asyncio.create_task(self._find_pods_for_ever())
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FIRST_PODS_SECONDS):
                    await self._looked.wait()
            self._wake.clear()  # whatever has come so far is seen by the first round
            await self._run_rounds()
        finally:
            finding.cancel()
            await asyncio.gather(finding, return_exceptions=True)

    async def _find_pods_for_ever(self) -> None:
        while True:
            await self.find_pods()
            self._looked.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._tick_seconds):
                    await self._look.wait()
            self._look.clear()

    async def _run_rounds(self) -> None:
        state = self.state
        seconds = asyncio.get_running_loop().time  # as the timeouts below
        due = seconds()
        while True:
            started = seconds()
            if started - due > self._tick_seconds:
                state.counts.late_rounds += 1
            try:
                await self.tick()
                state.round_error = None
            except Exception as error:
                # Whatever is wrong with one round, the next one must come: limits are held by it.
                state.counts.failed_rounds += 1
                state.round_error = f"{type(error).__name__}: {error}"
                self._log.exception("round failed")
            if state.enforced.must_exit is not None:
                raise AgentFailed(f"{state.node}: {state.enforced.must_exit}")
            due = started + self._pause_seconds()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, due - seconds())):
                    await self._wake.wait()
                    due = seconds()
            self._wake.clear()

    def _pause_seconds(self) -> float:
        if self.state.enforced.settling:
            return min(SETTLING_TICK_SECONDS, self._tick_seconds)
        remaining = self.enforcer.lease_remaining_seconds()
        return min(self._tick_seconds, remaining) if remaining > 0 else self._tick_seconds

    async def tick(self) -> None:
        """One round: enforce, account for energy, observe jobs, journal, and announce what is new."""
        state = self.state
        self.enforcer.forget(self._requests.take_forgotten())
        await self.enforcer.step()
        now_ns = self._clock_ns()
        # Until the pods are listed, nothing is accounted for: whose it is will be known then, and counters wait.
        changed = state.pods_listed and self._observe(now_ns)
        if changed or now_ns - self._journalled_ns >= JOURNAL_ENERGY_SECONDS * NANOSECONDS:
            self._remember(now_ns)
        state.counts.rounds += 1
        if self._sockets is not None and state.counts.rounds % ROUNDS_BETWEEN_REAPS == 0:
            self._sockets.reap()
        significant = significant_fields(state, now_ns)
        if significant != self.significant:
            self.significant = significant
            self.changed.set()

    def status(self, previous: GpuNodeStatus) -> GpuNodeStatus:
        """GPUNode.status now; from the `previous` one it has the times of conditions that are still as they were."""
        now = datetime.fromtimestamp(self._wall_seconds(), UTC)
        return node_status(self.state, previous, self._clock_ns(), now)

    async def find_pods(self) -> None:
        """Ask which pods hold which GPUs, and serve their sockets. While that fails, the last answer stands."""
        try:
            found = await self._pod_resources.list()
            if found is not self._seen_pods:
                self._take_pods(found)
                if self._sockets is not None:
                    uids = {pod.uid: name for name, pod in self.state.pods.items() if pod.uid is not None}
                    await self._sockets.sync(uids)
            self.state.pods_error = None
        except Exception as error:
            # Whatever an answer has in it, the next one must be asked for; a defect of ours is logged with its place.
            message = str(error) if isinstance(error, PodResourcesError) else f"{type(error).__name__}: {error}"
            if self.state.pods_error is None:
                self._log.error("pods unknown", error=message, exc_info=not isinstance(error, PodResourcesError))
            self.state.pods_error = message

    def _take_pods(self, found: Sequence[PodGpus]) -> None:
        holders: dict[str, tuple[PodName, ...]] = {}
        pods: dict[PodName, PodOnGpus] = {}
        for pod in found:
            name = PodName(pod.namespace, pod.name)
            for uuid in pod.gpus:
                holders[uuid] = (*holders.get(uuid, ()), name)
            if pod.gpus:
                pods[name] = self._pod_on_gpus(name, pod)
        for name, holder in pods.items():
            holder.shared = any(name in names and len(names) > 1 for names in holders.values())
        self._note_unresolved(found)
        now_ns = self._clock_ns()
        for name, holder in self.state.pods.items():
            if name not in pods:
                self.state.ended_pods[name] = EndedPod(holder, now_ns)
        self.state.pods = pods
        self.state.pods_listed = True
        if self.enforcer.set_pods(holders, all_resolved=self.state.pods_unresolved is None):
            self._wake.set()
        # Only a list that names every UID need not be looked at again.
        self._seen_pods = found if all(pod.uid for pod in found) else None

    def _note_unresolved(self, found: Sequence[PodGpus]) -> None:
        unresolved = [f"{pod.namespace}/{pod.name}: {', '.join(pod.unresolved)}" for pod in found if pod.unresolved]
        message = None
        if unresolved:
            more = f" (and {len(unresolved) - 1} more pods)" if len(unresolved) > 1 else ""
            message = f"devices whose ids do not name their GPU are held by {unresolved[0]}{more}"
        if message is not None and message != self.state.pods_unresolved:
            self._log.warning("GPUs without a known holder are left alone", detail=message)
        self.state.pods_unresolved = message

    def _pod_on_gpus(self, name: PodName, found: PodGpus) -> PodOnGpus:
        uid = found.uid or self._pod_uid(found.namespace, found.name)
        known = self.state.pods.get(name)
        if known is not None and (uid is None or known.uid in (None, uid)):
            known.gpus, known.uid = len(found.gpus), uid or known.uid
            return known
        return PodOnGpus(uid or self._key_of(name), len(found.gpus), uid)

    def _key_of(self, name: PodName) -> str:
        """A restart must go on with the key that it began with, UID or not."""
        job = self.state.jobs.of_pod(name)
        return f"{name.namespace}/{name.name}" if job is None else job.energy_key

    def _observe(self, now_ns: int) -> bool:
        """Account for energy and observe the jobs; True where something changed hands, came or ended."""
        state = self.state
        handed_over = self._account(now_ns)
        state.accounted = True
        for name, ended in list(state.ended_pods.items()):
            if now_ns - ended.ended_ns > ENDED_PODS_SHOWN_NS:
                del state.ended_pods[name]
        for name, pod in state.pods.items():
            pod.window.add(now_ns, state.pod_millijoules(pod), self._clock_megahertz(name))
        return state.jobs.sync(state.enforced.grant, state.pods, now_ns) or handed_over

    def _account(self, now_ns: int) -> bool:
        samples = []
        holders: dict[str, tuple[str, ...]] = {}
        pods = self.state.pods
        for gpu in self.state.enforced.gpus.values():
            counter = None if gpu.reading is None else gpu.reading.energy_millijoules
            samples.append(Sample(gpu.uuid, counter, gpu.limits.max_milliwatts))
            if gpu.pods:
                holders[gpu.uuid] = tuple(pods[name].energy_key for name in gpu.pods if name in pods)
            elif gpu.holders is Holders.UNRESOLVED:
                holders[gpu.uuid] = NOT_KNOWN
        self._attribution.boot_id = self._driver.boot_id  # a simulated node's reboot does not end its agent
        handed_over = self._attribution.update(now_ns, samples, holders, after_absence=self._absent)
        self._absent = False
        return handed_over

    def _clock_megahertz(self, pod: PodName) -> int | None:
        clocks = [
            gpu.reading.sm_clock_megahertz
            for gpu in self.state.enforced.gpus_of(pod)
            if gpu.reading is not None and gpu.reading.sm_clock_megahertz is not None
        ]
        return round(sum(clocks) / len(clocks)) if clocks else None

    def _remember(self, now_ns: int) -> None:
        """Put the accounts and the counters into the journal (not synced: a kill of this process loses nothing)."""
        self._journalled_ns = now_ns
        energy = EnergyTotals(self._attribution.record(self.state.jobs).to_json())
        with contextlib.suppress(JournalError):
            self._journal.note(energy, self.enforcer.driver_record())

    # ---- what training processes may ask -------------------------------------------------------------------------

    def granted(self, pod: PodName) -> Mapping[str, int] | None:
        """What a pod's GPUs are set to now, the least of them; None where it holds none."""
        gpus = self.state.enforced.gpus_of(pod)
        if not gpus:
            return None
        limits = [gpu.limit.requested_milliwatts for gpu in gpus if gpu.limit is not None]
        locks = [gpu.lock.max_megahertz for gpu in gpus if gpu.lock is not None and gpu.lock.is_range]
        tops = [gpu.limits.clocks_megahertz[-1] for gpu in gpus if gpu.limits.clocks_megahertz]
        return {
            "clockMegahertz": min(locks or tops or [0]),
            "powerLimitMilliwatts": min(limits, default=0),
        }

    def energy(self, pod: PodName) -> Mapping[str, int] | None:
        """What a pod has used since its start and draws now; None where it holds nothing."""
        holder = self.state.pods.get(pod)
        if holder is None:
            return None
        readings = [gpu.reading for gpu in self.state.enforced.gpus_of(pod) if gpu.reading is not None]
        return {
            "energyMillijoules": self.state.pod_millijoules(holder),
            "powerMilliwatts": sum(reading.average_power_milliwatts or 0 for reading in readings),
        }

    async def close(self) -> None:
        """Journal the accounts and release everything; every limit and lock stays as it is."""
        self._remember(self._clock_ns())
        if self._sockets is not None:
            await self._sockets.close()
        idle = self.enforcer.close()
        await self._pod_resources.close()
        if idle:  # a library that is shut down under a call of its own takes the process with it
            self._driver.close()
