"""What jobs that run, come and go cost the operator, in CPU seconds of one core: no network, no JSON, no control plane.

    python -m benchmarks.running_jobs [--nodes 1000] [--jobs 2000] [--seconds 30] [--at-once 0] [--profile]

The informers, the learner, a leader's term and the executor are the operator's own, over an API server in memory; what an
agent, the Job controller and the kubelets would write is written at once. All jobs are submitted together and started;
then they run for so many seconds of a clock of its own, as many cycles a second as the loop would make, in which each agent
reports every eight seconds, three jobs a second end and three others come. Then the cap falls to four fifths of what nodes
may draw, which is a brake. Printed are the processor seconds of starting them, of a cycle, of a second of running and of
the cut, until its brake leaves and in the cycle after it, and what is written. `--at-once 10000` then
submits so many more, TAKEN_A_SECOND of them a second as an API server takes them, and goes on until each is decided on.
Ends with status 1 where a second of running takes more than SECOND_SECONDS, the cycle of a cut more than CUT_SECONDS, or
the decisions on those at once more than AT_ONCE_SECONDS after the last of them came.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import pstats
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

from flyball_api.energy.report import EnergyRates
from flyball_api.names import ANNOTATION_CONFIRM_WATTS
from flyball_api.workloads import DEFAULT_GPU_RESOURCES
from flyball_kube.process.log_settings import LogSettings
from flyball_kube.process.logs import configure_logging
from flyball_operator.cluster.watches import Watches
from flyball_operator.jobs.controller import JobController
from flyball_operator.learning.learner import Learner
from flyball_operator.learning.recurrences import Recurrences
from flyball_operator.main import GARBAGE_THRESHOLDS
from flyball_operator.meters.meters import Meters
from flyball_operator.planning.plans import Plans
from flyball_operator.power.controller import PowerController, PowerSettings
from flyball_operator.report.energy_reports import EnergyReports
from flyball_operator.report.metrics import OperatorMetrics
from flyball_operator.report.reporter import Reporter
from flyball_operator.settings import Settings
from flyball_operator.term.leader_term import Deciders, LeaderTerm, Writers
from flyball_operator.term.pace import LONGEST_REST_SECONDS, MAX_CYCLE_SHARE
from flyball_operator.writes.background import Background
from flyball_operator.writes.executor import Executor
from flyball_planner.planner import plan
from flyball_planner.snapshot import ClusterSnapshot, Plan

from benchmarks.cluster_in_memory import GPUS, Others, Session
from tests.support.operator_objects import A100, NOW, raw_node
from tests.support.schedules.workloads import job

SECOND_SECONDS = 0.7  # of one core, the goal being one with JSON and HTTP
CUT_SECONDS = 0.5
AT_ONCE_SECONDS = 60.0
TAKEN_A_SECOND = 2000
REPORT_SECONDS = 8.0
CHURN_A_SECOND = 3.3  # 200 a minute
MOST_CYCLES = 20_000


class InThisProcess:
    """The planner's process, in this one; what its plans cost is not the cycles'."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def plan(self, snapshot: ClusterSnapshot, policy: str) -> Plan:
        begun = time.process_time()
        made = plan(snapshot, policy)
        self.seconds.append(time.process_time() - begun)
        return made


@dataclass
class Tally:
    """Processor seconds of some cycles."""

    cycles: int = 0
    deciding: float = 0.0  # the cycles themselves
    around: float = 0.0  # what the informers take in, and the writes that go on after them
    worst: float = 0.0


