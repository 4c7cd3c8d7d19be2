"""The whole of `flyball demo`: start a site, run the scenario, stop everything, and print what came of it."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flyball_simulator.workloads.traces import load_trace
from rich.console import Console

from flyball_testbed.demo.baseline import BaselineResult, run_baseline
from flyball_testbed.demo.jobs import DemoJob, demo_jobs
from flyball_testbed.demo.picture import draw, read_power
from flyball_testbed.demo.report import Outcome, cap_steps, joules_between, write_report
from flyball_testbed.demo.scenario import CAP_NAME, NAMESPACE, CapChange, Record, Scenario
from flyball_testbed.demo.screen import colours
from flyball_testbed.parts import REFEREE
from flyball_testbed.site import STOP_SECONDS, Site, SitePlan

# The cap as a share of the most that all GPUs may draw, and when it changes, as a share of the baseline's makespan.
FIRST_CAP, LOW_CAP, HIGH_CAP = 0.70, 0.33, 0.60
FALLS_AT, RISES_AT = 0.16, 0.45
# A run that takes this many times as long as the baseline (and two minutes more) will not end.
GIVE_UP_FACTOR, GIVE_UP_SECONDS = 4.0, 120.0
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
# The operator's pace, scaled down as the trace is: minutes of the trace are a second here.
OPERATOR_ARGUMENTS = ("--replan-seconds", "2", "--status-interval-seconds", "2", "--restart-seconds", "5")


@dataclass(frozen=True)
class DemoOptions:
    """The command line."""

    trace: Path
    output: Path
    nodes: int = 16
    gpus_per_node: int = 8
    jobs: int | None = None
    compression: float = 120.0
    seed: int = 0
    headless: bool = False
    keep: bool = False


def run_demo(options: DemoOptions) -> int:
    """Run it; the exit status. 1: a cap reported as enforced was exceeded, or a job did not succeed.

    Raises TraceError or ValueError for a trace that cannot be run, and what a site's start raises.
    """
    started = time.monotonic()
    plan = SitePlan(options.nodes, options.gpus_per_node, operator_arguments=OPERATOR_ARGUMENTS)
    jobs = demo_jobs(load_trace(options.trace, options.jobs), options.compression, options.seed, plan.gpus)
    baseline = _baseline(jobs, plan)
    console = Console()
    live = console if console.is_terminal and not options.headless else None

    def say(line: str) -> None:
        if live is None:
            print(f"[{time.monotonic() - started:6.1f} s] {line}", flush=True)

    def report(line: str) -> None:
        console.print(line, highlight=False) if live is not None else say(line)

    makespan = baseline.makespan_seconds
    changes = (
        CapChange(FALLS_AT * makespan, round(LOW_CAP * plan.max_watts), f"the cap falls to {LOW_CAP:.0%}"),
        CapChange(RISES_AT * makespan, round(HIGH_CAP * plan.max_watts), f"the cap rises to {HIGH_CAP:.0%}"),
    )
    _end_on_signals()
    with Site.start(plan, options.output, report) as site:
        scenario = Scenario(
            site,
            jobs,
            round(FIRST_CAP * plan.max_watts),
            changes,
            options.compression,
            GIVE_UP_FACTOR * makespan + GIVE_UP_SECONDS,
            live,
            say,
        )
        record = asyncio.run(_until_a_signal(scenario.run()))
        _end_on_signals()  # the event loop's own handlers went with it
        site.parts.pop(REFEREE).stop(STOP_SECONDS)
        summary = site.referee_summary()
        outcome = _outcome(record, summary, jobs, plan, options)
        _finish(console, record, outcome, options, plan, time.monotonic() - started)
        if options.keep:
            _stay(site, console)
    return 1 if outcome.faults else 0


def _baseline(jobs: list[DemoJob], plan: SitePlan, until_seconds: float = 0.0) -> BaselineResult:
    return run_baseline(
        jobs,
        plan.constants,
        plan.nodes,
        plan.gpus_per_node,
        start_seconds=plan.pod_start_delay_seconds + plan.pace.restore_seconds,
        noise=plan.pace.noise,
        namespace=NAMESPACE,
        until_seconds=until_seconds,
    )


def _outcome(
    record: Record, summary: dict[str, Any], jobs: list[DemoJob], plan: SitePlan, options: DemoOptions
) -> Outcome:
    wall = record.ended - record.began
    cap = summary["caps"][CAP_NAME]
    joules, most = joules_between(options.output / "referee.csv", record.began, record.ended)
    return Outcome(
        nodes=plan.nodes,
        gpus=plan.gpus,
        submitted=len(jobs),
        failed=record.failed,
        completion_seconds=record.completion_seconds,
        resizes=record.resizes,
        migrations=record.migrations,
        wall_seconds=wall,
        cap_steps=cap_steps(record.caps, cap["enforced"], record.began, record.falls),
        limits_over_watts=record.limits_over_watts,
        true_over_watts=record.true_over_watts,
        joules=joules,
        max_true_watts=most,
        # Both over the same time: the GPUs of the one that is done first idle.
        baseline=_baseline(jobs, plan, until_seconds=wall),
        boot=None if record.boot is None else replace(record.boot, at=record.boot.at - record.began),
    )


def _finish(
    console: Console, record: Record, outcome: Outcome, options: DemoOptions, plan: SitePlan, seconds: float
) -> None:
    """The table, the picture and the report."""
    output, compression = options.output, options.compression
    write_report(output / "report.json", outcome.report(compression))
    draw(
        output / "power.png",
        read_power(output / "referee.csv", record.began, record.shown_until),
        record.gpu_trace(),
        colours(sorted({job for _, held in record.gpus for job in held}, key=_number)),
        total_gpus=plan.gpus,
        max_watts=plan.max_watts,
        compression=compression,
        baseline_max_watts=outcome.baseline.max_true_watts,
        marks=_marks(record),
        title=f"{plan.gpus} GPUs under a power cap that falls and rises",
        subtitle=f"{plan.nodes} nodes × {plan.gpus_per_node} {plan.product}, {outcome.submitted} jobs of "
        f"{options.trace.name}; simulated GPUs, real Kubernetes control plane\nlimits over an enforced cap, at worst: "
        f"{outcome.limits_over_watts:.0f} W",
    )
    console.print(outcome.table(compression))
    for fault in outcome.faults:
        console.print(f"[bold red]NOT AS PROMISED:[/] {fault}", highlight=False)
    for remark in outcome.remarks:
        console.print(f"[yellow]{remark}[/]", highlight=False)
    console.print(
        f"times and energies are simulated: real ones × {compression:g}; the run took {seconds:.0f} s in all\n"
        f"written: {output}/power.png, report.json, referee.csv, logs/",
        highlight=False,
    )


def _marks(record: Record) -> list[tuple[float, str]]:
    """What the picture says of the last chapter, each at its second."""
    boot = record.boot
    if boot is None:
        return []
    at = boot.at - record.began
    marks = [(at, f"{boot.node} boots,\nits agent away")]
    if boot.enforced_again_seconds is not None:
        marks.append((at + boot.enforced_again_seconds, "it is back"))
    return marks


def _number(job: str) -> tuple[int, str]:
    tail = job.rpartition("-")[2]
    return (int(tail) if tail.isdigit() else 0, job)


def _stay(site: Site, console: Console) -> None:
    """Leave the cluster up, to be looked around in, until Ctrl-C."""
    console.print(
        f"\nthe cluster stays up until Ctrl-C:\n  export KUBECONFIG={site.cluster.kubeconfig}\n"
        f"  {site.cluster.control_plane.kubectl} get eaj,pcap,gpunodes -A",
        highlight=False,
    )
    try:
        while site.cluster.control_plane.is_running():
            time.sleep(0.5)
    except KeyboardInterrupt:
        console.print("stopping")


def _end_on_signals() -> None:
    """Make a request to end an exception, so that what was started is stopped on the way out."""
    for number in ENDING_SIGNALS:
        signal.signal(number, lambda number, _frame: sys.exit(128 + number))


async def _until_a_signal(run: Coroutine[Any, Any, Record]) -> Record:
    """Await `run`; a request to end cancels it and becomes the exit status that shells expect.

    An exception raised by a plain handler would be lost where the signal interrupts a callback that Python runs unasked,
    such as a finalizer.
    """
    task = asyncio.create_task(run)
    received: list[int] = []

    def end(number: int) -> None:
        received.append(number)
        task.cancel()

    for number in ENDING_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, end, number)
    try:
        return await task
    except asyncio.CancelledError:
        if not received:  # Ctrl-C, which asyncio itself makes of SIGINT
            raise
    sys.exit(128 + received[0])
