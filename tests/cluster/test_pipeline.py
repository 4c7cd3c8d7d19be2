"""A job with spec.pipeline on the real control plane: its processes run at the clocks of the plan that it names."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from flyball.pipelines.plan import Kernels, StagePlans
from flyball_api.names import ANNOTATION_STRAGGLER
from flyball_frontiers.kareus import (
    KernelSchedule,
    Measurement,
    PartitionChoices,
    iteration_frontier,
    kareus_document,
    microbatch_frontier,
)
from flyball_frontiers.pipeline import PerseusPlanner, PipelineProfile, Schedule, pipeline_graph
from flyball_frontiers.pipeline.document import perseus_document
from flyball_frontiers.pipeline.evaluate import execute
from flyball_testbed.pipeline.journals import Iteration, read_iterations
from flyball_testbed.pipeline.stage import named

from tests.support.planner_service import service
from tests.support.site_bench import GROUP, Bench, job_manifest

CLIENT = Path(__file__).parents[2] / "client"
STAGES, MICROBATCHES, WAITING_WATTS = 2, 3, 55.0
HIGHEST = 1410  # of the site's boards
# Long enough for a clock that comes a little late to be the one of most of a computation.
CSV = "stage,instruction,frequency,time,energy\n" + "".join(
    f"{stage},{instruction},{clock},{seconds * HIGHEST / clock:.6f},"
    f"{seconds * HIGHEST / clock * (60 + 120 * (clock / HIGHEST) ** 3):.6f}\n"
    for stage, seconds in ((0, 0.15), (1, 0.25))
    for instruction in ("forward", "backward")
    for clock in (HIGHEST, 1200, 990, 780)
)


def submit(
    bench: Bench,
    name: str,
    document: dict[str, Any] | None,
    folder: Path,
    profile: str = CSV,
    more: Sequence[str] = (),
    **spec: Any,
) -> None:
    """A job of two stages by a plan; without one it has no spec.pipeline. `more` goes to its processes."""
    folder.mkdir(exist_ok=True)
    (folder / "profile.csv").write_text(profile)
    manifest = job_manifest(name, bench.namespace, gpus=(STAGES, STAGES), iterations=1_000_000, **spec)
    if document is not None:
        bench.api.create(
            f"/api/v1/namespaces/{bench.namespace}/configmaps",
            {"metadata": {"name": "two-stages"}, "data": {"balanced.json": json.dumps(document)}},
        )
        manifest["spec"]["pipeline"] = {
            "stages": STAGES,
            "microbatches": MICROBATCHES,
            "plan": {"configMap": "two-stages", "key": "balanced.json"},
        }
    manifest["spec"]["template"]["spec"]["containers"] = [
        {
            "name": "trainer",
            "image": "example.org/pipeline",
            "command": [
                sys.executable, "-m", "flyball_testbed.pipeline.stage", "--profile", str(folder / "profile.csv"),
                "--microbatches", str(MICROBATCHES), "--iterations", "100000", "--journal", str(folder / "journal"),
                *more,
            ],
            "env": [{"name": "PYTHONPATH", "value": str(CLIENT)}],
        }
    ]  # fmt: skip
    bench.api.create(f"{GROUP}/namespaces/{bench.namespace}/energyawarejobs", manifest)


def test_a_pipelines_boards_run_at_the_clocks_of_its_plan(bench: Bench, tmp_path: Path) -> None:
    graph = pipeline_graph(PipelineProfile.from_csv(CSV), Schedule.ONE_F_ONE_B, MICROBATCHES)
    document = perseus_document(graph, WAITING_WATTS, 20)
    stages = [StagePlans(document, stage) for stage in range(STAGES)]
    cheapest = stages[0].seconds_for("Energy")
    assert cheapest > stages[0].fastest_seconds
    wanted = {
        (stage, instruction, microbatch): plans.at(cheapest).clock_megahertz(instruction, microbatch)
        for stage, plans in enumerate(stages)
        for instruction in ("forward", "backward")
        for microbatch in range(MICROBATCHES)
    }
    assert max(clock for clock in wanted.values() if clock) < HIGHEST

    submit(bench, "piped", document, tmp_path, objective="Energy")
    # What is granted is what Time would have: what the plan asks for is never above it.
    running = bench.wait_running("piped", STAGES)
    pods = [pod["metadata"]["uid"] for pod in bench.objects("pods")]
    assert running["status"]["allocation"]["clockMegahertz"] == HIGHEST

    def clocks(iteration: Iteration) -> dict[tuple[int, str, int], int]:
        return {(c.stage, c.instruction, c.microbatch): c.clock_megahertz for c in iteration.computations}

    def ran() -> list[Iteration]:
        return read_iterations(tmp_path / "journal")

    bench.wait(
        lambda: any(clocks(iteration) == wanted for iteration in ran()),
        lambda: f"an iteration at {wanted}; the last ones ran at {[clocks(iteration) for iteration in ran()[-2:]]}",
        120.0,
    )
    assert {iteration.planned_seconds for iteration in ran()} == {cheapest}

    # Another point, while it trains: a deadline that only the fastest meets, then clocks that a cap takes away.
    def goes_by(seconds: float) -> None:
        bench.wait(
            lambda: ran()[-1].planned_seconds == seconds,
            lambda: f"iterations of {seconds} s; the last were planned for {[i.planned_seconds for i in ran()[-3:]]}",
            120.0,
        )

    soon = datetime.now(UTC) + timedelta(seconds=0.5 * stages[0].fastest_seconds * 1_000_000)
    bench.change("piped", deadline=soon.isoformat())
    goes_by(stages[0].fastest_seconds)
    bench.set_cap("low", int(bench.floor_watts()) + 60)
    held = bench.wait_job(
        "piped",
        lambda raw: (raw or {}).get("status", {}).get("allocation", {}).get("clockMegahertz", HIGHEST) < HIGHEST,
        "held by the cap",
    )
    clock = held["status"]["allocation"]["clockMegahertz"]
    slower = stages[0].seconds_for("Energy", stages[0].fastest_seconds, clock)
    assert slower > stages[0].fastest_seconds
    goes_by(stages[0].at(slower).seconds)
    assert [pod["metadata"]["uid"] for pod in bench.objects("pods")] == pods, "nothing was restarted"


def test_a_straggler_that_somebody_announces_is_answered_within_two_seconds_and_no_longer_than_it_is_said_to_last(
    bench: Bench, tmp_path: Path
) -> None:
    graph = pipeline_graph(PipelineProfile.from_csv(CSV), Schedule.ONE_F_ONE_B, MICROBATCHES)
    document = perseus_document(graph, WAITING_WATTS, 20)
    plans = StagePlans(document, 0)
    slower = plans.at(1.2 * plans.fastest_seconds)
    assert slower.joules < plans.at(plans.fastest_seconds).joules
    submit(bench, "told", document, tmp_path, objective="Time")
    bench.wait_running("told", STAGES)

    def ran() -> list[Iteration]:
        return read_iterations(tmp_path / "journal")

    def goes_by(seconds: float) -> None:
        bench.wait(
            lambda: bool(ran()) and ran()[-1].planned_seconds == seconds,
            lambda: f"iterations of {seconds} s; the last were planned for {[i.planned_seconds for i in ran()[-3:]]}",
            120.0,
        )

    took = []
    for _ in range(3):
        goes_by(plans.fastest_seconds)
        said = time.monotonic()
        until = datetime.now(UTC) + timedelta(seconds=10)
        bench.annotate("told", ANNOTATION_STRAGGLER, f"1.2 until {until.isoformat()}")
        goes_by(slower.seconds)
        slow = [c.start for i in ran() for c in i.computations if c.degree == 1.2 and c.start > said]
        took.append(min(slow) - said)
    print(f"slower {', '.join(f'{seconds:.2f} s' for seconds in took)} after it was said")
    assert min(took) <= 2.0, "what else the machine does may delay one of them"
    goes_by(plans.fastest_seconds)  # nobody takes the annotation back
    bench.annotate("told", ANNOTATION_STRAGGLER, "1.2 replica 0")
    bench.annotate("told", ANNOTATION_STRAGGLER, None)
    before = len(ran())
    bench.wait(lambda: len(ran()) > before + 3, lambda: f"more than {len(ran())} iterations", 120.0)
    assert {i.planned_seconds for i in ran()[before:]} == {plans.fastest_seconds}, "the slow one goes on as it is"


# Of the partition `attention`: its communication's SMs, and the kernel that it is launched with; what its computation then
# takes, over one kernel after the other, in seconds and in watts.
OVERLAPPED = {(6, 0): (0.86, 1.06), (12, 1): (0.80, 1.30)}


def kernels_measured() -> tuple[str, dict[tuple[int, str], tuple[PartitionChoices, dict[int, Measurement]]]]:
    """The profile of both stages under every schedule of their kernels: as stages run it, and as Kareus plans with it."""
    rows, measured = [CSV], {}
    for (stage, instruction), points in PipelineProfile.from_csv(CSV).points.items():
        overlapped: dict[KernelSchedule, Measurement] = {}
        sequential: dict[int, Measurement] = {}
        for point in points:
            clock = point.clock_megahertz or 0
            sequential[clock] = Measurement(point.time_seconds, point.energy_joules)
            for (sms, launch), (longer, more) in OVERLAPPED.items():
                seconds, joules = longer * point.time_seconds, longer * more * point.energy_joules
                overlapped[KernelSchedule(clock, sms, launch)] = Measurement(seconds, joules)
                name = named(instruction, {"attention": Kernels(sms, launch)})
                rows.append(f"{stage},{name},{clock},{seconds:.6f},{joules:.6f}\n")
        measured[stage, instruction] = PartitionChoices("attention", 1, overlapped), sequential
    return "".join(rows), measured


def test_a_pipelines_computations_run_at_the_clocks_and_with_the_kernels_of_a_plan_of_kareus(
    bench: Bench, tmp_path: Path
) -> None:
    """Clocks by Flyball, kernels by the script, which is told how of each computation: it takes what was planned."""
    profile, measured = kernels_measured()
    microbatches = {
        key: microbatch_frontier([choices], {}, sequential, WAITING_WATTS)
        for key, (choices, sequential) in measured.items()
    }
    frontier, graph = iteration_frontier(microbatches, MICROBATCHES, WAITING_WATTS, 20)
    document = kareus_document(frontier, graph, WAITING_WATTS)
    stages = [StagePlans(document, stage) for stage in range(STAGES)]
    fastest = stages[0].fastest_seconds
    wanted = {}
    for stage, plans in enumerate(stages):
        plan = plans.at(fastest)
        for instruction in ("forward", "backward"):
            for microbatch in range(MICROBATCHES):
                ran = named(instruction, plan.kernels(instruction, microbatch))
                wanted[stage, instruction, microbatch] = plan.clock_megahertz(instruction, microbatch), ran
    assert len({ran for _, ran in wanted.values()}) > 2, "not all computations run their kernels alike"
    assert min(clock for clock, _ in wanted.values() if clock) < HIGHEST
    by_clocks = perseus_document(
        pipeline_graph(PipelineProfile.from_csv(CSV), Schedule.ONE_F_ONE_B, MICROBATCHES), WAITING_WATTS, 20
    )
    assert fastest < 0.9 * by_clocks["points"][0]["realised_time"], "no clocks make it as fast"

    submit(bench, "kernels", document, tmp_path, profile, objective="Time")

    def ran_as_planned() -> list[Iteration]:
        return [
            iteration
            for iteration in read_iterations(tmp_path / "journal")
            if {(c.stage, c.instruction, c.microbatch): (c.clock_megahertz, c.ran) for c in iteration.computations}
            == wanted
        ]

    def measured_in_time() -> list[Iteration]:
        """Those that took as long by the watch as by the training's clock, on which processes catch up when woken late: by
        the watch goes the counter of a board's joules."""
        ran = {iteration.number: iteration for iteration in read_iterations(tmp_path / "journal")}
        return [
            iteration
            for iteration in ran_as_planned()
            if (before := ran.get(iteration.number - 1)) is not None
            and abs(iteration.late_seconds - before.late_seconds) < 0.01 * iteration.seconds
        ]

    bench.wait(
        lambda: bool(measured_in_time()),
        lambda: f"iterations as {wanted}; the last: {read_iterations(tmp_path / 'journal')[-2:]}",
        240.0,
    )
    best = min(measured_in_time(), key=lambda iteration: iteration.seconds)
    print(
        f"{best.seconds:.3f} s and {best.joules:.1f} J; planned {best.planned_seconds:.3f}, {best.planned_joules:.1f}"
    )
    assert best.planned_seconds == fastest
    assert best.seconds == pytest.approx(fastest, rel=0.05)
    assert best.planned_joules is not None
    # A board that waits at a high clock draws a little more than WAITING_WATTS.
    assert best.joules == pytest.approx(best.planned_joules, rel=0.08)


