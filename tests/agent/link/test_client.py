"""The agent's end of the line: what it tells first, and how much."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tempfile
from pathlib import Path

import pytest
from flyball_agent.clock import boottime_ns
from flyball_agent.energy.observations import ClockAsked, StepReport
from flyball_agent.enforce.gpu_state import PodName
from flyball_agent.link.client import REPORT_BURST, REPORTS_PER_SECOND, EnforcerLink
from flyball_agent.link.messages import (
    ClockWanted,
    PodShown,
    Snapshot,
    SpecSeen,
    StepsReported,
    ToEnforcer,
    from_agent,
    packed,
)
from flyball_agent.link.server import MESSAGE_BURST, MESSAGES_PER_SECOND
from flyball_agent.pods.resources import PodDevices
from flyball_agent.state import RoundCounts

from tests.support.waiting import until


async def hear_all(reader: asyncio.StreamReader, heard: list[ToEnforcer]) -> None:
    incoming = from_agent()
    while data := await reader.read(65536):
        incoming.add(data)
        while (message := incoming.next()) is not None:
            heard.append(message)


def test_trainers_say_less_than_the_enforcer_takes() -> None:
    assert REPORTS_PER_SECOND < MESSAGES_PER_SECOND
    assert REPORT_BURST < MESSAGE_BURST


async def test_whatever_trainers_say_a_grant_waits_behind_no_more_than_the_burst() -> None:
    """The enforcer takes so many messages a second: of a flood, each would stand before the cut that comes after it."""
    heard: list[ToEnforcer] = []

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await hear_all(reader, heard)
        writer.close()

    now = 0.0
    pods = [PodName("research", f"pod-{number}") for number in range(int(REPORT_BURST))]
    with tempfile.TemporaryDirectory(prefix="fl", dir="/tmp") as folder:  # short, for the socket's path
        path = Path(folder) / "e.sock"
        server = await asyncio.start_unix_server(hear, path)
        link = EnforcerLink(path, "node-0", monotonic=lambda: now)
        connected = asyncio.Event()
        link.on_connected = connected.set
        running = asyncio.create_task(link.run())
        try:
            await connected.wait()
            for iterations in range(1, 6):
                for pod in pods:
                    link.report_steps(pod, StepReport(iterations, 1, 1.0))
                    link.ask_clock(pod, ClockAsked(100 * iterations, 10.0))
                await asyncio.sleep(0.01)
            link.accept_spec({"generation": 2})
            await until(lambda: any(isinstance(message, SpecSeen) for message in heard))
            assert sum(not isinstance(message, SpecSeen) for message in heard) <= REPORT_BURST

            def all_have_said_their_last() -> bool:
                nonlocal now
                now += 0.1
                last = {(type(item), item.pod): item for item in heard if isinstance(item, StepsReported | ClockWanted)}
                steps, clocks = StepReport(5, 1, 1.0), ClockAsked(500, 10.0)
                return all(
                    last.get((StepsReported, pod)) == StepsReported(pod, steps)
                    and last.get((ClockWanted, pod)) == ClockWanted(pod, clocks)
                    for pod in pods
                )

            await until(all_have_said_their_last)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            server.close()


async def test_a_clock_that_nothing_waits_before_is_sent_at_once_and_none_before_a_grant() -> None:
    """It is for a computation that has begun: not a turn of the loop later."""
    with tempfile.TemporaryDirectory(prefix="fl", dir="/tmp") as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/e.sock")
        listener.listen()
        link = EnforcerLink(f"{folder}/e.sock", "node-0")
        connected = asyncio.Event()
        link.on_connected = connected.set
        running = asyncio.create_task(link.run())
        try:
            await connected.wait()
            enforcer, _ = listener.accept()
            with enforcer:
                enforcer.setblocking(False)
                wanted = ClockWanted(PodName("research", "pod"), ClockAsked(1005, 10.0))
                link.ask_clock(wanted.pod, wanted.asked)
                assert enforcer.recv(4096) == packed(wanted)
                link.accept_spec({"generation": 2})
                link.ask_clock(wanted.pod, wanted.asked)
                with pytest.raises(BlockingIOError):
                    enforcer.recv(4096)
                said = b""
                while not said.endswith(packed(wanted)):
                    await asyncio.sleep(0)
                    with contextlib.suppress(BlockingIOError):
                        said += enforcer.recv(4096)
                assert b"generation" in said.removesuffix(packed(wanted)), "the grant was first"
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_what_a_former_enforcer_knew_is_no_news_of_the_next_one_before_it_has_said_something() -> None:
    """Its rounds would be reported as the next one's: that GPUs are let go of, say, before the operator can see it."""
    known = EnforcerLink("", "node-0").state
    snapshot = Snapshot(
        node="node-0",
        enforced=known.enforced,
        accounts=known.accounts,
        jobs=(),
        pods=(PodShown(PodName("research", "pod"), "research/pod", 1, "uid", False),),
        pods_listed=True,
        pods_unresolved=None,
        accounted=True,
        round_error=None,
        last_round_ns=boottime_ns(),
        counts=RoundCounts(rounds=1000),
    )
    with tempfile.TemporaryDirectory(prefix="fl", dir="/tmp") as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/e.sock")
        listener.listen()
        link = EnforcerLink(f"{folder}/e.sock", "node-0")
        running = asyncio.create_task(link.run())
        try:
            await until(lambda: link.lines == 1)
            former, _ = listener.accept()
            with former:
                former.sendall(packed(snapshot))
                await until(lambda: link.state.last_round_ns == snapshot.last_round_ns)
            await until(lambda: link.lines == 2)
            assert link.state.last_round_ns is None
            assert list(link.state.pods) == [PodName("research", "pod")], "whose sockets stay"
            following, _ = listener.accept()
            with following:
                following.sendall(packed(snapshot))
                await until(lambda: link.state.last_round_ns == snapshot.last_round_ns)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_what_was_seen_before_there_was_a_line_is_not_told_but_the_pods_are() -> None:
    """An enforcer that has just started raises nothing before spec and brakes are seen at the API server again."""
    with tempfile.TemporaryDirectory(prefix="fl", dir="/tmp") as folder:
        heard: list[ToEnforcer] = []

        async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await hear_all(reader, heard)
            writer.close()

        link = EnforcerLink(f"{folder}/e.sock", "node-0")
        link.take_pods([PodDevices("research", "pod", None, ("GPU-1",))])
        link.take_reported(())
        link.accept_spec({"generation": 2})
        link.take_brakes({})
        link.operator_seen(1)
        link.status_published(7)
        link.read_soon()
        link.report_steps(PodName("research", "pod"), StepReport(1, 1, 1.0))

        def see_again() -> None:
            link.accept_spec({"generation": 3}, None)
            link.take_reported(())
            link.accept_spec({"generation": 3}, ())

        link.on_connected = see_again
        server = await asyncio.start_unix_server(hear, f"{folder}/e.sock")
        running = asyncio.create_task(link.run())
        try:
            await until(lambda: any(isinstance(message, SpecSeen) for message in heard))
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            server.close()
        said = ["PodsListed", "GpusReported", "SpecSeen"]
        assert [type(message).__name__ for message in heard] == said, (
            "nothing is raised before it is known what there was"
        )
        assert isinstance(heard[2], SpecSeen)
        assert heard[2].spec == {"generation": 3}
