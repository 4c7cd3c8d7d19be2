"""How long boards take to have their clocks set: of the calls that are made anyway, and of these alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from flyball_agent.enforce.enforcer import Enforcer
from flyball_agent.enforce.gpu_state import PodName
from flyball_agent.enforce.journal import Journal
from flyball_agent.enforce.set_latencies import SETS_KEPT, CallTimes, SetLatencies, SetLatency
from flyball_agent.gpu.simulated import SimulatedDriver
from flyball_api.gpu_node import DriverSession
from flyball_simulated_gpu.device import setters_fail_with
from flyball_simulated_gpu.hardware_file import create_node_file
from flyball_simulated_gpu.shared import SimulatedNode
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.agent_doubles import QuickDisk
from tests.support.enforcer_rig import A100, Rig
from tests.support.examples import examples
from tests.support.gpu_node_specs import gpu_node_spec, job_grant

GPT2 = PodName("research", "gpt2")
SESSION = DriverSession("boot", "1")


@given(milliseconds=st.lists(st.integers(0, 2000), min_size=1, max_size=2 * SETS_KEPT))
@settings(max_examples=examples(100))
def test_the_last_calls_count_by_their_ranks(milliseconds: list[int]) -> None:
    latencies, found = SetLatencies(lambda: 7), None
    for one in milliseconds:
        found = latencies.take("GPU-1", SESSION, one * 1_000_000)
    last = milliseconds[-SETS_KEPT:]
    assert found is not None
    assert (found.sets, found.last_ns) == (len(last), 7)
    for share, least in ((0.5, found.median_microseconds), (0.99, found.p99_microseconds)):
        assert least // 1000 in last
        assert sum(one * 1000 <= least for one in last) >= share * len(last)
        assert sum(one * 1000 < least for one in last) < share * len(last)
    assert latencies.take("GPU-2", SESSION, 0).sets == 1, "each GPU by itself"
    assert latencies.take("GPU-1", DriverSession("boot", "2"), 0).sets == 1, "and each session of the driver"


def test_a_call_of_which_nothing_is_told_yet_has_taken_until_now() -> None:
    times = iter((100, 130, 150, 170))
    took = CallTimes(lambda: next(times))
    took.returned("GPU-1")
    assert (took.nanoseconds("GPU-2"), took.nanoseconds("GPU-1")) == (50, 30)


def latencies(rig: Rig) -> list[SetLatency | None]:
    return [gpu.set_latency for gpu in rig.enforcer.state.gpus.values()]


@pytest.fixture
def granted(rig: Rig) -> Rig:
    rig.hold("gpt2", 0, 1)
    rig.enforcer.accept(gpu_node_spec(1, 1_600_000, job_grant("gpt2", 300_000, clocks=(0, 1200)), lease=10**6))
    return rig


def test_nothing_is_known_before_a_clock_was_set_nor_by_a_call_that_was_refused(granted: Rig) -> None:
    granted.node.devices[1].flags |= setters_fail_with(3)
    assert latencies(granted) == [None] * 4
    granted.step()
    granted.step(1)
    first, *others = latencies(granted)
    assert first is not None
    assert (first.sets, first.last_ns) == (1, granted.now_ns - 1_000_000_000), "the lock that was granted, once"
    assert others == [None] * 3, "one was refused, and that a lock is removed from an idle GPU is no clock"
    granted.step(1)
    assert latencies(granted)[0] == first, "no call is made to find out"


def test_what_was_measured_ends_with_the_drivers_session(granted: Rig) -> None:
    granted.step()
    granted.step(1)
    assert latencies(granted)[0] is not None
    granted.node.reload_driver()
    granted.step(1)
    found = latencies(granted)[0]
    assert found is not None
    assert found.sets == 1, "it was locked anew by the driver that is loaded now"


async def test_a_slow_drivers_calls_are_measured_as_they_are_made_and_beside_no_cut(tmp_path: Path) -> None:
    path, slow_microseconds = tmp_path / "hardware", 30_000
    create_node_file(path, [A100] * 2)
    with SimulatedNode.open(path) as node:
        enforcer = Enforcer("node-0", SimulatedDriver(node), Journal(tmp_path, "node-0", disk=QuickDisk()))
        first, second = (device.uuid for device in node.devices)
        enforcer.set_pods({first: (GPT2,), second: (GPT2,)})
        enforcer.accept(gpu_node_spec(1, 800_000, job_grant("gpt2", 300_000, clocks=(0, 1200)), lease=10**6))
        await enforcer.step()
        node.file.set_latency(slow_microseconds, 0)
        for megahertz in (900, 750, 900, 750):
            enforcer.ask_clock(GPT2, megahertz, 10.0, first)
            await enforcer.set_asked_clocks()
        slow, quick = (enforcer.state.gpus[uuid].set_latency for uuid in (first, second))
        assert slow is not None
        assert quick is not None
        assert (slow.sets, quick.sets) == (5, 1), "as many as were made"
        assert quick.p99_microseconds < slow_microseconds <= slow.median_microseconds <= slow.p99_microseconds
        enforcer.close()
