"""The agent's shell towards the Kubernetes API: its GPUNode's spec in, its status out.

The agent itself runs without any of this; every task here may fail for as long as it likes.
"""

from __future__ import annotations

import asyncio
import contextlib
import random

from flyball_api.brake_acknowledgement import (
    brake_acknowledgement_object,
    brake_acknowledgement_patch,
    read_brake_acknowledgement,
)
from flyball_api.gpu_node import Acknowledgement, GpuNodeStatus
from flyball_api.reading import InvalidObject, read_status
from flyball_kube.backoff import Backoff
from flyball_kube.errors import ApiError, ApiUnreachable
from flyball_kube.informer import Informer
from flyball_kube.process.logs import get_logger
from flyball_kube.resources import BRAKE_ACKNOWLEDGEMENTS, GPU_NODES
from flyball_kube.session import ApiSession, JsonObject, get_or_none

from flyball_agent.node.agent import NodeAgent
from flyball_agent.node.status import acknowledgement, reported_gpus, status_patch, with_gpus_of_before

# An API server that has more to do than it can keeps a request in its queue for 15 s. Who gives up before that and asks
# again waits at its end.
API_TIMEOUT_SECONDS = 20.0
# When a brake comes to many nodes at once, the API server's time belongs to the small acknowledgements; the grants that
# follow bring the next status in any case.
STATUS_AFTER_BRAKE_SECONDS = (4.0, 8.0)  # somewhere between, or all nodes' would come together
# News often comes to all nodes at once, as by a cap that rises. After the same interval everywhere their measurements would
# come in one wave for ever, and hold up a cut that falls into it.
FIRST_MEASUREMENTS_AFTER_NEWS = (0.5, 1.0)  # of an interval; somewhere between


