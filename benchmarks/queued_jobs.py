"""What jobs that only wait cost the operator in each of its cycles, in CPU seconds of one core.

    python -m benchmarks.queued_jobs [--jobs 10000]

All of them are found at once, as by a new leader: the first cycle, which makes as many statuses as may be under way, then a
cycle in which nothing is new, and what of it goes into the snapshot by which it is known whether a new plan is due. Ends
with status 1 where the first cycle takes longer than THRESHOLD_SECONDS: a cap that falls is not seen before it ends.
"""

from __future__ import annotations

import argparse
import sys
import time
from datetime import timedelta

from flyball_api.energy_aware_job import EnergyAwareJob, read_energy_aware_job
from flyball_api.workloads import DEFAULT_GPU_RESOURCES
from flyball_kube.session import JsonObject
from flyball_operator.cluster.state import ClusterState
from flyball_operator.jobs.controller import JobController
from flyball_operator.jobs.runs.queue import JobQueue
from flyball_operator.jobs.steps.step import JobsCycle, JobsStep
from flyball_operator.learning.learner import Learner
from flyball_operator.planning.snapshot import JobStates, build_snapshot
from flyball_planner.snapshot import Admission, ClusterSnapshot, JobDecision, Queue

from tests.support.operator_objects import NOW, as_stored, raw_job, ready_node

THRESHOLD_SECONDS = 2.0
NODES = {f"node-{index}": ready_node(f"node-{index}") for index in range(32)}


class NoProfiles:
    """An API server without EnergyProfiles."""

    async def get(self, path: str, **params: str) -> JsonObject:
        return {"items": [], "metadata": {}}


class Queued:
    """So many jobs that wait, under one controller."""

    def __init__(self, count: int) -> None:
        names = [f"job-{index:05d}" for index in range(count)]
        self.learner = Learner(NoProfiles(), clock=lambda: 0.0)
        self.job_states = JobStates()
        self.controller = JobController(5.0, self.learner, DEFAULT_GPU_RESOURCES)
        self.jobs: dict[str, EnergyAwareJob] = {name: read_energy_aware_job(raw_job(name, uid=name)) for name in names}
        self.decisions = {name: JobDecision(name, None, Admission.WAITING_FOR_GPUS, "all are taken") for name in names}
        self.queue = JobQueue.of(Queue(tuple(names), (), "nobody knows"), NOW)

    def step(self, second: float) -> JobsStep:
        cluster = ClusterState(
            jobs=self.jobs,
            caps=[],
            gpu_nodes={},
            nodes=[],
            pods=[],
            incarnations={},
            pods_of={},
            reports_of={},
            unread=(),
            age_seconds=0.0,
        )
        now = NOW + timedelta(seconds=second)
        return self.controller.step(JobsCycle(cluster, NODES, self.decisions, 1, now, 1000.0 + second, self.queue))

    def written(self, step: JobsStep) -> None:
        for live, status in step.statuses:
            uid = live.view.uid
            self.jobs[uid] = read_energy_aware_job(raw_job(live.view.name, uid=uid, status=as_stored(status)))

    def snapshot(self, step: JobsStep) -> ClusterSnapshot:
        return build_snapshot(
            nodes=NODES,
            rules={},
            budgets=[],
            jobs=[(job.view, job.memory) for job in step.jobs.values()],
            models_of=lambda job: self.learner.models_for(job, NODES),
            now=NOW,
            restart_seconds=30.0,
            guard_fraction=0.05,
            timeless=self.job_states,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000)
    queued = Queued(parser.parse_args().jobs)
    begun = time.process_time()
    step = queued.step(0.0)
    first = time.process_time() - begun
    print(f"the first cycle: {first:.2f} s, {len(step.statuses)} statuses made", flush=True)
    second = 0.0
    while step.statuses:
        queued.written(step)
        second += 0.01
        step = queued.step(second)
    begun = time.process_time()
    step = queued.step(second)
    print(f"a cycle with nothing new: {time.process_time() - begun:.2f} s, {len(step.statuses)} statuses made")
    begun = time.process_time()
    queued.snapshot(step)
    print(f"its snapshot for the planner: {time.process_time() - begun:.2f} s", end="", flush=True)
    begun = time.process_time()
    queued.snapshot(queued.step(second))
    print(f"; a cycle with nothing new and its snapshot, then: {time.process_time() - begun:.2f} s")
    return 1 if first > THRESHOLD_SECONDS else 0


if __name__ == "__main__":
    sys.exit(main())
