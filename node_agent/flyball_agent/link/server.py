"""The enforcer's end of the line: one agent at a time tells it things, and gets a snapshot of it after each round.

Whatever the agent does, rounds are made: it is read at a bounded rate in bounded messages, and one that does not read its
snapshots misses them. Its end changes nothing; the lease runs out by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

from flyball_kube.process.logs import get_logger

from flyball_agent.govern.governor import Governor
from flyball_agent.link.messages import (
    BrakesSeen,
    ClockWanted,
    GpusReported,
    InvalidMessage,
    OperatorSeen,
    PodShown,
    PodsListed,
    ReadingWanted,
    Snapshot,
    SpecGone,
    SpecSeen,
    StatusPublished,
    StepsReported,
    ToEnforcer,
    from_agent,
    packed,
)
from flyball_agent.wire.descriptors import refuse_descriptors

logger = get_logger(__name__)

# Training processes may report twenty times a second and pod; beyond this, an agent waits.
MESSAGES_PER_SECOND = 400.0
MESSAGE_BURST = 800.0
# A snapshot is sent only where fewer bytes than these wait for the agent.
MAX_WAITING_BYTES = 64 * 1024


class _Line(asyncio.Protocol):
    """An agent's line: each message is taken where it comes, one in a turn of the loop, so that rounds are not starved."""

    def __init__(self, server: EnforcerServer, monotonic: Callable[[], float]) -> None:
        self._server = server
        self._monotonic = monotonic
        self._incoming = from_agent()
        self._tokens, self._at = MESSAGE_BURST, monotonic()
        self._next: asyncio.Handle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._server.connected(self)

    def data_received(self, data: bytes) -> None:
        self._incoming.add(data)
        if self._next is None:
            self._take()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._next is not None:
            self._next.cancel()
        self._server.gone(self)

    def _take(self) -> None:
        """Take one message, and see to the next one's being taken in its time; until then no more is read."""
        self._next = None
        if self.transport.is_closing():
            return
        try:
            message = self._incoming.next()
            if message is None:
                self.transport.resume_reading()
                return
            self._server.take(message)
        except InvalidMessage as error:
            logger.error("agent cut off", error=str(error))
            self.transport.abort()
            return
        except Exception:  # a defect of ours in taking in a message must not end the enforcer
            logger.exception("agent cut off")
            self.transport.abort()
            return
        now = self._monotonic()
        self._tokens = min(MESSAGE_BURST, self._tokens + (now - self._at) * MESSAGES_PER_SECOND) - 1
        self._at = now
        loop = asyncio.get_running_loop()
        if self._tokens < 0:
            self.transport.pause_reading()
            self._next = loop.call_later(-self._tokens / MESSAGES_PER_SECOND, self._take)
        elif self._incoming.begun:
            self.transport.pause_reading()
            self._next = loop.call_soon(self._take)
        else:
            self.transport.resume_reading()


class EnforcerServer:
    """Serves one governor on a Unix socket, to processes of `agent_uid` or of its own user; the newest takes over."""

    def __init__(
        self,
        governor: Governor,
        path: str | os.PathLike[str],
        *,
        agent_uid: int,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._governor = governor
        self._path = Path(path)
        self._uids = frozenset((agent_uid, os.getuid()))
        self._monotonic = monotonic
        self._line: _Line | None = None
        governor.listen(self._send_snapshot)

    async def serve(self) -> None:
        """Serve until cancelled. Raises OSError where the socket cannot be made."""
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            refuse_descriptors(listening)
            listening.bind(str(self._path))
            server = await asyncio.get_running_loop().create_unix_server(self.line, sock=listening, backlog=4)
        except BaseException:
            listening.close()
            raise
        # Who may connect is decided by the peer's user; an enforcer without CAP_CHOWN cannot give the socket away.
        self._path.chmod(0o666)
        logger.info("enforcer serves", socket=str(self._path))
        try:
            await server.serve_forever()
        finally:
            self._hang_up()
            with contextlib.suppress(OSError):
                self._path.unlink()

    def line(self) -> _Line:
        """A line for whoever connects."""
        return _Line(self, self._monotonic)

    def connected(self, line: _Line) -> None:
        """Somebody has connected: an agent, which takes over, or nobody who may."""
        uid = _peer_uid(line.transport)
        if uid not in self._uids:
            logger.error("agent refused", uid=uid, allowed=sorted(self._uids))
            line.transport.abort()
            return
        self._hang_up()
        self._line = line
        logger.info("agent connected", uid=uid)
        self._send_snapshot()

    def gone(self, line: _Line) -> None:
        """The line is of no use any more."""
        if self._line is line:
            self._line = None
            logger.info("agent gone")

    def _hang_up(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.transport.abort()

    def take(self, message: ToEnforcer) -> None:
        """Take in what the agent says."""
        governor = self._governor
        match message:
            case ClockWanted():  # a computation waits for it
                governor.ask_clock(message.pod, message.asked)
            case SpecSeen():
                governor.accept_spec(message.spec, message.acknowledged, seen_ns=message.seen_ns)
            case GpusReported():
                governor.take_reported(message.gpus)
            case SpecGone():
                governor.spec_gone()
            case OperatorSeen():
                governor.operator_seen(message.epoch, seen_ns=message.seen_ns)
            case BrakesSeen():
                governor.take_brakes(message.brakes)
            case PodsListed():
                governor.take_pods(message.pods)
            case StepsReported():
                governor.report_steps(message.pod, message.report)
            case ReadingWanted():
                governor.read_soon()
            case StatusPublished():
                governor.status_published(message.round_number)

    def _send_snapshot(self) -> None:
        if self._line is not None and self._line.transport.get_write_buffer_size() <= MAX_WAITING_BYTES:
            self._line.transport.write(packed(self._snapshot()))

    def _snapshot(self) -> Snapshot:
        state = self._governor.state
        shown = [PodShown(name, pod.energy_key, pod.gpus, pod.uid, pod.shared) for name, pod in state.pods.items()]
        for name, ended in state.ended_pods.items():
            pod = ended.pod
            shown.append(PodShown(name, pod.energy_key, pod.gpus, pod.uid, pod.shared, ended.ended_ns))
        return Snapshot(
            node=state.node,
            enforced=state.enforced,
            accounts=state.accounts,
            jobs=tuple(state.jobs),
            pods=tuple(shown),
            pods_listed=state.pods_listed,
            pods_unresolved=state.pods_unresolved,
            accounted=state.accounted,
            round_error=state.round_error,
            last_round_ns=state.last_round_ns,
            counts=state.counts,
        )


def _peer_uid(transport: asyncio.BaseTransport) -> int:
    peer = transport.get_extra_info("socket")
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])
