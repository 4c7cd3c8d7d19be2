"""One node's agent in virtual time: energy to the millijoule, restarts, what is told when, and the API's own schema."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from flyball_agent.agent import AgentFailed, NodeAgent
from flyball_agent.core import Mode, PodName
from flyball_agent.drivers.catalogue import CATALOGUE
from flyball_agent.drivers.simulated import DeviceFault
from flyball_agent.drivers.simulated_gpu import SimulatedDriver
from flyball_agent.drivers.virtual import VirtualNode
from flyball_agent.journal import Disk, Journal
from flyball_agent.observations import StepReport
from flyball_agent.pod_resources import PodDevices, PodResourcesError
from flyball_crds.models import GPUNodeStatus
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

A100 = CATALOGUE["NVIDIA-A100-SXM4-40GB"]
SECOND = 1_000_000_000
BOARDS = 4
POD = PodName("research", "gpt2-1-0")


class QuickDisk(Disk):
    def sync(self, descriptor):
        pass

    def replace(self, source, target):
        source.replace(target)


class Pods:
    """Who holds what, as the test says."""

    def __init__(self) -> None:
        self.pods: Sequence[PodDevices] = []
        self.broken = False

    async def list(self):
        if self.broken:
            raise PodResourcesError("kubelet.sock: UNAVAILABLE")
        return self.pods

    async def close(self):
        pass


class Rig:
    def __init__(self, folder, uids: dict[tuple[str, str], str] | None = None) -> None:
        self.now_ns = 1000 * SECOND
        self.folder = folder
        self.node = VirtualNode("node-0", [A100] * BOARDS, lambda: self.now_ns)
        self.pods = Pods()
        self.uids = uids if uids is not None else {}
        self.start()

    def start(self) -> None:
        self.agent = NodeAgent(
            "node-0",
            SimulatedDriver(self.node),
            Journal(self.folder, "node-0", disk=QuickDisk()),
            self.pods,
            clock_ns=lambda: self.now_ns,
            wall_seconds=lambda: self.now_ns / 1e9,
            pod_uid=lambda namespace, name: self.uids.get((namespace, name)),
            version="1.2.3",
        )

    def kill(self) -> None:
        """Drop the agent without a word, as SIGKILL does; only the kernel lets its lock go."""
        self.agent.journal.close()

    def hold(self, name: str, *indexes: int, uid: str | None = "default") -> None:
        others = [pod for pod in self.pods.pods if pod.name != name]
        boards = tuple(self.node.devices[index].uuid for index in indexes)
        uid = f"uid-{name}" if uid == "default" else uid
        self.pods.pods = [*others, PodDevices("research", name, uid, boards)] if boards else others

    def tick(self, seconds: float = 1.0) -> None:
        self.now_ns += round(seconds * SECOND)
        asyncio.run(self.agent.tick())

    def counters(self) -> int:
        return sum(gpu.read().energy_millijoules for gpu in self.agent.driver.gpus())

    def spec(self, generation: int, *jobs: tuple[str, int], grant: int = 1_600_000, lease: int = 1000) -> None:
        self.agent.accept_spec(
            {
                "epoch": 1,
                "generation": generation,
                "leaseSeconds": lease,
                "grantMilliwatts": grant,
                "jobs": [
                    {
                        "namespace": "research",
                        "name": name.split("-", maxsplit=1)[0],
                        "uid": f"job-{name}",
                        "incarnation": 1,
                        "podName": name,
                        "gpus": 1,
                        "powerLimitMilliwatts": limit,
                        "clockMegahertz": {"min": 0, "max": 1410},
                    }
                    for name, limit in jobs
                ],
            }
        )

    def status(self) -> dict:
        """The status, after the API's own model and bounds have taken it."""
        status = self.agent.status()
        GPUNodeStatus.model_validate(status)
        return status

    def condition(self, kind: str) -> tuple[str, str]:
        (found,) = [condition for condition in self.status()["conditions"] if condition["type"] == kind]
        return found["status"], found["reason"]


@pytest.fixture
def rig(tmp_path):
    rig = Rig(tmp_path)
    yield rig
    rig.kill()


