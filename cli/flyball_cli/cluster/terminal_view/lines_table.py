"""A table of thousands of lines of which only those on the screen are drawn, with a cursor that stays with its object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from flyball_views.tables import Cell, Column, Line, Table, Tone, filtered_lines, sorted_lines
from flyball_views.texts import UNKNOWN
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.events import Click
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from flyball_cli.terminal.printing import in_one_line

GAP = "  "
WIDEST_COLUMN = 40  # but for the last, which takes what is left
STYLES = {
    Tone.PLAIN: Style(),
    Tone.GOOD: Style(color="green"),
    Tone.WARN: Style(color="yellow"),
    Tone.BAD: Style(color="red", bold=True),
    Tone.FAINT: Style(dim=True),
}
HEADER = Style(bold=True)
CURSOR = Style(reverse=True)


class LinesTable(ScrollView, can_focus=True):
    """Shows a `Table`, sorted and filtered. A new table of the same kind leaves cursor, order and filter as they are."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Up", show=False),
        Binding("down", "move(1)", "Down", show=False),
        Binding("pageup", "move_page(-1)", "Page up", show=False),
        Binding("pagedown", "move_page(1)", "Page down", show=False),
        Binding("home,g", "move_to_end(-1)", "First", show=False),
        Binding("end,G", "move_to_end(1)", "Last", show=False),
        Binding("enter", "open", "Why"),
    ]

    class Opened(Message):
        """Somebody wants to know more of the object under the cursor."""

        def __init__(self, table: str, key: str) -> None:
            super().__init__()
            self.table = table
            self.key = key

    def __init__(self, table: Table, *, widget_id: str) -> None:
        super().__init__(id=widget_id)
        self._table = table
        self._lines: list[Line] = []
        self._widths: list[int] = []
        self._words = ""
        self._key: str | None = None  # the object under the cursor
        self._cursor = 0
        self.sort_column: int | None = None
        self.descending = False
        self._arrange()

    # --- what is shown -------------------------------------------------------------------------------------------

    @property
    def lines(self) -> Sequence[Line]:
        """The lines as they are shown, filtered and in order."""
        return self._lines

    @property
    def cursor_key(self) -> str | None:
        """The key of the line under the cursor; None where there is no line."""
        return self._lines[self._cursor].key if self._lines else None

    @property
    def table(self) -> Table:
        return self._table

    @property
    def filter_words(self) -> str:
        return self._words

    def show_table(self, table: Table) -> None:
        """Show another state, or another table."""
        if table.name != self._table.name:
            self.sort_column, self.descending, self._key, self._cursor = None, False, None, 0
        self._table = table
        self._arrange()

    def show_only(self, words: str) -> None:
        """Show the lines that have all of these words."""
        self._words = words
        self._arrange()

    def sort_next(self, step: int = 1) -> None:
        """Sort by the next column, after the last by none: figures the largest first, words from A."""
        columns = self._table.columns
        position = (-1 if self.sort_column is None else self.sort_column) + step
        self.sort_column = position if 0 <= position < len(columns) else len(columns) - 1 if position < -1 else None
        self.descending = self.sort_column is not None and columns[self.sort_column].right
        self._arrange()

    def reverse(self) -> None:
        self.descending = not self.descending
        self._arrange()

    def _arrange(self) -> None:
        columns, lines = self._table.columns, filtered_lines(self._table.lines, self._words)
        if self.sort_column is not None:
            lines = sorted_lines(lines, self.sort_column, descending=self.descending)
        self._lines = lines
        self._cursor = self._place_of(self._key)
        self._widths = _widths(self._table.columns, self._table.lines)
        if self.sort_column is not None:
            self._widths[self.sort_column] = max(
                self._widths[self.sort_column], len(columns[self.sort_column].title) + 1
            )
        self.virtual_size = Size(0, len(lines) + 1)
        if self.is_mounted:
            self._keep_in_sight()
            self.refresh()

    def _place_of(self, key: str | None) -> int:
        """Where the object is now; where it has gone, the place that it had."""
        for index, line in enumerate(self._lines):
            if line.key == key:
                return index
        return max(0, min(self._cursor, len(self._lines) - 1))

    # --- the cursor ----------------------------------------------------------------------------------------------

    def action_move(self, step: int) -> None:
        self._move_to(self._cursor + step)

    def action_move_page(self, pages: int) -> None:
        self._move_to(self._cursor + pages * max(1, self.size.height - 2))

    def action_move_to_end(self, end: int) -> None:
        self._move_to(0 if end < 0 else len(self._lines) - 1)

    def action_open(self) -> None:
        if self.cursor_key is not None:
            self.post_message(self.Opened(self._table.name, self.cursor_key))

    def on_click(self, event: Click) -> None:
        line = event.y - 1 + round(self.scroll_offset.y)
        if event.y >= 1 and line < len(self._lines):
            self._move_to(line)
            if event.chain > 1:
                self.action_open()

    def _move_to(self, place: int) -> None:
        if not self._lines:
            return
        self._cursor = max(0, min(place, len(self._lines) - 1))
        self._key = self._lines[self._cursor].key
        self._keep_in_sight()
        self.refresh()

    def _keep_in_sight(self) -> None:
        room = max(1, self.size.height - 1)
        top = round(self.scroll_offset.y)
        if self._cursor < top:
            self.scroll_to(y=self._cursor, animate=False)
        elif self._cursor >= top + room:
            self.scroll_to(y=self._cursor - room + 1, animate=False)

    # --- drawing -------------------------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        """One line of the screen; the titles stand still above the lines that scroll."""
        base = self.rich_style
        if y == 0:
            return self._drawn([Segment(title, base + HEADER) for title in self._titles()], base)
        place = y - 1 + round(self.scroll_offset.y)
        if place >= len(self._lines):
            empty = "nothing has all of these words" if self._words else "there are none"
            return self._drawn([Segment(empty if place == 0 else "", base + STYLES[Tone.FAINT])], base)
        under_cursor = place == self._cursor and self.has_focus
        last = len(self._widths) - 1
        segments = []
        for index, (cell, width, column) in enumerate(
            zip(self._lines[place].cells, self._widths, self._table.columns, strict=True)
        ):
            if not width:
                continue
            style = base + (CURSOR if under_cursor else STYLES[cell.tone])
            shown = _fitted(cell, width, column) if index < last else in_one_line(cell.text)
            segments.append(Segment(shown + (GAP if index < last else ""), style))
        return self._drawn(segments, base + CURSOR if under_cursor else base)

    def _titles(self) -> list[str]:
        words = []
        for index, (column, width) in enumerate(zip(self._table.columns, self._widths, strict=True)):
            if not width:
                continue
            mark = ("▼" if self.descending else "▲") if index == self.sort_column else ""
            title = f"{column.title}{mark}"
            words.append((title.rjust(width) if column.right else title.ljust(width)) + GAP)
        return words

    def _drawn(self, segments: list[Segment], rest: Style) -> Strip:
        return Strip(segments).adjust_cell_length(self.size.width, rest)


def _widths(columns: Sequence[Column], lines: Sequence[Line]) -> list[int]:
    """As wide as the widest cell of all lines, those that a filter hides too, so that nothing jumps.

    A column of which nobody knows anything is left out (0): not every cluster has deadlines and budgets.
    """
    widths = [len(column.title) + 1 for column in columns]
    for line in lines:
        for index, cell in enumerate(line.cells):
            if len(cell.text) > widths[index]:
                widths[index] = len(cell.text)
    known = [not lines or any(line.cells[index].text != UNKNOWN for line in lines) for index in range(len(columns))]
    return [min(width, WIDEST_COLUMN) if shown else 0 for width, shown in zip(widths, known, strict=True)]


def _fitted(cell: Cell, width: int, column: Column) -> str:
    text = in_one_line(cell.text)
    text = text if len(text) <= width else text[: width - 1] + "…"
    return text.rjust(width) if column.right else text.ljust(width)
