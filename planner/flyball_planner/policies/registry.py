"""The policies by name: a policy is one module and one line here."""

from __future__ import annotations

from collections.abc import Callable

from flyball_planner.policies.baselines.afs import Afs
from flyball_planner.policies.baselines.first_come import FirstCome
from flyball_planner.policies.baselines.gandiva import Gandiva
from flyball_planner.policies.baselines.pollux import Pollux
from flyball_planner.policies.baselines.priced import Priced
from flyball_planner.policies.baselines.sia import Sia
from flyball_planner.policies.baselines.srtf import Srtf
from flyball_planner.policies.baselines.tiresias import Tiresias, TiresiasGittins
from flyball_planner.policies.baselines.zeus import Zeus
from flyball_planner.policies.powerflow_paper import PaperPowerFlow
from flyball_planner.policies.powerflow_strict import StrictPowerFlow
from flyball_planner.policies.price.policy import Price
from flyball_planner.policies.view import Policy

SUFFIXES: dict[str, Callable[[Policy], Policy]] = {Zeus.suffix: Zeus, Priced.suffix: Priced}  # who chooses the clocks

POLICIES: dict[str, Callable[[], Policy]] = {
    "powerflow-paper": PaperPowerFlow,
    "powerflow-strict": StrictPowerFlow,
    "price": Price,
    "tiresias": Tiresias,
    "tiresias-gittins": TiresiasGittins,
    "gandiva": Gandiva,
    "afs": Afs,
    "pollux": Pollux,
    "sia": Sia,
    "srtf": Srtf,
    "fifo": FirstCome,
}


def policy_names() -> tuple[str, ...]:
    """The policies there are; each whose knob is the clock can also have one of SUFFIXES appended."""
    return tuple(POLICIES)


def policy_named(name: str) -> Policy:
    """The policy of a name, for example `afs`, `afs+zeus` or `afs+priced`.

    Raises ValueError, listing the names, for an unknown one, and where a rule is to choose clocks for a policy that does.
    """
    base, rule = parted(name)
    if base not in POLICIES:
        raise ValueError(
            f"policy {base!r} is unknown; there is {', '.join(POLICIES)}, each alone or, where it chooses no clocks, with "
            f"{' or '.join(SUFFIXES)} at its end"
        )
    return rule(POLICIES[base]())


def parted(name: str) -> tuple[str, Callable[[Policy], Policy]]:
    """The name without its suffix, and what the suffix makes of the policy."""
    for suffix, rule in SUFFIXES.items():
        if name.endswith(suffix):
            return name.removesuffix(suffix), rule
    return name, lambda policy: policy
