"""Which simulations a comparison is made of: every policy at each value of its own knob, under every seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flyball_planner.models.gpu import gpu_model_for
from flyball_planner.policies.view import Knob

from flyball_simulator.experiments.matrix import Cell
from flyball_simulator.knowledge import decision_clocks, nearest_clock
from flyball_simulator.outside_policies import policy_of
from flyball_simulator.settings import SimulationSettings
from flyball_simulator.workloads.source import WorkloadSource

Sweeps = Mapping[Knob, Sequence[float | None]]

FIELDS = {Knob.CLOCK: "clock_megahertz", Knob.POWER_LIMIT: "power_limit_fraction", Knob.PRICE: "price"}
DEFAULT_SWEEPS: Sweeps = {
    Knob.PRICE: (0.0, 0.00003, 0.0001, 0.0003, 0.001, 0.002),
    Knob.POWER_LIMIT: (None, 0.4, 0.3, 0.2, 0.15),
    Knob.CLOCK: (1410, 1230, 1080, 930),
}
"""What a comparison at equal energy sweeps, where nothing else is asked: None is no limit."""


def default_sweeps(policies: Sequence[str]) -> Sweeps:
    """DEFAULT_SWEEPS of the knobs that these policies have."""
    knobs = {policy_of(name).traits.knob for name in policies}
    return {knob: values for knob, values in DEFAULT_SWEEPS.items() if knob in knobs}


def parse_sweeps(texts: Sequence[str]) -> Sweeps:
    """`clock=1410,1200` and the like; `none` for no sweep. Raises ValueError for what is not one."""
    if list(texts) == ["none"]:
        return {}
    sweeps: dict[Knob, Sequence[float | None]] = {}
    known = ", ".join(FIELDS)
    for text in texts:
        name, equals, values = text.partition("=")
        knob = next((knob for knob in FIELDS if knob == name.strip().replace("-", "_")), None)
        if knob is None or not equals:
            raise ValueError(f"sweep {text!r} is not KNOB=VALUE,VALUE,... with a knob of {known}")
        try:
            found = tuple(float(value) for value in values.split(",") if value.strip())
        except ValueError:
            raise ValueError(f"sweep {text!r}: {values!r} are not numbers with commas between them") from None
        if not found:
            raise ValueError(f"sweep {text!r} has no value")
        if knob in sweeps:
            raise ValueError(f"{knob} is swept twice; put its values into one sweep")
        sweeps[knob] = tuple(dict.fromkeys(found))
    return sweeps


def cells_of(
    policies: Sequence[str],
    sweeps: Sweeps,
    seeds: Sequence[int],
    base: SimulationSettings,
    source: WorkloadSource,
    empty_nodes_off: Sequence[bool] = (False,),
) -> list[Cell]:
    """The matrix, seed by seed. A policy whose knob is not swept runs at the base settings alone.

    With both values of `empty_nodes_off` each policy makes two curves, the second labelled "..., nodes off". Raises
    ValueError for an unknown policy, a policy named twice, a value out of its range, and a sweep that no policy listens to.
    """
    repeated = {name for name in policies if policies.count(name) > 1}
    if repeated:
        raise ValueError(f"policy {', '.join(sorted(repeated))} is named more than once")
    knobs = {name: policy_of(name).traits.knob for name in policies}
    gpu = gpu_model_for(base.gpu_product)
    for clock in sweeps.get(Knob.CLOCK, ()):
        if gpu is not None and clock is not None:
            nearest_clock(decision_clocks(gpu), round(clock))
    for knob in sweeps:
        if knob not in knobs.values():
            listening = ", ".join(f"{name}: {of}" for name, of in knobs.items())
            raise ValueError(f"no policy has the knob {knob} ({listening})")
    cells = []
    for seed in seeds:
        for off in empty_nodes_off:
            for name in policies:
                knob = knobs[name]
                common = replace(base, policy=name, seed=seed, power_off_empty_nodes=off)
                label = f"{name}, nodes off" if off and len(empty_nodes_off) > 1 else name
                for value in sweeps.get(knob, (None,)):
                    swept: tuple[tuple[str, float], ...] = ()
                    settings = common
                    if value is not None:
                        change: dict[str, Any] = {FIELDS[knob]: round(value) if knob is Knob.CLOCK else value}
                        settings = replace(common, **change)
                        swept = ((str(knob), value),)
                    cells.append(Cell(settings, replace(source, seed=seed), swept, label))
    return cells
