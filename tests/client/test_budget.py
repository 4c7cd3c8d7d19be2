"""What a training script is told of its job's budget and deadline."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from flyball import Budget, InvalidEnvironment
from flyball.environment import BudgetSection, Environment
from flyball.job import Job

from tests.support.answering_agent import GRANTED, Answering, http
from tests.support.waiting import wait_until

MIDNIGHT = datetime(2027, 1, 1, tzinfo=UTC)
SAID = {
    "FLYBALL_BUDGET_KILOJOULES": "5000",
    "FLYBALL_USED_KILOJOULES": "1200",
    "FLYBALL_DUE": "2027-01-01T00:00:00Z",
    "FLYBALL_WORLD_SIZE": "8",
    "FLYBALL_LOCAL_GPUS": "4",
}


def test_it_is_read_from_what_the_operator_says() -> None:
    assert Environment.read(SAID, 1).budget == BudgetSection(5000, 1200, MIDNIGHT, pods=2)
    assert Environment.read({}, 1).budget == BudgetSection(None, None, None, pods=1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FLYBALL_BUDGET_KILOJOULES", "-1"),
        ("FLYBALL_USED_KILOJOULES", "much"),
        ("FLYBALL_DUE", "tomorrow"),
        ("FLYBALL_DUE", "2027-01-01T00:00:00+00:00"),
    ],
)
def test_what_cannot_be_read_is_named(name: str, value: str) -> None:
    with pytest.raises(InvalidEnvironment, match=f"{name}='{value}'".replace("+", "[+]")):
        Environment.read({**SAID, name: value}, 1)


def test_the_other_pods_count_as_this_one() -> None:
    budget = Budget.of(BudgetSection(5000, 1200, None, pods=2), 300_000_000)
    assert (budget.used_kilojoules, budget.left_kilojoules) == (1800.0, 3200.0)
    assert Budget.of(BudgetSection(1000, 1200), 0).left_kilojoules == -200.0


def test_what_nobody_knows_is_none() -> None:
    for budget in (Budget(), Budget.of(BudgetSection(5000, 1200), None), Budget.of(BudgetSection(5000, None), 1)):
        assert (budget.used_kilojoules, budget.left_kilojoules, budget.left_seconds) == (None, None, None)
    assert Budget.of(BudgetSection(None, 1200), 0).left_kilojoules is None


def test_the_time_that_is_left_runs_out() -> None:
    def left(offset: float) -> float:
        seconds = Budget(due=datetime.fromtimestamp(time.time() + offset, UTC)).left_seconds
        assert seconds is not None
        return seconds

    assert 3000 < left(3600) <= 3600
    assert left(-60) <= -60


def test_the_energy_of_this_start_is_what_the_agent_said_last(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    assert Job(Environment(budget=BudgetSection(5000, 1200))).budget.left_kilojoules is None, "nobody measures"
    agent = Answering(path, http(json.dumps({**GRANTED, "energyMillijoules": 300_000_000}).encode()))
    job = Job(Environment(socket=str(path), incarnation=1, budget=BudgetSection(5000, 1200, MIDNIGHT, 2)))
    job.start()
    try:
        assert job.budget == Budget(5000, None, MIDNIGHT), "before anybody was asked"
        for _ in job.epochs(1):
            for _ in job.loader(range(2), 1):
                with job.step():
                    pass
            wait_until(lambda: job.budget.left_kilojoules == 3200.0, lambda: str(job.budget))
    finally:
        agent.close()