def test_every_millijoule_of_the_boards_is_somebodys(rig):
    first = rig.counters()
    rig.tick()
    baseline = rig.counters()
    rig.spec(1, ("gpt2-1-0", 300_000))
    rig.hold("gpt2-1-0", 0, 1)
    rig.tick()
    for device in rig.node.devices[:2]:
        device.set_activity(0.9)
    for _ in range(30):
        rig.tick(0.7)
    rig.hold("gpt2-1-0")
    for device in rig.node.devices:
        device.set_activity(0.0)
    rig.tick()
    rig.tick()
    ledger = rig.agent.attribution.ledger
    assert ledger.total() == rig.counters() - baseline > first
    assert ledger.unattributed == ledger.discarded == 0
    assert ledger.ended["uid-gpt2-1-0"] > 2 * 200_000 * 21  # two busy boards for 21 s
    assert ledger.idle + ledger.ended["uid-gpt2-1-0"] == ledger.total()


ACTIONS = st.one_of(
    st.tuples(st.just("tick"), st.floats(0.1, 5)),
    st.tuples(st.just("activity"), st.integers(0, BOARDS - 1), st.floats(0, 1)),
    st.tuples(st.just("hold"), st.sampled_from(["a", "b"]), st.sets(st.integers(0, BOARDS - 1))),
    st.tuples(st.just("kill"), st.floats(0, 30)),
    st.tuples(st.just("fault"), st.integers(0, BOARDS - 1), st.sampled_from([0, 1])),
)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=st.lists(ACTIONS, max_size=25))
def test_kills_and_lost_boards_lose_no_energy(tmp_path_factory, actions):
    rig = Rig(tmp_path_factory.mktemp("agent"))
    rig.tick()
    baseline = [gpu.read().energy_millijoules for gpu in rig.agent.driver.gpus()]
    for action, *values in actions:
        if action == "tick":
            rig.tick(*values)
        elif action == "activity":
            rig.node.devices[values[0]].set_activity(values[1])
        elif action == "hold":
            rig.hold(values[0], *values[1])
        elif action == "fault":
            rig.node.devices[values[0]].flags = DeviceFault(values[1])
        else:
            rig.kill()
            rig.now_ns += round(values[0] * SECOND)
            rig.start()
    for device in rig.node.devices:
        device.flags = DeviceFault(0)
    rig.tick()
    counters = [gpu.read().energy_millijoules for gpu in rig.agent.driver.gpus()]
    ledger = rig.agent.attribution.ledger
    assert ledger.total() == sum(counters) - sum(baseline)
    assert ledger.discarded == 0
    rig.kill()


def test_a_killed_agent_goes_on_with_the_energy_of_a_pod_that_stayed(rig):
    rig.spec(1, ("gpt2-1-0", 300_000))
    rig.hold("gpt2-1-0", 0)
    rig.tick()
    rig.node.devices[0].set_activity(1.0)
    rig.tick(5)
    baseline = rig.agent.attribution.pod_millijoules("uid-gpt2-1-0")
    counter = rig.agent.driver.gpus()[0].read().energy_millijoules
    rig.kill()
    rig.now_ns += 60 * SECOND
    rig.start()
    rig.tick()
    used = rig.agent.driver.gpus()[0].read().energy_millijoules - counter
    assert rig.agent.attribution.pod_millijoules("uid-gpt2-1-0") == baseline + used
    (job,) = rig.status()["jobs"]
    assert (job["podName"], job["ended"], job["energyMillijoules"]) == ("gpt2-1-0", False, baseline + used)


def test_what_a_board_used_while_nobody_watched_and_it_changed_hands_is_nobodys(rig):
    rig.hold("a", 0)
    rig.tick()
    rig.tick(10)  # long enough for the ledger to be written down
    rig.kill()
    rig.hold("a")
    rig.hold("b", 0)
    rig.now_ns += 10 * SECOND
    rig.start()
    rig.tick()
    rig.tick()
    ledger = rig.agent.attribution.ledger
    used = (ledger.ended["uid-a"], ledger.unattributed, ledger.pods["uid-b"])
    assert used == (10 * 58_000, 11 * 58_000, 58_000)


def test_a_reboot_under_a_running_agent_counts_nothing_twice(rig):
    rig.tick()
    baseline = rig.counters()
    rig.tick(10)
    before = rig.counters() - baseline
    rig.node.reboot("boot-2")
    rig.tick(10)
    rig.kill()
    rig.start()
    rig.tick()
    assert rig.agent.attribution.ledger.total() == before + rig.counters()


