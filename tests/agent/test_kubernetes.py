"""The agent's shell on the real API server: specs in, status out, the pulse, and outages of every kind."""

from __future__ import annotations

import asyncio
import importlib.util
import time
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from flyball_agent.agent import NodeAgent
from flyball_agent.core import Mode
from flyball_agent.drivers.catalogue import CATALOGUE
from flyball_agent.drivers.simulated_gpu import SimulatedDriver
from flyball_agent.drivers.virtual import VirtualNode
from flyball_agent.journal import Journal
from flyball_agent.kubernetes import GpuNodeChannel, LeaseWatch, PodUids
from flyball_agent.pod_resources import PodDevices
from flyball_kube.resources import GPU_NODES, LEASES
from flyball_kube.session import ApiSession, load_configuration

A100 = CATALOGUE["NVIDIA-A100-SXM4-40GB"]
PATIENCE_SECONDS = 60.0
LEASE_PATH = LEASES.path("flyball-system", "flyball-operator")


def load_proxy():
    """The network that can be broken, from the tests of the Kubernetes access."""
    path = Path(__file__).parents[1] / "kube" / "proxy.py"
    spec = importlib.util.spec_from_file_location("flyball_tests_agent_proxy", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Proxy


async def until(condition, what=""):
    """Return once `condition` (plain or async) holds; fails after a long while."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                answer = condition()
                if answer if isinstance(answer, bool) else await answer:
                    return
                await asyncio.sleep(0.01)
    except TimeoutError as error:
        raise AssertionError(f"never came true: {what}") from error


class Pods:
    pods: tuple[PodDevices, ...] = ()

    async def list(self):
        return self.pods

    async def close(self):
        pass


class Node:
    """A simulated node with its agent, reached through a network that can be broken."""

    def __init__(self, name: str, admin: ApiSession, session: ApiSession, proxy, folder) -> None:
        self.name, self.admin, self.session, self.proxy = name, admin, session, proxy
        self.hardware = VirtualNode(name, [A100] * 2, lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME))
        self.pods = Pods()
        self.agent = NodeAgent(name, SimulatedDriver(self.hardware), Journal(folder, name), self.pods, tick_seconds=0.2)
        self.channel = GpuNodeChannel(session, self.agent, status_interval_seconds=3600)
        self.lease_watch = LeaseWatch(session)
        self.lease_watch.listen(self.agent.operator_seen)

    @property
    def path(self) -> str:
        return GPU_NODES.path(name=self.name)

    async def create(self, generation: int, grant: int, **fields) -> None:
        body = {"apiVersion": "flyball.dev/v1alpha1", "kind": "GPUNode", "metadata": {"name": self.name}}
        await self.admin.create(GPU_NODES.path(), {**body, "spec": spec(generation, grant, **fields)})

    async def grant(self, generation: int, grant: int, **fields) -> None:
        await self.admin.patch(self.path, {"spec": spec(generation, grant, **fields)})

    async def status(self) -> dict:
        return (await self.admin.get(self.path)).get("status") or {}

    async def acknowledged(self, generation: int) -> None:
        async def told() -> bool:
            return (await self.status()).get("acknowledged", {}).get("generation") == generation

        await until(told, f"generation {generation} acknowledged")

    def limits(self) -> list[int]:
        return [device.read().requested_limit_milliwatts for device in self.hardware.devices]


def spec(generation: int, grant: int, *, lease: int = 600, **devices: int) -> dict:
    return {
        "epoch": 1,
        "generation": generation,
        "leaseSeconds": lease,
        "grantMilliwatts": grant,
        "expectedMilliwatts": 0,
        "worstHoldMilliwatts": grant,
        "worstExpectedMilliwatts": 0,
        "devices": devices,
    }


async def renew(admin: ApiSession, count: int) -> None:
    """Write the operator's Lease as the operator does."""
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "flyball-operator"}}
    renew_time = f"2026-01-01T00:{count // 60:02}:{count % 60:02}.000000Z"
    await admin.apply(LEASE_PATH, {**lease, "spec": {"holderIdentity": "tests", "renewTime": renew_time}}, "tests")


async def run_node(stack: AsyncExitStack, devcluster, name: str, folder, user: Path | None = None) -> Node:
    proxy = await stack.enter_async_context(load_proxy()(int(devcluster.control_plane.server_url.rpartition(":")[2])))
    admin = await stack.enter_async_context(ApiSession(await load_configuration(devcluster.kubeconfig)))
    configuration = await load_configuration(user or devcluster.kubeconfig)
    configuration.host = f"https://127.0.0.1:{proxy.port}"
    session = await stack.enter_async_context(ApiSession(configuration, timeout_seconds=2.0))
    node = Node(name, admin, session, proxy, folder)
    tasks = [asyncio.create_task(part.run()) for part in (node.agent, node.channel, node.lease_watch)]

    async def end() -> None:
        for task in tasks:
            assert not task.done(), "no task of the agent may end by itself"
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await node.agent.close()

    stack.push_async_callback(end)
    return node


