"""The page of a comparison."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from flyball_simulator.experiments.comparison import comparisons, curves
from flyball_studies.simulation.report import duration, energy, report_html

from tests.support.made_outcomes import FAILED, MADE, outcome

VOID = {"meta", "br", "link", "img", "hr", "input"}


class _Nesting(HTMLParser):
    """Elements that are open, the ids, and what is referred to."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            elif name in ("href", "src", "xlink:href", "action", "data"):
                self.references.append(value or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_report_is_one_page_that_asks_for_nothing() -> None:
    made = curves(MADE)
    page = report_html(
        "A <title>", [("trace", "mine & yours")], [*MADE, FAILED], made, comparisons(MADE), "flyball compare"
    )
    assert page.startswith("<!doctype html>")
    assert "A &lt;title&gt;" in page
    assert "mine &amp; yours" in page
    assert "it &lt;broke&gt;" in page
    assert page.count("<svg") == 3
    for outside in ("http://", "https://", "src=", "@import", "<script", "<link"):
        assert outside not in page
    for label in ("price", "afs"):
        assert label in page
    with pytest.raises(ValueError, match="no run has ended"):
        report_html("nothing", [], [FAILED], [], [], "")


def test_figures_are_said_in_units_that_people_use() -> None:
    assert [duration(s) for s in (45.0, 738.0, 16_400.0, 200_000.0)] == ["45 s", "12.3 min", "4.56 h", "2.31 d"]
    assert [energy(j) for j in (5.0, 5e3, 5e6, 5.25e9)] == ["5 J", "5 kJ", "5 MJ", "5.25 GJ"]


@pytest.mark.slow
def test_the_page_is_well_formed_and_refers_only_to_itself() -> None:
    page = report_html("title", [("trace", "mine")], [*MADE, FAILED], curves(MADE), comparisons(MADE), "flyball")
    reader = _Nesting()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    assert len(reader.ids) == len(set(reader.ids)), "three pictures on one page share no id"
    referred = {*reader.references, *re.findall(r"url\(([^)]*)\)", page)}
    assert referred
    assert {reference.removeprefix("#") for reference in referred} <= set(reader.ids)


@pytest.mark.slow
def test_a_run_that_failed_is_named_with_its_error() -> None:
    lost = replace(FAILED, error="its process ended with signal SIGKILL")
    page = report_html("title", [], [*MADE, lost], curves(MADE), comparisons(MADE), "flyball")
    assert "<b>1 runs failed</b>" in page
    assert f"<li>{lost.cell}: its process ended with signal SIGKILL</li>" in page
    assert f"{len(MADE)} of {len(MADE) + 1}" in page
    assert "gandiva" not in page.replace(str(lost.cell), ""), "it is in no figure and no table"


@pytest.mark.slow
def test_a_pair_that_shares_no_energy_has_a_dash_and_the_reason() -> None:
    apart = [outcome("price", 0, 1e9, 10.0), outcome("afs", 0, 2e9, 30.0)]
    page = report_html("title", [], apart, curves(apart), comparisons(apart), "flyball")
    assert "– <small>(3.00)</small>" in page, "price is faster with less energy"
    assert "shares no energy range" in page


def test_one_policy_alone_is_compared_with_nobody() -> None:
    alone = MADE[:2]
    assert "At equal energy" not in report_html("title", [], alone, curves(alone), comparisons(alone), "flyball")
