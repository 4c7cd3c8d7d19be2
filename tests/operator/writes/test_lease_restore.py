"""The leader's Lease shows that the API server's store was put back to a backup, and the epoch ends."""

from __future__ import annotations

import asyncio
import random
from typing import cast

from flyball_kube.session import ApiSession
from flyball_operator.writes.lease import LeaderLease

from tests.support.schedules.memory_api import MemoryApi
from tests.support.schedules.network import Link, Network
from tests.support.schedules.virtual_time import VirtualLoop


async def epochs_over_a_restore(since_backup_seconds: float) -> list[int | None]:
    """The epochs of a holder whose Lease is restored to what it was so long ago."""
    epochs: list[int | None] = []
    api = MemoryApi(lambda change: None)
    session = cast(ApiSession, Link(Network(api), random.Random(1)).session())
    clock = asyncio.get_running_loop().time
    lease = LeaderLease(session, "us", "flyball", "leader", 15, 3.0, clock=clock, on_change=epochs.append)
    running = asyncio.create_task(lease.run())
    await lease.wait_leading()
    backup = api.backup()
    await asyncio.sleep(since_backup_seconds)
    api.restore(backup)
    await asyncio.sleep(10.0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return epochs


def test_a_restored_lease_ends_the_epoch_and_the_next_one_is_higher() -> None:
    loop = VirtualLoop()
    epochs = loop.run_until_complete(epochs_over_a_restore(20.0))
    loop.close()
    assert epochs[1] is None
    assert [epoch for epoch in epochs if epoch is not None] == sorted({epoch for epoch in epochs if epoch is not None})
    assert len(epochs) == 3


def test_a_lease_that_only_goes_on_keeps_its_epoch() -> None:
    loop = VirtualLoop()
    assert len(loop.run_until_complete(epochs_over_a_restore(0.0))) == 1
    loop.close()