def test_the_status_is_the_schemas_and_tells_what_there_is(rig):
    rig.tick()
    assert rig.status()["mode"] == "Adopting"
    assert rig.condition("Ready") == ("False", "NoSpec")
    rig.spec(3, ("gpt2-1-0", 300_000), grant=600_000)
    rig.hold("gpt2-1-0", 0)
    rig.tick()
    status = rig.status()
    assert (status["bootID"], status["driverIncarnation"], status["agentVersion"]) == ("boot-1", "1.0", "1.2.3")
    assert status["mode"] == "Granted"
    ack = status["acknowledged"]
    assert (ack["epoch"], ack["generation"], ack["limitsMilliwatts"]) == (1, 3, 600_000)
    device = status["devices"][0]
    assert device["pod"] == {"namespace": "research", "name": "gpt2-1-0"}
    assert device["limits"] == {
        "minMilliwatts": 100_000,
        "maxMilliwatts": 400_000,
        "defaultMilliwatts": 400_000,
        "requestedMilliwatts": 300_000,
        "enforcedMilliwatts": 300_000,
    }
    assert device["clocksMegahertz"] == {"min": 210, "max": 1410, "step": 15}
    assert device["powerMilliwatts"] == 58_000
    assert "pod" not in status["devices"][1]
    assert rig.condition("Ready") == ("True", "Serving")
    assert rig.condition("Drifted") == ("False", "AsSet")
    assert rig.condition("Degraded") == ("False", "AsExpected")


def test_only_news_changes_the_facts_measurements_do_not(rig):
    rig.spec(1, ("gpt2-1-0", 300_000))
    rig.hold("gpt2-1-0", 0)
    rig.tick()
    rig.agent.changed.clear()
    rig.node.devices[0].set_activity(0.7)
    before = rig.status()
    for _ in range(3):
        rig.tick()
    assert rig.agent.report_steps(POD, StepReport(10, 10, 1.0, 8))
    rig.tick()
    assert not rig.agent.changed.is_set()
    assert rig.status() != before
    rig.hold("gpt2-1-0")
    rig.tick()
    assert rig.agent.changed.is_set()
    assert rig.status()["jobs"][0]["ended"] is True


def test_a_trainers_report_becomes_the_jobs_measurements(rig):
    rig.spec(1, ("gpt2-1-0", 300_000))
    rig.hold("gpt2-1-0", 0, 1)
    for device in rig.node.devices[:2]:
        device.set_activity(0.5)
    for _ in range(10):
        rig.tick()
    power = 2 * rig.node.devices[0].read().power_milliwatts
    assert rig.agent.report_steps(POD, StepReport(40, 20, 4.0, 16))
    (job,) = rig.status()["jobs"]
    assert job["iterations"] == 40
    assert job["microsecondsPerIteration"] == 200_000
    assert job["millijoulesPerIteration"] == pytest.approx(power * 4 / 20, rel=1e-3)
    assert job["clockMegahertz"] == rig.node.devices[0].read().sm_clock_megahertz
    assert rig.agent.granted(POD) == {"clockMegahertz": 1410, "powerLimitMilliwatts": 300_000}
    assert rig.agent.energy(POD) == {"energyMillijoules": job["energyMillijoules"], "powerMilliwatts": power}
    stranger = PodName("research", "stranger")
    assert not rig.agent.report_steps(stranger, StepReport(1, 1, 1.0))
    assert rig.agent.granted(stranger) is None
    assert rig.agent.energy(stranger) is None


def test_drift_is_shown_for_a_while(rig):
    rig.spec(1)
    rig.tick()
    rig.node.devices[0].set_power_limit_milliwatts(390_000)
    rig.tick()
    assert rig.condition("Drifted") == ("True", "LimitChanged")
    assert rig.node.devices[0].read().requested_limit_milliwatts == 100_000
    rig.tick(30)
    assert rig.condition("Drifted")[0] == "True"
    rig.tick(31)
    assert rig.condition("Drifted")[0] == "False"


