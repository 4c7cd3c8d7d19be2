"""One node's agent in virtual time: energy to the millijoule, restarts, what is told when, and the API's own schema."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flyball.environment import Environment
from flyball.job import Job
from flyball.node.agent import Agent
from flyball.node.capabilities import LEAST_SETS, OLDEST_SECONDS, KnownSetLatency, SetLatency
from flyball.node.clocks import Clock
from flyball_agent.energy.observations import COMPUTATION_SECONDS, ClockAsked, InvalidReport, StepReport
from flyball_agent.energy.stage_profiles import MAX_ROWS_BYTES, StageProfile
from flyball_agent.enforce.decisions import Mode
from flyball_agent.enforce.gpu_state import UNLOCKED, PodName
from flyball_agent.enforce.journal import Journal
from flyball_agent.govern.governor import EARLY_ROUNDS_PER_SECOND, AgentFailed
from flyball_agent.gpu.simulated import SimulatedDriver
from flyball_agent.node.status import status_patch
from flyball_agent.pods.resources import PodDevices
from flyball_agent.process.single import SingleProcessAgent
from flyball_api.gpu_node import GpuNodeStatus
from flyball_kube.serving.token_bucket import TokenBucket
from flyball_simulated_gpu.catalogue import CATALOGUE
from flyball_simulated_gpu.device import DeviceFault, setters_fail_with
from flyball_simulated_gpu.virtual import VirtualNode
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.agent_doubles import Pods, QuickDisk
from tests.support.crd_schema import assert_valid
from tests.support.examples import examples
from tests.support.gpu_node_specs import gpu_node_spec, job_grant
from tests.support.waiting import until

A100 = CATALOGUE["NVIDIA-A100-SXM4-40GB"]
SECOND = 1_000_000_000
GPUS = 4
MOST_GPUS = 64  # of which a GPUNode can say something
MOST_BYTES_IN_ETCD = 1_572_864  # its --max-request-bytes
POD = PodName("research", "gpt2-1-0")


class Rig:
    def __init__(self, folder: Path, tick_seconds: float = 1.0, sockets: Path | None = None) -> None:
        self.now_ns = 1000 * SECOND
        self.folder = folder
        self.node = VirtualNode("node-0", [A100] * GPUS, lambda: self.now_ns)
        self.pods = Pods()
        self.tick_seconds = tick_seconds
        self.sockets = sockets
        self.last_status = GpuNodeStatus()
        self.start()

    def start(self) -> None:
        self.driver = SimulatedDriver(self.node)
        self.journal = Journal(self.folder, "node-0", disk=QuickDisk())
        self.agent = SingleProcessAgent(
            "node-0",
            self.driver,
            self.journal,
            self.pods,
            tick_seconds=self.tick_seconds,
            socket_folder=self.sockets,
            clock_ns=lambda: self.now_ns,
            wall_seconds=lambda: self.now_ns / 1e9,
            version="1.2.3",
        )

    def kill(self) -> None:
        """Drop the agent without a word, as SIGKILL does; only the kernel lets its lock go."""
        self.journal.close()

    def hold(self, name: str, *indexes: int, uid: str | None = "default") -> None:
        others = [pod for pod in self.pods.pods if pod.name != name]
        gpus = tuple(self.node.devices[index].uuid for index in indexes)
        uid = f"uid-{name}" if uid == "default" else uid
        self.pods.pods = [*others, PodDevices("research", name, uid, gpus)] if gpus else others

    def tick(self, seconds: float = 1.0) -> None:
        self.now_ns += round(seconds * SECOND)
        asyncio.run(self.round())

    async def round(self) -> None:
        await self.agent.find_pods()
        await self.agent.tick()

    def limits(self) -> list[int]:
        return [device.read().requested_limit_milliwatts for device in self.node.devices]

    def locks(self) -> list[tuple[int, int]]:
        states = [device.read() for device in self.node.devices]
        return [(state.locked_min_megahertz, state.locked_max_megahertz) for state in states]

    def counters(self) -> int:
        return sum(gpu.read().energy_millijoules for gpu in self.driver.gpus())

    def spec(self, generation: int, *jobs: tuple[str, int], grant: int = 1_600_000, lease: int = 1000) -> None:
        granted = [
            job_grant(name, limit, 1, job=name.split("-", maxsplit=1)[0], uid=f"job-{name}") for name, limit in jobs
        ]
        self.agent.accept_spec(gpu_node_spec(generation, grant, *granted, lease=lease))

    def status(self) -> dict[str, Any]:
        """The status as it is written, which the CRD's schema must take."""
        self.last_status = self.agent.status(self.last_status)
        status: dict[str, Any] = status_patch(self.last_status, "1")["status"]
        assert_valid("GPUNode", "status", status)
        return status

    def condition(self, kind: str) -> tuple[str, str]:
        (found,) = [condition for condition in self.status()["conditions"] if condition["type"] == kind]
        return found["status"], found["reason"]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.kill()


