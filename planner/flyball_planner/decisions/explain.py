"""One sentence for each decision, with the figures that made it."""

from __future__ import annotations

from collections.abc import Sequence

from flyball_planner.ledger.options import ADMISSION
from flyball_planner.ledger.returns import Stepper
from flyball_planner.ledger.state import Candidate, PlanState
from flyball_planner.snapshot import Admission, Objective


class Explainer:
    """Says why each job has what it has, from the state of a finished plan.

    `left_watts`: what each cap, by index, has left under the plan.
    """

    def __init__(self, state: PlanState, stepper: Stepper, left_watts: Sequence[float]) -> None:
        self._state = state
        self._stepper = stepper
        self._left = left_watts

    def placed(self, candidate: Candidate, clock_index: int, nodes: int) -> str:
        """Why a job has the size and the clock that it has."""
        option = candidate.option
        assert option is not None  # noqa: S101 - only placed candidates are asked about
        clock = option.curves.clocks_megahertz[clock_index]
        where = "" if nodes == 1 else f" on {nodes} nodes"
        size, why = self._size(candidate), self._clock(candidate, clock_index)
        return f"{gpus_text(option.gpus)}{where} at {clock} MHz: {size}; {why}."

    def _size(self, candidate: Candidate) -> str:
        option, job = candidate.option, candidate.job
        assert option is not None  # noqa: S101
        larger = next((gpus for gpus in candidate.ladder if gpus > option.gpus), None)
        if job.throttled:
            return "throttled to its smallest size, its energy budget is spent"
        if job.gpus_min == job.gpus_max:
            return "its only size"
        if larger is None:
            return "its largest size"
        if candidate.staying and not candidate.adjustable:
            return "its size may not change now"
        step = self._stepper.growth(candidate)
        if step is not None:
            worth = "in time for its deadline" if step.rank[0] == 0 else _return(step.gain_seconds, step.joules)
            return f"{gpus_text(step.gpus)} would be {worth}, but {self._blocked(candidate, step.gpus)}"
        return self._declined(candidate, larger)

    def _declined(self, candidate: Candidate, larger: int) -> str:
        """Why a job does not want its next size."""
        now, more = candidate.option, self._stepper.option(candidate, larger)
        assert now is not None  # noqa: S101
        if more is None:
            return f"the caps' floor has no place for {gpus_text(larger)}"
        if candidate.dated and now.meets_deadline and candidate.job.objective is not Objective.TIME:
            return "the cheapest size that meets its deadline"
        if not more.within_budget:
            whole = joules_text(candidate.remaining * more.joules)
            return f"{gpus_text(larger)} would take {whole}, more than its energy budget has left"
        gain = candidate.remaining * (now.seconds - more.seconds)
        joules = candidate.remaining * (more.joules - now.joules)
        if gain <= 0:
            return f"{gpus_text(larger)} would be no faster"
        if candidate.staying and gain <= self._stepper.restart_seconds:
            return f"{gpus_text(larger)} would save {_seconds(gain)}, less than a restart costs"
        if candidate.job.objective is Objective.ENERGY:
            return f"{gpus_text(larger)} would take {joules_text(joules)} more"
        price = joules_text(self._stepper.joules_per_job_second)
        return f"{gpus_text(larger)} would cost {joules_text(joules / gain)} for a second saved, the going price is {price}"

    def _blocked(self, candidate: Candidate, gpus: int) -> str:
        """What keeps a job from a size that it wants: the GPUs that are free, or the cap that has least left."""
        shortages = self._state.what_if(candidate, gpus)
        if not shortages:
            return "no such block of GPUs is free"
        tightest = max(shortages, key=lambda shortage: shortage.needs_watts - shortage.spare_watts)
        name = self._state.accounts[tightest.cap].constraint.name
        return f"cap {name} leaves {_watts(tightest.spare_watts)} of the {_watts(tightest.needs_watts)} that it takes"

    def _clock(self, candidate: Candidate, index: int) -> str:
        option, job = candidate.option, candidate.job
        assert option is not None  # noqa: S101
        if job.observed:
            return self.observed(candidate, index, min(index, option.governed_index))
        if index < option.top_index:
            return self.tightest_cap(candidate) or "a higher clock gains nothing"
        if job.throttled:
            return "the clock of least energy"
        if candidate.dated and job.objective is not Objective.TIME and option.meets_deadline:
            return "the clock of least energy that meets its deadline"
        if job.objective is Objective.TIME or (candidate.dated and not option.meets_deadline):
            return "the highest clock that it may use"
        if job.objective is Objective.ENERGY:
            return "the clock of least energy"
        return (
            f"a higher clock would pass the going price of {joules_text(self._stepper.joules_per_job_second)} a second"
        )

    def observed(self, candidate: Candidate, index: int, governed: int) -> str:
        """What a job that is only observed would have, and what that would come to by its model."""
        option = candidate.option
        assert option is not None  # noqa: S101
        head = "it is only observed"
        if governed == index:
            return f"{head}, and governed it would have the same clock"
        joules, seconds = (
            values[option.row, governed] / values[option.row, index] - 1.0
            for values in (option.curves.joules, option.curves.seconds)
        )
        clock = option.curves.clocks_megahertz[governed]
        words = f"{_percent(joules)} energy, {_percent(seconds)} time by its model"
        return f"{head}; governed, it would run at {clock} MHz: {words}"

    def tightest_cap(self, candidate: Candidate) -> str | None:
        """The cap over the job that has least left, and how much that is; None where no cap is over it."""
        held = [cap for cap, _ in candidate.contribution]
        if not held:
            return None
        cap = min(held, key=lambda cap: self._left[cap])
        name = self._state.accounts[cap].constraint.name
        return f"cap {name} leaves {_watts(self._left[cap])}" if self._left[cap] >= 0 else _cannot_be_held(name)

    def waiting(self, candidate: Candidate) -> tuple[Admission, str]:
        """Why a job has nothing: the reason's code and the sentence."""
        job = candidate.job
        never = self.impossible(candidate)
        if never is not None:
            return never
        if candidate.preempted_by is not None and job.current is not None:
            other = candidate.preempted_by.job
            if other.priority == job.priority:
                shares = f"{job.tenant} keeps at least as many GPUs as {other.tenant} then has"
                return Admission.PREEMPTED, f"Paused for {other.name}, for a fair share: {shares}."
            return Admission.PREEMPTED, f"Paused for {other.name}, priority {other.priority} over {job.priority}."
        short = self.short_of_power(candidate, ADMISSION)
        if short is not None:
            return Admission.WAITING_FOR_POWER, short
        return (
            Admission.WAITING_FOR_GPUS,
            f"Needs {gpus_text(candidate.ladder[0])} in whole cells of nodes that it may use; "
            f"{self.free_gpus(candidate)} are free.",
        )

    def impossible(self, candidate: Candidate) -> tuple[Admission, str] | None:
        """Why a job can have nothing, whatever else happens; None where it could."""
        job = candidate.job
        if job.remaining_energy_joules is not None and job.remaining_energy_joules <= 0 and not job.throttled:
            return Admission.WAITING_FOR_BUDGET, "Its energy budget is spent."
        if candidate.ladder:
            return None
        return Admission.WAITING_FOR_GPUS, (
            f"No size from {job.gpus_min} to {gpus_text(job.gpus_max)} splits a batch of {job.global_batch_size} into "
            f"what one GPU can take ({'any' if job.max_local_batch_size is None else job.max_local_batch_size})."
        )

    def short_of_power(self, candidate: Candidate, clock: int) -> str | None:
        """Which cap keeps a job from its smallest size at one of the accounted clocks; None where GPUs do, or nothing."""
        gpus = candidate.ladder[0]
        short: tuple[float, str] | None = None
        for pool in candidate.pools:
            option = self._state.book.at(candidate.index, pool, gpus)
            if option is None:
                caps = self._state.pools[pool].cap_indices
                names = ", ".join(self._state.accounts[cap].constraint.name for cap in caps)
                short = short or (0.0, f"The caps over its nodes ({names}) cannot be held, so nothing starts there.")
                continue
            if not self._state.slots.fits(pool, *self._state.cells(pool, gpus, option), migrate=True):
                continue
            for cap, watts in self._state.contribution(option, ((pool, gpus),)):
                spare = max(self._state.slack[clock][cap], 0.0)
                if watts[clock] > spare:
                    account = self._state.accounts[cap]
                    text = (
                        f"Needs {_watts(watts[clock])} more for {gpus_text(gpus)}; cap {account.constraint.name} has "
                        f"{_watts(spare)} of {_watts(account.constraint.budget_watts)} left."
                    )
                    if not account.feasible:
                        least = f"{_watts(account.committed_at_min_watts)} with everything paused"
                        text = f"Cap {account.constraint.name} cannot be held ({least}), so nothing starts under it."
                    if short is None or watts[clock] - spare < short[0]:
                        short = (watts[clock] - spare, text)
        return None if short is None else short[1]

    def free_gpus(self, candidate: Candidate) -> int:
        """How many GPUs are free on the nodes that a job may use."""
        rooms = (self._state.slots.free_room[pool] for pool in candidate.pools)
        return sum(max(0, room[0]) for room in rooms if room)


