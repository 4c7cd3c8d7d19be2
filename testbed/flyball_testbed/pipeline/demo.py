"""`make pipeline-demo`: a pipeline's energy plan acts, through operator, agents and sockets, on measured stages.

Two replicas of four stages train as EnergyAwareJobs, first all at the highest clock, then with spec.pipeline by the plans
that `flyball frontier` finds: EnvPipe's and Perseus'. Then one board is throttled from outside, and the other replica
slows down with it. Processes stand for stages.
Exits with 1 where the plan did not do what it predicted, or a cap that was reported as enforced was exceeded.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from flyball.pipelines.slow_stage import COMPUTATIONS
from flyball_api.energy_aware_job import (
    ClockBounds,
    EnergyAwareJobSpec,
    FailurePolicy,
    GpuRange,
    PipelineParallelism,
    PlanSource,
)
from flyball_api.energy_aware_job import Training as TrainingSpec
from flyball_api.power_cap import PowerCapSpec
from flyball_api.writing import api_object
from flyball_frontiers.pipeline import PipelineProfile, Reconfiguration, Schedule, pipeline_graph
from flyball_frontiers.pipeline.document import envpipe_document, perseus_document
from flyball_kube.resources import ENERGY_AWARE_JOBS, POWER_CAPS
from flyball_simulated_gpu.shared import SimulatedNode

from flyball_testbed.controlplane.processes import wait_until
from flyball_testbed.pipeline.board import MeasuredComputation
from flyball_testbed.pipeline.journals import Iteration, Mean, read_iterations
from flyball_testbed.pipeline.picture import IterationPanel, draw
from flyball_testbed.site import Site, SitePlan
from flyball_testbed.training.run import CLIENT, NAMESPACE, PACE, ROOT, DemoFailed, status_of
from flyball_testbed.workload.devices import hardware_path

PROFILE = ROOT / "examples/profiles/gpt3-a40-unbalanced.csv"
# A board whose clocks and limits leave room for the A40's; it draws 70 W where nothing computes, as those did.
PRODUCT, BLOCKED_WATTS = "NVIDIA-H100-80GB-HBM3", 70.0
STAGES, REPLICAS = 4, 2
# Large enough for the job to be taken for one whose computations keep a GPU busy: its power limit follows from that.
MICROBATCH_SIZE = 64
POINTS = 60
WAIT_SECONDS = 420.0
THROTTLED_STAGE = 1
# The throttled board's clock, about: iterations take a fifth longer by it.
THROTTLED_MEGAHERTZ = 780
# What the promises are: less energy without longer iterations, as was predicted, and a straggler that is answered soon.
LEAST_SAVED, MOST_LONGER, PREDICTED_WITHIN = 0.10, 0.01, 0.02
ANSWERED_WITHIN_SECONDS = 2.0


@dataclass(frozen=True)
class TrainingSize:
    """What is trained: so many microbatches an iteration, iterations in each part of the run."""

    microbatches: int
    iterations: int

    def write_plans(self, out: Path) -> None:
        """What `flyball frontier --output` writes, with either planner."""
        profile = PipelineProfile.from_csv(PROFILE.read_text(encoding="utf-8"))
        graph = pipeline_graph(profile, Schedule.ONE_F_ONE_B, self.microbatches)
        plans = {
            "perseus": perseus_document(graph, BLOCKED_WATTS, POINTS),
            "envpipe": envpipe_document(profile, self.microbatches, BLOCKED_WATTS, Reconfiguration.BALANCED),
        }
        for planner, document in plans.items():
            (out / f"{planner}.json").write_text(json.dumps(document))

    def manifest(self, name: str, journal: Path, iterations: int, *, planned: bool) -> dict[str, Any]:
        """A job of so many iterations; `planned`: by the plan in the ConfigMap of its name."""
        profile = PipelineProfile.from_csv(PROFILE.read_text(encoding="utf-8"))
        highest = max(point.clock_megahertz or 0 for points in profile.points.values() for point in points)
        command = [
            sys.executable, "-m", "flyball_testbed.pipeline.stage", "--profile", str(PROFILE),
            "--microbatches", str(self.microbatches), "--iterations", str(iterations), "--journal", str(journal),
        ]  # fmt: skip
        trainer = {
            "name": "trainer",
            "image": "example.org/pipeline",
            "command": command,
            "env": [{"name": "PYTHONPATH", "value": str(CLIENT)}],
            "volumeMounts": [{"name": "checkpoint", "mountPath": "/checkpoint"}],
        }
        pod = {"containers": [trainer], "volumes": [{"name": "checkpoint", "emptyDir": {}}]}
        gpus, plan = STAGES * REPLICAS, PlanSource(name)
        spec = EnergyAwareJobSpec(
            gpus=GpuRange(gpus, gpus),
            training=TrainingSpec(REPLICAS * self.microbatches * MICROBATCH_SIZE, model_class="gpt2"),
            template={"spec": pod},
            objective="Time",
            clocks=ClockBounds(max_megahertz=highest),
            failure_policy=FailurePolicy(max_restarts=0),
            pipeline=PipelineParallelism(STAGES, self.microbatches, plan) if planned else None,
        )
        return api_object(ENERGY_AWARE_JOBS.kind, name, spec, namespace=NAMESPACE)


class PipelineRun:
    """Jobs on the site, one after the other."""

    def __init__(self, site: Site, say: Callable[[str], None]) -> None:
        self._site = site
        self._say = say

    def cap(self, watts: int) -> None:
        self._site.cluster.api.apply(api_object(POWER_CAPS.kind, "cluster", PowerCapSpec(watts=watts)))

    def start(self, manifest: dict[str, Any], plan: Path | None = None) -> None:
        """Submit a job, and the ConfigMap of its plan."""
        name = manifest["metadata"]["name"]
        if plan is not None:
            metadata = {"name": name, "namespace": NAMESPACE}
            data = {"plan.json": plan.read_text(encoding="utf-8")}
            self._site.cluster.api.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
        self._site.cluster.api.apply(manifest)
        self._say(f"{name} is submitted")

    def wait(self, name: str, holds: Callable[[], bool], what: str) -> None:
        def over() -> bool:
            self._site.check()
            return holds() or self._state(name) == "Failed"

        if not wait_until(over, WAIT_SECONDS) or not holds():
            raise DemoFailed(f"not within {WAIT_SECONDS:g} s: {what}; {name} is {self._state(name)}")
        self._say(what)

    def wait_end(self, name: str) -> None:
        self.wait(name, lambda: self._state(name) == "Succeeded", f"{name} has ended")

    def _state(self, name: str) -> str | None:
        return status_of(self._site.cluster.api, name).state

    def throttle(self, gpu: str, watts: float) -> None:
        """Let a board be capped from outside the driver, as a BMC does; 0 lets it go."""
        node = self._site.cluster.node_names()[0]
        with SimulatedNode.open(hardware_path(self._site.hardware, node)) as hardware:
            hardware.device(gpu).set_out_of_band_cap_milliwatts(round(watts * 1000))


def throttled_watts() -> float:
    """What a board draws whose backward passes run at `THROTTLED_MEGAHERTZ`."""
    profile = PipelineProfile.from_csv(PROFILE.read_text(encoding="utf-8"))
    return MeasuredComputation(profile.of(THROTTLED_STAGE, "backward")).at(THROTTLED_MEGAHERTZ)[1]


def gpu_of(journal: Path, replica: int, stage: int) -> str:
    """The board of one stage, as its process said."""
    for path in journal.glob("*.jsonl"):
        head = json.loads(path.read_text().splitlines()[0])
        if (head["replica"], head["stage"]) == (replica, stage):
            return str(head["gpu"])
    raise DemoFailed(f"{journal}: no process of stage {stage} of replica {replica}")


@contextlib.contextmanager
def started_site(out: Path, say: Callable[[str], None]) -> Iterator[Site]:
    """One node of as many GPUs as there are stages, whose pods' commands run."""
    plan = SitePlan(
        nodes=1,
        gpus_per_node=STAGES * REPLICAS,
        product=PRODUCT,
        operator_arguments=PACE,
        workload_arguments=("--run-programs",),
    )
    site = Site.start(plan, out, say)
    try:
        yield site
    finally:
        programs = site.directory / "workload" / "programs"
        if programs.exists():
            shutil.copytree(programs, out / "programs", dirs_exist_ok=True)
        site.stop()


