"""PowerFlow as printed (section 5.2, Algorithm 1): GPUs by marginal return from nothing at every event, then clocks.

The printed slips are read as planner.md of the design has them: sizes are powers of two, the cluster's normalisers and the
iterations left cancel, so that the return of a step is (T_n - T_n') / (E_n' - E_n) per iteration; a step that gains no time
is none, one that gains time at no energy comes first, by the time gained; a job without GPUs comes before all, the
shortest remaining time first. The start clock is the one of fewest joules at each size. Idle GPUs are left out of the
power, and the limit is looked at only when a node's worth of GPUs has been given out and between clock steps, so that
the last step of each may pass it: `powerflow-strict` is the policy that never does.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import NamedTuple

from flyball_planner.policies.view import Choice, ClusterView, JobView, Knob, Traits

FIRST, FREE, PRICED = 0, 1, 2  # a job without GPUs; time at no energy; time at so many seconds per joule
Rank = tuple[int, float, float, str]


class _Step(NamedTuple):
    rank: Rank
    uid: str
    row: int  # the size position that the step leads to


class PaperPowerFlow:
    """Algorithm 1, from an empty cluster at every decision; a job that is being measured keeps what it has."""

    name = "powerflow-paper"
    traits = Traits(knob=Knob.POWER_LIMIT, elastic=True, repacks=True, measures=True, preempts=True)

    def decide(self, view: ClusterView) -> list[Choice]:
        jobs = {job.uid: job for job in view.jobs}
        limit = view.power_limit_watts
        rows = {job.uid: job.performance.position[job.gpus] for job in view.jobs if job.gpus and not job.resizable}
        clocks = {uid: jobs[uid].clock_index for uid in rows}
        watts = sum(jobs[uid].performance.watts_rows[row][clocks[uid]] for uid, row in rows.items())
        free = view.gpus - sum(jobs[uid].gpus for uid in rows)
        watts = _give_gpus(view, jobs, rows, clocks, free, watts)
        if limit is None:
            for uid in rows:
                clocks[uid] = len(view.clocks_megahertz) - 1
        else:
            _raise_clocks(jobs, rows, clocks, limit, watts)
        order = sorted(rows, key=lambda uid: jobs[uid].order)
        return [Choice(uid, jobs[uid].performance.sizes[rows[uid]], clocks[uid]) for uid in order]

    def precedence(self, view: ClusterView) -> list[str]:
        return [step.uid for step in sorted(map(_first_step, view.jobs))]


def _give_gpus(
    view: ClusterView,
    jobs: dict[str, JobView],
    rows: dict[str, int],
    clocks: dict[str, int],
    free: int,
    watts: float,
) -> float:
    """Lines 2 to 20: sizes into `rows` and start clocks into `clocks`; the watts that all of them draw."""
    limit = view.power_limit_watts
    heap = [_first_step(job) for job in view.jobs if job.uid not in rows]
    heapify(heap)
    while heap and free > 0:
        step = heappop(heap)
        job = jobs[step.uid]
        table = job.performance
        held = table.sizes[rows[step.uid]] if step.uid in rows else 0
        more = table.sizes[step.row] - held
        if more > free:
            continue
        if held:
            watts -= table.watts_rows[rows[step.uid]][clocks[step.uid]]
        rows[step.uid], clocks[step.uid] = step.row, table.efficient[step.row]
        watts += table.watts_rows[step.row][clocks[step.uid]]
        filled = (free - 1) // view.gpus_per_node != (free - more - 1) // view.gpus_per_node
        free -= more
        if limit is not None and filled and watts >= limit:
            break
        following = _growth(job, step.row)
        if following is not None:
            heappush(heap, following)
    return watts


def _first_step(job: JobView) -> _Step:
    table = job.performance
    seconds = job.remaining_iterations * table.seconds_rows[0][table.efficient[0]]
    return _Step((FIRST, seconds, job.submit_time_seconds, job.uid), job.uid, 0)


def _growth(job: JobView, row: int) -> _Step | None:
    """The step to the next size (equation 20); None where there is none or it gains no time."""
    table = job.performance
    if row + 1 == len(table.sizes):
        return None
    now, then = table.efficient[row], table.efficient[row + 1]
    gained = table.seconds_rows[row][now] - table.seconds_rows[row + 1][then]
    joules = table.joules_rows[row + 1][then] - table.joules_rows[row][now]
    return None if gained <= 0 else _Step(_rank(job, gained, joules), job.uid, row + 1)


def _rank(job: JobView, gained: float, joules: float) -> Rank:
    if joules <= 0:
        return (FREE, -gained, job.submit_time_seconds, job.uid)
    return (PRICED, -gained / joules, job.submit_time_seconds, job.uid)


def _raise_clocks(
    jobs: dict[str, JobView], rows: dict[str, int], clocks: dict[str, int], limit: float, watts: float
) -> None:
    """Lines 21 to 30: the clock step of the largest return (equation 21), as long as the power has not passed the limit."""
    heap: list[tuple[Rank, str]] = []
    for uid in rows:
        rank = _clock_rank(jobs[uid], rows[uid], clocks[uid])
        if rank is not None:
            heap.append((rank, uid))
    heapify(heap)
    while heap and watts <= limit:
        _, uid = heappop(heap)
        row = jobs[uid].performance.watts_rows[rows[uid]]
        watts += row[clocks[uid] + 1] - row[clocks[uid]]
        clocks[uid] += 1
        rank = _clock_rank(jobs[uid], rows[uid], clocks[uid])
        if rank is not None:
            heappush(heap, (rank, uid))


def _clock_rank(job: JobView, row: int, clock: int) -> Rank | None:
    seconds, joules = job.performance.seconds_rows[row], job.performance.joules_rows[row]
    if clock + 1 == len(seconds) or seconds[clock + 1] >= seconds[clock]:
        return None
    return _rank(job, seconds[clock] - seconds[clock + 1], joules[clock + 1] - joules[clock])
