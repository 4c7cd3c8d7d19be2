"""What is compared with every node has its turn, and no cycle compares more than a cut can wait for."""

from __future__ import annotations

import pytest
from flyball_operator.jobs.feasibility.comparisons import MOST_COMPARISONS, Comparisons
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import of


class Compared:
    """What was compared in the cycle, and with what found before."""

    def __init__(self) -> None:
        self.comparisons: Comparisons[str, str, int] = Comparisons()
        self.now: dict[str, int | None] = {}
        self.cycles = 0

    def step(self, *names: str, nodes: int, demands: dict[str, str] | None = None) -> dict[str, int]:
        self.now, self.cycles = {}, self.cycles + 1
        return self.comparisons.step({name: (demands or {}).get(name, name) for name in names}, nodes, self._compare)

    def _compare(self, demands: str, asked: str, before: int | None) -> int:
        assert demands.startswith(asked)
        self.now[asked] = before
        return self.cycles


def test_what_fits_into_a_cycle_is_compared_in_each() -> None:
    compared = Compared()
    half = MOST_COMPARISONS // 2
    assert compared.step("a", "b", nodes=half) == {"a": 1, "b": 1}
    assert compared.step("b", "a", nodes=half) == {"a": 2, "b": 2}
    assert compared.now == {"a": 1, "b": 1}
    assert compared.comparisons.outstanding == 0


def test_what_does_not_stands_until_its_next_turn() -> None:
    compared = Compared()
    assert compared.step("a", "b", "c", nodes=MOST_COMPARISONS) == {"a": 1}
    assert compared.comparisons.outstanding == 2
    assert compared.step("a", "b", "c", nodes=MOST_COMPARISONS) == {"a": 1, "b": 2}
    assert compared.step("a", "b", "c", nodes=10 * MOST_COMPARISONS) == {"a": 1, "b": 2, "c": 3}, "one at the least"
    assert compared.comparisons.outstanding == 0
    assert compared.step("a", "b", "c", nodes=MOST_COMPARISONS) == {"a": 4, "b": 2, "c": 3}


def test_what_is_asked_anew_by_the_same_name_has_nothing_found_yet() -> None:
    compared = Compared()
    compared.step("a", "b", nodes=1)
    assert compared.step("a", "b", nodes=MOST_COMPARISONS, demands={"a": "a of another"}) == {"a": 2, "b": 1}
    assert compared.now == {"a": None}
    assert compared.step("b", nodes=1) == {"b": 3}, "who is gone is forgotten"
    compared.step("a", "b", nodes=1)
    assert compared.now["a"] is None


@given(st.lists(st.lists(of(*"abcdefgh"), unique=True), min_size=1, max_size=30), st.integers(1, 4))
def test_whatever_was_asked_before_all_have_had_their_turn_once_there_were_as_many_turns(
    cycles: list[list[str]], turns: int
) -> None:
    compared = Compared()
    last: dict[str, int] = {}
    for names in cycles:
        found = compared.step(*names, nodes=MOST_COMPARISONS // turns)
        assert len(compared.now) == min(turns, len(names))
        if len(names) > turns:
            among = [name for name in names if name in last and name not in compared.now]
            assert all(last[name] >= last[each] for name in among for each in compared.now if each in last)
        last = {name: at for name, at in last.items() if name in names} | dict.fromkeys(compared.now, compared.cycles)
        assert found == last
    everybody = "abcdefgh"
    for _ in range(4 * -(-len(everybody) // (3 * turns))):
        found = compared.step(*everybody, nodes=MOST_COMPARISONS // turns)
    assert set(found) == set(everybody)
    assert compared.comparisons.outstanding == 0


@pytest.mark.parametrize("turns", [1, 2, 5])
def test_whoever_asks_for_something_else_all_the_time_keeps_nobody_waiting(turns: int) -> None:
    """Neither who was compared before, nor who has come by then; what is edited has come anew."""
    compared = Compared()
    for _ in range(10):
        compared.step("old", nodes=1)
    honest = None
    for cycle in range(40):
        flood = {f"f{number}": f"f{number} of {cycle}" for number in range(2 * turns)}
        later = ("honest",) if cycle >= 20 else ()
        found = compared.step(*flood, "old", *later, nodes=MOST_COMPARISONS // turns, demands=flood)
        assert found["old"] >= compared.cycles - 8, "it shares its turns with who came later"
        honest = honest or found.get("honest")
    assert honest is not None
    assert honest <= 10 + 20 + 2 * 2


@pytest.mark.parametrize("turns", [1, 4, 10])
def test_what_takes_more_effort_has_its_turn_and_leaves_fewer_to_others(turns: int) -> None:
    """Somebody can have hundreds of demands each take a node as long as twenty of other people's."""
    now: list[str] = []

    def compare(demands: str, asked: str, before: int | None) -> int:
        now.append(asked)
        return len(now)

    comparisons: Comparisons[str, str, int] = Comparisons(len)
    light, heavy = [f"{number}" for number in range(8)], [f"{number}" * 4 for number in range(8)]
    seen: set[str] = set()
    for _ in range(64):
        now.clear()
        found = comparisons.step({name: name for name in (*heavy, *light)}, MOST_COMPARISONS // turns, compare)
        assert sum(map(len, now)) <= max(turns, 4) + 4, (
            "one of the new, and one of the others, may be more than is left"
        )
        seen |= set(now)
    assert seen == set(found) == {*light, *heavy}
    now.clear()
    comparisons.step(dict.fromkeys(("1", "22"), "x" * 4), MOST_COMPARISONS // 8, compare)
    assert now == ["1", "22"], "all that can be are compared in each cycle"
    assert comparisons.all_at_once(["x" * 4] * 2, MOST_COMPARISONS // 8)
    assert not comparisons.all_at_once(["x" * 4] * 2, MOST_COMPARISONS // 7)