def scenario(run: PipelineRun, training: TrainingSize, out: Path) -> float:
    """All that happens; when the board was throttled. Raises DemoFailed."""
    run.cap(STAGES * REPLICAS * 700)
    run.start(training.manifest("highest", out / "highest", training.iterations, planned=False))
    run.wait_end("highest")
    run.start(training.manifest("envpipe", out / "envpipe", training.iterations, planned=True), out / "envpipe.json")
    run.wait_end("envpipe")
    after = out / "perseus"
    run.start(training.manifest("perseus", after, 3 * training.iterations, planned=True), out / "perseus.json")

    def done() -> int:
        return max((item.number + 1 for item in read_iterations(after)), default=0)

    run.wait("perseus", lambda: done() >= training.iterations, f"{training.iterations} iterations by the plan")
    board = gpu_of(after, REPLICAS - 1, THROTTLED_STAGE)
    throttled_at = time.monotonic()
    run.throttle(board, throttled_watts())
    reached = 2 * training.iterations
    run.wait("perseus", lambda: done() >= reached, f"{training.iterations} more behind a board that is throttled")
    run.throttle(board, 0)
    run.wait_end("perseus")
    return throttled_at


def main() -> int:
    parser = argparse.ArgumentParser(prog="make pipeline-demo", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("out/pipeline-demo"), help="the picture, journals and logs")
    parser.add_argument("--microbatches", type=int, default=6, help="microbatches in an iteration")
    parser.add_argument("--iterations", type=int, default=8, help="iterations in each of the five parts")
    arguments = parser.parse_args()
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {line}", flush=True)

    out: Path = arguments.output.resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    training = TrainingSize(arguments.microbatches, arguments.iterations)
    training.write_plans(out)
    say("planned")
    try:
        with started_site(out, say) as site:
            throttled_at = scenario(PipelineRun(site, say), training, out)
            referee = site.referee_summary()
    except DemoFailed as error:
        print(error, file=sys.stderr)
        return 1
    over = max((cap["max_limits_over_watts"] for cap in referee["caps"].values()), default=0.0)
    return conclude(out, throttled_at, over)


