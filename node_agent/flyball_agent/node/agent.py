"""One node's agent towards the outside: which pods hold GPUs, the training processes' sockets, the status.

It tells a governor what it finds out, and shows what the governor knows; the governor runs in this process or in one of its
own (`link`). It needs no privilege, and nothing that happens here changes a limit but through the governor.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Protocol

from flyball_api.gpu_node import Acknowledgement, GpuNodeStatus
from flyball_kube.process.logs import get_logger

from flyball_agent.clock import boottime_ns
from flyball_agent.energy.observations import ClockAsked, StepReport
from flyball_agent.energy.stage_profiles import StageProfile, StageProfiles
from flyball_agent.enforce.brakes import Seen
from flyball_agent.enforce.gpu_state import PodName
from flyball_agent.enforce.records import FoundGpu
from flyball_agent.node.capabilities import pod_capabilities
from flyball_agent.node.status import node_status, significant_fields
from flyball_agent.pods.resources import PodDevices, PodResources, PodResourcesError
from flyball_agent.state import AgentState
from flyball_agent.training.sockets import TrainingSockets

ROUNDS_BETWEEN_REAPS = 5
# A reading that is no older is as good as one made for whoever asks, and how long such a one is waited for.
FRESH_NS = 50_000_000
FRESH_SECONDS = 1.0
# Rounds are made every tick; a governor that has made none for so long is hung, dead, or cut off.
STALE_SECONDS = 10.0
STALE_TICKS = 5.0


class Governing(Protocol):
    """Who governs: a `Governor`, or the link to one in another process."""

    @property
    def state(self) -> AgentState: ...

    def accept_spec(self, spec: object, acknowledged: Sequence[Acknowledgement] | None = ()) -> None: ...

    def take_reported(self, gpus: Sequence[FoundGpu]) -> None: ...

    def spec_gone(self) -> None: ...

    def operator_seen(self, epoch: int) -> None: ...

    def take_brakes(self, seen: Seen) -> None: ...

    def take_pods(self, found: Sequence[PodDevices]) -> None: ...

    def report_steps(self, pod: PodName, report: StepReport) -> None: ...

    def ask_clock(self, pod: PodName, asked: ClockAsked) -> None: ...

    def read_soon(self) -> None: ...

    def status_published(self, round_number: int) -> None: ...

    def listen(self, listener: Callable[[], None]) -> None: ...


class SocketFolders(Protocol):
    """Who has given pods folders for their sockets."""

    def folder_of(self, device: str, asked_at: float) -> str | None: ...

    async def run(self) -> None: ...


class NodeAgent:
    """Shows one node's governor to the operator, to Prometheus and to the training processes.

    `run` lists the pods beside the rounds, so that a kubelet that is slow or silent delays no cut. `state` is everything
    that the governor knows, `status` how the operator sees it, and `changed` is set whenever anything but a measurement is
    new.
    """

    def __init__(
        self,
        governor: Governing,
        pod_resources: PodResources,
        *,
        node: str,
        tick_seconds: float = 1.0,
        clock_ns: Callable[[], int] = boottime_ns,
        wall_seconds: Callable[[], float] = time.time,
        socket_folder: str | os.PathLike[str] | None = None,
        socket_plugin: SocketFolders | None = None,
    ) -> None:
        self._log = get_logger(__name__, node=node)
        self.node = node
        self._governor = governor
        self._pod_resources = pod_resources
        self._tick_seconds = tick_seconds
        self._clock_ns = clock_ns
        self._wall_seconds = wall_seconds
        self._look = asyncio.Event()
        self._sent_pods: Sequence[PodDevices] | None = None
        self._last_spec: object = None
        self._sockets = None if socket_folder is None else TrainingSockets(self, socket_folder)
        self._socket_plugin = socket_plugin
        self._stages = StageProfiles()
        self._rounds = 0
        self._next_round: asyncio.Future[None] | None = None
        self.changed = asyncio.Event()
        self.round_made = asyncio.Event()
        self.significant: tuple[object, ...] | None = None  # see `significant_fields`; None before the first round
        governor.listen(self._round_made)

    @property
    def state(self) -> AgentState:
        return self._governor.state

    # ---- what comes in -------------------------------------------------------------------------------------------

    def accept_spec(self, spec: object, acknowledged: Sequence[Acknowledgement] | None = ()) -> None:
        """The node's GPUNode was seen with this spec; `acknowledged` is as for `Enforcer.accept`."""
        if spec != self._last_spec:
            self._last_spec = spec
            self._look.set()
        self._governor.accept_spec(spec, acknowledged)

    def take_reported(self, gpus: Sequence[FoundGpu]) -> None:
        """The node's status had these GPUs before this agent, or its governor, began."""
        self._governor.take_reported(gpus)

    def spec_gone(self) -> None:
        """The GPUNode was deleted."""
        self._governor.spec_gone()

    def take_brakes(self, seen: Seen) -> None:
        """The PowerBrakes are as `seen`, all of them."""
        self._governor.take_brakes(seen)

    def operator_seen(self, epoch: int) -> None:
        """The operator's Lease was just renewed by the leader of that epoch."""
        self._governor.operator_seen(epoch)

    def status_published(self, round_number: int) -> None:
        """The operator can see what was known after that round."""
        self._governor.status_published(round_number)

    def report_steps(self, pod: PodName, report: StepReport) -> bool:
        """A training process reported; False where its pod is no job's of this node."""
        if pod not in self.state.pods or self.state.jobs.of_pod(pod) is None:
            return False
        self._governor.report_steps(pod, report)
        return True

    def ask_clock(self, pod: PodName, asked: ClockAsked) -> bool:
        """A training process wants another clock; False where its pod is no job's here, or the GPU not the pod's."""
        state = self.state
        if pod not in state.pods or state.jobs.of_pod(pod) is None:
            return False
        if asked.gpu and ((gpu := state.enforced.gpus.get(asked.gpu)) is None or pod not in gpu.pods):
            return False
        self._governor.ask_clock(pod, asked)
        return True

    def report_stage(self, pod: PodName, profile: StageProfile) -> bool:
        """A training process has measured a stage of its pipeline; False where its pod is no job's of this node.

        Raises InvalidReport where it has told of too many.
        """
        if pod not in self.state.pods or self.state.jobs.of_pod(pod) is None:
            return False
        self._stages.take(pod, len(self.state.enforced.gpus_of(pod)), profile)
        self._look_for_news()
        return True

    def _round_made(self) -> None:
        self._rounds += 1
        self.round_made.set()
        if self._next_round is not None:
            if not self._next_round.done():
                self._next_round.set_result(None)
            self._next_round = None
        if self._sockets is not None and self._rounds % ROUNDS_BETWEEN_REAPS == 0:
            self._sockets.reap()
        self._stages.keep_only(self.state.pods)
        self._look_for_news()

    def _look_for_news(self) -> None:
        significant = significant_fields(self.state, self._stages, self._clock_ns())
        if significant != self.significant:
            self.significant = significant
            self.changed.set()

    # ---- the pods ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """List the pods until cancelled, once a tick and at once at a new grant."""
        while True:
            await self.find_pods()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._tick_seconds):
                    await self._look.wait()
            self._look.clear()

    async def find_pods(self) -> None:
        """Ask which pods hold which GPUs, and serve their sockets. While that fails, the last answer stands."""
        try:
            asked_at = time.monotonic()
            found = await self._pod_resources.list()
            if found != self._sent_pods:
                self._governor.take_pods(found)
                self._sent_pods = found
            if self._sockets is not None:
                await self._sockets.sync(
                    {pod.uid: name for name, pod in self.state.pods.items() if pod.uid is not None},
                    self._allocated(found, asked_at),
                )
            self.state.pods_error = None
        except Exception as error:
            # Whatever an answer has in it, the next one must be asked for; a defect of ours is logged with its place.
            message = str(error) if isinstance(error, PodResourcesError) else f"{type(error).__name__}: {error}"
            if self.state.pods_error is None:
                self._log.error("pods unknown", error=message, exc_info=not isinstance(error, PodResourcesError))
            self.state.pods_error = message

    def _allocated(self, found: Sequence[PodDevices], asked_at: float) -> dict[str, PodName]:
        """The folders that the plugin has made for these pods."""
        plugin = self._socket_plugin
        if plugin is None:
            return {}
        folders = (
            (plugin.folder_of(device, asked_at), PodName(pod.namespace, pod.name))
            for pod in found
            for device in pod.sockets
        )
        return {folder: pod for folder, pod in folders if folder is not None}

    # ---- what is shown -------------------------------------------------------------------------------------------

    @property
    def round_age_seconds(self) -> float | None:
        """How long ago the last round was made; None before the first."""
        last_ns = self.state.last_round_ns
        return None if last_ns is None else (self._clock_ns() - last_ns) / 1e9

    @property
    def fresh(self) -> bool:
        """Rounds are made: what is known may be shown as what is."""
        age = self.round_age_seconds
        return age is not None and age <= max(STALE_SECONDS, STALE_TICKS * self._tick_seconds)

    def lease_remaining_seconds(self) -> float:
        """0 where there is no lease or it has run out."""
        return self.state.enforced.lease_remaining_seconds(self._clock_ns())

    def status(self, previous: GpuNodeStatus) -> GpuNodeStatus:
        """GPUNode.status now; from the `previous` one it has the times of conditions that are still as they were."""
        now = datetime.fromtimestamp(self._wall_seconds(), UTC)
        return node_status(self.state, self._stages, previous, self._clock_ns(), now)

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

    def capabilities(self, pod: PodName) -> Mapping[str, object] | None:
        """What a pod's GPUs can be asked for, and how soon a clock is set; None where it holds none that a job governs."""
        return pod_capabilities(self.state, pod, self._clock_ns())

    def energy(self, pod: PodName) -> Mapping[str, object] | None:
        """What a pod has used since its start and draws now, and what its GPUs' counters have risen by; None where it holds
        nothing."""
        holder = self.state.pods.get(pod)
        if holder is None:
            return None
        gpus = self.state.enforced.gpus_of(pod)
        readings = [gpu.reading for gpu in gpus if gpu.reading is not None]
        now_ns, last_round_ns = self._clock_ns(), self.state.last_round_ns or 0
        # What a round that is under way has read is accounted for at its end: until then the accounts are the last one's.
        read_ns = {
            gpu.uuid: min(gpu.reading.energy_read_ns or last_round_ns, last_round_ns)
            for gpu in gpus
            if gpu.reading is not None
        }
        return {
            "energyMillijoules": self.state.pod_millijoules(holder),
            "ageMilliseconds": (now_ns - last_round_ns) // 1_000_000,
            "powerMilliwatts": sum(int(reading.average_power_milliwatts or 0) for reading in readings),
            "gpus": {
                gpu.uuid: {
                    "energyMillijoules": self.state.accounts.gpus.get(gpu.uuid, 0),
                    "ageMilliseconds": (now_ns - read_ns.get(gpu.uuid, last_round_ns)) / 1e6,
                    "clockMegahertz": None if gpu.reading is None else gpu.reading.sm_clock_megahertz,
                }
                for gpu in (() if holder.shared else gpus)
            },
        }

    async def read_afresh(self) -> None:
        """Have the GPUs read for whoever asks, unless they were just now; returns when they have, or after a second.

        All who wait get the same reading. It is made by a round, which first does all that limits and brakes ask for, and
        no more often than the governor likes: where the driver hangs or refuses a limit, or rounds are
        many already, the last one stands.
        """
        last_ns = self.state.last_round_ns
        if last_ns is not None and self._clock_ns() - last_ns <= FRESH_NS:
            return
        if self._next_round is None:
            self._next_round = asyncio.get_running_loop().create_future()
            self._governor.read_soon()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FRESH_SECONDS):
                await asyncio.shield(self._next_round)

    async def close(self) -> None:
        """Serve no more."""
        if self._sockets is not None:
            await self._sockets.close()
        await self._pod_resources.close()
