"""What governs one node's GPUs: the enforcer, the energy accounts and the observations of jobs under one control loop.

It needs a driver and a journal, and is told what the operator asks and which pods hold which GPUs; it knows neither
Kubernetes nor the kubelet, and so can run in a process that has the privilege and nothing else. There is one task and no
thread per node, but one that hears a driver's worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from itertools import chain, count
from typing import Any

from flyball_api.gpu_node import Acknowledgement
from flyball_kube.process.logs import get_logger
from flyball_kube.serving.token_bucket import TokenBucket

from flyball_agent.clock import NANOSECONDS, boottime_ns
from flyball_agent.energy.attribution import NOT_KNOWN, Attribution, Sample
from flyball_agent.energy.observations import ClockAsked, Observations, StepReport
from flyball_agent.energy.pods import PodOnGpus
from flyball_agent.energy.record import EnergyRecord
from flyball_agent.enforce.brakes import Seen
from flyball_agent.enforce.enforcer import Enforcer
from flyball_agent.enforce.gpu_state import Holders, PodName
from flyball_agent.enforce.journal import Journal, JournalError
from flyball_agent.enforce.records import EnergyTotals, FoundGpu
from flyball_agent.enforce.requests import Requests
from flyball_agent.govern.driver_keeper import DriverKeeper
from flyball_agent.gpu.calls import DriverCalls
from flyball_agent.gpu.gpu import GpuDriver
from flyball_agent.pods.resources import PodDevices
from flyball_agent.state import AgentState, EndedPod

TICK_SECONDS = 1.0
SETTLING_TICK_SECONDS = 0.05
JOURNAL_ENERGY_SECONDS = 10.0
# Rounds that are made before their time because a training process waits for a reading.
EARLY_ROUNDS_PER_SECOND, EARLY_ROUNDS_BURST = 5.0, 5.0
# How long the first round waits for the first list of pods; no cut can be under way at the start of a process.
FIRST_PODS_SECONDS = 0.5
# Three scrapes a minute apart: what a pod used at its end would else never reach Prometheus.
ENDED_PODS_SHOWN_NS = 180 * NANOSECONDS
# More than end on a node meanwhile; whoever lists the pods may make up others each time.
MAX_ENDED_PODS = 1024


class AgentFailed(Exception):
    """The agent cannot do its work in this process; a fresh one may."""


class Governor:
    """Governs one node's GPUs.

    `run` makes rounds. `accept_spec`, `spec_gone`, `take_brakes` and `operator_seen` take in what the operator asks,
    `take_pods` which pods hold which GPUs, `report_steps` what a training process reports; `state` is everything that is
    known, and listeners are called after each round. With `open_driver` the driver may be let go of and opened again. With
    `observe` it sets nothing.
    """

    def __init__(
        self,
        node: str,
        driver: GpuDriver,
        journal: Journal,
        *,
        open_driver: Callable[[], GpuDriver] | None = None,
        tick_seconds: float = TICK_SECONDS,
        clock_ns: Callable[[], int] = boottime_ns,
        wall_seconds: Callable[[], float] = time.time,
        calls: DriverCalls | None = None,
        version: str = "0",
        observe: bool = False,
    ) -> None:
        self._log = get_logger(__name__, node=node)
        self._journal = journal
        self._requests = Requests(journal.path.parent, node)
        self._tick_seconds = tick_seconds
        self._clock_ns = clock_ns
        self._wall_seconds = wall_seconds
        self._wake = asyncio.Event()
        self._early_rounds = TokenBucket(EARLY_ROUNDS_PER_SECOND, EARLY_ROUNDS_BURST)
        self._pods_known = asyncio.Event()
        self._operator_may_renew = False
        self._pods: Sequence[PodDevices] = ()
        self._other_ids: dict[str, tuple[str, ...]] = {}  # by which each GPU, or a part of it, is handed out
        self._journalled_ns = 0
        self._setting_clocks: asyncio.Task[None] | None = None
        self._listeners: list[Callable[[], None]] = []
        record = EnergyRecord.read(journal.state.energy)
        if record is None and journal.state.energy:
            self._log.error("the journal's energy accounts cannot be read and begin anew")
        self._absent = record is not None
        self._attribution = Attribution(record, driver.boot_id)
        self.enforcer = Enforcer(
            node, driver, journal, clock_ns=clock_ns, wall_seconds=wall_seconds, calls=calls, observe=observe
        )
        self._keeper = DriverKeeper(self.enforcer, self._requests, open_driver, clock_ns=clock_ns, node=node)
        self.state = AgentState(
            node=node,
            version=version,
            enforced=self.enforcer.state,
            accounts=self._attribution.accounts,
            jobs=Observations(() if record is None else record.jobs),
        )

    # ---- what comes in -------------------------------------------------------------------------------------------

    def accept_spec(
        self, spec: object, acknowledged: Sequence[Acknowledgement] | None = (), *, seen_ns: int | None = None
    ) -> None:
        """The node's GPUNode was seen with this spec, now or at `seen_ns`; `acknowledged` is as for `Enforcer.accept`."""
        self._operator_may_renew = True
        if self.enforcer.accept(spec, seen_ns=seen_ns, acknowledged=acknowledged):
            self._hand_out(self._pods)  # a grant names its pods' UIDs, which the kubelet does not
            self._wake.set()

    def take_reported(self, gpus: Sequence[FoundGpu]) -> None:
        """The node's status had these GPUs as this agent began."""
        self.enforcer.take_reported(gpus)

    def spec_gone(self) -> None:
        """The GPUNode was deleted: the last grant holds until its lease runs out, which is renewed no more."""
        if self._operator_may_renew:
            self._log.warning("GPUNode deleted")
        self._operator_may_renew = False

    def operator_seen(self, epoch: int, *, seen_ns: int | None = None) -> None:
        """The operator's Lease was seen, now or at `seen_ns`, to be renewed by the leader of that epoch."""
        if self._operator_may_renew and self.enforcer.renew_lease(epoch, seen_ns=seen_ns):
            self._wake.set()

    def take_brakes(self, seen: Seen) -> None:
        """The PowerBrakes are as `seen`, all of them."""
        if self.enforcer.take_brakes(seen):
            self._wake.set()

    def take_pods(self, found: Sequence[PodDevices]) -> None:
        """These pods hold GPUs now, and no others."""
        self._pods = found
        self.state.pods_listed = True
        self._pods_known.set()
        if self._hand_out(found):
            self._wake.set()

    def report_steps(self, pod: PodName, report: StepReport) -> None:
        """A training process reported; one whose pod is no job's of this node is passed over."""
        holder = self.state.pods.get(pod)
        if holder is not None:
            self.state.counts.reports += 1
            self.state.jobs.report(pod, holder, report, self._clock_ns(), self._wall_seconds())

    def ask_clock(self, pod: PodName, asked: ClockAsked) -> None:
        """A training process wants its own GPUs no faster than that; set at once, beside the rounds."""
        if pod in self.state.pods:
            self.enforcer.ask_clock(pod, asked.max_megahertz, asked.seconds, asked.gpu)
            if self._setting_clocks is None or self._setting_clocks.done():
                self._begin_setting_clocks()

    def read_soon(self) -> None:
        """Somebody waits for a reading: make a round before its time, unless there were many such, or a GPU cannot be read
        or does not take its limit.

        After how many rounds a driver is taken for broken is reckoned by those that come in their time.
        """
        well = all(gpu.failure is None and gpu.refusal is None for gpu in self.state.enforced.gpus.values())
        if well and self._early_rounds.take():
            self._wake.set()

    def _begin_setting_clocks(self) -> None:
        """Have them begun now: a turn of the loop later is a tenth of a millisecond that a computation waits."""
        try:
            begun = self.enforcer.set_asked_clocks()
        except Exception:  # the next round sets what it did not
            self._log.exception("clocks that were asked for")
        else:
            self._setting_clocks = asyncio.get_running_loop().create_task(self._end_setting_clocks(begun))

    async def _end_setting_clocks(self, begun: Coroutine[Any, Any, None]) -> None:
        try:
            await begun
        except Exception:  # the next round sets what it did not
            self._log.exception("clocks that were asked for")

    def status_published(self, round_number: int) -> None:
        """The operator can see what was known after that round."""
        self._keeper.published(round_number)

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each round."""
        self._listeners.append(listener)

    # ---- the loop ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run rounds until cancelled, one a tick and at once on news. Raises AgentFailed where this process cannot."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_PODS_SECONDS):
                await self._pods_known.wait()
        self._wake.clear()  # whatever has come so far is seen by the first round
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
        remaining = self.state.enforced.lease_remaining_seconds(self._clock_ns())
        return min(self._tick_seconds, remaining) if remaining > 0 else self._tick_seconds

    async def tick(self) -> None:
        """One round: enforce, account for energy, observe jobs, journal, and call the listeners."""
        state = self.state
        self.enforcer.forget(self._requests.take_forgotten())
        self._keeper.between_rounds(state.counts.rounds)
        await self.enforcer.step()
        other_ids: dict[str, tuple[str, ...]] = {}
        for uuid, gpu in state.enforced.gpus.items():  # one that cannot be read now has those that it had
            other_ids[uuid] = self._other_ids.get(uuid, ()) if gpu.reading is None else gpu.reading.handed_out_as
        if other_ids != self._other_ids:
            self._other_ids = other_ids
            self._hand_out(self._pods)
        now_ns = self._clock_ns()
        # Until the pods are listed, nothing is accounted for: whose it is will be known then, and counters wait.
        changed = state.pods_listed and self._observe(now_ns)
        if changed or now_ns - self._journalled_ns >= JOURNAL_ENERGY_SECONDS * NANOSECONDS:
            self._remember(now_ns)
        state.counts.rounds += 1
        state.last_round_ns = now_ns
        for listener in self._listeners:
            listener()

    def _hand_out(self, found: Sequence[PodDevices]) -> bool:
        """Give the GPUs to the pods that hold them; True where that changed."""
        if not self.state.pods_listed:
            return False
        devices = {PodName(pod.namespace, pod.name): frozenset((*pod.gpus, *pod.unresolved)) for pod in found}
        found = [self._resolved(pod) for pod in found]
        uids = {}
        if self.state.enforced.grant is not None:
            uids = {PodName(job.namespace, job.pod_name): job.pod_uid for job in self.state.enforced.grant.jobs}
        holders: dict[str, tuple[PodName, ...]] = {}
        pods: dict[PodName, PodOnGpus] = {}
        for pod in found:
            name = PodName(pod.namespace, pod.name)
            for uuid in pod.gpus:
                holders[uuid] = (*holders.get(uuid, ()), name)
            if pod.gpus:
                pods[name] = self._pod_on_gpus(name, pod, pod.uid or uids.get(name) or None, devices[name])
        for name, holder in pods.items():
            holder.shared = any(name in names and len(names) > 1 for names in holders.values())
        self._note_unresolved(found)
        now_ns = self._clock_ns()
        for name, holder in self.state.pods.items():
            if name not in pods:
                self.state.ended_pods[name] = EndedPod(holder, now_ns)
        for name in list(self.state.ended_pods)[:-MAX_ENDED_PODS]:
            del self.state.ended_pods[name]
        self.state.pods = pods
        return self.enforcer.set_pods(holders, all_resolved=self.state.pods_unresolved is None)

    def _resolved(self, pod: PodDevices) -> PodDevices:
        """The pod with the GPUs of the MIG devices and claims that it holds, as far as GPUs show them."""
        if not pod.unresolved:
            return pod
        gpu_of = {other: uuid for uuid, ids in self._other_ids.items() for other in ids}
        ids = {device: gpu_of.get(device.split("::", 1)[0]) for device in pod.unresolved}
        gpus = dict.fromkeys((*pod.gpus, *(uuid for uuid in ids.values() if uuid is not None)))
        return replace(pod, gpus=tuple(gpus), unresolved=tuple(device for device, uuid in ids.items() if uuid is None))

    def _note_unresolved(self, found: Sequence[PodDevices]) -> None:
        unresolved = [f"{pod.namespace}/{pod.name}: {', '.join(pod.unresolved)}" for pod in found if pod.unresolved]
        message = None
        if unresolved:
            more = f" (and {len(unresolved) - 1} more pods)" if len(unresolved) > 1 else ""
            message = f"devices whose ids do not name their GPU are held by {unresolved[0]}{more}"
        if message is not None and message != self.state.pods_unresolved:
            self._log.warning("GPUs without a known holder are left alone", detail=message)
        self.state.pods_unresolved = message

    def _pod_on_gpus(self, name: PodName, pod: PodDevices, uid: str | None, devices: frozenset[str]) -> PodOnGpus:
        known = self.state.pods.get(name)
        if known is not None and (known.uid == uid if known.uid and uid else known.devices == devices):
            known.gpus, known.uid, known.devices = len(pod.gpus), uid or known.uid, devices
            return known
        return PodOnGpus(uid or self._key_of(name), len(pod.gpus), uid, devices=devices)

    def _key_of(self, name: PodName) -> str:
        """What a pod without a UID is called in the accounts: as before this process, or as no earlier one of its name.

        The kubelet tells no UIDs. A pod that it does not list any more has ended, and what it lists under that name later
        is another one.
        """
        job = self.state.jobs.of_pod(name)
        if job is not None:
            return job.energy_key
        accounts, first = self.state.accounts, f"{name.namespace}/{name.name}"
        gone = [self.state.pods.get(name), ended.pod if (ended := self.state.ended_pods.get(name)) else None]
        over = accounts.ended.keys() | {pod.energy_key for pod in gone if pod is not None}
        numbered = (f"{first}#{number}" for number in count(2))
        if self._absent:  # it may have been there before this process
            going_on = [key for key in accounts.pods if key == first or key.startswith(f"{first}#")]
            return next(iter(going_on), first)
        return next(key for key in chain((first,), numbered) if key not in over and key not in accounts.pods)

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
        # A simulated node's reboot does not end its agent.
        self._attribution.boot_id = self.state.enforced.session.boot_id
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

    async def close(self) -> None:
        """Journal the accounts and release everything; every limit and lock stays as it is."""
        if self._setting_clocks is not None:
            self._setting_clocks.cancel()
        self._remember(self._clock_ns())
        self.enforcer.close()
        self._keeper.close()
