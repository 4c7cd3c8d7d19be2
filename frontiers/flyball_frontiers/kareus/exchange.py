"""A partition's search and who measures it, apart: what is asked for and what came of it, as JSON.

`flyball kareus search` keeps the search, and Flyball's client in a job measures (`job.measure_partition`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flyball_frontiers.kareus.compose import PartitionChoices
from flyball_frontiers.kareus.schedule import KernelSchedule, Measurement
from flyball_frontiers.kareus.search import PartitionSearch, Pass

Asked = Sequence[tuple[KernelSchedule, Pass]]
"""What `PartitionSearch.ask` gave: to have it once for a batch, for it takes seconds."""


def asked_document(search: PartitionSearch, asked: Asked) -> dict[str, Any]:
    """The schedules to measure next; none where the search is done."""
    return {"batch": search.batch, "schedules": [schedule.to_json() for schedule, _ in asked]}


def after_measurements(search: PartitionSearch, asked: Asked, document: Mapping[str, Any]) -> PartitionSearch | None:
    """The search after the measurements of its present batch; None where they are of another.

    Raises ValueError where they do not fit what was asked for.
    """
    try:
        if int(document["batch"]) != search.batch or not asked:
            return None
        measured = [Measurement(float(each["seconds"]), float(each["joules"])) for each in document["measured"]]
    except (KeyError, TypeError) as error:
        raise ValueError(f"these are no measurements of a partition: {error!r}") from error
    return search.tell(asked, measured)


def choices(name: str, count: int, search: PartitionSearch) -> PartitionChoices:
    """What was measured of a partition that a microbatch runs `count` times, for `microbatch_frontier`."""
    return PartitionChoices(name, count, {sample.schedule: sample.measurement for sample in search.samples})
