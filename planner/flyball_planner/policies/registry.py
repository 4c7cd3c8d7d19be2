"""The policies by name: a policy is one module and one line here."""

from __future__ import annotations

from collections.abc import Callable

from flyball_planner.policies.baselines.afs import Afs
from flyball_planner.policies.baselines.first_come import FirstCome
from flyball_planner.policies.baselines.gandiva import Gandiva
from flyball_planner.policies.baselines.pollux import Pollux
from flyball_planner.policies.baselines.sia import Sia
from flyball_planner.policies.baselines.srtf import Srtf
from flyball_planner.policies.baselines.tiresias import Tiresias, TiresiasGittins
from flyball_planner.policies.baselines.zeus import Zeus
from flyball_planner.policies.powerflow_paper import PaperPowerFlow
from flyball_planner.policies.powerflow_strict import StrictPowerFlow
from flyball_planner.policies.price.policy import Price
from flyball_planner.policies.view import Knob, Policy

ZEUS_SUFFIX = "+zeus"

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
    """The policies there are; each whose knob is the clock can also have `+zeus` appended."""
    return tuple(POLICIES)


def policy_named(name: str) -> Policy:
    """The policy of a name, for example `afs` or `afs+zeus`.

    Raises ValueError, listing the names, for an unknown one, and where Zeus is to choose clocks for a policy that does.
    """
    base = name.removesuffix(ZEUS_SUFFIX)
    if base not in POLICIES:
        raise ValueError(f"policy {base!r} is unknown; there is {', '.join(POLICIES)}")
    policy = POLICIES[base]()
    if base == name:
        return policy
    if policy.traits.knob is not Knob.CLOCK:
        raise ValueError(f"policy {name!r}: {base} chooses its clocks itself, Zeus cannot")
    return Zeus(policy)