def conclude(out: Path, throttled_at: float, over: float) -> int:
    """Say what the journals in `out` show, and draw it; 0 where the plan has done what it promised."""
    highest = [item for item in read_iterations(out / "highest") if item.number > 0]
    envpipe = [item for item in read_iterations(out / "envpipe") if item.number > 0]
    planned = [item for item in read_iterations(out / "perseus") if item.number > 0]
    undisturbed = [item for item in planned if item.ended < throttled_at]
    # The throttle came during an iteration: the first whole one behind it is the next.
    behind = [item for item in planned if item.began >= throttled_at and item.replica == 0]
    answered = [item for item in behind if item.degree > 1.0]
    if not highest or not envpipe or not undisturbed or not answered:
        print("the other replica never slowed down" if undisturbed else "nothing was trained", file=sys.stderr)
        return 1
    before, after, waited = Mean.of(highest), Mean.of(undisturbed), Mean.of(answered)
    flat_out = json.loads((out / "perseus.json").read_text())["flat_out"]
    by_envpipe, by_perseus = Followed.of(envpipe, flat_out), Followed.of(undisturbed, flat_out)
    answer = StragglerAnswer.of(planned, throttled_at)
    held_up = STAGES * BLOCKED_WATTS * (waited.seconds - after.seconds)
    than_waiting = 1 - waited.joules / (after.joules + held_up)
    than_highest = 1 - waited.joules / (before.joules + held_up)
    lines = [
        f"highest clocks: {before.seconds:.3f} s and {before.joules:.0f} J an iteration of a replica",
        by_envpipe.line("EnvPipe", before),
        by_perseus.line("Perseus", before),
        f"behind a straggler of {waited.seconds / after.seconds:.2f}: {waited.joules:.0f} J in the other replica,"
        f" {than_waiting:.1%} less than if it waited, {than_highest:.1%} less than at the highest clocks",
        answer.line(),
        f"watts over a cap reported as enforced: {over:g}",
    ]
    for line in lines:
        print(line)
    (out / "figures.txt").write_text("\n".join(lines) + "\n")
    _draw(highest, envpipe, undisturbed, answered, planned, out / "pipeline-demo.png")
    print(out / "pipeline-demo.png")
    kept = by_perseus.kept(before) and by_perseus.saved(before) >= LEAST_SAVED and by_envpipe.kept(before)
    return 0 if kept and over == 0 and answer.seconds <= ANSWERED_WITHIN_SECONDS else 1


