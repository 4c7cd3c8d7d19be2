"""What one end of the line bears of the other: a flood, a reader that hangs, and the enforcer of another node."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flyball_agent.energy.attribution import EnergyAccounts
from flyball_agent.energy.observations import Observations
from flyball_agent.enforce.state import EnforcerState
from flyball_agent.link.client import EnforcerLink
from flyball_agent.link.messages import InvalidMessage, OperatorSeen, packed
from flyball_agent.link.server import MAX_WAITING_BYTES, MESSAGE_BURST, MESSAGES_PER_SECOND, EnforcerServer
from flyball_agent.state import AgentState
from flyball_api.gpu_node import DriverSession

from tests.support.schedules.virtual_time import VirtualLoop


class Governor:
    """A governor of no GPUs that counts how often it is told of the operator, and makes a round when it is asked to."""

    def __init__(self, node: str = "node-0") -> None:
        self.seen = 0
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


def server_of(governor: Any, **options: Any) -> EnforcerServer:
    return EnforcerServer(governor, "/nowhere", agent_uid=0, **options)


def fed(data: bytes) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    return reader


def test_an_agent_is_heard_at_a_bounded_rate_however_much_it_says() -> None:
    """What is in the buffer already is no more than what comes by and by."""
    messages = int(MESSAGE_BURST + 2 * MESSAGES_PER_SECOND)

    async def play() -> float:
        loop, governor = asyncio.get_running_loop(), Governor()
        server = server_of(governor, monotonic=loop.time)
        began_at = loop.time()
        await server._read(fed(packed(OperatorSeen(1, 5)) * messages))
        assert governor.seen == messages
        return loop.time() - began_at

    loop = VirtualLoop()
    assert loop.run_until_complete(play()) == pytest.approx(2.0, rel=0.01)
    loop.close()


async def test_an_agent_that_reads_nothing_costs_no_memory() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        _, writer = await asyncio.open_connection(sock=ours)
        governor = Governor()
        server = server_of(governor)
        server._writer = writer
        one = len(packed(server._snapshot()))
        for _ in range(10 * MAX_WAITING_BYTES // one):
            governor.make_round()
        waiting = writer.transport.get_write_buffer_size()
        assert 0 < waiting <= MAX_WAITING_BYTES + one
        writer.transport.abort()


async def test_the_enforcer_of_another_node_is_not_believed() -> None:
    """Its limits would be reported as this node's."""
    link = EnforcerLink(Path("/nowhere"), "node-0")
    with pytest.raises(InvalidMessage, match="governs node-7, and this is the agent of node-0"):
        await link._receive(fed(packed(server_of(Governor("node-7"))._snapshot())))
    assert link.state.last_round_ns is None
    await link._receive(fed(packed(server_of(Governor("node-0"))._snapshot())))
