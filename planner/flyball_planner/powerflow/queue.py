"""The queue of the jobs that wait: who comes next, and when each would start if all goes on as planned.

The finished plan is played forward with the planner's own tests for room and watts: running jobs end when their models say,
and at each end the waiting jobs are tried in the order in which a plan would. What grows or shrinks in between, jobs and
nodes that come, and caps that change are in no forecast; the next plan makes the next one. It is bounded: of one shape
(sizes and pools) only the first is tried, and after so many tries nothing more is said.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from flyball_planner.ledger.state import Candidate
from flyball_planner.ledger.workspace import Workspace
from flyball_planner.powerflow.room import fits_as_it_is, waiting_in_order
from flyball_planner.snapshot import ExpectedStart, Queue

# Together a few per cent of the plan that they follow, whose time grows with its jobs.
FEWEST_TRIES, MOST_TRIES, JOBS_PER_TRY = 40, 400, 16
# What ends later than this is not reckoned with.
HORIZON_SECONDS = 366 * 86400.0
# Jobs that were started together often end together: one plan sees all of that room, and who comes first has it.
SAME_MOMENT_SECONDS = 1e-3

Shape = tuple[tuple[int, ...], int]


def queue_of(workspace: Workspace, clocks: Mapping[int, int]) -> Queue:
    """The queue under a finished plan, whose clocks by candidate are `clocks`. The workspace's state is used up by it."""
    order = waiting_in_order(workspace.candidates, workspace.stepper)
    return queue_in_order(
        workspace, clocks, order, lambda candidate: fits_as_it_is(workspace.state, candidate, workspace.stepper)
    )


def queue_in_order(
    workspace: Workspace,
    clocks: Mapping[int, int],
    order: Sequence[Candidate],
    fits: Callable[[Candidate], bool],
    *,
    in_line: bool = False,
    unless: str = "",
) -> Queue:
    """The queue in which jobs wait in this `order`; `fits` enters one into the state where there is room for it, or not.

    `in_line`: who does not fit holds up those behind it. `unless` is added to what each start rests on.
    """
    if not order:
        return Queue()
    starts, unknown = _starts(workspace, order, _ends(workspace, clocks), fits, in_line=in_line)
    if unless:
        starts = tuple(start._replace(basis=start.basis + unless) for start in starts)
    return Queue(tuple(candidate.job.uid for candidate in order), starts, unknown)


def _ends(workspace: Workspace, clocks: Mapping[int, int]) -> list[tuple[float, int]]:
    """When the jobs that have GPUs end, as far as that is known, with their indices."""
    ends = []
    for candidate in workspace.candidates:
        option = candidate.option
        if option is not None and _has_an_end(candidate):
            seconds = float(option.curves.seconds[option.row, clocks[candidate.index]]) * candidate.remaining
            ends.append((seconds + (0.0 if candidate.staying else workspace.snapshot.restart_seconds), candidate.index))
    return [end for end in ends if end[0] <= HORIZON_SECONDS]


def _has_an_end(candidate: Candidate) -> bool:
    """Whether the job's length is given and not passed: the remaining iterations of one that is passed count as one."""
    remaining = candidate.job.remaining_iterations
    return remaining is not None and remaining > 1.0


def _starts(
    workspace: Workspace,
    order: Sequence[Candidate],
    ends: list[tuple[float, int]],
    fits: Callable[[Candidate], bool],
    *,
    in_line: bool,
) -> tuple[tuple[ExpectedStart, ...], str]:
    """The starts that can be foreseen, in their order, and why no others can."""
    state, restart_seconds = workspace.state, workspace.snapshot.restart_seconds
    lines: dict[Shape, deque[tuple[int, Candidate]]] = {}
    for rank, candidate in enumerate(order):
        lines.setdefault((candidate.pools, candidate.ladder[0]), deque()).append((rank, candidate))
    most = max(FEWEST_TRIES, min(MOST_TRIES, len(workspace.candidates) // JOBS_PER_TRY))
    endless = sum(candidate.option is not None for candidate in workspace.candidates) - len(ends)
    starts: list[ExpectedStart] = []
    heapify(ends)
    ended = tries = 0
    while ends and lines:
        moment = ends[0][0]
        while ends and ends[0][0] <= moment + SAME_MOMENT_SECONDS:
            seconds, index = heappop(ends)
            last = workspace.candidates[index]
            state.leave(last)
            ended += 1
        heads = [(line[0][0], shape) for shape, line in lines.items()]
        heapify(heads)
        held_up: set[int] = set()  # the pools that somebody waits for who may not be passed
        while heads:
            _, shape = heappop(heads)
            pools, gpus = shape
            if held_up.intersection(pools):
                continue
            if sum(max(0, state.slots.open_room[pool][0]) for pool in pools) < gpus:
                held_up.update(pools if in_line else ())
                continue
            line = lines[shape]
            candidate = line[0][1]
            tries += 1
            if tries > most:
                return tuple(starts), f"only the next {len(starts)} starts are reckoned with"
            if not fits(candidate):
                held_up.update(pools if in_line else ())
                continue
            line.popleft()
            starts.append(ExpectedStart(candidate.job.uid, seconds, _basis(last, ended)))
            if candidate.option is not None and _has_an_end(candidate):
                end = seconds + restart_seconds + candidate.remaining * candidate.option.seconds
                if end <= HORIZON_SECONDS:
                    heappush(ends, (end, candidate.index))
                else:
                    endless += 1
            else:
                endless += 1
            if line:
                heappush(heads, (line[0][0], shape))
            else:
                del lines[shape]
    return tuple(starts), _why_no_more(endless)


def _why_no_more(endless: int) -> str:
    """Why no other start can be foreseen once all ends are; of so many jobs with GPUs none is known."""
    if not endless:
        return "there would be no room for it when all jobs with GPUs have ended: it needs more GPUs or watts"
    jobs = "1 job with GPUs has" if endless == 1 else f"{endless} jobs with GPUs have"
    return f"{jobs} no end that is known (spec.training.iterations, or too far away)"


def _basis(last: Candidate, ended: int) -> str:
    """What a start waits for."""
    if ended == 1:
        return f"when {last.job.name} has ended"
    return f"when {ended} jobs have ended, the last of them {last.job.name}"