def test_every_millijoule_of_the_gpus_is_somebodys(rig: Rig) -> None:
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
    accounts = rig.agent.state.accounts
    assert accounts.total() == rig.counters() - baseline > first
    assert accounts.unattributed == accounts.discarded == 0
    assert accounts.ended["uid-gpt2-1-0"] > 2 * 200_000 * 21  # two busy GPUs for 21 s
    assert accounts.idle + accounts.ended["uid-gpt2-1-0"] == accounts.total()


ACTIONS = st.one_of(
    st.tuples(st.just("tick"), st.floats(0.1, 5)),
    st.tuples(st.just("activity"), st.integers(0, GPUS - 1), st.floats(0, 1)),
    st.tuples(st.just("hold"), st.sampled_from(["a", "b"]), st.sets(st.integers(0, GPUS - 1))),
    st.tuples(st.just("kill"), st.floats(0, 30)),
    st.tuples(st.just("fault"), st.integers(0, GPUS - 1), st.sampled_from([0, 1])),
)


@settings(max_examples=examples(120), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=st.lists(ACTIONS, max_size=25))
def test_kills_and_lost_gpus_lose_no_energy(tmp_path_factory: pytest.TempPathFactory, actions: list[Any]) -> None:
    rig = Rig(tmp_path_factory.mktemp("agent"))
    rig.tick()
    baseline = [gpu.read().energy_millijoules for gpu in rig.driver.gpus()]
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
    counters = [gpu.read().energy_millijoules for gpu in rig.driver.gpus()]
    accounts = rig.agent.state.accounts
    assert accounts.total() == sum(counters) - sum(baseline)
    assert accounts.discarded == 0
    rig.kill()


def test_a_killed_agent_goes_on_with_the_energy_of_a_pod_that_stayed(rig: Rig) -> None:
    rig.spec(1, ("gpt2-1-0", 300_000))
    rig.hold("gpt2-1-0", 0)
    rig.tick()
    rig.node.devices[0].set_activity(1.0)
    rig.tick(5)
    baseline = rig.agent.state.accounts.pod_millijoules("uid-gpt2-1-0")
    counter = rig.driver.gpus()[0].read().energy_millijoules
    rig.kill()
    rig.now_ns += 60 * SECOND
    rig.start()
    rig.tick()
    used = rig.driver.gpus()[0].read().energy_millijoules - counter
    assert rig.agent.state.accounts.pod_millijoules("uid-gpt2-1-0") == baseline + used
    (job,) = rig.status()["jobs"]
    assert (job["podName"], job["ended"], job["energyMillijoules"]) == ("gpt2-1-0", False, baseline + used)


def test_what_a_gpu_used_while_nobody_watched_and_it_changed_hands_is_nobodys(rig: Rig) -> None:
    rig.hold("a", 0)
    rig.tick()
    rig.tick(10)  # long enough for the accounts to be written down
    rig.kill()
    rig.hold("a")
    rig.hold("b", 0)
    rig.now_ns += 10 * SECOND
    rig.start()
    rig.tick()
    rig.tick()
    accounts = rig.agent.state.accounts
    used = (accounts.ended["uid-a"], accounts.unattributed, accounts.pods["uid-b"])
    assert used == (10 * 58_000, 11 * 58_000, 58_000)


def test_a_reboot_under_a_running_agent_counts_nothing_twice(rig: Rig) -> None:
    rig.tick()
    baseline = rig.counters()
    rig.tick(10)
    before = rig.counters() - baseline
    rig.node.reboot("boot-2")
    rig.tick(10)
    rig.kill()
    rig.start()
    rig.tick()
    assert rig.agent.state.accounts.total() == before + rig.counters()


def test_the_status_is_the_schemas_and_tells_what_there_is(rig: Rig) -> None:
    rig.tick()
    assert rig.status()["mode"] == "Adopting"
    assert rig.condition("Ready") == ("False", "NoSpec")
    rig.spec(3, ("gpt2-1-0", 300_000), grant=600_000)
    rig.hold("gpt2-1-0", 0)
    rig.tick()
    status = rig.status()
    assert (status["bootID"], status["driverSession"], status["agentVersion"]) == ("boot-1", "1.0", "1.2.3")
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


async def test_a_pod_asks_for_clocks_of_its_own_gpus_alone(rig: Rig) -> None:
    rig.hold(POD.name, 0, 1)
    rig.hold("plain-pod", 2)
    rig.spec(1, (POD.name, 300_000))
    await rig.round()
    own, other = rig.node.devices[1].uuid, rig.node.devices[2].uuid
    assert rig.agent.ask_clock(POD, ClockAsked(900, 5.0))
    assert rig.agent.ask_clock(POD, ClockAsked(900, 5.0, own))
    assert not rig.agent.ask_clock(POD, ClockAsked(900, 5.0, other))
    assert not rig.agent.ask_clock(PodName("research", "plain-pod"), ClockAsked(900, 5.0)), "it is no job's"
    assert not rig.agent.ask_clock(PodName("research", "gone"), ClockAsked(900, 5.0))


