"""One sentence for each job's decision under a policy: what was chosen, what it got, and why that is not the same."""

from __future__ import annotations

from flyball_planner.decisions.explain import Explainer, fixed_size
from flyball_planner.decisions.texts import gpus_text
from flyball_planner.ledger.options import LOWEST
from flyball_planner.ledger.state import Candidate, PlanState
from flyball_planner.policies.on_nodes import Realised
from flyball_planner.snapshot import Admission


class ChoiceExplainer:
    """Says what the policy chose and what kept a job from it; `Explainer` gives the reasons that are GPUs and caps."""

    def __init__(self, state: PlanState, explainer: Explainer, realised: Realised) -> None:
        self._state = state
        self._explainer = explainer
        self._realised = realised

    def placed(self, candidate: Candidate, clock_index: int, nodes: int) -> str:
        """Why a job has the size and the clock that it has."""
        option = candidate.option
        assert option is not None  # noqa: S101 - only placed candidates are asked about
        clocks = option.curves.clocks_megahertz
        where = "" if nodes == 1 else f" on {nodes} nodes"
        head = f"{gpus_text(option.gpus)}{where} at {clocks[clock_index]} MHz"
        policy, choice = self._realised.policy, self._realised.choices.get(candidate.index)
        if choice is None:
            return f"{head}: it may not be changed now, and {policy} was not asked."
        if candidate.staying and not candidate.adjustable:
            size = fixed_size(candidate)
        elif option.gpus == choice.gpus:
            size = f"the size that {policy} chose"
        else:
            size = f"{policy} chose {gpus_text(choice.gpus)}, for which its nodes or caps have no room"
        return f"{head}: {size}; {self._clock(candidate, clock_index)}."

    def _clock(self, candidate: Candidate, index: int) -> str:
        option, choice = candidate.option, self._realised.choices[candidate.index]
        assert option is not None  # noqa: S101
        if candidate.job.observed:
            return self._explainer.clocks.observed(candidate, index, min(index, self._realised.top(candidate)))
        if index == choice.clock_index:
            return "the clock that it chose"
        chosen = f"it chose {option.curves.clocks_megahertz[choice.clock_index]} MHz"
        top = self._realised.top(candidate)
        if index > choice.clock_index:
            return f"{chosen}, and this is the lowest that the job may have"
        if index < top:
            held = self._explainer.clocks.held_down(candidate, index)
            return f"{chosen}, and {held or 'a higher clock gains nothing'}"
        if candidate.job.throttled:
            return f"{chosen}, and its energy budget is spent"
        return f"{chosen}, and this is the highest that the job may have"

    def waiting(self, candidate: Candidate) -> tuple[Admission, str]:
        """Why a job has nothing: the reason's code and the sentence."""
        never = self._explainer.impossible(candidate)
        if never is not None:
            return never
        policy = self._realised.policy
        if candidate.index in self._realised.paused:
            return Admission.PREEMPTED, f"Paused: {policy} gives its GPUs to other jobs for now."
        short = self._explainer.short_of_power(candidate, LOWEST)
        if short is not None:
            return Admission.WAITING_FOR_POWER, short
        free, gpus = self._explainer.free_gpus(candidate), gpus_text(candidate.ladder[0])
        if candidate.index in self._realised.choices or free < candidate.ladder[0]:
            return (
                Admission.WAITING_FOR_GPUS,
                f"Needs {gpus} in whole cells of nodes that it may use; {free} are free.",
            )
        return Admission.WAITING_FOR_GPUS, f"Needs {gpus}; {free} are free, and {policy} does not give it any yet."