@pytest.mark.long
def test_stages_are_measured_as_they_train_and_a_plan_of_that_is_as_good_as_one_of_the_recorded_profile(
    bench: Bench, tmp_path: Path
) -> None:
    """A job without any profile measures one in its first iterations; what is planned by it then acts in the next."""
    folder = tmp_path / "measured"
    recorded = PipelineProfile.from_csv(CSV)
    clocks = sorted({point.clock_megahertz or 0 for points in recorded.points.values() for point in points})
    options = ["--measure", ",".join(map(str, clocks)), "--measured", str(folder)]
    submit(bench, "measures", None, folder, more=options, objective="Time")
    files = [folder / f"stage-{stage:05d}.csv" for stage in range(STAGES)]
    bench.wait(lambda: all(path.exists() for path in files), lambda: f"what was measured: {files}", 300.0)
    measured = PipelineProfile.from_csv(
        "stage,instruction,frequency,time,energy\n" + "".join(path.read_text() for path in files)
    )
    bench.api.delete(bench.path("measures"))
    errors = {
        what: [
            abs(getattr(point, what) / getattr(known, what) - 1.0)
            for key, points in measured.points.items()
            for point in points
            for known in recorded.points[key]
            if known.clock_megahertz == point.clock_megahertz
        ]
        for what in ("time_seconds", "energy_joules")
    }
    print({what: f"mean {fmean(off):.1%}, worst {max(off):.1%}" for what, off in errors.items()})
    # The lowest clock saves nothing over the one before it; where readings come late, a sweep may end before it.
    found = {key: {point.clock_megahertz for point in points} for key, points in measured.points.items()}
    assert found.keys() == recorded.points.keys()
    assert all(set(clocks[1:]) <= of_one <= set(clocks) for of_one in found.values()), found
    assert max(errors["time_seconds"]) <= 0.03
    # A process that is woken late has its board draw for a little longer than the recorded computation takes: beside much
    # other work one point in dozens was a fifth off, while the mean was 4 %.
    assert fmean(errors["energy_joules"]) <= 0.06
    assert max(errors["energy_joules"]) <= 0.35

    document = perseus_document(pipeline_graph(measured, Schedule.ONE_F_ONE_B, MICROBATCHES), WAITING_WATTS, 20)
    stages = [StagePlans(document, stage) for stage in range(STAGES)]
    cheapest = stages[0].seconds_for("Energy")
    graph = pipeline_graph(recorded, Schedule.ONE_F_ONE_B, MICROBATCHES)
    ran: dict[tuple[int, str], int] = {}
    chosen = []
    for operation in graph.operations:
        number = ran.get((operation.chunk, operation.instruction), 0)
        ran[operation.chunk, operation.instruction] = number + 1
        clock = stages[operation.chunk].at(cheapest).clock_megahertz(operation.instruction, number)
        chosen.append(next(point for point in operation.points if point.clock_megahertz == clock))
    took = execute(graph, chosen, WAITING_WATTS)
    best = PerseusPlanner(graph, WAITING_WATTS).frontier(20).at(took.time_seconds)
    print(f"by the measured profile {took.energy_joules:.1f} J, by the recorded {best.realised_energy_joules:.1f} J")
    assert took.energy_joules <= 1.02 * best.realised_energy_joules

    submit(bench, "planned", document, tmp_path / "planned", objective="Energy")

    def followed() -> bool:
        return any(
            all(
                c.clock_megahertz == stages[c.stage].at(cheapest).clock_megahertz(c.instruction, c.microbatch)
                for c in iteration.computations
            )
            for iteration in read_iterations(tmp_path / "planned" / "journal")
        )

    bench.wait(followed, lambda: "an iteration at the clocks of the plan that was made of what was measured", 120.0)