def test_only_news_changes_the_facts_measurements_do_not(rig: Rig) -> None:
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


def test_a_trainers_report_becomes_the_jobs_measurements(rig: Rig) -> None:
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
    energy: Any = rig.agent.energy(POD)
    gpus = energy.pop("gpus")
    assert energy == {"energyMillijoules": job["energyMillijoules"], "ageMilliseconds": 0, "powerMilliwatts": power}
    assert gpus.keys() == {device.uuid for device in rig.node.devices[:2]}, "its own, and no other's"
    assert {gpu["ageMilliseconds"] for gpu in gpus.values()} == {0.0}
    before = {uuid: gpu["energyMillijoules"] for uuid, gpu in gpus.items()}
    for _ in range(10):
        rig.tick()
    after: Any = rig.agent.energy(POD)
    risen = {uuid: gpu["energyMillijoules"] - before[uuid] for uuid, gpu in after["gpus"].items()}
    assert sum(risen.values()) == after["energyMillijoules"] - energy["energyMillijoules"]
    assert len(set(risen.values())) == 1, "both compute alike"
    stranger = PodName("research", "stranger")
    assert not rig.agent.report_steps(stranger, StepReport(1, 1, 1.0))
    assert rig.agent.granted(stranger) is None
    assert rig.agent.energy(stranger) is None


def test_a_counters_age_is_that_of_the_reading_that_is_accounted_for(rig: Rig) -> None:
    """While a round is under way it has read what it accounts for at its end: joules of a second ago are no newer."""
    rig.spec(1, ("gpt2-1-0", 300_000))
    rig.hold("gpt2-1-0", 0)
    rig.tick()
    rig.tick()
    state, uuid = rig.agent.enforcer.state, rig.node.devices[0].uuid

    def age(read_ns: int | None) -> float:
        reading = state.gpus[uuid].reading
        assert reading is not None
        state.put(state.gpus[uuid].changed(reading=replace(reading, energy_read_ns=read_ns)))
        energy: Any = rig.agent.energy(POD)
        return float(energy["gpus"][uuid]["ageMilliseconds"])

    round_ns = rig.now_ns
    rig.now_ns += SECOND
    assert age(round_ns - 8_000_000) == 1008.0
    assert age(rig.now_ns - 8_000_000) == 1000.0
    assert age(None) == 1000.0


def test_a_trainer_is_shown_what_its_gpus_can_do_and_what_is_not_known(rig: Rig) -> None:
    def shown() -> list[dict[str, Any]]:
        found: Any = rig.agent.capabilities(POD)
        assert len(json.dumps(found)) < 500 * len(found["gpus"]), "bounded, and far below what a trainer takes"
        assert list(found["gpus"]) == [device.uuid for device in rig.node.devices[:2]], "its own, and no other's"
        return list(found["gpus"].values())

    assert rig.agent.capabilities(POD) is None
    granted = job_grant(POD.name, 300_000, 1, clocks=(0, 1205))
    rig.node.devices[1].flags |= setters_fail_with(3)
    rig.agent.accept_spec(gpu_node_spec(1, 1_600_000, granted, lease=1000))
    rig.hold(POD.name, 0, 1)
    asyncio.run(rig.agent.find_pods())
    first, _ = shown()
    assert first == {
        "clocksLockable": None,
        "whyNot": "",
        "lowestMegahertz": A100.clock_min_megahertz,
        "highestMegahertz": 1410,
        "stepMegahertz": 15,
        "grantedMegahertz": 1200,
        "powerLimitMilliwatts": None,
        "setLatency": None,
    }
    rig.tick()
    rig.tick(2.5)
    first, second = shown()
    assert (first["clocksLockable"], first["powerLimitMilliwatts"]) == (True, 300_000)
    assert first["setLatency"] == {
        "medianMicroseconds": 0, "p99Microseconds": 0, "sets": 1, "ageMilliseconds": 2500
    }, "in virtual time it took none"  # fmt: skip
    assert second["clocksLockable"] is False
    assert "not supported" in second["whyNot"]
    assert second["setLatency"] is None
    rig.hold("other-0", 0)
    rig.tick()
    assert (shown()[0]["clocksLockable"], shown()[0]["whyNot"]) == (False, "another pod holds this GPU, too")
    assert rig.agent.capabilities(PodName("research", "other-0")) is None, "no job of the grant"


def test_a_lock_that_was_only_taken_away_tells_nobody_that_clocks_can_be_set(rig: Rig) -> None:
    rig.agent.accept_spec(gpu_node_spec(1, 1_600_000, lease=1000))
    rig.tick()
    rig.tick()
    rig.agent.accept_spec(gpu_node_spec(2, 1_600_000, job_grant(POD.name, 300_000, 1), lease=1000))
    rig.hold(POD.name, 0)
    asyncio.run(rig.agent.find_pods())
    assert [gpu.lock for gpu in rig.agent.state.enforced.gpus_of(POD)] == [UNLOCKED]
    found: Any = rig.agent.capabilities(POD)
    assert [shown["clocksLockable"] for shown in found["gpus"].values()] == [None]


