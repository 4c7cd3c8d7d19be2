"""The agent's shell on the real API server: specs in, status out, the pulse, and outages of every kind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flyball_agent.cluster.brake_watch import BrakeWatch
from flyball_agent.cluster.gpu_node_channel import GpuNodeChannel
from flyball_agent.cluster.lease_watch import LeaseWatch
from flyball_agent.enforce.decisions import Mode
from flyball_agent.enforce.journal import Journal
from flyball_agent.gpu.simulated import SimulatedDriver
from flyball_agent.pods.resources import PodDevices
from flyball_agent.process.single import SingleProcessAgent
from flyball_api.names import DEFAULT_NAMESPACE, LEADER_LEASE
from flyball_api.power_brake import PowerBrakeSpec, power_brake_object
from flyball_kube.credentials import load_configuration
from flyball_kube.errors import ApiError
from flyball_kube.resources import BRAKE_ACKNOWLEDGEMENTS, GPU_NODES, LEASES, PODS, POWER_BRAKES
from flyball_kube.session import ApiSession
from flyball_simulated_gpu.catalogue import CATALOGUE
from flyball_simulated_gpu.virtual import VirtualNode
from flyball_testbed.controlplane.cluster import DevCluster

from tests.support.agent_doubles import Pods
from tests.support.control_plane import IsolatedCluster
from tests.support.gpu_node_specs import gpu_node_spec, job_grant
from tests.support.proxy import Proxy
from tests.support.waiting import until

A100 = CATALOGUE["NVIDIA-A100-SXM4-40GB"]


class Node:
    """A simulated node with its agent, reached through a network that can be broken."""

    def __init__(
        self,
        name: str,
        admin: ApiSession,
        session: ApiSession,
        proxy: Proxy,
        folder: Path,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> None:
        self.name, self.admin, self.session, self.proxy = name, admin, session, proxy
        self.hardware = VirtualNode(name, [A100] * 2, lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME))
        self.pods = Pods()
        self.agent = SingleProcessAgent(
            name, SimulatedDriver(self.hardware), Journal(folder, name), self.pods, tick_seconds=0.2
        )
        self.channel = GpuNodeChannel(session, self.agent, status_interval_seconds=3600)
        self.lease_watch = LeaseWatch(session, namespace=namespace)
        self.brake_watch = BrakeWatch(session)
        self.brake_watch.listen(self.agent.take_brakes)
        self.lease_watch.listen(self.agent.operator_seen)

    @property
    def path(self) -> str:
        return GPU_NODES.path(name=self.name)

    async def create(self, generation: int, grant: int, **fields: int) -> None:
        body = {"apiVersion": "flyball.dev/v1alpha1", "kind": "GPUNode", "metadata": {"name": self.name}}
        await self.admin.create(
            GPU_NODES.path(), {**body, "spec": gpu_node_spec(generation, grant, **{"lease": 600, **fields})}
        )

    async def grant(self, generation: int, grant: int, **fields: int) -> None:
        await self.admin.patch(self.path, {"spec": gpu_node_spec(generation, grant, **{"lease": 600, **fields})})

    async def status(self) -> dict:
        return (await self.admin.get(self.path)).get("status") or {}

    async def acknowledged(self, generation: int) -> None:
        async def told() -> bool:
            return (await self.status()).get("acknowledged", {}).get("generation") == generation

        await until(told, f"generation {generation} acknowledged")

    def limits(self) -> list[int]:
        return [device.read().requested_limit_milliwatts for device in self.hardware.devices]


async def renew(admin: ApiSession, count: int, namespace: str = DEFAULT_NAMESPACE) -> None:
    """Write the operator's Lease as the operator does."""
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": LEADER_LEASE}}
    renew_time = f"2026-01-01T00:{count // 60:02}:{count % 60:02}.000000Z"
    path = LEASES.path(namespace, LEADER_LEASE)
    await admin.apply(
        path, {**lease, "spec": {"holderIdentity": "tests", "renewTime": renew_time, "leaseTransitions": 1}}, "tests"
    )


async def run_node(
    stack: AsyncExitStack,
    devcluster: DevCluster,
    name: str,
    folder: Path,
    user: Path | None = None,
    namespace: str = DEFAULT_NAMESPACE,
) -> Node:
    proxy = await stack.enter_async_context(Proxy(int(devcluster.control_plane.server_url.rpartition(":")[2])))
    admin = await stack.enter_async_context(ApiSession(load_configuration(devcluster.kubeconfig)))
    configuration = load_configuration(user or devcluster.kubeconfig)
    configuration.host = f"https://127.0.0.1:{proxy.port}"
    session = await stack.enter_async_context(ApiSession(configuration, timeout_seconds=2.0))
    node = Node(name, admin, session, proxy, folder, namespace)
    tasks = [asyncio.create_task(part.run()) for part in (node.agent, node.channel, node.lease_watch, node.brake_watch)]

    async def end() -> None:
        for task in tasks:
            assert not task.done(), "no task of the agent may end by itself"
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await node.agent.close()

    stack.push_async_callback(end)
    return node