def _cannot_be_held(cap: str) -> str:
    return f"cap {cap} cannot be held, so every limit is at the floor"


def late(nearest_seconds: float, deadline_seconds: float) -> str:
    """What is added to the sentence of a job that cannot meet its deadline."""
    return f" Its deadline is in {_seconds(max(0.0, deadline_seconds))}; it can be done in {_seconds(nearest_seconds)}."


def gpus_text(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _return(seconds: float, joules: float) -> str:
    if joules <= 0:
        return f"{_seconds(seconds)} sooner at no energy"
    return f"{_seconds(seconds)} sooner for {joules_text(joules)} more"


def _watts(watts: float) -> str:
    return f"{watts / 1000:.2f} kW" if abs(watts) >= 1000 else f"{round(watts)} W"


def joules_text(joules: float) -> str:
    for unit, size in (("GJ", 1e9), ("MJ", 1e6), ("kJ", 1e3)):
        if abs(joules) >= size:
            return f"{_three_digits(joules / size)} {unit}"
    return f"{_three_digits(joules)} J"


def _seconds(seconds: float) -> str:
    if seconds >= 2 * 3600:
        return f"{_three_digits(seconds / 3600)} h"
    return f"{_three_digits(seconds)} s"


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %"


def _three_digits(value: float) -> str:
    """Three digits, or all before the point: never an exponent, in which people do not read seconds."""
    return f"{value:.3g}" if 1e-3 <= abs(value) < 999.5 else f"{value:.0f}"
