"""How long the simulator takes: the 1,901-job day under each policy (limit 30 s), two months of ITP (limit 10 minutes), and
a day with ten times the jobs (limit 90 s).

    python benchmarks/simulation.py [--policies price,afs] [--months price,afs] [--large price] [--data ../shared/data]

One core, fitted models, empty nodes powered off, a load of 0.8; every policy fits anew. Without the public traces the
day is the synthetic one, and the months and the large day are left out.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from flyball_planner.policies.registry import policy_names
from flyball_planner.policies.view import Knob
from flyball_simulator import knowledge
from flyball_simulator.engine import simulate
from flyball_simulator.outside_policies import policy_of
from flyball_simulator.settings import SimulationSettings
from flyball_simulator.workloads.source import WorkloadSource, gpus_for_load
from flyball_simulator.workloads.trace_library import named_trace
from flyball_simulator.workloads.traces import TraceError

DAY_LIMIT_SECONDS, MONTHS_LIMIT_SECONDS, LARGE_LIMIT_SECONDS = 30.0, 600.0, 90.0
LARGE_DRAWS = 10  # of the day from pai, all on one cluster


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", default=",".join(policy_names()), help="for the day (default: all)")
    parser.add_argument("--months", default="price,powerflow-paper,afs", help="for the two months")
    parser.add_argument("--large", default="price", help="for ten draws of the day at once")
    parser.add_argument("--data", default="../shared/data", help="folder of the public traces")
    options = parser.parse_args()
    data = options.data if Path(options.data).is_dir() else None
    try:
        day = WorkloadSource("pai" if data else "synthetic", 0, data)
        slow = run(day.name, day, options.policies.split(","), DAY_LIMIT_SECONDS)
        if data:
            months = WorkloadSource("itp-months", 0, data)
            slow += run(months.name, months, options.months.split(","), MONTHS_LIMIT_SECONDS)
            with tempfile.TemporaryDirectory() as folder:
                large = WorkloadSource(str(large_day(Path(data), Path(folder))), 0)
                slow += run(f"pai x{LARGE_DRAWS}", large, options.large.split(","), LARGE_LIMIT_SECONDS)
    except TraceError as error:
        print(error, file=sys.stderr)
        return 1
    return 1 if slow else 0


def large_day(data: Path, folder: Path) -> Path:
    """A trace file of LARGE_DRAWS draws of the day together."""
    rows = sorted(
        (job.submit_seconds, f"{seed}-{job.job_id},{job.submit_seconds},{job.duration_seconds},{job.gpus}")
        for seed in range(LARGE_DRAWS)
        for job in named_trace("pai", seed, data)
    )
    path = folder / "large.csv"
    path.write_text("\n".join(["job_id,submission_time,duration,num_gpu", *(row for _, row in rows)]) + "\n")
    return path


def run(trace: str, source: WorkloadSource, policies: list[str], limit_seconds: float) -> int:
    """Print a line for each policy; how many took longer than the limit."""
    jobs = source.trace_jobs()
    gpus = gpus_for_load(jobs, 0.8, 8)
    slow = 0
    for policy in filter(None, policies):
        knob = policy_of(policy).traits.knob
        settings = SimulationSettings(
            policy=policy, gpus=gpus, power_off_empty_nodes=True, price=0.0003 if knob is Knob.PRICE else None
        )
        workload = source.workload(settings)
        knowledge._fit.cache_clear()  # what runs before it have fitted would be looked up
        started = time.process_time()
        result = simulate(workload, settings, trace=trace)
        seconds = time.process_time() - started
        slow += seconds > limit_seconds
        late = "" if seconds <= limit_seconds else f"  ABOVE THE LIMIT OF {limit_seconds:.0f} s"
        print(
            f"{trace}: {len(jobs)} jobs, {gpus} GPUs, {policy}: {seconds:.1f} s of CPU, {result.plans} decisions{late}",
            flush=True,
        )
    return slow


if __name__ == "__main__":
    sys.exit(main())
