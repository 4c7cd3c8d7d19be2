"""Which point of its plan's frontier a job's pipeline is to run at: an annotation of its pods, written while they train.

A pod has the annotation as a file, which its kubelet writes anew. What is told follows from the job, its progress and its
grant alone, and is compared with what stands in the pods: so it needs no memory, but for not telling too often.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from flyball_api.energy_aware_job import EnergyAwareJob, Straggler
from flyball_api.values.times import format_time
from flyball_api.workloads import PodView

# Of the time to a deadline, what the iterations may take: checkpoints and clocks that come late take some, too.
SHARE_OF_DEADLINE = 0.95
# What the time for an iteration has to change by to be told anew, and how often pods are told anything; of a straggler
# sooner, which is to be answered within two seconds.
SIGNIFICANT_SHARE = 0.02
PAUSE_SECONDS = 5.0
STRAGGLER_PAUSE_SECONDS = 0.5
# More than is ever told. Whoever may write to a pod can have a quarter of a megabyte stand there, which is read each cycle.
LONGEST_POINT = 1000


@dataclass(frozen=True, slots=True)
class PointChange:
    """Tell these pods of one job which point is wanted now: the value of their annotation."""

    job: EnergyAwareJob
    pods: tuple[PodView, ...]
    point: str


def iteration_seconds(job: EnergyAwareJob, iterations_done: float, now: datetime) -> float | None:
    """How long an iteration of a job may take for its deadline to be met; None where nothing is due, or it is past."""
    iterations, due = job.spec.training.iterations, job.due
    if iterations is None or due is None or due <= now:
        return None
    return SHARE_OF_DEADLINE * (due - now).total_seconds() / max(1, iterations - iterations_done)


def pipeline_objective(job: EnergyAwareJob) -> str:
    """What a job's pipelines are planned for: as fast as they go, where it is only observed."""
    return "Time" if job.observed else job.spec.objective


def wanted_point(job: EnergyAwareJob, iterations_done: float, max_megahertz: int | None, now: datetime) -> str:
    """The annotation's value: objective, seconds for an iteration, granted clock and straggler, as far as there are."""
    seconds = iteration_seconds(job, iterations_done, now)
    wanted: dict[str, Any] = {"objective": pipeline_objective(job)}
    if seconds is not None:
        wanted["iterationSeconds"] = float(f"{seconds:.6g}")
    if max_megahertz is not None:
        wanted["maxMegahertz"] = max_megahertz
    if job.straggler is not None and not job.observed:
        wanted["straggler"] = _announced(job.straggler)
    return json.dumps(wanted)


def _announced(straggler: Straggler) -> dict[str, Any]:
    """What an annotation has of a straggler: pods see themselves when it begins and ends, whoever leads by then."""
    announced: dict[str, Any] = {"degree": straggler.degree, "replica": straggler.replica}
    announced |= {
        name: format_time(instant)
        for name, instant in (("from", straggler.since), ("until", straggler.until))
        if instant is not None
    }
    return {name: value for name, value in announced.items() if value is not None}


def point_change(
    job: EnergyAwareJob,
    incarnation: int,
    pods: Collection[PodView],
    iterations_done: float,
    max_megahertz: int | None,
    now: datetime,
) -> PointChange | None:
    """The annotation to write on the pods of this incarnation of a job with a pipeline; None where all have it already."""
    wanted = wanted_point(job, iterations_done, max_megahertz, now)
    late = tuple(
        pod
        for pod in pods
        if pod.incarnation == incarnation
        and not (pod.finished or pod.deleting)
        and _differs(pod.pipeline_point, wanted)
    )
    return PointChange(job, late, wanted) if late else None


def _differs(annotated: str, wanted: str) -> bool:
    """Whether two values ask for other points; a deadline that comes nearer as it was to come changes nothing."""
    before, now = _read(annotated), _read(wanted)
    if before is None or now is None:
        return annotated != wanted
    was, seconds = before.pop("iterationSeconds", None), now.pop("iterationSeconds", None)
    if before != now or (was is None) != (seconds is None):
        return True
    if was is None or seconds is None:
        return False
    # No integer is ever told, and one that somebody else has written may be too large to be compared.
    return not isinstance(was, float) or not abs(seconds - was) <= SIGNIFICANT_SHARE * seconds


def _read(text: str) -> dict[str, Any] | None:
    if len(text) > LONGEST_POINT:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
