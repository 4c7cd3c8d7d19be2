"""A training on a driver that is slow to set clocks: the agent measures it, the client's pipeline hears of it and acts."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from flyball.node.agent import Agent
from flyball.node.capabilities import KnownSetLatency
from flyball.node.clocks import Clock
from flyball.pipelines.pipeline import Pipeline
from flyball.pipelines.plan import StagePlans
from flyball_agent.enforce.journal import Journal
from flyball_agent.gpu.simulated import SimulatedDriver
from flyball_agent.pods.resources import PodDevices
from flyball_agent.process.single import SingleProcessAgent
from flyball_simulated_gpu.catalogue import CATALOGUE
from flyball_simulated_gpu.hardware_file import create_node_file
from flyball_simulated_gpu.shared import SimulatedNode

from tests.support.agent_doubles import Pods, QuickDisk
from tests.support.gpu_node_specs import gpu_node_spec, job_grant
from tests.support.waiting import until

SLOW_MICROSECONDS, COMPUTATION_SECONDS = 20_000, 0.05
PLAN: Any = {
    "gpus": 1,
    "points": [
        {
            "realised_time": 1.0,
            "realised_energy": 300.0,
            "clocks": {"0": {"forward": [[[900], 8]], "backward": [[[1200], 8]]}},
        }
    ],
}


async def test_a_pipeline_gives_its_clocks_up_where_the_driver_was_measured_to_be_too_slow_for_them(
    tmp_path: Path,
) -> None:
    path = tmp_path / "hardware"
    (gpu,) = create_node_file(path, [CATALOGUE["NVIDIA-A100-SXM4-40GB"]])
    with (
        tempfile.TemporaryDirectory(prefix="fa", dir="/tmp") as sockets,
        SimulatedNode.open(path) as node,
    ):
        agent = SingleProcessAgent(
            "node-0",
            SimulatedDriver(node),
            Journal(tmp_path, "node-0", disk=QuickDisk()),
            Pods(PodDevices("research", "gpt3-1-0", "uid-1", (gpu,))),
            socket_folder=sockets,
        )
        agent.accept_spec(gpu_node_spec(1, 400_000, job_grant("gpt3-1-0", 300_000, 1), lease=3600))
        await agent.find_pods()
        await agent.tick()
        await agent.find_pods()
        node.file.set_latency(SLOW_MICROSECONDS, 0)
        socket = f"{sockets}/uid-1/flyball.sock"
        known, now = KnownSetLatency(Agent(socket), gpu), [0.0]
        pipeline = Pipeline(
            StagePlans(PLAN, 0), Clock(socket, gpu), stage=0, set_seconds=known.seconds, monotonic=lambda: now[0]
        )
        (device,) = node.devices

        async def iterate() -> list[int]:
            ran = []
            for number in range(8):
                for instruction, planned in (("forward", 900), ("backward", 1200)):
                    wanted = planned if pipeline.follows_computations else 1200
                    with pipeline.computation(instruction, number):
                        now[0] += COMPUTATION_SECONDS
                        await until(lambda wanted=wanted: device.read().locked_max_megahertz == wanted)  # type: ignore[misc]
                        ran.append(device.read().locked_max_megahertz)
            with pipeline.synchronize():
                await agent.tick()  # what is known after a round is what a trainer is shown
                await asyncio.to_thread(known.look)
            return ran

        assert await iterate() == [900, 1200] * 8
        assert (known.seconds() or 0.0) >= SLOW_MICROSECONDS / 1e6
        assert not pipeline.follows_computations
        assert await iterate() == [1200] * 16
        latency = agent.state.enforced.gpus[gpu].set_latency
        assert latency is not None
        assert latency.sets <= 17, "none was set but by plan and grant"
        await agent.close()
