"""The agent's shell towards the Kubernetes API: its GPUNode's spec in, its status out.

The agent itself runs without any of this; every task here may fail for as long as it likes.
"""

from __future__ import annotations

import asyncio
import contextlib

from flyball_api.gpu_node import GpuNodeStatus
from flyball_kube.backoff import Backoff
from flyball_kube.informer import Informer
from flyball_kube.logs import get_logger
from flyball_kube.resources import GPU_NODES
from flyball_kube.session import ApiSession, JsonObject

from flyball_agent.agent import NodeAgent
from flyball_agent.status import status_patch


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
            group.create_task(self._publish_for_ever())

    async def reread(self) -> None:
        """See the GPUNode at the API server anew, and hand it on: for a governor that has just started."""
        await self.informer.refresh()
        self._node_changed(self._agent.node)

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
        self._agent.accept_spec(raw.get("spec"))

    async def _publish_for_ever(self) -> None:
        """News at once, measurements every interval; what happens while a write is under way goes with the next."""
        loop = asyncio.get_running_loop()
        backoff = Backoff()
        published: object = None
        due = loop.time()
        while True:
            await self._present.wait()
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
            rounds = self._agent.state.counts.rounds
            self._status = self._agent.status(self._status)
            try:
                await self._session.patch(self._path, status_patch(self._status))
            except Exception as error:  # whatever an answer has in it, the agent goes on
                self.failed += 1
                self._log.warning("status not written", error=str(error) or repr(error), kind=type(error).__name__)
                published = None  # it may have been written, and only the answer lost
                self._agent.changed.set()
                await backoff.pause()
                continue
            backoff.reset()
            self.published += 1
            self._agent.status_published(rounds)
            published, due = news, loop.time() + self._interval


def _object(raw: JsonObject) -> JsonObject:
    return raw
