"""The terminal view: its keys, what it says when things are old, and a thousand nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from flyball_api.event import EventView
from flyball_cli.cluster.terminal_view.app import FlyballTop, SourceError
from flyball_cli.cluster.terminal_view.screens import HelpScreen, TextScreen, WhyScreen
from flyball_cli.cluster.top import OverviewOutput, printed
from flyball_cli.terminal.printing import table_text
from flyball_views.overview import Overview, read_overview
from flyball_views.tables import jobs_table
from textual.pilot import Pilot

from tests.support.shown_cluster import NOW, cluster, large_cluster, lease, running_job, waiting_job
from tests.support.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class FakeSource:
    """A cluster of the test's own: a look that comes when there is nothing new waits for `show` or `fail`."""

    def __init__(self, shown: Overview, events: Sequence[EventView] = ()) -> None:
        self._shown = shown
        self._error = ""
        self._news = asyncio.Event()
        self._news.set()
        self.said = events

    def show(self, shown: Overview) -> None:
        self._shown, self._error = shown, ""
        self._news.set()

    def fail(self, error: str) -> None:
        self._error = error
        self._news.set()

    async def overview(self) -> Overview:
        await self._news.wait()
        self._news.clear()
        if self._error:
            raise SourceError(self._error)
        return self._shown

    async def events(self, kind: str, name: str, namespace: str) -> Sequence[EventView]:
        return self.said


def small(**changes: Any) -> Overview:
    return read_overview(NOW, **{**cluster(), **changes})


@asynccontextmanager
async def running(
    source: FakeSource, size: tuple[int, int] = (140, 40), first: str = "jobs", late_seconds: float = 0.0
) -> AsyncIterator[tuple[FlyballTop, Pilot[None]]]:
    app = FlyballTop(source, 0.01, clock=lambda: NOW + timedelta(seconds=late_seconds), first=first)
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: app.looks > 0)
        yield app, pilot