def test_what_is_wrong_is_said_with_its_reason(rig):
    rig.spec(2)
    rig.tick()
    rig.node.devices[1].flags = DeviceFault.LOST
    rig.tick()
    health = rig.status()["devices"][1]["conditions"][0]
    assert (health["type"], health["status"], health["reason"]) == ("Healthy", "False", "Lost")
    assert rig.condition("Degraded") == ("True", "GpuFailed")
    rig.node.devices[1].flags = DeviceFault(0)
    rig.tick()
    assert rig.condition("Degraded")[0] == "False"
    rig.spec(1)
    assert rig.condition("Degraded") == ("True", "StaleSpec")
    rig.agent.accept_spec({"epoch": 1})
    assert rig.condition("Degraded") == ("True", "InvalidSpec")
    rig.spec(3)
    rig.pods.broken = True
    rig.tick()
    assert rig.condition("Degraded") == ("True", "PodsUnknown")
    rig.pods.broken = False
    rig.tick()
    assert rig.condition("Degraded")[0] == "False"


def test_while_nobody_says_who_holds_what_the_last_answer_stands(rig):
    rig.spec(1, ("gpt2-1-0", 300_000))
    rig.hold("gpt2-1-0", 0)
    rig.tick()
    rig.pods.broken = True
    rig.tick()
    assert rig.node.devices[0].read().requested_limit_milliwatts == 300_000
    assert rig.status()["devices"][0]["pod"]["name"] == "gpt2-1-0"


def test_after_the_gpunode_is_deleted_the_lease_runs_out(rig):
    rig.spec(1, ("gpt2-1-0", 300_000), lease=10)
    rig.hold("gpt2-1-0", 0)
    rig.tick()
    rig.tick(8)
    rig.agent.operator_seen()
    rig.tick(8)
    assert rig.agent.enforcer.mode is Mode.GRANTED
    rig.agent.spec_gone()
    rig.agent.operator_seen()
    rig.tick(3)
    assert rig.agent.enforcer.mode is Mode.FAILSAFE
    assert rig.node.devices[0].read().requested_limit_milliwatts == 100_000


def test_a_pod_named_without_uid_keeps_its_books_when_the_uid_comes(rig):
    rig.hold("gpt2-1-0", 0, uid=None)
    rig.tick()
    rig.tick()
    used = rig.agent.energy(POD)["energyMillijoules"]
    rig.uids[("research", "gpt2-1-0")] = "late-uid"
    rig.tick()
    assert rig.agent.energy(POD)["energyMillijoules"] == used + 58_000
    assert rig.agent.pod_uids[POD] == "late-uid"
    rig.uids[("research", "gpt2-1-0")] = "another-pod"  # of the same name
    rig.tick()
    rig.tick()
    assert rig.agent.energy(POD)["energyMillijoules"] == 58_000


async def until(condition):
    while True:
        if condition():
            return
        await asyncio.sleep(0)


async def test_the_loop_wakes_at_once_for_a_spec_and_survives_a_failing_round(tmp_path):
    rig = Rig(tmp_path)
    rig.agent.tick_seconds = 3600.0
    real, failures = rig.agent.enforcer.step, [RuntimeError("a defect")]

    async def step():
        if failures:
            raise failures.pop()
        await real()

    rig.agent.enforcer.step = step
    task = asyncio.create_task(rig.agent.run())
    async with asyncio.timeout(20):
        await until(lambda: rig.agent.round_error is not None)
        assert rig.agent.round_error == "RuntimeError: a defect"
        rig.spec(1)
        await until(lambda: rig.agent.enforcer.acknowledged is not None)
    assert rig.agent.round_error is None
    assert rig.agent.tally.failed_rounds == 1
    rig.agent.enforcer.must_exit = "the driver is gone"
    rig.spec(2)
    with pytest.raises(AgentFailed, match="node-0: the driver is gone"):
        await asyncio.wait_for(task, 20)
    rig.kill()


async def test_closing_writes_the_ledger_down_and_keeps_the_limits(tmp_path):
    rig = Rig(tmp_path)
    rig.spec(1)
    await rig.agent.tick()
    rig.now_ns += 3 * SECOND
    await rig.agent.tick()
    idle = rig.agent.attribution.ledger.idle
    assert idle > 0
    await rig.agent.close()
    assert [device.read().requested_limit_milliwatts for device in rig.node.devices] == [100_000] * BOARDS
    rig.start()
    assert rig.agent.attribution.ledger.idle == idle
    rig.kill()
