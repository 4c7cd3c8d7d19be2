"""What jobs have used since a book was written last: from their totals, and the totals up to which they are counted.

A book that keeps these marks beside its sums goes on after any crash without counting anything twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from flyball_operator.jobs.runs.consumption import Consumption

# For so long after a job's end its agents may report that it has used more.
LATE_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Mark:
    """One job's totals, all of which are counted."""

    millijoules: int
    gpu_seconds: int = 0

    def counts(self, job: Consumption) -> bool:
        """Whether all that the job has used is counted, and no more."""
        return self.millijoules == job.millijoules and self.gpu_seconds == int(job.gpu_seconds)


@dataclass(frozen=True, slots=True)
class Use:
    """What one job has used since it was counted last, and its next mark (None: it needs none any more)."""

    job: Consumption
    millijoules: int
    gpu_seconds: int
    mark: Mark | None


def used_since(
    marks: Mapping[str, Mark],
    jobs: Iterable[Consumption],
    *,
    counted_since: datetime | None,
    counted_until: datetime | None,
    now: datetime,
) -> Iterator[Use]:
    """What each job has used that no book has yet; `marks` are by the job's uid.

    `counted_since` is when the book was begun (None: it begins now): of older jobs without a mark nothing counts. A total
    that fell, because a status was lost, is gone on from.
    """
    for job in jobs:
        total = Mark(job.millijoules, int(job.gpu_seconds))
        before = marks.get(job.uid)
        if before is None:
            if job.ended_at is not None and (counted_until is None or job.ended_at < counted_until):
                continue  # it was counted long ago
            known = counted_since is not None and job.created >= counted_since
            before = Mark(0) if known else total
        late = job.ended_at is None or (now - job.ended_at).total_seconds() < LATE_SECONDS
        yield Use(
            job,
            max(0, total.millijoules - before.millijoules),
            max(0, total.gpu_seconds - before.gpu_seconds),
            total if late else None,
        )
