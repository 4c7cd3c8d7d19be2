"""The rows as tables: words, order and filters."""

from __future__ import annotations

import itertools
from datetime import timedelta

import pytest
from flyball_views.overview import read_overview
from flyball_views.tables import (
    Cell,
    Line,
    Tone,
    caps_table,
    filtered_lines,
    jobs_table,
    nodes_table,
    sorted_lines,
)
from flyball_views.texts import (
    age_text,
    counted,
    duration_text,
    energy_text,
    share_text,
    until_text,
    watts_text,
    yes_no_text,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.support.shown_cluster import NOW, cluster, held_cap, serving_node

SHOWN = read_overview(NOW, **cluster())


def texts(line: Line) -> list[str]:
    return [cell.text for cell in line.cells]


def test_the_caps() -> None:
    assert [texts(line) for line in caps_table(SHOWN).lines] == [
        ["cluster", "600 W", "600 W", "900 W", "440 W", "0 W", "2", "no", "2m", "WaitingForAcknowledgements"],
        ["row-a", "1000 W", "1200 W", "400 W", "330 W", "600 W", "1", "yes", "2m", "schedule evening"],
    ]


def test_the_nodes() -> None:
    rows = [texts(line) for line in nodes_table(SHOWN).lines]
    assert rows[0][:9] == ["node-a", "a", "2", "330 W", "400 W", "200 W", "800 W", "Granted", "yes"]
    assert rows[0][10:] == ["team/train", "serves"]
    assert rows[1][:9] == ["node-b", "b", "2", ">58 W", "-", "200 W", "800 W", "Granted", "no"]
    assert rows[1][11] == "GpuFailed"


def test_the_jobs() -> None:
    rows = {line.key: texts(line) for line in jobs_table(SHOWN).lines}
    assert rows["team/train"] == [
        "team", "train", "Running", "1", "1-8", "1", "272 W", "1395 MHz", "25%", "200 kJ", "20%", "25m", "-", "6h",
        "1 GPU at 1410 MHz: a second GPU would pass the cap row-a",
    ]  # fmt: skip
    assert rows["team/big"][:9] == ["team", "big", "WaitingForPower", "0", "4-8", "0", "-", "-", "0%"]
    assert rows["team/big"][12] == "1/2 in 25m"
    assert rows["other/done"][2] == "Succeeded"
    assert rows["other/done"][8] == "~100%"


def test_what_is_wrong_has_a_tone_and_words() -> None:
    lines = caps_table(SHOWN).lines
    assert lines[0].cells[3].tone is Tone.BAD  # more is committed than is in force
    assert (lines[0].cells[7].tone, lines[1].cells[7].tone) == (Tone.BAD, Tone.GOOD)


def test_a_cap_in_permille_says_so() -> None:
    cap = held_cap()
    del cap["spec"]["watts"]
    cap["spec"]["permilleOfMax"] = 625
    assert caps_table(read_overview(NOW, caps=[cap])).lines[0].cells[2].text == "62.5% of max"


def test_every_line_has_a_cell_for_every_column() -> None:
    for table in (caps_table(SHOWN), nodes_table(SHOWN), jobs_table(SHOWN)):
        assert all(len(line.cells) == len(table.columns) for line in table.lines)
        assert len({line.key for line in table.lines}) == len(table.lines)


def line(key: str, *values: float | str | None) -> Line:
    return Line(key, tuple(Cell(str(value), value) for value in values))


def test_lines_sort_by_value_with_the_unknown_last() -> None:
    lines = [line("a", 9.0), line("b", None), line("c", 100.0), line("d", 20.0)]
    assert [item.key for item in sorted_lines(lines, 0)] == ["a", "d", "c", "b"]
    assert [item.key for item in sorted_lines(lines, 0, descending=True)] == ["c", "d", "a", "b"]


@given(st.lists(st.one_of(st.none(), st.floats(allow_nan=False), st.text(max_size=3)), max_size=20), st.booleans())
def test_sorting_loses_nothing_and_keeps_the_order_of_equals(
    values: list[float | str | None], descending: bool
) -> None:
    lines = [line(str(index), value) for index, value in enumerate(values)]
    found = sorted_lines(lines, 0, descending=descending)
    assert sorted(found) == sorted(lines)
    for one, other in itertools.pairwise(found):
        if one.cells[0].value == other.cells[0].value:
            assert int(one.key) < int(other.key)


def test_a_filter_takes_words_in_any_cell() -> None:
    lines = jobs_table(SHOWN).lines
    assert [item.key for item in filtered_lines(lines, "TEAM waiting")] == ["team/big"]
    assert len(filtered_lines(lines, "  ")) == 3
    assert filtered_lines(lines, "nothing-like-it") == []


@pytest.mark.parametrize(
    ("watts", "words"),
    [(None, "-"), (0, "0 W"), (412.4, "412 W"), (9_999, "9999 W"), (36_420, "36.4 kW"), (2_150_000, "2.15 MW")],
)
def test_watts_in_words(watts: float | None, words: str) -> None:
    assert watts_text(watts) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "-"), (-3, "0s"), (0.4, "0s"), (119, "119s"), (120, "2m"), (200, "3m20s"), (3599, "59m"), (7500, "2h5m"),
        (86400, "1d"), (273600, "3d4h"), (90 * 86400, "90d"),
    ],
)  # fmt: skip
def test_durations_in_words(seconds: float | None, words: str) -> None:
    assert duration_text(seconds) == words


def test_other_words() -> None:
    assert (energy_text(None), energy_text(820), energy_text(11_160)) == ("-", "820 kJ", "3.1 kWh")
    assert energy_text(3600 * 2400) == "2.40 MWh"
    assert (share_text(2, 3), share_text(None, 3), share_text(1, 0), share_text(0.999, 1)) == (
        "66%",
        "-",
        "-",
        "99%",
    )
    assert until_text(NOW - timedelta(minutes=3), NOW) == "3m ago"
    assert (age_text(None, NOW), yes_no_text(None), counted(1, "node"), counted(1200, "GPU")) == (
        "-", "?", "1 node", "1,200 GPUs",
    )  # fmt: skip


def test_a_node_of_which_a_gpu_says_nothing_draws_more_than_is_known() -> None:
    node = serving_node()
    del node["status"]["devices"][1]["powerMilliwatts"]
    cell = nodes_table(read_overview(NOW, gpu_nodes=[node])).lines[0].cells[3]
    assert (cell.text, cell.value, cell.tone) == (">272 W", 272.0, Tone.WARN)
