"""Metrics: absolute, named by the rules, bounded in number, and true to the hardware."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from flyball_agent.enforce.journal import Journal
from flyball_agent.gpu.gpu import GpuReading
from flyball_agent.gpu.simulated import SimulatedDriver, SimulatedGpu
from flyball_agent.node.agent import STALE_SECONDS
from flyball_agent.node.metrics import MAX_CONNECTIONS, SCRAPE_BURST, SCRAPES_PER_SECOND, AgentCollector, MetricsServer
from flyball_agent.pods.resources import PodDevices
from flyball_agent.process.single import SingleProcessAgent
from flyball_simulated_gpu.catalogue import CATALOGUE
from flyball_simulated_gpu.device import DeviceFault
from flyball_simulated_gpu.virtual import VirtualNode
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.support.agent_doubles import Pods, VirtualClock
from tests.support.gpu_node_specs import gpu_node_spec, job_grant
from tests.support.metrics_document import described, documented
from tests.support.waiting import until

A100 = CATALOGUE["NVIDIA-A100-SXM4-40GB"]
SECOND = 1_000_000_000


Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def make(
    tmp_path: Path,
    name: str = "node-0",
    gpus: int = 2,
    node: VirtualNode | None = None,
    clock: VirtualClock | None = None,
) -> tuple[SingleProcessAgent, VirtualNode, VirtualClock]:
    clock = clock or VirtualClock()
    node = node or VirtualNode(name, [A100] * gpus, clock)
    pods = Pods(PodDevices("research", "gpt2-1-0", "uid-1", (node.devices[0].uuid,)))
    agent = SingleProcessAgent(
        name, SimulatedDriver(node), Journal(tmp_path, name), pods, clock_ns=clock, version="1.2"
    )
    granted = job_grant("gpt2-1-0", 300_000, 1, (0, 1005), job="gpt2", uid="u")
    agent.accept_spec(gpu_node_spec(9, 500_000, granted, epoch=4, lease=60))
    return agent, node, clock


def scrape(*agents: SingleProcessAgent) -> Samples:
    registry = CollectorRegistry()
    registry.register(AgentCollector(agents))
    text = generate_latest(registry).decode()
    samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in samples  # no series twice
            samples[key] = sample.value
    return samples


def value(samples: Samples, name: str, **labels: str) -> float:
    found = [v for (n, ls), v in samples.items() if n == name and labels.items() <= dict(ls).items()]
    assert len(found) == 1, (name, labels, found)
    return found[0]


def run(agent: SingleProcessAgent, clock: VirtualClock, seconds: float = 1.0) -> None:
    clock.now_ns += round(seconds * SECOND)
    asyncio.run(one_round(agent))


async def one_round(agent: SingleProcessAgent) -> None:
    await agent.find_pods()
    await agent.tick()


def test_the_hardware_is_told_in_base_units(tmp_path: Path) -> None:
    agent, node, clock = make(tmp_path)
    run(agent, clock)
    node.devices[0].set_activity(0.6)
    run(agent, clock, 10)
    run(agent, clock, 10)
    samples, device = scrape(agent), node.devices[0]
    busy = {"gpu": device.uuid}
    state = device.read()
    assert value(samples, "flyball_gpu_power_watts", **busy, kind="average") == state.power_milliwatts / 1000
    assert value(samples, "flyball_gpu_power_limit_watts", **busy, kind="requested") == 300
    assert value(samples, "flyball_gpu_power_limit_watts", **busy, kind="default") == 400
    assert value(samples, "flyball_gpu_sm_clock_hertz", **busy) == 1005e6
    assert value(samples, "flyball_gpu_locked_clock_hertz", **busy, bound="max") == 1005e6
    assert value(samples, "flyball_gpu_utilization_ratio", **busy) == 1
    assert value(samples, "flyball_gpu_throttled_seconds_total", **busy, reason="applications_clocks") == 20
    assert value(samples, "flyball_gpu_info", **busy, model="NVIDIA-A100-SXM4-40GB", index="0") == 1
    pod = value(samples, "flyball_pod_gpu_energy_joules_total", pod="gpt2-1-0", job_name="gpt2", method="exclusive")
    used = value(samples, "flyball_gpu_energy_joules_total", **busy)
    assert pod == used == 20 * state.power_milliwatts / 1000
    idle = value(samples, "flyball_idle_energy_joules_total")
    assert idle == value(samples, "flyball_gpu_energy_joules_total", gpu=node.devices[1].uuid)
    agent.enforcer.close()


def test_the_agent_tells_what_it_does(tmp_path: Path) -> None:
    agent, node, clock = make(tmp_path)
    run(agent, clock)
    node.devices[1].flags = DeviceFault.LOST
    node.devices[0].set_power_limit_milliwatts(350_000)
    agent.operator_seen(4)
    run(agent, clock, 15)
    samples = scrape(agent)
    assert value(samples, "flyball_agent_plan_generation") == 9
    assert value(samples, "flyball_agent_plan_epoch") == 4
    assert value(samples, "flyball_agent_grant_watts") == 500
    assert value(samples, "flyball_agent_held_watts") == 400
    assert value(samples, "flyball_agent_lease_remaining_seconds") == 45
    assert value(samples, "flyball_agent_mode", mode="Granted") == 1
    assert value(samples, "flyball_agent_mode", mode="Failsafe") == 0
    assert value(samples, "flyball_agent_drift_corrections_total") == 1
    assert value(samples, "flyball_agent_lease_renewals_total") == 1
    assert value(samples, "flyball_agent_nvml_errors_total", op="read", code="15") == 1
    assert value(samples, "flyball_gpu_up", gpu=node.devices[1].uuid) == 0
    assert value(samples, "flyball_gpu_health", gpu=node.devices[0].uuid, reason="Governed") == 1
    assert value(samples, "flyball_gpu_health", gpu=node.devices[1].uuid, reason="Lost") == 1
    assert value(samples, "flyball_agent_journal_ok") == 1
    agent.enforcer.close()


def test_what_the_journal_could_not_read_is_counted_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "node-0.journal").write_bytes(b"12345678 {}\n")
    agent, _, clock = make(tmp_path)
    run(agent, clock)
    assert value(scrape(agent), "flyball_agent_journal_unreadable_records_total") == 1
    assert "journal could not be read whole" in caplog.text
    agent.enforcer.close()


def test_names_and_labels_keep_the_rules_and_the_number_is_bounded(tmp_path: Path) -> None:
    agent, _, clock = make(tmp_path, gpus=8)
    run(agent, clock)
    samples = scrape(agent)
    assert len(samples) < 300
    for name, labels in samples:
        assert re.fullmatch(r"flyball_(gpu|pod|agent|idle|unattributed|discarded)_[a-z_]+", name)
        # `job` and `instance` are Prometheus' own names for what it scrapes.
        assert not {label for label, _ in labels} & {"pid", "plan", "generation", "uid", "job", "instance"}
    agent.enforcer.close()


def test_the_document_has_every_metric_as_it_is_served(tmp_path: Path) -> None:
    agent, node, clock = make(tmp_path)
    run(agent, clock)
    node.devices[
        1
    ].flags = DeviceFault.LOST  # a call that fails, and an error that the driver tells: series of then only
    node.devices[1].report_xid_error(79)
    run(agent, clock)
    assert described(AgentCollector([agent]).collect()) == documented("The agents")
    agent.enforcer.close()


def test_many_agents_of_one_process_are_told_apart(tmp_path: Path) -> None:
    made = [make(tmp_path, f"node-{number}") for number in range(3)]
    for agent, _, clock in made:
        run(agent, clock)
    samples = scrape(*[agent for agent, _, _ in made])
    assert value(samples, "flyball_agent_plan_generation", node="node-2") == 9
    assert all("node" in dict(labels) for _, labels in samples)
    for agent, _, _ in made:
        agent.enforcer.close()


def test_no_counter_falls_when_an_agent_is_killed_and_comes_back(tmp_path: Path) -> None:
    agent, node, clock = make(tmp_path)
    assert scrape(agent) == {}  # no round yet
    run(agent, clock)
    run(agent, clock, 10)
    run(agent, clock, 5)  # not written down any more
    name, gpu = "flyball_gpu_energy_joules_total", node.devices[0].uuid
    before = value(scrape(agent), name, gpu=gpu)
    agent.enforcer.close()
    agent, _, _ = make(tmp_path, node=node, clock=clock)
    assert scrape(agent) == {}
    asyncio.run(agent.tick())  # the kubelet has not answered yet: it is not known whose the energy is
    samples = scrape(agent)
    assert value(samples, "flyball_gpu_up", gpu=gpu) == 1
    assert not [key for key in samples if "joules" in key[0]]
    run(agent, clock)
    assert value(scrape(agent), name, gpu=gpu) >= before
    agent.enforcer.close()


def test_a_gpu_without_an_energy_counter_has_no_series_of_energy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that stays at zero would say that it uses none."""
    agent, node, clock = make(tmp_path)
    without, real = node.devices[0], SimulatedGpu.read

    def read(gpu: SimulatedGpu) -> GpuReading:
        reading = real(gpu)
        return replace(reading, energy_millijoules=None) if gpu.uuid == without.uuid else reading

    monkeypatch.setattr(SimulatedGpu, "read", read)
    run(agent, clock)
    run(agent, clock, 10)
    samples = scrape(agent)
    assert value(samples, "flyball_gpu_power_limit_watts", gpu=without.uuid, kind="requested") == 300
    counted = {dict(labels)["gpu"] for name, labels in samples if name == "flyball_gpu_energy_joules_total"}
    assert counted == {device.uuid for device in node.devices} - {without.uuid}
    agent.enforcer.close()


