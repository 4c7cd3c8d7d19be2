"""A job with spec.pipeline on the real control plane: its processes run at the clocks of the plan that it names."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from flyball.pipeline_plan import StagePlans
from flyball_frontiers.pipeline import PipelineProfile, Schedule, pipeline_graph
from flyball_frontiers.pipeline.document import perseus_document
from flyball_testbed.pipeline.journals import Iteration, read_iterations

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


def submit(bench: Bench, name: str, document: dict[str, Any], folder: Path, **spec: Any) -> None:
    (folder / "profile.csv").write_text(CSV)
    bench.api.create(
        f"/api/v1/namespaces/{bench.namespace}/configmaps",
        {"metadata": {"name": "two-stages"}, "data": {"balanced.json": json.dumps(document)}},
    )
    manifest = job_manifest(name, bench.namespace, gpus=(STAGES, STAGES), iterations=1_000_000, **spec)
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
