"""What one end of the line bears of the other: a flood, a reader that hangs, and the enforcer of another node."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from flyball_agent.energy.attribution import EnergyAccounts
from flyball_agent.energy.observations import Observations
from flyball_agent.enforce.state import EnforcerState
from flyball_agent.link.client import EnforcerLink
from flyball_agent.link.messages import InvalidMessage, OperatorSeen, packed
from flyball_agent.link.server import MAX_WAITING_BYTES, MESSAGE_BURST, MESSAGES_PER_SECOND, EnforcerServer
from flyball_agent.state import AgentState
from flyball_api.gpu_node import DriverSession

from tests.support.descriptors import KERNEL_REFUSES, send_with_descriptor
from tests.support.schedules.virtual_time import VirtualLoop
from tests.support.waiting import until


class Governor:
    """A governor of no GPUs that counts how often it is told of the operator, and makes a round when it is asked to."""

    def __init__(self, node: str = "node-0", enough: int = 0) -> None:
        self.seen, self.enough, self.heard_enough = 0, enough, asyncio.Event()
        self.state = AgentState(
            node=node,
            version="1",
            enforced=EnforcerState(DriverSession(), {}),
            accounts=EnergyAccounts(),
            jobs=Observations(),
        )
        self.make_round: Callable[[], None] = lambda: None

    def listen(self, listener: Callable[[], None]) -> None:
        self.make_round = listener

    def operator_seen(self, epoch: int, *, seen_ns: int) -> None:
        self.seen += 1
        if self.seen == self.enough:
            self.heard_enough.set()


def server_of(governor: Any, **options: Any) -> EnforcerServer:
    return EnforcerServer(governor, "/nowhere", agent_uid=0, **options)


class Transport:
    """A transport to a process of ours; `reads` says whether more is read from it."""

    def __init__(self) -> None:
        self.reads = True
        self.aborted = False
        self._peer, self._other = socket.socketpair(socket.AF_UNIX)

    def get_extra_info(self, name: str) -> socket.socket:
        return self._peer

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        """Nobody reads it."""

    def is_closing(self) -> bool:
        return self.aborted

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def abort(self) -> None:
        self.aborted = True
        self._peer.close()
        self._other.close()


def fed(data: bytes) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    return reader


def test_an_agent_is_heard_at_a_bounded_rate_however_much_it_says() -> None:
    """What is in the buffer already is no more than what comes by and by."""
    messages = int(MESSAGE_BURST + 2 * MESSAGES_PER_SECOND)

    async def play() -> float:
        loop, governor = asyncio.get_running_loop(), Governor(enough=messages)
        line, transport = server_of(governor, monotonic=loop.time).line(), Transport()
        line.connection_made(cast(asyncio.Transport, transport))
        began_at = loop.time()
        line.data_received(packed(OperatorSeen(1, 5)) * messages)
        assert governor.seen == 1
        assert not transport.reads, "nothing more is read while so much waits"
        await governor.heard_enough.wait()
        took = loop.time() - began_at
        await asyncio.sleep(0.01)
        assert transport.reads
        return took

    loop = VirtualLoop()
    assert loop.run_until_complete(play()) == pytest.approx(2.0, rel=0.01)
    loop.close()


async def test_an_agent_that_reads_nothing_costs_no_memory() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        _, writer = await asyncio.open_connection(sock=ours)
        governor = Governor()
        server = server_of(governor)
        line = server.line()
        line.transport = cast(asyncio.Transport, writer.transport)
        server._line = line
        one = len(packed(server._snapshot()))
        for _ in range(10 * MAX_WAITING_BYTES // one):
            governor.make_round()
        waiting = writer.transport.get_write_buffer_size()
        assert 0 < waiting <= MAX_WAITING_BYTES + one
        writer.transport.abort()


@pytest.mark.parametrize("last", [b"", b"\0\0", b"\0\0\0\x05."])
async def test_an_agent_is_heard_again_once_what_had_come_is_taken(last: bytes) -> None:
    governor = Governor(enough=3)
    line, transport = server_of(governor).line(), Transport()
    line.connection_made(cast(asyncio.Transport, transport))
    line.data_received(packed(OperatorSeen(1, 5)) * 3 + last)
    assert not transport.reads
    await governor.heard_enough.wait()
    for _ in range(3):
        await asyncio.sleep(0)
    assert transport.reads


async def test_nothing_more_is_taken_of_an_agent_whose_place_another_has() -> None:
    governor = Governor()
    server = server_of(governor)
    line, transport = server.line(), Transport()
    line.connection_made(cast(asyncio.Transport, transport))
    line.data_received(packed(OperatorSeen(1, 5)) * 3)
    server.line().connection_made(cast(asyncio.Transport, Transport()))
    assert transport.aborted
    for _ in range(5):
        await asyncio.sleep(0)
    assert governor.seen == 1


async def test_the_enforcer_of_another_node_is_not_believed() -> None:
    """Its limits would be reported as this node's."""
    link = EnforcerLink(Path("/nowhere"), "node-0")
    with pytest.raises(InvalidMessage, match="governs node-7, and this is the agent of node-0"):
        await link._receive(fed(packed(server_of(Governor("node-7"))._snapshot())))
    assert link.state.last_round_ns is None
    await link._receive(fed(packed(server_of(Governor("node-0"))._snapshot())))


async def test_no_agent_has_the_enforcer_close_its_open_files(short_folder: Path) -> None:
    """To close a connection takes as long as the process that has opened it likes, and no round would be made meanwhile."""
    path = short_folder / "e.sock"
    serving = asyncio.create_task(EnforcerServer(cast(Any, Governor()), path, agent_uid=0).serve())
    try:
        await until(path.exists)
        with socket.socket(socket.AF_UNIX) as sender:
            sender.connect(str(path))
            assert send_with_descriptor(sender) is not KERNEL_REFUSES
    finally:
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving
    assert not path.exists()
