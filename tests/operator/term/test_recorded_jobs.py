"""Recorded jobs under the whole operator: how far its plans are off when a job is resized, and once it runs there."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

import pytest

from tests.support.recorded_jobs import recorded_bench
from tests.support.recorded_tables import RecordedJob

# Of each of ElasticFlow's tables the batch in the middle.
TABLES = {
    "bert": 128, "deepspeech2": 64, "gpt2": 256, "inception3": 128, "resnet50": 128, "resnet50_cifar10": 128, "vgg16": 128,
}  # fmt: skip
RESIZES = ((2, 8), (1, 4), (8, 2))
WINDOWS = 10  # five minutes


@dataclass(frozen=True)
class Resized:
    """By how much a plan's seconds and joules were above what an iteration took: when it was made, by what one size had
    told, in the last of some windows at the new size, and, of these, in the fourth, the first after a fit."""

    before: tuple[float, float]
    planned: tuple[float, float]
    fitted: tuple[float, float]
    after: tuple[float, float]


async def resized(name: str, model_class: str, gpus: int, then: int) -> Resized:
    async with recorded_bench(2, RecordedJob(name, TABLES[name])) as bench:
        bench.ask(model_class, gpus)
        await bench.run_on(gpus)
        for _ in range(WINDOWS):
            await bench.window()
        before = bench.errors()
        bench.ask(model_class, then)
        await bench.run_on(then)
        found = []
        for _ in range(WINDOWS):
            await bench.window()
            found.append(bench.errors())
        return Resized(before, found[0], found[3], found[-1])


@pytest.mark.slow
@pytest.mark.long
async def test_plans_are_within_a_tenth_where_a_job_runs_and_far_off_where_it_has_never_run() -> None:
    """The figures of docs/models.md: in time and in energy, before the first resize, at it, and after it."""
    runs = {(name, gpus, then): await resized(name, name, gpus, then) for name in TABLES for gpus, then in RESIZES}
    for case, run in runs.items():
        assert all(abs(error) < 0.1 for error in run.before), case
        assert abs(run.after[0]) < 0.1, case
        # The worst is of a job that had been held to lower clocks by its price, and never seen at a high one.
        assert abs(run.after[1]) < (0.11 if case == ("deepspeech2", 8, 2) else 0.1), case
    grown = [run for (_, gpus, then), run in runs.items() if then > gpus]
    assert all(abs(error) < 0.1 for run in grown for error in run.fitted), "two minutes are enough where a job grows"
    planned = [abs(run.planned[0]) for run in runs.values()]
    assert 0.1 < median(planned) < 0.3, "what one size tells of another is little"
    assert max(planned) < 3.0