def test_of_pods_that_are_made_up_anew_each_time_no_more_are_kept_than_may_be(rig: Rig) -> None:
    """An agent that lies says so to the process with the privilege, whose memory is bounded."""
    rig.tick()
    made_up = [PodDevices("research", f"p{number}", f"uid-{number}", ("GPU-none",)) for number in range(3000)]
    for number in range(0, len(made_up), 600):
        rig.pods.pods = made_up[number : number + 600]
        asyncio.run(rig.agent.find_pods())
    assert len(rig.agent.state.pods) == 600
    assert [name.name for name in rig.agent.state.ended_pods] == [f"p{number}" for number in range(2400 - 1024, 2400)]


def test_what_a_trainer_has_measured_of_its_stages_is_shown_until_its_pod_has_ended(rig: Rig) -> None:
    rig.spec(1, ("gpt2-1-0", 300_000))
    rig.hold("gpt2-1-0", 0, 1)
    rig.tick()
    (job,) = rig.status()["jobs"]
    assert job["stages"] == []
    before = rig.agent.significant
    stages = [StageProfile(stage, 55_000, "forward,1410,0.15,27.5\n") for stage in (1, 0)]
    for stage in stages:
        assert rig.agent.report_stage(POD, stage)
    told = rig.agent.significant
    assert told != before, "the operator hears of it at once"
    assert rig.agent.report_stage(POD, StageProfile(0, 66_000, "forward,1410,0.15,27.5"))
    assert rig.agent.significant == told, "and of another one with the next report"
    assert rig.agent.report_stage(POD, stages[1])
    rig.tick()
    (job,) = rig.status()["jobs"]
    assert job["stages"] == [
        {"stage": stage, "waitingMilliwatts": 55_000, "rows": "forward,1410,0.15,27.5\n"} for stage in (0, 1)
    ]
    with pytest.raises(InvalidReport, match="stage: 2 is one more than the 2 GPUs that the pod holds"):
        rig.agent.report_stage(POD, StageProfile(2, 0, "forward,1410,0.15,27.5"))
    assert not rig.agent.report_stage(PodName("research", "stranger"), stages[0])
    rig.hold("gpt2-1-0")
    rig.tick()
    (job,) = rig.status()["jobs"]
    assert (job["ended"], job["stages"]) == (True, [])


