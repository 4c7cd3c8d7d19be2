"""Metrics: absolute, named by the rules, bounded in number, and true to the hardware."""

from __future__ import annotations

import asyncio
import re

import aiohttp
from flyball_agent.agent import NodeAgent
from flyball_agent.drivers.catalogue import CATALOGUE
from flyball_agent.drivers.simulated import DeviceFault
from flyball_agent.drivers.simulated_gpu import SimulatedDriver
from flyball_agent.drivers.virtual import VirtualNode
from flyball_agent.journal import Journal
from flyball_agent.metrics import AgentCollector, MetricsServer
from flyball_agent.pod_resources import PodDevices
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

A100 = CATALOGUE["NVIDIA-A100-SXM4-40GB"]
SECOND = 1_000_000_000


class Pods:
    pods: tuple[PodDevices, ...] = ()

    async def list(self):
        return self.pods

    async def close(self):
        pass


class Clock:
    now_ns = 1000 * SECOND

    def __call__(self):
        return self.now_ns


def make(tmp_path, name="node-0", boards=2):
    clock = Clock()
    node = VirtualNode(name, [A100] * boards, clock)
    pods = Pods()
    pods.pods = (PodDevices("research", "gpt2-1-0", "uid-1", (node.devices[0].uuid,)),)
    agent = NodeAgent(name, SimulatedDriver(node), Journal(tmp_path, name), pods, clock_ns=clock, version="1.2")
    agent.accept_spec(
        {
            "epoch": 4,
            "generation": 9,
            "leaseSeconds": 60,
            "grantMilliwatts": 500_000,
            "jobs": [
                {
                    "namespace": "research",
                    "name": "gpt2",
                    "uid": "u",
                    "incarnation": 1,
                    "podName": "gpt2-1-0",
                    "gpus": 1,
                    "powerLimitMilliwatts": 300_000,
                    "clockMegahertz": {"min": 0, "max": 1005},
                }
            ],
        }
    )
    return agent, node, clock


def scrape(*agents, node_label=False) -> dict[tuple[str, frozenset], float]:
    registry = CollectorRegistry()
    registry.register(AgentCollector(agents, node_label=node_label))
    text = generate_latest(registry).decode()
    samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in samples  # no series twice
            samples[key] = sample.value
    return samples


def value(samples, name, **labels):
    found = [v for (n, ls), v in samples.items() if n == name and labels.items() <= dict(ls).items()]
    assert len(found) == 1, (name, labels, found)
    return found[0]


def run(agent, clock, seconds=1.0):
    clock.now_ns += round(seconds * SECOND)
    asyncio.run(agent.tick())


def test_the_hardware_is_told_in_base_units(tmp_path):
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
    pod = value(samples, "flyball_pod_gpu_energy_joules_total", pod="gpt2-1-0", job="gpt2", method="exclusive")
    board = value(samples, "flyball_gpu_energy_joules_total", **busy)
    assert pod == board == 20 * state.power_milliwatts / 1000
    idle = value(samples, "flyball_idle_energy_joules_total")
    assert idle == value(samples, "flyball_gpu_energy_joules_total", gpu=node.devices[1].uuid)
    agent.journal.close()


def test_the_agent_tells_what_it_does(tmp_path):
    agent, node, clock = make(tmp_path)
    run(agent, clock)
    node.devices[1].flags = DeviceFault.LOST
    node.devices[0].set_power_limit_milliwatts(350_000)
    agent.operator_seen()
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
    assert value(samples, "flyball_agent_journal_ok") == 1
    agent.journal.close()


def test_names_and_labels_keep_the_rules_and_the_number_is_bounded(tmp_path):
    agent, _, clock = make(tmp_path, boards=8)
    run(agent, clock)
    samples = scrape(agent)
    assert len(samples) < 300
    for name, labels in samples:
        assert re.fullmatch(r"flyball_(gpu|pod|agent|idle|unattributed|discarded)_[a-z_]+", name)
        assert not {label for label, _ in labels} & {"pid", "plan", "generation", "uid"}
    agent.journal.close()


def test_many_agents_of_one_process_are_told_apart(tmp_path):
    made = [make(tmp_path, f"node-{number}") for number in range(3)]
    for agent, _, clock in made:
        run(agent, clock)
    samples = scrape(*[agent for agent, _, _ in made], node_label=True)
    assert value(samples, "flyball_agent_plan_generation", node="node-2") == 9
    assert all("node" in dict(labels) for _, labels in samples)
    for agent, _, _ in made:
        agent.journal.close()


async def test_prometheus_is_served(tmp_path):
    agent, _, _ = make(tmp_path)
    await agent.tick()
    server = MetricsServer(AgentCollector([agent]), host="127.0.0.1")
    port = await server.start()
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        async with session.get("/metrics") as answer:
            assert answer.status == 200
            assert answer.headers["Content-Type"].startswith("text/plain")
            assert "flyball_gpu_energy_joules_total" in await answer.text()
        async with session.get("/healthz") as answer:
            assert await answer.text() == "ok\n"
    await server.stop()
    agent.journal.close()
