"""Many jobs that come and go on the real control plane, and what of it is seen when.

    python -m benchmarks.churn [--nodes 64] [--jobs 128] [--per-minute 20] [--minutes 3] [--at-once 0]

Starts a site of simulated nodes (all agents in one process) under a cap, fills it with jobs of one node's GPUs or a part of
them, and then submits and ends as many a minute as it is told; half-way the cap falls. The API server, etcd, the Job
controller, the scheduler, kwok, the agents, the training processes and the operator all share this machine. Taken are

- the time from submission to running pods, of jobs for which there are GPUs;
- how long after a pod is ready, or has ended, its job's status says so, and how old the figures of a running job become;
- the cut's way to the hardware and to the status, and what the referee saw;
- plans, the operator's processor time and memory, the API server's writes a second, and who used the processors.

`--at-once 10000` then submits so many more, with four requests at a time, and takes the time until every one of them has
been decided on. The goals are meant for 1,000 nodes, 2,000 jobs, 200 a minute for ten minutes,
and 10,000 at once. Exits with 1 where a goal is missed or an enforced cap was exceeded.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from flyball_api.energy_aware_job import EnergyAwareJobSpec, GpuRange, Training
from flyball_api.names import ANNOTATION_CONFIRM_WATTS, LABEL_JOB_NAME
from flyball_api.power_cap import PowerCapSpec, read_power_cap
from flyball_api.values.conditions import has_condition
from flyball_api.writing import api_object
from flyball_kube.errors import ApiError
from flyball_kube.informer import Informer
from flyball_kube.resources import ENERGY_AWARE_JOBS, PODS, POWER_CAPS
from flyball_kube.session import ApiSession
from flyball_testbed.controlplane.stages import OUTCOME_ANNOTATION, SUCCEEDED
from flyball_testbed.parts import OPERATOR, Pace
from flyball_testbed.referee.hardware import HardwareReader
from flyball_testbed.site import Site, SitePlan
from flyball_testbed.workload.pods import simulated_trainer

from benchmarks.churn_watch import Seen, Watch
from benchmarks.site_costs import Costs, costs, memory_megabytes

GOALS = {
    "submission to running pods, p99": 10.0,
    "a state's change until its status says so, p99": 2.0,
    "age of a running job's figures, p99": 10.0,  # they are as old as its agents' reports, at the least
    "cap cut to the status": 2.0,
    "operator's processors": 1.0,
    "operator's memory, MB": 600.0,
    "all decided on, s": 60.0,
}
CAP, NAMESPACE = "site", "default"
LONG = 10**9  # iterations: a job ends when it is ended here
AT_ONCE_REQUESTS = 4
SETTLE_SECONDS = 15.0
HIGH, LOW = 0.9, 0.7  # of what all GPUs can draw, and of what their limits allow when the cap falls


def manifest(name: str, namespace: str, gpus: int) -> dict[str, Any]:
    """A job that trains until it is ended from here."""
    trainer = simulated_trainer("resnet50", 1024, LONG)
    spec = EnergyAwareJobSpec(
        gpus=GpuRange(gpus, gpus),
        training=Training(1024, LONG, model_class="resnet50"),
        template={"spec": {"terminationGracePeriodSeconds": 5, "containers": [trainer]}},
    )
    return api_object(ENERGY_AWARE_JOBS.kind, name, spec, namespace=namespace)


class Churn:
    """The jobs of one run."""

    def __init__(self, site: Site, session: ApiSession, gpus: int, namespace: str = NAMESPACE) -> None:
        self.site, self.session, self.gpus, self.namespace = site, session, gpus, namespace
        self.watch = Watch()
        self.cut_at = 0.0  # of the monotonic clock
        self._submitted = 0
        self._ended: set[str] = set()
        self._draw = random.Random(1)

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Jobs and pods are watched meanwhile."""
        jobs = Informer(self.session, ENERGY_AWARE_JOBS, self.watch.job, namespace=self.namespace)
        params = {"labelSelector": LABEL_JOB_NAME}
        pods = Informer(self.session, PODS, self.watch.pod, namespace=self.namespace, params=params)
        tasks = [asyncio.create_task(informer.run()) for informer in (jobs, pods)]
        try:
            await jobs.wait_synced()
            await pods.wait_synced()
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def submit(self) -> str:
        """One more job; its time counts from when the API server has taken it."""
        self._submitted += 1
        name = f"job-{self._submitted:05d}"
        body = manifest(name, self.namespace, self.gpus)
        await self.session.create(ENERGY_AWARE_JOBS.path(self.namespace), body)
        self.watch.jobs.setdefault(name, Seen()).submitted = time.monotonic()
        return name

    async def submit_many(self, count: int) -> list[str]:
        slots = asyncio.Semaphore(AT_ONCE_REQUESTS)

        async def one() -> str:
            async with slots:
                return await self.submit()

        return list(await asyncio.gather(*(one() for _ in range(count))))

    async def end_one(self) -> None:
        """One of the running jobs does its last iteration."""
        names = sorted(self.watch.running - self._ended)
        if names:
            name = self._draw.choice(names)
            path = PODS.path(self.namespace, self.watch.pods[name])
            try:
                await self.session.patch(path, {"metadata": {"annotations": {OUTCOME_ANNOTATION: SUCCEEDED}}})
                self._ended.add(name)
            except ApiError as error:
                if not error.not_found:  # else it has been moved or paused meanwhile
                    raise

    async def churn(self, per_minute: float, seconds: float, halfway: Callable[[], None]) -> None:
        """End and submit in turn, at an even pace; what is late is not caught up on."""
        pause, begun, shown = 60.0 / per_minute, time.monotonic(), False
        while time.monotonic() - begun < seconds:
            at = time.monotonic()
            await self.end_one()
            await self.submit()
            if not shown and at - begun >= seconds / 2:
                shown = True
                halfway()
            await asyncio.sleep(max(0.0, pause - (time.monotonic() - at)))

    async def until(self, holds: Callable[[], bool], what: str, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > ends:
                raise TimeoutError(f"{what}: not within {seconds:g} s; the site's logs are in the output folder")
            await asyncio.sleep(0.05)


async def set_cap(session: ApiSession, watts: int) -> None:
    cap = api_object(POWER_CAPS.kind, CAP, PowerCapSpec(watts=watts))
    cap["metadata"]["annotations"] = {ANNOTATION_CONFIRM_WATTS: str(watts)}  # it may be a third of what it was
    await session.apply(POWER_CAPS.path(name=CAP), cap, "churn")


async def cut(site: Site, session: ApiSession) -> tuple[int, float, float]:
    """Lower the cap to below what the limits are; to how many watts, and the seconds to the hardware and to the status."""
    reader, hardware = HardwareReader(site.hardware), 0.0

    def limits_watts() -> float:
        sample = reader.read()
        return float("inf") if sample is None else sample.limits_watts

    least = site.plan.gpus * site.plan.constants.min_limit_milliwatts / 1000
    low, begun = int(max(LOW * limits_watts(), 1.05 * least)), time.monotonic()
    await set_cap(session, low)
    while True:
        if not hardware and limits_watts() <= low:
            hardware = time.monotonic() - begun
        status = read_power_cap(await session.get(POWER_CAPS.path(name=CAP))).status
        if hardware and has_condition(status.conditions, "Enforced") and status.effective_watts == low:
            return low, hardware, time.monotonic() - begun
        await asyncio.sleep(0.05)


# --- figures ---------------------------------------------------------------------------------------------------------


def percentile(values: list[float], share: float) -> float:
    """The smallest value that at least `share` of all are at or below; NaN of none."""
    ordered = sorted(values)
    return ordered[max(0, -(-int(share * 1000 * len(ordered)) // 1000) - 1)] if ordered else float("nan")


def plan_bound(plans: Counter[float], share: float) -> float:
    """The histogram's bound that at least `share` of the plans are at or below."""
    most = plans[float("inf")]
    return min((bound for bound, count in plans.items() if count >= share * most), default=float("nan"))


class Report:
    """Prints figures, and remembers which goals were missed."""

    def __init__(self) -> None:
        self.missed: list[str] = []

    def goal(self, name: str, value: float, more: str = "") -> None:
        goal = GOALS[name]
        met = value <= goal
        if not met:
            self.missed.append(name)
        print(f"{name}: {value:.2f} (goal {goal:g}{'' if met else ', MISSED'}){more}", flush=True)

    def times(self, name: str, values: list[float], goal: str) -> None:
        middle, worst = percentile(values, 0.5), max(values, default=float("nan"))
        self.goal(
            goal, percentile(values, 0.99), f"; {name} of {len(values)}: median {middle:.2f}, worst {worst:.2f} s"
        )


def stages(jobs: list[Seen]) -> str:
    """Where the time from submission to running pods went: seconds between the steps that a watching user sees."""
    started = [seen for seen in jobs if seen.pods_ready]
    steps = {
        "planned and its pods made": [seen.pods_made - seen.submitted for seen in started],
        "watts granted and pods placed": [seen.pods_placed - seen.pods_made for seen in started],
        "pods ready": [seen.pods_ready - seen.pods_placed for seen in started],
    }
    medians = (f"{name} {percentile(took, 0.5):.2f} (p99 {percentile(took, 0.99):.2f})" for name, took in steps.items())
    return "of that, median seconds until " + ", ".join(medians)


def report_churn(report: Report, churn: Churn, before: Costs, after: Costs, first: float) -> None:
    """Everything that was taken between two instants; jobs submitted before `first` filled the site."""
    seconds = after.at - before.at
    jobs = list(churn.watch.jobs.values())
    new = [seen for seen in jobs if seen.submitted >= first]
    waits = [seen.pods_ready - seen.submitted for seen in new if seen.pods_ready]
    report.times("submissions", waits, "submission to running pods, p99")
    print(stages(new))
    changes = [(seen.shown_ready, seen.pods_ready, "ready") for seen in new if seen.shown_ready and seen.pods_ready]
    changes += [
        (seen.shown_ended, seen.pods_ended, "ended") for seen in jobs if seen.shown_ended and seen.pods_ended >= first
    ]
    late = sorted(((max(0.0, shown - was), was - churn.cut_at, what) for shown, was, what in changes), reverse=True)
    report.times("changes", [seconds for seconds, _, _ in late], "a state's change until its status says so, p99")
    print(
        "the slowest: " + "; ".join(f"{what} {after:+.0f} s of the cut, {took:.2f} s" for took, after, what in late[:5])
    )
    ages = [seen.oldest_figures for seen in jobs if seen.oldest_figures]
    report.times("running jobs", ages, "age of a running job's figures, p99")
    waiting = sum(1 for seen in new if not seen.pods_ready)
    print(f"submitted {len(new)}, of which {waiting} had no running pods at the end; ended {len(churn._ended)}")
    report.goal("operator's processors", (after.processor[OPERATOR] - before.processor[OPERATOR]) / seconds)
    report.goal(
        "operator's memory, MB", memory_megabytes(churn.site.parts[OPERATOR].pid), "; at most, all its processes"
    )
    print(costs(before, after))
    plans = Counter({bound: count - before.plans[bound] for bound, count in after.plans.items()})
    print(
        f"plans: {plans[float('inf')]}, p50 within {plan_bound(plans, 0.5):g} s, p99 within {plan_bound(plans, 0.99):g} s"
    )


async def run(site: Site, arguments: argparse.Namespace) -> int:
    high = int(site.plan.max_watts * HIGH)
    gpus = max(1, site.plan.gpus // arguments.jobs)
    gpus = min(site.plan.gpus_per_node, 1 << gpus.bit_length() - 1)
    report = Report()
    async with await ApiSession.connect(site.cluster.kubeconfig, timeout_seconds=60.0) as session:
        churn = Churn(site, session, gpus)
        async with churn.watched():
            await set_cap(session, high)
            empty, begun = Costs.now(site), time.monotonic()
            await churn.submit_many(arguments.jobs)
            await churn.until(
                lambda: len(churn.watch.running) >= arguments.jobs, "the site is full", arguments.patience
            )
            print(f"{arguments.jobs} jobs of {gpus} GPUs run after {time.monotonic() - begun:.1f} s", flush=True)
            print(costs(empty, Costs.now(site)), flush=True)
            if arguments.minutes:
                await churned(report, churn, site, session, arguments)
            if arguments.at_once:
                await at_once(report, churn, arguments.at_once, arguments.patience)
    site.check()
    tally = site.referee_summary()["caps"][CAP]
    over = max(tally["max_limits_over_watts"], tally["max_true_over_watts"])
    print(f"over an enforced cap: {over:.3f} W in {tally['judged_seconds']:.0f} s judged (goal 0)")
    print("missed: " + (", ".join(report.missed) or "none"))
    return 1 if over > 0 or report.missed else 0


async def churned(report: Report, churn: Churn, site: Site, session: ApiSession, arguments: argparse.Namespace) -> None:
    """Jobs that come and go for so many minutes; half-way the cap falls."""
    await asyncio.sleep(SETTLE_SECONDS)
    for seen in churn.watch.jobs.values():
        seen.oldest_figures = 0.0
    before, first = Costs.now(site), time.monotonic()
    cuts: list[asyncio.Task[tuple[int, float, float]]] = []

    def begin_cut() -> None:
        churn.cut_at = time.monotonic()
        cuts.append(asyncio.create_task(cut(site, session)))

    await churn.churn(arguments.per_minute, 60.0 * arguments.minutes, begin_cut)
    low, hardware, status = await asyncio.wait_for(cuts[0], 60.0)
    await asyncio.sleep(SETTLE_SECONDS)
    report_churn(report, churn, before, Costs.now(site), first)
    report.goal("cap cut to the status", status, f"; to {low / 1000:.1f} kW, hardware {hardware:.2f} s")


async def at_once(report: Report, churn: Churn, count: int, patience: float) -> None:
    """So many more jobs than there are GPUs, as fast as the API server takes them."""
    before, begun = Costs.now(churn.site), time.monotonic()
    names = await churn.submit_many(count)
    submitted = time.monotonic() - begun
    jobs = [churn.watch.jobs[name] for name in names]
    await churn.until(lambda: all(seen.decided for seen in jobs), "all decided on", patience)
    decided = max(seen.decided for seen in jobs) - begun
    after = Costs.now(churn.site)
    writes = (after.writes - before.writes)["energyawarejobs/status"]
    took = [seen.decided - seen.submitted for seen in jobs]
    report.goal(
        "all decided on, s",
        decided - submitted,
        f" after the last of {count} was taken, which took {submitted:.0f} s; {writes / count:.2f} status writes a job; "
        f"from submission to decision: median {percentile(took, 0.5):.1f}, p99 {percentile(took, 0.99):.1f} s",
    )
    report.goal("operator's memory, MB", memory_megabytes(churn.site.parts[OPERATOR].pid), "; of all its processes")
    print(costs(before, after))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--jobs", type=int, default=128, help="that run at any time; they share all GPUs")
    parser.add_argument("--per-minute", type=float, default=20.0, help="submissions, and as many ends")
    parser.add_argument("--minutes", type=float, default=3.0, help="0: nothing but --at-once")
    parser.add_argument("--at-once", type=int, default=0, help="so many more at the end; none where not given")
    parser.add_argument("--status-seconds", type=float, default=8.0, help="between the reports of an agent")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds that any stage may take")
    parser.add_argument("--output", type=Path, default=Path(tempfile.gettempdir()) / "flyball-churn")
    arguments = parser.parse_args(argv)
    plan = SitePlan(nodes=arguments.nodes, pace=Pace(status_interval_seconds=arguments.status_seconds))
    begun = time.monotonic()
    with Site.start(plan, arguments.output, print) as site:
        print(f"{arguments.nodes} nodes are up after {time.monotonic() - begun:.1f} s", flush=True)
        return asyncio.run(run(site, arguments))


if __name__ == "__main__":
    sys.exit(main())