@dataclass(frozen=True)
class Followed:
    """What a plan came to, and the share of energy that it was predicted to save."""

    mean: Mean
    predicted: float

    @classmethod
    def of(cls, iterations: Sequence[Iteration], flat_out: Mapping[str, float]) -> Followed:
        predicted = fmean(item.planned_joules or 0.0 for item in iterations)
        return cls(Mean.of(iterations), 1 - predicted / flat_out["energy"])

    def saved(self, before: Mean) -> float:
        return 1 - self.mean.joules / before.joules

    def longer(self, before: Mean) -> float:
        return self.mean.seconds / before.seconds - 1

    def kept(self, before: Mean) -> bool:
        """Whether iterations are hardly longer, and need the energy that was predicted."""
        return self.longer(before) <= MOST_LONGER and abs(self.saved(before) - self.predicted) <= PREDICTED_WITHIN

    def line(self, planner: str, before: Mean) -> str:
        return (
            f"by {planner}: {self.mean.seconds:.3f} s ({self.longer(before):+.2%}), {self.mean.joules:.0f} J"
            f" ({-self.saved(before):+.1%}; predicted {-self.predicted:+.1%})"
        )


@dataclass(frozen=True)
class StragglerAnswer:
    """How long after a board was throttled the other replica ran slower, and where that time went.

    `idle_seconds` until the board computed again, `computed_seconds` until as many of its computations had taken longer as
    a stage tells after, `waited_seconds` until the other replica's first slower computation began.
    """

    idle_seconds: float
    computed_seconds: float
    waited_seconds: float

    @classmethod
    def of(cls, planned: Sequence[Iteration], throttled_at: float) -> StragglerAnswer:
        """Of all iterations by the plan; some computation of replica 0 must have answered."""
        answered = min(
            computation.start
            for item in planned
            if item.replica == 0
            for computation in item.computations
            if computation.start >= throttled_at and computation.degree > 1.0
        )
        slowed = sorted(
            (computation.start, computation.end)
            for item in planned
            if item.replica == REPLICAS - 1
            for computation in item.computations
            if computation.stage == THROTTLED_STAGE and throttled_at <= computation.start < answered
        )
        began = slowed[0][0] if slowed else answered
        noticed = min(answered, slowed[COMPUTATIONS - 1][1]) if len(slowed) >= COMPUTATIONS else answered
        return cls(began - throttled_at, noticed - began, answered - noticed)

    @property
    def seconds(self) -> float:
        return self.idle_seconds + self.computed_seconds + self.waited_seconds

    def line(self) -> str:
        return (
            f"found and answered {self.seconds:.2f} s after the board was throttled: {self.idle_seconds:.2f} s until it"
            f" computed again, {self.computed_seconds:.2f} s for {COMPUTATIONS} slower computations,"
            f" {self.waited_seconds:.2f} s until a stage of the other replica began its next"
        )


def _draw(
    highest: Sequence[Iteration],
    envpipe: Sequence[Iteration],
    undisturbed: Sequence[Iteration],
    answered: Sequence[Iteration],
    planned: Sequence[Iteration],
    path: Path,
) -> None:
    def title(words: str, item: Iteration) -> str:
        return f"{words} {item.joules:,.0f} J in {item.seconds:.2f} s"

    first, between = highest[len(highest) // 4], envpipe[len(envpipe) // 4]
    second, third = undisturbed[len(undisturbed) // 4], answered[len(answered) // 2]
    other = next(item for item in planned if item.number == third.number and item.replica == REPLICAS - 1)
    throttled = f"By Perseus, while stage {THROTTLED_STAGE} of replica {REPLICAS - 1} is throttled: replica 0 uses"
    panels = [
        IterationPanel(title("All at the highest clock:", first), [first]),
        IterationPanel(title("By EnvPipe:", between), [between]),
        IterationPanel(title("By Perseus:", second), [second]),
        IterationPanel(title(throttled, third), [third, other]),
    ]
    draw(panels, path)


if __name__ == "__main__":
    sys.exit(main())