@pytest.fixture
async def node(cluster: IsolatedCluster, tmp_path: Path) -> AsyncIterator[Node]:
    async with AsyncExitStack() as stack:
        yield await run_node(stack, cluster.devcluster, "agent-test-0", tmp_path)


async def test_a_grant_goes_down_and_its_acknowledgement_comes_back(node: Node) -> None:
    await until(lambda: node.agent.state.counts.rounds > 1)
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


async def test_news_is_told_at_once_and_measurements_wait_for_their_interval(node: Node) -> None:
    await node.create(1, 200_000)
    await node.acknowledged(1)
    written = -1

    async def rounds_without_news() -> bool:
        """Whether nothing was written for five rounds; what the first status has left to say may come late."""
        nonlocal written
        written, rounds = node.channel.published, node.agent.state.counts.rounds
        await until(lambda: node.agent.state.counts.rounds > rounds + 5)
        return node.channel.published == written

    await until(rounds_without_news)
    node.hardware.devices[0].set_activity(1.0)
    rounds = node.agent.state.counts.rounds
    await until(lambda: node.agent.state.counts.rounds > rounds + 5)
    assert node.channel.published == written  # an hour's interval, and nothing but watts and joules has changed
    node.pods.pods = (PodDevices("research", "gpt2-1-0", "u", (node.hardware.devices[0].uuid,)),)

    async def told() -> bool:
        return (await node.status())["devices"][0].get("pod") == {"namespace": "research", "name": "gpt2-1-0"}

    await until(told)


async def test_the_lease_is_renewed_by_sight_and_first_sights_do_not_count(node: Node) -> None:
    await renew(node.admin, 1)
    await until(lambda: node.lease_watch._renewed is not None)
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
    await until(lambda: node.lease_watch._renewed == datetime(2026, 1, 1, second=5, tzinfo=UTC))
    assert node.lease_watch.renewals == 3
    await renew(node.admin, 6)
    await until(lambda: node.lease_watch.renewals == 4)


async def test_without_a_sign_of_the_operator_the_node_steps_down_and_comes_back(node: Node) -> None:
    await renew(node.admin, 1)
    await node.create(1, 600_000, idlePowerLimitMilliwatts=300_000)
    await node.acknowledged(1)
    assert node.limits() == [300_000, 300_000]
    await node.grant(2, 600_000, lease=2, idlePowerLimitMilliwatts=300_000)

    async def mode(expected: str) -> bool:
        return (await node.status()).get("mode") == expected

    await until(lambda: mode("Failsafe"))
    assert node.limits() == [100_000, 100_000]
    count = 1

    async def comes_back() -> bool:
        nonlocal count
        count += 1
        await renew(node.admin, count)
        return await mode("Granted") and node.limits() == [300_000, 300_000]

    await until(comes_back)


