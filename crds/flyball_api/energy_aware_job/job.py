"""An EnergyAwareJob as it is read: its spec, its status, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from flyball_api.energy.frontier import FrontierBounds
from flyball_api.energy_aware_job.spec import EnergyAwareJobSpec, Recurrence, Training
from flyball_api.energy_aware_job.status import EnergyAwareJobStatus, RecurringRun
from flyball_api.energy_aware_job.straggler import Straggler, read_straggler
from flyball_api.names import ANNOTATION_STRAGGLER, LABEL_MODE, MANAGED_BY_FLYBALL, MODE_OBSERVE
from flyball_api.reading import InvalidObject, ObjectMeta, read_metadata, read_spec, read_status
from flyball_api.values.bounds import least
from flyball_api.values.conditions import StoredCondition
from flyball_api.values.templates import problem_of_template

KIND = "EnergyAwareJob"


@dataclass(frozen=True, slots=True)
class EnergyAwareJob:
    """One EnergyAwareJob; `conditions` are its status' by their types, `problems` what of status or annotations cannot be
    read.

    Of a recurring job `spec.training` has the batch size that was chosen for this run, and the iterations that make as many
    samples of it; `default_batch_size` is the one that was written.

    `straggler` is what somebody says in an annotation of how long its pipelines' iterations take; None: nobody does.

    A template that is too deep or too large to be worked with is left out of the spec, and `template_problem` says so.

    It is only `observed` where its label or its namespace's says so: placed and started as any other, and its clock lowered
    by caps and its own bounds alone.

    It is `finished` once it has succeeded or failed, and `wants_gpus` where it asks Flyball for some, as far as its own
    words go: it has not ended, and is not suspended or another's. Both are asked for many times in each cycle.
    """

    metadata: ObjectMeta
    created: datetime
    spec: EnergyAwareJobSpec
    status: EnergyAwareJobStatus
    conditions: Mapping[str, StoredCondition]
    default_batch_size: int
    problems: tuple[str, ...] = ()
    observed: bool = False
    template_problem: str = ""
    straggler: Straggler | None = None
    finished: bool = field(init=False, compare=False)
    wants_gpus: bool = field(init=False, compare=False)

    def __post_init__(self) -> None:
        finished = self.has("Succeeded") or self.has("Failed")
        wants = not finished and not self.deleting and not self.spec.suspend and self.managed_by_flyball
        object.__setattr__(self, "finished", finished)
        object.__setattr__(self, "wants_gpus", wants)

    @property
    def namespace(self) -> str:
        return self.metadata.namespace

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def key(self) -> str:
        return self.metadata.key

    @property
    def generation(self) -> int:
        return self.metadata.generation

    @property
    def deleting(self) -> bool:
        return self.metadata.deleting

    @property
    def profile_key(self) -> str:
        """Jobs of one namespace with the same key share what was learned about them."""
        return self.spec.profile_key or self.name

    @property
    def frontier_bounds(self) -> FrontierBounds:
        """What of its spec its choices of size and clock depend on."""
        spec = self.spec
        return FrontierBounds(
            spec.training.global_batch_size,
            spec.gpus.min,
            spec.gpus.max,
            spec.clocks.min_megahertz,
            spec.clocks.max_megahertz,
        )

    @property
    def elastic(self) -> bool:
        """It may be stopped and started again from its checkpoint."""
        return self.spec.elasticity.mode == "CheckpointRestart"

    @property
    def due(self) -> datetime | None:
        """By when it is to be done: its deadline, or the end of the time in which it may be put off."""
        return least(self.spec.deadline, self.spec.flexible_until)

    @property
    def run(self) -> RecurringRun | None:
        """Which run of a recurring job it is; None where no batch size has been chosen of those that its spec has now."""
        recurrence, run = self.spec.recurrence, self.status.recurrence
        return run if recurrence is not None and run is not None and _is_of(recurrence, run) else None

    @property
    def managed_by_flyball(self) -> bool:
        return self.spec.managed_by == MANAGED_BY_FLYBALL

    def has(self, condition: str) -> bool:
        """Whether the status has the condition with status True."""
        found = self.conditions.get(condition)
        return found is not None and found.is_true

    @property
    def refusal(self) -> str:
        """Why the API server refuses the pods of the very spec that stands, in the status' words; empty: it does not."""
        admitted = self.conditions.get("Admitted")
        if admitted is None or admitted.reason != "InvalidSpec" or admitted.observed_generation != self.generation:
            return ""
        return admitted.message or "its pods are refused"

    @property
    def last_incarnation(self) -> int:
        """The incarnation that the status has last; 0: the job has never been started."""
        allocation = self.status.allocation
        return 0 if allocation is None else allocation.incarnation or 0


def read_energy_aware_job(raw: Mapping[str, Any]) -> EnergyAwareJob:
    """An EnergyAwareJob from its JSON; raises InvalidObject where its metadata or spec is not as the CRD has it."""
    metadata = read_metadata(KIND, raw)
    template_problem = problem_of_template(raw["spec"].get("template")) if isinstance(raw.get("spec"), Mapping) else ""
    if template_problem:
        raw = {**raw, "spec": {**raw["spec"], "template": {}}}
    spec = read_spec(KIND, metadata, raw, EnergyAwareJobSpec)
    status, problems = read_status(raw, EnergyAwareJobStatus)
    if metadata.creation_timestamp is None:
        raise InvalidObject(f"{KIND} {metadata.key}: metadata.creationTimestamp is missing")
    straggler, unread = _straggler(metadata)
    conditions = {condition.type: condition for condition in status.conditions}
    default_batch_size = spec.training.global_batch_size
    recurrence, run = spec.recurrence, status.recurrence
    if recurrence is not None and run is not None and _is_of(recurrence, run):
        spec = msgspec.structs.replace(spec, training=_with_batch_size(spec.training, run.global_batch_size))
    return EnergyAwareJob(
        metadata,
        metadata.creation_timestamp,
        spec,
        status,
        conditions,
        default_batch_size,
        problems + unread,
        observed=metadata.labels.get(LABEL_MODE) == MODE_OBSERVE,
        template_problem=template_problem,
        straggler=straggler,
    )


def _straggler(metadata: ObjectMeta) -> tuple[Straggler | None, tuple[str, ...]]:
    """What the annotation says, and what of it cannot be read."""
    text = metadata.annotations.get(ANNOTATION_STRAGGLER, "")
    if not text:
        return None, ()
    try:
        return read_straggler(text), ()
    except ValueError as error:
        return None, (f"metadata.annotations[{ANNOTATION_STRAGGLER}]: {error}",)


def _is_of(recurrence: Recurrence, run: RecurringRun) -> bool:
    return run.global_batch_size in recurrence.batch_sizes and run.global_batch_size > 0 and run.watts_per_gpu > 0


def _with_batch_size(training: Training, batch_size: int) -> Training:
    """The same training, of as many samples, by another global batch size."""
    iterations = training.iterations
    if iterations is not None:
        iterations = -(-iterations * training.global_batch_size // batch_size)
    return msgspec.structs.replace(training, global_batch_size=batch_size, iterations=iterations)
