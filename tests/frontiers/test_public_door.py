"""A frontier is one import away, and asking for one method does not load the libraries of the others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import flyball_frontiers
import pytest
from flyball_frontiers import Frontier, PerseusPlanner, PipelineProfile, Schedule, pipeline_graph

PROFILE = Path(__file__).parents[2] / "examples" / "profiles" / "gpt3-a100-unbalanced.csv"


def test_one_line_is_enough_for_a_frontier() -> None:
    graph = pipeline_graph(PipelineProfile.from_csv(PROFILE.read_text()), Schedule.ONE_F_ONE_B, 4)
    frontier = PerseusPlanner(graph, 83.64).frontier(5)
    assert isinstance(frontier, Frontier)
    assert frontier.t_min < frontier.t_star


def test_every_name_of_the_door_is_there() -> None:
    assert all(getattr(flyball_frontiers, name) is not None for name in flyball_frontiers.__all__)


def test_another_name_is_refused() -> None:
    with pytest.raises(AttributeError, match=r"flyball_frontiers.*no_such_name"):
        flyball_frontiers.no_such_name  # noqa: B018 - that it is refused is the point


def test_the_frontier_itself_loads_no_solver() -> None:
    program = (
        "import sys; from flyball_frontiers import Frontier; print({'highspy', 'pylmcf', 'scipy'} & set(sys.modules))"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "set()"
