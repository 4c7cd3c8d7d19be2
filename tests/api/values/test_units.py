"""Watts to milliwatts: what is allowed is rounded down, what is held up, and whole watts stay what they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from flyball_api.values.units import (
    MilliwattsPerGpu,
    NodeMilliwatts,
    allowed_milliwatts,
    allowed_watts,
    held_milliwatts,
    held_watts,
    in_whole_watts,
    node_milliwatts,
    of_gpus,
    of_nodes,
)
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("watts", "allowed", "held"),
    [
        (0.0, 0, 0),
        (250.0, 250_000, 250_000),
        (0.1 + 0.2, 300, 300),  # 0.30000000000000004
        (250.0005, 250_000, 250_001),
        (250.9999, 250_999, 251_000),
        (-0.5, -500, -500),
    ],
)
def test_milliwatts_are_rounded_down_where_allowed_and_up_where_held(watts: float, allowed: int, held: int) -> None:
    assert (allowed_milliwatts(watts), held_milliwatts(watts)) == (allowed, held)


@pytest.mark.parametrize(
    ("watts", "allowed", "held"), [(40_000.0, 40_000, 40_000), (39_999.99999999, 40_000, 40_000), (1.5, 1, 2)]
)
def test_whole_watts_are_rounded_likewise(watts: float, allowed: int, held: int) -> None:
    assert (allowed_watts(watts), held_watts(watts)) == (allowed, held)


@pytest.mark.parametrize(("limit", "set_to"), [(250_000, 250_000), (250_999, 250_000), (999, 0), (0, 0)])
def test_a_limit_is_set_in_whole_watts_below_it(limit: int, set_to: int) -> None:
    assert in_whole_watts(MilliwattsPerGpu(limit)) == set_to


@given(st.integers(0, 10**12))
def test_whole_milliwatts_survive_the_way_through_watts(milliwatts: int) -> None:
    assert allowed_milliwatts(milliwatts / 1000) == milliwatts == held_milliwatts(milliwatts / 1000)


@given(st.floats(0, 1e7))
def test_what_is_allowed_is_never_above_what_is_held(watts: float) -> None:
    assert allowed_milliwatts(watts) <= held_milliwatts(watts) <= allowed_milliwatts(watts) + 1


def test_a_node_draws_what_its_gpus_draw_together() -> None:
    assert node_milliwatts(MilliwattsPerGpu(250_000), 8) == 2_000_000


def test_sums_of_gpus_and_of_nodes_are_a_nodes() -> None:
    assert of_gpus(MilliwattsPerGpu(limit) for limit in (100_000, 250_000)) == 350_000
    assert of_nodes([NodeMilliwatts(800_000), NodeMilliwatts(1)]) == 800_001
    assert (of_gpus(()), of_nodes(())) == (0, 0)


OF_ONE_KIND = (
    "PowerBound(node_milliwatts(per_gpu, 8))",
    "node + node - node < node",
    "per_gpu + per_gpu - per_gpu >= per_gpu",
    "node > 0 and per_gpu + 1",
    "of_gpus([per_gpu]) + of_nodes([node])",
)
MIXED_UP = (
    "node_milliwatts(node, 8)",
    "PowerBound(per_gpu)",
    "node + per_gpu",
    "per_gpu + node",
    "node - per_gpu",
    "per_gpu - node",
    "per_gpu < node",
    "node <= per_gpu",
    "node > per_gpu",
    "per_gpu >= node",
    "of_gpus([node])",
    "of_nodes([per_gpu])",
)


@pytest.mark.slow
def test_one_gpus_watts_and_a_nodes_cannot_be_mixed_up(tmp_path: Path) -> None:
    head = (
        "from flyball_api.grant import PowerBound",
        "from flyball_api.values.units import MilliwattsPerGpu, NodeMilliwatts, node_milliwatts, of_gpus, of_nodes",
        "per_gpu, node = MilliwattsPerGpu(100_000), NodeMilliwatts(800_000)",
        "",
    )
    snippet = tmp_path / "snippet.py"
    snippet.write_text("\n".join((*head, *OF_ONE_KIND, *MIXED_UP)) + "\n")
    root = Path(__file__).parents[3]
    # In a process of its own: mypy changes the recursion limit of the one that it runs in.
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file",
        str(root / "pyproject.toml"),
        "--cache-dir",
        str(tmp_path),
    ]
    found = subprocess.run([*command, str(snippet)], capture_output=True, text=True, check=False, cwd=root).stdout
    refused = {int(line.split(":")[1]) for line in found.splitlines() if ": error:" in line}
    first = len(head) + len(OF_ONE_KIND) + 1
    assert refused == set(range(first, first + len(MIXED_UP))), found
