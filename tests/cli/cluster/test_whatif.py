"""What `flyball whatif` says of an answer."""

from __future__ import annotations

from flyball_cli.cluster.access import TextOutput
from flyball_cli.cluster.whatif import printed
from flyball_operator.planning.what_if import JobChange, Share, WhatIf

RUNS = Share(gpus=8, clock_megahertz=1410, watts=2000.0)
SLOWER = Share(gpus=8, clock_megahertz=1110, watts=1500.0)


def answer(*jobs: JobChange) -> WhatIf:
    return WhatIf("row", 10_000.0, 8_000.0, 6_000.0, 5_000.0, True, True, 3_200.0, jobs)


def last_line(*jobs: JobChange) -> str:
    return printed(answer(*jobs), TextOutput.TEXT).splitlines()[-1]


def test_jobs_that_stay_as_they_are_are_counted_where_there_are_any() -> None:
    slower, same = JobChange("a", RUNS, SLOWER, "its share"), JobChange("b", RUNS, RUNS, "its largest size")
    assert last_line(slower, same) == "1 job as now"
    assert last_line(same, same) == "nothing changes for 2 jobs"
    assert "as now" not in printed(answer(slower), TextOutput.TEXT)
    assert last_line() == "there are no jobs under it"
