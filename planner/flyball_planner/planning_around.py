"""A plan where planning fails with some of the jobs: it is made around these, and costs nobody else theirs.

A failure of planning is a mistake of ours, and one job with odd figures is likely to be what shows it. Nothing says which:
an exception has no job. So it is searched for by plans of fewer jobs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from flyball_planner.ledger.pools import idle_limit_watts
from flyball_planner.planner import DEFAULT_POLICY, plan
from flyball_planner.snapshot import (
    Admission,
    Allocation,
    ClusterSnapshot,
    JobDecision,
    JobState,
    NodeState,
    Plan,
    PlanningFailure,
)

# More are no matter of single jobs.
MOST_FAILURES = 8
# A sentence of an error is for people; what it quotes may be of any length.
MOST_CHARACTERS = 200

PlanMaker = Callable[[ClusterSnapshot, str], Plan]


def plan_around(
    snapshot: ClusterSnapshot,
    policy: str = DEFAULT_POLICY,
    make: PlanMaker = plan,
    may_go_on: Callable[[], bool] = lambda: True,
    suspects: Collection[str] = (),
) -> Plan:
    """The plan of `make`; where that raises, one around the jobs that it raises with, which are the plan's `failures`.

    Each of them keeps what it holds, or waits; its limits are lowered to the smallest where a cap could else not be held.
    To find one of n takes about 2 log2 n plans of fewer jobs; `may_go_on` is asked before each. The `suspects`, by uid, are
    looked at first: where it is some of these, that takes a plan for each. Raises what `make` raised where it does so
    without any job, with more jobs than `MOST_FAILURES`, and where the search may not go on.
    """
    try:
        return make(snapshot, policy)
    except Exception as error:
        search = _Search(snapshot, policy, make, may_go_on, error)
    return search.around(suspects) or search.plan()


class _Search:
    """The search for the jobs of one snapshot that planning fails with."""

    def __init__(
        self,
        snapshot: ClusterSnapshot,
        policy: str,
        make: PlanMaker,
        may_go_on: Callable[[], bool],
        error: Exception,
    ) -> None:
        self._snapshot, self._policy, self._make = snapshot, policy, make
        self._may_go_on, self._error = may_go_on, error

    def around(self, suspects: Collection[str]) -> Plan | None:
        """The plan around those of the suspects that planning fails with; None where it fails with others, too."""
        suspected = [job for job in self._snapshot.jobs if job.uid in suspects]
        left_out = {job.uid for job in suspected}
        rest = self._all_but(left_out)
        made = self._made(rest) if suspected else self._error
        if not isinstance(made, Plan):
            return None
        failures = dict[str, PlanningFailure]()
        for job in suspected:
            left_out.remove(job.uid)
            together = self._all_but(left_out)
            # With all of them it has failed already.
            again = self._tried(together) if left_out and self._may_go_on() else self._error
            if isinstance(again, Plan):
                rest, made = together, again
            else:
                left_out.add(job.uid)
                failures[job.uid] = PlanningFailure(job.uid, _words(again))
        return self._within_caps(made, rest, failures)

    def _all_but(self, uids: Collection[str]) -> tuple[JobState, ...]:
        return tuple(job for job in self._snapshot.jobs if job.uid not in uids)

    def plan(self) -> Plan:
        """The plan around all that planning fails with; raises the first error where there is none."""
        if self._fails(()):
            raise self._error
        rest, failures, error = self._snapshot.jobs, dict[str, PlanningFailure](), self._error
        while len(failures) < MOST_FAILURES:
            job = self._culprit(rest)
            failures[job.uid] = PlanningFailure(job.uid, _words(error))
            rest = tuple(other for other in rest if other is not job)
            made = self._made(rest)
            if isinstance(made, Plan):
                return self._within_caps(made, rest, failures)
            error = made
        raise self._error

    def _within_caps(self, made: Plan, rest: Sequence[JobState], failures: Mapping[str, PlanningFailure]) -> Plan:
        """The plan, with all decisions; where a cap cannot be held by it, one with them at their smallest limits."""
        if not all(cap.feasible for cap in made.caps):
            least = {node.name: idle_limit_watts(node) for node in self._snapshot.nodes}
            jobs = (_lowered(job, least) if job.uid in failures else job for job in self._snapshot.jobs)
            self._snapshot = replace(self._snapshot, jobs=tuple(jobs))
            # Where time is over the others stand as they were planned, beside these at more watts than they are to have.
            again = self._tried(rest) if self._may_go_on() else made
            made = again if isinstance(again, Plan) else made
        return self._completed(made, failures)

    def _made(self, jobs: Sequence[JobState]) -> Plan | Exception:
        """The plan of these jobs alone, or what planning raises with them; the first error where time is over."""
        if not self._may_go_on():
            raise self._error
        return self._tried(jobs)

    def _tried(self, jobs: Sequence[JobState]) -> Plan | Exception:
        """The same, whether or not time is over."""
        try:
            return self._make(holding(self._snapshot, jobs), self._policy)
        except Exception as error:
            return error

    def _fails(self, jobs: Sequence[JobState]) -> bool:
        return not isinstance(self._made(jobs), Plan)

    def _culprit(self, jobs: Sequence[JobState]) -> JobState:
        """One of the jobs, all of which planning fails with, that it does well to leave out."""
        works, fails = 0, len(jobs)  # it works with the first so many, and fails with the first so many
        while fails - works > 1:
            middle = (works + fails) // 2
            if self._fails(jobs[:middle]):
                fails = middle
            else:
                works = middle
        last = jobs[works]
        if self._fails((last,)):
            return last
        begin, end = 0, works  # it fails with those from the one to `last`, and works with those from the other
        while end - begin > 1:
            middle = (begin + end) // 2
            if self._fails(jobs[middle:fails]):
                begin = middle
            else:
                end = middle
        # It takes these two. One that runs goes on; one that waits would have to wait for the planner to be mended.
        for job in sorted((last, jobs[begin]), key=lambda job: job.current is None):
            if not self._fails([other for other in jobs if other is not job]):
                return job
        return last

    def _completed(self, made: Plan, failures: Mapping[str, PlanningFailure]) -> Plan:
        planned = {decision.uid: decision for decision in made.decisions}
        nodes = {node.name: node for node in self._snapshot.nodes}
        decisions = (
            planned[job.uid] if job.uid not in failures else _as_it_is(job, _held(job, nodes), failures[job.uid].error)
            for job in self._snapshot.jobs
        )
        return replace(made, decisions=tuple(decisions), failures=tuple(failures.values()))


def holding(snapshot: ClusterSnapshot, jobs: Iterable[JobState]) -> ClusterSnapshot:
    """The snapshot with these of its jobs alone: what the others hold is held by others, at the limits that they have."""
    kept = tuple(jobs)
    uids = {job.uid for job in kept}
    by_name = {node.name: node for node in snapshot.nodes}
    held: dict[str, list[tuple[int, float]]] = {}
    for job in snapshot.jobs:
        allocation = None if job.uid in uids else _held(job, by_name)
        if allocation is None:
            continue
        for name, gpus in allocation.nodes:
            held.setdefault(name, []).append((gpus, allocation.power_limit_watts))
    nodes = tuple(_with_foreign(node, held.get(node.name, ())) for node in snapshot.nodes)
    return replace(snapshot, nodes=nodes, jobs=kept)


def _held(job: JobState, nodes: Mapping[str, NodeState]) -> Allocation | None:
    """What the job holds; where no status says at which limits and clock, at the smallest limits and any clock.

    So it is after a change of leaders. A grant of 0 MHz would be refused, and with it all that its node is to have.
    """
    if job.current is None:
        return None
    model = job.model.gpu_model
    least = [idle_limit_watts(nodes[name]) for name, _ in job.current.nodes if name in nodes]
    return replace(
        job.current,
        clock_megahertz=job.current.clock_megahertz or model.max_clock_megahertz,
        power_limit_watts=job.current.power_limit_watts or max(least, default=model.min_power_limit_watts),
    )


def _with_foreign(node: NodeState, held: Sequence[tuple[int, float]]) -> NodeState:
    """The node with so many GPUs more, at so many watts each, that are none of the planner's."""
    if not held:
        return node
    gpus = node.foreign_gpus + sum(number for number, _ in held)
    watts = node.foreign_gpus * node.foreign_power_limit_watts + sum(number * limit for number, limit in held)
    return replace(node, foreign_gpus=gpus, foreign_power_limit_watts=watts / max(1, gpus))


def _lowered(job: JobState, least_watts: Mapping[str, float]) -> JobState:
    """The job at the smallest limit that all of its GPUs can have."""
    if job.current is None:
        return job
    smallest = max((least_watts[name] for name, _ in job.current.nodes if name in least_watts), default=math.inf)
    limit = min(job.current.power_limit_watts, smallest)
    return replace(job, current=replace(job.current, power_limit_watts=limit))


def _as_it_is(job: JobState, held: Allocation | None, error: str) -> JobDecision:
    if held is None:
        words = f"The planner fails with this job, so that it waits, and others are planned without it: {error}"
        return JobDecision(job.uid, None, Admission.PLANNING_FAILED, words)
    words = f"The planner fails with this job, so that it keeps its GPUs, and others are planned around it: {error}"
    # Nothing is predicted of it: it may draw what its limits allow.
    return JobDecision(job.uid, held, Admission.ADMITTED, words, predicted_gpu_watts=held.power_limit_watts)


def _words(error: Exception) -> str:
    words = f"{type(error).__name__}: {error}"
    return words if len(words) <= MOST_CHARACTERS else words[: MOST_CHARACTERS - 3] + "..."