def test_whatever_pods_have_measured_the_status_can_be_stored_and_says_what_is_acknowledged(rig: Rig) -> None:
    """A status that is larger than what etcd takes is not stored: nothing would be acknowledged, and the node be silent."""
    names = [f"train-1-{index}" for index in range(GPUS)]
    rig.spec(1, *((name, 300_000) for name in names))
    for index, name in enumerate(names):
        rig.hold(name, index)
    rig.tick()
    row = "forward,1410,0.150000000,27.00000\n"
    rows = row * (MAX_ROWS_BYTES // len(row))
    for name in names:
        for stage in range(64):
            with contextlib.suppress(InvalidReport):
                rig.agent.report_stage(PodName("research", name), StageProfile(stage, 55_000, rows))
    status = rig.status()
    assert status["acknowledged"]["generation"] == 1
    assert all(job["stages"] for job in status["jobs"])
    each_gpu = len(json.dumps(status)) // GPUS
    assert each_gpu * MOST_GPUS < MOST_BYTES_IN_ETCD // 2


def test_a_driver_that_rounds_up_gets_whole_watts_and_holds_no_more_than_is_granted(rig: Rig) -> None:
    for index, device in enumerate(rig.node.devices):
        device.flags |= DeviceFault.COARSE
        rig.hold(f"job{index}-0", index)
    for generation, limit in ((1, 150_000), (2, 200_001), (3, 199_999), (4, 250_750)):
        bound = 4 * limit
        rig.spec(generation, *((f"job{index}-0", limit) for index in range(4)), grant=bound)
        for _ in range(2):
            rig.tick()
            assert sum(rig.limits()) <= bound
        assert rig.limits() == [limit // 1000 * 1000] * 4
        assert rig.agent.state.enforced.acknowledged.generation == generation


def test_an_xid_error_is_shown_until_the_driver_is_loaded_anew(rig: Rig) -> None:
    rig.spec(1)
    rig.tick()

    def shown() -> list[tuple[str, str]]:
        conditions = rig.status()["devices"][1]["conditions"]
        return [(item["status"], item["reason"]) for item in conditions if item["type"] == "XidError"]

    assert shown() == []
    rig.node.devices[1].flags |= DeviceFault.LOST
    rig.node.devices[1].report_xid_error(79)
    rig.tick()
    assert shown() == [("True", "Xid79")]
    news = rig.agent.significant
    rig.node.devices[1].report_xid_error(79)
    rig.tick()
    assert rig.agent.significant == news  # a flood is not written again and again
    assert rig.agent.state.enforced.gpus[rig.node.devices[1].uuid].xid_errors == {79: 2}
    rig.node.devices[1].report_xid_error(1234)
    rig.tick()
    assert shown() == [("True", "Xid1234")]
    rig.node.devices[1].flags = DeviceFault(0)
    rig.node.reload_driver()
    rig.tick()
    assert shown() == [("False", "DriverLoadedAnew")]


def test_drift_is_shown_for_a_while(rig: Rig) -> None:
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


def test_what_is_wrong_is_said_with_its_reason(rig: Rig) -> None:
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


def test_while_nobody_says_who_holds_what_the_last_answer_stands(rig: Rig) -> None:
    rig.spec(1, ("gpt2-1-0", 300_000))
    rig.hold("gpt2-1-0", 0)
    rig.tick()
    rig.pods.broken = True
    rig.tick()
    assert rig.node.devices[0].read().requested_limit_milliwatts == 300_000
    assert rig.status()["devices"][0]["pod"]["name"] == "gpt2-1-0"


def test_persistence_mode_is_turned_on_where_it_may_be_and_else_reported(rig: Rig) -> None:
    for device in rig.node.devices[:2]:
        device.flags = DeviceFault.NOT_PERSISTENT
    rig.tick()
    assert rig.condition("Degraded") == ("True", "NotPersistent")  # no grant yet: nothing is set
    rig.node.devices[1].flags |= DeviceFault.NO_PERMISSION
    rig.spec(1, grant=1_600_000)
    rig.tick()
    rig.tick()
    assert rig.node.devices[0].flags == DeviceFault(0)
    health = [device["conditions"][0]["reason"] for device in rig.status()["devices"]]
    assert (health[0], health[2]) == ("Governed", "Governed")
    assert rig.agent.state.enforced.counts.errors[("enable persistence mode", 4)] == 1
    rig.node.devices[1].flags = DeviceFault.NOT_PERSISTENT
    rig.tick()
    rig.tick()
    assert rig.condition("Degraded") == ("True", "NotPersistent")  # asked once only
    rig.node.devices[1].flags = DeviceFault(0)  # somebody else turned it on
    rig.tick()
    assert rig.condition("Degraded")[0] == "False"


@pytest.mark.parametrize("listed_before", [True, False])
async def test_a_source_of_pods_that_fails_in_any_way_stops_no_round(tmp_path: Path, listed_before: bool) -> None:
    rig = Rig(tmp_path)
    if listed_before:
        await rig.round()

    async def undecodable() -> list[PodDevices]:
        raise AttributeError("'NoneType' object has no attribute 'pod_resources'")

    rig.pods.list = undecodable  # type: ignore[method-assign]
    rig.spec(1, grant=600_000)
    await rig.round()
    assert sum(rig.limits()) <= 600_000
    assert "AttributeError: 'NoneType'" in (rig.agent.state.pods_error or "")
    assert rig.condition("Degraded") == ("True", "PodsUnknown")
    del rig.pods.list
    await rig.round()
    assert rig.condition("Degraded")[0] == "False"
    rig.kill()


async def test_a_silent_kubelet_delays_no_cut(tmp_path: Path) -> None:
    rig = Rig(tmp_path, tick_seconds=3600.0)

    async def silent() -> list[PodDevices]:
        await asyncio.Event().wait()
        return []

    rig.pods.list = silent  # type: ignore[method-assign]
    task = asyncio.create_task(rig.agent.run())
    await until(lambda: rig.agent.state.counts.rounds == 1)
    rig.spec(1, grant=800_000)
    await until(lambda: rig.agent.enforcer.state.acknowledged is not None)
    assert rig.limits() == [200_000] * GPUS  # every one's share of the bound: who is idle is not known
    assert rig.status()["acknowledged"]["limitsMilliwatts"] == 800_000
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    rig.kill()


def test_before_the_pods_are_listed_no_gpu_is_idle_and_no_job_has_ended(rig: Rig) -> None:
    rig.spec(1, ("gpt2-1-0", 300_000), grant=600_000)
    rig.hold("gpt2-1-0", 0)
    rig.tick()
    before = rig.limits()
    rig.tick(11)  # long enough for the accounts to be written down
    rig.kill()
    rig.start()
    rig.pods.broken = True
    rig.tick()
    rig.tick(5)
    assert rig.limits() == before
    assert [job.ended for job in rig.agent.state.jobs] == [False]
    rig.spec(2, ("gpt2-1-0", 300_000), grant=500_000)
    rig.tick()
    assert sum(rig.limits()) <= 500_000
    assert rig.limits()[0] > 100_000
    rig.pods.broken = False
    rig.spec(3, ("gpt2-1-0", 300_000), grant=600_000)
    rig.tick()
    assert rig.limits() == [300_000, 100_000, 100_000, 100_000]
    assert rig.agent.state.accounts.unattributed == 0


@pytest.mark.parametrize("device_id", ["MIG-4f2a", "0", "nvidia0", "1:0"])
def test_an_id_that_names_no_gpu_makes_no_gpu_idle(rig: Rig, device_id: str) -> None:
    rig.pods.pods = [PodDevices("other", "slice", "uid-slice", (), (device_id,))]
    rig.hold("gpt2-1-0", 0)
    rig.spec(1, ("gpt2-1-0", 300_000))
    rig.tick()
    rig.tick()
    assert rig.limits() == [300_000, 400_000, 400_000, 400_000]
    assert rig.condition("Degraded") == ("True", "PodsUnknown")
    assert rig.agent.state.accounts.unattributed > 0
    assert rig.agent.state.accounts.idle == 0
    rig.pods.pods = rig.pods.pods[1:]
    rig.tick()
    assert rig.limits() == [300_000, 100_000, 100_000, 100_000]


def test_a_claim_that_names_its_gpu_is_that_gpus(rig: Rig) -> None:
    rig.pods.pods = [
        PodDevices("research", "gpt2-1-0", None, (), ("gpu.nvidia.com/gpu-2",)),
        PodDevices("other", "part", None, (), ("gpu.nvidia.com/gpu-1::mig-9-0-1",)),
    ]
    rig.spec(1, ("gpt2-1-0", 300_000), grant=1_000_000)
    rig.tick()
    rig.tick()
    assert [limits == 100_000 for limits in rig.limits()] == [True, False, False, True]
    assert rig.limits()[2] == 300_000
    assert rig.condition("Degraded")[0] == "False"
    rig.pods.pods = [PodDevices("other", "gone", None, (), ("gpu.nvidia.com/gpu-9",))]
    rig.tick()
    assert rig.condition("Degraded") == ("True", "PodsUnknown")


def test_pods_on_the_parts_of_a_gpu_share_it(rig: Rig) -> None:
    rig.node.devices[0].flags |= DeviceFault.MIG
    part = f"MIG-{rig.node.devices[0].uuid.removeprefix('GPU-')}"
    rig.pods.pods = [
        PodDevices("research", "gpt2-1-0", "uid-a", (), (part,)),
        PodDevices("research", "bert-1-0", "uid-b", (), (f"{part}::1",)),
    ]
    rig.spec(1, ("gpt2-1-0", 300_000), ("bert-1-0", 250_000))
    rig.tick()
    rig.tick()
    assert rig.limits() == [250_000, 100_000, 100_000, 100_000]
    assert rig.condition("Degraded")[0] == "False"
    rig.tick()
    accounts = rig.agent.state.accounts
    assert accounts.pods["uid-a"] == accounts.pods["uid-b"] > 0
    assert accounts.unattributed == 0
    assert rig.agent.state.pods[POD].shared
    rig.node.devices[0].flags |= DeviceFault.LOST
    rig.tick()
    rig.node.devices[0].flags &= ~DeviceFault.LOST
    rig.tick()
    assert rig.agent.state.accounts.unattributed == 0  # it was theirs all the time
    rig.node.devices[0].flags = DeviceFault(0)  # repartitioned: it is not known any more which GPU the part is of
    rig.tick()
    assert rig.condition("Degraded") == ("True", "PodsUnknown")


def test_after_the_gpunode_is_deleted_the_lease_runs_out(rig: Rig) -> None:
    rig.spec(1, ("gpt2-1-0", 300_000), lease=10)
    rig.hold("gpt2-1-0", 0)
    rig.tick()
    rig.tick(8)
    rig.agent.operator_seen(1)
    rig.tick(8)
    assert rig.agent.enforcer.state.mode is Mode.GRANTED
    rig.agent.spec_gone()
    rig.agent.operator_seen(1)
    rig.tick(3)
    assert rig.agent.enforcer.state.mode is Mode.FAILSAFE
    assert rig.node.devices[0].read().requested_limit_milliwatts == 100_000


def test_a_pod_named_without_uid_gets_it_from_its_grant_and_keeps_its_books(rig: Rig) -> None:
    def grant(generation: int, pod_uid: str) -> None:
        granted = {**job_grant(POD.name, 300_000, 1), "podUid": pod_uid}
        rig.agent.accept_spec(gpu_node_spec(generation, 1_600_000, granted, lease=1000))

    rig.hold("gpt2-1-0", 0, uid=None)
    rig.tick()
    rig.tick()
    used: Any = rig.agent.energy(POD)["energyMillijoules"]
    assert rig.agent.state.pods[POD].uid is None
    grant(1, "late-uid")
    rig.tick()
    assert rig.agent.energy(POD)["energyMillijoules"] == used + 58_000
    assert rig.agent.state.pods[POD].uid == "late-uid"
    grant(2, "another-pod")  # of the same name
    rig.tick()
    rig.tick()
    assert rig.agent.energy(POD)["energyMillijoules"] == 58_000


def test_a_pod_made_again_under_its_name_has_books_of_its_own(rig: Rig) -> None:
    first, second = "research/web-0", "research/web-0#2"
    rig.hold("web-0", 0, uid=None)
    rig.tick(10)
    rig.tick(10)
    used = rig.agent.state.accounts.pods[first]
    assert used > 0
    rig.hold("web-0")
    rig.tick()
    rig.hold("web-0", 1, uid=None)
    rig.tick()
    accounts, name = rig.agent.state.accounts, PodName("research", "web-0")
    assert rig.agent.state.pod_millijoules(rig.agent.state.pods[name]) == 0
    rig.tick(10)
    rig.tick()
    assert accounts.ended[first] > used
    assert accounts.pods[second] > 0
    # An agent that is killed and started goes on with them while the pod runs, and with the next ones after it.
    rig.kill()
    rig.start()
    rig.tick()
    assert rig.agent.state.pods[name].energy_key == second
    rig.hold("web-0")
    rig.tick()
    rig.hold("web-0", 1, uid=None)
    rig.tick()
    assert rig.agent.state.pods[name].energy_key == "research/web-0#3"
    accounts = rig.agent.state.accounts
    assert accounts.total() == sum(accounts.gpus.values())


def test_a_pod_on_other_gpus_than_its_name_had_is_another_pod(rig: Rig) -> None:
    rig.hold("web-0", 0, 1, uid=None)
    rig.tick(10)
    rig.hold("web-0", 2, uid=None)  # made again between two lists: a pod keeps its devices for as long as it lives
    rig.tick(10)
    rig.tick(10)
    accounts = rig.agent.state.accounts
    assert set(accounts.ended) == {"research/web-0"}
    assert set(accounts.pods) == {"research/web-0#2"}


async def test_the_loop_wakes_at_once_for_a_spec_and_survives_a_failing_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, tick_seconds=3600.0)
    real, failures = rig.agent.enforcer.step, [RuntimeError("a defect")]

    async def step() -> None:
        if failures:
            raise failures.pop()
        await real()

    monkeypatch.setattr(rig.agent.enforcer, "step", step)
    task = asyncio.create_task(rig.agent.run())
    await until(lambda: rig.agent.state.round_error is not None)
    assert rig.agent.state.round_error == "RuntimeError: a defect"
    rig.spec(1)
    await until(lambda: rig.agent.enforcer.state.acknowledged is not None)
    assert rig.agent.state.round_error is None
    assert rig.agent.state.counts.failed_rounds == 1
    rig.agent.enforcer.state.must_exit = "the driver is gone"
    rig.spec(2)
    with pytest.raises(AgentFailed, match="node-0: the driver is gone"):
        await asyncio.wait_for(task, 20)
    rig.kill()


async def test_a_reading_is_made_for_who_asks_and_one_for_all_who_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, tick_seconds=3600.0)
    rig.hold("gpt2-1-0", 0)
    rig.spec(1, ("gpt2-1-0", 300_000))
    agent = rig.agent
    monkeypatch.setattr(agent.governor, "_early_rounds", TokenBucket(EARLY_ROUNDS_PER_SECOND, 3, lambda: 0.0))
    task = asyncio.create_task(agent.run())
    await until(lambda: agent.enforcer.state.acknowledged is not None and agent.energy(POD) is not None)
    await until(lambda: not agent.state.enforced.settling)
    rounds, before = agent.state.counts.rounds, agent.energy(POD)
    assert before is not None
    rig.now_ns += 2 * SECOND
    await asyncio.gather(*(agent.read_afresh() for _ in range(20)))
    after = agent.energy(POD)
    assert after is not None
    assert agent.state.counts.rounds == rounds + 1
    assert after["ageMilliseconds"] == 0
    assert int(str(after["energyMillijoules"])) - int(str(before["energyMillijoules"])) > 100_000
    await agent.read_afresh()
    assert agent.state.counts.rounds == rounds + 1, "one that was made just now will do"
    monkeypatch.setattr("flyball_agent.node.agent.FRESH_SECONDS", 0.01)
    for _ in range(50):
        rig.now_ns += SECOND
        await agent.read_afresh()
    assert agent.state.counts.rounds == rounds + 3, "no flood of requests is one of rounds"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    rig.kill()


