"""Which batch size is believed cheapest, how surely, and which one to run next.

Two ways to choose. `choose_arm` is Gaussian Thompson sampling with unknown variance: Zeus, section 4.3, Algorithms 1 and 2,
with section 4.4's unknown variance. The mean cost of a batch size is believed to be N(mean, variance); the variance of
single costs is estimated for each from what was observed of it.

`most_valuable_arm` is the knowledge gradient of an online problem (Ryzhov, Powell and Frazier, Operations Research 60(1),
2012): one run of an arm costs what it costs, and is worth what the choices after it are expected to save by what it
teaches. Runs of all batch sizes vary for the same reason, epochs to the target, so their relative spread is estimated from
all of them together: two runs of each say little alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

UNSEEN_SPREAD = 0.14
"""Relative standard deviation of a cost seen once: runs of one configuration vary by up to 14 % (Zeus, section 3.2)."""

PRIOR_DEGREES = 2
"""How many runs `UNSEEN_SPREAD` counts as, where spreads are pooled."""

LEAST_SPREAD = 0.01
"""Relative standard deviation that is never gone below.

Costs are a whole number of epochs, so that two equal ones are common and prove little; an estimated variance of zero
would make the belief certain and end exploration for good.
"""


@dataclass(frozen=True, slots=True)
class Belief:
    """What is believed of one arm's mean cost: N(`mean`, `variance`), from `observations` costs."""

    mean: float
    variance: float
    observations: int


FLAT_PRIOR = Belief(mean=0.0, variance=math.inf, observations=0)
"""Nothing is known: the default assumption (Zeus, section 4.3)."""


def learn(costs: Sequence[float], prior: Belief = FLAT_PRIOR) -> Belief:
    """The posterior belief of an arm's mean cost from its observed costs (Zeus, Algorithm 2, Observe).

    The variance of a cost is the unbiased estimate of section 4.4, never below `LEAST_SPREAD` of the mean; a cost seen
    once is taken to vary by `UNSEEN_SPREAD`. Without costs it is the prior. Raises ValueError where a cost is not a
    positive number.
    """
    if not costs:
        return prior
    if not all(cost > 0 and math.isfinite(cost) for cost in costs):
        raise ValueError(f"costs {list(costs)}: every cost must be a positive number of joules")
    mean = math.fsum(costs) / len(costs)
    deviation = UNSEEN_SPREAD * mean
    if len(costs) > 1:
        deviation = math.sqrt(math.fsum((cost - mean) ** 2 for cost in costs) / (len(costs) - 1))
    variance = max(deviation, LEAST_SPREAD * mean) ** 2
    prior_precision = 0.0 if math.isinf(prior.variance) else 1.0 / prior.variance
    posterior_variance = 1.0 / (prior_precision + len(costs) / variance)
    return Belief(
        mean=posterior_variance * (prior_precision * prior.mean + len(costs) * mean / variance),
        variance=posterior_variance,
        observations=prior.observations + len(costs),
    )


def choose_arm(beliefs: Mapping[int, Belief], rng: np.random.Generator) -> int:
    """The arm of least sampled mean cost (Zeus, Algorithm 1, Predict).

    An arm under the flat prior could cost anything, so it goes first; several such in random order, lest concurrent
    choices all take the same. Raises ValueError without arms.
    """
    if not beliefs:
        raise ValueError("no arm to choose from")
    unseen = sorted(arm for arm, belief in beliefs.items() if math.isinf(belief.variance))
    if unseen:
        return int(rng.choice(unseen))
    arms = sorted(beliefs)
    means = np.array([beliefs[arm].mean for arm in arms])
    deviations = np.sqrt([beliefs[arm].variance for arm in arms])
    return arms[int(np.argmin(rng.normal(means, deviations)))]


def pooled_spread(costs: Iterable[Sequence[float]]) -> float:
    """Relative standard deviation of one cost around its arm's mean, over all arms, never below `LEAST_SPREAD`."""
    squares, degrees = PRIOR_DEGREES * UNSEEN_SPREAD**2, float(PRIOR_DEGREES)
    for seen in costs:
        if len(seen) > 1:
            mean = math.fsum(seen) / len(seen)
            squares += math.fsum((cost / mean - 1.0) ** 2 for cost in seen)
            degrees += len(seen) - 1
    return max(math.sqrt(squares / degrees), LEAST_SPREAD)


def most_valuable_arm(costs: Mapping[int, Sequence[float]], spread: float, horizon: float) -> int:
    """The arm whose mean cost, less what one more cost of it is worth over the next `horizon` choices, is least.

    `costs` are those seen of each arm; one without any goes first, the smallest of several. `spread` is the relative
    standard deviation of a single cost. Raises ValueError without arms.
    """
    if not costs:
        raise ValueError("no arm to choose from")
    unseen = [arm for arm, seen in costs.items() if not seen]
    if unseen or len(costs) == 1:
        return min(unseen or costs)
    means = {arm: math.fsum(seen) / len(seen) for arm, seen in costs.items()}
    first, second, *_ = sorted(means, key=lambda arm: (means[arm], arm))

    def index(arm: int) -> float:
        moves = spread * means[arm] / math.sqrt(len(costs[arm]) * (len(costs[arm]) + 1))
        gap = abs(means[arm] - means[second if arm == first else first]) / moves
        return means[arm] - horizon * moves * (_density(gap) - gap * _tail(gap))

    return min(means, key=lambda arm: (index(arm), arm))


def _density(x: float) -> float:
    return math.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def _tail(x: float) -> float:
    """The probability that a standard normal variable is above x."""
    return 0.5 * math.erfc(x / math.sqrt(2))
