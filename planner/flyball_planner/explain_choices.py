"""One sentence for each decision of a policy that was realised on nodes and under caps."""

from __future__ import annotations

from flyball_planner.allocation_ledger import Claim, Ledger
from flyball_planner.allocation_options import FLOOR
from flyball_planner.cluster import Admission
from flyball_planner.explain import Explainer, gpus_text
from flyball_planner.plan_choices import Realised


class ChoiceExplainer:
    """Says what the policy chose, and what kept a job from it; whatever concerns GPUs and caps, `Explainer` says."""

    def __init__(self, ledger: Ledger, explainer: Explainer, realised: Realised) -> None:
        self._ledger = ledger
        self._explainer = explainer
        self._realised = realised

    def placed(self, claim: Claim, clock_index: int, nodes: int) -> str:
        """Why a job has the size and the clock that it has."""
        option = claim.option
        assert option is not None  # noqa: S101 - only placed claims are asked about
        clocks = option.curves.clocks_megahertz
        where = "" if nodes == 1 else f" on {nodes} nodes"
        head = f"{gpus_text(option.gpus)}{where} at {clocks[clock_index]} MHz"
        policy, choice = self._realised.policy, self._realised.choices.get(claim.index)
        if choice is None:
            return f"{head}: it may not be changed now, and {policy} was not asked."
        if claim.staying and not claim.adjustable:
            size = "its size may not change now"
        elif option.gpus == choice.gpus:
            size = f"the size that {policy} chose"
        else:
            size = f"{policy} chose {gpus_text(choice.gpus)}, for which its nodes or caps have no room"
        return f"{head}: {size}; {self._clock(claim, clock_index)}."

    def _clock(self, claim: Claim, index: int) -> str:
        option, choice = claim.option, self._realised.choices[claim.index]
        assert option is not None  # noqa: S101
        if index == choice.clock_index:
            return "the clock that it chose"
        chosen = f"it chose {option.curves.clocks_megahertz[choice.clock_index]} MHz"
        top = self._realised.top(claim)
        if index > choice.clock_index:
            return f"{chosen}, and this is the lowest that the job may have"
        if index < top:
            held = self._explainer.tightest_cap(claim)
            return f"{chosen}, and {held}" if held is not None else f"{chosen}, and a node cannot be told to go faster"
        if claim.job.throttled:
            return f"{chosen}, and its energy budget is spent"
        return f"{chosen}, and this is the highest that the job may have"

    def waiting(self, claim: Claim) -> tuple[Admission, str]:
        """Why a job has nothing: the reason's code and the sentence."""
        never = self._explainer.impossible(claim)
        if never is not None:
            return never
        policy = self._realised.policy
        if claim.index in self._realised.paused:
            return Admission.PREEMPTED, f"Paused: {policy} gives its GPUs to other jobs for now."
        short = self._explainer.short_of_power(claim, FLOOR)
        if short is not None:
            return Admission.WAITING_FOR_POWER, short
        free, gpus = self._explainer.free_gpus(claim), gpus_text(claim.ladder[0])
        if claim.index in self._realised.choices or free < claim.ladder[0]:
            return (
                Admission.WAITING_FOR_GPUS,
                f"Needs {gpus} in whole cells of nodes that it may use; {free} are free.",
            )
        return Admission.WAITING_FOR_GPUS, f"Needs {gpus}; {free} are free, and {policy} does not give it any yet."