@pytest.mark.long
def test_a_job_measures_its_pipeline_has_a_plan_made_of_it_and_its_next_start_trains_by_it(
    make_site: Callable[..., Bench], tmp_path: Path
) -> None:
    """Nobody names a plan: stages are measured, agents and operator pass it on, the planner service plans."""
    with service(tmp_path) as url:
        bench = make_site(1, operator_arguments=("--planner-url", url), workload_arguments=("--run-programs",))
        clocks = {"highestMegahertz": HIGHEST, "lowestMegahertz": 780, "stepMegahertz": 210}
        recorded = PipelineProfile.from_csv(CSV)
        assert {point.clock_megahertz for points in recorded.points.values() for point in points} == {
            *range(HIGHEST, 779, -210)
        }
        submit(bench, "measures", None, tmp_path, objective="Energy", pipeline={
            "stages": STAGES, "microbatches": MICROBATCHES, "plan": {"configMap": "measured", "measure": clocks},
        })  # fmt: skip

        def measured() -> list[int]:
            reports = [job for node in bench.gpu_nodes() for job in (node.get("status") or {}).get("jobs") or ()]
            return [stage["stage"] for job in reports for stage in job.get("stages") or ()]

        bench.wait(lambda: set(measured()) == set(range(STAGES)), lambda: f"all stages; only {measured()}", 400.0)
        bench.wait_told("measures", "Normal", "PipelinePlanned", "ConfigMap measured has the plan")
        (config_map,) = [each for each in bench.objects("configmaps") if each["metadata"]["name"] == "measured"]
        document = json.loads(config_map["data"]["plan.json"])
        stages = [StagePlans(document, stage) for stage in range(STAGES)]
        cheapest = stages[0].seconds_for("Energy")
        status = bench.wait_job(
            "measures", lambda raw: "measuredPlan" in (raw or {}).get("status", {}), "says what became of its plan"
        )["status"]["measuredPlan"]
        assert status["outcome"] == "Made"

        before = len(read_iterations(tmp_path / "journal"))
        assert {iteration.planned_seconds for iteration in read_iterations(tmp_path / "journal")} == {None}
        bench.change("measures", suspend=True)
        bench.wait(lambda: not bench.objects("pods"), lambda: f"pods are left: {len(bench.objects('pods'))}", 60.0)
        bench.change("measures", suspend=False)

        def followed() -> bool:
            # The clocks alone tell nothing: while stages are measured, an iteration may have the plan's by chance.
            return any(
                iteration.planned_seconds == cheapest
                and all(
                    c.clock_megahertz == stages[c.stage].at(cheapest).clock_megahertz(c.instruction, c.microbatch)
                    for c in iteration.computations
                )
                for iteration in read_iterations(tmp_path / "journal")
            )

        bench.wait(followed, lambda: f"an iteration by the plan that was made; {before} ran without", 120.0)
