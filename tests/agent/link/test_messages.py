"""What passes between agent and enforcer: nothing is lost on the way, the largest fits, and what is none is refused."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest
from flyball_agent.energy.observations import ClockAsked, StepReport
from flyball_agent.enforce.gpu_state import MAX_XID_KINDS, PodName
from flyball_agent.enforce.journal import Journal
from flyball_agent.enforce.set_latencies import SETS_KEPT, SetLatency
from flyball_agent.gpu.simulated import SimulatedDriver
from flyball_agent.link.messages import (
    MAX_TO_AGENT_BYTES,
    MAX_TO_ENFORCER_BYTES,
    BrakesSeen,
    ClockWanted,
    InvalidMessage,
    OperatorSeen,
    PodsListed,
    Snapshot,
    SpecSeen,
    StepsReported,
    ToEnforcer,
    from_agent,
    from_enforcer,
    packed,
)
from flyball_agent.pods.resources import PodDevices
from flyball_agent.process.single import SingleProcessAgent
from flyball_api.power_brake import read_power_brake
from flyball_simulated_gpu.catalogue import CATALOGUE
from flyball_simulated_gpu.device import DeviceFault
from flyball_simulated_gpu.virtual import VirtualNode
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.agent_doubles import Pods, QuickDisk, VirtualClock
from tests.support.examples import examples
from tests.support.gpu_node_specs import gpu_node_spec, job_grant

H100 = CATALOGUE["NVIDIA-H100-80GB-HBM3"]
BRAKE = read_power_brake(
    {
        "apiVersion": "flyball.dev/v1alpha1",
        "kind": "PowerBrake",
        "metadata": {"name": "row-1", "uid": "u", "resourceVersion": "7"},
        "spec": {"epoch": 1, "sequence": 2, "keptMillionths": 500_000},
    }
)

POD = PodName("team", "train-0")


async def governed(folder: Path, gpus: int) -> SingleProcessAgent:
    """A node of so many GPUs, each held by a pod, one of them lost."""
    clock = VirtualClock()
    node = VirtualNode("node-0", [H100] * gpus, clock)
    held = [PodDevices("research", f"p-{index}", f"u-{index}", (gpu.uuid,)) for index, gpu in enumerate(node.devices)]
    journal = Journal(folder, "node-0", disk=QuickDisk())
    agent = SingleProcessAgent("node-0", SimulatedDriver(node), journal, Pods(*held), clock_ns=clock)
    agent.accept_spec(gpu_node_spec(1, gpus * 500_000, job_grant("p-0", 300_000, 1)))
    agent.take_brakes({"row-1": BRAKE})
    await agent.find_pods()
    await agent.tick()
    node.devices[1].flags |= DeviceFault.LOST
    node.devices[1].report_xid_error(79)
    clock.advance(1)
    await agent.tick()
    return agent


def snapshot(agent: SingleProcessAgent) -> Snapshot:
    state = agent.state
    fields: dict[str, Any] = {name: getattr(state, name) for name in ("node", "enforced", "accounts", "counts")}
    fields |= {name: getattr(state, name) for name in ("pods_listed", "pods_unresolved", "accounted", "round_error")}
    return Snapshot(jobs=tuple(state.jobs), pods=(), last_round_ns=state.last_round_ns, **fields)


async def test_everything_that_the_governor_knows_comes_over(tmp_path: Path) -> None:
    agent = await governed(tmp_path, 2)
    sent = snapshot(agent)
    incoming = from_enforcer()
    incoming.add(packed(sent))
    received = incoming.next()
    assert received is not None
    for field in dataclasses.fields(sent.enforced):
        assert getattr(received.enforced, field.name) == getattr(sent.enforced, field.name), field.name
    assert received == sent
    assert [dict(gpu.xid_errors) for gpu in received.enforced.gpus.values()] == [{}, {79: 1}]
    await agent.close()


async def test_the_largest_node_fits(tmp_path: Path) -> None:
    agent = await governed(tmp_path, 256)
    for gpu in list(agent.state.enforced.gpus.values()):
        for xid in range(MAX_XID_KINDS + 1):
            gpu = gpu.reported(xid)
        assert len(gpu.xid_errors) == MAX_XID_KINDS
        agent.state.enforced.put(gpu.changed(set_latency=SetLatency(10**6, 10**6, SETS_KEPT, 2**62)))
    assert len(packed(snapshot(agent))) < MAX_TO_AGENT_BYTES
    await agent.close()
    uuids = tuple(f"GPU-{number:036d}" for number in range(8))
    pods = tuple(PodDevices("n" * 63, "p" * 253, "u" * 36, uuids) for _ in range(500))
    assert len(packed(PodsListed(pods))) < MAX_TO_ENFORCER_BYTES
    spec = gpu_node_spec(1, 10**6, *(job_grant("p" * 253, 300_000, job="j" * 253, uid="u" * 36) for _ in range(64)))
    assert len(packed(SpecSeen(spec, 1))) < MAX_TO_ENFORCER_BYTES


@pytest.mark.parametrize(
    "message",
    [SpecSeen({"epoch": 1}, 5), OperatorSeen(3, 7), BrakesSeen({"row-1": BRAKE})],
    ids=["spec", "lease", "brake"],
)
def test_what_the_agent_tells_comes_over(message: ToEnforcer) -> None:
    incoming = from_agent()
    incoming.add(packed(message) * 2)
    assert [incoming.next(), incoming.next(), incoming.next()] == [message, message, None]
    assert not incoming.begun


@settings(max_examples=examples(100))
@given(pieces=st.lists(st.integers(1, 40), min_size=1), epochs=st.lists(st.integers(0, 2**40), min_size=1, max_size=5))
def test_it_does_in_whatever_pieces(pieces: list[int], epochs: list[int]) -> None:
    incoming, heard = from_agent(), []
    sent = [OperatorSeen(epoch, 7) for epoch in epochs]
    data = b"".join(map(packed, sent))
    for piece in itertools.cycle(pieces):
        incoming.add(data[:piece])
        data = data[piece:]
        while (message := incoming.next()) is not None:
            heard.append(message)
        assert incoming.begun or len(b"".join(map(packed, heard))) + len(data) == len(b"".join(map(packed, sent)))
        if not data:
            break
    assert heard == sent


@pytest.mark.parametrize(
    "data",
    [b"\xff\xff\xff\xff", (3).to_bytes(4, "big") + b"\xc1\xc1\xc1", (2).to_bytes(4, "big") + b"\x91\x01"],
    ids=["too long", "no message pack", "an array"],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    incoming = from_agent()
    incoming.add(data)
    with pytest.raises(InvalidMessage):
        incoming.next()


@pytest.mark.parametrize(
    "message",
    [
        StepsReported(POD, StepReport(2**53 + 1, 1, 1.0)),
        StepsReported(POD, StepReport(1, 1, 1e20)),
        StepsReported(POD, StepReport(1, 1, float("nan"))),
        StepsReported(POD, StepReport(1, 1, 1.0, 2**40)),
        ClockWanted(POD, ClockAsked(0, 1.0)),
        ClockWanted(POD, ClockAsked(900, float("inf"))),
        ClockWanted(POD, ClockAsked(900, 1e9)),
        ClockWanted(POD, ClockAsked(900, 1.0, "G" * 65)),
    ],
)
def test_what_no_socket_would_take_is_refused_here_too(message: ToEnforcer) -> None:
    """A window of 1e20 s gave microseconds that no snapshot can hold: none was sent any more, and the journal kept it."""
    incoming = from_agent()
    incoming.add(packed(message))
    with pytest.raises(InvalidMessage):
        incoming.next()


def test_nesting_without_end_is_refused() -> None:
    body = b"\x91" * 100_000
    incoming = from_agent()
    incoming.add(len(body).to_bytes(4, "big") + body)
    with pytest.raises(InvalidMessage):
        incoming.next()
