"""What is counted, said and drawn of a run."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from flyball_api.energy_aware_job import read_energy_aware_job
from flyball_api.names import ANNOTATION_ALLOCATION
from flyball_api.power_cap import read_power_cap
from flyball_api.workloads import IncarnationView, placement_annotation, read_incarnation
from flyball_testbed.demo.baseline import POLICY, BaselineResult
from flyball_testbed.demo.picture import CAP, DRAW, GpuTrace, PowerTrace, draw, read_power
from flyball_testbed.demo.report import CapStep, Outcome, cap_steps, joules_between
from flyball_testbed.demo.scenario import Boot
from flyball_testbed.demo.screen import Moment, View, bar, colours, energy, render, simulated_time
from flyball_testbed.demo.watch import CapSeen, JobSeen, count_moves
from flyball_testbed.referee.judge import COLUMNS
from rich.console import Console

from tests.support.operator_objects import raw_batch_job

BASELINE = BaselineResult({"a": 10.0, "b": 30.0}, 40.0, 5000.0, 900.0)
OUTCOME = Outcome(
    nodes=2,
    gpus=16,
    submitted=2,
    failed=0,
    completion_seconds={"a": 20.0, "b": 30.0},
    resizes=3,
    migrations=1,
    wall_seconds=50.0,
    cap_steps=[CapStep(800, 10.0, 10.5, 0.5, 120.0, 2)],
    limits_over_watts=0.0,
    true_over_watts=0.0,
    joules=4000.0,
    max_true_watts=850.0,
    baseline=BASELINE,
    boot=Boot("n2", 500, 60.0, 700.0, 0.4, 6.0),
)


def incarnation(job: str, number: int, *nodes: tuple[str, int]) -> IncarnationView:
    raw = raw_batch_job(f"uid-{job}", number, nodes)
    raw["metadata"]["annotations"] = {ANNOTATION_ALLOCATION: placement_annotation(nodes)}
    return read_incarnation(raw)


def test_a_resize_changes_the_size_and_a_migration_only_the_place() -> None:
    seen = [
        incarnation("a", 3, ("n2", 4), ("n1", 4)),  # the same nodes in another order: started again
        incarnation("a", 1, ("n1", 4)),
        incarnation("a", 2, ("n1", 4), ("n2", 4)),  # a resize
        incarnation("a", 4, ("n1", 4), ("n3", 4)),  # a migration
        incarnation("b", 1, ("n1", 1)),
    ]
    assert count_moves(seen) == (1, 1)


def test_moves_of_jobs_on_so_many_nodes_that_their_places_are_packed_are_counted_too() -> None:
    places = [(f"a-node-with-a-rather-long-name-{number:05}", 8) for number in range(5_000)]
    moved = [("another-node", 8), *places[1:]]
    seen = [incarnation("a", 1, *places), incarnation("a", 2, *moved), incarnation("a", 3, *moved[:-1])]
    assert count_moves(seen) == (1, 1)


def test_the_report_has_exactly_its_fields() -> None:
    report = OUTCOME.report(100.0)
    assert json.loads(json.dumps(report)) == {
        "nodes": 2,
        "gpus": 16,
        "jobs": {"submitted": 2, "succeeded": 2, "failed": 0},
        "resizes": 3,
        "migrations": 1,
        "wall_seconds": 50.0,
        "simulated_seconds": 5000.0,
        "mean_jct_seconds": 2500.0,
        "cap_steps": [
            {
                "watts": 800,
                "requested_at": 10.0,
                "enforced_at": 10.5,
                "seconds": 0.5,
                "limits_fell_watts": 120.0,
                "nodes_lowered": 2,
            }
        ],
        "boot": {
            "node": "n2",
            "cap_watts": 500,
            "at": 60.0,
            "limits_watts": 700.0,
            "withdrawn_seconds": 0.4,
            "enforced_again_seconds": 6.0,
        },
        "max_limits_over_enforced_cap_watts": 0.0,
        "max_true_over_enforced_cap_watts": 0.0,
        "energy_kilojoules": 400.0,
        "baseline": {
            "policy": POLICY,
            "mean_jct_seconds": 2000.0,
            "energy_kilojoules": 500.0,
            "max_true_watts": 900.0,
        },
    }


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (OUTCOME, []),
        (replace(OUTCOME, limits_over_watts=0.999), []),
        (replace(OUTCOME, limits_over_watts=1.0), ["limits by 1.000 W"]),
        (replace(OUTCOME, true_over_watts=2.0), ["true draw by 2.000 W"]),
        (replace(OUTCOME, submitted=3), ["1 of 3 jobs did not end"]),
        (replace(OUTCOME, submitted=3, failed=1), ["1 of 3 jobs failed"]),
        (
            replace(OUTCOME, boot=replace(OUTCOME.boot, withdrawn_seconds=None)),
            ["called enforced after n2 had booted without its agent"],
        ),
        (replace(OUTCOME, cap_steps=[CapStep(800, 10.0, None, None)]), ["800 W was never reported as enforced"]),
    ],
)
def test_what_makes_a_run_a_failure(outcome: Outcome, said: list[str]) -> None:
    assert len(outcome.faults) == len(said)
    for fault, words in zip(outcome.faults, said, strict=True):
        assert words in fault


def test_a_run_in_which_no_limit_had_to_fall_says_so() -> None:
    stood = CapStep(800, 10.0, 11.0, 1.0, limits_fell_watts=0.4, nodes_lowered=0)
    (said,) = replace(OUTCOME, cap_steps=[stood, stood]).remarks
    assert "no step of the cap had to lower a limit" in said
    assert replace(OUTCOME, cap_steps=[stood, replace(stood, limits_fell_watts=200.0)]).remarks == []
    assert replace(OUTCOME, cap_steps=[replace(stood, limits_fell_watts=None)]).remarks == []


def test_the_table_compares_with_the_baseline() -> None:
    console = Console(width=120, record=True)
    console.print(OUTCOME.table(100.0))
    text = console.export_text()
    assert "2 of 2 jobs succeeded" in text
    assert "42m" in text  # mean job completion time, 25 s x 100
    assert "+25%" in text
    assert "-20%" in text
    assert "cap 0.8 kW enforced after" in text


def test_a_step_of_the_cap_is_enforced_when_the_referee_saw_it_said() -> None:
    requested = [(700, 5.0), (450, 60.0), (600, 100.0), (450, 140.0)]
    enforced = [{"watts": 700.0, "seconds": 6.0}, {"watts": 450.0, "seconds": 60.8}, {"watts": 450.0, "seconds": 141.0}]
    assert cap_steps(requested, enforced, origin=10.0) == [
        CapStep(700, -5.0, -4.0, 1.0),
        CapStep(450, 50.0, 50.8, 0.8),
        CapStep(600, 90.0, None, None),
        CapStep(450, 130.0, 131.0, 1.0),
    ]


def referee_rows(path: Path) -> Path:
    """Ten seconds at 20 Hz: 500 W, a spike of one sample, a cap that is not enforced in second 5."""
    with path.open("w", newline="") as file:
        rows = csv.DictWriter(file, COLUMNS)
        rows.writeheader()
        for index in range(200):
            at = index / 20
            draw_watts = 700.0 if index == 99 else 500.0
            rows.writerow(
                dict.fromkeys(COLUMNS, 0)
                | {
                    "seconds": at,
                    "true_watts": draw_watts,
                    "limits_watts": 750.0,
                    "joules": 500.0 * at,
                    "cap_watts": 800,
                    "enforced_cap_watts": "" if 5 <= at < 6 else 800,
                }
            )
    return path


def test_energy_is_what_the_referee_counted_between_two_moments(tmp_path: Path) -> None:
    path = referee_rows(tmp_path / "referee.csv")
    assert joules_between(path, 2.0, 6.0) == (2000.0, 700.0)
    assert joules_between(path, 5.5, 9.0) == (1750.0, 500.0)
    assert joules_between(path, 50.0, 90.0) == (0.0, 0.0)


def test_thinning_keeps_the_worst_moment(tmp_path: Path) -> None:
    power = read_power(referee_rows(tmp_path / "referee.csv"), 1.0, 9.0)
    assert len(power.seconds) < 40
    assert power.seconds[0] == 0.0
    assert max(power.draw) == 700.0
    assert False in power.enforced
    assert set(power.cap) == {800.0}


@pytest.mark.slow
def test_the_picture_shows_power_and_cap(tmp_path: Path) -> None:
    seconds = [float(index) for index in range(20)]
    power = PowerTrace(seconds, [600.0] * 20, [700.0] * 20, [800.0] * 20, [True] * 14 + [False] * 6)
    gpus = GpuTrace(seconds, [{"bert-00": 8}] * 20)
    path = tmp_path / "power.png"
    draw(
        path,
        power,
        gpus,
        {"bert-00": "#102030"},
        total_gpus=16,
        max_watts=1000.0,
        compression=60,
        baseline_max_watts=900.0,
        title="title",
        subtitle="subtitle",
    )
    pixels = (matplotlib.image.imread(path)[:, :, :3] * 255).round().astype(int)

    def rows(colour: str) -> np.ndarray:
        wanted = [int(colour[index : index + 2], 16) for index in (1, 3, 5)]
        return np.nonzero((np.abs(pixels - wanted).sum(axis=2) <= 6).sum(axis=1) > pixels.shape[1] // 2)[0]

    assert rows(CAP).mean() < rows(DRAW).mean() < rows("#102030").mean(), "from top to bottom"
    assert len(rows("#102030")) > pixels.shape[0] / 8, "8 of 16 GPUs fill half of the lower part"
    near_cap = pixels[int(rows(CAP).min()) - 12 : int(rows(CAP).max()) + 12]
    not_enforced = (np.abs(near_cap - [0xF2, 0xB1, 0x34]).sum(axis=2) <= 60).any(axis=0)
    assert 0.15 < not_enforced.mean() < 0.35, "under the cap, for as long as it is not called enforced"
    assert not not_enforced[: pixels.shape[1] // 2].any()


def view(**changes: object) -> View:
    jobs = [
        JobSeen("bert-00", "Time", 2, 16, 100, 50, 8, 8, 1110, 187, 1400, 5000.0, "Running", "widened to 8 GPUs"),
        JobSeen("vgg16-01", "Energy", 4, 4, 100, explanation="waits for power: 1.6 kW are free"),
        JobSeen("gpt2-02", "Energy", 1, 4, 100, 100, outcome="Succeeded"),
    ]
    moments = [Moment(float(second), 3000.0, 3500.0, 4000.0) for second in range(30)]
    shown = View(
        seconds=65.0,
        compression=120.0,
        headline="the cap falls to 45%",
        max_watts=6400,
        gpus_per_node=8,
        nodes=["node-000", "node-001"],
        cap=CapSeen("cluster", 4000, 4000, 3900, True, ""),
        history=moments,
        over_watts=0.0,
        jobs=jobs,
        held={"bert-00": (("node-001", 8),)},
        colours=colours([job.name for job in jobs]),
        to_come=3,
        resizes=4,
        migrations=1,
    )
    return replace(shown, **changes)  # type: ignore[arg-type]


def shown(what: View, width: int = 130, height: int = 40) -> str:
    console = Console(width=width, height=height, record=True)
    console.print(render(what, width, height))
    return console.export_text()


def test_the_screen_says_what_matters() -> None:
    text = shown(view())
    for words in (
        "1:05  =  2h10m simulated",
        "the cap falls to 45%",
        "draw   3.0 kW",
        "limits   3.5 kW",
        "cap   4.0 kW  enforced",
        "GPUs in use: 8/16",
        "widened to 8 GPUs",
        " 1110 ",
        " 50%",
        "600 kJ",
        "waits for power: 1.6 kW are free",
        "1 running, 1 waiting, 3 to come, 1 done",
        "4 resizes, 1 migrations",
        "worst over cap: 0 W",
    ):
        assert words in text
    assert "gpt2-02" not in text, "what is done makes room for what runs"
    assert text.count("■") == 8 + 1
    waiting = view(cap=CapSeen("cluster", 4000, 6000, 5000, False, "cutting"))
    assert "cap   4.0 kW  not enforced" in shown(waiting), "as while a node has booted without its agent"


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 30), (200, 60)])
def test_the_screen_fits_the_terminal(width: int, height: int) -> None:
    many = [JobSeen(f"bert-{number:02d}", "Time", 1, 4, 10, gpus=1, explanation="x" * 300) for number in range(60)]
    lines = shown(view(jobs=many), width, height).rstrip("\n").split("\n")
    assert len(lines) <= height
    assert max(len(line) for line in lines) <= width


def test_numbers_are_said_as_people_say_them() -> None:
    assert [simulated_time(seconds) for seconds in (30, 540, 3600, 9960)] == ["0m", "9m", "1h00m", "2h46m"]
    assert [energy(joules) for joules in (850e3, 1.52e6, 23e6, 2.3e9)] == ["850 kJ", "1.5 MJ", "23 MJ", "2.3 GJ"]
    assert [len(bar(share, 10)) for share in (-1, 0, 0.33, 0.999, 2)] == [10] * 5
    assert bar(0.5, 4) == "██  "


def test_an_energy_aware_job_is_read_as_its_status_says() -> None:
    raw = {
        "metadata": {"name": "a", "namespace": "demo", "creationTimestamp": "2026-11-22T08:00:00Z"},
        "spec": {
            "gpus": {"min": 1, "max": 8},
            "training": {"iterations": 200, "globalBatchSize": 64},
            "template": {},
            "objective": "Time",
        },
        "status": {
            "applied": {"gpus": 4, "clockMegahertz": 1200, "powerLimitWatts": 210},
            "allocation": {"gpus": 8},
            "progress": {"iterations": 50},
            "energy": {"watts": 700, "settledMillijoules": 1000, "incarnations": [{"key": "1/n", "millijoules": 500}]},
            "explanation": "because",
            "conditions": [{"type": "Succeeded", "status": "False"}, {"type": "Failed", "status": "True"}],
        },
    }
    job = JobSeen.of(read_energy_aware_job(raw))
    assert (job.gpus, job.planned_gpus, job.clock_megahertz, job.joules) == (4, 8, 1200, 1.5)
    assert (job.progress, job.outcome, job.explanation) == (0.25, "Failed", "because")
    assert JobSeen.of(read_energy_aware_job({**raw, "status": None})).gpus == 0


def test_a_cap_is_shown_as_enforced_where_its_status_is_about_the_present_spec() -> None:
    def seen(generation: int) -> CapSeen:
        condition = {"type": "Enforced", "status": "True", "message": "held", "observedGeneration": 2}
        metadata = {"name": "cluster", "generation": generation}
        status = {"effectiveWatts": 4000, "conditions": [condition]}
        return CapSeen.of(read_power_cap({"metadata": metadata, "spec": {"watts": 4000}, "status": status}))

    assert (seen(2).enforced, seen(2).effective_watts, seen(2).message) == (True, 4000, "held")
    assert not seen(3).enforced
