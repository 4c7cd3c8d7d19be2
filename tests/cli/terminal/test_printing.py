"""What is printed drives no terminal, whoever has written it."""

from __future__ import annotations

from datetime import UTC, datetime

from flyball_cli.cluster.terminal_view.lines_table import LinesTable
from flyball_cli.terminal.printing import columns_text, explanation_text, harmless
from flyball_views.tables import Cell, Column, Line, Table
from flyball_views.why.reasons import Explanation, Reason, Weight
from hypothesis import given
from hypothesis import strategies as st
from textual.app import App, ComposeResult

NOW = datetime(2030, 6, 1, 12, 0, 0, tzinfo=UTC)
CLEAR = "\x1b[2J\x9b2J\x1b]52;c;cm0=\x07"
SHOWN = r"\x1b[2J\x9b2J\x1b]52;c;cm0=\x07"


@given(st.text(st.characters(), max_size=60))
def test_nothing_that_drives_a_terminal_is_left(text: str) -> None:
    shown = harmless(text)
    assert all(character == "\t" or ord(character) >= 0x20 for character in shown)
    assert not set(shown) & {chr(code) for code in (*range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))}


def test_an_ordinary_text_stays_as_it_is() -> None:
    assert harmless("größer\t→ 8 GPUs, 電力 🔋") == "größer\t→ 8 GPUs, 電力 🔋"


def test_tables_and_explanations_show_what_would_be_done() -> None:
    table = columns_text([["NODE", "WHY"], [CLEAR, "two\nlines"]], [False, False])
    assert [line.split(maxsplit=1) for line in table.splitlines()[1:]] == [[SHOWN, "two lines"]]
    text = explanation_text(
        Explanation("GPUNode", "a", NOW, CLEAR, (Reason(Weight.STOPS, CLEAR, CLEAR),), (), (CLEAR,))
    )
    assert text.count(SHOWN) == 4
    assert "\x1b" not in text


async def test_the_view_shows_what_would_be_done() -> None:
    table = Table("nodes", (Column("NODE"), Column("WHY")), (Line("a", (Cell(CLEAR), Cell(CLEAR))),))

    class View(App[None]):
        def compose(self) -> ComposeResult:
            yield LinesTable(table, widget_id="nodes")

    async with View().run_test(size=(120, 10)) as pilot:
        drawn = pilot.app.query_one(LinesTable).render_line(1).text
    assert drawn.count(r"\x1b[2J") == 2
    assert "\x1b" not in drawn
