"""The page in Chromium: what it shows, dark and light, by keyboard, with a thousand nodes, and when things go wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from flyball_kube.errors import ApiUnreachable
from flyball_page.access import Unauthenticated, Viewer

from tests.support.browser import PATIENCE_MILLISECONDS, Seen, chromium, go_to, playwright_error
from tests.support.shown_page import (
    MadeDocuments,
    fill_history,
    large_cluster,
    large_page,
    served_page,
    small_page,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

# Of the text and what is behind it: WCAG 2.2, 1.4.3 (AA).
LEAST_CONTRAST = 4.5
OPENED = Callable[..., Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@contextmanager
def opened(
    browser: Any, made: MadeDocuments, path: str = "", *, find_viewer: Any = None, **context: Any
) -> Iterator[tuple[Any, Seen, str]]:
    """The page of made documents: it, what it does, and its address. Afterwards nothing may have gone wrong in it."""
    seen = Seen()
    with served_page(made, find_viewer) as address:
        page = browser.new_page(viewport={"width": 1400, "height": 1000}, **context)
        page.set_default_timeout(PATIENCE_MILLISECONDS)
        seen.follow(page)
        try:
            go_to(page, address + path)
            yield page, seen, address
            assert seen.elsewhere(address) == []
        except playwright_error() as error:
            shown = page.evaluate("document.body.innerText")
            raise AssertionError(f"{error}\nThe console said {seen.console}; to be seen was:\n{shown}") from error
        finally:
            page.close()


def of_now(made: MadeDocuments) -> MadeDocuments:
    """The same as if it were seen now."""
    made.view = msgspec.structs.replace(made.view, time=datetime.now(UTC))
    made.leader_seen = made.view.time.timestamp() + 3600  # however long a busy machine takes for a test
    fill_history(made, {cap.name: cap.in_force_watts or 0 for cap in made.view.caps})
    return made


def holds(page: Any, condition: str) -> None:
    """Return once a JavaScript condition holds; the page's own policy forbids Playwright's way, which evaluates in it."""

    def asked() -> bool:
        try:
            return bool(page.evaluate(condition))
        except playwright_error():  # of a page that is being loaded again
            return False

    wait_until(asked, lambda: f"{condition}; to be seen is:\n{page.evaluate('document.body.innerText')}")


@pytest.fixture
def small() -> MadeDocuments:
    return of_now(small_page())


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_shows_caps_nodes_jobs_and_events_without_a_complaint(
    browser: Any, small: MadeDocuments, scheme: str
) -> None:
    with opened(browser, small, "#job=team/train", color_scheme=scheme) as (page, seen, _):
        page.wait_for_selector("#job-detail svg.frontier")
        assert page.locator(".cap").count() == 2
        assert "being enforced" in page.locator(".cap", has_text="cluster").inner_text()
        assert "✓ enforced" in page.locator(".cap", has_text="row-a").inner_text()
        assert "1 waiting for an acknowledgement" in page.locator("#node-states").inner_text()
        assert page.locator("#job-table tbody tr").count() == 2  # the finished one is not shown until asked for
        assert "~" not in page.locator("#job-table tbody tr", has_text="train").inner_text()
        assert "a second GPU would pass the cap row-a" in page.locator("#job-detail").inner_text()
        assert page.locator("#event-list li.warning").count() == 1
        assert seen.complaints == []
        ground = page.evaluate("getComputedStyle(document.body.parentElement).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 200) is (scheme == "dark")


def test_who_may_not_see_what_was_learned_is_told_why_the_frontier_has_ends_alone(
    browser: Any, small: MadeDocuments
) -> None:
    shown = small.job
    with opened(browser, small, "#job=team/train") as (page, _, _):
        page.wait_for_selector("#job-detail svg.frontier")
        assert page.locator("#job-detail svg.frontier > .frontier-point").count() == 3
        assert "Drawn are the fastest" not in page.locator("#job-detail").inner_text()
    small.job = lambda namespace, name, profiles: shown(namespace, name, profiles=False)  # type: ignore[method-assign]
    with opened(browser, small, "#job=team/train") as (page, seen, _):
        page.wait_for_selector("#job-detail svg.frontier")
        assert page.locator("#job-detail svg.frontier > .frontier-point").count() == 2
        said = page.locator("#job-detail").inner_text()
        assert "Drawn are the fastest and the thriftiest of 3 choices" in said
        assert "you may not list energyprofiles" in said
        assert seen.complaints == []


CONTRASTS = """() => {
  const luminance = ([r, g, b]) => {
    const linear = (share) => share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    const part = (value) => linear(value / 255);
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const parse = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const behind = (node) => {
    for (let each = node; each; each = each.parentElement) {
      const colour = parse(getComputedStyle(each).backgroundColor);
      if (colour.length && colour[3] !== 0) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !node.checkVisibility() || node.closest("noscript, script")) continue;
    const style = getComputedStyle(node);
    const [one, other] = [luminance(parse(node.closest("svg") ? style.fill : style.color)), luminance(behind(node))];
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    found.push([contrast, node.tagName, walker.currentNode.textContent.trim().slice(0, 40)]);
  }
  return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_told_from_what_is_behind_it(browser: Any, small: MadeDocuments, scheme: str) -> None:
    with opened(browser, small, "#job=team/train", color_scheme=scheme) as (page, _, _):
        page.wait_for_selector("#job-detail svg.frontier")
        measured = page.evaluate(CONTRASTS)
    assert len(measured) > 100
    assert [found for found in measured if found[0] < LEAST_CONTRAST] == []


def test_everything_that_takes_input_has_a_name(browser: Any, small: MadeDocuments) -> None:
    unnamed = """() => [...document.querySelectorAll("button, input, select, canvas, a, svg[role=img]")]
        .filter((node) => node.checkVisibility())
        .filter((node) => !node.textContent.trim() && !node.getAttribute("aria-label") && !node.labels?.length)
        .map((node) => node.outerHTML)"""
    with opened(browser, small, "#job=team/train") as (page, _, _):
        page.wait_for_selector("#job-detail svg.frontier")
        assert page.evaluate(unnamed) == []
        assert page.locator("h1").count() == 1
        label = "document.querySelector('#node-map').getAttribute('aria-label')"
        holds(page, f"{label}.startsWith('Map of 2 nodes: 1 well, 1 waiting')")


def test_the_switch_goes_before_the_system_and_is_remembered(browser: Any, small: MadeDocuments) -> None:
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    with opened(browser, small, color_scheme="light") as (page, _, _):
        page.wait_for_selector(".cap")
        light = page.evaluate(ground)
        page.keyboard.press("t")
        dark = page.evaluate(ground)
        assert dark != light
        assert page.locator("#theme").inner_text() == "Theme: dark"
        page.reload()
        assert page.evaluate(ground) == dark
        page.keyboard.press("t")
        assert page.evaluate(ground) == light


def test_all_of_it_can_be_done_by_keyboard(browser: Any, small: MadeDocuments) -> None:
    with opened(browser, small) as (page, seen, _):
        page.wait_for_selector("#job-table tbody tr")
        focused = "document.activeElement.id"
        page.keyboard.press("2")
        assert page.evaluate(focused) == "node-map"
        assert page.locator("#node-said").inner_text().startswith("node-a: well")
        page.keyboard.press("ArrowDown")
        assert page.locator("#node-said").inner_text().startswith("node-b: waiting for an acknowledgement")
        page.keyboard.press("Enter")
        page.wait_for_selector("#node-detail table")
        assert "node-b" in page.locator("#node-detail h3").inner_text()
        page.keyboard.press("Escape")
        assert page.locator("#node-detail").is_hidden()

        page.keyboard.press("/")
        assert page.evaluate(focused) == "job-search"
        page.keyboard.type("waitingforpower 400")
        holds(page, "document.querySelectorAll('#job-table tbody tr').length === 1")
        page.keyboard.press("Tab")  # to the box of finished ones
        page.keyboard.press("Space")
        page.locator("#job-search").fill("")
        holds(page, "document.querySelectorAll('#job-table tbody tr').length === 3")
        page.locator("#job-table a", has_text="train").focus()
        page.keyboard.press("Enter")
        page.wait_for_selector("#job-detail svg.frontier")
        assert page.evaluate("location.hash") == "#job=team/train"
        page.keyboard.press("Escape")
        assert page.locator("#job-detail").is_hidden()
        assert page.evaluate("document.activeElement.textContent") == "train"

        holds(page, "document.querySelector('#power-said').textContent.includes('measured')")
        page.locator("#power-chart").focus()
        page.keyboard.press("End")
        last = page.locator("#power-said").inner_text()
        page.keyboard.press("Home")
        assert page.locator("#power-said").inner_text() != last
        page.keyboard.press("?")
        assert page.locator("#keys").is_visible()
        page.keyboard.press("Escape")
        assert page.locator("#keys").is_hidden()
        assert seen.complaints == []


def test_a_sorted_table_stays_sorted_and_unknown_is_last(browser: Any, small: MadeDocuments) -> None:
    names = "[...document.querySelectorAll('#job-table tbody th a')].map((each) => each.textContent)"
    with opened(browser, small) as (page, _, _):
        page.wait_for_selector("#job-table tbody tr")
        for expected in (["train", "big"], ["train", "big"]):  # rising and falling: `big` draws nothing that is known
            page.locator("#job-table thead button", has_text="draws").click()
            assert page.evaluate(names) == expected
        page.locator("#job-table thead button", has_text="job").click()
        assert page.evaluate(names) == ["big", "train"]
        rounds = small.asked["jobs"]
        wait_until(lambda: small.asked["jobs"] > rounds + 1, "two more rounds")
        assert page.evaluate(names) == ["big", "train"]


def test_what_people_wrote_is_shown_as_text(browser: Any, small: MadeDocuments) -> None:
    bad = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    small.view = msgspec.structs.replace(
        small.view, jobs=tuple(msgspec.structs.replace(job, why=bad) for job in small.view.jobs), problems=(bad,)
    )
    with opened(browser, small) as (page, seen, _):
        page.wait_for_selector("#job-table tbody tr")
        assert page.locator("#job-table td.why").first.inner_text() == bad
        assert page.locator("main img, main script, #notices img").count() == 0
        assert seen.complaints == []


def test_without_an_operator_no_cap_is_called_enforced(browser: Any, small: MadeDocuments) -> None:
    small.leader_seen = small.view.time.timestamp() - 600
    with opened(browser, small) as (page, _, _):
        page.wait_for_selector(".cap")
        holds(page, "document.querySelector('#operator').textContent.includes('no operator since')")
        card = page.locator(".cap", has_text="row-a").inner_text()
        assert "nobody knows" in card
        assert "it was enforced then" in card
        assert "✓ enforced" not in page.locator("#caps").inner_text()


def test_a_server_that_is_gone_is_said_to_be_and_what_is_shown_to_be_old(browser: Any, small: MadeDocuments) -> None:
    seen = Seen()
    small.view = msgspec.structs.replace(small.view, time=small.view.time - timedelta(seconds=8))  # nearly old already
    page = browser.new_page()
    page.set_default_timeout(PATIENCE_MILLISECONDS)
    with served_page(small) as address:
        seen.follow(page)
        go_to(page, address)
        page.wait_for_selector(".cap")
    holds(page, "document.querySelector('#notices').textContent.includes('does not answer')")
    holds(page, "document.querySelector('#freshness').dataset.state === 'bad'")
    assert page.locator(".cap").count() == 2  # what is known stays to be seen
    page.close()


def test_what_is_missing_is_told(browser: Any, small: MadeDocuments) -> None:
    small.view = msgspec.structs.replace(small.view, missing={"GPUNodes": "they may not be listed"}, caps=(), jobs=())
    with opened(browser, small) as (page, _, _):
        holds(page, "document.querySelector('#notices').textContent.includes('GPUNodes are missing')")
        assert "There is no PowerCap" in page.locator("#caps").inner_text()
        assert page.locator("#power-figure").is_hidden()
        assert page.locator("#job-count").inner_text() == "There is no EnergyAwareJob."


async def sre_or_power(token: str) -> Viewer:
    if token == "lost":
        raise ApiUnreachable("POST: no answer")
    if token not in ("sre", "power"):
        raise Unauthenticated("the API server does not take this token")
    return Viewer(token, power=True, jobs=token == "sre")


@pytest.mark.parametrize("file", ["heat_map.js", "theme.js", "page.css", "main.js"])
def test_a_file_that_did_not_arrive_is_asked_for_again(browser: Any, small: MadeDocuments, file: str) -> None:
    with opened(browser, small) as (page, _, address):
        page.wait_for_selector(".cap")
        lost = []

        def lose(route: Any) -> None:
            lost.append(route.request.url)
            if len(lost) <= 2:
                route.abort("connectionreset")
            else:
                route.continue_()

        page.route(f"**/static/{file}", lose)
        go_to(page, address)
        page.wait_for_selector(".cap")
        holds(
            page,
            "typeof flyballNextTheme === 'function'"
            " && getComputedStyle(document.querySelector('.badge')).borderRadius !== '0px'",
        )
        holds(page, "sessionStorage.getItem('flyball-reloads') === '0'")  # main.js comes after theme.js
        assert len(lost) == 3
        assert "did not arrive" not in page.locator("#notices").inner_text()


def loads_until_it_is_named(page: Any, seen: Seen, address: str) -> int:
    """How often the page is loaded until it says that a file which never arrives is missing."""
    page.route("**/static/heat_map.js", lambda route: route.abort("connectionreset"))
    seen.requests.clear()
    go_to(page, address)
    holds(page, "document.querySelector('#notices').textContent.includes('main.js did not arrive')")
    return len([url for url in seen.requests if url.endswith("heat_map.js")])


def test_a_file_that_never_arrives_is_named_and_not_asked_for_for_ever(browser: Any, small: MadeDocuments) -> None:
    with opened(browser, small) as (page, seen, address):
        assert loads_until_it_is_named(page, seen, address) == 4


def test_where_nothing_can_be_remembered_a_missing_file_is_named_at_once(browser: Any, small: MadeDocuments) -> None:
    """A storage that is full can be read: each load would be the first."""
    with opened(browser, small) as (page, seen, address):
        page.add_init_script(
            "Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError'); }"
        )
        assert loads_until_it_is_named(page, seen, address) == 1


def test_a_document_that_could_not_be_shown_is_fetched_again(browser: Any, small: MadeDocuments) -> None:
    """Once shown badly it was never shown: the next answers said that nothing had changed."""
    with opened(browser, small) as (page, seen, _):
        page.wait_for_selector(".cap")
        broken = """() => {
            const box = document.querySelector("#job-detail"), whole = box.replaceChildren;
            box.replaceChildren = (...shown) => {
                if (!shown.length) return whole.call(box);
                box.replaceChildren = whole;
                throw new Error("once");
            };
        }"""
        page.evaluate(broken)
        page.locator("#job-table a", has_text="train").click()
        page.wait_for_selector("#job-detail svg.frontier")
        assert any("api/jobs/team/train could not be shown: Error: once" in line for line in seen.console)


def test_a_token_is_asked_for_and_kept_for_this_tab_alone(browser: Any, small: MadeDocuments) -> None:
    with opened(browser, small, find_viewer=sre_or_power) as (page, _, address):
        page.wait_for_selector("#sign-in:not([hidden])")
        assert page.evaluate("document.activeElement.id") == "token"
        assert page.locator(".cap").count() == 0
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        page.wait_for_selector("#sign-in-refusal:not([hidden])")
        page.locator("#token").fill("power")
        page.keyboard.press("Enter")
        page.wait_for_selector("#sign-in", state="hidden")
        page.wait_for_selector(".cap")
        holds(page, "document.querySelector('#job-count').textContent.includes('may not list energyawarejobs')")
        page.reload()
        page.wait_for_selector(".cap")
        assert "power" not in page.evaluate("JSON.stringify(localStorage) + document.cookie + location.href")
        other = browser.new_page()
        go_to(other, address)
        other.wait_for_selector("#sign-in:not([hidden])")
        other.close()


# Draws all nodes and the first hundred of them in turn; milliseconds of the quickest of each.
REDRAW = """async () => {
  const { HeatMap } = await import("./static/heat_map.js");
  const frame = document.createElement("div");
  frame.style.width = "1200px";
  document.body.append(frame);
  const all = await (await fetch("api/nodes")).json();
  const first = (column) => Array.isArray(column) ? column.slice(0, 100) : column;
  const some = Object.fromEntries(Object.entries(all).map(([key, column]) => [key, first(column)]));
  const draw = (nodes) => {
    const canvas = document.createElement("canvas");
    frame.replaceChildren(canvas);
    const map = new HeatMap(canvas, document.createElement("p"), { now: () => Date.now() / 1000, onOpen: () => {} });
    const began = performance.now();
    map.show(nodes);
    canvas.getContext("2d").getImageData(0, 0, 1, 1);
    return performance.now() - began;
  };
  const times = { some: [], all: [] };
  for (let round = 0; round < 12; round += 1) {
    times.some.push(draw(some));
    times.all.push(draw(all));
  }
  frame.remove();
  return [Math.min(...times.some), Math.min(...times.all)];
}"""


def test_a_thousand_nodes_are_no_trouble(browser: Any) -> None:
    made = large_page(1000, jobs=200)
    with opened(browser, made) as (page, seen, _):
        holds(page, "document.querySelector('#node-map').getAttribute('aria-label').includes('1,000 nodes')")
        holds(page, "document.querySelectorAll('#job-table tbody tr').length === 25")
        elements = page.evaluate("document.querySelectorAll('*').length")
        # A change comes through, and the page grows by nothing.
        made.view = large_cluster(1000, jobs=200, wave=1)
        asked = made.asked["nodes"]
        wait_until(lambda: made.asked["nodes"] > asked + 1, "two more rounds")
        assert page.evaluate("document.querySelectorAll('*').length") <= elements + 20
        assert elements < 2500
        assert seen.complaints == []
        some, every = page.evaluate(REDRAW)
    # Ten times the nodes may take some ten times as long, whatever machine this is, and not a hundred times.
    assert every <= 30 * max(some, 0.2), (some, every)
