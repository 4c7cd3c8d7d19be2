"""What is simulated: which policies at which settings, on which traces, loads and seeds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from flyball_planner.models.gpu import gpu_model_for
from flyball_planner.policies.registry import policy_named
from flyball_planner.policies.view import Knob
from flyball_planner.snapshot import Objective
from flyball_simulator.experiments.code_version import code_version
from flyball_simulator.experiments.matrix import Cell, Outcome
from flyball_simulator.experiments.sweeps import DEFAULT_SWEEPS
from flyball_simulator.knowledge import decision_clocks
from flyball_simulator.measured.oracle import Oracle
from flyball_simulator.settings import REFERENCE_GPU, CapStep, Knowledge, SimulationSettings
from flyball_simulator.workloads.source import WorkloadSource, digest_of, gpus_for_load

from flyball_studies.evaluation import lower_bound
from flyball_studies.evaluation.lower_bound import BoundJob, Bounds

TRACES = ("pai", "philly", "itp")
LOADS = (0.8, 1.5)
MAIN = ("price", "powerflow-paper", "afs", "afs+priced")
OTHERS = (
    "tiresias",
    "tiresias-gittins",
    "gandiva",
    "pollux",
    "sia",
    "srtf",
    "fifo",
    "afs+zeus",
    "tiresias+zeus",
    "gandiva+zeus",
)
LEAD_CASES = (("itp-02", 0.8), ("itp-02", 1.5), ("philly", 0.8), ("itp", 1.5))
DEFAULT_CURVE = "powerflow-strict, Balanced"  # what the operator does unless told otherwise
CURVES: dict[str, tuple[str, Knob, dict[str, object]]] = {
    "price": ("price", Knob.PRICE, {}),
    "price, every job measured": ("price", Knob.PRICE, {"measure_every_job": True}),
    "price, told the truth, nothing restarts": (
        "price",
        Knob.PRICE,
        {
            "knowledge": Knowledge.IDEAL,
            "restart_scale": 0.0,
            "boot_seconds": 0.0,
            "boot_joules": 0.0,
            "planning_interval_seconds": 1.0,
        },
    ),
    "afs": ("afs", Knob.CLOCK, {}),
    "afs+priced": ("afs+priced", Knob.PRICE, {}),
    DEFAULT_CURVE: ("powerflow-strict", Knob.NONE, {"objective": Objective.BALANCED}),
    "gandiva": ("gandiva", Knob.CLOCK, {}),
}
LEAD_CURVES = tuple(curve for curve in CURVES if curve != "gandiva")
LEAD_SWEEPS: dict[Knob, tuple[float | None, ...]] = {
    Knob.PRICE: (0.0, 0.0001, 0.0003, 0.001, 0.004, 0.016),
    Knob.CLOCK: (1410, 1230, 1080, 930),
    Knob.NONE: (None,),
}
OTHERS_CLOCKS = (1410, 1110)
FIRST_SEED_ONLY = "powerflow-strict"  # as it is, and as the operator has it by default
STRICT_LIMITS = (None, 0.3)
U_CLOCKS = (1410, 1290, 1170, 1110, 1050, 990, 930, 810, 690)
STUDY_LOAD = 1.5  # of the robustness runs: where policies differ most
STUDIED = {"price": ("price", 0.0003), "powerflow-paper": ("power_limit", 0.4), "afs": ("clock", 1290.0)}
FIELDS = {"price": "price", "power_limit": "power_limit_fraction", "clock": "clock_megahertz"}


class Workloads:
    """The traces, and the cluster that each load gives them."""

    def __init__(self, data: str | None, kept: Path | None = None) -> None:
        """`kept`: a folder in which bounds that were found are found again."""
        self._data = data
        self._kept = kept
        self._gpus: dict[tuple[str, int, float], int] = {}

    def source(self, trace: str, seed: int) -> WorkloadSource:
        return WorkloadSource(trace, seed, self._data)

    def gpus(self, trace: str, seed: int, load: float) -> int:
        key = (trace, seed, load)
        if key not in self._gpus:
            jobs = self.source(trace, seed).trace_jobs()
            for each in {*LOADS, load}:
                self._gpus[trace, seed, each] = gpus_for_load(jobs, each, 8)
        return self._gpus[key]

    def bounds(self, trace: str, seed: int, load: float, study: str, *, nodes_off: bool = True) -> Bounds:
        """What no policy can pass on a trace and its cluster.

        Each study keeps what it finds for itself: in the last digits it depends on what was asked for before.
        """
        gpu = gpu_model_for(REFERENCE_GPU)
        assert gpu is not None  # noqa: S101 - the catalogue's reference
        gpus = self.gpus(trace, seed, load)
        oracle = Oracle(gpu, decision_clocks(gpu), 8)
        jobs = self.source(trace, seed).workload(SimulationSettings(policy="price", gpus=gpus))
        known = [
            BoundJob(
                job.submit_seconds, job.iterations, oracle.performance(job.model_class, job.global_batch_size, gpus)
            )
            for job in jobs
        ]
        sunk_watts, kept = 0.0 if nodes_off else gpu.idle_power_watts, None
        if self._kept is not None:
            ours = Path(lower_bound.__file__).read_bytes()
            identity = [study, digest_of(jobs), gpus, sunk_watts, code_version(), hashlib.sha256(ours).hexdigest()]
            name = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:24]
            kept = self._kept / "bounds" / f"{name}.json"
        return Bounds.of(known, gpus, sunk_gpu_watts=sunk_watts, kept=kept)

    def cell(
        self,
        trace: str,
        load: float,
        seed: int,
        policy: str,
        swept: tuple[str, float] | None,
        label: str = "",
        **more: object,
    ) -> Cell:
        settings = SimulationSettings(policy=policy, gpus=self.gpus(trace, seed, load), seed=seed)
        changes: dict[str, object] = {"power_off_empty_nodes": True, **more}
        if swept is not None:
            changes[FIELDS[swept[0]]] = round(swept[1]) if swept[0] == "clock" else swept[1]
        settings = replace(settings, **changes)  # type: ignore[arg-type]
        return Cell(settings, self.source(trace, seed), () if swept is None else (swept,), label or policy)


def main_policies(
    workloads: Workloads, trace: str, load: float, seeds: Sequence[int], *, nodes_off: bool = True
) -> list[Cell]:
    """Price, PowerFlow as printed, and AFS with one clock and with priced ones over their sweeps."""
    return [
        cell
        for policy in MAIN
        for seed in seeds
        for cell in _swept(
            workloads,
            trace,
            load,
            seed,
            policy,
            DEFAULT_SWEEPS[policy_named(policy).traits.knob],
            power_off_empty_nodes=nodes_off,
        )
    ]


def other_policies(
    workloads: Workloads, trace: str, load: float, seeds: Sequence[int], *, nodes_off: bool = True
) -> list[Cell]:
    """Everybody else."""
    cells = []
    for policy in OTHERS:
        values = OTHERS_CLOCKS if policy_named(policy).traits.knob is Knob.CLOCK else (None,)
        for seed in seeds:
            cells += _swept(workloads, trace, load, seed, policy, values, power_off_empty_nodes=nodes_off)
    for seed in seeds[:1]:  # a run of the operator's whole planner takes several times as long as another policy's
        cells += curves_of(workloads, trace, load, seed, (DEFAULT_CURVE,), LEAD_SWEEPS, power_off_empty_nodes=nodes_off)
        if load > 1.0 and nodes_off:
            cells += _swept(workloads, trace, load, seed, FIRST_SEED_ONLY, STRICT_LIMITS)
    return cells


def lead(workloads: Workloads, trace: str, load: float, seed: int) -> list[Cell]:
    """Price against AFS with one clock and with priced clocks, price measuring every job, and the operator's default."""
    return curves_of(workloads, trace, load, seed, LEAD_CURVES, LEAD_SWEEPS)