@pytest.fixture
async def node(cluster, tmp_path):
    async with AsyncExitStack() as stack:
        yield await run_node(stack, cluster.devcluster, "agent-test-0", tmp_path)


async def test_a_grant_goes_down_and_its_acknowledgement_comes_back(node):
    await until(lambda: node.agent.tally.rounds > 1)
    assert node.limits() == [400_000, 400_000]  # no GPUNode yet: nothing is touched
    await node.create(1, 200_000)
    await node.acknowledged(1)
    status = await node.status()
    assert node.limits() == [100_000, 100_000]
    assert status["mode"] == "Floor"
    assert status["acknowledged"]["limitsMilliwatts"] == 200_000
    assert [device["uuid"] for device in status["devices"]] == [device.uuid for device in node.hardware.devices]
    ready = next(condition for condition in status["conditions"] if condition["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("True", "Serving")
    await node.grant(2, 700_000, idlePowerLimitMilliwatts=350_000)
    await node.acknowledged(2)
    assert node.limits() == [350_000, 350_000]


async def test_news_is_told_at_once_and_measurements_wait_for_their_interval(node):
    await node.create(1, 200_000)
    await node.acknowledged(1)
    await until(lambda: node.agent.tally.rounds > 5)
    written, rounds = node.channel.published, node.agent.tally.rounds
    node.hardware.devices[0].set_activity(1.0)
    await until(lambda: node.agent.tally.rounds > rounds + 5)
    assert node.channel.published == written  # an hour's interval, and nothing but watts and joules has changed
    node.pods.pods = (PodDevices("research", "gpt2-1-0", "u", (node.hardware.devices[0].uuid,)),)

    async def told() -> bool:
        return (await node.status())["devices"][0].get("pod") == {"namespace": "research", "name": "gpt2-1-0"}

    await until(told)


async def test_the_lease_is_renewed_by_sight_and_first_sights_do_not_count(node):
    await renew(node.admin, 1)
    await until(lambda: node.lease_watch._renew_time is not None)
    assert node.lease_watch.renewals == 0
    for count in range(2, 5):
        await renew(node.admin, count)
        await until(lambda count=count: node.lease_watch.renewals == count - 1)
    node.proxy.refusing = True
    node.proxy.cut()
    await renew(node.admin, 5)  # nobody sees this one happen
    reconnects = node.lease_watch.reconnects
    await until(lambda: node.lease_watch.reconnects > reconnects)
    node.proxy.refusing = False
    await until(lambda: (node.lease_watch._renew_time or "").startswith("2026-01-01T00:00:05"))
    assert node.lease_watch.renewals == 3
    await renew(node.admin, 6)
    await until(lambda: node.lease_watch.renewals == 4)


async def test_without_a_sign_of_the_operator_the_node_steps_down_and_comes_back(node):
    await renew(node.admin, 1)
    await node.create(1, 600_000, lease=2, idlePowerLimitMilliwatts=300_000)
    await node.acknowledged(1)
    assert node.limits() == [300_000, 300_000]

    async def mode(expected: str) -> bool:
        return (await node.status()).get("mode") == expected

    await until(lambda: mode("Failsafe"))
    assert node.limits() == [100_000, 100_000]
    await renew(node.admin, 2)
    await until(lambda: mode("Granted"))
    assert node.limits() == [300_000, 300_000]


async def test_an_unreachable_api_changes_nothing_until_the_lease_ends_and_then_catches_up(node):
    await node.create(1, 600_000, lease=3, idlePowerLimitMilliwatts=300_000)
    await node.acknowledged(1)
    node.proxy.refusing = True
    node.proxy.cut()
    await node.grant(2, 500_000, lease=600, idlePowerLimitMilliwatts=250_000)
    rounds = node.agent.tally.rounds
    await until(lambda: node.agent.tally.rounds > rounds + 3)
    assert node.agent.enforcer.acknowledged.generation == 1
    assert node.limits() in ([300_000, 300_000], [100_000, 100_000])
    await until(lambda: node.agent.enforcer.mode is Mode.FAILSAFE)
    assert node.limits() == [100_000, 100_000]
    node.proxy.refusing = False
    await node.acknowledged(2)
    assert node.limits() == [250_000, 250_000]


async def test_a_status_that_cannot_be_written_is_written_later_as_it_is_then(node):
    await node.create(1, 200_000)
    await node.acknowledged(1)
    node.proxy.hold_answers = True  # requests pass, no answer comes
    node.pods.pods = (PodDevices("research", "a", "u", (node.hardware.devices[0].uuid,)),)
    await until(lambda: node.channel.failed > 0)  # but it was written: only the answer was lost
    node.pods.pods = ()
    await until(lambda: node.agent.enforcer.boards[node.hardware.devices[0].uuid].pods == ())
    node.proxy.hold_answers = False

    async def told() -> bool:
        return "pod" not in (await node.status())["devices"][0]

    await until(told)


async def test_a_deleted_gpunode_is_not_renewed_and_a_new_one_is_told_everything(node):
    await renew(node.admin, 1)
    await node.create(1, 600_000, lease=2, idlePowerLimitMilliwatts=300_000)
    await node.acknowledged(1)
    await node.admin.delete(node.path)
    await until(lambda: node.channel.informer.get(node.name) is None)
    count = 1

    async def failsafe() -> bool:
        nonlocal count
        count += 1
        await renew(node.admin, count)  # the operator lives, but governs this node no more
        return node.agent.enforcer.mode is Mode.FAILSAFE

    await until(failsafe)
    assert node.limits() == [100_000, 100_000]  # never the default
    await node.create(2, 600_000, idlePowerLimitMilliwatts=250_000)
    await node.acknowledged(2)
    assert node.limits() == [250_000, 250_000]


async def test_a_stale_gpunode_is_refused_and_said(node):
    await node.create(5, 200_000)
    await node.acknowledged(5)
    await node.admin.delete(node.path)
    await until(lambda: node.channel.informer.get(node.name) is None)
    await node.create(4, 800_000, idlePowerLimitMilliwatts=400_000)

    async def said() -> bool:
        conditions = (await node.status()).get("conditions", ())
        return any(c["type"] == "Degraded" and c["reason"] == "StaleSpec" for c in conditions)

    await until(said)
    assert node.limits() == [100_000, 100_000]


async def test_an_agents_own_credential_is_enough_and_speaks_for_its_node_only(cluster, tmp_path):
    devcluster = cluster.devcluster
    names = cluster.add_nodes(2, gpus=2)
    user = await asyncio.to_thread(devcluster.agent_kubeconfig, names[0])
    async with AsyncExitStack() as stack:
        node = await run_node(stack, devcluster, names[0], tmp_path, user)
        await renew(node.admin, 1)
        await node.create(1, 200_000)
        await node.acknowledged(1)
        await until(lambda: node.lease_watch._renew_time is not None)
        await renew(node.admin, 2)
        await until(lambda: node.lease_watch.renewals == 1)
        uids = PodUids(node.session, names[0])
        task = asyncio.create_task(uids.run())
        pod = (await asyncio.to_thread(devcluster.agent_pods, names))[names[0]]
        await until(lambda: uids("flyball-system", pod) is not None)
        task.cancel()
        # Its neighbour's status is not its own: the write is refused, and the neighbour's agent could write it.
        neighbour = Node(names[1], node.admin, node.session, node.proxy, tmp_path)
        await neighbour.create(1, 200_000)
        await neighbour.agent.tick()
        foreign = asyncio.create_task(neighbour.channel.run())
        await until(lambda: neighbour.channel.failed > 0)
        foreign.cancel()
        await asyncio.gather(foreign, task, return_exceptions=True)
        assert await neighbour.status() == {}
        await neighbour.agent.close()


async def test_a_paused_api_server_is_survived(fresh_cluster, tmp_path):
    async with AsyncExitStack() as stack:
        node = await run_node(stack, fresh_cluster, "agent-test-0", tmp_path)
        await node.create(1, 600_000, lease=600, idlePowerLimitMilliwatts=300_000)
        await node.acknowledged(1)
        fresh_cluster.control_plane.pause_component("kube-apiserver")
        try:
            rounds = node.agent.tally.rounds
            node.hardware.devices[0].set_power_limit_milliwatts(400_000)
            node.pods.pods = (PodDevices("research", "a", "u", (node.hardware.devices[1].uuid,)),)
            await until(lambda: node.channel.failed > 0)
            assert node.limits() == [300_000, 300_000]  # drift is put back without anybody's leave
            assert node.agent.tally.rounds > rounds
        finally:
            fresh_cluster.control_plane.resume_component("kube-apiserver")

        async def told() -> bool:
            return (await node.status())["devices"][1].get("pod") is not None

        await until(told)
        node.pods.pods = ()
        await node.grant(2, 500_000, idlePowerLimitMilliwatts=250_000)
        await node.acknowledged(2)
        # A restarted API server ends every watch, and may forget the versions that they stood at.
        fresh_cluster.control_plane.kill_component("kube-apiserver")
        await asyncio.to_thread(fresh_cluster.control_plane.start_component, "kube-apiserver")
        await node.grant(3, 400_000, idlePowerLimitMilliwatts=200_000)
        await node.acknowledged(3)
        assert node.limits() == [200_000, 200_000]


class Stopped:
    def __init__(self) -> None:
        self.now_ns = 10**12

    def __call__(self) -> int:
        return self.now_ns


def test_what_a_frozen_process_finds_in_its_buffers_proves_nothing():
    clock = Stopped()
    watch = LeaseWatch(SimpleNamespace(), clock_ns=clock)
    seen = []
    watch.listen(lambda: seen.append(clock.now_ns))

    def saw(count: int) -> None:
        watch._saw({"spec": {"renewTime": f"t{count}"}})

    saw(1)
    clock.now_ns += 10**9
    saw(2)
    assert len(seen) == 1
    clock.now_ns += 60 * 10**9  # SIGSTOP
    saw(3)
    saw(4)
    assert len(seen) == 1
    clock.now_ns += 500_000_000
    watch.check_frozen()
    saw(5)
    assert len(seen) == 1
    clock.now_ns += 600_000_000
    saw(6)
    assert len(seen) == 2
