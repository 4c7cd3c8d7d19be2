"""The agent's end of the line to an enforcer in another process: it tells what it sees, and shows what comes back.

What is worth knowing only as it is now (the spec, the pods) waits for the line, the newest of each; a renewal of the
operator's Lease that cannot be sent at once is dropped, for it may be old by then.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Sequence

from flyball_api.gpu_node import Acknowledgement, DriverSession
from flyball_kube.backoff import Backoff
from flyball_kube.process.logs import get_logger
from flyball_kube.serving.token_bucket import TokenBucket

from flyball_agent.clock import boottime_ns
from flyball_agent.energy.attribution import EnergyAccounts
from flyball_agent.energy.observations import ClockAsked, Observations, StepReport
from flyball_agent.energy.pods import PodOnGpus
from flyball_agent.enforce.brakes import Seen
from flyball_agent.enforce.gpu_state import PodName
from flyball_agent.enforce.records import FoundGpu
from flyball_agent.enforce.state import EnforcerState
from flyball_agent.link.messages import (
    BrakesSeen,
    ClockWanted,
    GpusReported,
    InvalidMessage,
    OperatorSeen,
    PodsListed,
    ReadingWanted,
    Snapshot,
    SpecGone,
    SpecSeen,
    StatusPublished,
    StepsReported,
    ToEnforcer,
    from_enforcer,
    packed,
)
from flyball_agent.pods.resources import PodDevices
from flyball_agent.state import AgentState, EndedPod

# Of what training processes say, so much may wait, and so much is sent: less than the enforcer takes of its agent, so that
# they fill no line on which a cut is to come.
MAX_WAITING_REPORTS = 1024
REPORTS_PER_SECOND, REPORT_BURST = 300.0, 300.0
REPORT_PAUSE_SECONDS = 0.02
# An enforcer that takes nothing for so long is hung; the line is made anew.
SEND_SECONDS = 10.0
READ_BYTES = 64 * 1024


class EnforcerLink:
    """Stands for the governor of another process (`Governing`); `run` keeps the line until cancelled.

    `on_connected` is called at each new line: an enforcer that has just started raises nothing before spec and brakes are
    *seen* at the API server again, so that those that are at hand here are not sent to it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        node: str,
        *,
        version: str = "0",
        on_connected: Callable[[], None] = lambda: None,
        clock_ns: Callable[[], int] = boottime_ns,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = os.fspath(path)
        self._log = get_logger(__name__, node=node)
        self._clock_ns = clock_ns
        self.on_connected = on_connected
        self._state = AgentState(
            node=node,
            version=version,
            enforced=EnforcerState(DriverSession(), {}),
            accounts=EnergyAccounts(),
            jobs=Observations(),
        )
        self._listeners: list[Callable[[], None]] = []
        self._connected = False
        self._writer: asyncio.StreamWriter | None = None
        self._something = asyncio.Event()
        self._newest: dict[type[ToEnforcer], ToEnforcer] = {}
        # The newest of each kind, pod and GPU, in the order in which they began to wait.
        self._reports: dict[tuple[type[ToEnforcer], PodName, str], StepsReported | ClockWanted] = {}
        self._reports_bucket = TokenBucket(REPORTS_PER_SECOND, REPORT_BURST, monotonic)
        self._pods: PodsListed | None = None
        self.lines = 0

    @property
    def state(self) -> AgentState:
        return self._state

    def accept_spec(self, spec: object, acknowledged: Sequence[Acknowledgement] | None = ()) -> None:
        self._newest.pop(SpecGone, None)
        self._newest.pop(SpecSeen, None)  # what was to be said before this one is
        known = None if acknowledged is None else tuple(acknowledged)
        self._pass_on(SpecSeen(spec, self._clock_ns(), known))

    def take_reported(self, gpus: Sequence[FoundGpu]) -> None:
        self._pass_on(GpusReported(tuple(gpus)))

    def spec_gone(self) -> None:
        self._newest.pop(SpecSeen, None)
        self._pass_on(SpecGone())

    def operator_seen(self, epoch: int) -> None:
        if self._connected:
            self._pass_on(OperatorSeen(epoch, self._clock_ns()))

    def take_brakes(self, seen: Seen) -> None:
        self._pass_on(BrakesSeen(dict(seen)))

    def take_pods(self, found: Sequence[PodDevices]) -> None:
        self._pods = PodsListed(tuple(found))
        self._pass_on(self._pods)

    def report_steps(self, pod: PodName, report: StepReport) -> None:
        self._report((StepsReported, pod, ""), StepsReported(pod, report))

    def ask_clock(self, pod: PodName, asked: ClockAsked) -> None:
        self._report((ClockWanted, pod, asked.gpu), ClockWanted(pod, asked))

    def read_soon(self) -> None:
        if self._connected:
            self._pass_on(ReadingWanted())

    def status_published(self, round_number: int) -> None:
        self._pass_on(StatusPublished(round_number))

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each round that is heard of."""
        self._listeners.append(listener)

    def _pass_on(self, message: ToEnforcer) -> None:
        self._newest[type(message)] = message
        self._something.set()

    def _report(self, of: tuple[type[ToEnforcer], PodName, str], message: StepsReported | ClockWanted) -> None:
        writer = self._writer
        if not self._connected or writer is None:
            return
        # A clock is for a computation that has begun: where nothing waits, it is not for another turn of the loop either.
        waits = self._reports or self._newest or writer.transport.get_write_buffer_size()
        if not waits and self._reports_bucket.take():
            writer.write(packed(message))
        elif of in self._reports or len(self._reports) < MAX_WAITING_REPORTS:
            self._reports[of] = message
            self._something.set()

    async def run(self) -> None:
        """Keep the line until cancelled."""
        backoff, last_error = Backoff(), ""
        while True:
            try:
                reader, writer = await asyncio.open_unix_connection(self._path)
            except OSError as error:
                if str(error) != last_error:
                    last_error = str(error)
                    self._log.error("no enforcer", socket=self._path, error=last_error)
                await backoff.pause()
                continue
            last_error = ""
            backoff.reset()
            try:
                await self._talk(reader, writer)
            except (InvalidMessage, OSError, TimeoutError) as error:
                self._log.error("enforcer's line", error=str(error) or repr(error))
            finally:
                self._connected, self._writer = False, None
                writer.transport.abort()
            self._log.warning("enforcer gone", socket=self._path)
            await backoff.pause()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.lines += 1
        self._log.info("enforcer connected", socket=self._path)
        self._newest.pop(OperatorSeen, None)
        self._newest.pop(StatusPublished, None)
        self._newest.pop(ReadingWanted, None)
        self._newest.pop(SpecSeen, None)
        self._newest.pop(GpusReported, None)
        self._newest.pop(BrakesSeen, None)
        self._reports.clear()  # a clock that was asked for then ends from when it is heard
        if self._pods is not None:
            self._pass_on(self._pods)
        self._connected, self._writer = True, writer
        # What is known is of another enforcer, perhaps: it is not reported as this one's.
        self._state.last_round_ns = None
        self.on_connected()
        sending = asyncio.create_task(self._send(writer))
        receiving = asyncio.create_task(self._receive(reader))
        try:
            done, _ = await asyncio.wait((sending, receiving), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (sending, receiving):
                task.cancel()
            await asyncio.gather(sending, receiving, return_exceptions=True)

    async def _send(self, writer: asyncio.StreamWriter) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REPORT_PAUSE_SECONDS if self._reports else None):
                    await self._something.wait()
            self._something.clear()
            messages = [*self._newest.values()]
            self._newest.clear()
            while self._reports and self._reports_bucket.take():
                messages.append(self._reports.pop(next(iter(self._reports))))
            for message in messages:
                writer.write(packed(message))
            async with asyncio.timeout(SEND_SECONDS):
                await writer.drain()

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        incoming = from_enforcer()
        while data := await reader.read(READ_BYTES):
            incoming.add(data)
            while (snapshot := incoming.next()) is not None:
                if snapshot.node != self._state.node:
                    raise InvalidMessage(
                        f"the enforcer governs {snapshot.node}, and this is the agent of {self._state.node}"
                    )
                self._take(snapshot)
                for listener in self._listeners:
                    listener()

    def _take(self, snapshot: Snapshot) -> None:
        state = self._state
        state.enforced, state.accounts = snapshot.enforced, snapshot.accounts
        state.jobs = Observations(snapshot.jobs)
        state.pods, state.ended_pods = {}, {}
        for shown in snapshot.pods:
            pod = PodOnGpus(shown.energy_key, shown.gpus, shown.uid, shown.shared)
            if shown.ended_ns is None:
                state.pods[shown.name] = pod
            else:
                state.ended_pods[shown.name] = EndedPod(pod, shown.ended_ns)
        state.pods_listed, state.pods_unresolved = snapshot.pods_listed, snapshot.pods_unresolved
        state.accounted, state.round_error = snapshot.accounted, snapshot.round_error
        state.last_round_ns, state.counts = snapshot.last_round_ns, snapshot.counts
