"""Which samples each process trains on: every one once, in the order of the seed, whatever the sizes."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from flyball.sampling import Order, Position, parts_of
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples


@given(size=st.integers(1, 3000), seed=st.integers(-(2**70), 2**70), epoch=st.integers(0, 10**6))
@settings(max_examples=examples(100), deadline=None)
def test_an_order_is_a_permutation(size: int, seed: int, epoch: int) -> None:
    order = Order(size, seed, epoch)
    assert sorted(order) == list(range(size))
    assert list(Order(size, seed, epoch)) == list(order)


def test_the_order_of_a_seed_stays_what_it_is_in_every_version() -> None:
    """A checkpoint in the middle of an epoch is gone on from by whatever version comes next."""
    assert list(Order(12, 7, 3)) == GOLDEN
    assert [Order(10**12, 7, 3)[place] for place in range(3)] == GOLDEN_LARGE


GOLDEN = [4, 3, 1, 9, 6, 11, 5, 2, 0, 7, 10, 8]
GOLDEN_LARGE = [265223014637, 971467039994, 511431044652]


def test_seeds_and_epochs_give_other_orders_and_none_keeps_them() -> None:
    orders = {tuple(Order(50, seed, epoch)) for seed in range(20) for epoch in range(20)}
    assert len(orders) == 400
    assert list(Order(50, 1, 1, shuffle=False)) == list(range(50))


@pytest.mark.parametrize("size", [2, 3, 7, 10, 16])
def test_every_sample_is_as_often_at_every_place(size: int) -> None:
    """Chi-square of 3,000 epochs over the places of each sample: far below what a bias of a tenth would give."""
    epochs = 3000
    seen = Counter((place, sample) for epoch in range(epochs) for place, sample in enumerate(Order(size, 5, epoch)))
    expected = epochs / size
    worst = max(abs(seen[place, sample] - expected) for place in range(size) for sample in range(size))
    assert worst < 6 * expected**0.5, (worst, expected)


def test_neighbours_are_not_kept_together() -> None:
    """Of 1,000 samples about one of those that were neighbours still is: as in a shuffled list."""
    kept = [
        sum(abs(a - b) == 1 for a, b in itertools.pairwise(order))
        for order in map(list, (Order(1000, 1, e) for e in range(40)))
    ]
    assert 1.0 < sum(kept) / len(kept) < 3.0


@given(
    size=st.integers(1, 400),
    batch=st.integers(1, 100),
    world=st.integers(1, 17),
    max_part=st.none() | st.integers(1, 40),
    seed=st.integers(0, 100),
)
@settings(max_examples=examples(300), deadline=None)
def test_the_parts_of_all_processes_are_the_global_batches(
    size: int, batch: int, world: int, max_part: int | None, seed: int
) -> None:
    order = Order(size, seed, 0)
    start = 0
    while start < size:
        shares = [list(parts_of(order, start, batch, rank, world, max_part)) for rank in range(world)]
        trained = [index for share in shares for part in share if part.samples for index in part.indices]
        taken = min(batch, size - start)
        assert trained == [order[place] for place in range(start, start + taken)]
        assert len({len(share) for share in shares}) == 1, "as many parts for everybody: all take part in each"
        for share in shares:
            assert [part.completes_batch for part in share] == [False] * (len(share) - 1) + [True]
            for part in share:
                assert len(part.indices) == max(part.samples, 1)
                assert part.samples == 0 or max_part is None or part.samples <= max_part
                assert part.global_samples == taken
        # What averaging over the processes makes of weighted means is the mean over the global batch.
        sums = sum(part.weight * sum(part.indices) / len(part.indices) for share in shares for part in share) / world
        assert sums == pytest.approx(sum(trained) / taken)
        start += batch


def test_a_position_ends_an_epoch_with_its_last_sample() -> None:
    position = Position().after(40, 100).after(40, 100)
    assert position == Position(2, 0, 80)
    assert position.after(20, 100) == Position(3, 1, 0)


def test_an_empty_dataset_and_a_place_outside_are_refused() -> None:
    with pytest.raises(ValueError, match="0 samples"):
        Order(0, 1, 1)
    with pytest.raises(IndexError, match=r"place 5 is not within 0\.\.4"):
        Order(5, 1, 1)[5]