def curves_of(
    workloads: Workloads,
    trace: str,
    load: float,
    seed: int,
    curves: Sequence[str],
    sweeps: Mapping[Knob, Sequence[float | None]],
    **common: object,
) -> list[Cell]:
    """Some of CURVES over the sweeps of their knobs; `common` is set for all of them."""
    return [
        workloads.cell(
            trace, load, seed, policy, None if value is None else (str(knob), float(value)), curve, **{**common, **more}
        )
        for curve, (policy, knob, more) in ((curve, CURVES[curve]) for curve in curves)
        for value in sweeps[knob]
    ]


def u_shape(workloads: Workloads, seed: int) -> list[Cell]:
    """Energy against the cluster's clock."""
    return _swept(workloads, "pai", 0.8, seed, "tiresias", U_CLOCKS, power_off_empty_nodes=False)


def robustness(workloads: Workloads, seeds: Sequence[int]) -> list[Cell]:
    """One thing changed at a time; the label says which."""
    variants: list[tuple[str, dict[str, object]]] = [("as it is", {})]
    variants += [
        (f"models with an error of {error:.0%}", {"knowledge": Knowledge.NOISY, "model_error": error})
        for error in (0.0, 0.05, 0.1, 0.2)
    ]
    variants += [(f"restarts cost x{scale:g}", {"restart_scale": scale}) for scale in (0.0, 2.0, 4.0)]
    variants += [("nothing is run through the clocks", {"measure_clocks": False})]
    variants += [(f"priors wrong by {error:.0%}", {"prior_error": error}) for error in (0.2, 0.5)]
    return [
        workloads.cell("pai", STUDY_LOAD, seed, policy, swept, f"{policy}|{name}", **change)
        for name, change in variants
        for policy, swept in STUDIED.items()
        for seed in seeds
    ]