class Bench:
    """A leader's term over so many nodes and jobs."""

    def __init__(
        self, nodes: int, jobs: int, profile: cProfile.Profile | None, others: Callable[[], Others] = Others
    ) -> None:
        self.others = others()
        self.nodes, self.gpus = nodes, max(1, min(GPUS, nodes * GPUS // jobs))
        self.submitted = 0
        self.profile = profile
        self.session = cast("Any", Session(self.others.api))
        self.watches = Watches(self.session, lambda: None, DEFAULT_GPU_RESOURCES)
        self.planner, self.metrics = InThisProcess(), OperatorMetrics()
        self.learner = self.new_learner()
        self.background = Background(lambda: None)
        settings = Settings()
        executor = Executor(self.session, lambda: None, self.watches.absorb, gpu_resources=DEFAULT_GPU_RESOURCES)
        self.time = 0.0
        books = EnergyReports(self.session, EnergyRates(), settings.report_seconds, settings.report_days)
        self.term = LeaderTerm(
            1,
            settings,
            self.watches,
            Meters({}, None, lambda: None, lambda: NOW),
            Deciders(
                PowerController(1, PowerSettings()),
                JobController(settings.status_interval_seconds, self.learner, DEFAULT_GPU_RESOURCES),
                Plans(self.planner, settings.policy, settings.replan_seconds, 1, lambda: None, self.metrics),
                self.learner,
                Recurrences(self.learner),
            ),
            Writers(executor, Reporter(executor), books, self.background),
            self.metrics,
            lambda: NOW + timedelta(seconds=self.time),
        )

    def new_learner(self) -> Learner:
        """What learns from the reports; it fits by this machine's clock."""
        return Learner(self.session)

    def submit(self, count: int) -> None:
        for _ in range(count):
            gpus = {"min": self.gpus, "max": self.gpus}
            self.others.api.put("energyawarejobs", job(self.submitted, gpus=gpus))
            self.submitted += 1

    def set_cap(self, watts: int) -> None:
        metadata = {"name": "all", "annotations": {ANNOTATION_CONFIRM_WATTS: str(watts)}}
        self.others.api.put("powercaps", {"metadata": metadata, "spec": {"watts": watts}})

    def committed_watts(self) -> int:
        """What all nodes may draw now, by the cap's status."""
        cap = self.others.api.get("powercaps", "all")
        assert cap is not None
        committed: int = cap["status"]["committedWatts"]
        return committed

    def ready(self) -> int:
        found = 0
        for item in self.others.api.items.get("energyawarejobs", {}).values():
            conditions = (item.get("status") or {}).get("conditions") or ()
            found += any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
        return found

    async def settle(self) -> None:
        """Let informers and writes go on until none of them has anything left to do."""
        quiet = 0
        while quiet < 3:
            before = self.others.api.version, len(self.background)
            self.others.react()
            for _ in range(4):
                await asyncio.sleep(0)
            still = before == (self.others.api.version, len(self.background)) and not self.session.unread
            quiet = quiet + 1 if still else 0
        await asyncio.sleep(0.001)  # what is done in a thread

    async def cycle(self, tally: Tally) -> None:
        """One cycle, and as much time as the loop would rest after it."""
        begun, planned = time.process_time(), len(self.planner.seconds)
        await self.settle()
        between = time.process_time()
        if self.profile is not None:
            self.profile.enable()
        self.term.cycle(NOW + timedelta(seconds=self.time), self.time)
        if self.profile is not None:
            self.profile.disable()
        decided = time.process_time()
        await self.settle()
        work = decided - between
        tally.cycles += 1
        tally.deciding += work
        tally.worst = max(tally.worst, work)
        tally.around += time.process_time() - decided + between - begun - sum(self.planner.seconds[planned:])
        self.time += work + max(0.02, min(work * (1 / MAX_CYCLE_SHARE - 1), LONGEST_REST_SECONDS))

    async def start(self, jobs: int) -> Tally:
        """Nodes, a cap, and all jobs at once; cycles until all of them run."""
        api, tally = self.others.api, Tally()
        for index in range(self.nodes):
            name = f"node-{index:04d}"
            node = raw_node(name, GPUS, product=A100)
            node["metadata"].pop("uid")
            api.put("nodes", node)
        for _ in range(100):
            await self.cycle(tally)
            if len(api.items.get("gpunodes", {})) == self.nodes:
                break
        self.set_cap(int(0.9 * self.nodes * GPUS * 400))
        self.submit(jobs)
        tally = Tally()
        while self.ready() < jobs:
            await self.cycle(tally)
            if tally.cycles > MOST_CYCLES:
                raise TimeoutError(f"{self.ready()} of {jobs} jobs run after {tally.cycles} cycles")
        return tally

    def undecided(self) -> int:
        """How many jobs no status says anything of but that they will be planned."""
        found = 0
        for item in self.others.api.items.get("energyawarejobs", {}).values():
            conditions = (item.get("status") or {}).get("conditions") or ()
            admitted = next((each for each in conditions if each["type"] == "Admitted"), None)
            found += admitted is None or admitted["reason"] == "Planning"
        return found

    async def at_once(self, count: int) -> tuple[Tally, float]:
        """So many more jobs, until each of them is decided on; and how many seconds after the last of them that is."""
        tally, begun, submitted, came = Tally(), self.time, 0, self.time
        while submitted < count or self.undecided():
            due = min(count, int((self.time - begun + 0.1) * TAKEN_A_SECOND))
            if submitted < due:
                self.submit(due - submitted)
                submitted, came = due, self.time
            await self.cycle(tally)
            if tally.cycles > MOST_CYCLES:
                raise TimeoutError(f"{self.undecided()} of {count} jobs are not decided on after {tally.cycles} cycles")
        return tally, self.time - came

    async def run(self, seconds: float, churn: float) -> tuple[Tally, float]:
        """Cycles of so many seconds in which agents report, and `churn` jobs a second end and as many come."""
        tally, begun, reported, changed = Tally(), self.time, 0.0, 0.0
        ended = 0
        while (elapsed := self.time - begun) < seconds:
            due = int(elapsed / REPORT_SECONDS * self.nodes)
            moment = f"{NOW + timedelta(seconds=self.time):%Y-%m-%dT%H:%M:%SZ}"
            for index in range(int(reported), due):
                self.others.report(f"node-{index % self.nodes:04d}", REPORT_SECONDS, moment)
            reported = due
            while changed < elapsed * churn:
                self.others.api.remove("energyawarejobs", f"job-{ended}")
                self.submit(1)
                ended += 1
                changed += 1
            await self.cycle(tally)
        return tally, self.time - begun


async def measured(arguments: argparse.Namespace) -> int:
    profile = cProfile.Profile() if arguments.profile else None
    bench = Bench(arguments.nodes, arguments.jobs, profile)
    tasks = [asyncio.create_task(watch) for watch in bench.watches.runs()]
    try:
        await bench.watches.wait_synced()
        begun = time.process_time()
        tally = await bench.start(arguments.jobs)
        spent, writes = time.process_time() - begun, bench.session.writes.total()
        print(
            f"{arguments.jobs} jobs of {bench.gpus} GPUs on {arguments.nodes} nodes run after {tally.cycles} cycles, "
            f"{tally.deciding:.1f} s of them, at most {tally.worst:.2f} s; with all that was written and taken in "
            f"{spent:.1f} s; {writes / arguments.jobs:.1f} writes a job",
            flush=True,
        )
        for churn, what in ((0.0, "nothing but reports"), (CHURN_A_SECOND, "jobs that come and go")):
            bench.session.writes.clear()
            planned = len(bench.planner.seconds)
            tally, seconds = await bench.run(arguments.seconds, churn)
            share = (tally.deciding + tally.around) / seconds
            writes = ", ".join(f"{name} {count / seconds:.0f}" for name, count in bench.session.writes.most_common(4))
            plans = bench.planner.seconds[planned:]
            print(
                f"{what}: a cycle {tally.deciding / tally.cycles * 1000:.0f} ms, at most {tally.worst * 1000:.0f}, "
                f"{tally.cycles / seconds:.1f} a second; a second takes {share:.2f} s, {tally.deciding / seconds:.2f} of "
                f"them in cycles; writes a second: {writes}; a plan {max(plans, default=0.0):.2f} s",
                flush=True,
            )
        bench.set_cap(int(0.8 * bench.committed_watts()))
        cut, after = Tally(), Tally()
        bench.session.writes.clear()
        await bench.cycle(cut)
        assert bench.session.writes["powerbrakes"] == 1
        await bench.cycle(after)
        print(
            f"the cycle that cuts by a fifth: {cut.worst * 1000:.0f} ms, the next one {after.worst * 1000:.0f} ms",
            flush=True,
        )
        decided = 0.0
        if arguments.at_once:
            bench.session.writes.clear()
            planned = len(bench.planner.seconds)
            tally, decided = await bench.at_once(arguments.at_once)
            plans = bench.planner.seconds[planned:]
            writes = ", ".join(f"{name} {count}" for name, count in bench.session.writes.most_common(5))
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
            print(
                f"{arguments.at_once} more at once: all decided on {decided:.1f} s after the last came; "
                f"{tally.cycles} cycles of {tally.deciding:.1f} s, at most {tally.worst:.2f}, {tally.around:.1f} s around "
                f"them; {len(plans)} plans of at most {max(plans):.2f} s; writes: {writes}; "
                f"{memory:.0f} MB with the planner and the API server",
                flush=True,
            )
    finally:
        await bench.term.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if profile is not None:
        pstats.Stats(profile).sort_stats("cumulative").print_stats(45)
        pstats.Stats(profile).sort_stats("tottime").print_stats(35)
    missed = share > SECOND_SECONDS or cut.worst > CUT_SECONDS or decided > AT_ONCE_SECONDS
    return 1 if missed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--at-once", type=int, default=0, help="so many more at the end; none where not given")
    parser.add_argument("--profile", action="store_true", help="of the cycles, by functions; it makes them slower")
    configure_logging(LogSettings(log_level="ERROR"))
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    return asyncio.run(measured(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
