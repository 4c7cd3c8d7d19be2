"""How long the simulator takes: the 1,901-job day under each policy (limit 30 s), two months of ITP (limit 10 minutes).

    python benchmarks/simulation.py [--policies price,afs] [--months price,afs] [--data ../shared/data]

One core, fitted models, empty nodes powered off, a load of 0.8; every policy fits anew. Without the public traces the
day is the synthetic one, and the months are left out.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from flyball_planner.policies.registry import policy_names
from flyball_planner.policies.view import Knob
from flyball_simulator import knowledge
from flyball_simulator.engine import simulate
from flyball_simulator.outside_policies import policy_of
from flyball_simulator.settings import SimulationSettings
from flyball_simulator.workloads.source import WorkloadSource, gpus_for_load
from flyball_simulator.workloads.traces import TraceError

DAY_LIMIT_SECONDS, MONTHS_LIMIT_SECONDS = 30.0, 600.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", default=",".join(policy_names()), help="for the day (default: all)")
    parser.add_argument("--months", default="price,powerflow-paper,afs", help="for the two months")
    parser.add_argument("--data", default="../shared/data", help="folder of the public traces")
    options = parser.parse_args()
    data = options.data if Path(options.data).is_dir() else None
    slow = run("pai" if data else "synthetic", options.policies.split(","), data, DAY_LIMIT_SECONDS)
    if data:
        slow += run("itp-months", options.months.split(","), data, MONTHS_LIMIT_SECONDS)
    return 1 if slow else 0


def run(trace: str, policies: list[str], data: str | None, limit_seconds: float) -> int:
    """Print a line for each policy; how many took longer than the limit."""
    source = WorkloadSource(trace, 0, data)
    try:
        jobs = source.trace_jobs()
    except TraceError as error:
        print(error, file=sys.stderr)
        return 1
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
