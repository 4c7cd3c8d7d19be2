"""Many simulations at once: in parallel processes, each kept in a file of its own, so that nothing is done twice.

A kept result is named by a digest of its whole settings, of the jobs that it ran, and of the code that ran it
(`code_version`, and the file of a policy from outside): after a change of any of them it is no longer found, and is made
anew.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flyball_simulator.engine import simulate
from flyball_simulator.experiments.code_version import code_version
from flyball_simulator.experiments.results import result_document, settings_document, write_whole
from flyball_simulator.experiments.worker_processes import Event, Failed, Finished, Report, WorkerProcesses
from flyball_simulator.outside_policies import outside_code
from flyball_simulator.settings import SimulationSettings
from flyball_simulator.workloads.source import WorkloadSource, digest_of
from flyball_simulator.workloads.workload import SimulatedJob

KEPT_WORKLOADS = 3  # of one process, in memory
REPORT_SECONDS = 0.25
QUANTILES = 101  # 0 % to 100 %


@dataclass(frozen=True, slots=True)
class Cell:
    """One simulation of the matrix. `sweep` names the settings that distinguish it from its policy's other ones, and
    `label` the curve that it is a point of (its policy by default)."""

    settings: SimulationSettings
    workload: WorkloadSource
    sweep: tuple[tuple[str, float], ...] = ()
    label: str = ""

    @property
    def curve(self) -> str:
        return self.label or self.settings.policy

    def __str__(self) -> str:
        swept = "".join(f", {name} {value:g}" for name, value in self.sweep)
        return f"{self.curve}{swept}, seed {self.settings.seed}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a cell: its `result` (as in result.json) or its `error`. `reused`: it had been kept."""

    cell: Cell
    result: dict[str, Any] | None
    jct_quantiles_seconds: tuple[float, ...] = ()  # QUANTILES of them
    error: str | None = None
    details: str = ""
    reused: bool = False


@dataclass(frozen=True, slots=True)
class _Task:
    cell: Cell
    folder: Path
    resume: bool
    code: str


def run_matrix(
    cells: Sequence[Cell],
    folder: Path,
    *,
    processes: int = 2,
    resume: bool = True,
    listen: Callable[[Event], None] | None = None,
) -> list[Outcome]:
    """Run every cell, and return what became of each, in the order of the cells.

    Finished runs are kept in `folder`, and found there again if `resume`. `listen` is called for each cell, by its position
    in `cells`: Started, Reported (with simulated seconds, ended jobs, all jobs), and Finished or Failed. One that fails, or
    whose process dies, does not touch the others. After KeyboardInterrupt the same call goes on from where it was.
    """
    folder.mkdir(parents=True, exist_ok=True)
    outcomes: dict[int, Outcome] = {}

    def take_event(event: Event) -> None:
        if isinstance(event, Finished):
            outcomes[event.task] = event.answer
        elif isinstance(event, Failed):
            outcomes[event.task] = Outcome(cells[event.task], None, error=event.error, details=event.details)
        if listen is not None:
            listen(event)

    code = code_version()
    tasks = [_Task(cell, folder, resume, code) for cell in cells]
    WorkerProcesses[_Task](_run_one, processes).run(tasks, take_event, lambda task: _workload_key(task.cell))
    return [outcomes[index] for index in range(len(cells))]


def run_key(settings: SimulationSettings, trace: str, jobs_digest: str, code: str) -> str:
    """What a kept result is named by."""
    identity = {"settings": settings_document(settings), "trace": trace, "jobs": jobs_digest, "code": code}
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:24]


_workloads: OrderedDict[tuple[Any, ...], tuple[list[SimulatedJob], str]] = OrderedDict()  # of this process


def _workload_key(cell: Cell) -> tuple[Any, ...]:
    return cell.workload, cell.settings.gpus, cell.settings.gpus_per_node, cell.settings.gpu_product


def _workload(cell: Cell) -> tuple[list[SimulatedJob], str]:
    key = _workload_key(cell)
    if key not in _workloads:
        jobs = cell.workload.workload(cell.settings)
        _workloads[key] = jobs, digest_of(jobs)
        while len(_workloads) > KEPT_WORKLOADS:
            _workloads.popitem(last=False)
    _workloads.move_to_end(key)
    return _workloads[key]


def _kept(path: Path, key: str) -> dict[str, Any] | None:
    """What an earlier run left; None where there is nothing, or nothing that is whole (a file cut short by a full disk)."""
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(document, dict) or document.get("key") != key:
        return None
    result, quantiles = document.get("result"), document.get("jct_quantiles_seconds")
    return (
        document if isinstance(result, dict) and isinstance(quantiles, list) and len(quantiles) == QUANTILES else None
    )


def _run_one(task: _Task, report: Report) -> Outcome:
    cell = task.cell
    jobs, digest = _workload(cell)
    key = run_key(cell.settings, cell.workload.name, digest, task.code + outside_code(cell.settings.policy))
    path = task.folder / f"{key}.json"
    kept = _kept(path, key) if task.resume else None
    if kept is not None:
        return Outcome(cell, kept["result"], tuple(kept["jct_quantiles_seconds"]), reused=True)
    reported = time.monotonic()

    def progress(seconds: float, ended: int, count: int) -> None:
        nonlocal reported
        if time.monotonic() - reported >= REPORT_SECONDS:
            reported = time.monotonic()
            report((seconds, ended, count))

    result = simulate(jobs, cell.settings, trace=cell.workload.name, progress=progress)
    document = result_document(result)
    quantiles = np.percentile(list(result.completion_seconds.values()), range(QUANTILES)).round(3).tolist()
    write_whole(path, json.dumps({"key": key, "result": document, "jct_quantiles_seconds": quantiles}))
    return Outcome(cell, document, tuple(quantiles))
