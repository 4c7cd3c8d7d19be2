"""Gaussian Thompson sampling with unknown variance: which batch size is believed cheapest, and how surely.

Zeus, section 4.3, Algorithms 1 and 2, with section 4.4's unknown variance. The mean cost of a batch size is believed
to be N(mean, variance); the variance of single costs is estimated from what was observed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

UNSEEN_SPREAD = 0.14
"""Relative standard deviation of a cost seen once: runs of one configuration vary by up to 14 % (Zeus, section 3.2)."""

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
