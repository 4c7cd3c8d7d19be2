"""The benchmark of jobs that come and go, at a size that a test can bear: its figures are of what happened."""

from __future__ import annotations

import asyncio

import pytest
from flyball_kube.session import ApiSession

from benchmarks.churn import GOALS, Churn, Report, report_churn
from benchmarks.site_costs import Costs
from tests.support.site_bench import Bench
from tests.support.waiting import PATIENCE_SECONDS


def test_jobs_that_come_and_go_are_all_seen(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    async def some_jobs() -> tuple[Churn, Report]:
        async with await ApiSession.connect(bench.site.cluster.kubeconfig) as session:
            churn, report = Churn(bench.site, session, 8, bench.namespace), Report()
            async with churn.watched():
                await churn.submit_many(4)  # as many as there are nodes
                await churn.until(lambda: len(churn.watch.running) == 4, "all run", PATIENCE_SECONDS)
                before = Costs.now(bench.site)
                for _ in range(3):
                    await churn.end_one()
                    name = await churn.submit()
                    seen = churn.watch.jobs[name]
                    await churn.until(lambda seen=seen: bool(seen.shown_ready), "the next one runs", PATIENCE_SECONDS)  # type: ignore[misc]
                report_churn(report, churn, before, Costs.now(bench.site), before.at)
            return churn, report

    churn, report = asyncio.run(some_jobs())
    jobs = list(churn.watch.jobs.values())
    assert len(jobs) == 7
    assert all(seen.submitted <= seen.pods_ready and seen.decided for seen in jobs)
    assert len([seen for seen in jobs if seen.pods_ended and seen.shown_ended]) >= 2
    assert set(report.missed) <= set(GOALS)
    said = capsys.readouterr().out
    assert "submissions of 3: median" in said
    assert "of that, median seconds until planned and its pods made" in said
    assert "submitted 3, of which 0 had no running pods at the end; ended 3" in said
    assert "energyawarejobs/status" in said