class GpuNodeChannel:
    """One agent's GPUNode: follows its spec, publishes its status. Run it as a task with `run`."""

    def __init__(self, session: ApiSession, agent: NodeAgent, *, status_interval_seconds: float = 30.0) -> None:
        self._log = get_logger(__name__, node=agent.node)
        self._session = session
        self._agent = agent
        self._status = GpuNodeStatus()  # the last one that was made
        self._interval = status_interval_seconds
        self._path = GPU_NODES.path(name=agent.node, subresource="status")
        self._present = asyncio.Event()
        self._acknowledged: Acknowledgement | None = None  # the last one that was published, in whichever object
        self._sent: Acknowledgement | None = None  # the last one that was sent, which may be on its way yet
        # What had been acknowledged when this agent or its governor began; None until the API server has said it.
        self._acknowledged_before: tuple[Acknowledgement, ...] | None = None
        self._recalled = asyncio.Event()
        self._governors = 0  # how many have started since this agent began
        self._has_small_object = True  # of brakes' acknowledgements; as it was when they were read, or made, last
        self._knows_gpus = False  # its governor: it has had a driver, and has heard which were reported before it
        self._uid: str | None = None
        self.published = 0
        self.failed = 0
        self.informer: Informer[JsonObject] = Informer(
            session,
            GPU_NODES,
            _object,
            on_change=self._node_changed,
            params={"fieldSelector": f"metadata.name={agent.node}"},
        )

    async def run(self) -> None:
        """Follow and publish until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.informer.run())
            group.create_task(self._recall())
            group.create_task(self._publish_for_ever())

    def governor_is_new(self) -> None:
        """Another governor has started: what was acknowledged before it is to be read anew."""
        self._acknowledged_before = None
        self._recalled.clear()
        self._governors += 1
        self._knows_gpus = False

    async def reread(self) -> None:
        """See at the API server anew what there is of this node, and hand it on: for a governor that has just started."""
        await self.informer.refresh()
        await self._recall()

    async def _recall(self) -> None:
        """Hand on what this node's agents have acknowledged and reported so far, once the API server has said it.

        A journal may be older than that, and the brake that was acknowledged be gone.
        """
        backoff = Backoff()
        found: tuple[Acknowledgement, ...] | None = None
        while found is None:
            governor = self._governors
            try:
                status = await self._status_before()
                found = (
                    *([] if status.acknowledged is None else [status.acknowledged]),
                    *await self._acknowledged_brake(),
                    *([] if self._sent is None else [self._sent]),
                )
            except Exception as error:  # whatever an answer has in it, the agent goes on
                self._log.warning("not known what was acknowledged", error=str(error) or repr(error))
                await backoff.pause()
            if governor != self._governors:  # the one that it was read for may have acknowledged more since
                found = None
        self._agent.take_reported(reported_gpus(status))
        self._acknowledged_before = found
        self._recalled.set()
        self._node_changed(self._agent.node)

    async def _status_before(self) -> GpuNodeStatus:
        raw = await get_or_none(self._session, GPU_NODES.path(name=self._agent.node))
        return GpuNodeStatus() if raw is None else read_status(raw, GpuNodeStatus)[0]

    async def _acknowledged_brake(self) -> list[Acknowledgement]:
        raw = await get_or_none(self._session, BRAKE_ACKNOWLEDGEMENTS.path(name=self._agent.node))
        self._has_small_object = raw is not None
        with contextlib.suppress(InvalidObject):
            return [] if raw is None else [read_brake_acknowledgement(raw).acknowledged]
        return []

    def _node_changed(self, key: str) -> None:
        if key != self._agent.node:
            return
        raw = self.informer.get(key)
        if raw is None:
            self._present.clear()
            self._agent.spec_gone()
            return
        if raw["metadata"].get("uid") != self._uid:
            self._uid = raw["metadata"].get("uid")
            self._agent.changed.set()  # a new object has no status yet
        self._present.set()
        self._agent.accept_spec(raw.get("spec"), self._acknowledged_before)

    async def _publish_for_ever(self) -> None:
        """News at once, measurements every interval; what happens while a write is under way goes with the next.

        What a brake has lowered is acknowledged by the small object, and by the status a while later.
        """
        loop = asyncio.get_running_loop()
        backoff = Backoff()
        published: object = None
        due = loop.time()
        calm_until = 0.0
        overtaken = 0  # how often in a row somebody else's write came first
        while True:
            await self._present.wait()
            await self._recalled.wait()  # what is written takes the place of what was acknowledged before
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._agent.changed.wait()
            self._agent.changed.clear()
            if self._agent.significant is None:
                await self._agent.changed.wait()  # set by the first round
            news = (self._uid, self._agent.significant)
            if news == published and loop.time() < due:
                continue
            while not self._agent.fresh:
                # Nobody may take an old state for a proof: the operator goes by the age of the last report.
                self._agent.round_made.clear()
                await self._agent.round_made.wait()
            if not (self._present.is_set() and self._recalled.is_set()):
                # It went meanwhile, and a report is of one object, or of the next one; or the governor did.
                self._agent.changed.set()
                continue
            governor, rounds = self._governors, self._agent.state.counts.rounds
            if published is not None and self._lowered_by_brake() and await self._acknowledge_brake():
                due = calm_until = min(due, loop.time() + random.uniform(*STATUS_AFTER_BRAKE_SECONDS))  # noqa: S311 - jitter
                continue
            calm_until = min(calm_until, due)
            if loop.time() < calm_until and self._is_of_brake():
                due = calm_until  # the news waits until then, and for nothing else
                continue
            if governor != self._governors:  # it went while its brake was to be acknowledged
                self._agent.changed.set()
                continue
            try:
                await self._write_status()
            except Exception as error:  # whatever an answer has in it, the agent goes on
                published = None  # it may have been written, and only the answer lost
                overtaken = overtaken + 1 if isinstance(error, ApiError) and error.conflict else 0
                await self._not_written(error, overtaken, backoff)
                continue
            backoff.reset()
            overtaken = 0
            self.published += 1
            if governor == self._governors:  # the next one counts its rounds from one, and has yet to be reported of
                self._agent.status_published(rounds)
            self._acknowledged = self._status.acknowledged
            share = 1.0 if news == published else random.uniform(*FIRST_MEASUREMENTS_AFTER_NEWS)  # noqa: S311 - jitter
            published, due = news, loop.time() + share * self._interval

    async def _not_written(self, error: Exception, overtaken: int, backoff: Backoff) -> None:
        """Go on after a status that may not have been written, `overtaken` times in a row by somebody else's write."""
        self.failed += 1
        self._log.warning("status not written", error=str(error) or repr(error), kind=type(error).__name__)
        self._agent.changed.set()
        if overtaken == 1:
            await self._look()
        elif overtaken:
            await self.informer.refresh()
        if overtaken != 1:
            await backoff.pause()

    async def _write_status(self) -> None:
        """Publish what is known now, over the version that was seen last and over no other.

        A report that was sent before the one that stands, and comes after it, would have a limit or a driver session stand
        again that is no more (an API server may take up a request long after its client has given it up).
        """
        seen = self.informer.get(self._agent.node)
        self._status = self._agent.status(self._status)
        enforced = self._agent.state.enforced
        self._knows_gpus = self._knows_gpus or (enforced.driver_error is None and enforced.knows_reported)
        if seen is not None and not self._knows_gpus:
            self._status = with_gpus_of_before(self._status, read_status(seen, GpuNodeStatus)[0])
        version = "" if seen is None else seen["metadata"]["resourceVersion"]
        self._sent = self._status.acknowledged or self._sent
        self.informer.absorb(await self._session.patch(self._path, status_patch(self._status, version)))

    async def _look(self) -> None:
        """Take in the GPUNode as it is now: a list, and the watch after it, cost the API server several times as much."""
        with contextlib.suppress(ApiError, ApiUnreachable):
            self.informer.absorb(await self._session.get(GPU_NODES.path(name=self._agent.node)))

    def _lowered_by_brake(self) -> bool:
        """Whether nothing but a brake lies between the last acknowledgement that was published and the present one."""
        last, now = self._acknowledged, self._agent.state.enforced.acknowledged
        return (
            last is not None
            and now is not None
            and (now.version, now.digest, now.session) == (last.version, last.digest, last.session)
            and now.limits_milliwatts <= last.limits_milliwatts
            and (now.bound_milliwatts or 0) < (last.bound_milliwatts or 0)
        )

    def _is_of_brake(self) -> bool:
        """Whether the present acknowledgement is the one that `_acknowledge_brake` has written."""
        last, now = self._acknowledged, self._agent.state.enforced.acknowledged
        return last is not None and now is not None and last.boottime_nanoseconds == now.boottime_nanoseconds

    async def _acknowledge_brake(self) -> bool:
        """Write the small object; False where that fails, so that the status has to say it."""
        acknowledged = acknowledgement(self._agent.state)
        if acknowledged is None or self._uid is None:
            return False
        self._sent = acknowledged
        try:
            await self._write_small_object(self._uid, acknowledged)
        except Exception as error:  # whatever an answer has in it, the status can say the same
            self._log.warning("brake not acknowledged", error=str(error) or repr(error), kind=type(error).__name__)
            return False
        self._acknowledged = acknowledged
        return True

    async def _write_small_object(self, uid: str, acknowledged: Acknowledgement) -> None:
        """Change the object, or make it where there is none.

        Which of them is known: a thousand agents that first tried the other would hold up each other's cuts.
        """
        path, patch = BRAKE_ACKNOWLEDGEMENTS.path(name=self._agent.node), brake_acknowledgement_patch(acknowledged)
        if self._has_small_object:
            try:
                await self._session.patch(path, patch)
                return
            except ApiError as error:
                if not error.not_found:
                    raise
        body = brake_acknowledgement_object(self._agent.node, uid, acknowledged)
        try:
            await self._session.create(BRAKE_ACKNOWLEDGEMENTS.path(), body)
        except ApiError as error:
            if not error.conflict:
                raise
            await self._session.patch(path, patch)
        self._has_small_object = True


def _object(raw: JsonObject) -> JsonObject:
    return raw
