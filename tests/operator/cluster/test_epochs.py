"""Which epochs there have been: an agent's word on one that nothing else knows counts, and not as often as it likes."""

from __future__ import annotations

from flyball_operator.cluster.epochs import MAX_EPOCHS_LOST, SECONDS_BETWEEN_WORDS, WORDS_AT_ONCE, Epochs


class Bench:
    """Epochs that leaders go above, as they are told of them."""

    def __init__(self) -> None:
        self.now = 0.0
        self.epochs = Epochs(lambda: self.now)
        self.written = 1

    def is_heard(self, said: int, *, by: str = "a", **others: int) -> bool:
        """Whether the node's word counts; if so, the next leader writes the epoch above it."""
        highest = self.epochs.take_in(self.written, {by: said, **others})
        self.written = highest if highest == self.written else highest + 1
        return highest == said


def test_what_is_written_counts_and_an_agents_word_above_it() -> None:
    epochs = Epochs(lambda: 0.0)
    assert epochs.take_in(0, {}) == 0
    assert epochs.take_in(3, {"a": 2, "b": 5, "c": 4}) == 5
    assert epochs.take_in(3, {"a": 2, "b": 5}) == 5, "said once, it is as good in the next cycle"


def test_a_word_too_far_ahead_counts_for_nothing() -> None:
    epochs = Epochs(lambda: 0.0)
    assert epochs.take_in(3, {"a": 4 + MAX_EPOCHS_LOST}) == 3
    assert epochs.take_in(3, {"a": 3 + MAX_EPOCHS_LOST}) == 3 + MAX_EPOCHS_LOST


def test_a_node_that_says_another_epoch_all_the_time_ends_few_terms() -> None:
    bench, ended = Bench(), 0
    for _ in range(10 * int(SECONDS_BETWEEN_WORDS)):
        ended += bench.is_heard(bench.written + 7)
        bench.now += 1.0
    assert WORDS_AT_ONCE <= ended <= WORDS_AT_ONCE + 10


def test_a_node_that_takes_its_word_back_in_between_ends_no_more() -> None:
    """Who has its agent's token writes what its status acknowledges, and may leave it out."""
    bench, ended = Bench(), 0
    for _ in range(10 * WORDS_AT_ONCE):
        ended += bench.is_heard(bench.written + 7)
        bench.epochs.take_in(bench.written, {})
        bench.now += 1.0
    assert ended == WORDS_AT_ONCE


def test_a_node_that_was_silent_for_long_is_heard_as_one_that_never_spoke() -> None:
    bench = Bench()
    while bench.is_heard(bench.written + 7):
        pass
    bench.now += WORDS_AT_ONCE * SECONDS_BETWEEN_WORDS
    bench.epochs.take_in(bench.written, {})
    assert all(bench.is_heard(bench.written + 7) for _ in range(WORDS_AT_ONCE))


def test_the_word_of_another_node_counts_all_the_same() -> None:
    """The store was restored while somebody plays with a token."""
    bench = Bench()
    while bench.is_heard(bench.written + 7):
        pass
    assert bench.epochs.take_in(bench.written, {"a": bench.written + 9, "b": bench.written + 4}) == bench.written + 4


def test_several_restores_in_a_row_are_each_noticed_by_any_node() -> None:
    bench = Bench()
    for _ in range(WORDS_AT_ONCE):
        before = bench.written
        assert bench.is_heard(before + 3, b=before + 3)
        bench.written = before + 1  # put back to before that
        bench.now += 60.0