def test_what_a_pod_used_at_its_end_is_still_there_for_three_scrapes(tmp_path: Path) -> None:
    agent, node, clock = make(tmp_path)
    pods = agent._pod_resources
    assert isinstance(pods, Pods)
    node.devices[0].set_activity(0.5)
    run(agent, clock)
    pods.pods = ()
    used = 7 * node.devices[0].read().power_milliwatts / 1000
    run(agent, clock, 7)
    name = "flyball_pod_gpu_energy_joules_total"
    for _ in range(3):
        assert value(scrape(agent), name, pod="gpt2-1-0", job_name="gpt2") == used
        run(agent, clock, 59)
    run(agent, clock, 59)
    assert not [key for key in scrape(agent) if key[0] == name]
    agent.enforcer.close()


async def test_a_port_that_is_taken_is_tried_again(tmp_path: Path) -> None:
    agent, _, _ = make(tmp_path)
    first = MetricsServer(AgentCollector([agent]), host="127.0.0.1")
    port = await first.start()
    second = MetricsServer(AgentCollector([agent]), host="127.0.0.1", port=port)
    serving = asyncio.create_task(second.serve())
    with pytest.raises(OSError, match="address already in use"):
        await MetricsServer(AgentCollector([agent]), host="127.0.0.1", port=port).start()
    await first.stop()

    async def served() -> bool:
        try:
            async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/healthz") as answer:
                return answer.status == 503 and await answer.text() == "node-0: no round yet\n"
        except aiohttp.ClientError:
            return False

    await until(served)
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    agent.enforcer.close()


