"""The app: caps above, jobs or nodes below, fresh every few seconds; no key ever waits for the network."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import ClassVar, Protocol

from flyball_api.event import EventView
from flyball_views.overview import Overview
from flyball_views.tables import Table, caps_table, jobs_table, nodes_table
from flyball_views.texts import age_text, counted, duration_text, watts_text
from flyball_views.why.cap import why_cap
from flyball_views.why.job import why_job
from flyball_views.why.node import why_node
from flyball_views.why.reasons import Explanation, NoSuchObject
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Footer, Input, Static

from flyball_cli.cluster.terminal_view.lines_table import LinesTable
from flyball_cli.cluster.terminal_view.screens import HelpScreen, WhyScreen
from flyball_cli.terminal.printing import in_one_line

HISTORY = 300  # readings of the whole draw behind the line above the tables
BARS = "▁▂▃▄▅▆▇█"
# Older than so many refreshes, the picture says how old it is.
STALE_REFRESHES = 3
KINDS = {"caps": "PowerCap", "nodes": "GPUNode", "jobs": "EnergyAwareJob"}
TABLES: dict[str, Callable[[Overview], Table]] = {"caps": caps_table, "jobs": jobs_table, "nodes": nodes_table}


class SourceError(Exception):
    """The cluster cannot be read now; one line says why."""


class OverviewSource(Protocol):
    """Where overviews come from."""

    async def overview(self) -> Overview:
        """The cluster now; raises SourceError."""
        ...

    async def events(self, kind: str, name: str, namespace: str) -> Sequence[EventView]:
        """The Events of one object lately; raises SourceError."""
        ...


class FlyballTop(App[None]):
    """`flyball top`."""

    TITLE = "flyball top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #summary { height: auto; padding: 0 1; }
    #draw { height: 1; padding: 0 1; }
    LinesTable { overflow-x: hidden; }
    #caps { height: auto; max-height: 8; border: round $primary; }
    #below { height: 1fr; border: round $primary; }
    #caps:focus, #below:focus { border: round $accent; }
    #filter { display: none; height: 1; border: none; padding: 0 1; }
    #filter.shown { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "show('jobs')", "Jobs"),
        Binding("n", "show('nodes')", "Nodes"),
        Binding("s", "sort(1)", "Sort"),
        Binding("S", "sort(-1)", "Sort back", show=False),
        Binding("r", "reverse", "Reverse"),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("escape", "all", "All", show=False),
        Binding("space", "hold", "Hold"),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("q", "quit", "Quit"),
        # As everywhere in a terminal, also while words are typed; Textual would only name the key that quits.
        Binding("ctrl+c", "quit", "Quit", show=False, priority=True),
    ]

    def __init__(
        self,
        source: OverviewSource,
        refresh_seconds: float = 2.0,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        first: str = "jobs",
    ) -> None:
        super().__init__()
        self._source = source
        self._refresh_seconds = refresh_seconds
        self._clock = clock
        nothing = Overview(clock())
        # Kept here: while an explanation is open, the screen under it is not the one that queries look at.
        self.caps = LinesTable(caps_table(nothing), widget_id="caps")
        self.below = LinesTable(TABLES[first](nothing), widget_id="below")
        self._summary_line = Static("", id="summary")
        self._draw_line = Static("", id="draw")
        self._filter_input = Input(placeholder="words that a line must have", id="filter", compact=True)
        self._overview: Overview | None = None
        self._error = ""
        self._held = False
        self._missed: Overview | None = None  # what has come while the picture was held
        self._draw: deque[float] = deque(maxlen=HISTORY)
        self._explained: tuple[str, str] | None = None
        self.looks = 0

    def compose(self) -> ComposeResult:
        yield self._summary_line
        yield self._draw_line
        yield self.caps
        yield self.below
        yield self._filter_input
        yield Footer()

    def on_mount(self) -> None:
        self.caps.border_title = "caps"
        self.below.focus()
        self._say()
        self.run_worker(self._look_for_ever(), exclusive=True, group="look")
        self.set_interval(1.0, self._say)

    @property
    def summary(self) -> str:
        """The first lines, as they stand."""
        return self._summary().plain

    # --- what is known ---------------------------------------------------------------------------------------------

    async def _look_for_ever(self) -> None:
        while True:
            try:
                found = await self._source.overview()
            except SourceError as error:
                self._error = str(error)
                self._say()
            else:
                self._error = ""
                if self._held:
                    self._missed = found
                else:
                    self._take(found)
            self.looks += 1
            await asyncio.sleep(self._refresh_seconds)

    def _take(self, overview: Overview) -> None:
        self._overview = overview
        if overview.totals.measured_watts is not None:
            self._draw.append(overview.totals.measured_watts)
        self._draw_line.update(self._history())
        self.caps.show_table(caps_table(overview))
        self.below.show_table(TABLES[self.below.table.name](overview))
        self._say()
        if self._explained is not None and isinstance(self.screen, WhyScreen):
            self.run_worker(self._explain(*self._explained), exclusive=True, group="why")

    def _say(self) -> None:
        self._summary_line.update(self._summary())
        below = self.below
        shown, whole = len(below.lines), len(below.table.lines)
        counts = str(whole) if shown == whole else f"{shown} of {whole}"
        words = f' with "{below.filter_words}"' if below.filter_words else ""
        below.border_title = f"{below.table.name} ({counts}){words}"

    def _history(self) -> Text:
        """What was drawn over the last looks, as bars from nothing to the highest cap (or what limits allow)."""
        overview = self._overview
        if overview is None or not self._draw:
            return Text()
        caps = [cap.in_force_watts for cap in overview.caps if cap.in_force_watts]
        most = max([*caps, *self._draw] if caps else [overview.totals.limit_watts or 0.0, *self._draw])
        words = f"  of {watts_text(most)}"
        room = max(1, self.size.width - 2 - len(words))
        latest = list(self._draw)[-room:]
        text = Text("".join(BARS[min(len(BARS) - 1, int(watts / (most or 1.0) * len(BARS)))] for watts in latest))
        text.append(words, style="dim")
        return text

    def _summary(self) -> Text:
        overview, now = self._overview, self._clock()
        if overview is None:
            return Text(in_one_line(self._error) or "reading the cluster ...", style="bold red" if self._error else "")
        text = Text()
        text.append(overview.time.astimezone().strftime("%H:%M:%S"), style="bold")
        age = (now - overview.time).total_seconds()
        if self._held:
            text.append(f"  held for {duration_text(age)}", style="bold yellow")
        elif age > STALE_REFRESHES * self._refresh_seconds + 1:
            text.append(f"  {duration_text(age)} old", style="bold red")
        text.append("  ")
        leader = overview.leader
        if leader is None:
            text.append("nobody can say who leads" if "leases" in overview.missing else "no operator has led yet",
                        style="yellow")  # fmt: skip
        elif leader.silent_at(overview.time):
            text.append(f"NO OPERATOR LEADS (last sign {age_text(leader.renewed, now)} ago)", style="bold red")
        else:
            text.append(in_one_line(f"{leader.holder} leads, epoch {leader.epoch}"))
        totals = overview.totals
        text.append(
            f"\n{counted(totals.gpus, 'GPU')}, {totals.gpus_in_jobs:,} in jobs, on {counted(totals.nodes, 'node')}"
            f" ({totals.ready_nodes:,} ready); {watts_text(totals.measured_watts)} drawn of"
            f" {watts_text(totals.limit_watts)} that limits allow"
        )
        states = ", ".join(f"{number} {state}" for state, number in totals.jobs.items())
        text.append(f"; jobs: {states}" if states else "; no jobs")
        for trouble in (self._error, *overview.problems, *overview.missing.values()):
            if trouble:
                text.append(f"\n{in_one_line(trouble)}", style="yellow")
        return text

    # --- keys ------------------------------------------------------------------------------------------------------

    def _chosen(self) -> LinesTable:
        return self.caps if self.caps.has_focus else self.below

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys of the tables are letters for the filter while that is open."""
        if action in ("show", "sort", "reverse", "hold", "help", "filter"):
            return not isinstance(self.focused, Input) and len(self.screen_stack) == 1
        return True

    def action_show(self, name: str) -> None:
        if self._overview is not None and self.below.table.name != name:
            self.below.show_only("")
            self._filter_input.value = ""
            self.below.show_table(TABLES[name](self._overview))
        self.below.focus()
        self._say()

    def action_sort(self, step: int) -> None:
        self._chosen().sort_next(step)

    def action_reverse(self) -> None:
        self._chosen().reverse()

    def action_filter(self) -> None:
        self._filter_input.add_class("shown")
        self._filter_input.focus()

    def action_all(self) -> None:
        self._filter_input.value = ""
        self._filter_input.remove_class("shown")
        self.below.show_only("")
        self.below.focus()
        self._say()

    def on_input_changed(self, event: Input.Changed) -> None:
        self.below.show_only(event.value)
        self._say()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.input.remove_class("shown")
        self.below.focus()

    def action_hold(self) -> None:
        self._held = not self._held
        if not self._held and self._missed is not None:
            missed, self._missed = self._missed, None
            self._take(missed)
        self._say()

    def action_help(self) -> None:
        self.push_screen(HelpScreen())

    def on_lines_table_opened(self, event: LinesTable.Opened) -> None:
        self._explained = (event.table, event.key)
        self.run_worker(self._explain(event.table, event.key), exclusive=True, group="why")

    async def _explain(self, table: str, key: str) -> None:
        """Open the explanation at once, by what is known; and again with the events, when they have come."""
        try:
            self._show_why(self._explanation(table, key, ()))
            namespace, _, name = key.rpartition("/")
            events = await self._source.events(KINDS[table], name, namespace)
            self._show_why(self._explanation(table, key, events))
        except NoSuchObject as error:
            self.notify(str(error), severity="warning")
        except SourceError:
            return  # the first line says so, and the reasons stand without their events

    def _show_why(self, explanation: Explanation) -> None:
        if isinstance(self.screen, WhyScreen):
            self.screen.show(explanation)
        elif self._explained is not None:
            self.push_screen(WhyScreen(explanation), lambda _: self._forget())

    def _forget(self) -> None:
        self._explained = None

    def _explanation(self, table: str, key: str, events: Sequence[EventView]) -> Explanation:
        overview = self._overview or Overview(self._clock())
        if table == "caps":
            return why_cap(overview, key, events)
        if table == "nodes":
            return why_node(overview, key, events)
        namespace, _, name = key.partition("/")
        return why_job(overview, namespace, name, events)