async def test_where_a_gpu_cannot_be_read_nobody_who_asks_makes_rounds_come_sooner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After how many rounds its driver is taken for broken is the governor's to reckon."""
    monkeypatch.setattr("flyball_agent.node.agent.FRESH_SECONDS", 0.01)
    rig = Rig(tmp_path, tick_seconds=3600.0)
    rig.hold("gpt2-1-0", 0)
    rig.spec(1, ("gpt2-1-0", 300_000))
    task = asyncio.create_task(rig.agent.run())
    await until(lambda: rig.agent.enforcer.state.acknowledged is not None)
    await until(lambda: not rig.agent.state.enforced.settling and rig.agent.state.counts.rounds > 0)
    rig.node.devices[0].flags |= DeviceFault.LOST
    before = rig.agent.state.counts.rounds
    rig.spec(2, ("gpt2-1-0", 250_000))
    await until(lambda: rig.agent.state.counts.rounds > before and not rig.agent.state.enforced.settling)
    assert any(gpu.failure is not None for gpu in rig.agent.state.enforced.gpus.values())
    rounds = rig.agent.state.counts.rounds
    for _ in range(20):
        rig.now_ns += SECOND
        await rig.agent.read_afresh()
    assert rig.agent.state.counts.rounds == rounds
    assert rig.agent.energy(POD) is not None, "the last reading is there, with its age"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    rig.kill()