async def test_the_operators_lease_may_be_in_another_namespace(cluster: IsolatedCluster, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        elsewhere = cluster.namespace
        node = await run_node(stack, cluster.devcluster, "agent-test-0", tmp_path, namespace=elsewhere)
        await renew(node.admin, 1, elsewhere)
        await renew(node.admin, 1)
        await node.create(1, 600_000, lease=2, idlePowerLimitMilliwatts=300_000)
        await until(lambda: node.agent.state.enforced.mode is Mode.FAILSAFE)
        await until(lambda: node.lease_watch._renewed is not None)
        await renew(node.admin, 2)  # another operator's, in the default namespace
        await renew(node.admin, 2, elsewhere)
        await until(lambda: node.lease_watch.renewals > 0)
        await until(lambda: node.limits() == [300_000, 300_000])
        assert node.lease_watch.renewals == 1


async def test_an_unreachable_api_changes_nothing_until_the_lease_ends_and_then_catches_up(node: Node) -> None:
    await node.create(1, 600_000, lease=3, idlePowerLimitMilliwatts=300_000)
    await node.acknowledged(1)
    node.proxy.refusing = True
    node.proxy.cut()
    await node.grant(2, 500_000, lease=600, idlePowerLimitMilliwatts=250_000)
    rounds = node.agent.state.counts.rounds
    await until(lambda: node.agent.state.counts.rounds > rounds + 3)
    assert node.agent.enforcer.state.acknowledged.generation == 1
    assert node.limits() in ([300_000, 300_000], [100_000, 100_000])
    await until(lambda: node.agent.enforcer.state.mode is Mode.FAILSAFE)
    assert node.limits() == [100_000, 100_000]
    node.proxy.refusing = False
    await node.acknowledged(2)
    assert node.limits() == [250_000, 250_000]


async def test_a_status_that_cannot_be_written_is_written_later_as_it_is_then(node: Node) -> None:
    await node.create(1, 200_000)
    await node.acknowledged(1)
    node.proxy.hold_answers = True  # requests pass, no answer comes
    node.pods.pods = (PodDevices("research", "a", "u", (node.hardware.devices[0].uuid,)),)
    await until(lambda: node.channel.failed > 0)  # but it was written: only the answer was lost
    node.pods.pods = ()
    await until(lambda: node.agent.enforcer.state.gpus[node.hardware.devices[0].uuid].pods == ())
    node.proxy.hold_answers = False

    async def told() -> bool:
        return "pod" not in (await node.status())["devices"][0]

    await until(told)


async def test_a_report_that_comes_after_a_later_one_is_refused(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[dict] = []
    patch = node.session.patch

    async def recorded(path: str, body: dict, **params: str) -> dict:
        sent.append(body)
        return await patch(path, body, **params)

    monkeypatch.setattr(node.session, "patch", recorded)
    for generation in (1, 2):
        await (node.create if generation == 1 else node.grant)(generation, 200_000)
        await node.acknowledged(generation)
    late = next(body for body in sent if body["status"].get("acknowledged", {}).get("generation") == 1)
    with pytest.raises(ApiError) as refused:
        await node.admin.patch(f"{node.path}/status", late)
    assert refused.value.conflict
    assert (await node.status())["acknowledged"]["generation"] == 2


async def test_a_report_that_somebody_elses_write_overtakes_is_made_again_and_nothing_listed_anew(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[Any] = []
    patch = node.session.patch

    async def overtaken(path: str, body: dict, **params: str) -> dict:
        if not refused:
            await node.admin.patch(node.path, {"metadata": {"annotations": {"overtaken": "yes"}}})
        try:
            return await patch(path, body, **params)
        except ApiError as error:
            refused.append(error)
            raise

    monkeypatch.setattr(node.session, "patch", overtaken)
    await node.create(1, 200_000)
    await node.acknowledged(1)
    assert [error.conflict for error in refused] == [True]
    assert node.channel.informer.relists == 1


async def test_a_deleted_gpunode_is_not_renewed_and_a_new_one_is_told_everything(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    over: list[str] = []
    patch = node.session.patch

    async def recorded(path: str, body: dict, **params: str) -> dict:
        over.append(body["metadata"]["resourceVersion"])
        return await patch(path, body, **params)

    monkeypatch.setattr(node.session, "patch", recorded)
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
        return node.agent.enforcer.state.mode is Mode.FAILSAFE

    await until(failsafe)
    assert node.limits() == [100_000, 100_000]  # never the default
    await node.create(2, 600_000, idlePowerLimitMilliwatts=250_000)
    await node.acknowledged(2)
    assert node.limits() == [250_000, 250_000]
    assert all(over), "a report without a version would be taken at any time"


async def test_a_stale_gpunode_is_refused_and_said(node: Node) -> None:
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


async def test_an_agents_own_credential_is_enough_and_speaks_for_its_node_only(
    cluster: IsolatedCluster, tmp_path: Path
) -> None:
    devcluster = cluster.devcluster
    names = cluster.add_nodes(2, gpus=2)
    user = await asyncio.to_thread(devcluster.agent_kubeconfig, names[0])
    async with AsyncExitStack() as stack:
        node = await run_node(stack, devcluster, names[0], tmp_path, user)
        await renew(node.admin, 1)
        await node.create(1, 200_000)
        await node.acknowledged(1)
        await until(lambda: node.lease_watch._renewed is not None)
        await renew(node.admin, 2)
        await until(lambda: node.lease_watch.renewals == 1)
        with pytest.raises(ApiError) as refused:  # a grant names the UIDs of its pods: an agent sees no pod
            await node.session.get(PODS.path())
        assert refused.value.status == 403
        # Its neighbour's status is not its own: the write is refused, and the neighbour's agent could write it.
        neighbour = Node(names[1], node.admin, node.session, node.proxy, tmp_path)
        await neighbour.create(1, 200_000)
        await neighbour.agent.tick()
        foreign = asyncio.create_task(neighbour.channel.run())
        await until(lambda: neighbour.channel.failed > 0)
        foreign.cancel()
        await asyncio.gather(foreign, return_exceptions=True)
        assert await neighbour.status() == {}
        await neighbour.agent.close()


async def test_a_paused_api_server_is_survived(fresh_cluster: DevCluster, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        node = await run_node(stack, fresh_cluster, "agent-test-0", tmp_path)
        await node.create(1, 600_000, lease=600, idlePowerLimitMilliwatts=300_000)
        await node.acknowledged(1)
        fresh_cluster.control_plane.pause_component("kube-apiserver")
        try:
            rounds = node.agent.state.counts.rounds
            node.hardware.devices[0].set_power_limit_milliwatts(400_000)
            node.pods.pods = (PodDevices("research", "a", "u", (node.hardware.devices[1].uuid,)),)
            await until(lambda: node.channel.failed > 0)
            assert node.limits() == [300_000, 300_000]  # drift is put back without anybody's leave
            assert node.agent.state.counts.rounds > rounds
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


def test_what_a_frozen_process_finds_in_its_buffers_proves_nothing() -> None:
    clock = Stopped()
    session: Any = SimpleNamespace()
    watch = LeaseWatch(session, clock_ns=clock)
    seen = []
    watch.listen(lambda epoch: seen.append(epoch))

    def saw(count: int) -> None:
        watch._saw({"spec": {"renewTime": f"2026-01-01T00:00:{count:02}.000000Z", "leaseTransitions": 7}})

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
    assert seen == [7, 7]


def test_a_renewal_counts_for_the_epoch_that_it_carries() -> None:
    session: Any = SimpleNamespace()
    watch = LeaseWatch(session, clock_ns=Stopped())
    seen: list[int] = []
    watch.listen(seen.append)
    for count, epoch in enumerate((3, 3, 4, None, "5", 4)):
        watch._saw({"spec": {"renewTime": f"2026-01-01T00:00:{count:02}.000000Z", "leaseTransitions": epoch}})
    assert seen == [3, 4, 4]


async def test_an_acknowledgement_gives_back_the_digest_of_its_grant(node: Node) -> None:
    await node.create(1, 200_000)
    await node.admin.patch(node.path, {"spec": {**gpu_node_spec(2, 200_000, lease=600), "digest": "d1"}})
    await node.acknowledged(2)
    assert (await node.status())["acknowledged"]["digest"] == "d1"


async def test_a_brake_is_acknowledged_by_the_small_object_at_once_and_by_the_status_later(node: Node) -> None:
    node.pods.pods = [PodDevices("research", "gpt2", "u", tuple(device.uuid for device in node.hardware.devices))]
    spec = gpu_node_spec(1, 600_000, job_grant("gpt2", 300_000), lease=600)
    spec |= {"minPowerLimitMilliwatts": 100_000, "caps": [{"name": "hall", "brakeEpoch": 0, "brakeSequence": 0}]}
    body = {"apiVersion": "flyball.dev/v1alpha1", "kind": "GPUNode", "metadata": {"name": node.name}, "spec": spec}
    await node.admin.create(GPU_NODES.path(), body)

    async def held() -> bool:
        return (await node.status()).get("acknowledged", {}).get("limitsMilliwatts") == 600_000

    await until(held, "the grant")
    for sequence, share, limit in ((1, 500_000, 200_000), (2, 250_000, 150_000)):
        brake = power_brake_object("hall", PowerBrakeSpec(1, sequence, share))
        await node.admin.apply(POWER_BRAKES.path(name="hall"), brake, "tests")
        versions: dict[str, int] = {}  # the API server's, which come in the order of its writes

        async def acknowledged(limit: int = limit, versions: dict[str, int] = versions) -> bool:
            try:
                found = await node.admin.get(BRAKE_ACKNOWLEDGEMENTS.path(name=node.name))
            except ApiError:
                return False
            versions["small object"] = int(found["metadata"]["resourceVersion"])
            return found["spec"]["boundMilliwatts"] == 2 * limit

        await until(acknowledged, "the brake")
        assert node.limits() == [limit] * 2

        async def said(limit: int = limit, versions: dict[str, int] = versions) -> bool:
            found = await node.admin.get(GPU_NODES.path(name=node.name))
            versions["status"] = int(found["metadata"]["resourceVersion"])
            return found["status"]["acknowledged"]["boundMilliwatts"] == 2 * limit

        await until(said, "the status")
        assert versions["small object"] < versions["status"]
