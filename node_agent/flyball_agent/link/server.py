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

from flyball_kube.process.logs import get_logger

from flyball_agent.govern.governor import Governor
from flyball_agent.link.messages import (
    BrakesSeen,
    ClockWanted,
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
    packed,
    read_to_enforcer,
)

logger = get_logger(__name__)

# Training processes may report twenty times a second and pod; beyond this, an agent waits.
MESSAGES_PER_SECOND = 400.0
MESSAGE_BURST = 800.0
# A snapshot is sent only where fewer bytes than these wait for the agent.
MAX_WAITING_BYTES = 64 * 1024


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
        self._writer: asyncio.StreamWriter | None = None
        governor.listen(self._send_snapshot)

    async def serve(self) -> None:
        """Serve until cancelled. Raises OSError where the socket cannot be made."""
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        server = await asyncio.start_unix_server(self._connected, self._path, backlog=4)
        # Who may connect is decided by the peer's user; an enforcer without CAP_CHOWN cannot give the socket away.
        self._path.chmod(0o666)
        logger.info("enforcer serves", socket=str(self._path))
        try:
            await server.serve_forever()
        finally:
            self._hang_up()
            with contextlib.suppress(OSError):
                self._path.unlink()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        uid = _peer_uid(writer)
        if uid not in self._uids:
            logger.error("agent refused", uid=uid, allowed=sorted(self._uids))
            writer.close()
            return
        self._hang_up()
        self._writer = writer
        logger.info("agent connected", uid=uid)
        self._send_snapshot()
        try:
            await self._read(reader)
        except InvalidMessage as error:
            logger.error("agent cut off", error=str(error))
        except Exception:  # a defect of ours in taking in a message must not end the enforcer
            logger.exception("agent cut off")
        finally:
            if self._writer is writer:
                self._writer = None
            writer.close()
            logger.info("agent gone", uid=uid)

    def _hang_up(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None

    async def _read(self, reader: asyncio.StreamReader) -> None:
        tokens, at = MESSAGE_BURST, self._monotonic()
        while (message := await read_to_enforcer(reader)) is not None:
            self._take(message)
            now = self._monotonic()
            tokens, at = min(MESSAGE_BURST, tokens + (now - at) * MESSAGES_PER_SECOND) - 1, now
            # Also where the buffer is full of messages, so that rounds are not starved.
            await asyncio.sleep(0 if tokens >= 0 else -tokens / MESSAGES_PER_SECOND)

    def _take(self, message: ToEnforcer) -> None:
        governor = self._governor
        match message:
            case SpecSeen():
                governor.accept_spec(message.spec, message.acknowledged, seen_ns=message.seen_ns)
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
            case ClockWanted():
                governor.ask_clock(message.pod, message.asked)
            case ReadingWanted():
                governor.read_soon()
            case StatusPublished():
                governor.status_published(message.round_number)

    def _send_snapshot(self) -> None:
        if self._writer is None:
            return
        if self._writer.transport.get_write_buffer_size() > MAX_WAITING_BYTES:
            return
        self._writer.write(packed(self._snapshot()))

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


def _peer_uid(writer: asyncio.StreamWriter) -> int:
    peer = writer.get_extra_info("socket")
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])
