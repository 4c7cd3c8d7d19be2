"""The loop's part of the power protocol: what counts while a grant's fate is unknown, and what waits for a plan."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flyball_operator.acknowledgements import Acknowledgements
from flyball_operator.background import Background
from flyball_operator.cap_ledger import CapLedger
from flyball_operator.execute import Executor
from flyball_operator.gpu_nodes import read_gpu_node
from flyball_operator.grants import CapBudget
from flyball_operator.hold import Grant
from flyball_operator.loop import MAX_GRANTS_AT_ONCE, PLAN_GRACE_SECONDS, Operator
from flyball_operator.metrics import OperatorMetrics
from flyball_operator.picture import NodePicture
from flyball_operator.reign import Reign
from flyball_operator.reporting import Reporter
from flyball_operator.settings import Settings
from flyball_operator.world import World
from operator_objects import (
    A100,
    Json,
    decision,
    grant,
    incarnation_view,
    job_grant,
    node_view,
    raw_gpu_node,
    running_pod,
)

WATTS = 300  # of each GPU, by the plan


class Answers(Executor):
    """Takes grants; `says` is what becomes of the next ones: "taken", "no" (refused), or "nothing" (no answer)."""

    def __init__(self) -> None:
        self.says = "taken"
        self.sent: list[tuple[str, Grant]] = []

    async def write_grant(self, picture: NodePicture, grant: Grant, refused: Callable[[], object]) -> bool:
        self.sent.append((picture.name, grant))
        if self.says == "no":
            refused()
        return self.says == "taken"

    async def remove_startup_taint(self, picture: NodePicture) -> bool:
        return True


class Bench:
    """One leader over nodes a and b of eight GPUs, a job of eight GPUs on each, at the smallest limits."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.time = 0.0
        self.executor = Answers()
        unused: Any = None
        self.operator = Operator(
            unused, unused, settings or Settings(), OperatorMetrics(), learner=unused, monotonic=lambda: self.time
        )
        ledger = CapLedger()
        reporter = Reporter(self.executor, ledger, 5.0)
        self.reign = Reign(1, self.executor, ledger, reporter, Acknowledgements(1000.0), Background(lambda: None))
        self.raw: dict[str, Json] = {}
        for node in "ab":
            self.put(node, 100)
            self.reign.decisions[f"uid-{node}"] = decision(f"uid-{node}", (node, 8), watts=float(WATTS))

    def put(self, node: str, watts: int, *, epoch: int = 1, generation: int = 1, version: str = "7") -> None:
        """The API server has a grant of so many watts for each GPU, and its agent has acknowledged it."""
        jobs = (job_grant(f"uid-{node}", watts * 1000, 8, pod=f"pod-{node}", clock=1200),)
        given = grant(watts * 8000, epoch=epoch, generation=generation, jobs=jobs)
        raw = raw_gpu_node(node, given, limits=watts * 8000)
        raw["metadata"]["resourceVersion"] = version
        self.raw[node] = raw

    def world(self) -> World:
        gpu_nodes = {name: read_gpu_node(raw) for name, raw in self.raw.items()}
        pods = [running_pod(f"pod-{node}", node, uid=f"uid-{node}", gpus=8) for node in "ab"]
        incarnations = {f"uid-{node}": [incarnation_view(f"uid-{node}", 1, (node, 8))] for node in "ab"}
        return World(
            jobs={},
            caps=[],
            gpu_nodes=gpu_nodes,
            nodes=[node_view("a"), node_view("b")],
            pods=pods,
            incarnations=incarnations,
            pods_of={f"uid-{node}": [pod] for node, pod in zip("ab", pods, strict=True)},
            reports_of={},
            unread=(),
            age_seconds=0.0,
        )

    async def cycle(self, budget_watts: int) -> list[tuple[str, int]]:
        """What is sent in one cycle, as node and watts, under a cap over both nodes."""
        world = self.world()
        self.executor.sent = []
        pictures = self.operator._pictures(self.reign, world, self.time)
        cap = CapBudget("row", frozenset("ab"), budget_watts * 1000)
        self.operator._send_grants(self.reign, world, pictures, {}, [cap], raises_allowed=True)
        tasks = self.reign.background._tasks
        await asyncio.gather(*(tasks["grant", node] for node in self.raw if ("grant", node) in tasks))
        return [(node, sent.hold.limit_milliwatts // 1000) for node, sent in self.executor.sent]


async def test_raises_go_as_far_as_the_cap_does() -> None:
    bench = Bench()
    assert await bench.cycle(4800) == [("a", 2400), ("b", 2400)]
    assert bench.reign.attempted.keys() == {"a", "b"}


@pytest.mark.parametrize("then", ["no", "nothing"])
async def test_a_raise_that_may_have_arrived_counts_until_its_object_is_seen(then: str) -> None:
    bench = Bench()
    bench.reign.decisions["uid-b"] = decision("uid-b", ("b", 8), watts=100.0)
    bench.executor.says = "nothing"
    assert await bench.cycle(3200) == [("a", 2400)]
    # The plan changes its mind: b is to have what a was to have.
    bench.reign.decisions["uid-a"] = decision("uid-a", ("a", 8), watts=100.0)
    bench.reign.decisions["uid-b"] = decision("uid-b", ("b", 8), watts=300.0)
    # A conflict is just what an object that took the first grant answers to the second.
    bench.executor.says = then
    for _ in range(3):
        assert [node for node, watts in await bench.cycle(3200) if watts > 800] == []
    # The object is seen: with the first grant, which is acknowledged, and then taken back.
    bench.executor.says = "taken"
    bench.put("a", 300, generation=2, version="8")
    assert await bench.cycle(3200) == [("a", 800)]
    bench.put("a", 100, generation=3, version="9")
    assert await bench.cycle(3200) == [("b", 2400)]


async def test_a_raise_that_was_refused_frees_its_watts() -> None:
    bench = Bench()
    bench.executor.says = "no"
    assert await bench.cycle(3200) == [("a", 1600), ("b", 1600)]
    assert bench.reign.attempted == {}


async def test_grants_wait_for_a_plan_that_is_near_and_not_for_one_after_the_other() -> None:
    bench = Bench()
    sent = []
    for _ in range(20):
        # Each plan that ends is followed by the next: a ramp moves its cap all the time.
        bench.reign.planning = asyncio.get_running_loop().create_future()  # type: ignore[assignment]
        bench.reign.planning_since = bench.time
        sent.append(bool(await bench.cycle(3200)))
        bench.time += PLAN_GRACE_SECONDS / 4
    assert sent[:4] == [False] * 4
    assert all(sent[4:])


async def test_what_fits_its_caps_waits_for_no_plan() -> None:
    bench = Bench()
    bench.reign.planning = asyncio.get_running_loop().create_future()  # type: ignore[assignment]
    assert await bench.cycle(4800) == [("a", 2400), ("b", 2400)]


async def test_a_queue_of_statuses_keeps_no_grant() -> None:
    bench = Bench()
    for index in range(MAX_GRANTS_AT_ONCE + 1):
        bench.reign.background.start(("status", f"uid-{index}"), asyncio.Event().wait())
    assert await bench.cycle(4800) == [("a", 2400), ("b", 2400)]
    await bench.reign.background.stop()


async def test_nothing_is_raised_while_a_former_leaders_grant_stands() -> None:
    bench = Bench()
    bench.reign.epoch = 2
    assert await bench.cycle(4800) == [("a", 800), ("b", 800)]
    bench.put("a", 100, epoch=2, version="8")
    assert await bench.cycle(4800) == [("b", 800)]
    bench.put("b", 100, epoch=2, version="8")
    assert await bench.cycle(4800) == [("a", 2400), ("b", 2400)]


async def test_nodes_are_pictured_with_the_gpu_models_that_the_operator_was_given(tmp_path: Path) -> None:
    path = tmp_path / "a100.yaml"
    path.write_text(
        f"product: {A100}\nlimits: [100, 400, 400]\nidle: 41\nclocks: [210, 1410, 15]\nknee: 1000\nslope: 0.7\n",
        encoding="utf-8",
    )
    bench = Bench(Settings(gpu_model_files=(path,)))
    models = [picture.gpu_model for picture in bench.operator._pictures(bench.reign, bench.world(), 0.0).values()]
    assert [None if model is None else (model.idle_power_watts, model.knee_megahertz) for model in models] == [
        (41.0, 1000.0),
        (41.0, 1000.0),
    ]