def capped(
    workloads: Workloads,
    seed: int,
    steps: Sequence[CapStep],
    day_ahead: Sequence[CapStep],
    carbon: Iterable[tuple[float, float]],
    price_signal: Iterable[tuple[float, float]],
) -> list[Cell]:
    """A cap stepped by hand, and one that follows the grid's carbon, hour by hour."""
    common: dict[str, object] = {"carbon_grams_per_kwh": tuple(carbon)}
    cells = []
    for schedule, name in ((tuple(steps), "stepped"), (tuple(day_ahead), "day-ahead")):
        under: dict[str, object] = {**common, "cap_steps": schedule[1:], "power_limit_fraction": schedule[0].fraction}
        cells += [
            workloads.cell("itp", 0.8, seed, "price", ("price", 0.0001), f"price|{name}", **under),
            workloads.cell("itp", 0.8, seed, "powerflow-strict", None, f"powerflow-strict|{name}", **under),
            workloads.cell("itp", 0.8, seed, "powerflow-paper", None, f"powerflow-paper|{name}", **under),
        ]
    cells += [
        workloads.cell("itp", 0.8, seed, "price", ("price", 0.0001), "price|none", **common),
        workloads.cell(
            "itp",
            0.8,
            seed,
            "price",
            ("price", 0.0001),
            "price, carbon moves it|none",
            price_signal=tuple(price_signal),
            **common,
        ),
        workloads.cell("itp", 0.8, seed, "afs", ("clock", 1290.0), "afs|none", **common),
    ]
    return cells


def of_common_seeds(outcomes: Sequence[Outcome]) -> tuple[list[Outcome], int]:
    """The runs of the seeds that every curve has been run with, and how many those are.

    A seed draws the jobs: the mean of one policy over five seeds and of another over one say nothing of the two. Who runs
    with the first seed only does not hold the others to it, and is left out where they have more.
    """
    seeds: dict[str, set[int]] = {}
    for outcome in outcomes:
        if outcome.result is not None:
            seeds.setdefault(outcome.cell.curve, set()).add(outcome.cell.settings.seed)
    counting = [found for curve, found in seeds.items() if not curve.startswith(FIRST_SEED_ONLY)]
    common = set.intersection(*counting) if counting else set()
    shown = [
        outcome
        for outcome in outcomes
        if outcome.cell.settings.seed in common and common <= seeds.get(outcome.cell.curve, set())
    ]
    return shown, len(common)


def _swept(
    workloads: Workloads,
    trace: str,
    load: float,
    seed: int,
    policy: str,
    values: Sequence[float | None],
    label: str = "",
    **more: object,
) -> list[Cell]:
    knob = str(policy_named(policy).traits.knob)
    return [
        workloads.cell(trace, load, seed, policy, None if value is None else (knob, float(value)), label, **more)
        for value in values
    ]
