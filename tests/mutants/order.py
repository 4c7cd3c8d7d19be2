"""In which order tests are tried on a mutant: those first that are likely to notice it soon."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tests.mutants.mutate import Mutant

# By how much more a test is worth trying for each mutant of the same function, and of the same module, that it noticed.
OF_FUNCTION, OF_MODULE = 100, 10
LEAST_SECONDS = 0.002  # what trying any test costs


class Order:
    """What has noticed which mutants so far."""

    def __init__(self) -> None:
        self._noticed: Counter[tuple[str, str]] = Counter()  # by a module or its function, and a test

    def noticed(self, mutant: Mutant, test: str) -> None:
        """A test has failed with the mutant."""
        for place in _places(mutant):
            self._noticed[place, test] += 1

    def of(self, mutant: Mutant, seconds: Iterable[tuple[str, float]]) -> list[str]:
        """These tests in order, each given with the processor time that it takes."""
        module, function = _places(mutant)

        def weight(test: tuple[str, float]) -> float:
            name, takes = test
            proven = OF_FUNCTION * self._noticed[function, name] + OF_MODULE * self._noticed[module, name]
            return max(LEAST_SECONDS, takes) / (1 + proven)

        return [name for name, _ in sorted(seconds, key=weight)]


def _places(mutant: Mutant) -> tuple[str, str]:
    return mutant.module, f"{mutant.module}:{mutant.function}"