async def test_where_a_gpu_takes_no_limit_nobody_who_asks_ends_the_agent_sooner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In how many rounds it has to have been refused is reckoned by those that come in their time, too."""
    monkeypatch.setattr("flyball_agent.node.agent.FRESH_SECONDS", 0.01)
    rig = Rig(tmp_path, tick_seconds=3600.0)
    monkeypatch.setattr(rig.agent.governor, "_early_rounds", TokenBucket(EARLY_ROUNDS_PER_SECOND, 100, lambda: 0.0))
    rig.hold("gpt2-1-0", 0)
    rig.spec(1, ("gpt2-1-0", 300_000))
    task = asyncio.create_task(rig.agent.run())
    await until(lambda: rig.agent.enforcer.state.acknowledged is not None)
    for device in rig.node.devices:
        device.flags |= DeviceFault.NO_PERMISSION
    rig.spec(2, ("gpt2-1-0", 250_000))
    await until(lambda: any(gpu.refusal is not None for gpu in rig.agent.state.enforced.gpus.values()))
    for _ in range(20):
        rig.now_ns += SECOND
        await rig.agent.read_afresh()
        await asyncio.sleep(0)
    assert rig.agent.state.enforced.must_exit is None
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    rig.kill()


async def test_a_computation_s_clock_is_set_between_two_rounds_on_its_own_gpu(tmp_path: Path) -> None:
    """From the client's call to the driver, through the pod's socket; nothing of it is left when the trainer is."""
    with tempfile.TemporaryDirectory(prefix="fa", dir="/tmp") as sockets:
        rig = Rig(tmp_path, tick_seconds=3600.0, sockets=Path(sockets))
        rig.hold("gpt2-1-0", 0, 1)
        rig.hold("bert-1-0", 2)
        rig.spec(1, ("gpt2-1-0", 300_000), ("bert-1-0", 300_000))
        await rig.round()
        await rig.round()
        before, limits = rig.locks(), rig.limits()
        rounds = rig.agent.state.counts.rounds
        own, other = (Clock(f"{sockets}/uid-gpt2-1-0/flyball.sock", rig.node.devices[index].uuid) for index in (1, 2))
        other.ask(600)
        own.ask(750)
        await until(lambda: rig.locks()[1][1] == 750)
        assert rig.locks() == [before[0], (min(before[1][0], 750), 750), *before[2:]]
        own.ask(900)
        await until(lambda: rig.locks()[1][1] == 900)
        assert (rig.agent.state.counts.rounds, rig.limits()) == (rounds, limits)
        rig.now_ns += round((COMPUTATION_SECONDS + 1) * SECOND)
        await rig.round()
        assert rig.locks() == before
        await rig.agent.close()


async def test_a_training_learns_from_the_sets_that_were_made_how_soon_its_clocks_come(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="fa", dir="/tmp") as sockets:
        rig = Rig(tmp_path, tick_seconds=3600.0, sockets=Path(sockets))
        rig.hold("gpt2-1-0", 0)
        rig.agent.accept_spec(gpu_node_spec(1, 1_600_000, job_grant(POD.name, 300_000, 1, clocks=(0, 1200))))
        await rig.round()
        await rig.round()
        path, gpu = f"{sockets}/uid-gpt2-1-0/flyball.sock", rig.node.devices[0].uuid
        job = Job(Environment(socket=path))
        found = (await asyncio.to_thread(job.capabilities))[gpu]
        assert (found.clocks_lockable, found.highest_megahertz, found.granted_megahertz) == (True, 1410, 1200)
        assert found.set_latency == SetLatency(0.0, 0.0, 1, 0.0), "the lock of its grant, in virtual time"
        known, clock = KnownSetLatency(Agent(path), gpu, lambda: rig.now_ns / SECOND), Clock(path, gpu)
        await asyncio.to_thread(known.look)
        assert known.seconds() is None, "of one call nothing is concluded"
        for megahertz in range(600, 600 + 15 * LEAST_SETS, 15):
            clock.ask(megahertz)
            await until(lambda megahertz=megahertz: rig.locks()[0][1] == megahertz)  # type: ignore[misc]
        rig.now_ns += 60 * SECOND
        await asyncio.to_thread(known.look)
        assert known.seconds() == 0.0
        rig.now_ns += round(OLDEST_SECONDS * SECOND)
        assert known.seconds() is None, "it may have become another since"
        await rig.agent.close()


async def test_closing_writes_the_accounts_down_and_keeps_the_limits(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.spec(1)
    await rig.round()
    rig.now_ns += 3 * SECOND
    await rig.round()
    idle = rig.agent.state.accounts.idle
    assert idle > 0
    await rig.agent.close()
    assert [device.read().requested_limit_milliwatts for device in rig.node.devices] == [100_000] * GPUS
    rig.start()
    assert rig.agent.state.accounts.idle == idle
    rig.kill()
