"""One sentence for each decision, with the figures that made it."""

from __future__ import annotations

from collections.abc import Sequence

from flyball_planner.decisions.clock_reasons import ClockReasons
from flyball_planner.decisions.texts import gpus_text, joules_text, seconds_text, watts_text
from flyball_planner.ledger.options import ADMISSION, BASE
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
        self.clocks = ClockReasons(state, stepper.joules_per_job_second, left_watts)

    def placed(self, candidate: Candidate, clock_index: int, nodes: int) -> str:
        """Why a job has the size and the clock that it has."""
        option = candidate.option
        assert option is not None  # noqa: S101 - only placed candidates are asked about
        clock = option.curves.clocks_megahertz[clock_index]
        where = "" if nodes == 1 else f" on {nodes} nodes"
        size, why = self._size(candidate), self.clocks.of(candidate, clock_index)
        return f"{gpus_text(option.gpus)}{where} at {clock} MHz: {size}; {why}."

    def _size(self, candidate: Candidate) -> str:
        option, job = candidate.option, candidate.job
        assert option is not None  # noqa: S101
        larger = next((gpus for gpus in candidate.ladder if gpus > option.gpus), None)
        if job.throttled:
            return "throttled to its smallest size, its energy budget is spent"
        if larger is None and job.bounded_by:
            return f"all that {job.bounded_by} leaves it"
        if job.gpus_min == job.gpus_max:
            return "its only size"
        if larger is None:
            return "its largest size"
        if candidate.staying and not candidate.adjustable:
            return fixed_size(candidate)
        step = self._stepper.growth(candidate)
        if step is not None:
            worth = "in time for its deadline" if step.rank[0] == 0 else _return(step.gain_seconds, step.joules)
            return f"{gpus_text(step.gpus)} would be {worth}, but {self._blocked(candidate, step.gpus)}"
        return self._declined(candidate, larger)

    def _declined(self, candidate: Candidate, larger: int) -> str:
        """Why a job does not want its next size."""
        now, more = candidate.option, self._stepper.option(candidate, larger)
        assert now is not None  # noqa: S101
        floor = self.clocks.unheld(candidate)
        if more is None:
            return f"{gpus_text(larger)} would not run at the floor of cap {floor}, which cannot be held"
        if candidate.dated and now.meets_deadline and candidate.job.objective is not Objective.TIME:
            return "the cheapest size that meets its deadline"
        if not more.within_budget:
            whole = joules_text(candidate.remaining * more.joules)
            return f"{gpus_text(larger)} would take {whole}, more than its energy budget has left"
        gain = candidate.remaining * (now.seconds - more.seconds)
        joules = candidate.remaining * (more.joules - now.joules)
        step = (
            gpus_text(larger)
            if floor is None
            else f"at the floor of cap {floor}, which cannot be held, {gpus_text(larger)}"
        )
        if gain <= 0:
            return f"{step} would be no faster"
        if candidate.staying and gain <= self._stepper.restart_seconds:
            return f"{step} would save {seconds_text(gain)}, less than a restart costs"
        if candidate.job.objective is Objective.ENERGY:
            return f"{step} would take {joules_text(joules)} more"
        price = joules_text(self._stepper.joules_per_job_second)
        full = self._full_cap(candidate)
        also = "" if full is None or floor is not None else f", and cap {full} has no watts for more"
        return f"{step} would cost {joules_text(joules / gain)} for a second saved, the going price is {price}{also}"

    def _full_cap(self, candidate: Candidate) -> str | None:
        """A cap over the job that the base clocks of all jobs under it use up; None: each leaves something."""
        full = (cap for cap, _ in candidate.contribution if self._state.slack[BASE][cap] <= 0)
        return next((self._state.accounts[cap].constraint.name for cap in full), None)

    def _blocked(self, candidate: Candidate, gpus: int) -> str:
        """What keeps a job from a size that it wants: the GPUs that are free, or the cap that has least left."""
        shortages = self._state.what_if(candidate, gpus)
        if not shortages:
            return "no such block of GPUs is free"
        tightest = max(shortages, key=lambda shortage: shortage.needs_watts - shortage.spare_watts)
        name = self._state.accounts[tightest.cap].constraint.name
        spare, needs = watts_text(tightest.spare_watts), watts_text(tightest.needs_watts)
        return f"cap {name} leaves {spare} of the {needs} that it takes"

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
            f"{self.free_gpus(candidate)} are free.{f' {job.passed_over}' if job.passed_over else ''}",
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
        for pool in self._state.unlike(candidate):
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
                        f"Needs {watts_text(watts[clock])} more for {gpus_text(gpus)}; cap {account.constraint.name} has "
                        f"{watts_text(spare)} of {watts_text(account.constraint.budget_watts)} left."
                    )
                    if not account.feasible:
                        leaves = watts_text(account.constraint.budget_watts)
                        least = f"{watts_text(account.committed_at_min_watts)} with everything paused"
                        text = (
                            f"Cap {account.constraint.name} cannot be held (it leaves GPUs {leaves}, and they count with "
                            f"{least}), so nothing starts under it."
                        )
                    if short is None or watts[clock] - spare < short[0]:
                        short = (watts[clock] - spare, text)
        return None if short is None else short[1]

    def free_gpus(self, candidate: Candidate) -> int:
        """How many GPUs are free on the nodes that a job may use."""
        rooms = (self._state.slots.free_room[pool] for pool in candidate.pools)
        return sum(max(0, room[0]) for room in rooms if room)


def fixed_size(candidate: Candidate) -> str:
    """Why a job that is not to be resized now is not."""
    when = "while not all of its nodes answer" if candidate.job.resizable else candidate.job.size_fixed
    return f"its size may not change {when}"


def late(nearest_seconds: float, deadline_seconds: float) -> str:
    """What is added to the sentence of a job that cannot meet its deadline."""
    deadline, nearest = seconds_text(max(0.0, deadline_seconds)), seconds_text(nearest_seconds)
    return f" Its deadline is in {deadline}; it can be done in {nearest}."


def _return(seconds: float, joules: float) -> str:
    if joules <= 0:
        return f"{seconds_text(seconds)} sooner at no energy"
    return f"{seconds_text(seconds)} sooner for {joules_text(joules)} more"
