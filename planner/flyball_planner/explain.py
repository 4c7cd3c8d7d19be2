"""One sentence for each decision, with the figures that made it."""

from __future__ import annotations

from collections.abc import Sequence

from flyball_planner.allocation_ledger import Claim, Ledger
from flyball_planner.allocation_options import ADMISSION, BASE
from flyball_planner.allocation_steps import Stepper
from flyball_planner.cluster import Admission, Objective


class Explainer:
    """Says why, from the ledger as the plan leaves it. `left_watts`: what each cap (by index) has left under the plan."""

    def __init__(self, ledger: Ledger, stepper: Stepper, left_watts: Sequence[float]) -> None:
        self._ledger = ledger
        self._stepper = stepper
        self._left = left_watts

    def placed(self, claim: Claim, clock_index: int, nodes: int) -> str:
        """Why a job has the size and the clock that it has."""
        option = claim.option
        assert option is not None  # noqa: S101 - only placed claims are asked about
        clock = option.curves.clocks_megahertz[clock_index]
        where = "" if nodes == 1 else f" on {nodes} nodes"
        return (
            f"{gpus_text(option.gpus)}{where} at {clock} MHz: {self._size(claim)}; {self._clock(claim, clock_index)}."
        )

    def _size(self, claim: Claim) -> str:
        option, job = claim.option, claim.job
        assert option is not None  # noqa: S101
        larger = next((gpus for gpus in claim.ladder if gpus > option.gpus), None)
        if job.throttled:
            return "throttled to its smallest size, its energy budget is spent"
        if job.gpus_min == job.gpus_max:
            return "its only size"
        if larger is None:
            return "its largest size"
        if claim.staying and not claim.adjustable:
            return "its size may not change now"
        step = self._stepper.growth(claim)
        if step is not None:
            worth = "in time for its deadline" if step.rank[0] == 0 else _return(step.gain_seconds, step.joules)
            return f"{gpus_text(step.gpus)} would be {worth}, but {self._blocked(claim, step.gpus)}"
        return self._declined(claim, larger)

    def _declined(self, claim: Claim, larger: int) -> str:
        """Why a job does not want its next size."""
        now, more = claim.option, self._stepper.option(claim, larger)
        assert now is not None  # noqa: S101
        if more is None:
            return f"the caps' floor has no place for {gpus_text(larger)}"
        if claim.dated and now.meets_deadline and claim.job.objective is not Objective.TIME:
            return "the cheapest size that meets its deadline"
        if not more.within_budget:
            whole = joules_text(claim.remaining * more.joules)
            return f"{gpus_text(larger)} would take {whole}, more than its energy budget has left"
        gain = claim.remaining * (now.seconds - more.seconds)
        joules = claim.remaining * (more.joules - now.joules)
        if gain <= 0:
            return f"{gpus_text(larger)} would be no faster"
        if claim.staying and gain <= self._stepper.restart_seconds:
            return f"{gpus_text(larger)} would save {_seconds(gain)}, less than a restart costs"
        if claim.job.objective is Objective.ENERGY:
            return f"{gpus_text(larger)} would take {joules_text(joules)} more"
        price = joules_text(self._stepper.joules_per_job_second)
        return f"{gpus_text(larger)} would cost {joules_text(joules / gain)} for a second saved, the going price is {price}"

    def _blocked(self, claim: Claim, gpus: int) -> str:
        """What keeps a job from a size that it wants: the GPUs that are free, or the cap that has least left."""
        ledger = self._ledger
        before = claim.contribution
        standing = ledger.leave(claim)
        try:
            tightest: tuple[float, str] | None = None
            for pool in claim.pools:
                option = ledger.book.at(claim.index, pool, gpus)
                if option is None or not ledger.slots.fits(pool, *ledger.cells(pool, gpus, option), migrate=False):
                    continue
                for cap, watts in ledger.contribution(option, ((pool, gpus),)):
                    had = dict(before).get(cap, (0.0, 0.0, 0.0))[BASE]
                    if watts[BASE] > max(ledger.slack[BASE][cap], had, 0.0):
                        needs = watts[BASE] - had
                        name = ledger.accounts[cap].constraint.name
                        spare = max(0.0, ledger.slack[BASE][cap] - had)
                        text = f"cap {name} leaves {_watts(spare)} of the {_watts(needs)} that it takes"
                        if tightest is None or needs - spare > tightest[0]:
                            tightest = (needs - spare, text)
            return tightest[1] if tightest is not None else "no such block of GPUs is free"
        finally:
            ledger.go_back(claim, standing)

    def _clock(self, claim: Claim, index: int) -> str:
        option, job = claim.option, claim.job
        assert option is not None  # noqa: S101
        if index < option.top_index:
            return self.tightest_cap(claim) or "a higher clock gains nothing"
        if job.throttled:
            return "the clock of least energy"
        if claim.dated and job.objective is not Objective.TIME and option.meets_deadline:
            return "the clock of least energy that meets its deadline"
        if job.objective is Objective.TIME or (claim.dated and not option.meets_deadline):
            return "the highest clock that it may use"
        if job.objective is Objective.ENERGY:
            return "the clock of least energy"
        return (
            f"a higher clock would pass the going price of {joules_text(self._stepper.joules_per_job_second)} a second"
        )

    def tightest_cap(self, claim: Claim) -> str | None:
        """The cap over the job that has least left, and how much that is; None where no cap is over it."""
        held = [cap for cap, _ in claim.contribution]
        if not held:
            return None
        cap = min(held, key=lambda cap: self._left[cap])
        name = self._ledger.accounts[cap].constraint.name
        return f"cap {name} leaves {_watts(self._left[cap])}" if self._left[cap] >= 0 else _cannot_be_held(name)

    def waiting(self, claim: Claim) -> tuple[Admission, str]:
        """Why a job has nothing: the reason's code and the sentence."""
        job = claim.job
        never = self.impossible(claim)
        if never is not None:
            return never
        if claim.preempted_by is not None and job.current is not None:
            other = claim.preempted_by.job
            return Admission.PREEMPTED, f"Paused for {other.name}, priority {other.priority} over {job.priority}."
        short = self.short_of_power(claim, ADMISSION)
        if short is not None:
            return Admission.WAITING_FOR_POWER, short
        return (
            Admission.WAITING_FOR_GPUS,
            f"Needs {gpus_text(claim.ladder[0])} in whole cells of nodes that it may use; "
            f"{self.free_gpus(claim)} are free.",
        )

    def impossible(self, claim: Claim) -> tuple[Admission, str] | None:
        """Why a job can have nothing, whatever else happens; None where it could."""
        job = claim.job
        if job.remaining_energy_joules is not None and job.remaining_energy_joules <= 0 and not job.throttled:
            return Admission.WAITING_FOR_BUDGET, "Its energy budget is spent."
        if claim.ladder:
            return None
        return Admission.WAITING_FOR_GPUS, (
            f"No size from {job.gpus_min} to {gpus_text(job.gpus_max)} splits a batch of {job.global_batch_size} into "
            f"what one GPU can take ({'any' if job.max_local_batch_size is None else job.max_local_batch_size})."
        )

    def short_of_power(self, claim: Claim, clock: int) -> str | None:
        """Which cap keeps a job from its smallest size at one of the ledger's clocks; None where GPUs do, or nothing."""
        gpus = claim.ladder[0]
        short: tuple[float, str] | None = None
        for pool in claim.pools:
            option = self._ledger.book.at(claim.index, pool, gpus)
            if option is None:
                caps = self._ledger.pools[pool].cap_indices
                names = ", ".join(self._ledger.accounts[cap].constraint.name for cap in caps)
                short = short or (0.0, f"The caps over its nodes ({names}) cannot be held, so nothing starts there.")
                continue
            if not self._ledger.slots.fits(pool, *self._ledger.cells(pool, gpus, option), migrate=True):
                continue
            for cap, watts in self._ledger.contribution(option, ((pool, gpus),)):
                spare = max(self._ledger.slack[clock][cap], 0.0)
                if watts[clock] > spare:
                    account = self._ledger.accounts[cap]
                    text = (
                        f"Needs {_watts(watts[clock])} more for {gpus_text(gpus)}; cap {account.constraint.name} has "
                        f"{_watts(spare)} of {_watts(account.constraint.budget_watts)} left."
                    )
                    if not account.feasible:
                        floor = f"{_watts(account.floor_watts)} with everything paused"
                        text = f"Cap {account.constraint.name} cannot be held ({floor}), so nothing starts under it."
                    if short is None or watts[clock] - spare < short[0]:
                        short = (watts[clock] - spare, text)
        return None if short is None else short[1]

    def free_gpus(self, claim: Claim) -> int:
        """How many GPUs are free on the nodes that a job may use."""
        rooms = (self._ledger.slots.free_room[pool] for pool in claim.pools)
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
    return f"{_seconds(seconds)} sooner, {seconds / (joules / 1e6):.3g} s for a MJ"


def _watts(watts: float) -> str:
    return f"{watts / 1000:.2f} kW" if abs(watts) >= 1000 else f"{watts:.0f} W"


def joules_text(joules: float) -> str:
    for unit, size in (("GJ", 1e9), ("MJ", 1e6), ("kJ", 1e3)):
        if abs(joules) >= size:
            return f"{joules / size:.3g} {unit}"
    return f"{joules:.3g} J"


def _seconds(seconds: float) -> str:
    if seconds >= 2 * 3600:
        return f"{seconds / 3600:.3g} h"
    return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:.0f} s"
