"""How many examples a property is tried on: all in `make properties`, half in `make test`, a tenth in `make test-fast`.

The profile says so: `full`, `half`, `fast`, `thorough` for a property that is to be tried for minutes, `gate` for as
many as in `make test` and the same ones whenever a test is as it was (so that a change is not refused for what another one
brought; Hypothesis' own profile for CI does so), or `repeatable` for a third of all, none shrunk, which is what finds the
mistakes of `make mutants`. A property's own number is written as `max_examples=examples(400)`. No profile has a deadline or
calls an example slow: on a loaded machine any may take any time.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants
from hypothesis.strategies import SearchStrategy, sampled_from

Case = TypeVar("Case")

FULL_EXAMPLES = 100  # for a property without a number of its own
HALF_EXAMPLES = 50
FAST_EXAMPLES = 10
THOROUGH_EXAMPLES = 3000
REPEATABLE_EXAMPLES = 33

# Of Hypothesis' own values, whatever it finds the machine to be: where it sees CI, what is left out means another thing.
_COMMON = settings(
    settings.get_profile("default"), deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("full", _COMMON, max_examples=FULL_EXAMPLES)
settings.register_profile("half", _COMMON, max_examples=HALF_EXAMPLES)
settings.register_profile("gate", _COMMON, max_examples=HALF_EXAMPLES, derandomize=True, database=None)
settings.register_profile("fast", _COMMON, max_examples=FAST_EXAMPLES)
settings.register_profile("thorough", _COMMON, max_examples=THOROUGH_EXAMPLES)
settings.register_profile(
    "repeatable",
    _COMMON,
    max_examples=REPEATABLE_EXAMPLES,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate),
)
settings.load_profile("half")

_constants_of_what_is_imported = providers._get_local_constants


def _local_constants() -> Constants:
    """Numbers and words of our own modules, of which Hypothesis draws some: where examples repeat themselves, of none.

    They are those of the modules that have been imported by then, which differs from worker to worker and from run to run.
    """
    now = settings.default
    return Constants() if now is not None and now.derandomize else _constants_of_what_is_imported()


providers._get_local_constants = _local_constants


def _tried() -> int:
    return FULL_EXAMPLES if settings.default is None else settings.default.max_examples


def examples(number: int) -> int:
    """`number` in the full profile, as large a part of it in another one as that tries by default."""
    return max(1, number * _tried() // FULL_EXAMPLES)


def part_of(cases: Sequence[Case]) -> Sequence[Case]:
    """All of these cases in `make test` and where more is tried, and where less is, as large a part as of examples."""
    return cases if _tried() >= HALF_EXAMPLES else cases[: examples(len(cases))]


@functools.lru_cache(maxsize=None, typed=True)
def of(*values: Any) -> SearchStrategy[Any]:
    """`sampled_from` these, made once: one that a composite strategy makes anew for each draw is checked each time."""
    return sampled_from(values)
