"""What runs come to: curves over seeds, one document, one table."""

from __future__ import annotations

import pytest
from flyball_simulator.experiments.comparison import Estimate, comparison_document, comparisons, curves, run_rows

from tests.support.made_outcomes import FAILED, MADE, outcome


def test_curves_are_means_over_seeds_with_their_intervals() -> None:
    price, afs = curves([*MADE, FAILED])
    assert (price.label, afs.label) == ("price", "afs"), "the fastest first, what failed nowhere"
    assert [one.sweep[0][1] for one in price.settings] == [1.0, 0.0, 2.0], "by energy"
    assert [one.on_envelope for one in price.settings] == [True, True, False]
    assert price.fastest.mean_jct_seconds == Estimate(pytest.approx(100.5), pytest.approx(12.7062 / 2, rel=1e-4))  # type: ignore[arg-type]
    assert price.fastest.max_watts == 1001.0, "the worst of any seed"
    assert Estimate.of([5.0]) == Estimate(5.0, 0.0)


def test_the_documents_hold_every_run_and_what_failed() -> None:
    document = comparison_document([*MADE, FAILED], comparisons([*MADE, FAILED]))
    assert len(document["runs"]) == len(MADE)
    assert document["runs"][0]["sweep"] == {"price": 0.0}
    assert document["failed"][0]["error"] == "it <broke>"
    assert {(entry["policy"], entry["against"]) for entry in document["at_equal_energy"]} == {
        ("price", "afs"),
        ("afs", "price"),
    }
    rows = run_rows([*MADE, FAILED])
    assert len(rows) == len(MADE)
    assert rows[0]["total_joules"] == 4e9


def test_seeds_are_compared_with_themselves_and_averaged_geometrically() -> None:
    """Seed 1 needs ten times the energy of seed 0 under both policies: only pairs of one seed say anything."""
    runs = [
        *(
            outcome("price", seed, joules * 10**seed, seconds)
            for seed in (0, 1)
            for joules, seconds in ((2e9, 20.0), (4e9, 10.0))
        ),
        *(outcome("afs", 0, joules, seconds) for joules, seconds in ((2e9, 40.0), (4e9, 20.0))),
        *(outcome("afs", 1, 10 * joules, seconds) for joules, seconds in ((2e9, 160.0), (4e9, 80.0))),
    ]
    found = [entry for entry in comparisons(runs) if (entry.policy, entry.against) == ("price", "afs")]
    assert [entry.mean_jct_ratio for entry in found] == pytest.approx([4.0] * 11), "the geometric mean of 2 and 8"
    assert [entry.energy_joules for entry in (found[0], found[-1])] == pytest.approx([11e9, 22e9])
    assert {entry.seeds for entry in found} == {2}


def test_rows_hold_what_any_run_swept() -> None:
    rows = run_rows(MADE)
    assert len({tuple(row) for row in rows}) == 1, "one heading"
    assert not any(isinstance(value, dict) for row in rows for value in row.values())
    assert run_rows([FAILED]) == []