async def until(pilot: Pilot[None], holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():
            await pilot.pause()
            await asyncio.sleep(0.01)


async def next_look(app: FlyballTop, pilot: Pilot[None]) -> None:
    """Wait until what the source has to show has been taken in; right after the source was given it."""
    looks = app.looks
    await until(pilot, lambda: app.looks > looks)
    await pilot.pause()


def keys(app: FlyballTop) -> list[str]:
    return [line.key for line in app.below.lines]


def text_of(app: FlyballTop, kind: type[TextScreen]) -> str:
    """What a screen of that kind says; nothing while another is shown."""
    shown: object = app.screen
    return shown.text if isinstance(shown, kind) else ""


def screen_text(app: FlyballTop) -> str:
    """All that stands on the screen."""
    return "\n".join("".join(segment.text for segment in strip) for strip in app.screen._compositor.render_strips())


async def test_the_first_picture() -> None:
    async with running(FakeSource(small())) as (app, pilot):
        await pilot.pause()
        text = screen_text(app)
        assert "operator-1 leads, epoch 1" in text
        assert "4 GPUs, 1 in jobs, on 2 nodes (1 ready); 388 W drawn of 400 W that limits allow" in text
        for words in ("row-a", "WaitingForAcknowledgements", "train", "1395 MHz", "25%", "WaitingForPower"):
            assert words in text
        assert keys(app) == ["other/done", "team/big", "team/train"]


async def test_keys_choose_sort_and_turn_round() -> None:
    async with running(FakeSource(small())) as (app, pilot):
        await pilot.press("n")
        assert keys(app) == ["node-a", "node-b"]
        await pilot.press("j", "s", "s", "s", "s")  # the fourth column: GPUs, the most first
        assert app.below.table.columns[app.below.sort_column or 0].title == "GPUS"
        assert keys(app)[0] == "team/train"
        await pilot.press("r")
        assert keys(app)[-1] == "team/train"
        await pilot.press("S")
        assert app.below.table.columns[app.below.sort_column or 0].title == "STATE"
        assert keys(app) == ["team/train", "other/done", "team/big"]


async def test_sorting_goes_round_to_no_order_at_all() -> None:
    async with running(FakeSource(small())) as (app, pilot):
        await pilot.press(*"s" * len(app.below.table.columns))
        assert app.below.sort_column == len(app.below.table.columns) - 1
        await pilot.press("s")
        assert app.below.sort_column is None
        await pilot.press("S")
        assert app.below.sort_column == len(app.below.table.columns) - 1


async def test_a_filter_takes_letters_that_are_keys_elsewhere_and_goes_by_escape() -> None:
    async with running(FakeSource(small())) as (app, pilot):
        await pilot.press("slash", *"running")  # n, r and s among them
        assert keys(app) == ["team/train"]
        assert app.below.filter_words == "running"
        await pilot.press("enter")
        assert app.below.has_focus
        assert '(1 of 3) with "running"' in str(app.below.border_title)
        await pilot.press("escape")
        assert len(keys(app)) == 3


async def test_enter_says_why_and_goes_on_saying_it() -> None:
    said = EventView("EnergyAwareJob", "big", "team", "Preempted", "watts went elsewhere", False, NOW)
    source = FakeSource(small(), [said])
    async with running(source) as (app, pilot):
        await pilot.press("down", "enter")
        await until(pilot, lambda: "watts went elsewhere" in text_of(app, WhyScreen))
        assert "not even 4 GPUs at the lowest clock fit" in text_of(app, WhyScreen)
        changed = waiting_job()
        changed["status"]["conditions"][0]["message"] = "only 300 W are missing now"
        source.show(small(jobs=[running_job(), changed]))
        await until(pilot, lambda: "only 300 W are missing" in text_of(app, TextScreen))
        await pilot.press("escape")
        assert len(app.screen_stack) == 1
        source.show(small())
        await next_look(app, pilot)
        assert len(app.screen_stack) == 1  # what was closed stays closed


async def test_a_look_that_comes_while_why_is_taken_down_ends_nothing() -> None:
    """As when somebody quits with it open: its parts go first."""
    source = FakeSource(small())
    async with running(source) as (app, pilot):
        await pilot.press("down", "enter")
        await until(pilot, lambda: isinstance(app.screen, WhyScreen))
        await app.screen.remove_children()
        for _ in range(2):  # the second comes once the first has been shown
            source.show(small())
            await next_look(app, pilot)


async def test_why_of_a_cap_and_of_a_node() -> None:
    async with running(FakeSource(small())) as (app, pilot):
        await pilot.press("shift+tab", "enter")
        await until(pilot, lambda: isinstance(app.screen, WhyScreen))
        assert "PowerCap cluster" in app.screen.text  # type: ignore[attr-defined]
        await pilot.press("q", "n", "down", "enter")
        await until(pilot, lambda: isinstance(app.screen, WhyScreen))
        assert "GPUNode node-b" in app.screen.text  # type: ignore[attr-defined]


@pytest.mark.parametrize("before", [(), ("slash", "t"), ("question_mark",)])
async def test_ctrl_c_quits_wherever_one_is(before: tuple[str, ...]) -> None:
    async with running(FakeSource(small())) as (app, pilot):
        await pilot.press(*before)
        await pilot.press("ctrl+c")
        await until(pilot, lambda: not app.is_running)
    assert app.return_code == 0


async def test_help_opens_and_closes() -> None:
    async with running(FakeSource(small())) as (app, pilot):
        await pilot.press("question_mark")
        assert isinstance(app.screen, HelpScreen)
        await pilot.press("q")
        assert len(app.screen_stack) == 1


async def test_the_cursor_stays_with_its_object() -> None:
    source = FakeSource(small())
    async with running(source) as (app, pilot):
        await pilot.press("down", "down")
        assert app.below.cursor_key == "team/train"
        source.show(small(jobs=[running_job()]))
        await next_look(app, pilot)
        assert app.below.cursor_key == "team/train"
        source.show(small())
        await next_look(app, pilot)
        assert app.below.cursor_key == "team/train"


async def test_what_is_held_stays_and_says_for_how_long() -> None:
    source = FakeSource(small())
    async with running(source, late_seconds=30) as (app, pilot):
        await pilot.press("space")
        source.show(small(jobs=[]))
        await next_look(app, pilot)
        assert len(keys(app)) == 3
        assert "held for 30s" in app.summary
        await pilot.press("space")
        assert not keys(app)  # what has come meanwhile


async def test_when_the_cluster_cannot_be_read_the_old_picture_says_how_old_it_is() -> None:
    source = FakeSource(small())
    async with running(source, late_seconds=45) as (app, pilot):
        source.fail("nothing has come from the API server for 91 s")
        await next_look(app, pilot)
        assert "45s old" in app.summary
        assert "nothing has come from the API server for 91 s" in app.summary
        assert len(keys(app)) == 3


async def test_an_error_before_the_first_picture() -> None:
    source = FakeSource(small())
    source.fail("the API server has not given every list within 20 s")
    async with running(source) as (app, _pilot):
        assert app.summary == "the API server has not given every list within 20 s"


async def test_without_a_leader_that_is_said_first() -> None:
    source = FakeSource(small(lease=lease(renewed="2030-06-01T11:50:00Z")))
    async with running(source) as (app, _pilot):
        assert "NO OPERATOR LEADS (last sign 10m ago)" in app.summary
    async with running(FakeSource(small(lease=None, missing={"leases": "you have no right to get leases"}))) as (
        app,
        _,
    ):
        assert "nobody can say who leads" in app.summary
        assert "you have no right to get leases" in app.summary


@pytest.mark.slow
async def test_a_thousand_nodes_draw_only_what_is_on_the_screen() -> None:
    source = FakeSource(read_overview(NOW, **large_cluster(1000, 300)))
    async with running(source, first="nodes") as (app, pilot):
        assert len(keys(app)) == 1000
        drawn: set[int] = set()
        whole = app.below.render_line

        def counting(y: int) -> Any:
            drawn.add(round(app.below.scroll_offset.y) + y)
            return whole(y)

        app.below.render_line = counting  # type: ignore[method-assign]
        await pilot.press("end")
        await pilot.pause()
        assert app.below.cursor_key == "gpu-0999"
        assert 0 < len(drawn) <= 3 * 40  # the screens of before and after, not the thousand between them
        await pilot.press("slash", *"gpu-0042", "enter")
        assert keys(app) == ["gpu-0042"]
        await pilot.press("escape", "s", "s", "s", "s")  # watts, the most first
        assert keys(app)[0] == "gpu-0999"
        await pilot.press("home")
        assert app.below.cursor_key == "gpu-0999"


async def test_a_small_terminal_still_shows_the_tables() -> None:
    async with running(FakeSource(small()), size=(60, 16)) as (app, pilot):
        await pilot.pause()
        assert "CAP" in screen_text(app)
        assert "NAMESPACE" in screen_text(app)


async def test_no_color_means_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with running(FakeSource(small())) as (app, pilot):
        await pilot.pause()
        colours = {
            segment.style.color.triplet
            for strip in app.screen._compositor.render_strips()
            for segment in app_filtered(app, strip)
            if segment.style is not None and segment.style.color is not None and segment.style.color.triplet
        }
        assert all(red == green == blue for red, green, blue in colours)


def app_filtered(app: FlyballTop, strip: Any) -> Any:
    return strip.apply_filter(app._filters[0], app.screen.background_colors[1]) if app._filters else strip


# --- once --------------------------------------------------------------------------------------------------------------


def test_plain_tables() -> None:
    text = printed(small(missing={"nodes": "you have no right to list nodes"}), OverviewOutput.TABLE)
    blocks = text.split("\n\n")
    assert blocks[0].splitlines()[0].split() == [
        "CAP", "IN", "FORCE", "TARGET", "COMMITTED", "MEASURED", "HEADROOM", "NODES", "ENFORCED", "SINCE", "WHY",
    ]  # fmt: skip
    assert "cluster" in blocks[0].splitlines()[1]
    assert blocks[-1] == "not looked at: you have no right to list nodes"
    assert "\x1b" not in text


def test_json_is_the_overview() -> None:
    found = small()
    assert msgspec.json.decode(printed(found, OverviewOutput.JSON), type=Overview) == found


def test_only_the_last_column_is_cut_to_the_terminal() -> None:
    table = jobs_table(small())
    cut = table_text(table, width=150).splitlines()
    assert all(len(line) <= 150 for line in cut)
    assert cut[-1].endswith("…")
    assert "1395 MHz" in cut[-1]
    assert table_text(table).splitlines()[-1].endswith("a second GPU would pass the cap row-a")


def test_nothing_to_show() -> None:
    assert printed(read_overview(NOW), OverviewOutput.TABLE) == "no caps\n\nno nodes\n\nno jobs"
