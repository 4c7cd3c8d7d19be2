"""Whoever reaches the operator's metrics or probes may ask, and costs it no more than a bounded part of itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest_asyncio
from flyball_operator.process import probes
from flyball_operator.process.probes import ProbeServer
from flyball_operator.report import metrics_server
from flyball_operator.report.metrics_server import MetricsServer
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector


class Counted(Collector):
    """A collector that counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def collect(self) -> list[GaugeMetricFamily]:
        self.asked += 1
        return [GaugeMetricFamily("asked", "How often.", value=self.asked)]


class Served:
    """A server of metrics whose clock stands still."""

    def __init__(self) -> None:
        self.collector = Counted()
        registry = CollectorRegistry()
        registry.register(self.collector)
        self.collector.asked = 0
        self.server = MetricsServer(registry, monotonic=lambda: 0.0)
        self.port = 0


@pytest_asyncio.fixture
async def served() -> AsyncIterator[Served]:
    served = Served()
    served.port = await served.server.serve(0, "127.0.0.1")
    yield served
    await served.server.close()


async def asked(port: int, path: str) -> bytes:
    """What is answered, to its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n".encode())
    found = await reader.read()
    writer.close()
    return found


async def test_who_asks_more_often_than_any_prometheus_gets_the_last_scrape(served: Served) -> None:
    answers = [await asked(served.port, "/metrics") for _ in range(30)]
    assert served.collector.asked == metrics_server.SCRAPE_BURST
    assert all(answer.startswith(b"HTTP/1.1 200 ") for answer in answers)
    assert len(set(answers[9:])) == 1


async def test_many_silent_connections_cost_no_threads_and_keep_no_scrape_out(served: Served) -> None:
    before = threading.active_count()
    held = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(3 * metrics_server.MAX_CONNECTIONS)]
    assert (await asked(served.port, "/metrics")).startswith(b"HTTP/1.1 200 ")
    assert threading.active_count() == before
    for _, writer in held:
        writer.close()


async def test_many_silent_connections_keep_no_probe_out() -> None:
    server = ProbeServer(lambda: {"state": "leading"}, lambda: {"state": "leading"})
    port = await server.serve(0, "127.0.0.1")
    held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3 * probes.MAX_CONNECTIONS)]
    assert b'{"state":"leading"}' in await asked(port, "/healthz")
    assert len(server._http._open) <= probes.MAX_CONNECTIONS
    for _, writer in held:
        writer.close()
    await server.close()
