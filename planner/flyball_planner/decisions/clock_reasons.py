"""Why a job has its clock and no higher one, found by asking of the next clock up what speaks against it."""

from __future__ import annotations

from collections.abc import Sequence

from flyball_planner.decisions.texts import joules_text, percent_text, watts_text
from flyball_planner.ledger.caps import Accounting
from flyball_planner.ledger.clocks import NO_GAIN
from flyball_planner.ledger.options import DRAW, LIMIT, Option
from flyball_planner.ledger.state import Candidate, PlanState
from flyball_planner.snapshot import Objective


class ClockReasons:
    """Says of a placed job's clock what kept it from the next one up.

    `joules_per_job_second` is the going price, `left_watts` what each cap, by index, has left under the plan.
    """

    def __init__(self, state: PlanState, joules_per_job_second: float, left_watts: Sequence[float]) -> None:
        self._state = state
        self._price = joules_per_job_second
        self._left = left_watts

    def of(self, candidate: Candidate, index: int) -> str:
        """Why a candidate has the clock at this position."""
        option = _placed(candidate)
        if candidate.job.observed:
            return self.observed(candidate, index, min(index, option.governed_index))
        if index < option.top_index:
            return self.held_down(candidate, index) or "a higher clock gains nothing"
        if index >= option.fastest_index and (
            index + 1 == len(option.curves.clocks_megahertz) or self._wants(candidate, index)
        ):
            return self._bounded(candidate, index)
        return self._chosen(candidate, index)

    def observed(self, candidate: Candidate, index: int, governed: int) -> str:
        """What a job that is only observed would have, and what that would come to by its model."""
        option = _placed(candidate)
        head = "it is only observed"
        if governed == index:
            return f"{head}, and governed it would have the same clock"
        joules, seconds = (
            values[option.row, governed] / values[option.row, index] - 1.0
            for values in (option.curves.joules, option.curves.seconds)
        )
        clock = option.curves.clocks_megahertz[governed]
        words = f"{percent_text(joules)} energy, {percent_text(seconds)} time by its model"
        return f"{head}; governed, it would run at {clock} MHz: {words}"

    def held_down(self, candidate: Candidate, index: int) -> str | None:
        """What keeps a candidate's clock below what it would have: its node, or a cap; None where neither does."""
        curves = _placed(candidate).curves
        if candidate.staying and curves.clocks_megahertz[index + 1] > candidate.clock_ceiling:
            of_several = len(candidate.present) > 1
            return f"{'one of its nodes' if of_several else 'its node'} cannot be made to go faster now"
        cap = self._tightest_cap(candidate, index)
        if cap is None:
            return None
        name = self._state.accounts[cap].constraint.name
        return f"cap {name} leaves {watts_text(self._left[cap])}" if self._left[cap] >= 0 else _cannot_be_held(name)

    def _tightest_cap(self, candidate: Candidate, index: int) -> int | None:
        """The cap over the candidate that would be shortest of watts one clock up; None where no cap is over it."""
        option = _placed(candidate)
        limit, draw = option.curves.limit_watts[option.row], option.curves.draw_watts[option.row]
        rise = {LIMIT: float(limit[index + 1] - limit[index]), DRAW: float(draw[index + 1] - draw[index])}
        spare = {cap: self._left[cap] for cap, _ in candidate.contribution}
        for pool, gpus in candidate.parts:
            for cap in spare.keys() & set(self._state.pools[pool].cap_indices):
                by_limits = self._state.accounts[cap].accounting is Accounting.LIMITS
                spare[cap] -= gpus * rise[LIMIT if by_limits else DRAW]
        return min(spare, key=lambda cap: (self._left[cap] >= 0, spare[cap]), default=None)

    def unheld(self, candidate: Candidate) -> str | None:
        """The cap over a placed candidate for which every limit is at its smallest, as it cannot be held otherwise."""
        caps = (cap for pool, _ in candidate.parts for cap in self._state.pools[pool].cap_indices)
        accounts = (self._state.accounts[cap] for cap in caps)
        unheld = (one.constraint.name for one in accounts if one.accounting is Accounting.DRAW_AT_MIN_LIMITS)
        return next(unheld, None)

    def _wants(self, candidate: Candidate, index: int) -> bool:
        """Whether a candidate's objective would take the next clock up, were it within its bounds."""
        option, job = _placed(candidate), candidate.job
        joules, seconds = (
            values[option.row, index : index + 2] for values in (option.curves.joules, option.curves.seconds)
        )
        saves, faster = joules[1] < joules[0], seconds[1] < seconds[0] * (1.0 - NO_GAIN)
        if job.throttled or _cheapest_in_time(candidate, option):
            return bool(saves)
        if job.objective is Objective.TIME or candidate.dated:
            return bool(faster)
        if job.objective is Objective.ENERGY:
            return bool(saves)
        return bool(joules[1] + self._price * seconds[1] < joules[0] + self._price * seconds[0])

    def _bounded(self, candidate: Candidate, index: int) -> str:
        """What forbids the clocks above the highest that a candidate may have, which is the one at this position."""
        option, job = _placed(candidate), candidate.job
        curves, above = option.curves, index + 1
        if above == len(curves.clocks_megahertz):
            return "the highest clock of its GPU"
        if job.clock_max_megahertz is not None and curves.clocks_megahertz[above] > job.clock_max_megahertz:
            return f"no higher clock is within its maxMegahertz of {job.clock_max_megahertz}"
        if curves.throttles[option.row, above]:
            most = min(self._state.pools[pool].gpu_model.max_power_limit_watts for pool, _ in candidate.parts)
            return f"a higher clock would need more than the {watts_text(most)} that its GPU may have at the most"
        unheld = self.unheld(candidate)
        if unheld is not None:
            return _cannot_be_held(unheld)
        # A bound below what a GPU can be limited to is passed over.
        least = max(self._state.pools[pool].gpu_model.min_power_limit_watts for pool, _ in candidate.parts)
        own = watts_text(max(job.power_limit_max_watts or 0.0, least))
        return f"a higher clock would need more than the {own} that its GPUs may have"

    def _chosen(self, candidate: Candidate, index: int) -> str:
        """Why a candidate's objective, its deadline or its budget asks for no more than the clock at this position."""
        option, job = _placed(candidate), candidate.job
        if job.throttled:
            return "the clock of least energy"
        if _cheapest_in_time(candidate, option):
            return "the clock of least energy that meets its deadline"
        if job.objective is Objective.ENERGY and not candidate.dated:
            return "the clock of least energy"
        if self._over_budget(candidate, index + 1) and self._wants(candidate, index):
            return "a higher clock would take more than its energy budget has left"
        if job.objective is Objective.TIME or candidate.dated:
            return "a higher clock gains nothing"
        return f"a higher clock would pass the going price of {joules_text(self._price)} a second"

    def _over_budget(self, candidate: Candidate, index: int) -> bool:
        option, job = _placed(candidate), candidate.job
        if job.remaining_energy_joules is None or job.remaining_iterations is None:
            return False
        return bool(job.remaining_iterations * option.curves.joules[option.row, index] > job.remaining_energy_joules)


def _placed(candidate: Candidate) -> Option:
    assert candidate.option is not None  # noqa: S101 - only placed candidates are asked about
    return candidate.option


def _cheapest_in_time(candidate: Candidate, option: Option) -> bool:
    return candidate.dated and candidate.job.objective is not Objective.TIME and option.meets_deadline


def _cannot_be_held(cap: str) -> str:
    return f"cap {cap} cannot be held, so every limit is at the floor"