async def test_prometheus_is_served(tmp_path: Path) -> None:
    agent, _, clock = make(tmp_path)
    await one_round(agent)
    server = MetricsServer(AgentCollector([agent]), host="127.0.0.1")
    port = await server.start()
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        async with session.get("/metrics") as answer:
            assert answer.status == 200
            assert answer.headers["Content-Type"].startswith("text/plain")
            text = await answer.text()
            assert "flyball_gpu_up" in text
            assert "\nprocess_resident_memory_bytes " in text
        async with session.get("/metrics", headers={"Accept": "application/openmetrics-text"}) as answer:
            assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
            assert (await answer.text()).endswith("# EOF\n")
        async with session.get("/healthz") as answer:
            assert (answer.status, await answer.text()) == (200, "node-0: last round 0.0 s ago\n")
        clock.advance(STALE_SECONDS + 1)  # and no round is made
        async with session.get("/healthz") as answer:
            assert (answer.status, await answer.text()) == (503, "node-0: last round 11.0 s ago\n")
        assert value(scrape(agent), "flyball_agent_last_round_age_seconds") == 11
    await server.stop()
    agent.enforcer.close()


async def test_what_nobody_serves_is_said_and_connections_are_bounded(tmp_path: Path) -> None:
    """Whoever opens many, and says nothing, keeps no scrape and no probe out."""
    agent, _, _ = make(tmp_path)
    await one_round(agent)
    server = MetricsServer(AgentCollector([agent]), host="127.0.0.1")
    port = await server.start()
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MAX_CONNECTIONS)]
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        async with session.get("/metrics") as answer:
            assert answer.headers["Content-Encoding"] == "gzip"
            assert "flyball_gpu_up" in await answer.text()
        async with session.head("/healthz") as answer:
            assert (answer.status, await answer.read()) == (200, b"")
        async with session.get("/else") as answer:
            assert answer.status == 404
        async with session.post("/metrics", data=b"x" * 100) as answer:
            assert answer.status == 405
    ended = [asyncio.create_task(reader.read()) for reader, _ in silent]
    done, _ = await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
    assert 0 < len(done) < MAX_CONNECTIONS
    await server.stop()
    await asyncio.gather(*ended, return_exceptions=True)
    agent.enforcer.close()


async def test_a_flood_of_scrapes_is_answered_with_few_that_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, _, _ = make(tmp_path)
    await one_round(agent)
    now, made, collect = 1000.0, 0, AgentCollector.collect

    def counted(collector: AgentCollector) -> Iterator[Metric]:
        nonlocal made
        made += 1
        return collect(collector)

    monkeypatch.setattr(AgentCollector, "collect", counted)
    server = MetricsServer(AgentCollector([agent]), host="127.0.0.1", monotonic=lambda: now)
    port = await server.start()
    made = 0
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        for seconds, most in ((0.0, SCRAPE_BURST), (1.0, SCRAPE_BURST + SCRAPES_PER_SECOND)):
            now += seconds
            for _ in range(2 * MAX_CONNECTIONS):
                async with session.get("/metrics") as answer:
                    assert "flyball_gpu_up" in await answer.text()
            assert made == most
    await server.stop()
    agent.enforcer.close()


def test_xid_errors_are_counted_by_their_number(tmp_path: Path) -> None:
    agent, node, _ = make(tmp_path)
    asyncio.run(agent.tick())
    assert not any(name == "flyball_gpu_xid_errors_total" for name, _ in scrape(agent))
    for xid in (31, 31, 79):
        node.devices[1].report_xid_error(xid)
        asyncio.run(agent.tick())
    counted = {dict(labels)["xid"]: value for (name, labels), value in scrape(agent).items() if "xid_errors" in name}
    assert counted == {"31": 2.0, "79": 1.0}
