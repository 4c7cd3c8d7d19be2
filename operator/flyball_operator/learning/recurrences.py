"""The batch size of each run of a job that comes again and again: chosen before it starts, by what others have cost.

A run is in its job's status from before its start until that is deleted, and among the runs of the EnergyProfile of its key
and GPU model from its end on. Everything follows from these two, so that neither an operator that dies nor a lost profile
loses a run whose job still stands. The search itself is Zeus' (`flyball_planner.recurrences`), made anew from the runs.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace

from flyball_api.energy.profile import EndedRun
from flyball_api.energy_aware_job import EnergyAwareJob, Recurrence, RecurringRun
from flyball_api.reading import MAX_INTEGER
from flyball_kube.process.logs import get_logger
from flyball_planner.models.gpu import GpuModel, gpu_model_for
from flyball_planner.models.priors import model_class_prior
from flyball_planner.recurrences.pruning import PruningRound
from flyball_planner.recurrences.recurring import Decision, Purpose, RecurringJob

from flyball_operator.learning.carried_runs import Carried, RunShape, carried, without_runs_of
from flyball_operator.learning.learner import Learner
from flyball_operator.learning.profiles import ProfileKey, Runs, kept_runs
from flyball_operator.power.nodes.info import NodeInfo

logger = get_logger(__name__)

# How many of the last runs are believed: what data has become is learned within so many.
WINDOW = 50
# A choice takes some milliseconds, and a cycle holds caps: the rest is chosen for in the next ones.
CHOICES_AT_ONCE = 8


class Recurrences:
    """The runs of all recurring jobs, during one leader's term; `learner` keeps those that have ended."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._chosen: dict[str, RecurringRun] = {}  # by the job's uid, until its status has it
        self._seen: dict[str, tuple[str, Runs]] = {}  # of ended jobs by uid: their version, and the runs that have it

    def step(self, jobs: Mapping[str, EnergyAwareJob], nodes: Mapping[str, NodeInfo]) -> Mapping[str, RecurringRun]:
        """Take in the runs that have ended, and choose for the jobs that have no batch size yet: theirs, by uid."""
        recurring = [job for job in jobs.values() if job.spec.recurrence is not None and job.managed_by_flyball]
        self._take_in(recurring)
        waiting = [job for job in recurring if job.run is None and job.wants_gpus]
        wanted = {job.uid: job for job in waiting}
        self._chosen = {uid: run for uid, run in self._chosen.items() if uid in wanted and _allowed(wanted[uid], run)}
        gpus: Counter[GpuModel] = Counter()
        for info in nodes.values() if len(self._chosen) < len(waiting) else ():
            if info.gpu_model is not None:
                gpus[info.gpu_model] += info.gpus
        left = [job for job in waiting if job.uid not in self._chosen] if gpus else []
        for job in sorted(left, key=lambda job: (job.created, job.uid))[:CHOICES_AT_ONCE]:
            try:
                self._chosen[job.uid] = self._choose(job, recurring, gpus, nodes)
            except Exception:
                # What the API server should have refused must not end the cycle that holds the caps for everybody.
                logger.exception("no batch size is chosen", job=job.key)
        return self._chosen

    def is_kept(self, job: EnergyAwareJob) -> bool:
        """Whether nothing is lost with an ended job: it is no run, or its EnergyProfile has it."""
        run = ended_run(job)
        return run is None or job.run is None or run.decision in self._learner.stored_runs(_key(job, job.run.gpu_model))

    def _take_in(self, recurring: Iterable[EnergyAwareJob]) -> None:
        seen = {}
        for job in recurring:
            run = ended_run(job)
            if run is None or job.run is None:
                continue
            key = _key(job, job.run.gpu_model)
            before, version = self._learner.runs(key), job.metadata.resource_version
            if self._seen.get(job.uid) != (version, before) and before.get(run.decision) != run:
                self._learner.note_runs(key, kept_runs({**before, run.decision: run}))
            seen[job.uid] = version, self._learner.runs(key)
        self._seen = seen

    def _choose(
        self,
        job: EnergyAwareJob,
        recurring: Iterable[EnergyAwareJob],
        gpus: Mapping[GpuModel, int],
        nodes: Mapping[str, NodeInfo],
    ) -> RecurringRun:
        """The run that `job` is to be, beside those that are under way or chosen already."""
        recurrence = job.spec.recurrence
        assert recurrence is not None  # noqa: S101 - only recurring jobs are chosen for
        model = self._gpu_model(job, gpus)
        key = _key(job, model.product)
        under_way = [
            run
            for other in recurring
            if (run := other.run or self._chosen.get(other.uid)) is not None
            and not other.finished
            and not other.deleting
            and _key(other, run.gpu_model) == key
        ]
        runs = self._learner.runs(key)
        begun = self._carried(job, recurrence, key, model, gpus, nodes)
        search = search_of(job, recurrence, seed_of(key), runs, under_way, None if begun is None else begun.search)
        _, decision = search.decide()
        limit = decision.cost_limit_joules
        if begun is not None:  # no run is stopped for what models say of other GPUs
            here = [run.cost_joules for run in runs.values() if run.reached]
            limit = search.stop_factor * min(here) if here else None
        return RecurringRun(
            decision=decision.number,
            global_batch_size=decision.batch_size,
            purpose=decision.purpose.value,
            gpu_model=model.product,
            watts_per_gpu=max(1, round(model.max_power_limit_watts)),
            message=decision_text(search, decision) + ("" if begun is None else f", by runs on {begun.product}"),
            cost_limit_joules=None if limit is None else min(round(limit), MAX_INTEGER),
        )

    def _carried(
        self,
        job: EnergyAwareJob,
        recurrence: Recurrence,
        key: ProfileKey,
        here: GpuModel,
        gpus: Iterable[GpuModel],
        nodes: Mapping[str, NodeInfo],
    ) -> Carried | None:
        """What runs on another GPU model say of this one, the one with most runs; None where nothing is known of one, or
        batch sizes were explored here already."""
        training, most = job.spec.training, job.spec.gpus.max
        if any(Purpose(run.purpose) is Purpose.EXPLORE for run in self._learner.runs(key).values()):
            return None
        shape = RunShape(most, -(-most // self._learner.gpus_per_node(nodes)), recurrence.energy_weight)
        for other in self._learner.keys_beside(key):
            in_cluster = (known for known in gpus if known.product == other.product)
            there = next(in_cluster, None) or gpu_model_for(other.product)
            if there is None:
                continue
            model_here = self._learner.model_of(key, here, training.model_class)
            model_there = self._learner.model_of(other, there, training.model_class)
            if model_there is None:
                known = model_class_prior(training.model_class, there) if model_here is None else model_here
                model_there = known.on(there)
            runs = self._learner.runs(other)
            search = search_of(
                job, recurrence, seed_of(other), runs, (), offered={run.batch_size for run in runs.values()}
            )
            here_too = model_here or model_there.on(here)
            begun = carried(search, batch_sizes_of(job, recurrence), model_there, here_too, shape, seed_of(key))
            if begun is not None:
                return Carried(begun, other.product)
        return None

    def _gpu_model(self, job: EnergyAwareJob, gpus: Mapping[GpuModel, int]) -> GpuModel:
        """The GPU model with most runs of those that the cluster has enough of, then the most common."""
        return min(
            gpus,
            key=lambda model: (
                gpus[model] < job.spec.gpus.min,
                -len(self._learner.runs(_key(job, model.product))),
                -gpus[model],
                model.product,
            ),
        )


def ended_run(job: EnergyAwareJob) -> EndedRun | None:
    """The run that an ended job was; None where it has not ended, or has cost nothing and so says nothing."""
    run = job.run
    if run is None or not job.finished or not run.cost_joules:
        return None
    done = 0 if job.status.progress is None else job.status.progress.iterations
    return EndedRun(
        decision=run.decision,
        batch_size=run.global_batch_size,
        purpose=run.purpose,
        cost_joules=run.cost_joules,
        reached=job.has("Succeeded"),
        samples=min(done * run.global_batch_size, MAX_INTEGER),
    )


def search_of(
    job: EnergyAwareJob,
    recurrence: Recurrence,
    seed: int,
    runs: Runs,
    under_way: Iterable[RecurringRun],
    begun: RecurringJob | None = None,
    offered: Container[int] | None = None,
) -> RecurringJob:
    """Zeus' search as the runs leave it, by the batch sizes that the job names now.

    Runs with others say nothing. `begun` is what other GPUs say of batch sizes that have not run on these; only those that
    were `offered` take part, if that is said. Where none has reached the target, it begins anew at the size of the job's
    own: whoever submits the job once more has changed something.
    """
    sizes = batch_sizes_of(job, recurrence)
    if offered is not None:
        sizes = tuple(size for size in sizes if size in offered) or sizes
    default = min(sizes, key=lambda size: abs(size - job.default_batch_size))
    search = RecurringJob(sizes, default, seed, window=WINDOW)
    if begun is not None:
        search = without_runs_of(begun, {run.batch_size for run in runs.values()})
    for run in sorted(runs.values(), key=lambda run: run.decision):
        if run.batch_size not in sizes or run.cost_joules < 1:
            continue
        # One that was made for another list, or out of turn, tells what it cost and moves no exploration.
        in_turn = search.exploring and search.rounds[-1].next_batch_size == run.batch_size
        explores = Purpose(run.purpose) is Purpose.EXPLORE and in_turn
        purpose = Purpose.EXPLORE if explores else Purpose.BEST_KNOWN
        made = Decision(run.decision, run.batch_size, purpose, None)
        search = replace(search, pending=(made,))
        search = _begun_anew(
            search.finish(run.decision, float(run.cost_joules), reached=run.reached, epochs=float(run.samples))
        )
    pending = tuple(
        Decision(run.decision, run.global_batch_size, Purpose(run.purpose), None)
        for run in under_way
        if run.global_batch_size in sizes
    )
    numbers = [-1, *runs, *(run.decision for run in under_way)]
    return replace(search, pending=pending, decisions=max(numbers) + 1)


def batch_sizes_of(job: EnergyAwareJob, recurrence: Recurrence) -> tuple[int, ...]:
    """The batch sizes that a job may have, those that its GPUs can hold; its own one where that is not among them."""
    sizes = tuple(sorted(size for size in recurrence.batch_sizes if _fits(job, size)))
    return sizes if job.default_batch_size in sizes else (job.default_batch_size,)


def _begun_anew(search: RecurringJob) -> RecurringJob:
    if search.exploring and search.rounds[-1].next_batch_size is None:
        return replace(search, rounds=(PruningRound(search.batch_sizes, search.default_batch_size),))
    return search


def decision_text(search: RecurringJob, decision: Decision) -> str:
    """Why a run has its batch size, in a sentence."""
    ended = f"{len(search.runs)} run{'' if len(search.runs) == 1 else 's'}"
    best = search.best_batch_size
    known = "" if search.least_cost is None else f"; the cheapest so far had {best} and cost {search.least_cost:.0f} J"
    if decision.purpose is Purpose.EXPLORE:
        current = search.rounds[-1]
        tried = f"{len(current.explored)} of {len(current.batch_sizes)} batch sizes were, in round {len(search.rounds)}"
        return f"{decision.batch_size} is to be tried: {tried}{known}"
    if decision.purpose is Purpose.BEST_KNOWN:
        return f"{decision.batch_size} is the cheapest that is known while another run tries one{known}"
    belief = search.beliefs()[decision.batch_size]
    return (
        f"{decision.batch_size} is chosen by what {ended} have cost: believed to cost {belief.mean:.0f} J; "
        f"{best} is believed the cheapest"
    )


def seed_of(key: ProfileKey) -> int:
    """The seed of a key's draws: always the same, so that it need not be kept."""
    return zlib.crc32(f"{key.path} {key.product}".encode())


def _key(job: EnergyAwareJob, product: str) -> ProfileKey:
    return ProfileKey(job.namespace, job.profile_key, product)


def _allowed(job: EnergyAwareJob, run: RecurringRun) -> bool:
    return job.spec.recurrence is not None and run.global_batch_size in job.spec.recurrence.batch_sizes


def _fits(job: EnergyAwareJob, batch_size: int) -> bool:
    """Whether the largest number of GPUs holds a batch."""
    most = job.spec.training.max_local_batch_size
    return most is None or batch_size <= most * job.spec.gpus.max
