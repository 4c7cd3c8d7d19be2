"""What opens over the tables: why an object stands as it does, and the help."""

from __future__ import annotations

from typing import ClassVar

from flyball_views.why.reasons import Explanation
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from flyball_cli.terminal.printing import explanation_text

HELP = """flyball top

  j n           jobs, nodes            tab      caps, or the list below
  s S           sort by the next, the last column; r turns the order round
  /             show only lines that have these words; escape shows all again
  enter         why: reasons in order, each with what would change it
  up down       and page up, page down, home (g), end (G)
  space         hold the picture still, and go on
  ?             this help
  q, Ctrl-C     quit

Watts of caps and jobs are as the operator last wrote them; the first line says
who leads and since when nothing was heard. A ">" before a node's watts: some of
its GPUs say nothing. A "~": the model's estimate, for the training does not report.

COMMITTED is the most that limits allow, now or by a grant that is under way;
MEASURED is what is drawn. A cap is held while COMMITTED is not above IN FORCE.
"""


class TextScreen(ModalScreen[None]):
    """A text over everything else, which any of escape, q, enter closes."""

    DEFAULT_CSS = """
    TextScreen { align: center middle; }
    TextScreen > VerticalScroll { width: 90%; max-width: 110; height: auto; max-height: 90%; border: round $primary;
                                  padding: 0 1; background: $surface; }
    TextScreen Static { width: 100%; height: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter", "close", "Close")]

    def __init__(self, text: str, title: str = "") -> None:
        super().__init__()
        self._text = text
        self._title = title

    def compose(self) -> ComposeResult:
        with VerticalScroll() as scroll:
            scroll.border_title = self._title
            scroll.border_subtitle = "escape closes"
            yield Static(Text(self._text), id="text")

    @property
    def text(self) -> str:
        return self._text

    def show_text(self, text: str) -> None:
        self._text = text
        for shown in self.query("#text").results(Static):  # none before it is composed, and while it is taken down
            shown.update(Text(text))

    def action_close(self) -> None:
        self.dismiss()


class HelpScreen(TextScreen):
    """The keys, and what the figures mean."""

    def __init__(self) -> None:
        super().__init__(HELP, "help")


class WhyScreen(TextScreen):
    """Why one object stands as it does, kept up to date while it is open."""

    def __init__(self, explanation: Explanation) -> None:
        super().__init__(explanation_text(explanation, width=104), f"why {explanation.name}")

    def show(self, explanation: Explanation) -> None:
        self.show_text(explanation_text(explanation, width=104))
