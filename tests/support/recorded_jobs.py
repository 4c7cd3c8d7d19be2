"""Jobs that behave as others have recorded, under the whole operator: what an agent would report is what tables say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from flyball_operator.learning.learner import Learner
from flyball_planner.snapshot import JobDecision

from benchmarks.cluster_in_memory import Others
from benchmarks.running_jobs import Bench, Tally
from tests.support.operator_objects import NOW
from tests.support.recorded_tables import RecordedJob
from tests.support.schedules.memory_api import Json
from tests.support.schedules.workloads import job

WINDOW_SECONDS = 30.0
LONGEST_START_CYCLES = 200


class RecordedOthers(Others):
    """Agents whose one job runs as recorded."""

    def __init__(self, recorded: RecordedJob) -> None:
        super().__init__()
        self.recorded = recorded
        self.clock_megahertz = 0  # the last that the job ran at

    def window(self, granted: Json) -> Json:
        gpus = sum(each["gpus"] for node in self.api.items["gpunodes"].values() for each in node["spec"]["jobs"])
        self.clock_megahertz = clock = self.recorded.clock_under(granted)
        if gpus not in self.recorded.rates:  # the next incarnation's nodes are granted one after the other
            return {
                "microsecondsPerIteration": 0,
                "millijoulesPerIteration": 0,
                "clockMegahertz": 0,
                "localBatchSize": 0,
            }
        seconds, joules = self.recorded.iteration(gpus, clock)
        return {
            "microsecondsPerIteration": round(seconds * 1e6),
            "millijoulesPerIteration": round(joules * 1e3 * granted["gpus"] / gpus),
            "clockMegahertz": clock,
            "localBatchSize": self.recorded.batch // gpus,
        }


class RecordedBench(Bench):
    """A leader's term over one such job, by a clock of its own."""

    others: RecordedOthers

    def __init__(self, nodes: int, recorded: RecordedJob) -> None:
        super().__init__(nodes, 1, None, lambda: RecordedOthers(recorded))
        self.recorded = recorded

    def new_learner(self) -> Learner:
        return Learner(self.session, clock=lambda: self.time)

    def ask(self, model_class: str, gpus: int, **spec: Any) -> None:
        """Have the job run on so many GPUs."""
        training = {"globalBatchSize": self.recorded.batch, "iterations": 10**9, "modelClass": model_class}
        elastic = {"minSecondsBetweenResizes": 0}
        wanted = job(0, gpus={"min": gpus, "max": gpus}, training=training, elasticity=elastic, **spec)
        before = self.others.api.get("energyawarejobs", "job-0")
        self.others.api.put("energyawarejobs", wanted if before is None else {**before, "spec": wanted["spec"]})
        self.submitted = 1

    @property
    def decision(self) -> JobDecision:
        """What is planned for the job."""
        (found,) = self.term._plans.in_force.decisions.values()
        return found

    async def window(self) -> None:
        """Half a minute, after which every agent reports, and the cycles that make of it what they will."""
        self.time += WINDOW_SECONDS
        moment = f"{NOW + timedelta(seconds=self.time):%Y-%m-%dT%H:%M:%SZ}"
        for index in range(self.nodes):
            self.others.report(f"node-{index:04d}", WINDOW_SECONDS, moment)
        for _ in range(2):
            await self.cycle(Tally())
            if self.learner._fitting is not None:
                await self.learner._fitting

    async def run_on(self, gpus: int) -> None:
        """Cycles until the job runs on so many."""
        for _ in range(LONGEST_START_CYCLES):
            await self.cycle(Tally())
            nodes = self.others.api.items.get("gpunodes", {}).values()
            granted = sum(each["gpus"] for node in nodes for each in node["spec"]["jobs"])
            decided = self.term._plans.in_force.decisions
            planned = [item.allocation.gpus for item in decided.values() if item.allocation is not None]
            if (granted, planned) == (gpus, [gpus]) and self.ready():
                return
            self.time += 1.0
        raise AssertionError(f"the job does not run on {gpus} GPUs: {self.term._plans.in_force.decisions}")

    def errors(self) -> tuple[float, float]:
        """By how much iterations take longer, and need more joules, by the plan than they do."""
        decision, allocation = self.decision, self.decision.allocation
        assert allocation is not None
        clock = self.others.clock_megahertz
        seconds, joules = self.recorded.iteration(allocation.gpus, clock)
        predicted = decision.predicted_iteration_seconds
        return predicted / seconds - 1, decision.predicted_gpu_watts * allocation.gpus * predicted / joules - 1


@asynccontextmanager
async def recorded_bench(nodes: int, recorded: RecordedJob) -> AsyncIterator[RecordedBench]:
    """Nodes under a cap that leaves room, and nothing on them yet."""
    bench = RecordedBench(nodes, recorded)
    tasks = [asyncio.create_task(watch) for watch in bench.watches.runs()]
    try:
        await bench.watches.wait_synced()
        await bench.start(0)
        yield bench
    finally:
        await bench.term.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
