"""The pictures: every series has its name, and what is drawn is what was."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from flyball_simulator.experiments.comparison import curves
from flyball_studies.simulation.plots import (
    COLOURS_AND_MARKERS,
    MEAN_JCT,
    P99_JCT,
    binned,
    energy_figure,
    inline_svg,
    inlined,
    look_of,
    pareto_figure,
    png,
    timeline_figure,
)
from matplotlib.figure import Figure

from tests.support.made_outcomes import MADE, outcome
from tests.support.made_results import RESULT


def names(figure: Figure) -> list[str]:
    """What the legend of the whole figure says."""
    return [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.mark.slow
def test_pictures_name_every_policy() -> None:
    made = curves(MADE)
    with inlined():
        svg = inline_svg(pareto_figure(made, MEAN_JCT, "heading"), "mean", "described")
    for text in ("price", "afs", "heading", "total energy", 'aria-label="described"'):
        assert text in svg
    assert png(energy_figure(made)).startswith(b"\x89PNG")


def test_a_curve_goes_through_its_settings_in_the_units_of_the_axes() -> None:
    figure = pareto_figure(curves(MADE), P99_JCT)
    assert names(figure) == ["price", "afs"], "the best first"
    (plot,) = figure.axes
    (price,) = (line for line in plot.get_lines() if line.get_label() == "price")
    assert price.get_xydata() == pytest.approx(np.array([[2.0, 1800 / 60], [4.0, 9 * 100.5 / 60]]))  # GJ, minutes
    assert plot.get_xlabel() == "total energy (GJ)"
    assert plot.get_ylabel() == "p99 JCT (minutes)"


def test_bars_are_the_joules_of_the_thriftiest_and_the_fastest_setting() -> None:
    figure = energy_figure(curves(MADE))
    assert names(figure) == ["GPUs at work", "idle GPUs"], "no node drew anything"
    thriftiest, fastest = (
        [[bar.get_width() for bar in bars] for bars in panel.containers]  # type: ignore[attr-defined]
        for panel in figure.axes
    )
    assert thriftiest == [pytest.approx([1.8, 2.7]), pytest.approx([0.2, 0.3])]
    assert fastest == [pytest.approx([3.6, 2.7]), pytest.approx([0.4, 0.3])]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["price", "afs"]


@pytest.mark.slow
def test_a_run_over_time_names_its_series() -> None:
    power, gpus, jobs = timeline_figure(RESULT).axes
    assert [plot.get_legend_handles_labels()[1] for plot in (power, gpus, jobs)] == [
        ["GPUs", "cap"],
        ["busy", "powered on", "all"],
        ["running", "waiting"],
    ]
    with_nodes = replace(RESULT, settings=replace(RESULT.settings, node_overhead_watts=100.0))
    power = timeline_figure(with_nodes).axes[0]
    drawn = {str(line.get_label()): line.get_ydata() for line in power.get_lines()}
    assert np.max(drawn["with nodes"]) == pytest.approx(3.0)  # kW
    assert np.max(drawn["GPUs"]) == pytest.approx(2.8), "a cap is on the GPUs alone"
    calm = tuple(replace(sample, cap_watts=None, powered_nodes=2) for sample in RESULT.samples)
    power, gpus, _ = timeline_figure(replace(RESULT, samples=calm)).axes
    assert power.get_legend_handles_labels()[1] == ["GPUs"]
    assert gpus.get_legend_handles_labels()[1] == ["busy", "all"]
    assert png(timeline_figure(replace(RESULT, samples=()))).startswith(b"\x89PNG"), "also of nothing"


def test_bins_are_means_by_time_with_their_range() -> None:
    """10 from 0 s, 40 from 3 s, 0 from 4 s on; bins of 2 s."""
    mean, low, high = binned(np.array([0.0, 3.0, 4.0]), np.array([10.0, 40.0, 0.0]), np.array([0.0, 2.0, 4.0, 6.0]))
    assert mean == pytest.approx([10.0, 25.0, 0.0])
    assert low == pytest.approx([10.0, 10.0, 0.0])
    assert high == pytest.approx([10.0, 40.0, 0.0])
    late = binned(np.array([1.0]), np.array([8.0]), np.array([0.0, 2.0]))
    assert [one[0] for one in late] == [4.0, 0.0, 8.0], "nothing before the first sample"


def test_a_policy_looks_the_same_everywhere_and_unlike_the_others() -> None:
    assert len(set(COLOURS_AND_MARKERS.values())) == len(COLOURS_AND_MARKERS)
    labels = ["afs", "afs+zeus", "mine", "yours"]
    assert look_of("afs", labels) == look_of("afs", ["afs"])
    assert look_of("afs+zeus", labels) == look_of("afs", labels)._replace(hollow=True)
    assert look_of("mine", labels)[:2] != look_of("yours", labels)[:2]
    both = ["price", "price, nodes off"]
    assert [look_of(label, both).hollow for label in both] == [True, False]


def test_one_run_of_one_policy_is_a_picture_too() -> None:
    alone = curves([outcome("price", 0, 1.0, 1e-3)])
    for figure in (pareto_figure(alone, MEAN_JCT), energy_figure(alone)):
        assert png(figure).startswith(b"\x89PNG")
